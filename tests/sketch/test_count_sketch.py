"""The public class: shapes, laws that hold exactly, and what it refuses."""

from __future__ import annotations

from functools import partial
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from diffsketch import ArgumentError, CountSketch, MismatchError, SketchKey
from diffsketch.sketch import Combine
from diffsketch.sketch.hashing import FAMILIES, Family
from tests.helpers.refusals import each_refused, refused

KEY = SketchKey(bytes(range(32)))
SEED = KEY.seed(0)


def random_vector(dim: int, number: int = 0) -> torch.Tensor:
    return torch.randn(dim, generator=torch.Generator().manual_seed(number), dtype=torch.float64)


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_linear(family: Family, data: st.DataObject) -> None:
    """Scaling by powers of two and adding integers is exact; so then is linearity."""
    dim, cols = data.draw(st.integers(1, 3000)), data.draw(st.integers(1, 300))
    sketch = CountSketch(dim, data.draw(st.sampled_from((1, 2, 5, 7))), cols, family)
    number = data.draw(st.integers(0, 1000))
    x = (random_vector(dim, number) * 100).round()
    y = (random_vector(dim, number + 1) * 100).round()
    table = sketch.encode(4 * x - 2 * y, SEED)
    assert torch.equal(table, 4 * sketch.encode(x, SEED) - 2 * sketch.encode(y, SEED))
    assert torch.equal(sketch.encode(torch.zeros_like(x), SEED), torch.zeros_like(table))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
def test_one_coordinate_is_exact(family: Family, rows: int) -> None:
    for dim, index in ((1, 0), (1000, 0), (1000, 999), (1000, 500)):
        vector = torch.zeros(dim)
        vector[index] = -3.25
        sketch = CountSketch(dim, rows, 50, family)
        table = sketch.encode(vector, SEED)
        assert sketch.query(table, SEED)[index] == -3.25
        assert (table != 0).sum() == rows
        values, indices = sketch.top_k(table, SEED, 1)
        assert abs(values.item()) == 3.25
        if rows >= 5:  # with fewer, a coordinate that shares the cells looks just the same
            assert indices.tolist() == [index]


def test_shapes_types_and_gradients() -> None:
    sketch = CountSketch(100, 3, 10)
    for shape in ((100,), (4, 100), (0, 100)):
        for dtype in (torch.float32, torch.float64):
            table = sketch.encode(torch.ones(shape, dtype=dtype), SEED)
            assert table.shape == (*shape[:-1], 3, 10)
            assert table.dtype == dtype
            assert sketch.query(table, SEED).shape == shape
    vector = torch.ones(100, requires_grad=True)
    table = sketch.encode(vector, SEED)
    assert not table.requires_grad
    assert not sketch.query(table.requires_grad_(), SEED).requires_grad
    assert vector.detach().equal(torch.ones(100))  # the input is left alone
    empty = sketch.encode(torch.empty(0), SEED, offset=50)
    assert torch.equal(empty, torch.zeros(3, 10))
    assert CountSketch(1000, 5, 20).compression == 10


def test_bad_sketch() -> None:
    build = partial(CountSketch, dim=10, rows=3, cols=4)
    refused(ArgumentError, "dim must be in 1", build, dim=0)
    refused(ArgumentError, r"be at most 2\*\*40 with family", build, dim=(1 << 40) + 1)
    refused(ArgumentError, "rows must be in 1..64, got rows=65", build, rows=65)
    refused(ArgumentError, "rows must be", build, rows=0)
    refused(ArgumentError, "cols must be", build, cols=-1)
    refused(ArgumentError, "cols must be", build, cols=1 << 31)
    refused(ArgumentError, "cols must be an int, got cols=2.5", build, cols=2.5)
    refused(ArgumentError, "rows must be an int", build, rows=True)
    refused(ArgumentError, "family must be one of", build, family="universal")


def test_bad_vector() -> None:
    sketch = CountSketch(100, 3, 10)
    for vector, message in (
        (torch.ones(99), r"dim=100 .* shape \(99,\)"),
        (torch.ones(2, 2, 100), r"got a torch.float32 tensor of shape \(2, 2, 100\)"),
        (torch.tensor(1.0), "vector must be a tensor"),
        (torch.ones(100, dtype=torch.int64), "float16, bfloat16, got a torch.int64"),
        (torch.ones(100, dtype=torch.complex64), "one of float32, float64"),
        (torch.ones(100, device="meta"), "device must be a CPU or CUDA device"),
        ([1.0] * 100, "vector must be a tensor .* got a list"),
        (torch.ones(100).to_sparse(), "vector must be dense"),
    ):
        refused(ArgumentError, message, sketch.encode, vector, SEED)
    for offset, message in ((51, r"offset must be in 0..50"), (-1, "offset"), (0.0, "offset=0.0")):
        refused(ArgumentError, message, sketch.encode, torch.ones(50), SEED, offset=offset)
    encode = partial(sketch.encode, torch.ones(100))
    each_refused(ArgumentError, "seed must be a HashSeed", encode, [KEY, 7, b"x" * 32, None])


def test_bad_table() -> None:
    sketch, table = CountSketch(100, 3, 10), torch.ones(3, 10)
    query = partial(sketch.query, seed=SEED)
    turned = r"rows=3 and cols=10, got .* \(10, 3\)"
    refused(MismatchError, turned, query, torch.ones(10, 3))
    refused(ArgumentError, "float32 or float64", query, table.long())
    refused(ArgumentError, "table must be a tensor", query, torch.ones(10))
    refused(ArgumentError, "median or mean, got combine='max'", query, table, combine="max")
    refused(ArgumentError, "offset needs out", query, table, offset=3)
    refused(ArgumentError, "out must have dim=100", query, table, out=torch.empty(99))
    refused(ArgumentError, "out must be contiguous", query, table, out=torch.empty(200)[::2])
    other, bound = torch.empty(100).double(), torch.empty(100, requires_grad=True)
    refused(MismatchError, "out must be torch.float32", query, table, out=other)
    refused(ArgumentError, "out must be a tensor that needs no grad", query, table, out=bound)
    refused(ArgumentError, "out must be a tensor", query, table, out=np.empty(100))
    refused(ArgumentError, "count must be in 0", sketch.top_k, table, SEED, -1)
    refused(ArgumentError, "count must be in 0", sketch.top_k, table, SEED, 101)


@pytest.mark.parametrize("combine", ["median", "mean"])
def test_what_estimates_miss(combine: Combine) -> None:
    sketch, memory, vector = CountSketch(500, 5, 20), random_vector(500), random_vector(500).flip(0)
    table = sketch.encode(vector, SEED)
    missed = vector - sketch.query(table, SEED, combine=combine)
    found, scratch = memory.clone(), torch.empty_like(memory)
    sketch.add_residual(found, vector, table, SEED, scale=0.3, combine=combine, scratch=scratch)
    torch.testing.assert_close(found, memory + 0.3 * missed)
    wrong = torch.zeros(7, dtype=torch.float64)
    changes: list[tuple[dict[str, Any], str]] = [
        *(({name: wrong}, f"{name} must have dim=500") for name in ("out", "vector", "scratch")),
        ({"table": table[None]}, r"table must be a tensor \(rows, cols\)"),
        *(({"scratch": same}, "scratch must be in memory of its own") for same in (found, vector)),
        *(({"scale": scale}, "scale must be") for scale in (float("nan"), "1", True)),
    ]
    right = {"out": found, "vector": vector, "table": table, "seed": SEED, "scratch": scratch}
    for change, message in changes:
        refused(ArgumentError, message, sketch.add_residual, **right | change)
    torch.testing.assert_close(found, memory + 0.3 * missed)  # errors have changed nothing


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_non_finite_values_are_found_in_the_table(family: Family, bad: float) -> None:
    sketch = CountSketch(40_000, 5, 2500, family)
    vector = random_vector(40_000).float()
    vector[12_345] = bad
    table = sketch.encode(vector, SEED)
    out = torch.full((40_000,), 7.0)
    refused(ArgumentError, "table must be finite", sketch.query, table, SEED, out=out)
    assert torch.equal(out, torch.full((40_000,), 7.0))  # nothing half done
    refused(ArgumentError, "finite", sketch.top_k, table, SEED, 1)
