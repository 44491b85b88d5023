"""What to tell the user about an option, in plain words."""

from __future__ import annotations

import math

from diffsketch.plan.candidates_integer import MAX_SHARED_GAUSSIAN, PEAK, message_room
from diffsketch.plan.error_model import collision_error
from diffsketch.plan.levels import NoiseLevels
from diffsketch.plan.options import Option
from diffsketch.plan.request import HEADER_BYTES, PlanRequest
from diffsketch.privacy.accounting.composition import epsilon_for
from diffsketch.privacy.accounting.events import gaussian, repeated
from diffsketch.privacy.claim import Trust, Unit
from diffsketch.privacy.mechanisms.integer import IntegerMechanism

__all__ = [
    "advice_on",
    "bytes_needed",
    "least_recovery",
    "notes_on",
    "warnings_on",
    "workers_needed",
]


def least_recovery(option: Option, request: PlanRequest) -> float:
    """What the sketch would lose if it took the whole budget: 0 if the vector itself fits.

    An option may be smaller than the budget where noise is larger by far.
    """
    if option.sketch is None:
        return option.error.recovery
    cells = request.payload_bytes * 8 // option.bits
    if cells >= request.dim:
        return 0.0
    now = collision_error(request.dim, option.sketch.rows, option.sketch.cols)
    return option.error.recovery * min(1.0, collision_error(request.dim, 1, cells) / now)


def workers_needed(option: Option, request: PlanRequest, *, error: float = 1.0) -> int | None:
    """How many workers would bring the predicted error down to `error`; None if none would.

    What the sketch loses stays; noise falls with the workers, or with their square if it is added
    once. The bits are taken to stay as they are: a secure sum of more workers may need another.
    """
    recovery = least_recovery(option, request)
    if recovery >= error:
        return None

    def predicted(workers: float) -> float:
        factor = workers / request.workers
        units = request.units * factor
        energy = (1 + request.spread / units) / (1 + request.spread)
        noise = option.error.noise / factor**option.scaling + option.error.rounding / factor
        return recovery + noise * request.mean_energy / energy

    low, high = 0.0, math.log(request.workers)
    while predicted(math.exp(high)) > error:
        low, high = high, high + 1
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (low, middle) if predicted(math.exp(middle)) <= error else (middle, high)
    return max(1, math.ceil(math.exp(high) * (1 - 1e-9)))


def bytes_needed(option: Option, request: PlanRequest, *, error: float = 1.0) -> int:
    """The bytes of a message with so many cells that the sketch's own error is at most `error`.

    Cells keep their bits. With as many cells as coordinates, nothing collides.
    """
    few, many = 1, request.dim
    while many - few > 1:
        middle = (few + many) // 2
        good = collision_error(request.dim, 1, middle) <= error
        few, many = (few, middle) if good else (middle, many)
    return HEADER_BYTES + -(-many * option.bits // 8)


def warnings_on(option: Option, request: PlanRequest) -> tuple[str, ...]:
    """What the user must know before relying on it; empty if all is well."""
    found = []
    error = option.error
    if error.total > 1:
        parts = [f"{_brief(error.noise + error.rounding)} from the noise"]
        if option.sketch is not None:
            cells = option.sketch.rows * option.sketch.cols
            text = f"{_brief(error.recovery)} from {request.dim:,} coordinates in {cells:,} cells"
            parts.insert(0, text)
        found.append(
            f"Worse than sending nothing: in one round the predicted error is "
            f"{_brief(error.total)} times the squared norm of the mean ({', '.join(parts)}); "
            "an estimate of zero has 1."
        )
    if request.unit is Unit.COORDINATE:
        found.append(
            "Only one coordinate of a worker's vector is protected, not what a worker holds: data "
            "that changes many coordinates can still be told apart."
        )
    return tuple(found)


def advice_on(option: Option, request: PlanRequest, levels: NoiseLevels) -> tuple[str, ...]:
    """What would bring the error down to 1; empty if it is there."""
    error, found = option.error, list[str]()
    if error.total <= 1:
        return ()
    noise, recovery, goal = error.noise + error.rounding, least_recovery(option, request), 1.0
    if recovery >= 1:
        count = bytes_needed(option, request, error=0.5)
        found.append(
            "No number of workers makes up for the sketch: allow some "
            f"{_brief(count)} bytes per message."
        )
        goal = recovery + 0.5
    if recovery + noise > goal:
        count = workers_needed(option, request, error=goal) or 0
        also = " as well, against the noise" if recovery >= 1 else ""
        found.append(f"More workers{also}: {_brief(count)} instead of {request.workers:,}.")
        larger = _epsilon_needed(noise / (goal - recovery), request, levels)
        if larger is not None:
            found.append(
                f"A larger epsilon: about {_brief(larger)} instead of {request.target_epsilon:g}, "
                "or fewer rounds."
            )
        if request.trust is Trust.LOCAL and request.unit is not Unit.COORDINATE and request.delta:
            found.append(
                "Distributed trust: if a secure sum hides single messages, noise is needed once "
                f"and not in each of them; its part falls by a factor of up to {request.workers:,}."
            )
    over = f"{request.rounds:,} rounds" if request.rounds > 1 else "several rounds"
    found.append(
        "Averages over rounds: hashes and noise are fresh in each, so for a mean that stays the "
        f"same the error over {over} is that of one divided by their number"
        + (f", {_brief(error.total / request.rounds)}." if request.rounds > 1 else ".")
    )
    return tuple(found)


def notes_on(option: Option, request: PlanRequest) -> tuple[str, ...]:
    """What the prediction takes for granted."""
    found = [
        f"Predicted for dense vectors of norm {request.vector_norm:g}, not longer (they would be "
        "clipped) nor shorter (the noise would be larger beside them)."
    ]
    if isinstance(option.mechanism, IntegerMechanism):
        cols = request.dim if option.sketch is None else option.sketch.cols
        end = "larger ones wrap around"
        limit, what = PEAK * request.vector_norm / math.sqrt(cols), "a vector or table"
        if option.trust is Trust.DISTRIBUTED:
            limit, what = limit * math.sqrt(request.mean_energy), "the mean"
        elif option.trust is Trust.CENTRAL:
            limit, what = message_room(request, cols), "a message"
            end = "larger ones are cut off"
        found.append(
            f"There is room for cells of {what} up to {_brief(limit)}, {PEAK:g} times the usual; "
            f"{end}. Vectors with a few large coordinates need more bits."
        )
    else:
        found.append(
            "Noise in floating point is for simulation: rounding can betray what it hides."
        )
    secure = request.trust is not Trust.LOCAL and request.unit is not Unit.COORDINATE
    if secure and request.delta and request.workers > MAX_SHARED_GAUSSIAN:
        found.append(
            "Discrete Gaussian noise shared in a secure sum was not tried: with more than "
            f"{MAX_SHARED_GAUSSIAN:,} workers its bound takes long to compute."
        )
    return tuple(found)


def _epsilon_needed(factor: float, request: PlanRequest, levels: NoiseLevels) -> float | None:
    """Epsilon if the noise's variance is smaller by `factor`, by the law of Gaussian noise."""
    if levels.gaussian is None:
        return None
    event = repeated(gaussian(levels.gaussian / math.sqrt(factor)), request.rounds)
    return epsilon_for(event, request.delta)


def _brief(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= value < 10**9 else f"{value:.3g}"
