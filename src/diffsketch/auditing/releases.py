"""Releases of methods, by the code that engines release with, and errors planted in them.

Clients encode, messages are summed as the method's trust says, the server publishes, and the
adversary of that trust sees a single message, the modular sum, or what is published. Noise comes
from `diffsketch.methods.gate`, so from the operating system, and no seed repeats it. Methods
that engines refuse to send are played with simulated noise, and their cases say so.

Neighbours differ by all that a claim allows, and are beyond the clip, so that clipping is audited
too: one coordinate far above or below it, or a client's vector against its opposite (against
nothing, for add-or-remove). Scores are the likelihood ratios of the noise; that of binomial and
Skellam noise is taken to be Gaussian's, which it nearly is.

Planted errors are those that a programmer could make: the claim stays that of the correct method,
and an audit must find them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from diffsketch.auditing.attacks import (
    DISCRIMINANT,
    QUADRATIC,
    Attack,
    Numbers,
    laplace_ratio,
    weighted,
)
from diffsketch.auditing.audits import DELTAS, PURE_DELTA, TRIALS, Case, Game, Neighbours
from diffsketch.methods import (
    CpSgd,
    Method,
    RawLaplace,
    SketchLaplace,
    build_method,
    parse_settings,
)
from diffsketch.methods.gate import release_noise
from diffsketch.privacy.accounting.calibration import PoissonSampler
from diffsketch.privacy.claim import Claim, ProvenClaim, Relation, Trust, Unit
from diffsketch.privacy.clipping import centre
from diffsketch.privacy.simulated_noise import FastNoise, Noise, NoiseKey
from diffsketch.privacy.theorems import estimate_alpha
from diffsketch.sketch import HashSeed, SketchKey

KEY = SketchKey.from_integer(0)  # the hashes are public, and some claims depend on them
BEYOND = 3.0  # inputs, over the clip
_MOST_FITTED = 200  # numbers that a trial shows, for attacks that fit covariances
_FEWER = 5000  # trials of each world, for what is plain to see


def known_numbers(*shape: int) -> Tensor:
    """Make fixed numbers that an adversary knows: standard normal, none of them zero."""
    return FastNoise(1).normal(shape, 1.0, dtype=torch.float32)


class Silent(FastNoise):
    """Noise-free stub: what a method would send without noise, rounded to the nearest."""

    def __init__(self) -> None:
        super().__init__(0)

    def _zeros(self, shape: Any, _: float, *, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    normal = laplace = _zeros  # type: ignore[assignment]
    discrete_gaussian = discrete_laplace = skellam = _zeros  # type: ignore[assignment]

    def bernoulli(self, probabilities: Tensor) -> Tensor:
        """Return the more probable of the two."""
        return (probabilities >= 0.5).to(torch.int64)

    def binomial(self, shape: tuple[int, ...], trials: int, probability: float) -> Tensor:
        """Return the mean."""
        return torch.full(shape, round(trials * probability), dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class Release:
    """Rounds of one method, as an engine plays them.

    Attributes:
        name: Name of the case.
        method: Method that the claim is of.
        cohort_size: Number of clients; 1 where the adversary sees single messages.
        rate: Probability with which each client is drawn for a round, if that is claimed.
        rounds: How many rounds the adversary sees.
        trials: Trials of each world.
        sent: The method that is played; another one than `method` only if an error is planted.
        is_drawn: Whether clients are drawn by `rate`, or all take part.
        is_reused: Whether each round has the same noise.
        planted: Description of the error.
    """

    name: str
    method: Method
    cohort_size: int = 1
    rate: float | None = None
    rounds: int = 1
    trials: int = TRIALS
    sent: Method | None = None
    is_drawn: bool = True
    is_reused: bool = False
    planted: str | None = None

    @classmethod
    def of(cls, name: str, method: Method, *, cohort: int, rate: float | None = None) -> Release:
        """Make one round of a cohort; of one client where everybody sees its message."""
        local = method.claim_for(cohort, KEY.seed(0)).scope.trust is Trust.LOCAL
        return cls(name, method, 1 if local else cohort, rate)

    @cached_property
    def claim(self) -> Claim:
        """Claim for one round."""
        claim = self.method.claim_for(self.cohort_size, KEY.seed(0))
        if self._sampler is None or not isinstance(claim, ProvenClaim):
            return claim
        return self._sampler.amplified(claim)

    @property
    def simulated(self) -> bool:
        """Whether noise comes from a seed: for methods that engines refuse, and for reuse."""
        refused = isinstance(self.claim, ProvenClaim) and not self.method.exact
        return self.is_reused or refused

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.method.total_format.shape

    @property
    def _sampler(self) -> PoissonSampler | None:
        return None if self.rate is None else PoissonSampler(self.cohort_size, self.rate)

    def case(self) -> Case:
        """Make a case of the release."""
        method, numbers = self.method, math.prod(self._shape)
        attacks = [self._attack(self.noiseless(self.neighbours))]
        if numbers * self.rounds <= _MOST_FITTED:
            attacks += [DISCRIMINANT] if self.rounds == 1 else [DISCRIMINANT, QUADRATIC]
        deltas = DELTAS if self.rate is None else DELTAS[-3:]  # composing samples takes long
        if isinstance(method, RawLaplace | SketchLaplace):
            deltas = (PURE_DELTA,)
        title = f"{method.name}, {' x '.join(map(str, self._shape))} cells"
        title += f", sum of {self.cohort_size}" if self.cohort_size > 1 else ""
        title += f" drawn with probability {self.rate:g}" if self.rate is not None else ""
        title += f", {self.rounds} rounds" if self.rounds > 1 else ""
        title += ", simulated noise" if self.simulated else ""
        limit = None
        if type(method) is CpSgd:
            limit = partial(_binomial_limit, method, self.rounds)
        width = max(numbers * self.rounds * self.cohort_size, self.neighbours.first.numel())
        width += getattr(method, "padding", 0)
        return Case(
            self.name, title, self.claim, Game(self.play, self.neighbours), tuple(attacks),
            rounds=self.rounds, deltas=deltas, trials=self.trials, planted=self.planted,
            simulated=self.simulated, width=width, limit=limit,
        )  # fmt: skip

    @property
    def _place(self) -> int:
        """Coordinate that differs: any, for noise that hides all alike."""
        return 3 % self.method.dim

    def _attack(self, noiseless: tuple[Numbers, Numbers]) -> Attack:
        return likelihood_ratio(self.method, self.neighbours, noiseless)

    @cached_property
    def neighbours(self) -> Neighbours:
        """Both worlds' vectors, `(rounds, clients, dim)` each; the first client's differ.

        Over rounds they change sign, so that messages with the same noise differ.
        """
        method, scope = self.method, self.claim.scope
        clip = getattr(method, "clip", None)
        size = BEYOND * clip if isinstance(clip, float | int) else 1.0
        if scope.unit is Unit.COORDINATE:
            one, two = known_numbers(method.dim), known_numbers(method.dim)
            place = self._place
            one[place], two[place] = size, -size if scope.relation is Relation.REPLACE else 0.0
        else:
            one = size * torch.eye(2, method.dim)[0]
            two = -one if scope.relation is Relation.REPLACE else torch.zeros_like(one)
            if method.round_clip is not None:  # just within the clip, so that the flag differs too
                two = two * (0.999 / BEYOND)
        others = known_numbers(self.cohort_size, method.dim)
        others[:, 0] = 0  # whether the others are drawn must not hide it
        worlds = []
        for own, opposite in ((one, two), (two, one)):
            rounds = others.repeat(self.rounds, 1, 1)
            flipped = opposite if scope.unit is Unit.COORDINATE else -own
            for index in range(self.rounds):
                rounds[index, 0] = flipped if index % 2 else own
            worlds.append(rounds)
        return Neighbours(worlds[0], worlds[1])

    def play(self, inputs: Tensor, noise: NoiseKey, _: SketchKey) -> Tensor:
        """Show all that the adversary sees: `(trials, rounds, ...)`."""
        claim = self.method.claim_for(self.cohort_size, KEY.seed(0))

        def source(index: int, draws: Iterator[int]) -> Callable[[int], Noise]:
            if self.simulated:
                which = 0 if self.is_reused else index
                return lambda _: noise.source(worker=next(draws), round_index=which)
            return lambda messages: release_noise(self.method, claim, messages=messages)

        rounds = [
            self._round(inputs[:, index], KEY.seed(index), source(index, itertools.count()))
            for index in range(self.rounds)
        ]
        return torch.stack(rounds, dim=1)

    def noiseless(self, neighbours: Neighbours) -> tuple[Numbers, Numbers]:
        """Return flat views of both worlds without noise, and with everybody drawn."""
        quiet = replace(self, is_drawn=False)
        one, two = (
            torch.stack([
                quiet._round(world[None, index], KEY.seed(index), lambda _: Silent())
                for index in range(self.rounds)
            ]).double().flatten().numpy()
            for world in (neighbours.first, neighbours.second)
        )  # fmt: skip
        return np.asarray(one), np.asarray(two)

    def _round(self, vectors: Tensor, seed: HashSeed, source: Callable[[int], Noise]) -> Tensor:
        """Return the adversary's view; `source` makes noise for a number of messages."""
        method, trust = self.sent or self.method, self.claim.scope.trust
        trials, clients, dim = vectors.shape
        noise = source(trials * clients)
        messages = method.encode(vectors.reshape(-1, dim), seed, noise).messages
        messages = messages.reshape(trials, clients, *self._shape)
        if trust is Trust.LOCAL:
            return messages[:, 0]
        if self._sampler is not None and self.is_drawn:
            lottery, present = source(1), torch.zeros(trials, clients, dtype=torch.int64)
            for trial in present:
                trial[self._sampler.draw(lottery)] = 1
            messages = messages * present.reshape(trials, clients, *[1] * len(self._shape))
        seen = method.publish(messages.sum(dim=1), source(trials))
        if trust is Trust.CENTRAL or not method.exact:
            return seen
        # Modulo 2**bits there is no order, so the adversary looks at the distance from a point.
        quiet = method.encode(self.neighbours.second[0], seed, Silent()).messages.sum(dim=0)
        return centre(seen - quiet, method.total_format.bits)


def own_release(name: str, settings: str, *, dim: int, cohort: int) -> Release:
    """Make a round of a method of the registry, with settings as `parse_settings` takes them."""
    method = build_method(name, dim=dim, cohort=cohort, settings=parse_settings(settings))
    return Release.of(name, method, cohort=cohort)


def likelihood_ratio(
    method: Method, neighbours: Neighbours, noiseless: tuple[Numbers, Numbers]
) -> Attack:
    """Make the score for a method's noise on messages that are these without it."""
    one, two = noiseless
    if isinstance(method, RawLaplace | SketchLaplace):
        if method.mechanism is not None:
            return laplace_ratio(one, two, method.mechanism.scale)
        rows = method.rows if isinstance(method, SketchLaplace) else 1
        alpha = float(estimate_alpha(neighbours.first.reshape(-1, method.dim)[0]))
        return laplace_ratio(one, two, 2 * alpha * rows / method.per_round)
    return weighted(one - two)


def _binomial_limit(method: CpSgd, rounds: int, _: SketchKey, delta: float) -> float:
    """Compute the epsilon of cpSGD for one coordinate that moves by all that it can: exact.

    Two binomial distributions, one moved by whole steps, `rounds` times over. The method's own
    theorem is far above it, so that an audit by the theorem alone would miss much.
    """
    mechanism = method.mechanism
    draws, doubled = mechanism.cohort * mechanism.trials, method.relation is Relation.REPLACE
    shift = math.ceil(min(mechanism.clip, mechanism.limit) / mechanism.step * (1 + doubled) - 1e-6)
    half, far = draws // 2, 4 * math.isqrt(draws)  # eight standard deviations
    reach = np.arange(max(0, half - far), min(draws, half + far) + shift + 1)
    law = stats.binom(draws, 0.5)
    one, two = law.pmf(reach), law.pmf(reach - shift)
    first, second = one, two
    for _round in range(rounds - 1):
        first, second = np.outer(first, one).ravel(), np.outer(second, two).ravel()
    low, high = 0.0, 100.0
    for _step in range(60):
        middle = (low + high) / 2
        excess = float(np.maximum(first - math.exp(middle) * second, 0).sum())
        low, high = (middle, high) if excess > delta else (low, middle)
    return high


# Every method with a proven claim, at each of its trusts. Shifts are of one standard deviation, or
# pure epsilons of 2.
_CLIENT = {"clip": 1.0, "noise_multiplier": 1.0}
_TABLE = {"rows": 2, "cols": 4}
_ADDED = {"relation": "add-or-remove"}
_SETTINGS: Mapping[str, dict[str, object]] = {
    "gaussian-local": {**_CLIENT, "trust": "local"},
    "gaussian-distributed": {**_CLIENT, **_ADDED, "trust": "distributed"},
    "gaussian-central": {**_CLIENT, "trust": "central"},
    "sketch-gaussian-local": {**_TABLE, **_CLIENT, "trust": "local"},
    "sketch-gaussian-distributed": {**_TABLE, **_CLIENT, "trust": "distributed"},
    "sketch-gaussian-central": {**_TABLE, **_CLIENT, **_ADDED, "trust": "central"},
    "skellam-local": {**_CLIENT, **_ADDED, "trust": "local"},
    "skellam-distributed": {**_CLIENT, "trust": "distributed"},
    "skellam-central": {**_CLIENT, "trust": "central"},
    "sketch-skellam-local": {**_TABLE, **_CLIENT, "trust": "local"},
    "sketch-skellam-distributed": {**_TABLE, **_CLIENT, **_ADDED, "trust": "distributed"},
    "sketch-skellam-central": {**_TABLE, **_CLIENT, "trust": "central"},
    "cpsgd": {"clip": 0.625, "limit": 2.0, "levels": 65, "trials": 500},
    "laplace": {"clip": 1.0, "per_round": 2.0},
    "sketch-laplace": {**_TABLE, "clip": 1.0, "per_round": 2.0},
    "gaussian-sampled": {**_CLIENT, **_ADDED, "noise_multiplier": 0.5, "trust": "central"},
}


def _standard(name: str) -> Release:
    settings, cohort = _SETTINGS[name], 3
    kind = name.removesuffix("-sampled").removesuffix(f"-{settings.get('trust')}")
    method = build_method(kind, dim=8, cohort=cohort, settings=settings)
    rate = 0.7 if name == "gaussian-sampled" else None
    release = Release.of(name, method, cohort=cohort, rate=rate)
    # Pure epsilons show in rarer events.
    return replace(release, trials=2 * TRIALS) if "per_round" in settings else release


RELEASES: Mapping[str, Callable[[], Release]] = {
    name: partial(_standard, name) for name in _SETTINGS
}
"""Releases to audit, by the names of their cases."""


# -- Planted errors --------------------------------------------------------------------------------

# The setting that noise follows from, and how: `(value, factor)` to the value for so much noise.
_NOISE: Mapping[str, Callable[[Any, float], Any]] = {
    "noise_multiplier": lambda value, factor: value * factor,
    "per_round": lambda value, factor: value / factor,
    "std": lambda value, factor: value * factor,
    "trials": lambda value, factor: round(value * factor**2),
}
PLANTS: Mapping[str, str] = {
    "small-noise": "noise 20% too small",
    "row-blind": "sensitivity short of sqrt(rows)",
    "no-clip": "vectors are not clipped",
    "reused-noise": "the same noise in two rounds",
    "no-draw": "everybody takes part",
}
"""Descriptions of the errors, by name."""


def weaker(method: Method, factor: float) -> Method:
    """Return the same method with `factor` times the noise."""
    names = {field.name for field in fields(method)}
    name = next(name for name in _NOISE if name in names)
    return replace(method, **{name: _NOISE[name](getattr(method, name), factor)})


def planted(release: Release, error: str) -> Release | None:
    """Return the release with an error, under the name of both; None where it does not apply."""
    method: Any = release.method
    rows = getattr(method, "rows", 1)
    if error == "small-noise":
        changed = replace(release, sent=weaker(method, 0.8))
    elif error == "row-blind" and rows > 1:  # as if a coordinate were in one row of a table
        changed = replace(release, sent=weaker(method, 1 / math.sqrt(rows)))
    elif error == "no-clip":
        loose = replace(method, clip=BEYOND * method.clip)  # no input reaches it
        if hasattr(method, "noise_multiplier") or hasattr(method, "per_round"):
            loose = weaker(loose, 1 / BEYOND)  # noise follows the clip, and stays as it was
        changed = replace(release, sent=loose, trials=_FEWER)
    elif error == "reused-noise":  # as after a rollback of noise from a key: differences have none
        changed = replace(release, rounds=2, is_reused=True, trials=_FEWER)
    elif error == "no-draw" and release.rate is not None:  # the claim counts on a secret sample
        changed = replace(release, is_drawn=False)
    else:
        return None
    return replace(changed, name=f"{release.name}+{error}", planted=PLANTS[error])
