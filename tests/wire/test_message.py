"""Messages survive the wire, and are the bytes that they have been since version 1."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsketch.errors import ArgumentError, DiffSketchError, MismatchError
from diffsketch.wire import HEADER_BYTES, SERVER, Message, MessageFormat, WireError

TABLE = MessageFormat("sketch", 7850, (2, 2), "float32", 32)
LEVELS = MessageFormat("cpsgd", 3, (3,), "unsigned", 5)
ABOUT: dict[str, Any] = {"round_index": 3, "fingerprint": bytes(range(8))}

names = st.sampled_from(["none", "sketch", "diffsketch-proven", "cpsgd", "projunit", "my own"])


@st.composite
def messages(draw: st.DrawFn) -> Message:
    shape = tuple(draw(st.lists(st.integers(1, 12), min_size=1, max_size=2)))
    dim, name = draw(st.integers(1, 2**40)), draw(names)
    if draw(st.booleans()):
        layout = MessageFormat(name, dim, shape, "float32", 32)
        finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
        values = draw(st.lists(finite, min_size=layout.cell_count, max_size=layout.cell_count))
        cells = torch.tensor(values, dtype=torch.float32)
    else:
        layout = MessageFormat(name, dim, shape, "unsigned", draw(st.integers(1, 62)))
        number = st.integers(0, 2**layout.bits - 1)
        numbers = draw(st.lists(number, min_size=layout.cell_count, max_size=layout.cell_count))
        cells = torch.tensor(numbers, dtype=torch.int64)
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
    assert len(data) == message.format.wire_bytes
    back = Message.from_bytes(
        bytearray(data) if mutable else data,
        message.format,
        round_index=message.round_index,
        fingerprint=message.fingerprint,
    )
    assert back.header == message.header
    assert back.format == message.format
    assert back.cells.dtype == message.cells.dtype
    assert torch.equal(back.cells, message.cells)
    assert back.to_bytes() == data


def test_known_answer_of_floats() -> None:
    cells = torch.tensor([[1.0, -2.0], [0.0, 1e-45]])
    message = Message(TABLE, cells, **ABOUT, sender=4)
    assert message.to_bytes().hex(" ", 4) == (
        "d54b0101 feb6be71 aa1e0000 00000200 02000000 00000020 03000000 01000000 "
        "04000000 00000000 00010203 04050607 0000803f 000000c0 00000000 01000000"
    )


def test_known_answer_of_whole_numbers() -> None:
    message = Message(LEVELS, torch.tensor([1, 2, 31]), **ABOUT, sender=SERVER, count=7)
    assert message.to_bytes().hex(" ", 4) == (
        "d54b 01067f41 00ea0300 00000000 00000300 00000000 01050300 00000700 0000ffff ffffffff "
        "ffff0001 02030405 0607417c"
    )


def test_checks_when_made() -> None:
    with pytest.raises(MismatchError, match=r"shape \(2, 2\), got \(4,\)"):
        Message(TABLE, torch.zeros(4), **ABOUT, sender=0)
    with pytest.raises(ArgumentError, match=r"torch\.int64 in this format, got torch\.float32"):
        Message(LEVELS, torch.zeros(3), **ABOUT, sender=0)
    with pytest.raises(ArgumentError, match="sender must be in"):
        Message(TABLE, torch.zeros(2, 2), **ABOUT, sender=-1)
    with pytest.raises(ArgumentError, match="cells must be finite"):
        Message(TABLE, torch.full((2, 2), torch.nan), **ABOUT, sender=0).to_bytes()


def test_what_is_expected_must_be_possible() -> None:
    data = Message(TABLE, torch.zeros(2, 2), **ABOUT, sender=0).to_bytes()
    with pytest.raises(ArgumentError, match="fingerprint must be the 8 bytes"):
        Message.from_bytes(data, TABLE, round_index=3, fingerprint=b"")
    with pytest.raises(ArgumentError, match="round_index must be in"):
        Message.from_bytes(data, TABLE, round_index=-1, fingerprint=bytes(8))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"method": "laplace"}, "method code 1, and 4 is expected for method laplace"),
        ({"method": "my own"}, "method code 1, and 1.. is expected for method my own"),
        ({"cells": "unsigned"}, "cells of code 0, and 1 is expected"),
        ({"cells": "unsigned", "bits": 31}, "cells of code 0, and 1 is expected"),
        ({"dim": 7851}, "dim 7850, and 7851 is expected"),
        ({"shape": (2, 3)}, r"shape \(2, 2\), and \(2, 3\) is expected"),
        ({"shape": (1, 4)}, r"shape \(2, 2\), and \(1, 4\) is expected"),
        ({"shape": (4,)}, r"shape \(2, 2\), and \(4,\) is expected"),
    ],
)
def test_messages_of_other_formats_are_refused(changes: dict[str, Any], reason: str) -> None:
    data = Message(TABLE, torch.zeros(2, 2), **ABOUT, sender=0).to_bytes()
    with pytest.raises(WireError, match=reason):
        Message.from_bytes(data, replace(TABLE, **changes), **ABOUT)


def test_other_bits_are_refused() -> None:
    data = Message(LEVELS, torch.zeros(3, dtype=torch.int64), **ABOUT, sender=0).to_bytes()
    with pytest.raises(WireError, match="bits 5, and 4 is expected for method cpsgd"):
        Message.from_bytes(data, replace(LEVELS, bits=4), **ABOUT)


def test_another_round_key_or_count_is_refused() -> None:
    data = Message(TABLE, torch.zeros(2, 2), **ABOUT, sender=0, count=5).to_bytes()
    with pytest.raises(WireError, match="of round 3, and round 4 is expected"):
        Message.from_bytes(data, TABLE, round_index=4, fingerprint=ABOUT["fingerprint"])
    with pytest.raises(WireError, match=r"another key: fingerprint 0001020304050607, and 0{16} is"):
        Message.from_bytes(data, TABLE, round_index=3, fingerprint=bytes(8))
    with pytest.raises(WireError, match="sum of 5 messages, and 1 is expected"):
        Message.from_bytes(data, TABLE, **ABOUT, count=1)
    assert Message.from_bytes(data, TABLE, **ABOUT, count=5).count == 5
    assert Message.from_bytes(data, TABLE, **ABOUT).count == 5


def test_lengths_are_those_of_the_format() -> None:
    for layout in (TABLE, LEVELS, replace(LEVELS, shape=(7850,), bits=4)):
        dtype = torch.float32 if layout.cells == "float32" else torch.int64
        message = Message(layout, torch.zeros(layout.shape, dtype=dtype), **ABOUT, sender=0)
        assert len(message.to_bytes()) == layout.wire_bytes == HEADER_BYTES + layout.payload_bytes


def test_errors_are_ours_and_values() -> None:
    assert issubclass(WireError, DiffSketchError)
    assert issubclass(WireError, ValueError)
