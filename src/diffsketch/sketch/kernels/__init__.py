"""Computing sketches: a readable reference, Numba for the CPU, Triton for CUDA devices.

Each has `encode` and `query` for batches, on checked and contiguous tensors. They import
`hashing` and nothing else of ours; only `count_sketch` imports them. `cpu_statistics` is apart from
them, and for whoever needs the order of many numbers.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError
from diffsketch.sketch.hashing import HashSeed, Layout

__all__ = ["Kernels", "kernels_for"]


class Kernels(Protocol):
    """What a kernel module offers."""

    INPUT_TYPES: tuple[torch.dtype, ...]

    def encode(self, vectors: Tensor, seed: HashSeed, *, layout: Layout, offset: int) -> Tensor:
        """Tables of vectors `(..., length)`, which start at coordinate `offset`."""

    def query(
        self,
        tables: Tensor,
        seed: HashSeed,
        out: Tensor,
        *,
        layout: Layout,
        offset: int,
        mean: bool,
        validate: bool,
    ) -> bool:
        """Write estimates of the coordinates from `offset` on to `out`, `(..., length)`.

        False if the tables are to be validated and not finite.
        """

    def add_residual(
        self,
        out: Tensor,
        vector: Tensor,
        table: Tensor,
        seed: HashSeed,
        *,
        layout: Layout,
        scale: float,
        mean: bool,
    ) -> bool:
        """Add `scale` times what a table's estimates miss of a vector, in one pass.

        False, and nothing is done, where that is not possible.
        """

    def is_finite(self, table: Tensor) -> bool:
        """Whether no cell is NaN or infinite."""


@cache
def kernels_for(device: torch.device) -> Kernels:
    """The kernels for tensors on a device, imported when first asked for."""
    if device.type == "cpu":
        from diffsketch.sketch.kernels import cpu

        return cpu
    if device.type == "cuda":
        from diffsketch.sketch.kernels import gpu

        return gpu
    raise ArgumentError(f"device must be a CPU or CUDA device, got {device.type}")
