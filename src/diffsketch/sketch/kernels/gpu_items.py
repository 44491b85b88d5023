"""Items (key, value) on CUDA, in PyTorch's operations; on any other device they are as right.

A key is hashed in 64-bit integers with a sign, whose sums and products wrap around as those
without do; only shifts to the right have to be told apart.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from diffsketch.sketch.hashing import HashSeed, SketchLayout
from diffsketch.sketch.kernels.estimators import Combine, estimator

_CHUNK = 1 << 20  # items whose columns and signs are in memory at once


def encode_items(
    keys: Tensor, values: Tensor, seed: HashSeed, *, layout: SketchLayout, offsets: Tensor | None
) -> Tensor:
    """Tables of each person's items `(people, rows, cols)`, or of all items `(rows, cols)`.

    The order of atomic additions is the device's choice, so sums agree to rounding only.
    """
    shape, keys = (layout.rows, layout.cols), keys.view(torch.int64)
    lead = () if offsets is None else (len(offsets) - 1,)
    # Few items of one person fit into their type; a million ones would be lost in float32.
    wide = values.dtype if lead else torch.float64
    table = torch.zeros((*lead, *shape), dtype=wide, device=keys.device)
    for first in range(0, len(keys), _CHUNK):
        chunk = keys[first : first + _CHUNK]
        places, signs = _places_and_signs(chunk, seed, layout)
        if offsets is not None:
            item = torch.arange(first, first + len(chunk), device=keys.device)
            places += (torch.bucketize(item, offsets, right=True) - 1) * table[0].numel()
        part = values if len(values) == 1 else values[first : first + _CHUNK]
        table.view(-1).index_add_(0, places.view(-1), (part.to(wide) * signs).view(-1))
    return table.to(values.dtype)


def query_items(
    tables: Tensor, keys: Tensor, seed: HashSeed, *, layout: SketchLayout, combine: Combine
) -> Tensor:
    """Estimates of these keys, `(..., keys)`, from finite tables."""
    flat, keys = tables.reshape(-1, layout.rows * layout.cols), keys.view(torch.int64)
    out = tables.new_empty((len(flat), len(keys)))
    comparators, averaged = estimator(combine, layout.rows)
    for first in range(0, len(keys), _CHUNK):
        places, signs = _places_and_signs(keys[first : first + _CHUNK], seed, layout)
        for table, to in zip(flat, out, strict=True):
            cells = table[places] * signs
            if comparators:
                cells = cells.sort(dim=0).values
            to[first : first + _CHUNK] = cells[list(averaged)].mean(dim=0)
    return out.view(*tables.shape[:-2], len(keys))


def _places_and_signs(keys: Tensor, seed: HashSeed, layout: SketchLayout) -> tuple[Tensor, Tensor]:
    """Index of each key's cell in a table laid out row by row, and its sign: `(rows, keys)`."""
    first, second, *words = seed.words_for(layout.rows).view(np.int64).tolist()
    geometry, is_pairwise = layout.geometry, layout.family == "pairwise"
    # What the signs are hashed from: the key itself, or its block.
    block = keys if is_pairwise else keys // geometry.block
    into, common = keys - block * geometry.block, _mix64(block, first, second)
    sequence = (_right(common, 32) * into + common) >> 31
    columns, negative = [], []
    for row in range(layout.rows):
        low, high, add = words[3 * row : 3 * row + 3]
        if is_pairwise:
            h = low * (keys & 0xFFFFFFFF) + high * _right(keys, 32) + add
            column, bit = _scaled(h, layout.cols), common >> row
        else:
            h = _mix64(block % geometry.runs, low, high)
            place = block // geometry.runs * geometry.block + into
            column, bit = (place + _scaled(h, layout.cols)) % layout.cols, h ^ sequence
        columns.append(column + row * layout.cols)
        negative.append(bit & 1)
    return torch.stack(columns), 1 - 2 * torch.stack(negative)


def _mix64(value: Tensor, first_key: int, second_key: int) -> Tensor:
    """`diffsketch.sketch.hashing.mix64`; the factors are its own, less 2**64."""
    z = value + first_key
    z = (z ^ _right(z, 30)) * -0x40A7B892E31B1A47 ^ second_key
    z = (z ^ _right(z, 27)) * -0x6B2FB644ECCEEE15
    return z ^ _right(z, 31)


def _scaled(h: Tensor, cols: int) -> Tensor:
    """The upper half of a word, brought to `[0, cols)`."""
    return (_right(h, 32) * cols) >> 32


def _right(value: Tensor, bits: int) -> Tensor:
    """Shift to the right, zeros following."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
