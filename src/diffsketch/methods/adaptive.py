"""Adaptive clipping: a clip that follows a quantile of the clients' norms, privately.

A fixed clip has to be guessed: one that is too large adds noise for nothing, one that is too small
cuts updates off, and the right one changes as a model learns. Here every message has one more cell,
the *flag*, which says whether what is sent had to be clipped. It is part of what is clipped, noised
and accounted for: whoever sees the sum learns from the flags what the claim allows, and no more.
From the noisy sum of the flags everyone computes the share `b` of clients within the clip, and the
next round's clip `clip * exp(-rate * (b - quantile))`.

The rule needs no more than what is published. So servers and clients that follow the totals have
the same clip, and a run that continues goes on with the same.

References:
    G. Andrew, O. Thakkar, B. McMahan, S. Ramaswamy (2021), Differentially Private Learning with
    Adaptive Clipping.
"""

from __future__ import annotations

import math

from diffsketch.errors import check
from diffsketch.privacy.claim import Trust

__all__ = ["check_clip", "flag_share", "next_clip"]

_RATE = 0.2  # of the paper
_ERROR = 0.05  # standard deviation of the share of clients within the clip, if it can be had
_NOISY = 0.5  # from here on that noise is more than the share can tell, and the rate is lower
_LEAST_SHARE, _MOST_SHARE, _ANY_SHARE = 0.02, 0.5, 0.1
_LEAST, _MOST = 1e-30, 1e30  # of a clip: float32 has room for what it is multiplied by


def check_clip(clip: float) -> None:
    """Raise an `ArgumentError` unless rounds can have this clip."""
    check(_LEAST <= clip <= _MOST, "clip", f"be in [{_LEAST:g}, {_MOST:g}]", clip)


def flag_share(noise_multiplier: float, *, cohort: int | None, trust: Trust) -> float:
    """Size of the flag, in clips.

    The larger, the better the share of clients within the clip is known, and the more noise all
    other cells have: a factor `sqrt(1 + s**2)` for a flag of size `s`. The share is known to
    `noise_multiplier * sqrt(1 + s**2) / (s * n)`, with `n` the cohort, or its square root where
    every client adds all of the noise. The rule: the smallest `s` for which that is 0.05, the
    paper's advice, but at least 0.02 and at most 0.5, which costs 12% of noise. Without a cohort
    it is 0.1.

    >>> round(flag_share(3.0, cohort=1000, trust=Trust.DISTRIBUTED), 4)
    0.0601
    """
    if cohort is None:
        return _ANY_SHARE
    together = math.sqrt(cohort) if trust == Trust.LOCAL else cohort
    ratio = _ERROR * together / noise_multiplier
    share = 1 / math.sqrt(ratio**2 - 1) if ratio > 1 else _MOST_SHARE
    return min(max(share, _LEAST_SHARE), _MOST_SHARE)


def next_clip(clip: float, within: float, quantile: float, *, error: float) -> float:
    """The clip of the next round.

    The rate is the paper's 0.2 as long as the noise leaves something to be seen. Else it is lower,
    with the square of the noise, so that the clip settles near the quantile all the same, only
    later; and no round changes a clip by more than a factor of e.

    Args:
        clip: This round's.
        within: Noisy share of clients that needed no clipping. May be below 0 or above 1.
        quantile: Of the norms, that is aimed at.
        error: Standard deviation of the noise on the share.

    >>> next_clip(1.0, 0.9, 0.5, error=0.05)  # too large: most are within
    0.9231163463866358
    """
    rate = _RATE * min(1.0, (_NOISY / error) ** 2)
    step = min(max(rate * (within - quantile), -1.0), 1.0)
    return min(max(clip * math.exp(-step), _LEAST), _MOST)
