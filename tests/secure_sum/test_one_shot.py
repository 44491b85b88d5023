"""One-shot sums with two aggregators: totals, and adversaries, each beside a control.

A chi-square test fails by chance with the probability `CHANCE` of `test_secrecy`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import diffsketch.secure_sum.one_shot as module
from diffsketch.errors import ArgumentError
from diffsketch.secure_sum import (
    OneShotClient,
    OneShotHelper,
    OneShotLeader,
    OneShotParams,
    RefusedError,
    masks,
    primitives,
)
from diffsketch.secure_sum.messages import ENVELOPE_BYTES, MessageKind, pack_list, pack_message
from diffsketch.wire import SERVER, DuplicateError, Message, MessageFormat, WireError
from tests.helpers.refusals import refused
from tests.secure_sum.helpers import LAYOUT, flipped, identity, plain_sum
from tests.secure_sum.test_secrecy import BITS, CELLS, are_uniform_together, is_uniform
from tests.secure_sum.test_secrecy import LAYOUT as LONG

SECRET = hashlib.sha256(b"the helper").digest()
MEMBERS = range(1, 6)
PUBLIC = {index: identity(index).public for index in MEMBERS}


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "memory"


def helper_of(memory: Path, *, signed: bool = True, secret: bytes = SECRET) -> OneShotHelper:
    """A helper as it is after a start: it has nothing but its key, its memory and the clients."""
    return OneShotHelper(secret, memory, identities=PUBLIC if signed else None)


def params_of(**changes: Any) -> OneShotParams:
    values: dict[str, Any] = {
        "run": b"a run of the tests", "round_index": 5, "fingerprint": bytes(range(8)),
        "min_present": 3, "helper": OneShotHelper(SECRET, "").public, "plan": "a plan",
    } | changes  # fmt: skip
    return OneShotParams(values.pop("layout", LAYOUT), **values)


def stream_of(seed: bytes) -> Any:
    """Randomness that is the same in every run."""
    numbers = count()
    return lambda size: hashlib.shake_256(seed + b"%d" % next(numbers)).digest(size)


def client_of(index: int, params: OneShotParams, seed: bytes = b"") -> OneShotClient:
    who = identity(index) if params.signed else None
    randomness = {"randomness": stream_of(seed + b"client %d " % index)} if seed else {}
    return OneShotClient(index, params.helper, identity=who, **randomness)


def inputs_of(layout: MessageFormat = LAYOUT) -> dict[int, Tensor]:
    random = torch.Generator().manual_seed(1)
    return {
        index: torch.randint(0, 1 << layout.bits, layout.shape, generator=random)
        for index in MEMBERS
    }


def messages_of(
    params: OneShotParams, inputs: Mapping[int, Tensor] | None = None, seed: bytes = b""
) -> dict[int, bytes]:
    inputs = inputs_of(params.layout) if inputs is None else inputs
    return {
        index: client_of(index, params, seed).mask(cells, params)
        for index, cells in inputs.items()
    }  # fmt: skip


def leader_of(params: OneShotParams, messages: Mapping[int, bytes]) -> OneShotLeader:
    leader = OneShotLeader(params)
    for index, data in messages.items():
        assert leader.collect(data) == index
    return leader


def summed(
    helper: OneShotHelper, params: OneShotParams, messages: Mapping[int, bytes]
) -> tuple[dict[int, str], Tensor]:
    """Who is left out of the sum of these messages, and the sum."""
    leader = leader_of(params, messages)
    return leader.take(helper.answer(leader.request(), params)), leader.total().cells


def seal_of(message: bytes, params: OneShotParams) -> bytes:
    return message[-params.seal_bytes :]


@pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])
@pytest.mark.parametrize("bits", [1, 8, 18, 32, 33, 62])
def test_the_total_is_the_plain_sum_of_those_who_came(
    bits: int, signed: bool, memory: Path
) -> None:
    """Whoever is silent; in one request or in several; and for the next round's channels."""
    layout, helper = replace(LAYOUT, bits=bits), helper_of(memory, signed=signed)
    inputs = inputs_of(layout)
    clients = {index: client_of(index, params_of(signed=signed)) for index in MEMBERS}
    for place, present in enumerate([(1, 2, 3, 4, 5), (1, 3, 5), (2, 3, 4)]):
        params = params_of(layout=layout, signed=signed, round_index=place)
        leader = OneShotLeader(params)
        for index in present:
            leader.collect(clients[index].mask(inputs[index], params), sent_by=index)
            if place == 1:  # one by one
                assert leader.take(helper.answer(leader.request(last=False), params)) == {}
        assert leader.take(helper.answer(leader.request(), params)) == {}
        total = leader.total()
        assert total.present == present
        assert torch.equal(total.cells, plain_sum(inputs, present, bits))


def test_what_a_client_sends() -> None:
    """Sizes that are documented; and bytes that must not change without a new version."""
    params, open_params = params_of(), params_of(signed=False)
    data = client_of(1, params, b"known").mask(inputs_of()[1], params)
    assert len(data) == 48 + 15 + 156 == LAYOUT.full_bytes + params.seal_bytes
    assert open_params.seal_bytes == 92
    assert hashlib.sha256(data).hexdigest()[:16] == "4319d3de0b7c087d"
    again = client_of(1, params, b"known").mask(inputs_of()[1], params)
    assert again == data
    assert client_of(1, params).mask(inputs_of()[1], params) != data


def test_a_channel_never_uses_a_nonce_twice() -> None:
    """Two seals of one round have one key: with one nonce their difference would show."""
    params, client, bare = params_of(), client_of(1, params_of()), bytes(32)
    first, second = (client.seal(bare, params)[96:] for _ in range(2))
    assert first[: primitives.NONCE_BYTES] != second[: primitives.NONCE_BYTES]
    assert first[primitives.NONCE_BYTES :] != second[primitives.NONCE_BYTES :]


# A server that asks twice, for too few, or with clients of its own.


def test_no_second_set_in_a_round(memory: Path) -> None:
    """Not to this helper, nor after a restart; the same set again has the same sum."""
    params, inputs = params_of(), inputs_of()
    messages = messages_of(params, inputs)
    fewer = {index: data for index, data in messages.items() if index != 1}
    helper = helper_of(memory)
    _, first = summed(helper, params, messages)
    for asked in (helper, helper_of(memory)):
        refused(RefusedError, "another reply was given", summed, asked, params, fewer)
        assert torch.equal(summed(asked, params, messages)[1], first)
    # Control: a helper that forgets gives a client away, as the difference of two sums.
    _, second = summed(helper_of(memory / "another"), params, fewer)
    assert torch.equal(first - second & (1 << 20) - 1, inputs[1])
    # And another round is another set.
    other = params_of(round_index=6)
    assert summed(helper, other, messages_of(other, inputs))[0] == {}


def test_no_set_below_the_minimum(memory: Path) -> None:
    """It spoils nothing: the round may still be answered. The server cannot lower the minimum."""
    params, helper = params_of(), helper_of(memory)
    messages = messages_of(params)
    two = {index: messages[index] for index in (1, 2)}
    few, lowered = "2 clients are in the sum, and 3 are needed", params_of(min_present=2)
    refused(RefusedError, few, summed, helper, params, two)
    none = "0 clients are in the sum, and 2 are needed"
    refused(RefusedError, none, summed, helper, lowered, two)
    assert summed(helper, params, messages)[0] == {}  # control
    refused(ArgumentError, "min_present must be >= 2", params_of, min_present=1)


def test_no_sum_with_invented_clients(memory: Path) -> None:
    """Clients that the helper does not know, or whose names a server takes, are left out."""
    params, inputs = params_of(), inputs_of()
    real = {1: client_of(1, params).mask(inputs[1], params)}
    strangers = {index: client_of(index, params).mask(inputs[2], params) for index in (7, 8)}
    fakes = {
        index: OneShotClient(index, params.helper, identity=identity(9)).mask(inputs[2], params)
        for index in (2, 3)
    }
    sent, helper = real | strangers | fakes, helper_of(memory)
    refused(RefusedError, "1 clients are in the sum", summed, helper, params, sent)
    leader = leader_of(params, sent)
    reasons = leader.take(helper.answer(leader.request(last=False), params))
    assert reasons == {
        2: "its identity has not signed its channel key",
        3: "its identity has not signed its channel key",
        7: "its identity is not one that the helper knows",
        8: "its identity is not one that the helper knows",
    }
    # Control: without identities the same server has the real client's input.
    params = params_of(signed=False)
    known = dict.fromkeys((2, 3), torch.zeros(LAYOUT.shape, dtype=torch.int64))
    sent = messages_of(params, {1: inputs[1]} | known)
    assert torch.equal(summed(helper_of(memory, signed=False), params, sent)[1], inputs[1])


ALTERED = "its seed was altered, or is not of this round, plan, client and helper"


@pytest.mark.parametrize(
    "changes",
    [
        {"round_index": 4}, {"run": b"another run of the tests"}, {"plan": "another plan"},
        {"fingerprint": bytes(8)}, {"min_present": 4},
        {"layout": replace(LAYOUT, method="skellam")}, {"layout": replace(LAYOUT, dim=10)},
        {"layout": replace(LAYOUT, bits=19)},
        {"helper": OneShotHelper(bytes(range(32)), "").public},
    ],
    ids=str,
)  # fmt: skip
def test_a_seed_of_anything_else_is_left_out(changes: dict[str, Any], memory: Path) -> None:
    """A replayed one, or one that a client was talked into by another helper, plan or minimum."""
    params, other, inputs = params_of(), params_of(**changes), inputs_of()
    cells = inputs[1] & (1 << 19) - 1
    messages = messages_of(params, inputs)
    foreign = seal_of(client_of(1, other).mask(cells, other), other)
    changed = messages | {1: messages[1][: -params.seal_bytes] + foreign}
    reason = "its identity has not signed its channel key" if "helper" in changes else ALTERED
    reasons, total = summed(helper_of(memory), params, changed)
    assert reasons == {1: reason}
    # The others' sum is right; and, as a control, so is that with the right seed.
    assert torch.equal(total, plain_sum(inputs, (2, 3, 4, 5)))
    assert summed(helper_of(memory / "new"), params, messages)[0] == {}
    assert other.context != params.context


def test_a_seed_of_another_client_or_with_any_byte_changed_is_left_out(memory: Path) -> None:
    params, helper = params_of(), helper_of(memory)
    messages = messages_of(params)
    seals = {index: seal_of(data, params) for index, data in messages.items()}

    def left_out(index: int, seal: bytes) -> dict[int, str]:
        data = messages | {index: messages[index][: -params.seal_bytes] + seal}
        leader = leader_of(params, data)
        return leader.take(helper.answer(leader.request(last=False), params))

    assert left_out(1, seals[1]) == {}  # control
    unsigned = "its identity has not signed its channel key"
    assert left_out(1, seals[2]) == {1: unsigned}
    fresh = [client_of(1, params).seal(bytes(32), params) for _ in range(2)]
    # The public key of the channel, its signature (until it is known), nonce, seed, tag.
    for place in range(params.seal_bytes):
        reasons = left_out(1, flipped(fresh[0], place))
        assert reasons == {1: unsigned if place < 96 else ALTERED}, place
    assert left_out(1, fresh[0][:96] + fresh[1][96:]) == {1: ALTERED}
    # Known by now, the channel needs no signature: whoever has no secret of it can still seal none.
    assert left_out(1, seals[1]) == left_out(1, flipped(seals[1], 40)) == {}
    # Where nobody signs, the key of a seal has its client in it.
    bare = params_of(signed=False)
    sent = messages_of(bare)
    sent[1] = sent[1][: -bare.seal_bytes] + seal_of(sent[2], bare)
    assert summed(helper_of(memory, signed=False), bare, sent)[0] == {1: ALTERED}


def test_a_seed_counts_once(memory: Path) -> None:
    """A server that sends one again does not change the weight of its client."""
    params, helper, inputs = params_of(), helper_of(memory), inputs_of()
    messages = messages_of(params, inputs)
    leader = leader_of(params, messages)
    leader.take(helper.answer(leader.request(last=False), params))
    seal = {1: seal_of(messages[1], params)}
    leader._asked = {1: (leader._set.words, seal[1])}  # the words do not count either
    body = module._BATCH.pack(1, True) + leader._greeting + pack_list(seal)
    leader._request = pack_message(MessageKind.SEEDS, body, context=params.context)
    reasons = leader.take(helper.answer(leader._request, params))
    assert reasons == {1: "its seed is in the sum already"}
    assert torch.equal(leader.total().cells, plain_sum(inputs, tuple(MEMBERS)))
    # Twice in one request it is no list.
    twice = pack_list({1: seal[1]})
    body = module._BATCH.pack(0, True) + leader._greeting + b"\2\0\0\0" + twice[4:] * 2
    data = pack_message(MessageKind.SEEDS, body, context=params.context)
    refused(RefusedError, "a repetition", helper.answer, data, params)


def test_a_client_that_sends_different_things_to_both(memory: Path) -> None:
    """Its seed is not that of its mask: the total is uniform noise, and nobody's input shows."""
    layout = LONG
    params = params_of(layout=layout)
    inputs = {index: torch.zeros(layout.shape, dtype=torch.int64) for index in MEMBERS}
    messages = messages_of(params, inputs, b"different")

    assert not summed(helper_of(memory), params, messages)[1].any()  # control
    other = client_of(1, params, b"another").seal(bytes(32), params)
    messages[1] = messages[1][: -params.seal_bytes] + other
    reasons, total = summed(helper_of(memory / "new"), params, messages)
    assert reasons == {}
    assert is_uniform(total)


# Either operator alone.


@pytest.fixture
def coupled(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Masks that are random words of a table, in place of AES's: what a simulator draws.

    `shift` is added to the mask of a seed's client.
    """
    table: dict[str, Any] = {"shift": {}}

    def mask(seed: bytes, index: int, params: OneShotParams, _: str) -> Any:
        random = np.random.default_rng(int.from_bytes(seed[:8], "little"))
        words = random.integers(0, 1 << 32, params.layout.cell_count, np.uint32)
        return words + table["shift"].get(index, np.uint32(0))

    monkeypatch.setattr(masks, "seed_mask", mask)
    return table


def view_of(inputs: Mapping[int, Tensor], memory: Path) -> dict[str, list[bytes]]:
    """All that each operator receives in a round, with randomness that is the same each time."""
    params = params_of()
    helper, leader = helper_of(memory), OneShotLeader(params, randomness=stream_of(b"leader"))
    messages = messages_of(params, inputs, b"view")
    for data in messages.values():
        leader.collect(data)
    request = leader.request()
    answer = helper.answer(request, params)
    leader.take(answer)
    return {"helper": [request], "leader": [*messages.values(), answer]}


def test_the_helper_alone_sees_nothing_of_the_inputs(memory: Path) -> None:
    """What it receives is the same, byte by byte, whatever the inputs are."""
    zeros = {index: torch.zeros(LAYOUT.shape, dtype=torch.int64) for index in MEMBERS}
    first = view_of(inputs_of(), memory / "1")["helper"]
    assert first == view_of(zeros, memory / "2")["helper"]
    # Control: a message of which the leader would pass all on.
    assert view_of(zeros, memory / "3")["leader"] != view_of(inputs_of(), memory / "4")["leader"]


def test_the_leader_alone_sees_nothing_but_the_total(coupled: dict[str, Any], memory: Path) -> None:
    """Inputs with the same total give it the same view, under masks that are as likely.

    For any two such inputs, `mask -> mask + difference` maps the masks of the first onto those of
    the second, and both are uniform: so the view's distribution depends on the total alone. (AES
    in counter mode stands for random masks, and a sealed seed for nothing: assumptions.)
    """
    inputs, other = inputs_of(), inputs_of()
    moved = torch.full(LAYOUT.shape, 12_345)
    other[1], other[2] = (other[1] + moved) % (1 << 20), (other[2] - moved) % (1 << 20)
    first = view_of(inputs, memory / "1")["leader"]
    assert view_of(other, memory / "2")["leader"] != first  # control: as messages they differ
    coupled["shift"] = {
        index: (other[index] - inputs[index]).numpy().reshape(-1).astype(np.uint32)
        for index in inputs
    }
    assert view_of(other, memory / "3")["leader"] == first
    # Control: with another total, no masks hide that.
    other[3] = (other[3] + 1) % (1 << 20)
    assert view_of(other, memory / "4")["leader"] != first


def masked_of(cells: Tensor, index: int = 1, **changes: Any) -> Tensor:
    params = params_of(layout=LONG, **changes)
    data = client_of(index, params, b"masked").mask(cells, params)
    message = Message.from_bytes(
        data[: LONG.full_bytes], LONG, round_index=params.round_index,
        fingerprint=params.fingerprint,
    )  # fmt: skip
    return message.cells.flatten()


def test_masked_cells_look_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where a client's randomness is set back: masks depend on round, plan and client."""
    zeros = torch.zeros(LONG.shape, dtype=torch.int64)
    first, largest = masked_of(zeros), masked_of(zeros + (1 << BITS) - 1)
    others = [masked_of(zeros, plan="another"), masked_of(zeros, round_index=6)]
    assert is_uniform(first)
    assert is_uniform(largest)
    for other in (*others, masked_of(zeros, index=2)):
        assert are_uniform_together(first, other)
    # Controls: no mask, one that is repeated, and one of fewer bits.
    assert not are_uniform_together(first, largest)
    expand = masks.expand
    monkeypatch.setattr(masks, "expand", lambda key, layout: expand(key, layout) >> 29)
    assert not is_uniform(masked_of(zeros))
    monkeypatch.setattr(masks, "expand", lambda *_: np.zeros(CELLS, np.uint32))
    assert not is_uniform(masked_of(zeros))


# What neither takes.


def test_an_answer_of_anybody_else_is_refused(memory: Path) -> None:
    params, helper = params_of(), helper_of(memory)
    messages = messages_of(params)
    leader, again = leader_of(params, messages), leader_of(params, messages)
    answer = helper.answer(leader.request(), params)
    for place in (0, 20, ENVELOPE_BYTES, ENVELOPE_BYTES + 40, len(answer) - 1):
        with pytest.raises(RefusedError):
            leader.take(flipped(answer, place))
    body = flipped(answer, len(answer) - 1)[ENVELOPE_BYTES:]  # with a checksum that fits
    forged = pack_message(MessageKind.SEED_SUM, body, context=params.context)
    for replayed in (forged, helper.answer(again.request(), params)):  # to another leader's key
        refused(RefusedError, "the answer is not the helper's", leader.take, replayed)
    assert leader.take(answer) == {}
    refused(RefusedError, "to another request", leader.take, answer)


def test_an_answer_about_other_clients_is_refused(memory: Path) -> None:
    """A server that leaves clients out behind the helper's back, or its memory, gets no total."""
    params, helper = params_of(), helper_of(memory)
    leader = leader_of(params, messages_of(params))
    answer = helper.answer(leader.request(), params)
    leader._asked.pop(1)
    refused(RefusedError, "is not of the clients that were asked for", leader.take, answer)


def test_a_helper_that_answers_what_none_should(memory: Path) -> None:
    """It has the key for the tag, and can spoil a sum; not more, and no input comes out alone."""
    params, inputs = params_of(), inputs_of()
    leader = leader_of(params, messages_of(params, inputs))
    batch = leader.request()[ENVELOPE_BYTES:][: module._BATCH.size]

    def answer(left_out: bytes, indices: tuple[int, ...], end: bytes) -> bytes:
        tail = module._SET.pack(len(indices), module._digest(indices)) + bytes(15) + end
        body = batch + left_out + tail
        tag = module._tag(leader._key, body, params)
        return pack_message(MessageKind.SEED_SUM, tag + body, context=params.context)

    unknown = [b"\1"]
    other_form = "another form than those of helpers"
    all_but_two = pack_list(dict.fromkeys((3, 4, 5), *unknown))
    for left_out, indices, end, reason in (
        (pack_list({1: b"\x09"}), (2, 3, 4, 5), b"", other_form),  # for no reason that there is
        (pack_list(dict.fromkeys((77,), *unknown)), tuple(MEMBERS), b"", other_form),
        (pack_list({}), tuple(MEMBERS), b"\0", other_form),
        (b"\xff\xff\xff\xff", tuple(MEMBERS), b"", "which is not 4294967295 records"),
        (pack_list({}), (1, 2), b"", "not of the clients that were asked for"),
        (all_but_two, (1, 2), b"", "the helper leaves 2 clients in the sum"),
    ):
        refused(RefusedError, reason, leader.take, answer(left_out, indices, end))
    # Nothing has changed by that; and, as a control, such an answer is taken where it fits.
    assert leader.take(helper_of(memory).answer(leader.request(), params)) == {}
    assert torch.equal(leader.total().cells, plain_sum(inputs, tuple(MEMBERS)))
    again = leader_of(params, messages_of(params, inputs))
    again._key = leader._key
    again.request()
    assert list(
        again.take(answer(pack_list(dict.fromkeys((4,), *unknown)), (1, 2, 3, 5), b""))
    ) == [4]


def test_a_claimed_size_takes_no_memory(memory: Path) -> None:
    """Of vectors of four terabytes: no client has sealed a seed for such a format."""
    params = params_of()
    huge = params_of(layout=MessageFormat("skellam", 1 << 40, (1 << 40,), "unsigned", 20))
    leader = OneShotLeader(huge)
    for index, data in messages_of(params).items():
        leader._waiting[index] = np.zeros(1, np.uint32), seal_of(data, params)
    with pytest.raises(RefusedError, match="0 clients are in the sum"):
        helper_of(memory).answer(leader.request(), huge)


def test_requests_that_the_helper_refuses(memory: Path) -> None:
    params, helper = params_of(), helper_of(memory)
    leader = leader_of(params, messages_of(params))
    request = leader.request()
    short = pack_message(MessageKind.SEEDS, b"", context=params.context)
    body = request[ENVELOPE_BYTES:]
    by_client = pack_message(MessageKind.SEEDS, body, sender=1, context=params.context)
    for data in (short, by_client):
        refused(RefusedError, "not a request of a leader", helper.answer, data, params)
    for data in (request[:-1], request + b"\0", request[:60] + b"\1" + request[61:]):
        with pytest.raises(RefusedError):
            helper.answer(data, params)
    refused(RefusedError, "its context differs", helper.answer, request, params_of(plan="another"))
    with pytest.raises(ArgumentError, match="have this helper's key"):
        helper.answer(request, params_of(helper=bytes(range(32))))
    with pytest.raises(ArgumentError, match="sign if it knows clients"):
        helper_of(memory, signed=False).answer(request, params)
    assert leader.take(helper.answer(request, params)) == {}


def test_requests_of_a_round_come_in_order(memory: Path) -> None:
    """Each once, and not after a restart that has forgotten those before, or another round."""
    params, helper, other = params_of(), helper_of(memory), params_of(round_index=6)
    leader = leader_of(params, messages_of(params))
    first = helper.answer(leader.request(last=False), params)
    leader.take(first)
    second = leader.request(last=False)
    refused(RefusedError, "the answer is to another request", leader.take, first)
    for asked in (helper_of(memory), helper):
        if asked is helper:
            leader.take(helper.answer(second, params))
        with pytest.raises(RefusedError, match="request 1 of the round is out of order"):
            asked.answer(second, params)
    begun = leader_of(other, messages_of(other))
    begun.take(helper.answer(begun.request(last=False), other))
    with pytest.raises(RefusedError, match="request 2 of the round is out of order"):
        helper.answer(leader.request(), params)


def test_messages_that_the_leader_refuses() -> None:
    params, cells = params_of(), inputs_of()[1]
    messages = messages_of(params)
    with pytest.raises(DuplicateError, match="1 has sent a message in this round before"):
        leader_of(params, messages).collect(client_of(1, params).mask(cells, params))
    leader, later = OneShotLeader(params), params_of(round_index=6)
    server = OneShotClient(SERVER, params.helper, identity=identity(1))
    for data, sent_by, why in (
        (messages[1], 2, "2 has sent a message of 1"),
        (messages[1][:-1], None, "are expected"),
        (flipped(messages[1], 50), None, "altered"),
        (client_of(1, later).mask(cells, later), None, "of round 6"),
        (server.mask(cells, params), None, "has sent a message of"),
    ):
        refused(WireError, why, leader.collect, data, sent_by=sent_by)
    refused(ArgumentError, "after the answer to the last request", leader.total)
    assert leader.collect(messages[1]) == 1


def test_arguments() -> None:
    params, cells = params_of(), inputs_of()[1]
    client = client_of(1, params)
    for wrong in (params_of(signed=False), params_of(helper=bytes(range(32)))):
        with pytest.raises(ArgumentError, match="params must have the helper of this client"):
            client.mask(cells, wrong)
    for outside in (-1, 1 << 20, (1 << 32) + 5):
        with pytest.raises(ArgumentError, match=r"cells must be in \[0, 1048576\)"):
            client.mask(torch.full(LAYOUT.shape, outside), params)
    refused(ArgumentError, "run must be 16 to 64 bytes", params_of, run=b"short")
    refused(ArgumentError, "helper must be a public key", params_of, helper=b"short")
    with pytest.raises(ArgumentError, match="layout must have unsigned cells"):
        params_of(layout=replace(LAYOUT, cells="signed"))
    refused(RefusedError, "it has no secret", OneShotClient, 1, bytes(32))
    leader: Any = OneShotLeader(params)
    for take in (leader.collect, leader.take):
        refused(ArgumentError, "data must be bytes, got NoneType", take, None)
