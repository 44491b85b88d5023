"""The server's record of its clients: who has paid what, which model each has, and its statement.

A SuperNode that restarts comes back with another node id, unless it has a key of its own. So nodes
say who they are (`Reply.member`), and accounts are kept by member. A node that has said nothing yet
has an account by its id, which is added to its member's as soon as that is known.

A round is in the accounts from when it is asked for: what it will cost is known then only as it was
planned, and is set right once it is known who has answered.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.flower.account import plain_value, unpacked_state
from diffsketch.flower.records import NO_MODEL
from diffsketch.flower.refusals import member_digest
from diffsketch.errors import DataError
from diffsketch.training.participation import Participation
from diffsketch.privacy.accounting.accountant import Budget, BudgetExceeded
from diffsketch.privacy.claim import Claim, Epsilon

__all__ = ["Members"]


@dataclass
class _Node:
    """What is known of a node id."""

    member: str = ""
    version: int = NO_MODEL


class Members:
    """Accounts that grow with the clients.

    Guarantees (`tests/flower/test_flower_books.py`): no member's account is ever less than what
    it was asked for; a node that turns out to be a known member adds to its account, and several
    nodes of one member pay for each; no round is begun that the budget does not allow. Only a node
    that was asked before it said who it is can bring its member beyond the budget: that is counted,
    and then no further round is begun.

    Args:
        budget: Where to stop, if anywhere.
        planned: What a round is expected to claim.
    """

    def __init__(self, budget: Budget | None, planned: Claim) -> None:
        self._accounts = Participation(1, budget, planned)
        self._places: dict[str, int] = {}
        self._nodes: dict[int, _Node] = {}
        self._statements: dict[str, bytes] = {}
        self._asked: tuple[Claim, tuple[int, ...]] | None = None

    def afford(self, claim: Claim, nodes: Iterable[int]) -> None:
        """Raise `BudgetExceeded` if a further round with these nodes would cost too much."""
        self.settle()
        self._after(claim, nodes)

    def ask(self, claim: Claim, nodes: Iterable[int]) -> None:
        """Begin a round: whoever is asked may send a message, and pays, whatever comes of it.

        Raises:
            BudgetExceeded: It would cost too much. Nobody may be asked.
        """
        nodes = tuple(nodes)
        self.afford(claim, nodes)
        self._asked = claim, nodes

    def beyond(self, claim: Claim) -> frozenset[int]:
        """Nodes of the round for whom this claim is too much, now that it is known who they are."""
        nodes = () if self._asked is None else self._asked[1]
        try:
            self._after(claim, nodes)
        except BudgetExceeded:
            return frozenset(node for node in nodes if not self._can_pay(claim, node, nodes))
        return frozenset()

    def settle(self, claim: Claim | None = None) -> None:
        """Close the round that was begun, if one was: it has cost this; or what was planned."""
        if self._asked is not None:
            planned, nodes = self._asked
            self._asked = None
            self._accounts = self._paid(planned if claim is None else claim, nodes)

    def charge(self, claim: Claim, nodes: Iterable[int]) -> None:
        """Let these nodes pay for a round: `ask` and `settle`."""
        self.ask(claim, nodes)
        self.settle()

    def epsilon(self, delta: float) -> Epsilon:
        """What the run has cost the member who paid most."""
        return self._all_paid().epsilon(delta)

    @property
    def claim(self) -> Claim | None:
        """What holds for all rounds."""
        return self._all_paid().claim

    def rounds_of(self, member: str) -> int:
        """Rounds that a member has paid for."""
        place = self._places.get(f"member {member}")
        return 0 if place is None else int(self._all_paid().rounds[place])

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
        state = {name: plain_value(value) for name, value in self._all_paid().state().items()}
        statements = {name: value.hex() for name, value in self._statements.items()}
        # A node that has not said who it is may still have its id in the next run, and say it then.
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

    def _after(
        self, claim: Claim, nodes: Iterable[int], accounts: Participation | None = None
    ) -> Participation:
        """The accounts, or others of as many, after a round with these nodes."""
        cohorts = self._cohorts(nodes)  # before the accounts are looked at: it may make room
        accounts = self._accounts if accounts is None else accounts
        for cohort in cohorts:
            accounts = accounts.after(claim, cohort)
        return accounts

    def _paid(self, claim: Claim, nodes: tuple[int, ...]) -> Participation:
        """The accounts after a round that cannot be refused any more, whatever the budget is."""
        try:
            return self._after(claim, nodes)
        except BudgetExceeded:
            old = self._accounts
            free = Participation(old.clients, None, old.planned).restored(old.state())
            state = self._after(claim, nodes, free).state()
            return Participation(old.clients, old.budget, old.planned).restored(state)

    def _all_paid(self) -> Participation:
        """With the round that was begun."""
        return self._accounts if self._asked is None else self._paid(*self._asked)

    def _can_pay(self, claim: Claim, node: int, nodes: tuple[int, ...]) -> bool:
        """Whether a node's account alone allows a round with all nodes of its member."""
        place, old = self._place(self._name(node)), self._accounts
        state = {
            name: value if isinstance(value, str) else value[..., place : place + 1]
            for name, value in old.state().items()
        }
        account = Participation(1, old.budget, old.planned).restored(state)
        try:
            for _ in range([self._place(self._name(one)) for one in nodes].count(place)):
                account = account.after(claim, np.zeros(1, np.int64))
        except BudgetExceeded:
            return False
        return True

    def _cohorts(self, nodes: Iterable[int]) -> list[npt.NDArray[np.int64]]:
        """Places of the accounts that pay: all of them, those of two nodes, those of three, ..."""
        counts = Counter(self._place(self._name(node)) for node in nodes)
        return [
            np.array(sorted(place for place, count in counts.items() if count > times), np.int64)
            for times in range(max(counts.values(), default=0))
        ]

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
