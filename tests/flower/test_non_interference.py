"""What a server sees of a client beside noised cells is the same for all neighbouring data.

Two worlds of one client, whose data decide what its app does: what it learns, whether it raises,
what it replies. A hostile server asks both the same questions, and all randomness is replayed. It
is taken at Flower's messages: whatever goes in, and all that comes out but for noised cells and
times. Cells of the two worlds have the same noise, so they differ by what the data are worth: that
must be within the sensitivity that the claim is about.
"""

from __future__ import annotations

import math
import os
import random
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from diffsketch.flower import FlowerPlan, SketchStrategy, sketch_mod
from diffsketch.flower import client as client_module
from diffsketch.flower.plan import DOORS
from diffsketch.flower.records import RECORD, Refusal, Request
from diffsketch.methods.client_noise import ClientNoise
from diffsketch.privacy import Budget
from diffsketch.privacy.clipping import centre
from diffsketch.wire import Header
from diffsketch.wire import Message as WireMessage
from tests.flower import network as net
from tests.flower.network import DIM, FIRST, KEY, RUN, Network
from tests.flower.test_doors import FAILURES, Answer
from tests.helpers.refusals import refused

SETTINGS: dict[str, Any] = {"rows": 1, "cols": 8, "clip": 1.0, "noise_multiplier": 2.0}
METRICS: Any = {"metrics": {"accuracy": (0.0, 1.0)}, "metric_noise": 2.0}
PLANS = {
    "local": (FlowerPlan("sketch-gaussian", SETTINGS, **METRICS), {}),
    "feedback": (FlowerPlan("sketch-gaussian", SETTINGS), {"error_feedback": True}),
    "moving": (FlowerPlan("sketch-gaussian", {**SETTINGS, "clip_quantile": 0.5}), {}),
    "shared": (
        FlowerPlan("sketch-skellam", SETTINGS, 3, 2, **METRICS), {"trusted_server": True}
    ),
    "laplace": (FlowerPlan("laplace", {"per_round": 1.0, "clip": 1.0}), {}),
}  # fmt: skip
OPEN = FlowerPlan("sketch-gaussian", SETTINGS, open_doors=DOORS)
FEW = settings(
    max_examples=25, deadline=None, derandomize=True, database=None,
    phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck),
)  # fmt: skip


# Data: what an app does with them in one of its calls.


def _learning(scale: float, accuracy: float | None = None) -> Answer:
    def train(message: Message, _: Context) -> Message:
        old = message.content.array_records["arrays"]
        with np.errstate(all="ignore"):
            new = {
                name: Array((array.numpy() + scale).astype(array.dtype))
                for name, array in old.items()
            }
        metrics = MetricRecord(
            {"num-examples": 3, "accuracy": scale if accuracy is None else accuracy}
        )
        content = RecordDict({"arrays": ArrayRecord(new), "metrics": metrics})
        return Message(content, reply_to=message)

    return train


def _renaming(message: Message, context: Context) -> Message:
    reply = _learning(0.5)(message, context)
    for each in (message, reply):
        each.metadata.__dict__["_group_id"] = "0.887591"
        each.metadata.ttl = 887.591
    return reply


BEHAVIOURS: dict[str, Answer] = {
    **FAILURES,
    **{f"learns {scale}": _learning(scale) for scale in (0.0, 0.01, -1.0, 3e4, 1e38, math.nan)},
    "counts beyond floats": _learning(0.01, 10**400),
    "renames": _renaming,
}


# What a server does.


@dataclass(frozen=True)
class Asked:
    """A message to the client, or something that happens to its node."""

    kind: str  # of the message; or "restart", "crash", "lose the file"
    round_index: int = 0
    model: str = "zeros"
    statement: int = -1  # which of those that the client has sent is handed back; -1 for none
    weight: str = ""
    clip: float = 0.0


MODELS = {
    "zeros": FIRST,
    "ones": net.record_of(torch.ones(DIM)),
    "huge": net.record_of(torch.full((DIM,), 3e38)),
    "NaN": net.record_of(torch.full((DIM,), math.nan)),
    "other": ArrayRecord({"arrays": Array(np.ones(4, np.float32))}),
}
ASKED = st.builds(
    Asked,
    st.sampled_from(
        [*["train"] * 9, "evaluate", "query", "train.other", "restart", "crash", "lose the file"]
    ),
    st.integers(0, 9),
    st.sampled_from([*["zeros"] * 8, *MODELS]),
    st.sampled_from([-1, -1, -1, -1, 0, 1, -2]),
    st.sampled_from([*[""] * 7, "num-examples"]),
    st.sampled_from([*[0.0] * 7, 0.5]),
)
SCRIPTS = st.lists(ASKED, min_size=3, max_size=9)
WORLDS = st.lists(st.sampled_from(sorted(BEHAVIOURS)), min_size=1, max_size=4)


@contextmanager
def replayed(seed: int) -> Iterator[None]:
    """The operating system's randomness, the same each time."""
    source = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "urandom", source.randbytes)
        patch.setattr(secrets, "token_bytes", lambda size=32: source.randbytes(size))
        patch.setattr(secrets, "token_hex", lambda size=32: source.randbytes(size).hex())
        yield


@dataclass
class World:
    """A client with its data, and what it has sent."""

    plan: FlowerPlan
    behaviours: Sequence[str]
    options: dict[str, Any]
    folder: Path
    calls: int = 0
    statements: list[bytes] = field(default_factory=list)
    seen: list[Any] = field(default_factory=list)  # all but for cells
    cells: list[tuple[Any, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.account = self.folder / "account.json"
        self.client_key = net.key_file(self.folder / "client.key", b"\xab" * 32)
        self.restart(RecordDict())

    def restart(self, state: RecordDict) -> None:
        mod = sketch_mod(
            self.plan, key=KEY, budget=Budget(9.0, 1e-5), account_file=self.account, **self.options
        )
        self.app = ClientApp(mods=[mod])
        for register in (self.app.train, self.app.evaluate, self.app.query):
            for action in ("default", "other"):
                register(action)(self._app)
        config: Any = {"partition-id": 0, "diffsketch-client-key-file": self.client_key}
        self.context = Context(RUN, 1000, config, net.carried(state), {})

    def _app(self, message: Message, context: Context) -> Message:
        self.calls += 1
        return BEHAVIOURS[self.behaviours[self.calls % len(self.behaviours)]](message, context)

    def ask(self, asked: Asked, number: int) -> None:
        if asked.kind == "restart":
            self.restart(self.context.state)
        elif asked.kind == "crash":
            self.restart(RecordDict())
        elif asked.kind == "lose the file":
            self.account.unlink(missing_ok=True)
        else:
            message = self._message(asked, number)
            try:
                reply = net.carried(self.app(message, self.context))
            except BaseException as error:  # what Flower would tell the server
                self.seen.append((type(error).__name__, str(error)))
            else:
                self._observe(reply)

    def _message(self, asked: Asked, number: int) -> Message:
        arrays, statement = MODELS[asked.model], b""
        if asked.statement >= 0 and asked.statement < len(self.statements):
            statement = self.statements[asked.statement]
        elif asked.statement == -2:
            statement = b"x" * 40
        request = Request(
            b"series", bytes([number]) * 16, asked.round_index, self._text(arrays), b"",
            "arrays", 0, 0, 1, [], [], b"", statement, b"",
            asked.clip or self.plan.build(DIM).round_clip or 0.0, asked.weight,
        )  # fmt: skip
        content = RecordDict({RECORD: request.to_record(), "arrays": arrays})
        message = Message(content, dst_node_id=1000, message_type=asked.kind)
        message.metadata.__dict__["_message_id"] = f"message-{number}"
        return message

    def _text(self, arrays: ArrayRecord) -> str:
        return self.plan.describe(sum(array.numpy().size for array in arrays.values()
                                      if array.dtype == "float32"))  # fmt: skip

    def _observe(self, reply: Message) -> None:
        times = ("_created_at", "_ttl", "_delivered_at")
        seen: list[Any] = [
            {name: value for name, value in vars(reply.metadata).items() if name not in times}
        ]
        if reply.has_error():
            seen.append((reply.error.code, reply.error.reason))
        else:
            for name, record in reply.content.items():
                values = dict(record)
                if name == RECORD:
                    self._take_cells(values)
                seen.append((name, type(record).__name__, values))
        self.seen.append(seen)

    def _take_cells(self, values: dict[str, Any]) -> None:
        """Take the cells out of a reply's record, and leave their number and header."""
        if values["statement"]:
            self.statements.append(values["statement"])
        for name in ("message", "metrics"):
            if not values[name]:
                continue
            header = Header.parse(values[name])
            # The server may have sent a model of another length.
            method = self.plan.build(header.dim) if name == "message" else self.plan.metric_method
            assert method is not None
            message = WireMessage.from_bytes(
                values[name], method.message_format,
                round_index=header.round_index, fingerprint=header.fingerprint,
            )  # fmt: skip
            self.cells.append((method, message.cells))
            values[name] = (len(values[name]), header)


def both(
    plan: FlowerPlan, script: Sequence[Asked], worlds: Sequence[Sequence[str]], **options: Any
) -> list[World]:
    """Two worlds after the same script."""
    Network()  # Flower's identity of this process
    done = []
    for behaviours in worlds:
        with tempfile.TemporaryDirectory() as folder, replayed(1):
            world = World(plan, behaviours, options, Path(folder))
            for number, asked in enumerate(script):
                world.ask(asked, number)
        done.append(world)
    return done


def check_alike(first: World, second: World) -> None:
    """Raise unless all that is seen is alike, and cells differ by their sensitivity at most."""
    cleaned = [str(world.seen).replace(str(world.folder), "") for world in (first, second)]
    assert cleaned[0] == cleaned[1]
    assert first.calls == second.calls
    for (method, mine), (_, other) in zip(first.cells, second.cells, strict=True):
        change = mine - other
        if method.message_format.cells == "unsigned":
            change = centre(change, method.message_format.bits)
        if isinstance(method, ClientNoise):  # others have claims about one coordinate
            most = method.mechanism.quantizer.sensitivity(method.relation)
            assert float(change.double().norm()) <= most * (1 + 1e-9)


def check_any(plan: FlowerPlan, options: dict[str, Any]) -> int:
    """Look for a script and two worlds that a server can tell apart; count what was sent."""
    sent = []

    @given(SCRIPTS, WORLDS, WORLDS)
    @FEW
    def run(script: list[Asked], first: list[str], second: list[str]) -> None:
        worlds = both(plan, script, (first, second), **options)
        check_alike(*worlds)
        sent.append(len(worlds[0].cells))

    run()
    return sum(sent)


@pytest.mark.parametrize("name", PLANS)
def test_a_server_sees_the_same_in_neighbouring_worlds(name: str) -> None:
    assert check_any(*PLANS[name]) > 20  # messages did leave


# The same look finds the doors, where they are open.


@pytest.mark.parametrize("failure", ["raises", "error", "empty", "learns nan"])
def test_errors_of_apps_would_be_seen(failure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where failures pass, as if nothing were proven."""
    plan, options = PLANS["feedback"]
    script = [Asked("train", index) for index in range(2)]
    worlds = [["learns 0.01"], [failure]]
    check_alike(*both(plan, script, worlds, **options))
    outcome = client_module._Session._outcome

    def passing(self: Any, call_next: Any, proven: bool) -> Any:
        del proven
        found = outcome(self, call_next, False)
        if not isinstance(found, Message) and not bool(found.vector.isfinite().all()):
            raise Refusal("not-finite", "the vector has NaN or infinite values")
        return found

    monkeypatch.setattr(client_module._Session, "_outcome", passing)
    with pytest.raises(AssertionError):
        check_alike(*both(plan, script, worlds, **options))
    with pytest.raises(AssertionError):
        check_any(plan, options)


@pytest.mark.parametrize("kind", ["evaluate", "query"])
def test_open_doors_are_seen(kind: str) -> None:
    worlds = [["learns 0.01"], ["learns -1.0"]]
    script = [Asked("train"), Asked(kind, 1)]
    check_alike(*both(PLANS["local"][0], script, worlds))
    with pytest.raises(AssertionError):
        check_alike(*both(OPEN, script, worlds))
    with pytest.raises(AssertionError):
        check_any(OPEN, {})


def test_vectors_that_are_not_clipped_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, options = PLANS["feedback"]
    monkeypatch.setattr("diffsketch.privacy.clipping.clip_norm", lambda values, *_, **__: values)
    refused(AssertionError, "<=", check_any, plan, options)


# What a trusted server publishes and reports.

CENTRAL = FlowerPlan("gaussian", {"clip": 1.0, "noise_multiplier": 2.0, "trust": "central"}, 3, 2)
SHARED = FlowerPlan(
    "gaussian", {"clip": 1.0, "noise_multiplier": 2.0, "trust": "distributed"}, 3, 2
)


def published(plan: FlowerPlan, behaviours: Sequence[str], limit: float | None) -> Any:
    """All that a strategy says of three rounds in which one of its clients has these data."""
    calls: list[str] = []

    def app(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"]:
            return _learning(0.1)(message, context)
        calls.append(behaviours[len(calls) % len(behaviours)])
        return BEHAVIOURS[calls[-1]](message, context)

    network = Network()
    for number in range(3):
        node = network.join(number, plan, key=KEY, trusted_server=True)
        node.app = ClientApp(mods=[sketch_mod(plan, key=KEY, trusted_server=True)])
        node.app.train()(app)
    strategy = net.strategy_of(plan, trusted_server=True, limit=limit)
    with replayed(2):
        result = strategy.start(network, FIRST, 3)
    reports = [
        (str(report), report.present, report.refused, report.silent, str(report.claim))
        for report in strategy.reports
    ]
    return [reports, strategy.ended, str(strategy.epsilon(1e-5)), result.train_metrics_clientapp,
            [(index, len(total)) for index, total in strategy.totals]]  # fmt: skip


SUM = FlowerPlan(
    "skellam", {"clip": 1.0, "noise_multiplier": 2.0}, 3, 2, secure_sum=True, identities=False
)


@given(WORLDS, WORLDS)
@settings(FEW, max_examples=4)
def test_what_is_seen_of_a_secure_sum_does_not_depend_on_data(
    first: list[str], second: list[str]
) -> None:
    assert published(SUM, first, None) == published(SUM, second, None)


@given(WORLDS, WORLDS, st.sampled_from([None, 0.7, 0.01, math.inf]))
@settings(FEW, max_examples=12)
def check_published(first: list[str], second: list[str], limit: float | None) -> None:
    for plan in (CENTRAL, SHARED):
        assert published(plan, first, limit) == published(plan, second, limit)


def test_what_a_trusted_server_reports_does_not_depend_on_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And it would, if messages beyond a limit were refused."""
    check_published()
    made: Callable[..., Any] = SketchStrategy._open

    def refusing(self: SketchStrategy, *arguments: Any) -> Any:
        return replace(made(self, *arguments), substitutes=False)

    monkeypatch.setattr(SketchStrategy, "_open", refusing)
    with pytest.raises(AssertionError):
        check_published()
