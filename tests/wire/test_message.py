"""Messages survive the wire, have the bytes of version 1, and every damage to them is found."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.wire import HEADER_BYTES, SERVER, Header, Message, MessageFormat, WireError
from diffsketch.wire import message as module
from diffsketch.wire.message import CHECKSUM, checksum, pack, unpack
from tests.helpers.refusals import refused

TABLE = MessageFormat("sketch", 7850, (2, 2), "float32", 32, code=1)
LEVELS = MessageFormat("cpsgd", 3, (3,), "unsigned", 5, code=6)
ABOUT: dict[str, Any] = {"round_index": 3, "fingerprint": bytes(range(8))}
MESSAGES = [
    Message(TABLE, torch.arange(4.0).reshape(2, 2), **ABOUT, sender=4),
    Message(LEVELS, torch.arange(3), **ABOUT, sender=4),
]
HEADER = bytes(HEADER_BYTES)


def whole(count: int, bits: int) -> MessageFormat:
    return MessageFormat("cpsgd", count, (count,), "unsigned", bits)


def real(count: int) -> MessageFormat:
    return MessageFormat("none", count, (count,), "float32", 32)


# Cells


@pytest.mark.parametrize("bits", [range(1, 20), range(20, 40), range(40, 63)], ids=str)
def test_cells_are_packed_as_defined(bits: range) -> None:
    """One long number, the first cell in its lowest bits."""
    for width in bits:
        rng = np.random.default_rng(width)
        for count in (1, 2, 7, 63, 64, 65, 200):
            cells = rng.integers(0, 1 << width, count)
            cells[-1] = (1 << width) - 1
            number = sum(int(cell) << (i * width) for i, cell in enumerate(cells))
            data = pack(torch.from_numpy(cells), whole(count, width))
            assert data == number.to_bytes(-(-count * width // 8), "little")
            assert unpack(HEADER + data, whole(count, width)).tolist() == cells.tolist()


@pytest.mark.parametrize("bits", [1, 2, 13, 62])
def test_signed_cells_come_back_to_the_last(bits: int) -> None:
    half, form = 1 << (bits - 1), replace(whole(5, bits), cells="signed")
    cells = torch.tensor([0, -half, half - 1, -1, max(0, half - 2)])
    assert torch.equal(unpack(HEADER + pack(cells, form), form), cells)
    for beyond in (-half - 1, half):
        with pytest.raises(ArgumentError, match=rf"\[-{half}, {half}\), got {beyond} among"):
            pack(torch.tensor([0, beyond, 0, 0, 0]), form)


def test_views_and_gradients_are_packed_as_values_in_memory_of_their_own() -> None:
    layout = MessageFormat("sketch", 9, (2, 3), "float32", 32)
    cells = torch.arange(6.0).reshape(3, 2).t().requires_grad_()
    data = bytearray(HEADER + pack(cells, layout))
    assert data[HEADER_BYTES:] == np.array([0, 2, 4, 1, 3, 5], "<f4").tobytes()
    back = unpack(data, layout)
    data[HEADER_BYTES:] = bytes(24)
    back += 1
    assert torch.equal(back, cells.detach() + 1)


@pytest.mark.parametrize(("value", "bits"), [(-1, 4), (16, 4), (1 << 62, 62), (-(1 << 63), 62)])
def test_cells_out_of_range_are_refused(value: int, bits: int) -> None:
    with pytest.raises(ArgumentError, match=rf"\[0, {1 << bits}\), got {value} among"):
        pack(torch.tensor([0, value, 1]), whole(3, bits))


def test_other_types_shapes_and_values_are_not_repaired() -> None:
    for value in (math.nan, math.inf, -math.inf):
        refused(ArgumentError, "cells must be finite", pack, torch.tensor([1.0, value]), real(2))
    with pytest.raises(ArgumentError, match=r"torch\.float32 in this format, got torch\.float64"):
        pack(torch.zeros(2, dtype=torch.float64), real(2))
    with pytest.raises(ArgumentError, match=r"torch\.int64 in this format, got torch\.uint8"):
        Message(LEVELS, torch.zeros(3, dtype=torch.uint8), **ABOUT, sender=0)
    with pytest.raises(MismatchError, match=r"shape \(2, 2\), got \(4,\)"):
        Message(TABLE, torch.zeros(4), **ABOUT, sender=0)


@pytest.mark.parametrize(("count", "bits"), [(1, 1), (3, 5), (154, 13), (1, 62)])
def test_every_filling_bit_must_be_zero(count: int, bits: int) -> None:
    layout = whole(count, bits)
    good = HEADER + pack(torch.zeros(count, dtype=torch.int64), layout)
    filling = range(count * bits, 8 * layout.payload_bytes)
    assert filling
    for bit in filling:
        data = bytearray(good)
        data[HEADER_BYTES + bit // 8] |= 1 << bit % 8
        refused(WireError, "other bits than zeros", unpack, data, layout)


# Header


def test_known_bytes() -> None:
    layout = MessageFormat("sketch", 0xF23456789A, (0x0708, 0x090A), "float32", 32, code=1)
    about = {"round_index": 0xA1B2C3D4, "sender": 0x1122334455667788, "count": 0x0A0B0C0D}
    found = Header.of(layout, **about, fingerprint=ABOUT["fingerprint"])
    assert found.to_bytes().hex(" ", 2) == (
        "d54b 0101 0000 0000 9a78 5634 f200 0807 0a09 0000 0000 0020 "
        "d4c3 b2a1 0d0c 0b0a 8877 6655 4433 2211 0001 0203 0405 0607"
    )
    cells = torch.tensor([[1.0, -2.0], [0.0, 1e-45]])
    assert Message(TABLE, cells, **ABOUT, sender=4).to_bytes().hex(" ", 4) == (
        "d54b0101 feb6be71 aa1e0000 00000200 02000000 00000020 03000000 01000000 "
        "04000000 00000000 00010203 04050607 0000803f 000000c0 00000000 01000000"
    )
    message = Message(LEVELS, torch.tensor([1, 2, 31]), **ABOUT, sender=SERVER, count=7)
    assert message.to_bytes().hex(" ", 4) == (
        "d54b 01067f41 00ea0300 00000000 00000300 00000000 01050300 00000700 0000ffff ffffffff "
        "ffff0001 02030405 0607417c"
    )


def test_the_documented_table_is_the_layout() -> None:
    assert module.__doc__ is not None
    rows = re.findall(r"^ +(\d+) +(\d+)  \w", module.__doc__, flags=re.MULTILINE)
    end = 0
    for offset, size in rows:
        assert int(offset) == end
        end += int(size)
    assert end == HEADER_BYTES == len(MESSAGES[0].header.to_bytes())


def test_own_methods_have_codes_of_their_own() -> None:
    codes = [replace(LEVELS, method=f"mine-{i}", code=None).method_code for i in range(2000)]
    assert set(codes) == set(range(128, 256))
    assert codes[7] == replace(LEVELS, method="mine-7", code=None).method_code
    refused(ArgumentError, r"code must be in 0\.\.127", replace, LEVELS, code=128)


def test_what_does_not_fit_a_header_is_refused() -> None:
    large, high = replace(LEVELS, dim=2**40 + 1), replace(LEVELS, shape=(2**16, 3))
    wide = replace(LEVELS, shape=(2**40 + 1,))
    header_of = partial(Header.of, **ABOUT, layout=LEVELS, sender=4)
    refused(ArgumentError, "round_index must be in 0..4294967295", header_of, round_index=2**32)
    refused(ArgumentError, "round_index must be in", header_of, round_index=-1)
    refused(ArgumentError, "round_index must be an int", header_of, round_index=True)
    refused(ArgumentError, "sender must be in", header_of, sender=2**64)
    refused(ArgumentError, "count must be in 1..", header_of, count=0)
    refused(ArgumentError, "count must be in", header_of, count=2**32)
    refused(ArgumentError, "fingerprint must be the 8 bytes", header_of, fingerprint=bytes(7))
    refused(ArgumentError, "fingerprint must be the 8 bytes", header_of, fingerprint="01234567")
    refused(ArgumentError, "dim must be in 1..1099511627776", header_of, layout=large)
    refused(ArgumentError, "cols must be in", header_of, layout=wide)
    refused(ArgumentError, "rows must be in 0..65535", header_of, layout=high)


# Messages


@st.composite
def messages(draw: st.DrawFn) -> Message:
    shape = tuple(draw(st.lists(st.integers(1, 12), min_size=1, max_size=2)))
    kind = draw(st.sampled_from(["float32", "unsigned", "signed"]))
    bits = 32 if kind == "float32" else draw(st.integers(1, 62))
    code = draw(st.none() | st.integers(0, 127))
    dim = draw(st.integers(1, 2**40))
    layout = MessageFormat("my own", dim, shape, kind, bits, code)  # type: ignore[arg-type]
    low, end = layout.limits
    cell: st.SearchStrategy[float] = st.integers(low, end - 1)
    if kind == "float32":
        cell = st.floats(width=32, allow_nan=False, allow_infinity=False)
    values = draw(st.lists(cell, min_size=layout.cell_count, max_size=layout.cell_count))
    cells = torch.tensor(values, dtype=torch.float32 if kind == "float32" else torch.int64)
    return Message(
        layout,
        cells.reshape(shape),
        round_index=draw(st.integers(0, 2**32 - 1)),
        fingerprint=draw(st.binary(min_size=8, max_size=8)),
        sender=draw(st.integers(0, SERVER)),
        count=draw(st.integers(1, 2**32 - 1)),
    )


@settings(max_examples=300, deadline=None)
@given(messages(), st.booleans())
def test_round_trip(message: Message, mutable: bool) -> None:
    data = message.to_bytes()
    about = {"round_index": message.round_index, "fingerprint": message.fingerprint}
    assert len(data) == message.format.full_bytes
    given_data = bytearray(data) if mutable else data
    back = Message.from_bytes(given_data, message.format, **about)  # type: ignore[arg-type]
    assert (back.header, back.format) == (message.header, message.format)
    assert Header.parse(data) == message.header
    assert back.header.shape == message.format.shape
    assert back.cells.dtype == message.cells.dtype
    assert torch.equal(back.cells, message.cells)
    assert back.to_bytes() == data  # also the sign of a zero


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"method": "laplace", "code": 4}, "code 1, and 4 is expected for method laplace"),
        ({"method": "my own", "code": None}, "code 1, and 1.. is expected for method my own"),
        ({"cells": "unsigned"}, "cells of code 0, and 1 is expected"),
        ({"dim": 7851}, "dim 7850, and 7851 is expected"),
        ({"shape": (1, 4)}, r"shape \(2, 2\), and \(1, 4\) is expected"),
        ({"shape": (4,)}, r"shape \(2, 2\), and \(4,\) is expected"),
    ],
)
def test_messages_of_other_formats_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        Message.from_bytes(MESSAGES[0].to_bytes(), replace(TABLE, **changes), **ABOUT)
    with pytest.raises(WireError, match="bits 5, and 4 is expected for method cpsgd"):
        Message.from_bytes(MESSAGES[1].to_bytes(), replace(LEVELS, bits=4), **ABOUT)


def test_what_is_expected_is_compared() -> None:
    data = replace(MESSAGES[0], count=5).to_bytes()
    read = partial(Message.from_bytes, data, TABLE, **ABOUT)
    refused(WireError, "of round 3, and round 4 is expected", read, round_index=4)
    refused(WireError, "another key: .* 0001020304050607, and 00", read, fingerprint=bytes(8))
    refused(WireError, "sum of 5 messages, and 1 is expected", read, count=1)
    refused(ArgumentError, "fingerprint must be the 8 bytes", read, fingerprint=b"")
    refused(ArgumentError, "round_index must be in", read, round_index=-1)
    from_bytes = Message.from_bytes
    refused(ArgumentError, "data must be bytes, got str", from_bytes, "d54b", TABLE, **ABOUT)


# Damage


parametrize = pytest.mark.parametrize("message", MESSAGES, ids=["floats", "whole numbers"])


def read(data: bytes, message: Message) -> Message:
    return Message.from_bytes(data, message.format, **ABOUT, count=1)


def flipped(data: bytes, bit: int) -> bytes:
    number = int.from_bytes(data, "little") ^ (1 << bit)
    return number.to_bytes(len(data), "little")


def with_checksum(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[CHECKSUM] = checksum(changed)
    return bytes(changed)


@parametrize
def test_every_flipped_bit_is_found_by_the_checksum(message: Message) -> None:
    """The control: with a right checksum, only what the receiver knows better is found."""
    data, taken = message.to_bytes(), set()
    for bit in range(8 * len(data)):
        with pytest.raises(WireError):
            read(flipped(data, bit), message)
        try:
            read(with_checksum(flipped(data, bit)), message)
        except WireError:
            continue
        taken.add(bit // 8)
    # The checksum, the sender and the payload.
    assert taken == {*range(4, 8), *range(32, 40), *range(HEADER_BYTES, len(data))}


@parametrize
def test_every_cut_and_addition_is_found(message: Message) -> None:
    data = message.to_bytes()
    for length in range(len(data)):
        refused(WireError, f"truncated: {length} bytes, and", read, data[:length], message)
        with pytest.raises(WireError):
            read(data[len(data) - length :], message)
    for extra in (b"\0", b"\xff", data, bytes(10**6)):
        with pytest.raises(WireError, match=f"too long: {len(data) + len(extra)} bytes, and"):
            read(data + extra, message)
        refused(WireError, "too long", read, with_checksum(data + extra), message)


@parametrize
def test_what_is_not_ours_is_said_to_be_so(message: Message) -> None:
    data = message.to_bytes()
    pickled, newer = b"\x80\x04" + data[2:], with_checksum(data[:2] + b"\x02" + data[3:])
    refused(WireError, "not a message of ours: it begins with 8004", read, pickled, message)
    refused(WireError, "of version 2, and only 1 is understood", read, newer, message)
    empty = with_checksum(data[:28] + bytes(4) + data[32:])
    refused(WireError, "sum of 0 messages, and 1 is expected", read, empty, message)
    with pytest.raises(WireError, match="sum of 0 messages, and 1 or more is expected"):
        Message.from_bytes(empty, message.format, **ABOUT)


def test_cells_that_nobody_may_send_are_found_behind_a_right_checksum() -> None:
    floats, levels = (message.to_bytes() for message in MESSAGES)
    for bits in ("0000c07f", "0000807f", "000080ff", "010080ff"):  # NaN, infinities, another NaN
        data = with_checksum(floats[:-4] + bytes.fromhex(bits))
        refused(WireError, "not finite", read, data, MESSAGES[0])
    filled = with_checksum(levels[:-1] + bytes([levels[-1] | 0x80]))
    refused(WireError, "other bits than zeros after", read, filled, MESSAGES[1])


# Agreed rounds

LONG = MessageFormat("sketch", 7850, (3, 20), "float32", 32, code=1)
AGREED = [
    *MESSAGES,
    Message(LONG, torch.arange(60.0).reshape(3, 20), **ABOUT, sender=2**63),
    Message(LONG, torch.arange(60.0).reshape(3, 20), **ABOUT, sender=SERVER, count=7),
]
agreed = pytest.mark.parametrize("message", AGREED, ids=["table", "levels", "long", "sum"])


@agreed
def test_agreed_messages_come_back_and_take_what_is_stated(message: Message) -> None:
    data, form = message.to_bytes(agreed=True), message.format
    is_sum = message.sender == SERVER
    header = (2 if form.payload_bytes <= 64 else 4) + (4 if is_sum else 0)
    assert len(data) == header + form.payload_bytes
    assert len(data) == (form.sum_bytes if is_sum else form.wire_bytes)
    back = Message.from_agreed(data, form, **ABOUT, sender=message.sender)
    assert torch.equal(back.cells, message.cells)
    assert (back.sender, back.count) == (message.sender, message.count)


@agreed
def test_whatever_was_not_agreed_is_found(message: Message) -> None:
    """All that the short header leaves out, and every flipped bit and cut."""
    data, form, sender = message.to_bytes(agreed=True), message.format, message.sender
    others: list[dict[str, Any]] = [
        {"round_index": 4},
        {"fingerprint": bytes(8)},
        {"sender": sender - 1 if sender == SERVER else sender + 1},
        {"expected": replace(form, dim=form.dim + 1)},
        {"expected": replace(form, code=9)},
    ]
    if len(form.shape) == 2:
        others.append({"expected": replace(form, shape=(1, form.cell_count))})
    for other in others:
        wanted = {"expected": form, **ABOUT, "sender": sender} | other
        with pytest.raises(WireError):
            Message.from_agreed(data, **wanted)
    if sender == SERVER:
        with pytest.raises(WireError, match="sum of 7 messages, and 1 to 6 are expected"):
            Message.from_agreed(data, form, **ABOUT, sender=sender, most=6)
    one_bit_off = [flipped(data, bit) for bit in range(8 * len(data))]
    for damaged in (*one_bit_off, data[:-1], data + b"\0", b"", bytes(len(data))):
        with pytest.raises(WireError):
            Message.from_agreed(damaged, form, **ABOUT, sender=sender)
