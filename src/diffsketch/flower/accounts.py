"""Accounts of clients: epsilon spent, in the client's own ledger and in the server's registry."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffsketch import files
from diffsketch.errors import DataError, MismatchError
from diffsketch.flower.records import NO_MODEL, Refusal, Request, member_digest
from diffsketch.privacy.accounting.account import Budget, BudgetExceeded
from diffsketch.privacy.claim import Claim, Epsilon
from diffsketch.training.clients import Participation
from diffsketch.wire import WireError

_FORMAT = 2
_ONE = np.zeros(1, np.int64)  # the place of the only client of an account
_WAIT = 60.0  # seconds for a lock that others hold for milliseconds
_MOST_ROUNDS = 10_000  # that a client without a memory counts as if it had taken part


@dataclass(frozen=True, eq=False)
class ClientAccount:
    """Account of one client. A value: `after` gives the account after one more message.

    Guarantees (`tests/flower/test_accounts.py`): a statement that was changed, cut or made with
    another key is refused; an account comes back exactly; the budget is never exceeded; accounts
    that were begun apart add up.

    Attributes:
        paid: Cost of what was released.
        charges: Messages, or rounds that count as if, by the random name of the account in which
            the count was begun.
    """

    paid: Participation
    charges: Mapping[str, int]

    @classmethod
    def new(cls, budget: Budget | None) -> ClientAccount:
        """Open the account of a client that has sent nothing."""
        return cls(Participation(1, budget), {secrets.token_hex(8): 0})

    @classmethod
    def combined(cls, accounts: Sequence[ClientAccount]) -> ClientAccount:
        """Combine copies of a client's account: an older copy adds nothing, another one all.

        Raises:
            MismatchError: They are about different things.
        """
        newest, *others = sorted(accounts, key=lambda one: one.serial, reverse=True)
        for one in others:
            scope, found = (claim and claim.scope for claim in (newest.paid.claim, one.paid.claim))
            if one.serial and found != scope:
                raise MismatchError(
                    f"accounts of one client must be about the same: {scope}, got {found}"
                )
            if all(newest.charges.get(name, -1) >= count for name, count in one.charges.items()):
                continue
            state = newest.paid.state()
            for name, value in one.paid.state().items():
                known = state.get(name)
                if isinstance(value, Tensor):
                    state[name] = value + known if isinstance(known, Tensor) else value
            charges = dict(newest.charges)
            for name, count in one.charges.items():
                charges[name] = max(count, charges.get(name, 0))
            newest = cls(newest.paid.restored(state), charges)
        return newest

    @property
    def serial(self) -> int:
        """Messages so far, or rounds that count as if."""
        return sum(self.charges.values())

    def after(self, claim: Claim, *, rounds: int = 1) -> ClientAccount:
        """Charge so many more messages of this claim.

        Raises:
            BudgetExceeded: They would cost too much.
        """
        paid = self.paid
        for _ in range(rounds):
            paid = paid.after(claim, _ONE)
        name = next(iter(self.charges))
        return ClientAccount(paid, {**self.charges, name: self.charges[name] + rounds})

    def epsilon(self, delta: float) -> Epsilon:
        """Epsilon that the client has spent."""
        return self.paid.epsilon(delta)

    def to_text(self) -> str:
        """Serialise as JSON."""
        paid = _plain_state(self.paid)
        return json.dumps({"format": _FORMAT, "charges": dict(self.charges), "paid": paid})

    @classmethod
    def of_text(cls, text: str, budget: Budget | None) -> ClientAccount:
        """Read `to_text`, under a budget of whatever size.

        Raises:
            WireError: It is no such text.
        """
        try:
            data = json.loads(text)
            charges = {str(name): int(count) for name, count in data["charges"].items()}
            good = data["format"] == _FORMAT and len(charges) > 0
            paid = Participation(1, budget).restored(_tensor_state(data["paid"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise WireError(f"not an account: {error}") from error
        if not good:
            raise WireError(f"not an account of format {_FORMAT}")
        return cls(paid, charges)

    def statement(self, key: bytes) -> bytes:
        """Serialise with an HMAC (SHA-256), for the server to keep."""
        text = self.to_text().encode()
        return _tag(text, key) + text

    @classmethod
    def of_statement(cls, statement: bytes, key: bytes, budget: Budget | None) -> ClientAccount:
        """Read a statement that the client has made itself.

        Raises:
            WireError: It has not, or it was changed.
        """
        tag, text = statement[:32], statement[32:]
        if not hmac.compare_digest(tag, _tag(text, key)):
            raise WireError("the statement of this client's account was not made with its own key")
        return cls.of_text(text.decode(), budget)


def _tag(text: bytes, key: bytes) -> bytes:
    return hmac.new(key, b"diffsketch account\n" + text, hashlib.sha256).digest()


def _plain_state(accounts: Participation) -> dict[str, object]:
    """State of accounts as JSON takes it."""
    state = accounts.state().items()
    return {name: one if isinstance(one, str) else one.tolist() for name, one in state}


def _tensor_state(state: Mapping[str, Any]) -> dict[str, Tensor | str]:
    """State of accounts from JSON."""
    return {
        name: value
        if isinstance(value, str)
        else torch.tensor(value, dtype=torch.int64 if name == "rounds" else torch.float64)
        for name, value in state.items()
    }


@dataclass(frozen=True, eq=False)
class ClientLedger:
    """Places where a client finds and keeps its account.

    Its file is the one place where no server can lose or replace the account. A file that is not
    there says nothing: then what the client remembers and its own statement at the server count,
    and without any of them all earlier rounds of the run.

    Guarantees (`tests/flower/test_accounts.py`): a lost file does not make the client forget what
    its statement says; of processes that charge the same file, none misses what another has paid.
    """

    member: str  # the client's name
    budget: Budget | None
    key: bytes | None  # its own, for statements
    path: Path | None  # of the file

    def after(
        self, claim: Claim, request: Request, *, remembered: ClientAccount | None
    ) -> ClientAccount:
        """Compute the account after one more message. Nothing is written.

        Raises a `Refusal` if the message cannot be paid, a `WireError` if the statement is not this
        client's, and a `DataError` if the file is not an account.
        """
        try:
            return self._account(claim, request, remembered).after(claim)
        except BudgetExceeded as error:
            raise Refusal("budget", str(error)) from error
        except MismatchError as error:
            raise Refusal(
                "account",
                "this client's account is about another kind of privacy than the plan, and the two "
                f"cannot be added: {error}. Use a plan of the account's kind, or give this one "
                "an account of its own, and count both",
            ) from error

    def charge(
        self, claim: Claim, request: Request, *, remembered: ClientAccount | None
    ) -> ClientAccount:
        """Charge a message and write it down, before it leaves. Raises what `after` does."""
        # Another process may have paid from the same file since it was looked at.
        with self.locked():
            account = self.after(claim, request, remembered=remembered)
            self.write(account)
        return account

    @contextmanager
    def locked(self, wait: float = _WAIT) -> Iterator[None]:
        """Keep others from charging the file. Leaves an empty file beside it.

        Raises a `DataError` if another process holds the lock for too long, or it cannot be held:
        nothing may be sent then.
        """
        if self.path is None:
            yield
            return
        files.prepare_output(self.path.parent)
        try:
            with files.locked_beside(self.path, wait=wait):
                yield
        except files.LockLost as error:
            raise DataError(f"{error}, and another process may have charged as well") from error
        except (files.LockBusy, files.LockUnavailable) as error:
            raise DataError(str(error)) from error

    def read(self) -> ClientAccount | None:
        """Read the file; None if there is none. Raises a `DataError` if it is not an account."""
        if self.path is None:
            return None
        try:
            return ClientAccount.of_text(self.path.read_text(encoding="utf-8"), self.budget)
        except FileNotFoundError:
            return None
        except (WireError, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self.path} must be the account of this client: {error}") from error

    def write(self, account: ClientAccount) -> None:
        """Replace the file, all at once, before anything is sent."""
        if self.path is not None:
            files.prepare_output(self.path.parent)
            files.replace_file(self.path, account.to_text().encode())
            files.synchronise(self.path.parent)  # or a crash could bring the old account back

    def _account(
        self, claim: Claim, request: Request, remembered: ClientAccount | None
    ) -> ClientAccount:
        """Combine what the client remembers, has on disk and has left with the server."""
        found = [one for one in (remembered, self.read()) if one is not None]
        if request.statement and self.key is not None:
            found.append(ClientAccount.of_statement(request.statement, self.key, self.budget))
        if found:
            return ClientAccount.combined(found)
        known = {request.known[place : place + 8] for place in range(0, len(request.known), 8)}
        if self.key is not None and member_digest(self.member) in known:
            raise Refusal("statement", "this client has no memory and needs its statement first")
        if request.round_index > _MOST_ROUNDS:
            raise Refusal("statement", "this client has no memory of so many rounds")
        # Nothing is known: it may have taken part in every round so far.
        return ClientAccount.new(self.budget).after(claim, rounds=request.round_index)


class ClientRegistry:
    """The server's accounts of all clients, which come and go under changing node ids.

    Guarantees (`tests/flower/test_accounts.py`): no client's account is ever less than what a
    message was requested for; a node that turns out to be a known client adds to its account, and
    several nodes of one client pay for each; no round is begun that the budget does not allow. Only
    a node that was selected before it said who it is can bring its client beyond the budget: that
    is counted, and then no further round is begun.
    """

    def __init__(self, budget: Budget | None, planned: Claim) -> None:
        self._accounts = Participation(1, budget, planned)
        self._places: dict[str, int] = {}  # of accounts, by `_name`
        self._members: dict[int, str] = {}  # clients by node, once they have said so
        self._versions: dict[int, int] = {}  # of the nodes' models
        self._statements: dict[str, bytes] = {}
        self._pending: tuple[Claim, tuple[int, ...]] | None = None

    def check_budget(self, claim: Claim, nodes: Iterable[int]) -> None:
        """Raise `BudgetExceeded` if a further round with these nodes would cost too much."""
        self.settle_round()
        self._after(claim, nodes)

    def begin_round(self, claim: Claim, nodes: Iterable[int]) -> None:
        """Begin a round: whoever is selected may send a message, and pays, whatever comes of it."""
        nodes = tuple(nodes)
        self.check_budget(claim, nodes)
        self._pending = claim, nodes

    def over_budget(self, claim: Claim) -> frozenset[int]:
        """Nodes of the round for whom this claim is too much, now that it is known who they are."""
        nodes = () if self._pending is None else self._pending[1]
        try:
            self._after(claim, nodes)
        except BudgetExceeded:
            return frozenset(node for node in nodes if not self._can_pay(claim, node, nodes))
        return frozenset()

    def settle_round(self, claim: Claim | None = None) -> None:
        """Close the round that was begun, if one was: it has cost this, or what was planned."""
        if self._pending is not None:
            planned, nodes = self._pending
            self._pending = None
            self._accounts = self._paid(planned if claim is None else claim, nodes)

    def epsilon(self, delta: float) -> Epsilon:
        """Epsilon that the run has cost the client who paid most."""
        return self._all_paid().epsilon(delta)

    @property
    def claim(self) -> Claim | None:
        """Claim that holds for all rounds."""
        return self._all_paid().claim

    def version_of(self, node: int) -> int:
        """Version of the model that a node is known to have."""
        return self._versions.get(node, NO_MODEL)

    def statement_for(self, node: int) -> tuple[bytes, bytes]:
        """A node's statement; or, for one that is not known, digests of all who have one."""
        if member := self._members.get(node):
            return self._statements.get(member, b""), b""
        return b"", b"".join(sorted(map(member_digest, self._statements)))

    def update(self, node: int, *, member: str, version: int, statement: bytes) -> None:
        """Record who a node says that it is, and what it has."""
        self._versions[node] = version
        if member != self._members.get(node, ""):
            before, self._members[node] = self._name(node), member
            self._merge(before, f"member {member}")
        if statement:
            self._statements[member] = statement

    def to_text(self) -> str:
        """Serialise accounts and statements as JSON, for the next run with these clients."""
        statements = {name: value.hex() for name, value in self._statements.items()}
        accounts = _plain_state(self._all_paid())
        # A node that has not said who it is may still have its id in the next run, and say it then.
        return json.dumps({"places": self._places, "accounts": accounts, "statements": statements})

    def load_text(self, text: str) -> None:
        """Go on from `to_text`."""
        try:
            data = json.loads(text)
            places = {str(name): int(place) for name, place in data["places"].items()}
            state = _tensor_state(data["accounts"])
            clients = len(data["accounts"]["rounds"])
            accounts = replace(self._accounts, clients=clients).restored(state)
            statements = {name: bytes.fromhex(one) for name, one in data["statements"].items()}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"the record must be one of this strategy's: {error}") from error
        self._places, self._accounts, self._statements = places, accounts, statements

    def _after(
        self, claim: Claim, nodes: Iterable[int], accounts: Participation | None = None
    ) -> Participation:
        """Accounts, or others of as many, after a round with these nodes; each node pays."""
        counts = Counter(self._place(self._name(node)) for node in nodes)  # may make room
        accounts = self._accounts if accounts is None else accounts
        for times in range(max(counts.values(), default=0)):
            paying = sorted(place for place, count in counts.items() if count > times)
            accounts = accounts.after(claim, np.array(paying, np.int64))
        return accounts

    def _paid(self, claim: Claim, nodes: tuple[int, ...]) -> Participation:
        """Accounts after a round that cannot be refused any more, whatever the budget is."""
        try:
            return self._after(claim, nodes)
        except BudgetExceeded:
            free = self._after(claim, nodes, replace(self._accounts, budget=None))
            return self._accounts.restored(free.state())

    def _all_paid(self) -> Participation:
        """Accounts with the round that was begun."""
        return self._accounts if self._pending is None else self._paid(*self._pending)

    def _can_pay(self, claim: Claim, node: int, nodes: tuple[int, ...]) -> bool:
        """Whether a node's account alone allows a round with all nodes of its client."""
        place = self._place(self._name(node))
        account = self._changed(1, lambda value: value[..., place : place + 1])
        try:
            for _ in range([self._place(self._name(one)) for one in nodes].count(place)):
                account = account.after(claim, _ONE)
        except BudgetExceeded:
            return False
        return True

    def _name(self, node: int) -> str:
        member = self._members.get(node)
        return f"member {member}" if member else f"node {node}"

    def _place(self, name: str) -> int:
        """Place of a name's account, which is made if there is none."""
        place = self._places.setdefault(name, len(self._places))
        if place >= self._accounts.clients:
            clients = max(2 * self._accounts.clients, place + 1)

            def longer(value: Tensor) -> Tensor:
                shape = (*value.shape[:-1], clients - value.shape[-1])
                return torch.cat([value, torch.zeros(shape, dtype=value.dtype)], dim=-1)

            self._accounts = self._changed(clients, longer)
        return place

    def _merge(self, name: str, member: str) -> None:
        """Move what a node paid under its own name to its client."""
        source = self._places.pop(name, None)
        if source is None:
            return
        target = self._places.setdefault(member, source)
        if target == source:
            return
        self._places[f"given up {len(self._places)}"] = source  # places stay dense

        def moved(value: Tensor) -> Tensor:
            value[..., target] += value[..., source]
            value[..., source] = 0
            return value

        self._accounts = self._changed(self._accounts.clients, moved)

    def _changed(self, clients: int, change: Callable[[Tensor], Tensor]) -> Participation:
        """Accounts of so many clients, of which each array is changed."""
        state = {
            name: value if isinstance(value, str) else change(value)
            for name, value in self._accounts.state().items()
        }
        return replace(self._accounts, clients=clients).restored(state)
