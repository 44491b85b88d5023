"""Accounts of the parties of a group, whatever is restarted, loaded, copied, forked or swapped.

Machines of Hypothesis drive two parties through all of that, over a process group and over a store.
What a party has sent is counted at the transport. Below them, single cases, and scalers.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from torch import Tensor
from torch.distributed import HashStore  # type: ignore[attr-defined]

from diffsketch.ddp import GroupMean, StoreGroup, StoreMean
from diffsketch.ddp.transport import RankStatus, read_reports
from diffsketch.errors import ArgumentError, DataError, MismatchError
from diffsketch.methods import PlainSketch, SketchGaussian
from diffsketch.privacy import Budget
from diffsketch.privacy.accounting import account as accounting
from diffsketch.privacy.accounting.account import Account
from diffsketch.privacy.accounting.budget import BudgetExceeded
from diffsketch.sketch import SketchKey
from tests.ddp.processes import Scale, alone
from tests.helpers.refusals import refused

DIM, KEY, BUDGET = 40, SketchKey.from_integer(3), Budget(8.0, 1e-5)
METHOD = SketchGaussian(DIM, 1, 8, clip=1.0, noise_multiplier=2.0)
SKETCH = PlainSketch(DIM, 1, 8)
CLAIM = METHOD.claim_for(1, KEY.seed(0))
ALLOWED = Account(BUDGET).rounds_left(CLAIM)  # type: ignore[arg-type]
# To shrink a failure would take minutes.
FEW = settings(max_examples=20, stateful_step_count=30, phases=[Phase.generate])
INDEX = st.integers(0, 30)


@pytest.fixture(scope="module", autouse=True)
def _alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    torch.set_num_threads(1)  # threads of this process are not there in a fork
    with alone(tmp_path_factory.mktemp("group")):
        yield


@dataclass(eq=False)
class Copy:
    """One copy of a party's account: a folder, or the memory of a process."""

    party: int
    folder: Path | None
    sent: set[int] = field(default_factory=set)  # messages of the party that this copy has met


@dataclass(eq=False)
class Process:
    """An object of the engine, and the copy of the account that it charges."""

    mean: GroupMean
    copy: Copy


class Parties(RuleBasedStateMachine):
    """Two parties with an account file each, its copies, and all processes that are alive.

    A message is a number; each copy of an account must count all those that it has met: sent by its
    own processes, copied with it, or in a state that they have loaded.
    """

    root: Path

    def path(self, folder: Path, rank: int) -> Path:  # noqa: ARG002
        """The account's file: the party's, whatever its rank."""
        return folder / "account.json"

    def __init__(self) -> None:
        super().__init__()
        self.messages = 0
        self.ranks = [0, 1]  # by party
        self.states: list[tuple[dict[str, Any], Copy, set[int]]] = []
        self.copies = [Copy(party, Path(tempfile.mkdtemp(dir=self.root))) for party in (0, 1)]
        self.processes: list[Process] = []
        self.broken = False
        self.patch = pytest.MonkeyPatch()
        self.setup()
        for copy in list(self.copies):
            self._open(copy)

    def teardown(self) -> None:
        self.patch.undo()

    def setup(self) -> None:
        """Connect the engine to a transport that counts."""

    def made(self, rank: int, **options: Any) -> GroupMean:
        """The engine's object of a rank."""
        raise NotImplementedError

    def leaving(self) -> None:
        """Count a message that leaves, of the process that is at work; or break the transport."""
        if self.broken:
            raise OSError("planted")
        self.messages += 1
        self.at_work.copy.sent.add(self.messages)
        assert len(self.at_work.copy.sent) <= ALLOWED, "the budget was spent twice"

    def _open(self, copy: Copy) -> None:
        rank = self.ranks[copy.party]
        file = None if copy.folder is None else self.path(copy.folder, rank)
        self.processes.append(Process(self.made(rank, budget=BUDGET, account_file=file), copy))

    def _process(self, which: int) -> Process:
        if not self.processes:
            self._open(self.copies[which % len(self.copies)])
        return self.processes[which % len(self.processes)]

    @rule(which=INDEX, count=st.integers(1, 3))
    def send(self, which: int, count: int) -> None:
        self.at_work = self._process(which)
        for _ in range(count):
            try:
                self.at_work.mean.mean(torch.ones(DIM))
            except BudgetExceeded:
                return

    @rule(which=INDEX)
    def crash_between_charging_and_sending(self, which: int) -> None:
        self.at_work, self.broken = self._process(which), True
        with pytest.raises((OSError, BudgetExceeded)):
            self.at_work.mean.mean(torch.ones(DIM))
        self.broken = False
        self.processes.remove(self.at_work)

    @rule(which=INDEX, in_memory=st.booleans())
    def start_a_process(self, which: int, in_memory: bool) -> None:
        copy = self.copies[which % len(self.copies)]
        self._open(Copy(copy.party, None) if in_memory else copy)

    @rule(swapped=st.booleans())
    def restart_everything(self, swapped: bool) -> None:
        self.processes.clear()
        self.setup()
        if swapped:
            self.ranks.reverse()
        for copy in self.copies:
            self._open(copy)

    @rule(which=INDEX)
    def save(self, which: int) -> None:
        process = self._process(which)
        self.states.append((process.mean.state_dict(), process.copy, set(process.copy.sent)))

    @rule(which=INDEX, state=INDEX)
    def load(self, which: int, state: int) -> None:
        """Whatever state: old, of another life, copy or party."""
        if not self.states:
            return
        process = self._process(which)
        saved, copy, sent = self.states[state % len(self.states)]
        if saved.get("rank") not in (None, process.mean.rank) and process.copy.folder is None:
            with pytest.raises(ArgumentError, match="account_file must be given to go on from"):
                process.mean.load_state_dict(saved)
            return
        process.mean.load_state_dict(saved)
        if copy.party == process.copy.party:
            process.copy.sent |= sent

    @rule(which=INDEX)
    def copy_the_folder(self, which: int) -> None:
        copy = self.copies[which % len(self.copies)]
        assert copy.folder is not None
        folder = Path(tempfile.mkdtemp(dir=self.root))
        shutil.copytree(copy.folder, folder, dirs_exist_ok=True)
        self.copies.append(Copy(copy.party, folder, set(copy.sent)))

    @rule(which=INDEX)
    def fork(self, which: int) -> None:
        """The child sends a message, and leaves its state."""
        self.at_work = self._process(which)
        read, write = os.pipe()
        if os.fork() == 0:
            try:
                before = self.messages
                self.send(which, 1)
                state = self.at_work.mean.state_dict()
                os.write(write, json.dumps([self.messages - before, state]).encode())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            sent, state = json.loads(pipe.read())
        os.wait()
        met = self.at_work.copy.sent if self.at_work.copy.folder else set(self.at_work.copy.sent)
        if sent:
            self.messages += 1
            met.add(self.messages)
        self.states.append((state, self.at_work.copy, set(met)))

    @invariant()
    def no_account_has_less_than_was_sent(self) -> None:
        for process in self.processes:
            epsilon, sent = process.mean.epsilon(1e-5), process.copy.sent
            assert epsilon.rounds >= len(sent), "the account has forgotten a message"
            least = float(CLAIM.epsilon(delta=1e-5, rounds=len(sent))) if sent else 0.0
            assert float(epsilon) >= least, "the account states less than was sent"


class OverAGroup(Parties):
    """A group of one rank for each party: the collective is the transport."""

    def setup(self) -> None:
        self.patch.setattr(dist, "all_reduce", self.all_reduce)

    def made(self, rank: int, **options: Any) -> GroupMean:
        del rank
        return GroupMean(METHOD, key=KEY, **options)

    def all_reduce(self, payload: Tensor, **_: Any) -> None:
        (report,) = read_reports(payload[-2:])
        assert report is not None
        if report.status is RankStatus.FINE:
            self.leaving()


class CountingStore(HashStore):
    """A store that tells a machine of the messages that are left in it."""

    machine: OverAStore

    def set(self, key: str, value: Any) -> None:
        if "/report/" in key and RankStatus.FINE.name in value:
            self.machine.leaving()
        super().set(key, value)


class OverAStore(Parties):
    """Both parties are ranks that meet in a store, or miss each other."""

    def setup(self) -> None:
        self.store = CountingStore()
        self.store.machine = self

    def made(self, rank: int, **options: Any) -> StoreMean:
        group = StoreGroup(
            self.store, rank=rank, world=2, min_ranks=1, wait=1e-3, timeout=5.0, keep=1000
        )
        return StoreMean(METHOD, key=KEY, group=group, **options)


def machine_of(engine: type[Parties], folder: Path, **changed: Any) -> type[Parties]:
    return type(engine.__name__, (engine,), {"root": folder, **changed})


@pytest.mark.parametrize("engine", [OverAGroup, OverAStore])
def test_an_account_never_has_less_than_was_sent(engine: type[Parties], tmp_path: Path) -> None:
    run_state_machine_as_test(machine_of(engine, tmp_path), settings=FEW)


def test_a_file_that_follows_the_number_of_a_rank_is_found(tmp_path: Path) -> None:
    """The control: ranks are swapped at a restart, and each party spends its budget again."""

    def by_number(_: Parties, folder: Path, rank: int) -> Path:
        return folder / f"account-{rank}.json"

    machine = machine_of(OverAStore, tmp_path, path=by_number)()
    machine.send(0, ALLOWED)
    machine.restart_everything(swapped=True)
    with pytest.raises(AssertionError, match="the account has forgotten a message"):
        machine.no_account_has_less_than_was_sent()
    refused(AssertionError, "the budget was spent twice", machine.send, 0, 1)
    machine.teardown()


@pytest.mark.parametrize("engine", [OverAGroup, OverAStore])
def test_a_series_that_two_lives_share_is_found(
    engine: type[Parties], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: copies that went on apart count in one series, of which the longer counts."""

    def begin_series(account: Account, name: str = "") -> None:  # noqa: ARG001
        account.series, account._process = "always the same", accounting._process
        account._left_off = ""

    monkeypatch.setattr(Account, "begin_series", begin_series)
    machine = machine_of(engine, tmp_path)()
    machine.copy_the_folder(0)
    machine.start_a_process(2, in_memory=False)
    machine.send(0, 2)
    machine.send(2, 2)
    machine.save(2)
    machine.load(0, 0)
    with pytest.raises(AssertionError, match="the account has forgotten a message"):
        machine.no_account_has_less_than_was_sent()
    machine.teardown()


@pytest.mark.parametrize("engine", [OverAGroup, OverAStore])
@pytest.mark.parametrize("blind", [False, True])
def test_a_fork_of_an_account_in_memory_is_added(
    engine: type[Parties], blind: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parent and child send one each; and the control, a child that takes itself for its parent."""
    if blind:
        monkeypatch.setattr(accounting, "_forked", lambda: None)
    machine = machine_of(engine, tmp_path)()
    machine.start_a_process(0, in_memory=True)
    machine.fork(2)
    machine.send(2, 1)
    machine.load(2, 0)
    assert len(machine.processes[2].copy.sent) == 2
    with pytest.raises(AssertionError, match="forgotten") if blind else nullcontext():
        machine.no_account_has_less_than_was_sent()
    machine.teardown()


# Single cases.


def mean_of(path: Path | None = None, **options: Any) -> GroupMean:
    return GroupMean(METHOD, key=KEY, **{"budget": BUDGET, "account_file": path, **options})


def rounds_of(mean: GroupMean, count: int) -> None:
    for _ in range(count):
        mean.mean(torch.ones(DIM))


def test_every_round_is_counted_once(tmp_path: Path) -> None:
    """Lives that go back to one checkpoint, in a file, in an object and in copies of a state."""
    path = tmp_path / "account.json"
    first = mean_of(path)
    rounds_of(first, 1)
    state = first.state_dict()
    for life in range(2):
        mean = mean_of(path)
        mean.load_state_dict(state)
        assert mean.round_index == 1
        rounds_of(mean, 3)
        assert mean.epsilon(1e-5).rounds == 1 + 3 * (life + 1)
    forgetful, later = mean_of(), mean_of(tmp_path / "later.json", budget=None)
    for life in range(2):  # without a file, an object remembers what it has sent itself
        forgetful.load_state_dict(state)
        rounds_of(forgetful, 3)
        assert forgetful.epsilon(1e-5).rounds == 1 + 3 * (life + 1)
    for _ in range(2):  # rounds of a state that a new file lacks are charged, and not twice
        later.load_state_dict(forgetful.state_dict())
        assert later.epsilon(1e-5).rounds == 7
    rounds_of(later, 3)
    later.load_state_dict(mean.state_dict())  # of another object: what it sent is added
    assert later.epsilon(1e-5).rounds == 16


def test_a_file_that_does_not_fit_or_cannot_be_written_sends_nothing(tmp_path: Path) -> None:
    path = tmp_path / "books" / "account.json"
    mean = mean_of(path)
    refused(MismatchError, "budget must be that of", mean_of, path, budget=Budget(9.0, 1e-5))
    with pytest.raises(ArgumentError, match="budget must not be given where nothing is proven"):
        GroupMean(SKETCH, key=KEY, account_file=path)  # the file has one
    path.write_text("{}")
    refused(DataError, "it is left as it is", mean_of, path)
    shutil.rmtree(path.parent)
    with pytest.raises(DataError):
        rounds_of(mean, 1)
    assert mean.round_index == 0


@pytest.mark.parametrize("method", [METHOD, SKETCH])
def test_an_account_counts_without_a_budget_or_a_proof(method: Any, tmp_path: Path) -> None:
    for life in range(2):
        mean = GroupMean(method, key=KEY, account_file=tmp_path / "account.json")
        rounds_of(mean, 2)
        assert mean.epsilon(1e-5).rounds == 2 * (life + 1)


def test_a_scaler_that_follows_overflows_is_refused_where_none_is_seen() -> None:
    scaler = torch.amp.GradScaler("cpu")
    GroupMean(SKETCH, key=KEY, scaler=scaler)
    refused(ArgumentError, r"enabled GradScaler\. Use bfloat16", mean_of, scaler=scaler)
    mean_of(scaler=torch.amp.GradScaler("cpu", enabled=False))


def test_a_scale_stays_where_the_claim_is_proven() -> None:
    for method in (METHOD, SKETCH):
        scale = Scale(64.0)
        mean = GroupMean(method, key=KEY, scaler=scale)
        rounds_of(mean, 2)
        scale.value = 32.0
        if method is SKETCH:
            rounds_of(mean, 1)
            continue
        refused(ArgumentError, r"must keep its scale .* got 32 after 64", rounds_of, mean, 1)
