"""Cases of what methods release, by the code that engines release with.

`Release` plays a round of any method: members encode, messages are summed as the method's trust
says, the server publishes, and the adversary of that trust sees a single message, the modular sum,
or what is published. Noise comes from `diffsketch.methods.release`, so from the operating system,
and no seed repeats it. Methods that engines refuse to send are played with simulated noise, and
their cases say so.

Neighbours differ by all that a claim allows, and are beyond the clip, so that clipping is audited
too: one coordinate far above or below it, or a client's vector against its opposite (against
nothing, for add-or-remove). Scores are the likelihood ratios of the noise; that of binomial and
Skellam noise is taken to be Gaussian's, which it nearly is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from diffsketch.auditing.adversaries import Game, Neighbours
from diffsketch.auditing.attacks import (
    Attack,
    Discriminant,
    LaplaceRatio,
    Noiseless,
    Quadratic,
    Weighted,
)
from diffsketch.auditing.cases import DELTAS, PURE_DELTA, TRIALS, Case, known_numbers
from diffsketch.methods.base import Method, build_method, parse_settings
from diffsketch.methods.other_papers import CpSgd, ProjUnitMean
from diffsketch.methods.paper import LaplaceBaseline, ProvenDiffSketch
from diffsketch.methods.release import release_noise
from diffsketch.privacy.accounting.sampler import PoissonSampler
from diffsketch.privacy.claim import Claim, ProvenClaim, Relation, Trust, Unit
from diffsketch.privacy.mechanisms.padding import gram
from diffsketch.privacy.mechanisms.rounding import centre
from diffsketch.privacy.noise import FastNoise, Noise, NoiseKey
from diffsketch.privacy.theorems import estimate_alpha
from diffsketch.sketch import HashSeed, SketchKey

__all__ = [
    "RELEASES", "Release", "Silent", "binomial_limit", "likelihood_ratio", "own_release",
]  # fmt: skip

KEY = SketchKey.from_integer(0)  # the hashes are public, and some claims depend on them
BEYOND = 3.0  # inputs, over the clip
_MOST_FITTED = 200  # numbers that a trial shows, for attacks that fit covariances

_Source = Callable[[int], Noise]  # from a number of messages to their noise


class Silent(FastNoise):
    """Noise of size 0: what a method would send without, rounded to the nearest."""

    def __init__(self) -> None:
        super().__init__(0)

    def normal(self, shape: tuple[int, ...], std: float, *, dtype: torch.dtype) -> Tensor:
        """Zeros."""
        return super().normal(shape, 0 * std, dtype=dtype)

    def laplace(self, shape: tuple[int, ...], scale: float, *, dtype: torch.dtype) -> Tensor:
        """Zeros."""
        return super().laplace(shape, 0 * scale, dtype=dtype)

    def bernoulli(self, probabilities: Tensor) -> Tensor:
        """The more probable of the two."""
        return (probabilities >= 0.5).to(torch.int64)

    def discrete_gaussian(self, shape: tuple[int, ...], std: float) -> Tensor:
        """Zeros."""
        return super().discrete_gaussian(shape, 0 * std)

    def discrete_laplace(self, shape: tuple[int, ...], scale: float) -> Tensor:
        """Zeros."""
        return super().discrete_laplace(shape, 0 * scale)

    def skellam(self, shape: tuple[int, ...], variance: float) -> Tensor:
        """Zeros."""
        return super().skellam(shape, 0 * variance)

    def binomial(self, shape: tuple[int, ...], trials: int, probability: float) -> Tensor:
        """The mean."""
        return torch.full(shape, round(trials * probability), dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class Release:
    """Rounds of one method, as an engine plays them.

    Attributes:
        name: Of the case.
        method: That the claim is of.
        members: Who contribute; 1 where the adversary sees single messages.
        rate: With which each member is drawn for a round, if that is claimed.
        rounds: How many the adversary sees.
        trials: Of each world.
        sent: The method that is played; another one than `method` only if an error is planted.
        is_drawn: Whether members are drawn by `rate`, or all take part.
        is_reused: Whether each round has the same noise.
        planted: The error, in words.
    """

    name: str
    method: Method
    members: int = 1
    rate: float | None = None
    rounds: int = 1
    trials: int = TRIALS
    sent: Method | None = None
    is_drawn: bool = True
    is_reused: bool = False
    planted: str | None = None

    @classmethod
    def of(cls, name: str, method: Method, *, cohort: int, rate: float | None = None) -> Release:
        """One round of a cohort; of one member where everybody sees its message."""
        local = method.claim_for(cohort, KEY.seed(0)).scope.trust is Trust.LOCAL
        return cls(name, method, 1 if local else cohort, rate)

    @cached_property
    def claim(self) -> Claim:
        """Claim for one round."""
        claim = self.method.claim_for(self.members, KEY.seed(0))
        if self._sampler is None or not isinstance(claim, ProvenClaim):
            return claim
        return self._sampler.amplified(claim)

    @property
    def simulated(self) -> bool:
        """Whether noise comes from a seed: for methods that engines refuse, and for reuse."""
        refused = isinstance(self.claim, ProvenClaim) and not self.method.exact
        return self.is_reused or refused

    def case(self) -> Case:
        """The release as something to audit."""
        neighbours, method, numbers = self.neighbours, self.method, math.prod(self._shape)
        attacks: list[Attack] = [likelihood_ratio(method, neighbours, self.noiseless(neighbours))]
        if numbers * self.rounds <= _MOST_FITTED:
            attacks += [Discriminant()] if self.rounds == 1 else [Discriminant(), Quadratic()]
        deltas: tuple[float, ...] = (
            DELTAS if self.rate is None else DELTAS[-3:]
        )  # composing samples takes long
        if isinstance(method, LaplaceBaseline | ProjUnitMean):
            deltas = (PURE_DELTA,)
        numbers *= self.rounds * self.members
        return Case(
            self.name, f"{method.name}, {self._words}", self.claim,
            Game(self.play, neighbours), tuple(attacks),
            rounds=self.rounds, deltas=deltas, trials=self.trials,
            planted=self.planted, simulated=self.simulated,
            width=max(numbers, neighbours.first.numel()) + getattr(method, "padding", 0),
            cost=10 + numbers / 5,
            limit=self._limit,
        )  # fmt: skip

    @cached_property
    def neighbours(self) -> Neighbours:
        """Both worlds' vectors, `(rounds, members, dim)` each; the first member's differ.

        Over rounds they change sign, so that messages with the same noise differ.
        """
        method, scope = self.method, self.claim.scope
        clip = getattr(method, "clip", None)
        size = BEYOND * clip if isinstance(clip, float | int) else 1.0
        if scope.unit is Unit.COORDINATE:
            one, two = known_numbers(method.dim), known_numbers(method.dim)
            place = _least_hidden(method)
            one[place], two[place] = size, -size if scope.relation is Relation.REPLACE else 0.0
        else:
            one = size * torch.eye(2, method.dim)[0]
            two = -one if scope.relation is Relation.REPLACE else torch.zeros_like(one)
            if method.round_clip is not None:  # just within the clip, so that the flag differs too
                two = two * (0.999 / BEYOND)
            if isinstance(method, ProjUnitMean) and self.rounds > 1:
                two = size * torch.eye(2, method.dim)[1]  # else reuse would tell nothing more
        others = known_numbers(self.members, method.dim)
        others[:, 0] = 0  # whether the others are drawn must not hide it
        worlds = []
        for own, opposite in ((one, two), (two, one)):
            rounds = others.repeat(self.rounds, 1, 1)
            flipped = opposite if scope.unit is Unit.COORDINATE else -own
            for index in range(self.rounds):
                rounds[index, 0] = flipped if index % 2 else own
            worlds.append(rounds)
        return Neighbours(worlds[0], worlds[1])

    def play(self, inputs: Tensor, noise: NoiseKey, hashes: SketchKey) -> Tensor:  # noqa: ARG002
        """All that the adversary sees: `(trials, rounds, ...)`."""
        claim = self.method.claim_for(self.members, KEY.seed(0))
        rounds = []
        for index in range(self.rounds):
            counter = iter(range(1 << 62))
            which = 0 if self.is_reused else index

            def source(
                messages: int, counter: Iterator[int] = counter, which: int = which
            ) -> Noise:
                if self.simulated:
                    return noise.source(worker=next(counter), round_index=which)
                return release_noise(self.method, claim, messages=messages)

            rounds.append(self._round(inputs[:, index], KEY.seed(index), source))
        return torch.stack(rounds, dim=1)

    def noiseless(self, neighbours: Neighbours) -> Noiseless:
        """Views of both worlds without noise, and with everybody drawn."""
        quiet = replace(self, is_drawn=False)
        one, two = (
            torch.stack([
                quiet._round(world[None, index], KEY.seed(index), lambda _: Silent())
                for index in range(self.rounds)
            ]).double().flatten().numpy()
            for world in (neighbours.first, neighbours.second)
        )  # fmt: skip
        return np.asarray(one), np.asarray(two)

    def _round(self, vectors: Tensor, seed: HashSeed, source: _Source) -> Tensor:
        """View of `(trials, members, dim)` vectors that the adversary gets."""
        method, trust = self.sent or self.method, self.claim.scope.trust
        trials, members, dim = vectors.shape
        noise = source(trials * members)
        messages = method.encode(vectors.reshape(-1, dim), seed, noise).messages
        messages = messages.reshape(trials, members, *self._shape)
        if trust is Trust.LOCAL:
            return messages[:, 0]
        if self._sampler is not None and self.is_drawn:
            lottery, present = source(1), torch.zeros(trials, members, dtype=torch.int64)
            for trial in present:
                trial[self._sampler.draw(lottery)] = 1
            messages = messages * present.reshape(trials, members, *[1] * len(self._shape))
        totals = messages.sum(dim=1)
        seen = method.publish(totals, source(trials))
        if trust is Trust.CENTRAL:
            return seen
        # Modulo 2**bits there is no order, so the adversary looks at the distance from a point.
        bits = method.total_format.bits
        quiet = method.encode(self.neighbours.second[0], seed, Silent()).messages.sum(dim=0)
        return centre(seen - quiet, bits)

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.method.total_format.shape

    @property
    def _sampler(self) -> PoissonSampler | None:
        return None if self.rate is None else PoissonSampler(self.members, self.rate)

    @property
    def _words(self) -> str:
        words = f"{' x '.join(map(str, self._shape))} cells"
        if self.members > 1:
            words += f", sum of {self.members}"
        if self.rate is not None:
            words += f" drawn with probability {self.rate:g}"
        if self.rounds > 1:
            words += f", {self.rounds} rounds"
        return words + (", simulated noise" if self.simulated else "")

    @property
    def _limit(self) -> Callable[[SketchKey, float], float] | None:
        method = self.method
        if not isinstance(method, CpSgd) or method.rotate:
            return None
        return lambda _, delta: binomial_limit(method, delta, rounds=self.rounds)


# Every method with a proven claim, at each of its trusts. Shifts are of one standard deviation, or
# pure epsilons of 2.
_CLIENT = {"clip": 1.0, "noise_multiplier": 1.0}
_TABLE = {"rows": 2, "cols": 4}
_SETTINGS: tuple[tuple[str, dict[str, object]], ...] = (
    ("gaussian", {**_CLIENT, "trust": "local"}),
    ("gaussian", {**_CLIENT, "trust": "distributed", "relation": "add-or-remove"}),
    ("gaussian", {**_CLIENT, "trust": "central"}),
    ("sketch-gaussian", {**_TABLE, **_CLIENT, "trust": "local"}),
    ("sketch-gaussian", {**_TABLE, **_CLIENT, "trust": "distributed"}),
    ("sketch-gaussian", {**_TABLE, **_CLIENT, "trust": "central", "relation": "add-or-remove"}),
    ("skellam", {**_CLIENT, "trust": "local", "relation": "add-or-remove"}),
    ("skellam", {**_CLIENT, "trust": "distributed"}),
    ("skellam", {**_CLIENT, "trust": "central"}),
    ("sketch-skellam", {**_TABLE, **_CLIENT, "trust": "local"}),
    ("sketch-skellam", {**_TABLE, **_CLIENT, "trust": "distributed", "relation": "add-or-remove"}),
    ("sketch-skellam", {**_TABLE, **_CLIENT, "trust": "central"}),
    ("cpsgd", {"clip": 0.625, "limit": 2.0, "levels": 65, "trials": 500}),
    ("laplace", {"clip": 1.0, "per_round": 2.0}),
    ("sketch-laplace", {**_TABLE, "clip": 1.0, "per_round": 2.0}),
    ("diffsketch-proven", {**_TABLE, "clip": 1.0, "padding": 32, "std": 1.0}),
    ("projunit", {"size": 6, "clip": 1.0, "per_round": 2.0}),
)
_DIM, _COHORT = 8, 3


def _standard() -> dict[str, Callable[[], Release]]:
    def made(name: str, kind: str, settings: dict[str, object], rate: float | None) -> Release:
        method = build_method(kind, dim=_DIM, cohort=_COHORT, settings=settings)
        release = Release.of(name, method, cohort=_COHORT, rate=rate)
        # Pure epsilons show in rarer events.
        return replace(release, trials=2 * TRIALS) if "per_round" in settings else release

    found: dict[str, Callable[[], Release]] = {}
    for kind, settings in _SETTINGS:
        name = f"{kind}-{settings['trust']}" if "trust" in settings else kind
        found[name] = partial(made, name, kind, settings, None)
    drawn = {**_CLIENT, "noise_multiplier": 0.5, "trust": "central", "relation": "add-or-remove"}
    found["gaussian-sampled"] = partial(made, "gaussian-sampled", "gaussian", drawn, 0.7)
    return found


RELEASES: Mapping[str, Callable[[], Release]] = _standard()
"""Releases to audit, by the names of their cases."""


def own_release(name: str, settings: str, *, dim: int, cohort: int) -> Release:
    """A round of a user's own choice.

    Args:
        name: Of the method.
        settings: As `parse_settings` takes them.
        dim: Length of the vectors.
        cohort: Members of a round.

    Raises:
        ArgumentError: There is no such method or setting, or one is refused.
    """
    given = parse_settings(settings)
    method = build_method(name, dim=dim, cohort=cohort, settings=given)
    return Release.of(name, method, cohort=cohort)


def likelihood_ratio(method: Method, neighbours: Neighbours, noiseless: Noiseless) -> Attack:
    """The score for a method's noise on messages that are these without it."""
    one, two = noiseless
    if isinstance(method, LaplaceBaseline):
        if method.mechanism is not None:
            return LaplaceRatio(noiseless, method.mechanism.scale)
        rows = method.rows if hasattr(method, "rows") else 1
        alpha = float(estimate_alpha(neighbours.first.reshape(-1, method.dim)[0]))
        return LaplaceRatio(noiseless, 2 * alpha * rows / method.per_round)
    if isinstance(method, ProvenDiffSketch):
        cells = method.rows * method.cols
        parts = [(one - two)[start : start + cells] for start in range(0, len(one), cells)]
        solved = [
            np.linalg.solve(gram(method.sketch, KEY.seed(i), method.dim, method.sketch.dim), part)
            for i, part in enumerate(parts)
        ]
        return Weighted(np.concatenate(solved))
    return Weighted(one - two)


def binomial_limit(method: CpSgd, delta: float, *, rounds: int) -> float:
    """The epsilon of cpSGD for one coordinate that moves by all that it can: exact.

    Two binomial distributions, one moved by whole steps, `rounds` times over. The method's own
    theorem is far above it, so that an audit by the theorem alone would miss much.
    """
    mechanism = method.mechanism(KEY.seed(0))
    draws, doubled = mechanism.cohort * mechanism.trials, method.relation is Relation.REPLACE
    shift = math.ceil(min(mechanism.clip, mechanism.limit) / mechanism.step * (1 + doubled) - 1e-6)
    half, far = draws // 2, 4 * math.isqrt(draws)  # eight standard deviations
    reach = np.arange(max(0, half - far), min(draws, half + far) + shift + 1)
    law = stats.binom(draws, mechanism.probability)
    one, two = law.pmf(reach), law.pmf(reach - shift)
    first, second = one, two
    for _ in range(rounds - 1):
        first, second = np.outer(first, one).ravel(), np.outer(second, two).ravel()
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        excess = float(np.maximum(first - math.exp(middle) * second, 0).sum())
        low, high = (middle, high) if excess > delta else (low, middle)
    return high


def _least_hidden(method: Method) -> int:
    """The coordinate that appended noise hides least; for other noise any."""
    if not isinstance(method, ProvenDiffSketch):
        return 3 % method.dim
    seed, sketch = KEY.seed(0), method.sketch
    noise = np.linalg.inv(gram(sketch, seed, method.dim, sketch.dim))
    units = torch.eye(method.dim)
    columns = sketch.encode(units, seed, offset=0).double().flatten(1).numpy()
    return int(((columns @ noise) * columns).sum(axis=1).argmax())
