"""Rounding at random, the norms that it never exceeds, and arithmetic with a modulus."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.privacy.claim import Relation
from diffsketch.privacy.clipping import CoordinateBound, NormBound
from diffsketch.privacy.mechanisms.rounding import (
    CoordinateQuantizer,
    Quantizer,
    centre,
    stochastic_round,
    wrap,
)
from diffsketch.privacy.noise import FastNoise
from diffsketch.privacy.noise.secure import SecureNoise
from diffsketch.sketch import CountSketch, SketchKey
from diffsketch.sketch.hashing import Family, columns_and_signs

Order = Literal[1, 2]
Vector = npt.NDArray[np.float64]
INT64 = st.integers(-(2**63), 2**63 - 1)


def roundings(exact: Vector) -> Iterator[tuple[Vector, float]]:
    """All outcomes of rounding each entry at random, with their probabilities."""
    low = np.floor(exact)
    up = exact - low
    for bits in itertools.product((0, 1), repeat=len(exact)):
        chosen = np.array(bits)
        yield low + chosen, float(np.prod(np.where(chosen, up, 1 - up)))


def size_of(values: Vector, order: int) -> float:
    return float((values**2).sum() if order == 2 else np.abs(values).sum())


def clipped_examples(cells: int, limit: float, order: int, seed: int) -> list[Vector]:
    """Vectors of norm exactly `limit`: along an axis, along the diagonal, and in between."""
    rng = np.random.default_rng(seed)
    examples = [np.eye(cells)[0], np.ones(cells), *rng.standard_normal((6, cells))]
    return [x * limit / np.linalg.norm(x, order) for x in examples]


class AlwaysUp(FastNoise):
    """The worst luck: every rounding goes up."""

    def bernoulli(self, probabilities: Tensor) -> Tensor:
        return (probabilities > 0).to(torch.int64)


def test_rounding_is_unbiased() -> None:
    """By Hoeffding, fails by chance with probability 7e-9 (1e-9 for each value)."""
    values = torch.tensor([-2.0, -1.75, -0.5, 0.0, 0.1, 0.999, 7.3], dtype=torch.float64)
    draws = 200_000
    rounded = stochastic_round(values.expand(draws, -1), FastNoise(1))
    tolerance = math.sqrt(math.log(2e9) / (2 * draws))

    def unbiased(outcomes: Tensor) -> bool:
        return bool(((outcomes.double().mean(0) - values).abs() <= tolerance).all())

    assert unbiased(rounded)
    # Controls: rounding to the nearest number, and probabilities that are off by 0.02.
    assert not unbiased(values.round().expand(draws, -1))
    shifted = (values + 0.02).expand(draws, -1)
    assert not unbiased(stochastic_round(shifted, FastNoise(1)))


@pytest.mark.parametrize("noise", [FastNoise(2), SecureNoise()])
def test_rounding_goes_to_a_neighbour(noise: FastNoise | SecureNoise) -> None:
    values = torch.linspace(-3, 3, 601, dtype=torch.float64)
    rounded = stochastic_round(values, noise)
    assert rounded.dtype == torch.int64
    assert bool(((rounded == values.floor()) | (rounded == values.ceil())).all())
    assert torch.equal(rounded[::100], torch.arange(-3, 4))


@given(values=st.lists(INT64, min_size=1, max_size=20), bits=st.integers(1, 62))
def test_modulus(values: list[int], bits: int) -> None:
    modulus = 1 << bits
    wrapped = wrap(torch.tensor(values), bits)
    assert wrapped.tolist() == [value % modulus for value in values]
    centred = centre(torch.tensor(values), bits).tolist()
    assert all(-(modulus // 2) <= value < modulus // 2 for value in centred)
    assert all((a - b) % modulus == 0 for a, b in zip(values, centred, strict=True))
    # A sum of messages may overflow an int64, and is still right modulo 2**bits.
    assert wrap(wrapped.sum(), bits).item() == sum(values) % modulus
    exact = (sum(values) + modulus // 2) % modulus - modulus // 2
    assert centre(wrapped.sum(), bits).item() == exact


def test_modulus_refuses() -> None:
    for bits in (0, 63):
        with pytest.raises(ArgumentError, match=r"bits must be in 1\.\.62"):
            wrap(torch.tensor([1]), bits)
    with pytest.raises(ArgumentError, match="int64"):
        centre(torch.tensor([1.0]), 8)


@settings(max_examples=150, deadline=None)
@given(
    cells=st.integers(1, 40),
    steps=st.floats(0.01, 1000),
    order=st.sampled_from([1, 2]),
    rejection=st.sampled_from([0.0, 1e-4, 0.6, 0.999]),
    sparse=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_norms_hold(
    *, cells: int, steps: float, order: Order, rejection: float, sparse: bool, seed: int
) -> None:
    """Whatever is rounded, and even if every rounding goes up, no norm is exceeded."""
    quantizer = Quantizer(NormBound(3.0, order=order), 3.0 / steps, cells, rejection)
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((20, cells)) * 10 ** rng.uniform(-3, 3, (20, 1))
    if sparse:
        vectors[:, 1:] = 0
    for noise in (FastNoise(seed), AlwaysUp(seed)):
        whole = quantizer.apply(torch.from_numpy(vectors), noise).numpy().astype(np.float64)
        assert (np.abs(whole).sum(1) <= quantizer.norm(1)).all()
        assert ((whole**2).sum(1) <= quantizer.norm(2) ** 2 + 1e-6).all()
        assert (np.abs(whole) <= quantizer.norm(2)).all()


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("steps", [0.3, 1.0, 2.5, 20.0])
def test_worst_rounding(steps: float, order: Order) -> None:
    """All roundings of some vectors: the worst-case bound holds, the clipped norm does not."""
    cells, exceeded = 6, False
    quantizer = Quantizer(NormBound(steps, order=order), 1.0, cells, rejection=0)
    for exact in clipped_examples(cells, steps, order, seed=3):
        for whole, probability in roundings(exact):
            if probability > 0:
                assert size_of(whole, order) <= quantizer.largest
                exceeded |= size_of(whole, order) > (steps**2 if order == 2 else steps)
    assert exceeded


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("rejection", [0.01, 0.3, math.exp(-0.5)])
def test_drawing_again_is_as_rare_as_stated(rejection: float, order: Order) -> None:
    cells = 9
    for steps in (0.5, 1.5, 6.0, 50.0):
        quantizer = Quantizer(NormBound(steps, order=order), 1.0, cells, rejection)
        for exact in clipped_examples(cells, steps, order, seed=4):
            above = sum(p for x, p in roundings(exact) if size_of(x, order) > quantizer.largest)
            assert above <= rejection


@pytest.mark.parametrize("order", [1, 2])
def test_drawing_again_needs_its_margin(order: Order) -> None:
    """The control of the test above: without the term for the tail it would be far from rare."""
    cells, steps = 9, 1.5
    exact = np.full(cells, steps / (cells if order == 1 else math.sqrt(cells)))
    middle = steps if order == 1 else steps**2 + cells / 4
    above = sum(p for x, p in roundings(exact) if size_of(x, order) > middle)
    assert above > 0.3


def test_bias_of_drawing_again() -> None:
    """Exact: conditioning on a small norm shifts the mean, by less than stated."""
    cells, steps = 8, 2.0
    largest_bias = 0.0
    for rejection in (0.0, 0.05, 0.5):
        quantizer = Quantizer(NormBound(steps), 1.0, cells, rejection)
        for exact in clipped_examples(cells, steps, 2, seed=5):
            kept = [(x, p) for x, p in roundings(exact) if size_of(x, 2) <= quantizer.largest]
            mean = sum(x * p for x, p in kept) / sum(p for _, p in kept)
            bias = float(np.abs(mean - exact).max())
            assert bias <= rejection / (1 - rejection) + 1e-12
            largest_bias = max(largest_bias, bias)
    assert largest_bias > 1e-3  # so the bound says something


def test_redrawn_distribution() -> None:
    """What `apply` draws has the conditional distribution, and not that of plain rounding.

    By the normal approximation, fails by chance with probability 2e-9 (6.2 standard deviations).
    """
    quantizer = Quantizer(NormBound(1.5), 1.0, 2, rejection=0.35)
    assert quantizer.largest == 5  # so (2, 2) is drawn again
    exact, draws = torch.full((2,), 1.05, dtype=torch.float64), 40_000
    assert exact.norm() < 1.5
    whole = quantizer.apply(exact.expand(draws, -1), FastNoise(6))
    shares = [float((whole == torch.tensor(x)).all(1).double().mean()) for x in ([1, 1], [1, 2])]
    assert not (whole == 2).all(1).any()

    def agree(probabilities: list[float]) -> bool:
        pairs = zip(shares, probabilities, strict=True)
        return all(abs(a - p) < 6.2 * math.sqrt(p * (1 - p) / draws) for a, p in pairs)

    assert agree([0.9025 / 0.9975, 0.0475 / 0.9975])
    assert not agree([0.9025 / 0.9525, 0.0475 / 0.9525])  # control: if (2, 1) were redrawn too


def test_rounds_towards_zero_at_last() -> None:
    """If no draw is small enough, the result still is; and it is not an error, which would tell."""
    quantizer = Quantizer(NormBound(1.5), 1.0, 2, rejection=0.35)
    values = torch.tensor([[1.05, 1.05], [-1.05, -1.05], [0.0, -1.4]], dtype=torch.float64)
    assert quantizer.apply(values, AlwaysUp(0)).tolist() == [[1, 1], [-1, -1], [0, -1]]


@pytest.mark.parametrize("cells", [1, 2, 3])
@pytest.mark.parametrize("steps", [0.5, 1.7, 3.0])
def test_l1_norm_of_whole_vectors(cells: int, steps: float) -> None:
    """All whole vectors within the L2 bound are within the L1 bound derived from it."""
    quantizer = Quantizer(NormBound(steps), 1.0, cells, rejection=0)
    reach = range(-math.isqrt(quantizer.largest), math.isqrt(quantizer.largest) + 1)
    inside = [
        sum(map(abs, x))
        for x in itertools.product(reach, repeat=cells)
        if sum(v * v for v in x) <= quantizer.largest
    ]
    assert max(inside) <= quantizer.norm(1)


def test_sensitivity_uses_the_relation_once() -> None:
    quantizer = Quantizer(NormBound(10.0), 1.0, 4, rejection=0)
    assert quantizer.norm(2) == 12.0
    assert quantizer.norm(1) == 24.0
    assert quantizer.sensitivity(2, Relation.ADD_OR_REMOVE) == 12.0
    assert quantizer.sensitivity(2, Relation.REPLACE) == 24.0
    assert quantizer.sensitivity(1, Relation.REPLACE) == 48.0
    first = Quantizer(NormBound(10.0, order=1), 1.0, 4, rejection=0)
    assert first.norm(1) == first.norm(2) == 14.0


def test_tables_and_single_vectors() -> None:
    quantizer = Quantizer(NormBound(100.0), 0.5, 6, rejection=0)
    vector = torch.tensor([0.5, -1.0, 2.0, 0.0, 3.5, -4.5])
    before = vector.clone()
    table = quantizer.apply(vector, FastNoise(0), encode=lambda x: x.reshape(*x.shape[:-1], 2, 3))
    assert table.tolist() == [[1, -2, 4], [0, 7, -9]]
    assert quantizer.apply(vector, FastNoise(0)).tolist() == [1, -2, 4, 0, 7, -9]
    assert quantizer.apply(vector.expand(3, 2, 6), FastNoise(0)).shape == (3, 2, 6)
    assert torch.equal(vector, before)


def test_quantizer_refuses() -> None:
    quantizer = Quantizer(NormBound(1.0), 0.1, 3)
    for bad in (math.nan, math.inf):
        with pytest.raises(ArgumentError, match="finite"):
            quantizer.apply(torch.tensor([0.0, bad, 1.0]), FastNoise(0))
    with pytest.raises(MismatchError, match="3 cells"):
        quantizer.apply(torch.zeros(4), FastNoise(0))
    for step in (0.0, -1.0, math.nan, math.inf, 1e-12):
        with pytest.raises(ArgumentError, match="granularity must"):
            Quantizer(NormBound(1.0), step, 3)
    for rejection in (-0.1, 1.0, math.nan):
        with pytest.raises(ArgumentError, match="rejection must"):
            Quantizer(NormBound(1.0), 0.1, 3, rejection)
    with pytest.raises(ArgumentError, match="cells must"):
        Quantizer(NormBound(1.0), 0.1, 0)


def test_names_of_relations_count() -> None:
    quantizer = Quantizer(NormBound(1.0), 0.01, 10)
    by_name = quantizer.sensitivity(2, "replace")  # type: ignore[arg-type]
    assert by_name == quantizer.sensitivity(2, Relation.REPLACE) == 2 * quantizer.norm(2)


# Coordinates


def moved(sketch: CountSketch, grid: CoordinateQuantizer, index: int) -> tuple[float, float]:
    """How far one coordinate moves a cell that all others fill: in float32, and on the grid."""
    seed = SketchKey.from_integer(index).seed(0)
    _, signs = columns_and_signs(np.arange(sketch.dim), seed, layout=sketch.layout)
    generator = torch.Generator().manual_seed(index)
    vector = torch.rand(sketch.dim, generator=generator) * torch.from_numpy(signs[0]).float()
    other, place = vector.clone(), sketch.dim // 2
    vector[place], other[place] = 1.0, -1.0
    encode = partial(sketch.encode, seed=seed)
    tables = [encode(each) for each in (vector, other)]
    whole = [grid.apply(each[None], FastNoise(1), encode=encode)[0] for each in (vector, other)]
    return (
        float((tables[0] - tables[1]).abs().max()),
        float((whole[0] - whole[1]).abs().max()) * grid.granularity,
    )


@pytest.mark.parametrize("family", ["pairwise", "blocked"])
def test_float_sums_move_more(family: Family) -> None:
    """Two vectors that differ in one coordinate, which is 1 or -1, and are rounded alike else."""
    sketch = CountSketch(300_000, 2, 10, family)
    grid = CoordinateQuantizer(CoordinateBound(1.0, 2), 256, 20)
    found = [moved(sketch, grid, index) for index in range(4)]
    assert {whole for _, whole in found} == {2.0}
    if family == "pairwise":  # the control: what a claim would have to count without the grid
        assert max(floats for floats, _ in found) > 2.00001


@given(st.integers(1, 2**20), st.floats(2**-20, 2**20, width=32), st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_coordinates_stay_within_their_steps(steps: int, limit: float, seed: int) -> None:
    grid = CoordinateQuantizer(CoordinateBound(limit), steps, 9)
    vectors = torch.tensor([[0.0, limit, -limit, 3 * limit, -7 * limit, limit / 3, 1e-30, 1, -2]])
    found = grid.apply(vectors, FastNoise(seed))
    assert int(found.abs().max()) == steps
    assert found[0, :5].tolist() == [0, steps, -steps, steps, -steps]
    assert grid.sensitivity(1, Relation.REPLACE) == 2 * steps
    assert grid.sensitivity(1, Relation.ADD_OR_REMOVE) == steps


def test_coordinates_are_rounded_right_on_average() -> None:
    """Beyond 6 standard errors with probability below 1e-8; the control rounds to the nearest."""
    grid = CoordinateQuantizer(CoordinateBound(1.0), 4, 1)
    values = torch.full((40_000, 1), 0.3)
    found = grid.apply(values, FastNoise(2)).double() * grid.granularity
    error = float(found.std()) / 200
    assert abs(float(found.mean()) - 0.3) < 6 * error
    assert abs(0.25 - 0.3) > 6 * error
    with pytest.raises(ArgumentError, match="steps must be >= 1"):
        CoordinateQuantizer(CoordinateBound(1.0), 0, 1)
