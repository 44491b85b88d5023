"""Floating-point noise on a vector or on a sketch's table: the best parameters for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from diffsketch.plan.clips import clips
from diffsketch.plan.error_model import RelativeError, noise_error
from diffsketch.plan.levels import NoiseLevels
from diffsketch.plan.options import ROWS, Draft, Mechanism, Method, Option, layouts, least_error
from diffsketch.plan.request import PlanRequest
from diffsketch.privacy.claim import Trust, Unit
from diffsketch.privacy.mechanisms.bounds import Bound
from diffsketch.privacy.mechanisms.gaussian import GaussianMechanism
from diffsketch.privacy.mechanisms.laplace import LaplaceMechanism

__all__ = [
    "FLOAT_BITS",
    "finish",
    "gaussian_options",
    "laplace_options",
    "mean_variance",
    "trusts_within",
]

FLOAT_BITS = 32
_TRUSTS = (Trust.LOCAL, Trust.DISTRIBUTED, Trust.CENTRAL)
# Laplace noise in t cells takes up to t times the scale for one coordinate, which the mean over
# t rows does not make good.
_LAPLACE_ROWS = (1,)


def trusts_within(request: PlanRequest, *kinds: Trust) -> list[Trust]:
    """Those of `kinds` that need no more trust than there is."""
    most = _TRUSTS.index(request.trust)
    return [kind for kind in kinds if _TRUSTS.index(kind) <= most]


def gaussian_options(request: PlanRequest, levels: NoiseLevels) -> Iterator[Option]:
    """Gaussian noise, added to each message or once by a server that is trusted."""
    multiplier = levels.gaussian
    if multiplier is None:
        return

    def std(bound: Bound) -> float:
        return multiplier * bound.sensitivity(2, request.relation)

    for trust in trusts_within(request, Trust.LOCAL, Trust.CENTRAL):
        for draft in _best_two(_drafts(request, trust, std)):
            mechanism = GaussianMechanism(draft.bound, multiplier, request.relation, trust)
            raw = draft.layout.rows is None
            method = Method.RAW_GAUSSIAN if raw else Method.SKETCH_GAUSSIAN
            yield finish(levels, draft, method, mechanism, std=mechanism.std, multiplier=multiplier)


def laplace_options(request: PlanRequest, levels: NoiseLevels) -> Iterator[Option]:
    """Laplace noise; for clients and examples it is for sums of absolute values."""
    # With a delta, Gaussian noise on a whole vector is smaller by far.
    if request.unit is not Unit.COORDINATE and request.delta > 0:
        return
    multiplier = levels.laplace
    if multiplier is None:
        return

    def std(bound: Bound) -> float:
        return math.sqrt(2) * multiplier * bound.sensitivity(1, request.relation)

    for trust in trusts_within(request, Trust.LOCAL, Trust.CENTRAL):
        for draft in _best_two(_drafts(request, trust, std, order=1, rows=_LAPLACE_ROWS)):
            mechanism = LaplaceMechanism(draft.bound, multiplier, request.relation, trust)
            raw = draft.layout.rows is None
            method = Method.RAW_LAPLACE if raw else Method.SKETCH_LAPLACE
            std_of_cell = math.sqrt(2) * mechanism.scale
            yield finish(levels, draft, method, mechanism, std=std_of_cell, multiplier=multiplier)


def mean_variance(request: PlanRequest, trust: Trust, std: float) -> float:
    """Variance of a cell of the mean, with noise in each message or once in their sum."""
    sources = request.workers if trust is Trust.LOCAL else 1
    return sources * std**2 / request.units**2


def finish(
    levels: NoiseLevels,
    draft: Draft,
    method: Method,
    mechanism: Mechanism,
    *,
    std: float | None,
    multiplier: float | None,
) -> Option:
    """The option of a draft: its epsilon comes from the mechanism itself."""
    total = levels.total(mechanism.claim)
    return Option(
        method=method,
        mechanism=mechanism,
        sketch=draft.layout.sketch(),
        cells=draft.layout.cells,
        bits=draft.bits,
        clip=draft.bound.limit,
        noise_std=std,
        noise_multiplier=multiplier,
        message_bytes=draft.message_bytes,
        compression=4 * draft.layout.dim / draft.message_bytes,
        error=draft.error,
        total=total,
        scaling=1 if total.scope.trust is Trust.LOCAL else 2,
    )


def _drafts(
    request: PlanRequest,
    trust: Trust,
    std: Callable[[Bound], float],
    *,
    order: Literal[1, 2] = 2,
    rows: Sequence[int] = ROWS,
) -> list[Draft]:
    """Every shape and clip, with the error that noise of this standard deviation makes."""
    found = []
    for layout in layouts(request, FLOAT_BITS, rows=rows):
        for bound, recovery in clips(request, layout, order=order):
            variance = mean_variance(request, trust, std(bound))
            noise = noise_error(request, variance, rows=layout.table_rows)
            error = RelativeError(recovery.error, noise, kept=recovery.kept)
            found.append(Draft(layout, FLOAT_BITS, bound, error))
    return found


def _best_two(drafts: list[Draft]) -> Iterator[Draft]:
    """The best vector, if one fits, and the best table."""
    for raw in (True, False):
        best = least_error(draft for draft in drafts if (draft.layout.rows is None) == raw)
        if best is not None:
            yield best
