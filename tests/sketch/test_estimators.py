"""Estimators: selection networks by the zero-one principle, every input where feasible."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from diffsketch.sketch.kernels.estimators import Network, estimator


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
    middle = [(rows - 1) // 2, rows // 2]
    result, ordered = apply(network, inputs), np.sort(inputs, axis=0)
    return np.array_equal(np.sort(result[middle], axis=0), ordered[middle])


@pytest.mark.parametrize("rows", range(1, 65))
def test_median(rows: int) -> None:
    comparators, places = estimator("median", rows)
    assert finds_the_middle(comparators, rows)
    assert places == tuple(sorted({(rows - 1) // 2, rows // 2}))
    assert estimator("mean", rows) == ((), tuple(range(rows)))


@pytest.mark.parametrize("rows", [3, 5, 7, 9, 10])
def test_every_comparator_is_needed_somewhere(rows: int) -> None:
    """Negative control: the check notices a missing comparator."""
    network = estimator("median", rows).comparators
    assert not all(
        finds_the_middle(network[:k] + network[k + 1 :], rows) for k in range(len(network))
    )
    assert not finds_the_middle(network[:-1], rows)
