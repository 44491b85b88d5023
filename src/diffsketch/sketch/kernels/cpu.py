"""Kernels for CPU tensors: how the work is cut; the loops are in `cpu_blocked` and its like.

The bits of a result depend on the vector and the sketch only, never on the number of threads. An
encode either adds into the table itself, the rows shared out among the threads, or, where they
are small enough, into a fixed number of partial tables, added in order at the end.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.sketch.hashing import HashSeed, Layout
from diffsketch.sketch.kernels import (
    cpu_blocked,
    cpu_columns,
    cpu_joint,
    cpu_scattered,
    cpu_short,
)
from diffsketch.sketch.kernels.cpu_adding import signed_adder, spread_adder
from diffsketch.sketch.kernels.cpu_combining import (
    blocks_combiner,
    lanes_combiner,
    signed_combiner,
)
from diffsketch.sketch.kernels.cpu_threads import SERIAL, runner, threads_for

Array: TypeAlias = npt.NDArray[np.float32 | np.float64]
Words: TypeAlias = npt.NDArray[np.uint32]
Spread: TypeAlias = tuple[Words, Array, Words]  # where blocks go in a wide table, and their signs
Short: TypeAlias = tuple[int, Words, Spread]  # block, hashes, spread
Kind: TypeAlias = Literal["short", "long", "scattered", "joint"]

__all__ = ["INPUT_TYPES", "add_residual", "encode", "is_finite", "query"]

INPUT_TYPES: tuple[torch.dtype, ...] = (torch.float32, torch.float64)

_SPARE = 1 << 18  # bytes of partial tables that are always allowed; else 0.8% of the vector
_MAX_PARTS = 8
_SHORT_ROW = 1024  # columns up to which consecutive blocks get in each other's way
_COPIES = 4  # partial tables that then take turns; a power of two
_UNROLLED = 16  # rows up to which short vectors have code of their own for each number
_STREAM = 1 << 24  # bytes of output from which on it is written past the caches


def encode(vectors: Tensor, seed: HashSeed, *, layout: Layout, offset: int) -> Tensor:
    """Tables of vectors `(..., length)`, which start at coordinate `offset`."""
    source = vectors.numpy()
    length = source.shape[-1]
    kind, parts, copies = _plan(length, layout, source.itemsize)
    # NumPy's arrays are made and handed over faster than torch's: it shows for small vectors.
    shape = (*source.shape[:-1], layout.rows, layout.cols)
    if not source.size:
        return torch.from_numpy(np.zeros(shape, dtype=source.dtype))
    out = (np.empty if copies else np.zeros)(shape, dtype=source.dtype)
    table, batch = out.reshape(-1, layout.rows, layout.cols), source.reshape(-1, length)
    if kind == "short":
        block, hashes, spread = _short(seed, layout, offset, length, table)
        run = runner(cpu_short.encode, cpu_short.encode_parallel, threads_for(source.size))
        add = (spread_adder if spread[0].size else signed_adder)(layout.rows, source.itemsize)
        run(batch, offset % block, table, copies, block, hashes, spread, add.address)
        return torch.from_numpy(out)
    # Not all vectors at a time, for the sake of the memory that partial tables take.
    encode_some = _ENCODE[kind]
    group = batch.shape[0]
    if copies:
        room = max(_SPARE, source.nbytes // 125)
        partial_bytes = parts * copies * layout.rows * _width(layout, kind) * source.itemsize
        group = max(1, torch.get_num_threads() // parts, room // partial_bytes)
    for first in range(0, batch.shape[0], group):
        some = slice(first, first + group)
        encode_some(batch[some], seed, table[some], layout, offset, parts, copies)
    return torch.from_numpy(out)


def _encode_long(
    source: Array, seed: HashSeed, out: Array, layout: Layout, offset: int, parts: int, copies: int
) -> None:
    items, threads, geometry = source.shape[0], threads_for(source.size), layout.geometry
    tables = _tables(out, layout, "long", parts * copies)
    shares, bands = -(-threads // (items * parts)), 1
    if copies > 1:
        shares = min(shares, layout.rows)  # bands of a row do not take turns on copies
    else:
        bands = shares // math.gcd(shares, layout.rows)  # so that shares are of equal size
    run = runner(cpu_blocked.encode_long, cpu_blocked.encode_long_parallel, threads)
    run(
        source, offset, tables, parts, shares, bands, layout.cols, geometry.block, geometry.runs,
        seed.words_for(layout.rows), out,
    )  # fmt: skip


def _encode_scattered(
    source: Array, seed: HashSeed, out: Array, layout: Layout, offset: int, parts: int, copies: int
) -> None:
    items, threads = source.shape[0], threads_for(source.size * layout.rows)
    tables = _tables(out, layout, "scattered", parts * copies)
    shares = min(layout.rows, -(-threads // (items * parts)))
    run = runner(cpu_scattered.encode, cpu_scattered.encode_parallel, threads)
    run(
        source, offset, tables, parts, shares, layout.cols, _block(layout), layout.geometry.runs,
        seed.words_for(layout.rows), out,
    )  # fmt: skip


def _encode_joint(
    source: Array, seed: HashSeed, out: Array, layout: Layout, offset: int, parts: int, copies: int
) -> None:
    tables = _tables(out, layout, "joint", parts * copies)
    threads = min(threads_for(source.size), len(source) * parts)
    run = runner(cpu_joint.encode, cpu_joint.encode_parallel, threads)
    run(source, offset, tables, seed.words_for(layout.rows), out)


def _tables(out: Array, layout: Layout, kind: Kind, partial: int) -> Array:
    """Zeros to add to: so many partial tables for each vector, or if there are none, its table."""
    if not partial:
        return out[:, None]
    shape = (len(out), partial, layout.rows, _width(layout, kind))
    return np.zeros(shape, dtype=out.dtype)


_ENCODE = {"long": _encode_long, "scattered": _encode_scattered, "joint": _encode_joint}


def query(
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

    False, and nothing is written, if the tables are to be validated and not finite.
    """
    result, table, cols = out.numpy(), tables.numpy(), layout.cols
    if not result.size:
        return not validate or is_finite(tables)
    length = result.shape[-1]
    result, table = result.reshape(-1, length), table.reshape(-1, layout.rows, cols)
    items, kind = result.shape[0], _plan(length, layout, result.itemsize)[0]
    threads, rows, size = threads_for(result.size), layout.rows, table.itemsize
    if kind == "short":
        block, hashes, _ = _short(seed, layout, offset, length, table)
        run = runner(cpu_short.query, cpu_short.query_parallel, threads)
        combine = blocks_combiner(rows, size, mean=mean, stream=False)
        return bool(run(table, result, offset % block, block, hashes, combine.address, validate))
    parts, words = -(-threads // items), seed.words_for(layout.rows)
    block, runs = layout.geometry.block, layout.geometry.runs
    if kind == "joint":
        run = runner(cpu_joint.query, cpu_joint.query_parallel, threads)
        combine = signed_combiner(rows, size, mean=mean, paired=True)
        return bool(run(table, result, offset, parts, words, combine.address, validate))
    if kind == "scattered":
        run = runner(cpu_scattered.query, cpu_scattered.query_parallel, threads)
        own, combine = _block(layout), signed_combiner(rows, size, mean=mean, paired=False)
        return bool(
            run(table, cols, result, offset, parts, own, runs, words, combine.address, validate)
        )
    pad = min(block, cpu_blocked.QUERY_CHUNK)
    if rows * (cols + pad) * size > _SPARE:
        pad = 0
    place = out.data_ptr() - offset * size
    aligned = place % 64 == 0 and (items == 1 or length % 16 == 0)
    stream = result.nbytes >= _STREAM and aligned
    combine = lanes_combiner(rows, size, mean=mean, stream=stream)
    combine_blocks = blocks_combiner(rows, size, mean=mean, stream=stream)
    run = runner(cpu_blocked.query, cpu_blocked.query_parallel, threads)
    return bool(
        run(
            table, cols, result, offset, parts, pad, block, runs, words, combine.address,
            combine_blocks.address, validate,
        )
    )  # fmt: skip


def add_residual(*_: object, **__: object) -> bool:
    """Not in one pass: a query's results are in the caches if they are few, and else streamed."""
    return False


def is_finite(table: Tensor) -> bool:
    """Whether no cell is NaN or infinite."""
    return bool(torch.isfinite(table).all())


def _short(seed: HashSeed, layout: Layout, offset: int, length: int, table: Array) -> Short:
    """What loops over a short vector take; that of a whole vector is kept with the seed."""
    key = layout.dim, layout.rows, layout.cols, table.itemsize
    short: Short | None = seed.memo.get(key) if length == layout.dim else None
    if short is None:
        geometry, rows, cols = layout.geometry, layout.rows, layout.cols
        first, last = offset // geometry.block, (offset + length - 1) // geometry.block
        count, line = last - first + 1, geometry.block * table.itemsize
        words = seed.words_for(rows)
        hashes = cpu_short.hash_blocks(
            first, count, rows, cols, geometry.block, geometry.runs, words
        )
        room = count if rows * cols * line <= cpu_short.SPREAD else 0  # for a wide table
        factors = np.empty((rows, room), table.dtype)
        spread = cpu_short.spread_blocks(hashes, cols, line, factors)
        short = geometry.block, hashes, spread
        if length == layout.dim:  # parts of a vector are too many to keep
            seed.memo[key] = short
    return short


def _block(layout: Layout) -> int:
    return layout.geometry.block if layout.family == "blocked" else 0


def _width(layout: Layout, kind: Kind) -> int:
    """Of a row of a partial table: with room past its end for a chunk, if there are chunks."""
    if kind in ("scattered", "joint"):
        return layout.cols
    return layout.cols + min(layout.geometry.block, cpu_blocked.CHUNK)


def _plan(length: int, layout: Layout, itemsize: int) -> tuple[Kind, int, int]:
    """Which loops do it, in how many parts, and how many partial tables each part has, if any.

    All follows from the sizes alone, and so does the order of additions.
    """
    key = length, itemsize
    if key not in layout.memo:
        layout.memo[key] = _make_plan(length, layout, itemsize)
    plan: tuple[Kind, int, int] = layout.memo[key]
    return plan


def _make_plan(length: int, layout: Layout, itemsize: int) -> tuple[Kind, int, int]:
    block = layout.geometry.block
    if layout.family == "pairwise" and cpu_joint.pays(length, layout.rows, layout.cols):
        return ("joint", 1, 0) if length < SERIAL else ("joint", _MAX_PARTS, 1)
    if layout.family == "pairwise" or block < 16:  # less than a 64-byte vector
        kind: Kind = "scattered"
        copies = cpu_columns.COPIES if layout.cols <= _SHORT_ROW // 16 else 1
    else:
        short = length < SERIAL and block <= cpu_blocked.CHUNK and layout.rows <= _UNROLLED
        kind = "short" if short else "long"
        copies = _COPIES if layout.cols <= _SHORT_ROW else 1
    room = max(_SPARE, length * itemsize // 125)
    room //= layout.rows * _width(layout, kind) * itemsize
    if kind == "short":
        return kind, 1, copies if room >= copies else 1
    parts = 1 if length < SERIAL else min(_MAX_PARTS, room // copies)
    parts = 1 << (max(1, parts).bit_length() - 1)
    if room < copies or (parts * copies == 1 and kind == "scattered"):
        return kind, 1, 0
    return kind, parts, copies
