"""Privacy by random projections: the Sketched Gaussian Mechanism (SGM), and Gaussian mixing.

Both papers multiply data by a Gaussian matrix, add Gaussian noise, and average over the matrix as
well as over the noise. What is released then is normal with a mean of 0, and only its *variance*
depends on the data. That is true, with the exact epsilon (`variance_epsilon`), for whoever sees the
release and **nothing else that depends on the matrix**. A matrix that is known makes it the plain
Gaussian mechanism, with its larger epsilon; one that is applied again, to decode or to project
other data, tells what it hid.

`projection_cases` has an audit of either: of what SGM decodes with the projection (`sgm-step`, the
step that the paper's clients take and publish as a model), and of what mixing releases, its matrix
secret (`mixing-secret`). Only the direction in which a client's vector points matters, and a
Gaussian projection has no preferred one: the law of what is seen along it is the same for every
`dim`. So the first column of the projection is drawn, and no other.

*SGM.* Each client clips its vector to norm 1, projects it with `R` (`size` by `dim`, entries
`N(0, 1 / size)`), which the round's seed gives to all, and adds `N(0, std**2)` to each number. The
paper's law holds for whoever sees a client's message alone. Its Theorems 2.2 and 3.1 are about the
*model*, though. As we read its Algorithm 2, the step there is `R' (R sum(x) + noise)`, and `R'` is
not independent of what it decodes, so that the law of a message says nothing of the step. Along the
client's own direction `v`, the others' vectors being zero, the step is `|R v|**2 <x, v>` plus
noise: the plain Gaussian mechanism's shift of `1 / std`, whether or not `R` is known. No choice of
its constants mends that: with `std**2` of the order of `1 / sqrt(size)` the shift grows without
bound as `size` does.

*Mixing* releases `S X + std Z`: S and Z are standard normal, and `X` has a row for each example, of
norm 1 at most; the release has `size` rows, each a random combination of all. Given `X`, its rows
are independent and normal with the covariance `X'X + std**2`. Taking out an example `x` changes the
variance along one direction only, by the factor `1 - x' (X'X + std**2)^-1 x >= 1 - 1 / gamma`,
`gamma = least_eigenvalue + std**2`. The paper bounds the same law by Rényi divergences (its
Lemma 1, whose proof was checked). Its conditions: whoever holds the data keeps `S` secret, draws it
anew for each release and uses it for nothing else; `least_eigenvalue` is public, and bounds `X'X`
from below with the example in it.

References:
    Li, Chen, Banerjee (2025), Sketched Gaussian Mechanism for Private Federated Learning
    (arXiv 2509.08195), and Lev, Srinivasan, Shenfeld, Ligett, Sekhari, Wilson (2025), The Gaussian
    Mixing Mechanism (arXiv 2505.24603), both read with their appendices, in copies that had lost
    some displayed formulas: those used here are printed in their text, or were derived again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy import optimize, special, stats
from torch import Tensor

from diffsketch.auditing.attacks import Attack
from diffsketch.auditing.audits import PURE_DELTA, Adversary, Case, Game, Neighbours
from diffsketch.errors import check
from diffsketch.privacy import Epsilon, PaperClaim, Relation, Scope, SimulatedClaim, Trust, Unit
from diffsketch.privacy.accounting import events
from diffsketch.privacy.claim import Basis
from diffsketch.privacy.noise import NoiseKey
from diffsketch.sketch import SketchKey

DELTA = 1e-5  # that the claims are made for
SIZE, STD = 1000, 0.288  # of an SGM whose claimed epsilon is 3
MIXED_ROWS, GAMMA = 64, 8.0
_LARGEST = 700.0  # exponentials of more overflow
_ROOT = 1e-12  # how far a root may be from the one that is returned
_GAMMA_ROUNDING = 1e-9  # relative, and more than incomplete gamma functions lose
_POINTS = 1001  # of the densities of a step


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


def _normal(key: NoiseKey, index: int, *shape: int) -> Tensor:
    source = key.source(worker=index, round_index=0)
    return source.normal(shape, 1.0, dtype=torch.float64)


# --- SGM: the decoded step -------------------------------------------------------------------


def sgm_claim(size: int, std: float) -> PaperClaim:
    """The paper's claim of one round.

    Over `R` and the noise the sum is normal with variance `|sum(x)|**2 / size + std**2` (its Lemma
    2.1), so that the divergence of order `a` is at most `size (a ln(1 - 2u) - ln(1 - 2au)) /
    (2 (a - 1))` with `u = 1 / (std**2 size)` (Lemmas 2.2, C.3, C.4), and epsilon that plus
    `ln(1 / delta) / (a - 1)` (Lemma 2.3), the least over `a`, as its experiments take it. At a
    fixed noise it falls with `1 / sqrt(size)`.
    """
    # Else the divergence is infinite at every order.
    check(size * std**2 > 2, "std", "be above sqrt(2 / size)", std)
    u = 1 / (std**2 * size)
    # Orders from 1 to 1 / 2u, dense towards both ends.
    share = 1 / (1 + np.exp(-np.linspace(-35, 20, 5000)))
    excess = (1 / (2 * u) - 1) * share  # of the order over 1
    orders = 1 + excess
    with np.errstate(divide="ignore"):
        terms = orders * math.log1p(-2 * u) - np.log(np.maximum(1 - 2 * u * orders, 0))
    value = float(np.min((size / 2 * terms + math.log(1 / DELTA)) / excess))
    source = (
        "the Sketched Gaussian Mechanism's paper (whose proof is about a message under a "
        "secret projection, and not about what is decoded)"
    )
    scope = Scope(Unit.CLIENT, Relation.ADD_OR_REMOVE, Trust.DISTRIBUTED)
    return PaperClaim(scope, Epsilon(value, DELTA, 1, Basis.CLAIMED, scope), source)


def step_epsilon(size: int, std: float, delta: float) -> float:
    """The epsilon of one coordinate of the decoded step, the projection unknown: exact.

    The client's vector is all in this coordinate, or 0, and the others' are 0. With `z` the
    coordinate's column of the projection and `q = |z|**2`, chi-squared over `size`, it is
    `N(q, std**2 q)` or `N(0, std**2 q)` given `q`: two mixtures, whose hockey-stick divergence is
    an integral. A lower bound on the step's epsilon: other coordinates tell more.

    >>> round(step_epsilon(SIZE, STD, 1e-5), 2)
    20.31
    """
    half = size / 2
    width = 12 / math.sqrt(half)  # twelve standard deviations, of q and of the step
    far = 1 + width + 12 * std * math.sqrt(1 + width)
    q, step = np.linspace(max(1e-9, 1 - width), 1 + width, _POINTS, retstep=True)
    places, between = np.linspace(-far, far, 2 * _POINTS, retstep=True)
    weights = stats.gamma.pdf(q, half, scale=1 / half) * step * between
    first, second = (
        stats.norm.pdf(places[:, None], mean * q, std * np.sqrt(q)) @ weights for mean in (1, 0)
    )

    def excess(epsilon: float) -> float:
        weight = math.exp(epsilon)
        above, below = (
            np.maximum(a - weight * b, 0).sum() for a, b in ((first, second), (second, first))
        )
        return float(max(above, below)) - delta

    return least_epsilon(excess)


def sgm_step(size: int, std: float) -> Case:
    """Make the case of a coordinate of the decoded step, where a client has its vector, or not.

    With `z` the coordinate's column and `w` the noise, it is `|z|**2 + <z, w>`, of which the
    latter is normal given `z`: so the two are drawn, and not the numbers of a message. The other
    clients' vectors are 0, and known to be.

    Guarantees: the law of what the method decodes (`paper/tests/test_projections.py`).
    """

    def play(inputs: Tensor, noise: NoiseKey, _: SketchKey) -> Tensor:
        shares = special.ndtr(_normal(noise, 0, *inputs.shape).numpy())
        squared = torch.from_numpy(special.gammaincinv(size / 2, shares) / (size / 2))
        return inputs * squared + std * squared.sqrt() * _normal(noise, 1, *inputs.shape)

    seen = Attack("the coordinate itself", lambda *_: lambda messages: messages[:, 0])
    worlds = Neighbours(torch.ones(1), torch.zeros(1))
    return Case(
        "sgm-step", f"SGM, {size:,} numbers, noise {std:g}: the decoded step",
        sgm_claim(size, std), Game(play, worlds, Adversary.SECRET_PROJECTION), (seen,),
        deltas=(PURE_DELTA,), width=100, limit=lambda _, delta: step_epsilon(size, std, delta),
    )  # fmt: skip


# --- mixing: a release under a secret matrix -------------------------------------------------


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


def mixing_claim(size: int, gamma: float) -> SimulatedClaim:
    """The claim of Gaussian mixing: that of `size` numbers of variance 1 or `gamma / (gamma - 1)`.

    It is exact if `least_eigenvalue >= 1`: an example has that much along its own direction, so
    that with a smaller promise the bound is above what is true.
    """
    check(gamma > 1, "gamma", "be > 1 for a claim", gamma)
    event = events.approximate(variance_epsilon(size, gamma / (gamma - 1), DELTA), DELTA)
    # What hides the data is drawn by whoever holds them, as noise of the central model is.
    scope = Scope(Unit.EXAMPLE, Relation.ADD_OR_REMOVE, Trust.CENTRAL)
    return SimulatedClaim(scope, event, f"Gaussian mixing to {size} rows by a secret matrix")


def mixing_secret(size: int, gamma: float, *, point: float = 1.0) -> Case:
    """Make the case of an example of norm `point`, in the release or not: `point z + others r + w`.

    `z` and `r`, standard normal, are what the matrix makes of the example and of all others, `w` is
    noise of a variance of 0.5. Without the example there is no `z`: it changes the variance alone.
    An example of norm 1 and the others' eigenvalue of `gamma - 1.5` make up gamma with the noise.
    """
    others, std = math.sqrt(gamma - 1.5), math.sqrt(0.5)

    def play(inputs: Tensor, noise: NoiseKey, _: SketchKey) -> Tensor:
        z, w, r = (_normal(noise, index, len(inputs), 1, size) for index in range(3))
        return inputs[..., None] * (z * point) + std * w + others * r

    squares = Attack("likelihood ratio (variance)", lambda *_: lambda seen: (seen**2).sum(axis=1))
    ratio = 1 + point**2 / (gamma - 1)
    worlds = Neighbours(torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
    return Case(
        "mixing-secret", f"Gaussian mixing, {size} rows, gamma {gamma:g}",
        mixing_claim(size, gamma), Game(play, worlds, Adversary.SECRET_PROJECTION), (squares,),
        simulated=True, width=2 * size,
        limit=lambda _, delta: variance_epsilon(size, ratio, delta),
    )  # fmt: skip


def projection_cases() -> dict[str, Case]:
    """The cases by name: of SGM's claim first, then of mixing's, which is proven."""
    cases = (sgm_step(SIZE, STD), mixing_secret(MIXED_ROWS, GAMMA))
    return {case.name: case for case in cases}
