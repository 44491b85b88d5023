"""From a request to a plan: the best method and its rivals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from diffsketch.errors import ArgumentError, check
from diffsketch.plan.advice import advice_on, notes_on, warnings_on
from diffsketch.plan.candidates import gaussian_options, laplace_options
from diffsketch.plan.candidates_integer import integer_options
from diffsketch.plan.candidates_special import padded_options, unit_options
from diffsketch.plan.levels import NoiseLevels
from diffsketch.plan.options import TIE, Option
from diffsketch.plan.request import PlanRequest
from diffsketch.privacy.claim import Trust

__all__ = ["Plan", "plan"]

_SOURCES: tuple[Callable[[PlanRequest, NoiseLevels], Iterator[Option]], ...] = (
    gaussian_options,
    laplace_options,
    integer_options,
    unit_options,
    padded_options,
)
_TRUSTS = (Trust.LOCAL, Trust.DISTRIBUTED, Trust.CENTRAL)


@dataclass(frozen=True)
class Plan:
    """What to do, what else one could do, and what to beware of.

    Attributes:
        request: What was asked.
        best: The method with the least predicted error.
        alternatives: The next ones, by their error.
        warnings: In plain words; empty if the prediction is better than sending nothing.
        advice: What would help, if there is a warning about the error.
        notes: What the prediction takes for granted.
    """

    request: PlanRequest
    best: Option
    alternatives: tuple[Option, ...]
    warnings: tuple[str, ...]
    advice: tuple[str, ...]
    notes: tuple[str, ...]


def plan(request: PlanRequest, *, alternatives: int = 5) -> Plan:
    """The method, with all its parameters, that should estimate the mean best.

    Every method that needs no more trust than there is, fits the bytes and has a proof for the
    unit is tried, each with its best parameters. Of methods whose errors are within 1% of each
    other the one that needs less trust, then the one with the smaller message, comes first.

    Guarantees: each option's epsilon, from its own claim, is at most the target, and predicted
    errors agree with simulations (`tests/plan`).

    Args:
        request: What is wanted.
        alternatives: How many others to list, at most.

    Raises:
        ArgumentError: No method can do it.

    >>> wanted = PlanRequest(
    ...     dim=1000, workers=500, rounds=1, target_epsilon=4.0, message_bytes=5000
    ... )
    >>> found = plan(wanted)
    >>> float(found.best.total) <= 4.0, found.best.error.total < 1
    (True, True)
    """
    check(alternatives >= 0, "alternatives", "be >= 0", alternatives)
    levels = NoiseLevels(request)
    options = [option for source in _SOURCES for option in source(request, levels)]
    options = [o for o in options if float(o.total) <= request.target_epsilon]
    if not options:
        raise ArgumentError(_nothing(request))
    options.sort(key=lambda option: option.error.total)
    best = _preferred(options)
    others = [option for option in options if option is not best]
    return Plan(
        request=request,
        best=best,
        alternatives=tuple(others[:alternatives]),
        warnings=warnings_on(best, request),
        advice=advice_on(best, request, levels),
        notes=notes_on(best, request),
    )


def _preferred(options: list[Option]) -> Option:
    close = [o for o in options if o.error.total <= TIE * options[0].error.total]
    return min(close, key=lambda o: (_TRUSTS.index(o.trust), o.message_bytes))


def _nothing(request: PlanRequest) -> str:
    what = f"epsilon {request.target_epsilon:g} over {request.rounds} rounds"
    if request.delta == 0:
        return f"no method gives {what} without a delta for the unit {request.unit}: allow a delta"
    return f"no method gives {what} at delta {request.delta:g} within {request.message_bytes} bytes"
