"""The blocked family's loops, compiled by Numba. Sizes and types are checked by the caller.

Coordinates are handled in chunks: a block, or `CHUNK` coordinates of a longer one (`QUERY_CHUNK` in
queries). `codes[k, j]` says where block `k` goes in row `j`: twice its place, plus one if all its
signs are flipped. `signs[:, k]` are the step and the start of the block's own sequence of signs.
"""

from __future__ import annotations

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
def mix64(value, first_key, second_key):
    """`diffsketch.sketch.hashing.mix64`."""
    z = value + first_key
    z = (z ^ (z >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    z = z ^ second_key
    z = (z ^ (z >> uint64(27))) * uint64(0x94D049BB133111EB)
    return z ^ (z >> uint64(31))


@compiled
def hash_blocks(first, count, runs, cols, block, words, top, rows, stride, codes, signs):
    """Codes and signs of `count` blocks from `first` on, in `rows` rows from `top` on.

    A block that starts at column `c` of row `top + j` has its place at `j * stride + c`.
    """
    for k in range(count):
        h = mix64(uint64(first + k), words[0], words[1])
        signs[0, k], signs[1, k] = uint32(h >> uint64(32)), uint32(h)
    wide = uint64(cols)
    for j in range(rows):
        first_key, second_key = words[2 + 3 * (top + j)], words[3 + 3 * (top + j)]
        slot, run, done = first // runs, first % runs, 0
        while done < count:  # a slot after the other: within one, run follows run
            taken = min(runs - run, count - done)
            at, begin = uint64(slot * block), uint64(j * stride)
            for k in range(taken):
                h = mix64(uint64(run + k), first_key, second_key)
                # The run's shift, uniform in `[0, cols)`, and the block's place in the run.
                start = (((h >> uint64(32)) * wide) >> uint64(32)) + at
                start -= wide if start >= wide else uint64(0)
                # Place and flip in one number: the loops load one array.
                codes[done + k, j] = ((begin + start) << uint64(1)) | (h & uint64(1))
            slot, run, done = slot + 1, 0, done + taken


@compiled
def all_finite(tables):
    """Whether no cell is NaN or infinite."""
    bad, cells = 0, tables.reshape(-1)
    for i in range(cells.size):
        # NaN is not below infinity either. Counted without a branch, so that the loop is
        # vectorised.
        bad += 0 if abs(cells[i]) < np.inf else 1
    return bad == 0


@compiled
def add_tables(tables, out, past):
    """Add partial tables `(items, tables, rows, width)` to those of the items, in their order.

    `past` numbers that lie past the end of a row are for its start.
    """
    (items, parts, rows, _), cols = tables.shape, out.shape[2]
    for item in range(items):
        for j in range(rows):
            for begin, count in ((0, cols), (cols, past)):
                row = out[item, j, :count]
                for p in range(parts):
                    part = tables[item, p, j, begin : begin + count]
                    for c in range(count):
                        row[c] += part[c]


@compiled
def encode_short(task, tasks, vectors, out, lead, block, copies, width, codes, signs, add, scratch):
    """Tables of short vectors that begin `lead` coordinates into their first block.

    Blocks take turns on several tables with longer rows, in `scratch`: a load that overlaps a store
    made just before, as happens all the time in short rows, would have to wait for it.
    """
    (items, length), rows = vectors.shape, out.shape[1]
    count, mask, full = signs.shape[1], copies - 1, 0 if lead else length // block
    tables = scratch[: copies * rows * width].reshape(1, copies, rows, width)
    size, code_at = scratch.itemsize, address(codes)
    for item in range(items * task // tasks, items * (task + 1) // tasks):
        scratch[:] = 0
        begin = address(vectors) + item * length * size
        call(
            add,
            (
                address(scratch), begin, code_at, full, block, address(signs), address(signs[1]),
                mask, rows * width, length * size,
            ),
        )  # fmt: skip
        for k in range(full, count):
            # The first block may begin before the vector, and the last one end after it.
            into = max(lead - k * block, 0)
            at = k * block - lead + into
            present, to = min(block - into, length - at), (k & mask) * rows * width + into
            step, start = signs[0, k], item * length + at
            phase = signs[1, k] + step * uint32(into)
            add_signed(scratch, to, codes, k * rows, rows, vectors, start, present, step, phase)
        add_tables(tables, out[item : item + 1], block)


@compiled
def query_short(task, tasks, outs, tables, lead, block, width, codes, signs, combine, scratch):
    """Estimates of short vectors that begin `lead` coordinates into their first block.

    `scratch` is for a table whose rows repeat their start, so that no block has to go around the
    end; and, since whole vectors are written, for those that would go beyond the results.
    """
    (items, length), (rows, cols) = outs.shape, tables.shape[1:]
    count, lanes, border = signs.shape[1], 64 // scratch.itemsize, rows * width
    full = 0 if lead else max(0, (length - max(block, lanes)) // block + 1)
    done, at, steps, phases = full * block, address(codes), address(signs), address(signs[1])
    cells, last_place = address(scratch), address(scratch) + border * scratch.itemsize
    after, more, further = at + full * rows * 8, steps + full * 4, phases + full * 4
    for item in range(items * task // tasks, items * (task + 1) // tasks):
        table, out = tables[item], outs[item]
        for j in range(rows):
            for c in range(cols):
                scratch[j * width + c] = table[j, c]
            # Rows that repeat their start: a block that runs over the end reads on.
            for c in range(cols, width):
                scratch[j * width + c] = scratch[j * width + c - cols]
        call(combine, (address(out), cells, at, full, block, steps, phases))
        call(combine, (last_place, cells, after, count - full, block, more, further))
        for i in range(done, length):
            out[i] = scratch[border + lead + i - done]


@compiled
def encode(
    task, vectors, offset, tables, parts, shares, bands, cols, block, runs, words, codes, signs
):
    """Add a part of a vector to a share of the units of its tables; a unit is a band of a row.

    The tables of a part, of zeros at first, may have longer rows: what lies past their end is for
    the start. With `parts`, blocks may take turns on several of them, as in `encode_short`.
    """
    length, (copies, rows, width) = vectors.shape[1], tables.shape[1:]
    copies //= parts
    # A task is a vector, a part of it, and a share of the rows or bands of rows.
    item, part, piece = task // (parts * shares), task // shares % parts, task % shares
    unit, units = rows * bands * piece // shares, rows * bands * (piece + 1) // shares
    top, row_count = unit // bands, (units - 1) // bands + 1 - unit // bands
    chunk = min(block, CHUNK)
    first, stop = offset // chunk, offset + length
    chunks = (stop - 1) // chunk + 1 - first
    at, last = first + chunks * part // parts, first + chunks * (part + 1) // parts
    is_whole = chunk == block and bands == 1 and width > cols  # no end of a row to go around
    # As many blocks as are hashed at once, or as copies take turns on before they begin anew.
    stretch = min(BATCH, max(1, _STRETCH // block)) * block if is_whole else BATCH * block
    at, last = max(at * chunk, offset), min(last * chunk, stop)
    source, base = item * length - offset, (item * parts + part) * copies * rows * width
    while at < last:
        end = min(last, at - at % stretch + stretch)
        if is_whole and at % chunk:
            end = min(end, at - at % chunk + chunk)  # a block that is there only in part, by itself
        elif is_whole and end % chunk and end - at > chunk:
            end -= end % chunk
        hashed, count = at // block, (end - 1) // block + 1 - at // block
        stride = width if is_whole else 0
        hash_blocks(hashed, count, runs, cols, block, words, top, row_count, stride, codes, signs)
        turn = 0
        while at < end:
            k, into = at // block - hashed, at % block
            step = signs[0, k]
            if is_whole:
                size = min(block - into, end - at)
                to = base + ((turn & (copies - 1)) * rows + top) * width + into
                phase = signs[1, k] + step * uint32(into)
                add_signed(
                    tables, to, codes, k * rows, row_count, vectors, source + at, size, step, phase
                )
                turn += 1
            else:
                size = min(end - at, PIECE - into % PIECE, block - into)
                for row in range(top, top + row_count):
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
def query(
    task, tables, outs, offset, parts, cols, block, runs, words, combine, codes, signs, scratch,
    ends, border, phase,
):  # fmt: skip
    """Estimates of a part of a vector; rows of the table may be longer and repeat their start."""
    rows, width, size, length = tables.shape[1], tables.shape[2], tables.itemsize, outs.shape[1]
    table, out = tables[task // parts], outs[task // parts]
    chunk, lanes = min(block, QUERY_CHUNK), ends.shape[1]
    first = offset // chunk
    chunks = (offset + length - 1) // chunk + 1 - first
    # Parts are cut at chunks, so that each is hashed by one task.
    c, last = first + chunks * (task % parts) // parts, first + chunks * (task % parts + 1) // parts
    places, cells, stop = scratch[0], scratch[1], min(length, last * chunk - offset)
    hashed, hash_count, step_at, phase_at = 0, 0, address(signs), address(signs[1])
    while c < last:
        base = c * chunk
        b, into, begin = base // block, base % block, base - offset
        if not hashed <= b < hashed + hash_count:
            hashed, hash_count = b, min(BATCH, (last * chunk - 1) // block + 1 - b)
            hash_blocks(b, hash_count, runs, cols, block, words, 0, rows, width, codes, signs)
        k, to = b - hashed, address(out) + begin * size
        inside = begin >= 0 and begin + max(chunk, lanes) <= stop
        if chunk == block and width > cols and inside:
            # Short blocks, no borders and no end of a row to go around: no decisions to make.
            run_of_blocks = min(hash_count - k, (stop - begin - max(chunk, lanes)) // chunk + 1)
            at = address(codes) + k * rows * 8
            call(
                combine,
                (to, address(table), at, run_of_blocks, chunk, step_at + 4 * k, phase_at + 4 * k),
            )
            c += run_of_blocks
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
            # Less than a vector is left of the row: its columns are copied, around the end.
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


@njit(fastmath={"contract"})
def add_missed(out, vector, estimates, scale):
    """Add `scale` times what estimates miss of a vector."""
    for i in range(out.size):
        out[i] += scale * (vector[i] - estimates[i])


@compiled
def add_residual(
    task, tables, out, vector, scale, cols, block, runs, words, combine, codes, signs, scratch,
    ends, border, phase, estimates,
):  # fmt: skip
    """Add what the estimates of a piece of a vector miss of it; a piece is as long as `estimates`.

    They are still in the caches when they are used.
    """
    first = task * estimates.size
    part = estimates[: out.size - first]
    query(
        0, tables, part.reshape(1, part.size), first, 1, cols, block, runs, words, combine, codes,
        signs, scratch, ends, border, phase,
    )  # fmt: skip
    add_missed(out[first : first + part.size], vector[first : first + part.size], part, scale)
