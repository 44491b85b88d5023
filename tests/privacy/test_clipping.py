"""Clipping: nothing comes out beyond the limit, and sensitivities are as stated."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from diffsketch import CountSketch, SketchKey
from diffsketch.errors import ArgumentError
from diffsketch.privacy import clipping
from diffsketch.privacy.claim import Relation
from diffsketch.privacy.clipping import CoordinateBound, NormBound, clip_coordinates, clip_norm
from diffsketch.sketch.hashing import FAMILIES, Family
from tests.helpers.refusals import refused

TYPES = [torch.float32, torch.float64]


def norm_exceeds(vector: Tensor, limit: float) -> bool:
    total = sum((Fraction(x) ** 2 for x in vector.flatten().tolist()), Fraction(0))
    return total > Fraction(limit) ** 2


def same_bits(one: Tensor, two: Tensor) -> bool:
    kind = torch.int32 if one.dtype == torch.float32 else torch.int64
    return torch.equal(one.contiguous().view(kind), two.contiguous().view(kind))


def vectors(dtype: torch.dtype) -> st.SearchStrategy[Tensor]:
    """Of any size of entries, those of one vector alike or not, the smallest and largest too."""
    width: Literal[32, 64] = 32 if dtype == torch.float32 else 64
    wild = st.floats(width=width, allow_nan=False, allow_infinity=False)
    tame = st.floats(-10, 10, width=width)
    entries = st.lists(wild, max_size=8) | st.lists(tame, max_size=8)
    return entries.map(lambda values: torch.tensor(values, dtype=dtype))


LIMITS = st.floats(5e-324, 1.7e308) | st.floats(0.1, 10)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES)
@given(data=st.data(), limit=LIMITS)
@settings(deadline=None, max_examples=400)
def test_norm_is_never_above_limit(dtype: torch.dtype, data: st.DataObject, limit: float) -> None:
    vector = data.draw(vectors(dtype))
    before = vector.clone()
    clipped = clip_norm(vector, limit)
    assert same_bits(vector, before)
    assert clipped.dtype == dtype
    assert clipped.shape == vector.shape
    assert not norm_exceeds(clipped, limit)
    if not norm_exceeds(vector, limit):
        assert same_bits(clipped, vector)
    elif limit > 1e-30 and vector.abs().max() < 1e30:  # the norm comes close to the limit
        assert norm_exceeds(clipped, limit * (1 - 1e-6))
    assert same_bits(clip_norm(clipped, limit), clipped)


@pytest.mark.parametrize("dtype", TYPES)
@given(data=st.data(), ulps=st.integers(-3, 3))
@settings(deadline=None, max_examples=200)
def test_norm_at_the_very_limit(dtype: torch.dtype, data: st.DataObject, ulps: int) -> None:
    """Limits within a few roundings of the norm: the exact comparison decides."""
    vector = data.draw(vectors(dtype).filter(lambda v: 1e-150 < v.abs().sum() < 1e300))
    limit = math.hypot(*vector.tolist())
    for _ in range(abs(ulps)):
        limit = math.nextafter(limit, math.copysign(math.inf, ulps))
    clipped = clip_norm(vector, limit)
    assert not norm_exceeds(clipped, limit)
    assert same_bits(clipped, vector) == (not norm_exceeds(vector, limit))


def test_exact_comparison_decides_ties() -> None:
    exactly = torch.tensor([3.0, 4.0], dtype=torch.float64)
    assert same_bits(clip_norm(exactly, 5.0), exactly)
    above = torch.tensor([3.0, 4.0, 1e-9], dtype=torch.float64)  # its norm rounds to 5.0
    assert float(torch.linalg.vector_norm(above)) == 5.0
    assert not same_bits(clip_norm(above, 5.0), above)


def test_control_rounding_to_nearest_would_exceed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain cast of the scaled vector is above the limit in one of these cases."""
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(50, 3, generator=generator)
    assert not any(norm_exceeds(v, 0.1) for v in clip_norm(batch, 0.1))
    monkeypatch.setattr(clipping, "_towards_zero", lambda values, dtype: values.to(dtype))
    assert any(norm_exceeds(v, 0.1) for v in clip_norm(batch, 0.1))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [1e-38, 1.0, 1e37])
def test_direction_is_kept(dtype: torch.dtype, size: float) -> None:
    generator = torch.Generator().manual_seed(1)
    batch = (torch.randn(7, 100, generator=generator, dtype=torch.float64) * size).to(dtype)
    clipped = clip_norm(batch, size / 3).double()
    ratios = clipped / batch.double()
    assert (ratios > 0).all()
    spread = ratios / ratios[:, :1]
    rounding = 3 * torch.finfo(dtype).eps
    if size < 1e-37 and dtype == torch.float32:
        rounding = 1e-4  # numbers below 1e-38 have fewer digits
        spread = spread[batch.abs().double() > size]
    assert (spread - 1).abs().max() < rounding
    cosine = torch.nn.functional.cosine_similarity(clipped / size, batch.double() / size)
    assert (cosine > 1 - 1e-6).all()


def test_huge_and_tiny_values() -> None:
    huge = torch.full((4,), 1e38)
    assert clip_norm(huge, 2.0).tolist() == pytest.approx([1.0] * 4, rel=1e-6)
    huge = torch.full((4,), 1.7e308, dtype=torch.float64)  # the norm itself overflows
    assert clip_norm(huge, 2.0).tolist() == pytest.approx([1.0] * 4, rel=1e-12)
    tiny = torch.full((4,), 5e-324, dtype=torch.float64)
    assert same_bits(clip_norm(tiny, 1e-323), tiny)  # the norm is exactly twice the smallest float
    assert clip_norm(tiny, 5e-324).tolist() == [0.0] * 4  # nothing else is short enough
    small = torch.full((4,), 1e-45)
    assert same_bits(clip_norm(small, 1.0), small)
    assert same_bits(clip_norm(torch.tensor([-0.0, 0.0]), 1.0), torch.tensor([-0.0, 0.0]))
    assert same_bits(clip_norm(huge, 1e308 * 1.7, dims=0), huge)


def test_batches_are_clipped_one_by_one() -> None:
    generator = torch.Generator().manual_seed(2)
    batch = torch.randn(5, 4, 3, generator=generator, dtype=torch.float64)
    batch *= torch.tensor([0.01, 0.1, 1.0, 10.0, 1e10])[:, None, None]
    tables, rows, cells = (clip_norm(batch, 1.0, dims=dims) for dims in (2, 1, 0))
    for i in range(5):
        assert torch.equal(tables[i], clip_norm(batch[i], 1.0, dims=2))
        assert torch.equal(tables[i].flatten(), clip_norm(batch[i].flatten(), 1.0))
        for j in range(4):
            assert torch.equal(rows[i, j], clip_norm(batch[i, j], 1.0))
    assert torch.allclose(cells, batch.clamp(-1, 1), rtol=1e-12)
    assert not torch.equal(tables, rows)


def test_strided_values_and_gradients() -> None:
    values = torch.arange(12.0).reshape(3, 4).t().requires_grad_()
    expected = clip_norm(values.detach().contiguous(), 2.0)
    assert torch.equal(clip_norm(values, 2.0), expected)
    assert not clip_norm(values, 2.0).requires_grad
    assert not clip_coordinates(values, 2.0).requires_grad


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 0, 3)])
def test_empty_vectors(shape: tuple[int, ...]) -> None:
    empty = torch.zeros(shape)
    for dims in range(len(shape) + 1):
        clipped = clip_norm(empty, 1.0, dims=dims)
        assert clipped.shape == shape
        assert clipped is not empty
    assert clip_coordinates(empty, 1.0).shape == shape


def test_numbers_without_dimensions() -> None:
    number = torch.tensor(-3.0)
    assert clip_coordinates(number, 2.0).item() == -2.0
    assert clip_norm(number, 2.0, dims=0).item() == pytest.approx(-2.0, rel=1e-6)
    assert clip_norm(number, 4.0, dims=0).item() == -3.0
    refused(ArgumentError, "values must have at least dims=1 dimensions", clip_norm, number, 2.0)
    refused(ArgumentError, "dims=2", clip_norm, torch.zeros(3), 2.0, dims=2)


@pytest.mark.parametrize("dtype", TYPES)
@given(data=st.data(), limit=LIMITS)
@settings(deadline=None, max_examples=300)
def test_coordinates_stay_in_the_limit(
    dtype: torch.dtype, data: st.DataObject, limit: float
) -> None:
    vector = data.draw(vectors(dtype))
    before = vector.clone()
    clipped = clip_coordinates(vector, limit)
    assert same_bits(vector, before)
    for old, new in zip(vector.tolist(), clipped.tolist(), strict=True):
        assert abs(Fraction(new)) <= Fraction(limit)
        if abs(old) <= limit:
            assert new == old
        else:
            assert new * old >= 0
            assert abs(new) >= 0.9 * min(limit, 3.4e38) or limit < 1e-37


def test_control_a_limit_that_a_type_cannot_hold() -> None:
    """Clamping alone would leave more than 0.1 in float32."""
    assert float(torch.tensor([5.0]).clamp(-0.1, 0.1)) > 0.1
    assert 0.0999999 < float(clip_coordinates(torch.tensor([5.0]), 0.1)) <= 0.1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused(bad: float) -> None:
    encode = encoder("blocked", 3, 0)
    for dtype in TYPES:
        values = torch.tensor([[1.0, 2.0], [bad, 0.0]], dtype=dtype)
        calls: list[Callable[[], object]] = [
            *(partial(clip_norm, values, 1.0, dims=dims) for dims in (0, 1, 2)),
            partial(clip_coordinates, values, 1.0),
            partial(clip_coordinates, torch.tensor(bad, dtype=dtype), 1.0),
            partial(CoordinateBound(1.0).apply, values, None),
            partial(NormBound(1.0).apply, values, None),
            partial(CoordinateBound(1.0, 3).apply, torch.full((DIM,), bad, dtype=dtype), encode),
            partial(NormBound(1.0).apply, torch.full((DIM,), bad, dtype=dtype), encode),
        ]
        for call in calls:
            refused(ArgumentError, "values must be finite", call)


def test_bad_arguments_are_refused() -> None:
    text = "values must be a float32 or float64 tensor"
    for call in (clip_norm, clip_coordinates):
        for limit in (0.0, -1.0, math.nan, math.inf):
            refused(ArgumentError, "limit must be a number > 0", call, torch.ones(2), limit)
        for dtype in (torch.float16, torch.bfloat16, torch.int64, torch.complex64):
            refused(ArgumentError, text, call, torch.ones(2).to(dtype), 1.0)
    refused(ArgumentError, "dims must be >= 0", clip_norm, torch.ones(2), 1.0, dims=-1)
    refused(ArgumentError, text + ", got list", clip_coordinates, [1.0], 1.0)
    for rows in (0, -1, True, 2.0):
        refused(ArgumentError, "rows must be", CoordinateBound, 1.0, rows)


DIM, COLS, LIMIT = 60, 8, 4.0

REPLACE, REMOVE = Relation.REPLACE, Relation.ADD_OR_REMOVE


def encoder(family: Family, rows: int, seed: int) -> Callable[[Tensor], Tensor]:
    sketch = CountSketch(DIM, rows, COLS, family)
    hashes = SketchKey.from_integer(seed).seed(0)
    return lambda vectors: sketch.encode(vectors, hashes)


def changes(bound: CoordinateBound, encode: Callable[[Tensor], Tensor], new: float) -> Tensor:
    """What becomes of the table when each coordinate in turn, of random size, is set to `new`."""
    generator = torch.Generator().manual_seed(3)
    vector = torch.randint(-9, 10, (DIM,), generator=generator).double()  # beyond the limit too
    others = vector.repeat(DIM, 1)
    others[torch.arange(DIM), torch.arange(DIM)] = new
    return bound.apply(others, encode) - bound.apply(vector, encode)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rows", [1, 4, 7])
def test_one_coordinate_moves_the_table_as_stated(family: Family, rows: int) -> None:
    bound = CoordinateBound(LIMIT, rows)
    l1, l2 = bound.l1_sensitivity(REPLACE), bound.sensitivity(REPLACE)
    assert l1 == 2 * LIMIT * rows
    assert l2 == pytest.approx(2 * LIMIT * math.sqrt(rows))
    assert bound.l1_sensitivity(REMOVE) == l1 / 2
    assert bound.sensitivity(REMOVE) == l2 / 2
    largest = torch.zeros(2)
    for seed in range(5):
        encode = encoder(family, rows, seed)
        for new in (-100.0, -1.0, 3.0, 100.0):
            moved = changes(bound, encode, new).flatten(1)
            found = torch.stack([moved.abs().sum(1).max(), moved.square().sum(1).max().sqrt()])
            largest = torch.maximum(largest, found.float())
        removed = changes(bound, encode, 0.0).flatten(1)
        assert removed.abs().sum(1).max() == l1 / 2  # reached
        assert removed.square().sum(1).max().sqrt() == pytest.approx(l2 / 2)
    assert largest.tolist() == pytest.approx([l1, l2])  # reached and never exceeded
    # Control: without the clipping it would be more.
    loose = changes(CoordinateBound(2 * LIMIT, rows), encoder(family, rows, 0), 100.0)
    assert loose.flatten(1).abs().sum(1).max() > l1


@pytest.mark.parametrize("family", FAMILIES)
def test_each_row_holds_a_share_in_one_cell(family: Family) -> None:
    """What Laplace noise composes: one cell in every row, none by more than `2 limit`."""
    moved = changes(CoordinateBound(LIMIT, 5), encoder(family, 5, 1), 100.0)
    assert ((moved != 0).sum(-1) <= 1).all()
    assert moved.abs().max() == 2 * LIMIT


def test_raw_vectors_have_one_row() -> None:
    vector = torch.tensor([1.0, -7.0, 3.0])
    assert CoordinateBound(4.0).apply(vector, None).tolist() == [1.0, -4.0, 3.0]
    assert CoordinateBound(4.0).l1_sensitivity(REPLACE) == 8.0
    assert CoordinateBound(4.0).sensitivity(REPLACE) == 8.0
    with pytest.raises(ArgumentError, match="rows must be 1 for a vector that is not encoded"):
        CoordinateBound(4.0, rows=2).apply(vector, None)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_table_is_clipped_not_the_vector(family: Family) -> None:
    """The norm of the table is bounded, whatever the sketch does to norms."""
    bound, encode = NormBound(LIMIT), encoder(family, 7, 2)
    vectors = torch.randn(200, DIM, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    vectors *= 4.0 / vectors.norm(dim=1, keepdim=True)
    tables = bound.apply(vectors, encode)
    assert tables.shape == (200, 7, COLS)
    norms = tables.flatten(1).norm(dim=1)
    assert norms.max() <= LIMIT
    # Reached by two opposite vectors: the table of -v is that of v, negated.
    apart = (tables - bound.apply(-vectors, encode)).flatten(1).norm(dim=1)
    assert apart.max().item() == pytest.approx(bound.sensitivity(REPLACE))
    assert norms.max().item() == pytest.approx(bound.sensitivity(REMOVE))
    # Control: clipping the vector to the same norm leaves tables of more than twice that.
    assert encode(vectors).flatten(1).norm(dim=1).max() > 2 * LIMIT


@pytest.mark.parametrize("bound", [CoordinateBound(1.0, 2), NormBound(1.0)])
def test_relations_by_name_mean_the_same(bound: CoordinateBound | NormBound) -> None:
    """A name must not be taken for the other relation, which has half the sensitivity."""
    for relation in Relation:
        assert bound.sensitivity(relation.value) == bound.sensitivity(relation)
    assert bound.sensitivity(REPLACE) == 2 * bound.sensitivity(REMOVE)
    refused(ArgumentError, "relation must be one of", bound.sensitivity, "substitute")


@pytest.mark.parametrize("bound", [CoordinateBound(1.0, 3), NormBound(1.0)])
def test_encodings_of_another_shape_are_refused(bound: CoordinateBound | NormBound) -> None:
    """A batch must not be taken for one table, nor a table of other rows for ours."""
    text, vectors = "encode must return a table for each vector", torch.ones(5, DIM)
    refused(ArgumentError, text, bound.apply, vectors, lambda vectors: vectors[:, :10])
    refused(ArgumentError, text, bound.apply, vectors, lambda vectors: vectors[None])
    three, four = CoordinateBound(1.0, 3), encoder("blocked", 4, 0)
    refused(ArgumentError, "encode must return 3 rows", three.apply, torch.ones(DIM).double(), four)
