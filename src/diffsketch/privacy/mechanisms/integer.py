"""Integer noise on whole numbers: discrete Gaussian, discrete Laplace and Skellam.

A message is a clipped and rounded table plus integer noise, modulo `2**bits`. Whoever runs a
secure sum sees only the sum of the messages modulo `2**bits`. Reducing it is post-processing, so
the modulus costs no privacy; a sum that wraps costs accuracy, with a probability stated here.

**Domination: Gaussian noise on real numbers that is at most as private.** Let
`X` be noise on all whole numbers with probabilities `p(t) > 0` and curvatures

    kappa(t) = log(p(t)**2 / (p(t - 1) p(t + 1))),    0 <= kappa(t) <= kappa for every t.

*Theorem.* To see `X` or `X + D`, with independent `X` in every cell and `D` any whole vector, tells
no more than to see `Z` or `Z + w |D|`, with `Z` standard normal, `|D|` the L2 norm and any `w` with

    (*)  kappa <= K(w) = 2 log((2 Phi(w/2) - 1) / (Phi(3w/2) - Phi(w/2))).

So over any rounds, adaptively or on samples, the noise is at least as private as Gaussian noise of
standard deviation `1 / w`. It is a whole-number form of Caffarelli's contraction theorem.

*Proof.* Let `z(t)` be the point with `P[Z >= z(t)] = P[X >= t]`, `w(t) = z(t + 1) - z(t)`, and
`M(x, v) = P[x <= Z < x + v]`, so that `p(t) = M(z(t), w(t))`.

1. *Where `w(t)` has a local maximum*, `p(t - 1) <= M(z - v, v)` and `p(t + 1) <= M(z + v, v)` for
   `z = z(t)`, `v = w(t)`. So `kappa >= 2 log M(z, v) - log M(z - v, v) - log M(z + v, v)`. This is
   the mean of `v**2 (1 - V(x))` over `x` about `z` with the weight of a triangle of half-width `v`,
   `V(x)` being the variance of `Z` given that it is in `[x, x + v]`, as `(log M)'' = V - 1`.
2. *`V` falls with the distance of the window from the centre.* Put at 0, the window holds the
   density `exp(-u**2 / 2 + c u)` on `abs(u) <= v/2`; its third central moment is the derivative of
   the variance with respect to `c`. Let its mean `m` be >= 0. Then `f(m + s) - f(m - s)` for
   `s >= 0` has no sign change but from + to -: the log-ratio is linear in `s`, until `m + s` leaves
   the window first. Its integral with `s` is 0, so that with `s**3` it is <= 0.
3. Hence the mean in 1 is least for a window about 0, where it is `K(v)`: `kappa >= K(w(t))`. `K`
   increases, since `phi(v s) / phi(v r)` falls with `v` for `s > r`. So no local maximum exceeds
   `w`.
4. *Nor does anything else.* If `w(a) > w`, values below `w(a)` follow on both sides, and the
   largest between them is a local maximum. Else, on the right say, `z(t) >= w(a) t - const`, so
   that `log P[X >= t] <= -(w(a) t)**2 / 2 + O(t)`; but `log p(t) >= -kappa t**2 / 2 - O(t)` as no
   curvature exceeds `kappa`, and `kappa <= w**2` since `V >= 0`.
5. So `z(t) - z(t - s) <= s w` for whole `s >= 0`: whoever rejects `X` for `X + s` from `t` on is as
   powerful as somebody who rejects `Z` for `Z + s w` from `z(t)` on, or less. As `kappa(t) >= 0`,
   likelihood ratios are monotone and such tests, or a mixture of two, are the best; mixtures too
   are below the power of the Gaussian, which is concave. By Blackwell's theorem `(X, X + s)` is a
   post-processing of `(Z, Z + s w)`. So is a table of cells of Gaussian ones, which `|D|` sums up.

`V <= v**2 / 12` gives `K(w) >= w**2 - w**4 / 12` (a log-concave density on a window varies no more
than an exponential one of equal mean, for the quotient's logarithm is concave, and that one no more
than a uniform one), and `Phi(3w/2) <= 1` gives `K(w) >= 2 log((2 Phi(w/2) - 1) / Phi(-w/2))`. Both
can be solved for `w` in (*): `widest_step`, 2.2% above the best `w` at worst.

Guarantees: exact enumeration of one and two cells and of several rounds is never above, and some of
it is if the noise is taken to be 1% larger (`tests/privacy/test_domination.py`).

References:
    L. Caffarelli, "Monotonicity properties of optimal transportation and the FKG and related
    inequalities", 2000.
    J. Dong, A. Roth, W. Su, "Gaussian differential privacy", 2022.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_positive, check_whole
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.budget import PoissonSampler
from diffsketch.privacy.claim import (
    ProvenClaim,
    Relation,
    RelationName,
    Scope,
    Trust,
    TrustName,
    Unit,
)
from diffsketch.privacy.clipping import (
    MAX_BITS,
    CoordinateQuantizer,
    Quantizer,
    WholeTables,
    centre,
    wrap,
)
from diffsketch.privacy.noise import Noise

_ROUNDING = 1e-9  # relative, and more than the arithmetic here can lose
_BESSEL_ERROR = 1e-13  # of the logarithm of a quotient: a hundred times what SciPy's has
_HALVINGS = 60


def noise_norm(
    cells: int, variance: float, failure: float, log_tail: Callable[[float], float] | None = None
) -> float:
    """Return a Euclidean norm that `cells` noises exceed with probability at most `failure`.

    * Sub-Gaussian noise (Gaussian, discrete Gaussian, binomial): `sqrt(variance) (sqrt(cells) +
      sqrt(2 ln(1/failure)))` (Hsu, Kakade, Zhang 2012).
    * Any other: no cell is beyond some `m` but with probability `failure / 2`, and squares up to
      `m**2`, whose variance is at most `m**2 variance`, add up to no more than Bernstein's
      inequality says, but with `failure / 2`. `log_tail` bounds the logarithm of `P[x >= margin]`,
      and of `P[x <= -margin]`, and falls to minus infinity.

    Guarantees (`tests/methods/test_honest.py`): drawn messages exceed it no more often.
    """
    check(0 < failure < 1, "failure", "be in (0, 1)", failure)
    std = math.sqrt(variance)
    if log_tail is None:
        return std * (math.sqrt(cells) + math.sqrt(2 * math.log(1 / failure)))
    # In steps of 5%: the bound is at most that much too large.
    largest = std
    while log_tail(largest) > math.log(failure / (4 * cells)):
        largest *= 1.05
    logs = math.log(2 / failure)
    third = largest**2 * logs / 3
    return math.sqrt(
        cells * variance + third + math.sqrt(third**2 + 2 * cells * variance * largest**2 * logs)
    )


def widest_step(curvature: float) -> float:
    """A `w` that satisfies (*): the most that a step takes, in standard deviations of a Gaussian.

    >>> round(1 / widest_step(1 / 30.0**2), 4)
    29.9986
    """
    if curvature <= 2.05:  # where the two bounds on `K` are equal, nearly
        # The smaller root of `w**2 - w**4 / 12 = kappa`, without cancellation.
        square = 2 * curvature / (1 + math.sqrt(1 - curvature / 3))
        return math.sqrt(square) * (1 + _ROUNDING)
    from scipy.special import ndtri_exp

    # From `Phi(3w/2) <= 1`: `Phi(-w/2) = exp(-half) / (1 + 2 exp(-half))`.
    half = curvature / 2
    return -2 * float(ndtri_exp(-half - math.log1p(2 * math.exp(-half)))) * (1 + _ROUNDING)


@dataclass(frozen=True)
class IntegerMechanism(ABC):
    """A quantizer, integer noise, and a modulus. Subclasses say which noise.

    * `local` trust: every member adds all of the noise to its message.
    * `distributed` trust: every one of the `cohort` members adds its share, and the claim is about
      their secure sum. It holds while all of them contribute; `claim_for` says what holds if only
      some did. The relation add-or-remove means that a member's table becomes zero (it still adds
      its share of the noise). With `lost`, shares are for `cohort - lost` members: `lost` of them
      may stay away, or tell the viewer their noise, and the claim is the same.
    * `central` trust: members send messages without noise to a server which they trust, and which
      adds `draw` once, to the sum.

    A message is made in four steps, of which the first is the method's:

        cells   = encode(quantizer.prepared(vectors, noise))   a vector, or its table
        bounded = quantizer.bounded(cells)
        rounded = quantizer.rounded(bounded, noise)
        message = mechanism.noised(rounded, noise)

    where `prepared` is for coordinates that are bounded one by one.

    *Records.* Where the quantizer's unit is an example or a person, a message is the sum of many
    bounded and rounded tables, one for each record (`diffsketch.silos.messages`), with one
    member's noise. Each record is in it with probability `rate`, in secret, and the claim is
    amplified: let `P` be the law of the total without a record, given all others' tables, and `Q`
    that with it. By domination one random map takes `Z` to `P`, and `Z + w |D|` to `Q`, so it takes
    the mixture of these Gaussians with weights `1 - rate` and `rate` to that of `P` and `Q`. What
    the other records are, and how they are rounded, is the same in both worlds.

    Args:
        quantizer: Clipping and rounding, and with that the sensitivity.
        noise_multiplier: The noise over the sensitivity; the subclass says of which order.
        relation: Which data sets are neighbours.
        trust: Who adds the noise.
        cohort: Messages in a sum.
        bits: Bits of a number with noise; the modulus of a secure sum is `2**bits`.
        lost: Members under distributed trust whose noise the claim does without.
        rate: Probability of a record to be in a message. Draw with nothing but `sampler`.
        records: Records of a message, in the mean: for room in the sum, not for privacy.
    """

    quantizer: Quantizer | CoordinateQuantizer | WholeTables
    noise_multiplier: float
    relation: RelationName = field(default=Relation.REPLACE, kw_only=True)
    trust: TrustName = field(default=Trust.LOCAL, kw_only=True)
    cohort: int = field(default=1, kw_only=True)
    bits: int = field(default=32, kw_only=True)
    lost: int = field(default=0, kw_only=True)
    rate: float = field(default=1.0, kw_only=True)
    records: float = field(default=1.0, kw_only=True)

    whole: ClassVar[Literal[True]] = True  # messages are whole numbers
    adds_up: ClassVar[bool] = False  # whether shares of the noise make exactly its law
    _name: ClassVar[str]
    _sub_gaussian: ClassVar[bool] = False  # with `_noise_variance` as the parameter

    def __post_init__(self) -> None:
        # Names become members here, once, so that comparisons below are by identity.
        object.__setattr__(self, "relation", self._scope.relation)
        object.__setattr__(self, "trust", self._scope.trust)
        check_positive("noise_multiplier", self.noise_multiplier)
        check_whole("cohort", self.cohort, least=1)
        check_whole("bits", self.bits, least=1, most=MAX_BITS)
        check_whole("lost", self.lost, least=0)
        some_left = not self.lost or (self.shared and self.lost < self.cohort)
        check(some_left, "lost", "be below cohort, and 0 but for distributed trust", self.lost)
        check(0 < self.rate <= 1, "rate", "be in (0, 1]", self.rate)
        check_positive("records", self.records)
        if self.rate != 1 or self.records != 1:  # of clients, methods say nothing of samples
            unit = self._scope.unit
            check(unit in (Unit.EXAMPLE, Unit.PERSON), "unit", "be example or person", unit)

    @cached_property
    def _scope(self) -> Scope:
        return Scope(self.quantizer.bound.unit, self.relation, self.trust)  # converts names

    @cached_property
    def claim(self) -> ProvenClaim:
        """The claim of one round if every member of the cohort contributed its noise."""
        return self.claim_for(self.cohort)

    def claim_for(self, present: int) -> ProvenClaim:
        """State the claim of one round if only `present` members contributed noise.

        Under distributed trust fewer members mean less noise: never go on with `claim` then. The
        noise of more than `cohort - lost` does not count, as `lost` of them may tell theirs.
        """
        check_whole("present", present, least=1, most=self.cohort)
        present = min(present, self._parts) if self.shared else present
        std = f"{self._std_for(present):.4g}{self.quantizer.bound.measure}"
        text = f"{self._name} of standard deviation {std} on whole numbers"
        if self.shared:
            text += f", shared among {present} members,"
        event = self._event(present)
        if self.rate != 1:
            event = events.poisson_sampled(self.rate, event)
            text += f" on secret samples that each {self._scope.unit} joins with "
            text += f"probability {self.rate:.4g}"
        return ProvenClaim(self._scope, event, text)

    def sampler(self, members: int) -> PoissonSampler:
        """Sampler of the records of a message, of a party that has `members` of them."""
        return PoissonSampler(members, self.rate, self._scope.unit)

    @cached_property
    def shared(self) -> bool:
        """Whether members share the noise, and messages are taken modulo `2**bits`."""
        return self.trust is Trust.DISTRIBUTED

    @cached_property
    def step(self) -> float:
        """The value of 1 in units of the data."""
        return self.quantizer.granularity

    @property
    def std(self) -> float:
        """Standard deviation of the noise of `claim` in a cell, in units of the data."""
        return self._std_for(self._parts)

    @cached_property
    def message_bits(self) -> int:
        """Bits of a cell of a message: without noise, for central trust, the clip bounds it."""
        if self.trust is Trust.CENTRAL:
            return (self._summed(1) * self.quantizer.peak).bit_length() + 1
        return self.bits

    def sum_bits(self, count: int) -> int:
        """Bits of a cell of a sum of `count` messages, and of the noise that is added to it."""
        if self.shared:
            return self.bits
        return min(MAX_BITS, 1 + max(self.message_bits + (count - 1).bit_length(), self.bits))

    def noised(self, rounded: Tensor, noise: Noise) -> Tensor:
        """Add a member's noise: modulo `2**bits` under a secure sum, else cut off at the limits."""
        if self.trust is not Trust.CENTRAL:
            rounded = rounded + self.draw(tuple(rounded.shape), noise).to(rounded.device)
        return self.reduced(rounded, self.message_bits)

    def reduced(self, total: Tensor, bits: int) -> Tensor:
        """Bring whole numbers into `bits` bits: modulo `2**bits`, or signed and cut off."""
        if self.shared:
            return wrap(total, bits)
        # Cut off, not wrapped: an overflow then costs accuracy in one cell, and no sign.
        half = 1 << (bits - 1)
        return total.clamp(-half, half - 1)

    def centred(self, total: Tensor) -> Tensor:
        """Return the signed whole numbers that a sum, which may have wrapped, stands for."""
        return centre(total, self.bits) if self.shared else total

    def mean(
        self, total: Tensor, count: int | float, *, unit: float = 1.0, out: Tensor | None = None
    ) -> Tensor:
        """Compute the mean (float32) of what is in `count` messages from their sum.

        A length of 1 is `unit`. The mean is over the vectors, or over the records of all messages.
        """
        per_step = self.step * unit / (count * self.records)
        return torch.mul(self.centred(total), per_step, out=out)

    def overflow_bound(self) -> float:
        """Bound the probability that any cell of the sum wraps: accuracy, not privacy.

        Every member is taken to have its whole norm in the same cell.
        """
        sources = 1 if self.trust is Trust.CENTRAL else self.cohort
        # Room between the largest sum without noise and the end of the modulus.
        margin = (1 << (self.bits - 1)) - self._summed(self.cohort) * self.quantizer.peak
        if margin <= 0:
            return 1.0
        # A union bound over both tails of every cell.
        log_tail = math.log(2 * self.quantizer.cells) + self._log_tail(margin, sources)
        return math.exp(min(0.0, log_tail))

    def largest_cell(self, count: int, value: float, failure: float) -> float:
        """Bound a cell in which `count` messages have at most `value`, but with `failure`."""
        # Rounding adds a step to each.
        return count * (value + self.step) + self._noise_norm(count, 1, failure)

    def largest_norm(self, count: int, failure: float) -> float:
        """Bound the norm of the sum of `count` messages, in units of the data, but with `failure`.

        Sums that wrap only get shorter.
        """
        clipped = self._summed(count) * self.quantizer.longest * self.step
        return clipped + self._noise_norm(count, self.quantizer.cells, failure)

    def _summed(self, count: int) -> int:
        """Records of `count` messages, or more but for one in 10**9 sums; clients are one each."""
        if self.rate == self.records == 1:
            return count
        # Chernoff: a sum of independent zeros and ones, of mean m, exceeds m + sqrt(2 m l) + l
        # with probability exp(-l) at most.
        mean, logs = count * self.records, 9 * math.log(10)
        return math.ceil(mean + math.sqrt(2 * mean * logs) + logs)

    def _noise_norm(self, count: int, cells: int, failure: float) -> float:
        """Norm of the noise of `count` messages in `cells` cells, in units of the data."""
        if self.trust is Trust.CENTRAL:
            return 0.0
        tail = None if self._sub_gaussian else partial(self._log_tail, sources=count)
        variance = count * self._noise_variance / self._parts
        return self.step * noise_norm(cells, variance, failure, tail)

    def tail_bound(self, margin: float, *, count: int | None = None) -> float:
        """Bound the probability that noise in a cell of a sum is `margin` steps or more.

        The noise of the claim, or that of `count` messages.
        """
        sources = self._parts if count is None else count
        return math.exp(min(0.0, self._log_tail(margin, sources)))

    def with_bits_for(self, failure: float) -> Self:
        """The same with the fewest bits for which `overflow_bound` is at most `failure`."""
        check(0 < failure < 1, "failure", "be in (0, 1)", failure)
        for bits in range(1, MAX_BITS + 1):
            fitted = replace(self, bits=bits)
            if fitted.overflow_bound() <= failure:
                return fitted
        raise ArgumentError(f"no modulus of at most {MAX_BITS} bits holds the sum")

    def with_granularity_for(self, failure: float) -> Self:
        """The same with the finest step for which `overflow_bound` is at most `failure`."""
        check(0 < failure < 1, "failure", "be in (0, 1)", failure)
        quantizer = self.quantizer
        if not isinstance(quantizer, Quantizer):
            raise ArgumentError("granularity must be given where coordinates are rounded")
        # Bisection of the logarithm: steps range over ten orders of magnitude. At e**3 limits
        # nothing is left but roundings; e**-20 is nearly the finest that a quantizer takes.
        limit = math.log(quantizer.bound.limit)
        fine, coarse, fitting = limit - 20, limit + 3, None
        for _ in range(_HALVINGS + 1):
            middle = (fine + coarse) / 2 if fitting else coarse
            other = replace(self, quantizer=replace(quantizer, granularity=math.exp(middle)))
            if other.overflow_bound() <= failure:
                coarse, fitting = middle, other
            elif fitting is None:
                raise ArgumentError(f"bits must be more for this cohort, got bits={self.bits}")
            else:
                fine = middle
        return fitting or self

    def _std_for(self, present: int) -> float:
        part = present / self._parts if self.shared else 1.0
        return self.step * math.sqrt(self._noise_variance * part)

    @property
    def _parts(self) -> int:
        """Number of messages that the noise of the claim comes in."""
        return self.cohort - self.lost if self.shared else 1

    @property
    @abstractmethod
    def _noise_variance(self) -> float:
        """Variance of the noise that the claim rests on, in steps, at most."""

    @abstractmethod
    def draw(self, shape: tuple[int, ...], noise: Noise) -> Tensor:
        """Draw the noise of one message (of the server, for central trust): int64."""

    @abstractmethod
    def _event(self, present: int) -> events.Event:
        """Return the event of a round with the noise of `present` members."""

    @abstractmethod
    def _log_tail(self, margin: float, sources: int) -> float:
        """Bound the logarithm of P[a cell of the noise of `sources` messages >= margin]."""


@dataclass(frozen=True)
class DiscreteGaussianMechanism(IntegerMechanism):
    """Noise with probabilities proportional to `exp(-x**2 / (2 sigma**2))` on whole numbers.

    `sigma` is `noise_multiplier` times the L2 sensitivity of the rounded tables. Claims rest on
    domination by a Gaussian: all curvatures of one source of noise (local or central trust) are
    `1 / sigma**2`. So the epsilon is that of Gaussian noise whose variance is smaller by some 1/12.

    Under distributed trust each of `n` members adds noise of `s = sigma / sqrt(cohort)`. The sum is
    log-concave as its parts are, and its curvatures are at most

        1 / (n s**2) + 4 * sum(atanh(2 q(k) / (1 - q(k)**3)) for k in 1..n-1),
        q(k) = exp(-2 pi**2 s**2 k / (k + 1)).

    For the sum of `k` members has probabilities in proportion to `exp(-x**2 / (2 k s**2)) F(k, x)`,
    with `F(1, x) = 1`. To add another one makes `F(k + 1, x)` a sum over `y` of `F(k, y)
    exp(-(y - x k / (k + 1))**2 / (2 v))`, `v = s**2 k / (k + 1)`. By Poisson summation the sum of
    these exponentials alone is, up to a factor, one and `2 q(k)**(j**2) cos(2 pi j x k / (k + 1))`
    for every `j >= 1`, which is within `1 +- 2 q(k) / (1 - q(k)**3)`. So `log F(n, x)` is, up to a
    constant, at most the sum of the `atanh` in size, and its second difference at most four times
    that. (Kairouz et al. bound `F` in much the same way, also for shares of at least 1/2.)

    Guarantees: never below exact enumeration (`tests/privacy/test_domination.py`).

    References:
        Canonne, Kamath, Steinke (2020), The Discrete Gaussian for Differential Privacy.
        Kairouz, Liu, Steinke (2021), The Distributed Discrete Gaussian Mechanism for Federated
        Learning with Secure Aggregation.
    """

    fineness: ClassVar[float] = 4.0  # of the rounding steps that methods choose
    _name: ClassVar[str] = "discrete Gaussian noise"
    _sub_gaussian: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        # As Kairouz et al.: sums of narrower shares are far from a discrete Gaussian.
        requirement, wide = f"give shares >= 1/2 (not {self._share:.3g})", self._share >= 0.5
        check(wide or not self.shared, "noise_multiplier", requirement, self.noise_multiplier)

    @cached_property
    def _share(self) -> float:
        """The parameter of one message's noise."""
        # Shares of independent noise add up by their variances.
        sigma = self.noise_multiplier * self.quantizer.sensitivity(self.relation)
        return sigma / math.sqrt(self._parts)

    @property
    def _noise_variance(self) -> float:
        # That of a discrete Gaussian is at most its parameter's square.
        return self._parts * self._share**2

    def draw(self, shape: tuple[int, ...], noise: Noise) -> Tensor:
        """Draw the noise of one message: int64."""
        return noise.discrete_gaussian(shape, self._share)

    def _event(self, present: int) -> events.Event:
        share, members = self._share, present if self.shared else 1
        k = np.arange(1, members, dtype=np.float64)
        q = np.exp(-2 * (math.pi * share) ** 2 * k / (k + 1))
        # The second sum of the docstring: by how much sums of shares differ from one wide source.
        excess = 4 * float(np.arctanh(2 * q / (1 - q**3)).sum())
        curvature = 1 / (members * share**2) + excess
        shift = self.quantizer.sensitivity(self.relation)
        return events.gaussian(1 / (shift * widest_step(curvature)))

    def _log_tail(self, margin: float, sources: int) -> float:
        # A discrete Gaussian is sub-Gaussian with its own parameter, and so are sums.
        return -(margin**2) / (2 * sources * self._share**2)


@dataclass(frozen=True)
class DiscreteLaplaceMechanism(IntegerMechanism):
    """Noise with probabilities proportional to `exp(-abs(x) / scale)` on whole numbers.

    It hides one coordinate, which moves one cell in each of `rows` rows, by as much in each. A
    release is at most as revealing as `rows` releases of one real number each with Laplace noise
    of `noise_multiplier * rows` times the distance that it moves: over rounds they compose as
    such, and with a delta of 0 each release has an epsilon of `1 / noise_multiplier`. For this
    `scale` is the number `b` with

        D1 / b + rows / (4 b**2) = 1 / noise_multiplier,    b <= noise_multiplier D1 + 1/4,

    `D1` being the L1 sensitivity of the rounded tables.

    *Proof*, as for domination, with the Laplace distribution in place of the normal one. Let
    `z(t)` be the point above which a Laplace number of scale 1 is as likely as `X >= t`. As
    `P[X >= t]` is `exp(-t / b) / (1 + exp(-1 / b))` for `t >= 1`, `z` grows by `1 / b` from one
    whole number to the next, but from 0 to 1 by `1 / b + 2 log(cosh(1 / (2 b)))`, at most
    `1 / b + 1 / (4 b**2)`. So to move a cell by `s` steps tells no more than to move a real number
    by `s / b + 1 / (4 b**2)`, of which `rows` with `s = D1 / rows` add up to the equation.

    Guarantees: never below exact enumeration (`tests/privacy/test_domination.py`).

    Not for distributed trust: sums of discrete Laplace numbers are not discrete Laplace.

    References:
        Ghosh, Roughgarden, Sundararajan (2009), Universally Utility-Maximizing Privacy Mechanisms.
    """

    _name: ClassVar[str] = "discrete Laplace noise"

    quantizer: CoordinateQuantizer

    def __post_init__(self) -> None:
        coordinates = isinstance(self.quantizer, CoordinateQuantizer)
        check(coordinates, "quantizer", "bound coordinates for Laplace noise", self.quantizer)
        super().__post_init__()
        check(not self.shared, "trust", "be local or central for Laplace noise", self.trust)

    @cached_property
    def scale(self) -> float:
        """Scale of the noise, in steps."""
        shift = self.quantizer.l1_sensitivity(self.relation)
        # The positive root of the equation in the docstring, for `b`.
        root = math.sqrt(shift**2 + self.quantizer.bound.rows / self.noise_multiplier)
        return self.noise_multiplier * (shift + root) / 2

    @property
    def _noise_variance(self) -> float:
        # Of the two-sided geometric law: `2 q / (1 - q)**2` with `q = exp(-1 / scale)`.
        return 2 * math.exp(-1 / self.scale) / math.expm1(-1 / self.scale) ** 2

    def draw(self, shape: tuple[int, ...], noise: Noise) -> Tensor:
        """Draw the noise of one message: int64."""
        return noise.discrete_laplace(shape, self.scale)

    def _event(self, present: int) -> events.Event:  # noqa: ARG002
        rows = self.quantizer.bound.rows
        return events.repeated(events.laplace(self.noise_multiplier * rows), rows)

    def _log_tail(self, margin: float, sources: int) -> float:
        # Chernoff: E[exp(l x)] = (1 - q)**2 / ((1 - q e**l) (1 - q e**-l)) with q = exp(-1/scale).
        # Any l in (0, 1/scale) gives a bound; this is the best for Laplace noise on real numbers.
        relative = margin / (sources * self.scale)
        slope = min(relative / (1 + math.hypot(1, relative)), 1 - 1e-9) / self.scale
        parts = (math.expm1(slope - 1 / self.scale), math.expm1(-slope - 1 / self.scale))
        log_mgf = 2 * math.log(-math.expm1(-1 / self.scale)) - sum(math.log(-x) for x in parts)
        return sources * log_mgf - slope * margin


@dataclass(frozen=True)
class SkellamMechanism(IntegerMechanism):
    """The difference of two Poisson numbers in every cell, of variance `mu` together.

    `sqrt(mu)` is `noise_multiplier` times the L2 sensitivity of the rounded tables. A sum of
    Skellam numbers is one, so shares of variance `mu / cohort` make exactly the same mechanism.

    Claims rest on domination by a Gaussian, the largest curvature being

        kappa = 2 log(I(0, mu) / I(1, mu)),    about 1 / mu + 1 / (2 mu**2):

    probabilities are `exp(-mu) I(abs(t), mu)` with the modified Bessel functions `I`, and
    curvatures are positive and fall with `abs(t)`. Indeed, with `x` for an angle from 0 to pi / 2,

        exp(-kappa(t)) = I(t - 1, mu) I(t + 1, mu) / I(t, mu)**2

    is the mean of `cos(2 x)` under a density in proportion to `I(2 t, 2 mu cos(x))` (Neumann's
    integral for products). From `t` to `t + 1` this is multiplied by two quotients of the form
    `r(n, y) = I(n + 1, y) / I(n, y)`, which grow with `y = 2 mu cos(x)`: angles become smaller.
    They do, since `r' = 1 - (2 n + 1) r / y - r**2` is positive for small `y`, and where it
    vanished first, `r''` would be `(2 n + 1) r / y**2 > 0`.

    So the epsilon is that of Gaussian noise whose variance is smaller by some 7/12: within 0.1%
    from a standard deviation of 30 steps on. `SecureNoise` draws from exactly this distribution.

    Guarantees: never below exact enumeration (`tests/privacy/test_domination.py`).

    >>> from diffsketch.privacy.clipping import NormBound
    >>> from diffsketch.privacy.clipping import Quantizer
    >>> quantizer = Quantizer(NormBound(1.0), granularity=0.001, cells=154)
    >>> mechanism = SkellamMechanism(quantizer, 4.0, trust=Trust.DISTRIBUTED, cohort=1000)
    >>> mechanism.with_bits_for(1e-6).bits
    22
    >>> print(mechanism.claim.epsilon(delta=1e-5, rounds=1))
    epsilon = 0.9264 at delta = 1e-05 over 1 round (proven; client unit, replace, distributed trust)

    References:
        Agarwal, Kairouz, Liu (2021), The Skellam Mechanism for Differentially Private Federated
        Learning.
        D. E. Amos (1974), Computation of modified Bessel functions and their ratios.
    """

    fineness: ClassVar[float] = 1.0  # of the rounding steps that methods choose
    adds_up: ClassVar[bool] = True
    _name: ClassVar[str] = "Skellam noise"

    @cached_property
    def _share(self) -> float:
        """The variance of one message's noise."""
        return self._noise_variance / self._parts

    @property
    def _noise_variance(self) -> float:
        return (self.noise_multiplier * self.quantizer.sensitivity(self.relation)) ** 2

    def draw(self, shape: tuple[int, ...], noise: Noise) -> Tensor:
        """Draw the noise of one message: int64."""
        return noise.skellam(shape, self._share)

    def draw_sum(self, shape: tuple[int, ...], noise: Noise, *, count: int) -> Tensor:
        """Draw what `draw` adds to the sum of `count` messages, at once: int64.

        A sum of Skellam numbers is a Skellam number of their variances' sum, so this is the law of
        that many draws, exactly. A trusted server adds its noise once, whatever the count is.
        """
        check_whole("count", count, least=1)
        sources = 1 if self.trust is Trust.CENTRAL else count
        return noise.skellam(shape, sources * self._share)

    def _event(self, present: int) -> events.Event:
        variance = self._share * (present if self.shared else 1)
        shift = self.quantizer.sensitivity(self.relation)
        return events.gaussian(1 / (shift * widest_step(_curvature(variance))))

    def _log_tail(self, margin: float, sources: int) -> float:
        # Chernoff: E[exp(l x)] = exp(mu (cosh(l) - 1)), at its best for l = asinh(margin / mu).
        mu = sources * self._share
        return margin**2 / (math.hypot(margin, mu) + mu) - margin * math.asinh(margin / mu)


def _curvature(variance: float) -> float:
    """`kappa` above, rounded up: with Bessel functions, or a bound of Amos where they cancel."""
    bound = 2 * math.log1p((0.5 + 2.25 / (variance + math.hypot(variance, 1.5))) / variance)
    if not 1e-9 < variance < 1e9:
        return bound
    from scipy.special import ive

    quotient = float(ive(0, variance) / ive(1, variance))
    return min(bound, 2 * math.log(quotient) + _BESSEL_ERROR)
