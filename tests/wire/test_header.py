"""The header's bytes are those that its table says, and what does not fit is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from diffsketch.errors import ArgumentError
from diffsketch.wire import HEADER_BYTES, METHOD_CODES, SERVER, Header, MessageFormat, WireError
from diffsketch.wire import header as module
from diffsketch.wire.message import method_code, seal

TABLE = MessageFormat("sketch", 0x010203040506, (0x0708, 0x090A), "float32", 32)
VECTOR = MessageFormat("cpsgd", 7, (7,), "unsigned", 5)
ABOUT: dict[str, Any] = {"round_index": 3, "fingerprint": bytes(range(8)), "sender": 4}


def limited(layout: MessageFormat, **changes: Any) -> Header:
    return Header.of(layout, **(ABOUT | changes))


def test_known_bytes_of_a_table() -> None:
    layout = replace(TABLE, dim=0xF23456789A)
    found = limited(layout, round_index=0xA1B2C3D4, sender=0x1122334455667788, count=0x0A0B0C0D)
    assert found.to_bytes().hex(" ", 2) == (
        "d54b 0101 0000 0000 9a78 5634 f200 0807 0a09 0000 0000 0020 "
        "d4c3 b2a1 0d0c 0b0a 8877 6655 4433 2211 0001 0203 0405 0607"
    )


def test_known_bytes_of_a_vector() -> None:
    assert limited(VECTOR).to_bytes().hex(" ", 2) == (
        "d54b 0106 0000 0000 0700 0000 0000 0000 0700 0000 0000 0105 "
        "0300 0000 0100 0000 0400 0000 0000 0000 0001 0203 0405 0607"
    )


def test_the_documented_table_is_the_layout() -> None:
    assert module.__doc__ is not None
    rows = re.findall(r"^ +(\d+) +(\d+)  \w", module.__doc__, flags=re.MULTILINE)
    end = 0
    for offset, size in rows:
        assert int(offset) == end
        end += int(size)
    assert end == HEADER_BYTES == len(limited(VECTOR).to_bytes())


def test_codes_never_change() -> None:
    names = "none sketch diffsketch diffsketch-proven laplace sketch-laplace cpsgd"
    names += " sketch-gaussian sketch-skellam projunit gaussian skellam"
    assert dict(METHOD_CODES) == {name: code for code, name in enumerate(names.split())}
    assert [method_code(name) for name in METHOD_CODES] == list(range(12))


def test_own_methods_have_codes_of_their_own() -> None:
    codes = {method_code(f"mine-{i}") for i in range(2000)}
    assert codes == set(range(128, 256))
    assert method_code("mine") == method_code("mine")


@pytest.mark.parametrize("layout", [replace(TABLE, dim=7850), VECTOR], ids=["table", "vector"])
def test_largest_values_come_back(layout: MessageFormat) -> None:
    largest = limited(
        replace(layout, dim=2**40, shape=(*layout.shape[:-1], 2**40)),
        round_index=2**32 - 1,
        sender=SERVER,
        count=2**32 - 1,
    )
    assert Header.parse(largest.to_bytes()) == largest
    assert largest.shape == (*layout.shape[:-1], 2**40)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"round_index": 2**32}, "round_index must be in 0..4294967295"),
        ({"round_index": -1}, "round_index must be in"),
        ({"round_index": True}, "round_index must be an int, got bool"),
        ({"round_index": 1.0}, "round_index must be an int, got float"),
        ({"sender": 2**64}, "sender must be in"),
        ({"sender": -1}, "sender must be in"),
        ({"count": 0}, "count must be in 1.."),
        ({"count": 2**32}, "count must be in"),
        ({"fingerprint": bytes(7)}, "fingerprint must be the 8 bytes"),
        ({"fingerprint": "01234567"}, "fingerprint must be the 8 bytes"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        limited(VECTOR, **changes)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (replace(VECTOR, dim=2**40 + 1), "dim must be in 1..1099511627776"),
        (replace(VECTOR, shape=(2**40 + 1,)), "cols must be in"),
        (replace(VECTOR, shape=(2**16, 3)), "rows must be in 0..65535"),
    ],
)
def test_formats_that_do_not_fit_are_refused(layout: MessageFormat, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        limited(layout)


def test_parse_wants_bytes() -> None:
    with pytest.raises(ArgumentError, match="data must be bytes, got str"):
        Header.parse("d54b")  # type: ignore[arg-type]
    with pytest.raises(WireError, match="truncated: 0 bytes"):
        Header.parse(b"")
    assert Header.parse(bytearray(seal(limited(VECTOR), b"12345"))) == limited(VECTOR)
