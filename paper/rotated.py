"""cpSGD with its random rotation, which spreads a vector over all coordinates first."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from diffsketch.errors import MismatchError, check_whole
from diffsketch.methods import CpSgd, Encoded, register
from diffsketch.privacy.clipping import clip_norm
from diffsketch.privacy.mechanisms.binomial import BinomialMechanism
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.hashing import HashSeed
from diffsketch.wire.formats import MessageFormat


def power_of_two(dim: int) -> int:
    """The least power of two that is `dim` or more."""
    check_whole("dim", dim, least=1)
    return 1 << (dim - 1).bit_length()


def rotate(vectors: Tensor, seed: int) -> Tensor:
    """Vectors `(..., dim)` under a random rotation that spreads their mass over all entries.

    Padded with zeros to a power of two, multiplied by signs from the seed, then by the orthonormal
    Hadamard matrix: norms are kept, and `rotate_back` undoes it. The rotation is public.
    """
    size = power_of_two(vectors.shape[-1])
    padded = torch.nn.functional.pad(vectors, (0, size - vectors.shape[-1]))
    return _hadamard(padded * _signs(size, seed).to(padded))


def rotate_back(rotated: Tensor, seed: int, *, dim: int) -> Tensor:
    """The first `dim` entries of the vectors that `rotate` turned into `rotated`."""
    size = rotated.shape[-1]
    if size != power_of_two(dim):
        raise MismatchError(f"expected {power_of_two(dim)} entries for dim={dim}, got {size}")
    return (_hadamard(rotated) * _signs(size, seed).to(rotated))[..., :dim]


def _hadamard(values: Tensor) -> Tensor:
    """The orthonormal Hadamard transform of the last dimension, by butterflies."""
    shape, half = values.shape, 1
    while half < shape[-1]:
        pairs = values.reshape(*shape[:-1], -1, 2, half)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        values = torch.stack((first + second, first - second), dim=-2).reshape(shape)
        half *= 2
    return values / math.sqrt(shape[-1])


def _signs(size: int, seed: int) -> Tensor:
    bits = np.random.Generator(np.random.PCG64(seed)).integers(0, 2, size)
    return torch.from_numpy(1 - 2 * bits)


@register
@dataclass(frozen=True, kw_only=True)
class RotatedCpSgd(CpSgd):
    """cpSGD on vectors under a random rotation, which the round's seed gives.

    Messages are as long as the next power of two. A rotation changes no norm, so the claim is that
    of cpSGD for vectors of that length. The arguments are those of `CpSgd`.
    """

    name: ClassVar[str] = "cpsgd-rotated"
    code: ClassVar = 13

    @cached_property
    def mechanism(self) -> BinomialMechanism:
        """The mechanism of `CpSgd` for vectors as long as the next power of two."""
        return replace(super().mechanism, dim=power_of_two(self.dim))

    @cached_property
    def message_format(self) -> MessageFormat:
        """Messages as long as the next power of two."""
        return replace(super().message_format, shape=(power_of_two(self.dim),))

    def after_clipping(self, vectors: Tensor) -> Tensor:
        """Return the vectors clipped to a norm; the range is of rotated coordinates."""
        return clip_norm(vectors, self.mechanism.clip)

    @classmethod
    def planned(cls, *_: Any, **__: Any) -> None:
        """Leave plans to the methods of the library."""

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:
        turned = rotate(clip_norm(batch.double(), self.mechanism.clip), _turn(seed))
        return Encoded(self.mechanism.release(turned, noise))

    def _decode(self, total: Tensor, seed: HashSeed, count: int, *, out: Tensor | None) -> Tensor:  # noqa: ARG002
        mean = self.mechanism.centred(total, count) / count
        return rotate_back(mean, _turn(seed), dim=self.dim).float()


def _turn(seed: HashSeed) -> int:
    """The number of a round's rotation."""
    digest = hashlib.blake2b(key=seed.value, digest_size=8, person=b"ds-cpsgd-rotate")
    return int.from_bytes(digest.digest(), "little")
