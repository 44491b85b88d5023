"""Loops over whole lanes that add a vector to a table, and the columns that it goes to."""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from diffsketch.sketch.kernels.cpu_functions import Function, function, like
from diffsketch.sketch.kernels.cpu_lanes import (
    BYTES,
    I32,
    I64,
    Lanes,
    loop_over,
    one_or_more,
    place_of,
    word_at,
    word_of,
)


@intrinsic
def add_lanes(
    typingctx: Any, to: Any, source: Any, count: Any, step: Any, phase: Any, fetch: Any,
    every: Any, like: Any,
) -> Any:  # fmt: skip
    """`to[i] += source[i]` for `count` values, `-=` where the top bit of `phase + step * i` is set.

    Meanwhile ask for what lies at `fetch`, a line of the cache with `every` so many vectors.
    """
    del typingctx, to, source, count, step, phase, fetch, every
    long, word = types.int64, types.uint32

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        target, origin, count, by, start, ahead, every, _ = args
        lanes = Lanes(builder, sig.args[7])
        zero, each = ir.Constant(I64, 0), ir.Constant(I64, lanes.count)

        def add_first(many: Any, target: Any, origin: Any, signs: Any) -> None:
            with builder.if_then(builder.icmp_signed(">", many, zero)):
                mask = lanes.below(many)
                value = lanes.flip(lanes.load_first(origin, mask), signs)
                total = builder.fadd(lanes.load_first(target, mask), value)
                lanes.store_first(total, target, mask)

        # Up to the next line of the cache, then line by line: writes across two are slow.
        before = builder.and_(builder.neg(target), ir.Constant(I64, BYTES - 1))
        head = builder.sdiv(before, ir.Constant(I64, lanes.size))
        head = builder.select(builder.icmp_signed("<", head, count), head, count)
        add_first(head, target, origin, lanes.weyl(zero, by, start))
        skip = builder.mul(head, ir.Constant(I64, lanes.size))
        target, origin = builder.add(target, skip), builder.add(origin, skip)
        start = builder.add(start, builder.mul(by, builder.trunc(head, I32)))
        count = builder.sub(count, head)
        signs = cgutils.alloca_once_value(builder, lanes.weyl(zero, by, start))
        jump = lanes.splat(builder.mul(by, ir.Constant(I32, lanes.count)))

        def add_next(index: Any) -> None:
            place, at = lanes.address(target, index), lanes.address(origin, index)
            value = lanes.flip(lanes.load(at), builder.load(signs))
            lanes.store(builder.fadd(lanes.load(place), value), place)
            builder.store(builder.add(builder.load(signs), jump), signs)

        whole = builder.sdiv(count, each)
        groups = builder.sdiv(whole, every)
        with cgutils.for_range(builder, groups) as group:
            _prefetch(builder, lanes.address(ahead, group.index))
            first = builder.mul(group.index, every)
            with cgutils.for_range(builder, every) as loop:
                add_next(builder.add(first, loop.index))
        first = builder.mul(groups, every)
        with cgutils.for_range(builder, builder.sub(whole, first)) as loop:
            add_next(builder.add(first, loop.index))
        target, origin = lanes.address(target, whole), lanes.address(origin, whole)
        add_first(builder.srem(count, each), target, origin, builder.load(signs))
        return context.get_dummy_value()

    return types.void(long, long, long, word, word, long, long, like), codegen


def _prefetch(builder: Any, address: Any) -> None:
    pointer = ir.PointerType(ir.IntType(8))
    kind = ir.FunctionType(ir.VoidType(), [pointer, I32, I32, I32])
    call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    read, second_level, data = (ir.Constant(I32, k) for k in (0, 2, 1))
    builder.call(call, [builder.inttoptr(address, pointer), read, second_level, data])


@intrinsic
def scale_lanes(typingctx: Any, to: Any, count: Any, start: Any, step: Any, cols: Any) -> Any:
    """`to[i]` is the upper half of `start + step * i`, in 64 bits, brought down to `[0, cols)`."""
    del typingctx, to, count, start, step, cols
    long, double_word = types.int64, types.uint64

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        del sig
        target, count, start, step, cols = args
        lanes, each = Lanes(builder, types.float32), ir.Constant(I64, BYTES // 4)
        wide = ir.VectorType(I64, lanes.count)

        half, scale = ir.Constant(wide, [32] * lanes.count), lanes.splat(cols)
        ramp = builder.mul(lanes.splat(step), ir.Constant(wide, list(range(lanes.count))))
        state = cgutils.alloca_once_value(builder, builder.add(lanes.splat(start), ramp))
        jump = lanes.splat(builder.mul(step, each))

        def columns() -> Any:
            upper = builder.lshr(builder.load(state), half)
            return builder.trunc(builder.lshr(builder.mul(upper, scale), half), lanes.words)

        whole = builder.sdiv(count, each)
        with cgutils.for_range(builder, whole) as loop:
            place = builder.inttoptr(lanes.address(target, loop.index), lanes.words.as_pointer())
            builder.store(columns(), place, align=4)
            builder.store(builder.add(builder.load(state), jump), state)
        mask = lanes.below(builder.srem(count, each))
        value = builder.bitcast(columns(), lanes.real)
        lanes.store_first(value, lanes.address(target, whole), mask)
        return context.get_dummy_value()

    return types.void(long, long, double_word, double_word, double_word), codegen


@intrinsic
def flip_blocks(
    typingctx: Any, to: Any, source: Any, blocks: Any, vectors: Any, steps: Any, phases: Any,
    like: Any,
) -> Any:  # fmt: skip
    """Copy consecutive blocks of so many vectors, with the signs of each block's sequence."""
    del typingctx, to, source, blocks, vectors, steps, phases
    long = types.int64

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        target, origin, count, each, steps_at, phases_at, _ = args
        lanes = Lanes(builder, sig.args[6])

        def flip_all(each: Any) -> None:
            with cgutils.for_range(builder, count) as outer:
                step = word_at(builder, steps_at, outer.index)
                phase = word_at(builder, phases_at, outer.index)
                first = builder.mul(outer.index, each)
                with loop_over(builder, each) as index:
                    at = builder.add(first, index)
                    value = lanes.load(lanes.address(origin, at))
                    value = lanes.flip(value, lanes.weyl(index, step, phase))
                    lanes.store(value, lanes.address(target, at))

        one_or_more(builder, each, flip_all)
        return context.get_dummy_value()

    return types.void(long, long, long, long, long, long, like), codegen


@intrinsic
def add_blocks(
    typingctx: Any, to: Any, source: Any, blocks: Any, vectors: Any, rows: Any, stride: Any,
    words: Any, batch: Any, mask: Any, apart: Any, like: Any,
) -> Any:  # fmt: skip
    """Add consecutive blocks of so many vectors to the rows of tables that they take turns on.

    In row `j`, at `j * stride`, of the table at `to + (k & mask) * apart`, block `k` starts at the
    cell that `words[j * batch + k]` says; it is subtracted where the word's top bit is set.
    """
    del typingctx, to, source, blocks, vectors, rows, stride, words, batch, mask, apart
    long = types.int64

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        target, origin, count, each, rows, stride, words_at, per_row, turns, apart, _ = args
        lanes = Lanes(builder, sig.args[10])

        def add_all(each: Any) -> None:
            with cgutils.for_range(builder, count) as outer:
                table = builder.add(target, builder.mul(builder.and_(outer.index, turns), apart))
                first = lanes.address(origin, builder.mul(outer.index, each))
                with cgutils.for_range(builder, rows) as row:
                    word = word_of(builder, words_at, row.index, per_row, outer.index)
                    place = place_of(lanes, table, row.index, stride, word)
                    flips = lanes.splat(word)
                    with loop_over(builder, each) as index:
                        value = lanes.flip(lanes.load(lanes.address(first, index)), flips)
                        cell = lanes.address(place, index)
                        lanes.store(builder.fadd(lanes.load(cell), value), cell)

        one_or_more(builder, each, add_all)
        return context.get_dummy_value()

    return types.void(*[long] * 10, like), codegen


@intrinsic
def _add_signed_blocks(
    typingctx: Any, to: Any, source: Any, blocks: Any, vectors: Any, rows: Any, stride: Any,
    words: Any, batch: Any, steps: Any, phases: Any, mask: Any, apart: Any, like: Any,
) -> Any:  # fmt: skip
    """For `signed_adder`, laid out row by row: `rows` is a tuple with an entry for each."""
    del typingctx, to, source, blocks, vectors, stride, words, batch, steps, phases, mask, apart
    long = types.int64

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        target, origin, count, each, _, stride, words_at, per_row, *others = args
        steps_at, phases_at, turns, apart, _ = others
        lanes = Lanes(builder, sig.args[12])

        def add_all(each: Any) -> None:
            with cgutils.for_range(builder, count) as outer:
                table = builder.add(target, builder.mul(builder.and_(outer.index, turns), apart))
                first = lanes.address(origin, builder.mul(outer.index, each))
                step = word_at(builder, steps_at, outer.index)
                phase = word_at(builder, phases_at, outer.index)
                places = []
                for j in range(sig.args[4].count):
                    row = ir.Constant(I64, j)
                    word = word_of(builder, words_at, row, per_row, outer.index)
                    places.append((place_of(lanes, table, row, stride, word), lanes.splat(word)))
                with loop_over(builder, each) as index:
                    value = lanes.load(lanes.address(first, index))
                    value = lanes.flip(value, lanes.weyl(index, step, phase))
                    for place, flips in places:
                        cell = lanes.address(place, index)
                        total = builder.fadd(lanes.load(cell), lanes.flip(value, flips))
                        lanes.store(total, cell)

        one_or_more(builder, each, add_all)
        return context.get_dummy_value()

    return types.void(*[long] * 4, rows, *[long] * 7, like), codegen


@intrinsic
def _add_spread_blocks(
    typingctx: Any, to: Any, source: Any, blocks: Any, vectors: Any, rows: Any, offsets: Any,
    factors: Any, batch: Any, steps: Any, phases: Any, ahead: Any, like: Any,
) -> Any:  # fmt: skip
    """For `spread_adder`, laid out in the same way."""
    del typingctx, to, source, blocks, vectors, offsets, factors, batch, steps, phases, ahead
    long = types.int64

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        target, origin, count, each, _, offsets_at, factors_at, per_row, *others = args
        steps_at, phases_at, further, _ = others
        lanes = Lanes(builder, sig.args[11])
        multiply_add = lanes.multiply_add()

        def add_all(each: Any) -> None:
            with cgutils.for_range(builder, count) as outer:
                first = lanes.address(origin, builder.mul(outer.index, each))
                step = word_at(builder, steps_at, outer.index)
                phase = word_at(builder, phases_at, outer.index)
                places = []
                for j in range(sig.args[4].count):
                    row = ir.Constant(I64, j)
                    offset = word_of(builder, offsets_at, row, per_row, outer.index)
                    place = builder.add(target, builder.zext(offset, I64))
                    at = builder.add(builder.mul(row, per_row), outer.index)
                    places.append((place, lanes.splat(lanes.scalar_at(factors_at, at))))
                with loop_over(builder, each) as index:
                    at = lanes.address(first, index)
                    _prefetch(builder, builder.add(at, further))
                    value = lanes.flip(lanes.load(at), lanes.weyl(index, step, phase))
                    for place, factor in places:
                        cell = lanes.address(place, index)
                        lanes.store(multiply_add(value, factor, lanes.load(cell)), cell)

        one_or_more(builder, each, add_all)
        return context.get_dummy_value()

    return types.void(*[long] * 4, rows, *[long] * 6, like), codegen


@cache
def signed_adder(rows: int, itemsize: int) -> Function:
    """Adds blocks as `add_blocks` does, but of few rows, and with the signs of their sequences."""
    per_row, one = (None,) * rows, like(itemsize)

    @function(11, rows, itemsize)
    def add(
        to: Any, source: Any, blocks: Any, vectors: Any, stride: Any, words: Any, batch: Any,
        steps: Any, phases: Any, mask: Any, apart: Any,
    ) -> None:  # fmt: skip
        _add_signed_blocks(
            to, source, blocks, vectors, per_row, stride, words, batch, steps, phases, mask, apart,
            one,
        )  # fmt: skip

    return add


@cache
def spread_adder(rows: int, itemsize: int) -> Function:
    """Adds blocks to places that are ready-made: `offsets` in bytes, `factors` of 1 or -1.

    Both have `batch` entries for each of the rows. What lies `ahead` bytes after the source is
    asked for meanwhile.
    """
    per_row, one = (None,) * rows, like(itemsize)

    @function(10, rows, itemsize)
    def add(
        to: Any, source: Any, blocks: Any, vectors: Any, offsets: Any, factors: Any, batch: Any,
        steps: Any, phases: Any, ahead: Any,
    ) -> None:  # fmt: skip
        _add_spread_blocks(
            to, source, blocks, vectors, per_row, offsets, factors, batch, steps, phases, ahead,
            one,
        )  # fmt: skip

    return add
