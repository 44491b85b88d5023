"""The definition as a program: plain and slow. Every fast kernel is tested against it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from diffsketch.sketch.hashing import HashSeed, SketchLayout, columns_and_signs
from diffsketch.sketch.kernels.estimators import Combine

__all__ = ["INPUT_TYPES", "encode", "is_finite", "query"]

INPUT_TYPES: tuple[torch.dtype, ...] = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def encode(vectors: Tensor, seed: HashSeed, *, layout: SketchLayout, offset: int) -> Tensor:
    """Tables of vectors `(..., length)`, which start at coordinate `offset`."""
    length = vectors.shape[-1]
    columns, signs = _hashes(seed, layout, offset, length, vectors.device)
    shape = (*vectors.shape[:-1], layout.rows, layout.cols)
    exact = torch.zeros(shape, dtype=torch.float64, device=vectors.device)
    for j in range(layout.rows):
        exact[..., j, :].index_add_(-1, columns[j], vectors.double() * signs[j])
    return exact.to(torch.float64 if vectors.dtype == torch.float64 else torch.float32)


def query(
    tables: Tensor,
    seed: HashSeed,
    out: Tensor,
    *,
    layout: SketchLayout,
    offset: int,
    combine: Combine,
    validate: bool,
) -> bool:
    """Write estimates of the coordinates from `offset` on to `out`, `(..., length)`.

    False, and nothing is written, if the tables are to be validated and not finite.
    """
    if validate and not is_finite(tables):
        return False
    columns, signs = _hashes(seed, layout, offset, out.shape[-1], tables.device)
    cells = tables.gather(-1, columns.expand(*tables.shape[:-1], -1)) * signs
    ordered = cells.sort(dim=-2).values
    middle = (ordered[..., (layout.rows - 1) // 2, :] + ordered[..., layout.rows // 2, :]) / 2
    out.copy_({"mean": cells.mean(dim=-2), "median": middle}[combine])
    return True


def is_finite(table: Tensor) -> bool:
    """Whether no cell is NaN or infinite."""
    return bool(torch.isfinite(table).all())


def _hashes(
    seed: HashSeed, layout: SketchLayout, offset: int, length: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    coordinates = np.arange(offset, offset + length, dtype=np.int64)
    columns, signs = columns_and_signs(coordinates, seed, layout=layout)
    return torch.from_numpy(columns).to(device), torch.from_numpy(signs).to(device)
