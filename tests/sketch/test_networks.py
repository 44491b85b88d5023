"""Selection networks, by the zero-one principle: every input of zeros and ones, where feasible."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from diffsketch.sketch.kernels.networks import Network, median_network, middle


def apply(network: Network, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    values = values.copy()
    for i, j in network:
        values[i], values[j] = np.minimum(values[i], values[j]), np.maximum(values[i], values[j])
    return values


def finds_the_middle(network: Network, rows: int) -> bool:
    if rows <= 12:
        inputs = np.array(list(itertools.product((0.0, 1.0), repeat=rows))).T
    else:
        inputs = np.random.default_rng(rows).standard_normal((rows, 2000))
    low, high = middle(rows)
    result = apply(network, inputs)
    ordered = np.sort(inputs, axis=0)
    return np.array_equal(np.sort(result[[low, high]], axis=0), ordered[[low, high]])


@pytest.mark.parametrize("rows", range(1, 65))
def test_median_network(rows: int) -> None:
    assert finds_the_middle(median_network(rows), rows)


@pytest.mark.parametrize("rows", [3, 5, 7, 9, 10])
def test_every_comparator_is_needed_somewhere(rows: int) -> None:
    """Negative control: the check notices a missing comparator."""
    network = median_network(rows)
    assert not all(
        finds_the_middle(network[:k] + network[k + 1 :], rows) for k in range(len(network))
    )
    assert not finds_the_middle(network[:-1], rows)
