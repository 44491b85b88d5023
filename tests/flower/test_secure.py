"""A secure sum on a Flower network: the server has the sum, and nothing that it is made of.

Exchanges of a round with a server that has the key: keys, shares, the messages, unmasking.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Message

from diffsketch.errors import ArgumentError
from diffsketch.flower import FlowerPlan, SecureAggregation, SketchStrategy
from diffsketch.flower.records import SUM_RECORD, SumReply, digest_of
from diffsketch.privacy import Budget, Trust
from diffsketch.sketch import SketchKey
from diffsketch.wire.message import pack
from tests.flower import network as net
from tests.flower.network import BAD, DIM, FIRST, KEY, Caught, Network
from tests.helpers.silent import Silent

pytestmark = pytest.mark.usefixtures("without_noise")

SETTINGS = {"rows": 2, "cols": 6, "clip": 1.0, "noise_multiplier": 2.0}
PLAN = FlowerPlan("sketch-skellam", SETTINGS, 5, 3, secure_sum=True, identities=False)
SCALED = SETTINGS | {"noise_multiplier": 2.0 * (5 / 3) ** 0.5}
PLAIN = FlowerPlan("sketch-skellam", SCALED, cohort=5, min_replies=3)
CPSGD = FlowerPlan("cpsgd", {"levels": 8, "trials": 40}, 5, 3, secure_sum=True, identities=False)
BARE = {"rows": 2, "cols": 6, "bits": 4, "cell_limit": 0.01}
FEW_BITS = FlowerPlan(
    "sketch", BARE | {"trust": "distributed"}, 5, 3, secure_sum=True, identities=False
)
NODES = range(1000, 1005)


def run(
    plan: FlowerPlan = PLAN, *, rounds: int = 1, network: Network | None = None,
    tamper: net.Tamper = list, nodes: int = 5, **options: Any,
) -> tuple[SketchStrategy, ArrayRecord]:  # fmt: skip
    """Some rounds; without a secure sum the server is trusted not to look."""
    network = Network() if network is None else network
    trust: dict[str, Any] = {} if plan.secure_sum else {"trusted_server": True}
    for number in range(nodes):
        network.join(number, plan, key=KEY, **trust)
    network.tamper = tamper
    strategy = net.strategy_of(plan, **trust, **options)
    return strategy, strategy.start(network, FIRST, rounds).arrays


@cache
def plain(*silent: int, rounds: int = 1) -> bytes:
    """Digest of the model after rounds of a plain sum in which some replies are lost."""

    def lose(replies: list[Message]) -> list[Message]:
        return [one for one in replies if one.metadata.src_node_id not in silent]

    return digest_of(run(PLAIN, rounds=rounds, tamper=lose)[1])


@pytest.mark.parametrize("plan", [PLAN, CPSGD], ids=lambda plan: plan.method)
def test_the_sum_is_the_plain_sum(plan: FlowerPlan) -> None:
    without = PLAIN if plan is PLAN else replace(CPSGD, secure_sum=False)
    strategy, arrays = run(plan, rounds=2)
    assert digest_of(arrays) == digest_of(run(without, rounds=2)[1])
    assert [one.present for one in strategy.reports] == [tuple(NODES)] * 2
    assert [one.void for one in strategy.reports] == ["", ""]
    assert strategy.epsilon(1e-5).scope.trust is Trust.DISTRIBUTED


@pytest.mark.parametrize("stage", [net.KEYS, net.SHARES, net.MASKED, net.UNMASK])
def test_dropouts_within_the_threshold(stage: int) -> None:
    """Gone for good from some exchange on: the sum is that of whoever has sent a message."""
    strategy, arrays = run(tamper=net.Losses(dict.fromkeys((1001, 1004), stage)))
    (report,) = strategy.reports
    lost = () if stage is net.UNMASK else (1001, 1004)
    assert set(report.present) == set(NODES) - set(lost)
    assert set(report.selected) == set(NODES)
    assert set(report.refused) | set(report.silent) == set(lost)
    assert digest_of(arrays) == plain(*lost)
    assert report.claim == PLAN.claim_for(PLAN.build(DIM), 5 - len(lost), KEY.seed(0))
    strategy, arrays = run(
        tamper=net.Losses({1000: net.SHARES, 1003: net.MASKED})
    )  # of several stages
    assert digest_of(arrays) == plain(1000, 1003)
    assert "silent in stage shares" in strategy.reports[0].refused[1000]


def test_cells_of_few_bits() -> None:
    """Rounded alike, they have the plain sum, and the same limits follow: from too small a one."""
    strategy, arrays = run(FEW_BITS, rounds=4)
    clear = replace(FEW_BITS, settings=BARE, secure_sum=False)
    other, expected = run(clear, rounds=4)
    assert digest_of(arrays) == digest_of(expected)
    assert strategy.clip == other.clip
    assert strategy.clip != BARE["cell_limit"]
    assert FEW_BITS.build(DIM).message_format.bits == 4 + 3  # room for a sum of 5


@pytest.mark.parametrize("stage", [net.KEYS, net.SHARES, net.MASKED, net.UNMASK])
def test_below_the_threshold_the_round_is_void(
    stage: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Said, not charged unless messages were requested, and the next round goes on."""
    losses = net.Losses(dict.fromkeys((1000, 1001, 1002), stage), until=stage + 1)
    with caplog.at_level(logging.ERROR):
        strategy, arrays = run(rounds=2, tamper=losses)
    first, second = strategy.reports
    assert "the round is void" in first.void
    assert first.present == ()
    assert "VOID" in caplog.text
    assert (second.void, len(second.present)) == ("", 5)
    few, nothing = run(nodes=2)
    assert "2 nodes can take part in the secure sum, and 3 are needed" in few.reports[0].void
    assert (list(nothing), few.totals) == ([], ())
    # The first round has changed nothing: the model is that of the second one's hashes and noise.
    assert [index for index, _ in strategy.totals] == [1]
    assert digest_of(arrays) == digest_of(net.replayed(strategy.totals, PLAN))
    planned = PLAN.claim_for(PLAN.build(DIM), 3, KEY.seed(0))
    assert first.claim == (planned if stage >= net.MASKED else None)
    rounds = {net.KEYS: 1, net.SHARES: 1, net.MASKED: 2, net.UNMASK: 2}[stage]
    assert f"over {rounds} round" in str(strategy.epsilon(1e-5))


def messages_in(seen: list[Message], plan: FlowerPlan) -> list[bool]:
    """Whether each node's message of the first round, in clear, is in one of these."""
    data, method = [net.all_bytes(message) for message in seen], plan.build(DIM)
    found = []
    for number in range(5):
        change = net.towards(number, torch.zeros(DIM), 1)
        assert torch.equal(change, 0.5 * net.point(number))
        cells = pack(method.encode(change, KEY.seed(0), Silent()).messages, method.message_format)
        found.append(any(cells in each for each in data))
    return found


@pytest.mark.parametrize("plan", [PLAN, PLAIN], ids=["secure", "plain"])
def test_no_message_is_in_what_the_server_sees(plan: FlowerPlan) -> None:
    """A message has 12 cells of 15 bits or more: none is there by chance, once in 2**180 times."""
    caught = Caught()
    run(plan, tamper=caught)
    assert plan.build(DIM).message_format.bits * 12 >= 180
    # Negative control: without a secure sum, each is there.
    assert messages_in(caught, plan) == [not plan.secure_sum] * 5


def test_masks_differ_between_rounds_and_nodes() -> None:
    caught = Caught()
    for _ in range(2):  # with the same keys and the same noise
        run(tamper=caught)
    seen = [net.bytes_of(one) for one in caught if not net.is_sum_reply(one)]
    assert len(seen) == len({one[-20:] for one in seen}) == 10


@pytest.mark.parametrize("stage", [net.SHARES, net.MASKED, net.UNMASK, None])
def test_every_message_in_a_process_of_its_own(stage: int | None) -> None:
    """State goes through bytes, and nothing else is left; a node that forgets has dropped out."""
    network = net.RestartingNetwork(forgets={} if stage is None else {1002: stage})
    rounds = 2 if stage is None else 1
    strategy, arrays = run(network=network, rounds=rounds)
    lost = (1002,) if stage in (net.SHARES, net.MASKED) else ()
    assert set(strategy.reports[-1].present) == set(NODES) - set(lost)
    assert digest_of(arrays) == plain(*lost, rounds=rounds)
    if stage is None:  # secrets do not outlive the round
        for node in network.nodes.values():
            kept = node.context.state.config_records["diffsketch.sum"]
            assert set(kept) == {"invitation", "dim", "round_index"}


def test_a_server_without_the_key_learns_the_fingerprint_from_the_nodes() -> None:
    strategy, arrays = run(key=None)
    assert not arrays
    assert digest_of(net.replayed(strategy.totals, PLAN)) == plain()


@pytest.mark.parametrize("key", [KEY, None], ids=["key", "no key"])
def test_a_node_with_another_key_is_left_out(key: SketchKey | None) -> None:
    network = net.network_of(PLAN, 5)
    network.join(2, PLAN, key=SketchKey.from_integer(99))
    (report,) = net.started(PLAN, network, key=key).reports
    assert set(report.present) == set(NODES) - {1002}
    assert 1002 in report.refused


def test_a_server_that_asks_without_a_secure_sum_gets_nothing() -> None:
    """And nobody has trained or paid for it. The app never sees the sum's records."""
    network, strategy = net.network_of(PLAN, 5), net.strategy_of(PLAN)
    requests = list(strategy.configure_train(1, FIRST, ConfigRecord(), network))
    for one in requests[1:]:
        del one.content[SUM_RECORD]
    first, *others = network.send_and_receive(requests)
    assert net.our_record(first)["code"] == ""
    assert all("the server asks without" in str(net.our_record(one)["reason"]) for one in others)
    (seen,) = (message for node in network.nodes.values() for message in node.seen)
    assert sorted(seen.content) == ["arrays", "config"]


def test_a_node_without_a_secure_sum_is_left_out() -> None:
    network = net.network_of(PLAN, 5)
    network.join(4, PLAIN, key=KEY, trusted_server=True)
    (report,) = net.started(PLAN, network).reports
    assert set(report.present) == set(NODES) - {1004}
    assert "does not use SketchStrategy" in report.refused[1004]


def test_bytes_of_the_secure_sum_are_counted() -> None:
    caught = Caught()
    (report,) = run(tamper=caught)[0].reports
    seen = sum(len(net.all_bytes(one)) for one in caught)
    # Records as Flower serialises them; what a message adds around its records is not.
    assert report.bytes_up <= seen < report.bytes_up + 20 * 300


@pytest.mark.parametrize("present", [3, 4, 5])
def test_the_planned_claim_holds_for_all_who_may_be_present(present: int) -> None:
    def epsilon(plan: FlowerPlan, count: int) -> float:
        claim = plan.build(DIM).claim_for(count, KEY.seed(0))
        return claim.epsilon(delta=1e-5, rounds=1).value

    planned = epsilon(FlowerPlan("sketch-skellam", SETTINGS, cohort=3), 3)
    assert epsilon(PLAN, 3) == pytest.approx(planned, rel=1e-3)
    assert epsilon(PLAN, present) <= epsilon(PLAN, 3)
    # Negative control: noise that was planned for all is not enough for three.
    assert epsilon(replace(PLAN, secure_sum=False), 3) > 1.1 * planned


def test_dropouts_within_the_threshold_never_exceed_a_budget() -> None:
    claim = PLAN.build(DIM).claim_for(3, KEY.seed(0))
    enough = Budget(claim.epsilon(delta=1e-5, rounds=2).value * (1 + 1e-6), 1e-5)
    losses = net.Losses({1000: net.MASKED, 1001: net.MASKED})
    strategy, _ = run(rounds=3, tamper=losses, budget=enough)
    assert [one.void for one in strategy.reports] == ["", ""]  # and no third
    assert "budget" in strategy.ended
    # Not even one round is begun that a dropout could make too expensive.
    less = Budget(claim.epsilon(delta=1e-5, rounds=1).value * (1 - 1e-3), 1e-5)
    assert run(budget=less)[0].reports == []


def test_methods_and_aggregations_that_do_not_fit() -> None:
    with pytest.raises(ArgumentError, match="of 4 bits, unsigned, for a sum of 7"):
        replace(CPSGD, settings={"claimed": 5.0}).build(DIM)
    with pytest.raises(ArgumentError, match="aggregation must be a SecureAggregation for"):
        net.strategy_of(PLAIN, aggregation=SecureAggregation())


def test_a_refusal_of_a_node_is_heard() -> None:
    refusal = SumReply("tired", "no").to_record()
    refuse = net.of_bad(lambda one: one.content.config_records[SUM_RECORD].update(refusal))
    assert run(tamper=refuse)[0].reports[0].refused == {BAD: "tired: no"}
