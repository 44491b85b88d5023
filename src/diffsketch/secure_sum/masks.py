"""Masks: uniform cells modulo `2**bits` that cancel, or that shares give back.

Computed in whole words. As `2**bits` divides `2**32` or `2**64`, words wrap without harm, and a
uniform word is a uniform cell; the bits above a cell's are cut off at the end.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.secure_sum.params import Params
from diffsketch.secure_sum.primitives import KeyPair, derive, stream

__all__ = ["Words", "cells_of", "commitment", "pair_mask", "self_mask", "words_of"]

Words: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]


def self_mask(seed: bytes, index: int, params: Params) -> Words:
    """The mask of a member's own seed."""
    about = index.to_bytes(8, "little")
    key = derive(seed, context=params.context, label="self mask", about=about)
    return _expand(key, params)


def commitment(seed: bytes, index: int, params: Params) -> bytes:
    """What a member says of its seed before anything is masked.

    Another label than the mask's makes it tell nothing about that; and two seeds with the same one
    would be a collision of SHA-256.
    """
    about = index.to_bytes(8, "little")
    return derive(seed, context=params.context, label="seed commitment", about=about)


def pair_mask(own: KeyPair, public: bytes, pair: tuple[int, int], params: Params) -> Words:
    """What a member adds for a pair of members, and the other subtracts.

    Args:
        own: The mask key of the first.
        public: The public mask key of the second.
        pair: Their numbers. The result is negated if the first is the lower one.
        params: Of the round.
    """
    first, second = pair
    ends = sorted([(first, own.public), (second, public)])
    about = b"".join(index.to_bytes(8, "little") + key for index, key in ends)
    key = derive(own.agree(public), context=params.context, label="pair mask", about=about)
    mask = _expand(key, params)
    return mask if first > second else np.negative(mask)


def words_of(cells: Tensor, params: Params) -> Words:
    """Cells (int64) as words to compute with: a copy."""
    return cells.detach().cpu().numpy().reshape(-1).astype(_word(params))


def cells_of(words: Words, params: Params) -> Tensor:
    """Words as cells below `2**bits`, in the format's shape."""
    cells = words.astype(np.int64) & ((1 << params.layout.bits) - 1)
    return torch.from_numpy(cells).reshape(params.layout.shape)


def _expand(key: bytes, params: Params) -> Words:
    word = _word(params)
    data = stream(key, params.layout.cell_count * word.itemsize)
    words: Words = np.frombuffer(data, word.newbyteorder("<")).astype(word, copy=False)
    return words


def _word(params: Params) -> np.dtype[np.unsignedinteger[Any]]:
    return np.dtype(np.uint32) if params.layout.bits <= 32 else np.dtype(np.uint64)
