"""Vector instructions for Numba: vectors of 64 bytes, written in LLVM's own terms.

Numba's optimiser vectorises loops only sometimes; spelled out they always are, and LLVM maps the
vectors to whatever the processor has. Addresses are integers, so nothing here checks bounds. The
loops themselves are in `cpu_adding`, `cpu_columns` and `cpu_combining`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

BYTES = 64
I32, I64 = ir.IntType(32), ir.IntType(64)
TOP_BIT = 1 << 31


class Lanes:
    """How one element type is laid out in a vector, and the few operations on it."""

    def __init__(self, builder: Any, scalar: Any) -> None:
        self.builder = builder
        self.single = scalar == types.float32
        self.size = 4 if self.single else 8
        self.count = BYTES // self.size
        self.real = ir.VectorType(ir.FloatType() if self.single else ir.DoubleType(), self.count)
        self.bits = ir.VectorType(I32 if self.single else I64, self.count)
        self.words = ir.VectorType(I32, self.count)

    def load(self, address: Any) -> Any:
        """The vector at an address, which need not be a multiple of its size."""
        pointer = self.builder.inttoptr(address, self.real.as_pointer())
        return self.builder.load(pointer, align=self.size)

    def store(self, value: Any, address: Any, *, stream: bool = False) -> None:
        """Write a vector; with `stream` past the caches, to a multiple of its size."""
        pointer = self.builder.inttoptr(address, self.real.as_pointer())
        store = self.builder.store(value, pointer, align=BYTES if stream else self.size)
        if stream:
            module = self.builder.module
            store.set_metadata("nontemporal", module.add_metadata([ir.Constant(I32, 1)]))

    def load_words(self, address: Any, index: Any) -> Any:
        """The vector with number `index` of 32-bit words, one for each lane."""
        at = self.builder.add(address, self.builder.mul(index, ir.Constant(I64, 4 * self.count)))
        return self.builder.load(self.builder.inttoptr(at, self.words.as_pointer()), align=4)

    def load_first(self, address: Any, mask: Any) -> Any:
        """The lanes that `mask` has, zeros elsewhere; no other memory is touched."""
        pointer = self.builder.inttoptr(address, self.real.as_pointer())
        kind = ir.FunctionType(self.real, [pointer.type, I32, mask.type, self.real])
        call = self._function("llvm.masked.load", kind)
        align = ir.Constant(I32, self.size)
        return self.builder.call(call, (pointer, align, mask, self.constant(0.0)))

    def store_first(self, value: Any, address: Any, mask: Any) -> None:
        """Write the lanes that `mask` has."""
        pointer = self.builder.inttoptr(address, self.real.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [self.real, pointer.type, I32, mask.type])
        call = self._function("llvm.masked.store", kind)
        self.builder.call(call, (value, pointer, ir.Constant(I32, self.size), mask))

    def below(self, count: Any) -> Any:
        """A mask of the first `count` lanes."""
        lanes = ir.Constant(self.words, list(range(self.count)))
        return self.builder.icmp_signed("<", lanes, self.splat(self.builder.trunc(count, I32)))

    def _function(self, name: str, kind: Any) -> Any:
        suffix = f"v{self.count}f{32 if self.single else 64}"
        name = f"{name}.{suffix}.p0" if "masked" in name else f"{name}.{suffix}"
        return cgutils.get_or_insert_function(self.builder.module, kind, name)

    def splat(self, word: Any) -> Any:
        """A vector with the word in every lane."""
        undefined = ir.Constant(ir.VectorType(word.type, self.count), ir.Undefined)
        vector = self.builder.insert_element(undefined, word, ir.Constant(I32, 0))
        zeros = ir.Constant(self.words, [0] * self.count)
        return self.builder.shuffle_vector(vector, undefined, zeros)

    def flip(self, value: Any, words: Any) -> Any:
        """`value` with its signs flipped where the top bits of `words` are set."""
        builder = self.builder
        mask = builder.and_(words, ir.Constant(self.words, [TOP_BIT] * self.count))
        if not self.single:
            mask = builder.zext(mask, self.bits)
            mask = builder.shl(mask, ir.Constant(self.bits, [32] * self.count))
        return builder.bitcast(builder.xor(builder.bitcast(value, self.bits), mask), self.real)

    def weyl(self, index: Any, step: Any, phase: Any) -> Any:
        """Words `phase + step * i` for the lanes `i` of the vector with number `index`."""
        builder = self.builder
        lanes = ir.Constant(self.words, list(range(self.count)))
        first = builder.mul(builder.trunc(index, I32), ir.Constant(I32, self.count))
        start = builder.add(phase, builder.mul(step, first))
        return builder.add(self.splat(start), builder.mul(self.splat(step), lanes))

    def address(self, base: Any, index: Any) -> Any:
        """Of the vector with number `index`."""
        return self.builder.add(base, self.builder.mul(index, ir.Constant(I64, BYTES)))

    def low_and_high(self, a: Any, b: Any) -> tuple[Any, Any]:
        """Minimum and maximum; the flags let LLVM use one instruction each (no NaN comes here)."""
        builder = self.builder
        kind = ir.FunctionType(self.real, [self.real, self.real])
        low, high = self._function("llvm.minnum", kind), self._function("llvm.maxnum", kind)
        flags = ("nnan", "nsz")
        return builder.call(low, (a, b), fastmath=flags), builder.call(high, (a, b), fastmath=flags)

    def multiply_add(self) -> Callable[[Any, Any, Any], Any]:
        """`a * b + c` with one rounding."""
        kind = ir.FunctionType(self.real, [self.real] * 3)
        call = self._function("llvm.fma", kind)
        return lambda a, b, c: self.builder.call(call, (a, b, c))

    def scalar_at(self, array: Any, index: Any) -> Any:
        """The number at a place in an array of the element type."""
        pointer = self.builder.inttoptr(array, self.real.element.as_pointer())
        return self.builder.load(self.builder.gep(pointer, [index]))

    def constant(self, value: float) -> Any:
        """A vector with the number in every lane."""
        return ir.Constant(self.real, [value] * self.count)


def word_of(builder: Any, words: Any, row: Any, per_row: Any, block: Any) -> Any:
    """The 32-bit word of a row and a block."""
    return word_at(builder, words, builder.add(builder.mul(row, per_row), block))


def place_of(lanes: Lanes, table: Any, row: Any, stride: Any, word: Any) -> Any:
    """The address of the cell that a word says, in a row of a table."""
    builder = lanes.builder
    start = builder.and_(word, ir.Constant(I32, TOP_BIT - 1))
    start = builder.mul(builder.zext(start, I64), ir.Constant(I64, lanes.size))
    return builder.add(builder.add(table, builder.mul(row, stride)), start)


def one_or_more(builder: Any, count: Any, emit: Callable[[Any], None]) -> None:
    """Code for `count` vectors, with a copy for the common case of one that has no inner loop."""
    single = builder.icmp_signed("==", count, ir.Constant(I64, 1))
    with builder.if_else(single, likely=True) as (one, more):
        with one:
            emit(ir.Constant(I64, 1))
        with more:
            emit(count)


@contextmanager
def loop_over(builder: Any, count: Any) -> Iterator[Any]:
    """A loop over `range(count)`, or just its body if `count` is the constant 1."""
    if isinstance(count, ir.Constant):
        yield ir.Constant(I64, 0)
    else:
        with cgutils.for_range(builder, count) as loop:
            yield loop.index


def word_at(builder: Any, array: Any, index: Any) -> Any:
    """The 32-bit word with number `index`."""
    pointer = builder.inttoptr(array, I32.as_pointer())
    return builder.load(builder.gep(pointer, [index]))
