"""Privacy by random projections: the Sketched Gaussian Mechanism, and Gaussian mixing.

Both papers multiply data by a Gaussian matrix, add Gaussian noise, and average over the matrix as
well as over the noise. What is released then is normal with a mean of 0, and only its *variance*
depends on the data. That is true, and proven here with the exact epsilon (`variance_epsilon`),
for whoever sees the release and **nothing else that depends on the
matrix**: `KeyTrust.SECRET`. A matrix that is known makes it the plain Gaussian mechanism, with its
larger epsilon; one that is applied again, to decode or to project other data, tells what it hid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from diffsketch.errors import check, check_choice, check_positive, check_whole
from diffsketch.privacy.accounting import events
from diffsketch.privacy.claim import (
    Basis,
    Epsilon,
    NoClaim,
    PaperClaim,
    Relation,
    Scope,
    SimulatedClaim,
    Trust,
    Unit,
)

_LARGEST_FOUND = 700.0  # exponentials of more overflow
_GAMMA_ROUNDING = 1e-9  # relative, and more than incomplete gamma functions lose


class KeyTrust(StrEnum):
    """Those who may know a key: nobody who sees what is released by it, and it is used once.

    Of mechanisms alone: whoever decodes has the key, so no method of a mean has such a claim, and
    no engine sends by one.
    """

    SECRET = "secret-key"  # noqa: S105


@dataclass(frozen=True)
class SecretScope(Scope):
    """Scope of a claim that holds while a key is secret, and is used once."""

    trust: KeyTrust = KeyTrust.SECRET  # type: ignore[assignment]

    def __post_init__(self) -> None:
        for name, kind in (("unit", Unit), ("relation", Relation), ("trust", KeyTrust)):
            object.__setattr__(self, name, check_choice(name, getattr(self, name), kind))

    @property
    def viewers(self) -> str:
        """Those whom the claim limits, without terms of the field."""
        return (
            "anyone who sees the release, but not the key, nor anything else that it was used for,"
        )


def variance_epsilon(cells: int, ratio: float, delta: float) -> float:
    """The least epsilon with which normal numbers hide which of two variances they have.

    `cells` independent numbers have a mean of 0 and the variance 1, or `ratio` > 1. The ratio of
    the densities grows with the sum of squares, which is chi-squared: for either order of the two,
    delta is a difference of two tails, exactly. A smaller ratio tells less, since adding noise to
    both makes it smaller.

    >>> round(variance_epsilon(1000, 1 + 1 / (1000 * 0.3**2), 1e-5), 4)
    0.9709
    """
    from scipy.special import gammainc, gammaincc

    check_whole("cells", cells, least=1)
    check(1 <= ratio < math.inf, "ratio", "be >= 1 and finite", ratio)
    check(0 < delta < 1, "delta", "be in (0, 1)", delta)
    shape, log, slope = cells / 2, cells * math.log(ratio), 1 - 1 / ratio

    def excess(epsilon: float) -> float:
        high, low = ((log + sign * 2 * epsilon) / slope / 2 for sign in (1, -1))
        weight = math.exp(epsilon)
        above = gammaincc(shape, high / ratio) - weight * gammaincc(shape, high)
        below = gammainc(shape, low) - weight * gammainc(shape, low / ratio) if low > 0 else 0.0
        return float(max(above, below)) - delta * (1 - _GAMMA_ROUNDING)

    if slope == 0 or excess(0.0) <= 0:
        return 0.0
    least, most = 0.0, 1.0
    while excess(most) > 0:
        least, most = most, 2 * most
        if most > _LARGEST_FOUND:
            return math.inf
    for _ in range(60):
        middle = (least + most) / 2
        least, most = (middle, most) if excess(middle) > 0 else (least, middle)
    return most


@dataclass(frozen=True)
class SketchedGaussian:
    """The Sketched Gaussian Mechanism (SGM) of a cohort's sum: `R sum(x) + noise`.

    Each member clips its vector to norm `clip`, projects it with `R` (`size` by `dim`, entries
    `N(0, 1 / size)`), which the round's seed gives to all, and adds `N(0, std**2)` to each number.

    *What the paper claims* (`claim_for`). Over `R` and the noise the sum is normal with variance
    `|sum(x)|**2 / size + members std**2` (its Lemma 2.1), so that the divergence of order `a` is
    at most `size (a ln(1 - 2u) - ln(1 - 2au)) / (2 (a - 1))` with `u = (clip / std)**2 / size`
    (Lemmas 2.2, C.3, C.4), and epsilon that plus `ln(1 / delta) / (a - 1)` (Lemma 2.3), the least
    over `a`, as its experiments take it. At a fixed noise it falls with `1 / sqrt(size)`.

    *What of it is true.* That law holds for whoever sees the sum alone: `secret_claim`, with the
    exact epsilon. Its Theorems 2.2 and 3.1 are about the *model*, though, and get there by
    "post-processing": but the step is `R' (R sum(x) + noise)` (its Algorithm 2), and `R'` is not
    independent of what it decodes. Along the client's own direction `v`, the others' vectors being
    zero, the step is `|R v|**2 <x, v>` plus noise: the plain Gaussian mechanism's shift of `clip /
    (std sqrt(members))`, whether or not `R` is known. No choice of its constants mends that: with
    `std**2` of the order of `1 / sqrt(size)` the shift grows without bound as `size` does. (The
    claim does not depend on the members. Where they are so many that the shift is small, it may be
    above the Gaussian mechanism's epsilon.)

    *Repaired* (`projected_clip`): projections are clipped as well, and the claim is the Gaussian
    mechanism's, for whoever knows all but the vectors and the noise.

    Guarantees (`paper/tests/test_projections.py`): the secret claim is the exact divergence, and
    never above the paper's; the released step exceeds the paper's.

    Args:
        size: Numbers of a message, b in the paper.
        clip: Norm of a vector, tau in the paper.
        std: Standard deviation of the noise of one member, sigma_g in the paper.
        delta: That the claims are made for.
        projected_clip: Norm of a projected vector, for the repaired form.

    References:
        Li, Chen, Banerjee (2025), Sketched Gaussian Mechanism for Private Federated Learning
        (arXiv 2509.08195), read with its appendix, in a copy that had lost some displayed
        formulas: those used here are printed in its text, or were derived again.
    """

    size: int
    clip: float
    std: float
    delta: float = 1e-5
    projected_clip: float | None = None

    def __post_init__(self) -> None:
        check_whole("size", self.size, least=1)
        check_positive("clip", self.clip)
        check_positive("std", self.std)
        check(0 < self.delta < 1, "delta", "be in (0, 1)", self.delta)
        if self.projected_clip is not None:
            check_positive("projected_clip", self.projected_clip)

    def claim_for(self, present: int) -> SimulatedClaim | PaperClaim | NoClaim:
        """The claim of one round if so many contribute: proven only with `projected_clip`."""
        check_whole("present", present, least=1)
        scope = Scope(Unit.CLIENT, Relation.ADD_OR_REMOVE, Trust.DISTRIBUTED)
        if self.projected_clip is not None:
            multiplier = self.std * math.sqrt(present) / self.projected_clip
            text = f"Gaussian noise on clipped projections in a sum of {present}"
            return SimulatedClaim(scope, events.gaussian(multiplier), text)
        value = self._claimed
        if math.isinf(value):
            reason = "the divergence is infinite at every order: size * std**2 <= 2 * clip**2"
            return NoClaim(scope, reason)
        source = (
            "the Sketched Gaussian Mechanism's paper (whose proof is about a message under a "
            "secret projection, and not about what is decoded)"
        )
        return PaperClaim(scope, Epsilon(value, self.delta, 1, Basis.CLAIMED, scope), source)

    @property
    def _claimed(self) -> float:
        u = (self.clip / self.std) ** 2 / self.size
        if not 2 * u < 1:
            return math.inf
        # Orders from 1 to 1 / 2u, dense towards both ends.
        share = 1 / (1 + np.exp(-np.linspace(-35, 20, 5000)))
        excess = (1 / (2 * u) - 1) * share  # of the order over 1
        orders = 1 + excess
        with np.errstate(divide="ignore"):
            terms = orders * math.log1p(-2 * u) - np.log(np.maximum(1 - 2 * u * orders, 0))
        return float(np.min((self.size / 2 * terms + math.log(1 / self.delta)) / excess))

    def secret_claim(self, present: int = 1) -> SimulatedClaim | NoClaim:
        """The claim of one round for those who see the sum, and never anything else of the key.

        The others' sum has the norm at which one more vector changes the variance most.
        """
        check_whole("present", present, least=1)
        check(self.projected_clip is None, "projected_clip", "be None", self.projected_clip)
        noise = present * self.size * self.std**2
        worst = (math.sqrt(self.clip**2 + 4 * noise) - self.clip) / 2
        others = min(worst, (present - 1) * self.clip)
        ratio = ((others + self.clip) ** 2 + noise) / (others**2 + noise)
        return _secret_claim(Unit.CLIENT, self.size, ratio, self.delta, "a secret projection")


@dataclass(frozen=True)
class GaussianMixing:
    """Gaussian mixing of a table of data: `S X + std Z`, with `S` and `Z` standard normal.

    `X` has a row for each example, of norm `clip` at most; the release has `size` rows, each a
    random combination of all. Given `X`, its rows are independent and normal with the covariance
    `X'X + std**2`. Taking out an example `x` changes the variance along one direction only, by the
    factor `1 - x' (X'X + std**2)^-1 x >= 1 - 1 / gamma`, `gamma = (least_eigenvalue + std**2) /
    clip**2`: so epsilon is at most that of `size` numbers with a variance of 1 or of
    `gamma / (gamma - 1)`, and exactly that if `least_eigenvalue >= clip**2`. (An example has that
    much along its own direction: with a smaller promise the bound is above what is true.) The paper
    bounds the same law by Rényi divergences (its Lemma 1, whose proof was checked).

    *Its conditions.* `S` is secret from all who see the release, is drawn anew for each, and serves
    for nothing else. `least_eigenvalue` is public, and bounds `X'X` from below for the larger of
    two neighbours, the data set with the example in it; 0 always does. (Without it, an eigenvalue
    may be smaller by `clip**2`.) And `gamma > 1`, else nothing is claimed.

    It estimates `X'X`, and no mean of rows: the mean of `S` is 0, and to undo `S` one has to know
    it. The paper's Algorithm 1, which estimates the least eigenvalue privately, is not judged.

    Args:
        size: Rows of the release, k in the paper.
        clip: Norm of a row of the data, C_X in the paper.
        std: Standard deviation of the noise, sigma in the paper.
        least_eigenvalue: Of `X'X` with the example, lambda_min in the paper.
        delta: That the claim is made for.

    References:
        Lev, Srinivasan, Shenfeld, Ligett, Sekhari, Wilson (2025), The Gaussian Mixing Mechanism
        (arXiv 2505.24603), read with its appendix, in a copy that had lost some displayed formulas.
    """

    size: int
    clip: float
    std: float
    least_eigenvalue: float = 0.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        check_whole("size", self.size, least=1)
        check_positive("clip", self.clip)
        check(0 <= self.std < math.inf, "std", "be >= 0 and finite", self.std)
        least = self.least_eigenvalue
        check(0 <= least < math.inf, "least_eigenvalue", "be >= 0 and finite", least)
        check(0 < self.delta < 1, "delta", "be in (0, 1)", self.delta)

    @property
    def gamma(self) -> float:
        """The least variance of what is mixed in any direction, in squared norms of a row."""
        return (self.least_eigenvalue + self.std**2) / self.clip**2

    @property
    def claim(self) -> SimulatedClaim | NoClaim:
        """The claim of one release, for whoever learns nothing else of `S`."""
        if not self.gamma > 1:
            scope = SecretScope(Unit.EXAMPLE, Relation.ADD_OR_REMOVE)
            return NoClaim(scope, f"mixing needs gamma > 1, and gamma = {self.gamma:.4g}")
        ratio = self.gamma / (self.gamma - 1)
        return _secret_claim(Unit.EXAMPLE, self.size, ratio, self.delta, "Gaussian mixing")


def _secret_claim(
    unit: Unit, cells: int, ratio: float, delta: float, how: str
) -> SimulatedClaim | NoClaim:
    scope, value = SecretScope(unit, Relation.ADD_OR_REMOVE), variance_epsilon(cells, ratio, delta)
    if math.isinf(value):
        return NoClaim(scope, f"epsilon is in the hundreds for {how} of {cells} numbers")
    return SimulatedClaim(scope, events.approximate(value, delta), f"{how} of {cells} numbers")
