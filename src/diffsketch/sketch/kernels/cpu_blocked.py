"""The blocked family's loops, compiled by Numba. Sizes and types are checked by the caller.

Coordinates are handled in chunks: a block, or `CHUNK` coordinates of a longer one (`QUERY_CHUNK` in
queries).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange, uint32

from diffsketch.sketch.kernels.cpu_adding import (
    add_blocks,
    add_lanes,
    flip_blocks,
)
from diffsketch.sketch.kernels.cpu_functions import call
from diffsketch.sketch.kernels.cpu_hashes import (
    REST,
    TOP,
    address,
    finite,
    fold,
    hash_signs,
    hash_starts,
    pad_rows,
    share,
)

CHUNK = 1024
QUERY_CHUNK = 4096
_STRETCH = 1 << 15  # coordinates of short blocks that row after row reads, signed beforehand
_PIECE = 1 << 14  # bytes of a long block that stay in the first-level cache while rows read them
_AHEAD = 1 << 15  # bytes: so far ahead the next pieces are fetched meanwhile
_BATCH = 64  # blocks hashed at once


@njit(inline="always")
def _add_piece(
    source: Any, count: Any, into: Any, to: Any, width: Any, cols: Any, low: Any, high: Any,
    start: Any, step: Any, phase: Any, fetch: Any, every: Any, one: Any, size: Any,
) -> None:  # fmt: skip
    """Add `count` values, that begin `into` a block, to columns `low` to `high` of a row.

    Inlined by Numba, not left to LLVM: that makes an encode a sixth faster.
    """
    phase = phase + step * uint32(into) + (start & TOP)
    begin, least = np.int64(start & REST) + into, low
    begin -= cols if begin >= cols else 0
    for _ in range(2):  # as it lies, then what of it goes around the end of the row
        at, end = max(begin, least), min(begin + count, high)
        if at < end:
            skip = at - begin
            value, phase_there = source + skip * size, phase + step * uint32(skip)
            add_lanes(to + at * size, value, end - at, step, phase_there, fetch, every, one)
        begin, least = begin - cols, max(low, width - cols)


@njit
def _add_pieces(
    vector: Any, offset: Any, table: Any, cols: Any, bands: Any, unit: Any, units: Any,
    first: Any, last: Any, block: Any, hashed: Any, starts: Any, steps: Any, phases: Any,
) -> None:  # fmt: skip
    """Add coordinates `first` to `last` piece by piece, each to all rows of the share.

    `starts` and so on are the hashes from block `hashed` on.
    """
    size, width, piece = vector.itemsize, table.shape[1], _PIECE // vector.itemsize
    top, bottom = unit // bands, (units - 1) // bands
    every = max(1, (units - unit) // bands)  # so the rows fetch all of it together
    at = first
    while at < last:
        into, k = at % block, at // block - hashed
        count = min(last - at, piece - into % piece, block - into)
        source, part = address(vector) + (at - offset) * size, count * size // every
        for row in range(top, bottom + 1):  # the share's bands of a row in one go
            low, _ = share(width, max(unit - row * bands, 0), bands)
            _, high = share(width, min(units - row * bands, bands) - 1, bands)
            fetch = source + _AHEAD + (row - top) * part
            _add_piece(
                source, count, into, address(table) + row * width * size, width, cols, low, high,
                starts[row - top, k], steps[k], phases[k], fetch, every, vector[0], size,
            )  # fmt: skip
        at += count


@njit
def _encode_stretch(
    vector: Any, offset: Any, tables: Any, cols: Any, bands: Any, unit: Any, units: Any,
    first: Any, last: Any, block: Any, runs: Any, words: Any,
) -> None:  # fmt: skip
    """Add chunks `first` to `last` to some of a table's units; a unit is a band of a row.

    Blocks may take turns on several copies of the table: a load that overlaps a store made just
    before, as happens all the time in short rows, would have to wait for it.
    """
    copies, rows, width = tables.shape
    size, chunk = vector.itemsize, min(block, CHUNK)
    per_stretch = _BATCH * block // chunk
    if chunk == block:
        per_stretch = min(per_stretch, _STRETCH // chunk)
    blocks = per_stretch * chunk // block
    top, bottom = unit // bands, (units - 1) // bands
    starts = np.empty((bottom + 1 - top, blocks), np.uint32)
    steps, phases = np.empty(blocks, np.uint32), np.empty(blocks, np.uint32)
    signed = np.empty(per_stretch * chunk if chunk == block else 0, vector.dtype)
    apart = rows * width * size
    begin, stop = first, offset + vector.size
    while begin < last:
        end = min(last, begin + per_stretch - begin % per_stretch)
        if begin * chunk < offset or (begin + 1) * chunk > stop:
            end = begin + 1  # a chunk that the vector fills only in part, by itself
        end = min(end, max(begin + 1, stop // chunk))
        whole = begin * chunk >= offset and end * chunk <= stop
        hashed = begin * chunk // block
        count = (end * chunk - 1) // block + 1 - hashed
        hash_signs(hashed, words, steps[:count], phases[:count])
        for row in range(top, bottom + 1):
            hash_starts(hashed, runs, cols, block, row, words, starts[row - top, :count])
        if chunk == block and whole and bands == 1 and width > cols:
            # Short blocks, no borders and no end of a row to go around: no decisions to make.
            source, each = address(vector) + (begin * chunk - offset) * size, chunk * size // 64
            to, by, of = address(signed), address(steps), address(phases)
            flip_blocks(to, source, count, each, by, of, vector[0])
            add_blocks(
                address(tables[0, unit]), to, count, each, units - unit, width * size,
                address(starts), blocks, copies - 1, apart, vector[0],
            )  # fmt: skip
        else:
            _add_pieces(
                vector, offset, tables[0], cols, bands, unit, units, max(begin * chunk, offset),
                min(end * chunk, stop), block, hashed, starts, steps, phases,
            )  # fmt: skip
        begin = end


@njit(inline="always")
def _encode_task(
    task: Any, vectors: Any, offset: Any, tables: Any, parts: Any, shares: Any, bands: Any,
    cols: Any, block: Any, runs: Any, words: Any,
) -> None:  # fmt: skip
    """A task is a vector, a part of it (each part has its tables) and a share of their units."""
    copies, rows = tables.shape[1] // parts, tables.shape[2]
    item, rest = task // (parts * shares), task % (parts * shares)
    part, piece = rest // shares, rest % shares
    chunk = min(block, CHUNK)
    first = offset // chunk
    begin, end = share((offset + vectors.shape[1] - 1) // chunk + 1 - first, part, parts)
    unit, units = share(rows * bands, piece, shares)
    _encode_stretch(
        vectors[item], offset, tables[item, part * copies : (part + 1) * copies], cols, bands,
        unit, units, first + begin, first + end, block, runs, words,
    )  # fmt: skip


@njit(cache=True, nogil=True)
def encode_long(
    vectors: Any, offset: Any, tables: Any, parts: Any, shares: Any, bands: Any, cols: Any,
    block: Any, runs: Any, words: Any, out: Any,
) -> None:  # fmt: skip
    """One thread. `tables` is `out` itself, or partial tables with longer rows to be folded."""
    for task in range(vectors.shape[0] * parts * shares):
        _encode_task(task, vectors, offset, tables, parts, shares, bands, cols, block, runs, words)
    if tables.shape[3] > cols:
        for item in range(vectors.shape[0]):
            fold(tables[item], out[item])


@njit(cache=True, parallel=True, nogil=True)
def encode_long_parallel(
    vectors: Any, offset: Any, tables: Any, parts: Any, shares: Any, bands: Any, cols: Any,
    block: Any, runs: Any, words: Any, out: Any,
) -> None:  # fmt: skip
    """The same with all threads."""
    for task in prange(vectors.shape[0] * parts * shares):
        _encode_task(task, vectors, offset, tables, parts, shares, bands, cols, block, runs, words)
    if tables.shape[3] > cols:
        for item in prange(vectors.shape[0]):
            fold(tables[item], out[item])


@njit(inline="always")
def _query_chunk(
    table: Any, cols: Any, to: Any, vectors: Any, places: Any, flips: Any, cells: Any, ends: Any,
    step: Any, phase: Any, combine: Any,
) -> None:  # fmt: skip
    """Estimates of so many vectors of coordinates, whose cells are from `places` on in each row.

    They are combined up to where a row ends. Of the vector with the end, a copy is made.
    """
    rows, width, size = table.shape[0], table.shape[1], table.itemsize
    lanes, done = 64 // size, 0
    while done < vectors:
        count = vectors - done
        for j in range(rows):
            count = min(count, (width - places[j]) // lanes)
        over, count = count == 0, max(count, 1)
        for j in range(rows):
            cells[j] = address(table) + (j * width + places[j]) * size
            if over and places[j] + lanes > width:
                for i in range(lanes):
                    at = places[j] + i
                    ends[j, i] = table[j, at - cols if at >= cols else at]
                cells[j] = address(ends) + j * 64
        turn = phase + step * uint32(done * lanes)
        call(combine, (to + done * 64, address(cells), address(flips), count, step, turn))
        for j in range(rows):
            places[j] += count * lanes
            places[j] -= cols if places[j] >= cols else 0
        done += count


@njit
def _query_stretch(
    table: Any, cols: Any, out: Any, offset: Any, first: Any, last: Any, block: Any, runs: Any,
    words: Any, combine: Any, combine_blocks: Any,
) -> None:  # fmt: skip
    """Estimates of chunks `first` to `last`."""
    rows, size, chunk = table.shape[0], table.itemsize, min(block, QUERY_CHUNK)
    vectors, ends = chunk * size // 64, np.empty((rows, 64 // size), table.dtype)
    border = np.empty(chunk + 64 // size, table.dtype)
    border = border[-address(border) % 64 // size :]  # from a multiple of 64 bytes on
    starts, places = np.empty((rows, _BATCH), np.uint32), np.empty(rows, np.int64)
    steps, phases = np.empty(_BATCH, np.uint32), np.empty(_BATCH, np.uint32)
    cells, flips = np.empty(rows, np.int64), np.empty(rows, np.uint32)
    hashed, c = np.int64(-1), first
    while c < last:
        base = c * chunk
        b = base // block
        if hashed < 0 or b >= hashed + _BATCH:
            hashed = b
            ahead = min(_BATCH, (last * chunk - 1) // block + 1 - b)
            hash_signs(b, words, steps[:ahead], phases[:ahead])
            for j in range(rows):
                hash_starts(b, runs, cols, block, j, words, starts[j, :ahead])
            count = min(_BATCH, last - c, max(1, (offset + out.size) // chunk - c))
            inner = base >= offset and base + count * chunk <= offset + out.size
            if chunk == block and inner and table.shape[1] > cols:
                # Short blocks, no borders and no end of a row to go around: no decisions to make.
                to, apart = address(out) + (base - offset) * size, table.shape[1] * size
                at, by, of = address(starts), address(steps), address(phases)
                cell, per = address(table), _BATCH
                call(combine_blocks, (to, cell, apart, count, vectors, at, per, by, of))
                c += count
                hashed = -1
                continue
        k, into = b - hashed, base % block
        c += 1
        for j in range(rows):
            place = np.int64(starts[j, k] & REST) + into
            places[j], flips[j] = place - cols if place >= cols else place, starts[j, k] & TOP
        begin, phase = base - offset, phases[k] + steps[k] * uint32(into)
        inside = begin >= 0 and begin + chunk <= out.size
        to = address(out) + begin * size if inside else address(border)
        _query_chunk(table, cols, to, vectors, places, flips, cells, ends, steps[k], phase, combine)
        if not inside:
            for i in range(max(0, -begin), min(chunk, out.size - begin)):
                out[begin + i] = border[i]


@njit(inline="always")
def _query_task(
    task: Any, tables: Any, cols: Any, outs: Any, offset: Any, parts: Any, pad: Any, block: Any,
    runs: Any, words: Any, combine: Any, combine_blocks: Any,
) -> None:  # fmt: skip
    item, part = task // parts, task % parts
    chunk = min(block, QUERY_CHUNK)
    first = offset // chunk
    begin, end = share((offset + outs.shape[1] - 1) // chunk + 1 - first, part, parts)
    table = tables[item]
    if pad:
        table = pad_rows(table, pad)
    _query_stretch(
        table, cols, outs[item], offset, first + begin, first + end, block, runs, words, combine,
        combine_blocks,
    )  # fmt: skip


@njit(cache=True, nogil=True)
def query(
    tables: Any, cols: Any, outs: Any, offset: Any, parts: Any, pad: Any, block: Any, runs: Any,
    words: Any, combine: Any, combine_blocks: Any, validate: Any,
) -> Any:  # fmt: skip
    """One thread. False, and nothing is written, if a table is to be validated and not finite.

    How to combine is said by the addresses of a `lanes_combiner` and a `blocks_combiner`.
    """
    if validate and not finite(tables):
        return False
    for task in range(tables.shape[0] * parts):
        _query_task(
            task, tables, cols, outs, offset, parts, pad, block, runs, words, combine,
            combine_blocks,
        )  # fmt: skip
    return True


@njit(cache=True, parallel=True, nogil=True)
def query_parallel(
    tables: Any, cols: Any, outs: Any, offset: Any, parts: Any, pad: Any, block: Any, runs: Any,
    words: Any, combine: Any, combine_blocks: Any, validate: Any,
) -> Any:  # fmt: skip
    """The same with all threads."""
    if validate and not finite(tables):
        return False
    for task in prange(tables.shape[0] * parts):
        _query_task(
            task, tables, cols, outs, offset, parts, pad, block, runs, words, combine,
            combine_blocks,
        )  # fmt: skip
    return True
