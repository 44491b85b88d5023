"""Parameters, invitations, envelopes and lists; the bytes of a round with fixed secrets.

The masked input of that round is also computed a second time, from the description alone and
without any of our code but the format of messages.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsketch.errors import ArgumentError
from diffsketch.secure_sum import (
    RefusedError,
    SecureSumClient,
    SecureSumServer,
    Stage,
    accept,
    default_threshold,
    invite,
    stage_of,
)
from diffsketch.secure_sum.messages import (
    MessageKind,
    Presence,
    PublicKeys,
    pack_list,
    pack_message,
    parse_list,
    parse_message,
    signed_presence,
)
from diffsketch.wire import SERVER, Message, MessageFormat
from tests.helpers.refusals import refused
from tests.secure_sum.helpers import LAYOUT, LocalRound, flipped, identity, make_params

PARAMS = make_params(3)
CHANGES: list[dict[str, Any]] = [
    {"run": b"another run of the tests"},
    {"round_index": 6},
    {"fingerprint": bytes(8)},
    {"members": (1, 2, 3, 5)},
    {"threshold": 4, "min_present": 4},
    {"min_present": 4},
    {"layout": replace(LAYOUT, bits=21)},
    {"layout": replace(LAYOUT, shape=(3, 2))},
    {"layout": replace(LAYOUT, dim=10)},
    {"layout": replace(LAYOUT, method="cpsgd")},
    {"signed": True},
    {"identities": {index: identity(index + 1).public for index in (1, 2, 3, 4)}},
]


def test_context_covers_everything() -> None:
    contexts = [make_params(4, **changes).context for changes in [{}, *CHANGES]]
    assert len(set(contexts)) == len(CHANGES) + 1
    assert make_params(4).context == contexts[0]
    # A user's own method has one of 128 codes; the name itself is what counts here.
    layouts = [replace(LAYOUT, method=f"own {number}") for number in range(129)]
    assert len({make_params(4, layout=layout).context for layout in layouts}) == 129


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threshold": 2}, r"threshold must be in 3..4 for 4 members, got threshold=2"),
        ({"threshold": 5}, r"threshold must be in 3..4"),
        ({"threshold": 3.0}, "threshold must be an int"),
        ({"threshold": True}, "threshold must be an int"),
        ({"min_present": 2}, r"min_present must be in 3..4"),
        ({"min_present": 5}, r"min_present must be in 3..4"),
        ({"members": (1, 2, 2, 3)}, "ascending, each once"),
        ({"members": (2, 1, 3, 4)}, "ascending, each once"),
        ({"members": (1, 2, 3, 2**64 - 1)}, "members must be numbers"),
        ({"members": (-1, 2, 3, 4)}, "members must be numbers"),
        ({"members": (1, 2, 3, True)}, "members must be numbers"),
        ({"members": (1,), "threshold": 1}, "two or more"),
        ({"run": bytes(15)}, "run must be 16 to 64 bytes"),
        ({"run": "a text of sixteen"}, "run must be 16 to 64 bytes"),
        ({"fingerprint": bytes(7)}, "fingerprint"),
        ({"round_index": -1}, "round_index"),
        ({"layout": MessageFormat("sketch", 9, (2, 3), "float32", 32)}, "unsigned"),
        ({"identities": {1: bytes(32)}}, "exactly the members"),
        ({"identities": dict.fromkeys((1, 2, 3, 4), bytes(32))}, "two members have the same"),
        ({"identities": {index: bytes(31) for index in (1, 2, 3, 4)}}, "32 bytes"),
    ],
)
def test_params_that_are_refused(changes: dict[str, Any], message: str) -> None:
    refused(ArgumentError, message, make_params, 4, **changes)


def test_identities_are_copied() -> None:
    known = {index: identity(index).public for index in (1, 2, 3, 4)}
    params = make_params(4, identities=known)
    known[1] = bytes(32)
    assert params.identities is not None
    assert params.identities[1] == identity(1).public


def test_default_threshold() -> None:
    for count in range(2, 200):
        corrupt = -(-count // 3) - 1  # fewer than a third
        assert count + corrupt < 2 * default_threshold(count) <= 2 * count
    refused(ArgumentError, "count must be >= 2", default_threshold, 1)


WANTED: dict[str, Any] = {"fingerprint": bytes(range(8)), "least_present": 3}
KNOWN = {index: identity(index).public for index in range(1, 9)}


def with_checksum(data: bytes) -> bytes:
    return data + hashlib.blake2b(data, digest_size=8, person=b"ds-invite").digest()


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 8), st.booleans(), st.integers(0, 2**32 - 1))
def test_invitations_come_back(count: int, signed: bool, round_index: int) -> None:
    params = make_params(count, signed=signed, round_index=round_index)
    known = KNOWN if signed else None
    found = accept(invite(params), LAYOUT, **WANTED | {"least_present": 1}, identities=known)
    assert found == params
    assert found.context == params.context


def test_invitation_known_answer() -> None:
    data = invite(make_params(2, run=b"sixteen bytes...", round_index=7))
    numbers = "d5490210" + "07000000" + "02000000" * 3
    members = "0100000000000000" + "0200000000000000"
    expected = bytes.fromhex(numbers) + b"sixteen bytes..." + bytes.fromhex(members)
    assert data == with_checksum(expected)


def test_invitations_that_a_member_does_not_want() -> None:
    invitation = invite(make_params(5, threshold=3, signed=True))
    assert accept(invitation, LAYOUT, **WANTED, identities=KNOWN).signed
    few = {index: KNOWN[index] for index in (1, 2, 3, 4)}
    for change, message in (
        ({"least_present": 4}, "min_present is 3, below 4"),
        ({"identities": KNOWN, "corrupt": 1}, "does not withstand 1 who collude"),
        ({"identities": few}, "5 has no known identity"),
    ):
        refused(RefusedError, message, accept, invitation, LAYOUT, **WANTED | change)


def test_invitations_that_nobody_may_send() -> None:
    """What `Params` refuses, proposed by a server that leaves its checks out."""
    good = invite(make_params(4, threshold=3))[:-8]
    for at, value, message in (
        (8, 2, "does not withstand 0"),
        (8, 5, "threshold must be"),
        (12, 5, "min_present must be"),
        (len(good) - 32, 9, "ascending"),
    ):
        changed = good[:at] + bytes([value]) + good[at + 1 :]
        refused(RefusedError, message, accept, with_checksum(changed), LAYOUT, **WANTED)


def test_damaged_invitations() -> None:
    data = invite(make_params(4))
    for at in range(len(data)):
        for changed in (flipped(data, at), data[:at]):
            with pytest.raises(RefusedError):
                accept(changed, LAYOUT, **WANTED)
    with pytest.raises(RefusedError, match="lists 33 bytes of 4 members"):
        accept(with_checksum(data[:-8] + b"x"), LAYOUT, **WANTED)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=120), st.booleans(), st.integers(0, 80))
def test_random_bytes_as_invitations(data: bytes, ours: bool, keep: int) -> None:
    start = invite(make_params(4))[:keep] if ours else b""
    for message in (data, with_checksum(start + data)):
        try:
            accept(message, LAYOUT, **WANTED)
        except RefusedError:
            continue
        assert (start + data)[:3] == b"\xd5I\x02"


@pytest.mark.parametrize(
    ("kind", "sender"),
    [
        (MessageKind.KEYS, SERVER),
        (MessageKind.KEYS, 9),
        (MessageKind.OPENING, 1),
        (MessageKind.STATE, 9),
    ],
)
def test_senders(kind: MessageKind, sender: int) -> None:
    data = pack_message(kind, b"", sender=sender, context=PARAMS.context)
    with pytest.raises(RefusedError, match=f"sender {sender} is not one who sends {kind.name}"):
        parse_message(data, kind, params=PARAMS, size=0)


def listed(*indices: int) -> bytes:
    parts = [index.to_bytes(8, "little") + b"\0" for index in indices]
    return len(indices).to_bytes(4, "little") + b"".join(parts)


def parsed(body: bytes) -> tuple[int, dict[int, bytes]]:
    data = pack_message(MessageKind.UNMASK, body, sender=1, context=PARAMS.context)
    return parse_list(data, MessageKind.UNMASK, params=PARAMS, size=1)


def test_lists() -> None:
    assert parsed(listed(1, 3)) == (1, {1: b"\0", 3: b"\0"})
    assert parsed(pack_list({3: b"c", 1: b"a"}))[1] == {1: b"a", 3: b"c"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (listed(1, 1), "lists 1, which is a repetition or late"),
        (listed(2, 1), "lists 1"),
        (listed(1, 9), "lists 9"),
        (listed(1, 2, 3, 3), "too long"),
        (b"", "which is not . records"),
        (b"\1\0\0", "which is not . records"),
        (b"\2\0\0\0" + bytes(9), "which is not . records"),
        (b"\0\0\0\0" + bytes(9), "which is not . records"),
    ],
)
def test_lists_that_are_refused(body: bytes, message: str) -> None:
    refused(RefusedError, message, parsed, body)


def test_not_bytes() -> None:
    for call in (
        lambda: parse_message("text", MessageKind.KEYS, params=PARAMS, size=0),  # type: ignore[arg-type]
        lambda: parse_list(None, MessageKind.KEYS, params=PARAMS, size=0),  # type: ignore[arg-type]
        lambda: stage_of(1, PARAMS),  # type: ignore[arg-type]
    ):
        refused(ArgumentError, "data must be bytes", call)


def test_stages_of_requests() -> None:
    signed = make_params(3, signed=True)
    expected = {
        MessageKind.OPENING: (Stage.KEYS, Stage.KEYS),
        MessageKind.KEY_LIST: (Stage.SHARES, Stage.SHARES),
        MessageKind.SHARE_LIST: (Stage.MASKED, Stage.MASKED),
        MessageKind.SURVIVORS: (Stage.UNMASK, Stage.CONSISTENCY),
        MessageKind.SIGNATURES: (Stage.UNMASK, Stage.UNMASK),
    }
    for kind, stages in expected.items():
        data = pack_message(kind, b"", sender=SERVER, context=PARAMS.context)
        assert (stage_of(data, PARAMS), stage_of(data, signed)) == stages
    with pytest.raises(RefusedError, match="its kind is 1"):
        stage_of(pack_message(MessageKind.KEYS, b"", sender=1, context=PARAMS.context), PARAMS)


def test_what_is_signed_is_of_one_round_and_purpose() -> None:
    keys = PublicKeys(bytes(32), bytes([1] * 32), bytes([2] * 32), b"")
    presence = {1: Presence.PRESENT, 2: Presence.DROPPED}
    texts = []
    for params in (PARAMS, make_params(3, round_index=6)):
        texts += [keys.signed_bytes(1, params), keys.signed_bytes(2, params)]
        texts += [signed_presence(presence, params)]
        texts += [signed_presence(presence | {2: Presence.PRESENT}, params)]
    assert len(set(texts)) == 8


ROOTS = {index: bytes([index]) * 32 for index in (1, 2, 3)}


def fixed_round(*, signed: bool) -> LocalRound:
    params = make_params(
        3,
        layout=replace(LAYOUT, shape=(1, 5)),
        run=b"known answers...",
        round_index=3,
        threshold=2,
        signed=signed,
    )
    clients = {
        index: SecureSumClient(
            index,
            params,
            identity=identity(index) if signed else None,
            randomness=lambda size, root=root: root[:size],  # type: ignore[misc]
        )
        for index, root in ROOTS.items()
    }
    inputs = {index: torch.full((1, 5), 1000 * index) for index in ROOTS}
    return LocalRound(SecureSumServer(params), clients, inputs)


def digests(played: LocalRound) -> dict[str, str]:
    return {
        stage.value: hashlib.sha256(b"".join(replies.values())).hexdigest()[:16]
        for stage, replies in played.replies.items()
    }


def test_bytes_of_a_round() -> None:
    """They stay what they are in version 2."""
    played = fixed_round(signed=False).until(Stage.DONE, {2: Stage.MASKED})
    assert played.params.context.hex() == CONTEXT
    assert played.replies[Stage.KEYS][1].hex() == KEYS
    assert played.replies[Stage.MASKED][1].hex() == MASKED
    assert digests(played) == PLAIN
    assert played.server.total().cells.tolist() == [[4000] * 5]
    signed = fixed_round(signed=True).until(Stage.DONE, {2: Stage.MASKED})
    assert digests(signed) == SIGNED
    assert signed.server.total().present == (1, 3)


def hkdf(secret: bytes, context: bytes, label: bytes, about: bytes) -> bytes:
    info = b"diffsketch secure sum 1" + bytes([len(label)]) + label + about
    return hmac.digest(hmac.digest(context, secret, "sha256"), info + b"\x01", "sha256")


def words(key: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    data = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(20))
    return np.frombuffer(data, "<u4").astype(np.uint32)


@pytest.mark.parametrize("index", [1, 2, 3])
def test_masked_input_by_hand(index: int) -> None:
    played = fixed_round(signed=False).until(Stage.UNMASK)
    context = played.params.context
    number = {i: i.to_bytes(8, "little") for i in ROOTS}
    keys = {i: hkdf(ROOTS[i], context, b"own key", number[i]) for i in ROOTS}
    private = {i: X25519PrivateKey.from_private_bytes(key) for i, key in keys.items()}
    public = {i: key.public_key().public_bytes_raw() for i, key in private.items()}
    seed = hkdf(ROOTS[index], context, b"own seed", number[index])
    committed = hkdf(seed, context, b"seed commitment", number[index])
    assert played.replies[Stage.KEYS][index][52 + 64 :] == committed
    expected = np.full(5, 1000 * index, np.uint32)
    expected += words(hkdf(seed, context, b"self mask", number[index]))
    for other in ROOTS.keys() - {index}:
        low, high = sorted((index, other))
        shared = private[index].exchange(X25519PublicKey.from_public_bytes(public[other]))
        about = number[low] + public[low] + number[high] + public[high]
        mask = words(hkdf(shared, context, b"pair mask", about))
        expected += mask if index > other else -mask
    message = Message.from_bytes(
        played.replies[Stage.MASKED][index][52:],
        played.params.layout,
        round_index=3,
        fingerprint=bytes(range(8)),
    )
    assert message.cells.flatten().tolist() == (expected & 0xFFFFF).tolist()


CONTEXT = "5435dfdb6c8f158b9966ad5d0242b61fceb15ac8e3aebea5d72c2ac20e96b835"
KEYS = (
    "d553020101000000000000005435dfdb6c8f158b9966ad5d0242b61fceb15ac8"
    "e3aebea5d72c2ac20e96b835741230bf9ae6892b580c49536128b2295a9edcf4"
    "1d36323f722433461c1665f7a916639b83393f416ac3eef6d533c017f61d8567"
    "8c4b642b3f5ab48f6b0e3962b449b6cee2866b77625e5a1289434be6cc7bd21f"
    "908a8caf4ca8d554b183fc03b8ede068dbd6c627"
)
MASKED = (
    "d553020301000000000000005435dfdb6c8f158b9966ad5d0242b61fceb15ac8"
    "e3aebea5d72c2ac20e96b835dfc7ce3f6222bfd6d54b0108ca609a1809000000"
    "0000010005000000000001140300000001000000010000000000000000010203"
    "040506075bacd7b698ff68784f99ce9f0d"
)
PLAIN = {
    "keys": "72ceeea59d5e07e6",
    "shares": "4107a50d8f1d3627",
    "masked": "c822176c7e32e433",
    "unmask": "1d5ca426945b9b4a",
}
SIGNED = {
    "keys": "6ecc86ac82a161ef",
    "shares": "99448f991fb56641",
    "masked": "462b4f4ad4a83e18",
    "consistency": "647a8980142ed54f",
    "unmask": "3ef2e8599cf52fec",
}
