"""No two messages that leave a machine share noise, whatever is restored, copied or tried again.

A machine of Hypothesis drives the group engine through rounds, going back to old states, new
objects, restarts from a directory, copies of it, and rounds that fail; a test drives forks. Every
message is taken where it leaves, in the collective, and there its round must be charged already.
`tests/flower/test_never_twice.py` does the same to Flower's nodes and servers.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from torch import Tensor

from diffsketch.ddp.group import GroupMean
from diffsketch.ddp.transport import GroupTransport
from diffsketch.errors import MismatchError
from diffsketch.methods import Method
from diffsketch.privacy import CohortNoise, Noise, NoiseKey
from diffsketch.privacy.accounting.account import Account
from diffsketch.sketch import SketchKey
from tests.ddp.processes import alone
from tests.helpers.releases import DIM, NOISED, Releases, noised

KEY = SketchKey.from_integer(5)
VECTORS = torch.randn(4, DIM, generator=torch.Generator().manual_seed(1)) / 10
FEW = settings(max_examples=8, stateful_step_count=12)


@pytest.fixture(scope="module", autouse=True)
def _group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with alone(tmp_path_factory.mktemp("group")):
        yield


class Group(RuleBasedStateMachine):
    """One rank: its objects, its old states, and the directories in which it keeps its account."""

    method: Method
    folder: Path

    def __init__(self) -> None:
        super().__init__()
        self.releases = Releases(self.method)
        self.place = self._new_folder()
        self.charged = {self.place: 0}
        self.states: list[Any] = []
        self.patch = pytest.MonkeyPatch()
        self.sum = dist.all_reduce
        self.patch.setattr(dist, "all_reduce", self._leaving)
        self.vector: Tensor | None = None
        self.mean = self._opened()

    def teardown(self) -> None:
        self.patch.undo()
        assert self.releases.shared() == 0

    def _new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder))

    def _opened(self) -> GroupMean:
        file = self.place / "account.json"
        return GroupMean(self.method, key=KEY, trusted_group=True, account_file=file)

    def _leaving(self, payload: Tensor, **options: Any) -> None:
        """The collective: what it is given leaves the machine."""
        if self.vector is not None:
            cells, transport = self.method.message_format.cell_count, self.mean.transport
            assert isinstance(transport, GroupTransport)
            _, packing = transport.sums(self.method)
            message = payload[:cells].clone()
            if packing is not None:
                message = packing.unpack(payload[: packing.words(cells)], cells)
            message = message.reshape(self.method.message_format.shape)
            message = message if message.is_floating_point() else message.long()
            # Before it leaves, it is paid for.
            self.charged[self.place] += 1
            account = Account.open(self.place / "account.json")
            assert account.rounds >= self.charged[self.place]
            seed = KEY.seed(self.mean.round_index - 1)
            self.releases.add(message, self.vector, seed)
        self.sum(payload, **options)

    @rule(which=st.integers(0, len(VECTORS) - 1))
    def do_a_round(self, which: int) -> None:
        self.vector = VECTORS[which]
        self.mean.mean(self.vector)
        self.vector = None

    @rule()
    def fail_a_round(self) -> None:
        with pytest.raises(MismatchError):
            self.mean.mean(VECTORS[0][:3])

    @rule()
    def keep_the_state(self) -> None:
        self.states.append(self.mean.state_dict())

    @rule(which=st.integers(0, 20))
    def go_back(self, which: int) -> None:
        if self.states:
            self.mean.load_state_dict(self.states[which % len(self.states)])

    @rule()
    def make_it_anew(self) -> None:
        self.mean = self._opened()

    @rule(which=st.integers(0, 20))
    def restart_from_a_state(self, which: int) -> None:
        self.make_it_anew()
        self.go_back(which)

    @rule()
    def copy_the_directory(self) -> None:
        other = self._new_folder()
        shutil.copytree(self.place, other, dirs_exist_ok=True)
        self.charged[other] = self.charged[self.place]
        self.place = other
        self.make_it_anew()


def machine_of(name: str, folder: Path) -> type[Group]:
    return type("Group", (Group,), {"method": noised(name, 1), "folder": folder})


@pytest.mark.parametrize("name", NOISED)
def test_a_group_never_shares_noise(name: str, tmp_path: Path) -> None:
    run_state_machine_as_test(machine_of(name, tmp_path), settings=FEW)


@pytest.mark.parametrize("name", NOISED)
def test_noise_that_follows_from_the_round_is_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the noise of a key and the round, as it once was."""
    machine = machine_of(name, tmp_path)()
    key = NoiseKey.from_integer(1)

    def repeating(*_: object, **__: object) -> Noise:
        return CohortNoise(key, [0], round_index=machine.mean.round_index)

    for module in ("ddp.group", "methods.gate"):
        monkeypatch.setattr(f"diffsketch.{module}.release_noise", repeating)
    machine.keep_the_state()
    machine.do_a_round(0)
    machine.go_back(0)
    machine.do_a_round(1 if machine.method.exact else 0)  # the paper's noise follows the vector
    assert machine.releases.shared() == 1
    machine.patch.undo()


def test_a_message_that_is_not_charged_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: an account that forgets."""
    machine = machine_of("gaussian", tmp_path)()
    monkeypatch.setattr(Account, "charge", lambda *_: None)
    with pytest.raises(AssertionError):
        machine.do_a_round(0)
    machine.patch.undo()
