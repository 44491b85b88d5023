"""Noise of everything that leaves a machine: exact, from the operating system, never drawn twice.

Engines that send (torch.distributed, Flower, `private_mean` without a seed) draw the noise of each
message, and the server's, here and nowhere else. A source is made for one release and remembers
nothing: so whatever is restarted, restored, copied or forked, no two releases share noise.
"""

from __future__ import annotations

import secrets

from diffsketch.errors import ArgumentError
from diffsketch.methods.base import Method
from diffsketch.privacy.claim import Claim, ProvenClaim, SimulatedClaim
from diffsketch.privacy.noise import CohortNoise, Noise, NoiseKey, SecureNoise

__all__ = ["check_release", "release_noise"]


def check_release(method: Method, claim: Claim) -> None:
    """Refuse what cannot be sent under its claim.

    Raises:
        ArgumentError: The claim is proven, and the method has no exact form; or it is simulated.
    """
    if isinstance(claim, ProvenClaim) and not method.exact:
        raise ArgumentError(
            f"method={method.name!r} must not be sent: its proof is about real numbers, and noise "
            "in floating point gives values away. It is for simulation; use sketch-gaussian, "
            "gaussian, or sketch-laplace or laplace with a clip, whose noise is exact"
        )
    if isinstance(claim, SimulatedClaim):
        raise ArgumentError(
            "claim must be about exact noise for messages that are sent, got a simulated one: "
            "noise from a seed hides nothing"
        )


def release_noise(method: Method, claim: Claim, *, messages: int = 1) -> Noise:
    """A source for one message, or for what one server adds to one sum.

    `SecureNoise` where the claim is proven. Where it is only claimed, noise may be in floating
    point, and comes from a key that is made here and forgotten.

    Args:
        method: That encodes.
        claim: That is made for what is sent.
        messages: Of a batch that is encoded in one call.

    Raises:
        ArgumentError: As `check_release` says.
    """
    check_release(method, claim)
    if method.exact:
        return SecureNoise()
    return CohortNoise(NoiseKey(secrets.token_bytes(32)), range(messages), round_index=0)
