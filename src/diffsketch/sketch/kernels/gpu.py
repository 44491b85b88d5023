"""Kernels for CUDA tensors: how the work is cut; the Triton code is in `gpu_triton`.

For `blocked` the same input gives the same bits every time. Where a table is too small to occupy
the device, the runs are split over programs, and their partial tables are added in a second pass,
in a fixed order as well. `pairwise` sums agree to rounding only.

A call is one launch, two where there are partial tables, and nothing waits for the device but a
look at its answer. Grids and sizes are kept from call to call: the host needs longer to work them
out than the device for a million numbers.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad
from triton.runtime import driver

from diffsketch.sketch.hashing import HashSeed, SketchLayout
from diffsketch.sketch.kernels.estimators import Combine, estimator
from diffsketch.sketch.kernels.gpu_items import encode_items as encode_items
from diffsketch.sketch.kernels.gpu_items import query_items as query_items
from diffsketch.sketch.kernels.gpu_triton import (
    add_partials_kernel,
    encode_narrow_kernel,
    encode_wide_kernel,
    query_narrow_kernel,
    query_wide_kernel,
    round_kernel,
    scatter_kernel,
)

# Tile sizes and warps: the fastest of those tried on an H200.
_LONG_BLOCK = 256  # from here on a tile lies in a block or two
_MANY = 4_000_000  # additions from which on hashes for each of them would take longest
_BUSY = 1024  # programs that occupy the device
_TILE, _FEW_ROWS = 512, 2
_QUERY_TILE, _QUERY_WARPS, _QUERY_SPAN = 1024, 4, 4
_NARROW_TILE, _NARROW_LEAST = 128, 32
_PER_THREAD = 16
_CHUNK = 1024
_PROGRAMS = 2048  # of one warp: enough for the largest devices; more would cost partial tables
_PARTS = 8  # partial tables that are added at a time
_SPARE, _LEAST_SPARE = 0.0095, 1 << 22  # for partial tables: a share of the vectors, or bytes
_SMALL_SORT = 9  # rows up to which a tile of the narrow query may be large
_HERE = nullcontext()
# From 3.3 on what a launch returns can be launched again as it is.
_DIRECT = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 3)


class _Launch:
    """A kernel with its grid and sizes.

    Triton's own launcher works out anew what to run, each time, from every argument; what it ran
    the first time can be run again for tensors of the same types and alignment.
    """

    def __init__(
        self, kernel: Any, grid: tuple[int, int], sizes: tuple[int, ...],
        constants: tuple[Any, ...], **options: Any,
    ) -> None:  # fmt: skip
        self.kernel, self.grid, self.options = kernel, (*grid, 1), options
        self.arguments = (*sizes, *constants)
        self.runners: dict[tuple[bool, ...], Any] = {}

    def __call__(self, *tensors: Tensor, numbers: tuple[float, ...] = ()) -> None:
        places = [tensor.data_ptr() for tensor in tensors]
        aligned = tuple([place % 16 == 0 for place in places])
        runner = self.runners.get(aligned)
        if runner is not None:
            runner(*places, *numbers, *self.arguments)
            return
        compiled = self.kernel[self.grid](*tensors, *numbers, *self.arguments, **self.options)
        if _DIRECT:
            self.runners[aligned] = compiled[self.grid]


class _Case(NamedTuple):
    """Sizes and types that a launch follows from."""

    layout: SketchLayout
    items: int
    offset: int
    length: int
    dtype: torch.dtype
    device: torch.device

    @property
    def end(self) -> int:
        return self.offset + self.length

    @property
    def index(self) -> tl.dtype:
        """Type that holds every coordinate."""
        # Tiles reach beyond the last coordinate, by less than 1,024.
        return tl.int32 if self.layout.dim + self.layout.cols < (1 << 31) - 1024 else tl.int64

    @property
    def blocks(self) -> tuple[int, int]:
        """First and number of the blocks that the coordinates touch."""
        first, last = self.offset // self.block, (self.end - 1) // self.block
        return first, last - first + 1

    @property
    def runs(self) -> tuple[int, int]:
        """The same of the runs."""
        (first, count), runs = self.blocks, self.layout.geometry.runs
        return (0, runs) if count >= runs else (first % runs, count)

    @property
    def block(self) -> int:
        return self.layout.geometry.block


def encode(vectors: Tensor, seed: HashSeed, *, layout: SketchLayout, offset: int) -> Tensor:
    """Tables of vectors `(..., length)`, which start at coordinate `offset`."""
    dtype, device, length = vectors.dtype, vectors.device, vectors.shape[-1]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    shape = (*vectors.shape[:-1], layout.rows, layout.cols)
    numbers = vectors.numel()
    adds = layout.family == "pairwise" or not numbers
    out = (torch.zeros if adds else torch.empty)(shape, dtype=wide, device=device)
    if not numbers:
        return out
    case = _Case(layout, numbers // length, offset, length, dtype, device)
    with _on(device):
        words = _device_words(seed, layout.rows, device)
        if adds:
            _scatter_plan(case)(vectors, out, words)
            return out
        splits, launch, add = _gather_plan(case)
        if splits == 1:
            launch(vectors, out, out, words)
        else:
            partials = out.new_empty((splits - 1) * out.numel())
            launch(vectors, out, partials, words)
            add(out, partials)
    return out


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

    False if the tables are to be validated and not finite. The device looks at the cells first,
    but its answer is awaited only at the end, lest it stand idle: `out` is written in any case.
    """
    if not tables.numel():
        return True
    largest = torch.linalg.vector_norm(tables, ord=math.inf) if validate else None
    _query(tables, seed, out, layout, offset, combine=combine)
    return largest is None or math.isfinite(largest.item())


def add_residual(
    out: Tensor, vector: Tensor, table: Tensor, seed: HashSeed, *, layout: SketchLayout,
    scale: float, combine: Combine,
) -> bool:  # fmt: skip
    """Add `scale` times what a table's estimates miss of a vector; False if it takes two passes."""
    if table.dtype != torch.float32:  # which Triton takes the scale in
        return False
    return _query(table, seed, out, layout, 0, combine=combine, missed=(vector, scale))


def _query(
    tables: Tensor,
    seed: HashSeed,
    out: Tensor,
    layout: SketchLayout,
    offset: int,
    *,
    combine: Combine,
    missed: tuple[Tensor, float] | None = None,
) -> bool:
    """Write estimates; or add the scale times what they miss of a vector to what is there.

    False, and nothing is done, if the latter takes two passes.
    """
    length, device = out.shape[-1], tables.device
    if not out.numel():
        return True
    case = _Case(layout, out.numel() // length, offset, length, tables.dtype, device)
    is_wide, launch = _query_plan(case, combine, missed is not None)
    if missed is not None and not is_wide:
        return False
    with _on(device):
        words = _device_words(seed, layout.rows, device)
        if is_wide:
            other, scale = missed or (out, 1.0)
            launch(tables, out, other, words, numbers=(scale,))
        else:
            launch(tables, out, words)
    return True


def top_k(
    tables: Tensor, seed: HashSeed, count: int, *, layout: SketchLayout, combine: Combine
) -> tuple[Tensor, Tensor]:
    """Estimates `(..., count)` that are largest in size, in that order, and their indices."""
    estimates = tables.new_empty((*tables.shape[:-2], layout.dim))
    query(tables, seed, estimates, layout=layout, offset=0, combine=combine, validate=False)
    indices = estimates.abs().topk(count, dim=-1).indices
    return estimates.gather(-1, indices), indices


def round_cells(
    tables: Tensor, step: float, bits: int, keys: Tensor, out: Tensor, *, shift: float, order: float
) -> tuple[Tensor, Tensor]:
    """Round `(tables, cells)` at random; count the saturated, and measure the tables."""
    counted = pad(keys, (0, 1)).to(tables.device, non_blocking=True)  # zeros, to count in
    if order == 4:  # a norm of order 4, without its slow powers
        norms = torch.linalg.vector_norm((tables * (1 / step)).square_(), dim=1).sqrt_()
    else:
        norms = torch.linalg.vector_norm(tables, ord=math.inf, dim=1) * (1 / step)
    source = tables + shift if shift else tables
    if tables.numel():
        with _on(tables.device):
            launch = _round_plan(*tables.shape, out.stride(0), bits, out.dtype, tables.device)
            launch(source, counted, out, numbers=(1 / step,))
    return counted[:, 2], norms


@lru_cache(maxsize=1024)
def _scatter_plan(case: _Case) -> _Launch:
    layout, tiles = case.layout, triton.cdiv(case.length, _CHUNK)
    sizes = (case.offset, case.end, layout.cols, tiles)
    constants = (_CHUNK, layout.rows, _accumulator(case.dtype))
    return _Launch(scatter_kernel, (tiles * case.items, 1), sizes, constants)


@lru_cache(maxsize=1024)
def _gather_plan(case: _Case) -> tuple[int, _Launch, _Launch]:
    """Number of parts that the runs are split into, and the launches that add in them and up."""
    layout, items = case.layout, case.items
    geometry, size = layout.geometry, layout.rows * layout.cols
    first_run, run_count = case.runs
    tile = min(case.block, _TILE)
    if layout.rows > _FEW_ROWS and size * items >= 2 * _TILE * _BUSY:
        tile = min(case.block, 2 * _TILE)  # the cache is the limit, not the memory: fewer hashes
    tiles = triton.cdiv(layout.cols, tile) * layout.rows
    is_large = layout.rows * case.length * items >= _MANY or tiles * items >= _BUSY
    is_wide = case.block >= _LONG_BLOCK and is_large
    if not is_wide:
        tile = min(_NARROW_TILE, triton.next_power_of_2(layout.cols))
        # Smaller tiles until there are two programs for each of an H200's 132 processors.
        while tile > _NARROW_LEAST and triton.cdiv(layout.cols, tile) * layout.rows * items < 264:
            tile //= 2
        tiles = triton.cdiv(layout.cols, tile) * layout.rows
    wanted = _PROGRAMS // (tiles * items)
    if not is_wide:  # a second launch takes as long as 2**18 additions of a program
        wanted = min(wanted // 4, triton.cdiv(run_count * tile, 1 << 18))
    spare = max(_SPARE * case.length * items, _LEAST_SPARE / 4) // (size * items)
    splits = int(max(1, min(wanted, spare + 1, run_count)))
    per_split = triton.cdiv(run_count, splits)
    constants: tuple[Any, ...] = (case.block, tile, case.index, _accumulator(case.dtype))
    kernel, warps = encode_wide_kernel, 1
    if not is_wide:
        kernel, warps = encode_narrow_kernel, 4 if tiles * items * splits >= _BUSY else 8
        at_once = min(warps * 32 * _PER_THREAD // tile, triton.next_power_of_2(per_split))
        constants += (max(1, at_once),)
    sizes = (
        case.offset, case.end, geometry.slots, layout.cols, layout.rows, geometry.runs,
        first_run, run_count, per_split, tiles,
    )  # fmt: skip
    launch = _Launch(kernel, (tiles * items, splits), sizes, constants, num_warps=warps)
    chunks = triton.cdiv(size, _CHUNK // _PARTS)
    add = _Launch(
        add_partials_kernel, (chunks * items, 1), (size, chunks, splits - 1),
        (_CHUNK // _PARTS, _PARTS),
    )  # fmt: skip
    return splits, launch, add


@lru_cache(maxsize=1024)
def _query_plan(case: _Case, combine: Combine, residual: bool) -> tuple[bool, _Launch]:
    """Whether the rows are long, and the launch that estimates."""
    layout, runs = case.layout, case.layout.geometry.runs
    comparators, places = estimator(combine, layout.rows)
    network = tuple(k for pair in comparators for k in pair)
    is_wide = layout.family == "blocked" and case.block >= _LONG_BLOCK
    common = (layout.rows, network, places, case.index, _accumulator(case.dtype))
    last: tuple[Any, ...]
    if is_wide:
        tile = min(case.block, _QUERY_TILE)
        span = min(case.block // tile, _QUERY_SPAN if case.length * case.items >= _MANY else 1)
        tiles = case.blocks[1] * (case.block // (span * tile))
        kernel, last = query_wide_kernel, (span, residual)
    else:
        tile = 512 if layout.rows <= _SMALL_SORT else 128
        tiles = triton.cdiv(case.length, tile)
        kernel, last = query_narrow_kernel, (layout.family == "pairwise",)
    sizes = (case.offset, case.end, layout.cols, runs, tiles)
    grid, constants = (tiles * case.items, 1), (case.block, tile, *common, *last)
    return is_wide, _Launch(kernel, grid, sizes, constants, num_warps=_QUERY_WARPS)


@lru_cache(maxsize=1024)
def _round_plan(tables: int, cells: int, stride: int, bits: int, *_types: object) -> _Launch:
    chunks = min(triton.cdiv(cells, _CHUNK), triton.cdiv(_PROGRAMS, tables))
    return _Launch(
        round_kernel, (chunks * tables, 1), (cells, stride, chunks), (_CHUNK, bits),
        enable_fp_fusion=False,
    )  # fmt: skip


def _device_words(seed: HashSeed, rows: int, device: torch.device) -> Tensor:
    """The seed's words, on their way to the device before what the present stream does next."""
    key = device, rows, driver.active.get_current_stream(device.index)
    words: Tensor | None = seed.memo.get(key)
    if words is None:
        here = torch.from_numpy(seed.words_for(rows).view(np.int64).copy())
        words = seed.memo[key] = here.to(device, non_blocking=True)  # short: copied at once
    return words


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Make a device the current one; if it is already, that would only take time."""
    return _HERE if torch.cuda.current_device() == device.index else torch.cuda.device(device)


def _accumulator(dtype: torch.dtype) -> tl.dtype:
    return tl.float64 if dtype == torch.float64 else tl.float32
