"""Two aggregators on a Flower network: the server, and a helper that is one of its nodes."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from diffsketch.errors import ArgumentError
from diffsketch.flower import FlowerPlan, SecureClientAggregation, SketchStrategy, TwoAggregators
from diffsketch.flower.keys import NodeKeys, member_number
from diffsketch.flower.records import SUM_RECORD, SumRequest, digest_of
from diffsketch.privacy import Trust
from diffsketch.secure_sum import KeyPair, OneShotClient, OneShotLeader
from tests.flower import network as net
from tests.flower.network import BAD, DIM, FIRST, KEY, Caught, Network
from tests.flower.test_secure import PLAN as BY_ONE
from tests.flower.test_secure import SETTINGS, messages_in, plain
from tests.secure_sum.helpers import identity
from tests.secure_sum.test_one_shot import SECRET

pytestmark = pytest.mark.usefixtures("without_noise")

PLAN = FlowerPlan("sketch-skellam", SETTINGS, 5, 3, secure_sum="two")
UNSIGNED = replace(PLAN, identities=False)
PUBLIC = KeyPair(SECRET).public
HELPER, NODES = 1009, tuple(range(1000, 1005))
NAMES = [identity(number).public for number in range(5)]
TRAIN, ASK = range(1, 3)
"""The exchanges of a first round; before them the server asks who the helper is."""


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """What the configuration of the helper's node names."""
    return {
        "diffsketch-helper-secret-file": net.key_file(tmp_path / "secret.key", SECRET),
        "diffsketch-identities-file": net.key_file(tmp_path / "identities.txt", *NAMES),
        "diffsketch-helper-memory": str(tmp_path / "memory"),
    }


def joined(
    files: dict[str, str], plan: FlowerPlan = PLAN, *, network: Network | None = None,
    nodes: int = 5, who: Callable[[int], int] = int, **options: Any,
) -> Network:  # fmt: skip
    """A network of clients and the helper; `who` says whose identity a client has."""
    network = Network() if network is None else network
    for number in range(nodes):
        signer = identity(who(number)) if plan.identities else None
        own_side = SecureClientAggregation(identity=signer, helper=PUBLIC)
        network.join(number, plan, **{"key": KEY, "aggregation": own_side, **options})
    if files:
        network.join(9, plan, node_id=HELPER, config=files)
    return network


def run(
    network: Network, plan: FlowerPlan = PLAN, rounds: int = 1, **options: Any
) -> tuple[SketchStrategy, ArrayRecord]:
    options = {"aggregation": TwoAggregators(PUBLIC, patience=0.0), **options}
    strategy = net.strategy_of(plan, **options)
    return strategy, strategy.start(network, FIRST, rounds).arrays


@pytest.mark.parametrize("plan", [PLAN, UNSIGNED], ids=["signed", "unsigned"])
@pytest.mark.parametrize("key", [KEY, None], ids=["key", "no key"])
def test_the_sum_is_the_plain_sum(plan: FlowerPlan, key: Any, files: dict[str, str]) -> None:
    network = joined(files, plan)
    strategy, arrays = run(network, plan, rounds=2, key=key)
    assert [report.present for report in strategy.reports] == [NODES] * 2
    assert [report.refused for report in strategy.reports] == [{}, {}]
    assert digest_of(arrays or net.replayed(strategy.totals, plan)) == plain(rounds=2)
    assert network.nodes[HELPER].seen == []  # the helper never trains, nor is asked to
    asked = [message for message in network.sent if message.metadata.dst_node_id == HELPER]
    assert len(asked) == 3  # who it is, and two sums
    epsilon = strategy.epsilon(1e-5)
    assert epsilon.scope.trust is Trust.DISTRIBUTED
    # Each client has one message to and one from it, and was asked once who it is.
    assert len(network.sent) == len(asked) + 5 * (1 + 2)


def test_the_claim_names_the_aggregators() -> None:
    method = PLAN.build(DIM)
    assert method == BY_ONE.build(DIM)  # with noise for `min_replies`, as under one server
    words = "two aggregators that do not collude"
    claim = str(PLAN.claim_for(method, 3, KEY.seed(0)))
    assert words in claim
    assert "follows the protocol" not in claim
    unsigned = str(UNSIGNED.claim_for(method, 3, KEY.seed(0)))
    assert words in unsigned
    assert "against a server that follows the protocol" in unsigned
    assert words not in str(BY_ONE.claim_for(method, 3, KEY.seed(0)))  # control
    assert PLAN.describe(DIM) != UNSIGNED.describe(DIM)
    assert PLAN.describe(DIM) != replace(BY_ONE, identities=True).describe(DIM)


def test_any_minimum_of_the_cohort() -> None:
    """No half of the cohort is needed: nobody holds shares."""
    assert replace(PLAN, cohort=1000, min_replies=2).min_replies == 2
    pairs: list[tuple[str, int]] = [
        ("min_replies", 1), ("min_replies", 6), ("corrupt", 3), ("corrupt", 5)
    ]  # fmt: skip
    for name, value in pairs:
        wrong: dict[str, Any] = {name: value}
        with pytest.raises(ArgumentError, match=r"min_replies must be in|corrupt must be below"):
            replace(PLAN, **wrong)
    with pytest.raises(ArgumentError, match='secure_sum must be a bool, "one" or "two"'):
        replace(PLAN, secure_sum="three")  # type: ignore[arg-type]
    assert replace(PLAN, secure_sum=True) == replace(PLAN, secure_sum="one")
    claim = replace(PLAN, corrupt=1).claim_for(PLAN.build(DIM), 4, KEY.seed(0))
    assert claim == PLAN.claim_for(PLAN.build(DIM), 3, KEY.seed(0))


@pytest.mark.parametrize("silent", [(1001, 1004), (1000,)])
def test_whoever_is_silent_is_not_in_the_sum(
    silent: tuple[int, ...], files: dict[str, str]
) -> None:
    network = joined(files)
    network.tamper = net.Losses(dict.fromkeys(silent, TRAIN))
    strategy, arrays = run(network)
    (report,) = strategy.reports
    assert ({*report.present}, {*report.silent}) == ({*NODES} - {*silent}, {*silent})
    assert digest_of(arrays) == plain(*silent)
    assert report.claim == PLAN.claim_for(PLAN.build(DIM), 5 - len(silent), KEY.seed(0))


def test_too_few_make_a_void_round(files: dict[str, str]) -> None:
    """And nobody asks the helper, whose one answer stays for those who come."""
    network = joined(files)
    network.tamper = net.Losses(dict.fromkeys((1000, 1001, 1002), TRAIN), until=TRAIN + 1)
    strategy, arrays = run(network, rounds=2)
    first, second = strategy.reports
    assert first.void == "2 messages, and 3 are needed"
    assert (second.void, second.present) == ("", NODES)
    assert [index for index, _ in strategy.totals] == [1]
    assert digest_of(arrays) == digest_of(net.replayed(strategy.totals, PLAN))
    assert "over 2 rounds" in str(strategy.epsilon(1e-5))  # who was asked has paid


def test_every_message_in_a_process_of_its_own(files: dict[str, str]) -> None:
    """The helper's too: nothing is in the nodes' states, and nothing is forgotten."""
    network = joined(files, network=net.RestartingNetwork(forgets={HELPER: ASK}))
    strategy, arrays = run(network, rounds=2)
    assert [report.void for report in strategy.reports] == ["", ""]
    assert digest_of(arrays) == plain(rounds=2)
    for node in network.nodes.values():
        assert SUM_RECORD not in node.context.state.config_records


# The helper is killed, forgets, is another one, or is not there.


class Moves(Caught):
    """The helper's answer is lost, with the helper; it is back under another node id, or not."""

    def __init__(self, network: Network, files: dict[str, str], back: int | None) -> None:
        super().__init__()
        self._network, self._files, self._back, self._exchange = network, files, back, -1

    def __call__(self, replies: list[Message]) -> list[Message]:
        self._exchange += 1
        if self._exchange != ASK:
            return super().__call__(replies)
        del self._network.nodes[HELPER]
        if self._back is not None:
            self._network.join(9, PLAN, node_id=self._back, config=self._files)
        return []


def test_a_helper_that_is_killed_and_comes_back(files: dict[str, str]) -> None:
    """It has answered, and its answer is lost: it gives the same one again.

    However long the lost exchange took: that is no part of the patience.
    """
    network = joined(files)
    network.tamper = Moves(network, files, 1077)
    strategy, arrays = run(network, rounds=2)
    assert [report.void for report in strategy.reports] == ["", ""]
    assert digest_of(arrays) == plain(rounds=2)
    assert network.nodes[1077].seen == []


def test_a_helper_that_is_killed_for_good(
    files: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """The round is void and paid for; the next ones are void before anybody is asked."""
    network = joined(files)
    network.tamper = Moves(network, files, None)
    with caplog.at_level(logging.ERROR):
        strategy, arrays = run(network, rounds=3)
    assert list(arrays) == []
    voids = [report.void for report in strategy.reports]
    assert voids[0] == "the helper gives no sum: it is silent"
    assert all("no node is the helper" in void for void in voids[1:])
    assert "over 1 round" in str(strategy.epsilon(1e-5))
    assert [report.claim is None for report in strategy.reports] == [False, True, True]
    assert "VOID" in caplog.text


def test_a_helper_that_joins_late(files: dict[str, str]) -> None:
    network = joined({})
    late = Caught()

    def join(replies: list[Message]) -> list[Message]:
        if not late:
            network.join(9, PLAN, node_id=HELPER, config=files)
        return late(replies)

    network.tamper = join
    strategy, arrays = run(network, aggregation=TwoAggregators(PUBLIC, patience=5.0))
    assert digest_of(arrays) == plain()
    assert strategy.reports[0].present == NODES


@pytest.mark.parametrize("lack", ["helper-memory", "identities-file", "right key", "same plan"])
def test_a_helper_without_memory_registry_key_or_plan_answers_nothing(
    lack: str, files: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    if lack == "right key":
        Path(files["diffsketch-helper-secret-file"]).write_text(bytes(range(32)).hex())
    network, plan = joined({}), replace(PLAN, min_replies=2) if lack == "same plan" else PLAN
    config = {name: path for name, path in files.items() if lack not in name}
    network.join(9, plan, node_id=HELPER, config=config)
    strategy, _ = run(network)
    assert "no node is the helper" in strategy.reports[0].void
    said = {
        "helper-memory": "diffsketch-helper-memory", "identities-file": "IDENTITIES_FILE",
        "same plan": "the server's plan is another one",
    }  # fmt: skip
    assert said.get(lack, "") in caplog.text


@pytest.mark.parametrize("replay", [False, True])
def test_a_node_that_pretends_to_be_the_helper(replay: bool, files: dict[str, str]) -> None:
    """It is asked before the helper, and knows its public key, and what it has said before."""
    network, said = joined(files), list[bytes]()

    def pretend(replies: list[Message]) -> list[Message]:
        asked = {reply.metadata.src_node_id: reply for reply in replies if net.is_sum_reply(reply)}
        if liar := asked.get(999):
            net.set_bytes(liar, said[0] if said else PUBLIC)
        elif replay and HELPER in asked:
            said.append(net.bytes_of(asked[HELPER]))
        return replies

    if replay:
        network.tamper = pretend
        run(network)
    side = SecureClientAggregation(identity=identity(2), helper=PUBLIC)
    network.join(2, PLAN, key=KEY, node_id=999, aggregation=side)
    del network.nodes[BAD]
    network.nodes = dict(sorted(network.nodes.items()))
    network.tamper = pretend
    strategy, _ = run(network)
    (report,) = strategy.reports
    # It is a client like any other, and the helper is none.
    assert (report.void, {*report.present}) == ("", {999, *NODES} - {BAD})
    assert network.nodes[HELPER].seen == []
    assert bool(said) == replay


# Clients that are not what they say.


def shorten(reply: Message) -> None:
    if not net.is_sum_reply(reply):
        net.set_bytes(reply, net.bytes_of(reply)[:-1])


@pytest.mark.parametrize(
    ("who", "change", "reason", "left_out"),
    [
        ((0, 1, 77, 3, 4), list, "helper: its identity is not one that the helper knows", {BAD}),
        ((0, 1, 2, 3, 3), list, "has sent a message in this round before", {1003, 1004}),
        ((0, 1, 2, 3, 4), net.of_bad(shorten), "bytes, and", {BAD}),
    ],
    ids=["unknown", "twice", "cut"],
)
def test_clients_that_are_left_out(
    who: tuple[int, ...], change: net.Tamper, reason: str, left_out: set[int],
    files: dict[str, str],
) -> None:  # fmt: skip
    network = joined(files, who=lambda number: who[number])
    network.tamper = change
    strategy, arrays = run(network)
    ((node, why),) = strategy.reports[0].refused.items()  # of two alike, the one that came second
    assert node in left_out
    assert reason in why
    assert digest_of(arrays) == plain(node)


def test_a_seed_that_is_not_that_of_the_mask_voids_the_round(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The total is far longer than honest ones: nobody can say whose fault it is."""
    seal = OneShotClient.seal

    def another(self: OneShotClient, seed: bytes, params: Any) -> bytes:
        liar = self.index == member_number(NAMES[2])
        return seal(self, bytes(32) if liar else seed, params)

    wide = FlowerPlan("sketch-skellam", {**SETTINGS, "cols": 600}, 5, 3, secure_sum="two")
    honest, _ = run(joined(files, wide), wide)
    assert honest.reports[0].void == ""  # control
    monkeypatch.setattr(OneShotClient, "seal", another)
    strategy, arrays = run(joined(files, wide), wide)
    assert "the sum of 5 messages has a norm of" in strategy.reports[0].void
    assert list(arrays) == []


# What the operators see, and what clients refuse.


def test_no_message_is_in_what_either_operator_sees(files: dict[str, str]) -> None:
    """A message has 12 cells of 15 bits or more: none is there by chance, once in 2**180 times."""
    caught = Caught()
    network = joined(files)
    network.tamper = caught
    run(network)
    assert not any(messages_in([*caught, *network.sent], PLAN))
    # The helper has no masked cells: 200 bytes for each client at most.
    asked = [one for one in network.sent if one.metadata.dst_node_id == HELPER]
    assert len(net.all_bytes(asked[-1])) < 5 * 200 + 1500


def test_clients_refuse_without_the_helpers_key_or_an_identity(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = joined(files)
    network.join(2, PLAN, key=KEY)
    network.join(3, PLAN, key=KEY, aggregation=SecureClientAggregation(helper=PUBLIC))
    strategy, _ = run(network)
    said = strategy.reports[0].refused
    assert "lacks the helper's public key (DIFFSKETCH_HELPER_FILE)" in said[1002]
    assert "the plan has identities, and this client has none" in said[1003]
    # All of it can be looked up.
    folder, secret = Path(files["diffsketch-helper-memory"]).parent, b"identity 2"
    for name, key in (("HELPER", PUBLIC), ("IDENTITY", hashlib.sha256(secret).digest())):
        monkeypatch.setenv(f"DIFFSKETCH_{name}_FILE", net.key_file(folder / name, key))
    assert NodeKeys().helper == PUBLIC
    network = joined(files)
    network.join(2, PLAN, key=KEY)
    strategy, arrays = run(network, aggregation=None)
    assert net.reasons(strategy) == []
    assert digest_of(arrays) == plain()


def refusal(network: Network, node: int, request: SumRequest) -> object:
    """Why a node refuses a request in a sum's own exchange."""
    content = RecordDict({SUM_RECORD: request.to_record()})
    message = Message(content, dst_node_id=node, message_type="train")
    (reply,) = network.send_and_receive([message])
    return reply.content.config_records[SUM_RECORD]["reason"]


def test_clients_have_no_exchanges_with_a_server(files: dict[str, str]) -> None:
    """One that asks them for keys of the other protocol, under the plan that they have."""
    asked = SumRequest(0, PLAN.describe(DIM), DIM, b"invitation", b"request")
    reason = refusal(joined(files), 1000, asked)
    assert reason == "two aggregators have no exchanges with clients"


def test_clients_refuse_a_round_whose_nonce_has_another_length(files: dict[str, str]) -> None:
    """Before they train and pay: the parameters of a sum would be refused after it."""
    network = joined(files)
    strategy = net.strategy_of(PLAN, aggregation=TwoAggregators(PUBLIC))
    requests = list(strategy.configure_train(1, FIRST, ConfigRecord(), network))
    for request in requests:
        net.our_record(request)["nonce"] = b"short"
    replies = [net.our_record(reply) for reply in network.send_and_receive(requests)]
    assert {reply["reason"] for reply in replies} == {
        "the round's nonce must have 16 to 64 bytes, not 5"
    }
    assert all(network.nodes[node].seen == [] for node in NODES)


@pytest.mark.parametrize("plan", [PLAN, UNSIGNED], ids=["signed", "unsigned"])
def test_a_client_in_the_name_of_another_is_left_out(
    plan: FlowerPlan, files: dict[str, str]
) -> None:
    """If it comes first, the helper refuses it and the server the other: no input shows.

    Without identities the name is the node's, which the server knows.
    """
    network, signed = joined(files, plan), plan.identities

    def renamed(replies: list[Message]) -> list[Message]:
        replies.sort(key=lambda reply: reply.metadata.src_node_id)
        for reply in replies[:1]:
            if reply.metadata.src_node_id == 1000 and not net.is_sum_reply(reply):
                params = plan.one_shot(
                    plan.build(DIM).message_format, run=net.our_record(reply)["nonce"],
                    place=(0, KEY.seed(0).fingerprint), helper=PUBLIC,
                )  # fmt: skip
                name, own = (member_number(NAMES[2]), identity(0)) if signed else (BAD, None)
                other = OneShotClient(name, PUBLIC, identity=own)
                cells = torch.zeros(params.layout.shape, dtype=torch.int64)
                net.set_bytes(reply, other.mask(cells, params))
        return replies

    network.tamper = renamed
    strategy, arrays = run(network, plan)
    (report,) = strategy.reports
    if signed:
        assert report.refused[1000] == "helper: its identity has not signed its channel key"
        assert "has sent a message in this round before" in report.refused[BAD]
    else:
        assert report.refused == {1000: f"1000 has sent a message of {BAD}"}
    assert digest_of(arrays) == plain(1000, *[BAD] * signed)


def test_the_helper_takes_no_memory_for_a_claimed_length(files: dict[str, str]) -> None:
    """A server that asks it for a sum of vectors of terabytes gets a refusal."""
    plan = FlowerPlan("skellam", {"clip": 1.0, "noise_multiplier": 2.0}, 5, 3, secure_sum="two")
    dim = 1 << 40
    params = plan.one_shot(
        plan.build(dim).message_format, run=bytes(16), place=(0, bytes(8)), helper=PUBLIC
    )
    request = OneShotLeader(params).request()
    asked = SumRequest(0, plan.describe(dim), dim, bytes(24), request)
    reason = refusal(joined(files, plan), HELPER, asked)
    assert reason == "0 clients are in the sum, and 3 are needed"


def test_the_helper_does_not_train_for_a_server_that_asks_it(files: dict[str, str]) -> None:
    network = joined({})
    network.join(9, PLAN, node_id=HELPER, key=KEY, config=files)
    strategy = net.strategy_of(PLAN, aggregation=TwoAggregators(PUBLIC))
    strategy.configure_train(1, FIRST, ConfigRecord(), network)
    requests = list(strategy.configure_train(2, FIRST, ConfigRecord(), network))
    requests[0].metadata.__dict__["_dst_node_id"] = HELPER
    (reply,) = network.send_and_receive(requests[:1])
    assert "this node is the helper" in str(net.our_record(reply)["reason"])
    assert network.nodes[HELPER].seen == []


def test_servers_that_do_not_fit() -> None:
    with pytest.raises(ArgumentError, match="aggregation must have the helper's public key"):
        run(joined({}), aggregation=TwoAggregators())
    with pytest.raises(ArgumentError, match=r'aggregation must be .* TwoAggregators for "two"'):
        net.strategy_of(BY_ONE, aggregation=TwoAggregators(PUBLIC))


class InMemoryGrid(Network):
    """A network that says it is Flower's simulation."""

    class run:  # noqa: N801 - as Flower has it
        run_id = 7


def test_a_simulation_has_a_helper_of_its_own() -> None:
    network = InMemoryGrid()
    for number in range(5):
        network.join(number, UNSIGNED)
    strategy = net.started(UNSIGNED, network, rounds=2, key=None)
    assert [report.present for report in strategy.reports] == [NODES] * 2
    assert strategy.totals
    # Nothing of it is left.
    assert NodeKeys(run_id=7).helper is None


def test_bytes_of_a_client_do_not_depend_on_the_others(files: dict[str, str]) -> None:
    """Beside the plain message: the seal up, and nothing down."""
    trusted: dict[str, Any] = {"aggregation": None, "trusted_server": True}
    for cohort in (5, 3):
        plan, sizes = replace(PLAN, cohort=cohort), []
        noise = SETTINGS | {"noise_multiplier": 2.0 * (cohort / 3) ** 0.5}  # that of a secure sum
        clear = replace(plan, secure_sum=False, settings=noise)
        for used, names, options in ((plan, files, {}), (clear, {}, trusted)):
            network = joined(names, used, nodes=cohort, **options)
            network.tamper = caught = Caught()
            run(network, used, **options)
            last = [
                [m for m in way if not net.is_sum_reply(m)][-1] for way in (caught, network.sent)
            ]
            sizes.append([len(net.all_bytes(message)) for message in last])
        (up, down), (plain_up, plain_down) = sizes
        assert 156 <= up - plain_up <= 160  # Flower writes longer lengths in more bytes
        assert abs(down - plain_down) < 100  # the plan's text is longer
