"""What to clip a message to, and what that leaves of the mean."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from diffsketch.plan.error_model import (
    Recovery,
    clipped_coordinates,
    collision_error,
    sketch_recovery,
)
from diffsketch.plan.options import Layout, rounded_up
from diffsketch.plan.request import PlanRequest
from diffsketch.privacy.claim import Unit
from diffsketch.privacy.mechanisms.bounds import CoordinateBound, NormBound

__all__ = ["Clip", "clips"]

_COORDINATE_CLIPS = (1.645, 1.8, 2.0, 2.25, 2.5, 2.75, 3.0, 3.5, 4.0, 5.0)
"""In standard deviations of a coordinate; the first, the paper's, keeps nine tenths of it."""

_DEVIATIONS = (1.0, 0.0, 0.5, 1.5, 2.0, 3.0)
"""Of the norm of a table, above its mean."""

Clip = tuple[CoordinateBound | NormBound, Recovery]


def clips(request: PlanRequest, layout: Layout, *, order: Literal[1, 2] = 2) -> Iterator[Clip]:
    """Bounds for the request's unit, with the error that they make; a middling one first."""
    if request.unit is Unit.COORDINATE:
        return _of_coordinates(request, layout)
    return _of_norms(request, layout) if order == 2 else _of_sums(request, layout)


def _of_coordinates(request: PlanRequest, layout: Layout) -> Iterator[Clip]:
    collisions = 0.0
    if layout.rows is not None:
        collisions = collision_error(layout.dim, layout.rows, layout.cols)
    for ratio in _COORDINATE_CLIPS:
        limit = rounded_up(ratio * request.vector_norm / math.sqrt(request.dim))
        clipped = clipped_coordinates(request, ratio)
        recovery = Recovery(clipped.error + collisions * clipped.energy, clipped.kept)
        yield CoordinateBound(limit, layout.table_rows), recovery


def _of_norms(request: PlanRequest, layout: Layout) -> Iterator[Clip]:
    """A table's Euclidean norm has a relative standard deviation of about `1/sqrt(2 cells)`."""
    if layout.rows is None:
        yield NormBound(request.vector_norm, request.unit), Recovery(0.0, 1.0)
        return
    for count in _DEVIATIONS:
        ratio = 1 + count / math.sqrt(2 * layout.cells)
        limit = rounded_up(ratio * math.sqrt(layout.rows) * request.vector_norm)
        recovery = sketch_recovery(request, layout.rows, layout.cols, clip_ratio=ratio)
        yield NormBound(limit, request.unit), recovery


def _of_sums(request: PlanRequest, layout: Layout) -> Iterator[Clip]:
    """Clips of the sum of absolute values, far enough out to lose nothing.

    That of `cells` normal numbers of variance 1 has the mean `sqrt(2/pi) cells` and the standard
    deviation `sqrt((1 - 2/pi) cells)`; those in a row of a table have `vector_norm^2 / cols`.
    """
    mean = math.sqrt(2 / math.pi) * layout.cells + 3 * math.sqrt((1 - 2 / math.pi) * layout.cells)
    limit = rounded_up(mean * request.vector_norm / math.sqrt(layout.cols))
    recovery = Recovery(0.0, 1.0)
    if layout.rows is not None:
        recovery = Recovery(collision_error(layout.dim, layout.rows, layout.cols), 1.0)
    yield NormBound(limit, request.unit, 1), recovery
