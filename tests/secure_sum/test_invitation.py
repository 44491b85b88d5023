"""A member takes part only in rounds that it wants to be in."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsketch.secure_sum import RefusedError, accept, invite
from diffsketch.secure_sum.invitation import _checksum
from tests.secure_sum.playing import LAYOUT, identity, make_params

WANTED: dict[str, Any] = {"fingerprint": bytes(range(8)), "least_present": 3}
KNOWN = {index: identity(index).public for index in range(1, 9)}


def sealed(data: bytes) -> bytes:
    return data + _checksum(data)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 8), st.booleans(), st.integers(0, 2**32 - 1))
def test_round_trip(count: int, signed: bool, round_index: int) -> None:
    params = make_params(count, signed=signed, round_index=round_index)
    known = KNOWN if signed else None
    found = accept(invite(params), LAYOUT, **WANTED | {"least_present": 1}, identities=known)
    assert found == params
    assert found.context == params.context


def test_known_answer() -> None:
    data = invite(make_params(2, run=b"sixteen bytes...", round_index=7))
    assert data[:20] == b"\xd5I\x01\x10sixteen bytes..."
    assert data[20:].hex() == (
        "0700000002000000020000000200000001000000000000000200000000000000d5619321ca2e6774"
    )


def test_what_the_member_wants() -> None:
    invitation = invite(make_params(5, threshold=3, signed=True))
    assert accept(invitation, LAYOUT, **WANTED, identities=KNOWN).signed
    with pytest.raises(RefusedError, match="min_present is 3, below 4"):
        accept(invitation, LAYOUT, **WANTED | {"least_present": 4})
    with pytest.raises(RefusedError, match="does not withstand 1 who collude"):
        accept(invitation, LAYOUT, **WANTED, identities=KNOWN, corrupt=1)
    few = {index: KNOWN[index] for index in (1, 2, 3, 4)}
    with pytest.raises(RefusedError, match="5 has no known identity"):
        accept(invitation, LAYOUT, **WANTED, identities=few)


def test_rounds_that_nobody_may_have() -> None:
    """What `Params` refuses, proposed by a server that leaves its checks out."""
    good = invite(make_params(4, threshold=3))[:-8]
    for at, value, message in (
        (22 + 4, 2, "does not withstand 0"),
        (22 + 4, 5, "threshold must be"),
        (22 + 8, 5, "min_present must be"),
        (22 + 16, 9, "ascending"),
    ):
        changed = good[:at] + bytes([value]) + good[at + 1 :]
        with pytest.raises(RefusedError, match=message):
            accept(sealed(changed), LAYOUT, **WANTED)


def test_damage() -> None:
    data = invite(make_params(4))
    for at in range(len(data)):
        with pytest.raises(RefusedError):
            accept(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], LAYOUT, **WANTED)
        with pytest.raises(RefusedError):
            accept(data[:at], LAYOUT, **WANTED)
    with pytest.raises(RefusedError, match="lists 33 bytes of 4 members"):
        accept(sealed(data[:-8] + b"x"), LAYOUT, **WANTED)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=120), st.booleans(), st.integers(0, 80))
def test_random_bytes(data: bytes, ours: bool, keep: int) -> None:
    start = invite(make_params(4))[:keep] if ours else b""
    for message in (data, sealed(start + data)):
        try:
            accept(message, LAYOUT, **WANTED)
        except RefusedError:
            continue
        assert (start + data)[:3] == b"\xd5I\x01"
