"""Nothing that leaves a rank tells of its data, but for cells that have their noise.

Two worlds differ in the data of rank 0, and so in whatever its code does with it: vectors that are
zero, huge or not finite, no data at all, errors anywhere. Everything that leaves is recorded at the
transport, a process group of our own that DDP's C++ code calls as well, or the store of local
steps. The second world hears what the first one heard: where noised cells were sent, those of the
first world arrive. All else must be the same: how many messages, in which order, of which kind and
size, what is in them, and what is raised. Time is left out.

Each kind of leak that this is for is seen here to be found.
"""

from __future__ import annotations

import logging
import re
import secrets
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import zip_longest
from random import Random
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed import HashStore, ProcessGroup  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from diffsketch.ddp import (
    LocalSteps,
    StoreGroup,
    StoreMean,
    own_gradients,
    same_weights,
    sketch_hook,
    sketch_state,
)
from diffsketch.ddp.transport import CELLS_PER_RANK
from diffsketch.errors import DiffSketchError
from diffsketch.privacy import Budget
from diffsketch.privacy import noise as released_noise
from diffsketch.sketch import SketchKey

PROVEN: dict[str, Any] = {
    "method": "sketch-gaussian", "compression": 4, "clip": 1.0, "noise_multiplier": 2.0, "seed": 7,
    "budget": Budget(8.0, 1e-5),
}  # fmt: skip
WORLD, EVERY = 2, 2
FEW = settings(max_examples=25, phases=[Phase.generate])  # to shrink would take minutes

Seen: TypeAlias = tuple[Any, ...]
"""Something that others see: its kind, and all of it that has no noise."""


@dataclass
class Transcript:
    """All that others see of a world, and the noised cells, which are replayed to the next one."""

    seen: list[Seen] = field(default_factory=list)
    cells: list[Any] = field(default_factory=list)
    heard: list[Any] = field(default_factory=list)  # cells of another world, to replay
    peer: list[str] = field(default_factory=list)  # what rank 1 does in one sum after another

    def exchanged(self, cells: Any) -> Any:
        """The cells that arrive where these were sent."""
        self.cells.append(cells)
        place = len(self.cells) - 1
        return self.heard[place] if place < len(self.heard) else cells


class Done(dist._Work):  # type: ignore[name-defined,misc]
    """A collective that is over."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._future: torch.futures.Future[Any] = torch.futures.Future()
        self._future.set_result(result)

    def wait(self, timeout: Any = None) -> bool:  # noqa: ARG002
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        return self._future


class Recorder(ProcessGroup):
    """A group of two in which rank 1 says what rank 0 says, if it does not misbehave."""

    transcript = Transcript()

    def getBackendName(self) -> str:  # noqa: N802
        return "recorder"

    def _saw(self, kind: str, tensors: list[Tensor], **more: Any) -> None:
        whole = [(str(one.dtype), tuple(one.shape), bytes_of(one)) for one in tensors]
        self.transcript.seen.append((kind, whole, more))

    def allreduce(self, tensors: list[Tensor], opts: Any) -> Done:  # type: ignore[override]
        """Sum a message of cells and control cells. Rank 0's control is recorded as it is."""
        (payload,) = tensors
        cells, control = payload[: -CELLS_PER_RANK * WORLD], payload[-CELLS_PER_RANK * WORLD :]
        self._saw(
            "allreduce", [control], cells=len(cells), summed=opts.reduceOp == dist.ReduceOp.SUM
        )
        cells.copy_(self.transcript.exchanged(cells.clone()))
        behaves = self.transcript.peer.pop(0) if self.transcript.peer else "fine"
        peer = control[:CELLS_PER_RANK].clone()
        if behaves == "failed":
            peer = torch.tensor([1, -1]).to(peer) * peer.abs()
        elif behaves == "garbage":
            peer = torch.zeros_like(peer)
        control[CELLS_PER_RANK:] = peer
        return Done(tensors)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Done:  # type: ignore[override]
        self._saw("broadcast", tensors, root=opts.rootRank)
        return Done(tensors)

    def allgather(  # type: ignore[override]
        self, outputs: list[list[Tensor]], inputs: list[Tensor], _: Any
    ) -> Done:
        self._saw("allgather", inputs)
        for gathered, own in zip(outputs, inputs, strict=True):
            gathered[0].copy_(own)
            gathered[1].copy_(own)
            if len(own) > 2:  # a handshake, in which the account of rank 1 is another one
                gathered[1][1] += 1
        return Done(outputs)

    def barrier(self, _: Any = None) -> Done:
        self._saw("barrier", [])
        return Done([])


def bytes_of(value: Tensor | bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.detach().contiguous().view(torch.uint8).numpy().tobytes()


@pytest.fixture(scope="module", autouse=True)
def _recorded() -> Iterator[None]:
    def made(store: Any, rank: int, size: int, timeout: Any) -> Recorder:  # noqa: ARG001
        return Recorder(rank, size)  # type: ignore[call-arg]

    if not hasattr(dist.Backend, "RECORDER"):
        dist.Backend.register_backend("recorder", made, devices=["cpu"])
    dist.init_process_group("recorder", rank=0, world_size=WORLD, store=HashStore())
    yield
    dist.destroy_process_group()


@contextmanager
def replayed() -> Iterator[None]:
    """Random numbers of the operating system, the same in each world."""
    names, noise = Random(1), np.random.default_rng(2)

    def random_words(count: int, bits: int = 64) -> Any:
        return noise.integers(0, 2**bits, count, dtype=f"u{bits // 8}")

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")  # or, for one who has set it so, an error that others see
        patch.setattr(secrets, "token_bytes", names.randbytes)
        patch.setattr(secrets, "token_hex", lambda size: names.randbytes(size).hex())
        patch.setattr(released_noise, "random_words", random_words)
        logging.disable()  # the rank's own log
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


# What rank 0 holds, and what its code does with it: private.

DATA: dict[str, Callable[[], Tensor]] = {
    "one": lambda: torch.linspace(-1, 2, 20).view(5, 4),
    "another": lambda: -torch.linspace(-1, 2, 28).view(7, 4),
    "zeros": lambda: torch.zeros(5, 4),
    "huge": lambda: torch.full((5, 4), 3e38),
    "NaN": lambda: torch.full((5, 4), torch.nan),
    "infinite": lambda: torch.full((5, 4), -torch.inf),
    "single": lambda: torch.ones(1, 4),  # BatchNorm raises
    "nothing": lambda: torch.zeros(0, 4),
}
FAULTS = ("", "", "", "before", "forward", "backward", "after", "no backward")
Day: TypeAlias = tuple[str, str]
DAYS = st.lists(
    st.tuples(st.sampled_from(list(DATA)), st.sampled_from(FAULTS)), min_size=8, max_size=8
)
# What everybody knows: how long it takes, when all start anew, and what rank 1 does.
PLAN = st.lists(st.sampled_from(["step", "step", "step", "start anew"]), min_size=3, max_size=8)
PEER = st.lists(st.sampled_from(["fine", "fine", "fine", "failed", "garbage"]), max_size=8)


class Network(nn.Module):
    """Keeps statistics of its inputs, and uses its layers in an order that depends on them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)
        self.left, self.right = nn.Linear(6, 2), nn.Linear(6, 2)
        self.fault = ""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm(self.first(inputs))
        if self.fault == "forward":
            raise OSError("planted in the forward pass")
        if self.fault == "backward":
            hidden.register_hook(self.fail)
        left: Tensor
        if bool(inputs.sum() > 0):
            right: Tensor = self.right(hidden).relu()
            left = self.left(hidden)
        else:
            left = self.left(hidden)
            right = self.right(left.repeat(1, 3))
        return left + right

    def fail(self, gradient: Tensor) -> Tensor:
        raise OSError(f"planted in the backward pass {gradient.shape}")


def train(model: nn.Module, network: Network, day: Day) -> None:
    data, network.fault = day
    inputs = DATA[data]()
    if network.fault == "before":
        raise KeyError("planted")
    loss = model(inputs).square().mean()
    if network.fault != "no backward":
        loss.backward()
    if network.fault == "after":
        raise ValueError("planted")


@dataclass
class Hook:
    """A rank that trains with the hook.

    Args:
        prepare: What is done before the module is wrapped.
        guarded: Whether steps are made in a guard.
        settings: Of the method.
    """

    prepare: Callable[[nn.Module], nn.Module] = same_weights
    guarded: bool = True
    settings: dict[str, Any] = field(default_factory=lambda: PROVEN)

    def start(self, saved: Any = None) -> None:
        if saved is None:
            self.network = Network()
        self.model = DistributedDataParallel(self.prepare(self.network))
        self.state = sketch_state(self.model, **self.settings)
        self.model.register_comm_hook(self.state, sketch_hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        if saved is not None:
            self.state.load_state_dict(saved)

    def start_anew(self) -> None:
        self.start(self.state.state_dict())

    def step(self, day: Day) -> None:
        self.optimizer.zero_grad()
        with self.state.guard() if self.guarded else nullcontext():
            train(self.model, self.network, day)
        self.optimizer.step()

    def public(self) -> Seen:
        return self.state.mean.round_index, str(self.state.epsilon(1e-5))


@dataclass
class Local:
    """A silo that trains by itself and exchanges: bare, or in a DDP that averages nothing.

    Args:
        wrapped: Whether the model is in DDP.
        guarded: Whether steps are made in a guard.
        group: The ranks.
    """

    wrapped: bool = False
    guarded: bool = True
    group: Any = None

    def start(self, saved: Any = None) -> None:
        if saved is None:
            self.network = Network()
        self.model: Any = self.network
        if self.wrapped:
            self.model = DistributedDataParallel(same_weights(self.network))
            self.model.register_comm_hook(None, own_gradients)
        self.local = LocalSteps(self.model, every=EVERY, group=self.group, **PROVEN)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        if saved is not None:
            self.local.load_state_dict(saved)

    def start_anew(self) -> None:
        """Begin with the weights in common, as all must: the rank's own are in its state."""
        saved = self.local.state_dict()
        self.network.load_state_dict(self.local.global_weights(), strict=False)
        self.start(saved)

    def step(self, day: Day) -> None:
        with self.local.guard() if self.guarded else nullcontext():
            self.optimizer.zero_grad()
            train(self.model, self.network, day)
            self.optimizer.step()
        if not self.guarded:
            self.local.step()

    def public(self) -> Seen:
        return self.local.steps, self.local.means[0].round_index, str(self.local.epsilon(1e-5))


class RecordingStore(HashStore):
    """A store that records all that is written; how often ranks look is a matter of time."""

    transcript = Transcript()

    def set(self, key: str, value: Any) -> None:
        value = self._seen("set", key, value)
        super().set(key, value)

    def add(self, key: str, amount: int) -> int:
        if amount:
            self._seen("add", key, amount)
        return int(super().add(key, amount))

    def compare_set(self, key: str, expected: str, desired: str) -> Any:
        self._seen("compare_set", key, desired)
        return super().compare_set(key, expected, desired)

    def delete_key(self, key: str) -> bool:
        self._seen("delete", key, "")
        return bool(super().delete_key(key))

    def _seen(self, kind: str, key: str, value: Any) -> Any:
        noised = re.fullmatch(r"\d+/(cells/\d+|total)", key)
        self.transcript.seen.append((kind, key, len(value) if noised else value))
        return self.transcript.exchanged(value) if noised and "cells" in key else value


@dataclass
class InStore(Local):
    """A silo that meets another one in a store.

    That one is there in time ("fine"), stays away ("failed"), or has gone on alone ("garbage").
    """

    def start(self, saved: Any = None) -> None:
        if saved is None:
            self.store = RecordingStore()
        options: dict[str, Any] = {"world": 2, "min_ranks": 1, "wait": 1e-3, "timeout": 5.0}
        self.group = StoreGroup(self.store, rank=0, **options)
        super().start(saved)
        if saved is None:
            method = self.local.means[0].method
            group = StoreGroup(self.store, rank=1, **options)
            key = SketchKey.from_integer(PROVEN["seed"])
            self.peer = StoreMean(method, key=key, group=group, budget=PROVEN["budget"])

    def step(self, day: Day) -> None:
        behaves = self.store.transcript.peer.pop(0) if self.store.transcript.peer else "fine"
        if self.local._since + 1 == EVERY and behaves != "failed":
            while self.peer.missed() is not None:
                pass
            layout = self.local._layout_of(self.local._fragments[0])
            wait = self.peer.begin(torch.ones(self.peer.method.dim), layout=layout)
            if behaves == "garbage":
                wait()
        super().step(day)


Engine: TypeAlias = Hook | Local


def seen_of(
    engine: Engine, days: list[Day], plan: list[str], peer: list[str], *,
    other: Transcript | None = None,
) -> Transcript:  # fmt: skip
    """All that others see while rank 0 follows a plan, if they hear the cells of another world."""
    transcript = Transcript(peer=list(peer), heard=[] if other is None else other.cells)
    Recorder.transcript = RecordingStore.transcript = transcript
    with replayed():
        engine.start()
        for task, day in zip(plan, days, strict=False):
            try:
                try:
                    engine.step(day) if task == "step" else engine.start_anew()
                except DiffSketchError as error:  # a script that goes on after it
                    transcript.seen.append(("raised", type(error).__name__, str(error)))
                    engine.start_anew()
            except Exception as error:  # the process ends
                transcript.seen.append(("ended", type(error).__name__))
                break
            transcript.seen.append(("public", *engine.public()))
    return transcript


def difference_of(
    make: Callable[[], Engine], days: list[Day], others: list[Day], plan: list[str],
    peer: list[str] | None = None,
) -> list[tuple[Seen | None, Seen | None]]:  # fmt: skip
    """What others see of two worlds where it is not the same."""
    first = seen_of(make(), days, plan, peer or [])
    second = seen_of(make(), others, plan, peer or [], other=first)
    pairs = zip_longest(first.seen, second.seen)
    return [(one, another) for one, another in pairs if one != another]


ENGINES: dict[str, Callable[[], Engine]] = {
    "hook": Hook,
    "local steps": Local,
    "local steps in DDP": lambda: Local(wrapped=True),
    "store": InStore,
}


@pytest.mark.parametrize("name", ENGINES)
@FEW
@given(days=DAYS, others=DAYS, plan=PLAN, peer=PEER)
def test_nothing_beside_noised_cells_tells_of_data(
    name: str, days: list[Day], others: list[Day], plan: list[str], peer: list[str]
) -> None:
    assert difference_of(ENGINES[name], days, others, plan, peer) == []


# Controls: the record is of what was sent, and each leak is found.

STEPS = ["step"] * 4
FINE: list[Day] = [("one", "")] * 4
OTHER: list[Day] = [("another", "")] * 4
NAN: list[Day] = [("one", ""), ("NaN", ""), ("one", ""), ("one", "")]


@pytest.mark.parametrize("name", ENGINES)
def test_messages_are_recorded_and_noise_is_replayed(name: str) -> None:
    first, again, other = (
        seen_of(ENGINES[name](), days, STEPS, []) for days in (FINE, FINE, OTHER)
    )
    assert first.seen == again.seen
    cells, same, others = ([*map(bytes_of, world.cells)] for world in (first, again, other))
    assert cells == same
    assert cells != others
    assert len(cells) == len(others) >= 2


def plain(module: nn.Module) -> nn.Module:
    return module


NOTHING: dict[str, Any] = {"method": "sketch", "compression": 4, "bits": 32, "seed": 7}


def test_buffers_that_wrapping_sends_are_found() -> None:
    """DDP as it is: a rank's BatchNorm, in the first forward pass after a start."""
    plan = ["step", "start anew"]
    found = difference_of(lambda: Hook(prepare=plain, settings=NOTHING), FINE, OTHER, plan)
    assert found
    assert {one[0] for pair in found for one in pair if one} == {"broadcast"}
    assert difference_of(lambda: Hook(settings=NOTHING), FINE, OTHER, plan) == []


@pytest.mark.parametrize("make", [Hook, Local])
def test_errors_without_a_guard_are_found(make: type[Engine]) -> None:
    raises: list[Day] = [("one", ""), ("one", "after"), ("one", ""), ("one", "")]
    found = difference_of(lambda: make(guarded=False), FINE, raises, STEPS)
    assert any("ended" in pair[1] for pair in found if pair[1])
    assert difference_of(make, FINE, raises, STEPS) == []


def test_an_order_of_layers_that_depends_on_data_is_found() -> None:
    """Without a guard, DDP tells once in which order rank 0's gradients came."""
    found = difference_of(lambda: Hook(guarded=False), FINE, OTHER, STEPS)
    assert [one[0] for pair in found for one in pair if one] == ["broadcast"] * 2


def test_vectors_that_are_not_finite_are_found_where_nothing_is_proven() -> None:
    found = difference_of(lambda: Hook(settings=NOTHING), FINE, NAN, STEPS)
    assert found
    assert found[0][0] is not None
    assert found[0][0][0] == "allreduce"
