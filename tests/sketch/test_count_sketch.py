"""The public class: shapes, laws that hold exactly, and what it refuses."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from diffsketch import ArgumentError, CountSketch, MismatchError, SketchKey
from diffsketch.sketch import Combine
from diffsketch.sketch.hashing import FAMILIES, Family

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


def test_top_k_finds_heavy_coordinates() -> None:
    sketch = CountSketch(100_000, 5, 2000)
    vector = random_vector(100_000) * 0.01
    heavy = torch.tensor([3, 77_777, 42_000, 99_999])
    vector[heavy] = torch.tensor([5.0, -4.0, 3.0, -2.0], dtype=torch.float64)
    values, indices = sketch.top_k(sketch.encode(vector, SEED), SEED, 4)
    assert indices.tolist() == heavy.tolist()
    assert (values - vector[indices]).abs().max() < 0.5
    assert sketch.top_k(sketch.encode(vector, SEED), SEED, 0)[0].shape == (0,)


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


BAD_SKETCHES = [
    ({"dim": 0}, "dim must be in 1"),
    ({"dim": (1 << 40) + 1}, "dim must be in 1"),
    ({"rows": 65}, "rows must be in 1..64, got rows=65"),
    ({"rows": 0}, "rows must be"),
    ({"cols": -1}, "cols must be"),
    ({"cols": 1 << 31}, "cols must be"),
    ({"cols": 2.5}, "cols must be an int, got cols=2.5"),
    ({"rows": True}, "rows must be an int"),
    ({"family": "universal"}, "family must be one of"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_SKETCHES)
def test_bad_sketch(changes: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"dim": 10, "rows": 3, "cols": 4} | changes
    with pytest.raises(ArgumentError, match=message):
        CountSketch(**arguments)  # type: ignore[arg-type]


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
        with pytest.raises(ArgumentError, match=message):
            sketch.encode(vector, SEED)  # type: ignore[arg-type]
    for offset, message in ((51, r"offset must be in 0..50"), (-1, "offset"), (0.0, "offset=0.0")):
        with pytest.raises(ArgumentError, match=message):
            sketch.encode(torch.ones(50), SEED, offset=offset)  # type: ignore[arg-type]
    for seed in (KEY, 7, b"x" * 32, None):
        with pytest.raises(ArgumentError, match="seed must be a HashSeed"):
            sketch.encode(torch.ones(100), seed)  # type: ignore[arg-type]


def test_bad_table() -> None:
    sketch, table = CountSketch(100, 3, 10), torch.ones(3, 10)
    with pytest.raises(MismatchError, match=r"rows=3 and cols=10, got .* \(10, 3\)"):
        sketch.query(torch.ones(10, 3), SEED)
    with pytest.raises(ArgumentError, match="float32 or float64"):
        sketch.query(table.long(), SEED)
    with pytest.raises(ArgumentError, match="table must be a tensor"):
        sketch.query(torch.ones(10), SEED)
    with pytest.raises(ArgumentError, match="combine must be median or mean, got combine='max'"):
        sketch.query(table, SEED, combine="max")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="offset needs out"):
        sketch.query(table, SEED, offset=3)
    with pytest.raises(ArgumentError, match="out must have dim=100"):
        sketch.query(table, SEED, out=torch.empty(99))
    with pytest.raises(ArgumentError, match="out must be contiguous"):
        sketch.query(table, SEED, out=torch.empty(200)[::2])
    with pytest.raises(MismatchError, match=r"out must be torch.float32"):
        sketch.query(table, SEED, out=torch.empty(100, dtype=torch.float64))
    with pytest.raises(ArgumentError, match="out must be a tensor that needs no gradient"):
        sketch.query(table, SEED, out=torch.empty(100, requires_grad=True))
    with pytest.raises(ArgumentError, match="out must be a tensor"):
        sketch.query(table, SEED, out=np.empty(100))  # type: ignore[arg-type]
    for count in (-1, 101):
        with pytest.raises(ArgumentError, match="count must be in 0"):
            sketch.top_k(table, SEED, count)


@pytest.mark.parametrize("combine", ["median", "mean"])
def test_what_estimates_miss(combine: Combine) -> None:
    sketch, memory, vector = CountSketch(500, 5, 20), random_vector(500), random_vector(500).flip(0)
    table = sketch.encode(vector, SEED)
    missed = vector - sketch.query(table, SEED, combine=combine)
    found, scratch = memory.clone(), torch.empty_like(memory)
    sketch.add_residual(found, vector, table, SEED, scale=0.3, combine=combine, scratch=scratch)
    torch.testing.assert_close(found, memory + 0.3 * missed)
    wrong = torch.zeros(7, dtype=torch.float64)
    for name in ("out", "vector", "scratch"):
        given: dict[str, Any] = {"out": found, "vector": vector, "scratch": scratch} | {name: wrong}
        with pytest.raises(ArgumentError, match=f"{name} must have dim=500"):
            sketch.add_residual(**given, table=table, seed=SEED)
    with pytest.raises(ArgumentError, match=r"table must be a tensor \(rows, cols\)"):
        sketch.add_residual(found, vector, table[None], SEED, scratch=scratch)
    for same in (found, vector):
        with pytest.raises(ArgumentError, match="scratch must be in memory of its own"):
            sketch.add_residual(found, vector, table, SEED, scratch=same)
    for scale in (float("nan"), "1", True):
        with pytest.raises(ArgumentError, match="scale must be"):
            sketch.add_residual(found, vector, table, SEED, scale=scale, scratch=scratch)  # type: ignore[arg-type]
    torch.testing.assert_close(found, memory + 0.3 * missed)  # errors have changed nothing


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_non_finite_values_are_found_in_the_table(family: Family, bad: float) -> None:
    sketch = CountSketch(40_000, 5, 2500, family)
    vector = random_vector(40_000).float()
    vector[12_345] = bad
    table = sketch.encode(vector, SEED)
    out = torch.full((40_000,), 7.0)
    with pytest.raises(ArgumentError, match="table must be finite"):
        sketch.query(table, SEED, out=out)
    assert torch.equal(out, torch.full((40_000,), 7.0))  # nothing half done
    with pytest.raises(ArgumentError, match="finite"):
        sketch.top_k(table, SEED, 1)
