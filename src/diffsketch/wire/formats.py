"""What a message looks like: its kind of cells, their number and the bytes they take."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from diffsketch.errors import check

__all__ = ["HEADER_BYTES", "Cells", "MessageFormat"]

HEADER_BYTES = 48
"""Of every message; `diffsketch.wire.header` lays them out."""

Cells: TypeAlias = Literal["float32", "unsigned", "signed"]


@dataclass(frozen=True)
class MessageFormat:
    """The messages of one method: all of the same shape and kind of cells.

    Args:
        method: The method's name, one of `diffsketch.wire.header`'s codes.
        dim: Length of the vectors that are encoded.
        shape: Of a message: `(rows, cols)` for a table, `(length,)` for a vector.
        cells: `float32`; `unsigned` whole numbers in `[0, 2**bits)`, which a secure sum takes
            modulo `2**bits`; or `signed` ones in `[-2**(bits - 1), 2**(bits - 1))`.
        bits: That a cell takes on the wire: 32 for `float32`, 1 to 62 for whole numbers.

    >>> MessageFormat("sketch", dim=7850, shape=(7, 22), cells="float32", bits=32).wire_bytes
    664
    >>> MessageFormat("cpsgd", dim=7850, shape=(7850,), cells="unsigned", bits=4).wire_bytes
    3973
    """

    method: str
    dim: int
    shape: tuple[int, ...]
    cells: Cells
    bits: int

    def __post_init__(self) -> None:
        check(self.dim >= 1, "dim", "be >= 1", self.dim)
        good = 1 <= len(self.shape) <= 2 and all(size >= 1 for size in self.shape)
        check(good, "shape", "be (length,) or (rows, cols)", self.shape)
        kinds = get_args(Cells)
        check(self.cells in kinds, "cells", f"be one of {', '.join(kinds)}", self.cells)
        if self.cells == "float32":
            check(self.bits == 32, "bits", "be 32 for float32 cells", self.bits)
        check(1 <= self.bits <= 62, "bits", "be in 1..62", self.bits)

    @property
    def limits(self) -> tuple[int, int]:
        """Smallest whole number of a cell, and the first one beyond the largest."""
        low = -(1 << (self.bits - 1)) if self.cells == "signed" else 0
        return low, low + (1 << self.bits)

    def for_sums_of(self, count: int, *, noise_bits: int = 1) -> MessageFormat:
        """The format of a sum of so many signed messages, in clear.

        Args:
            count: Messages of a sum, at most.
            noise_bits: Of noise that is added to the sum.
        """
        room = self.bits + (count - 1).bit_length()
        return replace(self, bits=min(62, 1 + max(room, noise_bits)))

    @property
    def cell_count(self) -> int:
        """Cells of a message."""
        return math.prod(self.shape)

    @property
    def payload_bytes(self) -> int:
        """The cells, packed to their bits; the last byte is filled up with zeros."""
        return -(-self.cell_count * self.bits // 8)

    @property
    def wire_bytes(self) -> int:
        """Of a message, header included."""
        return HEADER_BYTES + self.payload_bytes
