"""Envelopes and lists: what is in them must be of this round, known and in order."""

from __future__ import annotations

import pytest

from diffsketch.errors import ArgumentError
from diffsketch.secure_sum import RefusedError, Stage
from diffsketch.secure_sum.checks import signed_fates, signed_keys
from diffsketch.secure_sum.messages import (
    Fate,
    Kind,
    PublicKeys,
    close,
    open_records,
    open_sized,
    records,
    stage_of,
)
from diffsketch.wire.message import SERVER
from tests.secure_sum.playing import make_params

PARAMS = make_params(3)


@pytest.mark.parametrize(
    ("kind", "sender"), [(Kind.KEYS, SERVER), (Kind.KEYS, 9), (Kind.OPENING, 1), (Kind.STATE, 9)]
)
def test_senders(kind: Kind, sender: int) -> None:
    data = close(kind, b"", sender=sender, params=PARAMS)
    with pytest.raises(RefusedError, match=f"sender {sender} is not one who sends {kind.name}"):
        open_sized(data, kind, params=PARAMS, size=0)


def listed(*indices: int, size: int = 1) -> bytes:
    body = len(indices).to_bytes(4, "little")
    body += b"".join(index.to_bytes(8, "little") + bytes(size) for index in indices)
    return close(Kind.UNMASK, body, sender=1, params=PARAMS)


def test_lists() -> None:
    assert open_records(listed(1, 3), Kind.UNMASK, params=PARAMS, size=1) == (
        1,
        {1: b"\0", 3: b"\0"},
    )
    data = close(Kind.UNMASK, records({3: b"c", 1: b"a"}), sender=1, params=PARAMS)
    assert open_records(data, Kind.UNMASK, params=PARAMS, size=1)[1] == {1: b"a", 3: b"c"}


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ((1, 1), "lists 1, which is no member, a repetition or late"),
        ((2, 1), "lists 1"),
        ((1, 9), "lists 9"),
        ((1, 2, 3, 3), "too long"),
    ],
)
def test_duplicate_or_unknown_indices(indices: tuple[int, ...], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        open_records(listed(*indices), Kind.UNMASK, params=PARAMS, size=1)


@pytest.mark.parametrize("body", [b"", b"\1\0\0", b"\2\0\0\0" + bytes(9), b"\0\0\0\0" + bytes(9)])
def test_counts(body: bytes) -> None:
    data = close(Kind.UNMASK, body, sender=1, params=PARAMS)
    with pytest.raises(RefusedError, match=r"which is not . records"):
        open_records(data, Kind.UNMASK, params=PARAMS, size=1)


def test_not_bytes() -> None:
    for call in (
        lambda: open_sized("text", Kind.KEYS, params=PARAMS, size=0),  # type: ignore[arg-type]
        lambda: open_records(None, Kind.KEYS, params=PARAMS, size=0),  # type: ignore[arg-type]
        lambda: stage_of(1, PARAMS),  # type: ignore[arg-type]
    ):
        with pytest.raises(ArgumentError, match="data must be bytes"):
            call()


def test_stages_of_requests() -> None:
    signed = make_params(3, signed=True)
    expected = {
        Kind.OPENING: (Stage.KEYS, Stage.KEYS),
        Kind.KEY_LIST: (Stage.SHARES, Stage.SHARES),
        Kind.SHARE_LIST: (Stage.MASKED, Stage.MASKED),
        Kind.SURVIVORS: (Stage.UNMASK, Stage.CONSISTENCY),
        Kind.SIGNATURES: (Stage.UNMASK, Stage.UNMASK),
    }
    for kind, stages in expected.items():
        data = close(kind, b"", sender=SERVER, params=PARAMS)
        assert (stage_of(data, PARAMS), stage_of(data, signed)) == stages
    with pytest.raises(RefusedError, match="its kind is 1"):
        stage_of(close(Kind.KEYS, b"", sender=1, params=PARAMS), PARAMS)


def test_what_is_signed_is_of_one_round_and_purpose() -> None:
    keys = PublicKeys(bytes(32), bytes([1] * 32), bytes([2] * 32), b"")
    fates = {1: Fate.PRESENT, 2: Fate.DROPPED}
    texts = []
    for params in (PARAMS, make_params(3, round_index=6)):
        texts += [signed_keys(keys, 1, params), signed_keys(keys, 2, params)]
        texts += [signed_fates(fates, params), signed_fates(fates | {2: Fate.PRESENT}, params)]
    assert len(set(texts)) == 8
