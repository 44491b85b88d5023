"""A member's own secrets of one round, all derived from one random number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from diffsketch.secure_sum.checks import signed_keys
from diffsketch.secure_sum.masks import commitment
from diffsketch.secure_sum.messages import PublicKeys
from diffsketch.secure_sum.params import Params
from diffsketch.secure_sum.primitives import Identity, KeyPair, derive, stream
from diffsketch.secure_sum.shamir import COEFFICIENT_BYTES, split

__all__ = ["ROOT_BYTES", "OwnSecrets"]

ROOT_BYTES = 32


class OwnSecrets:
    """Two key pairs, the seed of the own mask, and what is made of them.

    Args:
        root: 32 secret random bytes. Derived keys depend on the context as well, so that even the
            same root would give other keys in another round.
        index: The member's number.
        params: Of the round.
        identity: Its lasting key, where members sign.
    """

    def __init__(
        self, root: bytes, index: int, *, params: Params, identity: Identity | None
    ) -> None:
        self.root, self._index, self._params, self._identity = root, index, params, identity
        self._context = params.context
        self.cipher, self.mask = KeyPair(self._derive("cipher key")), KeyPair(self._derive("key"))
        self.seed = self._derive("seed")
        promised = commitment(self.seed, index, params)
        keys = PublicKeys(self.cipher.public, self.mask.public, promised, b"")
        self.public = replace(keys, signature=self.sign(signed_keys(keys, index, params)))
        # Both are needed twice: when shares are sent, and when those of others come.
        self._agreed: dict[bytes, bytes] = {}
        self._split: tuple[list[int], dict[int, tuple[bytes, bytes]]] = [], {}

    def sign(self, data: bytes) -> bytes:
        """Its signature; empty where members do not sign."""
        return b"" if self._identity is None else self._identity.sign(data)

    def split(self, indices: list[int]) -> dict[int, tuple[bytes, bytes]]:
        """The shares of the seed and of the mask key, by the members that they are for."""
        if self._split[0] == indices:
            return self._split[1]
        points = [self._params.points[index] for index in indices]
        threshold, found = self._params.threshold, []
        for label, secret in (("seed", self.seed), ("key", self.mask.secret)):
            size = (threshold - 1) * COEFFICIENT_BYTES
            random = stream(self._derive(f"{label} shares"), size)
            found.append(split(secret, points, threshold=threshold, random=random))
        self._split = indices, dict(zip(indices, zip(*found, strict=True), strict=True))
        return self._split[1]

    def channel(
        self, keys: Mapping[int, PublicKeys], *, sender: int, recipient: int
    ) -> tuple[bytes, bytes]:
        """The key for the one message from a member to another, and what the message is bound to.

        One of the two is this member. The key is of one direction, so that it never encrypts two
        messages.
        """
        bound = b"".join(
            index.to_bytes(8, "little") + keys[index].cipher for index in (sender, recipient)
        )
        public, context = keys[recipient if sender == self._index else sender].cipher, self._context
        if public not in self._agreed:
            self._agreed[public] = self.cipher.agree(public)
        secret = self._agreed[public]
        return derive(secret, context=context, label="share", about=bound), context + bound

    def _derive(self, label: str) -> bytes:
        about = self._index.to_bytes(8, "little")
        return derive(self.root, context=self._context, label=f"own {label}", about=about)
