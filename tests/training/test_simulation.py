"""The simulation: noise, claims, budgets, secret samples, parts, averages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.methods.base import Method, build_method
from diffsketch.methods.client_noise import SketchGaussian
from diffsketch.methods.plain import PlainSketch, SaturatedCells, Uncompressed
from diffsketch.privacy.accounting.account import Account
from diffsketch.privacy.accounting.budget import Budget, BudgetExceeded, PoissonSampler
from diffsketch.privacy.claim import Basis, ProvenClaim, Relation, SimulatedClaim, Trust
from diffsketch.privacy.noise import CohortNoise
from diffsketch.sketch.hashing import SketchKey
from diffsketch.training import simulation as engine
from diffsketch.training.rounds import CLIP_BYTES, DistributedSGD, ServerOptimizer
from diffsketch.training.sampling import (
    AllDevices,
    PoissonDevices,
    UniformSampler,
    WeightedSampler,
)
from diffsketch.training.tasks import Task
from tests.helpers.refusals import refused
from tests.training.reference import (
    DEVICES,
    DIM,
    SIZES,
    make_task,
    simulate,
    updates_of,
)

DELTA = 1e-5
SKETCH = PlainSketch(DIM, 3, 5)
LOCAL = SketchGaussian(DIM, 3, 5, clip=0.5, noise_multiplier=2.0)
CENTRAL = SketchGaussian(
    DIM, 3, 5, clip=0.5, noise_multiplier=1.0, relation=Relation.ADD_OR_REMOVE, trust=Trust.CENTRAL
)
CLAIMED = build_method(
    "diffsketch", dim=DIM, cohort=3, settings={"rows": 3, "cols": 5, "per_round": 1.0}
)


def test_same_devices_and_batches_for_all_methods() -> None:
    runs = [simulate(method) for method in (Uncompressed(DIM), SKETCH, LOCAL)]
    for _ in range(5):
        cohorts = [run.step().cohort.tolist() for run in runs]
        assert cohorts[0] == cohorts[1] == cohorts[2]


def test_fresh_and_fixed_hashes() -> None:
    key = SketchKey.from_integer(5)
    fresh, fixed = simulate(SKETCH), simulate(SKETCH, hashes="fixed")
    for index in range(3):
        assert fresh.step().published.seed == key.seed(index)
        assert fixed.step().published.seed == key.seed(0)


def test_the_first_limit_suits_the_first_vectors() -> None:
    """Without, nearly all cells of the first round saturate; a limit that is given stays."""
    few = PlainSketch(DIM, 1, 9, bits=4)
    given = PlainSketch(DIM, 1, 9, bits=4, cell_limit=1e-6)
    agreed, growing = simulate(few).step(), simulate(given).step()
    assert agreed.summed.saturated is not None
    assert growing.summed.saturated is not None
    assert agreed.summed.saturated <= 3
    assert growing.summed.saturated > 9
    assert growing.published.clip == 1e-6
    told = CLIP_BYTES * len(agreed.cohort)  # what suits each worker, and what all take
    assert agreed.bytes_up - growing.bytes_up == agreed.bytes_down - growing.bytes_down == told


def test_cells_that_saturate_for_long_are_told_once() -> None:
    simulation = simulate(PlainSketch(DIM, 1, 9, bits=4, cell_limit=1e-12))
    with pytest.warns(SaturatedCells) as told:
        _ = [simulation.step() for _ in range(8)]
    assert len(told) == 1
    assert "round 2: more than half of all cells were beyond their limit" in str(told[0].message)
    quiet = simulate(PlainSketch(DIM, 1, 9, bits=4))
    for _ in range(8):  # where warnings are errors, as in all tests
        quiet.step()


def test_noise_is_that_of_the_workers() -> None:
    """What is published is what the devices of the cohort would send, one by one."""
    simulation = simulate(LOCAL)
    simulation.step()
    before = simulation.weights
    result = simulation.step()
    total = torch.zeros(3, 5, dtype=torch.int64)
    for device in result.cohort.tolist():
        vector = updates_of(simulation, before, [device], 1)
        noise = CohortNoise(simulation.noise_key, [device], round_index=1)
        total += LOCAL.encode(vector, SketchKey.from_integer(5).seed(1), noise).messages[0]
    assert torch.equal(result.published.total, total)


def test_claims_and_epsilon_of_the_busiest_client() -> None:
    simulation, account = simulate(LOCAL), Account()
    for _ in range(10):
        assert simulation.step().claim == SimulatedClaim.of(LOCAL.mechanism.claim)
    most = int(simulation.state.participation.rounds.max())
    account.charge(LOCAL.mechanism.claim, rounds=most)
    found = simulation.epsilon(DELTA)
    assert float(found) == pytest.approx(float(account.epsilon(DELTA)), rel=1e-9)
    assert (found.rounds, found.basis, found.simulated) == (most, Basis.PROVEN, True)
    assert "(proven, simulated; client unit" in str(found)
    assert most < 10
    assert simulation.state.participation.rounds.sum() == 30


def test_budget_stops_before_the_round() -> None:
    budget = Budget(epsilon=3.0, delta=DELTA)
    allowed = Account(budget).rounds_left(LOCAL.mechanism.claim)
    simulation = simulate(LOCAL, budget=budget, sampler=AllDevices(DEVICES))
    for _ in range(allowed):
        simulation.step()
    weights, state = simulation.weights, simulation.state_dict()
    refused(BudgetExceeded, "above the budget of 3", simulation.step)
    assert torch.equal(simulation.weights, weights)
    assert simulation.round_index == allowed >= 1
    assert state["round_index"] == simulation.state_dict()["round_index"]
    assert float(simulation.epsilon(DELTA)) <= 3.0


def test_paper_claims_are_per_round() -> None:
    simulation = simulate(CLAIMED)
    for _ in range(4):
        result = simulation.step()
        assert result.summed.noised is not None
        assert 0 <= int(result.summed.noised.sum()) <= result.summed.count
    progress = simulation.state.progress
    assert (progress.messages, progress.validated) == (12, 12)
    assert simulate(SKETCH).step().summed.noised is None
    found = simulation.epsilon(DELTA)
    assert (float(found), found.rounds, found.basis) == (1.0, 1, Basis.CLAIMED)


def test_poisson_counts_every_round_at_its_amplified_price() -> None:
    sampler = PoissonDevices.of(DEVICES, 2.0, seed=5)
    simulation = simulate(CENTRAL, sampler=sampler)
    sizes = set()
    for _ in range(6):
        result = simulation.step()
        sizes.add(len(result.cohort))
        assert result.published.count == pytest.approx(2.0)
    assert len(sizes) > 1
    amplified = PoissonSampler(DEVICES, 0.25).amplified(CENTRAL.mechanism.claim)
    assert result.claim == SimulatedClaim.of(amplified)
    expected = amplified.epsilon(delta=DELTA, rounds=6)
    assert float(simulation.epsilon(DELTA)) == pytest.approx(float(expected), rel=1e-9)
    plain = float(CENTRAL.mechanism.claim.epsilon(delta=DELTA, rounds=6))
    assert float(simulation.epsilon(DELTA)) < plain


def test_empty_rounds_publish_noise() -> None:
    sampler = PoissonDevices.of(DEVICES, 0.3, seed=5)
    simulation = simulate(CENTRAL, sampler=sampler)
    while True:
        before = simulation.weights
        result = simulation.step()
        if not len(result.cohort):
            break
    noise = CohortNoise(simulation.noise_key, [1 << 62], round_index=result.round_index)
    drawn = CENTRAL.central_noise(noise)
    assert drawn is not None
    assert torch.equal(result.published.total, drawn)
    assert result.bytes_up == 0
    assert isinstance(result.claim, ProvenClaim)
    assert not torch.equal(simulation.weights, before)


def test_poisson_means_are_over_the_expected_number() -> None:
    """Without noise: the sum of who came, over who was expected."""
    sampler = PoissonDevices.of(DEVICES, 2.5, seed=5)
    simulation = simulate(Uncompressed(DIM), sampler=sampler)
    for _ in range(4):
        before = simulation.weights
        result = simulation.step()
        expected = before + result.published.total / 2.5
        assert torch.allclose(simulation.weights, expected, atol=1e-6)
        assert float(simulation.epsilon(DELTA)) == float("inf")


@pytest.mark.parametrize("method", [CLAIMED, LOCAL], ids=["claimed", "proven, but local"])
def test_poisson_is_for_central_trust(method: Method) -> None:
    with pytest.raises(ArgumentError, match="central"):
        simulate(method, sampler=PoissonDevices.of(DEVICES, 2.0, seed=5))


@pytest.mark.parametrize("method", [Uncompressed(DIM), LOCAL, CLAIMED], ids=["no", "all", "some"])
def test_parts_do_not_change_the_sum(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether no worker draws noise, all do or some."""
    whole = simulate(method, sampler=AllDevices(DEVICES)).step()
    monkeypatch.setattr(engine, "PART_CELLS", 3 * DIM)
    parts = simulate(method, sampler=AllDevices(DEVICES)).step()
    assert torch.allclose(parts.published.total, whole.published.total, atol=1e-5)
    assert parts.published.count == whole.published.count == DEVICES
    if method is CLAIMED:
        assert parts.summed.noised is not None
        assert whole.summed.noised is not None
        assert torch.equal(parts.summed.noised, whole.summed.noised)


def test_schedule_reaches_the_step() -> None:
    plain, scheduled = (
        simulate(),
        simulate(server=ServerOptimizer(schedule="sqrt", server_step=0.5)),
    )
    start = plain.weights
    one, other = plain.step(), scheduled.step()
    assert torch.equal(one.published.total, other.published.total)
    assert torch.allclose(scheduled.weights - start, (plain.weights - start) / 2, atol=1e-7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": UniformSampler(9, 2, seed=0)}, "must draw from the task's 8 devices"),
        ({"method": Uncompressed(DIM + 1)}, "same number of weights, got 21, 22 and 21"),
        ({"rounds": 0}, "rounds must be >= 1"),
        ({"hashes": "old"}, "hashes must be"),
        ({"budget": Budget(8.0, DELTA)}, "budget must not be given where nothing is proven"),
        ({"method": CLAIMED, "budget": Budget(8.0, DELTA)}, "where nothing is proven"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ArgumentError, MismatchError), match=message):
        simulate(**options)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sketch-skellam", {"rows": 3, "cols": 5, "clip": 1.0, "noise_multiplier": 1.0}),
        ("cpsgd", {"levels": 4, "trials": 4, "clip": 1.0}),  # nothing is claimed
    ],
)
def test_poisson_is_not_for_sums_that_are_decoded_by_their_count(
    name: str, settings: dict[str, object]
) -> None:
    """Whole numbers are decoded by their count: not by 1, and then divided."""
    method = build_method(name, dim=DIM, cohort=2, settings=settings)
    with pytest.raises(ArgumentError, match=f"not for messages of unsigned.*got method='{name}'"):
        simulate(method, sampler=PoissonDevices.of(DEVICES, 2.0, seed=5))
    simulate(method, sampler=UniformSampler(DEVICES, 2, seed=5)).step()


@pytest.mark.parametrize("cohort", [[1, 1, 4], [2, 5, 3]])
def test_nobody_is_drawn_twice(cohort: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not in different parts, where the noise could not tell."""

    class Own(AllDevices):
        def draw(self, round_index: int) -> Tensor:
            del round_index
            return torch.tensor(cohort)

    monkeypatch.setattr(engine, "PART_CELLS", DIM)
    simulation = simulate(LOCAL, sampler=Own(DEVICES))
    refused(ArgumentError, "draw devices once each, in ascending order", simulation.step)
    assert simulation.round_index == simulation.bytes_up == 0
    cohort.sort()
    if len(set(cohort)) == 3:
        simulation.step()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize(
    "options",
    [
        {"method": Uncompressed(DIM)},
        {"method": SKETCH, "server": ServerOptimizer(momentum=0.9)},
        {"method": LOCAL},
        {"method": CENTRAL, "sampler": PoissonDevices.of(DEVICES, 2.0, seed=5)},
        {
            "method": SKETCH,
            "algorithm": DistributedSGD(0.1, 4, correction="drift"),
            "sampler": None,
        },
        {"method": SKETCH, "sampler": WeightedSampler(torch.arange(1.0, 9.0), 3, seed=5)},
    ],
)
def test_cuda_agrees_with_cpu(options: dict[str, Any]) -> None:
    task = make_task(*SIZES)
    moved = Task(task.name, task.devices.to(torch.device("cuda")), task.test, task.model)
    here, there = simulate(task=task, **options), simulate(task=moved, **options)
    for _ in range(3):
        one, other = here.step(), there.step()
        assert one.cohort.tolist() == other.cohort.tolist()
        assert (one.bytes_up, one.bytes_down) == (other.bytes_up, other.bytes_down)
    assert there.weights.is_cuda
    assert torch.allclose(here.weights, there.weights.cpu(), rtol=1e-4, atol=1e-4)
    assert here.evaluate()[0] == pytest.approx(there.evaluate()[0], rel=1e-3)
    state = there.state_dict()
    there.load_state_dict(state)
    again = there.state_dict()
    assert again.keys() == state.keys()
    for name, value in state.items():
        kept = again[name]
        assert torch.equal(kept, value) if isinstance(value, torch.Tensor) else kept == value, name
