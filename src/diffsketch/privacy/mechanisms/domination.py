"""Gaussian noise on real numbers that is at most as private as given noise on whole numbers.

Let `X` be noise on all whole numbers with probabilities `p(t) > 0` and curvatures

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

import numpy as np
from scipy.special import log_ndtr, ndtri_exp

from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.events import Event

__all__ = ["gaussian_event", "widest_step"]

_ROUNDING = 1e-9  # relative, and more than the arithmetic here can lose


def widest_step(curvature: float) -> float:
    """A `w` that satisfies (*): the most that a step takes, in standard deviations of a Gaussian.

    >>> round(1 / widest_step(1 / 30.0**2), 4)
    29.9986
    """
    if curvature <= 2.05:
        square = 2 * curvature / (1 + math.sqrt(1 - curvature / 3))
        return math.sqrt(square) * (1 + _ROUNDING)
    half = curvature / 2
    return -2 * float(ndtri_exp(-half - math.log1p(2 * math.exp(-half)))) * (1 + _ROUNDING)


def gaussian_event(curvature: float, shift: float, *, distance: float = 0.0) -> Event:
    """The event of a Gaussian release that is at most as private.

    A release `P'` or `Q'` within a total variation `distance` of one, `P` or `Q`, that a Gaussian
    dominates is at most as private as that Gaussian and a failure, which tells everything, of
    probability `(distance + b) / (2 Phi(-mu / 2))`. Here `mu` is the Gaussian's shift and `b` its
    power at level `distance`. With `H = max_S P(S) - exp(e) Q(S)` for an epsilon `e >= 0`, and a
    power function that is concave, so that that of `Q(S)` exceeds that of `Q(S) - distance` by `b`
    at most,

        P'(S) - exp(e) Q'(S) <= distance + P(S) - exp(e) (Q(S) - distance) <= distance + b + H,

    or `<= distance + b` if `Q(S) < distance`. A failure `f` adds `f (1 - H)`, and `1 - H` is at
    least one less the total variation of the Gaussians, `2 Phi(-mu / 2)`. For `e < 0` it follows
    from `-e` with the two exchanged.

    Args:
        curvature: The largest one of the noise in a cell.
        shift: The L2 sensitivity, in steps.
        distance: Of what is drawn to the noise that was meant, for all cells together.
    """
    mu = shift * widest_step(curvature)
    event = events.gaussian(1 / mu)
    if distance == 0:
        return event
    log_power = log_ndtr(ndtri_exp(math.log(distance)) + mu)
    log_failure = np.logaddexp(math.log(distance), log_power) - math.log(2) - log_ndtr(-mu / 2)
    # The next power of two: releases that hardly differ have the same failure.
    failure = math.ldexp(1.0, math.frexp(math.exp(min(0.0, float(log_failure))))[1])
    return events.composed(event, events.approximate(0.0, min(failure, math.nextafter(1.0, 0.0))))
