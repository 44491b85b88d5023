"""What is audited: each case is a protocol, two neighbours, an adversary and the claim under test.

Settings of the mechanisms' cases. A proven claim holds for every delta, and an audit may look
wherever it sees most. In `n` judged trials no probability below about `5 / n` can be told from 0,
so that the events which matter at delta = 1e-5 are invisible. At delta = 0.01 and a total shift of
mu = 1 (epsilon = 2.32), 10^5 judged trials of each world (99% confidence) show 2.10 of a correct
mechanism, with a standard deviation of 0.06. With 20% less noise they show 2.82 +- 0.08: six
deviations above the claim (600 simulated audits all found it, the least showed 2.58). Half of the
trials show 2.71 +- 0.09 (1,500 simulated audits all found it). Claims of pure epsilon (Theorem 1,
Laplace) are audited at delta = 1e-5, where delta costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol as Interface

import numpy as np
import torch
from torch import Tensor

from diffsketch.audit.adversaries import Game, Method, Neighbours, every_round
from diffsketch.audit.attacks import Attack, Discriminant, GaussianRatio, LaplaceRatio
from diffsketch.audit.bounds import Numbers
from diffsketch.errors import check
from diffsketch.privacy.claim import Claim, ProvenClaim, Scope
from diffsketch.privacy.mechanisms.bounds import Encode
from diffsketch.privacy.mechanisms.gaussian import GaussianMechanism
from diffsketch.privacy.mechanisms.laplace import LaplaceMechanism
from diffsketch.privacy.noise import FastNoise, Noise
from diffsketch.sketch import CountSketch, HashSeed, SketchKey

__all__ = ["Case", "Mechanism", "encoder", "known_numbers", "of_mechanism", "released"]

TRIALS = 200_000  # of each world; half of them are judged
DELTA = 0.01
PURE_DELTA = 1e-5


class Mechanism(Interface):
    """What the package's mechanisms have in common."""

    @property
    def claim(self) -> ProvenClaim:
        """What one release guarantees."""

    def release(self, vectors: Tensor, noise: Noise, *, encode: Encode | None = None) -> Tensor:
        """Bound, encode and add noise."""


@dataclass(frozen=True, eq=False)
class Case:
    """One thing to audit.

    Attributes:
        name: How the command line calls it.
        title: What it is, in a few words.
        claim: The claim under test.
        game: What the adversary sees and knows.
        attacks: Scores to choose from.
        rounds: How many rounds' messages the adversary sees.
        delta: Where to look, unless the caller says otherwise.
        trials: How many it takes, unless the caller says otherwise.
        planted: The error that was put in on purpose, if one was.
        appended: How many numbers a trial takes besides its input.
        limit: From the public hashes and delta to the epsilon that no attack of this adversary
            can exceed, and the best one reaches: exact, not measured.
    """

    name: str
    title: str
    claim: Claim
    game: Game
    attacks: tuple[Attack, ...] = (Discriminant(),)
    rounds: int = 1
    delta: float = DELTA
    trials: int = TRIALS
    planted: str | None = None
    appended: int = 0
    limit: Callable[[SketchKey, float], float] | None = None

    def __post_init__(self) -> None:
        check(len(self.attacks) > 0, "attacks", "have one at least", self.attacks)

    @property
    def scope(self) -> Scope:
        """What the claim, and with it the measurement, is about."""
        return self.claim.scope

    @property
    def width(self) -> int:
        """How many numbers a trial handles, roughly."""
        return self.rounds * self.game.neighbours.first.numel() + self.appended

    @property
    def cost(self) -> float:
        """How long a trial takes, in rough microseconds, for progress bars."""
        return 5 + self.width / 50 if self.game.adversary.knows_hashes else 500


def encoder(sketch: CountSketch, seed: HashSeed) -> Encode:
    """The sketch of one round as a function of vectors with any number of leading dimensions."""

    def encode(vectors: Tensor) -> Tensor:
        flat = vectors.reshape(-1, sketch.dim)
        return sketch.encode(flat, seed).reshape(*vectors.shape[:-1], sketch.rows, sketch.cols)

    return encode


def released(mechanism: Mechanism, sketch: CountSketch | None) -> Method:
    """The messages of a mechanism, on tables of `sketch` or on the vectors themselves."""

    def method(inputs: Tensor, noise: Noise, seed: HashSeed) -> Tensor:
        encode = None if sketch is None else encoder(sketch, seed)
        if encode is None and isinstance(mechanism, GaussianMechanism | LaplaceMechanism):
            return mechanism.release(inputs, noise, batch=True)
        return mechanism.release(inputs, noise, encode=encode)

    return method


def of_mechanism(
    mechanism: Mechanism,
    neighbours: Neighbours,
    *,
    sketch: CountSketch | None = None,
    name: str = "mechanism",
    title: str | None = None,
    rounds: int = 1,
    delta: float = DELTA,
    trials: int = TRIALS,
) -> Case:
    """The case that holds a mechanism against its own claim, everything else being known.

    >>> from diffsketch.audit import audit
    >>> from diffsketch.privacy.mechanisms.bounds import NormBound
    >>> mechanism = GaussianMechanism(NormBound(limit=1.0), noise_multiplier=1.0)
    >>> ones = torch.ones(3)  # clipped to norm 1: the two differ by all that they can
    >>> result = audit(of_mechanism(mechanism, Neighbours(ones, -ones)), trials=10_000)
    >>> float(result.measured.lower_bound) < float(result.claimed)
    True
    """
    return Case(
        name=name,
        title=title or f"{type(mechanism).__name__}, {rounds} rounds",
        claim=mechanism.claim,
        game=Game(every_round(released(mechanism, sketch), rounds=rounds), neighbours),
        attacks=_ratios(mechanism, neighbours, sketch, rounds=rounds),
        rounds=rounds,
        delta=delta,
        trials=trials,
    )


def known_numbers(*shape: int) -> Tensor:
    """Fixed numbers that an adversary knows: standard normal, none of them zero."""
    return FastNoise(1).normal(shape, 1.0, dtype=torch.float32)


def _ratios(
    mechanism: Mechanism, neighbours: Neighbours, sketch: CountSketch | None, *, rounds: int
) -> tuple[Attack, ...]:
    """The likelihood ratio where it is known, and always the discriminant."""
    if not isinstance(mechanism, GaussianMechanism | LaplaceMechanism):
        return (Discriminant(),)
    bound = mechanism.bound

    def noiseless(hashes: SketchKey) -> tuple[Numbers, Numbers]:
        def messages(vector: Tensor) -> Numbers:
            sent = [
                bound.apply(vector, None if sketch is None else encoder(sketch, hashes.seed(index)))
                for index in range(rounds)
            ]
            return np.asarray(torch.stack(sent).flatten().double().numpy())

        return messages(neighbours.first), messages(neighbours.second)

    if isinstance(mechanism, GaussianMechanism):
        return GaussianRatio(noiseless), Discriminant()
    return LaplaceRatio(noiseless, mechanism.scale), Discriminant()
