"""Accounts of clients: epsilon spent, in the client's file and the server's registry."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.errors import DataError, MismatchError
from diffsketch.files import (
    LockBusy,
    LockLost,
    LockUnavailable,
    locked_beside,
    prepare_output,
    replace_file,
    synchronise,
)
from diffsketch.flower.records import NO_MODEL, Refusal, Request, member_digest
from diffsketch.privacy.accounting.accountant import Budget, BudgetExceeded
from diffsketch.privacy.claim import Claim, Epsilon, Scope
from diffsketch.training.clients import Participation
from diffsketch.wire import WireError

_FORMAT = 1
_SEAL_BYTES = 32
_SELF = np.zeros(1, np.int64)
_WAIT = 60.0  # seconds for a lock that others hold for milliseconds


@dataclass(frozen=True, eq=False)
class Account:
    """A value: `after` gives the account after one more message.

    Guarantees (`tests/flower/test_flower_books.py`): a statement that was changed, cut or made
    with another key is refused; an account comes back exactly; the budget is never exceeded.

    Attributes:
        paid: What was released, as an account of one client.
        serial: Messages so far, or rounds that count as if: of two accounts the higher is newer.
    """

    paid: Participation
    serial: int = 0

    @classmethod
    def new(cls, budget: Budget | None) -> Account:
        """Of a client that has sent nothing."""
        return cls(Participation(1, budget))

    @classmethod
    def most_spent(cls, accounts: Sequence[Account]) -> Account:
        """Of each price the most that one of these accounts says, since each may lack something.

        Raises:
            MismatchError: They are about different things.
        """
        newest = max(accounts, key=lambda one: one.serial)
        state = newest.paid.state()
        for one in accounts:
            if one.scope != newest.scope and one.serial:
                raise MismatchError(
                    f"accounts of one client must be about the same: {newest.scope}, got "
                    f"{one.scope}"
                )
            for name, value in one.paid.state().items():
                known = state.setdefault(name, value)
                if isinstance(value, Tensor) and isinstance(known, Tensor):
                    state[name] = value if value.sum() > known.sum() else known
        return replace(newest, paid=newest.paid.restored(state))

    @property
    def scope(self) -> Scope | None:
        """What its messages were about; None before the first."""
        return None if self.paid.claim is None else self.paid.claim.scope

    def after(self, claim: Claim, *, rounds: int = 1) -> Account:
        """With so many more messages of this claim.

        Raises:
            BudgetExceeded: They would cost too much.
        """
        paid = self.paid
        for _ in range(rounds):
            paid = paid.after(claim, _SELF)
        return replace(self, paid=paid, serial=self.serial + rounds)

    def epsilon(self, delta: float) -> Epsilon:
        """What the client has paid."""
        return self.paid.epsilon(delta)

    def to_text(self) -> str:
        """As JSON."""
        state = {name: plain_value(value) for name, value in self.paid.state().items()}
        return json.dumps({"format": _FORMAT, "serial": self.serial, "paid": state})

    @classmethod
    def of_text(cls, text: str, budget: Budget | None) -> Account:
        """From `to_text`, under a budget of whatever size.

        Raises:
            WireError: It is no such text.
        """
        try:
            data = json.loads(text)
            good = data["format"] == _FORMAT and isinstance(data["serial"], int)
            paid = Participation(1, budget).restored(unpacked_state(data["paid"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise WireError(f"not an account: {error}") from error
        if not good:
            raise WireError(f"not an account of format {_FORMAT}")
        return cls(paid, data["serial"])

    def sealed(self, key: bytes) -> bytes:
        """The statement: the text with an HMAC (SHA-256) of it."""
        text = self.to_text().encode()
        return _seal(text, key) + text

    @classmethod
    def opened(cls, statement: bytes, key: bytes, budget: Budget | None) -> Account:
        """From a statement that the client has made itself.

        Raises:
            WireError: It has not, or it was changed.
        """
        seal, text = statement[:_SEAL_BYTES], statement[_SEAL_BYTES:]
        if not hmac.compare_digest(seal, _seal(text, key)):
            raise WireError("the statement of this client's account was not made with its own key")
        return cls.of_text(text.decode(), budget)


class AccountFile:
    """A client's account on its own disk: the one place where no server can lose or replace it.

    Guarantees (`tests/flower/test_flower_account.py`): of processes that read, charge and write
    under `locked`, none misses what another has paid.

    Args:
        path: The file; made when it is first written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def read(self, budget: Budget | None) -> Account | None:
        """The account; None if there is no file, which says nothing of what was paid.

        Raises:
            DataError: There is a file and it is not an account. Nothing is sent then.
        """
        try:
            return Account.of_text(self.path.read_text(encoding="utf-8"), budget)
        except FileNotFoundError:
            return None
        except (WireError, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self.path} must be the account of this client: {error}") from error

    def write(self, account: Account) -> None:
        """Replace the file, all at once, before anything is sent."""
        prepare_output(self.path.parent)
        replace_file(self.path, account.to_text().encode())
        synchronise(self.path.parent)  # or a crash could bring the old account back

    @contextmanager
    def locked(self, wait: float = _WAIT) -> Iterator[None]:
        """Nobody else reads, charges and writes meanwhile. Leaves an empty file beside the account.

        Raises:
            DataError: Another process does, for too long; or the lock cannot be held. Nothing may
                be sent then.
        """
        prepare_output(self.path.parent)
        try:
            with locked_beside(self.path, wait=wait):
                yield
        except LockLost as error:
            raise DataError(f"{error}, and another process may have charged as well") from error
        except (LockBusy, LockUnavailable) as error:
            raise DataError(str(error)) from error


def unpacked_state(state: Mapping[str, Any]) -> dict[str, Tensor | str]:
    """A `Participation.state()` from lists of numbers."""
    return {
        name: value
        if isinstance(value, str)
        else torch.tensor(value, dtype=torch.int64 if name == "rounds" else torch.float64)
        for name, value in state.items()
    }


def plain_value(value: Tensor | str) -> object:
    """Of a `Participation.state()`, as JSON takes it."""
    return value if isinstance(value, str) else value.tolist()


def _seal(text: bytes, key: bytes) -> bytes:
    return hmac.new(key, b"diffsketch account\n" + text, hashlib.sha256).digest()


_MOST_ROUNDS = 10_000  # that a client without a memory counts as if it had taken part


@dataclass(frozen=True, eq=False)
class Books:
    """Where a client finds what it has paid, and keeps it.

    A file that is not there says nothing: then what the client remembers and its own statement at
    the server count, and without any of them all earlier rounds of the run.

    Guarantees (`tests/flower/test_flower_account.py`): a lost file does not make the client forget
    what its statement says; two messages at once are both paid for.

    Attributes:
        member: The client's name.
        budget: What it may pay at most.
        key: Its own, for statements.
        file: Where it keeps the account.
    """

    member: str
    budget: Budget | None
    key: bytes | None
    file: AccountFile | None

    def check(self, claim: Claim, request: Request, *, remembered: Account | None) -> None:
        """See that a message can be paid, before there is one.

        Raises:
            Refusal: It cannot.
            WireError: The statement is not this client's.
            DataError: The file is not an account.
        """
        self._after(claim, request, remembered)

    def charge(self, claim: Claim, request: Request, *, remembered: Account | None) -> Account:
        """Pay, and write it down, before the message leaves. Raises what `check` does."""
        if self.file is None:
            return self._after(claim, request, remembered)
        # Another process may have paid from the same file since it was looked at.
        with self.file.locked():
            account = self._after(claim, request, remembered)
            self.file.write(account)
        return account

    def statement(self, account: Account) -> bytes:
        """What the server may keep of it; empty if there is no key."""
        return b"" if self.key is None else account.sealed(self.key)

    def _after(self, claim: Claim, request: Request, remembered: Account | None) -> Account:
        """The account after one more message, if it can be paid."""
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

    def _account(self, claim: Claim, request: Request, remembered: Account | None) -> Account:
        """The most that the client remembers, has on disk, or has left with the server."""
        found = [] if remembered is None else [remembered]
        on_disk = None if self.file is None else self.file.read(self.budget)
        if on_disk is not None:
            found.append(on_disk)
        if request.statement and self.key is not None:
            found.append(Account.opened(request.statement, self.key, self.budget))
        if found:
            return found[0] if len(found) == 1 else Account.most_spent(found)
        known = {request.known[place : place + 8] for place in range(0, len(request.known), 8)}
        if self.key is not None and member_digest(self.member) in known:
            raise Refusal("statement", "this client has no memory and needs its statement first")
        if request.round_index > _MOST_ROUNDS:
            raise Refusal("statement", "this client has no memory of so many rounds")
        # Nothing is known: it may have taken part in every round so far.
        return Account.new(self.budget).after(claim, rounds=request.round_index)


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
