"""Ready cases by name: bare sketches, exploits, releases of methods, planted errors.

*Bare sketches*, without noise: what Theorem 1 claims, and what attacks show. The neighbours replace
one coordinate at the value that the paper bounds coordinates by, alpha (the 90th percentile of the
others' sizes, 1.645 standard deviations), by its negative or by 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffsketch.auditing import attacks
from diffsketch.auditing.audits import PURE_DELTA, Adversary, Case, Game, Neighbours, every_trial
from diffsketch.auditing.exploits import EXPLOITS
from diffsketch.auditing.releases import PLANTS, RELEASES, Release, known_numbers, planted
from diffsketch.errors import ArgumentError, nearest
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.events import epsilon_for
from diffsketch.privacy.claim import NoClaim, Relation, Scope, Trust, Unit
from diffsketch.privacy.noise import Noise
from diffsketch.privacy.theorems import theorem1
from diffsketch.sketch import CountSketch, HashSeed, SketchKey

ALPHA = 1.645  # in standard deviations of the other coordinates
_COORDINATE = 3
_BARE_SKETCH = CountSketch(2000, 5, 2, "pairwise")
_Maker = Callable[[], Case]


# -- Bare sketches ---------------------------------------------------------------------------------


def bare_unknown() -> Case:
    """Make the case of public hashes, the other coordinates unknown and Gaussian.

    Theorem 1 claims 0.24, while this adversary's shift of mu = 0.23 means 0.89 at delta = 1e-5; an
    event of probability 0.1 shows about 0.40, give or take 0.02.
    """

    def limit(hashes: SketchKey, delta: float) -> float:
        _, shift = attacks.best_direction(_BARE_SKETCH, _COORDINATE, hashes.seed(0))
        return _shift_epsilon(2 * ALPHA * shift, delta)

    attack = attacks.unknown_others(_BARE_SKETCH, _COORDINATE)
    return _bare(
        "bare-unknown", ALPHA, -ALPHA, Adversary.OTHERS_UNKNOWN,
        attacks=(attack,), trials=100_000, limit=limit,
    )  # fmt: skip


def bare_secret() -> Case:
    """Make the case of secret hashes, the other coordinates unknown and Gaussian.

    Signs are hidden, so 0 is the other value. Theorem 1 claims 0.24, and a bound of 0.06
    is proven (`paper/calculations.py`).
    """
    attack = attacks.hidden_hashes(_BARE_SKETCH, ALPHA)
    return _bare(
        "bare-secret", ALPHA, 0.0, Adversary.SECRET_HASHES, attacks=(attack,), trials=10_000
    )


def _bare(
    name: str, first_value: float, second_value: float, adversary: Adversary, *,
    spread: float = 1.0, **more: Any,
) -> Case:  # fmt: skip
    """Make a case in which one coordinate has either value; with a spread, of whole numbers."""
    sketch, first = _BARE_SKETCH, known_numbers(_BARE_SKETCH.dim)
    title = f"bare sketch, {sketch.rows} x {sketch.cols} of {sketch.dim:,} coordinates"
    if spread != 1:
        first, title = (spread * first).round(), f"{title}, whole numbers"
    second = first.clone()
    # The one coordinate that is under attack; all others are alike.
    first[_COORDINATE], second[_COORDINATE] = first_value, second_value
    sizes = sketch.dim, sketch.rows, sketch.cols
    claim = theorem1(*sizes, alpha=ALPHA * spread, sigma=spread)
    protocol = every_trial(lambda inputs, _, seed: sketch.encode(inputs, seed))
    game = Game(protocol, Neighbours(first, second), adversary)
    return Case(name, title, claim, game, deltas=(PURE_DELTA,), **more)


def bare_crowd(unit: Unit) -> Case:
    """Make the case of one unit among four, of whom the others are unknown and Gaussian.

    One example in the sketch of a worker's summed gradient, or one client in the secure sum of the
    clients' sketches.
    """
    sketch, units, of_examples = CountSketch(64, 2, 16), 4, unit is Unit.EXAMPLE
    target = known_numbers(sketch.dim) / 2
    first, second = torch.zeros(units, sketch.dim), torch.zeros(units, sketch.dim)
    first[0] = target

    def send(inputs: Tensor, _: Noise, seed: HashSeed) -> Tensor:
        if of_examples:
            return sketch.encode(inputs.sum(dim=1), seed)
        # Each client sketches its own vector; only the sum of the tables is seen.
        tables = sketch.encode(inputs.reshape(-1, sketch.dim), seed)
        return tables.reshape(*inputs.shape[:2], sketch.rows, sketch.cols).sum(dim=1)

    def limit(hashes: SketchKey, delta: float) -> float:
        matrix = attacks.matrix_of(sketch, hashes.seed(0))
        # What the unit adds to the table, against the covariance of what the others add.
        shift = matrix @ target.double().numpy()
        # The others reach all tables that a sketch can make, and so does the shift.
        square = shift @ np.linalg.pinv(matrix @ matrix.T, rcond=1e-10, hermitian=True) @ shift
        return _shift_epsilon(math.sqrt(float(square) / (units - 1)), delta)

    trust = Trust.LOCAL if of_examples else Trust.DISTRIBUTED
    reason = "without noise only the others' values hide a unit, and they may be known"
    return Case(
        f"bare-{unit}",
        "bare sketch of a sum of 4 examples" if of_examples else "sum of 4 clients' bare sketches",
        NoClaim(Scope(unit, Relation.ADD_OR_REMOVE, trust), reason),
        Game(every_trial(send), Neighbours(first, second), Adversary.OTHERS_UNKNOWN),
        deltas=(0.01,), trials=50_000, limit=limit,
    )  # fmt: skip


def _shift_epsilon(mu: float, delta: float) -> float:
    """Epsilon of a Gaussian shift. A lower bound for the mechanism: other adversaries know more."""
    return math.inf if math.isinf(mu) else epsilon_for(events.gaussian(1 / mu), delta)


_BARE: Mapping[str, _Maker] = {
    # The standard adversary.
    "bare-known": lambda: _bare(
        "bare-known", ALPHA, -ALPHA, Adversary.ALL_KNOWN, limit=lambda *_: math.inf
    ),
    "bare-unknown": bare_unknown,
    "bare-secret": bare_secret,
    # The others are known whole numbers: secret hashes do not help.
    "bare-parity": lambda: _bare(
        "bare-parity", 1.0, 0.0, Adversary.SECRET_HASHES_OTHERS_KNOWN, spread=3.0,
        attacks=(attacks.row_parity(_BARE_SKETCH.cols),), trials=4000, limit=lambda *_: math.inf,
    ),
    "bare-example": partial(bare_crowd, Unit.EXAMPLE),
    "bare-client": partial(bare_crowd, Unit.CLIENT),
}  # fmt: skip


# -- All cases by name -----------------------------------------------------------------------------


@cache
def cases() -> Mapping[str, _Maker]:
    """Return every case, in the order in which they are reported; `case+error` has an error."""
    by_name = {**_BARE, **EXPLOITS}
    for make in RELEASES.values():
        by_name |= _with_errors(make(), list(PLANTS))
    return by_name


def select(
    *,
    names: Sequence[str] = (),
    plants: Sequence[str] = (),
    release: Release | None = None,
    is_quick: bool = False,
) -> Mapping[str, _Maker]:
    """Choose what is run: all, or what was named.

    Each error of `plants` is put into every case that it applies to, beside that case. A `release`
    of a user's own method is run instead of the cases. Quick runs have no planted errors by
    default, but those of attacks.
    """
    known = cases()
    # Every name that stands behind a plus, in the order of the cases.
    errors = dict.fromkeys(name.partition("+")[2] for name in known if "+" in name)
    for error in plants:
        if error not in errors:
            raise ArgumentError(f"plant must be one of {', '.join(errors)}, got plant={error!r}")
    if release is not None:
        return _with_errors(release, plants)
    for name in names:
        if name not in known:
            raise ArgumentError(
                f"case must be one that diffsketch audit --list names, got case={name!r}; "
                f"{nearest(name, known, see='that list')}"
            )
    if names or plants:
        chosen = set(names)
        for name in known:
            twin, _, error = name.partition("+")
            if error and error in plants and (not names or twin in names):
                chosen |= {twin, name}
    elif is_quick:
        chosen = {"bare-known", "bare-parity", *EXPLOITS, *RELEASES}
    else:
        chosen = set(known)
    return {name: make for name, make in known.items() if name in chosen}


def _with_errors(release: Release, errors: Sequence[str]) -> dict[str, _Maker]:
    """Return the case of a release, and those of it with errors, where they apply."""
    versions = [release, *(planted(release, error) for error in errors if error in PLANTS)]
    return {each.name: each.case for each in versions if each is not None}
