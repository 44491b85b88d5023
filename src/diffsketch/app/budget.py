"""How much noise a run needs to stay within its budget: found from the method's own claim."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from diffsketch.errors import ArgumentError
from diffsketch.training.sampling import AllDevices, Sampler
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.accountant import Budget
from diffsketch.privacy.accounting.calibration import calibrate
from diffsketch.privacy.claim import Claim, ProvenClaim

__all__ = ["most_participations", "noise_for_budget", "paying_rounds"]

_LEAST = 1e-2  # less noise than that protects nothing
_TOLERANCE = 1e-3  # of the noise, relatively: each look may take a Fourier transform


def noise_for_budget(
    claim_of: Callable[[float], Claim], budget: Budget, *, sampler: Sampler, rounds: int
) -> float:
    """The least noise multiplier with which all planned rounds stay within the budget.

    Guarantees (`tests/app/test_budget.py`): a run with it does all its rounds, and one with 1%
    less does not.

    Args:
        claim_of: What one round guarantees for the clients in it, with so much noise; amplified
            if the sample is secret.
        budget: Of the whole run.
        sampler: Who takes part; it depends on the seed alone, so it is known beforehand.
        rounds: That are planned.

    Raises:
        ArgumentError: The method proves nothing, or no noise is enough.
    """

    def event_of(multiplier: float) -> events.Event:
        claim = claim_of(multiplier)
        if not isinstance(claim, ProvenClaim):
            raise ArgumentError(
                f"budget needs a proven claim, got budget={budget.epsilon}: {claim}"
            )
        return claim.event

    times = paying_rounds(sampler, rounds)
    return calibrate(event_of, budget, rounds=times, least=_LEAST, tolerance=_TOLERANCE)


def paying_rounds(sampler: Sampler, rounds: int) -> int:
    """How many rounds the client pays for that pays most; all of them if samples are secret."""
    return most_participations(sampler, rounds) if sampler.fixed_size else rounds


def most_participations(sampler: Sampler, rounds: int) -> int:
    """How often the device takes part that does so most often.

    >>> most_participations(AllDevices(10), 7)
    7
    """
    if isinstance(sampler, AllDevices):
        return rounds
    counts = np.zeros(sampler.members, dtype=np.int64)
    for round_index in range(rounds):
        counts[sampler.draw(round_index).numpy()] += 1
    return int(counts.max())
