"""Devices and batches of a round: the right distributions, functions of seed and round alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from diffsketch.errors import ArgumentError, DataError
from diffsketch.privacy.accounting.budget import PoissonSampler
from diffsketch.privacy.noise import NoiseKey
from diffsketch.training.sampling import (
    AllDevices,
    PoissonDevices,
    Sampler,
    ShuffledSampler,
    UniformSampler,
    WeightedSampler,
    draw_batches,
)
from diffsketch.training.tasks import Batches, Devices, Examples
from tests.helpers.refusals import refused

# Statistical tests here have fixed seeds; with others they would fail with this probability.
CHANCE = 1e-6
DRAWS = 4000
WEIGHTS = torch.tensor([5.0, 1.0, 2.0, 0.5, 1.5, 2.0, 0.3, 1.7, 3.0, 1.0, 2.2, 0.8])

SAMPLERS: list[Sampler] = [
    AllDevices(50),
    UniformSampler(50, 7, seed=3),
    UniformSampler(50, 40, seed=3),
    WeightedSampler(torch.arange(1.0, 51.0), 7, seed=3),
    WeightedSampler(torch.arange(1.0, 51.0), 40, seed=3),
    ShuffledSampler(50, 7, seed=3),
    PoissonDevices.of(50, 7.0, seed=3),
]


def likelihood(found: Iterable[object], law: Mapping[object, float]) -> float:
    """How likely such outcomes are under a law, by a chi-square test."""
    counts = Counter(found)
    total = counts.total()
    assert set(counts) <= set(law)
    value = sum((counts[key] - total * p) ** 2 / (total * p) for key, p in law.items())
    return float(chi2.sf(value, len(law) - 1))


def drawn_sets(sampler: Sampler) -> list[tuple[int, ...]]:
    return [tuple(sampler.draw(index).tolist()) for index in range(DRAWS)]


def successive_pairs(weights: torch.Tensor) -> dict[object, float]:
    """Probability of each pair if devices are drawn one after another by weight."""
    p = (weights.double() / weights.double().sum()).tolist()
    return {
        (i, j): p[i] * p[j] / (1 - p[i]) + p[j] * p[i] / (1 - p[j])
        for i, j in combinations(range(len(p)), 2)
    }


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_valid_and_reproducible(sampler: Sampler) -> None:
    rounds = [sampler.draw(index) for index in range(20)]
    sizes = set()
    for cohort in rounds:
        values = cohort.tolist()
        assert cohort.dtype == torch.int64
        assert values == sorted(set(values))
        assert all(0 <= value < 50 for value in values)
        sizes.add(len(values))
    if sampler.fixed_size:
        assert sizes == {round(sampler.expected)}
    for index in (13, 2, 13):  # whatever was drawn before
        assert torch.equal(sampler.draw(index), rounds[index])
    if not isinstance(sampler, AllDevices):
        assert len({tuple(cohort.tolist()) for cohort in rounds}) > 10
        other = replace(sampler, seed=4)  # type: ignore[type-var]
        assert any(not torch.equal(other.draw(index), rounds[index]) for index in range(5))


@pytest.mark.parametrize("cohort", [2, 6])  # by repetitions struck out, and by smallest keys
def test_uniform_pairs(cohort: int) -> None:
    pairs = list(combinations(range(8), 2))
    law: dict[object, float] = dict.fromkeys(pairs, 1 / len(pairs))
    rng = np.random.default_rng(0)
    sets = drawn_sets(UniformSampler(8, cohort, seed=1))
    # One random pair of each round, so that the outcomes are independent.
    found = [tuple(sorted(rng.choice(one, 2, replace=False).tolist())) for one in sets]
    assert likelihood(found, law) > CHANCE


def test_a_biased_sampler_is_found() -> None:
    """Negative control: two devices each from its half are not two of all."""
    rng = np.random.default_rng(0)
    pairs = list(combinations(range(8), 2))
    found = [(int(rng.integers(4)), 4 + int(rng.integers(4))) for _ in range(DRAWS)]
    assert likelihood(found, dict.fromkeys(pairs, 1 / len(pairs))) < CHANCE


@pytest.mark.parametrize("keys", [False, True])
def test_weighted_pairs(keys: bool) -> None:
    weights = torch.tensor([8.0, 4.0, 2.0, 1.0, 1.0, 0.5])
    sampler = WeightedSampler(weights, 2, seed=5)
    sampler.__dict__["_repeats"] = keys
    found = drawn_sets(sampler)
    assert likelihood(found, successive_pairs(weights)) > CHANCE
    products = {(i, j): float(weights[i] * weights[j]) for i, j in combinations(range(6), 2)}
    wrong: dict[object, float] = {k: v / sum(products.values()) for k, v in products.items()}
    assert likelihood(found, wrong) < CHANCE  # negative control: conditional Poisson sampling


def test_way_of_drawing_depends_on_weights_alone() -> None:
    assert not WeightedSampler(torch.ones(100), 10, 0)._repeats
    assert WeightedSampler(torch.ones(100), 60, 0)._repeats
    assert WeightedSampler(torch.tensor([1000.0] + [1.0] * 99), 10, 0)._repeats


def test_extreme_weights() -> None:
    sampler = WeightedSampler(torch.tensor([1e12, 1.0, 1e-12]), 3, seed=0)
    assert sampler.draw(0).tolist() == [0, 1, 2]
    sampler = WeightedSampler(torch.tensor([1e12, 1.0, 1e-12]), 1, seed=0)
    assert {sampler.draw(index).item() for index in range(50)} == {0}


def test_shuffled_takes_each_once_a_pass() -> None:
    sampler = ShuffledSampler(23, 5, seed=1)
    passes = []
    for number in range(20):
        members = [
            device for step in range(4) for device in sampler.draw(4 * number + step).tolist()
        ]
        assert len(set(members)) == len(members) == 20  # three sit out
        passes.append(frozenset(members))
    assert len(set(passes)) > 10
    assert frozenset().union(*passes) == set(range(23))


def test_poisson_is_that_of_privacy() -> None:
    sampler = PoissonDevices.of(200, 10, seed=4)
    assert sampler.expected == pytest.approx(10)
    assert sampler.lottery == PoissonSampler(200, 0.05)
    noise = NoiseKey.from_integer(4).source(worker=(1 << 62) + 1, round_index=6)
    assert torch.equal(sampler.draw(6), PoissonSampler(200, 0.05).draw(noise))
    sizes = torch.tensor([float(len(sampler.draw(index))) for index in range(1000)])
    assert abs(float(sizes.mean()) - 10) < 5 * (9.5 / 1000) ** 0.5  # 6e-7
    assert float(sizes.var()) == pytest.approx(9.5, rel=0.25)  # 5 standard deviations


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UniformSampler(5, 6, 0), "cohort must be at most the number of devices, 5"),
        (lambda: ShuffledSampler(5, 6, 0), "cohort must be at most the number of devices, 5"),
        (lambda: WeightedSampler(torch.ones(5), 6, 0), "cohort must be at most"),
        (lambda: PoissonDevices.of(5, 6.0, 0), "cohort must be in"),
        (lambda: UniformSampler(5, 0, 0), "cohort must be >= 1"),
        *(
            (lambda bad=bad: WeightedSampler(torch.tensor([1.0, bad]), 1, 0), "weights must be > 0")
            for bad in (0.0, float("nan"), float("inf"), -1.0)
        ),
        (lambda: AllDevices(0), "no devices"),
        (lambda: WeightedSampler(torch.tensor([]), 1, 0), "no devices"),
    ],
)
def test_bad_input(make: Callable[[], Sampler], message: str) -> None:
    with pytest.raises((ArgumentError, DataError), match=message):
        make()


ORDERS: dict[object, float] = dict.fromkeys(permutations(range(3)), 1 / 6)


def make_devices(*sizes: int) -> Devices:
    parts = {
        f"device-{i}": Examples(torch.zeros(size, 1), torch.zeros(size, dtype=torch.int64))
        for i, size in enumerate(sizes)
    }
    return Devices.of(parts)


def taken(batches: Batches, row: int) -> list[int]:
    """The examples of a worker, step by step."""
    indices = batches.indices[row]
    if batches.present is None:
        return [int(i) for i in indices.flatten()]
    assert bool((indices[~batches.present[row]] == 0).all())
    return [int(i) for i in indices[batches.present[row]]]


def epoch_of(devices: Devices, device: int, **settings: int) -> list[int]:
    values = {"seed": 0, "round_index": 0, "batch_size": 4, "epochs": 1, **settings}
    return taken(draw_batches(devices, torch.tensor([device]), **values), 0)


@pytest.mark.parametrize(
    ("sizes", "epochs"), [((4, 4, 4), 3), ((8, 8, 8), 1), ((8, 8, 8), 3), ((5, 1, 9), 3)]
)
def test_each_epoch_has_each_example_once(sizes: tuple[int, ...], epochs: int) -> None:
    devices, cohort = make_devices(*sizes), torch.tensor([0, 2])
    batches = draw_batches(devices, cohort, seed=1, round_index=5, batch_size=4, epochs=epochs)
    most = max(sizes[0], sizes[2])
    assert batches.indices.shape == (2, epochs * -(-most // 4), min(4, most))
    for row, device in enumerate(cohort.tolist()):
        start, end = devices.starts[device : device + 2].tolist()
        found = taken(batches, row)
        for epoch in range(epochs):
            part = found[epoch * (end - start) : (epoch + 1) * (end - start)]
            assert sorted(part) == list(range(start, end))


def test_short_batches_come_last_and_no_mask_is_made_without_them() -> None:
    settings = {"seed": 0, "round_index": 0, "batch_size": 4, "epochs": 2}
    for sizes, counts in (
        ((8, 8), None),
        ((8, 7), [[4, 4, 4, 4], [4, 3, 4, 3]]),
        ((7, 7), [[4, 3, 4, 3]] * 2),
        ((6, 9), [[4, 2, 0, 4, 2, 0], [4, 4, 1, 4, 4, 1]]),
    ):
        present = draw_batches(make_devices(*sizes), torch.tensor([0, 1]), **settings).present
        assert (None if present is None else present.sum(dim=2).tolist()) == counts


def test_independent_of_the_rest_of_the_cohort() -> None:
    devices = make_devices(7, 40, 3, 7, 19)
    for round_index in (0, 7):
        settings = {"seed": 3, "round_index": round_index, "batch_size": 4}
        together = draw_batches(devices, torch.arange(5), epochs=2, **settings)
        batch = draw_batches(devices, torch.arange(5), epochs=None, **settings)
        for device in range(5):
            alone = draw_batches(devices, torch.tensor([device]), epochs=2, **settings)
            assert taken(alone, 0) == taken(together, device)
            assert taken(
                draw_batches(devices, torch.tensor([device]), epochs=None, **settings), 0
            ) == taken(batch, device)


def test_everything_matters() -> None:
    devices = make_devices(40, 40)
    base = epoch_of(devices, 0)
    assert base == epoch_of(devices, 0)
    others = [
        epoch_of(devices, 0, seed=1),
        epoch_of(devices, 0, round_index=1),
        [i - 40 for i in epoch_of(devices, 1)],
        epoch_of(devices, 0, epochs=2)[40:],
        list(range(40)),
    ]
    assert epoch_of(devices, 0, epochs=2)[:40] == base  # further epochs change nothing before
    for i, one in enumerate([base, *others]):
        assert all(one != other for other in others[i:])


def test_orders_are_uniform() -> None:
    devices, draws = make_devices(3), 3000
    rounds = [epoch_of(devices, 0, round_index=i, batch_size=1) for i in range(draws)]
    assert likelihood(map(tuple, rounds), ORDERS) > CHANCE
    epochs = torch.tensor(epoch_of(devices, 0, epochs=draws, batch_size=1)).reshape(draws, 3)
    assert likelihood(map(tuple, epochs.tolist()), ORDERS) > CHANCE
    many = make_devices(*[3] * draws)
    batches = draw_batches(many, torch.arange(draws), seed=0, round_index=0, batch_size=1, epochs=1)
    own = batches.indices.reshape(draws, 3) - many.starts[:-1, None]
    assert likelihood(map(tuple, own.tolist()), ORDERS) > CHANCE


def test_neighbouring_orders_are_independent() -> None:
    """Of passes, epochs and devices: the same hashes, one place on, would only turn an order."""
    draws, devices, first = 4000, make_devices(*[3] * 4000), torch.tensor([0])
    law: dict[object, float] = {(one, two): 1 / 36 for one in ORDERS for two in ORDERS}

    def drawn(cohort: Tensor, epochs: int | None, index: int = 0) -> Tensor:
        size = 3 if epochs is None else 1
        return draw_batches(
            devices, cohort, seed=0, round_index=index, batch_size=size, epochs=epochs
        ).indices

    for found in (
        torch.stack([drawn(first, None, index) for index in range(draws)]),
        drawn(first, draws),
        drawn(torch.arange(draws), 1),
    ):
        orders = [tuple(order) for order in (found.reshape(draws, 3) % 3).tolist()]
        assert likelihood(zip(orders[::2], orders[1::2], strict=True), law) > CHANCE


def test_one_batch_of_all_examples_has_them_as_they_lie() -> None:
    devices = make_devices(3, 9, 4)
    batches = draw_batches(devices, torch.arange(3), seed=0, round_index=0, batch_size=4, epochs=2)
    assert taken(batches, 0) == [0, 1, 2] * 2
    assert taken(batches, 2) == [12, 13, 14, 15] * 2
    assert sorted(taken(batches, 1)[:9]) == list(range(3, 12)) != taken(batches, 1)[:9]


@pytest.mark.parametrize("size", [10, 8, 3])
def test_one_batch_takes_each_example_once_a_pass(size: int) -> None:
    devices, steps = make_devices(size, 25), -(-size // 4)
    passes = []
    for number in range(3):
        found: list[int] = []
        for step in range(steps):
            settings = {"seed": 2, "round_index": number * steps + step, "batch_size": 4}
            batch = draw_batches(devices, torch.tensor([0, 1]), epochs=None, **settings)
            assert batch.indices.shape == (2, 1, 4)
            own = taken(batch, 0)
            assert len(own) == (4 if step < steps - 1 or size % 4 == 0 else size % 4)
            found += own
        assert sorted(found) == list(range(size))
        passes.append(tuple(found))
    assert len(set(passes)) > 1


@pytest.mark.parametrize(
    ("cohort", "settings", "message"),
    [
        (torch.tensor([2]), {}, "cohort must have indices in"),
        (torch.tensor([-1]), {}, "cohort must have indices in"),
        (torch.tensor([0.0]), {}, "cohort must be int64"),
        (torch.tensor([], dtype=torch.int64), {}, "cohort must be"),
        (torch.tensor([0]), {"batch_size": 0}, "batch_size must be >= 1"),
        (torch.tensor([0]), {"epochs": 0}, "epochs must be >= 1"),
        (torch.tensor([0]), {"seed": -1}, "seed must be in"),
        (torch.tensor([0]), {"batch_size": True}, "batch_size must be an int"),
    ],
)
def test_bad_batches(cohort: Tensor, settings: dict[str, int], message: str) -> None:
    values = {"seed": 0, "round_index": 0, "batch_size": 4, "epochs": 1, **settings}
    refused(ArgumentError, message, draw_batches, make_devices(3, 3), cohort, **values)
