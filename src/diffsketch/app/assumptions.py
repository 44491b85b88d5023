"""What the privacy of a run rests on besides its method, in sentences for whoever reads of it."""

from __future__ import annotations

from diffsketch.training.sampling import PoissonDevices, Sampler, WeightedSampler
from diffsketch.privacy.claim import Basis, Claim

__all__ = ["assumptions"]

_SIMULATED = (
    "Simulated: the noise follows from the seed, so whoever has the run directory can take it out "
    "again; do not publish it as a private release."
)
_COUNTS = "Byte and message counts are for the simulator; the number drawn is secret."


def assumptions(claim: Claim, sampler: Sampler) -> list[str]:
    """What has to be so for the claim of a run to hold; nothing where nothing is claimed.

    Args:
        claim: Of the whole run.
        sampler: Who took part.
    """
    if claim.basis is Basis.NONE:
        return []
    if claim.basis is not Basis.PROVEN:
        return [_SIMULATED]
    if isinstance(sampler, PoissonDevices):
        return [_COUNTS, _SIMULATED]
    sizes = isinstance(sampler, WeightedSampler)  # by the numbers of examples
    more = ", and how many examples each client has," if sizes else ""
    return [f"Who takes part in which round{more} is taken as public.", _SIMULATED]
