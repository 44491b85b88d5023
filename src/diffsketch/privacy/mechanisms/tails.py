"""How long independent noise is, but for a probability that is stated."""

from __future__ import annotations

import math
from collections.abc import Callable

from diffsketch.errors import check

__all__ = ["noise_norm"]


def noise_norm(
    cells: int,
    variance: float,
    failure: float,
    *,
    log_tail: Callable[[float], float] | None = None,
) -> float:
    """A Euclidean norm that `cells` independent noises exceed with probability at most `failure`.

    * Sub-Gaussian noise (Gaussian, discrete Gaussian, binomial): `sqrt(variance) (sqrt(cells) +
      sqrt(2 ln(1/failure)))` (Hsu, Kakade, Zhang 2012).
    * Any other: no cell is beyond some `m` but with probability `failure / 2`, and squares up to
      `m**2`, whose variance is at most `m**2 variance`, add up to no more than Bernstein's
      inequality says, but with `failure / 2`.

    Guarantees (`tests/methods/test_honest.py`): norms of drawn messages exceed it at most so often.

    Args:
        cells: How many.
        variance: Of one, at most; for sub-Gaussian noise `v` with `E[exp(l x)] <= exp(v l**2 / 2)`.
        failure: In (0, 1).
        log_tail: A bound on the logarithm of `P[x >= room]`, and of `P[x <= -room]`, that falls to
            minus infinity; None for sub-Gaussian noise.
    """
    check(0 < failure < 1, "failure", "be in (0, 1)", failure)
    std = math.sqrt(variance)
    if log_tail is None:
        return std * (math.sqrt(cells) + math.sqrt(2 * math.log(1 / failure)))
    largest = std
    while log_tail(largest) > math.log(failure / (4 * cells)):
        largest *= 1.05
    logs = math.log(2 / failure)
    third = largest**2 * logs / 3
    return math.sqrt(
        cells * variance + third + math.sqrt(third**2 + 2 * cells * variance * largest**2 * logs)
    )
