"""The definition as a program: plain and slow. Every fast kernel is tested against it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from diffsketch.sketch import Combine, CountSketch
from diffsketch.sketch.hashing import HashSeed, columns_and_signs


def encode(vectors: Tensor, sketch: CountSketch, seed: HashSeed, *, offset: int = 0) -> Tensor:
    """Tables of vectors `(..., length)`, which start at coordinate `offset`."""
    columns, signs = _hashes(sketch, seed, offset, vectors.shape[-1], vectors.device)
    shape = (*vectors.shape[:-1], sketch.rows, sketch.cols)
    exact = torch.zeros(shape, dtype=torch.float64, device=vectors.device)
    for j in range(sketch.rows):
        exact[..., j, :].index_add_(-1, columns[j], vectors.double() * signs[j])
    return exact.to(torch.float64 if vectors.dtype == torch.float64 else torch.float32)


def query(
    tables: Tensor,
    sketch: CountSketch,
    seed: HashSeed,
    length: int,
    *,
    offset: int = 0,
    combine: Combine = "median",
) -> Tensor:
    """Estimates of the coordinates from `offset` on, `(..., length)`."""
    columns, signs = _hashes(sketch, seed, offset, length, tables.device)
    cells = tables.gather(-1, columns.expand(*tables.shape[:-1], -1)) * signs
    if combine == "mean":
        return cells.mean(dim=-2)
    ordered = cells.sort(dim=-2).values
    return (ordered[..., (sketch.rows - 1) // 2, :] + ordered[..., sketch.rows // 2, :]) / 2


def _hashes(
    sketch: CountSketch, seed: HashSeed, offset: int, length: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    coordinates = np.arange(offset, offset + length, dtype=np.int64)
    columns, signs = columns_and_signs(coordinates, seed, layout=sketch)
    return torch.from_numpy(columns).to(device), torch.from_numpy(signs).to(device)
