"""Functions that combine the rows of a table over whole lanes: their median, or their mean.

They are compiled for a number of rows and a size of the numbers, in bytes, and called by their
address. To the code within, the types of arguments say what to do: `rows` is a tuple as `_combined`
makes it, `stream` is `_STREAM` or `_CACHED`, and `paired` is `_PAIRED` or `_SINGLE`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types, uint32
from numba.core import cgutils
from numba.extending import intrinsic

from diffsketch.sketch.kernels.cpu_functions import Function, function, like
from diffsketch.sketch.kernels.cpu_lanes import (
    I64,
    Lanes,
    loop_over,
    one_or_more,
    place_of,
    word_at,
    word_of,
)
from diffsketch.sketch.kernels.networks import median_network, middle

Combine = Callable[[Lanes, list[Any]], Any]


def _median(lanes: Lanes, values: list[Any]) -> Any:
    for i, j in median_network(len(values)):
        values[i], values[j] = lanes.low_and_high(values[i], values[j])
    low, high = middle(len(values))
    if low == high:
        return values[low]
    half = lanes.constant(0.5)
    builder = lanes.builder
    return builder.fadd(builder.fmul(values[low], half), builder.fmul(values[high], half))


def _mean(lanes: Lanes, values: list[Any]) -> Any:
    total = values[0]
    for value in values[1:]:
        total = lanes.builder.fadd(total, value)
    return lanes.builder.fdiv(total, lanes.constant(len(values)))


_CACHED: tuple[None, ...] = ()
_STREAM: tuple[None, ...] = (None,)  # results are written past the caches
_SINGLE: tuple[None, ...] = ()
_PAIRED: tuple[None, ...] = (None,)  # the numbers of two rows alternate


def _combined(rows: int, *, mean: bool) -> tuple[int | None, ...]:
    """So many rows by their mean, or by their median."""
    return (0,) * rows if mean else (None,) * rows


def _how(rows: Any) -> Combine:
    return _median if rows.dtype == types.none else _mean


@intrinsic
def _combine_lanes(
    typingctx: Any, to: Any, sources: Any, flips: Any, rows: Any, stream: Any, vectors: Any,
    step: Any, phase: Any, like: Any,
) -> Any:  # fmt: skip
    """For `lanes_combiner`."""
    del typingctx, to, sources, flips, vectors, step, phase
    long, word = types.int64, types.uint32

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        target, origins, turns, _, _, count, by, start, _ = args
        lanes = Lanes(builder, sig.args[8])
        base, words = [], []
        at = builder.inttoptr(origins, I64.as_pointer())
        for j in range(sig.args[3].count):
            row = ir.Constant(I64, j)
            base.append(builder.load(builder.gep(at, [row])))
            words.append(lanes.splat(word_at(builder, turns, row)))
        _combine_loop(lanes, sig.args[3:5], target, base, words, count, by, start)
        return context.get_dummy_value()

    return types.void(long, long, long, rows, stream, long, word, word, like), codegen


@intrinsic
def _combine_blocks(
    typingctx: Any, to: Any, table: Any, stride: Any, rows: Any, stream: Any, blocks: Any,
    vectors: Any, words: Any, batch: Any, steps: Any, phases: Any, like: Any,
) -> Any:  # fmt: skip
    """For `blocks_combiner`."""
    del typingctx, to, table, stride, blocks, vectors, words, batch, steps, phases
    long = types.int64

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        target, origin, apart, _, _, count, each, words_at, per_row, steps_at, phases_at, _ = args
        lanes = Lanes(builder, sig.args[11])

        def combine_all(each: Any) -> None:
            with cgutils.for_range(builder, count) as outer:
                base, flips = [], []
                for j in range(sig.args[3].count):
                    row = ir.Constant(I64, j)
                    word = word_of(builder, words_at, row, per_row, outer.index)
                    flips.append(lanes.splat(word))
                    base.append(place_of(lanes, origin, row, apart, word))
                step = word_at(builder, steps_at, outer.index)
                phase = word_at(builder, phases_at, outer.index)
                out = lanes.address(target, builder.mul(outer.index, each))
                _combine_loop(lanes, sig.args[3:5], out, base, flips, each, step, phase)

        one_or_more(builder, each, combine_all)
        return context.get_dummy_value()

    return types.void(long, long, long, rows, stream, *[long] * 6, like), codegen


def _combine_loop(
    lanes: Lanes, how: Any, out: Any, base: list[Any], flips: list[Any], count: Any, step: Any,
    phase: Any,
) -> None:  # fmt: skip
    rows, stream = how
    with loop_over(lanes.builder, count) as index:
        values = [
            lanes.flip(lanes.load(lanes.address(at, index)), words)
            for at, words in zip(base, flips, strict=True)
        ]
        value = lanes.flip(_how(rows)(lanes, values), lanes.weyl(index, step, phase))
        lanes.store(value, lanes.address(out, index), stream=stream.count > 0)


@intrinsic
def _combine_signed(
    typingctx: Any, to: Any, values: Any, stride: Any, lower: Any, upper: Any, rows: Any,
    paired: Any, vectors: Any, like: Any,
) -> Any:  # fmt: skip
    """For `signed_combiner`."""
    del typingctx, to, values, stride, lower, upper, vectors
    long = types.int64

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        target, origin, stride, lower, upper, _, _, count, _ = args
        lanes, rows = Lanes(builder, sig.args[8]), sig.args[5].count
        paired = sig.args[6].count > 0
        even, odd = (
            ir.Constant(lanes.words, [2 * k + other for k in range(lanes.count)])
            for other in (0, 1)
        )

        def load(row: int, index: Any) -> Any:
            begin = builder.add(origin, builder.mul(stride, ir.Constant(I64, row)))
            return lanes.load(lanes.address(begin, index))

        with cgutils.for_range(builder, count) as loop:
            values: list[Any] = []
            while (j := len(values)) < rows:
                if not paired or j == rows - 1:
                    values.append(load(j, loop.index))
                    continue
                first = builder.mul(loop.index, ir.Constant(I64, 2))
                one = load(j, first)
                two = load(j, builder.add(first, ir.Constant(I64, 1)))
                values.append(builder.shuffle_vector(one, two, even))
                values.append(builder.shuffle_vector(one, two, odd))
            words = [lanes.load_words(lower, loop.index)]
            if rows > 32:
                words.append(lanes.load_words(upper, loop.index))
            for j in range(rows):
                up = ir.Constant(lanes.words, [31 - j % 32] * lanes.count)
                values[j] = lanes.flip(values[j], builder.shl(words[j // 32], up))
            value = _how(sig.args[5])(lanes, values)
            lanes.store(value, lanes.address(target, loop.index))
        return context.get_dummy_value()

    return types.void(*[long] * 5, rows, paired, long, like), codegen


@cache
def lanes_combiner(rows: int, itemsize: int, *, mean: bool, stream: bool) -> Function:
    """Combines the vectors that start at `sources`, one for each row."""
    how, past = _combined(rows, mean=mean), _STREAM if stream else _CACHED
    one = like(itemsize)

    @function(6, rows, itemsize, mean, stream)
    def combine(to: Any, sources: Any, flips: Any, vectors: Any, step: Any, phase: Any) -> None:
        by, start = uint32(step), uint32(phase)
        _combine_lanes(to, sources, flips, how, past, vectors, by, start, one)

    return combine


@cache
def blocks_combiner(rows: int, itemsize: int, *, mean: bool, stream: bool) -> Function:
    """The same for consecutive blocks of so many vectors, from a table with rows `stride` apart.

    `words[j * batch + k]` is where block `k` starts in row `j`, its flip in the top bit.
    """
    how, past = _combined(rows, mean=mean), _STREAM if stream else _CACHED
    one = like(itemsize)

    @function(9, rows, itemsize, mean, stream)
    def combine(
        to: Any, table: Any, stride: Any, blocks: Any, vectors: Any, words: Any, batch: Any,
        steps: Any, phases: Any,
    ) -> None:  # fmt: skip
        _combine_blocks(
            to, table, stride, how, past, blocks, vectors, words, batch, steps, phases, one
        )

    return combine


@cache
def signed_combiner(rows: int, itemsize: int, *, mean: bool, paired: bool) -> Function:
    """The same for numbers that lie in order, those of row `j` from `values + j * stride` on.

    Signs are flipped where bit `j` of a number's word is set; from row 32 on, words are at `upper`.
    If rows are paired, the numbers of two alternate, from the place of the first.
    """
    how, two = _combined(rows, mean=mean), _PAIRED if paired else _SINGLE
    one = like(itemsize)

    @function(6, rows, itemsize, mean, paired)
    def combine(to: Any, values: Any, stride: Any, lower: Any, upper: Any, vectors: Any) -> None:
        _combine_signed(to, values, stride, lower, upper, how, two, vectors, one)

    return combine
