"""Errors that a programmer could make, put into a release on purpose: an audit must find them.

The claim stays that of the correct method. Each is put into every case that it applies to.

* `small-noise`: the noise is 20% too small.
* `row-blind`: the sensitivity is too small by `sqrt(rows)`, as if a coordinate were in one
  row of a table.
* `no-clip`: vectors are sent as long as they are, with the noise for clipped ones.
* `reused-noise`: two rounds have the same noise, as after a rollback of noise that follows from a
  key and the round. Differences of messages then have none.
* `no-draw`: everybody takes part, where the claim counts on a secret sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from diffsketch.auditing.releases import BEYOND, Release
from diffsketch.methods.base import Method

__all__ = ["PLANTS", "Plant", "weaker"]

_TOO_SMALL = 0.8
_FEWER = 5000  # trials of each world, for what is plain to see
# The setting that noise follows from, and how: `(value, factor)` to the value for so much noise.
_NOISE: Mapping[str, Callable[[Any, float], Any]] = {
    "noise_multiplier": lambda value, factor: value * factor,
    "per_round": lambda value, factor: value / factor,
    "std": lambda value, factor: value * factor,
    "trials": lambda value, factor: round(value * factor**2),
}


@dataclass(frozen=True)
class Plant:
    """An error.

    Attributes:
        text: What is wrong, in words.
        put_in: The release with the error; None where it does not apply.
    """

    text: str
    put_in: Callable[[Release], Release | None]

    def planted(self, release: Release, name: str) -> Release | None:
        """The release with the error, under the name of both; None where it does not apply."""
        changed = self.put_in(release)
        if changed is None:
            return None
        return replace(changed, name=f"{release.name}+{name}", planted=self.text)


def weaker(method: Method, factor: float) -> Method:
    """The same method with `factor` times the noise."""
    names = {field.name for field in fields(method)}
    name = next(name for name in _NOISE if name in names)
    return replace(method, **{name: _NOISE[name](getattr(method, name), factor)})


def _small_noise(release: Release) -> Release:
    return replace(release, sent=weaker(release.method, _TOO_SMALL))


def _row_blind(release: Release) -> Release | None:
    rows = getattr(release.method, "rows", 1)
    return replace(release, sent=weaker(release.method, 1 / math.sqrt(rows))) if rows > 1 else None


def _no_clip(release: Release) -> Release | None:
    """The clip is where no input reaches it; noise that follows it is made what it was."""
    method: Any = release.method
    if method.name == "projunit":
        return None  # directions are sent, however long the vector is
    loose = replace(method, clip=BEYOND * method.clip)
    if hasattr(method, "noise_multiplier") or hasattr(method, "per_round"):
        loose = weaker(loose, 1 / BEYOND)
    return replace(release, sent=loose, trials=_FEWER)


def _reused_noise(release: Release) -> Release:
    return replace(release, rounds=2, is_reused=True, trials=_FEWER)


def _no_draw(release: Release) -> Release | None:
    return None if release.rate is None else replace(release, is_drawn=False)


PLANTS: Mapping[str, Plant] = {
    "small-noise": Plant("noise 20% too small", _small_noise),
    "row-blind": Plant("sensitivity short of sqrt(rows)", _row_blind),
    "no-clip": Plant("vectors are not clipped", _no_clip),
    "reused-noise": Plant("the same noise in two rounds", _reused_noise),
    "no-draw": Plant("everybody takes part", _no_draw),
}
