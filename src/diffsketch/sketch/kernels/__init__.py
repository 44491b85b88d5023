"""Computing sketches: Numba for the CPU, Triton for CUDA devices, on checked tensors.

`sketch.statistics` and `sketch.gram` are apart from `Kernels`: order statistics of many vectors,
and the products of a sketch's matrix with itself.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError
from diffsketch.sketch.hashing import HashSeed, SketchLayout
from diffsketch.sketch.kernels.estimators import Combine

INPUT_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

_HUGE = 1 << 22  # bytes from which on NumPy asks for huge pages
_LINE = 64  # bytes of a line of the cache: results that begin with one can be written past it


class Kernels(Protocol):
    """The functions of a kernel module, for contiguous tensors."""

    def encode(
        self, vectors: Tensor, seed: HashSeed, *, layout: SketchLayout, offset: int
    ) -> Tensor:
        """Tables of vectors `(..., length)`, which start at coordinate `offset`."""

    def query(
        self, tables: Tensor, seed: HashSeed, out: Tensor, *, layout: SketchLayout, offset: int,
        combine: Combine, validate: bool,
    ) -> bool:  # fmt: skip
        """Write estimates of the coordinates from `offset` on to `out`, `(..., length)`.

        False if the tables are to be validated and not finite.
        """

    def add_residual(
        self, out: Tensor, vector: Tensor, table: Tensor, seed: HashSeed, *, layout: SketchLayout,
        scale: float, combine: Combine,
    ) -> bool:  # fmt: skip
        """Add `scale` times what a table's estimates miss of a vector, in one pass.

        False, and nothing is done, where that is not possible.
        """

    def top_k(
        self, tables: Tensor, seed: HashSeed, count: int, *, layout: SketchLayout, combine: Combine
    ) -> tuple[Tensor, Tensor]:
        """Estimates `(..., count)` that are largest in size, in that order, and their indices."""

    def encode_items(
        self, keys: Tensor, values: Tensor, seed: HashSeed, *, layout: SketchLayout,
        offsets: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """Tables of each person's items `(people, rows, cols)`, or of all items `(rows, cols)`.

        A person's items are those from `offsets[person]` to the next person's; a single value is
        that of all items.
        """

    def query_items(
        self,
        tables: Tensor,
        keys: Tensor,
        seed: HashSeed,
        *,
        layout: SketchLayout,
        combine: Combine,
    ) -> Tensor:
        """Estimates of these keys, `(..., keys)`, from finite tables."""

    def round_cells(
        self, tables: Tensor, step: float, bits: int, keys: Tensor, out: Tensor, *, shift: float,
        order: float,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Round `(tables, cells)` at random to whole numbers of `step`, and count the saturated.

        Cell `i` of a table with the keys `(a, b)` becomes `floor((x + shift) / step - 1/2 + u)`,
        brought into `bits` bits, with `u = mix64(i, a, b) >> 40` in units of `2**-24`. Rows of
        `out` may lie apart. Also returns the tables' norms of this order, 4 or infinite, over the
        step.
        """


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


def new_result(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Memory for a result of this shape, uninitialised, of the type and on the device of `like`.

    For large arrays NumPy asks Linux for huge pages, and PyTorch does not: to be given memory in
    pages of 4 KB takes ten times as long as the query that fills it.
    """
    size = math.prod(shape) * like.itemsize
    if like.device.type != "cpu" or size < _HUGE:
        return like.new_empty(shape)
    # A line more than is needed, so that the result can begin with a line of the cache.
    memory = np.empty(size + _LINE, np.uint8)
    skip = -memory.ctypes.data % _LINE
    return torch.from_numpy(memory[skip : skip + size]).view(like.dtype).view(shape)
