"""What was done to private data, as plain data for an accountant: dp-accounting's events.

A noise multiplier is the noise's scale over the sensitivity *for the relation of the claim*: if
replacing a client can move the result by 2C, it is scale / 2C. So the relation is used once, where
the sensitivity is computed, and every event is composed as it stands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from dp_accounting import dp_event

from diffsketch.errors import ArgumentError, check

__all__ = [
    "ApproximateDpEvent",
    "Event",
    "approximate",
    "check_event",
    "composed",
    "concentrated",
    "from_json",
    "gaussian",
    "is_sampled",
    "laplace",
    "leaves",
    "poisson_sampled",
    "pure_bound",
    "repeated",
    "to_json",
]

Event: TypeAlias = dp_event.DpEvent


@dataclass(frozen=True)
class ApproximateDpEvent(dp_event.DpEvent):  # type: ignore[misc]
    """Anything that satisfies (epsilon, delta)-differential privacy, and nothing more is known.

    dp-accounting has no such event, though it has the distribution that dominates it.
    """

    epsilon: float
    delta: float


def gaussian(noise_multiplier: float) -> Event:
    """Gaussian noise with a standard deviation of so many L2 sensitivities."""
    _check_positive("noise_multiplier", noise_multiplier)
    return dp_event.GaussianDpEvent(noise_multiplier)


def laplace(noise_multiplier: float) -> Event:
    """Laplace noise on one number, its scale so many times the sensitivity."""
    _check_positive("noise_multiplier", noise_multiplier)
    return dp_event.LaplaceDpEvent(noise_multiplier)


def concentrated(rho: float, xi: float = 0.0) -> Event:
    """A Rényi divergence of order `a` of at most `xi + rho * a`, for every `a` > 1."""
    _check_positive("rho", rho)
    check(0 <= xi < math.inf, "xi", "be >= 0 and finite", xi)
    return dp_event.ZCDpEvent(rho, xi)


def approximate(epsilon: float, delta: float = 0.0) -> Event:
    """(epsilon, delta)-differential privacy, from a theorem of its own."""
    check(0 <= epsilon < math.inf, "epsilon", "be >= 0 and finite", epsilon)
    check(0 <= delta < 1, "delta", "be in [0, 1)", delta)
    return ApproximateDpEvent(epsilon, delta)


def poisson_sampled(rate: float, event: Event) -> Event:
    """`event` on a sample in which each unit is with probability `rate`, independently.

    A failure (`approximate` with an epsilon of 0) beside the noise stays as likely as it is.
    """
    check(0 < rate <= 1, "rate", "be in (0, 1]", rate)
    parts = event.events if isinstance(event, dp_event.ComposedDpEvent) else [event]
    failures = [x for x in parts if isinstance(x, ApproximateDpEvent) and x.epsilon == 0]
    noises = [x for x in parts if x not in failures]
    kinds = (dp_event.GaussianDpEvent, dp_event.LaplaceDpEvent)
    if len(noises) != 1 or not isinstance(noises[0], kinds):
        raise ArgumentError(f"event must be Gaussian or Laplace noise to be sampled, got {event}")
    if rate == 1:
        return event
    return composed(dp_event.PoissonSampledDpEvent(rate, noises[0]), *failures)


def repeated(event: Event, count: int) -> Event:
    """`event`, `count` times over."""
    if isinstance(count, bool) or not isinstance(count, int):
        raise ArgumentError(f"count must be an int, got {type(count).__name__}")
    check(count >= 1, "count", "be >= 1", count)
    return event if count == 1 else dp_event.SelfComposedDpEvent(event, count)


def composed(*events: Event) -> Event:
    """All of the events."""
    return events[0] if len(events) == 1 else dp_event.ComposedDpEvent(list(events))


def leaves(event: Event, count: int = 1) -> Iterator[tuple[Event, int]]:
    """The events that an event is made of, each with the number of its repetitions."""
    if isinstance(event, dp_event.SelfComposedDpEvent):
        yield from leaves(event.event, count * event.count)
    elif isinstance(event, dp_event.ComposedDpEvent):
        for part in event.events:
            yield from leaves(part, count)
    elif not isinstance(event, dp_event.NoOpDpEvent):
        yield event, count


def check_event(event: Event) -> None:
    """Raise an `ArgumentError` unless it is an event that this module makes, or could make."""
    from_json(to_json(event))


def is_sampled(event: Event) -> bool:
    """Whether any part of it is on a sample, drawn anew and kept secret."""
    return any(isinstance(leaf, dp_event.PoissonSampledDpEvent) for leaf, _ in leaves(event))


def pure_bound(leaf: Event) -> float:
    """The largest privacy loss that is possible at all; infinite where there is none.

    Of `approximate` events, while they do not fail.
    """
    match leaf:
        case ApproximateDpEvent():
            return leaf.epsilon
        case dp_event.LaplaceDpEvent():
            return float(1 / leaf.noise_multiplier)
        case dp_event.PoissonSampledDpEvent():
            rate, inner = float(leaf.sampling_probability), pure_bound(leaf.event)
            if inner < 1:
                return math.log1p(rate * math.expm1(inner))
            return inner + math.log(rate + (1 - rate) * math.exp(-inner))
    return math.inf


def to_json(event: Event) -> dict[str, Any]:
    """The event as plain data; `from_json` is its inverse."""
    match event:
        case dp_event.GaussianDpEvent():
            return {"kind": "gaussian", "noise_multiplier": float(event.noise_multiplier)}
        case dp_event.LaplaceDpEvent():
            return {"kind": "laplace", "noise_multiplier": float(event.noise_multiplier)}
        case dp_event.ZCDpEvent():
            return {"kind": "concentrated", "rho": float(event.rho), "xi": float(event.xi)}
        case ApproximateDpEvent():
            return {"kind": "approximate", "epsilon": event.epsilon, "delta": event.delta}
        case dp_event.PoissonSampledDpEvent():
            inner = to_json(event.event)
            return {"kind": "poisson", "rate": float(event.sampling_probability), "event": inner}
        case dp_event.SelfComposedDpEvent():
            return {"kind": "repeated", "count": event.count, "event": to_json(event.event)}
        case dp_event.ComposedDpEvent():
            return {"kind": "composed", "events": [to_json(part) for part in event.events]}
    raise ArgumentError(f"event must be one that diffsketch makes, got {event}")


def from_json(data: Mapping[str, Any]) -> Event:
    """The event that `to_json` wrote; checked as if it were made anew.

    Raises:
        ArgumentError: It is not such data, to the last field.
    """
    try:
        fields = dict(data)
        kind = fields.pop("kind")
        event = _MAKERS[kind](**fields)
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise ArgumentError(f"data must describe an event, got {data!r} ({error!r})") from None
    return event


def _from_poisson(rate: object, event: Mapping[str, Any]) -> Event:
    return poisson_sampled(_number(rate), from_json(event))


def _from_repeated(count: int, event: Mapping[str, Any]) -> Event:
    return repeated(from_json(event), count)


def _from_composed(events: Sequence[Mapping[str, Any]]) -> Event:
    return composed(*(from_json(part) for part in events))


def _of_numbers(make: Callable[..., Event]) -> Callable[..., Event]:
    return lambda **fields: make(**{name: _number(value) for name, value in fields.items()})


_MAKERS: Mapping[str, Callable[..., Event]] = {
    "gaussian": _of_numbers(gaussian),
    "laplace": _of_numbers(laplace),
    "concentrated": _of_numbers(concentrated),
    "approximate": _of_numbers(approximate),
    "poisson": _from_poisson,
    "repeated": _from_repeated,
    "composed": _from_composed,
}


def _number(value: object) -> float:
    # A text or a truth value in the place of a number means that the data was tampered with.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def _check_positive(name: str, value: float) -> None:
    check(0 < value < math.inf, name, "be > 0 and finite", value)
