"""What a round guarantees: the method's claim, on the sample, with all that is done besides."""

from __future__ import annotations

from diffsketch.errors import ArgumentError
from diffsketch.training.correction import Correction, without_claim
from diffsketch.training.sampling import PoissonDevices, Sampler
from diffsketch.methods.base import Method
from diffsketch.privacy.claim import Claim, NoClaim, ProvenClaim
from diffsketch.sketch.hashing import HashSeed

__all__ = ["RoundClaims"]


class RoundClaims:
    """The claims of a run's rounds.

    A method's claim is amplified where devices are drawn by Poisson sampling, which is for central
    trust only, and void where error correction carries gradients around the messages.

    Args:
        method: That encodes.
        sampler: Who takes part.
        correction: The paper's error correction.
    """

    def __init__(self, method: Method, sampler: Sampler, correction: Correction) -> None:
        self._method, self._sampler, self._correction = method, sampler, correction
        self._amplified: tuple[ProvenClaim, ProvenClaim] | None = None  # the last: they repeat

    def of(self, present: int, seed: HashSeed) -> Claim:
        """Of a round with so many workers; on a secret sample, with any number of them.

        Raises:
            ArgumentError: The sample is secret, and the claim not such that this helps.
        """
        sampler = self._sampler
        if isinstance(sampler, PoissonDevices):
            present = max(1, round(sampler.expected))
        claim = self._method.claim_for(present, seed)
        if self._correction != "off":
            return without_claim(claim)
        if not isinstance(sampler, PoissonDevices) or isinstance(claim, NoClaim):
            return claim
        if not isinstance(claim, ProvenClaim):
            raise ArgumentError(
                "poisson sampling is for proven claims under central trust, or for none, got "
                f"method={self._method.name!r}, whose claim is {claim.basis}"
            )
        known = self._amplified
        if known is None or known[0] != claim:
            self._amplified = known = claim, sampler.lottery.amplified(claim)
        return known[1]

    def planned(self, seed: HashSeed) -> Claim:
        """Of a round as expected, with these hashes: known before there is one.

        Raises:
            ArgumentError: Rounds cannot have a claim.
        """
        return self.of(max(1, round(self._sampler.expected)), seed)

    def check(self, seed: HashSeed, *, budget: bool) -> None:
        """Raise an `ArgumentError` unless rounds can have a claim, and a budget if there is one."""
        claim = self.planned(seed)
        if budget and not isinstance(claim, ProvenClaim):
            raise ArgumentError(
                "budget must not be given where nothing is proven: the epsilon of "
                f"method={self._method.name!r} is {claim.basis} here ({claim})"
            )
