"""The account of a party: what it has released, the epsilon of all of that, and a stop.

A release is charged first: only when `Account.charge` has returned may it be sent. Where the
account has a file, the charge is on the disk by then. A crash in between wastes budget; it never
hides a release.

Releases are counted by their claims, and the counts are kept in *series*: each process (or run of
a process group) that opens an account begins a series of its own, under a random name. Copies of an
account that meet again are merged series by series. A series that both have is counted once, and
one that either has alone is added: so an older copy adds nothing, and copies that went on apart are
both counted.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from diffsketch.errors import (
    ArgumentError,
    DataError,
    DiffSketchError,
    MismatchError,
    check,
    check_delta,
    check_type,
    check_whole,
)
from diffsketch.files import (
    LockBusy,
    LockLost,
    locked_beside,
    prepare_output,
    replace_file,
    synchronise,
)
from diffsketch.privacy.accounting.budget import (
    Allowance,
    Budget,
    Prices,
    as_text,
    is_within,
    prices_of,
    stated_epsilon,
    weaker,
)
from diffsketch.privacy.claim import Claim, Epsilon, ProvenClaim, claim_from_json, claim_to_json

_FORMAT, _VERSION = "diffsketch account", 1
_MOST_LEFT = 10**6  # rounds that `rounds_left` looks for, as more take long to compose

_Counts: TypeAlias = Mapping[str, Mapping[str, int]]  # releases by series, and by claim as text

_MOST_COUNTED = 10**15  # of one claim, in one series: sums of them are exact as floats
_process = secrets.token_hex(8)  # of this process; a fork gets a new one, as pids are used again


def _forked() -> None:
    global _process
    _process = secrets.token_hex(8)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _forked())  # by name, so that tests can replace it


class AccountBusy(DiffSketchError):  # noqa: N818
    """Another process was charging the account for too long. Nothing was charged."""


class Account:
    """Releases of one party, counted by claim; in a file, if it was opened from one.

    Guarantees (`tests/privacy/test_account.py`): epsilon is the composition of what was charged,
    and nothing is charged beyond the budget. When `charge` returns, the file is on the disk; when
    it raises, the release may not be made. However many processes charge the file or copies of it,
    and whatever states are loaded, no account says less than was charged to the copies that it has
    met. Copies that have not met cannot know of each other.

    Args:
        budget: Where to stop; without one, it only counts. Accounts of many parties with one
            budget may share an `Allowance`, so that what one was found to afford is known to all.
        planned: What a release is expected to claim: what an account without any is about.

    Attributes:
        party: Random name of the account, which its copies share.
        series: Name of the series that is counted in (`begin_series`).

    >>> from diffsketch.privacy.accounting import events
    >>> from diffsketch.privacy.claim import Scope
    >>> scope = Scope("client", "replace", "local")
    >>> claim = ProvenClaim(scope, events.gaussian(2.0), "Gaussian noise")
    >>> account = Account(Budget(epsilon=8.0, delta=1e-5))
    >>> account.charge(claim, rounds=10)
    >>> print(account.epsilon(delta=1e-5))
    epsilon = 7.512 at delta = 1e-05 over 10 rounds (proven; client unit, replace, local trust)
    >>> account.rounds_left(claim)
    1
    """

    def __init__(
        self, budget: Budget | Allowance | None = None, *, planned: Claim | None = None
    ) -> None:
        self.party = secrets.token_hex(8)
        self.planned = planned
        self._allowance = budget if isinstance(budget, Allowance) else Allowance(budget)
        self._counts: _Counts = {}
        self._path: Path | None = None
        self._content: bytes | None = None  # of the file, as it was last read or written
        self._stored: _Counts = {}  # in it: less than is remembered, if an older file was put back
        self._wait = 0.0
        self._lock = threading.RLock()  # threads of one process may charge one account
        self.begin_series()

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        budget: Budget | None = None,
        planned: Claim | None = None,
        first: Account | None = None,
        wait: float = 10.0,
    ) -> Account:
        """Open the account in a file, which is made if there is none.

        Args:
            path: The file. It belongs to the party whose data is released: keep it with the data.
            budget: Where to stop; the file's if not given.
            planned: As for a new account.
            first: What a file that is made begins with: what is known of the party from elsewhere.
                An existing file is left as it is (`merge` and `resume` add to it).
            wait: Seconds to wait for another process that is charging.

        Raises:
            DataError: The file is damaged, or cannot be read or written. It is left as it is.
            MismatchError: It has another budget, or is about another kind of claim than `planned`.
        """
        check(0 <= wait < 3600, "wait", "be in [0, 3600) seconds", wait)
        account = cls(budget, planned=planned)
        account._path, account._wait = Path(path).resolve(), wait
        try:
            prepare_output(account._path.parent)
        except OSError as error:
            raise DataError(f"{path} cannot be written ({error})") from error
        with account._locked():
            if not account._path.exists():
                if first is not None:
                    account.party, account._counts = first.party, first._counts
                account._write(account._counts)
        account._refresh()
        return account

    @property
    def budget(self) -> Budget | None:
        """The budget at which it stops."""
        return self._allowance.budget

    @property
    def rounds(self) -> int:
        """Releases that were charged, by whichever process."""
        return sum(self._totals_now().values())

    @property
    def spent(self) -> list[tuple[Claim, int]]:
        """Claims of all releases, each with its number of them."""
        return [(_parsed(kind)[0], rounds) for kind, rounds in self._totals_now().items()]

    @property
    def claim(self) -> Claim | None:
        """Weakest claim of all releases; before the first, what is planned."""
        return _weakest(self._totals_now()) or self.planned

    def epsilon(self, delta: float) -> Epsilon:
        """Epsilon of all releases: their composition, whatever the budget is."""
        check_delta(delta)
        totals = self._totals_now()
        claim = _weakest(totals) or self.planned
        return stated_epsilon(claim, _prices(totals), sum(totals.values()), delta)

    def check(self, claim: Claim, rounds: int = 1) -> None:
        """Raise what `charge` would raise, and charge nothing."""
        self._refresh()
        self._after(claim, rounds)

    def charge(self, claim: Claim, rounds: int = 1) -> None:
        """Count releases. Make them only after this has returned.

        Raises:
            BudgetExceeded: They would cost too much, or are not proven while there is a budget.
            MismatchError: The claim is about another unit, relation or trust than earlier ones.
            AccountBusy: Another process held the file for too long.
            DataError: The file is damaged or missing, or cannot be written.

        In each case nothing was charged.
        """
        with self._locked():
            self._refresh()
            if self._process != _process:
                self.begin_series()  # a fork: parent and child must not share a series
            # First the disk, then memory: if writing fails, nothing was charged anywhere.
            counts = self._after(claim, rounds)
            self._write(counts)
            self._counts = counts

    def rounds_left(self, claim: ProvenClaim) -> int:
        """Number of releases like this that the budget still allows, up to a million."""
        check_type("claim", claim, ProvenClaim)
        if (budget := self.budget) is None:
            raise ArgumentError("budget must be given for rounds to be left of it")
        totals = self._totals_now()
        self._checked(claim)
        if not (_weakest(totals) or claim).noise_is_proven:
            return 0
        spent, more = _prices(totals), prices_of(claim)

        def exceeds(rounds: int) -> bool:
            # Prices are linear in the rounds, so that no event has to be composed by hand.
            names = {*spent, *more}
            total = {name: spent.get(name, 0) + rounds * more.get(name, 0) for name in names}
            return not is_within(total, budget)

        # Epsilon grows with the rounds. Few are tried first, as many take longer to compose.
        high = 1
        while high < _MOST_LEFT and not exceeds(high):
            high = min(2 * high, _MOST_LEFT)
        return bisect_left(range(1, high + 1), True, lo=high // 2, key=exceeds)

    def begin_series(self, name: str = "") -> None:
        """Count from now on in a series of this name; a random one if none is given.

        The ranks of a process group give all the same, made by all of them: then a state that one
        of them has saved counts no rounds twice for another one that loads it.
        """
        self.series, self._process = name or secrets.token_hex(8), _process
        self._left_off = ""  # series of the account that this is a copy of, for `resume`

    def merge(self, other: Account) -> None:
        """Add what another copy of this account has, and this one has not.

        Raises:
            MismatchError: They are about different things.
        """
        with self._locked():
            self._refresh()
            counts = _merged(self._counts, other._counts)
            _weakest(_totals(counts))  # raises where they do not go together
            if counts != self._stored:
                self._write(counts)
            self._counts = counts

    def resume(self, copy: Account) -> None:
        """Merge a copy, and count on in its series, for a party whose process ended in between.

        If more of that series is known than the copy has, somebody else has gone on with it: then
        a new one begins.

        Raises:
            MismatchError: They are about different things.
        """
        self.merge(copy)
        # A copy that was read from text counts in a new series: the one it left off is meant.
        name = copy._left_off or copy.series
        if self._counts.get(name, {}) == copy._counts.get(name, {}):
            self.begin_series(name)

    def to_text(self) -> str:
        """Serialise as JSON with a checksum, as in the file."""
        return self._text_of(self._counts)

    @classmethod
    def from_text(
        cls,
        text: str | bytes,
        budget: Budget | Allowance | None = None,
        planned: Claim | None = None,
    ) -> Account:
        """Read what `to_text` gave: a copy, which counts in a series of its own.

        Raises:
            DataError: It is not such a text, whole and unchanged.
        """
        party, _, series, counts = _parse(text)
        account = cls(budget, planned=planned)
        account.party, account._counts, account._left_off = party, counts, series
        _weakest(_totals(counts))  # raises where they do not go together
        return account

    def twin(self) -> Account:
        """An account in memory that takes this one's place, and counts on in the same series.

        For values that are replaced as a whole: of the two, only one may be charged or kept.
        """
        other = Account(self._allowance, planned=self.planned)
        other.party, other._counts = self.party, self._counts
        # The same series: the twin replaces this account, so nothing is counted in both.
        other.begin_series(self.series)
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        # For pickles and copies: what either is charged from now on is counted apart.
        return Account.from_text, (self.to_text(), self.budget, self.planned)

    def __repr__(self) -> str:
        place = "" if self._path is None else f"{str(self._path)!r}, "
        return f"Account({place}budget={self.budget}, rounds={self.rounds})"

    def _totals_now(self) -> Counter[str]:
        """Releases by claim, with what other processes have charged to the file."""
        self._refresh()
        return _totals(self._counts)

    def _after(self, claim: Claim, rounds: int) -> _Counts:
        """Counts after more releases, if the budget allows them."""
        check_whole("rounds", rounds, least=1, most=_MOST_COUNTED)
        kind = self._checked(claim)
        series = dict(self._counts.get(self.series, {}))
        series[kind] = series.get(kind, 0) + rounds
        counts = {**self._counts, self.series: series}
        if self.budget is not None:
            totals = _totals(counts)
            self._allowance.check(
                _weakest(totals), _prices(totals), releases=sum(totals.values()), asked=rounds
            )
        return counts

    def _checked(self, claim: Claim) -> str:
        """The text by which a claim is counted, if it is about the same as others."""
        check(isinstance(claim, Claim), "claim", "be a claim", claim)
        return _as_counted(claim, tuple(_totals(self._counts)))

    def _refresh(self) -> None:
        """Take over what other processes have charged to the file."""
        path = self._path
        if path is None:
            return
        with self._lock:
            try:
                content = path.read_bytes()
            except OSError as error:  # a new file would have forgotten everything
                raise DataError(f"{path} cannot be read ({error})") from error
            # Most charges find the file as they left it: parsing would cost more than the charge.
            if content != self._content:
                self._take_over(path, content)

    def _take_over(self, path: Path, content: bytes) -> None:
        """Merge the account that others have written to the file."""
        try:
            party, budget, _, counts = _parse(content)
            totals = _totals(_merged(self._counts, counts))
            weakest = _weakest(totals)
        except (DataError, ArgumentError) as error:
            raise DataError(f"{path}: {error}; it is left as it is") from error
        if self.planned is not None and weakest is not None:
            try:
                weaker(self.planned, weakest)
            except MismatchError as error:
                raise MismatchError(f"{path}: {error}") from error
        if budget is not None and self.budget not in (None, budget):
            raise MismatchError(f"budget must be that of {path}, {budget}, got {self.budget}")
        self.party, self._stored = party, counts
        self._counts = _merged(self._counts, counts)
        if self.budget is None:
            self._allowance = Allowance(budget)
        self._content = content

    def _write(self, counts: _Counts) -> None:
        """Replace the file, on the disk before this returns."""
        if self._path is None:
            return
        content = self._text_of(counts).encode()
        try:
            # Replacing a file leaves its other name with the old content: a copy that forgets.
            if self._path.exists() and self._path.stat().st_nlink > 1:
                raise OSError("it has a second name (a hard link), which would miss the round")
            replace_file(self._path, content)
            # The rename is safe from a crash only once the directory is on the disk as well.
            synchronise(self._path.parent)
        except OSError as error:
            raise DataError(
                f"{self._path} cannot be written ({error}): do not release the round"
            ) from error
        self._content, self._stored = content, counts

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes from charging the file."""
        try:
            with self._lock, nullcontext() if self._path is None else locked_beside(
                self._path, wait=self._wait
            ):  # fmt: skip
                yield
        except LockBusy as error:
            raise AccountBusy(f"{error}; nothing was charged") from None
        except LockLost as error:
            raise DataError(
                f"{error}, so another process may have charged as well: do not release the round"
            ) from error

    def _text_of(self, counts: _Counts) -> str:
        spent = {
            name: [{"claim": json.loads(kind), "rounds": rounds} for kind, rounds in series.items()]
            for name, series in counts.items()
        }
        budget = self.budget and asdict(self.budget)
        body = {"party": self.party, "budget": budget, "series": self.series, "spent": spent}
        # A checksum over the content alone, in a form that does not depend on how it was written.
        head = {"format": _FORMAT, "version": _VERSION, "checksum": _digest(as_text(body))}
        return as_text({**head, "account": body}) + "\n"


def _totals(counts: _Counts) -> Counter[str]:
    """Releases by claim, over all series."""
    totals: Counter[str] = Counter()
    for series in counts.values():
        totals.update(series)
    return totals


@lru_cache(maxsize=64)  # rounds mostly are like those before them
def _as_counted(claim: Claim, kinds: tuple[str, ...]) -> str:
    """The text by which a claim is counted, if it may be beside these others."""
    weaker(claim, _weakest(kinds))
    return as_text(claim_to_json(claim))


# Text is the key, so that claims that are equal in a file and in memory count as one kind.
@lru_cache(maxsize=1 << 14)
def _parsed(kind: str) -> tuple[Claim, Prices]:
    """A claim, and the cost of one release with it."""
    claim = claim_from_json(json.loads(kind))
    return claim, prices_of(claim)


def _weakest(kinds: Iterable[str]) -> Claim | None:
    """The weakest claim of releases of these kinds."""
    weakest: Claim | None = None
    for kind in kinds:
        weakest = weaker(_parsed(kind)[0], weakest)
    return weakest


def _prices(totals: Mapping[str, int]) -> Prices:
    """Cost of releases that are counted by claim. Sums are exact but for the last rounding."""
    terms: dict[str, list[float]] = {}
    for kind, count in totals.items():
        for name, price in _parsed(kind)[1].items():
            terms.setdefault(name, []).append(count * price)
    return {name: math.fsum(values) for name, values in terms.items()}


def _merged(counts: _Counts, other: _Counts) -> _Counts:
    """Series of either; of one that both have, the larger number of each claim.

    A series is counted by one process at a time (`begin_series` after a fork or a copy, `resume`
    only where nobody else has gone on), and only ever grows: so of two copies, one is older.
    """
    names = dict.fromkeys((*counts, *other))
    merged: dict[str, dict[str, int]] = {}
    for name in names:
        mine, theirs = counts.get(name, {}), other.get(name, {})
        kinds = dict.fromkeys((*mine, *theirs))
        merged[name] = {kind: max(mine.get(kind, 0), theirs.get(kind, 0)) for kind in kinds}
    return merged


def _parse(text: str | bytes) -> tuple[str, Budget | None, str, dict[str, dict[str, int]]]:
    """Party, budget, series and counts of a serialised account."""

    def refuse(number: str) -> NoReturn:
        raise ValueError(f"{number} is not a number that an account holds")

    try:
        # JSON's NaN and Infinity would pass every comparison below, or none.
        data = json.loads(text, parse_constant=refuse)
        for name, value in (("format", _FORMAT), ("version", _VERSION)):
            # By type as well: 1.0 and True are equal to 1.
            if type(data[name]) is not type(value) or data[name] != value:
                raise ValueError(f"{name} must be {value!r}, got {data[name]!r}")
        body = data["account"]
        fields = {"party", "budget", "series", "spent"}
        if set(data) != {"format", "version", "checksum", "account"} or set(body) != fields:
            raise ValueError(f"unexpected fields among {sorted(data)}, {sorted(body)}")
        if data["checksum"] != _digest(as_text(body)):
            raise ValueError("its checksum does not fit its content")
        party, series = str(body["party"]), str(body["series"])
        budget = None if body["budget"] is None else Budget(**body["budget"])
        counts: dict[str, dict[str, int]] = {}
        for name, spent in body["spent"].items():
            counts[name] = {}
            for item in spent:
                claim_from_json(item["claim"])  # checks it
                check_whole("rounds", item["rounds"], least=1, most=_MOST_COUNTED)
                counts[name][as_text(item["claim"])] = item["rounds"]
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise DataError(f"not a whole account of version {_VERSION} ({error})") from error
    return party, budget, series, counts


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
