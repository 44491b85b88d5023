"""Replies that nobody should trust: they change nothing but a count."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsketch.errors import ArgumentError
from diffsketch.flower import FlowerPlan
from diffsketch.flower.aggregation import Round, UsualSize, noised_zeros, plain_sum
from diffsketch.flower.records import PROTOCOL, Reply, digest_of
from diffsketch.methods.client_noise import ClientNoise
from diffsketch.sketch import SketchKey
from diffsketch.wire import Message as WireMessage
from diffsketch.wire import MessageFormat
from tests.flower import network as net
from tests.flower.network import BAD, DIM, FIRST, KEY
from tests.flower.network import SKETCH as PLAN
from tests.helpers.refusals import refused
from tests.helpers.silent import silence

Change = Callable[[Message, Message], list[Message]]
"""From the bad node's reply, and an older one, to what arrives."""


PLACE: dict[str, Any] = {"round_index": 1, "fingerprint": KEY.seed(1).fingerprint}
"""The round whose replies are changed."""


def with_record(message: Message, /, **values: Any) -> Message:
    net.our_record(message).update(values)
    return message


def _wire(**changes: Any) -> bytes:
    """The node's own message, made anew with other numbers."""
    layout = changes.pop("format", PLAN.build(DIM).message_format)
    about = PLACE | {"sender": BAD} | changes
    return WireMessage(layout, torch.full(layout.shape, 1e6), **about).to_bytes()


def _flipped(message: Message) -> bytes:
    data = bytearray(net.bytes_of(message))
    data[60] ^= 1
    return bytes(data)


def _in_the_name_of(node: int, message: Message) -> bytes:
    """The node's own message, as long as honest ones, with another sender."""
    layout = PLAN.build(DIM).message_format
    honest = WireMessage.from_bytes(net.bytes_of(message), layout, **PLACE)
    return WireMessage(layout, honest.cells, **PLACE, sender=node).to_bytes()


OTHER = MessageFormat("laplace", DIM, (DIM,), "float32", 32)
ATTACKS: dict[str, Change] = {
    "lost": lambda _new, _old: [],
    "error": lambda new, _old: [Message(Error(0, "broken"), reply_to=_asked(new))],
    "old reply": lambda _new, old: [old],
    "old message": lambda new, old: [net.set_bytes(new, net.bytes_of(old))],
    "other round": lambda new, _old: [net.set_bytes(new, _wire(round_index=7))],
    "other key": lambda new, _old: [net.set_bytes(new, _wire(fingerprint=bytes(8)))],
    "other sender": lambda new, _old: [net.set_bytes(new, _in_the_name_of(1000, new))],
    "other method": lambda new, _old: [net.set_bytes(new, _wire(format=OTHER))],
    "many at once": lambda new, _old: [net.set_bytes(new, _wire(count=50))],
    "flipped bit": lambda new, _old: [net.set_bytes(new, _flipped(new))],
    "cut": lambda new, _old: [net.set_bytes(new, net.bytes_of(new)[:-1])],
    "empty": lambda new, _old: [net.set_bytes(new, b"")],
    "garbage": lambda new, _old: [net.set_bytes(new, b"\x00garbage" * 9)],
    "huge": lambda new, _old: [net.set_bytes(new, net.bytes_of(new) + bytes(1 << 22))],
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
    del net.our_record(message)[name]
    return message


def _plain(message: Message) -> Message:
    """What a client without the mod would send."""
    arrays = net.record_of(torch.full((DIM,), 1e6))
    metrics = MetricRecord({"num-examples": 1000})
    message.content = RecordDict({"arrays": arrays, "metrics": metrics})
    return message


def run(change: Change | None, *, key: SketchKey | None = KEY, dead: bool = False) -> Any:
    """Two rounds; what the bad node sends in the second one is changed."""
    network = net.network_of(PLAN)
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
    strategy = net.strategy_of(PLAN, key=key)
    arrays: ArrayRecord = FIRST
    for server_round in (1, 2):
        arrays = net.one_round(strategy, network, arrays, server_round)
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
CENTRAL = FlowerPlan("sketch-gaussian", {**CLIPPED, "trust": "central"})
TOO_LONG: dict[str, tuple[FlowerPlan, dict[str, Any]]] = {
    "local": (FlowerPlan("sketch-gaussian", CLIPPED), {}),
    "limit": (PLAN, {"limit": 50.0}),
    "median": (PLAN, {}),
}
OTHERS = {"central": (CENTRAL, {}), "no limit": (PLAN, {"limit": math.inf})}


def long_run(name: str, value: float | None, *, key: SketchKey | None = KEY) -> Any:
    """A round of ten in which one sends the same value in every cell; or nothing."""
    plan, options = {**TOO_LONG, **OTHERS}[name]
    network = net.network_of(plan, 10)
    method = plan.build(DIM)
    layout = method.message_format

    def tamper(replies: list[Message]) -> list[Message]:
        good = [one for one in replies if one.metadata.src_node_id != BAD]
        (bad,) = (one for one in replies if one.metadata.src_node_id == BAD)
        if value is None:
            return good
        about: Any = {"round_index": 0, "fingerprint": KEY.seed(0).fingerprint, "sender": BAD}
        cells = torch.full(layout.shape, value)
        if isinstance(method, ClientNoise):  # the most that the bits can say
            steps = value / method.mechanism.quantizer.granularity
            cells = cells.new_full(layout.shape, min(int(steps), layout.limits[1] - 1)).long()
        return [*good, net.set_bytes(bad, WireMessage(layout, cells, **about).to_bytes())]

    network.tamper = tamper
    strategy = net.strategy_of(plan, key=key, **options)
    with silence():
        return strategy, net.one_round(strategy, network, FIRST, 1)


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


@pytest.mark.parametrize(("value", "key"), [(1e6, None), (1e6, KEY), (3.4e38, KEY)])
def test_under_central_trust_it_counts_as_zeros(value: float, key: Any) -> None:
    """And nothing says so: whom the server refuses would depend on data that only it may see."""
    ((_, total),) = long_run("central", value, key=key)[0].totals
    ((_, zeros),) = long_run("central", 0.0, key=key)[0].totals
    assert total == zeros
    (report,) = long_run("central", value, key=key)[0].reports
    assert (len(report.present), report.refused, report.void) == (10, {}, "")


@pytest.mark.parametrize("name", [*TOO_LONG, *OTHERS])
def test_what_an_honest_client_might_send_is_not(name: str) -> None:
    """In every cell so much that the norm is the clip; and without a limit, anything."""
    value = 1e6 if name == "no limit" else 2.0 / (3 * 16) ** 0.5
    assert len(long_run(name, value)[0].reports[0].present) == 10


@pytest.mark.parametrize(("limit", "is_refused"), [(None, True), (math.inf, False)])
def test_a_false_weight_is_refused(limit: float | None, is_refused: bool) -> None:
    """The control, without a limit: with 2**40 for 8 all others count as nothing."""
    network = net.network_of(PLAN, 6)
    network.tamper = net.of_bad(lambda reply: with_record(reply, weight=2**40))
    strategy = net.strategy_of(PLAN, limit=limit)
    arrays = net.one_round(strategy, network, FIRST, 1)
    (report,) = strategy.reports
    assert (BAD in report.refused) == is_refused
    assert len(report.present) == (5 if is_refused else 6)
    moved = float(torch.linalg.vector_norm(net.weights_of(arrays)))
    assert (moved > 0.1) == is_refused
    if is_refused:
        assert report.refused[BAD].startswith("weight must be at most 800 here, 100 times the med")


def test_the_usual_size_is_that_of_one_example() -> None:
    """Who has 50 times as many sends a message 50 times as long, and is not refused for it."""
    network = net.Network()
    for number, examples in enumerate((8, 8, 400, 8)):
        network.join(number, PLAN, key=KEY, config={"examples": examples})
    (report,) = net.started(PLAN, network).reports
    assert (len(report.present), report.refused) == (4, {})


def test_limits_of_any_size_are_announced(caplog: pytest.LogCaptureFixture) -> None:
    net.strategy_of(PLAN)
    assert "limit" not in caplog.text
    net.strategy_of(PLAN, limit=math.inf)
    assert "limit=inf: messages of any norm and weight are summed" in caplog.text
    refused(ArgumentError, "limit must be", net.strategy_of, PLAN, limit=-1.0)


@given(
    st.lists(st.floats(0.5, 4.9), min_size=1, max_size=9),
    st.lists(st.sampled_from([1e6, 3.4e38, 50.001]), max_size=4),
    st.lists(st.just(0.0), max_size=3),
    st.floats(1e-6, 1e6),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_honest_sizes_are_never_refused_and_others_are(
    honest: list[float], false: list[float], zeros: list[float], unit: float
) -> None:
    """Sizes within ten times of each other; false ones are beyond ten times the largest of them."""
    usual, few = UsualSize(10.0), len(honest) + len(false) < 3
    low, high = min(honest) * unit, max(honest) * unit
    sizes = [unit * size for size in honest + false + zeros]
    if len(false) > len(honest):
        return
    bound = usual.bound(sizes)
    median = sorted(size * unit for size in honest + false)[(len(honest) + len(false) - 1) // 2]
    assert bound == (math.inf if few else pytest.approx(10 * median))
    if few:
        return
    assert 10 * low <= bound <= 10 * high * (1 + 1e-9)
    assert all(size > bound for size in [1e6 * unit * 5, 3.4e38])
    # What is known holds for rounds with few messages, and follows them.
    assert usual.bound([3.4e38]) <= 10 * high * (1 + 1e-9)
    assert usual.bound([unit * honest[0], 3.4e38]) <= 10 * high * (1 + 1e-9)
    assert usual.bound([]) == pytest.approx(10 * unit * honest[0])


def test_what_counts_as_zeros_has_the_noise_of_its_share() -> None:
    """Without it the sum would have less noise than its claim says.

    Noise of 10 steps or more in 21 cells, of which all are 0 with a probability below 1e-20.
    """
    plan = FlowerPlan("gaussian", {"clip": 2.0, "noise_multiplier": 1.0, "trust": "distributed"}, 3)
    harmless = TOO_LONG["local"][0]
    for one, substitutes, noised in (
        (plan, True, True), (CENTRAL, True, False), (harmless, False, True), (PLAN, False, False),
    ):  # fmt: skip
        strategy, method = net.strategy_of(one, trusted_server=True), one.build(DIM)
        strategy._begin(FIRST)
        assert strategy._substitutes == substitutes
        zeros = noised_zeros(method, method.claim_for(3, KEY.seed(0)))
        assert bool(zeros.count_nonzero() > 0) == noised  # or the server adds it to the sum


def test_without_a_key_a_draw_of_fingerprints_is_nobodys() -> None:
    method = PLAN.build(DIM)
    parts = {
        node: _wire(round_index=0, fingerprint=bytes([node]) * 8, sender=node) for node in (1, 2)
    }
    claim, nodes, grid = method.claim_for(2, KEY.seed(0)), (1, 2), net.network_of(PLAN)
    current = Round(PLAN, method, claim, 0, None, grid, 9.0, bytes(16), nodes)
    plain_sum(current, {node: Reply(bytes(16), "", 0, message=parts[node]) for node in nodes})
    assert current.total is None
    assert set(current.refused) == {1, 2}


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
