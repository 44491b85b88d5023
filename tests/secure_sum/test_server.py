"""The server refuses replies that do not belong, and never goes on with a wrong sum."""

from __future__ import annotations

import pytest
import torch

from diffsketch.errors import ArgumentError
from diffsketch.secure_sum import Client, RefusedError, Server, Stage
from diffsketch.secure_sum.messages import Kind, close, open_records, records
from diffsketch.secure_sum.shamir import PRIME
from diffsketch.wire import DuplicateError, Message, WireError
from diffsketch.wire.message import SERVER
from tests.secure_sum.playing import Played, make_client, make_params, plain_sum, start

STAGES = [Stage.KEYS, Stage.SHARES, Stage.MASKED, Stage.CONSISTENCY, Stage.UNMASK]


def reply_of(played: Played, index: int) -> bytes:
    request = played.server.requests()[index]
    return played.clients[index].answer(request, lambda: played.inputs[index])


@pytest.mark.parametrize("stage", STAGES)
def test_a_reply_counts_once(stage: Stage) -> None:
    played = start(make_params(signed=True)).until(stage)
    reply = reply_of(played, 2)
    assert played.server.collect(reply) == 2
    with pytest.raises(DuplicateError, match=f"2 has already replied in stage {stage.value}"):
        played.server.collect(reply)
    assert played.server.missing == (1, 3, 4)
    for index in (1, 3, 4):
        played.server.collect(reply_of(played, index))
    assert not played.server.missing
    played.server.close()
    played.until(Stage.DONE)
    total = played.server.total()
    assert torch.equal(total.cells, plain_sum(played.inputs, (1, 2, 3, 4), 20))


@pytest.mark.parametrize("stage", STAGES[1:])
def test_replies_of_other_stages_are_refused(stage: Stage) -> None:
    played = start(make_params(signed=True)).until(stage)
    for replies in played.replies.values():
        with pytest.raises(RefusedError, match=r"message is (of kind|too long)"):
            played.server.collect(replies[1])


@pytest.mark.parametrize("stage", STAGES)
def test_replays_of_other_rounds_are_refused(stage: Stage) -> None:
    old, new = (start(make_params(signed=True, round_index=index)).until(stage) for index in (1, 2))
    with pytest.raises(RefusedError, match="another run, round or agreement"):
        new.server.collect(reply_of(old, 1))
    other = start(make_params(signed=True, round_index=2, run=b"yet another run!")).until(stage)
    with pytest.raises(RefusedError, match="another run, round or agreement"):
        new.server.collect(reply_of(other, 1))


@pytest.mark.parametrize("stage", STAGES)
def test_every_changed_byte_is_found(stage: Stage) -> None:
    played = start(make_params(signed=True)).until(stage)
    reply, request = reply_of(played, 1), played.server.requests()[2]
    for at in range(len(reply)):
        with pytest.raises(RefusedError):
            played.server.collect(_flipped(reply, at))
    for at in range(len(request)):
        with pytest.raises(RefusedError):
            played.clients[2].answer(_flipped(request, at), lambda: played.inputs[2])
    assert played.server.missing == (1, 2, 3, 4)


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_one_who_dropped_out_does_not_come_back() -> None:
    played = start(make_params()).until(Stage.SHARES, {2: Stage.KEYS})
    late = make_client(2, played.server.params)
    keys = late.advertise(close(Kind.OPENING, b"", sender=SERVER, params=late.params))
    with pytest.raises(RefusedError, match="of kind 1"):
        played.server.collect(keys)
    forged = close(Kind.SHARES, records({}), sender=2, params=late.params)
    with pytest.raises(RefusedError, match="2 has dropped out"):
        played.server.collect(forged)


def test_keys_must_be_signed_and_new() -> None:
    params = make_params(signed=True)
    played = start(params)
    keys = reply_of(played, 1)[52:]
    with pytest.raises(RefusedError, match="keys of 2 are not signed"):
        played.server.collect(close(Kind.KEYS, keys, sender=2, params=params))
    plain = make_params()
    server, body = Server(plain), reply_of(start(plain), 1)[52:]
    server.collect(close(Kind.KEYS, body, sender=1, params=plain))
    with pytest.raises(RefusedError, match="two public keys are the same"):
        server.collect(close(Kind.KEYS, body, sender=2, params=plain))


@pytest.mark.parametrize("at", [0, 32])
def test_keys_without_a_secret_are_their_senders_fault(at: int) -> None:
    """All others would refuse a list with such a key: so it does not get into the list."""
    played = start(make_params())
    keys = reply_of(played, 2)[52:]
    for public in (bytes(32), (1).to_bytes(32, "little")):  # of a small order
        body = keys[:at] + public + keys[at + 32 :]
        with pytest.raises(RefusedError, match="keys of 2 are refused: one has no secret"):
            played.server.collect(close(Kind.KEYS, body, sender=2, params=played.server.params))
    assert played.server.missing == (1, 2, 3, 4)


def test_shares_must_be_for_all_others() -> None:
    played = start(make_params()).until(Stage.SHARES)
    params = played.server.params
    shares = open_records(reply_of(played, 1), Kind.SHARES, params=params, size=82)[1]
    for changed in ({2: shares[2], 3: shares[3]}, shares | {1: shares[2]}):
        with pytest.raises(RefusedError, match="not for the others that have keys"):
            played.server.collect(close(Kind.SHARES, records(changed), sender=1, params=params))


def test_masked_input_of_another_sender_or_round() -> None:
    played = start(make_params()).until(Stage.MASKED)
    params = played.server.params
    body = reply_of(played, 1)[52:]
    with pytest.raises(RefusedError, match="2 has sent a message of 1"):
        played.server.collect(close(Kind.MASKED, body, sender=2, params=params))
    other = Message(
        params.layout, played.inputs[2], round_index=9, fingerprint=params.fingerprint, sender=2
    )
    with pytest.raises(WireError, match="of round 9"):
        played.server.collect(close(Kind.MASKED, other.to_bytes(), sender=2, params=params))
    several = Message(
        params.layout,
        played.inputs[2],
        round_index=params.round_index,
        fingerprint=params.fingerprint,
        sender=2,
        count=2,
    )
    with pytest.raises(WireError, match="sum of 2 messages"):
        played.server.collect(close(Kind.MASKED, several.to_bytes(), sender=2, params=params))
    assert played.server.missing == (1, 2, 3, 4)


def test_a_signature_must_be_of_what_was_sent() -> None:
    played = start(make_params(signed=True)).until(Stage.CONSISTENCY)
    body = reply_of(played, 1)[52:]
    with pytest.raises(RefusedError, match="does not fit"):
        played.server.collect(close(Kind.CONSISTENCY, body, sender=2, params=played.server.params))


def test_shares_of_the_wrong_kind_are_refused() -> None:
    """Of both secrets of a member, the server takes only the one that it asked for."""
    played = start(make_params()).until(Stage.UNMASK, {4: Stage.MASKED})
    params = played.server.params
    values = open_records(reply_of(played, 1), Kind.UNMASK, params=params, size=34)[1]
    assert [values[index][0] for index in (1, 2, 3, 4)] == [1, 1, 1, 0]
    for odd in (b"\x01", b"\x02"):
        changed = values | {4: odd + values[4][1:]}
        with pytest.raises(RefusedError, match="other shares than those that were asked for"):
            played.server.collect(close(Kind.UNMASK, records(changed), sender=1, params=params))
    for left in ((1, 2), (2, 3, 4)):  # fewer than the threshold; not even its own
        changed = {index: values[index] for index in left}
        with pytest.raises(RefusedError, match="1 has left out more shares than a member may"):
            played.server.collect(close(Kind.UNMASK, records(changed), sender=1, params=params))
    large = values | {2: b"\x01" + PRIME.to_bytes(33, "little")}
    with pytest.raises(RefusedError, match="not a number of the field"):
        played.server.collect(close(Kind.UNMASK, records(large), sender=1, params=params))


def test_after_the_end() -> None:
    played = start(make_params()).until(Stage.DONE)
    for call in (played.server.requests, played.server.close, lambda: played.server.collect(b"")):
        with pytest.raises(ArgumentError, match="the round is done"):
            call()


def test_members_of_another_agreement_are_not_understood() -> None:
    """A server that tells a member a lower threshold than the others gets nothing from it."""
    server, lower = Server(make_params(4, threshold=4)), make_params(4, threshold=3)
    with pytest.raises(RefusedError, match="another run, round or agreement"):
        Client(1, lower).advertise(server.requests()[1])
