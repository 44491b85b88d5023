"""Whatever arrives, at any stage: a `WireError` or an answer, and nothing is changed by a refusal.

Changed messages get a new checksum, so that they come further than accidents do.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsketch.secure_sum import SecureSumClient, SecureSumServer, Stage
from diffsketch.secure_sum.messages import ENVELOPE_BYTES, MessageKind, Params, pack_message
from diffsketch.wire import WireError
from diffsketch.wire.message import SERVER
from tests.secure_sum.helpers import STAGES, LocalRound, identity, make_params, start

KINDS = st.sampled_from(MessageKind)


def resealed(data: bytes, params: Params) -> bytes:
    """The same kind and body with a good envelope."""
    kind = MessageKind(data[3]) if data[3] in list(MessageKind) else MessageKind.KEYS
    sender = int.from_bytes(data[4:12], "little")
    return pack_message(kind, data[ENVELOPE_BYTES:], sender=sender, context=params.context)


def state_of(server: SecureSumServer) -> tuple[object, ...]:
    return server.stage, server.missing, dict(server.dropped), server._sum.tolist()


def refused(server: SecureSumServer, reply: bytes) -> bool:
    before = state_of(server)
    try:
        server.collect(reply)
    except WireError:
        assert state_of(server) == before
        return True
    return False


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(STAGES), KINDS, st.sampled_from([1, 9, SERVER]))
def test_random_bytes(data: bytes, stage: Stage, kind: MessageKind, sender: int) -> None:
    played = start(make_params(3, signed=True), roots=b"fuzz").until(stage)
    params, client = played.server.params, played.clients[1]
    body = pack_message(kind, data, sender=sender, context=params.context)
    assert refused(played.server, data)
    # A body may be right by chance where the stage has nothing to check: masked cells.
    assert refused(played.server, body) or stage is Stage.MASKED
    saved = client.save()
    for request in (data, body):
        try:
            client.answer(request, lambda: played.inputs[1])
        except WireError:
            assert client.save() == saved
        else:
            assert (kind, data, request) == (MessageKind.OPENING, b"", body)
        try:
            SecureSumClient.restore(request, 1, params=params, identity=identity(1))
        except WireError:
            continue
        raise AssertionError("bytes were taken for a saved state")


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[str, int, bytes]]:
    one = st.tuples(
        st.sampled_from(["put", "cut", "insert"]), st.integers(0, 2000), st.binary(max_size=12)
    )
    return draw(st.lists(one, min_size=1, max_size=3))


def changed(data: bytes, how: list[tuple[str, int, bytes]]) -> bytes:
    for what, at, value in how:
        at %= len(data) + 1
        if what == "put":
            data = data[:at] + value + data[at + len(value) :]
        elif what == "cut":
            data = data[:at] + data[at + len(value) :]
        else:
            data = data[:at] + value + data[at:]
    return data


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.sampled_from(STAGES), changes(), st.booleans(), st.booleans())
def test_changed_messages(
    stage: Stage, how: list[tuple[str, int, bytes]], signed: bool, seal: bool
) -> None:
    if not signed and stage is Stage.CONSISTENCY:
        return
    played = start(make_params(3, signed=signed), roots=b"fuzz").until(stage)
    params = played.server.params
    request, reply = played.request(1), played.answer(1)
    for original, answer in ((reply, None), (request, played.clients[2])):
        data = changed(original, how)
        if len(data) < ENVELOPE_BYTES or data == original:
            continue
        if seal:
            data = resealed(data, params)
        if answer is None:
            _check_reply(played, stage, data=data, original=original)
        else:
            try:
                answer.answer(data, lambda: played.inputs[2])
            except WireError:
                continue


def _check_reply(played: LocalRound, stage: Stage, *, data: bytes, original: bytes) -> None:
    """What is taken is what was sent, but for what cannot be known."""
    free = {Stage.MASKED, Stage.SHARES, Stage.UNMASK}  # uniform numbers, all of them possible
    if not played.server.params.signed:
        free.add(Stage.KEYS)
    if not refused(played.server, data):
        assert data == original or stage in free
