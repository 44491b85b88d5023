"""Compiled loops: exact sums of float32, and whole numbers packed to their bits.

They are in a file of their own because Numba cannot compile what a fuzzer has instrumented.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diffsketch.compiled import compiled

DIGIT_BITS, DIGITS = 16, 16


@compiled
def digits_in(words: Any) -> Any:
    """A bit for each digit of `FloatSum` that float32 numbers with these bits are added to."""
    mask = np.uint32(0)
    for word in words:
        if word << np.uint32(1):  # zeros, of either sign, are added to none
            exponent = (word >> np.uint32(23)) & np.uint32(0xFF)
            shift = exponent - np.uint32(exponent > 0)
            mask |= np.uint32(1) << (shift // np.uint32(DIGIT_BITS))
    return mask


@compiled
def add_words(words: Any, places: Any, digits: Any) -> None:
    """Add each number to its digit, `digits[places[digit]]`; a zero changes nothing."""
    for i in range(words.size):
        word = np.int64(words[i])
        exponent = (word >> 23) & 0xFF
        leading = np.int64(exponent > 0)
        significand = (word & 0x7FFFFF) | (leading << 23)
        shift = exponent - leading
        # At most 24 + 15 bits: 2**24 of them fit into the 64 of a digit.
        significand <<= shift % DIGIT_BITS
        digits[places[shift // DIGIT_BITS], i] += -significand if word >> 31 else significand


@compiled
def pack_words(cells: Any, bits: Any, words: Any) -> None:
    """Pack the lowest `bits` of each cell into 64-bit words, lowest first."""
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    word, used, place = np.uint64(0), np.uint64(0), 0
    for i in range(cells.size):
        cell = np.uint64(cells[i]) & mask
        word |= cell << used
        used += np.uint64(bits)
        if used >= np.uint64(64):
            words[place] = word
            place += 1
            used -= np.uint64(64)
            # The rest of a cell that crosses the border of two words.
            word = cell >> (np.uint64(bits) - used)
    if used:
        words[place] = word


@compiled
def unpack_words(words: Any, bits: Any, cells: Any) -> None:
    """Unpack cells of `bits` bits from 64-bit words."""
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    for i in range(cells.size):
        first = np.uint64(i) * np.uint64(bits)
        place, shift = first >> np.uint64(6), first & np.uint64(63)
        value = words[place] >> shift
        if shift + np.uint64(bits) > np.uint64(64):
            value |= words[place + np.uint64(1)] << (np.uint64(64) - shift)
        cells[i] = value & mask
