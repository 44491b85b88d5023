"""The ledger: no round is lost, whatever crashes, is damaged, or runs at the same time."""

from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from diffsketch.errors import ArgumentError, DataError, MismatchError
from diffsketch.files import replace_file
from diffsketch.privacy.accounting import accountant as lookahead
from diffsketch.privacy.accounting import events, ledger
from diffsketch.privacy.accounting.account import Budget, BudgetExceeded, Spending
from diffsketch.privacy.accounting.events import epsilon_for
from diffsketch.privacy.accounting.account import Ledger, LedgerBusy
from diffsketch.privacy.claim import (
    NoClaim,
    ProvenClaim,
    Relation,
    Scope,
    SimulatedClaim,
    Trust,
    Unit,
)

SCOPE = Scope(Unit.CLIENT, Relation.ADD_OR_REMOVE, Trust.CENTRAL)
BUDGET = Budget(epsilon=3.0, delta=1e-5)
CLAIM = ProvenClaim(SCOPE, events.gaussian(10.0), "Gaussian noise")
OTHER = ProvenClaim(
    SCOPE, events.poisson_sampled(1 / 3, events.gaussian(1.1 + 2.2)), "noise on a sample"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.json"


def test_what_is_charged_is_there_again(path: Path) -> None:
    book = Ledger.create(path, SCOPE, budget=Budget(1e4, 1e-5))
    book.charge(CLAIM)
    book.charge(OTHER, 3)
    book.charge(CLAIM, 2)
    again = Ledger.open(path, SCOPE)
    expected = (Spending(CLAIM, 3), Spending(OTHER, 3))
    assert again.spent == book.spent == expected
    assert again.rounds == book.rounds == 6
    assert again.budget == Budget(1e4, 1e-5)
    assert again.scope == SCOPE
    total = events.composed(*(events.repeated(s.claim.event, s.rounds) for s in expected))
    assert float(again.epsilon(delta=1e-5)) == epsilon_for(total, 1e-5)
    assert sorted(entry.name for entry in path.parent.iterdir()) == [
        ".ledger.json.lock",
        "ledger.json",
    ]


def test_the_file_grows_with_kinds_and_not_with_rounds(path: Path) -> None:
    book = Ledger.create(path, SCOPE)
    sizes = []
    for _ in range(9):
        for claim in (CLAIM, OTHER):
            book.charge(claim)
        sizes.append(len(path.read_bytes()))
    assert len(set(sizes)) == 1
    assert Ledger.open(path, SCOPE).spent == (Spending(CLAIM, 9), Spending(OTHER, 9))


def test_rounds_of_others_are_taken_from_what_is_reserved(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two objects in turn compose as seldom as one would, and stop at the same round."""
    composed = 0

    def counted(event: events.Event, delta: float) -> float:
        nonlocal composed
        composed += 1
        return epsilon_for(event, delta)

    monkeypatch.setattr(lookahead, "epsilon_for", counted)
    one = Ledger.create(path, SCOPE, budget=BUDGET)
    two, fits = Ledger.open(path, SCOPE), one.rounds_left(CLAIM)
    composed = 0
    for index in range(fits):
        (one, two)[index % 2].charge(CLAIM)
        assert composed < 60
    assert fits > 50
    before = path.read_bytes()
    for book in (one, two, Ledger.open(path, SCOPE)):
        with pytest.raises(BudgetExceeded):
            book.charge(CLAIM)
        assert (book.rounds, book.rounds_left(CLAIM)) == (fits, 0)
        assert float(book.epsilon(1e-5)) <= 3.0
    assert path.read_bytes() == before


def test_only_what_is_proven_and_about_the_same_is_charged(path: Path) -> None:
    book = Ledger.create(path, SCOPE)
    before = path.read_bytes()
    with pytest.raises(ArgumentError, match="must be a ProvenClaim"):
        book.charge(NoClaim(SCOPE, "there is no noise"))  # type: ignore[arg-type]
    simulated = SimulatedClaim(SCOPE, CLAIM.event, CLAIM.mechanism)
    with pytest.raises(ArgumentError, match="about exact noise, got one about simulated noise"):
        book.charge(simulated)
    local = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
    with pytest.raises(MismatchError, match="must be about the same"):
        book.charge(ProvenClaim(local, events.gaussian(1.0), "noise"))
    with pytest.raises(MismatchError, match="not about client unit, replace, local trust"):
        Ledger.open(path, local)
    assert path.read_bytes() == before


def test_a_round_is_in_the_file_before_it_is_released(path: Path) -> None:
    book = Ledger.create(path, SCOPE, budget=BUDGET)
    with book.round(CLAIM):
        assert Ledger.open(path, SCOPE).rounds == 1

    def broken_release() -> None:
        with book.round(CLAIM):
            raise RuntimeError("the release failed half-way")

    with pytest.raises(RuntimeError):
        broken_release()
    assert Ledger.open(path, SCOPE).rounds == 2  # what may have leaked is not refunded
    released = False
    tight = Ledger.create(path.with_name("tight.json"), SCOPE, budget=Budget(0.01, 1e-9))
    with pytest.raises(BudgetExceeded), tight.round(CLAIM):
        released = True
    assert not released


def test_it_is_synchronised_before_it_counts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content, then the name: first the file, then its directory."""
    book = Ledger.create(path, SCOPE)
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
    book = Ledger.create(path, SCOPE, budget=BUDGET)
    book.charge(CLAIM)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ledger, function, full)
        with pytest.raises(DataError, match=r"ledger\.json cannot be written.*do not release"):
            book.charge(CLAIM)
        assert book.rounds == (1 if function == "replace_file" else 2)
    book.charge(CLAIM)
    # If only the name was in doubt the round is in the file: it may be wasted, never forgotten.
    assert (
        book.rounds == Ledger.open(path, SCOPE).rounds == (2 if function == "replace_file" else 3)
    )


def test_what_others_charged_is_seen(path: Path) -> None:
    one = Ledger.create(path, SCOPE)
    two = Ledger.open(path, SCOPE)
    two.charge(CLAIM, 7)
    assert one.rounds == 7
    assert float(one.epsilon(1e-5)) == float(two.epsilon(1e-5))


def test_a_second_name_is_refused(path: Path) -> None:
    book = Ledger.create(path, SCOPE)
    os.link(path, path.with_name("other.json"))
    with pytest.raises(DataError, match="hard link"):
        book.charge(CLAIM)
    assert book.rounds == 0


def test_a_removed_lock_is_noticed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = Ledger.create(path, SCOPE)
    write = replace_file

    def remove_lock(target: Path, content: bytes) -> None:
        path.with_name(f".{path.name}.lock").unlink()
        write(target, content)

    monkeypatch.setattr(ledger, "replace_file", remove_lock)
    with pytest.raises(DataError, match="do not release"):
        book.charge(CLAIM)


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
    Ledger.create(path, SCOPE, budget=BUDGET).charge(CLAIM)
    released = path.with_name("released")

    def release() -> None:
        if where == "before the new name":
            monkeypatch.setattr(Path, "replace", die)
        elif where == "after the new name":
            monkeypatch.setattr(ledger, "synchronise", die)
        with Ledger.open(path, SCOPE).round(CLAIM):
            if where == "before the release":
                die()
            released.touch()

    process = FORK.Process(target=release)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not released.exists()
    book = Ledger.open(path, SCOPE)
    assert book.rounds == rounds
    book.charge(CLAIM)  # the lock went with the process
    assert Ledger.open(path, SCOPE).rounds == rounds + 1


def test_processes_share_a_budget(path: Path) -> None:
    """Three at a time, each charging until it is refused: together exactly what fits."""
    book = Ledger.create(path, SCOPE, budget=Budget(epsilon=6.0, delta=1e-5))
    fits, charged = book.rounds_left(CLAIM), FORK.SimpleQueue()

    def charge() -> None:
        own, done = Ledger.open(path, SCOPE, wait=60.0), 0
        with suppress(BudgetExceeded):
            while True:
                own.charge(CLAIM)
                done += 1
        charged.put(done)

    running = [FORK.Process(target=charge) for _ in range(3)]
    for process in running:
        process.start()
    assert sum(charged.get() for _ in running) == fits > 100
    assert Ledger.open(path, SCOPE).rounds == fits
    with pytest.raises(BudgetExceeded):
        book.charge(CLAIM)
    assert book.rounds == fits


def test_a_locked_ledger_is_not_charged(path: Path) -> None:
    Ledger.create(path, SCOPE)
    book = Ledger.open(path, SCOPE, wait=0.0)
    with path.with_name(".ledger.json.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LedgerBusy, match="nothing was charged"):
            book.charge(CLAIM)
    assert book.rounds == 0
    book.charge(CLAIM)
    assert Ledger.open(path, SCOPE).rounds == 1


# Damage.


def test_a_new_one_never_replaces_an_old_one(path: Path) -> None:
    Ledger.create(path, SCOPE).charge(CLAIM)
    with pytest.raises(DataError, match=r"ledger\.json exists already"):
        Ledger.create(path, SCOPE)
    assert Ledger.open(path, SCOPE).rounds == 1


def refused(path: Path, content: bytes) -> str:
    """The error for this content, after which the file is as it was."""
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        Ledger.open(path, SCOPE)
    assert path.read_bytes() == content
    assert str(path) in str(error.value)
    return str(error.value)


def test_every_truncation_is_noticed(path: Path) -> None:
    book = Ledger.create(path, SCOPE, budget=BUDGET)
    book.charge(CLAIM, 4)
    book.charge(OTHER)
    whole = path.read_bytes()
    for length in range(len(whole.rstrip())):
        refused(path, whole[:length])


def test_every_altered_byte_is_noticed(path: Path) -> None:
    """All but those between the parts: what is read is either the same or refused."""
    book = Ledger.create(path, SCOPE, budget=BUDGET)
    book.charge(CLAIM, 4)
    whole, data = path.read_bytes(), json.loads(path.read_bytes())
    noticed = 0
    for place in range(len(whole)):
        for other in (b"7", b" ", b'"'):
            content = whole[:place] + other + whole[place + 1 :]
            try:
                same = json.loads(content) == data
            except ValueError:
                same = False
            if same:
                continue
            noticed += 1
            refused(path, content)
    assert noticed > 2 * len(whole.replace(b" ", b"").replace(b"\n", b""))


def test_other_formats_are_refused(path: Path) -> None:
    Ledger.create(path, SCOPE)
    whole = json.loads(path.read_bytes())
    for change, message in (
        ({"version": 1}, "version must be 2, got 1"),
        ({"version": True}, "version must be 2, got True"),
        ({"format": "another"}, "format must be"),
        ({"note": "hello"}, "unexpected fields"),
        ({"checksum": "0" * 32}, "checksum"),
    ):
        assert message in refused(path, json.dumps({**whole, **change}).encode())
    for content in (b"", b"[]", b"null", b"3", b"{}", b"\xff\xfe", b"[" * 100_000):
        refused(path, content)


def with_checksum(body: Any) -> bytes:
    """A file with a checksum that fits, as only this code makes it."""
    head = {"format": "diffsketch privacy ledger", "version": 2, "ledger": body}
    return json.dumps({**head, "checksum": ledger._digest(ledger._text(body))}).encode()


@pytest.mark.parametrize(
    "change",
    [
        {"scope": {"unit": "client", "relation": "replace"}},
        {"scope": {"unit": "person", "relation": "replace", "trust": "local"}},
        {"scope": None},
        {"budget": {"epsilon": 0.0, "delta": 1e-5}},
        {"budget": {"epsilon": "3", "delta": 1e-5}},
        {"budget": {"epsilon": 3.0}},
        {"spent": None},
        {"spent": [{}]},
        {"spent": [{"rounds": 0}]},
        {"spent": [{"rounds": 2.5}]},
        {"spent": [{"rounds": "4"}]},
        {"spent": [{"mechanism": ""}]},
        {"spent": [{"event": {"kind": "gaussian", "noise_multiplier": -1.0}}]},
        {"spent": [{"event": {"kind": "gaussian", "noise_multiplier": float("inf")}}]},
        {"spent": [{"event": {"kind": "unheard of"}}]},
    ],
)
def test_a_fitting_checksum_does_not_excuse_nonsense(path: Path, change: dict[str, Any]) -> None:
    Ledger.create(path, SCOPE, budget=BUDGET).charge(CLAIM)
    body = json.loads(path.read_bytes())["ledger"]
    path.write_bytes(with_checksum(body))
    assert Ledger.open(path, SCOPE).rounds == 1
    if change.get("spent"):
        change = {
            "spent": [{**body["spent"][0], **change["spent"][0]} if change["spent"][0] else {}]
        }
    refused(path, with_checksum({**body, **change}))


def test_a_missing_file(path: Path) -> None:
    with pytest.raises(DataError, match=r"ledger\.json cannot be read"):
        Ledger.open(path, SCOPE)
    book = Ledger.create(path, SCOPE)
    path.unlink()
    with pytest.raises(DataError, match=r"ledger\.json cannot be read"):
        book.charge(CLAIM)
    assert not path.exists()  # a new one would have forgotten all
    with pytest.raises(DataError, match="cannot be opened"):
        Ledger.create(path.parent / "nowhere" / "ledger.json", SCOPE)


def test_a_file_that_went_back_in_time(path: Path) -> None:
    book = Ledger.create(path, SCOPE, budget=BUDGET)
    book.charge(CLAIM)
    old = path.read_bytes()
    book.charge(CLAIM)
    path.write_bytes(old)
    with pytest.raises(DataError, match="lacks rounds that were charged"):
        book.charge(CLAIM)
    assert path.read_bytes() == old


def test_arguments(path: Path) -> None:
    with pytest.raises(ArgumentError, match="wait must be"):
        Ledger.create(path, SCOPE, wait=float("nan"))
    with pytest.raises(ArgumentError, match="scope must be"):
        Ledger.create(path, "client")  # type: ignore[arg-type]
    assert not path.exists()
