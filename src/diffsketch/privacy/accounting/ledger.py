"""An accountant whose state is a file, written before anything is released.

A round is charged first: only once the file is safely on the disk may its noise be released. A
crash in between wastes the round's budget; it never hides a round. The file is JSON with a
checksum, and a line for each kind of claim with the number of its rounds, so that neither it nor
the time of a charge grows with the rounds (`benchmarks/accounts.py`). Whatever is not as expected
in it is an error, never repaired.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from diffsketch.errors import ArgumentError, DataError, DiffSketchError, MismatchError, check
from diffsketch.files import (
    LockBusy,
    LockLost,
    LockUnavailable,
    locked_beside,
    replace_file,
    synchronise,
)
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.accountant import Accountant, Budget, Spending
from diffsketch.privacy.claim import Epsilon, ProvenClaim, Scope, SimulatedClaim

_FORMAT = "diffsketch privacy ledger"
_VERSION = 2


class LedgerBusy(DiffSketchError):  # noqa: N818 - it says what happened
    """Another process was charging the ledger for too long. Nothing was charged."""


class Ledger:
    """An accountant's record in a file. Make it with `create` or `open`.

    Guarantees: when `charge` returns, the rounds are in the file and synchronised to the disk;
    when it raises, they may be released under no circumstances. Several processes may charge the
    same ledger: each takes a lock, reads the file, checks the budget and writes the sum
    (`tests/privacy/test_ledger.py`). A copy of the file that is put back later would forget
    rounds; while a ledger is open that is noticed, afterwards it cannot be.

    >>> import tempfile
    >>> from diffsketch.privacy.claim import Relation, Trust, Unit
    >>> scope = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
    >>> claim = ProvenClaim(scope, events.gaussian(2.0), "Gaussian noise")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "ledger.json"
    ...     ledger = Ledger.create(path, scope, budget=Budget(epsilon=8.0, delta=1e-5))
    ...     with ledger.round(claim):
    ...         pass  # release what the claim is about
    ...     Ledger.open(path, scope).rounds
    1
    """

    def __init__(self, path: Path, accountant: Accountant, content: bytes, wait: float) -> None:
        """Use `create` or `open`."""
        check(0 <= wait < 3600, "wait", "be in [0, 3600) seconds", wait)
        self._path, self._accountant, self._content, self._wait = path, accountant, content, wait

    @classmethod
    def create(
        cls, path: Path, scope: Scope, *, budget: Budget | None = None, wait: float = 10.0
    ) -> Ledger:
        """A new file in which nothing is spent.

        Args:
            path: A file that does not exist yet.
            scope: Scope that all claims must have.
            budget: Where to stop.
            wait: Seconds to wait for another process that is charging.

        Raises:
            DataError: There is such a file (it may hold rounds), or it cannot be written.
        """
        path, accountant = Path(path).resolve(), Accountant(scope, budget)
        content = _encode(accountant)
        ledger = cls(path, accountant, content, wait)
        with ledger._locked():
            if path.exists():
                raise DataError(f"{path} exists already; open it, or choose another name")
            ledger._write(content)
        return ledger

    @classmethod
    def open(cls, path: Path, scope: Scope, *, wait: float = 10.0) -> Ledger:
        """The ledger in a file, which has to be whole and about `scope`.

        Raises:
            DataError: There is no such file, or it is damaged. It is left as it is.
            MismatchError: It is about something else.
        """
        path = Path(path).resolve()
        content = _read(path)
        return cls(path, _decode(content, path, scope), content, wait)

    @property
    def scope(self) -> Scope:
        """The unit, relation and trust that all claims are about."""
        return self._accountant.scope

    @property
    def budget(self) -> Budget | None:
        """The budget at which it stops."""
        return self._accountant.budget

    @property
    def rounds(self) -> int:
        """Number of rounds charged, by whichever process."""
        self._refresh()
        return self._accountant.rounds

    @property
    def spent(self) -> tuple[Spending, ...]:
        """All rounds, those of equal claims together, in the order of each claim's first."""
        self._refresh()
        return self._accountant.spent

    def epsilon(self, delta: float) -> Epsilon:
        """The epsilon that all rounds amount to."""
        self._refresh()
        return self._accountant.epsilon(delta)

    def rounds_left(self, claim: ProvenClaim) -> int:
        """Number of rounds like this that the budget still allows, up to a million."""
        self._refresh()
        return self._accountant.rounds_left(claim)

    def __repr__(self) -> str:
        return f"Ledger({str(self._path)!r}, {self.scope}, rounds={self._accountant.rounds})"

    def charge(self, claim: ProvenClaim, rounds: int = 1) -> None:
        """Count rounds, safely. Release them only after this has returned.

        Raises:
            ArgumentError: The claim is not proven, or about simulated noise.
            MismatchError: The claim is about something else.
            BudgetExceeded: It would be too much. Nothing was charged.
            LedgerBusy: Another process held the lock for too long. Nothing was charged.
            DataError: The file is damaged, went back in time, or cannot be written.
        """
        if isinstance(claim, SimulatedClaim):
            raise ArgumentError("claim must be about exact noise, got one about simulated noise")
        with self._locked():
            self._refresh()
            # On a copy: should the file not be written, this object has spent nothing either.
            accountant = self._accountant.copy()
            accountant.spend(claim, rounds)
            content = _encode(accountant)
            self._write(content)
            self._accountant, self._content = accountant, content

    @contextmanager
    def round(self, claim: ProvenClaim) -> Iterator[None]:
        """Charge one round, then run the block that releases it. What it raises refunds nothing."""
        self.charge(claim)
        yield

    def _refresh(self) -> None:
        """Take over what other processes have charged since."""
        content = _read(self._path)
        if content == self._content:
            return
        accountant = _decode(content, self._path, self.scope)
        now, before = accountant.kinds, self._accountant.kinds
        less = any(now.get(kind, 0) < rounds for kind, rounds in before.items())
        if less or accountant.budget != self.budget:
            raise DataError(f"{self._path} lacks rounds that were charged, or has another budget")
        accountant.follow(self._accountant)
        self._accountant, self._content = accountant, content

    def _write(self, content: bytes) -> None:
        try:
            if self._path.exists() and self._path.stat().st_nlink > 1:
                raise OSError("it has a second name (a hard link), which would miss the round")
            replace_file(self._path, content)
            synchronise(self._path.parent)
        except OSError as error:
            raise DataError(
                f"{self._path} cannot be written ({error}): do not release the round"
            ) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with locked_beside(self._path, wait=self._wait):
                yield
        except LockUnavailable as error:
            raise DataError(str(error)) from error
        except LockBusy as error:
            raise LedgerBusy(f"{error}; nothing was charged") from None
        except LockLost as error:
            raise DataError(
                f"{error}, so another process may have charged as well: do not release the round"
            ) from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error})") from error


def _encode(accountant: Accountant) -> bytes:
    budget = accountant.budget and asdict(accountant.budget)
    parts = {"budget": budget, "scope": asdict(accountant.scope)}
    # Put together from the texts of the kinds, which are known: the checksum is that of the same
    # text without line ends.
    start = f'{_text(parts)[:-1]},"spent":['
    spent = [f'{kind[:-1]},"rounds":{rounds}}}' for kind, rounds in accountant.kinds.items()]
    checksum = _digest(f"{start}{','.join(spent)}]}}")
    head = _text({"format": _FORMAT, "version": _VERSION, "checksum": checksum})
    lines = ",\n".join(spent)
    return f'{head[:-1]},"ledger":{start}\n{lines}\n]}}}}\n'.encode()


def _decode(content: bytes, path: Path, scope: Scope) -> Accountant:
    def refuse(text: str) -> NoReturn:
        raise ValueError(f"{text} is not a number that a ledger holds")

    try:
        data = json.loads(content, parse_constant=refuse)
        for name, value in (("format", _FORMAT), ("version", _VERSION)):
            if type(data[name]) is not type(value) or data[name] != value:
                raise ValueError(f"{name} must be {value!r}, got {data[name]!r}")
        if set(data) != {"format", "version", "checksum", "ledger"}:
            raise ValueError(f"unexpected fields among {sorted(data)}")
        body = data["ledger"]
        if data["checksum"] != _digest(_text(body)):
            raise ValueError("its checksum does not fit its content")
        budget = None if body["budget"] is None else Budget(**body["budget"])
        own, spent = Scope(**body["scope"]), []
        for item in body["spent"]:
            claim = ProvenClaim(own, events.from_json(item["event"]), item["mechanism"])
            spent.append(Spending(claim, item["rounds"]))
        accountant = Accountant.restored(own, budget, spent)
    except (ArgumentError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} is not a whole ledger of version {_VERSION} ({error}); it is left as it is"
        ) from error
    if accountant.scope != scope:
        raise MismatchError(f"{path} is about {accountant.scope}, not about {scope}")
    return accountant


def _text(data: Mapping[str, Any]) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
