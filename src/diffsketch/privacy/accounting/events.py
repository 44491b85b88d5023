"""Events, the plain description of releases of private data, and the epsilon they compose to.

A noise multiplier is the noise's scale over the sensitivity *for the relation of the claim*: if
replacing a client can move the result by 2C, it is scale / 2C. So the relation is used once, where
the sensitivity is computed, and every event is composed as it stands. Each class checks its
numbers, so an event that exists is a valid one.

`epsilon_for` is the only place of privacy arithmetic over rounds. Gaussian noise alone composes in
closed form, below. All else is left to `losses`, which is loaded when it is needed. Whatever the
way, epsilon is never below what is known to hold.

A Gaussian mechanism whose result can move by `mu` standard deviations satisfies epsilon with
exactly `delta = Phi(-u) - exp(epsilon) Phi(-u - mu)`, `u = epsilon / mu - mu / 2` (Balle and
Wang, 2018). Taken literally that loses all digits when `mu` is very small or very large, so it is
written with Mills' ratio `m(x) = Phi(-x) / phi(x)`: `delta = phi(u) (m(u) - m(u + mu))`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from diffsketch.errors import ArgumentError, check, check_delta, check_whole

_ROOT_HALF_PI = math.sqrt(math.pi / 2)
_LOG_ROOT_TWO_PI = math.log(2 * math.pi) / 2
_SMALL_SHIFT = 2e-3  # below, the difference of two Mills' ratios is taken from derivatives
_NOTHING_BEYOND = 1e4  # standard deviations: a float cannot hold so small a probability
_ROUNDING = 1e-11  # relative, and more than the arithmetic here can lose
_MOST_KINDS = 100  # that are composed: each takes a distribution of its own
_MOST_RATIO = 4.0  # rather slow than so much worse
_ORDINARY = 1e100  # beyond it powers come near to overflow


@dataclass(frozen=True)
class _Noise:
    noise_multiplier: float

    def __post_init__(self) -> None:
        _check_finite("noise_multiplier", self, "be > 0 and finite", least=5e-324)


class GaussianEvent(_Noise):
    """Gaussian noise; its standard deviation is `noise_multiplier` L2 sensitivities."""


class LaplaceEvent(_Noise):
    """Laplace noise on one number; its scale is `noise_multiplier` sensitivities."""


@dataclass(frozen=True)
class ApproximateEvent:
    """Release that satisfies (epsilon, delta)-differential privacy by a theorem of its own."""

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
    """`event` on such a sample; a rate of 1 leaves it as it is."""
    # Made in any case, as it checks its arguments.
    sampled = PoissonEvent(rate, event)  # type: ignore[arg-type] # it checks the kind
    return sampled.event if rate == 1 else sampled


def repeated(event: Event, count: int) -> Event:
    """`event`, `count` times over."""
    repetition = RepeatedEvent(count, event)
    return event if count == 1 else repetition


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
    """The largest privacy loss that is possible at all (of `approximate`: while it holds)."""
    match leaf:
        case ApproximateEvent():
            return leaf.epsilon
        case LaplaceEvent():
            return 1 / leaf.noise_multiplier
        case PoissonEvent():
            rate, inner = leaf.rate, pure_bound(leaf.event)
            # Two forms of one formula: the first keeps digits of small losses, the second does not
            # overflow.
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


def to_json(event: Event) -> dict[str, Any]:
    """The event as plain data; `from_json` is its inverse."""
    check_event(event)
    data: dict[str, Any] = {
        "kind": next(name for name, kind in _KINDS.items() if kind is type(event))
    }
    for field in fields(event):
        value = getattr(event, field.name)
        if isinstance(value, Event):
            value = to_json(value)
        elif isinstance(value, tuple):
            value = [to_json(part) for part in value]
        data[field.name] = value
    return data


def from_json(data: Mapping[str, Any]) -> Event:
    """The event that `to_json` wrote, checked to the last field as if it were made anew."""
    try:
        arguments = dict(data)
        kind = _KINDS[arguments.pop("kind")]
        if "event" in arguments:
            arguments["event"] = from_json(arguments["event"])
        if "events" in arguments:
            arguments["events"] = tuple(from_json(part) for part in arguments["events"])
        return kind(**arguments)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ArgumentError(f"data must describe an event, got {data!r} ({error!r})") from None


def _check_finite(name: str, event: object, requirement: str, *, least: float) -> None:
    value = getattr(event, name)
    # A text or a truth value in the place of a number means that the data was tampered with.
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    check(plain and least <= value < math.inf, name, requirement, value)
    object.__setattr__(event, name, float(value))


def epsilon_for(event: Event, delta: float) -> float:
    """The least epsilon that is known to hold with `delta` for all that `event` comprises.

    An (epsilon, delta)-private mechanism is no worse than one that tells everything with
    probability delta, and else is epsilon-private. So it enters as a pure one, while the
    probability that none of them fails, whatever the others do, is a factor.
    """
    check_delta(delta)
    parts: Counter[Leaf] = Counter()  # all but the Gaussian ones
    shifts: list[float] = []
    stays, fails = 0.0, 0.0
    for leaf, count in leaves(event):
        if isinstance(leaf, GaussianEvent):
            shifts.append(math.sqrt(count) / leaf.noise_multiplier)
        elif isinstance(leaf, ApproximateEvent):
            # In logarithms, as a product of many numbers near 1; and their sum, which is never too
            # small.
            stays += count * math.log1p(-leaf.delta)
            fails += count * leaf.delta
            if leaf.epsilon > 0:  # else it tells nothing unless it fails
                parts[ApproximateEvent(leaf.epsilon)] += count
        else:
            parts[leaf] += count
    mu, failure = math.hypot(*shifts), min(fails, -math.expm1(stays))
    if failure > delta:
        return math.inf
    # What is left of delta, given that none of the approximate ones has failed.
    delta = (delta - failure) / (1 - failure)
    largest = math.inf
    # Without Gaussian noise the losses are bounded, and their sum holds with a delta of 0.
    if mu == 0:
        largest = math.fsum(count * pure_bound(leaf) for leaf, count in parts.items())
    if delta == 0 or math.isinf(mu):
        return largest
    if not parts:
        return gaussian_epsilon(mu, delta)
    from diffsketch.privacy.accounting import losses  # not before: dp-accounting loads slowly

    if mu > 0:
        parts[GaussianEvent(1 / mu)] += 1
    return min(largest, losses.epsilon_for(few_kinds(parts), delta))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The least epsilon that holds with `delta`, rounded up by less than `1e-10` of `1 + mu`."""
    if mu == 0:
        return 0.0
    if delta == 0 or math.isinf(mu * mu):
        return math.inf
    from scipy.optimize import brentq
    from scipy.special import ndtri

    # Between epsilon = 0 and the point where the first term alone is delta.
    least, most = -mu / 2, -float(ndtri(delta))
    target = math.log(delta)
    if _log_delta(least, mu) <= target - _ROUNDING:
        return 0.0
    if _log_delta(most, mu) >= target:  # the second term is lost in rounding, or nearly
        u = most
    else:
        u = float(brentq(lambda u: _log_delta(u, mu) - target, least, most, xtol=1e-14))
    # Rounded up by more than the root and the arithmetic can be off.
    return max(0.0, mu * (u + _ROUNDING * (1 + abs(u)) + mu / 2))


def _log_delta(u: float, mu: float) -> float:
    from scipy.special import erfcx, log_ndtr

    def mills(x: float) -> float:
        return _ROOT_HALF_PI * float(erfcx(x / math.sqrt(2)))

    if u > _NOTHING_BEYOND:
        return -math.inf
    if u < -5:
        # Mills' ratio overflows here, while nothing cancels.
        second = math.exp(-u * u / 2 - _LOG_ROOT_TWO_PI - float(log_ndtr(-u))) * mills(u + mu)
        return float(log_ndtr(-u)) + math.log1p(-second)
    if mu < _SMALL_SHIFT:
        # Taylor series around the middle, with `m' = x m - 1`: the two ratios agree in most digits
        # here.
        middle = u + mu / 2
        first = middle * mills(middle) - 1
        third = 2 * first + middle * (mills(middle) + middle * first)
        difference = -mu * (first + mu * mu / 24 * third)
    else:
        difference = mills(u) - mills(u + mu)
    if difference <= 0:
        return -math.inf
    return -u * u / 2 - _LOG_ROOT_TWO_PI + math.log(difference)


def few_kinds(parts: Mapping[Leaf, int]) -> Counter[Leaf]:
    """The same events, those that are nearly alike made equal to a slightly less private one.

    Thousands of rounds, each with its own noise, then take no longer than a hundred kinds.
    """
    ratio, merged = 1.0, Counter(parts)
    while len(merged) > _MOST_KINDS and ratio < _MOST_RATIO:
        # Coarser and coarser grids, until few enough kinds are left.
        ratio = 1 + 1e-3 if ratio == 1 else ratio**1.5
        merged = Counter()
        for leaf, count in parts.items():
            merged[no_better(leaf, ratio)] += count
    return merged


def no_better(leaf: Leaf, ratio: float) -> Leaf:
    """The next event on a grid of this ratio: less noise, a higher rate or a larger bound."""
    match leaf:
        case GaussianEvent() | LaplaceEvent():
            return type(leaf)(_rounded(leaf.noise_multiplier, ratio, up=False))
        case PoissonEvent():
            rate = min(1.0, _rounded(leaf.rate, ratio, up=True))
            noise = _rounded(leaf.event.noise_multiplier, ratio, up=False)
            return poisson_sampled(rate, type(leaf.event)(noise))
    return ApproximateEvent(_rounded(leaf.epsilon, ratio, up=True), leaf.delta)


def _rounded(value: float, ratio: float, *, up: bool) -> float:
    """The next power of the ratio, or the value itself where powers come near to overflow."""
    if not 1 / _ORDINARY < value < _ORDINARY:
        return value
    exponent = math.log(value) / math.log(ratio)
    if up:
        return max(ratio ** math.ceil(exponent), value)
    return min(ratio ** math.floor(exponent), value)
