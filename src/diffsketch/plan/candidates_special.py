"""Methods with a form of their own: PrivUnit and ProjUnit, and the paper's appended noise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from diffsketch.errors import ArgumentError
from diffsketch.plan.candidates import FLOAT_BITS, finish, mean_variance
from diffsketch.plan.clips import clips
from diffsketch.plan.error_model import (
    RelativeError,
    clipped_coordinates,
    collision_error,
    noise_error,
)
from diffsketch.plan.levels import NoiseLevels
from diffsketch.plan.options import Draft, Layout, Method, Option, layouts, least_error
from diffsketch.plan.padded import FittedPadding
from diffsketch.plan.request import PlanRequest
from diffsketch.privacy.claim import Relation, Trust, Unit
from diffsketch.privacy.mechanisms.bounds import CoordinateBound, NormBound
from diffsketch.privacy.mechanisms.privunit import PrivUnitG, ProjUnit
from diffsketch.sketch.hashing import SketchKey

__all__ = ["padded_options", "unit_options"]

_MOST_ENTRIES = 1 << 31  # of a worker's projection
_SIZES = 12

_PADDING = 5  # times the dimension: the more, the nearer to independent noise, and the slower
_LEAST_PADDING = 20  # times the cells
_MOST_PADDED = 10**6  # coordinates with the appended ones
_MOST_CELLS = 1024


def unit_options(request: PlanRequest, levels: NoiseLevels) -> Iterator[Option]:
    """PrivUnitG if the vector fits, and ProjUnit: for clients who trust nobody, without delta."""
    if request.unit is not Unit.CLIENT or request.relation is not Relation.REPLACE:
        return
    inverse = levels.pure
    if inverse is None:
        return
    drafts = []
    for layout in layouts(request, FLOAT_BITS, rows=(1,)):
        if layout.rows is None or layout.cells * request.dim <= _MOST_ENTRIES:
            drafts.append(_unit_draft(request, layout, inverse))
        if len(drafts) == _SIZES:
            break
    for raw in (True, False):
        best = least_error(draft for draft in drafts if (draft.layout.rows is None) == raw)
        if best is None:
            continue
        mechanism = _unit_mechanism(request, best.layout, inverse)
        # A message is not a sketch's table: its cells are a projection's.
        shape = replace(best, layout=replace(best.layout, rows=None))
        method = Method.PRIV_UNIT if raw else Method.PROJ_UNIT
        yield finish(levels, shape, method, mechanism, std=None, multiplier=None)


def _unit_mechanism(request: PlanRequest, layout: Layout, inverse: float) -> PrivUnitG | ProjUnit:
    if layout.rows is None:
        return PrivUnitG(request.dim, 1 / inverse, request.vector_norm)
    return ProjUnit(request.dim, layout.cells, 1 / inverse, request.vector_norm)


def _unit_draft(request: PlanRequest, layout: Layout, inverse: float) -> Draft:
    """Each worker's estimate is unbiased and independent of the others' (fresh projections)."""
    squared = _unit_mechanism(request, layout, inverse).squared_norm
    variance = (squared - request.vector_norm**2) / (request.workers * request.dim)
    error = RelativeError(0.0, noise_error(request, variance))
    return Draft(layout, FLOAT_BITS, NormBound(request.vector_norm), error)


def padded_options(request: PlanRequest, levels: NoiseLevels) -> Iterator[Option]:
    """The paper's appended noise, repaired: for single coordinates, and tables that are small."""
    multiplier = levels.gaussian
    padding = max(_PADDING * request.dim, 1)
    if request.unit is not Unit.COORDINATE or multiplier is None:
        return
    if request.dim + padding > _MOST_PADDED:
        return
    most = min(_MOST_CELLS, padding // _LEAST_PADDING)
    drafts = []
    for layout in layouts(request, FLOAT_BITS):
        if layout.rows is not None and layout.cells <= most:
            for bound, _ in clips(request, layout):
                std = multiplier * bound.sensitivity(2, request.relation)
                drafts.append(_padded_draft(request, layout, bound.limit, padding, std))
    best = least_error(drafts)
    if best is None:
        return
    sketch, limit = best.layout.sketch(), best.bound.limit
    if sketch is None:
        return
    bound = CoordinateBound(limit)
    mechanism = FittedPadding(sketch, bound, padding, multiplier, request.relation)
    # Any hashes will do to see how much noise they need: it hardly differs.
    try:
        fitted = mechanism.at(SketchKey.from_integer(0).seed(0))
    except ArgumentError:
        return
    std = fitted.std * math.sqrt(padding / sketch.cols)
    draft = _padded_draft(request, best.layout, limit, padding, std)
    yield finish(levels, draft, Method.PADDED_SKETCH, mechanism, std=std, multiplier=multiplier)


def _padded_draft(
    request: PlanRequest, layout: Layout, limit: float, padding: int, std: float
) -> Draft:
    """With noise of this standard deviation in a cell of each message."""
    ratio = limit * math.sqrt(request.dim) / request.vector_norm
    clipped = clipped_coordinates(request, ratio)
    rows = layout.table_rows
    # The same coordinates as in a sketch without padding, but laid out for a longer vector.
    longer = request.dim + padding
    collisions = collision_error(longer, rows, layout.cols) * request.dim / longer
    noise = noise_error(request, mean_variance(request, Trust.LOCAL, std), rows=rows)
    recovery = clipped.error + collisions * clipped.energy
    error = RelativeError(recovery, noise, kept=clipped.kept)
    return Draft(layout, FLOAT_BITS, CoordinateBound(limit, rows), error)
