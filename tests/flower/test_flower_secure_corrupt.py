"""Secure sums with members that help the server, members that spoil rounds, and nodes set back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from diffsketch.errors import ArgumentError
from diffsketch.flower import FlowerPlan, SecureClientAggregation, SketchStrategy
from diffsketch.flower.aggregation import ClientContext
from diffsketch.flower.records import SUM_RECORD, SumReply, digest_of
from diffsketch.privacy import Budget
from diffsketch.secure_sum import Params, invite
from diffsketch.secure_sum.messages import (
    _CHECKSUM,
    ENVELOPE_BYTES,
    ENCRYPTED_BYTES,
    Presence,
    _checksum,
)
from tests.flower.flower_secure import SHARES, _copied, bytes_of
from tests.flower.flower_world import DIM, RUN, World, our_record
from tests.flower.test_flower_secure import FIRST, KEY, NODES, PLAN, SETTINGS, run
from tests.flower.test_flower_secure_hostile import BAD, ask, opening, signed_run

FOUR = FlowerPlan("sketch-skellam", SETTINGS, cohort=5, min_replies=4, secure_sum=True, identities=False)
ONE = replace(FOUR, corrupt=1)

# ClientRegistry that pass on what they have.


def test_thresholds_withstand_those_who_are_corrupt() -> None:
    for cohort in range(2, 14):
        for corrupt in range(cohort):
            least = (cohort + corrupt) // 2 + 1
            for replies in range(max(least, 2), cohort + 1):
                plan = FlowerPlan("sketch-skellam", SETTINGS, cohort, replies, True, corrupt)
                for members in range(replies, cohort + 1):
                    assert 2 * plan.threshold(members) > members + corrupt
                    assert plan.threshold(members) <= replies
                assert replies - corrupt >= 1
    # Negative control: as it would be without.
    assert 2 * FlowerPlan("sketch-skellam", SETTINGS, 10, 10, True).threshold(10) <= 10 + 4


def test_plans_without_a_threshold_are_refused() -> None:
    with pytest.raises(
        ArgumentError, match=r"in 4\.\.5 for a secure sum of a cohort of 5 of which"
    ):
        replace(PLAN, corrupt=1)
    with pytest.raises(ArgumentError, match="corrupt must be below cohort=5"):
        replace(PLAN, min_replies=5, corrupt=5)
    with pytest.raises(ArgumentError, match="corrupt must be 0 without secure_sum"):
        replace(ONE, secure_sum=False)
    with pytest.raises(ArgumentError, match="corrupt"):
        replace(ONE, corrupt=-1)
    assert FlowerPlan.parse("cpsgd", "levels=4", cohort=5, min_replies=4, secure_sum=True, corrupt=1)


@pytest.mark.parametrize(("corrupt", "threshold"), [(0, 7), (4, 7), (4, 8)])
def test_a_member_refuses_a_threshold_that_does_not_withstand(corrupt: int, threshold: int) -> None:
    plan = FlowerPlan("sketch-skellam", SETTINGS, 10, 10, True, corrupt, False)
    context = Context(RUN, 1000, {"partition-id": 0}, RecordDict(), {})
    which = Params(
        plan.build(DIM).message_format, run=bytes(16), round_index=0, threshold=threshold,
        fingerprint=KEY.seed(0).fingerprint, members=tuple(range(1000, 1010)), min_present=10,
    )  # fmt: skip
    request = opening(which, plan=plan.describe(DIM), invitation=invite(which))
    reply = ask(request, ClientContext(context, plan, KEY, 1000), SecureClientAggregation())
    refused = 2 * threshold <= 10 + corrupt
    assert ("does not withstand 4 who collude" in reply.reason) == refused
    assert (reply.reply == b"") == refused


def epsilon(count: int) -> float:
    claim = ONE.build(DIM).claim_for(count, KEY.seed(0))
    return claim.epsilon(delta=1e-5, rounds=1).value


def joined(plan: FlowerPlan, **options: Any) -> World:
    world = World()
    for number in range(5):
        world.join(number, plan, key=KEY, **options)
    return world


def started(plan: FlowerPlan, world: World, rounds: int = 1, **options: Any) -> SketchStrategy:
    strategy = SketchStrategy(FedAvg(fraction_evaluate=0.0), plan, key=KEY, **options)
    strategy.start(world, FIRST, rounds)
    return strategy


def test_both_sides_charge_without_the_noise_of_the_corrupt() -> None:
    """Of four that are needed, three count: a budget for four is too small, for three enough."""
    assert epsilon(3) > 1.1 * epsilon(4)
    small, large = (Budget(epsilon(count) * (1 + 1e-6), 1e-5) for count in (4, 3))
    refused = started(ONE, joined(ONE, budget=small)).reports[0].refused
    assert len(refused) == 5
    assert all(why.startswith("budget") for why in refused.values())
    (report,) = started(ONE, joined(ONE, budget=large)).reports
    assert len(report.present) == 5
    assert report.claim == ONE.claim_for(ONE.build(DIM), 5, KEY.seed(0))
    # Negative control: without any who are corrupt, the smaller one is enough.
    assert len(started(FOUR, joined(FOUR, budget=small)).reports[0].present) == 5
    # The server's own budget.
    assert started(ONE, joined(ONE), budget=small).reports == []
    assert len(started(ONE, joined(ONE), budget=large).reports) == 1


def test_members_insist_on_their_own_number() -> None:
    assert ONE.describe(DIM) == FOUR.describe(DIM) + ", corrupt=1"
    world = joined(ONE)
    reasons: list[str] = []

    def keep(replies: list[Message]) -> list[Message]:
        reasons.extend(sum_reply(one).reason for one in replies)
        return replies

    world.tamper = keep
    assert started(FOUR, world).reports[0].present == ()
    assert len(reasons) == 5
    assert all("the server's plan is another one" in one for one in reasons)


# A member that spoils the round.


def garbage(stage: int, exchanges: int) -> Callable[[list[Message]], list[Message]]:
    """One node sends shares that nobody can read, whenever it is asked for shares."""
    count = -1

    def change(replies: list[Message]) -> list[Message]:
        nonlocal count
        count += bool(replies)
        for one in replies:
            if count % exchanges == stage and one.metadata.src_node_id == BAD:
                spoilt = _spoilt(bytes_of(one))
                one.content.config_records[SUM_RECORD]["reply"] = spoilt
        return replies

    return change


def _spoilt(reply: bytes) -> bytes:
    """With zeros for all values: after envelope and count, each follows 8 bytes of a member."""
    data = bytearray(reply)
    for at in range(ENVELOPE_BYTES + 4, len(data), 8 + ENCRYPTED_BYTES):
        data[at + 8 : at + 8 + ENCRYPTED_BYTES] = bytes(ENCRYPTED_BYTES)
    data[_CHECKSUM] = _checksum(data)
    return bytes(data)


@pytest.mark.parametrize("signed", [False, True])
def test_one_who_sends_garbage_is_named_and_left_out(signed: bool) -> None:
    """It costs the others one round, and none of them is blamed."""
    if signed:  # one exchange more before, one after
        strategy, arrays = signed_run(garbage(1 + SHARES, 6), rounds=2)
    else:
        strategy, arrays = run(rounds=2, tamper=garbage(SHARES, 4))
    first, second = strategy.reports
    assert "could be read by 1 of 5 members, and the threshold is 3" in first.void
    assert first.refused == {BAD: "its shares could not be read by 4 of the others"}
    assert second.void == ""
    assert set(second.present) == set(NODES) - {BAD}
    assert second.refused == {
        BAD: "secure-sum: most others could not read its shares of an earlier round"
    }
    assert arrays is not None
    assert digest_of(arrays) != digest_of(FIRST)


# A request that comes again, and a node that is set back.


def answer(world: World, message: Message, context: Context | None = None) -> Message:
    node = world.nodes[message.metadata.dst_node_id]
    return node.app(world._carried(message), context or node.context)


def sum_reply(message: Message) -> SumReply:
    return SumReply.of(message.content.config_records[SUM_RECORD])


def test_the_last_request_gets_the_same_reply_again() -> None:
    world, exchanges = World(), []

    def keep(replies: list[Message]) -> list[Message]:
        exchanges.append({one.metadata.src_node_id: bytes_of(one) for one in replies})
        return replies

    run(rounds=1, world=world, tamper=keep)
    last = [one for one in exchanges if one][-1]
    for message in world.sent[-5:]:
        for _ in range(2):
            assert sum_reply(answer(world, message)).reply == last[message.metadata.dst_node_id]
        # Anything else of the round is refused: the secrets are gone.
        record = message.content.config_records[SUM_RECORD]
        old = record["request"]
        assert isinstance(old, bytes)
        record["request"] = old[:-1] + bytes([old[-1] ^ 1])
        reply = sum_reply(answer(world, message))
        assert (reply.reply, reply.code) == (b"", "secure-sum")
        assert "has forgotten its secrets" in reply.reason


def copied(context: Context) -> Context:
    return Context(RUN, context.node_id, context.node_config, _copied(context.state), {})


@pytest.mark.parametrize("guard", ["option", "node", "none"])
def test_a_second_process_from_the_same_state(guard: str, tmp_path: Path) -> None:
    """Asked for a second masked message, and for the other shares: refused with a guard only."""
    world = World()
    for number in range(5):
        path = str(tmp_path / str(number))
        own = {"diffsketch-guard": path} if guard == "node" else {}
        sealing = SecureClientAggregation(guard=path) if guard == "option" else None
        world.join(number, PLAN, key=KEY, aggregation=sealing, config=own)
    strategy = SketchStrategy(FedAvg(fraction_evaluate=0.0), PLAN, key=KEY)
    asked = list(strategy.configure_train(1, FIRST, ConfigRecord(), world))
    (message,) = (one for one in asked if one.metadata.dst_node_id == BAD)
    before = copied(world.nodes[BAD].context)
    replies = list(world.send_and_receive(asked))
    second = our_record(answer(world, message, copied(before)))
    masked = copied(world.nodes[BAD].context)
    strategy.aggregate_train(1, replies)
    assert len(strategy.reports[0].present) == 5  # the first process went on undisturbed
    (unmask,) = (one for one in world.sent[-5:] if one.metadata.dst_node_id == BAD)
    record = unmask.content.config_records[SUM_RECORD]
    record["request"] = other_fates(record["request"], 1000)
    other = sum_reply(answer(world, unmask, masked))
    if guard == "none":  # negative control: two masked messages, and both kinds of shares
        assert isinstance(second["message"], bytes)
        assert second["message"]
        assert other.reply
    else:
        assert second["message"] == b""
        assert other.reply == b""
        assert "another process of member 1002" in str(second["reason"])
        assert "another process of member 1002" in other.reason


def other_fates(request: object, gone: int) -> bytes:
    """The same list of survivors, without one of them."""
    assert isinstance(request, bytes)
    data = bytearray(request)
    for at in range(ENVELOPE_BYTES + 4, len(data), 9):
        if int.from_bytes(data[at : at + 8], "little") == gone:
            data[at + 8] = Presence.DROPPED
    data[_CHECKSUM] = _checksum(data)
    return bytes(data)
