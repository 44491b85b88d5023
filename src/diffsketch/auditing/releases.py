"""Releases of methods, by the code that engines release with, and errors planted in them.

*What is played.* Two rounds, in one batch: clients encode, messages are summed as the method's
trust says, the server publishes. Noise comes from `diffsketch.methods.gate`, so from the
operating system, and no seed repeats it. Methods that engines refuse to send are played with
simulated noise, and their cases say so. The adversary sees all that their trust does not exclude:

* local: the messages of all clients, of whom one is under attack;
* distributed: the modular sums; insiders see their own messages besides, and the claim is the one
  without their noise;
* central: what is published, and how many messages are in it.

Neighbours differ by all that a claim allows. One is beyond the clip, so that clipping is audited
too; the other is just within it, or nothing, or has another value in one coordinate.

*Scores.* The likelihood ratio of the noise (that of binomial and Skellam noise is taken to be
Gaussian's, which it nearly is); two that are fitted to the covariance of what is seen, and find
noise that cancels between cells, messages or rounds; and one for the ends of the distribution, as
noise that is cut off makes impossible in one world what the other can show.

*Planted errors* are those that a programmer could make in the noise, and ways around it that
engines once had. The claim, and what the adversary looks at, stay those of the correct release: so
an error of the noise in the library itself is found by the case without a planted one
(`tests/auditing/test_cases.py`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from diffsketch.auditing.attacks import (
    DISCRIMINANT,
    QUADRATIC,
    Attack,
    Numbers,
    extreme,
    laplace_ratio,
    weighted,
)
from diffsketch.auditing.audits import DELTAS, TRIALS, Case, Game, Neighbours
from diffsketch.methods import (
    METHODS,
    CpSgd,
    Method,
    RawLaplace,
    SketchLaplace,
    build_method,
    parse_settings,
)
from diffsketch.methods.gate import release_noise
from diffsketch.methods.plain import TableMethod
from diffsketch.privacy.accounting.budget import PoissonSampler
from diffsketch.privacy.claim import Claim, ProvenClaim, Relation, Trust, Unit
from diffsketch.privacy.clipping import centre
from diffsketch.privacy.integer_table import Law
from diffsketch.privacy.noise import FastNoise, Noise, NoiseKey
from diffsketch.privacy.theorems import estimate_alpha
from diffsketch.sketch import SketchKey

KEY = SketchKey.from_integer(0)  # the hashes are public, and some claims depend on them
BEYOND = 3.0  # length of an input, over the clip
_SEED = KEY.seed(0)
_WITHIN, _LIMIT = 0.98, 0.99  # length of the other input, and of what the error `refused` accepts
_DRAWS = 1 << 16  # of noise, to know its standard deviation to 0.3%
_CUT = 3.0  # standard deviations that the error `cut-noise` leaves
_MOST_FITTED = 200  # numbers that a trial shows, for attacks that fit covariances
_MANY, _FEW = 60_000, 2000  # trials of each world: for ready cases, and for what is plain to see

_Function: TypeAlias = Callable[[Tensor, Noise], Tensor]
"""From what a batch has in each row, and noise, to what is sent or published of it."""
_Noised: TypeAlias = Callable[[_Function, Tensor], Tensor]
"""Applies such a function, with noise, to `(rounds, messages, trials, ...)`."""


def known_numbers(*shape: int) -> Tensor:
    """Make fixed numbers that an adversary knows: standard normal, none of them zero."""
    return FastNoise(1).normal(shape, 1.0, dtype=torch.float32)


class Silent(Noise):
    """No noise: what a method would send without any, rounded to the nearest.

    A source of zeros, which every sampler of `Noise` is made of.
    """

    def normal(self, shape: tuple[int, ...], std: float, *, dtype: torch.dtype) -> Tensor:  # noqa: ARG002
        """Return zeros."""
        return torch.zeros(shape, dtype=dtype)

    def laplace(self, shape: tuple[int, ...], scale: float, *, dtype: torch.dtype) -> Tensor:  # noqa: ARG002
        """Return zeros."""
        return torch.zeros(shape, dtype=dtype)

    def bernoulli(self, probabilities: Tensor) -> Tensor:
        """Return the more probable of the two."""
        return (probabilities >= 0.5).to(torch.int64)

    def words(self, shape: tuple[int, ...]) -> Tensor:
        """Return zeros."""
        return torch.zeros(shape, dtype=torch.int64)

    def integers(self, shape: tuple[int, ...], law: Law) -> Tensor:  # noqa: ARG002
        """Return zeros: the middle of every law."""
        return torch.zeros(shape, dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class Release:
    """Rounds of one method, as an engine plays them.

    Attributes:
        name: Name of the case.
        method: Method that the claim is of.
        cohort_size: Number of clients.
        rate: Probability with which each client is drawn for a round, if that is claimed.
        insiders: Members of a secure sum who use their own messages against the others.
        rounds: Number of rounds that the adversary sees.
        trials: Trials of each world.
        error: Name of the planted error, one of `PLANTS`.
    """

    name: str
    method: Method
    cohort_size: int = 2
    rate: float | None = None
    insiders: int = 0
    rounds: int = 2
    trials: int = TRIALS
    error: str | None = None

    @classmethod
    def of(
        cls, name: str, method: Method, *, cohort: int, rate: float | None = None, insiders: int = 0
    ) -> Release:
        """Make two rounds of a cohort; of two clients where everybody sees their messages.

        Where messages are so long that no covariance is fitted, or claims do not compose as they
        are not proven, it is one round, and one client.
        """
        claim = method.claim_for(cohort, _SEED)
        # Two rounds of two messages: four of them side by side are what a covariance is fitted to.
        is_short = 4 * math.prod(method.total_format.shape) <= _MOST_FITTED
        # Two, so that noise that is the same in two messages or rounds can be seen.
        several = 2 if is_short and claim.noise_is_proven else 1
        clients = several if claim.scope.trust is Trust.LOCAL else cohort
        return cls(name, method, clients, rate, insiders, several)

    @cached_property
    def claim(self) -> Claim:
        """Claim for one round."""
        # Insiders take their own noise off the sum, so the claim is for what the others add.
        claim = self.method.claim_for(self.cohort_size - self.insiders, _SEED)
        if self.rate is None or not isinstance(claim, ProvenClaim):
            return claim
        return PoissonSampler(self.cohort_size, self.rate).amplified(claim)

    @property
    def trust(self) -> Trust:
        """Trust of the claim."""
        return self.claim.scope.trust

    @property
    def simulated(self) -> bool:
        """Whether noise comes from a seed: for methods that engines refuse, and for repetition."""
        refused = self.claim.noise_is_proven and not self.method.exact
        return refused or self.error in _REPEATED

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.method.total_format.shape

    def case(self) -> Case:
        """Make a case of the release."""
        method, worlds = self.method, self.neighbours
        first_bare, second_bare = self.noiseless(worlds)
        # Known laws first; fits see what no formula expects, and cost a covariance.
        attacks = [self._attack((first_bare, second_bare)), extreme(first_bare, second_bare)]
        attacks += [DISCRIMINANT, QUADRATIC] if len(first_bare) <= _MOST_FITTED else []
        deltas = DELTAS if self.rate is None else DELTAS[-3:]  # composing samples takes long
        title = f"{method.name}, {' x '.join(map(str, self._shape))} cells"
        title += f", sum of {self.cohort_size}" if self.trust is not Trust.LOCAL else ""
        title += f" drawn with probability {self.rate:g}" if self.rate is not None else ""
        title += " seen by its other members" if self.insiders else ""
        title += ", simulated noise" if self.simulated else ""
        # The error `uncounted` is a claim of one round about what two rounds show.
        limit, counted = None, 1 if self.error == "uncounted" else self.rounds
        if type(method) is CpSgd:
            members = self.cohort_size - self.insiders
            limit = partial(_binomial_limit, method, members, counted)
        sent = self.rounds * self.cohort_size * math.prod(self._shape)
        width = max(sent, worlds.first.numel()) + getattr(method, "padding", 0)
        return Case(
            self.name, title, self.claim, Game(self.play, worlds), tuple(attacks),
            rounds=counted, deltas=deltas, trials=self.trials,
            planted=self.error and PLANTS[self.error].text, simulated=self.simulated, width=width,
            limit=limit,
        )  # fmt: skip

    @property
    def _place(self) -> int:
        """Coordinate that differs: one in different columns of a table's rows, if there is."""
        if not isinstance(self.method, TableMethod):
            return 0
        # Noise that is the same in all rows cancels between them; what differs must not cancel with
        # it.
        tables = self.method.sketch.encode(torch.eye(self.method.dim), _SEED, offset=0)
        return int((tables != tables[:, :1]).any(dim=2).any(dim=1).long().argmax())

    def _attack(self, noiseless: tuple[Numbers, Numbers]) -> Attack:
        return likelihood_ratio(self.method, self.neighbours, noiseless)

    @cached_property
    def _sent(self) -> Method:
        """The method that is played."""
        return PLANTS[self.error].sent(self.method) if self.error else self.method

    @cached_property
    def neighbours(self) -> Neighbours:
        """Both worlds' vectors, `(rounds, clients, dim)` each; the first client's differ.

        Over rounds they change sign, so that messages with the same noise differ.
        """
        method, scope = self.method, self.claim.scope
        clip = getattr(method, "clip", None)
        size = BEYOND * clip if isinstance(clip, float | int) else 1.0
        # The adversary knows them: any numbers do, as long as they are not zero.
        others = known_numbers(self.cohort_size, method.dim)
        if scope.unit is Unit.COORDINATE:
            first, second = others[0].clone(), others[0].clone()
            place = self._place
            first[place], second[place] = size, -size if scope.relation is Relation.REPLACE else 0.0
            # The other round has the worlds exchanged, so that the two rounds' shifts differ in
            # sign.
            flipped = second, first
        else:
            others[:, 0] = 0  # whether the others are drawn must not hide it
            first = torch.eye(2, method.dim)[0]
            if isinstance(method, TableMethod):  # one in all cells, and with a table of norm 1
                first = known_numbers(method.dim)
                first = first / method.sketch.encode(first, _SEED).norm()
            first = size * first
            second = -_WITHIN / BEYOND * first if scope.relation is Relation.REPLACE else 0 * first
            flipped = -first, -second
        # Even rounds and odd ones take turns.
        worlds = []
        for even, odd in zip((first, second), flipped, strict=True):
            rounds = others.repeat(self.rounds, 1, 1)
            rounds[::2, 0], rounds[1::2, 0] = even, odd
            worlds.append(rounds)
        return Neighbours(worlds[0], worlds[1])

    def play(self, inputs: Tensor, noise: NoiseKey, _: SketchKey) -> Tensor:
        """Show all that the adversary sees: `(trials, features)`."""
        return self._view(inputs.movedim(0, 2), partial(self._noised, noise, itertools.count()))

    def noiseless(self, neighbours: Neighbours) -> tuple[Numbers, Numbers]:
        """Return flat views of both worlds without noise, and with everybody drawn."""

        def noised(function: _Function, parts: Tensor) -> Tensor:
            return _like(function(parts.flatten(0, 2), Silent()), parts)

        first_view, second_view = (
            self._view(world[:, :, None], noised)[0].double().numpy()
            for world in (neighbours.first, neighbours.second)
        )
        return np.asarray(first_view), np.asarray(second_view)

    def _noised(
        self, key: NoiseKey, stages: itertools.count[int], function: _Function, parts: Tensor
    ) -> Tensor:
        """Apply a function with noise to all parts at once, as engines do with a batch."""
        # Encoding, sampling and publishing are stages with noise of their own.
        stage, batch = next(stages), parts.flatten(0, 2)
        if self.error in _REPEATED:
            rounds, messages, kept = *parts.shape[:2], _REPEATED[self.error]
            pairs = itertools.product(range(rounds), range(messages))
            # Noise follows from the number of the message alone, or from that of the round.
            repeated = [
                function(parts[pair], key.source(worker=pair[kept], round_index=stage))
                for pair in pairs
            ]
            return _like(torch.cat(repeated), parts)
        noise: Noise = key.source(worker=0, round_index=stage)
        if not self.simulated:
            claim = self.method.claim_for(self.cohort_size, _SEED)
            noise = release_noise(self.method, claim, messages=len(batch))
        # All rounds, clients and trials in one batch: what an engine might share by mistake shows.
        seen = function(batch, noise)
        alter = self.error and PLANTS[self.error].alter
        if alter and seen.dim() > 1:  # not the sample
            bare = function(batch, Silent())
            seen = bare + alter(self, self._centred(seen - bare))
        return _like(seen, parts)

    def _view(self, vectors: Tensor, noised: _Noised) -> Tensor:
        """Return what the adversary sees of `(rounds, clients, trials, dim)`, trials first."""
        method = self._sent
        messages = noised(lambda batch, noise: method.encode(batch, _SEED, noise).messages, vectors)
        seen, numbers = messages, []
        if self.trust is not Trust.LOCAL:
            kept = self._kept(messages, noised)
            messages = messages * kept.reshape(*kept.shape, *[1] * len(self._shape))
            seen = noised(method.publish, messages.sum(dim=1, keepdim=True))
            if self.trust is Trust.CENTRAL and self.rate is None:
                numbers.append(kept.sum(dim=1))
        if self.trust is Trust.DISTRIBUTED:
            others = self.neighbours.second[:, :, None]
            bare = _like(method.encode(others.flatten(0, 2), _SEED, Silent()).messages, others)
            # Modulo 2**bits there is no order, so the adversary looks at the distance from a point.
            point = self._split(bare, bare.sum(dim=1, keepdim=True))
            seen = self._centred(self._split(messages, seen) - point)
        if self.error == "answered":
            asked = (self.neighbours.first - self.neighbours.second)[0, 0]
            numbers.append(vectors[:, 0] @ asked)
        views = [seen.movedim(2, 0).flatten(1), *(each.movedim(1, 0) for each in numbers)]
        return torch.cat([view.double() for view in views], dim=1)

    def _kept(self, messages: Tensor, noised: _Noised) -> Tensor:
        """Return 1 for messages that are summed and 0 for others: `(rounds, clients, trials)`."""
        shape, rate = messages.shape[:3], self.rate

        def drawn(batch: Tensor, noise: Noise) -> Tensor:
            batch[PoissonSampler(len(batch), rate or 1.0).draw(noise)] = 1
            return batch

        if self.error == "refused":
            grid = self.method.mechanism.quantizer  # type: ignore[attr-defined]
            sizes = messages.double().flatten(3).norm(dim=-1) * grid.granularity
            kept: Tensor = sizes <= _LIMIT * grid.bound.limit
            return kept.long()
        if rate is None or self.error == "no-draw":
            return torch.ones(shape, dtype=torch.int64)
        return noised(drawn, torch.zeros(shape, dtype=torch.int64))

    def _split(self, messages: Tensor, total: Tensor) -> Tensor:
        """Take the insiders' messages off the total, and put them beside it."""
        theirs = messages[:, self.cohort_size - self.insiders :]
        return torch.cat([total - theirs.sum(dim=1, keepdim=True), theirs], dim=1)

    def _centred(self, values: Tensor) -> Tensor:
        modular = self.trust is Trust.DISTRIBUTED and self.method.exact
        return centre(values, self._sent.total_format.bits) if modular else values

    @cached_property
    def spread(self) -> Tensor:
        """Standard deviation of the noise that is drawn at once for a cell, by simulation."""
        # Of zeros: what is seen is noise alone.
        zeros = torch.zeros(_DRAWS, self.method.dim)
        messages = self.method.encode(zeros, _SEED, FastNoise(1)).messages
        return self._centred(self.method.publish(messages, FastNoise(2))).double().std(dim=0)


def _like(flat: Tensor, parts: Tensor) -> Tensor:
    """Give what was computed of each part of a batch the place of the part."""
    return flat.reshape(*parts.shape[:3], *flat.shape[1:])


def own_release(name: str, settings: str, *, dim: int, cohort: int) -> Release:
    """Make rounds of a method of the registry, with settings as `parse_settings` takes them."""
    method = build_method(name, dim=dim, cohort=cohort, settings=parse_settings(settings))
    return Release.of(name, method, cohort=cohort)


def likelihood_ratio(
    method: Method, neighbours: Neighbours, noiseless: tuple[Numbers, Numbers]
) -> Attack:
    """Make the score for a method's noise on messages that are these without it."""
    first_bare, second_bare = noiseless
    if isinstance(method, RawLaplace | SketchLaplace):
        if method.mechanism is not None:
            return laplace_ratio(first_bare, second_bare, method.mechanism.scale)
        rows = method.rows if isinstance(method, SketchLaplace) else 1
        alpha = float(estimate_alpha(neighbours.first.reshape(-1, method.dim)[0]))
        return laplace_ratio(first_bare, second_bare, 2 * alpha * rows / method.per_round)
    return weighted(first_bare - second_bare)


def _binomial_limit(method: CpSgd, members: int, rounds: int, _: SketchKey, delta: float) -> float:
    """Compute the epsilon of cpSGD for one coordinate that moves by all that it can: exact.

    Two binomial distributions, one moved by whole steps, `rounds` times over. The method's own
    theorem is far above it, so that an audit by the theorem alone would miss much.
    """
    mechanism = method.mechanism
    # The sum of binomials of all members is binomial again.
    draws, doubled = members * mechanism.trials, method.relation is Relation.REPLACE
    shift = math.ceil(min(mechanism.clip, mechanism.limit) / mechanism.step * (1 + doubled) - 1e-6)
    half, far = draws // 2, 4 * math.isqrt(draws)  # eight standard deviations
    reach = np.arange(max(0, half - far), min(draws, half + far) + shift + 1)
    law = stats.binom(draws, 0.5)
    chances, shifted = law.pmf(reach), law.pmf(reach - shift)
    first, second = chances, shifted
    for _round in range(rounds - 1):
        first, second = np.outer(first, chances).ravel(), np.outer(second, shifted).ravel()
    # By bisection: delta falls as epsilon grows. Sixty halvings leave nothing of 100.
    low, high = 0.0, 100.0
    for _step in range(60):
        middle = (low + high) / 2
        # The delta at this epsilon, by definition.
        excess = float(np.maximum(first - math.exp(middle) * second, 0).sum())
        low, high = (middle, high) if excess > delta else (low, middle)
    return high


# Every method with a proven claim, at each of its trusts. The shifts of a round are of one standard
# deviation of the noise, or pure epsilons of 1.
_TABLE = {"rows": 2, "cols": 3}
_VIEWS: Mapping[str, dict[str, object]] = {
    "local": {"trust": "local", "noise_multiplier": 1.0},
    "distributed": {"trust": "distributed", "noise_multiplier": 1.0},
    "central": {"trust": "central", "noise_multiplier": 1.0, "relation": "add-or-remove"},
    "local-flag": {"trust": "local", "noise_multiplier": 1.0, "clip_quantile": 0.5},
    # Of two members one is an insider, so half of the noise is left.
    "member-flag": {
        "trust": "distributed", "noise_multiplier": math.sqrt(2), "relation": "add-or-remove",
        "clip_quantile": 0.5,
    },
    "central-flag": {"trust": "central", "noise_multiplier": 1.0, "clip_quantile": 0.5},
}  # fmt: skip
_SETTINGS: Mapping[str, dict[str, object]] = {
    **{
        f"{kind}-{view}": {**table, "clip": 1.0, **settings}
        for kind, table in {
            "gaussian": {}, "sketch-gaussian": _TABLE, "skellam": {}, "sketch-skellam": _TABLE,
        }.items()
        for view, settings in _VIEWS.items()
    },
    "cpsgd": {"clip": 0.625, "limit": 2.0, "levels": 65, "trials": 750},
    "cpsgd-member": {"clip": 0.625, "limit": 2.0, "levels": 65, "trials": 1500},
    "laplace": {"clip": 1.0, "per_round": 1.0},
    "sketch-laplace": {**_TABLE, "clip": 1.0, "per_round": 1.0},
    "gaussian-sampled": {
        "clip": 1.0, "noise_multiplier": 0.5, "relation": "add-or-remove", "trust": "central",
    },
}  # fmt: skip


def _standard(name: str) -> Release:
    # The longest name: `sketch-gaussian` and not `sketch`.
    kind = max((kind for kind in METHODS if name.startswith(kind)), key=len)
    settings = _SETTINGS[name]
    dim = 8 if "rows" in settings else 4
    method = build_method(kind, dim=dim, cohort=2, settings=settings)
    rate, insiders = 0.7 if "sampled" in name else None, 1 if "member" in name else 0
    release = Release.of(name, method, cohort=2, rate=rate, insiders=insiders)
    return replace(release, trials=_MANY)


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
    # Whichever setting the method's noise follows from; each has one of them.
    names = {field.name for field in fields(method)}
    name = next(name for name in _NOISE if name in names)
    return replace(method, **{name: _NOISE[name](getattr(method, name), factor)})


def _unclipped(method: Any) -> Method:
    """Return the method with a clip that no input reaches, and its noise as it was."""
    loose: Method = replace(method, clip=BEYOND * method.clip)
    if hasattr(method, "noise_multiplier") or hasattr(method, "per_round"):
        # The clip is larger and the noise must not be, or nothing would be wrong.
        loose = weaker(loose, 1 / BEYOND)  # noise follows the clip
    return loose


def _same_rows(release: Release, noise: Tensor) -> Tensor:
    method: Any = release.method
    cells = noise.flatten(1)[:, : method.rows * method.cols].view(-1, method.rows, method.cols)
    cells[:, 1:] = cells[:, :1]
    return noise


def _bare_flag(_: Release, noise: Tensor) -> Tensor:
    noise[:, -1] = 0
    return noise


def _cut(release: Release, noise: Tensor) -> Tensor:
    # Of the noise as it was drawn, whose standard deviation a simulation has measured.
    most = (_CUT * release.spread).to(noise.dtype)
    return torch.maximum(torch.minimum(noise, most), -most)


def _rows(release: Release) -> int:
    return getattr(release.method, "rows", 1)


def _seen_apart(release: Release) -> int:
    """Count the messages of a round that are seen, or can be computed from what is."""
    members = 1 + release.insiders if release.trust is Trust.DISTRIBUTED else 1
    return release.cohort_size if release.trust is Trust.LOCAL else members


def _is_drawn_at_once(release: Release) -> bool:
    """Whether noise is seen as it was drawn: a sum of several has other ends than each of them."""
    return release.trust is not Trust.DISTRIBUTED or _seen_apart(release) == release.cohort_size


@dataclass(frozen=True)
class Plant:
    """An error to plant in releases.

    Attributes:
        text: Description.
        trials: Trials of each world that find it; None for those of the release.
        applies: Whether a release can have it, and its adversary gains by it.
        sent: The method that is played, from the one that the claim is of.
        alter: What becomes of the noise of a batch.
    """

    text: str
    trials: int | None = _FEW
    applies: Callable[[Release], bool] = lambda _: True
    sent: Callable[[Any], Method] = lambda method: method
    alter: Callable[[Release, Tensor], Tensor] | None = None


_REPEATED = {"reused-noise": 1, "shared-noise": 0}  # place of what is left of (round, message)
PLANTS: Mapping[str, Plant] = {
    "small-noise": Plant("noise 20% too small", None, sent=partial(weaker, factor=0.8)),
    "row-blind": Plant(
        "sensitivity short of sqrt(rows)", TRIALS, lambda release: _rows(release) > 1,
        sent=lambda method: weaker(method, 1 / math.sqrt(method.rows)),
    ),
    "no-clip": Plant("vectors are not clipped", sent=_unclipped),
    "no-draw": Plant("everybody takes part", TRIALS, lambda release: release.rate is not None),
    "reused-noise": Plant(
        "the same noise in two rounds", applies=lambda release: release.rounds > 1
    ),
    "shared-noise": Plant(
        "the same noise in messages of a batch", applies=lambda release: _seen_apart(release) > 1
    ),
    "same-rows": Plant(
        "the same noise in every row", applies=lambda release: _rows(release) > 1, alter=_same_rows
    ),
    "bare-flag": Plant(
        "no noise on the flag", alter=_bare_flag,
        applies=lambda release: release.method.round_clip is not None,
    ),
    "cut-noise": Plant(
        "noise cut off at three standard deviations", None, _is_drawn_at_once, alter=_cut
    ),
    # Ways around the noise: an account that is copied, swapped or rolled back, or a plan
    # that counts some rounds only; a server's limit below the clip; an error of the
    # user's code, an evaluation, or a buffer that depends on data.
    "uncounted": Plant(
        "of two rounds one is counted", TRIALS, lambda release: release.rounds > 1
    ),
    "refused": Plant(
        "messages are refused by their norm, and counted",
        applies=lambda release: release.trust is Trust.CENTRAL and release.rate is None,
    ),
    "answered": Plant("a question about the vector is answered exactly"),
}  # fmt: skip
"""Errors by name."""


def planted(release: Release, error: str) -> Release | None:
    """Return the release with an error, under the name of both; None where it does not apply."""
    plant = PLANTS[error]
    if not (release.claim.noise_is_proven and plant.applies(release)):
        return None
    trials = release.trials if plant.trials is None else plant.trials
    return replace(release, name=f"{release.name}+{error}", error=error, trials=trials)
