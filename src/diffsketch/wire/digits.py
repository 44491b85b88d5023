"""The digits that a float32 is added to in an exact sum, by Numba; `FloatSum` says what they mean.

`digits_in` looks which ones a message needs, `add_words` adds it. They are not in `sums.py` because
Numba cannot compile what a fuzzer has instrumented.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diffsketch.compiled import compiled

__all__ = ["DIGITS", "DIGIT_BITS", "add_words", "digits_in"]

DIGIT_BITS, DIGITS = 16, 16


@compiled
def digits_in(words: Any) -> Any:
    """A bit for each digit that the float32 numbers with these bits are added to; zeros to none."""
    found = np.uint32(0)
    for word in words:
        if word << np.uint32(1):  # without its sign
            exponent = (word >> np.uint32(23)) & np.uint32(0xFF)
            shift = exponent - np.uint32(exponent > 0)
            found |= np.uint32(1) << (shift // np.uint32(DIGIT_BITS))
    return found


@compiled
def add_words(words: Any, places: Any, digits: Any) -> None:
    """Each number to its digit, `digits[places[digit]]`; a zero changes nothing in any of them."""
    for i in range(words.size):
        word = np.int64(words[i])
        exponent = (word >> 23) & 0xFF
        leading = np.int64(exponent > 0)
        whole = (word & 0x7FFFFF) | (leading << 23)
        shift = exponent - leading
        whole <<= shift % DIGIT_BITS
        digits[places[shift // DIGIT_BITS], i] += -whole if word >> 31 else whole
