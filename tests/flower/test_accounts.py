"""Accounts of both sides: restored, lost, copied, shared, and clients that come back."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from diffsketch.errors import MismatchError
from diffsketch.flower import FlowerPlan, SketchStrategy, sketch_mod
from diffsketch.flower import accounts as module
from diffsketch.flower import client as client_module
from diffsketch.flower.accounts import (
    ClientRegistry,
    open_account,
    refusing,
    sign_statement,
    verify_statement,
)
from diffsketch.flower.records import NO_MODEL, RECORD, Refusal, Request, member_digest
from diffsketch.privacy import Budget, Claim
from diffsketch.privacy.accounting import account as account_module
from diffsketch.privacy.accounting.account import Account
from diffsketch.wire import WireError
from tests.flower import network as net
from tests.flower.network import CENTRAL, DIM, FIRST, GAUSSIAN, KEY, PRIVATE, RUN, Network
from tests.helpers.refusals import refused

LOUDER = FlowerPlan("sketch-gaussian", {**PRIVATE, "noise_multiplier": 0.5})
BUDGET = Budget(6.0, 1e-5)
OWN = b"k" * 32


def claim_of(plan: FlowerPlan) -> Claim:
    return plan.build(DIM).claim_for(1, KEY.seed(0))


CLAIM = claim_of(GAUSSIAN)


@cache
def allowed(budget: Budget = BUDGET) -> int:
    """Rounds of `GAUSSIAN` within the budget."""
    count = 0
    while float(CLAIM.epsilon(delta=budget.delta, rounds=count + 1)) <= budget.epsilon:
        count += 1
    return count


def account(rounds: int, claim: Claim = CLAIM) -> Account:
    paid = Account()
    paid.charge(claim, rounds=rounds)
    return paid


def epsilon(of: Any) -> float:
    return float(of.epsilon(1e-5))


def test_a_statement_comes_back_exactly_or_is_refused() -> None:
    paid = account(7)
    good = sign_statement(paid, OWN)
    assert verify_statement(good, OWN).spent == paid.spent
    changed = [bytes(b ^ (i == at % len(good)) for i, b in enumerate(good)) for at in (0, 31, 40)]
    for bad in (*changed, *(good[:length] for length in (0, 31, 32, 100))):
        refused(WireError, "not made with its own key", verify_statement, bad, OWN)
    refused(WireError, "own key", verify_statement, good, b"o" * 32)
    older = b"text of another version"
    with pytest.raises(WireError, match="statement of this client's account"):
        verify_statement(module._tag(older, OWN) + older, OWN)
    paid = Account()
    for _ in range(1000):  # restarts: far within what a reply may have
        paid.begin_series()
        paid.charge(CLAIM)
    assert len(sign_statement(paid, OWN)) < 1 << 16


def request(round_index: int = 0, *, statement: bytes = b"", known: bytes = b"") -> Request:
    return Request(
        b"", b"", round_index, "", b"", "arrays", NO_MODEL, 0, 1, [], [], b"", statement, known, 0.0
    )


def charged(path: Path, asked: Request | None = None, **options: Any) -> Account:
    """A client's account after it has paid a message."""
    paid = open_account(CLAIM, asked or request(), member="0", path=path, **options)
    with refusing():
        paid.charge(CLAIM)
    return paid


def again(paid: Account) -> Account:
    """What the next process of the node remembers."""
    return Account.from_text(paid.to_text())


def sent(strategy: SketchStrategy) -> int:
    return sum(len(report.present) for report in strategy.reports)


def test_without_a_statement_a_lost_file_counts_all_earlier_rounds(tmp_path: Path) -> None:
    path = tmp_path / "account.json"
    assert charged(path).rounds == 1
    path.unlink()
    assert charged(path, request(7)).rounds == 8
    path.unlink()
    known = member_digest("0")  # the server has a statement: it is waited for
    refused(Refusal, "needs its statement first", charged, path, request(7, known=known), key=OWN)
    Account.open(path)  # how a new client says that it is new
    assert charged(path, request(7)).rounds == 1
    path.unlink()
    assert charged(path, request(7), remembered=account(3)).rounds == 4


def test_a_file_that_is_made_never_says_that_nothing_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash right after it was made, and refused rounds, do not make a new client of an old."""
    path, budget = tmp_path / "account.json", Budget(3.5, 1e-5)  # two rounds
    refused(Refusal, "above the budget", charged, path, request(7), budget=budget)
    assert not path.exists()

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Account, "resume", crash)
        with pytest.raises(KeyboardInterrupt):
            charged(path, request(2), budget=budget)
    assert Account.open(path).rounds == 2
    refused(Refusal, "above the budget", charged, path, request(3), budget=budget)


def test_the_budget_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "account.json"
    charged(path, budget=BUDGET)
    refused(MismatchError, "budget must be that of", charged, path, budget=Budget(7.0, 1e-5))
    for _ in range(allowed() - 1):
        charged(path)
    refused(Refusal, "above the budget", charged, path)


def test_file_and_statement_are_combined(tmp_path: Path) -> None:
    path, old = tmp_path / "account.json", account(5)
    newer = again(old)
    newer.charge(CLAIM)
    for stated, rounds in ((newer, 7), (account(2), 8)):
        path.unlink(missing_ok=True)
        Account.open(path, first=old)
        after = charged(path, request(statement=sign_statement(stated, OWN)), key=OWN)
        assert after.rounds == rounds
        assert Account.open(path).rounds == rounds


def test_a_memory_goes_on_with_its_series_unless_somebody_else_has(tmp_path: Path) -> None:
    """A process for each message adds no series; a state that was set back, or a clone, does."""
    path = tmp_path / "account.json"
    first = charged(path)
    second = charged(path, remembered=again(first))
    assert second.series == first.series
    third = charged(path, remembered=again(first))  # of before the second message
    assert third.series != first.series
    assert third.rounds == 3
    assert charged(path).series not in (first.series, third.series)  # without a memory


def test_a_message_that_is_answered_while_another_trains_is_paid(tmp_path: Path) -> None:
    path = tmp_path / "account.json"
    options: dict[str, Any] = {"budget": BUDGET, "account_file": path}
    other, second = net.network_of(GAUSSIAN, 1, **options), net.strategy_of(GAUSSIAN)

    def train(number: int, weights: Tensor, server_round: int) -> Tensor:
        net.one_round(second, other, FIRST, server_round)
        return net.towards(number, weights, server_round)

    first = net.strategy_of(GAUSSIAN)
    first.start(net.network_of(GAUSSIAN, 1, train=train, **options), FIRST, allowed())
    assert sent(first) + sent(second) == allowed()
    assert Account.open(path).rounds == allowed()


def test_an_account_of_another_trust_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "account.json"
    for plan, void in ((GAUSSIAN, False), (CENTRAL, True), (GAUSSIAN, False)):
        network = net.network_of(plan, 1, account_file=path)
        strategy = net.strategy_of(plan)
        strategy.start(network, FIRST, 1)
        (report,) = strategy.reports
        assert bool(report.void) == void
        assert len(network.nodes[1000].seen) == (not void)
        if void:
            (reason,) = report.refused.values()
            assert reason.startswith("account: this client's account is about another kind")
            assert str(tmp_path) not in reason


def charge(registry: ClientRegistry, nodes: Iterable[int]) -> None:
    registry.begin_round(CLAIM, nodes)
    registry.settle_round()


def met(registry: ClientRegistry, **nodes: int) -> None:
    """Nodes say which clients they are, with statements."""
    for member, node in nodes.items():
        registry.update(node, member=member, version=0, statement=f"of {member}".encode())


def rounds_of(registry: ClientRegistry, member: str) -> int:
    text: str = json.loads(registry.to_text())["accounts"][f"member {member}"]
    return Account.from_text(text).rounds


def test_a_client_that_comes_back_under_another_id_has_one_account() -> None:
    registry = ClientRegistry(None, CLAIM)
    charge(registry, [1, 2])
    met(registry, a=1, b=2)
    charge(registry, [1, 2])
    charge(registry, [3])  # a restarted "a", which does not answer at first
    assert rounds_of(registry, "a") == 2
    met(registry, a=3)
    assert (rounds_of(registry, "a"), rounds_of(registry, "b")) == (3, 2)
    charge(registry, [3])
    assert epsilon(registry) == pytest.approx(epsilon(account(4)), rel=1e-9)
    # Two nodes of one client pay twice.
    charge(registry, [1, 3, 2])
    assert (rounds_of(registry, "a"), rounds_of(registry, "b")) == (6, 3)
    again = ClientRegistry(None, CLAIM)
    again.load_text(registry.to_text())
    assert (rounds_of(again, "a"), rounds_of(again, "b")) == (6, 3)


def test_a_node_that_changes_its_name_takes_nothing_along() -> None:
    """A hostile node, or two that come back with each other's names."""
    registry = ClientRegistry(None, CLAIM)
    for index in range(6):
        charge(registry, [1, 2])
        registry.update(1, member="a", version=0, statement=b"")
        registry.update(2, member="a" if index % 2 else "b", version=0, statement=b"")
    # Node 2 pays as whoever it was before: twice as an unknown node or "b", then in turns.
    assert rounds_of(registry, "a") + rounds_of(registry, "b") == 12
    assert rounds_of(registry, "a") >= 6


def test_the_registrys_budget_is_never_exceeded() -> None:
    registry, rounds = ClientRegistry(BUDGET, CLAIM), allowed()
    for index in range(rounds):
        charge(registry, [index, 50])
    assert list(registry.unaffordable(CLAIM, [rounds, 50])) == [50]
    assert epsilon(registry) <= BUDGET.epsilon


def test_clients_over_budget_do_not_keep_others_from_being_told_apart() -> None:
    registry = ClientRegistry(Budget(3.5, 1e-5), CLAIM)  # two rounds
    charge(registry, [1])
    met(registry, a=1)
    charge(registry, [1])
    charge(registry, [2])  # a restarted "a" that is silent, and paid by its id
    registry.begin_round(CLAIM, [2, 3])
    assert registry.over_budget(CLAIM) == frozenset()
    met(registry, a=2, b=3)
    assert registry.over_budget(CLAIM) == {2}
    assert rounds_of(registry, "a") == 4  # with the round that was begun
    registry.settle_round(CLAIM)
    assert (rounds_of(registry, "a"), rounds_of(registry, "b")) == (4, 1)
    assert epsilon(registry) == pytest.approx(epsilon(account(4)), rel=1e-9)
    reasons = registry.unaffordable(CLAIM, [1, 2, 3])  # whichever of its nodes: not asked again
    assert list(reasons) == [1, 2]
    assert all("above the budget" in reason for reason in reasons.values())
    charge(registry, [3])
    assert (rounds_of(registry, "a"), rounds_of(registry, "b")) == (4, 2)


def test_nodes_that_turn_out_to_be_one_client_are_over_its_budget_together() -> None:
    registry = ClientRegistry(Budget(3.5, 1e-5), CLAIM)  # two rounds
    met(registry, a=1)
    charge(registry, [1])
    registry.begin_round(CLAIM, [1, 2, 3])
    assert registry.over_budget(CLAIM) == frozenset()
    met(registry, a=2)
    assert registry.over_budget(CLAIM) == {1, 2}


def test_of_several_nodes_of_a_client_as_many_are_asked_as_it_can_pay() -> None:
    registry = ClientRegistry(Budget(3.5, 1e-5), CLAIM)  # two rounds
    for node in (1, 2, 3):
        met(registry, a=node)
    assert list(registry.unaffordable(CLAIM, [1, 2, 3, 4])) == [3]
    charge(registry, [3])
    assert list(registry.unaffordable(CLAIM, [1, 2, 3, 4])) == [2, 3]


def test_statements_are_handed_back_to_their_client_only() -> None:
    registry = ClientRegistry(None, CLAIM)
    met(registry, a=1, b=2)
    assert registry.statement_for(1) == (b"of a", b"")
    statement, known = registry.statement_for(9)
    assert (statement, len(known)) == (b"", 16)


@pytest.mark.parametrize("plan", [CENTRAL, GAUSSIAN])
def test_a_client_has_one_message_in_a_sum(plan: FlowerPlan, tmp_path: Path) -> None:
    """Two would move it twice as far as a trusted sum's claim says; a local claim is of each."""
    trusted: dict[str, Any] = {"trusted_server": True} if plan is CENTRAL else {}
    network = net.network_of(plan, 1, **trusted)
    for node_id in (2001, 2002):
        options: Any = {"account_file": tmp_path / "client.json", **trusted}
        network.join(1, plan, node_id=node_id, key=KEY, **options)
    strategy, arrays = net.strategy_of(plan, **trusted), FIRST
    for index in (1, 2):
        arrays = net.one_round(strategy, network, arrays, index)
        left_out = dict(strategy.reports[-1].refused)
        assert len(left_out) == (1 if plan is CENTRAL else 0)
        assert set(left_out.values()) <= {"another node of its client is in the sum"}


# Copies of a client's account, and crashes: never less than what was sent.

LOOSE = Budget(60.0, 1e-5)
PLACES = st.integers(0, 3)
FEW = settings(
    stateful_step_count=12, deadline=None, database=None, derandomize=True,
    phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck),
)  # fmt: skip


Statement: TypeAlias = tuple[bytes, frozenset[int]]  # and the messages that it knows of
NONE: Statement = (b"", frozenset())


@dataclass
class Place:
    """A node: its file, and its memory. `sent` are the messages that its memory knows of."""

    node_id: int
    file: Path | None
    state: RecordDict
    sent: frozenset[int] = frozenset()
    last: Statement = NONE


class Copies(RuleBasedStateMachine):
    """One client on any number of machines, all copies of the first one.

    Messages are numbered. What a file, a memory or a statement knows of is followed by hand: an
    account that has met others must count all of theirs, and spend the budget once. Two copies of
    one memory with the same node id, and no file in common, cannot be told apart, and are left out.
    """

    folder: Path
    budget: Budget
    same_id = False  # whether a clone has the node id of its image

    def __init__(self) -> None:
        super().__init__()
        Network()  # Flower's identity of this process
        self.rounds, self.count = 0, 0
        self.in_files: dict[Path, frozenset[int]] = {}
        self.statements: list[Statement] = []
        client_key = net.key_file(self._new_folder() / "client.key", OWN)
        self.config: Any = {"partition-id": 0, "diffsketch-client-key-file": client_key}
        file = self._new_folder() / "account.json"
        Account.open(file)  # a new client, which says so
        self.in_files[file] = frozenset()
        self.places = [Place(1, file, RecordDict())]

    def _new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder))

    def _place(self, number: int) -> Place:
        return self.places[number % len(self.places)]

    def _reply(self, place: Place, statement: bytes, *, crash: bool) -> Mapping[str, Any] | None:
        """A node's answer to a new round; its state is kept if it has one."""
        self.rounds += 1
        app = ClientApp(
            mods=[sketch_mod(GAUSSIAN, key=KEY, budget=self.budget, account_file=place.file)]
        )
        app.train()(_trained)
        # Of a server anew each time: nothing is assumed of earlier rounds, which would only hide
        # what is missing.
        request = Request(
            self.rounds.to_bytes(8, "little"), bytes(16), 0, GAUSSIAN.describe(DIM), b"", "arrays",
            0, 0, 1, [], [], b"", statement, b"", 0.0,
        )  # fmt: skip
        content = RecordDict({RECORD: request.to_record(), "arrays": FIRST})
        message = Message(content, dst_node_id=place.node_id, message_type="train")
        message.metadata.__dict__["_message_id"] = "message"
        context = Context(RUN, place.node_id, self.config, net.carried(place.state), {})
        with pytest.MonkeyPatch.context() as patch:
            if crash:
                patch.setattr(client_module, "sign_statement", _interrupted)
            try:
                reply = app(message, context)
            except KeyboardInterrupt:
                return None
        place.state = context.state
        return dict(net.our_record(reply))

    @rule(number=PLACES, times=st.integers(1, 3))
    def ask(self, number: int, times: int) -> None:
        for _ in range(times):
            self._ask(number)

    @rule(number=PLACES, shown=st.integers(0, 99))
    def show_a_statement(self, number: int, shown: int) -> None:
        """Any that the client has ever sent: of another node, or an old one."""
        if self.statements:
            self._ask(number, self.statements[shown % len(self.statements)])

    @rule(number=PLACES, other=PLACES)
    def meet(self, number: int, other: int) -> None:
        """Show a node what another one has sent last."""
        self._ask(number, self._place(other).last)

    @rule(number=PLACES)
    def crash(self, number: int) -> None:
        self._ask(number, crash=True)

    def _ask(self, number: int, shown: Statement = NONE, *, crash: bool = False) -> None:
        place, (statement, stated) = self._place(number), shown
        met = place.sent | stated
        if place.file is not None and place.file.exists():
            met |= self.in_files[place.file]
        reply = self._reply(place, statement, crash=crash)
        if reply is None or reply["message"]:  # it was charged, and perhaps sent
            self.count += 1
            met |= {self.count}
            assert len(met) <= allowed(self.budget)  # no budget is spent twice
        if reply is not None:
            place.sent = met
            if reply["message"]:
                assert verify_statement(reply["statement"], OWN).rounds >= len(met)
                place.last = reply["statement"], met
                self.statements.append(place.last)
            else:
                assert reply["code"] == "budget"
        if place.file is not None and place.file.exists():
            self.in_files[place.file] = met

    @rule(number=PLACES, memory=st.booleans(), disk=st.booleans(), times=st.integers(0, 4))
    def clone(self, number: int, memory: bool, disk: bool, times: int) -> None:
        """A node from the image of another one, of its disk, its memory, or both, that goes on."""
        place, file = self._place(number), None
        if disk and place.file is not None:
            file = self._new_folder() / "account.json"
            if place.file.exists():
                shutil.copy(place.file, file)
                self.in_files[file] = self.in_files[place.file]
        state = net.carried(place.state) if memory else RecordDict()
        node_id = place.node_id if self.same_id else len(self.places) + 1
        self.places.append(Place(node_id, file, state, place.sent if memory else frozenset()))
        for _ in range(times):
            self._ask(len(self.places) - 1)

    @rule(number=PLACES)
    def fork(self, number: int) -> None:
        """A second process of a node, with its file and its memory as it is now."""
        place = self._place(number)
        if place.file is not None and place.file.exists():
            self.places.append(
                Place(place.node_id, place.file, net.carried(place.state), place.sent)
            )

    @rule(number=PLACES)
    def restart(self, number: int) -> None:
        place = self._place(number)
        place.state, place.sent = RecordDict(), frozenset()

    @rule(number=PLACES)
    def lose_the_file(self, number: int) -> None:
        place = self._place(number)
        if sum(other.file == place.file for other in self.places) == 1 and place.file is not None:
            place.file.unlink(missing_ok=True)


def _trained(message: Message, _: Context) -> Message:
    return net.reply_of(message, {}, net.record_of(torch.full((DIM,), 0.1)))


def _interrupted(*_: object) -> bytes:
    """A process that ends after it has charged, and before it has sent."""
    raise KeyboardInterrupt


def run_copies(folder: Path, budget: Budget = LOOSE, *, examples: int = 40) -> None:
    machine = type("Copies", (Copies,), {"folder": folder, "budget": budget})
    run_state_machine_as_test(machine, settings=settings(FEW, max_examples=examples))


@pytest.mark.parametrize("budget", [LOOSE, BUDGET], ids=["loose", "tight"])
def test_no_account_has_less_than_what_it_has_met(budget: Budget, tmp_path: Path) -> None:
    run_copies(tmp_path, budget)


def newest(counts: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rule that once was: of two copies, the one with more rounds, whole."""
    return max(counts, other, key=lambda each: sum(sum(one.values()) for one in each.values()))


def test_a_rule_by_which_the_newest_copy_wins_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account_module, "_merged", newest)
    with pytest.raises(AssertionError):
        run_copies(tmp_path, examples=200)


@pytest.mark.parametrize("same_id", [False, True])
def test_two_memories_with_one_node_id_cannot_be_told_apart(same_id: bool, tmp_path: Path) -> None:
    """What cannot be told apart: both go on with one series, and two messages count as one."""
    values = {"folder": tmp_path, "budget": LOOSE, "same_id": same_id}
    copies = type("Copies", (Copies,), values)()
    copies.ask(number=0, times=2)
    copies.clone(number=0, memory=True, disk=True, times=1)
    copies.ask(number=0, times=1)
    with pytest.raises(AssertionError) if same_id else nullcontext():
        copies.meet(number=0, other=1)


def test_a_refused_client_remembers_what_it_was_shown(tmp_path: Path) -> None:
    """By a statement that a server shows once, to a node whose account is in its memory alone."""
    copies = type("Copies", (Copies,), {"folder": tmp_path, "budget": BUDGET})()
    copies.clone(number=0, memory=False, disk=False, times=1)
    copies.ask(number=0, times=allowed())
    sent = copies.count
    copies.meet(number=1, other=0)
    copies.ask(number=1, times=1)
    assert copies.count == sent
