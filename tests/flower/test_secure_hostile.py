"""Secure sums with replies and requests that nobody should trust, corrupt members and rollbacks."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.refusals import refused

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsketch.errors import ArgumentError
from diffsketch.flower import FlowerPlan, SecureAggregation, SecureClientAggregation
from diffsketch.flower.records import PROTOCOL, SUM_RECORD, Refusal, SumReply, SumRequest, digest_of
from diffsketch.flower.secure_client import ClientContext
from diffsketch.privacy import Budget
from diffsketch.secure_sum import Params, SecureSumClient, SecureSumServer, invite
from diffsketch.secure_sum.messages import ENCRYPTED_BYTES, ENVELOPE_BYTES, Presence, _checksum
from diffsketch.sketch import SketchKey
from tests.flower import network as net
from tests.flower.network import BAD, DIM, FIRST, KEY, RUN, Network
from tests.flower.test_secure import NODES, PLAN, SETTINGS, plain, run
from tests.secure_sum.helpers import identity

pytestmark = pytest.mark.usefixtures("without_noise")

Replies = Mapping[int, bytes]
"""Replies of one exchange, by node."""

ATTACKS: dict[str, Callable[[Replies, Replies], bytes]] = {
    "longer": lambda new, _old: new[BAD] + bytes(1 << 20),
    "flipped bit": lambda new, _old: new[BAD][:60] + bytes([new[BAD][60] ^ 1]) + new[BAD][61:],
    "a later one's": lambda new, _old: new[1004],
    "of the round before": lambda _new, old: old[BAD],
}


class Attack:
    """In the second round, what a node sends in one exchange is replaced."""

    def __init__(self, stage: int, change: Callable[[Replies, Replies], bytes]) -> None:
        self._stage, self._change, self._count = stage, change, -1
        self._old: dict[int, bytes] = {}

    def __call__(self, replies: list[Message]) -> list[Message]:
        if not replies:
            return []
        self._count += 1
        found = {one.metadata.src_node_id: net.bytes_of(one) for one in replies}
        if self._count == self._stage:
            self._old = found
        if self._count == 4 + self._stage:
            (bad,) = (one for one in replies if one.metadata.src_node_id == BAD)
            net.set_bytes(bad, self._change(found, self._old))
            replies.insert(0, replies.pop(replies.index(bad)))  # so that it comes first
        return replies


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("stage", [net.KEYS, net.SHARES, net.MASKED, net.UNMASK])
def test_a_bad_reply_is_a_dropout(attack: str, stage: int) -> None:
    strategy, _ = run(rounds=2, tamper=Attack(stage, ATTACKS[attack]))
    first, second = strategy.reports
    lost = set() if stage is net.UNMASK else {BAD}
    assert len(first.present) == 5
    assert set(second.present) == set(NODES) - lost
    assert set(second.refused) == lost
    assert strategy.totals == expected_totals(bool(lost))


@cache
def expected_totals(lost: bool) -> tuple[tuple[int, bytes], ...]:
    """Totals of two rounds; in the second one the bad node's message may be lost."""
    return run(rounds=2, tamper=net.Losses({BAD: 4 + net.MASKED}) if lost else list)[0].totals


@pytest.mark.parametrize(
    "values",
    [{"protocol": PROTOCOL + 1}, {"reply": 7}, {"fingerprint": bytes(9)}, {"code": "x" * 99}],
    ids=lambda values: next(iter(values)),
)
def test_an_odd_record_is_a_dropout(values: dict[str, Any]) -> None:
    change = net.of_bad(lambda one: one.content.config_records[SUM_RECORD].update(values))
    (report,) = run(tamper=change)[0].reports
    assert set(report.present) == set(NODES) - {BAD}
    assert set(report.refused) == {BAD}


def test_repeated_replies_change_nothing() -> None:
    strategy, arrays = run(rounds=2, tamper=lambda replies: replies + replies[::-1])
    assert [len(one.present) for one in strategy.reports] == [5, 5]
    assert digest_of(arrays) == plain(rounds=2)


def test_a_later_reply_does_not_take_the_place_of_the_first() -> None:
    def again(replies: list[Message]) -> list[Message]:
        later = [net.set_bytes(copy.deepcopy(one), b"") for one in replies]
        return replies + [one for one in later if one.metadata.src_node_id == BAD]

    strategy, arrays = run(rounds=2, tamper=again)
    assert [len(one.present) for one in strategy.reports] == [5, 5]
    assert digest_of(arrays) == plain(rounds=2)


# The client's side.


def params(plan: FlowerPlan = PLAN, **changes: Any) -> Params:
    members, fingerprint = tuple(range(1000, 1000 + plan.cohort)), KEY.seed(0).fingerprint
    values: dict[str, Any] = {"run": bytes(16), "round_index": 0, "fingerprint": fingerprint}
    values |= {"members": members, "threshold": 3, "min_present": plan.min_replies} | changes
    return Params(plan.build(DIM).message_format, **values)


def client_of(plan: FlowerPlan = PLAN, key: SketchKey | None = KEY, **config: Any) -> ClientContext:
    context = Context(RUN, 1000, {"partition-id": 0, **config}, RecordDict(), {})
    return ClientContext(context, plan, key, 1000)


def ask(
    request: SumRequest | ConfigRecord, who: ClientContext, own_side: SecureClientAggregation
) -> SumReply:
    Network()  # for messages to know a run
    record = request if isinstance(request, ConfigRecord) else request.to_record()
    message = Message(RecordDict({SUM_RECORD: record}), dst_node_id=1000, message_type="train")
    message.metadata.__dict__["_message_id"] = "asked"
    reply = own_side.answer(message, who)
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
    who = client_of()
    assert ask(request_, client_of(key=None), SecureClientAggregation()).code == "key"
    reply = ask(request_, who, SecureClientAggregation())
    assert reply.code
    assert reason in reply.reason
    assert reply.reply == b""
    assert list(who.context.state) == []


TEN = FlowerPlan("sketch-skellam", SETTINGS, 10, 10, secure_sum=True, identities=False)


@pytest.mark.parametrize(
    ("plan", "threshold", "reason"),
    [
        (replace(PLAN, min_replies=5), 3, "with a threshold of 3"),  # the plan's is 4
        (TEN, 7, ""),
        (replace(TEN, corrupt=4), 7, "does not withstand 4 who collude"),
        (replace(TEN, corrupt=4), 8, ""),
    ],
)
def test_a_member_refuses_a_threshold_that_is_too_low(
    plan: FlowerPlan, threshold: int, reason: str
) -> None:
    request = opening(params(plan, threshold=threshold), plan=plan.describe(DIM))
    reply = ask(request, client_of(plan), SecureClientAggregation())
    assert (reason in reply.reason) if reason else not reply.reason
    assert (reply.reply == b"") == bool(reason)


def test_no_message_is_masked_but_in_training() -> None:
    """A server that asks for masked messages in an exchange of the sum's own gets none."""
    which, who, own_side = params(), client_of(), SecureClientAggregation()
    server = SecureSumServer(which)
    others = {node: SecureSumClient(node, which) for node in NODES if node != 1000}
    invitation = invite(which)
    for _ in range(2):
        for node, request in server.requests().items():
            if node == 1000:
                reply = ask(opening(which, invitation=invitation, request=request), who, own_side)
                assert reply.code == ""
                # The same request again gets the same reply.
                again = ask(opening(which, invitation=invitation, request=request), who, own_side)
                assert again.reply == reply.reply
                server.collect(reply.reply)
            else:
                server.collect(others[node].answer(request, torch.zeros))
        server.close()
        invitation = b""
    told = opening(which, invitation=b"", request=server.requests()[1000])
    assert "only in reply to a request for training" in ask(told, who, own_side).reason
    own_side.masking(told.to_record(), 0, run=b"", client=who)
    with pytest.raises(Refusal, match="the secure sum of another round"):
        own_side.masking(told.to_record(), 1, run=b"", client=who)
    refused(Refusal, "the server asks without", own_side.masking, None, 0, run=b"", client=who)


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
    reply = ask(told, client_of(), SecureClientAggregation())
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
    strategy, _ = run(plan, rounds=2, tamper=Attack(net.UNMASK, lie), nodes=nodes)
    _, second = strategy.reports
    if spare:
        assert (second.void, len(second.present)) == ("", 5)
        assert f"its fault, or that of one of nodes [{BAD}]" in caplog.text
    else:
        assert "shares of 1000 do not give the secret that it promised" in second.void
        assert "one of nodes [1000, 1001, 1002]" in second.refused[1000]


def test_a_sum_that_no_cohort_has_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    """One masks what it should never have made: it cannot be seen who, but that somebody did."""
    masking = SecureClientAggregation.masking

    def sealed(self: Any, *about: Any, run: bytes, client: ClientContext) -> Callable[[Any], bytes]:
        mask = masking(self, *about, run=run, client=client)

        def changed(message: Any) -> bytes:
            half = 1 << (message.format.bits - 1)
            return mask(replace(message, cells=torch.full(message.format.shape, half)))

        return changed if client.node == BAD else mask

    strategy, arrays = run()
    assert (strategy.reports[0].void, len(strategy.reports[0].present)) == ("", 5)
    monkeypatch.setattr(SecureClientAggregation, "masking", sealed)
    strategy, arrays = run()
    assert "the sum of 5 messages has a norm of" in strategy.reports[0].void
    assert strategy.reports[0].present == ()
    assert not arrays


# Members that sign.

PUBLIC = [identity(number).public for number in range(5)]
SIGNED = replace(PLAN, identities=True)


def signed_run(
    tamper: net.Tamper = list, *, names: tuple[int, ...] = (0, 1, 2, 3, 4),
    server: SecureAggregation | None = None, rounds: int = 1,
) -> Any:  # fmt: skip
    network = Network()
    for number, name in enumerate(names):
        public = [*PUBLIC, identity(name).public]
        own_side = SecureClientAggregation(identity=identity(name), identities=public)
        network.join(number, SIGNED, key=KEY, aggregation=own_side)
    network.tamper = tamper
    strategy = net.strategy_of(SIGNED, aggregation=server or SecureAggregation(identities=PUBLIC))
    return strategy, strategy.start(network, FIRST, rounds).arrays


@pytest.mark.parametrize("stage", range(7))
def test_members_sign_and_drop_out(stage: int) -> None:
    """Six exchanges: who are you, keys, shares, messages, consistency, unmasking; or none lost."""
    strategy, arrays = signed_run(net.Losses({1001: stage, 1003: stage}))
    lost = (1001, 1003) if stage <= 3 else ()
    assert set(strategy.reports[0].present) == set(NODES) - set(lost)
    assert digest_of(arrays) == plain(*lost)


def test_strangers_and_doubles_are_left_out() -> None:
    strategy, arrays = signed_run(names=(0, 1, 2, 7, 1))
    assert set(strategy.reports[0].refused) == {1003, 1004}
    assert digest_of(arrays) == plain(1003, 1004)


def test_members_that_sign_refuse_a_server_that_does_without() -> None:
    """It says that the plan is the members', and sums without signatures all the same."""

    class Lying(SecureAggregation):
        signed = True

    strategy, arrays = signed_run(server=Lying())
    assert "the round is void" in strategy.reports[0].void
    assert not arrays


def node_config(folder: Path, number: int, public: list[bytes] = PUBLIC) -> dict[str, Any]:
    """Configuration of a node that looks up its identity, and the members'."""
    secret = hashlib.sha256(b"identity %d" % number).digest()
    return {
        "diffsketch-identity-file": net.key_file(folder / f"{number}.key", secret),
        "diffsketch-identities-file": net.key_file(folder / "members.txt", *public),
    }


def test_identities_are_the_default_and_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From files that each node names itself; the claim then holds against any server."""
    network = Network()
    for number in range(5):
        network.join(number, SIGNED, key=KEY, config=node_config(tmp_path, number))
    monkeypatch.setenv("DIFFSKETCH_IDENTITIES_FILE", str(tmp_path / "members.txt"))
    strategy = net.strategy_of(SIGNED)
    arrays = strategy.start(network, FIRST, 1).arrays
    assert digest_of(arrays) == plain()
    assert "follows the protocol" not in str(strategy.claim)
    assert FlowerPlan(PLAN.method, PLAN.settings, 5, 3, secure_sum=True) == SIGNED


def test_without_identities_the_claim_says_so() -> None:
    strategy, _ = run()
    words = ", shared among 5 members, against a server that follows the protocol, limits how well"
    assert words in str(strategy.claim)
    with pytest.raises(ArgumentError, match="has no secure sum"):
        # It needs none, whatever the server does.
        replace(PLAN, settings={**PLAN.settings, "trust": "local"})


@pytest.mark.parametrize("how", [True, "two"])
@pytest.mark.parametrize("method", ["none", "sketch", "sketch-gaussian", "laplace"])
def test_a_method_without_a_secure_sum_is_named(method: str, how: Any) -> None:
    """Also where min_replies, left as it is, would not do either."""
    settings: dict[str, Any] = {
        "none": {},
        "laplace": {"per_round": 1.0},
        "sketch": {"rows": 3, "cols": 8},
    }
    given = settings.get(method, {"clip": 1.0, "noise_multiplier": 2.0, "rows": 3, "cols": 8})
    with pytest.raises(ArgumentError, match=f"method='{method}' with .* has no secure sum"):
        FlowerPlan(method, given, cohort=5, secure_sum=how)


def test_a_server_without_a_list_does_not_start() -> None:
    signing = SecureAggregation(identities=PUBLIC)
    for plan, aggregation in ((SIGNED, None), (SIGNED, SecureAggregation()), (PLAN, signing)):
        with pytest.raises(ArgumentError, match="aggregation must have identities"):
            net.strategy_of(plan, aggregation=aggregation)
    refused(ArgumentError, "given together", SecureClientAggregation, identities=PUBLIC)
    with pytest.raises(ArgumentError, match="must have the public key"):
        SecureClientAggregation(identity=identity(9), identities=PUBLIC)


@pytest.mark.parametrize("fault", ["no identity", "no list", "not in the list", "no file", "plan"])
def test_a_member_without_identities_sends_nothing(fault: str, tmp_path: Path) -> None:
    public = PUBLIC[1:] if fault == "not in the list" else PUBLIC
    config = node_config(tmp_path, 0, public)
    if fault in ("no identity", "no list"):
        del config[f"diffsketch-{'identity' if fault == 'no identity' else 'identities'}-file"]
    if fault == "no file":
        config["diffsketch-identity-file"] = str(tmp_path / "none")
    plan, own_side = SIGNED, SecureClientAggregation()
    if fault == "plan":  # a list is given, and the plan is one for a server that is trusted
        plan, own_side = PLAN, SecureClientAggregation(identity=identity(0), identities=PUBLIC)
    who = client_of(plan, **config)
    reply = ask(opening(params(), plan=plan.describe(DIM)), who, own_side)
    assert reply.reply == b""
    assert reply.reason
    assert list(who.context.state) == []


FOUR = replace(PLAN, min_replies=4)
ONE = replace(FOUR, corrupt=1)

# Members that pass on what they have.


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


@pytest.mark.parametrize(
    ("plan", "changes", "reason"),
    [
        (PLAN, {"min_replies": 2}, r"min_replies must be in 3\.\.5 for a secure sum"),
        (PLAN, {"min_replies": 6}, r"min_replies must be in 3\.\.5 for a secure sum"),
        (PLAN, {"cohort": 1, "min_replies": 1}, "cohort must be 2 or more for distributed"),
        (PLAN, {"corrupt": 1}, r"in 4\.\.5 for a secure sum of a cohort of 5 of which"),
        (PLAN, {"min_replies": 5, "corrupt": 5}, "corrupt must be below cohort=5"),
        (ONE, {"secure_sum": False}, "corrupt must be 0 without secure_sum"),
        (ONE, {"corrupt": -1}, "corrupt"),
    ],
)
def test_plans_without_a_threshold_are_refused(
    plan: FlowerPlan, changes: dict[str, Any], reason: str
) -> None:
    refused(ArgumentError, reason, replace, plan, **changes)


def epsilon(count: int) -> float:
    claim = ONE.build(DIM).claim_for(count, KEY.seed(0))
    return claim.epsilon(delta=1e-5, rounds=1).value


def test_both_sides_charge_without_the_noise_of_the_corrupt() -> None:
    """Of four that are needed, three count: a budget for four is too small, for three enough."""
    assert ONE.describe(DIM) == FOUR.describe(DIM) + ", corrupt=1"  # both sides agree on it
    assert epsilon(3) > 1.1 * epsilon(4)
    small, large = (Budget(epsilon(count) * (1 + 1e-6), 1e-5) for count in (4, 3))
    reasons = net.reasons(net.started(ONE, net.network_of(ONE, 5, budget=small)))
    assert len(reasons) == 5
    assert all(why.startswith("budget") for why in reasons)
    (report,) = net.started(ONE, net.network_of(ONE, 5, budget=large)).reports
    assert len(report.present) == 5
    assert report.claim == ONE.claim_for(ONE.build(DIM), 5, KEY.seed(0))
    # Negative control: without any who are corrupt, the smaller one is enough.
    assert len(net.started(FOUR, net.network_of(FOUR, 5, budget=small)).reports[0].present) == 5
    # The server's own budget.
    assert net.started(ONE, net.network_of(ONE, 5), budget=small).reports == []
    assert len(net.started(ONE, net.network_of(ONE, 5), budget=large).reports) == 1


# A member that spoils the round.


def garbage(stage: int, exchanges: int) -> net.Tamper:
    """One node sends shares that nobody can read, whenever it is asked for shares."""
    numbers = count()

    def change(one: Message) -> None:
        if next(numbers) % exchanges == stage:
            net.set_bytes(one, _spoilt(net.bytes_of(one)))

    return net.of_bad(change)


def _spoilt(reply: bytes) -> bytes:
    """With zeros for all values: after envelope and count, each follows 8 bytes of a member."""
    data = bytearray(reply)
    for at in range(ENVELOPE_BYTES + 4, len(data), 8 + ENCRYPTED_BYTES):
        data[at + 8 : at + 8 + ENCRYPTED_BYTES] = bytes(ENCRYPTED_BYTES)
    data[44:52] = _checksum(data)
    return bytes(data)


@pytest.mark.parametrize("signed", [False, True])
def test_one_who_sends_garbage_is_named_and_left_out(signed: bool) -> None:
    """It costs the others one round, and none of them is blamed."""
    if signed:  # one exchange more before, one after
        strategy, arrays = signed_run(garbage(1 + net.SHARES, 6), rounds=2)
    else:
        strategy, arrays = run(rounds=2, tamper=garbage(net.SHARES, 4))
    first, second = strategy.reports
    assert "could be read by 1 of 5 members, and the threshold is 3" in first.void
    assert first.refused == {BAD: "its shares could not be read by 4 of the others"}
    assert second.void == ""
    assert set(second.present) == set(NODES) - {BAD}
    assert second.refused == {
        BAD: "secure-sum: most others could not read its shares of an earlier round"
    }
    assert digest_of(arrays) != digest_of(FIRST)


# After the last request; and a node that is set back.


def answer(network: Network, message: Message, context: Context | None = None) -> Message:
    node = network.nodes[message.metadata.dst_node_id]
    return node.app(network._carried(message), context or node.context)


def sum_reply(message: Message) -> SumReply:
    return SumReply.of(message.content.config_records[SUM_RECORD])


def test_after_the_last_request_the_secrets_are_gone() -> None:
    network = Network()
    run(network=network)
    for message in network.sent[-5:]:
        reply = sum_reply(answer(network, message))
        assert (reply.reply, reply.code) == (b"", "secure-sum")
        assert "has forgotten its secrets" in reply.reason


def copied(context: Context) -> Context:
    return Context(RUN, context.node_id, context.node_config, net.carried(context.state), {})


@pytest.mark.parametrize("guard", ["option", "node", "none"])
def test_a_second_process_from_the_same_state(guard: str, tmp_path: Path) -> None:
    """Asked for a second masked message, and for the other shares: refused with a guard only."""
    network, steps = Network(), count(1)

    def train(_: int, weights: Tensor, __: int) -> Tensor:
        return weights + 0.01 * next(steps)  # another message each time, as with noise

    for number in range(5):
        path = str(tmp_path / str(number))
        own = {"diffsketch-guard": path} if guard == "node" else {}
        side = SecureClientAggregation(guard=path) if guard == "option" else None
        network.join(number, PLAN, key=KEY, aggregation=side, config=own, train=train)
    strategy = net.strategy_of(PLAN)
    asked = list(strategy.configure_train(1, FIRST, ConfigRecord(), network))
    (message,) = (one for one in asked if one.metadata.dst_node_id == BAD)
    before = copied(network.nodes[BAD].context)
    replies = list(network.send_and_receive(asked))
    second = net.our_record(answer(network, message, copied(before)))
    masked = copied(network.nodes[BAD].context)
    strategy.aggregate_train(1, replies)
    assert len(strategy.reports[0].present) == 5  # the first process went on undisturbed
    (unmask,) = (one for one in network.sent[-5:] if one.metadata.dst_node_id == BAD)
    record = unmask.content.config_records[SUM_RECORD]
    record["request"] = other_presence(record["request"], 1000)
    other = sum_reply(answer(network, unmask, masked))
    if guard == "none":  # negative control: two masked messages, and both kinds of shares
        assert isinstance(second["message"], bytes)
        assert second["message"]
        assert other.reply
    else:
        assert second["message"] == b""
        assert other.reply == b""
        assert "another reply was given by 1002" in str(second["reason"])
        assert "another reply was given by 1002" in other.reason


def other_presence(request: object, gone: int) -> bytes:
    """The same list of survivors, without one of them."""
    assert isinstance(request, bytes)
    data = bytearray(request)
    for at in range(ENVELOPE_BYTES + 4, len(data), 9):
        if int.from_bytes(data[at : at + 8], "little") == gone:
            data[at + 8] = Presence.DROPPED
    data[44:52] = _checksum(data)
    return bytes(data)
