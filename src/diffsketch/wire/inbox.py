"""The messages of one round: each sender's once, and their sum."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from diffsketch.errors import MismatchError
from diffsketch.wire.errors import DuplicateError, WireError
from diffsketch.wire.formats import MessageFormat
from diffsketch.wire.header import MAX_COUNT, SERVER, Header
from diffsketch.wire.message import Message
from diffsketch.wire.sums import sum_of

__all__ = ["Inbox"]


class Inbox:
    """Takes messages as they come, and sums them.

    Guarantees (`tests/wire/test_inbox.py`): the total has the same bits for every order of arrival
    (floats are summed exactly and rounded once, whole numbers as `total_format` says); a refused
    message changes nothing; memory does not grow with the number of messages, but for a set of the
    senders' numbers.

    Sums of sums: an aggregator in between sends its own inbox's `total(sender=...)` on, and the
    inbox above is made with `sums=True`. Whole numbers are summed as one inbox would have, bit by
    bit; floats are rounded once by each aggregator (`tests/wire/test_tree.py`). It cannot see
    whether two aggregators have summed the same worker's message: give them disjoint `senders`.

    Args:
        expected: Format of the messages.
        round_index: The round.
        fingerprint: Of the round's hashes.
        senders: Numbers of those who may send; None for anybody.
        total_format: Of the sum, where it is another one: whole numbers with more bits.
        sums: Whether messages may be sums of several themselves. If not, one that says so is
            refused: a worker must not count more than once.
        wraps: Whether whole numbers are summed modulo `2**bits`, as in a secure sum; None for
            whenever the total has no more bits than a message. Above other inboxes, messages have
            the total's bits already: False there, if workers' messages have fewer, so that a sum
            that does not fit is found.
        check: Looks at each message before it is summed, and raises a `WireError` for one that
            nobody should send.

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
    diffsketch.wire.errors.DuplicateError: sender 5 has already sent its message of round 0
    """

    def __init__(
        self,
        expected: MessageFormat,
        *,
        round_index: int,
        fingerprint: bytes,
        senders: Iterable[int] | None = None,
        total_format: MessageFormat | None = None,
        sums: bool = False,
        wraps: bool | None = None,
        check: Callable[[Message], None] | None = None,
    ) -> None:
        total = total_format or expected
        # Checks the numbers, for messages and for the total.
        for layout in (expected, total):
            Header.of(layout, round_index=round_index, fingerprint=fingerprint, sender=SERVER)
        same = all(
            getattr(total, name) == getattr(expected, name)
            for name in ("method", "dim", "shape", "cells")
        )
        if not same or total.bits < expected.bits:
            raise MismatchError(
                f"total_format must be that of the messages but for more bits, got {total}"
            )
        self.expected, self.total_format = expected, total
        self.round_index, self.fingerprint = round_index, fingerprint
        self._senders = None if senders is None else frozenset(senders)
        self._sums, self._check = sums, check
        self._heard: set[int] = set()
        self._count = 0
        self._sum = sum_of(expected, total, wraps=wraps)

    @property
    def count(self) -> int:
        """Workers' messages in the sum: what the total is divided by for the mean."""
        return self._count

    @property
    def heard(self) -> tuple[int, ...]:
        """Numbers of those whose message has arrived, ascending."""
        return tuple(sorted(self._heard))

    @property
    def missing(self) -> tuple[int, ...]:
        """Numbers of those who may send and have not, ascending; none if anybody may."""
        return tuple(sorted((self._senders or frozenset()) - self._heard))

    def add(self, data: bytes | bytearray) -> Message:
        """Take in one message, and give it back as it was understood.

        Raises:
            DuplicateError: The sender's message is already there, and stays as it is.
            WireError: Not a message of this round, not of one of its senders, or one that `check`
                refuses.
        """
        message = Message.from_bytes(
            data,
            self.expected,
            round_index=self.round_index,
            fingerprint=self.fingerprint,
            count=None if self._sums else 1,
        )
        sender = message.sender
        if self._senders is not None and sender not in self._senders:
            raise WireError(f"sender {sender} is not among those of round {self.round_index}")
        if sender in self._heard:
            raise DuplicateError(
                f"sender {sender} has already sent its message of round {self.round_index}"
            )
        if self._count + message.count > MAX_COUNT or len(self._heard) == self._sum.most_terms:
            raise WireError(f"the sum of {self._count} messages takes no more")
        if self._check is not None:
            self._check(message)
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
            self.total_format,
            self._sum.value(),
            round_index=self.round_index,
            fingerprint=self.fingerprint,
            sender=sender,
            count=self._count,
        )
