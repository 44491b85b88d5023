"""Vector instructions for Numba: loops over whole lanes, written in LLVM's own terms.

Numba's optimiser vectorises such loops only sometimes; spelled out they always are, and LLVM maps
the 64-byte vectors to whatever the processor has. Addresses are integers, so nothing here checks
bounds: callers pass stretches that are a whole number of vectors long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from diffsketch.sketch.kernels.networks import median_network, middle

_BYTES = 64
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_TOP_BIT = 1 << 31


class _Lanes:
    """How one element type is laid out in a vector, and the few operations on it."""

    def __init__(self, builder: Any, scalar: Any) -> None:
        self.builder = builder
        self.single = scalar == types.float32
        self.size = 4 if self.single else 8
        self.count = _BYTES // self.size
        self.real = ir.VectorType(ir.FloatType() if self.single else ir.DoubleType(), self.count)
        self.bits = ir.VectorType(_I32 if self.single else _I64, self.count)
        self.words = ir.VectorType(_I32, self.count)

    def load(self, address: Any) -> Any:
        pointer = self.builder.inttoptr(address, self.real.as_pointer())
        return self.builder.load(pointer, align=self.size)

    def store(self, value: Any, address: Any, *, stream: bool = False) -> None:
        pointer = self.builder.inttoptr(address, self.real.as_pointer())
        store = self.builder.store(value, pointer, align=_BYTES if stream else self.size)
        if stream:
            module = self.builder.module
            store.set_metadata("nontemporal", module.add_metadata([ir.Constant(_I32, 1)]))

    def load_first(self, address: Any, mask: Any) -> Any:
        """The lanes that `mask` has, zeros elsewhere; no other memory is touched."""
        pointer = self.builder.inttoptr(address, self.real.as_pointer())
        kind = ir.FunctionType(self.real, [pointer.type, _I32, mask.type, self.real])
        call = self._function("llvm.masked.load", kind)
        align = ir.Constant(_I32, self.size)
        return self.builder.call(call, (pointer, align, mask, self.constant(0.0)))

    def store_first(self, value: Any, address: Any, mask: Any) -> None:
        """Write the lanes that `mask` has."""
        pointer = self.builder.inttoptr(address, self.real.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [self.real, pointer.type, _I32, mask.type])
        call = self._function("llvm.masked.store", kind)
        self.builder.call(call, (value, pointer, ir.Constant(_I32, self.size), mask))

    def below(self, count: Any) -> Any:
        """A mask of the first `count` lanes."""
        lanes = ir.Constant(self.words, list(range(self.count)))
        return self.builder.icmp_signed("<", lanes, self.splat(self.builder.trunc(count, _I32)))

    def _function(self, name: str, kind: Any) -> Any:
        suffix = f"v{self.count}f{32 if self.single else 64}"
        name = f"{name}.{suffix}.p0" if "masked" in name else f"{name}.{suffix}"
        return cgutils.get_or_insert_function(self.builder.module, kind, name)

    def splat(self, word: Any) -> Any:
        vector = ir.Constant(self.words, ir.Undefined)
        vector = self.builder.insert_element(vector, word, ir.Constant(_I32, 0))
        zeros = ir.Constant(self.words, [0] * self.count)
        return self.builder.shuffle_vector(vector, ir.Constant(self.words, ir.Undefined), zeros)

    def flip(self, value: Any, words: Any) -> Any:
        """`value` with its signs flipped where the top bits of `words` are set."""
        builder = self.builder
        mask = builder.and_(words, ir.Constant(self.words, [_TOP_BIT] * self.count))
        if not self.single:
            mask = builder.zext(mask, self.bits)
            mask = builder.shl(mask, ir.Constant(self.bits, [32] * self.count))
        return builder.bitcast(builder.xor(builder.bitcast(value, self.bits), mask), self.real)

    def weyl(self, index: Any, step: Any, phase: Any) -> Any:
        """Words `phase + step * i` for the lanes `i` of the vector with number `index`."""
        builder = self.builder
        lanes = ir.Constant(self.words, list(range(self.count)))
        first = builder.mul(builder.trunc(index, _I32), ir.Constant(_I32, self.count))
        start = builder.add(phase, builder.mul(step, first))
        return builder.add(self.splat(start), builder.mul(self.splat(step), lanes))

    def address(self, base: Any, index: Any) -> Any:
        return self.builder.add(base, self.builder.mul(index, ir.Constant(_I64, _BYTES)))

    def low_and_high(self, a: Any, b: Any) -> tuple[Any, Any]:
        """Minimum and maximum; the flags let LLVM use one instruction each (no NaN comes here)."""
        builder = self.builder
        kind = ir.FunctionType(self.real, [self.real, self.real])
        low, high = self._function("llvm.minnum", kind), self._function("llvm.maxnum", kind)
        flags = ("nnan", "nsz")
        return builder.call(low, (a, b), fastmath=flags), builder.call(high, (a, b), fastmath=flags)

    def constant(self, value: float) -> Any:
        return ir.Constant(self.real, [value] * self.count)


def _add_intrinsic(*, prefetch: bool) -> Any:
    """`to[i] += source[i]` for `count` values, `-=` where the top bit of `phase + step * i` is set.

    With `prefetch`, ask meanwhile for what lies `ahead` bytes after the source.
    """

    @intrinsic
    def add_lanes(
        typingctx: Any, to: Any, source: Any, count: Any, step: Any, phase: Any, ahead: Any,
        like: Any,
    ) -> Any:  # fmt: skip
        del typingctx, to, source, count, step, phase, ahead
        long, word = types.int64, types.uint32

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            target, origin, count, by, start, further, _ = args
            lanes = _Lanes(builder, sig.args[6])
            zero, each = ir.Constant(_I64, 0), ir.Constant(_I64, lanes.count)

            def add_first(many: Any, target: Any, origin: Any, start: Any) -> None:
                with builder.if_then(builder.icmp_signed(">", many, zero)):
                    mask = lanes.below(many)
                    value = lanes.flip(lanes.load_first(origin, mask), lanes.weyl(zero, by, start))
                    total = builder.fadd(lanes.load_first(target, mask), value)
                    lanes.store_first(total, target, mask)

            # Up to the next line of the cache, then line by line: writes across two are slow.
            before = builder.and_(builder.neg(target), ir.Constant(_I64, _BYTES - 1))
            head = builder.sdiv(before, ir.Constant(_I64, lanes.size))
            head = builder.select(builder.icmp_signed("<", head, count), head, count)
            add_first(head, target, origin, start)
            skip = builder.mul(head, ir.Constant(_I64, lanes.size))
            target, origin = builder.add(target, skip), builder.add(origin, skip)
            start = builder.add(start, builder.mul(by, builder.trunc(head, _I32)))
            count = builder.sub(count, head)
            whole = builder.sdiv(count, each)
            with cgutils.for_range(builder, whole) as loop:
                place, at = lanes.address(target, loop.index), lanes.address(origin, loop.index)
                if prefetch:
                    _prefetch(builder, builder.add(at, further))
                value = lanes.flip(lanes.load(at), lanes.weyl(loop.index, by, start))
                lanes.store(builder.fadd(lanes.load(place), value), place)
            start = builder.add(
                start, builder.mul(by, builder.trunc(builder.mul(whole, each), _I32))
            )
            target, origin = lanes.address(target, whole), lanes.address(origin, whole)
            add_first(builder.srem(count, each), target, origin, start)
            return context.get_dummy_value()

        return types.void(long, long, long, word, word, long, like), codegen

    return add_lanes


def _prefetch(builder: Any, address: Any) -> None:
    pointer = ir.PointerType(ir.IntType(8))
    kind = ir.FunctionType(ir.VoidType(), [pointer, _I32, _I32, _I32])
    call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    read, second_level, data = (ir.Constant(_I32, k) for k in (0, 2, 1))
    builder.call(call, [builder.inttoptr(address, pointer), read, second_level, data])


add_lanes = _add_intrinsic(prefetch=False)
add_lanes_prefetch = _add_intrinsic(prefetch=True)


@intrinsic
def scale_lanes(typingctx: Any, to: Any, count: Any, start: Any, step: Any, cols: Any) -> Any:
    """`to[i]` is the upper half of `start + step * i`, in 64 bits, brought down to `[0, cols)`."""
    del typingctx, to, count, start, step, cols
    long, double_word = types.int64, types.uint64

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        del sig
        target, count, start, step, cols = args
        lanes, each = _Lanes(builder, types.float32), ir.Constant(_I64, _BYTES // 4)
        wide = ir.VectorType(_I64, lanes.count)

        def splat(word: Any) -> Any:
            vector = builder.insert_element(ir.Constant(wide, ir.Undefined), word, _I32(0))
            zeros = ir.Constant(lanes.words, [0] * lanes.count)
            return builder.shuffle_vector(vector, ir.Constant(wide, ir.Undefined), zeros)

        half, scale = ir.Constant(wide, [32] * lanes.count), splat(cols)
        ramp = builder.mul(splat(step), ir.Constant(wide, list(range(lanes.count))))
        state = cgutils.alloca_once_value(builder, builder.add(splat(start), ramp))
        jump = splat(builder.mul(step, each))

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
        lanes = _Lanes(builder, sig.args[6])

        def flip_all(each: Any) -> None:
            with cgutils.for_range(builder, count) as outer:
                step = _word(builder, steps_at, outer.index)
                phase = _word(builder, phases_at, outer.index)
                first = builder.mul(outer.index, each)
                with _loop(builder, each) as index:
                    at = builder.add(first, index)
                    value = lanes.load(lanes.address(origin, at))
                    value = lanes.flip(value, lanes.weyl(index, step, phase))
                    lanes.store(value, lanes.address(target, at))

        _one_or_more(builder, each, flip_all)
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
        lanes = _Lanes(builder, sig.args[10])

        def add_all(each: Any) -> None:
            with cgutils.for_range(builder, count) as outer:
                table = builder.add(target, builder.mul(builder.and_(outer.index, turns), apart))
                first = lanes.address(origin, builder.mul(outer.index, each))
                with cgutils.for_range(builder, rows) as row:
                    word = _word_of(builder, words_at, row.index, per_row, outer.index)
                    place = _place(lanes, table, row.index, stride, word)
                    flips = lanes.splat(word)
                    with _loop(builder, each) as index:
                        value = lanes.flip(lanes.load(lanes.address(first, index)), flips)
                        cell = lanes.address(place, index)
                        lanes.store(builder.fadd(lanes.load(cell), value), cell)

        _one_or_more(builder, each, add_all)
        return context.get_dummy_value()

    return types.void(*[long] * 10, like), codegen


@intrinsic
def add_signed_blocks(
    typingctx: Any, to: Any, source: Any, blocks: Any, vectors: Any, rows: Any, stride: Any,
    words: Any, batch: Any, steps: Any, phases: Any, mask: Any, apart: Any, like: Any,
) -> Any:  # fmt: skip
    """The same for few rows, their number the length of the tuple `rows`: laid out row by row.

    The sign sequences of the blocks, with these `steps` and `phases`, are applied on the way.
    """
    del typingctx, to, source, blocks, vectors, stride, words, batch, steps, phases, mask, apart
    long = types.int64

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        target, origin, count, each, _, stride, words_at, per_row, *others = args
        steps_at, phases_at, turns, apart, _ = others
        lanes = _Lanes(builder, sig.args[12])

        def add_all(each: Any) -> None:
            with cgutils.for_range(builder, count) as outer:
                table = builder.add(target, builder.mul(builder.and_(outer.index, turns), apart))
                first = lanes.address(origin, builder.mul(outer.index, each))
                step = _word(builder, steps_at, outer.index)
                phase = _word(builder, phases_at, outer.index)
                places = []
                for j in range(sig.args[4].count):
                    row = ir.Constant(_I64, j)
                    word = _word_of(builder, words_at, row, per_row, outer.index)
                    places.append((_place(lanes, table, row, stride, word), lanes.splat(word)))
                with _loop(builder, each) as index:
                    value = lanes.load(lanes.address(first, index))
                    value = lanes.flip(value, lanes.weyl(index, step, phase))
                    for place, flips in places:
                        cell = lanes.address(place, index)
                        total = builder.fadd(lanes.load(cell), lanes.flip(value, flips))
                        lanes.store(total, cell)

        _one_or_more(builder, each, add_all)
        return context.get_dummy_value()

    return types.void(*[long] * 4, rows, *[long] * 7, like), codegen


def _word_of(builder: Any, words: Any, row: Any, per_row: Any, block: Any) -> Any:
    return _word(builder, words, builder.add(builder.mul(row, per_row), block))


def _place(lanes: _Lanes, table: Any, row: Any, stride: Any, word: Any) -> Any:
    """The address of the cell that a word says, in a row of a table."""
    builder = lanes.builder
    start = builder.and_(word, ir.Constant(_I32, _TOP_BIT - 1))
    start = builder.mul(builder.zext(start, _I64), ir.Constant(_I64, lanes.size))
    return builder.add(builder.add(table, builder.mul(row, stride)), start)


def _one_or_more(builder: Any, count: Any, emit: Callable[[Any], None]) -> None:
    """Code for `count` vectors, with a copy for the common case of one that has no inner loop."""
    single = builder.icmp_signed("==", count, ir.Constant(_I64, 1))
    with builder.if_else(single, likely=True) as (one, more):
        with one:
            emit(ir.Constant(_I64, 1))
        with more:
            emit(count)


@contextmanager
def _loop(builder: Any, count: Any) -> Iterator[Any]:
    """A loop over `range(count)`, or just its body if `count` is the constant 1."""
    if isinstance(count, ir.Constant):
        yield ir.Constant(_I64, 0)
    else:
        with cgutils.for_range(builder, count) as loop:
            yield loop.index


def _word(builder: Any, array: Any, index: Any) -> Any:
    pointer = builder.inttoptr(array, _I32.as_pointer())
    return builder.load(builder.gep(pointer, [index]))


Combine = Callable[[_Lanes, list[Any]], Any]


def _median(lanes: _Lanes, values: list[Any]) -> Any:
    for i, j in median_network(len(values)):
        values[i], values[j] = lanes.low_and_high(values[i], values[j])
    low, high = middle(len(values))
    if low == high:
        return values[low]
    half = lanes.constant(0.5)
    builder = lanes.builder
    return builder.fadd(builder.fmul(values[low], half), builder.fmul(values[high], half))


def _mean(lanes: _Lanes, values: list[Any]) -> Any:
    total = values[0]
    for value in values[1:]:
        total = lanes.builder.fadd(total, value)
    return lanes.builder.fdiv(total, lanes.constant(len(values)))


def _combine_intrinsic(combine: Combine, *, stream: bool) -> Any:
    """An intrinsic that combines rows; their number is the length of the tuple `rows`."""

    @intrinsic
    def combine_lanes(
        typingctx: Any, to: Any, sources: Any, flips: Any, rows: Any, vectors: Any,
        step: Any, phase: Any, like: Any,
    ) -> Any:  # fmt: skip
        del typingctx, to, sources, flips, vectors, step, phase
        word = types.uint32
        signature = types.void(
            types.int64, types.int64, types.int64, rows, types.int64, word, word, like
        )

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            target, origins, turns, _, count, by, start, _ = args
            lanes = _Lanes(builder, sig.args[7])
            base, words = [], []
            at = builder.inttoptr(origins, _I64.as_pointer())
            for j in range(sig.args[3].count):
                row = ir.Constant(_I64, j)
                base.append(builder.load(builder.gep(at, [row])))
                words.append(lanes.splat(_word(builder, turns, row)))
            _combine_loop(lanes, combine, target, base, words, count, by, start, stream=stream)
            return context.get_dummy_value()

        return signature, codegen

    return combine_lanes


def _blocks_intrinsic(combine: Combine, *, stream: bool) -> Any:
    """The same for consecutive blocks of so many vectors, from a table with rows `stride` apart.

    `words[j * batch + k]` is where block `k` starts in row `j`, its flip in the top bit.
    """

    @intrinsic
    def combine_blocks(
        typingctx: Any, to: Any, table: Any, stride: Any, rows: Any, blocks: Any, vectors: Any,
        words: Any, batch: Any, steps: Any, phases: Any, like: Any,
    ) -> Any:  # fmt: skip
        del typingctx, to, table, stride, blocks, vectors, words, batch, steps, phases
        long = types.int64
        signature = types.void(long, long, long, rows, long, long, long, long, long, long, like)

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            target, origin, apart, _, count, each, words_at, per_row, steps_at, phases_at, _ = args
            lanes = _Lanes(builder, sig.args[10])

            def combine_all(each: Any) -> None:
                with cgutils.for_range(builder, count) as outer:
                    base, flips = [], []
                    for j in range(sig.args[3].count):
                        row = ir.Constant(_I64, j)
                        word = _word_of(builder, words_at, row, per_row, outer.index)
                        flips.append(lanes.splat(word))
                        base.append(_place(lanes, origin, row, apart, word))
                    step = _word(builder, steps_at, outer.index)
                    phase = _word(builder, phases_at, outer.index)
                    out = lanes.address(target, builder.mul(outer.index, each))
                    _combine_loop(
                        lanes, combine, out, base, flips, each, step, phase, stream=stream
                    )

            _one_or_more(builder, each, combine_all)
            return context.get_dummy_value()

        return signature, codegen

    return combine_blocks


def _combine_loop(
    lanes: _Lanes, combine: Combine, out: Any, base: list[Any], flips: list[Any], count: Any,
    step: Any, phase: Any, *, stream: bool,
) -> None:  # fmt: skip
    with _loop(lanes.builder, count) as index:
        values = [
            lanes.flip(lanes.load(lanes.address(at, index)), words)
            for at, words in zip(base, flips, strict=True)
        ]
        value = lanes.flip(combine(lanes, values), lanes.weyl(index, step, phase))
        lanes.store(value, lanes.address(out, index), stream=stream)


median_lanes = _combine_intrinsic(_median, stream=False)
median_lanes_stream = _combine_intrinsic(_median, stream=True)
mean_lanes = _combine_intrinsic(_mean, stream=False)
mean_lanes_stream = _combine_intrinsic(_mean, stream=True)
median_blocks = _blocks_intrinsic(_median, stream=False)
median_blocks_stream = _blocks_intrinsic(_median, stream=True)
mean_blocks = _blocks_intrinsic(_mean, stream=False)
mean_blocks_stream = _blocks_intrinsic(_mean, stream=True)
