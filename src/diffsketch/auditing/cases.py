"""Ready cases: bare sketches, releases of methods, exploits of engines, and planted errors.

*Bare sketches*, without noise: what Theorem 1 claims, and what attacks show. The neighbours replace
one coordinate at the value that the paper bounds coordinates by, alpha (the 90th percentile of the
others' sizes, 1.645 standard deviations), by its negative or by 0.

*Releases* of methods, by the code that engines release with: members encode, messages are summed as
the method's trust says, the server publishes, and the adversary of that trust sees a single
message, the modular sum, or what is published. Noise comes from `diffsketch.methods.release`, so
from the operating system, and no seed repeats it. Methods that engines refuse to send are played
with simulated noise, and their cases say so. Neighbours differ by all that a claim allows, and are
beyond the clip, so that clipping is audited too: one coordinate far above or below it, or a
client's vector against its opposite (against nothing, for add-or-remove). Scores are the likelihood
ratios of the noise; that of binomial and Skellam noise is taken to be Gaussian's, which it nearly
is.

*Exploits*, each on the release as it is and on the one that it broke:

* `low-bits`: noise in floating point gives values away. A message `fl(t + n)` of a table cell `t`
  and noise `n`, both float32, is not any float32: where `n` has a larger exponent than the message,
  the message's last bits are those of `t`. So one cell can show that it was not made from `t`. On
  the grid, noise reaches every whole number from every other one: there is nothing to see.
* `rollback`: going back to an older state of a `GroupMean` must not repeat noise. The attack
  subtracts the means of the two rounds that then have the same number.

*Planted errors* that a programmer could make, put into every release that they apply to (`PLANTS`):
the claim stays that of the correct method, and an audit must find them.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property, partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from scipy import stats
from torch import Tensor

from diffsketch.auditing.attacks import (
    DISCRIMINANT,
    QUADRATIC,
    Attack,
    Numbers,
    best_direction,
    hidden_hashes,
    laplace_ratio,
    low_bits,
    matrix_of,
    row_parity,
    unknown_others,
    weighted,
)
from diffsketch.auditing.audits import (
    DELTAS,
    PURE_DELTA,
    TRIALS,
    Adversary,
    Case,
    Game,
    Neighbours,
    every_trial,
)
from diffsketch.ddp.group import GroupMean
from diffsketch.errors import ArgumentError
from diffsketch.methods import (
    CpSgd,
    Encoded,
    GaussianMean,
    Method,
    ProjUnitMean,
    ProvenDiffSketch,
    RawLaplace,
    SketchGaussian,
    SketchLaplace,
    build_method,
    parse_settings,
)
from diffsketch.methods.release import release_noise
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.composition import epsilon_for
from diffsketch.privacy.accounting.sampler import PoissonSampler
from diffsketch.privacy.claim import Claim, NoClaim, ProvenClaim, Relation, Scope, Trust, Unit
from diffsketch.privacy.mechanisms import GaussianMechanism, NormBound
from diffsketch.privacy.mechanisms.padding import gram
from diffsketch.privacy.mechanisms.rounding import centre
from diffsketch.privacy.noise import FastNoise, Noise, NoiseKey
from diffsketch.privacy.theorems import estimate_alpha, theorem1
from diffsketch.sketch import CountSketch, HashSeed, SketchKey

INVERSION = "inversion"
KEY = SketchKey.from_integer(0)  # the hashes are public, and some claims depend on them
ALPHA = 1.645  # in standard deviations of the other coordinates
BEYOND = 3.0  # inputs, over the clip
_COORDINATE = 3
_MOST_FITTED = 200  # numbers that a trial shows, for attacks that fit covariances
_FEWER = 5000  # trials of each world, for what is plain to see
_Maker = Callable[[], Case]


def known_numbers(*shape: int) -> Tensor:
    """Make fixed numbers that an adversary knows: standard normal, none of them zero."""
    return FastNoise(1).normal(shape, 1.0, dtype=torch.float32)


# -- Bare sketches ---------------------------------------------------------------------------------


def bare_known() -> Case:
    """Make the case of public hashes and known others: the standard adversary."""
    return _bare("bare-known", _vector(), -ALPHA, Adversary.ALL_KNOWN, limit=_all)


def bare_unknown(
    dim: int = 2000, cols: int = 2, *, name: str = "bare-unknown", trials: int = 100_000
) -> Case:
    """Make the case of public hashes, the other coordinates unknown and Gaussian.

    With dim = 2,000 and two columns, Theorem 1 claims 0.24, while this adversary's shift of
    mu = 0.23 means 0.89 at delta = 1e-5; an event of probability 0.1 shows about 0.40, give or
    take 0.02. With dim = 10,000 it claims 0.056 (two columns; 0.36 is true) and 0.34 (four; 0.52
    is true). The part of the latter curve that exceeds the claim takes some 10^7 trials to see.
    """
    sketch = _sketch(dim, cols)

    def limit(hashes: SketchKey, delta: float) -> float:
        _, shift = best_direction(sketch, _COORDINATE, hashes.seed(0))
        return _shift_epsilon(2 * ALPHA * shift, delta)

    return _bare(
        name, _vector(dim), -ALPHA, Adversary.OTHERS_UNKNOWN, cols=cols,
        attacks=(unknown_others(sketch, _COORDINATE),), trials=trials, limit=limit,
    )  # fmt: skip


def bare_secret() -> Case:
    """Make the case of secret hashes and unknown others: signs are hidden, so 0 is the other."""
    attacks = (hidden_hashes(_sketch(), ALPHA),)
    return _bare(
        "bare-secret", _vector(), 0.0, Adversary.SECRET_HASHES, attacks=attacks, trials=10_000
    )


def bare_parity() -> Case:
    """Make the case of secret hashes where the others are known whole numbers: they do not help."""
    numbers = _vector(value=1.0, spread=3.0).round()
    return _bare(
        "bare-parity", numbers, 0.0, Adversary.SECRET_HASHES_OTHERS_KNOWN, spread=3.0,
        attacks=(row_parity(2),), trials=4000, limit=_all,
    )  # fmt: skip


def _sketch(dim: int = 2000, cols: int = 2) -> CountSketch:
    return CountSketch(dim, 5, cols, "pairwise")


def _vector(dim: int = 2000, *, value: float = ALPHA, spread: float = 1.0) -> Tensor:
    vector = known_numbers(dim).mul(spread)
    vector[_COORDINATE] = value
    return vector


def _bare(
    name: str, first: Tensor, other: float, adversary: Adversary, *, cols: int = 2,
    spread: float = 1.0, **more: Any,
) -> Case:  # fmt: skip
    """Make a case in which one coordinate of a vector may have another value."""
    sketch, second = _sketch(len(first), cols), first.clone()
    second[_COORDINATE] = other
    claim = theorem1(sketch.dim, sketch.rows, cols, alpha=ALPHA * spread, sigma=spread)
    title = f"bare sketch, {sketch.rows} x {cols} of {sketch.dim:,} coordinates"
    title += ", whole numbers" if spread != 1 else ""
    protocol = every_trial(lambda inputs, _, seed: sketch.encode(inputs, seed))
    game = Game(protocol, Neighbours(first, second), adversary)
    return Case(name, title, claim, game, deltas=(PURE_DELTA,), **more)


def bare_crowd(unit: Unit) -> Case:
    """Make the case of one unit among four, of whom the others are unknown and Gaussian.

    One example in the sketch of a worker's summed gradient, or one client in the secure sum of the
    clients' sketches.
    """
    sketch, units, of_examples = CountSketch(64, 2, 16), 4, unit is Unit.EXAMPLE
    target = known_numbers(sketch.dim) / 2
    first, second = torch.zeros(units, sketch.dim), torch.zeros(units, sketch.dim)
    first[0] = target

    def send(inputs: Tensor, _: Noise, seed: HashSeed) -> Tensor:
        if of_examples:
            return sketch.encode(inputs.sum(dim=1), seed)
        tables = sketch.encode(inputs.reshape(-1, sketch.dim), seed)
        return tables.reshape(*inputs.shape[:2], sketch.rows, sketch.cols).sum(dim=1)

    def limit(hashes: SketchKey, delta: float) -> float:
        matrix = matrix_of(sketch, hashes.seed(0))
        shift = matrix @ target.double().numpy()
        # The others reach all tables that a sketch can make, and so does the shift.
        square = shift @ np.linalg.pinv(matrix @ matrix.T, rcond=1e-10, hermitian=True) @ shift
        return _shift_epsilon(math.sqrt(float(square) / (units - 1)), delta)

    trust = Trust.LOCAL if of_examples else Trust.DISTRIBUTED
    reason = "without noise only the others' values hide a unit, and they may be known"
    return Case(
        f"bare-{unit}",
        "bare sketch of a sum of 4 examples" if of_examples else "sum of 4 clients' bare sketches",
        NoClaim(Scope(unit, Relation.ADD_OR_REMOVE, trust), reason),
        Game(every_trial(send), Neighbours(first, second), Adversary.OTHERS_UNKNOWN),
        deltas=(0.01,), trials=50_000, limit=limit,
    )  # fmt: skip


def _shift_epsilon(mu: float, delta: float) -> float:
    """Epsilon of a Gaussian shift. A lower bound for the mechanism: other adversaries know more."""
    return math.inf if math.isinf(mu) else epsilon_for(events.gaussian(1 / mu), delta)


def _all(_: SketchKey, __: float) -> float:
    return math.inf


# -- Releases of methods ---------------------------------------------------------------------------


class Silent(FastNoise):
    """Noise-free stub: what a method would send without noise, rounded to the nearest."""

    def __init__(self) -> None:
        super().__init__(0)

    def _zeros(
        self, shape: tuple[int, ...], _: float, *, dtype: torch.dtype = torch.int64
    ) -> Tensor:
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
        members: Number of contributors; 1 where the adversary sees single messages.
        rate: Probability with which each member is drawn for a round, if that is claimed.
        rounds: How many rounds the adversary sees.
        trials: Trials of each world.
        sent: The method that is played; another one than `method` only if an error is planted.
        is_drawn: Whether members are drawn by `rate`, or all take part.
        is_reused: Whether each round has the same noise.
        planted: Description of the error.
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
        """Make one round of a cohort; of one member where everybody sees its message."""
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

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.method.total_format.shape

    @property
    def _sampler(self) -> PoissonSampler | None:
        return None if self.rate is None else PoissonSampler(self.members, self.rate)

    def case(self) -> Case:
        """Make a case of the release."""
        method, numbers = self.method, math.prod(self._shape)
        attacks = [likelihood_ratio(method, self.neighbours, self.noiseless(self.neighbours))]
        if numbers * self.rounds <= _MOST_FITTED:
            attacks += [DISCRIMINANT] if self.rounds == 1 else [DISCRIMINANT, QUADRATIC]
        deltas: tuple[float, ...] = (
            DELTAS if self.rate is None else DELTAS[-3:]
        )  # composing samples takes long
        if isinstance(method, RawLaplace | SketchLaplace | ProjUnitMean):
            deltas = (PURE_DELTA,)
        title = f"{method.name}, {' x '.join(map(str, self._shape))} cells"
        title += f", sum of {self.members}" if self.members > 1 else ""
        title += f" drawn with probability {self.rate:g}" if self.rate is not None else ""
        title += f", {self.rounds} rounds" if self.rounds > 1 else ""
        title += ", simulated noise" if self.simulated else ""
        limit = None
        if isinstance(method, CpSgd) and not method.rotate:
            limit = partial(_binomial_limit, method, self.rounds)
        numbers *= self.rounds * self.members
        width = max(numbers, self.neighbours.first.numel()) + getattr(method, "padding", 0)
        return Case(
            self.name, title, self.claim, Game(self.play, self.neighbours), tuple(attacks),
            rounds=self.rounds, deltas=deltas, trials=self.trials, planted=self.planted,
            simulated=self.simulated, width=width, cost=10 + numbers / 5, limit=limit,
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

    def play(self, inputs: Tensor, noise: NoiseKey, _: SketchKey) -> Tensor:
        """Show all that the adversary sees: `(trials, rounds, ...)`."""
        claim = self.method.claim_for(self.members, KEY.seed(0))

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
        """Return the adversary's view of `(trials, members, dim)` vectors.

        `source` makes noise for a number of messages.
        """
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
        seen = method.publish(messages.sum(dim=1), source(trials))
        if trust is Trust.CENTRAL:
            return seen
        # Modulo 2**bits there is no order, so the adversary looks at the distance from a point.
        quiet = method.encode(self.neighbours.second[0], seed, Silent()).messages.sum(dim=0)
        return centre(seen - quiet, method.total_format.bits)


def own_release(name: str, settings: str, *, dim: int, cohort: int) -> Release:
    """Make a round of a user's own choice.

    Args:
        name: Name of the method.
        settings: Its settings, as `parse_settings` takes them.
        dim: Length of the vectors.
        cohort: Members of a round.

    Raises:
        ArgumentError: There is no such method or setting, or one is refused.
    """
    given = parse_settings(settings)
    method = build_method(name, dim=dim, cohort=cohort, settings=given)
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
    if isinstance(method, ProvenDiffSketch):
        cells = method.rows * method.cols
        parts = [(one - two)[start : start + cells] for start in range(0, len(one), cells)]
        solved = [
            np.linalg.solve(gram(method.sketch, KEY.seed(i), method.dim, method.sketch.dim), part)
            for i, part in enumerate(parts)
        ]
        return weighted(np.concatenate(solved))
    return weighted(one - two)


def _binomial_limit(method: CpSgd, rounds: int, _: SketchKey, delta: float) -> float:
    """Compute the epsilon of cpSGD for one coordinate that moves by all that it can: exact.

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
    for _round in range(rounds - 1):
        first, second = np.outer(first, one).ravel(), np.outer(second, two).ravel()
    low, high = 0.0, 100.0
    for _step in range(60):
        middle = (low + high) / 2
        excess = float(np.maximum(first - math.exp(middle) * second, 0).sum())
        low, high = (middle, high) if excess > delta else (low, middle)
    return high


def _least_hidden(method: Method) -> int:
    """Find the coordinate that appended noise hides least; for other noise any."""
    if not isinstance(method, ProvenDiffSketch):
        return 3 % method.dim
    seed, sketch = KEY.seed(0), method.sketch
    noise = np.linalg.inv(gram(sketch, seed, method.dim, sketch.dim))
    columns = sketch.encode(torch.eye(method.dim), seed, offset=0).double().flatten(1).numpy()
    return int(((columns @ noise) * columns).sum(axis=1).argmax())


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
    "diffsketch-proven": {**_TABLE, "clip": 1.0, "padding": 32, "std": 1.0},
    "projunit": {"size": 6, "clip": 1.0, "per_round": 2.0},
    "gaussian-sampled": {**_CLIENT, **_ADDED, "noise_multiplier": 0.5, "trust": "central"},
}
_RATES = {"gaussian-sampled": 0.7}


def _standard(name: str) -> Release:
    settings, cohort = _SETTINGS[name], 3
    kind = name.removesuffix("-sampled").removesuffix(f"-{settings.get('trust')}")
    method = build_method(kind, dim=8, cohort=cohort, settings=settings)
    release = Release.of(name, method, cohort=cohort, rate=_RATES.get(name))
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


def weaker(method: Method, factor: float) -> Method:
    """Return the same method with `factor` times the noise."""
    names = {field.name for field in fields(method)}
    name = next(name for name in _NOISE if name in names)
    return replace(method, **{name: _NOISE[name](getattr(method, name), factor)})


def _row_blind(release: Release) -> Release | None:
    rows = getattr(release.method, "rows", 1)
    return replace(release, sent=weaker(release.method, 1 / math.sqrt(rows))) if rows > 1 else None


def _no_clip(release: Release) -> Release | None:
    """Move the clip to where no input reaches it; noise that follows it is made what it was."""
    method: Any = release.method
    if isinstance(method, ProjUnitMean):
        return None  # directions are sent, however long the vector is
    loose = replace(method, clip=BEYOND * method.clip)
    if hasattr(method, "noise_multiplier") or hasattr(method, "per_round"):
        loose = weaker(loose, 1 / BEYOND)
    return replace(release, sent=loose, trials=_FEWER)


PLANTS: Mapping[str, tuple[str, Callable[[Release], Release | None]]] = {
    "small-noise": (
        "noise 20% too small",
        lambda release: replace(release, sent=weaker(release.method, 0.8)),
    ),
    # As if a coordinate were in one row of a table.
    "row-blind": ("sensitivity short of sqrt(rows)", _row_blind),
    "no-clip": ("vectors are not clipped", _no_clip),
    # As after a rollback of noise that follows from a key and the round: differences have none.
    "reused-noise": (
        "the same noise in two rounds",
        lambda release: replace(release, rounds=2, is_reused=True, trials=_FEWER),
    ),
    # Where the claim counts on a secret sample.
    "no-draw": (
        "everybody takes part",
        lambda release: None if release.rate is None else replace(release, is_drawn=False),
    ),
}
"""By name: what is wrong, and the release with the error, None where it does not apply."""


def planted(release: Release, error: str) -> Release | None:
    """Return the release with an error, under the name of both; None where it does not apply."""
    text, put_in = PLANTS[error]
    changed = put_in(release)
    name = f"{release.name}+{error}"
    return None if changed is None else replace(changed, name=name, planted=text)


# -- Exploits of engines ---------------------------------------------------------------------------

_MULTIPLIER = 4.0  # of the noise; the clip is 1


def _low_bits(*, in_floats: bool) -> Case:
    """Make the case of a sketch with Gaussian noise: on its grid, or in floats as once sent.

    A client holds nothing, or a vector whose table has the same size in every cell.
    """
    dim, cells = 400, 154
    method = SketchGaussian(dim, 1, cells, clip=1.0, noise_multiplier=_MULTIPLIER)
    before, seed = GaussianMechanism(NormBound(1.0), _MULTIPLIER), KEY.seed(0)
    units = method.sketch.encode(torch.eye(dim), seed)[:, 0]
    vector = torch.zeros(dim)
    for cell in range(cells):  # one coordinate for each cell that has any
        vector[units[:, cell].abs().argmax()] = 1.0

    def play(inputs: Tensor, noise: NoiseKey, _: SketchKey) -> Tensor:
        if in_floats:
            source = noise.source(worker=0, round_index=0)
            return before.release(inputs, source, encode=lambda x: method.sketch.encode(x, seed))
        claim = method.claim_for(1, seed)
        return method.encode(inputs, seed, release_noise(method, claim)).messages

    table = before.bound.apply(vector, lambda x: method.sketch.encode(x, seed)).flatten()
    step = method.mechanism.quantizer.granularity
    sent = np.rint(table.double().numpy() / step) * step
    attack = low_bits(table.double().numpy()) if in_floats else low_bits(sent, step)
    return Case(
        "low-bits", f"sketch-gaussian, 1 x {cells} cells, multiplier {_MULTIPLIER:g}",
        before.claim if in_floats else method.claim_for(1, seed),
        Game(play, Neighbours(torch.zeros(dim), vector)), (attack,),
        deltas=(PURE_DELTA,), trials=10_000, simulated=in_floats, width=dim, cost=100,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Keyed(GaussianMean):
    """The planted engine's method: noise follows from a secret and the round, as it once did."""

    secret: ClassVar[NoiseKey] = NoiseKey.from_integer(1)

    def encode(self, vectors: Tensor, seed: HashSeed, noise: Noise) -> Encoded:  # noqa: ARG002
        number = int.from_bytes(seed.value) ^ int.from_bytes(self.secret.secret)
        return super().encode(vectors, seed, FastNoise(number))


def _rollback(*, is_keyed: bool) -> Case:
    """Make the case of two rounds of a `GroupMean` with a rollback between them.

    Each trial begins with the state that the one before left, so that rounds differ.
    """
    kind = _Keyed if is_keyed else GaussianMean
    method = kind(dim=4, clip=1.0, noise_multiplier=_MULTIPLIER)
    vector = torch.tensor([1.0, 0.0, 0.0, 0.0])
    forth = torch.stack([vector, -vector])

    def play(inputs: Tensor, noise: NoiseKey, _: SketchKey) -> Tensor:
        seen = []
        with _own_process_group():
            # Hashes of their own for each call, and with them the planted engine's noise.
            engine = GroupMean(method, key=SketchKey(noise.secret))
            for first, second in inputs:
                state = engine.state_dict()
                one = engine.mean(first)
                engine.load_state_dict(state)
                seen.append(torch.stack([one, engine.mean(second)]))
        return torch.stack(seen)

    return Case(
        "rollback", f"gaussian on GroupMean, multiplier {_MULTIPLIER:g}",
        method.claim_for(1, KEY.seed(0)), Game(play, Neighbours(forth, -forth)),
        rounds=2, deltas=(PURE_DELTA,), trials=600, simulated=is_keyed, width=64, cost=2000,
    )  # fmt: skip


@contextmanager
def _own_process_group() -> Iterator[None]:
    """Make a process group of this process, if there is none."""
    if dist.is_initialized():
        if dist.get_world_size() != 1:
            raise ArgumentError("rollback must be audited by one process, got a group of several")
        yield
        return
    place = "GLOO_SOCKET_IFNAME"
    before = os.environ.get(place)
    os.environ[place] = "lo"
    try:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    finally:
        os.environ.pop(place)
        if before is not None:
            os.environ[place] = before
    try:
        yield
    finally:
        dist.destroy_process_group()


def _broken(case: Case, error: str, text: str) -> Case:
    return replace(case, name=f"{case.name}+{error}", planted=text)


EXPLOITS: Mapping[str, _Maker] = {
    "low-bits": lambda: _low_bits(in_floats=False),
    "low-bits+float-noise": lambda: _broken(
        _low_bits(in_floats=True), "float-noise", "noise in float32"
    ),
    "rollback": lambda: _rollback(is_keyed=False),
    "rollback+reused-noise": lambda: _broken(
        _rollback(is_keyed=True), "reused-noise", "noise from a key and the round"
    ),
}
"""The attacks, each followed by the release that it broke."""


# -- All cases by name -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Selection:
    """Cases to run, by name, and how thoroughly."""

    cases: Mapping[str, _Maker]
    inversion: bool = False
    is_quick: bool = False


@cache
def cases() -> Mapping[str, _Maker]:
    """Return every case, in the order in which they are reported; `case+error` has an error."""
    found: dict[str, _Maker] = {"bare-known": bare_known, "bare-unknown": bare_unknown}
    for cols in (2, 4):
        name = f"bare-unknown-10000x{cols}"
        found[name] = partial(bare_unknown, 10_000, cols, name=name)
    found |= {"bare-secret": bare_secret, "bare-parity": bare_parity}
    found |= {f"bare-{unit}": partial(bare_crowd, unit) for unit in (Unit.EXAMPLE, Unit.CLIENT)}
    found |= EXPLOITS
    for make in RELEASES.values():
        found |= _with_errors(make(), list(PLANTS))
    return found


def case_of(name: str) -> Case:
    """Return the case of this name.

    Raises:
        ArgumentError: There is none.
    """
    if name not in cases():
        raise ArgumentError(f"case must be one of {', '.join(cases())}, got case={name!r}")
    return cases()[name]()


def select(
    *,
    names: Sequence[str] = (),
    plants: Sequence[str] = (),
    release: Release | None = None,
    is_quick: bool = False,
) -> Selection:
    """Choose what is run: all but what takes too long, or what was named.

    Args:
        names: Names of cases; `inversion` is one, too.
        plants: Names of errors; each is put into every case that it applies to, beside that case.
        release: Release of a user's own method, instead of the cases.
        is_quick: No planted errors by default, but those of attacks, and half of the trials.

    Raises:
        ArgumentError: There is no such name.
    """
    known = cases()
    errors = dict.fromkeys(name.partition("+")[2] for name in known if "+" in name)
    for error in plants:
        if error not in errors:
            raise ArgumentError(f"plant must be one of {', '.join(errors)}, got plant={error!r}")
    if release is not None:
        return Selection(_with_errors(release, plants), is_quick=is_quick)
    for name in names:
        if name not in known and name != INVERSION:
            options = ", ".join([*known, INVERSION])
            raise ArgumentError(f"case must be one of {options}, got case={name!r}")
    if names or plants:
        chosen = set(names)
        for name in known:
            twin, _, error = name.partition("+")
            if error and error in plants and (not names or twin in names):
                chosen |= {twin, name}
    elif is_quick:
        chosen = {"bare-known", "bare-parity", *EXPLOITS, *RELEASES, INVERSION}
    else:  # vectors of 10,000 numbers take too long to be drawn 10^5 times over
        chosen = {name for name in known if "10000" not in name} | {INVERSION}
    kept = {name: make for name, make in known.items() if name in chosen}
    return Selection(kept, inversion=INVERSION in chosen, is_quick=is_quick)


def _with_errors(release: Release, errors: Sequence[str]) -> dict[str, _Maker]:
    """Return the case of a release, and those of it with errors, where they apply."""
    versions = [release, *(planted(release, error) for error in errors if error in PLANTS)]
    return {each.name: each.case for each in versions if each is not None}
