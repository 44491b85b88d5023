"""The blocked family's loops, compiled by Numba. Sizes and types are checked by the caller.

Coordinates are handled in chunks: a block, or `CHUNK` coordinates of a longer one (`QUERY_CHUNK` in
queries). `codes[k, j]` says where block `k` goes in row `j`: twice its place, plus one if all its
signs are flipped. `signs[:, k]` are the step and the start of the block's own sequence of signs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, uint32, uint64

from diffsketch.compiled import compiled
from diffsketch.sketch.kernels.cpu_lanes import add_signed, address, call

CHUNK = 1024
QUERY_CHUNK = 4096
BATCH = 64  # blocks hashed at once
_STRETCH = 1 << 15  # coordinates of short blocks between which copies begin anew
PIECE = 1 << 12  # coordinates of a long block that stay in the first-level cache for all rows



@njit(inline="always")
def mix64(value: Any, first_key: Any, second_key: Any) -> Any:
    """`diffsketch.sketch.hashing.mix64`."""
    z = value + first_key
    z = (z ^ (z >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    z = z ^ second_key
    z = (z ^ (z >> uint64(27))) * uint64(0x94D049BB133111EB)
    return z ^ (z >> uint64(31))


@compiled
def hash_blocks(
    first: Any, count: Any, runs: Any, cols: Any, block: Any, words: Any, top: Any, rows: Any,
    stride: Any, unit: Any, codes: Any, signs: Any,
) -> None:  # fmt: skip
    """Codes and signs of `count` blocks from `first` on, in `rows` rows from `top` on.

    A block that starts at column `c` of row `top + j` has its place at `j * stride + c * unit`.
    """
    for k in range(count):
        h = mix64(uint64(first + k), words[0], words[1])
        signs[0, k], signs[1, k] = uint32(h >> uint64(32)), uint32(h)
    wide = uint64(cols)
    for j in range(rows):
        first_key, second_key = words[2 + 3 * (top + j)], words[3 + 3 * (top + j)]
        slot, run, done = first // runs, first % runs, 0
        while done < count:  # a slot after the other: within one, run follows run
            some = min(runs - run, count - done)
            at, begin = uint64(slot * block), uint64(j * stride)
            for k in range(some):
                h = mix64(uint64(run + k), first_key, second_key)
                start = (((h >> uint64(32)) * wide) >> uint64(32)) + at
                start -= wide if start >= wide else uint64(0)
                codes[done + k, j] = ((begin + start * uint64(unit)) << uint64(1)) | (h & uint64(1))
            slot, run, done = slot + 1, 0, done + some


@compiled
def encode_short(
    task: Any, tasks: Any, vectors: Any, lead: Any, out: Any, block: Any, codes: Any, signs: Any,
    tables: Any, wide: Any, zero: Any,
) -> None:  # fmt: skip
    """Tables of short vectors that begin `lead` coordinates into their first block.

    Blocks take turns on several scratch `tables` with longer rows: a load that overlaps a store
    made just before, as happens all the time in short rows, would have to wait for it.

    With few columns, `wide` has room for a block of its own at each place that blocks start at. So
    they are first added to whole lines of the cache, and no load overlaps a store made just before
    but one of the same line. `zero` is the code of the place 0.
    """
    items, length = vectors.shape
    copies, rows, width = tables.shape
    cols, apart, spread = out.shape[2], rows * width, wide.size > 0
    target = wide if spread else tables
    skip = -address(wide) % 64 // wide.itemsize if spread else 0  # up to a line of the cache
    mask, far = (0, 0) if spread else (copies - 1, apart)
    for item in range(items * task // tasks, items * (task + 1) // tasks):
        tables[:] = 0
        wide[:] = 0
        for k in range(codes.shape[0]):
            into = max(lead - k * block, 0)
            at = k * block - lead + into
            count, turn = min(block - into, length - at), skip + (k & mask) * far + into
            step = signs[0, k]
            phase = signs[1, k] + step * uint32(into)
            add_signed(
                target, turn, codes, k * rows, rows, vectors, item * length + at, count, step, phase
            )
        if spread:
            for j in range(rows):
                for c in range(cols):
                    at = (c & (copies - 1)) * apart + j * width + c
                    begin = skip + (j * cols + c) * block
                    add_signed(tables, at, zero, 0, 1, wide, begin, block, uint32(0), uint32(0))
        table = out[item]
        for j in range(rows):
            for c in range(cols):
                table[j, c] = tables[0, j, c]
            for p in range(1, copies):
                for c in range(cols):
                    table[j, c] += tables[p, j, c]
            for p in range(copies):  # what lies past the end of a row belongs to its start
                for c in range(cols, width):
                    table[j, c - cols] += tables[p, j, c]


@compiled
def query_short(
    task: Any, tasks: Any, tables: Any, outs: Any, lead: Any, block: Any, codes: Any, signs: Any,
    combine: Any, longer: Any, border: Any,
) -> None:  # fmt: skip
    """Estimates of short vectors that begin `lead` coordinates into their first block.

    `longer` is a scratch table whose rows repeat their start, so that no block has to go around
    the end. Whole vectors are written: `border` is for those that would go beyond the results.
    """
    (items, length), (rows, width) = outs.shape, longer.shape
    cols, count, lanes = tables.shape[2], codes.shape[0], 64 // tables.itemsize
    whole = 0 if lead else max(0, (length - max(block, lanes)) // block + 1)
    done, steps, phases = whole * block, address(signs), address(signs[1])
    for item in range(items * task // tasks, items * (task + 1) // tasks):
        table, out = tables[item], outs[item]
        for j in range(rows):
            for c in range(cols):
                longer[j, c] = table[j, c]
            for c in range(cols, width):
                longer[j, c] = longer[j, c - cols]
        cells, at = address(longer), address(codes)
        call(combine, (address(out), cells, at, whole, block, steps, phases))
        if whole < count:
            at += whole * rows * 8
            there = steps + whole * 4, phases + whole * 4
            call(combine, (address(border), cells, at, count - whole, block, there[0], there[1]))
            for i in range(done, length):
                out[i] = border[lead + i - done]


@compiled
def encode_long(
    task: Any, vectors: Any, offset: Any, tables: Any, parts: Any, shares: Any, bands: Any,
    cols: Any, block: Any, runs: Any, words: Any, codes: Any, signs: Any,
) -> None:  # fmt: skip
    """Add a part of a vector to a share of the units of its tables; a unit is a band of a row.

    The tables of a part, of zeros at first, may have longer rows: what lies past their end is for
    the start. With `parts`, blocks may take turns on several of them, as in `encode_short`.
    """
    length, (copies, rows, width) = vectors.shape[1], tables.shape[1:]
    copies //= parts
    item, part, piece = task // (parts * shares), task // shares % parts, task % shares
    unit, units = rows * bands * piece // shares, rows * bands * (piece + 1) // shares
    top, many = unit // bands, (units - 1) // bands + 1 - unit // bands
    chunk = min(block, CHUNK)
    first, stop = offset // chunk, offset + length
    chunks = (stop - 1) // chunk + 1 - first
    at, last = first + chunks * part // parts, first + chunks * (part + 1) // parts
    whole = chunk == block and bands == 1 and width > cols  # no end of a row to go around
    stretch = min(BATCH, max(1, _STRETCH // block)) * block if whole else BATCH * block
    at, last = max(at * chunk, offset), min(last * chunk, stop)
    source, base = item * length - offset, (item * parts + part) * copies * rows * width
    while at < last:
        end = min(last, at - at % stretch + stretch)
        if whole and at % chunk:
            end = min(end, at - at % chunk + chunk)  # a block that is there only in part, by itself
        elif whole and end % chunk and end - at > chunk:
            end -= end % chunk
        hashed, count = at // block, (end - 1) // block + 1 - at // block
        stride = width if whole else 0
        hash_blocks(
            hashed, count, runs, cols, block, words, top, many, stride, 1, codes, signs
        )
        turn = 0
        while at < end:
            k, into = at // block - hashed, at % block
            step = signs[0, k]
            if whole:
                size = min(block - into, end - at)
                to = base + ((turn & (copies - 1)) * rows + top) * width + into
                phase = signs[1, k] + step * uint32(into)
                add_signed(tables, to, codes, k * rows, many, vectors, source + at, size, step, phase)
                turn += 1
            else:
                size = min(end - at, PIECE - into % PIECE, block - into)
                for row in range(top, top + many):
                    low = width * max(unit - row * bands, 0) // bands
                    high = width * min(units - row * bands, bands) // bands
                    start = codes[k, row - top] >> 1
                    begin, least = start + into, low
                    begin -= cols if begin >= cols else 0
                    for _ in range(2):  # as it lies, then what goes around the end of the row
                        left, right = max(begin, least), min(begin + size, high)
                        if left < right:
                            skip = left - begin
                            add_signed(
                                tables, base + row * width + left - start, codes,
                                k * rows + row - top, 1, vectors, source + at + skip,
                                right - left, step, signs[1, k] + step * uint32(into + skip),
                            )  # fmt: skip
                        begin, least = begin - cols, max(low, width - cols)
            at += size


@compiled
def query_long(
    task: Any, tables: Any, outs: Any, offset: Any, parts: Any, cols: Any, block: Any, runs: Any,
    words: Any, combine: Any, codes: Any, signs: Any, scratch: Any, ends: Any, border: Any,
    phase: Any,
) -> None:  # fmt: skip
    """Estimates of a part of a vector; rows of the table may be longer and repeat their start."""
    rows, width, size, length = tables.shape[1], tables.shape[2], tables.itemsize, outs.shape[1]
    table, out = tables[task // parts], outs[task // parts]
    chunk, lanes = min(block, QUERY_CHUNK), ends.shape[1]
    first = offset // chunk
    chunks = (offset + length - 1) // chunk + 1 - first
    c, last = first + chunks * (task % parts) // parts, first + chunks * (task % parts + 1) // parts
    places, cells, stop = scratch[0], scratch[1], min(length, last * chunk - offset)
    hashed, known, step_at, phase_at = 0, 0, address(signs), address(signs[1])
    while c < last:
        base = c * chunk
        b, into, begin = base // block, base % block, base - offset
        if not hashed <= b < hashed + known:
            hashed, known = b, min(BATCH, (last * chunk - 1) // block + 1 - b)
            hash_blocks(b, known, runs, cols, block, words, 0, rows, width, 1, codes, signs)
        k, to = b - hashed, address(out) + begin * size
        inside = begin >= 0 and begin + max(chunk, lanes) <= stop
        if chunk == block and width > cols and inside:
            # Short blocks, no borders and no end of a row to go around: no decisions to make.
            some = min(known - k, (stop - begin - max(chunk, lanes)) // chunk + 1)
            at = address(codes) + k * rows * 8
            call(combine, (to, address(table), at, some, chunk, step_at + 4 * k, phase_at + 4 * k))
            c += some
            continue
        c += 1
        done, to = 0, to if inside else address(border)
        for j in range(rows):
            place = (codes[k, j] >> 1) - j * width + into
            places[j] = place - cols if place >= cols else place
        while done < chunk:  # up to where a row ends; of the vector with the end, a copy is made
            count = max(chunk - done, lanes)
            for j in range(rows):
                count = min(count, (width - places[j]) // lanes * lanes)
            over, count = count == 0, max(count, lanes)
            for j in range(rows):
                at = j * width + places[j]
                if over and places[j] + lanes > width:
                    for i in range(lanes):
                        column = places[j] + i
                        ends[j, i] = table[j, column - cols if column >= cols else column]
                    at = (address(ends) - address(table)) // size + j * lanes
                cells[j] = at * 2 + (codes[k, j] & 1)
                places[j] += count
                places[j] -= cols if places[j] >= cols else 0
            phase[0] = signs[1, k] + signs[0, k] * uint32(into + done)
            call(
                combine,
                (
                    to + done * size, address(table), address(cells), 1, count, step_at + 4 * k,
                    address(phase),
                ),
            )  # fmt: skip
            done += count
        if not inside:
            for i in range(max(0, -begin), min(chunk, length - begin)):
                out[begin + i] = border[i]
