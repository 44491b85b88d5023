"""cpSGD's mechanism: a few levels per coordinate, and binomial noise, under a secure sum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from diffsketch.errors import MismatchError, check, check_positive, check_whole
from diffsketch.privacy.accounting import events
from diffsketch.privacy.claim import (
    NoClaim,
    ProvenClaim,
    Relation,
    RelationName,
    Scope,
    Trust,
    Unit,
)
from diffsketch.privacy.clipping import clip_coordinates, clip_norm, stochastic_round
from diffsketch.privacy.mechanisms.integer import noise_norm
from diffsketch.privacy.noise import Noise


class PaperSetting(NamedTuple):
    """A row of the DiffSketch paper's table of cpSGD parameters, for 10 workers in a round."""

    claimed: float
    bits: int
    levels: int
    trials: int


# None of the paper's settings meets the condition of the theorem that they appeal to.
PAPER_SETTINGS = (
    PaperSetting(5.0, 4, 12, 4),
    PaperSetting(5.0, 5, 23, 9),
    PaperSetting(10.0, 4, 14, 2),
    PaperSetting(10.0, 5, 28, 4),
)


class Shift(NamedTuple):
    """Norms of the change that one member can make to the sum of the levels."""

    l1: float
    l2: float
    largest: float
    failure: float  # the probability, over the rounding, that they are exceeded


@dataclass(frozen=True)
class BinomialMechanism:
    """Vectors of norm `clip`, on `levels` levels in `[-limit, limit]`, plus Bin(trials, 1/2).

    Steps are `s = 2 limit / (levels - 1)` wide. A vector is clipped to norm `clip`, its coordinates
    are clipped to `[-limit, limit]` and rounded at random to a level; binomial noise is added.

    Agarwal et al., Theorem 1, for fair trials, with `v = trials * cohort / 4` the variance of the
    noise in the sum: if `v >= max(23 ln(10 d / delta), 2 Dinf)`, a whole-number shift whose norms
    are at most D1, D2 and Dinf (in steps) is hidden with delta and

        epsilon = D2 sqrt(2 ln(1.25 / delta)) / sqrt(v)
            + (D2 7/4 sqrt(2 ln(10 / delta)) + D1 / 3) / (v (1 - delta / 10))
            + Dinf (2/3 ln(1.25 / delta) + 2/3 ln(20 d / delta) ln(10 / delta)) / v.

    The shift. Let `r = clip / s` (twice that for `replace`), the largest distance in steps before
    rounding. If both neighbours are rounded with the same random numbers, each coordinate of the
    shift is the exact distance rounded down or up, right on average. So `Dinf <= min(ceil(r),
    levels - 1)` (half of the levels suffice for add-or-remove), `D1 <= sqrt(d) r + d` and
    `D2 <= r + sqrt(d)` always. But for a probability `f` that is added to delta, with
    `L = ln(3 / f)` and `V = min(d/4, sqrt(d) r)` bounding the variance of the rounding,
    Bernstein's and Hoeffding's inequalities give, with `T = L/3 + sqrt(L**2/9 + 2 V L)`,

        D1 <= sqrt(d) r + min(T, sqrt(d L / 2)),  D2**2 <= r**2 + r sqrt(2 L) + V + T.

    The claim takes whichever gives the smaller epsilon (for the second, `f` and the theorem get
    half of delta each). Where the condition fails there is no theorem and no proven claim.

    Guarantees: the theorem is above the exact divergence of shifted binomials, and the shifts are
    not exceeded (`tests/privacy/test_binomial.py::test_theorem_bounds_the_exact_divergence`,
    `test_shift_bounds_hold`).

    >>> mechanism = BinomialMechanism(
    ...     dim=7850, clip=1.0, limit=1.0, levels=12, trials=4, cohort=10, delta=1e-5
    ... )
    >>> print(mechanism.claim.reason)
    the theorem needs noise of variance 524 in the sum, and 10 members give 10

    Args:
        dim: Length of the vectors.
        clip: Norm that vectors are clipped to.
        limit: Largest size of a coordinate on the grid.
        levels: `k` in the paper.
        trials: `m` in the paper.
        cohort: Members of the secure sum.
        delta: The delta of the claim.
        relation: Which data sets are neighbours; for add-or-remove a member's vector becomes zero.

    References:
        Agarwal, Suresh, Yu, Kumar, McMahan (2018), cpSGD: Communication-efficient and
        differentially-private distributed SGD.
    """

    dim: int
    clip: float
    limit: float
    levels: int
    trials: int
    cohort: int
    delta: float
    relation: RelationName = Relation.REPLACE

    def __post_init__(self) -> None:
        for name, least in (("dim", 1), ("levels", 2), ("trials", 1), ("cohort", 1)):
            check_whole(name, getattr(self, name), least=least)
        check_positive("clip", self.clip)
        check_positive("limit", self.limit)
        check(0 < self.delta < 1, "delta", "be in (0, 1)", self.delta)
        object.__setattr__(self, "relation", self._scope.relation)

    @cached_property
    def _scope(self) -> Scope:
        return Scope(Unit.CLIENT, self.relation, Trust.DISTRIBUTED)  # checks the relation

    @property
    def step(self) -> float:
        """Distance of two levels."""
        return 2 * self.limit / (self.levels - 1)

    @property
    def bits(self) -> int:
        """Bits of a cell of a message, which is in `[0, levels + trials)`."""
        return (self.levels + self.trials - 1).bit_length()

    @property
    def sum_bits(self) -> int:
        """Bits of a cell of the secure sum of the cohort's messages, which then never wraps."""
        return (self.cohort * (self.levels + self.trials - 1)).bit_length()

    @property
    def std(self) -> float:
        """Standard deviation of the noise in a coordinate of the cohort's sum."""
        return self.step * math.sqrt(self.cohort * self.trials / 4)

    @property
    def claim(self) -> ProvenClaim | NoClaim:
        """The claim of one round if the whole cohort contributed."""
        return self.claim_for(self.cohort)

    def claim_for(self, present: int) -> ProvenClaim | NoClaim:
        """The claim of one round, for `delta`, if only `present` members contributed."""
        check_whole("present", present, least=1, most=self.cohort)
        scope, variance = self._scope, present * self.trials / 4
        proven = [
            _theorem(shift, variance, self.delta - shift.failure, self.dim)
            for shift in self.shifts()
        ]
        if any(value < math.inf for value in proven):
            text = f"binomial noise of variance {variance:.4g} steps squared in a sum of {present}"
            return ProvenClaim(scope, events.approximate(min(proven), self.delta), text)
        least = _least_variance(self.shifts()[0], self.delta, self.dim)
        reason = (
            f"the theorem needs noise of variance {least:.4g} in the sum, and {present} members "
            f"give {variance:.4g}"
        )
        return NoClaim(scope, reason)

    def shifts(self) -> tuple[Shift, Shift]:
        """Two bounds on how far a member moves the sum: one for certain, one nearly so."""
        root, values = math.sqrt(self.dim), self._scope.relation.values
        # A vector moves by twice its norm if it is replaced, by its norm if it becomes zeros.
        r = self.clip / self.step * values
        span = (self.levels - 1) * values / 2
        largest = float(math.ceil(min(r, span)))
        # Half of delta for the rounding to exceed the bounds below, half for the theorem.
        failure = self.delta / 2
        log = math.log(3 / failure)
        variance = min(self.dim / 4, root * r)
        tail = log / 3 + math.sqrt(log**2 / 9 + 2 * variance * log)
        l1, l2 = root * r + self.dim, r + root
        likely1 = root * r + min(tail, root * math.sqrt(log / 2))
        likely2 = math.sqrt(r**2 + r * math.sqrt(2 * log) + variance + tail)
        return (
            Shift(min(l1, self.dim * largest), min(l2, root * largest), largest, 0.0),
            Shift(min(l1, likely1), min(l2, likely2), largest, failure),
        )

    def centred(self, total: Tensor, count: int) -> Tensor:
        """A sum of `count` messages in units of the data (float64), its noise around 0."""
        # The mean of fair coins; levels count from `-limit`, in steps.
        expected = count * self.trials / 2
        return (total.double() - expected) * self.step - count * self.limit

    def largest_norm(self, count: int, failure: float) -> float:
        """Norm of such a sum, but with probability `failure`: rounding moves a number by a step."""
        root = math.sqrt(self.dim)
        clipped = min(self.clip + root * self.step, root * self.limit)
        # By Hoeffding's lemma a trial is sub-Gaussian with a parameter of 1/4.
        noise = noise_norm(self.dim, count * self.trials / 4, failure)
        return count * clipped + self.step * noise

    def release(self, vectors: Tensor, noise: Noise) -> Tensor:
        """One message (int64, in `[0, levels + trials)`) for each vector of `(..., dim)`."""
        if vectors.dim() < 1 or vectors.shape[-1] != self.dim:
            raise MismatchError(f"expected vectors of {self.dim}, got {tuple(vectors.shape)}")
        clipped = clip_norm(vectors.detach().to("cpu", torch.float64), self.clip)
        places = (clip_coordinates(clipped, self.limit) + self.limit) / self.step
        # Clamped again, as the quotient may round to just beyond the last level.
        levels = stochastic_round(places.clamp(0, self.levels - 1), noise)
        added = noise.binomial(tuple(levels.shape), self.trials)
        return (levels + added).to(vectors.device)


def _least_variance(shift: Shift, delta: float, dim: int) -> float:
    return max(23 * math.log(10 * dim / delta), 2 * shift.largest)


def _theorem(shift: Shift, variance: float, delta: float, dim: int) -> float:
    """The theorem's epsilon for this delta; infinite where its condition fails."""
    if not variance >= _least_variance(shift, delta, dim):
        return math.inf
    # Term by term as in the docstring, for fair coins.
    log = math.log(10 / delta)
    main = shift.l2 * math.sqrt(2 * math.log(1.25 / delta) / variance)
    second = shift.l2 * 7 / 4 * math.sqrt(2 * log) + shift.l1 / 3
    second /= variance * (1 - delta / 10)
    third = 2 / 3 * (math.log(1.25 / delta) + math.log(20 * dim / delta) * log)
    return main + second + shift.largest * third / variance
