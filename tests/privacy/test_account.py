"""Accounts in files: no round is lost, whatever crashes, is copied, or runs at the same time."""

from __future__ import annotations

import copy
import errno
import fcntl
import json
import math
import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from diffsketch.errors import ArgumentError, DataError, MismatchError
from diffsketch.files import replace_file
from diffsketch.privacy.accounting import account as module
from diffsketch.privacy.accounting import budget as budget_module
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.account import Account, AccountBusy
from diffsketch.privacy.accounting.budget import Budget, BudgetExceeded
from diffsketch.privacy.accounting.events import epsilon_for
from diffsketch.privacy.claim import (
    Basis,
    Claim,
    Epsilon,
    NoClaim,
    OpenClaim,
    PaperClaim,
    ProvenClaim,
    Relation,
    Scope,
    SimulatedClaim,
    Trust,
    Unit,
)
from tests.helpers.refusals import refused

SCOPE = Scope(Unit.CLIENT, Relation.ADD_OR_REMOVE, Trust.CENTRAL)
BUDGET = Budget(epsilon=3.0, delta=1e-5)
CLAIM = ProvenClaim(SCOPE, events.gaussian(10.0), "Gaussian noise")
OTHER = ProvenClaim(
    SCOPE, events.poisson_sampled(1 / 3, events.gaussian(1.1 + 2.2)), "noise on a sample"
)

GAUSSIAN_TWO = ProvenClaim(SCOPE, events.gaussian(7.0), "other noise")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "account.json"


def test_what_is_charged_is_there_again(path: Path) -> None:
    book = Account.open(path, budget=Budget(1e4, 1e-5))
    book.charge(CLAIM)
    book.charge(OTHER, 3)
    book.charge(CLAIM, 2)
    again = Account.open(path)
    expected = [(CLAIM, 3), (OTHER, 3)]
    assert again.spent == book.spent == expected
    assert again.rounds == book.rounds == 6
    assert again.budget == Budget(1e4, 1e-5)
    total = events.composed(*(events.repeated(claim.event, rounds) for claim, rounds in expected))
    assert float(again.epsilon(delta=1e-5)) == pytest.approx(epsilon_for(total, 1e-5), rel=1e-9)
    files = {entry.name for entry in path.parent.iterdir()}
    assert files == {".account.json.lock", "account.json"}


def test_others_rounds_come_from_the_reserve(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two objects in turn compose as seldom as one would, and stop at the same round."""
    composed = 0

    def counted(event: events.Event, delta: float) -> float:
        nonlocal composed
        composed += 1
        return epsilon_for(event, delta)

    monkeypatch.setattr(events, "epsilon_for", counted)
    one = Account.open(path, budget=BUDGET)
    two, fits = Account.open(path), one.rounds_left(CLAIM)
    composed = 0
    for index in range(fits):
        (one, two)[index % 2].charge(CLAIM)
        assert composed < 60
    assert fits > 50
    before = path.read_bytes()
    for book in (one, two, Account.open(path)):
        refused(BudgetExceeded, "budget", book.charge, CLAIM)
        assert (book.rounds, book.rounds_left(CLAIM)) == (fits, 0)
        assert float(book.epsilon(1e-5)) <= 3.0
    assert path.read_bytes() == before


def test_only_what_is_about_the_same_is_charged(path: Path) -> None:
    book = Account.open(path)
    book.charge(CLAIM)
    before = path.read_bytes()
    local = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
    other = ProvenClaim(local, events.gaussian(1.0), "noise")
    refused(MismatchError, "must be about the same", book.charge, other)
    with pytest.raises(MismatchError, match=r"account\.json: claims of one account must be about"):
        Account.open(path, planned=other)
    refused(MismatchError, "must be about the same", book.merge, charged(other, 1))
    assert path.read_bytes() == before
    with pytest.raises(MismatchError, match=r"budget must be that of .*epsilon=3.0"):
        Account.open(limited(path), budget=Budget(4.0, 1e-5))


def charged(claim: Claim, rounds: int) -> Account:
    account = Account()
    account.charge(claim, rounds)
    return account


def limited(path: Path) -> Path:
    """An account with a budget beside another."""
    Account.open(path.with_name("limited.json"), budget=BUDGET)
    return path.with_name("limited.json")


def test_a_budget_needs_a_proof_and_words_go_along(path: Path) -> None:
    """Simulated noise, opened doors and what nobody claims are still there after the file."""
    doors = OpenClaim(SCOPE, CLAIM.event, CLAIM.mechanism, ("evaluation",))
    simulated = SimulatedClaim(SCOPE, CLAIM.event, CLAIM.mechanism)
    for claim, words in (
        (simulated, "proven, simulated; client"),
        (doors, "claimed, without evaluation; client"),
        (NoClaim(SCOPE, "there is no noise"), "no claim"),
    ):
        for first in (None, CLAIM):  # it is the weakest of all claims that counts
            place = path.with_name(f"{type(claim).__name__}-{first is None}.json")
            book = Account.open(place)
            if first is not None:
                book.charge(first)
            book.charge(claim, 2)
            again = Account.open(place)
            again.merge(book)
            assert words in again.epsilon(1e-5).text("short")
            assert again.rounds == (2 if first is None else 3)
    nothing = NoClaim(SCOPE, "there is no noise")
    refused(BudgetExceeded, "is for what is proven", Account(BUDGET).charge, nothing)
    # A file that was charged without a proof, and then gets a budget: no round is within it.
    Account.open(path.with_name("bare.json")).charge(nothing)
    bare = Account.open(path.with_name("bare.json"), budget=BUDGET)
    assert bare.rounds_left(CLAIM) == 0
    refused(BudgetExceeded, "a release is not", bare.charge, CLAIM)
    assert float(bare.epsilon(1e-5)) == math.inf


def test_it_is_synchronised_before_it_counts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content, then the name: first the file, then its directory."""
    book = Account.open(path)
    real, kinds = os.fsync, []

    def watched(handle: int) -> None:
        kinds.append("folder" if Path(f"/proc/self/fd/{handle}").resolve().is_dir() else "file")
        real(handle)

    monkeypatch.setattr(os, "fsync", watched)
    book.charge(CLAIM)
    assert kinds == ["file", "folder"]


@pytest.mark.parametrize("function", ["replace_file", "synchronise"])
def test_a_failed_write_is_no_charge(
    path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    book = Account.open(path, budget=BUDGET)
    book.charge(CLAIM)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, function, full)
        refused(DataError, r"account\.json cannot be written.*do not release", book.charge, CLAIM)
        assert book.rounds == (1 if function == "replace_file" else 2)
    book.charge(CLAIM)
    # If only the name was in doubt the round is in the file: it may be wasted, never forgotten.
    assert book.rounds == Account.open(path).rounds == (2 if function == "replace_file" else 3)


def test_a_second_name_is_refused(path: Path) -> None:
    book = Account.open(path)
    os.link(path, path.with_name("other.json"))
    refused(DataError, "hard link", book.charge, CLAIM)
    assert book.rounds == 0


def test_a_removed_lock_is_noticed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = Account.open(path)
    write = replace_file

    def remove_lock(target: Path, content: bytes) -> None:
        path.with_name(f".{path.name}.lock").unlink()
        write(target, content)

    monkeypatch.setattr(module, "replace_file", remove_lock)
    refused(DataError, "do not release", book.charge, CLAIM)


# Crashes and charges in other processes.

FORK = multiprocessing.get_context("fork")


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("where", "rounds"),
    [("before the new name", 1), ("after the new name", 2), ("before the release", 2)],
)
def test_a_crash_never_hides_a_round(
    path: Path, where: str, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at three places; the file stays whole, and nothing uncounted is released."""
    Account.open(path, budget=BUDGET).charge(CLAIM)
    released = path.with_name("released")

    def release() -> None:
        if where == "before the new name":
            monkeypatch.setattr(Path, "replace", die)
        elif where == "after the new name":
            monkeypatch.setattr(module, "synchronise", die)
        Account.open(path).charge(CLAIM)
        if where == "before the release":
            die()
        released.touch()

    process = FORK.Process(target=release)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not released.exists()
    book = Account.open(path)
    assert book.rounds == rounds
    book.charge(CLAIM)  # the lock went with the process
    assert Account.open(path).rounds == rounds + 1


def test_processes_share_a_budget(path: Path) -> None:
    """Three at a time, each charging until it is refused: together exactly what fits."""
    book = Account.open(path, budget=Budget(epsilon=6.0, delta=1e-5))
    fits, charged = book.rounds_left(CLAIM), FORK.SimpleQueue()

    def charge() -> None:
        own, done = Account.open(path, wait=60.0), 0
        with suppress(BudgetExceeded):
            while True:
                own.charge(CLAIM)
                done += 1
        charged.put(done)

    running = [FORK.Process(target=charge) for _ in range(3)]
    for process in running:
        process.start()
    assert sum(charged.get() for _ in running) == fits > 100
    assert Account.open(path).rounds == fits
    refused(BudgetExceeded, "budget", book.charge, CLAIM)
    assert book.rounds == fits


def test_a_locked_account_is_not_charged(path: Path) -> None:
    refused(ArgumentError, "wait must be", Account.open, path, wait=float("nan"))
    assert not path.exists()
    Account.open(path)
    book = Account.open(path, wait=0.0)
    with path.with_name(".account.json.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused(AccountBusy, "nothing was charged", book.charge, CLAIM)
    assert book.rounds == 0
    book.charge(CLAIM)
    assert Account.open(path).rounds == 1


# Damage.


def unreadable(path: Path, content: bytes) -> str:
    """The error for this content, after which the file is as it was."""
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        Account.open(path)
    assert path.read_bytes() == content
    assert str(path) in str(error.value)
    return str(error.value)


def test_every_altered_byte_and_truncation_is_noticed(path: Path) -> None:
    """All but those between the parts: what is read is either the same or refused."""
    book = Account.open(path, budget=BUDGET)
    book.charge(CLAIM, 4)
    whole, data = path.read_bytes(), json.loads(path.read_bytes())
    noticed = 0
    for place, other in product(range(len(whole)), (b"7", b" ", b'"')):
        content = whole[:place] + other + whole[place + 1 :]
        with suppress(ValueError):
            if json.loads(content) == data:
                continue
        noticed += 1
        unreadable(path, content)
    for length in range(len(whole.rstrip())):
        unreadable(path, whole[:length])
    assert noticed > 2 * len(whole.replace(b" ", b"").replace(b"\n", b""))


def test_other_formats_are_refused(path: Path) -> None:
    Account.open(path)
    whole = json.loads(path.read_bytes())
    for change, message in (
        ({"version": 2}, "version must be 1, got 2"),
        ({"version": True}, "version must be 1, got True"),
        ({"format": "another"}, "format must be"),
        ({"note": "hello"}, "unexpected fields"),
        ({"checksum": "0" * 32}, "checksum"),
    ):
        assert message in unreadable(path, json.dumps({**whole, **change}).encode())
    for content in (b"", b"[]", b"null", b"3", b"{}", b"\xff\xfe", b"[" * 100_000):
        unreadable(path, content)


def with_checksum(body: Any) -> bytes:
    """A file with a checksum that fits, as only this code makes it."""
    head = {"format": "diffsketch account", "version": 1, "account": body}
    return json.dumps({**head, "checksum": module._digest(budget_module.as_text(body))}).encode()


@pytest.mark.parametrize(
    "change",
    [
        {"budget": {"epsilon": 0.0, "delta": 1e-5}},
        {"budget": {"epsilon": "3", "delta": 1e-5}},
        {"budget": {"epsilon": 3.0}},
        {"spent": None},
        {"spent": [{}]},
        {"spent": {"a": [{}]}},
        {"rounds": 0},
        {"rounds": 2.5},
        {"rounds": "4"},
        {"claim": None},
        {"claim": {"scope": ["client", "replace", "local"]}},
        {"scope": ["client", "replace"]},
        {"scope": ["planet", "replace", "local"]},
        {"mechanism": ""},
        {"event": {"kind": "gaussian", "noise_multiplier": -1.0}},
        {"event": {"kind": "gaussian", "noise_multiplier": float("inf")}},
        {"event": {"kind": "unheard of"}},
    ],
)
def test_a_fitting_checksum_does_not_excuse_nonsense(path: Path, change: dict[str, Any]) -> None:
    Account.open(path, budget=BUDGET).charge(CLAIM)
    body = json.loads(path.read_bytes())["account"]
    path.write_bytes(with_checksum(body))
    assert Account.open(path).rounds == 1
    (item,) = next(iter(body["spent"].values()))
    for target in (body, item, item["claim"]):
        if change.keys() & target.keys():
            target.update(change)
            break
    unreadable(path, with_checksum(body))


def test_a_missing_file(path: Path) -> None:
    book = Account.open(path)
    path.unlink()
    refused(DataError, r"account\.json cannot be read", book.charge, CLAIM)
    assert not path.exists()  # a new one would have forgotten all
    path.write_bytes(b"")
    refused(DataError, r"cannot be written", Account.open, path / "account.json")


def test_a_file_that_went_back_in_time(path: Path) -> None:
    """Whoever has it open remembers, and the next charge puts everything back."""
    book = Account.open(path, budget=BUDGET)
    book.charge(CLAIM)
    old = path.read_bytes()
    book.charge(CLAIM)
    path.write_bytes(old)
    assert book.rounds == 2
    book.charge(CLAIM)
    assert Account.open(path).rounds == 3


# Copies that went on apart.


def test_copies_add_up_when_they_meet(path: Path) -> None:
    """A cloned disk: five releases before, then eight on one and three on the other."""
    book = Account.open(path)
    book.charge(CLAIM, 5)
    clone = path.with_name("clone.json")
    clone.write_bytes(path.read_bytes())
    first, second = Account.open(path), Account.open(clone)
    first.charge(CLAIM, 8)
    second.charge(CLAIM, 3)
    assert (first.rounds, second.rounds) == (13, 8)
    for meeting, other in ((first, second), (second, first), (first, second)):
        meeting.merge(other)
        assert meeting.rounds == 16
    assert Account.open(path).rounds == Account.open(clone).rounds == 16


def test_an_older_copy_adds_nothing(path: Path) -> None:
    book = Account.open(path)
    book.charge(CLAIM, 2)
    older = Account.from_text(book.to_text())
    book.charge(OTHER)
    book.merge(older)
    assert book.rounds == 3
    older.merge(book)
    assert older.rounds == 3


def test_a_fork_counts_by_itself() -> None:
    """Parent and child of a fork have one memory and no file in common: both are counted."""
    account = Account()
    account.charge(CLAIM, 2)
    texts = FORK.SimpleQueue()

    def child() -> None:
        account.charge(CLAIM, 4)
        texts.put(account.to_text())

    process = FORK.Process(target=child)
    process.start()
    account.charge(CLAIM)
    account.merge(Account.from_text(texts.get()))
    process.join()
    assert account.rounds == 7


COPIES: dict[str, Callable[[Account], Account]] = {
    "text": lambda account: Account.from_text(account.to_text()),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda account: pickle.loads(pickle.dumps(account)),  # noqa: S301
}


@pytest.mark.parametrize("made", COPIES.values(), ids=COPIES)
def test_copies_in_one_process_count_apart(made: Callable[[Account], Account]) -> None:
    account = Account()
    account.charge(CLAIM, 3)
    other = made(account)
    account.charge(CLAIM, 8)
    other.charge(CLAIM, 8)
    account.merge(other)
    assert account.rounds == 19


def test_resuming_goes_on_in_the_series() -> None:
    """An app that is started for every message does not make a series for each."""
    account = Account()
    for number in range(1, 6):
        account.charge(CLAIM)
        memory = Account.from_text(account.to_text())
        account = Account()
        account.resume(memory)
        assert account.rounds == number
    assert len(json.loads(account.to_text())["account"]["spent"]) == 1
    beyond = Account.from_text(account.to_text())
    account.charge(CLAIM)
    later = Account()
    later.merge(account)
    later.resume(beyond)  # of before the charge: somebody has gone on, so a new series begins
    later.charge(CLAIM)
    assert len(json.loads(later.to_text())["account"]["spent"]) == 2
    assert later.rounds == 7


def test_threads_share_an_account() -> None:
    """Composing lets other threads run: no charge may be lost, nor the budget exceeded."""
    noise = ProvenClaim(SCOPE, events.laplace(3.0), "Laplace noise")
    account, sent = Account(Budget(8.0, 1e-5)), list[int]()

    def charge(number: int) -> None:
        try:
            account.charge(noise)
        except BudgetExceeded:
            return
        sent.append(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(charge, range(60)))
    assert account.rounds == len(sent) > 5
    assert float(account.epsilon(1e-5)) <= 8.0


def test_absurd_counts_are_refused() -> None:
    account = charged(CLAIM, 3)
    body = json.loads(account.to_text())["account"]
    next(iter(body["spent"].values()))[0]["rounds"] = 10**400
    refused(DataError, "rounds must be", Account.from_text, with_checksum(body))
    refused(ArgumentError, "rounds must be", account.charge, CLAIM, 10**16)


def test_no_words_are_lost_in_a_mixture() -> None:
    doors = OpenClaim(SCOPE, CLAIM.event, CLAIM.mechanism, ("evaluation",))
    simulated = SimulatedClaim(SCOPE, CLAIM.event, CLAIM.mechanism)
    paper = PaperClaim(SCOPE, Epsilon(5.0, 0.0, 1, Basis.CLAIMED, SCOPE), "a paper")
    pairs: list[list[Claim]] = [[doors, simulated], [doors, paper]]
    for first, second in permutations(pairs[0]):
        account = charged(first, 1)
        account.charge(second)
        assert "claimed, without evaluation and exact noise" in str(account.epsilon(1e-5))
    for first, second in permutations(pairs[1]):
        account = charged(first, 1)
        account.charge(second)
        assert float(account.epsilon(1e-5)) == 5.0


def test_a_common_series_is_counted_once() -> None:
    """A state that one rank has saved is loaded by another one that was in the same rounds."""
    first, second = Account(), Account()
    for account in (first, second):
        account.begin_series("the run")
        account.charge(CLAIM, 4)
    second.merge(Account.from_text(first.to_text()))
    assert second.rounds == 4


class Parties(RuleBasedStateMachine):
    """Two parties' files that are opened, charged, copied, put back and merged in any order.

    What was charged is kept beside: by file, the set of all charges that its account has met.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.accounts: list[Account] = []
        self.met: list[set[int]] = []  # charges that each open account knows of
        self.files: dict[Path, set[int]] = {}
        self.saved: list[tuple[str, set[int]]] = []
        self.charges = 0

    @initialize()
    def first(self) -> None:
        self.open(0)

    @rule(number=st.integers(0, 1))
    def open(self, number: int) -> None:
        path = self.folder / f"{number}.json"
        self.accounts.append(Account.open(path, budget=Budget(40.0, 1e-5)))
        self.met.append(set(self.files.setdefault(path, set())))

    @rule(choice=st.integers(0, 99), claim=st.sampled_from([CLAIM, GAUSSIAN_TWO]))
    def charge(self, choice: int, claim: ProvenClaim) -> None:
        place = choice % len(self.accounts)
        account, path = self.accounts[place], self.accounts[place]._path
        assert path is not None
        try:
            account.charge(claim)
        except BudgetExceeded:
            return
        self.charges += 1
        self.files[path] |= self.met[place] | {self.charges}
        self.met[place] = set(self.files[path])

    @rule(choice=st.integers(0, 99))
    def save(self, choice: int) -> None:
        place = choice % len(self.accounts)
        self.saved.append((self.accounts[place].to_text(), set(self.met[place])))

    @precondition(lambda self: self.saved)
    @rule(choice=st.integers(0, 99), which=st.integers(0, 99))
    def load(self, choice: int, which: int) -> None:
        place, (text, met) = choice % len(self.accounts), self.saved[which % len(self.saved)]
        path = self.accounts[place]._path
        assert path is not None
        self.accounts[place].merge(Account.from_text(text))
        self.files[path] |= self.met[place] | met
        self.met[place] = set(self.files[path])

    @rule(source=st.integers(0, 1))
    def copy(self, source: int) -> None:
        """A directory is copied over another one; whoever has that open remembers its own."""
        here, there = (self.folder / f"{number}.json" for number in (source, 1 - source))
        if here in self.files and there in self.files:
            there.write_bytes(here.read_bytes())
            self.files[there] = set(self.files[here])

    @invariant()
    def never_less(self) -> None:
        for account, met in zip(self.accounts, self.met, strict=True):
            path = account._path
            assert path is not None
            assert account.rounds >= len(met | self.files[path])
        for path, charges in self.files.items():
            assert Account.open(path).rounds >= len(charges)

    def teardown(self) -> None:
        shutil.rmtree(self.folder)


Parties.TestCase.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, derandomize=True
)
test_no_copy_is_forgotten = Parties.TestCase
