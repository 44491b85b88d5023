"""Replies that nobody should trust: they change nothing but a count."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsketch.flower import FlowerPlan
from diffsketch.flower.aggregation import RoundContext, plain_sum
from diffsketch.flower.records import PROTOCOL, Reply, digest_of
from diffsketch.methods.client_noise import ClientNoise
from diffsketch.sketch import SketchKey
from diffsketch.wire import Message as WireMessage
from diffsketch.wire import MessageFormat
from tests.flower.network import (
    BAD,
    DIM,
    FIRST,
    KEY,
    network_of,
    one_round,
    our_record,
    record_of,
    strategy_of,
)
from tests.flower.network import SKETCH as PLAN
from tests.helpers.silent import silence

Change = Callable[[Message, Message], list[Message]]
"""From the bad node's reply, and an older one, to what arrives."""


def with_record(message: Message, /, **values: Any) -> Message:
    our_record(message).update(values)
    return message


def with_message(message: Message, data: bytes) -> Message:
    return with_record(message, message=data)


def _wire(**changes: Any) -> bytes:
    """The node's own message, made anew with other numbers."""
    layout = changes.pop("format", PLAN.build(DIM).message_format)
    values: dict[str, Any] = {
        "round_index": 1,
        "fingerprint": KEY.seed(1).fingerprint,
        "sender": BAD,
        "count": 1,
        **changes,
    }
    return WireMessage(layout, torch.full(layout.shape, 1e6), **values).to_bytes()


def _bytes(message: Message) -> bytes:
    data = our_record(message)["message"]
    assert isinstance(data, bytes)
    return data


def _flipped(message: Message) -> bytes:
    data = bytearray(_bytes(message))
    data[60] ^= 1
    return bytes(data)


OTHER = MessageFormat("laplace", DIM, (DIM,), "float32", 32)
ATTACKS: dict[str, Change] = {
    "lost": lambda _new, _old: [],
    "error": lambda new, _old: [Message(Error(0, "broken"), reply_to=_asked(new))],
    "old reply": lambda _new, old: [old],
    "old message": lambda new, old: [with_message(new, _bytes(old))],
    "other round": lambda new, _old: [with_message(new, _wire(round_index=7))],
    "other key": lambda new, _old: [with_message(new, _wire(fingerprint=bytes(8)))],
    "other sender": lambda new, _old: [with_message(new, _wire(sender=1000))],
    "other method": lambda new, _old: [with_message(new, _wire(format=OTHER))],
    "many at once": lambda new, _old: [with_message(new, _wire(count=50))],
    "flipped bit": lambda new, _old: [with_message(new, _flipped(new))],
    "cut": lambda new, _old: [with_message(new, _bytes(new)[:-1])],
    "empty": lambda new, _old: [with_message(new, b"")],
    "garbage": lambda new, _old: [with_message(new, b"\x00garbage" * 9)],
    "huge": lambda new, _old: [with_message(new, _bytes(new) + bytes(1 << 22))],
    "other version": lambda new, _old: [with_record(new, protocol=PROTOCOL + 1)],
    "version of text": lambda new, _old: [with_record(new, protocol=str(PROTOCOL))],
    "odd types": lambda new, _old: [with_record(new, member=5)],
    "missing": lambda new, _old: [_without(new, "statement")],
    "long member": lambda new, _old: [with_record(new, member="x" * 300)],
    "no record": lambda new, _old: [_plain(new)],
    "own refusal": lambda new, _old: [with_record(new, code="tired", reason="no")],
}


def _asked(reply: Message) -> Message:
    """Something to reply to, for the same node."""
    message = Message(RecordDict(), dst_node_id=reply.metadata.src_node_id, message_type="train")
    message.metadata.__dict__["_message_id"] = "asked"
    return message


def _without(message: Message, name: str) -> Message:
    del our_record(message)[name]
    return message


def _plain(message: Message) -> Message:
    """What a client without the mod would send."""
    arrays = record_of(torch.full((DIM,), 1e6))
    metrics = MetricRecord({"num-examples": 1000})
    message.content = RecordDict({"arrays": arrays, "metrics": metrics})
    return message


def run(change: Change | None, *, key: SketchKey | None = KEY, dead: bool = False) -> Any:
    """Two rounds; what the bad node sends in the second one is changed."""
    network = network_of(PLAN)
    old: list[Message] = []

    def tamper(replies: list[Message]) -> list[Message]:
        (bad,) = (one for one in replies if one.metadata.src_node_id == BAD)
        good = [one for one in replies if one is not bad]
        if not old:
            old.append(bad)
            return replies
        if dead:
            return good
        # The bad one comes first, so that it could take a place.
        return replies if change is None else [*change(bad, old[0]), *good]

    network.tamper = tamper
    strategy = strategy_of(PLAN, key=key)
    arrays: ArrayRecord = FIRST
    for server_round in (1, 2):
        arrays = one_round(strategy, network, arrays, server_round)
    return strategy, arrays


@cache
def without_bad(key: SketchKey | None = KEY) -> Any:
    return run(None, key=key, dead=True)


@pytest.mark.parametrize("key", [KEY, None], ids=["key", "no key"])
@pytest.mark.parametrize("name", ATTACKS)
def test_bad_replies_leave_the_mean_of_the_others(name: str, key: SketchKey | None) -> None:
    strategy, arrays = run(ATTACKS[name], key=key)
    expected, without = without_bad(key)
    assert strategy.totals == expected.totals
    assert digest_of(arrays) == digest_of(without)
    report = strategy.reports[1]
    assert report.present == (1000, 1001)
    assert not report.void
    assert (BAD in report.refused) == (name != "lost")


def test_good_replies_do_change_the_mean() -> None:
    """The negative control; and repeated replies, or a bad one before, do not change it."""
    strategy, arrays = run(None)
    assert strategy.reports[1].present == (1000, 1001, BAD)
    assert digest_of(arrays) != digest_of(without_bad()[1])
    for change in (lambda new, old: [new, new, old], lambda new, old: [old, new]):
        again, same = run(change)
        assert digest_of(same) == digest_of(arrays)
        assert again.reports[1].present == strategy.reports[1].present
        assert again.reports[1].refused == {}


def test_replies_of_nodes_that_were_not_asked_are_refused() -> None:
    def stranger(new: Message, old: Message) -> list[Message]:
        del old
        new.metadata.__dict__["_src_node_id"] = 4242
        return [new]

    strategy, arrays = run(stranger)
    assert digest_of(arrays) == digest_of(without_bad()[1])
    assert strategy.reports[1].refused[4242] == "reply is of a node that was not asked"
    assert strategy.reports[1].silent == (BAD,)


CLIPPED = {"rows": 3, "cols": 16, "clip": 2.0, "noise_multiplier": 0.5}
TOO_LONG: dict[str, tuple[FlowerPlan, dict[str, Any]]] = {
    "central": (FlowerPlan("sketch-gaussian", {**CLIPPED, "trust": "central"}), {}),
    "local": (FlowerPlan("sketch-gaussian", CLIPPED), {}),
    "limit": (PLAN, {"limit": 50.0}),
}


def long_run(name: str, value: float | None, *, key: SketchKey | None = KEY) -> Any:
    """A round of ten in which one sends the same value in every cell; or nothing."""
    plan, options = TOO_LONG.get(name, (PLAN, {}))
    network = network_of(plan, 10)
    method = plan.build(DIM)
    layout = method.message_format

    def tamper(replies: list[Message]) -> list[Message]:
        good = [one for one in replies if one.metadata.src_node_id != BAD]
        (bad,) = (one for one in replies if one.metadata.src_node_id == BAD)
        if value is None:
            return good
        about: dict[str, Any] = {
            "round_index": 0,
            "fingerprint": KEY.seed(0).fingerprint,
            "sender": BAD,
        }
        cells = torch.full(layout.shape, value)
        if isinstance(method, ClientNoise):  # the most that the bits can say
            steps = value / method.mechanism.quantizer.granularity
            cells = cells.new_full(layout.shape, min(int(steps), layout.limits[1] - 1)).long()
        return [*good, with_message(bad, WireMessage(layout, cells, **about).to_bytes())]

    network.tamper = tamper
    strategy = strategy_of(plan, key=key, **options)
    with silence():
        return strategy, one_round(strategy, network, FIRST, 1)


@pytest.mark.parametrize("name", TOO_LONG)
@pytest.mark.parametrize(("value", "key"), [(1e6, None), (1e6, KEY), (3.4e38, KEY)])
def test_what_no_honest_client_sends_is_refused(name: str, value: float, key: Any) -> None:
    """By node and reason; the round counts, with the mean of the others."""
    strategy, arrays = long_run(name, value, key=key)
    expected, without = long_run(name, None, key=key)
    assert strategy.totals == expected.totals
    assert digest_of(arrays) == digest_of(without)
    (report,) = strategy.reports
    assert (report.void, len(report.present)) == ("", 9)
    assert list(report.refused) == [BAD]
    assert "message has a norm of" in report.refused[BAD]


@pytest.mark.parametrize("name", [*TOO_LONG, "no limit"])
def test_what_an_honest_client_might_send_is_not(name: str) -> None:
    """In every cell so much that the norm is the clip; and without a limit, anything."""
    value = 1e6 if name == "no limit" else 2.0 / (3 * 16) ** 0.5
    assert len(long_run(name, value)[0].reports[0].present) == 10


def test_without_a_key_a_draw_of_fingerprints_is_nobodys() -> None:
    method = PLAN.build(DIM)
    layout = method.message_format
    parts = {
        sender: WireMessage(
            layout,
            torch.ones(layout.shape),
            round_index=0,
            fingerprint=bytes([sender]) * 8,
            sender=sender,
        ).to_bytes()
        for sender in (1, 2)
    }
    about = RoundContext(PLAN, method, 0, None, bytes(16))
    summed = plain_sum(parts, about)
    assert summed.total is None
    assert set(summed.refused) == {1, 2}


REPLY = Reply(b"n" * 16, "0", 0)


@given(
    st.dictionaries(
        st.sampled_from(["protocol", *REPLY.__dataclass_fields__, "more"]),
        st.one_of(
            st.integers(-(2**62), 2**62),
            st.text(max_size=9),
            st.binary(max_size=9),
            st.booleans(),
            st.floats(),
            st.lists(st.integers(0, 9), max_size=2),
        ),
    )
)
@settings(max_examples=200, deadline=None)
def test_any_record_is_a_reply_or_refused(values: dict[str, Any]) -> None:
    record = ConfigRecord({**REPLY.to_record(), **values})
    try:
        reply = Reply.of(record)
    except ValueError as error:
        assert type(error).__name__ == "WireError"  # noqa: PT017
        return
    assert Reply.of(reply.to_record()) == reply
