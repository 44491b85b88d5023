"""The paper's appended noise, Theorem 1 as a calculator, and the error of a sketch's estimates.

**Theorem 1** is about the privacy of a bare Count Sketch. The authors themselves disown the proof,
so all of it is *claimed*, never proven: it averages over the data and the hashes, though privacy
fixes the data and every worker knows the hashes; its rows share the data, so that multiplying by
their number is no composition; it protects a single coordinate; and alpha and sigma are taken from
the private vector. `paper/methods.py` has what the same appended noise really gives.

With alpha a bound on the coordinates and sigma their standard deviation, let

    x = (alpha / sigma)^2 * cols * (cols - 1) * (1 + ln(dim - cols)) / (dim - 2).

The claim is `rows * ln(1 + beta x)` for a constant beta with `x <= 1/2 - 1/beta`. The best one,
`beta = 1 / (1/2 - x)`, makes it `-rows * ln(1 - 2x)`; from x = 1/2 on there is none. The paper
appends numbers drawn "from the same Gaussian" to the vector: `padding` of them change the length,
`dim + padding`, and leave alpha and sigma as they are.

Hash words are taken to be independent and uniform, as everywhere here.

**The appended noise** is sketched with the vector. With `S_real` and `S_pad` the parts of the
sketch's matrix that meet the vector and the numbers,

    table = S_real g + S_pad z  ~  N(S_real g, std^2 G),    G = S_pad S_pad'.

*Two ways to draw it.* It is made so, `padding` numbers for each worker; or it is drawn from that
very distribution as `std L z`, with `L L' = G` and as many standard Gaussian numbers z as the table
has cells. L belongs to the round's hashes and is computed once for all workers.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_positive, check_whole
from diffsketch.privacy.claim import (
    Basis,
    Epsilon,
    NoClaim,
    PaperClaim,
    Relation,
    Scope,
    Trust,
    Unit,
)
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.count_sketch import CountSketch
from diffsketch.sketch.gram import add_gram, products
from diffsketch.sketch.hashing import HashSeed, check_sizes
from diffsketch.sketch.kernels.estimators import Combine
from diffsketch.sketch.statistics import summaries

# Nanoseconds, on a processor of 2.5 GHz: what appending numbers costs and what a factor does.
_APPENDED = 12  # to draw a number and to add it to all rows
_COUNTED = 0.5  # to count a coordinate, or a run of them, for two rows
_CELL = 6  # to write a number of G
_FACTORED = 0.012  # of a factorisation, times cells^3
_WORKERS = 10  # of a small cohort, who share a factor

_GROUP = 1 << 24  # appended numbers that are there at a time: 64 MiB

_check_sizes = lru_cache(maxsize=64, typed=True)(check_sizes)  # the same in each round of a run
_SCOPE = Scope(Unit.COORDINATE, Relation.REPLACE, Trust.LOCAL)
_SOURCE = "Theorem 1 of the paper"


def theorem1(dim: int, rows: int, cols: int, *, alpha: float, sigma: float) -> PaperClaim | NoClaim:
    """The claim of Theorem 1 about one message, or why it claims nothing.

    Where the theorem's conditions fail, that is the result and not an error. Three of them are
    only implicit in its proof: a row has two columns or more (it counts the ways to fill the
    others), the vector is longer than a row (no cell may be empty), and alpha is positive (the
    coordinates are Gaussian and below alpha).

    Args:
        dim: Length of the vector, appended noise included.
        rows: Rows of the table.
        cols: Columns of the table.
        alpha: Bound on the coordinates; the paper takes `estimate_alpha`.
        sigma: Standard deviation of the coordinates.

    >>> print(theorem1(7850 * 21, 7, 22, alpha=1.645, sigma=1.0).epsilon(delta=0.0, rounds=1))
    epsilon = 1.54 at delta = 0 over 1 round (claimed; coordinate unit, replace, local trust)
    >>> theorem1(7850, 7, 22, alpha=1.645, sigma=1.0).reason
    'Theorem 1 needs x < 1/2, but x = 1.587 for this vector and table'
    """
    _check_sizes(dim, rows, cols)
    for name, value in (("alpha", alpha), ("sigma", sigma)):
        check(0 <= value < math.inf, name, "be >= 0 and finite", value)
    if cols < 2:
        reason = "the proof of Theorem 1 needs two columns or more, and the table has one"
    elif dim <= cols:
        reason = f"the vector's {dim} numbers are not more than the {cols} columns of a row"
    elif not sigma > 0:
        reason = "all coordinates are equal, so that they are not Gaussian as Theorem 1 assumes"
    elif not alpha > 0:
        reason = (
            "nine coordinates in ten are zero, so that they are not Gaussian as Theorem 1 assumes"
        )
    else:
        x = _loss(dim, cols, alpha / sigma)
        if x < 0.5:
            value = -rows * math.log1p(-2 * float(x))
            return PaperClaim(_SCOPE, Epsilon(value, 0.0, 1, Basis.CLAIMED, _SCOPE), _SOURCE)
        reason = f"Theorem 1 needs x < 1/2, but x = {x:.4g} for this vector and table"
    return NoClaim(_SCOPE, reason)


def claimed_per_round(dim: int, rows: int, cols: int, *, alpha: Tensor, sigma: Tensor) -> Tensor:
    """The claims of `theorem1` for many workers at once, as plain numbers (float64).

    `alpha` and `sigma` have one number for each worker. They are claims and no guarantees, for one
    coordinate and one round. Infinite where there is no claim.
    """
    _check_sizes(dim, rows, cols)
    claimed = _claims(dim, rows, cols, _ratios(alpha, sigma))
    return torch.from_numpy(claimed).to(alpha.device)


def least_padding(
    target_claimed: float,
    dim: int,
    rows: int,
    cols: int,
    *,
    alpha: Tensor,
    sigma: Tensor,
    most: int,
) -> tuple[Tensor, Tensor]:
    """The least appended noise with which each claim is at most the target, and these claims.

    As a function of the length, x first rises and then falls, so once a length is too short, there
    is one place from which on all are long enough; bisection finds it.

    Args:
        target_claimed: The epsilon that Theorem 1 shall claim for one round. Not a guarantee.
        dim: Length of the vectors without noise.
        rows: Rows of the table.
        cols: Columns of the table.
        alpha: Bound on the coordinates of each worker's vector.
        sigma: Standard deviation of the coordinates, and of the noise.
        most: Largest length of the noise.

    Returns:
        Lengths, whole numbers; and the claims with them. Where no length suffices, 0 and its claim.

    >>> alpha, sigma = torch.tensor([1.645]), torch.tensor([1.0])
    >>> least_padding(1.0, 7850, 7, 22, alpha=alpha, sigma=sigma, most=10**6)[0]
    tensor([244566])
    """
    check_positive("target_claimed", target_claimed)
    check_whole("most", most, least=0)
    for length in (dim, dim + most):
        _check_sizes(length, rows, cols)
    ratios = _ratios(alpha, sigma)

    def suffices(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return _claims(lengths, rows, cols, ratios) <= target_claimed

    # Of all workers at the same time. No claim holds for vectors that are not longer than a row.
    # No shorter than the vector, and longer than a row: below that, nothing is claimed.
    low = np.full(ratios.shape, min(max(dim, cols + 1), dim + most))
    high = np.full_like(low, dim + most)
    # Where the first length suffices, the search is over.
    high = np.where(suffices(low), low, high)
    enough = suffices(high)
    while bool((high - low > 1).any()):  # for all of them, also where none suffices
        middle = (low + high) // 2
        fits = suffices(middle)
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    lengths = np.where(enough, high, dim)
    claimed = torch.from_numpy(_claims(lengths, rows, cols, ratios))
    return torch.from_numpy(lengths - dim).to(alpha.device), claimed.to(alpha.device)


def _ratios(alpha: Tensor, sigma: Tensor) -> npt.NDArray[np.float64]:
    """The squares of alpha / sigma; no number where there is no claim, whatever the sizes."""
    # In NumPy: for the few numbers of a round, torch takes three times as long.
    bound, spread = (values.detach().cpu().double().numpy() for values in (alpha, sigma))
    for name, values in (("alpha", bound), ("sigma", spread)):
        if values.size and not (values.min() >= 0 and values.max() < math.inf):
            raise ArgumentError(f"{name} must be >= 0 and finite, got {name}={values}")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(bound > 0, np.square(bound / spread), math.nan)


def _claims(
    dim: int | npt.NDArray[np.int64], rows: int, cols: int, ratios: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Claims for vectors of one length, or of one each."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # where there is no claim
        x = ratios * _loss(dim, cols, 1.0)
        holds = (x < 0.5) & (np.asarray(dim) > cols) & (cols > 1)
        return np.where(holds, -rows * np.log1p(-2 * x), math.inf)


def estimate_alpha(vectors: Tensor) -> Tensor:
    """Estimate the paper's alpha: the 90th percentile of the sizes of each vector's coordinates.

    In float64, interpolated as `numpy.quantile` does. It depends on private data, which is one of
    the reasons why Theorem 1 proves nothing.
    """
    return estimates(vectors)[0]


def estimate_sigma(vectors: Tensor) -> Tensor:
    """The standard deviation, in float64, of the coordinates of each `(..., dim)` vector."""
    return estimates(vectors)[1]


def estimates(vectors: Tensor, *, validate: bool = True) -> tuple[Tensor, Tensor]:
    """Estimate alpha and sigma in one go; `validate` unless that was done."""
    values = _checked(vectors) if validate else vectors
    *lead, length = values.shape
    # As `numpy.quantile`: between two order statistics, linearly.
    position = 0.9 * (length - 1)
    place = math.floor(position)
    if values.device.type == "cpu" and values.dtype in (torch.float32, torch.float64):
        sizes, spreads = summaries(values.numpy().reshape(-1, length), place)
        low, high = torch.from_numpy(sizes.astype(np.float64)).T.reshape(2, *lead)
        if values.dtype == torch.float32:  # whose squares float64 can hold
            return low + (high - low) * (position - place), torch.from_numpy(spreads.reshape(lead))
    else:
        sorted_places = (min(place + n, length) for n in (1, 2))
        every = values.double().abs()
        low, high = (every.kthvalue(at, dim=-1).values for at in sorted_places)
    # Scaled first, or squares overflow.
    wide = values.double()
    largest = wide.abs().amax(dim=-1, keepdim=True)
    scale = torch.where(largest > 0, largest, 1)
    sigma = (wide / scale).std(dim=-1, correction=0) * scale.squeeze(-1)
    return low + (high - low) * (position - place), sigma


def _checked(vectors: Tensor) -> Tensor:
    if vectors.dim() < 1 or vectors.shape[-1] < 1:
        shape = tuple(vectors.shape)
        raise ArgumentError(f"vectors must have one coordinate or more, got shape {shape}")
    if not vectors.is_floating_point():
        raise ArgumentError(f"vectors must be floating point, got {vectors.dtype}")
    vectors = vectors.detach()
    # A sum is finite only if its terms are, and quick; but it may overflow.
    if not math.isfinite(vectors.sum().item()) and not bool(torch.isfinite(vectors).all()):
        raise ArgumentError("vectors must be finite, got NaN or infinity among them")
    return vectors


def _loss(dim: Any, cols: int, ratio: float) -> Any:  # the `x` of Theorem 1, of any lengths
    return ratio * ratio * cols * (cols - 1) * (1 + np.log(dim - cols)) / (dim - 2)


def query_variance(sketch: CountSketch, *, combine: Combine) -> float:
    """The largest `E||estimate - vector||^2 / ||vector||^2` over all vectors, or a bound on it.

    A row's estimate of a coordinate has a variance of at most `||others||^2 / cols`, which adds up
    to `(dim - 1) / cols`. The mean of the rows divides it by `rows`. The median's square is at most
    that of `rows // 2 + 1` of the rows, hence at most their sum over `rows // 2 + 1`. Either is
    unbiased: a row's error is as likely as its opposite.
    """
    check(combine in ("median", "mean"), "combine", "be 'median' or 'mean'", combine)
    # Each of the other coordinates shares the cell with probability `1 / cols`.
    row = (sketch.dim - 1) / sketch.cols
    if combine == "mean":
        return row / sketch.rows
    return row * sketch.rows / (sketch.rows // 2 + 1)


def factor(
    sketch: CountSketch, seed: HashSeed, start: int, stop: int | None = None
) -> Tensor | None:
    """L, lower triangular, with `L L' = G` for the coordinates from `start` to `stop` (or the end).

    It factors G up to `(cells + 1) unit trace(G)`, unit = 2^-53 (Higham, "Accuracy and Stability",
    theorem 10.3). None where G is singular, or so near to it that rounding hides whether it is.
    The last one is kept with the seed.
    """
    key, stop = ("factor", sketch, start), sketch.dim if stop is None else stop
    # Counts of the span that was asked for last, and its factor. They are added to in place: what
    # is interrupted must not find them again.
    counted, counts, lower = seed.memo.pop(key, (start, None, None))
    if counts is None or stop < counted:
        cells = sketch.rows * sketch.cols
        counted, counts, lower = start, np.zeros((cells, cells)), None
    if stop > counted:
        # G of a longer padding is that of a shorter one, and of the numbers between.
        add_gram(counts, sketch, seed, counted, stop)
        matrix = torch.from_numpy(counts)
        lower, info = torch.linalg.cholesky_ex(matrix)
        # Regular only if its least pivot is above what rounding can make of a zero.
        rounding = 16 * len(lower) * 2.0**-53 * float(matrix.trace())
        if info.item() != 0 or float(lower.diagonal().min()) ** 2 <= rounding:
            lower = None
    seed.memo[key] = stop, counts, lower
    result: Tensor | None = lower
    return result


def factored_length(sketch: CountSketch, padding: int, *, shared: bool) -> int:
    """Count the appended numbers that are cheaper to draw by a factor of G.

    All or none if the length is `shared` by all workers. Otherwise, where the numbers between take
    less time than a factor, a rounder length: one with three binary digits, then zeros.

    Decided by the sizes alone, for a cohort of ten: a worker's noise must not depend on how many
    others there are.
    """
    rows, cells = sketch.rows, sketch.rows * sketch.cols
    if padding < cells:
        return 0  # G is singular
    geometry = sketch.geometry
    # What is counted: a coordinate by itself, or a run, which costs as much however long it is.
    units = padding if sketch.family == "pairwise" else min(padding, geometry.runs)
    counted = _COUNTED * units * rows * (rows + 1) / 2
    factored = _CELL * cells**2 + _FACTORED * cells**3
    if counted + factored >= _WORKERS * _APPENDED * padding:
        return 0
    rest = padding % (1 << max(0, padding.bit_length() - 3))
    return padding if shared or _APPENDED * rest > factored else padding - rest


def padded_tables(
    vectors: Tensor,
    sketch: CountSketch,
    *,
    seed: HashSeed,
    std: Tensor,
    noise: Noise,
    lengths: Tensor | None = None,
) -> Tensor:
    """Tables of `(workers, dim)` vectors with Gaussian numbers appended to each.

    Worker `i` appends `lengths[i]` numbers, or as many as there is room for in the sketch, of
    standard deviation `std[i]`, from its own row of the noise. All have the hashes of the sketch's
    whole length, so that tables can be added up.

    Guarantees (`tests/privacy/test_padding.py`): both ways have the same distribution, a worker's
    table is the same alone and in any batch, and which way is taken follows from the sizes and the
    hashes alone.
    """
    dim, cells = vectors.shape[-1], sketch.rows * sketch.cols
    shared, full = lengths is None, torch.full((len(vectors),), sketch.dim - dim)
    lengths = full if lengths is None else lengths.cpu()
    # By the longer sketch, whose other coordinates count as zeros.
    tables = sketch.encode(vectors, seed, offset=0)
    # The shortest first, so that each factor goes on with the counts of the one before.
    for length in sorted(set(lengths.tolist()) - {0}):
        workers = (lengths == length).nonzero().flatten()
        begin = dim + factored_length(sketch, length, shared=shared)
        lower = factor(sketch, seed, dim, begin) if begin > dim else None
        if lower is None:
            begin = dim
        else:
            normals = noise.part(workers).normal((len(workers), cells), 1.0, dtype=torch.float64)
            mixed = torch.from_numpy(products(lower.numpy(), normals.numpy()))
            # L z has the covariance G: times the deviation, that of the appended numbers.
            drawn = mixed * std[workers].cpu().double()[:, None]
            tables[workers] += drawn.reshape(-1, sketch.rows, sketch.cols).to(tables)
        made = dim + length - begin
        # In groups: a thousand vectors with 20n appended numbers would not fit into memory.
        for group in workers.split(max(1, _GROUP // max(1, made))) if made else ():
            normals = noise.part(group).normal((len(group), made), 1.0, dtype=vectors.dtype)
            appended = normals.to(vectors.device)
            appended *= std[group, None].to(appended)
            tables[group] += sketch.encode(appended, seed, offset=begin)
    return tables
