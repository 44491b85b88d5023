"""Stated sensitivities against brute force: tables of real sketches with one unit changed.

Values are small whole numbers, so that the tables and their differences have no rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from diffsketch import CountSketch, SketchKey
from diffsketch.errors import ArgumentError
from diffsketch.privacy.claim import Relation, Unit
from diffsketch.privacy.clipping import CoordinateBound, NormBound
from diffsketch.sketch.hashing import FAMILIES, Family

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
    l1, l2 = bound.sensitivity(1, REPLACE), bound.sensitivity(2, REPLACE)
    assert l1 == 2 * LIMIT * rows
    assert l2 == pytest.approx(2 * LIMIT * math.sqrt(rows))
    assert bound.sensitivity(1, REMOVE) == l1 / 2
    assert bound.sensitivity(2, REMOVE) == l2 / 2
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
    """What `LaplaceMechanism` composes: one cell in every row, none by more than `2 limit`."""
    moved = changes(CoordinateBound(LIMIT, 5), encoder(family, 5, 1), 100.0)
    assert ((moved != 0).sum(-1) <= 1).all()
    assert moved.abs().max() == 2 * LIMIT


def test_raw_vectors_have_one_row() -> None:
    vector = torch.tensor([1.0, -7.0, 3.0])
    assert CoordinateBound(4.0).apply(vector, None).tolist() == [1.0, -4.0, 3.0]
    assert CoordinateBound(4.0).sensitivity(1, REPLACE) == 8.0
    assert CoordinateBound(4.0).sensitivity(2, REPLACE) == 8.0
    with pytest.raises(ArgumentError, match="rows must be 1 for a vector that is not encoded"):
        CoordinateBound(4.0, rows=2).apply(vector, None)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("order", [1, 2])
def test_the_table_is_clipped_not_the_vector(family: Family, order: int) -> None:
    """The norm of the table is bounded, whatever the sketch does to norms."""
    bound = NormBound(LIMIT, order=order)  # type: ignore[arg-type]
    encode = encoder(family, 7, 2)
    vectors = torch.randn(200, DIM, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    vectors *= 4.0 / vectors.norm(dim=1, keepdim=True)
    tables = bound.apply(vectors, encode)
    assert tables.shape == (200, 7, COLS)
    norms = torch.linalg.vector_norm(tables.flatten(1), ord=order, dim=1)
    assert norms.max() <= LIMIT
    # Reached by two opposite vectors: the table of -v is that of v, negated.
    opposite = bound.apply(-vectors, encode)
    apart = torch.linalg.vector_norm((tables - opposite).flatten(1), ord=order, dim=1)
    assert apart.max().item() == pytest.approx(bound.sensitivity(order, REPLACE))  # type: ignore[arg-type]
    assert norms.max().item() == pytest.approx(bound.sensitivity(order, REMOVE))  # type: ignore[arg-type]
    # Control: clipping the vector to the same norm leaves tables of more than twice that.
    unclipped = torch.linalg.vector_norm(encode(vectors).flatten(1), ord=order, dim=1)
    assert unclipped.max() > 2 * LIMIT


def test_raw_vectors_are_clipped_one_by_one() -> None:
    batch = torch.tensor([[3.0, 4.0], [6.0, 8.0]], dtype=torch.float64)
    assert NormBound(5.0).apply(batch, None).tolist() == [
        [3.0, 4.0],
        [pytest.approx(3.0), pytest.approx(4.0)],
    ]


def test_a_norm_bounds_only_what_it_bounds() -> None:
    one, two = NormBound(3.0, order=1), NormBound(3.0, order=2)
    assert one.sensitivity(1, REPLACE) == one.sensitivity(2, REPLACE) == 6.0
    assert two.sensitivity(2, REPLACE) == 6.0
    assert two.sensitivity(2, REMOVE) == 3.0
    with pytest.raises(ArgumentError, match="L2 norm gives no L1 sensitivity"):
        two.sensitivity(1, REPLACE)


def test_units() -> None:
    assert CoordinateBound(1.0).unit is Unit.COORDINATE
    assert NormBound(1.0).unit is Unit.CLIENT
    assert NormBound(1.0, Unit.EXAMPLE).unit is Unit.EXAMPLE
    assert NormBound(1.0, "example").unit is Unit.EXAMPLE  # type: ignore[arg-type]
    for unit in (Unit.COORDINATE, "coordinate", "person"):
        with pytest.raises(ArgumentError, match="unit must be example or client"):
            NormBound(1.0, unit)  # type: ignore[arg-type]


@pytest.mark.parametrize("bound", [CoordinateBound(1.0, 2), NormBound(1.0)])
def test_relations_by_name_mean_the_same(bound: CoordinateBound | NormBound) -> None:
    """A name must not be taken for the other relation, which has half the sensitivity."""
    for relation in Relation:
        assert bound.sensitivity(2, str(relation)) == bound.sensitivity(2, relation)  # type: ignore[arg-type]
    assert bound.sensitivity(2, REPLACE) == 2 * bound.sensitivity(2, REMOVE)
    with pytest.raises(ArgumentError, match="relation must be one of"):
        bound.sensitivity(2, "substitute")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="order must be 1 or 2"):
        bound.sensitivity(3, REPLACE)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan, math.inf])
def test_bad_limits_are_refused(limit: float) -> None:
    for kind in (CoordinateBound, NormBound):
        with pytest.raises(ArgumentError, match="limit must be a number > 0 and finite"):
            kind(limit)


def test_other_bad_arguments_are_refused() -> None:
    for rows in (0, -1, True, 2.0):
        with pytest.raises(ArgumentError, match="rows must be"):
            CoordinateBound(1.0, rows)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="order must be 1 or 2"):
        NormBound(1.0, order=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("bound", [CoordinateBound(1.0, 3), NormBound(1.0)])
def test_encodings_of_another_shape_are_refused(bound: CoordinateBound | NormBound) -> None:
    """A batch must not be taken for one table, nor a table of other rows for ours."""
    with pytest.raises(ArgumentError, match="encode must return a table for each vector"):
        bound.apply(torch.ones(5, DIM), lambda vectors: vectors[:, :10])
    with pytest.raises(ArgumentError, match="encode must return a table for each vector"):
        bound.apply(torch.ones(5, DIM), lambda vectors: vectors[None])
    with pytest.raises(ArgumentError, match="encode must return 3 rows"):
        CoordinateBound(1.0, 3).apply(
            torch.ones(DIM, dtype=torch.float64), encoder("blocked", 4, 0)
        )


def test_values_that_are_not_finite_are_refused() -> None:
    vector = torch.full((DIM,), math.inf)
    for bound, encode in (
        (CoordinateBound(1.0), None),
        (CoordinateBound(1.0, 3), encoder("blocked", 3, 0)),
        (NormBound(1.0), None),
        (NormBound(1.0), encoder("blocked", 3, 0)),
    ):
        with pytest.raises(ArgumentError, match="finite"):
            bound.apply(vector, encode)
