"""Bytes that secure sums send, for plans: exactly those of `diffsketch.secure_sum`'s messages.

`tests/secure_sum/test_costs.py` compares them with what members send and receive.
"""

from __future__ import annotations

from typing import Literal

from diffsketch.wire.message import MessageFormat

MOST_OF_ONE = 100
"""Members up to which one server's sum is proposed: beyond, exchanges outweigh most tables."""

_ENVELOPE, _COUNT, _NUMBER = 52, 4, 8
_FEW = 10_000  # bytes of a round that nobody counts: exchanges of some twenty members


class CostlySum(UserWarning):
    """The exchanges of a secure sum outweigh what compression saves."""


def sum_bytes(how: Literal["one", "two"], members: int, *, signed: bool = True) -> tuple[int, int]:
    """Bytes up and down of a member, beside a plain message and the result.

    With two aggregators that is a sealed seed. With one server there are keys, shares of both
    secrets for each other member, who is in the sum and the signatures of that, and shares again.

    >>> sum_bytes("one", 100), sum_bytes("two", 100)
    ((13602, 34086), (156, 0))
    """
    if how == "two":
        return (156 if signed else 92), 0
    signature, a_list = 64 * signed, _ENVELOPE + _COUNT
    keys, shares, one_share = 96 + signature, 82, 34
    exchanged = a_list + (members - 1) * (_NUMBER + shares)
    up = _ENVELOPE + keys + exchanged + _ENVELOPE + a_list + members * (_NUMBER + one_share)
    down = _ENVELOPE + a_list + members * (_NUMBER + keys) + exchanged
    down += a_list + members * (_NUMBER + 1)
    if signed:
        up += _ENVELOPE + signature
        down += a_list + members * (_NUMBER + signature)
    return up, down


def proposed_sum(members: int) -> Literal["one", "two"]:
    """Say which secure sum suits a cohort: one server's up to a hundred, two aggregators beyond."""
    return "one" if members <= MOST_OF_ONE else "two"


def round_bytes(
    how: Literal["one", "two"], layout: MessageFormat, members: int, *, signed: bool = True
) -> tuple[int, int]:
    """Bytes up and down of a member in a round, with its message and the result.

    >>> table = MessageFormat("sketch-gaussian", 7850, (1, 5331), "unsigned", 18)
    >>> round_bytes("one", table, 1000), round_bytes("two", table, 1000)
    ((144445, 351229), (12199, 12043))
    """
    up, down = sum_bytes(how, members, signed=signed)
    return up + layout.full_bytes, down + layout.full_bytes


def costs_more_than_dense(
    how: Literal["one", "two"], layout: MessageFormat, members: int, *, signed: bool = True
) -> str:
    """Say by how much a secure sum outweighs the compression of its messages; "" if it does not.

    Both ways, with the result: vectors of float32 take `4 dim` bytes up and as many down. Nothing
    is said where few bytes are at stake, nor of messages that are not smaller than the vectors.
    """
    (up, down), dense = round_bytes(how, layout, members, signed=signed), 4 * layout.dim
    if up + down <= max(2 * dense, _FEW) or layout.full_bytes >= dense:
        return ""
    more = (
        f"a secure sum of {members:,} members sends {up:,} bytes up and {down:,} down for each, "
        f"which is more than vectors without compression ({dense:,} each way)"
    )
    if how == "two":
        return more
    up, down = round_bytes("two", layout, members, signed=signed)
    return f"{more}; two aggregators would send {up:,} up and {down:,} down"
