"""What goes wrong in a round changes nothing, and workers that break do not break the mean."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from diffsketch.methods.base import Method, build_method
from diffsketch.methods.client_noise import SketchGaussian
from diffsketch.methods.gate import NonFiniteUpdate
from diffsketch.methods.plain import PlainSketch, Uncompressed
from diffsketch.privacy.accounting.budget import Budget
from diffsketch.privacy.claim import Claim, PaperClaim, ProvenClaim, Relation, Trust
from diffsketch.privacy.noise import CohortNoise
from diffsketch.sketch.hashing import HashSeed, SketchKey
from diffsketch.training.rounds import ServerOptimizer
from diffsketch.training.sampling import AllDevices, PoissonDevices, UniformSampler
from diffsketch.training.simulation import Diverged, DivergedRound, Simulation
from diffsketch.training.tasks import Devices, Examples, Task
from tests.helpers.refusals import refused
from tests.training.reference import DIM, FixedTrainer, make_task, updates_of
from tests.training.reference import simulate as simulated
from tests.training.test_simulation_state import same

SIZES = (6, 9, 4, 5, 7)
DEVICES = len(SIZES)
LOCAL = SketchGaussian(DIM, 3, 5, clip=0.5, noise_multiplier=2.0)
NOISY = SketchGaussian(DIM, 3, 5, clip=50.0, noise_multiplier=2.0)


def spoilt(*broken: int, value: float = float("nan")) -> Task:
    """A task in which one input of each of these devices has such a value."""
    task = make_task(*SIZES)
    devices = task.devices
    inputs = devices.examples.inputs.clone()
    for device in broken:
        inputs[devices.starts[device], 0] = value
    examples = Examples(inputs, devices.examples.labels)
    return Task(task.name, Devices(examples, devices.starts, devices.names), task.test, task.model)


def simulate(method: Method | None = None, task: Task | None = None, **options: Any) -> Simulation:
    task = make_task(*SIZES) if task is None else task
    return simulated(method, task, **{"sampler": None, **options})


def updates(simulation: Simulation, weights: Tensor) -> Tensor:
    """Vectors of all devices in the first round."""
    return updates_of(simulation, weights, list(range(DEVICES)), 0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_worker_is_left_out_where_nothing_is_proven(value: float) -> None:
    simulation = simulate(task=spoilt(2, value=value))
    assert simulation.sampler == AllDevices(DEVICES)  # the default
    before = simulation.weights
    with pytest.warns(NonFiniteUpdate, match="'device-2', which are left out of the mean"):
        result = simulation.step()
    rest = updates(simulation, before)[[0, 1, 3, 4]]
    assert torch.allclose(simulation.weights, before + rest.mean(dim=0), atol=1e-6)
    assert result.left_out == ("device-2",)
    assert result.published.count == 4
    assert result.bytes_up == 4 * Uncompressed(DIM).wire_bytes
    assert (simulation.state.participation.rounds == 1).all()  # the claim anew, not the round


def test_of_a_secret_sample_the_divisor_falls_by_the_share_that_is_left_out() -> None:
    sampler = PoissonDevices.of(DEVICES, 4, seed=5)
    simulation = simulate(task=spoilt(2), sampler=sampler)
    drawn = sampler.draw(0).tolist()
    assert 2 in drawn
    before = simulation.weights
    with pytest.warns(NonFiniteUpdate, match="'device-2', which are left out of the mean"):
        result = simulation.step()
    rest = updates(simulation, before)[[device for device in drawn if device != 2]]
    divisor = 4 * (len(drawn) - 1) / len(drawn)
    assert result.published.count == pytest.approx(divisor)
    assert torch.allclose(simulation.weights, before + rest.sum(dim=0) / divisor, atol=1e-6)


def test_broken_worker_counts_as_zeros_where_it_is_proven() -> None:
    """Its noise is there, it is counted, and the claim is that of the whole cohort."""
    simulation, healthy = simulate(LOCAL, spoilt(2)), simulate(LOCAL)
    vectors = updates(simulation, simulation.weights)
    vectors[2] = 0.0
    with pytest.warns(NonFiniteUpdate, match="'device-2', which count as zeros"):
        result = simulation.step()
    noise = CohortNoise(simulation.noise_key, range(DEVICES), round_index=0)
    messages = LOCAL.encode(vectors, SketchKey.from_integer(5).seed(0), noise).messages
    assert torch.equal(result.published.total, messages.sum(dim=0))
    assert int(messages[2].abs().max()) > 100  # noise alone
    assert result.published.count == DEVICES
    assert result.left_out == ("device-2",)
    expected = healthy.step()
    assert (result.claim, result.bytes_up) == (expected.claim, expected.bytes_up)
    assert simulation.epsilon(1e-5) == healthy.epsilon(1e-5)


def test_left_out_workers_draw_no_noise_and_others_their_own() -> None:
    settings = {"rows": 3, "cols": 5, "per_round": 1.0}
    method = build_method("diffsketch", dim=DIM, cohort=DEVICES, settings=settings)
    simulation = simulate(method, spoilt(1))
    vectors = updates(simulation, simulation.weights)[[0, 2, 3, 4]]
    with pytest.warns(NonFiniteUpdate, match="device-1"):
        result = simulation.step()
    noise = CohortNoise(simulation.noise_key, [0, 2, 3, 4], round_index=0)
    messages = method.encode(vectors, SketchKey.from_integer(5).seed(0), noise).messages
    assert torch.allclose(result.published.total, messages.sum(dim=0), atol=1e-5)
    assert isinstance(result.claim, PaperClaim)
    assert result.summed.noised is not None
    assert len(result.summed.noised) == 4


def test_claim_is_for_the_workers_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = PlainSketch.claim_for

    def remembered(self: PlainSketch, present: int, seed: HashSeed) -> Claim:
        asked.append(present)
        return real(self, present, seed)

    monkeypatch.setattr(PlainSketch, "claim_for", remembered)
    simulation = simulate(PlainSketch(DIM, 3, 5), spoilt(1, 3))
    with pytest.warns(NonFiniteUpdate, match="'device-1', 'device-3'"):
        simulation.step()
    assert asked[-1] == DEVICES - 2


def test_worker_whose_message_overflows_is_left_out() -> None:
    rows = torch.full((DEVICES, DIM), 0.01)
    rows[3] = 3e38  # finite, but sums of it are not
    simulation = simulate(PlainSketch(DIM, 3, 5), trainer=FixedTrainer(rows))
    with pytest.warns(NonFiniteUpdate, match="device-3"):
        result = simulation.step()
    assert result.published.count == DEVICES - 1
    assert bool(torch.isfinite(simulation.weights).all())


def test_all_workers_broken_stops_the_run_where_nothing_is_proven() -> None:
    simulation = simulate(task=spoilt(*range(DEVICES)))
    before = simulation.state_dict()
    for _ in range(2):
        refused(Diverged, "all 5 workers of round 0", simulation.step)
        assert same(simulation.state_dict(), before)  # nothing was sent


@pytest.mark.parametrize("cohort", [1, 3])
def test_all_workers_broken_send_their_noise_where_it_is_proven(cohort: int) -> None:
    """To stop would tell which data a single device holds."""
    sampler = UniformSampler(DEVICES, cohort, seed=5)
    simulation = simulate(LOCAL, spoilt(*range(DEVICES)), sampler=sampler)
    with pytest.warns(NonFiniteUpdate, match="which count as zeros, with their noise"):
        result = simulation.step()
    noise = CohortNoise(simulation.noise_key, result.cohort.tolist(), round_index=0)
    messages = LOCAL.encode(torch.zeros(cohort, DIM), SketchKey.from_integer(5).seed(0), noise)
    assert torch.allclose(result.published.total, messages.messages.sum(dim=0), atol=1e-6)
    assert (result.published.count, len(result.left_out)) == (cohort, cohort)
    assert isinstance(result.claim, ProvenClaim)
    assert simulation.state.participation.rounds.sum() == cohort


@pytest.mark.filterwarnings("ignore::diffsketch.methods.gate.NonFiniteUpdate")
def test_secret_samples_of_broken_devices_are_published() -> None:
    """Also if a single device is drawn, and is broken."""
    central = SketchGaussian(
        DIM, 3, 5, clip=0.5, noise_multiplier=2.0,
        relation=Relation.ADD_OR_REMOVE, trust=Trust.CENTRAL,
    )  # fmt: skip
    sampler = PoissonDevices.of(DEVICES, 1.0, seed=5)
    simulation = simulate(central, spoilt(*range(DEVICES)), sampler=sampler)
    sizes = set()
    for _ in range(12):
        sizes.add(len(simulation.step().cohort))
    assert {0, 1, 2} <= sizes
    assert simulation.epsilon(1e-5).rounds == 12


def diverging(**options: Any) -> Simulation:
    """Proven and finite messages, but the step is too large for the weights."""
    return simulate(NOISY, server=ServerOptimizer(server_step=1e38), **options)


def test_a_diverged_round_is_paid_for() -> None:
    """Its messages were sent: bytes and epsilon have it, and the model has not."""
    simulation, healthy = diverging(budget=Budget(30.0, 1e-5)), simulate(NOISY)
    healthy.step()
    weights = simulation.weights
    with pytest.raises(DivergedRound, match="new weights would not be finite") as caught:
        simulation.step()
    result = caught.value.result
    assert float(simulation.epsilon(1e-5)) == float(healthy.epsilon(1e-5)) > 0
    assert simulation.state.participation.rounds.tolist() == [1] * DEVICES
    assert simulation.bytes_up == healthy.bytes_up == result.bytes_up == DEVICES * NOISY.wire_bytes
    assert (result.round_index, result.published.count) == (0, DEVICES)
    assert simulation.round_index == 0
    assert torch.equal(simulation.weights, weights)


def test_a_diverged_round_is_the_last_and_paid_once() -> None:
    simulation = diverging()
    with pytest.raises(DivergedRound) as first:
        simulation.step()
    after = simulation.state_dict()
    again = diverging()
    again.load_state_dict(after)
    for one in (simulation, again):
        with pytest.raises(Diverged) as second:
            one.step()
        assert not isinstance(second.value, DivergedRound)
        assert str(second.value) == str(first.value)
        assert same(one.state_dict(), after)
    for _ in range(2):
        refused(Diverged, "new weights would not be finite", simulation.run)


def test_a_sum_that_overflows_is_an_error() -> None:
    simulation = simulate(trainer=FixedTrainer(torch.full((DEVICES, DIM), 2e38)))
    before = simulation.weights
    refused(Diverged, "round 0: the sum of the messages would not be finite", simulation.step)
    assert torch.equal(simulation.weights, before)


def test_warnings_as_errors_change_nothing() -> None:
    simulation = simulate(task=spoilt(0))
    before = simulation.state_dict()
    with pytest.raises(NonFiniteUpdate):  # warnings are errors in all tests
        simulation.step()
    assert same(simulation.state_dict(), before)


class Interrupter:
    """Raises `KeyboardInterrupt` at some line of our own code."""

    def __init__(self, at: int) -> None:
        self.at, self.lines = at, 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        del argument
        if "diffsketch" not in frame.f_code.co_filename:
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                raise KeyboardInterrupt
        return self


def interrupted_step(simulation: Simulation, at: int) -> int:
    """Lines that were run, of a step that is interrupted at one of them."""
    interrupter = Interrupter(at)
    before = sys.gettrace()
    sys.settrace(interrupter)
    try:
        simulation.step()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return interrupter.lines


def test_interrupts_at_any_line_leave_a_whole_state() -> None:
    """Before a round or after it, and never between: tried at forty lines spread over a round."""
    options: dict[str, Any] = {
        "sampler": UniformSampler(DEVICES, 3, seed=5),
        "server": ServerOptimizer(momentum=0.5),
    }
    lines = interrupted_step(simulate(LOCAL, **options), 10**9)
    assert lines > 200
    first, second = simulate(LOCAL, **options), simulate(LOCAL, **options)
    first.step()
    before = first.state_dict()
    second.load_state_dict(before)
    second.step()
    after = second.state_dict()
    outcomes = []
    for at in np.linspace(1, lines, 40).astype(int).tolist():
        simulation = simulate(LOCAL, **options)
        simulation.load_state_dict(before)
        with torch.enable_grad():  # torch's own contexts, interrupted at their end, leave it off
            interrupted_step(simulation, at)
        state = simulation.state_dict()
        assert same(state, before) or same(state, after)
        outcomes.append(same(state, before))
    assert outcomes.count(True) > 33
