"""The total is the plain sum of those present, whoever drops out, or the round is void."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsketch.errors import ArgumentError
from diffsketch.secure_sum import RefusedError, SecureSumServer, Stage, VoidError
from diffsketch.secure_sum.messages import MessageKind
from diffsketch.secure_sum.primitives import PRIME
from diffsketch.wire import DuplicateError, Message, WireError
from tests.helpers.refusals import refused
from tests.secure_sum.helpers import (
    LAYOUT,
    STAGES,
    flipped,
    make_client,
    make_params,
    plain_sum,
    start,
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, int, bool, dict[int, Stage]]:
    """Members, threshold, bits, signed, and who is silent from which stage on."""
    count = draw(st.integers(2, 7))
    threshold = draw(st.integers(count // 2 + 1, count))
    signed = draw(st.booleans())
    stages = [stage for stage in STAGES if signed or stage is not Stage.CONSISTENCY]
    lost = draw(st.sets(st.integers(1, count), max_size=count - threshold))
    bits = draw(st.sampled_from([1, 8, 20, 32, 33, 62]))
    silent = {index: draw(st.sampled_from(stages)) for index in sorted(lost)}
    return count, threshold, bits, signed, silent


@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(0, 2**32))
def test_sum_with_dropouts(case: tuple[int, int, int, bool, dict[int, Stage]], seed: int) -> None:
    count, threshold, bits, signed, silent = case
    layout = replace(LAYOUT, bits=bits)
    params = make_params(count, threshold=threshold, signed=signed, layout=layout)
    played = start(params, seed=seed).until(Stage.DONE, silent)
    total = played.server.total()
    early = {index for index, stage in silent.items() if STAGES.index(stage) <= 2}
    assert total.present == tuple(index for index in params.members if index not in early)
    assert total.cells.dtype == torch.int64
    assert torch.equal(total.cells, plain_sum(played.inputs, total.present, bits))
    if len(total.present) > 1:  # the negative control: one input less is another sum
        fewer = plain_sum(played.inputs, total.present[1:], bits)
        lost = played.inputs[total.present[0]]
        assert torch.equal(total.cells, fewer) == (not lost.any())
    assert played.server.dropped == silent


@pytest.mark.parametrize("stage", STAGES)
def test_below_the_threshold_the_round_is_void(stage: Stage) -> None:
    played = start(make_params(5, threshold=4, signed=True)).until(stage)
    with pytest.raises(VoidError, match=rf"3 of 5 replied.*{stage.value}") as caught:
        played.step({2: stage, 4: stage})
    assert caught.value.dropped == {2: stage, 4: stage}
    assert f"2 ({stage.value}), 4 ({stage.value})" in str(caught.value)
    server = played.server
    assert server.stage is Stage.VOID
    for call in (server.total, server.requests, server.close, lambda: server.collect(b"")):
        with pytest.raises(VoidError):
            call()


def test_dropouts_add_up_over_the_stages() -> None:
    silent = {1: Stage.KEYS, 3: Stage.SHARES, 6: Stage.UNMASK}
    with pytest.raises(VoidError, match=r"1 \(keys\), 3 \(shares\), 6 \(unmask\)"):
        start(make_params(6, threshold=4)).until(Stage.DONE, silent)


def test_fewer_than_min_present_are_not_unmasked() -> None:
    """But those who help to unmask may be fewer."""
    played = start(make_params(5, threshold=3, min_present=4)).until(Stage.MASKED)
    with pytest.raises(VoidError, match="3 of 5 replied, and min_present is 4"):
        played.step({1: Stage.MASKED, 2: Stage.MASKED})
    silent = dict.fromkeys((1, 2), Stage.UNMASK)
    played = start(make_params(5, threshold=3, min_present=5)).until(Stage.DONE, silent)
    assert played.server.total().present == (1, 2, 3, 4, 5)


def test_large_numbers_of_members() -> None:
    params = make_params(4, members=(0, 7, 2**33, 2**64 - 2), signed=True)
    played = start(params).until(Stage.DONE, {7: Stage.MASKED})
    assert played.server.total().present == (0, 2**33, 2**64 - 2)


def test_before_and_after_the_end() -> None:
    refused(ArgumentError, "stage done, got keys", start(make_params()).server.total)
    server = start(make_params()).until(Stage.DONE).server
    for call in (server.requests, server.close, lambda: server.collect(b"")):
        refused(ArgumentError, "the round is done", call)


@pytest.mark.parametrize("stage", STAGES)
def test_a_reply_counts_once_and_in_its_own_stage_and_round(stage: Stage) -> None:
    played = start(make_params(signed=True)).until(stage)
    for replies in played.replies.values():
        refused(RefusedError, r"message is (of kind|too long)", played.server.collect, replies[1])
    for change in ({"round_index": 2}, {"run": b"yet another run!"}):
        other = start(make_params(signed=True, **change)).until(stage)
        with pytest.raises(RefusedError, match="another run, round or agreement"):
            played.server.collect(other.answer(1))
    reply = played.answer(2)
    refused(RefusedError, "3 has sent a reply of 2", played.server.collect, reply, sent_by=3)
    assert played.server.collect(reply, sent_by=2) == 2
    with pytest.raises(DuplicateError, match=f"2 has already replied in stage {stage.value}"):
        played.server.collect(reply)
    assert played.server.missing == (1, 3, 4)
    for index in (1, 3, 4):
        played.server.collect(played.answer(index))
    assert not played.server.missing
    played.server.close()
    total = played.until(Stage.DONE).server.total()
    assert torch.equal(total.cells, plain_sum(played.inputs, (1, 2, 3, 4)))


@pytest.mark.parametrize("stage", STAGES)
def test_every_changed_byte_is_found(stage: Stage) -> None:
    played = start(make_params(signed=True)).until(stage)
    reply, request = played.answer(1), played.request(2)
    for at in range(len(reply)):
        with pytest.raises(RefusedError):
            played.server.collect(flipped(reply, at))
    for at in range(len(request)):
        with pytest.raises(RefusedError):
            played.answer(2, flipped(request, at))
    assert played.server.missing == (1, 2, 3, 4)
    total = played.until(Stage.DONE).server.total()  # which the refused ones have not spoilt
    assert torch.equal(total.cells, plain_sum(played.inputs, (1, 2, 3, 4)))


def test_one_who_dropped_out_does_not_come_back() -> None:
    played = start(make_params()).until(Stage.SHARES, {2: Stage.KEYS})
    played.server_refuses("2 has dropped out", 2, SHARES={})


def test_keys_must_be_signed_and_new() -> None:
    played = start(make_params(signed=True))
    played.server_refuses("keys of 2 are not signed", 2, KEYS=played.answer(1)[52:])
    plain = start(make_params())
    plain.server.collect(plain.answer(1))
    plain.server_refuses("two public keys are the same", 2, KEYS=plain.answer(1)[52:])


@pytest.mark.parametrize("at", [0, 32])
def test_keys_without_a_secret_are_their_senders_fault(at: int) -> None:
    """All others would refuse a list with such a key: so it does not get into the list."""
    played = start(make_params())
    keys = played.answer(2)[52:]
    for public in (bytes(32), (1).to_bytes(32, "little")):  # of a small order
        body = keys[:at] + public + keys[at + 32 :]
        played.server_refuses("keys of 2 are refused: one gives no shared secret", 2, KEYS=body)
    assert played.server.missing == (1, 2, 3, 4)


def test_shares_must_be_for_all_others() -> None:
    played = start(make_params()).until(Stage.SHARES)
    shares = played.listed(played.answer(1), MessageKind.SHARES)
    for changed in ({2: shares[2], 3: shares[3]}, shares | {1: shares[2]}):
        played.server_refuses("not for the others that have keys", 1, SHARES=changed)


def test_masked_input_of_another_sender_or_round() -> None:
    played = start(make_params()).until(Stage.MASKED)
    played.server_refuses("2 has sent a message of 1", 2, MASKED=played.answer(1)[52:])
    about = {"round_index": 5, "fingerprint": played.params.fingerprint, "sender": 2}
    for change, message in (({"round_index": 9}, "of round 9"), ({"count": 2}, "sum of 2 mess")):
        wire = Message(LAYOUT, played.inputs[2], **about | change)  # type: ignore[arg-type]
        reply = played.forged(MessageKind.MASKED, wire.to_bytes(), sender=2)
        refused(WireError, message, played.server.collect, reply)
    assert played.server.missing == (1, 2, 3, 4)


def test_a_signature_must_be_of_what_was_sent() -> None:
    played = start(make_params(signed=True)).until(Stage.CONSISTENCY)
    reply = played.forged(MessageKind.CONSISTENCY, played.answer(1)[52:], sender=2)
    refused(RefusedError, "does not fit", played.server.collect, reply)


def test_shares_of_the_wrong_kind_are_refused() -> None:
    """Of both secrets of a member, the server takes only the one that it asked for."""
    played = start(make_params()).until(Stage.UNMASK, {4: Stage.MASKED})
    values = played.listed(played.answer(1), MessageKind.UNMASK)
    assert [values[index][0] for index in (1, 2, 3, 4)] == [1, 1, 1, 0]
    few = {index: values[index] for index in (1, 2)}
    without_own = {index: values[index] for index in (2, 3, 4)}
    for changed, message in (
        (values | {4: b"\x01" + values[4][1:]}, "other shares than those that were asked for"),
        (values | {4: b"\x02" + values[4][1:]}, "other shares than those that were asked for"),
        (few, "1 has left out more shares than a member may"),
        (without_own, "1 has left out more shares than a member may"),
        (values | {2: b"\x01" + PRIME.to_bytes(33, "little")}, "not a number of the field"),
    ):
        played.server_refuses(message, 1, UNMASK=changed)


def test_members_of_another_agreement_are_not_understood() -> None:
    """A server that tells a member a lower threshold than the others gets nothing from it."""
    server = SecureSumServer(make_params(4, threshold=4))
    lower = make_client(1, make_params(4, threshold=3))
    with pytest.raises(RefusedError, match="another run, round or agreement"):
        lower.answer(server.requests()[1], lambda: torch.zeros(0))
