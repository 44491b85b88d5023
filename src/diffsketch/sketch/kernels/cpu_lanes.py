"""Vector instructions for Numba: vectors of 64 bytes, written in LLVM's own terms.

Numba's optimiser vectorises loops only sometimes; spelled out they always are, and LLVM maps the
vectors to whatever the processor has. Nothing here checks bounds.
"""

from __future__ import annotations

from functools import cache, reduce
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from diffsketch.compiled import compiled_callback
from diffsketch.sketch.kernels.estimators import Combine, estimator

BYTES = 64
GROUP = 16  # coordinates that are hashed one by one, at once
_AHEAD = 4096  # bytes that numbers are asked for before they are read
I32, I64 = ir.IntType(32), ir.IntType(64)


def _long(value: int) -> Any:
    return ir.Constant(I64, value)


class Lanes:
    """The layout of one element type in a vector, and the operations on such vectors."""

    def __init__(self, builder: Any, itemsize: int) -> None:
        self.builder = builder
        self.size, self.count = itemsize, BYTES // itemsize
        self.suffix = f"v{self.count}f{8 * itemsize}"
        self.real = ir.VectorType(ir.FloatType() if itemsize == 4 else ir.DoubleType(), self.count)
        self.bits = ir.VectorType(ir.IntType(8 * itemsize), self.count)
        self.words = ir.VectorType(I32, self.count)

    def pointer(self, array, index):
        """Pointer to the vector that begins with an array's number `index`."""
        place = self.builder.gep(array, [index])
        return self.builder.bitcast(place, self.real.as_pointer())

    def load(self, pointer, count=None):
        """The vector at a pointer; or its first `count` lanes and zeros, reading no further."""
        if count is None:
            return self.builder.load(pointer, align=self.size)
        zeros, align = ir.Constant(self.real, [0.0] * self.count), ir.Constant(I32, self.size)
        name = f"llvm.masked.load.{self.suffix}.p0"
        return self.call(name, self.real, pointer, align, self._below(count), zeros)

    def load_words(self, array, index):
        """The 32-bit words from `index` on, one for each lane."""
        place = self.builder.gep(array, [index])
        return self.builder.load(self.builder.bitcast(place, self.words.as_pointer()), align=4)

    def store(self, value: Any, pointer: Any, count: Any = None, *, stream: bool = False) -> None:
        """Write a vector, or its first `count` lanes.

        With `stream` it is written past the caches, to a multiple of its size.
        """
        if count is not None:
            align, name = ir.Constant(I32, self.size), f"llvm.masked.store.{self.suffix}.p0"
            self.call(name, ir.VoidType(), value, pointer, align, self._below(count))
            return
        store = self.builder.store(value, pointer, align=BYTES if stream else self.size)
        if stream:
            metadata = self.builder.module.add_metadata([ir.Constant(I32, 1)])
            store.set_metadata("nontemporal", metadata)

    def prefetch(self, pointer, ahead):
        """Ask for the line of the cache that is `ahead` bytes after a pointer."""
        place = self.builder.ptrtoint(pointer, I64)
        there = self.builder.inttoptr(self.builder.add(place, ahead), self.real.as_pointer())
        read, second_level, data = (ir.Constant(I32, k) for k in (0, 2, 1))
        self.call("llvm.prefetch.p0", ir.VoidType(), there, read, second_level, data)

    def call(self, name: str, result: Any, *args: Any, fastmath: tuple[str, ...] = ()) -> Any:
        """Call one of LLVM's functions on such vectors."""
        kind = ir.FunctionType(result, [arg.type for arg in args])
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, args, fastmath=fastmath)

    def _below(self, count):
        lanes = ir.Constant(self.words, list(range(self.count)))
        return self.builder.icmp_signed("<", lanes, self.splat(self.builder.trunc(count, I32)))

    def splat(self, value):
        """The value in every lane."""
        undefined = ir.Constant(ir.VectorType(value.type, self.count), ir.Undefined)
        vector = self.builder.insert_element(undefined, value, ir.Constant(I32, 0))
        zeros = ir.Constant(self.words, [0] * self.count)
        return self.builder.shuffle_vector(vector, undefined, zeros)

    def flip(self, value, words):
        """`value` with its signs flipped where the top bits of `words` are set."""
        builder = self.builder
        mask = builder.and_(words, ir.Constant(self.words, [1 << 31] * self.count))
        if self.size == 8:
            mask = builder.zext(mask, self.bits)
            mask = builder.shl(mask, ir.Constant(self.bits, [32] * self.count))
        return builder.bitcast(builder.xor(builder.bitcast(value, self.bits), mask), self.real)

    def ramp(self, step, phase):
        """Words `phase + step * i` of the lanes `i`."""
        lanes = ir.Constant(self.words, list(range(self.count)))
        return self.builder.add(self.splat(phase), self.builder.mul(self.splat(step), lanes))


def _data(context, builder, kind, array):
    return context.make_array(kind)(context, builder, array).data


@intrinsic
def address(typingctx, array):
    """An array's address, as a signed integer. The array must outlive its use."""

    def codegen(context, builder, sig, args):
        return builder.ptrtoint(_data(context, builder, sig.args[0], args[0]), I64)

    return types.int64(array), codegen


@intrinsic
def add_signed(typingctx, table, at, codes, first, rows, source, begin, count, step, phase):
    """Add `source[begin + i]` for `i < count`, negative if `phase + step * i` has its top bit set.

    They are added in each row to `table[at + (code >> 1) + i]` with the row's code of
    `codes[first : first + rows]`, and all subtracted instead if that is odd. Places are those in
    memory, for arrays of any shape.
    """

    def codegen(context, builder, sig, args):
        lanes = Lanes(builder, sig.args[0].dtype.bitwidth // 8)
        to, code_at, origin = (_data(context, builder, sig.args[k], args[k]) for k in (0, 2, 5))
        at, first, rows, begin, count, step, phase = args[1], *args[3:5], *args[6:]
        width, vectors = _long(lanes.count), builder.and_(count, _long(-lanes.count))
        jump = lanes.splat(builder.mul(step, ir.Constant(I32, lanes.count)))
        signs = cgutils.alloca_once(builder, lanes.words)

        def add(value, place, flip, tail=None):
            cells = lanes.pointer(to, place)
            value = lanes.flip(value, flip)
            lanes.store(builder.fadd(lanes.load(cells, tail), value), cells, tail)

        def each_row(emit):
            with cgutils.for_range(builder, rows) as row:
                place = builder.add(first, row.index)
                code = builder.load(builder.gep(code_at, [place]))
                top = builder.shl(builder.trunc(code, I32), ir.Constant(I32, 31))
                emit(builder.add(at, builder.ashr(code, _long(1))), top)

        with builder.if_else(builder.icmp_signed("==", count, width)) as (single, several):
            with single:
                value = lanes.load(lanes.pointer(origin, begin))
                signed = lanes.flip(value, lanes.ramp(step, phase))
                each_row(lambda place, top: add(signed, place, lanes.splat(top)))
            with several:

                def add_all(place, top):
                    builder.store(lanes.ramp(step, builder.add(phase, top)), signs)
                    with cgutils.for_range_slice(builder, _long(0), vectors, width, I64) as (k, _):
                        value = lanes.load(lanes.pointer(origin, builder.add(begin, k)))
                        add(value, builder.add(place, k), builder.load(signs))
                        builder.store(builder.add(builder.load(signs), jump), signs)
                    tail = builder.sub(count, vectors)
                    with builder.if_then(builder.icmp_signed(">", tail, _long(0)), likely=False):
                        value = lanes.load(lanes.pointer(origin, builder.add(begin, vectors)), tail)
                        add(value, builder.add(place, vectors), builder.load(signs), tail)

                each_row(add_all)
        return context.get_dummy_value()

    long, word = types.int64, types.uint32
    return types.void(table, long, codes, long, long, source, *[long] * 2, word, word), codegen


@intrinsic
def hash_group(typingctx, cells, at, start, step, cols):
    """Write the columns of 16 coordinates to `cells` from `at` on.

    They are the upper halves of `start + step * i`, brought to `[0, cols)`.
    """

    def codegen(context, builder, sig, args):
        lanes, (start, step, cols) = Lanes(builder, 4), args[2:]
        wide = ir.VectorType(I64, GROUP)
        half, ramp = ir.Constant(wide, [32] * GROUP), ir.Constant(wide, list(range(GROUP)))
        # Masked, so that LLVM sees that a product of two halves is all that is asked for.
        scale = builder.and_(lanes.splat(cols), ir.Constant(wide, [0xFFFFFFFF] * GROUP))
        state = builder.add(lanes.splat(start), builder.mul(lanes.splat(step), ramp))
        scaled = builder.mul(builder.lshr(state, half), scale)
        columns = builder.trunc(builder.lshr(scaled, half), lanes.words)
        to = lanes.pointer(_data(context, builder, sig.args[0], args[0]), args[1])
        builder.store(columns, builder.bitcast(to, columns.type.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(cells, types.int64, *[types.uint64] * 3), codegen


@intrinsic
def flip_group(typingctx, values, at, source, begin, count, bits, first, bit):
    """Copy 16 numbers, the first `count` of them and zeros, signed by that bit of their `bits`."""

    def codegen(context, builder, sig, args):
        lanes = Lanes(builder, sig.args[0].dtype.bitwidth // 8)
        to, origin, words_at = (_data(context, builder, sig.args[k], args[k]) for k in (0, 2, 5))
        at, begin, count, first, bit = args[1], *args[3:5], *args[6:]
        shift = lanes.splat(builder.sub(ir.Constant(I32, 31), bit))
        complete = builder.icmp_signed(">=", count, _long(GROUP))
        for part in range(0, GROUP, lanes.count):
            more = _long(part)
            place = lanes.pointer(origin, builder.add(begin, more))
            lanes.prefetch(place, _long(_AHEAD))
            with builder.if_else(complete, likely=True) as (all_there, part_there):
                with all_there:
                    full, here = lanes.load(place), builder.block
                with part_there:
                    partial, there = lanes.load(place, builder.sub(count, more)), builder.block
            value = builder.phi(lanes.real)
            value.add_incoming(full, here)
            value.add_incoming(partial, there)
            words = lanes.load_words(words_at, builder.add(first, more))
            value = lanes.flip(value, builder.shl(words, shift))
            lanes.store(value, lanes.pointer(to, builder.add(at, more)))
        return context.get_dummy_value()

    long, word = types.int64, types.uint32
    return types.void(values, long, source, long, long, bits, long, word), codegen


@intrinsic
def call(typingctx, function, arguments):
    """Call a `compiled_callback` by its address with a tuple of integers."""

    def codegen(context, builder, sig, args):
        longs = [
            context.cast(builder, builder.extract_value(args[1], i), kind, types.int64)
            for i, kind in enumerate(sig.args[1])
        ]
        kind = ir.FunctionType(ir.VoidType(), [I64] * len(longs))
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), longs)
        return context.get_dummy_value()

    return types.void(types.int64, arguments), codegen


def _estimate(lanes: Lanes, combine: Combine, values: list[Any]) -> Any:
    """Estimates from vectors of cells, lane by lane.

    Flags let LLVM use one instruction for a minimum or maximum: no NaN comes here.
    """
    builder, flags = lanes.builder, ("nnan", "nsz")
    comparators, places = estimator(combine, len(values))
    for i, j in comparators:
        pair = values[i], values[j]
        values[i], values[j] = (
            lanes.call(f"llvm.{name}.{lanes.suffix}", lanes.real, *pair, fastmath=flags)
            for name in ("minnum", "maxnum")
        )
    first, *others = (values[place] for place in places)
    if len(others) == 1:  # halved before they are added, since that cannot overflow
        half = ir.Constant(lanes.real, [0.5] * lanes.count)
        return builder.fadd(builder.fmul(first, half), builder.fmul(others[0], half))
    total = reduce(builder.fadd, others, first)
    if not others:
        return total
    return builder.fdiv(total, ir.Constant(lanes.real, [float(len(places))] * lanes.count))


def _each_vector(lanes: Lanes, rows: int, args: Any, emit: Any) -> None:
    """Call `emit(block, k, places, flips, signs)` for all vectors of blocks.

    `args` are codes, blocks, numbers in a block, steps and phases. Blocks of one vector, which are
    the common case, have a form without an inner loop.
    """
    builder, (codes, blocks, count, steps, phases) = lanes.builder, args
    # Vectors for which there are too few registers are to lie in one line of the cache each.
    builder.function.attributes.add("noinline")  # llvmlite drops the alignment if it is alone
    builder.function.attributes.alignstack = BYTES
    words = [builder.inttoptr(at, I32.as_pointer()) for at in (steps, phases)]
    code_at, each = builder.inttoptr(codes, I64.as_pointer()), _long(lanes.count)
    moved = cgutils.alloca_once(builder, lanes.words)

    def each_block(emit_block):
        with cgutils.for_range(builder, blocks) as block:
            places, flips = [], []
            for j in range(rows):
                at = builder.add(builder.mul(block.index, _long(rows)), _long(j))
                code = builder.load(builder.gep(code_at, [at]))
                places.append(builder.ashr(code, _long(1)))
                top = builder.shl(builder.trunc(code, I32), ir.Constant(I32, 31))
                flips.append(lanes.splat(top))
            step, phase = (builder.load(builder.gep(at, [block.index])) for at in words)
            emit_block(block.index, places, flips, step, lanes.ramp(step, phase))

    def loop(block, places, flips, step, signs):
        builder.store(signs, moved)
        jump = lanes.splat(builder.mul(step, ir.Constant(I32, lanes.count)))
        with cgutils.for_range_slice(builder, _long(0), count, each, I64) as (k, _):
            signs = builder.load(moved)
            emit(block, k, places, flips, signs)
            builder.store(builder.add(signs, jump), moved)

    with builder.if_else(builder.icmp_signed("==", count, each)) as (single, several):
        with single:
            each_block(
                lambda block, places, flips, _, signs: emit(block, _long(0), places, flips, signs)
            )
        with several:
            each_block(loop)


@cache
def adder(rows: int, itemsize: int) -> Any:
    """Compile what adds short blocks to the rows of tables, laid out row by row.

    The function takes `blocks` consecutive blocks of `count` numbers, whole vectors or less than
    one (zeros are added in its other lanes), signed as `steps` and `phases` say. Block `k` is added
    in row `j` from the number `codes[k, j] >> 1` of the table `(k & mask) * apart` on, or
    subtracted if that is odd. What lies `ahead` bytes after the source is fetched meanwhile.
    """

    @intrinsic
    def add_blocks(typingctx, to, source, codes, blocks, count, steps, phases, mask, apart, ahead):
        def codegen(context, builder, sig, args):
            lanes, count, (mask, apart, ahead) = Lanes(builder, itemsize), args[4], args[7:]
            to, source = (builder.inttoptr(at, lanes.real.element.as_pointer()) for at in args[:2])

            def add(block, k, places, flips, signs):
                begin = lanes.pointer(source, builder.add(builder.mul(block, count), k))
                lanes.prefetch(begin, ahead)
                value = lanes.flip(lanes.load(begin, count), signs)
                turn = builder.mul(builder.and_(block, mask), apart)
                table = builder.gep(to, [builder.add(turn, k)])
                for at, flip in zip(places, flips, strict=True):
                    cells = lanes.pointer(table, at)
                    lanes.store(builder.fadd(lanes.load(cells), lanes.flip(value, flip)), cells)

            _each_vector(lanes, rows, args[2:7], add)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 10), codegen

    def add(to, source, codes, blocks, count, steps, phases, mask, apart, ahead):
        add_blocks(to, source, codes, blocks, count, steps, phases, mask, apart, ahead)

    return compiled_callback(add, 10, f"add_{rows}_{itemsize}")


@cache
def combiner(
    rows: int, itemsize: int, combine: Combine, *, stream: bool = False, lanewise: bool = False
) -> Any:
    """Compile what combines the rows of a table into estimates, in registers.

    The function takes blocks as `adder` does. The cells of
    block `k` in row `j` begin at the number `codes[k, j] >> 1` of the table, and all their signs
    are flipped if that is odd; those of the results as `steps[k]` and `phases[k]` say. With
    `stream` they are written past the caches, to a multiple of 64 bytes.

    With `lanewise`, each number has signs of its own, bit `j` for row `j`, in the words that are
    at `steps`, from row 32 on at `phases`.
    """

    @intrinsic
    def combine_rows(typingctx, to, table, codes, blocks, count, steps, phases):
        def codegen(context, builder, sig, args):
            lanes = Lanes(builder, itemsize)
            to, table = (builder.inttoptr(at, lanes.real.element.as_pointer()) for at in args[:2])
            words = [builder.inttoptr(at, I32.as_pointer()) for at in args[5:]]

            def estimate(block, k, places, flips, signs):
                if lanewise:
                    halves = [lanes.load_words(at, k) for at in words[: 1 + rows // 33]]
                    flips = [
                        builder.shl(
                            halves[j // 32], ir.Constant(lanes.words, [31 - j % 32] * lanes.count)
                        )
                        for j in range(rows)
                    ]
                values = [lanes.load(lanes.pointer(table, builder.add(at, k))) for at in places]
                values = [lanes.flip(*both) for both in zip(values, flips, strict=True)]
                value = _estimate(lanes, combine, values)
                if not lanewise:
                    value = lanes.flip(value, signs)
                out = builder.add(builder.mul(block, args[4]), k)
                lanes.store(value, lanes.pointer(to, out), stream=stream)

            _each_vector(lanes, rows, args[2:], estimate)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), codegen

    def estimate(to, table, codes, blocks, count, steps, phases):
        combine_rows(to, table, codes, blocks, count, steps, phases)

    name = f"{combine}_{rows}_{itemsize}_{stream:d}{lanewise:d}"
    return compiled_callback(estimate, 7, name)
