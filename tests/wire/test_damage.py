"""Every flipped bit, every cut, every addition to a message is found, and the reason is said."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from diffsketch.wire import HEADER_BYTES, Message, MessageFormat, WireError
from diffsketch.wire.message import CHECKSUM, checksum

ABOUT: dict[str, Any] = {"round_index": 3, "fingerprint": bytes(range(8))}
TABLE = MessageFormat("sketch", 7850, (2, 3), "float32", 32)
LEVELS = MessageFormat("cpsgd", 9, (9,), "unsigned", 5)
MESSAGES = [
    Message(TABLE, torch.arange(6.0).reshape(2, 3), **ABOUT, sender=4),
    Message(LEVELS, torch.arange(9), **ABOUT, sender=4),
]

parametrize = pytest.mark.parametrize("message", MESSAGES, ids=["floats", "whole numbers"])


def read(data: bytes, message: Message) -> Message:
    return Message.from_bytes(data, message.format, **ABOUT, count=1)


def flipped(data: bytes, bit: int) -> bytes:
    number = int.from_bytes(data, "little") ^ (1 << bit)
    return number.to_bytes(len(data), "little")


def resealed(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[CHECKSUM] = checksum(changed)
    return bytes(changed)


@parametrize
def test_every_flipped_bit_is_found(message: Message) -> None:
    data = message.to_bytes()
    assert torch.equal(read(data, message).cells, message.cells)
    reasons = set()
    for bit in range(8 * len(data)):
        with pytest.raises(WireError) as caught:
            read(flipped(data, bit), message)
        reasons.add(str(caught.value).split(":")[0])
    assert "message was altered on its way" in reasons


@parametrize
def test_the_checksum_is_what_finds_them(message: Message) -> None:
    """The control: with a right checksum, only what the receiver knows better is found."""
    data = message.to_bytes()
    taken = []
    for bit in range(8 * len(data)):
        try:
            read(resealed(flipped(data, bit)), message)
        except WireError:
            continue
        taken.append(bit // 8)
    sender = set(range(32, 40))
    payload = set(range(HEADER_BYTES, len(data)))
    assert set(taken) == set(range(4, 8)) | sender | payload


@parametrize
def test_every_two_swapped_bytes_are_found(message: Message) -> None:
    data = message.to_bytes()
    for i in range(len(data)):
        for j in range(i):
            if data[i] != data[j]:
                changed = bytearray(data)
                changed[i], changed[j] = data[j], data[i]
                with pytest.raises(WireError):
                    read(bytes(changed), message)


@parametrize
def test_every_cut_is_found(message: Message) -> None:
    data = message.to_bytes()
    for length in range(len(data)):
        with pytest.raises(WireError, match=f"truncated: {length} bytes, and"):
            read(data[:length], message)
        with pytest.raises(WireError):
            read(data[len(data) - length :], message)


@parametrize
def test_every_addition_is_found(message: Message) -> None:
    data = message.to_bytes()
    for extra in (b"\0", b"\xff", data, bytes(10**6)):
        with pytest.raises(WireError, match=f"too long: {len(data) + len(extra)} bytes, and"):
            read(data + extra, message)
        with pytest.raises(WireError, match="too long"):
            read(resealed(data + extra), message)


@parametrize
def test_what_is_not_ours_is_said_to_be_so(message: Message) -> None:
    data = message.to_bytes()
    with pytest.raises(WireError, match="not a message of ours: it begins with 8004"):
        read(b"\x80\x04" + data[2:], message)  # as a pickle does
    with pytest.raises(WireError, match="of version 2, and only 1 is understood"):
        read(resealed(data[:2] + b"\x02" + data[3:]), message)
    empty = resealed(data[:28] + bytes(4) + data[32:])
    with pytest.raises(WireError, match="sum of 0 messages, and 1 is expected"):
        read(empty, message)
    with pytest.raises(WireError, match="sum of 0 messages, and 1 or more is expected"):
        Message.from_bytes(empty, message.format, **ABOUT)


def test_cells_that_nobody_may_send_are_found_behind_a_right_checksum() -> None:
    floats, levels = (message.to_bytes() for message in MESSAGES)
    for bits in ("0000c07f", "0000807f", "000080ff", "010080ff"):  # NaN, infinities, another NaN
        with pytest.raises(WireError, match="not finite"):
            read(resealed(floats[:-4] + bytes.fromhex(bits)), MESSAGES[0])
    with pytest.raises(WireError, match="other bits than zeros after"):
        read(resealed(levels[:-1] + bytes([levels[-1] | 0x80])), MESSAGES[1])
