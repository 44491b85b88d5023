"""The messages of one round: each sender's once, and their sum.

Sums do not depend on the order of their terms, and take memory that does not grow with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffsketch.compiled import compiled
from diffsketch.errors import MismatchError, check
from diffsketch.wire.message import (
    MAX_COUNT,
    SERVER,
    DuplicateError,
    Message,
    MessageFormat,
    WireError,
    check_header,
)

_DIGIT_BITS, _DIGITS = 16, 16  # of the whole numbers that floats are added to
_LOWEST = -149  # the smallest float32 is 2**-149, and all of them are multiples of it


class FloatSum:
    """Sums of float32, exact until they are rounded once.

    A float32 is a whole number of at most 24 bits, shifted left by `s` bits, times `2**-149`. It is
    added to the 64-bit whole number of the digit `s div 16` in base `2**16`, shifted by `s mod 16`:
    below `2**39`, so `2**24` terms never overflow. Only digits that occur take memory; for cells of
    similar size they are two to four, and never more than 16.

    Guarantees (`tests/wire/test_inbox.py`): the same bits for every order of the terms, less than
    one unit in the last place from the exact sum.
    """

    most_terms = 1 << 24  # beyond which the sum might overflow unnoticed

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._places: dict[int, int] = {}  # of a digit among those that occur
        self._digits = np.zeros((0, math.prod(shape)), np.int64)

    def add(self, cells: Tensor) -> None:
        """Add a term, whose type and shape are checked."""
        words = cells.contiguous().numpy().reshape(-1).view(np.uint32)
        mask = int(_digits_in(words))
        # Zeros of either sign: no digit, no memory.
        if not mask:
            return
        new = [i for i in range(_DIGITS) if mask >> i & 1 and i not in self._places]
        if new:
            more = np.zeros((len(new), words.size), np.int64)
            self._digits = np.concatenate([self._digits, more])
            self._places |= {digit: len(self._places) + i for i, digit in enumerate(new)}
        places = np.array([self._places.get(digit, 0) for digit in range(_DIGITS)])
        _add_words(words, places, self._digits)

    def value(self) -> Tensor:
        """Round the sum to float32; a `WireError` if it is beyond."""
        size = math.prod(self._shape)
        total, carry = np.zeros(size), np.zeros(size, np.int64)
        lowest, highest = min(self._places, default=0), max(self._places, default=0)
        # From the lowest digit up, so that each carry is exact when it is added.
        for digit in range(lowest, highest + 1):
            place = self._places.get(digit)
            number = carry if place is None else carry + self._digits[place]
            # Digits from -2**15 to 2**15: whatever is left out is then small beside what is kept.
            carry = (number + (1 << (_DIGIT_BITS - 1))) >> _DIGIT_BITS
            total += (number - (carry << _DIGIT_BITS)) * 2.0 ** (_DIGIT_BITS * digit + _LOWEST)
        total += carry * 2.0 ** (_DIGIT_BITS * (highest + 1) + _LOWEST)
        with np.errstate(over="ignore"):
            rounded = total.astype(np.float32)
        if not np.isfinite(rounded).all():
            raise WireError("the sum of the messages is beyond float32")
        return torch.from_numpy(rounded).reshape(self._shape)


@compiled
def _digits_in(words: Any) -> Any:
    """A bit for each digit of `FloatSum` that float32 numbers with these bits are added to."""
    mask = np.uint32(0)
    for word in words:
        if word << np.uint32(1):  # zeros, of either sign, are added to none
            exponent = (word >> np.uint32(23)) & np.uint32(0xFF)
            shift = exponent - np.uint32(exponent > 0)
            mask |= np.uint32(1) << (shift // np.uint32(_DIGIT_BITS))
    return mask


@compiled
def _add_words(words: Any, places: Any, digits: Any) -> None:
    """Add each number to its digit, `digits[places[digit]]`; a zero changes nothing."""
    for i in range(words.size):
        word = np.int64(words[i])
        exponent = (word >> 23) & 0xFF
        leading = np.int64(exponent > 0)
        significand = (word & 0x7FFFFF) | (leading << 23)
        shift = exponent - leading
        # At most 24 + 15 bits: 2**24 of them fit into the 64 of a digit.
        significand <<= shift % _DIGIT_BITS
        digits[places[shift // _DIGIT_BITS], i] += -significand if word >> 31 else significand


class WholeSum:
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
        """Add a term, whose type and shape are checked."""
        total = self._total + cells.numpy()  # both are at most 2**62: 64 bits hold the sum
        low, end = self._layout.limits
        if self._wraps:
            total &= end - 1
        else:
            self._beyond |= (total < low) | (total >= end)
            np.clip(total, low, end - 1, out=total)
        self._total = total

    def value(self) -> Tensor:
        """Copy the sum (int64); a `WireError` if it does not fit in the format of the total."""
        if bool(self._beyond.any()):
            bits = self._layout.bits
            raise WireError(f"the sum of the messages does not fit in the {bits} bits of a total")
        return torch.from_numpy(self._total.copy())


class Inbox:
    """A round's messages, taken as they come, and their sum.

    Guarantees (`tests/wire/test_inbox.py`): the total has the same bits for every order of arrival
    (floats are summed exactly and rounded once, whole numbers as `total_format` says); a refused
    message changes nothing; memory does not grow with the number of messages, but for a set of the
    senders' numbers.

    Sums of sums: an aggregator in between sends its own inbox's `total(sender=...)` on, and the
    inbox above is made with `sums=True`. Whole numbers are summed as one inbox would have, bit by
    bit; floats are rounded once by each aggregator (`tests/wire/test_inbox.py`). It cannot see
    whether two aggregators have summed the same worker's message: give them disjoint `senders`.

    Args:
        expected: Format of the messages.
        round_index: The round.
        fingerprint: Of the round's hashes.
        senders: Numbers of those who may send; None for anybody.
        total_format: Of the sum, where it is another one: whole numbers with more bits.
        sums: Whether messages may be sums of several themselves. If not, one that says so is
            refused: a worker must not count more than once.
        wraps: Whether whole numbers are summed modulo `2**bits`, as in a secure sum. None: if and
            only if the total has as many bits as a message. Above other inboxes, messages have the
            total's bits already: False there, if workers' messages have fewer, so that a sum that
            does not fit is found.

    Raises:
        MismatchError: A total of that format cannot hold the messages.
        ArgumentError: `wraps` makes no sense for the formats.

    >>> import torch
    >>> from dataclasses import replace
    >>> voted = MessageFormat("cpsgd", dim=2, shape=(2,), cells="unsigned", bits=4)
    >>> about = {"round_index": 0, "fingerprint": bytes(8)}
    >>> inbox = Inbox(voted, **about, total_format=replace(voted, bits=6))
    >>> for sender in (7, 5):
    ...     message = Message(voted, torch.tensor([1, 15]), **about, sender=sender)
    ...     _ = inbox.add(message.to_bytes())
    >>> inbox.count, inbox.heard, inbox.total().cells
    (2, (5, 7), tensor([ 2, 30]))
    >>> inbox.add(message.to_bytes())
    Traceback (most recent call last):
        ...
    diffsketch.wire.message.DuplicateError: sender 5 has already sent its message of round 0
    """

    def __init__(
        self, expected: MessageFormat, *, round_index: int, fingerprint: bytes,
        senders: Iterable[int] | None = None, total_format: MessageFormat | None = None,
        sums: bool = False, wraps: bool | None = None,
    ) -> None:  # fmt: skip
        total = total_format or expected
        for layout in (expected, total):
            check_header(layout, round_index, fingerprint)
        same = total.cells == expected.cells and replace(expected, bits=total.bits) == total
        if not same or total.bits < expected.bits:
            raise MismatchError(
                f"total_format must be that of the messages but for more bits, got {total}"
            )
        self.expected, self.total_format = expected, total
        self.round_index, self.fingerprint = round_index, fingerprint
        self._senders = None if senders is None else frozenset(senders)
        self._sums = sums
        self._heard: set[int] = set()
        self._count = 0
        self._sum: FloatSum | WholeSum = FloatSum(expected.shape)
        if expected.cells == "float32":
            check(wraps is None, "wraps", "be None for float32 cells", wraps)
            return
        # Signed cells have no modulus, and with more bits a total has room for the sum.
        can = total.bits == expected.bits and total.cells == "unsigned"
        reason = "not be True for signed cells, or totals of more bits"
        check(can or not wraps, "wraps", reason, wraps)
        self._sum = WholeSum(total, wraps=can if wraps is None else wraps)

    @property
    def count(self) -> int:
        """Workers' messages in the sum: what the total is divided by for the mean."""
        return self._count

    @property
    def heard(self) -> tuple[int, ...]:
        """Numbers of those whose message has arrived, ascending."""
        return tuple(sorted(self._heard))

    def add(self, data: bytes | bytearray) -> Message:
        """Take in one message, and give it back as it was understood.

        Raises:
            DuplicateError: The sender's message is already there, and stays as it is.
            WireError: Not a message of this round, or not of one of its senders.
        """
        message = Message.from_bytes(
            data, self.expected, round_index=self.round_index, fingerprint=self.fingerprint,
            count=None if self._sums else 1,
        )  # fmt: skip
        sender = message.sender
        # All refusals come before the sum: a refused message leaves no trace.
        if self._senders is not None and sender not in self._senders:
            raise WireError(f"sender {sender} is not among those of round {self.round_index}")
        if sender in self._heard:
            raise DuplicateError(
                f"sender {sender} has already sent its message of round {self.round_index}"
            )
        if self._count + message.count > MAX_COUNT or len(self._heard) == self._sum.most_terms:
            raise WireError(f"the sum of {self._count} messages takes no more")
        self._sum.add(message.cells)
        self._heard.add(sender)
        self._count += message.count
        return message

    def total(self, *, sender: int = SERVER) -> Message:
        """The sum of what has arrived so far, as a message that carries its count.

        Raises:
            WireError: Nothing has arrived, or the sum does not fit in the total's format.
        """
        if not self._count:
            raise WireError(f"no message of round {self.round_index} has arrived")
        return Message(
            self.total_format, self._sum.value(), round_index=self.round_index,
            fingerprint=self.fingerprint, sender=sender, count=self._count,
        )  # fmt: skip
