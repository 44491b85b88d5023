"""Loops of the pairwise family, which hash 16 coordinates at a time and go to their columns.

Hashing takes a processor's arithmetic units, looking up takes those for loads and stores. So that
it does both at the same time, columns are hashed a few groups ahead of where they are used.

The column of coordinate `i` is the upper half of `start + step * i`, in 64 bits, brought down to
`[0, cols)`. Addresses are integers, and nothing here checks bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from diffsketch.sketch.kernels.cpu_lanes import I32, I64, Lanes

GROUP = 16
COPIES = 4  # tables that coordinates take turns on, `apart` bytes from one another
_AHEAD = 3  # groups; with the present one, a power of two
SLACK = (_AHEAD + 1) * GROUP  # words that are read, not used, after the last coordinate's
_LONG, _DOUBLE_WORD = types.int64, types.uint64


def _number(value: int) -> Any:
    return ir.Constant(I64, value)


class _Columns:
    """The columns of one group of coordinates after the other, in a row."""

    def __init__(self, builder: Any, start: Any, step: Any, cols: Any) -> None:
        self.builder = builder
        lanes = Lanes(builder, types.float32)
        wide = ir.VectorType(I64, GROUP)
        self.words, self.half = lanes.words, ir.Constant(wide, [32] * GROUP)
        # Masked, so that LLVM sees that a product of two halves is all that is asked for.
        self.scale = builder.and_(lanes.splat(cols), ir.Constant(wide, [0xFFFFFFFF] * GROUP))
        self.jump = lanes.splat(builder.mul(step, _number(GROUP)))
        ramp = builder.mul(lanes.splat(step), ir.Constant(wide, list(range(GROUP))))
        first = builder.add(lanes.splat(start), ramp)
        self.state = cgutils.alloca_once_value(builder, first)

    def next(self) -> Any:
        builder, state = self.builder, self.builder.load(self.state)
        builder.store(builder.add(state, self.jump), self.state)
        scaled = builder.mul(builder.lshr(state, self.half), self.scale)
        return builder.trunc(builder.lshr(scaled, self.half), self.words)


class _Pairs:
    """For two rows of few columns: the numbers `first * cols + second` of a group's columns."""

    def __init__(self, builder: Any, args: Any) -> None:
        start, step, other_start, other_step, cols = args
        self.builder = builder
        self.first = _Columns(builder, start, step, cols)
        self.second = _Columns(builder, other_start, other_step, cols)
        self.cols = Lanes(builder, types.float32).splat(builder.trunc(cols, I32))

    def next(self) -> Any:
        builder = self.builder
        return builder.add(builder.mul(self.first.next(), self.cols), self.second.next())


class _Rooms:
    """Numbers of a few groups in memory, a ring: written as vectors, read one by one."""

    def __init__(self, builder: Any, scalar: Any) -> None:
        self.builder, self.scalar = builder, scalar
        self.size = GROUP * (4 if scalar in (I32, ir.FloatType()) else 8)
        room = cgutils.alloca_once(builder, ir.ArrayType(scalar, GROUP * (_AHEAD + 1)))
        room.align = 64
        self.place = builder.ptrtoint(room, I64)

    def address(self, group: Any) -> Any:
        builder = self.builder
        turn = builder.and_(group, _number(_AHEAD))  # of a power of two, less one
        return builder.add(self.place, builder.mul(turn, _number(self.size)))

    def write(self, group: Any, vector: Any, part: int = 0) -> None:
        """As one of a group's vectors."""
        at = self.builder.add(self.address(group), _number(64 * part))
        pointer = self.builder.inttoptr(at, vector.type.as_pointer())
        self.builder.store(vector, pointer, align=64)

    def settle(self) -> None:
        """After writing: keep LLVM from taking numbers out of the vector instead, which is slow.

        This is no instruction, but for all that LLVM knows it may have changed the memory.
        """
        kind = ir.FunctionType(ir.VoidType(), [I64])
        self.builder.asm(kind, "", "r,~{memory}", [self.place], side_effect=True)

    def read(self, group: Any, k: int) -> Any:
        builder = self.builder
        base = builder.inttoptr(self.address(group), self.scalar.as_pointer())
        return builder.load(builder.gep(base, [_number(k)]))


def _over_groups(
    builder: Any, groups: Any, rooms: _Rooms, prepare: Callable[[Any], None],
    use: Callable[[Any], None],
) -> None:  # fmt: skip
    """`use` one group after the other, each prepared a few groups before.

    A few more are prepared than are used.
    """
    for group in range(_AHEAD):
        prepare(_number(group))
    with cgutils.for_range(builder, groups) as loop:
        prepare(builder.add(loop.index, _number(_AHEAD)))
        rooms.settle()
        use(loop.index)


class _Source:
    """`count` numbers in memory, as groups: zeros after the end, which change no cell."""

    def __init__(self, lanes: Lanes, address: Any, count: Any) -> None:
        self.lanes, self.builder, self.begin = lanes, lanes.builder, address
        builder = self.builder
        self.whole = builder.sdiv(count, _number(GROUP))
        self.groups = builder.sdiv(builder.add(count, _number(GROUP - 1)), _number(GROUP))
        room = cgutils.alloca_once(builder, ir.ArrayType(lanes.real.element, GROUP))
        self.rest = builder.ptrtoint(room, I64)
        for part in range(GROUP // lanes.count):
            left = builder.sub(builder.srem(count, _number(GROUP)), _number(part * lanes.count))
            at = builder.add(self._address(self.whole), _number(64 * part))
            value = lanes.load_first(at, lanes.below(left))
            lanes.store(value, builder.add(self.rest, _number(64 * part)))

    def _address(self, group: Any) -> Any:
        size = GROUP * self.lanes.size
        return self.builder.add(self.begin, self.builder.mul(group, _number(size)))

    def address(self, group: Any) -> Any:
        """Of a group's numbers: those of the last may lie elsewhere."""
        inside = self.builder.icmp_signed("<", group, self.whole)
        return self.builder.select(inside, self._address(group), self.rest)


def _add(lanes: Lanes, target: Any, offset: Any, value: Any) -> None:
    """Add a number to the cell with this number, counted in numbers from `target`."""
    builder = lanes.builder
    base = builder.inttoptr(target, lanes.real.element.as_pointer())
    cell = builder.gep(base, [builder.zext(offset, I64)])
    builder.store(builder.fadd(builder.load(cell), value), cell)


def _write_signed(
    lanes: Lanes, values: _Rooms, source: _Source, words_at: Any, bit: Any, group: Any
) -> None:
    """Numbers of a group, their signs flipped where that bit of their words is set."""
    builder, per_group = lanes.builder, GROUP // lanes.count
    shift = lanes.splat(builder.trunc(builder.sub(_number(31), bit), I32))
    for part in range(per_group):
        value = lanes.load(builder.add(source.address(group), _number(64 * part)))
        index = builder.add(builder.mul(group, _number(per_group)), _number(part))
        flips = builder.shl(lanes.load_words(words_at, index), shift)
        values.write(group, lanes.flip(value, flips), part)
    values.settle()


@intrinsic
def scatter_row(
    typingctx: Any, to: Any, apart: Any, source: Any, words: Any, bit: Any, count: Any, start: Any,
    step: Any, cols: Any, like: Any,
) -> Any:  # fmt: skip
    """Add `count` numbers to a row, their signs flipped where that bit of their words is set."""
    del typingctx, to, apart, source, words, bit, count, start, step, cols

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        target, apart, origin, words_at, bit, count, start, step, cols, _ = args
        lanes = Lanes(builder, sig.args[9])
        source, columns = _Source(lanes, origin, count), _Columns(builder, start, step, cols)
        places, values = _Rooms(builder, I32), _Rooms(builder, lanes.real.element)

        def prepare(group: Any) -> None:
            places.write(group, columns.next())
            _write_signed(lanes, values, source, words_at, bit, group)

        def add(group: Any) -> None:
            for k in range(GROUP):
                table = builder.add(target, builder.mul(apart, _number(k % COPIES)))
                _add(lanes, table, places.read(group, k), values.read(group, k))

        _over_groups(builder, source.groups, places, prepare, add)
        return context.get_dummy_value()

    return types.void(*[_LONG] * 6, *[_DOUBLE_WORD] * 3, like), codegen


@intrinsic
def scatter_pair(
    typingctx: Any, to: Any, source: Any, words: Any, bit: Any, count: Any, start: Any, step: Any,
    other_start: Any, other_step: Any, cols: Any, like: Any,
) -> Any:  # fmt: skip
    """Add `count` numbers, signed as in the first of two rows, to tables with cells for pairs.

    The first table is of those whose signs are the same in both rows, that is, this bit of their
    words and the next; the second is of the others.
    """
    del typingctx, to, source, words, bit, count, start, step, other_start, other_step, cols

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        target, origin, words_at, bit, count, *hashes, _ = args
        lanes, indices = Lanes(builder, sig.args[10]), Lanes(builder, types.float32)
        source, pairs = _Source(lanes, origin, count), _Pairs(builder, hashes)
        places, values = _Rooms(builder, I32), _Rooms(builder, lanes.real.element)
        shift = indices.splat(builder.trunc(bit, I32))
        one, square = ir.Constant(indices.words, [1] * GROUP), builder.mul(pairs.cols, pairs.cols)

        def prepare(group: Any) -> None:
            first = builder.lshr(indices.load_words(words_at, group), shift)
            differ = builder.and_(builder.xor(first, builder.lshr(first, one)), one)
            places.write(group, builder.add(builder.mul(differ, square), pairs.next()))
            _write_signed(lanes, values, source, words_at, bit, group)

        def add(group: Any) -> None:
            for k in range(GROUP):
                _add(lanes, target, places.read(group, k), values.read(group, k))

        _over_groups(builder, source.groups, places, prepare, add)
        return context.get_dummy_value()

    return types.void(*[_LONG] * 5, *[_DOUBLE_WORD] * 5, like), codegen


def _gather(
    builder: Any, entry: Any, target: Any, origin: Any, count: Any, columns: _Columns | _Pairs
) -> None:
    """Copy entries of a table, those of `count` coordinates and up to a whole group."""
    places = _Rooms(builder, I32)
    table, out = (builder.inttoptr(at, entry.as_pointer()) for at in (origin, target))

    def prepare(group: Any) -> None:
        places.write(group, columns.next())

    def copy(group: Any) -> None:
        for k in range(GROUP):
            cell = builder.gep(table, [builder.zext(places.read(group, k), I64)])
            to = builder.add(builder.mul(group, _number(GROUP)), _number(k))
            builder.store(builder.load(cell, align=4), builder.gep(out, [to]), align=4)

    groups = builder.sdiv(builder.add(count, _number(GROUP - 1)), _number(GROUP))
    _over_groups(builder, groups, places, prepare, copy)


@intrinsic
def gather_row(
    typingctx: Any, to: Any, row: Any, count: Any, start: Any, step: Any, cols: Any, like: Any
) -> Any:
    """Copy the cells of `count` coordinates, rounded up to whole groups, from a row."""
    del typingctx, to, row, count, start, step, cols

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        target, row, count, *hashes, _ = args
        entry = Lanes(builder, sig.args[6]).real.element
        _gather(builder, entry, target, row, count, _Columns(builder, *hashes))
        return context.get_dummy_value()

    return types.void(*[_LONG] * 3, *[_DOUBLE_WORD] * 3, like), codegen


@intrinsic
def gather_pair(
    typingctx: Any, to: Any, table: Any, count: Any, start: Any, step: Any, other_start: Any,
    other_step: Any, cols: Any, like: Any,
) -> Any:  # fmt: skip
    """Copy two numbers for each of `count` coordinates, rounded up to whole groups.

    `table` has both for each pair of columns.
    """
    del typingctx, to, table, count, start, step, other_start, other_step, cols

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        target, table, count, *hashes, _ = args
        single = Lanes(builder, sig.args[8]).single
        entry = I64 if single else ir.VectorType(I64, 2)
        _gather(builder, entry, target, table, count, _Pairs(builder, hashes))
        return context.get_dummy_value()

    return types.void(*[_LONG] * 3, *[_DOUBLE_WORD] * 5, like), codegen
