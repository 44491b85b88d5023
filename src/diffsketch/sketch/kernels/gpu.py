"""Kernels for CUDA tensors: how the work is cut; the Triton code is in `gpu_triton`.

For `blocked` the same input gives the same bits every time. Where a table is too small to occupy
the device, the runs are split over programs, and their partial tables are added in a second pass,
in a fixed order as well. `pairwise` sums agree to rounding only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from diffsketch.sketch.hashing import HashSeed, SketchLayout
from diffsketch.sketch.kernels.gpu_triton import (
    add_partials_kernel,
    encode_narrow_kernel,
    encode_wide_kernel,
    hash_kernel,
    query_narrow_kernel,
    query_wide_kernel,
    scatter_kernel,
)
from diffsketch.sketch.kernels.networks import median_network

INPUT_TYPES: tuple[torch.dtype, ...] = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

# Tile sizes and warps: the fastest of those tried on an H200.
_TILE, _WARPS, _UNROLL = 512, 1, 2
_QUERY_TILE, _QUERY_WARPS = 1024, 4
_NARROW_TILE = 1024  # elements, over several runs
_PROGRAMS = 4096  # enough to occupy the largest devices; more would cost partial tables
_MAX_ITEMS = 65_535
_SPARE = 0.0095  # of the vector: memory for hashes and partial tables (allocators round up)
_SMALL_SORT = 9  # rows up to which a tile of the narrow query may be large


def encode(vectors: Tensor, seed: HashSeed, *, layout: SketchLayout, offset: int) -> Tensor:
    """Tables of vectors `(..., length)`, which start at coordinate `offset`."""
    wide = torch.float64 if vectors.dtype == torch.float64 else torch.float32
    shape = (*vectors.shape[:-1], layout.rows, layout.cols)
    adds = layout.family == "pairwise" or not vectors.numel()
    out = (torch.zeros if adds else torch.empty)(shape, dtype=wide, device=vectors.device)
    if vectors.numel():
        batch = vectors.view(-1, vectors.shape[-1])
        tables = out.view(-1, layout.rows, layout.cols)
        with torch.cuda.device(vectors.device):
            for some in _groups(batch.shape[0]):
                (_scatter if adds else _gather)(batch[some], tables[some], seed, layout, offset)
    return out


def query(
    tables: Tensor,
    seed: HashSeed,
    out: Tensor,
    *,
    layout: SketchLayout,
    offset: int,
    mean: bool,
    validate: bool,
) -> bool:
    """Write estimates of the coordinates from `offset` on to `out`, `(..., length)`.

    False if the tables are to be validated and not finite. The device looks at the cells first,
    but its answer is awaited only at the end, lest it stand idle: `out` is written in any case.
    """
    if not tables.numel():
        return True
    largest = torch.linalg.vector_norm(tables, ord=math.inf) if validate else None
    if out.numel():
        batch, results = tables.view(-1, layout.rows, layout.cols), out.view(-1, out.shape[-1])
        for some in _groups(batch.shape[0]):
            _query(batch[some], seed, results[some], layout, offset, mean=mean)
    return largest is None or math.isfinite(largest.item())


def add_residual(
    out: Tensor, vector: Tensor, table: Tensor, seed: HashSeed, *, layout: SketchLayout,
    scale: float, mean: bool,
) -> bool:  # fmt: skip
    """Add `scale` times what a table's estimates miss of a vector; False if it takes two passes."""
    if table.dtype != torch.float32:  # which Triton takes the scale in
        return False
    missed = vector, scale
    return _query(table[None], seed, out[None], layout, 0, mean=mean, missed=missed)


def _query(
    tables: Tensor,
    seed: HashSeed,
    out: Tensor,
    layout: SketchLayout,
    offset: int,
    *,
    mean: bool,
    missed: tuple[Tensor, float] | None = None,
) -> bool:
    """Write estimates; or add what they miss of a vector, so many times, to what is there.

    False, and nothing is done, if the latter takes two passes.
    """
    length, geometry = out.shape[-1], layout.geometry
    items = out.numel() // length
    network = tuple(k for pair in median_network(layout.rows) for k in pair)
    common = {
        "BLOCK": geometry.block,
        "ROWS": layout.rows,
        "NETWORK": () if mean else network,
        "MEAN": mean,
        "ACC": _accumulator(tables),
    }
    with torch.cuda.device(tables.device):
        window = _Window.of(layout, offset, length)
        hashes = _hash_tables(seed, layout, window, tables.device)
        if hashes is not None:
            tile = min(geometry.block, _QUERY_TILE)
            grid = (window.block_count * (geometry.block // tile), items)
            other, scale = missed or (out, 1.0)
            query_wide_kernel[grid](
                tables, out, other, *hashes, scale, offset, offset + length, layout.cols,
                geometry.runs, *window.runs_blocks[:3], TILE=tile, num_warps=_QUERY_WARPS,
                RESIDUAL=missed is not None, **common,
            )  # fmt: skip
        elif missed is not None:
            return False
        else:
            tile = 512 if layout.rows <= _SMALL_SORT else 128
            query_narrow_kernel[(triton.cdiv(length, tile), items)](
                tables, out, _device_words(seed, tables.device), offset, offset + length,
                geometry.runs, layout.cols, TILE=tile, PAIRWISE=layout.family == "pairwise",
                **common,
            )  # fmt: skip
    return True


def top_k(
    tables: Tensor, seed: HashSeed, count: int, *, layout: SketchLayout, mean: bool
) -> tuple[Tensor, Tensor]:
    """Estimates `(..., count)` that are largest in size, in that order, and their indices."""
    estimates = tables.new_empty((*tables.shape[:-2], layout.dim))
    query(tables, seed, estimates, layout=layout, offset=0, mean=mean, validate=False)
    indices = estimates.abs().topk(count, dim=-1).indices
    return estimates.gather(-1, indices), indices


def is_finite(table: Tensor) -> bool:
    """Whether no cell is NaN or infinite; waits for the device."""
    if not table.numel():
        return True
    return math.isfinite(torch.linalg.vector_norm(table, ord=math.inf).item())


def _scatter(
    vectors: Tensor, out: Tensor, seed: HashSeed, layout: SketchLayout, offset: int
) -> None:
    items, length = vectors.shape
    scatter_kernel[(triton.cdiv(length, 1024), items)](
        vectors, out, _device_words(seed, vectors.device), offset, offset + length, layout.cols,
        TILE=1024, ROWS=layout.rows, ACC=_accumulator(out),
    )  # fmt: skip


def _gather(
    vectors: Tensor, out: Tensor, seed: HashSeed, layout: SketchLayout, offset: int
) -> None:
    items, length = vectors.shape
    geometry, size = layout.geometry, layout.rows * layout.cols
    window = _Window.of(layout, offset, length)
    hashes = _hash_tables(seed, layout, window, vectors.device)
    tile = min(
        (geometry.block, _TILE) if hashes else (triton.next_power_of_2(layout.cols), _NARROW_TILE)
    )
    tiles = triton.cdiv(layout.cols, tile) * layout.rows
    spare = _SPARE * length * out.element_size() - (_nbytes(*hashes) if hashes else 0)
    spare_tables = int(spare // (size * out.element_size()))
    wanted = triton.cdiv(_PROGRAMS, tiles * items)
    splits = max(1, min(wanted, spare_tables + 1, window.run_count))
    partials = out.new_empty((items, splits - 1, size))
    span = (offset, offset + length, geometry.slots, layout.cols, layout.rows, geometry.runs)
    per_split = triton.cdiv(window.run_count, splits)
    options: dict[str, Any] = {"BLOCK": geometry.block, "TILE": tile, "ACC": _accumulator(out)}
    grid = (tiles, splits, items)
    if hashes:
        index = tl.int32 if layout.dim + layout.cols < (1 << 31) - 1024 else tl.int64
        encode_wide_kernel[grid](
            vectors, out, partials, *hashes, *span, *window.runs_blocks, per_split,
            UNROLL=_UNROLL, INDEX=index, num_warps=_WARPS, **options,
        )  # fmt: skip
    else:
        encode_narrow_kernel[grid](
            vectors, out, partials, _device_words(seed, vectors.device), *span,
            window.first_run, window.run_count, per_split,
            RUNS=max(1, _NARROW_TILE // tile), **options,
        )  # fmt: skip
    if splits > 1:
        add_partials_kernel[(triton.cdiv(size, 1024), items)](
            out, partials, size, splits - 1, CHUNK=1024
        )


@dataclass(frozen=True)
class _Window:
    """The runs and blocks that a stretch of consecutive coordinates touches."""

    first_run: int
    run_count: int
    first_block: int
    block_count: int
    length: int

    @classmethod
    def of(cls, layout: SketchLayout, offset: int, length: int) -> _Window:
        geometry = layout.geometry
        first, last = offset // geometry.block, (offset + length - 1) // geometry.block
        count = last - first + 1
        if count >= geometry.runs:
            return cls(0, geometry.runs, first, count, length)
        return cls(first % geometry.runs, count, first, count, length)

    @property
    def runs_blocks(self) -> tuple[int, int, int, int]:
        return self.first_run, self.run_count, self.first_block, self.block_count


def _hash_tables(
    seed: HashSeed, layout: SketchLayout, window: _Window, device: torch.device
) -> tuple[Tensor, Tensor] | None:
    """Hashes of the runs and blocks, or None where they would take over 1% of the vector."""
    shifts = layout.rows * window.run_count
    too_many = 4 * shifts + 8 * window.block_count > _SPARE * 4 * window.length
    if layout.family == "pairwise" or layout.geometry.block < 256 or too_many:
        return None
    shift = torch.empty(shifts, dtype=torch.int32, device=device)
    weyl = torch.empty(window.block_count, dtype=torch.int64, device=device)
    hash_kernel[(triton.cdiv(max(window.block_count, shifts), 256),)](
        _device_words(seed, device), shift, weyl, layout.rows, layout.cols, layout.geometry.runs,
        *window.runs_blocks, CHUNK=256,
    )  # fmt: skip
    return shift, weyl


def _device_words(seed: HashSeed, device: torch.device) -> Tensor:
    words = seed.memo.get(device)
    if words is None:
        words = torch.from_numpy(seed.words.view(np.int64).copy()).to(device)
        seed.memo[device] = words
    return words


def _groups(items: int) -> list[slice]:
    """Batches that a grid can hold: its second and third dimension end at 65,535."""
    return [slice(first, first + _MAX_ITEMS) for first in range(0, items, _MAX_ITEMS)]


def _nbytes(*tensors: Tensor) -> int:
    return sum(t.nbytes for t in tensors)


def _accumulator(table: Tensor) -> tl.dtype:
    return tl.float64 if table.dtype == torch.float64 else tl.float32
