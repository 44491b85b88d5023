"""Secrets of a member, and masks: uniform cells modulo `2**bits` that cancel or can be recovered.

Masks are computed in whole words. As `2**bits` divides `2**32` or `2**64`, words wrap without harm,
and a uniform word is a uniform cell; the bits above a cell's are cut off at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.secure_sum import primitives
from diffsketch.secure_sum.messages import Params, PublicKeys, RoundParams
from diffsketch.secure_sum.primitives import KeyPair, SigningIdentity, derive, stream
from diffsketch.wire import Message, MessageFormat
from diffsketch.wire.message import checked_values

Words: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]


def seed_mask(seed: bytes, index: int, params: RoundParams, label: str = "self mask") -> Words:
    """Expand the mask of a member's own seed: uniform words, of this round and member."""
    return expand(_own_key(seed, index, params, label), params.layout)


def commitment(seed: bytes, index: int, params: Params) -> bytes:
    """Commit to a seed before anything is masked.

    Another label than the mask's makes it tell nothing about that; and two seeds with the same
    commitment would be a collision of SHA-256.
    """
    return _own_key(seed, index, params, "seed commitment")


def _own_key(secret: bytes, index: int, params: RoundParams, label: str) -> bytes:
    about = index.to_bytes(8, "little")
    return derive(secret, context=params.context, label=label, about=about)


def pair_mask(own: KeyPair, public: bytes, pair: tuple[int, int], params: Params) -> Words:
    """Expand the mask that a member adds for a pair of members, and the other subtracts.

    `own` is the first member's key. The result is negated if that is the lower number.
    """
    first, second = pair
    # Sorted, as both members derive the same key.
    ends = sorted([(first, own.public), (second, public)])
    about = b"".join(index.to_bytes(8, "little") + key for index, key in ends)
    key = derive(own.agree(public), context=params.context, label="pair mask", about=about)
    mask = expand(key, params.layout)
    return mask if first > second else np.negative(mask)


def input_words(cells: Tensor, layout: MessageFormat) -> Words:
    """Convert an input to words; an `ArgumentError` if its cells do not fit the format."""
    return checked_values(cells, layout).astype(word(layout))


def pack_masked(words: Words, index: int, params: RoundParams) -> bytes:
    """Serialise a masked input as its member's message."""
    message = Message(
        params.layout, to_cells(words, params.layout), round_index=params.round_index,
        fingerprint=params.fingerprint, sender=index,
    )  # fmt: skip
    return message.to_bytes()


def read_masked(data: bytes, params: RoundParams) -> tuple[int, Words]:
    """Read a masked input; return whose it says that it is, and its words."""
    message = Message.from_bytes(
        data, params.layout, round_index=params.round_index, fingerprint=params.fingerprint,
        count=1,
    )  # fmt: skip
    return message.sender, to_words(message.cells, params.layout)


def to_words(cells: Tensor, layout: MessageFormat) -> Words:
    """Convert cells (int64) to words to compute with: a copy."""
    return cells.detach().cpu().numpy().reshape(-1).astype(word(layout))


def to_cells(words: Words, layout: MessageFormat) -> Tensor:
    """Convert words to cells below `2**bits`, in the format's shape."""
    cells = words & words.dtype.type((1 << layout.bits) - 1)
    return torch.from_numpy(cells.astype(np.int64)).reshape(layout.shape)


def expand(key: bytes, layout: MessageFormat) -> Words:
    """Expand a key to uniform words, one for each cell."""
    kind = word(layout)
    data = stream(key, layout.cell_count * kind.itemsize)
    return np.frombuffer(data, kind.newbyteorder("<")).astype(kind, copy=False)


def word(layout: MessageFormat) -> np.dtype[np.unsignedinteger[Any]]:
    """Type of the words that cells are computed in."""
    return np.dtype(np.uint32) if layout.bits <= 32 else np.dtype(np.uint64)


class MemberSecrets:
    """Two key pairs and the seed of the member's own mask, all derived from one random number.

    Keys depend on the context as well: the same `root` would give others in another round.
    """

    def __init__(
        self, root: bytes, index: int, *, params: Params, identity: SigningIdentity | None
    ) -> None:
        self.root, self._index, self._params, self._identity = root, index, params, identity
        self.cipher, self.mask = KeyPair(self._derive("cipher key")), KeyPair(self._derive("key"))
        self.seed = self._derive("seed")
        committed = commitment(self.seed, index, params)
        keys = PublicKeys(self.cipher.public, self.mask.public, committed, b"")
        self.public = replace(keys, signature=self.sign(keys.signed_bytes(index, params)))
        # Both are needed twice: when shares are sent, and when those of others come.
        self._agree = cache(self.cipher.agree)
        self._split: dict[int, tuple[bytes, bytes]] = {}

    def sign(self, data: bytes) -> bytes:
        """Sign; empty where members do not sign."""
        return b"" if self._identity is None else self._identity.sign(data)

    def split(self, indices: list[int]) -> dict[int, tuple[bytes, bytes]]:
        """Share the seed and the mask key, by the members that the shares are for."""
        if list(self._split) != indices:
            points = [self._params.points[index] for index in indices]
            threshold, shares = self._params.threshold, []
            for label, secret in (("seed", self.seed), ("key", self.mask.secret)):
                size = (threshold - 1) * primitives.COEFFICIENT_BYTES
                random = stream(self._derive(f"{label} shares"), size)
                shares.append(primitives.split(secret, points, threshold=threshold, random=random))
            self._split = dict(zip(indices, zip(*shares, strict=True), strict=True))
        return self._split

    def channel(
        self, keys: Mapping[int, PublicKeys], *, sender: int, recipient: int
    ) -> tuple[bytes, bytes]:
        """Return the key for the one message from a member to another, and what it is bound to.

        One of the two is this member. A key is of one direction: it never encrypts two messages.
        """
        ends = (sender, recipient)
        bound = b"".join(index.to_bytes(8, "little") + keys[index].cipher for index in ends)
        public = keys[recipient if sender == self._index else sender].cipher
        context = self._params.context
        key = derive(self._agree(public), context=context, label="share", about=bound)
        return key, context + bound

    def _derive(self, label: str) -> bytes:
        return _own_key(self.root, self._index, self._params, f"own {label}")
