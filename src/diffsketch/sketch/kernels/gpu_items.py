"""Items (key, value) on CUDA, in PyTorch's operations; on any other device they are as right."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from diffsketch.sketch.hashing import HashSeed, SketchLayout, hash_rows
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
    words = seed.words_for(layout.rows).view(np.int64).tolist()
    columns, bits = zip(*hash_rows(keys, words, layout), strict=True)
    places = torch.stack([column + row * layout.cols for row, column in enumerate(columns)])
    return places, 1 - 2 * torch.stack(bits)
