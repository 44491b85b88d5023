"""Secure sums with replies and requests that nobody should trust, and members that sign."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.silent import silence

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsketch.errors import ArgumentError
from diffsketch.flower import FlowerPlan, SecureClientAggregation, SecureAggregation, SketchStrategy
from diffsketch.flower.aggregation import ClientContext
from diffsketch.flower.records import PROTOCOL, SUM_RECORD, Refusal, SumReply, SumRequest, digest_of
from diffsketch.secure_sum import SecureSumClient, Params, SecureSumServer, invite
from diffsketch.secure_sum.messages import ENVELOPE_BYTES, _checksum
from diffsketch.sketch import SketchKey
from tests.flower.flower_secure import KEYS, MASKED, SHARES, UNMASK, Losses, bytes_of, is_own
from tests.flower.flower_world import DIM, RUN, World, our_record
from tests.flower.test_flower_secure import FIRST, KEY, NODES, PLAN, plain, run
from tests.secure_sum.helpers import identity

BAD = 1002
Replies = Mapping[int, bytes]
"""Of one exchange, by node."""

ATTACKS: dict[str, Callable[[Replies, Replies], bytes]] = {
    "empty": lambda _new, _old: b"",
    "garbage": lambda _new, _old: b"\x00garbage" * 30,
    "cut": lambda new, _old: new[BAD][:-1],
    "longer": lambda new, _old: new[BAD] + bytes(1 << 20),
    "flipped bit": lambda new, _old: new[BAD][:60] + bytes([new[BAD][60] ^ 1]) + new[BAD][61:],
    "an earlier one's": lambda new, _old: new[1000],
    "a later one's": lambda new, _old: new[1004],
    "of the round before": lambda _new, old: old[BAD],
}


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    """Rounds without noise, which can be compared."""
    with silence():
        yield


class Attack:
    """In the second round, what a node sends in one exchange is replaced."""

    def __init__(self, stage: int, change: Callable[[Replies, Replies], bytes]) -> None:
        self._stage, self._change, self._count = stage, change, -1
        self._old: dict[int, bytes] = {}

    def __call__(self, replies: list[Message]) -> list[Message]:
        if not replies:
            return []
        self._count += 1
        found = {one.metadata.src_node_id: bytes_of(one) for one in replies}
        if self._count == self._stage:
            self._old = found
        if self._count == 4 + self._stage:
            (bad,) = (one for one in replies if one.metadata.src_node_id == BAD)
            data = self._change(found, self._old)
            if is_own(bad):
                bad.content.config_records[SUM_RECORD]["reply"] = data
            else:
                our_record(bad)["message"] = data
            replies.insert(0, replies.pop(replies.index(bad)))  # so that it comes first
        return replies


@pytest.mark.parametrize("stage", [KEYS, SHARES, MASKED, UNMASK])
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_bad_reply_is_a_dropout(attack: str, stage: int) -> None:
    strategy, arrays = run(rounds=2, tamper=Attack(stage, ATTACKS[attack]))
    first, second = strategy.reports
    lost = set() if stage is UNMASK else {BAD}
    assert len(first.present) == 5
    assert set(second.present) == set(NODES) - lost
    assert set(second.refused) == lost
    losses = Losses({} if stage is UNMASK else {BAD: 1})
    _, expected = run(rounds=2, tamper=_PerRound(losses))
    assert arrays is not None
    assert expected is not None
    assert digest_of(arrays) == digest_of(expected)


class _PerRound:
    """Losses that are counted in rounds of four exchanges."""

    def __init__(self, losses: Losses) -> None:
        self._losses, self._count = losses, -1

    def __call__(self, replies: list[Message]) -> list[Message]:
        self._count += bool(replies)
        return self._losses(replies) if replies and self._count % 4 == MASKED else replies


@pytest.mark.parametrize(
    "values",
    [{"protocol": PROTOCOL + 1}, {"reply": 7}, {"fingerprint": bytes(9)}, {"code": "x" * 99}],
    ids=lambda values: next(iter(values)),
)
def test_an_odd_record_is_a_dropout(values: dict[str, Any]) -> None:
    def change(replies: list[Message]) -> list[Message]:
        for one in replies:
            if one.metadata.src_node_id == BAD and is_own(one):
                one.content.config_records[SUM_RECORD].update(values)
        return replies

    strategy, _ = run(rounds=1, tamper=change)
    assert set(strategy.reports[0].present) == set(NODES) - {BAD}
    assert set(strategy.reports[0].refused) == {BAD}


def test_repeated_replies_and_those_of_strangers_change_nothing() -> None:
    def twice(replies: list[Message]) -> list[Message]:
        return replies + replies[::-1]

    strategy, arrays = run(rounds=2, tamper=twice)
    assert [len(one.present) for one in strategy.reports] == [5, 5]
    assert arrays is not None
    assert digest_of(arrays) == digest_of(plain(set(), rounds=2))


# The client's side.


def params(**changes: Any) -> Params:
    values: dict[str, Any] = {
        "run": bytes(16),
        "round_index": 0,
        "fingerprint": KEY.seed(0).fingerprint,
        "members": tuple(NODES),
        "threshold": 3,
        "min_present": 3,
    } | changes
    return Params(PLAN.build(DIM).message_format, **values)


def own(key: SketchKey | None = KEY) -> ClientContext:
    context = Context(RUN, 1000, {"partition-id": 0}, RecordDict(), {})
    return ClientContext(context, PLAN, key, 1000)


def ask(request: SumRequest | ConfigRecord, who: ClientContext, sealing: SecureClientAggregation) -> SumReply:
    World()  # for messages to know a run
    record = request if isinstance(request, ConfigRecord) else request.to_record()
    message = Message(RecordDict({SUM_RECORD: record}), dst_node_id=1000, message_type="train")
    message.metadata.__dict__["_message_id"] = "asked"
    reply = sealing.answer(message, who)
    assert reply is not None
    return SumReply.of(reply.content.config_records[SUM_RECORD])


def opening(which: Params, **changes: Any) -> SumRequest:
    request = SecureSumServer(which).requests()[which.members[0]]
    values: dict[str, Any] = {"round_index": 0, "plan": PLAN.describe(DIM), "dim": DIM}
    return SumRequest(**values | {"invitation": invite(which), "request": request} | changes)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (opening(params(min_present=4), plan="another"), "the server's plan is another one"),
        (opening(params(), dim=DIM + 1), "the server's plan is another one"),
        (opening(params(round_index=1)), "the invitation is to another round"),
        (opening(params(), round_index=1), "the invitation is to another round"),
        (opening(params(members=(1, 2, 1000), threshold=2, min_present=2)),
         "min_present is 2, below 3"),
        (opening(params(members=(1, 2, 3, 4, 5, 6, 1000), threshold=4, min_present=4)),
         "at most 5"),
        (opening(params(members=(1, 2, 3, 4, 5))), "be a member of the round"),
        (opening(params(fingerprint=bytes(8))), "another run, round or agreement"),
        (opening(params(), invitation=b""), "is in no secure sum"),
        (opening(params(), request=b"garbage"), "not a request of a secure sum"),
        (opening(params(), invitation=b"garbage"), "not an invitation"),
    ],
)  # fmt: skip
def test_a_member_refuses(request_: SumRequest, reason: str) -> None:
    who = own()
    reply = ask(request_, who, SecureClientAggregation())
    assert reply.code
    assert reason in reply.reason
    assert reply.reply == b""
    assert list(who.context.state) == []


def test_a_lower_threshold_than_the_plans_is_refused() -> None:
    # Of 5 with min_replies 5 the plan's is 4.
    plan = type(PLAN)(PLAN.method, PLAN.settings, 5, 5, secure_sum=True, identities=False)
    who = ClientContext(own().context, plan, KEY, 1000)
    low = Params(
        plan.build(DIM).message_format, run=bytes(16), round_index=0, members=tuple(NODES),
        fingerprint=KEY.seed(0).fingerprint, threshold=3, min_present=5,
    )  # fmt: skip
    reply = ask(opening(low, plan=plan.describe(DIM)), who, SecureClientAggregation())
    assert "with a threshold of 3" in reply.reason


def test_a_member_without_the_key_says_so() -> None:
    assert ask(opening(params()), own(None), SecureClientAggregation()).code == "key"


def test_no_message_is_masked_but_in_training() -> None:
    """A server that asks for masked messages in an exchange of the sum's own gets none."""
    which, who, sealing = params(), own(), SecureClientAggregation()
    server, others = SecureSumServer(which), {node: SecureSumClient(node, which) for node in NODES if node != 1000}
    invitation = invite(which)
    for _ in range(2):
        for node, request in server.requests().items():
            if node == 1000:
                reply = ask(opening(which, invitation=invitation, request=request), who, sealing)
                assert reply.code == ""
                # The same request again gets the same reply.
                again = ask(opening(which, invitation=invitation, request=request), who, sealing)
                assert again.reply == reply.reply
                server.collect(reply.reply)
            else:
                server.collect(others[node].answer(request, torch.zeros))
        server.close()
        invitation = b""
    told = opening(which, invitation=b"", request=server.requests()[1000])
    assert "only in reply to a request for training" in ask(told, who, sealing).reason
    sealing.check(told.to_record(), 0, client=who)
    with pytest.raises(Refusal, match="the secure sum of another round"):
        sealing.check(told.to_record(), 1, client=who)
    with pytest.raises(Refusal, match="the server asks without"):
        sealing.check(None, 0, client=who)


@settings(max_examples=60, deadline=None)
@given(
    round_index=st.integers(-3, 2**33),
    dim=st.integers(-2, 2**40),
    invitation=st.binary(max_size=80),
    request=st.binary(max_size=80),
    agreed=st.booleans(),
)
def test_any_request_gets_a_reply(
    round_index: int, dim: int, invitation: bytes, request: bytes, agreed: bool
) -> None:
    text, dim = (PLAN.describe(DIM), DIM) if agreed else ("", dim)
    told = SumRequest(round_index, text, dim, invitation, request)
    reply = ask(told, own(), SecureClientAggregation())
    assert reply.reply == b""


@pytest.mark.parametrize("spare", [True, False])
def test_a_wrong_share_of_a_secret_is_named(spare: bool, caplog: pytest.LogCaptureFixture) -> None:
    """With a share to spare it is left out; with none, the round is void and says whose it was."""

    def lie(new: Replies, _old: Replies) -> bytes:
        data = bytearray(new[BAD])
        first = ENVELOPE_BYTES + 4 + 8 + 1  # after the count, the first member and its fate
        data[first] ^= 1
        data[44:52] = _checksum(data)
        return bytes(data)

    plan = PLAN if spare else replace(PLAN, cohort=3)
    nodes = 5 if spare else 3
    strategy, _ = run(plan, tamper=Attack(UNMASK, lie), nodes=nodes)
    _, second = strategy.reports
    if spare:
        assert (second.void, len(second.present)) == ("", 5)
        assert f"its fault, or that of one of nodes [{BAD}]" in caplog.text
    else:
        assert "shares of 1000 do not give the secret that it promised" in second.void
        assert "one of nodes [1000, 1001, 1002]" in second.refused[1000]


def test_a_sum_that_no_cohort_has_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    """One masks what it should never have made: it cannot be seen who, but that somebody did."""
    seen = SecureClientAggregation.protect

    def sealed(self: Any, message: Any, told: Any, *, client: ClientContext) -> bytes:
        if client.node == BAD:
            half = 1 << (message.format.bits - 1)
            message = replace(message, cells=torch.full(message.format.shape, half))
        return seen(self, message, told, client=client)

    strategy, arrays = run(rounds=1)
    assert (strategy.reports[0].void, len(strategy.reports[0].present)) == ("", 5)
    monkeypatch.setattr(SecureClientAggregation, "protect", sealed)
    strategy, arrays = run(rounds=1)
    assert "the sum of 5 messages has a norm of" in strategy.reports[0].void
    assert strategy.reports[0].present == ()
    assert not arrays


# ClientRegistry that sign.

PUBLIC = [identity(number).public for number in range(5)]
SIGNED = replace(PLAN, identities=True)


def signed_run(
    tamper: Callable[[list[Message]], list[Message]] = list,
    *,
    names: tuple[int, ...] = (0, 1, 2, 3, 4),
    summation: SecureAggregation | None = None,
    rounds: int = 1,
) -> Any:
    world = World()
    for number, name in enumerate(names):
        public = [*PUBLIC, identity(name).public]
        sealing = SecureClientAggregation(identity=identity(name), identities=public)
        world.join(number, SIGNED, key=KEY, aggregation=sealing)
    world.tamper = tamper
    summation = summation or SecureAggregation(identities=PUBLIC)
    inside = FedAvg(fraction_evaluate=0.0)
    strategy = SketchStrategy(inside, SIGNED, key=KEY, aggregation=summation)
    return strategy, strategy.start(world, FIRST, rounds).arrays


@pytest.mark.parametrize("stage", range(7))
def test_members_sign_and_drop_out(stage: int) -> None:
    """Six exchanges: who are you, keys, shares, messages, consistency, unmasking; or none lost."""
    strategy, arrays = signed_run(Losses({1001: stage, 1003: stage}))
    lost = {1001, 1003} if stage <= 3 else set()
    assert set(strategy.reports[0].present) == set(NODES) - lost
    assert digest_of(arrays) == digest_of(plain(lost))


def test_strangers_and_doubles_are_left_out() -> None:
    strategy, arrays = signed_run(names=(0, 1, 2, 7, 1))
    assert set(strategy.reports[0].refused) == {1003, 1004}
    assert digest_of(arrays) == digest_of(plain({1003, 1004}))


def test_members_that_sign_refuse_a_server_that_does_without() -> None:
    """It says that the plan is the members', and sums without signatures all the same."""

    class Lying(SecureAggregation):
        signed = True

    strategy, arrays = signed_run(aggregation=Lying())
    assert "the round is void" in strategy.reports[0].void
    assert not arrays


def written(folder: Path, public: list[bytes] = PUBLIC) -> Path:
    path = folder / "members.txt"
    path.write_text("\n".join(one.hex() for one in public), encoding="ascii")
    return path


def node_config(folder: Path, number: int, members: Path) -> dict[str, Any]:
    path = folder / f"{number}.key"
    path.write_text(hashlib.sha256(b"identity %d" % number).hexdigest(), encoding="ascii")
    return {"diffsketch-identity-file": str(path), "diffsketch-identities-file": str(members)}


def test_identities_are_the_default_and_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From files that each node names itself; the claim then holds against any server."""
    members, world = written(tmp_path), World()
    for number in range(5):
        config = node_config(tmp_path, number, members)
        world.join(number, SIGNED, key=KEY, config=config)
    monkeypatch.setenv("DIFFSKETCH_IDENTITIES_FILE", str(members))
    strategy = SketchStrategy(FedAvg(fraction_evaluate=0.0), SIGNED, key=KEY)
    arrays = strategy.start(world, FIRST, 1).arrays
    assert digest_of(arrays) == digest_of(plain(set()))
    assert "follows the protocol" not in str(strategy.claim)
    assert FlowerPlan(PLAN.method, PLAN.settings, 5, 3, secure_sum=True) == SIGNED


def test_without_identities_the_claim_says_so() -> None:
    strategy, _ = run(rounds=1)
    words = ", shared among 5 members, against a server that follows the protocol, limits how well"
    assert words in str(strategy.claim)
    local = replace(PLAN, settings={**PLAN.settings, "trust": "local"})
    with pytest.raises(ArgumentError, match="secure_sum needs messages of whole numbers"):
        local.build(DIM)  # it needs no secure sum, whatever the server does


def test_a_server_without_a_list_does_not_start() -> None:
    signing = SecureAggregation(identities=PUBLIC)
    for plan, summation in ((SIGNED, None), (SIGNED, SecureAggregation()), (PLAN, signing)):
        with pytest.raises(ArgumentError, match="aggregation must have identities"):
            SketchStrategy(FedAvg(), plan, key=KEY, aggregation=summation)


@pytest.mark.parametrize("fault", ["no identity", "no list", "not in the list", "no file", "plan"])
def test_a_member_without_identities_sends_nothing(fault: str, tmp_path: Path) -> None:
    config = node_config(tmp_path, 0, written(tmp_path))
    if fault == "no identity":
        del config["diffsketch-identity-file"]
    if fault == "no list":
        del config["diffsketch-identities-file"]
    if fault == "not in the list":
        written(tmp_path, PUBLIC[1:])
    if fault == "no file":
        config["diffsketch-identity-file"] = str(tmp_path / "none")
    context = Context(RUN, 1000, {"partition-id": 0, **config}, RecordDict(), {})
    plan, sealing = SIGNED, SecureClientAggregation()
    if fault == "plan":  # a list is given, and the plan is one for a server that is trusted
        plan, sealing = PLAN, SecureClientAggregation(identity=identity(0), identities=PUBLIC)
    reply = ask(opening(params(), plan=plan.describe(DIM)), ClientContext(context, plan, KEY, 1000), sealing)
    assert reply.reply == b""
    assert reply.reason
    assert list(context.state) == []


def test_identities_come_together() -> None:
    with pytest.raises(ArgumentError, match="given together"):
        SecureClientAggregation(identities=PUBLIC)
    with pytest.raises(ArgumentError, match="must have the public key"):
        SecureClientAggregation(identity=identity(9), identities=PUBLIC)
