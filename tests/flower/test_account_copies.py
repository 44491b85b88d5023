"""A client's account over copies, restarts, losses and crashes: never less than what was sent."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from diffsketch.flower import client as client_module
from diffsketch.flower import sketch_mod
from diffsketch.flower.accounts import verify_statement
from diffsketch.flower.records import RECORD, Request
from diffsketch.privacy import Budget
from diffsketch.privacy.accounting import account as account_module
from diffsketch.privacy.accounting.account import Account
from tests.flower import network as net
from tests.flower.network import DIM, FIRST, GAUSSIAN, KEY, RUN, Network
from tests.flower.test_accounts import BUDGET, allowed
from tests.flower.test_doors import trained

OWN = b"k" * 32
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
        client_key = self._new_folder() / "client.key"
        client_key.write_text(OWN.hex())
        self.config: Any = {"partition-id": 0, "diffsketch-client-key-file": str(client_key)}
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
        app.train()(trained)
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
