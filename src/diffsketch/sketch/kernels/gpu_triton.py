"""The Triton kernels behind `gpu`.

`blocked` gathers. A program owns `TILE` consecutive cells of one row and walks over the runs: a
run lies on the row without overlap, so its part of the tile is one or two pieces of consecutive
coordinates. No atomics, one fixed order of additions, hence the same bits every time. `pairwise`
scatters with atomic additions, whose order the device chooses.

A program computes the hashes that it needs, so that a call is one launch. "Wide" kernels, for long
rows, hash a tile's run and block once; "narrow" ones hash for each number, and take several runs
at a time, so that a short vector or table occupies the device as well.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Sizes differ from sketch to sketch; a kernel compiled anew for each would cost seconds.
_SIZES = [
    "offset", "end", "slots", "cols", "rows", "runs", "first_run", "run_count", "per_split",
    "tiles", "chunks", "partials",
]  # fmt: skip


@triton.jit
def _mix64(value, first_key, second_key):
    z = value.to(tl.uint64) + first_key
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = z ^ second_key
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def _keys(words_ptr, first):
    """Two consecutive words of the seed."""
    first_word = tl.load(words_ptr + first).to(tl.uint64, bitcast=True)
    return first_word, tl.load(words_ptr + first + 1).to(tl.uint64, bitcast=True)


@triton.jit
def _shift_word(keys, run, cols):
    """Shift of a run in its low 31 bits, its flip in the top bit; `keys` are its row's."""
    h = _mix64(run, keys[0], keys[1])
    return ((((h >> 32) * cols.to(tl.uint64)) >> 32) | ((h & 1) << 31)).to(tl.uint32)


@triton.jit
def _sequence(keys, block):
    """Step and start of a block's sign sequence; `keys` are those of the signs."""
    weyl = _mix64(block, keys[0], keys[1])
    return (weyl >> 32).to(tl.uint32), weyl.to(tl.uint32)


@triton.jit
def _signed(x, phase, ACC: tl.constexpr):
    """`x` with its sign flipped where the top bit of `phase` is set."""
    sign = (phase & 0x80000000) | 0x3F800000
    return x.to(ACC) * sign.to(tl.float32, bitcast=True).to(ACC)


@triton.jit
def _piece(
    x_ptr, signs, block, place, flip, low, high, offset, end, lane,
    BLOCK: tl.constexpr, INDEX: tl.constexpr, ACC: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """Part of a block for lanes `low` to `high` of a tile; lane 0 is its element `place`."""
    step, begin = _sequence(signs, block)
    turn = step * lane.to(tl.uint32) + (step * place.to(tl.uint32) + begin + flip)
    base = block * BLOCK + place
    if MASK:
        low = tl.minimum(tl.maximum(low.to(INDEX), offset - base), BLOCK).to(tl.int32)
        high = tl.maximum(tl.minimum(high.to(INDEX), end - base), 0).to(tl.int32)
        x = tl.load(x_ptr + (base - offset) + lane, mask=(lane >= low) & (lane < high), other=0.0)
    else:
        x = tl.load(x_ptr + (base - offset) + lane)
    return _signed(x, turn, ACC)


@triton.jit
def _find(
    keys, turn, first_run, runs, first_col, cols, slots, offset, end,
    BLOCK: tl.constexpr, TILE: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Part of a run in a tile's columns: whether it is whole in one block, and where it begins."""
    run = first_run + turn
    run = tl.where(run >= runs, run - runs, run)
    word = _shift_word(keys, run, cols)
    place = first_col - (word & 0x7FFFFFFF).to(tl.int32)
    place = tl.where(place < 0, place + cols, place).to(tl.uint32)
    slot = (place // BLOCK).to(tl.int32)
    into = (place % BLOCK).to(tl.int32)
    block = slot.to(INDEX) * runs + run
    base = block * BLOCK + into
    inside = (into + TILE <= BLOCK) & (slot < slots) & (base >= offset) & (base + TILE <= end)
    return inside, block, into, word & 0x80000000, run, slot, place


@triton.jit
def _pieces(
    x_ptr, signs, begins, here, runs, cols, slots, offset, end, lane,
    BLOCK: tl.constexpr, TILE: tl.constexpr, INDEX: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The same where the tile ends in another block of the run, or after its last one in a gap."""
    _, block, into, flip, run, slot, place = begins
    is_last = slot >= slots - 1
    cut = tl.where(here & (slot < slots), BLOCK - into, 0)
    begin = tl.where(is_last, cols - place.to(tl.int32), BLOCK - into)
    begin = tl.where(here, begin, TILE)
    after = tl.where(is_last, run, block + runs).to(INDEX)
    zero = into * 0
    first = _piece(
        x_ptr, signs, block, into, flip, zero, cut, offset, end, lane, BLOCK, INDEX, ACC, True
    )  # fmt: skip
    return first + _piece(
        x_ptr, signs, after, -begin, flip, begin, zero + TILE, offset, end, lane,
        BLOCK, INDEX, ACC, True,
    )  # fmt: skip


@triton.jit
def _part(out_ptr, part_ptr, item, split, size):
    """Destination of a split: the first one adds up the table, the others partial tables."""
    if split == 0:
        destination = out_ptr + item * size
    else:
        destination = part_ptr + (item * (tl.num_programs(1) - 1) + split - 1) * size
    return destination


@triton.jit(do_not_specialize=_SIZES)
def encode_wide_kernel(
    x_ptr, out_ptr, part_ptr, words_ptr,
    offset, end, slots, cols, rows, runs, first_run, run_count, per_split, tiles,
    BLOCK: tl.constexpr, TILE: tl.constexpr, INDEX: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    split = tl.program_id(1)
    item = (pid // tiles).to(tl.int64)
    row = (pid % tiles) % rows
    first_col = ((pid % tiles) // rows) * TILE
    x_ptr += item * (end - offset)
    signs = _keys(words_ptr, 0)
    keys = _keys(words_ptr, 2 + 3 * row)
    lane = tl.arange(0, TILE)
    total = tl.zeros([TILE], dtype=ACC)
    stop = tl.minimum(run_count, (split + 1) * per_split)
    zero = row * 0
    for start in range(split * per_split, stop, 2):  # two runs at a time, while memory answers
        a = _find(
            keys, start, first_run, runs, first_col, cols, slots, offset, end, BLOCK, TILE, INDEX
        )  # fmt: skip
        b = _find(
            keys, start + 1, first_run, runs, first_col, cols, slots, offset, end,
            BLOCK, TILE, INDEX,
        )  # fmt: skip
        both = start + 1 < stop
        if both & a[0] & b[0]:
            first_piece = _piece(
                x_ptr, signs, a[1], a[2], a[3], zero, zero, offset, end, lane,
                BLOCK, INDEX, ACC, False,
            )  # fmt: skip
            second_piece = _piece(
                x_ptr, signs, b[1], b[2], b[3], zero, zero, offset, end, lane,
                BLOCK, INDEX, ACC, False,
            )  # fmt: skip
            total += first_piece
            total += second_piece
        else:
            total += _pieces(
                x_ptr, signs, a, start < stop, runs, cols, slots, offset, end, lane,
                BLOCK, TILE, INDEX, ACC,
            )  # fmt: skip
            total += _pieces(
                x_ptr, signs, b, both, runs, cols, slots, offset, end, lane,
                BLOCK, TILE, INDEX, ACC,
            )  # fmt: skip
    destination = _part(out_ptr, part_ptr, item, split, rows.to(tl.int64) * cols)
    column = first_col + lane
    tl.store(destination + row.to(tl.int64) * cols + column, total, mask=column < cols)


@triton.jit(do_not_specialize=_SIZES)
def encode_narrow_kernel(
    x_ptr, out_ptr, part_ptr, words_ptr,
    offset, end, slots, cols, rows, runs, first_run, run_count, per_split, tiles,
    BLOCK: tl.constexpr, TILE: tl.constexpr, INDEX: tl.constexpr, ACC: tl.constexpr,
    RUNS: tl.constexpr,
):  # fmt: skip
    """The same sum, `RUNS` runs at once."""
    pid = tl.program_id(0)
    split = tl.program_id(1)
    item = (pid // tiles).to(tl.int64)
    row = (pid % tiles) % rows
    column = ((pid % tiles) // rows) * TILE + tl.arange(0, TILE)[None, :]
    x_ptr += item * (end - offset)
    signs = _keys(words_ptr, 0)
    keys = _keys(words_ptr, 2 + 3 * row)
    total = tl.zeros([RUNS, TILE], dtype=ACC)
    begin = split.to(INDEX) * per_split
    stop = tl.minimum(run_count, begin + per_split)
    for start in range(begin, stop, RUNS):
        turn = start + tl.arange(0, RUNS)[:, None].to(INDEX)
        run = first_run + turn
        run = tl.where(run >= runs, run - runs, run)
        word = _shift_word(keys, run, cols)
        place = column - (word & 0x7FFFFFFF).to(tl.int32)
        place = tl.where(place < 0, place + cols, place)
        slot = place // BLOCK
        into = place % BLOCK
        block = slot.to(INDEX) * runs + run
        index = block * BLOCK + into
        valid = (turn < stop) & (column < cols) & (slot < slots)
        valid = valid & (index >= offset) & (index < end)
        x = tl.load(x_ptr + (index - offset), mask=valid, other=0.0)
        step, phase = _sequence(signs, block)
        phase += step * into.to(tl.uint32) + (word & 0x80000000)
        total += _signed(x, phase, ACC)
    destination = _part(out_ptr, part_ptr, item, split, rows.to(tl.int64) * cols)
    cells = destination + row.to(tl.int64) * cols + column
    tl.store(cells, tl.sum(total, axis=0)[None, :], mask=column < cols)


@triton.jit(do_not_specialize=_SIZES)
def add_partials_kernel(
    out_ptr, part_ptr, size, chunks, partials, CHUNK: tl.constexpr, PARTS: tl.constexpr
):  # fmt: skip
    item = (tl.program_id(0) // chunks).to(tl.int64)
    i = (tl.program_id(0) % chunks).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)[None, :]
    part = tl.arange(0, PARTS)[:, None]
    here = (part == 0) & (i < size)
    total = tl.load(out_ptr + item * size + i + part * 0, mask=here, other=0.0)
    part_ptr += item * partials * size
    for p in range(0, partials, PARTS):
        here = (p + part < partials) & (i < size)
        total += tl.load(part_ptr + (p + part).to(tl.int64) * size + i, mask=here, other=0.0)
    tl.store(out_ptr + item * size + i, tl.sum(total, axis=0)[None, :], mask=i < size)


@triton.jit
def _compare(values, i: tl.constexpr, j: tl.constexpr):
    low = tl.minimum(values[i], values[j])
    high = tl.maximum(values[i], values[j])
    return values[:i] + (low,) + values[i + 1 : j] + (high,) + values[j + 1 :]


@triton.jit
def _combine(values, NETWORK: tl.constexpr, PLACES: tl.constexpr):
    """The estimate of `estimators.Estimator`: comparators, then the average of some places."""
    for c in tl.static_range(0, len(NETWORK), 2):
        values = _compare(values, NETWORK[c], NETWORK[c + 1])
    if len(PLACES) == 1:
        return values[PLACES[0]]
    if len(PLACES) == 2:  # halved before they are added, since that cannot overflow
        return values[PLACES[0]] * 0.5 + values[PLACES[1]] * 0.5
    total = values[PLACES[0]]
    for k in tl.static_range(1, len(PLACES)):
        total += values[PLACES[k]]
    return total / len(PLACES)


@triton.jit(do_not_specialize=_SIZES)
def query_wide_kernel(
    table_ptr, out_ptr, other_ptr, words_ptr, scale,
    offset, end, cols, runs, tiles,
    BLOCK: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, NETWORK: tl.constexpr,
    PLACES: tl.constexpr, INDEX: tl.constexpr, ACC: tl.constexpr, SPAN: tl.constexpr,
    RESIDUAL: tl.constexpr,
):  # fmt: skip
    """Estimates to `out`; with `RESIDUAL`, `scale` times what they miss of `other` is added."""
    item = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    table_ptr += item * ROWS * cols
    out_ptr += item * (end - offset)
    into = (tile % (BLOCK // (SPAN * TILE))) * (SPAN * TILE)
    block = offset // BLOCK + (tile // (BLOCK // (SPAN * TILE))).to(INDEX)
    run = block % runs
    words = (_shift_word(_keys(words_ptr, 2), run, cols),)
    for j in tl.static_range(1, ROWS):
        words = words + (_shift_word(_keys(words_ptr, 2 + 3 * j), run, cols),)
    step, begin = _sequence(_keys(words_ptr, 0), block)
    for t in range(SPAN):
        place = (into + t * TILE).to(tl.uint32)
        phase = begin + step * place
        base = block * BLOCK + into + t * TILE
        place += ((block // runs) * BLOCK).to(tl.uint32)
        starts = (_start(words[0], place, cols),)
        last = starts[0] & 0x7FFFFFFF
        for j in tl.static_range(1, ROWS):
            starts = starts + (_start(words[j], place, cols),)
            last = tl.maximum(last, starts[j] & 0x7FFFFFFF)
        if last + TILE <= cols:
            _query_tile(
                table_ptr, out_ptr, other_ptr, scale, starts, base, step, phase, offset, end, cols,
                TILE, ROWS, NETWORK, PLACES, False, RESIDUAL, ACC,
            )  # fmt: skip
        else:
            _query_tile(
                table_ptr, out_ptr, other_ptr, scale, starts, base, step, phase, offset, end, cols,
                TILE, ROWS, NETWORK, PLACES, True, RESIDUAL, ACC,
            )  # fmt: skip


@triton.jit
def _start(word, place, cols):
    """First column of a tile in a row, with the run's flip in the top bit."""
    start = place + (word & 0x7FFFFFFF)
    return tl.where(start >= cols, start - cols, start) | (word & 0x80000000)


@triton.jit
def _query_tile(
    table_ptr, out_ptr, other_ptr, scale, starts, base, step, phase, offset, end, cols,
    TILE: tl.constexpr, ROWS: tl.constexpr, NETWORK: tl.constexpr, PLACES: tl.constexpr,
    WRAP: tl.constexpr, RESIDUAL: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, TILE)
    values = (_wide_cell(table_ptr, 0, starts[0], cols, lane, WRAP, ACC),)
    for j in tl.static_range(1, ROWS):
        values = values + (_wide_cell(table_ptr, j, starts[j], cols, lane, WRAP, ACC),)
    turn = step * lane.to(tl.uint32) + phase
    result = _signed(_combine(values, NETWORK, PLACES), turn, ACC)
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
    table_ptr, out_ptr, words_ptr, offset, end, cols, runs, tiles,
    BLOCK: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, NETWORK: tl.constexpr,
    PLACES: tl.constexpr, INDEX: tl.constexpr, ACC: tl.constexpr, PAIRWISE: tl.constexpr,
):  # fmt: skip
    item = (tl.program_id(0) // tiles).to(tl.int64)
    table_ptr += item * ROWS * cols
    index = offset + (tl.program_id(0) % tiles).to(INDEX) * TILE + tl.arange(0, TILE)
    valid = index < end
    values = (
        _narrow_cell(table_ptr, words_ptr, 0, index, valid, runs, cols, BLOCK, PAIRWISE, ACC),
    )
    for j in tl.static_range(1, ROWS):
        cell = _narrow_cell(table_ptr, words_ptr, j, index, valid, runs, cols, BLOCK, PAIRWISE, ACC)
        values = values + (cell,)
    result = _combine(values, NETWORK, PLACES)
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
        word = _shift_word(_keys(words_ptr, 2 + 3 * row), block % runs, cols)
        column = (block // runs) * BLOCK + into + (word & 0x7FFFFFFF)
        column = tl.where(column >= cols, column - cols, column)
        step, phase = _sequence(_keys(words_ptr, 0), block)
        phase += step * into + (word & 0x80000000)
    x = tl.load(table_ptr + tl.cast(row, tl.int64) * cols + column, mask=valid, other=0.0)
    return _signed(x, phase, ACC)


@triton.jit
def _pairwise(words_ptr, row, index, cols):
    a_low, a_high = _keys(words_ptr, 2 + 3 * row)
    b = tl.load(words_ptr + 4 + 3 * row).to(tl.uint64, bitcast=True)
    i = index.to(tl.uint64)
    h = a_low * (i & 0xFFFFFFFF) + a_high * (i >> 32) + b
    column = ((h >> 32) * cols.to(tl.uint64)) >> 32
    first_key, second_key = _keys(words_ptr, 0)
    bits = _mix64(index, first_key, second_key) >> tl.cast(row, tl.uint64)
    return column.to(tl.int64), (bits << 31).to(tl.uint32)


@triton.jit(do_not_specialize=_SIZES)
def scatter_kernel(
    x_ptr, out_ptr, words_ptr, offset, end, cols, tiles,
    TILE: tl.constexpr, ROWS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    item = (tl.program_id(0) // tiles).to(tl.int64)
    index = offset + (tl.program_id(0) % tiles).to(tl.int64) * TILE + tl.arange(0, TILE)
    valid = index < end
    x = tl.load(x_ptr + item * (end - offset) + (index - offset), mask=valid, other=0.0)
    for row in range(ROWS):
        column, phase = _pairwise(words_ptr, row, index, cols)
        cell = out_ptr + (item * ROWS + row) * cols + column
        tl.atomic_add(cell, _signed(x, phase, ACC), mask=valid, sem="relaxed")


@triton.jit(do_not_specialize=_SIZES)
def round_kernel(
    x_ptr, keys_ptr, out_ptr, inverse, size, stride, chunks,
    CHUNK: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Cells to the whole numbers of a grid, at random, by the two keys of their table.

    How many were beyond it is added to the number after the keys.
    """
    item = (tl.program_id(0) // chunks).to(tl.int64)
    first = (tl.program_id(0) % chunks).to(tl.int64) * CHUNK
    x_ptr += item * size
    out_ptr += item * stride
    keys_ptr += item * 3
    first_key, second_key = _keys(keys_ptr, 0)
    beyond = tl.zeros([CHUNK], dtype=tl.int32)
    for start in range(first, size, chunks * CHUNK):
        i = start + tl.arange(0, CHUNK)
        x = tl.load(x_ptr + i, mask=i < size, other=0.0)
        drawn = (_mix64(i, first_key, second_key) >> 40).to(tl.int32).to(tl.float32) * (
            1.0 / 16777216
        )
        k = tl.floor(x * inverse + (drawn - 0.5))
        kept = tl.minimum(tl.maximum(k, -(2.0 ** (BITS - 1))), 2.0 ** (BITS - 1) - 1)
        tl.store(out_ptr + i, kept.to(out_ptr.dtype.element_ty), mask=i < size)
        beyond += ((k != kept) & (i < size)).to(tl.int32)
    count = tl.sum(beyond.to(tl.int64), axis=0)
    if count > 0:
        tl.atomic_add(keys_ptr + 2, count, sem="relaxed")
