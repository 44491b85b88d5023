"""Events: the accountant's plain description of one release of private data.

A noise multiplier is the noise's scale over the sensitivity *for the relation of the claim*: if
replacing a client can move the result by 2C, it is scale / 2C. So the relation is used once, where
the sensitivity is computed, and every event is composed as it stands.

The functions `gaussian`, `laplace`, `approximate`, `poisson_sampled`, `repeated` and `composed`
make events; each class checks its numbers, so an event that exists is a valid one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from diffsketch.errors import ArgumentError, check, check_whole


@dataclass(frozen=True)
class GaussianEvent:
    """Gaussian noise with a standard deviation of so many L2 sensitivities."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        _check_finite("noise_multiplier", self, "be > 0 and finite", least=5e-324)


@dataclass(frozen=True)
class LaplaceEvent:
    """Laplace noise on one number, its scale so many times the sensitivity."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        _check_finite("noise_multiplier", self, "be > 0 and finite", least=5e-324)


@dataclass(frozen=True)
class ApproximateEvent:
    """Anything that satisfies (epsilon, delta)-differential privacy, by a theorem of its own."""

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        _check_finite("epsilon", self, "be >= 0 and finite", least=0.0)
        _check_finite("delta", self, "be in [0, 1)", least=0.0)
        check(self.delta < 1, "delta", "be in [0, 1)", self.delta)


@dataclass(frozen=True)
class PoissonEvent:
    """Noise on a secret sample in which each unit is with probability `rate`, independently."""

    rate: float
    event: GaussianEvent | LaplaceEvent

    def __post_init__(self) -> None:
        _check_finite("rate", self, "be in (0, 1]", least=5e-324)
        check(self.rate <= 1, "rate", "be in (0, 1]", self.rate)
        if not isinstance(self.event, GaussianEvent | LaplaceEvent):
            raise ArgumentError(
                f"event must be Gaussian or Laplace noise to be sampled, got {self.event}"
            )


@dataclass(frozen=True)
class RepeatedEvent:
    """An event, `count` times over."""

    count: int
    event: Event

    def __post_init__(self) -> None:
        check_whole("count", self.count, least=1)
        check_event(self.event)


@dataclass(frozen=True)
class ComposedEvent:
    """All of the events."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        for event in self.events:
            check_event(event)


Leaf: TypeAlias = GaussianEvent | LaplaceEvent | ApproximateEvent | PoissonEvent
Event: TypeAlias = Leaf | RepeatedEvent | ComposedEvent

gaussian, laplace, approximate = GaussianEvent, LaplaceEvent, ApproximateEvent


def poisson_sampled(rate: float, event: Event) -> Leaf:
    """`event` on a sample in which each unit is with probability `rate`, independently."""
    sampled = PoissonEvent(rate, event)  # type: ignore[arg-type] # it checks the kind
    return sampled.event if rate == 1 else sampled


def repeated(event: Event, count: int) -> Event:
    """`event`, `count` times over."""
    many = RepeatedEvent(count, event)
    return event if count == 1 else many


def composed(*events: Event) -> Event:
    """All of the events."""
    return events[0] if len(events) == 1 else ComposedEvent(events)


def leaves(event: Event, count: int = 1) -> Iterator[tuple[Leaf, int]]:
    """The events that an event is made of, each with the number of its repetitions."""
    match event:
        case RepeatedEvent():
            yield from leaves(event.event, count * event.count)
        case ComposedEvent():
            for part in event.events:
                yield from leaves(part, count)
        case _:
            yield event, count


def check_event(event: Event) -> None:
    """Raise an `ArgumentError` unless it is an event of this module."""
    if not isinstance(event, Event):
        raise ArgumentError(f"event must be one that diffsketch makes, got {event}")


def is_sampled(event: Event) -> bool:
    """Whether any part of it is on a sample, drawn anew and kept secret."""
    return any(isinstance(leaf, PoissonEvent) for leaf, _ in leaves(event))


def pure_bound(leaf: Event) -> float:
    """The largest privacy loss that is possible at all; infinite where there is none.

    Of `approximate` events, while they do not fail.
    """
    match leaf:
        case ApproximateEvent():
            return leaf.epsilon
        case LaplaceEvent():
            return 1 / leaf.noise_multiplier
        case PoissonEvent():
            rate, inner = leaf.rate, pure_bound(leaf.event)
            if inner < 1:
                return math.log1p(rate * math.expm1(inner))
            return inner + math.log(rate + (1 - rate) * math.exp(-inner))
    return math.inf


_KINDS: Mapping[str, type[Event]] = {
    "gaussian": GaussianEvent,
    "laplace": LaplaceEvent,
    "approximate": ApproximateEvent,
    "poisson": PoissonEvent,
    "repeated": RepeatedEvent,
    "composed": ComposedEvent,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def to_json(event: Event) -> dict[str, Any]:
    """The event as plain data; `from_json` is its inverse."""
    check_event(event)
    data: dict[str, Any] = {"kind": _NAMES[type(event)]}
    for field in fields(event):
        value = getattr(event, field.name)
        if isinstance(value, Event):
            value = to_json(value)
        elif isinstance(value, tuple):
            value = [to_json(part) for part in value]
        data[field.name] = value
    return data


def from_json(data: Mapping[str, Any]) -> Event:
    """The event that `to_json` wrote; checked as if it were made anew.

    Raises:
        ArgumentError: It is not such data, to the last field.
    """
    try:
        rest = dict(data)
        kind = _KINDS[rest.pop("kind")]
        if "event" in rest:
            rest["event"] = from_json(rest["event"])
        if "events" in rest:
            rest["events"] = tuple(from_json(part) for part in rest["events"])
        return kind(**rest)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ArgumentError(f"data must describe an event, got {data!r} ({error!r})") from None


def _check_finite(name: str, event: object, requirement: str, *, least: float) -> None:
    value = getattr(event, name)
    # A text or a truth value in the place of a number means that the data was tampered with.
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    check(plain and least <= value < math.inf, name, requirement, value)
    object.__setattr__(event, name, float(value))
