"""What is audited: each case is a protocol, two neighbours, an adversary and the claim under test.

*Where to look.* A proven claim holds for every delta, and an audit may look wherever it sees most.
In `n` judged trials no probability below about `5 / n` can be told from 0, so that the events which
matter at delta = 1e-5 are invisible. The largest deltas show most: whether noise is 20% too small
is plain from how often a guess is right. So delta is chosen, with the event, on one half of the
trials, and the other half judges. With 10,000 judged trials of each world and a shift of one
standard deviation, noise 20% too small is found by more than 6 deviations of the measurement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from diffsketch.auditing.adversaries import Game
from diffsketch.auditing.attacks import Attack, Discriminant
from diffsketch.errors import check
from diffsketch.privacy.claim import Claim, Scope
from diffsketch.privacy.noise import FastNoise
from diffsketch.sketch import SketchKey

__all__ = ["DELTAS", "PURE_DELTA", "TRIALS", "Case", "known_numbers"]

TRIALS = 20_000  # of each world; half of them are judged
DELTAS = (1e-5, 1e-3, 0.01, 0.03, 0.1, 0.2, 0.3)
PURE_DELTA = 1e-5


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
        deltas: Where to look, unless the caller says otherwise.
        trials: How many it takes, unless the caller says otherwise.
        planted: The error that was put in on purpose, if one was.
        simulated: Whether noise comes from a seed, where an engine's would not.
        width: How many numbers a trial handles, roughly.
        cost: How long a trial takes, in rough microseconds, for progress bars.
        limit: From the public hashes and delta to the epsilon that no attack of this adversary
            can exceed, and the best one reaches: exact, not measured.
    """

    name: str
    title: str
    claim: Claim
    game: Game
    attacks: tuple[Attack, ...] = (Discriminant(),)
    rounds: int = 1
    deltas: tuple[float, ...] = DELTAS
    trials: int = TRIALS
    planted: str | None = None
    simulated: bool = False
    width: int = 0
    cost: float = 0.0
    limit: Callable[[SketchKey, float], float] | None = None

    def __post_init__(self) -> None:
        check(len(self.attacks) > 0, "attacks", "have one at least", self.attacks)
        check(len(self.deltas) > 0, "deltas", "have one at least", self.deltas)
        numbers = self.game.neighbours.first.numel()
        object.__setattr__(self, "width", self.width or numbers)
        usual = 5 + numbers / 50 if self.game.adversary.knows_hashes else 500
        object.__setattr__(self, "cost", self.cost or usual)

    @property
    def scope(self) -> Scope:
        """What the claim, and with it the measurement, is about."""
        return self.claim.scope


def known_numbers(*shape: int) -> Tensor:
    """Fixed numbers that an adversary knows: standard normal, none of them zero."""
    return FastNoise(1).normal(shape, 1.0, dtype=torch.float32)
