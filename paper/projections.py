"""Privacy by random projections: the Sketched Gaussian Mechanism (SGM), and Gaussian mixing.

Both papers multiply data by a Gaussian matrix, add Gaussian noise, and average over the matrix as
well as over the noise. What is released then is normal with a mean of 0, and only its *variance*
depends on the data. That is true, and proven here with the exact epsilon (`variance_epsilon`),
for whoever sees the release and **nothing else that depends on the
matrix**: `KeyTrust.SECRET`. A matrix that is known makes it the plain Gaussian mechanism, with its
larger epsilon; one that is applied again, to decode or to project other data, tells what it hid.

`projection_cases` has the audits: of what is decoded with the projection (`sgm-step`, the step that
the paper's clients take and publish as a model), and of messages under a secret one (`-secret`, the
claim that is proven). Of the vectors only the direction in which a client's points matters, and a
Gaussian projection has no preferred one: the law of what is seen along it is the same for every
`dim`. So the first column of the projection is drawn, and no other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import optimize, special, stats
from torch import Tensor

from diffsketch.auditing.attacks import Attack, Numbers
from diffsketch.auditing.audits import PURE_DELTA, Adversary, Case, Game, Neighbours
from diffsketch.errors import check, check_choice, check_whole
from diffsketch.privacy import Epsilon, PaperClaim, Relation, Scope, SimulatedClaim, Trust, Unit
from diffsketch.privacy.accounting import events
from diffsketch.privacy.claim import Basis, Claim
from diffsketch.privacy.noise import NoiseKey
from diffsketch.sketch import SketchKey

DELTA = 1e-5  # that the claims are made for
_CLIP = 1.0  # norm of a vector, tau in SGM's paper; of a row, C_X in that of mixing
_LARGEST = 700.0  # exponentials of more overflow
_ROOT = 1e-12  # how far a root may be from the one that is returned
_GAMMA_ROUNDING = 1e-9  # relative, and more than incomplete gamma functions lose
_POINTS = 1001  # of the densities of a step


class KeyTrust(StrEnum):
    """Those who may know a key: nobody who sees what is released by it, and it is used once.

    Of mechanisms alone: whoever decodes has the key, so no method of a mean has such a claim, and
    no engine sends by one.
    """

    SECRET = "secret-key"  # noqa: S105


@dataclass(frozen=True, init=False)
class SecretScope(Scope):
    """Scope of a claim that holds while a key is secret, and is used once."""

    trust: KeyTrust  # type: ignore[assignment]

    def __init__(self, unit: Unit, relation: Relation, trust: KeyTrust = KeyTrust.SECRET) -> None:
        super().__init__(unit, relation, Trust.LOCAL)
        object.__setattr__(self, "trust", check_choice("trust", trust, KeyTrust))

    @property
    def viewers(self) -> str:
        """Those whom the claim limits, without terms of the field."""
        return (
            "anyone who sees the release, but not the key, nor anything else that it was used for,"
        )


def least_epsilon(excess: Callable[[float], float]) -> float:
    """The epsilon from which on a falling function, a delta less the allowed one, is at most 0.

    Never less than that: a root is found up to rounding, which is added. Infinite if it is beyond
    what can be computed.
    """
    if excess(0.0) <= 0:
        return 0.0
    if excess(_LARGEST) > 0:
        return math.inf
    return float(optimize.brentq(excess, 0.0, _LARGEST, xtol=_ROOT)) + 2 * _ROOT


def epsilon_between(first: Numbers, second: Numbers, delta: float) -> float:
    """The least epsilon of two laws, given as their masses at the same places."""

    def excess(epsilon: float, above: Numbers, below: Numbers) -> float:
        return float(np.maximum(above - math.exp(epsilon) * below, 0).sum()) - delta

    pairs = ((first, second), (second, first))
    return max(least_epsilon(partial(excess, above=a, below=b)) for a, b in pairs)


def variance_epsilon(cells: int, ratio: float, delta: float) -> float:
    """The least epsilon with which normal numbers hide which of two variances they have.

    `cells` independent numbers have a mean of 0 and the variance 1, or `ratio` > 1. The ratio of
    the densities grows with the sum of squares, which is chi-squared: for either order of the two,
    delta is a difference of two tails, exactly. A smaller ratio tells less, since adding noise to
    both makes it smaller.

    >>> round(variance_epsilon(1000, 1 + 1 / (1000 * 0.3**2), 1e-5), 4)
    0.9709
    """
    shape, log, slope = cells / 2, cells * math.log(ratio), 1 - 1 / ratio

    def excess(epsilon: float) -> float:
        high, low = ((log + sign * 2 * epsilon) / slope / 2 for sign in (1, -1))
        weight, low = math.exp(epsilon), max(low, 0.0)
        above = special.gammaincc(shape, high / ratio) - weight * special.gammaincc(shape, high)
        below = special.gammainc(shape, low) - weight * special.gammainc(shape, low / ratio)
        return float(max(above, below)) - delta * (1 - _GAMMA_ROUNDING)

    return least_epsilon(excess)


def _secret_claim(unit: Unit, cells: int, ratio: float, how: str) -> SimulatedClaim:
    event = events.approximate(variance_epsilon(cells, ratio, DELTA), DELTA)
    scope = SecretScope(unit, Relation.ADD_OR_REMOVE)
    return SimulatedClaim(scope, event, f"{how} of {cells} numbers")


@dataclass(frozen=True)
class SketchedGaussian:
    """The Sketched Gaussian Mechanism (SGM) of a cohort's sum: `R sum(x) + noise`.

    Each member clips its vector to norm 1, projects it with `R` (`size` by `dim`, entries
    `N(0, 1 / size)`), which the round's seed gives to all, and adds `N(0, std**2)` to each number.

    *What the paper claims* (`claimed`). Over `R` and the noise the sum is normal with variance
    `|sum(x)|**2 / size + members std**2` (its Lemma 2.1), so that the divergence of order `a` is
    at most `size (a ln(1 - 2u) - ln(1 - 2au)) / (2 (a - 1))` with `u = 1 / (std**2 size)`
    (Lemmas 2.2, C.3, C.4), and epsilon that plus `ln(1 / delta) / (a - 1)` (Lemma 2.3), the least
    over `a`, as its experiments take it. At a fixed noise it falls with `1 / sqrt(size)`.

    *What of it is true.* That law holds for whoever sees a client's message alone: `secret`, with
    the exact epsilon. Its Theorems 2.2 and 3.1 are about the *model*, though, and get there by
    "post-processing": but the step is `R' (R sum(x) + noise)` (its Algorithm 2), and `R'` is not
    independent of what it decodes. Along the client's own direction `v`, the others' vectors being
    zero, the step is `|R v|**2 <x, v>` plus noise: the plain Gaussian mechanism's shift of `1 /
    (std sqrt(members))`, whether or not `R` is known. No choice of its constants mends that: with
    `std**2` of the order of `1 / sqrt(size)` the shift grows without bound as `size` does. (The
    claim does not depend on the members. Where they are so many that the shift is small, it may be
    above the Gaussian mechanism's epsilon.)

    Guarantees (`paper/tests/test_projections.py`): the secret claim is the exact divergence, and
    never above the paper's; the released step exceeds the paper's.

    Args:
        size: Numbers of a message, b in the paper.
        std: Standard deviation of the noise of one member, sigma_g in the paper.
        members: Clients whose messages are summed.

    References:
        Li, Chen, Banerjee (2025), Sketched Gaussian Mechanism for Private Federated Learning
        (arXiv 2509.08195), read with its appendix, in a copy that had lost some displayed
        formulas: those used here are printed in its text, or were derived again.
    """

    size: int
    std: float
    members: int = 1

    def __post_init__(self) -> None:
        check_whole("size", self.size, least=1)
        check_whole("members", self.members, least=1)
        # Else the divergence is infinite at every order.
        check(self.size * self.std**2 > 2, "std", "be above sqrt(2 / size)", self.std)

    def __str__(self) -> str:
        several = f", sum of {self.members}" if self.members > 1 else ""
        return f"SGM, {self.size:,} numbers, noise {self.std:g}{several}"

    @property
    def total_std(self) -> float:
        """Standard deviation of the noise in the sum."""
        return self.std * math.sqrt(self.members)

    @property
    def claimed(self) -> PaperClaim:
        """The paper's claim of one round."""
        u = (_CLIP / self.std) ** 2 / self.size
        # Orders from 1 to 1 / 2u, dense towards both ends.
        share = 1 / (1 + np.exp(-np.linspace(-35, 20, 5000)))
        excess = (1 / (2 * u) - 1) * share  # of the order over 1
        orders = 1 + excess
        with np.errstate(divide="ignore"):
            terms = orders * math.log1p(-2 * u) - np.log(np.maximum(1 - 2 * u * orders, 0))
        value = float(np.min((self.size / 2 * terms + math.log(1 / DELTA)) / excess))
        source = (
            "the Sketched Gaussian Mechanism's paper (whose proof is about a message under a "
            "secret projection, and not about what is decoded)"
        )
        return PaperClaim(_SUM, Epsilon(value, DELTA, 1, Basis.CLAIMED, _SUM), source)

    @property
    def secret(self) -> SimulatedClaim:
        """The claim for those who see one client's message, and never anything else of the key."""
        ratio = 1 + _CLIP**2 / (self.size * self.std**2)
        return _secret_claim(Unit.CLIENT, self.size, ratio, "a secret projection")


_SUM = Scope(Unit.CLIENT, Relation.ADD_OR_REMOVE, Trust.DISTRIBUTED)
SGM = SketchedGaussian(1000, 0.288)
"""A message of one client, or a sum of one: the claimed epsilon is 3 (delta 1e-5)."""
PAPER = SketchedGaussian(400_000, 0.0883, members=4)
"""The paper's vision task at its largest epsilon, and its clients of a round."""
SECRET = SketchedGaussian(100, 0.27)
"""One with more to see: a shift of about one standard deviation of the sum of squares."""


# --- the decoded step ------------------------------------------------------------------------


def step_epsilon(mechanism: SketchedGaussian, delta: float) -> float:
    """The epsilon of one coordinate of the decoded step, the projection unknown: exact.

    The client's vector is all in this coordinate, or 0, and the others' are 0. With `z` the
    coordinate's column of the projection and `q = |z|**2`, chi-squared over `size`, it is
    `N(q, total_std**2 q)` or `N(0, total_std**2 q)` given `q`: two mixtures, whose hockey-stick
    divergence is an integral. A lower bound on the step's epsilon: other coordinates tell more.

    >>> round(step_epsilon(SGM, 1e-5), 2)
    20.31
    """
    half, std = mechanism.size / 2, mechanism.total_std
    width = 12 / math.sqrt(half)  # twelve standard deviations, of q and of the step
    far = _CLIP * (1 + width) + 12 * std * math.sqrt(1 + width)
    q, step = np.linspace(max(1e-9, 1 - width), 1 + width, _POINTS, retstep=True)
    places, between = np.linspace(-far, far, 2 * _POINTS, retstep=True)
    weights = stats.gamma.pdf(q, half, scale=1 / half) * step * between
    first, second = (
        stats.norm.pdf(places[:, None], mean * q, std * np.sqrt(q)) @ weights
        for mean in (_CLIP, 0.0)
    )
    return epsilon_between(first, second, delta)


def sgm_step(mechanism: SketchedGaussian, *, name: str) -> Case:
    """Make the case of a coordinate of the decoded step, where a client has its vector, or not.

    With `z` the coordinate's column and `w` the noise, it is `|z|**2 + <z, w>`, of which the
    latter is normal given `z`: so the two are drawn, and not the numbers of a message. The other
    members' vectors are 0, and known to be.

    Guarantees: the law of what the method decodes (`paper/tests/test_projections.py`).
    """
    half, std = mechanism.size / 2, mechanism.total_std

    def play(inputs: Tensor, noise: NoiseKey, _: SketchKey) -> Tensor:
        shares = special.ndtr(_normal(noise, 0, *inputs.shape).numpy())
        squared = torch.from_numpy(special.gammaincinv(half, shares) / half)
        return inputs * squared + std * squared.sqrt() * _normal(noise, 1, *inputs.shape)

    seen = Attack("the coordinate itself", lambda *_: lambda messages: messages[:, 0])
    worlds = Neighbours(torch.tensor([_CLIP]), torch.zeros(1))
    return Case(
        name, f"{mechanism}: the decoded step", mechanism.claimed,
        Game(play, worlds, Adversary.SECRET_PROJECTION), (seen,), deltas=(PURE_DELTA,), width=100,
        limit=lambda _, delta: step_epsilon(mechanism, delta),
    )  # fmt: skip


def _normal(key: NoiseKey, index: int, *shape: int) -> Tensor:
    source = key.source(worker=index, round_index=0)
    return source.normal(shape, 1.0, dtype=torch.float64)


# --- messages and releases -------------------------------------------------------------------


def secret_message(
    name: str, title: str, claim: Claim, *, size: int, point: float, others: float, std: float
) -> Case:
    """Make the case of a message under a secret projection: `point z + others r + std w`, or not.

    `z` and `r`, standard normal, are what the projection makes of the point under attack and of
    all others, `w` is noise. Without the point there is no `z`: it changes the variance alone.
    """

    def play(inputs: Tensor, noise: NoiseKey, _: SketchKey) -> Tensor:
        z, w, r = (_normal(noise, index, len(inputs), 1, size) for index in range(3))
        return inputs[..., None] * (z * point) + std * w + others * r

    squares = Attack("likelihood ratio (variance)", lambda *_: lambda seen: (seen**2).sum(axis=1))
    ratio = 1 + point**2 / (others**2 + std**2)
    worlds = Neighbours(torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
    return Case(
        name, title, claim, Game(play, worlds, Adversary.SECRET_PROJECTION), (squares,),
        simulated=True, width=2 * size,
        limit=lambda _, delta: variance_epsilon(size, ratio, delta),
    )  # fmt: skip


def mixing_claim(size: int, gamma: float) -> SimulatedClaim:
    """The claim of Gaussian mixing of a table of data, `S X + std Z`; S and Z are standard normal.

    `X` has a row for each example, of norm 1 at most; the release has `size` rows, each a
    random combination of all. Given `X`, its rows are independent and normal with the covariance
    `X'X + std**2`. Taking out an example `x` changes the variance along one direction only, by the
    factor `1 - x' (X'X + std**2)^-1 x >= 1 - 1 / gamma`, `gamma = least_eigenvalue + std**2`:
    so epsilon is at most that of `size` numbers with a variance of 1 or of
    `gamma / (gamma - 1)`, and exactly that if `least_eigenvalue >= 1`. (An example has that
    much along its own direction: with a smaller promise the bound is above what is true.) The paper
    bounds the same law by Rényi divergences (its Lemma 1, whose proof was checked).

    *Its conditions.* `S` is secret from all who see the release, is drawn anew for each, and serves
    for nothing else. `least_eigenvalue` is public, and bounds `X'X` from below for the larger of
    two neighbours, the data set with the example in it; 0 always does. (Without it, an eigenvalue
    may be smaller by 1.) And `gamma > 1`, else nothing is claimed.

    It estimates `X'X`, and no mean of rows: the mean of `S` is 0, and to undo `S` one has to know
    it. The paper's Algorithm 1, which estimates the least eigenvalue privately, is not judged.

    References:
        Lev, Srinivasan, Shenfeld, Ligett, Sekhari, Wilson (2025), The Gaussian Mixing Mechanism
        (arXiv 2505.24603), read with its appendix, in a copy that had lost some displayed formulas.
    """
    check(gamma > 1, "gamma", "be > 1 for a claim", gamma)
    return _secret_claim(Unit.EXAMPLE, size, gamma / (gamma - 1), "Gaussian mixing")


# An example of norm 1, in the release or not, among others of an eigenvalue of 6.5 and noise of a
# variance of 0.5: gamma is 8 with the example's own.
MIXING: dict[str, Any] = {"size": 64, "point": 1.0, "others": math.sqrt(6.5), "std": math.sqrt(0.5)}


def projection_cases() -> dict[str, Case]:
    """The cases by name: of the paper's claims first, then of those that are proven."""
    size, point = SECRET.size, _CLIP / math.sqrt(SECRET.size)
    cases = (
        sgm_step(SGM, name="sgm-step"),
        sgm_step(PAPER, name="sgm-step-paper"),
        secret_message(
            "sgm-secret", f"{SECRET}: message", SECRET.secret,
            size=size, point=point, others=0.0, std=SECRET.std,
        ),
        secret_message(
            "mixing-secret", "Gaussian mixing, 64 rows, gamma 8", mixing_claim(64, 8.0), **MIXING
        ),
    )  # fmt: skip
    return {case.name: case for case in cases}
