"""Sums that do not depend on the order of their terms, in memory that does not grow with them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from diffsketch.errors import check
from diffsketch.wire.digits import DIGIT_BITS, DIGITS, add_words, digits_in
from diffsketch.wire.errors import WireError
from diffsketch.wire.formats import MessageFormat

__all__ = ["FloatSum", "Sum", "WholeSum", "sum_of"]

_BASE = 1 << DIGIT_BITS
_LOWEST = -149
"""The smallest float32 is `2**-149`, and all of them are multiples of it."""


class Sum(ABC):
    """A running sum of cells."""

    most_terms: int
    """Beyond which the sum might overflow unnoticed."""

    @abstractmethod
    def add(self, cells: Tensor) -> None:
        """One more term; the caller has checked its type and shape."""

    @abstractmethod
    def value(self) -> Tensor:
        """The sum so far, in the format of a total.

        Raises:
            WireError: It does not fit in there.
        """


class FloatSum(Sum):
    """Sums of float32, exact until they are rounded once.

    A float32 is a whole number of at most 24 bits, shifted left by `s` bits, times `2**-149`. It is
    added to the 64-bit whole number of the digit `s div 16` in base `2**16`, shifted by `s mod 16`:
    below `2**39`, so `2**24` terms never overflow. Only digits that occur take memory; for cells of
    similar size they are two to four, and never more than 16.

    Guarantees (`tests/wire/test_sums.py`): the same bits for every order of the terms, less than
    one unit in the last place from the exact sum.
    """

    most_terms = 1 << 24

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._places: dict[int, int] = {}  # of a digit among those that occur
        self._digits = np.zeros((0, math.prod(shape)), np.int64)

    def add(self, cells: Tensor) -> None:
        """One more term."""
        words = cells.contiguous().numpy().reshape(-1).view(np.uint32)
        mask = int(digits_in(words))
        if not mask:
            return
        new = [i for i in range(DIGITS) if mask >> i & 1 and i not in self._places]
        if new:
            more = np.zeros((len(new), words.size), np.int64)
            self._digits = np.concatenate([self._digits, more])
            self._places |= {digit: len(self._places) + i for i, digit in enumerate(new)}
        places = np.array([self._places.get(digit, 0) for digit in range(DIGITS)])
        add_words(words, places, self._digits)

    def value(self) -> Tensor:
        """The sum, rounded to float32."""
        size = math.prod(self._shape)
        total, carry = np.zeros(size), np.zeros(size, np.int64)
        lowest, highest = min(self._places, default=0), max(self._places, default=0)
        for digit in range(lowest, highest + 1):
            place = self._places.get(digit)
            number = carry if place is None else carry + self._digits[place]
            # Digits from -2**15 to 2**15: whatever is left out is then small beside what is kept.
            carry = (number + _BASE // 2) >> DIGIT_BITS
            total += (number - (carry << DIGIT_BITS)) * _unit(digit)
        total += carry * _unit(highest + 1)
        with np.errstate(over="ignore"):
            rounded = total.astype(np.float32)
        if not np.isfinite(rounded).all():
            raise WireError("the sum of the messages is beyond float32")
        return torch.from_numpy(rounded).reshape(self._shape)


class WholeSum(Sum):
    """Sums of whole numbers.

    If it wraps, sums are taken modulo `2**bits`, as in a secure sum. If not, the bits are there to
    hold the sum, and one that they do not hold is an error: no honest cohort sends that.
    """

    most_terms = 1 << 32

    def __init__(self, layout: MessageFormat, *, wraps: bool) -> None:
        self._total = np.zeros(layout.shape, np.int64)
        self._layout, self._wraps = layout, wraps
        self._beyond = np.zeros(layout.shape, np.bool_)  # once too large, always too large

    def add(self, cells: Tensor) -> None:
        """One more term. Both are at most `2**62`, so 64 bits hold the sum."""
        total = self._total + cells.numpy()
        low, end = self._layout.limits
        if self._wraps:
            total &= end - 1
        else:
            self._beyond |= (total < low) | (total >= end)
            np.clip(total, low, end - 1, out=total)
        self._total = total

    def value(self) -> Tensor:
        """The sum (int64)."""
        if bool(self._beyond.any()):
            bits = self._layout.bits
            raise WireError(f"the sum of the messages does not fit in the {bits} bits of a total")
        return torch.from_numpy(self._total.copy())


def sum_of(messages: MessageFormat, total: MessageFormat, *, wraps: bool | None = None) -> Sum:
    """An empty sum of messages of a format, to become a total of another.

    Args:
        messages: Format of the terms.
        total: Format of the sum.
        wraps: Of whole numbers; None for whenever a total has no more bits than a message.

    Raises:
        ArgumentError: Floats do not wrap, nor do sums that have more bits than their terms.
    """
    if messages.cells == "float32":
        check(wraps is None, "wraps", "be None for float32 cells", wraps)
        return FloatSum(messages.shape)
    can = total.bits == messages.bits and total.cells == "unsigned"
    check(can or not wraps, "wraps", "not be True for signed cells, or totals of more bits", wraps)
    return WholeSum(total, wraps=can if wraps is None else wraps)


def _unit(digit: int) -> float:
    return 2.0 ** (DIGIT_BITS * digit + _LOWEST)
