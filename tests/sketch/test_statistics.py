"""Order and spread of each vector, against sorting and NumPy; exact, whatever the threads."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from diffsketch.sketch.statistics import summaries

DIM = 7850
Array: TypeAlias = npt.NDArray[Any]


def batches(dtype: Any) -> dict[str, Array]:
    rng = np.random.default_rng(2)
    normal = rng.standard_normal((9, DIM)).astype(dtype)
    tiny = np.finfo(dtype).smallest_subnormal
    return {
        "normal": normal,
        "sparse": normal * (rng.random(normal.shape) > 0.95),
        "ties": np.round(normal),
        "heavy": normal**7 * dtype(1e-8),
        "subnormal": np.round(normal * 3) * tiny,
        "large": np.sign(normal) * np.finfo(dtype).max,
        "zeros": np.zeros((2, DIM), dtype),
        "strided": np.ascontiguousarray(normal.T)[:: DIM // 50].T,
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", batches(np.float32))
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.usefixtures("restore_threads")
def test_ranks_are_those_of_sorting(dtype: Any, name: str, threads: int) -> None:
    values = batches(dtype)[name]
    length = values.shape[1]
    ordered = np.sort(np.abs(values), axis=1)
    torch.set_num_threads(threads)
    for place in (0, length // 2, int(0.9 * (length - 1)), length - 2, length - 1):
        found, _ = summaries(values, place)
        expected = ordered[:, [place, min(place + 1, length - 1)]]
        assert np.array_equal(found, expected)


@given(
    hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=12),
        elements=st.floats(allow_nan=False, allow_infinity=False, width=32),
    ),
    st.data(),
)
def test_ranks_of_anything(values: Array, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, values.shape[1] - 1))
    ordered = np.sort(np.abs(values), axis=1)
    expected = ordered[:, [place, min(place + 1, values.shape[1] - 1)]]
    assert np.array_equal(summaries(values, place)[0], expected)


def test_spreads() -> None:
    rng = np.random.default_rng(3)
    offsets = np.array([[0], [1], [1e3], [-1e4], [0]])
    values = (rng.standard_normal((5, DIM)) + offsets).astype(np.float32)
    values[4] = 0.1
    found = summaries(values, 0)[1]
    np.testing.assert_allclose(found, values.astype(np.float64).std(axis=1), rtol=1e-9, atol=1e-12)
    assert found[4] == 0
    for row in range(5):  # the same bits, alone and together
        assert summaries(values[row : row + 1], 0)[1].item() == found[row]
    extreme = np.array([[3e38, -3e38], [1e-44, 0.0]], np.float32)
    np.testing.assert_allclose(summaries(extreme, 0)[1], extreme.astype(np.float64).std(axis=1))
