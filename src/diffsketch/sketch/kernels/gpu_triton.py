"""The Triton kernels behind `gpu`.

`blocked` gathers. A program owns `TILE` consecutive cells of one row and walks over the runs: a
run lies on the row without overlap, so its part of the tile is one or two pieces of consecutive
coordinates. No atomics, one fixed order of additions, hence the same bits every time. `pairwise`
scatters with atomic additions, whose order the device chooses.

"Wide" kernels read the hashes of runs and blocks from tables made beforehand; "narrow" ones, for
short rows, where such tables would be large, compute them where they are used.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Sizes differ from sketch to sketch; a kernel compiled anew for each would cost seconds.
_SIZES = [
    "offset", "end", "slots", "cols", "rows", "runs", "first_run", "run_count", "first_block",
    "block_count", "per_split", "size", "partials",
]  # fmt: skip


@triton.jit
def _mix64(value, first_key, second_key):
    z = value.to(tl.uint64) + first_key
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = z ^ second_key
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def _shift_word(words_ptr, row, run, cols):
    """Shift of a run in its low 31 bits, its flip in the top bit."""
    first = tl.load(words_ptr + 2 + 3 * row).to(tl.uint64, bitcast=True)
    second = tl.load(words_ptr + 3 + 3 * row).to(tl.uint64, bitcast=True)
    h = _mix64(run, first, second)
    return ((((h >> 32) * cols.to(tl.uint64)) >> 32) | ((h & 1) << 31)).to(tl.uint32)


@triton.jit
def _weyl_word(words_ptr, block):
    """Step of a block's sign sequence in the high half, its start in the low half."""
    first = tl.load(words_ptr).to(tl.uint64, bitcast=True)
    second = tl.load(words_ptr + 1).to(tl.uint64, bitcast=True)
    return _mix64(block, first, second)


@triton.jit
def _signed(x, phase, ACC: tl.constexpr):
    """`x` with its sign flipped where the top bit of `phase` is set."""
    one = (phase & 0x80000000) | 0x3F800000
    return x.to(ACC) * one.to(tl.float32, bitcast=True).to(ACC)


@triton.jit(do_not_specialize=_SIZES)
def hash_kernel(
    words_ptr, shift_ptr, weyl_ptr, rows, cols, runs, first_run, run_count, first_block,
    block_count, CHUNK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    weyl = _weyl_word(words_ptr, first_block + i)
    tl.store(weyl_ptr + i, weyl.to(tl.int64, bitcast=True), mask=i < block_count)
    row, run = i // run_count, (first_run + i % run_count) % runs
    inside = row < rows
    word = _shift_word(words_ptr, tl.where(inside, row, 0), run, cols)
    tl.store(shift_ptr + i, word.to(tl.int32, bitcast=True), mask=inside)


@triton.jit
def _piece(
    x_ptr, weyl_ptr, block, place, flip, low, high, offset, end, first_block, block_count, lane,
    BLOCK: tl.constexpr, INDEX: tl.constexpr, ACC: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """Part of a block for lanes `low` to `high` of a tile; lane 0 is its element `place`."""
    near = tl.minimum((block - first_block).to(tl.uint32), (block_count - 1).to(tl.uint32))
    weyl = tl.load(weyl_ptr + near).to(tl.uint64, bitcast=True)
    step = (weyl >> 32).to(tl.uint32)
    turn = step * lane.to(tl.uint32) + (step * place.to(tl.uint32) + weyl.to(tl.uint32) + flip)
    base = block * BLOCK + place
    if MASK:
        low = tl.minimum(tl.maximum(low.to(INDEX), offset - base), BLOCK).to(tl.int32)
        high = tl.maximum(tl.minimum(high.to(INDEX), end - base), 0).to(tl.int32)
        x = tl.load(x_ptr + (base - offset) + lane, mask=(lane >= low) & (lane < high), other=0.0)
    else:
        x = tl.load(x_ptr + (base - offset) + lane)
    return _signed(x, turn, ACC)


@triton.jit(do_not_specialize=_SIZES)
def encode_wide_kernel(
    x_ptr, out_ptr, part_ptr, shift_ptr, weyl_ptr,
    offset, end, slots, cols, rows, runs, first_run, run_count, first_block, block_count, per_split,
    BLOCK: tl.constexpr, TILE: tl.constexpr, UNROLL: tl.constexpr,
    INDEX: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    split = tl.program_id(1)
    item = tl.program_id(2).to(tl.int64)
    row = pid % rows
    first_col = (pid // rows) * TILE
    x_ptr += item * (end - offset)
    lane = tl.arange(0, TILE)
    total = tl.zeros([TILE], dtype=ACC)
    stop = tl.minimum(run_count, (split + 1) * per_split)
    shift_ptr += row * run_count
    zero = row * 0
    for start in range(split * per_split, stop, UNROLL):
        for u in tl.static_range(UNROLL):
            here = start + u < stop
            word = tl.load(shift_ptr + tl.minimum(start + u, run_count - 1))
            word = word.to(tl.uint32, bitcast=True)
            flip = word & 0x80000000
            run = first_run + start + u
            run = tl.where(run >= runs, run - runs, run)
            place = first_col - (word & 0x7FFFFFFF).to(tl.int32)
            place = tl.where(place < 0, place + cols, place).to(tl.uint32)
            slot = (place // BLOCK).to(tl.int32)
            into = (place % BLOCK).to(tl.int32)
            block = slot.to(INDEX) * runs + run
            base = block * BLOCK + into
            inside = (into + TILE <= BLOCK) & (slot < slots) & (base >= offset)
            if here & inside & (base + TILE <= end):
                total += _piece(
                    x_ptr, weyl_ptr, block, into, flip, zero, zero, offset, end, first_block,
                    block_count, lane, BLOCK, INDEX, ACC, False,
                )  # fmt: skip
            else:
                # The tile ends in another block of the run, or after its last one in a gap.
                is_last = slot >= slots - 1
                cut = tl.where(here & (slot < slots), BLOCK - into, 0)
                begin = tl.where(is_last, cols - place.to(tl.int32), BLOCK - into)
                begin = tl.where(here, begin, TILE)
                after = tl.where(is_last, run, block + runs).to(INDEX)
                total += _piece(
                    x_ptr, weyl_ptr, block, into, flip, zero, cut, offset, end, first_block,
                    block_count, lane, BLOCK, INDEX, ACC, True,
                )  # fmt: skip
                total += _piece(
                    x_ptr, weyl_ptr, after, -begin, flip, begin, zero + TILE, offset, end,
                    first_block, block_count, lane, BLOCK, INDEX, ACC, True,
                )  # fmt: skip
    size = rows.to(tl.int64) * cols
    if split == 0:
        destination = out_ptr + item * size
    else:
        destination = part_ptr + (item * (tl.num_programs(1) - 1) + split - 1) * size
    column = first_col + lane
    tl.store(destination + row.to(tl.int64) * cols + column, total, mask=column < cols)


@triton.jit(do_not_specialize=_SIZES)
def encode_narrow_kernel(
    x_ptr, out_ptr, part_ptr, words_ptr,
    offset, end, slots, cols, rows, runs, first_run, run_count, per_split,
    BLOCK: tl.constexpr, TILE: tl.constexpr, RUNS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The same sum for short rows: `RUNS` runs at once, every hash computed where it is used."""
    pid = tl.program_id(0)
    split = tl.program_id(1)
    item = tl.program_id(2).to(tl.int64)
    row = pid % rows
    column = (pid // rows) * TILE + tl.arange(0, TILE)[None, :]
    x_ptr += item * (end - offset)
    total = tl.zeros([RUNS, TILE], dtype=ACC)
    begin = split.to(tl.int64) * per_split
    stop = tl.minimum(run_count, begin + per_split)
    for start in range(begin, stop, RUNS):
        turn = start + tl.arange(0, RUNS)[:, None].to(tl.int64)
        run = (first_run + turn) % runs
        word = _shift_word(words_ptr, row, run, cols)
        place = column - (word & 0x7FFFFFFF).to(tl.int32)
        place = tl.where(place < 0, place + cols, place)
        slot = place // BLOCK
        into = place % BLOCK
        block = slot.to(tl.int64) * runs + run
        index = block * BLOCK + into
        valid = (turn < stop) & (column < cols) & (slot < slots)
        valid = valid & (index >= offset) & (index < end)
        x = tl.load(x_ptr + (index - offset), mask=valid, other=0.0)
        weyl = _weyl_word(words_ptr, block)
        phase = (weyl >> 32).to(tl.uint32) * into.to(tl.uint32) + weyl.to(tl.uint32)
        total += _signed(x, phase + (word & 0x80000000), ACC)
    size = rows.to(tl.int64) * cols
    if split == 0:
        destination = out_ptr + item * size
    else:
        destination = part_ptr + (item * (tl.num_programs(1) - 1) + split - 1) * size
    cells = destination + row.to(tl.int64) * cols + column
    tl.store(cells, tl.sum(total, axis=0)[None, :], mask=column < cols)


@triton.jit(do_not_specialize=_SIZES)
def add_partials_kernel(out_ptr, part_ptr, size, partials, CHUNK: tl.constexpr):
    item = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    total = tl.load(out_ptr + item * size + i, mask=i < size)
    for p in range(partials):
        total += tl.load(part_ptr + (item * partials + p) * size + i, mask=i < size)
    tl.store(out_ptr + item * size + i, total, mask=i < size)


@triton.jit
def _compare(values, i: tl.constexpr, j: tl.constexpr):
    low = tl.minimum(values[i], values[j])
    high = tl.maximum(values[i], values[j])
    return values[:i] + (low,) + values[i + 1 : j] + (high,) + values[j + 1 :]


@triton.jit
def _combine(values, ROWS: tl.constexpr, NETWORK: tl.constexpr, MEAN: tl.constexpr):
    """Median of the rows' values (the two middle ones averaged if even), or their mean."""
    if MEAN:
        total = values[0]
        for j in tl.static_range(1, ROWS):
            total += values[j]
        return total / ROWS
    for c in tl.static_range(0, len(NETWORK), 2):
        values = _compare(values, NETWORK[c], NETWORK[c + 1])
    if ROWS % 2 == 1:
        return values[ROWS // 2]
    return values[ROWS // 2 - 1] * 0.5 + values[ROWS // 2] * 0.5


@triton.jit(do_not_specialize=_SIZES)
def query_wide_kernel(
    table_ptr, out_ptr, other_ptr, shift_ptr, weyl_ptr, scale,
    offset, end, cols, runs, first_run, run_count, first_block,
    BLOCK: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, NETWORK: tl.constexpr,
    MEAN: tl.constexpr, RESIDUAL: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Estimates to `out`; with `RESIDUAL`, `scale` times what they miss of `other` is added."""
    item = tl.program_id(1).to(tl.int64)
    table_ptr += item * ROWS * cols
    out_ptr += item * (end - offset)
    tile = tl.program_id(0)
    near, into = tile // (BLOCK // TILE), (tile % (BLOCK // TILE)) * TILE
    block = first_block + near.to(tl.int64)
    turn = (block % runs).to(tl.int32) - first_run
    shifts = shift_ptr + tl.where(turn < 0, turn + runs, turn)
    place = ((block // runs) * BLOCK + into).to(tl.uint32)
    starts = (_start(shifts, 0, place, run_count, cols),)
    last = starts[0] & 0x7FFFFFFF
    for j in tl.static_range(1, ROWS):
        starts = starts + (_start(shifts, j, place, run_count, cols),)
        last = tl.maximum(last, starts[j] & 0x7FFFFFFF)
    weyl = tl.load(weyl_ptr + near).to(tl.uint64, bitcast=True)
    step = (weyl >> 32).to(tl.uint32)
    phase = weyl.to(tl.uint32) + step * into.to(tl.uint32)
    base = block * BLOCK + into
    if last + TILE <= cols:
        _query_tile(
            table_ptr, out_ptr, other_ptr, scale, starts, base, step, phase, offset, end, cols,
            TILE, ROWS, NETWORK, MEAN, False, RESIDUAL, ACC,
        )  # fmt: skip
    else:
        _query_tile(
            table_ptr, out_ptr, other_ptr, scale, starts, base, step, phase, offset, end, cols,
            TILE, ROWS, NETWORK, MEAN, True, RESIDUAL, ACC,
        )  # fmt: skip


@triton.jit
def _start(shifts, row, place, run_count, cols):
    """First column of a tile in a row, with the run's flip in the top bit."""
    word = tl.load(shifts + row * run_count).to(tl.uint32, bitcast=True)
    start = place + (word & 0x7FFFFFFF)
    return tl.where(start >= cols, start - cols, start) | (word & 0x80000000)


@triton.jit
def _query_tile(
    table_ptr, out_ptr, other_ptr, scale, starts, base, step, phase, offset, end, cols,
    TILE: tl.constexpr, ROWS: tl.constexpr, NETWORK: tl.constexpr, MEAN: tl.constexpr,
    WRAP: tl.constexpr, RESIDUAL: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, TILE)
    values = (_wide_cell(table_ptr, 0, starts[0], cols, lane, WRAP, ACC),)
    for j in tl.static_range(1, ROWS):
        values = values + (_wide_cell(table_ptr, j, starts[j], cols, lane, WRAP, ACC),)
    turn = step * lane.to(tl.uint32) + phase
    result = _signed(_combine(values, ROWS, NETWORK, MEAN), turn, ACC)
    place = (base - offset) + lane
    if (base >= offset) & (base + TILE <= end):
        if RESIDUAL:
            missed = tl.load(other_ptr + place).to(ACC) - result
            result = tl.load(out_ptr + place) + scale.to(ACC) * missed
        tl.store(out_ptr + place, result)
    else:
        valid = (base + lane >= offset) & (base + lane < end)
        if RESIDUAL:
            missed = tl.load(other_ptr + place, mask=valid, other=0.0).to(ACC) - result
            result = tl.load(out_ptr + place, mask=valid, other=0.0) + scale.to(ACC) * missed
        tl.store(out_ptr + place, result, mask=valid)


@triton.jit
def _wide_cell(table_ptr, row, start, cols, lane, WRAP: tl.constexpr, ACC: tl.constexpr):
    first = (start & 0x7FFFFFFF).to(tl.int32)
    row_ptr = table_ptr + tl.cast(row, tl.int64) * cols + first
    cell_ptr = row_ptr + lane
    if WRAP:
        cell_ptr = tl.where(first + lane >= cols, row_ptr - cols + lane, cell_ptr)
    return _signed(tl.load(cell_ptr), start, ACC)


@triton.jit(do_not_specialize=_SIZES)
def query_narrow_kernel(
    table_ptr, out_ptr, words_ptr, offset, end, runs, cols,
    BLOCK: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, NETWORK: tl.constexpr,
    MEAN: tl.constexpr, PAIRWISE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(1).to(tl.int64)
    table_ptr += item * ROWS * cols
    index = offset + tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    valid = index < end
    values = (
        _narrow_cell(table_ptr, words_ptr, 0, index, valid, runs, cols, BLOCK, PAIRWISE, ACC),
    )
    for j in tl.static_range(1, ROWS):
        cell = _narrow_cell(table_ptr, words_ptr, j, index, valid, runs, cols, BLOCK, PAIRWISE, ACC)
        values = values + (cell,)
    result = _combine(values, ROWS, NETWORK, MEAN)
    tl.store(out_ptr + item * (end - offset) + (index - offset), result, mask=valid)


@triton.jit
def _narrow_cell(
    table_ptr, words_ptr, row, index, valid, runs, cols,
    BLOCK: tl.constexpr, PAIRWISE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    if PAIRWISE:
        column, phase = _pairwise(words_ptr, row, index, cols)
    else:
        block = index // BLOCK
        into = (index % BLOCK).to(tl.uint32)
        word = _shift_word(words_ptr, row, block % runs, cols)
        column = (block // runs) * BLOCK + into + (word & 0x7FFFFFFF)
        column = tl.where(column >= cols, column - cols, column)
        weyl = _weyl_word(words_ptr, block)
        phase = (weyl >> 32).to(tl.uint32) * into + weyl.to(tl.uint32) + (word & 0x80000000)
    x = tl.load(table_ptr + tl.cast(row, tl.int64) * cols + column, mask=valid, other=0.0)
    return _signed(x, phase, ACC)


@triton.jit
def _pairwise(words_ptr, row, index, cols):
    a_low = tl.load(words_ptr + 2 + 3 * row).to(tl.uint64, bitcast=True)
    a_high = tl.load(words_ptr + 3 + 3 * row).to(tl.uint64, bitcast=True)
    b = tl.load(words_ptr + 4 + 3 * row).to(tl.uint64, bitcast=True)
    i = index.to(tl.uint64)
    h = a_low * (i & 0xFFFFFFFF) + a_high * (i >> 32) + b
    column = ((h >> 32) * cols.to(tl.uint64)) >> 32
    bits = _weyl_word(words_ptr, index) >> tl.cast(row, tl.uint64)
    return column.to(tl.int64), (bits << 31).to(tl.uint32)


@triton.jit(do_not_specialize=_SIZES)
def scatter_kernel(
    x_ptr, out_ptr, words_ptr, offset, end, cols,
    TILE: tl.constexpr, ROWS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(1).to(tl.int64)
    index = offset + tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    valid = index < end
    x = tl.load(x_ptr + item * (end - offset) + (index - offset), mask=valid, other=0.0)
    for row in range(ROWS):
        column, phase = _pairwise(words_ptr, row, index, cols)
        cell = out_ptr + (item * ROWS + row) * cols + column
        tl.atomic_add(cell, _signed(x, phase, ACC), mask=valid, sem="relaxed")
