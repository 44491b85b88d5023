"""Kernels for CPU tensors: how the work is cut; the loops are in the other `cpu_*` files.

The bits of a result depend on the vector and the sketch only, never on the number of threads. An
encode either adds into the table itself, the rows shared out among the threads, or, where they
are small enough, into a fixed number of partial tables, added in order at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.compiled import compiled, run_tasks, threads_for
from diffsketch.sketch.hashing import MAX_ROWS, Geometry, HashSeed, SketchLayout
from diffsketch.sketch.kernels import cpu_blocked, cpu_items, cpu_pairwise
from diffsketch.sketch.kernels.cpu_lanes import BYTES, adder, combiner
from diffsketch.sketch.kernels.estimators import Combine

Array: TypeAlias = npt.NDArray[np.float32 | np.float64]

_SPARE = 1 << 18  # bytes of partial tables that are always allowed; else 0.8% of the vector
_LONG = 1 << 15  # coordinates from which on a vector is cut into parts
_MAX_PARTS = 8
_SHORT_ROW = 1024  # columns up to which consecutive blocks get in each other's way
_SHORT_ROWS = 16  # up to which short vectors have loops of their own
_SHORT_BLOCK = 512  # up to which queries gain more from padded tables than memory is worth
_COPIES = 4  # partial tables that then take turns; a power of two
_CACHE = 1 << 15  # bytes of a first-level cache
_APART = 1 << 20  # bytes between tables to which two threads add at random places
# Numbers that count as one of `compiled.SERIAL`. With five rows a second thread began to gain at
# 20,000 coordinates that are looked up one by one, and at 50,000 (encode) to 131,000 in blocks.
_COUNT_AS_ONE = {"pairwise": 4, "blocked": 20}
_STREAM = 1 << 24  # bytes of output from which on it is written past the caches
_PIECE = 1 << 16  # coordinates whose estimates stay in the caches
_ROWS_AT = np.arange(MAX_ROWS) * (2 * cpu_pairwise.PIECE)  # where scratch has them, as codes
_STRETCH = 1 << 20  # those that a search for the largest estimates holds at a time
_ROUNDED = 1 << 10  # cells whose random numbers are drawn at once
_SAMPLE = 1 << 14  # numbers that tell where the largest begin
_ITEMS_SPARE = 1 << 23  # bytes of partial tables of items that are always allowed


class _Plan(NamedTuple):
    """Loops that encode a vector, the number of parts, and of partial tables in each."""

    kind: Literal["short", "long", "pairwise"]
    parts: int
    copies: int
    width: int  # columns of partial tables


@lru_cache(maxsize=1024)
def _plan(length: int, layout: SketchLayout, itemsize: int) -> _Plan:
    """All follows from the sizes alone, and so does the order of additions."""
    rows, cols, block = layout.rows, layout.cols, layout.geometry.block
    serial, is_pairwise, width = length < _LONG, layout.family == "pairwise", cols
    if is_pairwise:
        copies = cpu_pairwise.COPIES if cols <= _SHORT_ROW // 16 else 1
    else:
        # Longer rows have space for a chunk that begins in the last column: no end to go around.
        copies, width = _COPIES if cols <= _SHORT_ROW else 1, cols + min(block, cpu_blocked.CHUNK)
    spare = max(_SPARE, length * itemsize // 125) // (rows * width * itemsize)
    copies = copies if spare >= copies else 1
    if not is_pairwise and serial and block <= cpu_blocked.CHUNK and rows <= _SHORT_ROWS:
        return _Plan("short", 1, copies, width)
    parts = 1 if serial else min(_MAX_PARTS, spare // copies)
    parts = 1 << (max(1, parts).bit_length() - 1)
    if spare < copies or (parts * copies == 1 and is_pairwise):
        return _Plan("pairwise" if is_pairwise else "long", 1, 0, cols)
    return _Plan("pairwise" if is_pairwise else "long", parts, copies, width)


def _threads(numbers: int, layout: SketchLayout) -> int:
    """Number of threads that are worth starting for vectors of this many numbers in all."""
    return threads_for(numbers * layout.rows // _COUNT_AS_ONE[layout.family])


def encode(vectors: Tensor, seed: HashSeed, *, layout: SketchLayout, offset: int) -> Tensor:
    """Tables of vectors `(..., length)`, which start at coordinate `offset`."""
    if vectors.itemsize == 2:
        return _encode_halves(vectors, seed, layout, offset)
    source = vectors.numpy()
    length = source.shape[-1]
    # NumPy's arrays are made and handed over faster than torch's: it shows for small vectors.
    shape = (*source.shape[:-1], layout.rows, layout.cols)
    if not source.size:
        return torch.from_numpy(np.zeros(shape, dtype=source.dtype))
    plan = _plan(length, layout, source.itemsize)
    out = np.zeros(shape, dtype=source.dtype)
    batch, tables = source.reshape(-1, length), out.reshape(-1, layout.rows, layout.cols)
    if plan.kind == "short":
        short = _short(seed, layout, offset, length, source.itemsize)
        _run_short(
            cpu_blocked.encode_short, batch, layout, tables,
            offset % short.block, *short.encode, scratch=short.encode_scratch,
        )  # fmt: skip
        return torch.from_numpy(out)
    # Not all vectors at a time, for the sake of the memory that partial tables take.
    group = len(batch)
    if plan.copies:
        partial = plan.parts * plan.copies * layout.rows * plan.width * source.itemsize
        spare = max(_SPARE, source.nbytes // 125) // partial
        group = max(1, torch.get_num_threads() // plan.parts, spare)
    for first in range(0, len(batch), group):
        taken = slice(first, first + group)
        _encode_long(batch[taken], seed, tables[taken], layout, offset, plan)
    return torch.from_numpy(out)


def _encode_halves(vectors: Tensor, seed: HashSeed, layout: SketchLayout, offset: int) -> Tensor:
    """Tables of float16 or bfloat16, made float32 in pieces that take no more than a table does."""
    # Not longer than a table is large: the conversion takes no more memory than the result.
    size = max(_STRETCH, layout.rows * layout.cols)
    pieces = (piece.float().contiguous() for piece in torch.split(vectors, size, -1))
    table = encode(next(pieces), seed, layout=layout, offset=offset)
    for index, piece in enumerate(pieces, 1):
        table += encode(piece, seed, layout=layout, offset=offset + index * size)
    return table


def _run_short(
    kernel: Any, batch: Array, layout: SketchLayout, *arguments: Any, scratch: int
) -> None:
    """Run a loop over a batch of short vectors."""
    if len(batch) == 1:  # nothing to share out
        kernel(0, 1, batch, *arguments, np.empty(scratch, batch.dtype))
        return
    threads = _threads(batch.size, layout)
    # Four tasks a thread: one that is delayed does not keep the others waiting at the end.
    tasks = 1 if threads == 1 else min(len(batch), 4 * threads)
    run_tasks(
        kernel, tasks, threads, tasks, batch, *arguments,
        scratch=lambda: (np.empty(scratch, batch.dtype),),
    )  # fmt: skip


def _encode_long(
    batch: Array, seed: HashSeed, out: Array, layout: SketchLayout, offset: int, plan: _Plan
) -> None:
    """Zeros are added to: partial tables of each vector, or if there are none, its table."""
    (kind, parts, copies, width), rows, cols = plan, layout.rows, layout.cols
    items, block, runs = len(batch), layout.geometry.block, layout.geometry.runs
    # Without partial tables the sum is made in the result itself.
    tables = out[:, None]
    if copies:
        tables = np.zeros((items, parts * copies, rows, width), out.dtype)
    words, dtype = seed.words_for(rows), out.dtype
    threads = _threads(batch.size, layout)
    shares = -(-threads // (items * parts))
    if kind == "long":
        bands = 1
        if copies and block <= cpu_blocked.CHUNK:
            shares = min(shares, rows)
        else:
            bands = shares // math.gcd(shares, rows)  # so that shares are of equal size
        run_tasks(
            cpu_blocked.encode, items * parts * shares, threads,
            batch, offset, tables, parts, shares, bands, cols, block, runs, words,
            scratch=lambda: _codes(cpu_blocked.BATCH, rows),
        )  # fmt: skip
    else:
        shares = min(shares, rows)
        share = max(1, copies) * -(-rows // shares) * cols
        # Two cores that write to lines of the same megabyte, each its own, slow each other down to
        # less than the speed of one, unless the lines stay in their first-level caches.
        # To copy a table that is not small beside the vector would take longer.
        private = threads > 1 and share * dtype.itemsize > _CACHE and 8 * share <= batch.shape[1]
        run_tasks(
            cpu_pairwise.encode, items * parts * shares, threads,
            batch, offset, tables, parts, shares, words,
            scratch=lambda: (
                _bits(), _aligned(cpu_pairwise.WIDTH, dtype),
                np.empty(share + _APART // dtype.itemsize if private else 0, dtype),
            ),
        )  # fmt: skip
    if copies:
        cpu_blocked.add_tables(tables, out, width - cols)


def query(
    tables: Tensor, seed: HashSeed, out: Tensor, *, layout: SketchLayout, offset: int,
    combine: Combine, validate: bool,
) -> bool:  # fmt: skip
    """Write estimates of the coordinates from `offset` on to `out`, `(..., length)`.

    False, and nothing is written, if the tables are to be validated and not finite.
    """
    result, table = out.numpy(), tables.numpy().reshape(-1, layout.rows, layout.cols)
    if validate and not cpu_blocked.all_finite(table):
        return False
    if result.size:
        result = result.reshape(-1, result.shape[-1])
        _estimate(table, seed, result, layout, offset, combine)
    return True


def _padded(table: Array, result_bytes: int, layout: SketchLayout) -> Array:
    """Tables whose rows repeat their start, so that no block goes around the end, if they may."""
    pad = max(min(layout.geometry.block, cpu_blocked.QUERY_CHUNK), BYTES // table.itemsize)
    size = layout.rows * (layout.cols + pad) * table.itemsize
    # Short blocks would have to look for the end of the row too often.
    spare = 8 * _SPARE if layout.geometry.block <= _SHORT_BLOCK else _SPARE
    if size * len(table) > max(spare, result_bytes // 125):
        return table
    # A pad longer than a row repeats it several times over.
    repeats, remainder = divmod(pad, layout.cols)
    return np.concatenate((table, *[table] * repeats, table[..., :remainder]), axis=-1)


def _estimate(
    table: Array, seed: HashSeed, result: Array, layout: SketchLayout, offset: int, combine: Combine
) -> None:
    """Write estimates of the coordinates from `offset` on to `result`, `(tables, length)`."""
    (items, length), rows, size = result.shape, layout.rows, table.itemsize
    # Padded tables are those of a long vector, of which this is a piece.
    kind = "long" if table.shape[2] > layout.cols else _plan(length, layout, size).kind
    if kind == "short":
        short = _short(seed, layout, offset, length, size)
        _run_short(
            cpu_blocked.query_short, result, layout, table, offset % short.block, *short.query,
            combiner(rows, size, combine).address, scratch=short.query_scratch,
        )  # fmt: skip
        return
    if kind == "long" and table.shape[2] == layout.cols:
        table = _padded(table, result.nbytes, layout)
    place, row = result.ctypes.data - offset * size, length * size if items > 1 else 0
    # All three are multiples of a line only if no bit below it is set in any of them.
    aligned = (place | row | layout.geometry.block * size) % BYTES == 0
    stream = aligned and result.nbytes >= _STREAM
    loops, arguments, scratch = _query_loops(layout, seed, table.dtype, combine, stream=stream)
    threads = _threads(result.size, layout)
    parts = 1 if threads == 1 else -(-4 * threads // items)
    run_tasks(
        loops.query, items * parts, threads, table, result, offset, parts, *arguments,
        scratch=scratch,
    )  # fmt: skip


def _query_loops(
    layout: SketchLayout, seed: HashSeed, dtype: np.dtype[Any], combine: Combine, *,
    stream: bool = False,
) -> tuple[Any, tuple[Any, ...], Callable[[], tuple[Any, ...]]]:  # fmt: skip
    """The loops that estimate parts of long vectors, their last arguments, and their scratch."""
    rows, words, size = layout.rows, seed.words_for(layout.rows), dtype.itemsize
    if layout.family == "pairwise":
        estimates = combiner(rows, size, combine, lanewise=True)
        return (
            cpu_pairwise, (words, estimates.address, _ROWS_AT),
            lambda: (_bits(), np.empty((rows + 1) * cpu_pairwise.PIECE, dtype)),
        )  # fmt: skip
    block, runs, lanes = layout.geometry.block, layout.geometry.runs, BYTES // size
    estimates = combiner(rows, size, combine, stream=stream)
    return (
        cpu_blocked, (layout.cols, block, runs, words, estimates.address),
        lambda: (
            *_codes(cpu_blocked.BATCH, rows), np.empty((2, rows), np.int64),
            np.empty((rows, lanes), dtype), _aligned(min(block, 4096) + lanes, dtype),
            np.empty(1, np.uint32),
        ),
    )  # fmt: skip


def add_residual(
    out: Tensor, vector: Tensor, table: Tensor, seed: HashSeed, *, layout: SketchLayout,
    scale: float, combine: Combine,
) -> bool:  # fmt: skip
    """Add `scale` times what a table's estimates miss of a vector, piece by piece."""
    # A piece's estimates are used while they are in the caches: one pass over memory, not three.
    total, cells, size = out.numpy(), table.numpy()[None], min(_PIECE, layout.dim)
    if layout.family == "blocked":
        cells = _padded(cells, total.nbytes, layout)
    loops, arguments, scratch = _query_loops(layout, seed, total.dtype, combine)
    run_tasks(
        loops.add_residual, -(-layout.dim // _PIECE), _threads(layout.dim, layout),
        cells, total, vector.numpy(), total.dtype.type(scale), *arguments,
        scratch=lambda: (*scratch(), _aligned(size, total.dtype)),
    )  # fmt: skip
    return True


def encode_items(
    keys: Tensor, values: Tensor, seed: HashSeed, *, layout: SketchLayout, offsets: Tensor | None
) -> Tensor:
    """Tables of each person's items `(people, rows, cols)`, or of all items `(rows, cols)`."""
    numbers, shape, count = values.numpy(), (layout.rows, layout.cols), len(keys)
    threads = threads_for(count * layout.rows // _COUNT_AS_ONE["pairwise"])
    if offsets is not None:
        starts, tables = offsets.numpy(), np.zeros((len(offsets) - 1, *shape), numbers.dtype)
        groups = min(len(tables), 1 if threads == 1 else 4 * threads)
    else:
        # Parts of the items, as if of a few people, in a number that follows from the sizes alone.
        # In float64, since a million times one is a large number to add to in float32.
        spare = max(_ITEMS_SPARE, 2 * count) // (8 * math.prod(shape))
        groups = max(1, min(_MAX_PARTS, spare, count // _LONG))
        starts, tables = np.arange(groups + 1) * count // groups, np.zeros((groups, *shape))
    shares = min(layout.rows, -(-threads // max(1, groups)))
    run_tasks(
        cpu_items.encode, groups * shares, threads,
        keys.numpy().view(np.uint64), numbers, starts, tables, shares, groups,
        *_item_hashes(layout, seed),
        scratch=lambda: (
            *_item_scratch(), np.empty(cpu_pairwise.PIECE, numbers.dtype),
            np.empty(cpu_pairwise.PIECE, np.int64),
        ),
    )  # fmt: skip
    if offsets is None:
        for part in tables[1:]:
            tables[0] += part
        tables = tables[0].astype(numbers.dtype)
    return torch.from_numpy(tables)


def query_items(
    tables: Tensor, keys: Tensor, seed: HashSeed, *, layout: SketchLayout, combine: Combine
) -> Tensor:
    """Estimates of these keys, `(..., keys)`, from finite tables."""
    rows, batch = layout.rows, tables.numpy().reshape(-1, layout.rows, layout.cols)
    out = np.empty((len(batch), len(keys)), batch.dtype)
    threads = threads_for(out.size * rows // _COUNT_AS_ONE["pairwise"])
    parts = 1 if threads == 1 else -(-4 * threads // len(batch))
    run_tasks(
        cpu_items.query, len(batch) * parts, threads,
        batch, out, keys.numpy().view(np.uint64), parts, *_item_hashes(layout, seed),
        combiner(rows, batch.itemsize, combine, lanewise=True).address, _ROWS_AT,
        scratch=lambda: (*_item_scratch(), np.empty((rows + 1) * cpu_pairwise.PIECE, batch.dtype)),
    )  # fmt: skip
    return torch.from_numpy(out.reshape(*tables.shape[:-2], len(keys)))


def _item_hashes(layout: SketchLayout, seed: HashSeed) -> tuple[Any, ...]:
    """Arguments that say how keys are hashed: the pairwise family has no blocks."""
    words, is_blocked = seed.words_for(layout.rows), layout.family == "blocked"
    geometry = layout.geometry if is_blocked else Geometry(0, 1, 1)
    return geometry.block, geometry.runs, words


def _item_scratch() -> tuple[Any, ...]:
    """Sign bits, runs, places in them, and columns."""
    words, numbers = (np.empty((3, cpu_pairwise.PIECE), kind) for kind in (np.uint32, np.uint64))
    return words[:2], *numbers[:2], words[2]


def top_k(
    tables: Tensor, seed: HashSeed, count: int, *, layout: SketchLayout, combine: Combine
) -> tuple[Tensor, Tensor]:
    """Estimates `(..., count)` largest in size and their coordinates; the first of equals."""
    batch = tables.numpy().reshape(-1, layout.rows, layout.cols)
    values = np.empty((len(batch), count), batch.dtype)
    indices = np.empty((len(batch), count), np.int64)
    for table, to, places in zip(batch, values, indices, strict=True):
        to[:], places[:] = _top_k(table[None], seed, count, layout, combine)
    shape = (*tables.shape[:-2], count)
    return torch.from_numpy(values.reshape(shape)), torch.from_numpy(indices.reshape(shape))


def _top_k(
    table: Array, seed: HashSeed, count: int, layout: SketchLayout, combine: Combine
) -> tuple[Array, npt.NDArray[np.int64]]:
    """Sort the estimates above a limit, guessed from a sample to leave few more than `count`.

    Estimates are made stretch by stretch and only those above the limit are kept.
    """
    dim, threads = layout.dim, _threads(layout.dim, layout)
    if dim > _STRETCH and layout.family == "blocked":
        table = _padded(table, dim * table.itemsize, layout)

    def estimate(start: int, scratch: Array) -> Array:
        values: Array = scratch[: dim - start]
        _estimate(table, seed, values[None], layout, start, combine)
        return values

    # Estimates of a stretch at a time: all of them would take as much memory as the vector.
    scratch = _aligned(min(dim, _STRETCH), table.dtype)
    places = np.empty((-(-len(scratch) // _PIECE), _PIECE), np.int32)
    counts = np.empty(len(places), np.int64)
    if dim <= _STRETCH:
        sizes = np.abs(estimate(0, scratch)[:: -(-dim // _SAMPLE)])
    else:
        piece, one_of = scratch[:_PIECE], 8 * _PIECE // _SAMPLE
        samples = [np.abs(estimate(k, piece)[::one_of]) for k in range(0, dim, -(-dim // 8))]
        sizes = np.concatenate(samples)

    def above(limit: Any) -> tuple[Array, npt.NDArray[np.int64]]:
        kept = []
        for start in range(0, dim, _STRETCH):
            values = estimate(start, scratch) if dim > _STRETCH else scratch
            tasks = -(-len(values) // _PIECE)
            run_tasks(_find_above, tasks, threads, values, limit, places, counts)
            at = np.concatenate([places[k, : counts[k]] for k in range(tasks)])
            kept.append((values[at], at + np.int64(start)))
        return np.concatenate([large for large, _ in kept]), np.concatenate([at for _, at in kept])

    # Of the sample. Four standard deviations more are kept, so that hardly ever too few are left.
    expected = count * len(sizes) / dim
    rank = math.ceil(expected + 4 * math.sqrt(expected)) + 4
    values, indices = np.empty(0, table.dtype), np.empty(0, np.int64)
    if rank < len(sizes):
        values, indices = above(np.partition(sizes, len(sizes) - rank)[len(sizes) - rank])
    if len(values) < count:  # a rare sample
        values, indices = above(table.dtype.type(0))
    # Stable: of equal estimates the first coordinate comes first, on every machine.
    order = np.argsort(-np.abs(values), kind="stable")[:count]
    return values[order], indices[order]


@compiled(fastmath={"reassoc", "nnan", "nsz"})  # type: ignore[untyped-decorator]
def _find_above(task: Any, values: Any, limit: Any, places: Any, counts: Any) -> None:
    """Write the indices of a piece's numbers of at least this size, and how many there are."""
    unit, zero, count, to = np.float32(1), np.float32(0), 0, places[task]
    for first in range(task * _PIECE, min((task + 1) * _PIECE, values.size), 64):
        part, hits = values[first : first + 64], zero
        for i in range(part.size):  # vectorised: mostly there is none
            hits += unit if abs(part[i]) >= limit else zero
        if hits > zero:
            for i in range(part.size):  # no branches: they would be taken at random
                to[count] = first + i
                count += abs(part[i]) >= limit
    counts[task] = count


def round_cells(
    tables: Tensor, step: float, bits: int, keys: Tensor, out: Tensor, *, shift: float, order: float
) -> tuple[Tensor, Tensor]:
    """Round `(tables, cells)` at random; count the saturated, and measure the tables, in one pass.

    The random numbers of some cells at a time: loops that do one thing each use vectors.
    """
    source, rounded, words = tables.numpy(), out.numpy(), keys.numpy().view(np.uint64)
    (items, cells), pieces = source.shape, -(-source.shape[1] // _PIECE)
    saturated, sizes = np.zeros((items, pieces), np.int64), np.zeros((items, pieces))
    run_tasks(
        _round_piece, items * pieces, threads_for(source.size),
        source, source.view(np.int32), np.float32(shift), np.float32(1 / step), 1 << (bits - 1),
        order == 4, words, rounded, saturated, sizes,
        scratch=lambda: (_aligned(min(_ROUNDED, cells), np.int32),),
    )  # fmt: skip
    if order == 4:
        norms = sizes.sum(axis=1) ** 0.25
    else:
        with np.errstate(over="ignore"):  # infinitely many steps: the limit moves as far as it can
            # The loop has kept the bit pattern of the largest float, which orders as whole numbers
            # do.
            norms = sizes.max(axis=1).astype(np.int32).view(np.float32) / step
    return torch.from_numpy(saturated.sum(axis=1)), torch.from_numpy(norms)


@compiled
def _round_piece(
    task: Any, tables: Any, patterns: Any, shift: Any, inverse: Any, half: Any, powers: Any,
    keys: Any, out: Any, saturated: Any, sizes: Any, drawn: Any,
) -> None:  # fmt: skip
    item, piece = task // saturated.shape[1], task % saturated.shape[1]
    first_key, second_key, beyond = keys[item, 0], keys[item, 1], np.int64(0)
    low, high, largest, total = np.float32(-half), np.float32(half - 1), np.int32(0), 0.0
    for first in range(piece * _PIECE, min((piece + 1) * _PIECE, tables.shape[1]), _ROUNDED):
        table, to = tables[item, first : first + _ROUNDED], out[item, first : first + _ROUNDED]
        pattern, begin = patterns[item, first : first + _ROUNDED], np.uint64(first)
        cut = np.int32(0)
        for i in range(table.size):
            bits = cpu_blocked.mix64(begin + np.uint64(i), first_key, second_key)
            drawn[i] = np.int32(bits >> np.uint64(40))
        if powers:
            total += _fourth_powers(table, inverse)
        else:  # without their signs, floats are in the order of their bit patterns
            for i in range(pattern.size):
                largest = max(largest, pattern[i] & np.int32(0x7FFFFFFF))
        for i in range(table.size):
            chance = np.float32(drawn[i]) * np.float32(2**-24) - np.float32(0.5)
            place = np.floor((table[i] + shift) * inverse + chance)
            kept = min(max(place, low), high)
            cut += np.int32(1) if kept != place else np.int32(0)
            to[i] = np.int32(kept)
        beyond += cut
    saturated[item, piece] = beyond
    sizes[item, piece] = total if powers else np.float64(largest)


@compiled(fastmath={"reassoc"})  # type: ignore[untyped-decorator]
def _fourth_powers(cells: Any, scale: Any) -> Any:
    total = np.float32(0)
    for i in range(cells.size):
        square = (cells[i] * scale) * (cells[i] * scale)
        total += square * square
    return np.float64(total)


class _Short(NamedTuple):
    """Hashes of a short vector's blocks, as arguments of its loops, and their scratch."""

    block: int
    encode: tuple[Any, ...]
    encode_scratch: int
    query: tuple[Any, ...]
    query_scratch: int


def _short(seed: HashSeed, layout: SketchLayout, offset: int, length: int, itemsize: int) -> _Short:
    """Hashes of a short vector; those of a whole one are kept with the seed."""
    key = layout.dim, layout.rows, layout.cols, itemsize
    short: _Short | None = seed.memo.get(key) if length == layout.dim else None
    if short is None:
        rows, cols, block = layout.rows, layout.cols, layout.geometry.block
        first, lanes = offset // block, BYTES // itemsize
        count = (offset + length - 1) // block + 1 - first
        signs, codes = np.empty((2, count), np.uint32), np.empty((count, rows), np.int64)
        # A block, or a vector of lanes, may begin in the last column.
        width, copies = cols + max(block, lanes), _plan(length, layout, itemsize).copies
        words = seed.words_for(rows)
        cpu_blocked.hash_blocks(
            first, count, layout.geometry.runs, cols, block, words, 0, rows, width, codes, signs
        )
        # For results: blocks that are there in part, and a vector that goes beyond the last.
        border = (count if offset % block else lanes) * block + width
        add = adder(rows, itemsize).address
        short = _Short(
            block, (block, copies, width, codes, signs, add), copies * rows * width,
            (block, width, codes, signs), rows * width + border,
        )  # fmt: skip
        if length == layout.dim:  # parts of a vector are too many to keep
            seed.memo[key] = short
    return short


def _codes(count: int, rows: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    return np.empty((count, rows), np.int64), np.empty((2, count), np.uint32)


def _bits() -> npt.NDArray[np.uint32]:
    return _aligned(3 * cpu_pairwise.WIDTH, np.uint32).reshape(3, cpu_pairwise.WIDTH)


def _aligned(count: int, dtype: Any) -> npt.NDArray[Any]:
    """Uninitialised numbers from a multiple of 64 bytes on."""
    array: npt.NDArray[Any] = np.empty(count + BYTES // np.dtype(dtype).itemsize, dtype)
    skip = -array.ctypes.data % BYTES // array.itemsize
    return array[skip : skip + count]
