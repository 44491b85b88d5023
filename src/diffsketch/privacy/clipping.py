"""Clipping: coordinates, vectors and tables. What is not finite is refused, never clipped."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check

__all__ = ["clip_coordinates", "clip_norm"]

_ONE = 1 << 1074  # in units of the smallest float64, so that every float64 is a whole number


def clip_coordinates(values: Tensor, limit: float) -> Tensor:
    """`values`, of any shape, with every entry brought into `[-limit, limit]`.

    Guarantees (`tests/privacy/test_clipping.py`): no entry is beyond `limit`, even where the type
    of `values` cannot hold that number; entries within keep their bits; `values` stays as it is.

    Raises:
        ArgumentError: `limit` is not positive and finite, `values` are not float32 or float64, or
            a value is NaN or infinite.
    """
    check(0 < limit < math.inf, "limit", "be > 0 and finite", limit)
    _check_values(values)
    held = float(_towards_zero(torch.tensor(limit, dtype=torch.float64), values.dtype))
    return values.detach().clamp(-held, held)


def clip_norm(values: Tensor, limit: float, *, order: Literal[1, 2] = 2, dims: int = 1) -> Tensor:
    """`values` scaled down where their norm over the last `dims` dimensions exceeds `limit`.

    Guarantees (`tests/privacy/test_clipping.py`): the norm of what comes back, as a real number,
    is at most `limit`; vectors whose norm is at most `limit` keep their bits; the others keep
    their direction up to rounding, and come within a few roundings of the limit; `values` stays
    as it is.

    Args:
        values: float32 or float64, any number of vectors (`dims=1`), tables (`dims=2`) or numbers
            (`dims=0`, which takes 0-d tensors as well). Without entries, the norm is 0.
        limit: The largest norm.
        order: 1 for the sum of the absolute values, 2 for the Euclidean norm.
        dims: How many dimensions are one vector.

    Raises:
        ArgumentError: `limit` is not positive and finite, `values` are not float32 or float64 or
            have too few dimensions, or a value is NaN or infinite.
    """
    check(0 < limit < math.inf, "limit", "be > 0 and finite", limit)
    check(order in (1, 2), "order", "be 1 or 2", order)
    check(dims >= 0, "dims", "be >= 0", dims)
    _check_values(values)
    check(values.dim() >= dims, "values", f"have at least dims={dims} dimensions", values.dim())
    if values.numel() == 0:
        return values.detach().clone()
    rows = values.detach().reshape(-1, math.prod(values.shape[values.dim() - dims :]))
    return _clip_rows(rows, limit, order).reshape(values.shape)


def _clip_rows(rows: Tensor, limit: float, order: Literal[1, 2]) -> Tensor:
    """Clip the norm of each row.

    Norms are computed in float64 to a relative error of at most `slack`. Where that does not tell
    whether a row is within the limit, whole numbers do: slowly, but hardly ever.
    """
    slack = (rows.shape[1] + 8) * 2.0**-52
    # By the largest entry first, or squares overflow and underflow.
    largest = rows.abs().amax(dim=1, keepdim=True).double()
    largest[largest == 0] = 1
    units = rows.double() / largest
    norms = torch.linalg.vector_norm(units, ord=order, dim=1, keepdim=True)
    ratios = norms * (largest / limit)  # may be infinite, which is beyond the limit as well
    beyond = ratios > 1
    for index in torch.nonzero((ratios - 1).abs() <= slack)[:, 0].tolist():
        beyond[index] = _exceeds(rows[index].tolist(), limit, order)
    scaled = units * (limit * (1 - 3 * slack) / norms)
    # Numbers this small would be rounded by more than the slack.
    scaled[scaled.abs() < torch.finfo(torch.float64).tiny] = 0
    return torch.where(beyond, _towards_zero(scaled, rows.dtype), rows)


def _exceeds(row: list[float], limit: float, order: Literal[1, 2]) -> bool:
    """Whether the norm is above the limit, with no rounding at all."""
    total: int = sum(_whole(value) ** order for value in row)
    return total > int(_whole(limit) ** order)


def _whole(value: float) -> int:
    """The size of a float in units of the smallest one."""
    numerator, denominator = abs(float(value)).as_integer_ratio()
    return numerator * (_ONE // denominator)


def _towards_zero(values: Tensor, dtype: torch.dtype) -> Tensor:
    """float64 values in another type, rounded towards zero: never larger."""
    cast = values.to(dtype)
    return torch.where(cast.abs() > values.abs(), torch.nextafter(cast, cast.new_zeros(())), cast)


def _check_values(values: Tensor) -> None:
    if not isinstance(values, Tensor) or values.dtype not in (torch.float32, torch.float64):
        kind = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise ArgumentError(f"values must be a float32 or float64 tensor, got {kind}")
    if not bool(torch.isfinite(values).all()):
        raise ArgumentError("values must be finite, got NaN or infinity among them")
