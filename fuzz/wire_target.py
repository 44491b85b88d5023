"""The fuzzed part of the wire format, without a fuzzer; `tests/wire/test_fuzz.py` calls it too.

The first byte of an input chooses a format, the second what the other bytes become:

0. all of a message;
1. changes (exclusive or) to a valid message, which a checksum should find;
2. the same with a checksum that is right again, as somebody who means harm would make it;
3. the payload behind a valid header and with a right checksum.

Whatever it is, an inbox that already holds one message must take it in, and then it has to be the
message's only encoding; or refuse it with a `WireError` and be the same as before.
"""

from __future__ import annotations

from functools import cache
from itertools import zip_longest

import torch

from diffsketch.wire import HEADER_BYTES, Inbox, Message, MessageFormat, WireError
from diffsketch.wire.message import CHECKSUM, checksum

FORMATS = (
    MessageFormat("sketch", 7850, (2, 3), "float32", 32, code=1),
    MessageFormat("none", 5, (5,), "float32", 32, code=0),
    MessageFormat("cpsgd", 9, (9,), "unsigned", 5, code=6),
    MessageFormat("sketch-skellam", 100, (3, 7), "unsigned", 22, code=8),
    MessageFormat("my-method", 2**40, (1,), "unsigned", 1),
    MessageFormat("projunit", 70, (70,), "unsigned", 62, code=9),
)
MODES = 4
ROUND, FINGERPRINT = 3, bytes(range(8))


@cache
def valid(layout: MessageFormat, sender: int) -> bytes:
    """A message of the round that is fuzzed."""
    count = layout.cell_count
    if layout.cells == "float32":
        cells = torch.arange(count, dtype=torch.float32) - 1.5
        cells[-1] = torch.finfo(torch.float32).max / 2  # so that a sum can be too large
    else:
        cells = torch.arange(count) * 0x1234567 % (1 << layout.bits)
    message = Message(
        layout,
        cells.reshape(layout.shape),
        round_index=ROUND,
        fingerprint=FINGERPRINT,
        sender=sender,
    )
    return message.to_bytes()


def message_in(data: bytes) -> tuple[MessageFormat, bytes]:
    """The format and the message that an input stands for."""
    layout, mode, rest = FORMATS[data[0] % len(FORMATS)], data[1] % MODES, data[2:]
    if mode == 0:
        return layout, rest
    good = valid(layout, sender=2)
    if mode == 3:
        size = layout.payload_bytes
        raw = bytearray(good[:HEADER_BYTES] + rest[:size].ljust(size, b"\0"))
    else:
        raw = bytearray(a ^ b for a, b in zip_longest(good, rest, fillvalue=0))
    if mode > 1:
        raw[CHECKSUM] = checksum(raw)
    return layout, bytes(raw)


def fuzz_one(data: bytes) -> str:
    """Deliver an input's message; whether it was taken or refused, and why.

    Raises:
        RuntimeError: The wire format has broken one of its promises.
    """
    if len(data) < 2:
        return "too short to say what it is"
    layout, raw = message_in(data)
    inbox = Inbox(layout, round_index=ROUND, fingerprint=FINGERPRINT)
    inbox.add(valid(layout, sender=1))
    before = inbox.total().to_bytes()
    try:
        message = inbox.add(raw)
    except WireError as error:
        if (inbox.count, inbox.heard, inbox.total().to_bytes()) != (1, (1,), before):
            raise RuntimeError("a refused message has changed the inbox") from error
        return str(error)
    if message.to_bytes() != raw:
        raise RuntimeError("what was accepted is encoded as other bytes")
    if (inbox.count, inbox.heard) != (2, tuple(sorted((1, message.sender)))):
        raise RuntimeError("what was accepted is not counted")
    try:
        inbox.total().to_bytes()
    except WireError as error:
        return str(error)
    return "taken"
