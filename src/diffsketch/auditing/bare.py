"""Cases of a bare Count Sketch, without noise: what Theorem 1 claims, and what attacks show.

The neighbours replace one coordinate at the value that the paper bounds coordinates by, alpha (the
90th percentile of the others' sizes, 1.645 standard deviations), by its negative or by 0.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from diffsketch.auditing.adversaries import Adversary, Game, Neighbours, Sender, every_trial
from diffsketch.auditing.attacks import (
    Discriminant,
    HiddenHashes,
    RowParity,
    UnknownOthers,
    matrix_of,
)
from diffsketch.auditing.cases import PURE_DELTA, Case, known_numbers
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.composition import epsilon_for
from diffsketch.privacy.claim import (
    NoClaim,
    PaperClaim,
    Relation,
    Scope,
    Trust,
    Unit,
)
from diffsketch.privacy.noise import Noise
from diffsketch.privacy.theorems import theorem1
from diffsketch.sketch import CountSketch, HashSeed, SketchKey

__all__ = [
    "bare_client", "bare_example", "bare_known", "bare_parity", "bare_secret", "bare_unknown",
]  # fmt: skip

ALPHA = 1.645  # in standard deviations of the other coordinates
_COORDINATE = 3
_DIM, _ROWS, _COLS = 2000, 5, 2


def bare_known() -> Case:
    """Public hashes, all other coordinates known: the standard adversary."""
    sketch = CountSketch(_DIM, _ROWS, _COLS, "pairwise")
    claim = _claim(sketch)
    return Case(
        "bare-known",
        _title(sketch),
        claim,
        Game(every_trial(_sketched(sketch)), _coordinates(sketch, -ALPHA)),
        deltas=(PURE_DELTA,),
        trials=20_000,
        limit=lambda _, delta: _limit(math.inf, delta),
    )


def bare_unknown(
    dim: int = _DIM, cols: int = _COLS, *, name: str = "bare-unknown", trials: int = 100_000
) -> Case:
    """Public hashes, the other coordinates unknown and Gaussian.

    With dim = 2,000 and two columns, Theorem 1 claims 0.24, while this adversary's shift of
    mu = 0.23 means 0.89 at delta = 1e-5; an event of probability 0.1 shows about 0.40, give or
    take 0.02. With dim = 10,000 it claims 0.056 (two columns; 0.36 is true) and 0.34 (four; 0.52
    is true). The part of the latter curve that exceeds the claim takes some 10^7 trials to see.
    """
    sketch = CountSketch(dim, _ROWS, cols, "pairwise")
    attack = UnknownOthers(sketch, _COORDINATE)
    claim = _claim(sketch)

    def limit(hashes: SketchKey, delta: float) -> float:
        mu = attack.shift(hashes.seed(0), change=2 * ALPHA, std=1.0)
        return _limit(mu, delta)

    neighbours = _coordinates(sketch, -ALPHA)
    return Case(
        name,
        _title(sketch),
        claim,
        Game(every_trial(_sketched(sketch)), neighbours, Adversary.OTHERS_UNKNOWN),
        (attack,),
        deltas=(PURE_DELTA,),
        trials=trials,
        limit=limit,
    )


def bare_secret() -> Case:
    """Secret, fresh hashes and unknown others: signs are hidden, so a value is held against 0."""
    sketch = CountSketch(_DIM, _ROWS, _COLS, "pairwise")
    return Case(
        "bare-secret",
        _title(sketch),
        _claim(sketch),
        Game(every_trial(_sketched(sketch)), _coordinates(sketch, 0.0), Adversary.SECRET_HASHES),
        (HiddenHashes(sketch, ALPHA, 1.0),),
        deltas=(PURE_DELTA,),
        trials=10_000,
    )


def bare_parity() -> Case:
    """Secret hashes do not help where the others are known whole numbers."""
    sketch = CountSketch(_DIM, _ROWS, _COLS, "pairwise")
    spread = 3.0
    first = known_numbers(_DIM).mul(spread).round()
    second = first.clone()
    first[_COORDINATE], second[_COORDINATE] = 1.0, 0.0
    claim = theorem1(_DIM, _ROWS, _COLS, alpha=ALPHA * spread, sigma=spread)
    neighbours = Neighbours(first, second)
    return Case(
        "bare-parity",
        f"{_title(sketch)}, whole numbers",
        claim,
        Game(every_trial(_sketched(sketch)), neighbours, Adversary.SECRET_HASHES_OTHERS_KNOWN),
        (RowParity(sketch.cols),),
        deltas=(PURE_DELTA,),
        trials=4000,
        limit=lambda _, delta: _limit(math.inf, delta),
    )


def bare_example() -> Case:
    """One example in the sketch of a worker's summed gradient, the other examples unknown."""
    sketch = CountSketch(64, 2, 16)

    def method(inputs: Tensor, noise: Noise, seed: HashSeed) -> Tensor:  # noqa: ARG001
        return sketch.encode(inputs.sum(dim=1), seed)

    scope = Scope(Unit.EXAMPLE, Relation.ADD_OR_REMOVE, Trust.LOCAL)
    return _crowd("bare-example", "bare sketch of a sum of 4 examples", scope, sketch, method)


def bare_client() -> Case:
    """One client in the secure sum of the clients' sketches, the other clients unknown."""
    sketch = CountSketch(64, 2, 16)

    def method(inputs: Tensor, noise: Noise, seed: HashSeed) -> Tensor:  # noqa: ARG001
        tables = sketch.encode(inputs.reshape(-1, sketch.dim), seed)
        return tables.reshape(*inputs.shape[:2], sketch.rows, sketch.cols).sum(dim=1)

    scope = Scope(Unit.CLIENT, Relation.ADD_OR_REMOVE, Trust.DISTRIBUTED)
    return _crowd("bare-client", "sum of 4 clients' bare sketches", scope, sketch, method)


def _crowd(name: str, title: str, scope: Scope, sketch: CountSketch, method: Sender) -> Case:
    """One unit among four, of whom the others are unknown and Gaussian."""
    units = 4
    target = known_numbers(sketch.dim) / 2
    first, second = torch.zeros(units, sketch.dim), torch.zeros(units, sketch.dim)
    first[0] = target

    def limit(hashes: SketchKey, delta: float) -> float:
        matrix = matrix_of(sketch, hashes.seed(0))
        shift = matrix @ target.double().numpy()
        # The others reach all tables that a sketch can make, and so does the shift.
        square = shift @ np.linalg.pinv(matrix @ matrix.T, rcond=1e-10, hermitian=True) @ shift
        return _limit(math.sqrt(float(square) / (units - 1)), delta)

    reason = "without noise only the others' values hide a unit, and they may be known"
    game = Game(every_trial(method), Neighbours(first, second), Adversary.OTHERS_UNKNOWN)
    return Case(
        name,
        title,
        NoClaim(scope, reason),
        game,
        (Discriminant(),),
        deltas=(0.01,),
        trials=50_000,
        limit=limit,
    )


def _sketched(sketch: CountSketch) -> Sender:
    return lambda inputs, noise, seed: sketch.encode(inputs, seed)  # noqa: ARG005


def _coordinates(sketch: CountSketch, other_value: float) -> Neighbours:
    first = known_numbers(sketch.dim)
    second = first.clone()
    first[_COORDINATE], second[_COORDINATE] = ALPHA, other_value
    return Neighbours(first, second)


def _title(sketch: CountSketch) -> str:
    return f"bare sketch, {sketch.rows} x {sketch.cols} of {sketch.dim:,} coordinates"


def _claim(sketch: CountSketch) -> PaperClaim | NoClaim:
    return theorem1(sketch.dim, sketch.rows, sketch.cols, alpha=ALPHA, sigma=1.0)


def _limit(mu: float, delta: float) -> float:
    """Of a Gaussian shift. A lower bound for the mechanism: other adversaries know more."""
    return math.inf if math.isinf(mu) else epsilon_for(events.gaussian(1 / mu), delta)
