"""Why a client sends nothing, and the checks that server and clients share."""

from __future__ import annotations

import hashlib

from diffsketch.errors import DiffSketchError
from diffsketch.privacy.claim import Claim, NoClaim, Trust

__all__ = ["Refusal", "check_trust", "member_digest"]


class Refusal(DiffSketchError):  # noqa: N818 - it says what happened
    """A client does not take part in a round. Nothing was sent.

    Attributes:
        code: Why, in a word, for the server's counts.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def check_trust(claim: Claim, *, trusted_server: bool) -> None:
    """Refuse a claim that holds only if nobody sees single messages, where a server does.

    Central trust is trust in the server, which a plan with it says.

    Raises:
        Refusal: It is under distributed trust, and the server is not trusted.
    """
    distributed = claim.scope.trust is Trust.DISTRIBUTED and not isinstance(claim, NoClaim)
    if distributed and not trusted_server:
        raise Refusal(
            "trust",
            "the method's claim is under distributed trust: it needs a secure sum, and this server "
            "sees every message. trusted_server=True says that it will not look",
        )


def member_digest(member: str) -> bytes:
    """Eight bytes that stand for a member's name."""
    return hashlib.blake2b(member.encode(), digest_size=8, person=b"ds-flwr-member").digest()
