"""Orders: all examples once, uniform, and functions of seed, round and device alone."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from diffsketch.errors import ArgumentError
from diffsketch.training.rounds import device_batches, one_batch
from diffsketch.training.tasks import Batches, Devices, Examples

# Statistical tests here have fixed seeds; with others they would fail with this probability.
CHANCE = 1e-6


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
    return taken(device_batches(devices, torch.tensor([device]), **values), 0)


@pytest.mark.parametrize("sizes", [(4, 4, 4), (8, 8, 8), (5, 1, 9), (3, 3, 3)])
@pytest.mark.parametrize("epochs", [1, 3])
def test_each_epoch_has_each_example_once(sizes: tuple[int, ...], epochs: int) -> None:
    devices, cohort = make_devices(*sizes), torch.tensor([0, 2])
    batches = device_batches(devices, cohort, seed=1, round_index=5, batch_size=4, epochs=epochs)
    most = max(sizes[0], sizes[2])
    assert batches.indices.shape == (2, epochs * -(-most // 4), min(4, most))
    for row, device in enumerate(cohort.tolist()):
        start, end = devices.starts[device : device + 2].tolist()
        found = taken(batches, row)
        for epoch in range(epochs):
            part = found[epoch * (end - start) : (epoch + 1) * (end - start)]
            assert sorted(part) == list(range(start, end))


def test_no_mask_where_none_is_needed() -> None:
    settings = {"seed": 0, "round_index": 0, "batch_size": 4, "epochs": 2}
    cohort = torch.tensor([0, 1])
    assert device_batches(make_devices(8, 8), cohort, **settings).present is None
    assert device_batches(make_devices(8, 7), cohort, **settings).present is not None
    assert device_batches(make_devices(7, 7), cohort, **settings).present is not None


def test_short_batches_come_last() -> None:
    batches = device_batches(
        make_devices(6, 9), torch.tensor([0, 1]), seed=0, round_index=0, batch_size=4, epochs=2
    )
    assert batches.present is not None
    assert batches.present.sum(dim=2).tolist() == [[4, 2, 0, 4, 2, 0], [4, 4, 1, 4, 4, 1]]


def test_independent_of_the_rest_of_the_cohort() -> None:
    devices = make_devices(7, 40, 3, 7, 19)
    for round_index in (0, 7):
        settings = {"seed": 3, "round_index": round_index, "batch_size": 4}
        together = device_batches(devices, torch.arange(5), epochs=2, **settings)
        batch = one_batch(devices, torch.arange(5), **settings)
        for device in range(5):
            alone = device_batches(devices, torch.tensor([device]), epochs=2, **settings)
            assert taken(alone, 0) == taken(together, device)
            assert taken(one_batch(devices, torch.tensor([device]), **settings), 0) == taken(
                batch, device
            )


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


def chi_square(counts: Counter[tuple[int, ...]], draws: int) -> float:
    """How likely such counts of the orders of three are if all are equally likely."""
    expected = draws / 6
    value = sum((counts[order] - expected) ** 2 / expected for order in permutations(range(3)))
    return float(chi2.sf(value, 5))


def test_orders_are_uniform() -> None:
    devices, draws = make_devices(3), 3000
    rounds = [epoch_of(devices, 0, round_index=i, batch_size=1) for i in range(draws)]
    assert chi_square(Counter(tuple(order) for order in rounds), draws) > CHANCE
    epochs = torch.tensor(epoch_of(devices, 0, epochs=draws, batch_size=1)).reshape(draws, 3)
    assert chi_square(Counter(map(tuple, epochs.tolist())), draws) > CHANCE
    many = make_devices(*[3] * draws)
    batches = device_batches(
        many, torch.arange(draws), seed=0, round_index=0, batch_size=1, epochs=1
    )
    own = batches.indices.reshape(draws, 3) - many.starts[:-1, None]
    assert chi_square(Counter(map(tuple, own.tolist())), draws) > CHANCE


def test_one_batch_of_all_examples_has_them_as_they_lie() -> None:
    devices = make_devices(3, 9, 4)
    batches = device_batches(
        devices, torch.arange(3), seed=0, round_index=0, batch_size=4, epochs=2
    )
    assert taken(batches, 0) == [0, 1, 2] * 2
    assert taken(batches, 2) == [12, 13, 14, 15] * 2
    assert sorted(taken(batches, 1)[:9]) == list(range(3, 12)) != taken(batches, 1)[:9]


def test_a_biased_shuffle_is_found() -> None:
    """Negative control: keys of four bits are equal so often that orders are not uniform."""
    generator = torch.Generator().manual_seed(0)
    keys = torch.randint(16, (3000, 3), generator=generator)
    orders = keys.argsort(dim=1, stable=True)
    assert chi_square(Counter(map(tuple, orders.tolist())), 3000) < CHANCE


@pytest.mark.parametrize("size", [10, 8, 3])
def test_one_batch_takes_each_example_once_a_pass(size: int) -> None:
    devices, steps = make_devices(size, 25), -(-size // 4)
    passes = []
    for number in range(3):
        found: list[int] = []
        for step in range(steps):
            settings = {"seed": 2, "round_index": number * steps + step, "batch_size": 4}
            batch = one_batch(devices, torch.tensor([0, 1]), **settings)
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
def test_bad_input(cohort: Tensor, settings: dict[str, int], message: str) -> None:
    values = {"seed": 0, "round_index": 0, "batch_size": 4, "epochs": 1, **settings}
    with pytest.raises(ArgumentError, match=message):
        device_batches(make_devices(3, 3), cohort, **values)
