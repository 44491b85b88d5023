"""Theorem 1 of the paper as a calculator: what it claims about a bare Count Sketch.

The authors themselves disown the proof, so everything here is *claimed*, never proven: it averages
over the data and the hashes, though privacy fixes the data and every worker knows the hashes; its
rows share the data, so that multiplying by their number is no composition; it protects a single
coordinate; and alpha and sigma are taken from the private vector. `mechanisms.padding` is what the
same appended noise really gives.

With alpha a bound on the coordinates and sigma their standard deviation, let

    x = (alpha / sigma)^2 * cols * (cols - 1) * (1 + ln(dim - cols)) / (dim - 2).

The claim is `rows * ln(1 + beta x)` for a constant beta with `x <= 1/2 - 1/beta`. The best one,
`beta = 1 / (1/2 - x)`, makes it `-rows * ln(1 - 2x)`; from x = 1/2 on there is none.

**Appended noise.** The paper appends numbers drawn "from the same Gaussian" to the vector. So
`padding` of them change the length, `dim + padding`, and leave alpha and sigma as they are.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check
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
from diffsketch.sketch.hashing import MAX_COLS, MAX_DIM, MAX_ROWS

__all__ = [
    "claimed_per_round",
    "estimate_alpha",
    "estimate_sigma",
    "estimates",
    "padding_for",
    "theorem1",
]

_SCOPE = Scope(Unit.COORDINATE, Relation.REPLACE, Trust.LOCAL)
_SOURCE = "Theorem 1 of the paper"


def theorem1(
    dim: int, rows: int, cols: int, *, alpha: float, sigma: float, beta: float | None = None
) -> PaperClaim | NoClaim:
    """What Theorem 1 claims for one message, or why it claims nothing.

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
        beta: A constant of your own instead of the best one.

    >>> print(theorem1(7850 * 21, 7, 22, alpha=1.645, sigma=1.0).epsilon(delta=0.0, rounds=1))
    epsilon = 1.54 at delta = 0 over 1 round (claimed; coordinate unit, replace, local trust)
    >>> theorem1(7850, 7, 22, alpha=1.645, sigma=1.0).reason
    'Theorem 1 needs x < 1/2, but x = 1.587 for this vector and table'
    """
    _check_sizes(dim, rows, cols)
    for name, value in (("alpha", alpha), ("sigma", sigma)):
        check(0 <= value < math.inf, name, "be >= 0 and finite", value)
    if beta is not None:
        check(0 < beta < math.inf, "beta", "be > 0 and finite", beta)
    if (reason := _failed_condition(dim, cols, alpha, sigma)) is not None:
        return NoClaim(_SCOPE, reason)
    x = _loss(dim, cols, alpha / sigma)
    limit = 0.5 if beta is None else 0.5 - 1 / beta
    if not (x < limit if beta is None else x <= limit):
        needs = "x < 1/2" if beta is None else f"x <= 1/2 - 1/beta = {limit:.4g}"
        return NoClaim(
            _SCOPE, f"Theorem 1 needs {needs}, but x = {x:.4g} for this vector and table"
        )
    value = -rows * math.log1p(-2 * x) if beta is None else rows * math.log1p(beta * x)
    return PaperClaim(_SCOPE, Epsilon(value, 0.0, 1, Basis.CLAIMED, _SCOPE), _SOURCE)


def claimed_per_round(dim: int, rows: int, cols: int, *, alpha: Tensor, sigma: Tensor) -> Tensor:
    """The claims of `theorem1` for many workers at once, as plain numbers (float64).

    They are claims and no guarantees, for one coordinate and one round. Infinite where there is
    no claim.

    Args:
        dim: Length of the vectors, appended noise included.
        rows: Rows of the table.
        cols: Columns of the table.
        alpha: One bound for each worker, as `estimate_alpha` gives for a batch.
        sigma: One standard deviation for each worker.
    """
    _check_sizes(dim, rows, cols)
    # In NumPy: for the few numbers of a round, torch takes three times as long.
    bound, spread = _numbers(alpha), _numbers(sigma)
    for name, values in (("alpha", bound), ("sigma", spread)):
        if values.size and not (values.min() >= 0 and values.max() < math.inf):
            raise ArgumentError(f"{name} must be >= 0 and finite, got {name}={values}")
    # Of two ones, the conditions on alpha and sigma cannot fail: it is about the sizes.
    if _failed_condition(dim, cols, 1.0, 1.0) is not None:
        return torch.full_like((alpha + sigma).double(), math.inf)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # where there is no claim
        x = np.square(bound / spread) * _loss(dim, cols, 1.0)
        claimed = np.where((x < 0.5) & (bound > 0), -rows * np.log1p(-2 * x), math.inf)
    return torch.from_numpy(claimed).to(alpha.device)


def _numbers(values: Tensor) -> npt.NDArray[np.float64]:
    plain = values.dtype == torch.float64 and values.device.type == "cpu"
    found: npt.NDArray[np.float64] = (values if plain else values.detach().cpu().double()).numpy()
    return found


def padding_for(
    target_claimed: float, dim: int, rows: int, cols: int, *, alpha: float, sigma: float
) -> int | NoClaim:
    """The least length of appended noise with which the claimed epsilon is at most the target.

    As a function of the length, x first rises and then falls, so once a length is too short, there
    is one place from which on all are long enough; bisection finds it.

    Args:
        target_claimed: The epsilon that Theorem 1 shall claim for one round. Not a guarantee.
        dim: Length of the vector without noise.
        rows: Rows of the table.
        cols: Columns of the table.
        alpha: Bound on the coordinates.
        sigma: Standard deviation of the coordinates and of the noise.

    Returns:
        The length, or why there is none that a sketch could take.

    >>> padding_for(1.0, 7850, 7, 22, alpha=1.645, sigma=1.0)
    244566
    """
    check(0 < target_claimed < math.inf, "target_claimed", "be > 0 and finite", target_claimed)

    def suffices(length: int) -> bool:
        claim = theorem1(length, rows, cols, alpha=alpha, sigma=sigma)
        return float(claim.epsilon(delta=0.0, rounds=1)) <= target_claimed

    _check_sizes(dim, rows, cols)
    shortest = max(dim, cols + 1)
    if suffices(shortest):
        return shortest - dim
    if not suffices(MAX_DIM):
        if (reason := _failed_condition(MAX_DIM, cols, alpha, sigma)) is None:
            reason = f"no vector of up to {MAX_DIM} numbers has so small an epsilon in Theorem 1"
        return NoClaim(_SCOPE, reason)
    too_short, enough = shortest, MAX_DIM
    while enough - too_short > 1:
        middle = (too_short + enough) // 2
        if suffices(middle):
            enough = middle
        else:
            too_short = middle
    return enough - dim


def estimate_alpha(vectors: Tensor) -> Tensor:
    """The paper's alpha: the 90th percentile of the coordinates' sizes, for each vector.

    Depends on private data, which is one of the reasons why Theorem 1 proves nothing.

    Args:
        vectors: `(dim,)`, or a batch `(..., dim)`.

    Returns:
        One float64 number per vector, interpolated as `numpy.quantile` does.
    """
    return _alpha_and_sigma(_checked(vectors))[0]


def estimate_sigma(vectors: Tensor) -> Tensor:
    """The standard deviation of the coordinates of each vector, in float64.

    Args:
        vectors: `(dim,)`, or a batch `(..., dim)`.
    """
    return _sigma(_checked(vectors))


def estimates(vectors: Tensor, *, validate: bool = True) -> tuple[Tensor, Tensor]:
    """`estimate_alpha` and `estimate_sigma`, in one go over the vectors.

    Args:
        vectors: `(dim,)`, or a batch `(..., dim)`.
        validate: Look for what is not finite, unless that was done.
    """
    values = _checked(vectors) if validate else vectors
    alpha, sigma = _alpha_and_sigma(values)
    return alpha, _sigma(values) if sigma is None else sigma


def _sigma(values: Tensor) -> Tensor:
    # Scaled first, or squares overflow.
    wide = values.double()
    largest = wide.abs().amax(dim=-1, keepdim=True)
    scale = torch.where(largest > 0, largest, 1)
    return (wide / scale).std(dim=-1, correction=0) * scale.squeeze(-1)


def _alpha_and_sigma(values: Tensor) -> tuple[Tensor, Tensor | None]:
    """With sigma only where it comes for free: in float32, whose squares float64 can hold."""
    *lead, length = values.shape
    position = 0.9 * (length - 1)
    place = math.floor(position)
    if values.device.type == "cpu" and values.dtype in (torch.float32, torch.float64):
        from diffsketch.sketch import statistics  # at first use: it takes Numba

        sizes, spreads = statistics.summaries(values.numpy().reshape(-1, length), place)
        low, high = sizes.astype(np.float64).T
        alpha = torch.from_numpy((low + (high - low) * (position - place)).reshape(lead))
        single = values.dtype == torch.float32
        return alpha, torch.from_numpy(spreads.reshape(lead)) if single else None
    every = values.double().abs()
    least, next_one = (every.kthvalue(min(place + n, length), dim=-1).values for n in (1, 2))
    return least + (next_one - least) * (position - place), None


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


def _failed_condition(dim: int, cols: int, alpha: float, sigma: float) -> str | None:
    if cols < 2:
        return "the proof of Theorem 1 needs two columns or more, and the table has one"
    if dim <= cols:
        return f"the vector's {dim} numbers are not more than the {cols} columns of a row"
    if not sigma > 0:
        return "all coordinates are equal, so that they are not Gaussian as Theorem 1 assumes"
    if not alpha > 0:
        return (
            "nine coordinates in ten are zero, so that they are not Gaussian as Theorem 1 assumes"
        )
    return None


def _loss(dim: int, cols: int, ratio: float) -> float:
    """The `x` above."""
    return ratio * ratio * cols * (cols - 1) * (1 + math.log(dim - cols)) / (dim - 2)


def _check_sizes(dim: int, rows: int, cols: int) -> None:
    sizes = (("dim", dim, MAX_DIM), ("rows", rows, MAX_ROWS), ("cols", cols, MAX_COLS))
    for name, value, limit in sizes:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ArgumentError(f"{name} must be an int, got {name}={value!r}")
        check(1 <= value <= limit, name, f"be in 1..{limit}", value)
