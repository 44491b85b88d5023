"""A public random rotation that spreads a vector's mass over all of its entries."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from diffsketch.errors import MismatchError, check

__all__ = ["power_of_two", "rotate", "rotate_back"]


def power_of_two(dim: int) -> int:
    """The least power of two that is `dim` or more."""
    check(dim >= 1, "dim", "be >= 1", dim)
    return 1 << (dim - 1).bit_length()


def rotate(vectors: Tensor, seed: int) -> Tensor:
    """`vectors` (`(..., dim)`) under a random rotation that spreads their mass over all entries.

    Padded with zeros to a power of two, multiplied by signs from the seed, then by the orthonormal
    Hadamard matrix: norms are kept, and `rotate_back` undoes it. The rotation is public.
    """
    size = power_of_two(vectors.shape[-1])
    padded = torch.nn.functional.pad(vectors, (0, size - vectors.shape[-1]))
    return _hadamard(padded * _signs(size, seed).to(padded))


def rotate_back(rotated: Tensor, seed: int, *, dim: int) -> Tensor:
    """The first `dim` entries of what `rotate` made `rotated` of."""
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
