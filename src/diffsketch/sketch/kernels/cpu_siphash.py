"""SipHash, compiled by Numba. Types are checked by the caller."""

from __future__ import annotations

from numba import njit, uint64

from diffsketch.compiled import compiled


@njit(inline="always")
def _turn(value, bits):
    return (value << uint64(bits)) | (value >> uint64(64 - bits))


@njit(inline="always")
def _rounds(count, a, b, c, d):
    for _ in range(count):
        a, c = a + b, c + d
        b, d = _turn(b, 13) ^ a, _turn(d, 16) ^ c
        a, c = _turn(a, 32) + d, c + b
        b, d = _turn(b, 17) ^ c, _turn(d, 21) ^ a
        c = _turn(c, 32)
    return a, b, c, d


@compiled
def siphash(data, offsets, first_key, second_key, out):
    """SipHash-2-4 of the bytes from `offsets[i]` to the next one, for each number `i` of `out`."""
    for i in range(out.size):
        # The authors' initial state, "somepseudorandomlygeneratedbytes" in four words.
        a, b = first_key ^ uint64(0x736F6D6570736575), second_key ^ uint64(0x646F72616E646F6D)
        c, d = first_key ^ uint64(0x6C7967656E657261), second_key ^ uint64(0x7465646279746573)
        size = offsets[i + 1] - offsets[i]
        for start in range(0, size + 1, 8):  # the last word, of what is left, ends with the size
            word = uint64(0)
            left = min(8, size - start)
            for k in range(left):
                word |= uint64(data[offsets[i] + start + k]) << uint64(8 * k)
            if left < 8:
                word |= uint64(size & 255) << uint64(56)
            a, b, c, d = _rounds(2, a, b, c, d ^ word)
            a ^= word
        # SipHash-2-4: two rounds for each word of input, four at the end.
        a, b, c, d = _rounds(4, a, b, c ^ uint64(255), d)
        out[i] = a ^ b ^ c ^ d
