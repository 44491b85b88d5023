"""The server's record of its clients: who has paid what, which model each has, and its statement.

A SuperNode that restarts comes back with another node id, unless it has a key of its own. So nodes
say who they are (`Reply.member`), and accounts are kept by member. A node that has said nothing yet
has an account by its id, which is added to its member's as soon as that is known.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.engines.flower.account import plain_value, unpacked_state
from diffsketch.engines.flower.records import NO_MODEL
from diffsketch.engines.flower.refusals import member_digest
from diffsketch.errors import DataError
from diffsketch.learning.participation import Participation
from diffsketch.privacy.accounting.accountant import Budget
from diffsketch.privacy.claim import Claim, Epsilon

__all__ = ["Members"]


@dataclass
class _Node:
    """What is known of a node id."""

    member: str = ""
    version: int = NO_MODEL


class Members:
    """Accounts that grow with the clients.

    Guarantees (`tests/engines/test_flower_books.py`): no member's account is ever less than what
    it was asked for; a node that turns out to be a known member adds to its account; the budget is
    never exceeded.

    Args:
        budget: Where to stop, if anywhere.
        planned: What a round is expected to claim.
    """

    def __init__(self, budget: Budget | None, planned: Claim) -> None:
        self._accounts = Participation(1, budget, planned)
        self._places: dict[str, int] = {}
        self._nodes: dict[int, _Node] = {}
        self._statements: dict[str, bytes] = {}

    def afford(self, claim: Claim, nodes: Iterable[int]) -> None:
        """Raise `BudgetExceeded` if a round with these nodes would cost too much."""
        cohort = self._cohort(nodes)  # before the accounts are looked at: it may make room
        self._accounts.after(claim, cohort)

    def charge(self, claim: Claim, nodes: Iterable[int]) -> None:
        """Let these nodes pay for a round. Whoever was asked may have sent a message.

        Raises:
            BudgetExceeded: It would cost too much.
        """
        cohort = self._cohort(nodes)
        self._accounts = self._accounts.after(claim, cohort)

    def epsilon(self, delta: float) -> Epsilon:
        """What the run has cost the member who paid most."""
        return self._accounts.epsilon(delta)

    @property
    def claim(self) -> Claim | None:
        """What holds for all rounds."""
        return self._accounts.claim

    def rounds_of(self, member: str) -> int:
        """Rounds that a member has paid for."""
        place = self._places.get(f"member {member}")
        return 0 if place is None else int(self._accounts.rounds[place])

    def version_of(self, node: int) -> int:
        """Of the model that a node is known to have."""
        return self._nodes.get(node, _Node()).version

    def statement_for(self, node: int) -> tuple[bytes, bytes]:
        """A node's statement; or, for one that is not known, digests of all who have one."""
        member = self._nodes.get(node, _Node()).member
        if member:
            return self._statements.get(member, b""), b""
        return b"", b"".join(sorted(map(member_digest, self._statements)))

    def heard(self, node: int, *, member: str, version: int, statement: bytes) -> None:
        """A node has said who it is and what it has."""
        known = self._nodes.setdefault(node, _Node())
        known.version = version
        if member != known.member:
            before, known.member = self._name(node), member
            self._merge(before, member)
        if statement:
            self._statements[member] = statement

    def to_text(self) -> str:
        """Accounts and statements as JSON, for the next run with these clients."""
        state = {name: plain_value(value) for name, value in self._accounts.state().items()}
        statements = {name: value.hex() for name, value in self._statements.items()}
        # Ids of nodes mean nothing in another run, so their accounts are nobody's then.
        return json.dumps({"places": self._places, "accounts": state, "statements": statements})

    def load_text(self, text: str) -> None:
        """Go on from what `to_text` said.

        Raises:
            DataError: It is no such text.
        """
        try:
            data = json.loads(text)
            places = {str(name): int(place) for name, place in data["places"].items()}
            state = unpacked_state(data["accounts"])
            clients = len(data["accounts"]["rounds"])
            old = self._accounts
            accounts = Participation(clients, old.budget, old.planned).restored(state)
            statements = {name: bytes.fromhex(one) for name, one in data["statements"].items()}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"the record must be one of this strategy's: {error}") from error
        self._places, self._accounts, self._statements = places, accounts, statements

    def _cohort(self, nodes: Iterable[int]) -> npt.NDArray[np.int64]:
        places = [self._place(self._name(node)) for node in nodes]
        return np.array(sorted(set(places)), np.int64)

    def _name(self, node: int) -> str:
        member = self._nodes.setdefault(node, _Node()).member
        return f"member {member}" if member else f"node {node}"

    def _place(self, name: str) -> int:
        place = self._places.setdefault(name, len(self._places))
        if place >= self._accounts.clients:
            self._resize(max(2 * self._accounts.clients, place + 1))
        return place

    def _resize(self, clients: int) -> None:
        def longer(value: Tensor | str) -> Tensor | str:
            if isinstance(value, str):
                return value
            more = torch.zeros((*value.shape[:-1], clients - value.shape[-1]), dtype=value.dtype)
            return torch.cat([value, more], dim=-1)

        old = self._accounts
        state = {name: longer(value) for name, value in old.state().items()}
        self._accounts = Participation(clients, old.budget, old.planned).restored(state)

    def _merge(self, name: str, member: str) -> None:
        """Move what a node paid under its own name to its member."""
        source = self._places.pop(name, None)
        if source is None:
            return
        target = self._places.setdefault(f"member {member}", source)
        if target == source:
            return
        self._places[f"given up {len(self._places)}"] = source  # places stay dense
        state = self._accounts.state()
        for value in state.values():
            if isinstance(value, Tensor):
                value[..., target] += value[..., source]
                value[..., source] = 0
        old = self._accounts
        self._accounts = Participation(old.clients, old.budget, old.planned).restored(state)
