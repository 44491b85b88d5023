"""The example apps and documents, in one process and on real networks; the benchmark's relay."""

from __future__ import annotations

import importlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from benchmarks.flower import EXAMPLE, Relay, without_sketches
from diffsketch.privacy import Account, Budget
from diffsketch.secure_sum import KeyPair, SigningIdentity
from diffsketch.sketch import SketchKey
from tests.flower.network import RUN, Network, Node, key_file
from tests.helpers.documents import DOCUMENTS, blocks, run_blocks

CONFIG: dict[str, Any] = {
    "rounds": 2, "nodes": 3, "hidden": 0, "samples": 100, "learning-rate": 0.2, "local-epochs": 2,
    "batch-size": 20, "method": "sketch", "settings": "rows=1 cols=2000", "min-replies": 2,
    "secure-sum": "", "delta": 1e-5, "timeout": 9.0, "pause": 0.0,
}  # fmt: skip

SECURE = {
    "method": "sketch-skellam",
    "settings": "rows=1 cols=2000 clip=4.0 noise_multiplier=0.01",
    "secure-sum": "one",
}
"""So little noise that both learn alike: no privacy to speak of."""


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "secure sum"])
def test_the_app_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secure: bool) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.setenv("DIFFSKETCH_KEY", SketchKey.from_integer(1).secret.hex())
    client: Any = importlib.import_module("mnist_app.client_app")
    server: Any = importlib.import_module("mnist_app.server_app")
    network, result = Network(), tmp_path / "result.json"
    settings = CONFIG | (SECURE if secure else {})
    secrets = [bytes([number]) * 32 for number in range(3)]
    public = [SigningIdentity(secret).public for secret in secrets]
    members = key_file(tmp_path / "members.txt", *public)
    monkeypatch.setenv("DIFFSKETCH_IDENTITIES_FILE", members)
    for number, secret in enumerate(secrets):
        own = {"diffsketch-identity-file": key_file(tmp_path / f"{number}.key", secret)}
        node = Node(number, client.app, 1000 + number, own)
        node.context.run_config = settings
        network.nodes[node.node_id] = node
    config = {**settings, "result": str(result)}
    server.app(network, Context(RUN, 1, {}, RecordDict(), config))
    found = json.loads(result.read_text())
    # Untrained it is a guess, and both rounds of the three nodes give more than half.
    assert found["accuracy"][0] < 0.2
    assert found["accuracy"][2] > 0.5
    assert [one["present"] for one in found["rounds"]] == [3, 3]
    expected = "distributed trust" if secure else "epsilon = inf"
    assert expected in found["epsilon"]


# Ten hospitals, of which one is away for a round.

HOSPITALS_APP = EXAMPLE.parent / "hospitals"
KILLED, HELPER, HOSPITALS = 1003, 1010, 10


class OneAway(Network):
    """Hospital 3 is away in the second round."""

    exchanges = 0

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        sent = list(messages)
        if len(sent) > 1:  # one message is for the helper; the first exchange looks for it
            self.exchanges += 1
            self.dead = {KILLED} if self.exchanges == 3 else set()
        return super().send_and_receive(sent, timeout=timeout)


@pytest.mark.slow
def test_hospitals_learn_until_the_budget_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(HOSPITALS_APP)
    task: Any = importlib.import_module("hospitals_app.task")
    monkeypatch.setattr(task, "all_data", cache(task.all_data))  # in one process
    client: Any = importlib.import_module("hospitals_app.client_app")
    server: Any = importlib.import_module("hospitals_app.server_app")
    identities = [bytes([number + 1]) * 32 for number in range(HOSPITALS)]
    public, helper = [SigningIdentity(key).public for key in identities], bytes([99]) * 32
    monkeypatch.setenv("DIFFSKETCH_KEY", SketchKey.from_integer(1).secret.hex())
    members = key_file(tmp_path / "identities.txt", *public)
    monkeypatch.setenv("DIFFSKETCH_IDENTITIES_FILE", members)
    helper_file = key_file(tmp_path / "helper.key", KeyPair(helper).public)
    monkeypatch.setenv("DIFFSKETCH_HELPER_FILE", helper_file)

    network, accounts = OneAway(), []
    for number, identity in enumerate(identities):
        account = tmp_path / f"account-{number}.json"
        accounts.append(Account.open(account, budget=Budget(8.0, delta=1e-5)))
        config = {
            "diffsketch-identity-file": key_file(tmp_path / f"{number}.key", identity),
            "diffsketch-account": str(account),
        }
        network.nodes[1000 + number] = Node(number, client.app, 1000 + number, config)
    config = {
        "diffsketch-helper-secret-file": key_file(tmp_path / "helper-secret.key", helper),
        "diffsketch-helper-memory": str(tmp_path / "memory"),
    }
    network.nodes[HELPER] = Node(HOSPITALS, client.app, HELPER, config)

    # Rounds of 10, 9 and 10 hospitals fit into the budget, and no fourth, with 8 for all it knows.
    result = tmp_path / "result.json"
    options = {"rounds": 8, "budget": 5.9, "learning-rate": 4.0, "timeout": 9.0}
    server.app(network, Context(RUN, 1, {}, RecordDict(), options | {"result": str(result)}))

    outcome = json.loads(result.read_text())
    assert outcome["present"] == [10, 9, 10]
    assert "budget" in outcome["ended"]
    assert outcome["accuracy"][-1] > outcome["accuracy"][0] + 0.2  # 0.5 in five runs
    assert "over 3 rounds (proven; example unit, add-or-remove, distributed" in outcome["epsilon"]
    lines = (tmp_path / "result.log").read_text()
    assert lines.count("bytes up") == 3
    assert lines.count("example, add-or-remove, distributed") == 3
    assert [account.rounds for account in accounts] == [3, 3, 3, 2, 3, 3, 3, 3, 3, 3]


WITH_FLOWER = [document for document in DOCUMENTS if blocks(document, flower=True)]


@pytest.mark.parametrize("document", WITH_FLOWER)
def test_examples_run(document: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    names = f"from {ClientApp.__module__} import ClientApp\nfrom {FedAvg.__module__} import FedAvg"
    run_blocks(document, [names, *blocks(document, flower=True)], monkeypatch)


def test_the_two_lines_can_be_taken_out(tmp_path: Path) -> None:
    app = without_sketches(tmp_path)
    for name in ("client_app.py", "server_app.py"):
        before = (EXAMPLE / "mnist_app" / name).read_text().splitlines()
        after = (app / "mnist_app" / name).read_text().splitlines()
        changed = [line for line in before if line not in after]
        assert sum("cost_of" not in line for line in changed) == 1


def test_the_relay_counts_what_passes() -> None:
    link = socket.create_server(("127.0.0.1", 0))
    relay = Relay(link.getsockname()[1])

    def answer() -> None:
        one, _ = link.accept()
        with one:
            while data := one.recv(4096):
                one.sendall(data * 2)

    server = threading.Thread(target=answer)
    server.start()
    start = time.monotonic()
    with socket.create_connection(("127.0.0.1", relay.port)) as client:
        client.sendall(b"x" * 1000)
        received = 0
        while received < 2000:
            received += len(client.recv(4096))
    server.join()
    assert relay.between(start, time.monotonic()) == (1000, 2000)
    assert relay.between(0, start) == (0, 0)
    relay.close()
    link.close()


REAL: dict[str, Any] = {
    "rounds": 2, "nodes": 3, "samples": 100, "learning-rate": 0.2, "local-epochs": 2, "pause": 4.0,
    "timeout": 120.0,  # seven times what a round, and twelve times what an exchange, takes here
    "method": "sketch-gaussian",
    "settings": "rows=1 cols=2000 clip=2.0 noise_multiplier=0.03 trust=central",
}  # fmt: skip
REAL_SECURE = {
    **REAL, "rounds": 1, "method": "sketch-skellam", "min-replies": 2, "secure-sum": "one",
    "settings": "rows=1 cols=2000 clip=2.0 noise_multiplier=0.03",
}  # fmt: skip


def wait_for(network: Any, condition: Callable[[], bool], what: str) -> None:
    """Wait for what stays true once it is; fail with the logs after minutes of a busy machine."""
    end = time.monotonic() + 400
    while not condition():
        if time.monotonic() > end:
            names = ("link", "node-0", "node-1", "node-2", "helper")
            logs = "\n".join(f"--- {name}\n{network.log(name)}" for name in names)
            pytest.fail(f"waited in vain for {what}\n{logs}")
        time.sleep(0.1)


# Real networks: a SuperLink and three SuperNodes, some of which are killed. Each message starts a
# process at its node, and a round waits for the killed nodes until its time is up, or until the
# SuperLink takes them for lost: two heartbeats after the last one.


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The example's script; heartbeats of its networks are 20 s apart, in place of Flower's 30."""
    change = "import flwr.common.constant as c\nc.HEARTBEAT_DEFAULT_INTERVAL = 20\n"
    (tmp_path / "sitecustomize.py").write_text(change)  # which each process of Python runs first
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(EXAMPLE)
    return importlib.import_module("local")


@pytest.mark.slow
def test_nodes_are_killed_between_rounds_and_within_one(local: Any) -> None:
    with local.LocalNetwork(3, tls=True) as network:
        result = network.submit(REAL)

        def count(text: str, node: int) -> int:
            return int(network.log(f"node-{node}", 10**6).count(text))

        # All of a reply: one that a node begins to send and does not end holds the SuperLink up for
        # 180 s, whatever the round's timeout.
        sent = "Sent successfully"
        wait_for(network, lambda: all(count(sent, node) for node in range(3)), "the first round")
        network.kill(0)
        start = "Start `flwr-clientapp` process"
        wait_for(network, lambda: count(start, 1) >= 2, "the second round to begin")
        network.kill(1)
        wait_for(network, result.exists, "the result")
        found = network.run_result(result)
        sends = [count(sent, node) for node in range(3)]
    first, second = found["rounds"]
    assert (first["selected"], first["present"], first["void"]) == (3, 3, "")
    assert (second["present"], second["void"]) == (1, "")
    assert sends == [1, 1, 2]
    # The first node is asked again, unless so slow a machine has taken it for lost by then.
    assert second["selected"] in (2, 3)
    assert second["silent"] + len(second["refused"]) == second["selected"] - 1
    # The first download is the model, the next one the sum of the first round.
    assert second["bytes_down"] < first["bytes_down"] / 2
    assert second["bytes_up"] < first["bytes_up"] / 2
    # Untrained it says one digit for all: 9.8%. A round gives 63% with a standard deviation of 4%
    # (40 runs), so that less than 30% is seven of them away: once in 10**12 runs.
    assert found["accuracy"][0] < 0.15
    assert found["accuracy"][1] > 0.3
    # Whoever was asked twice pays for both, the killed as well.
    assert "over 2 rounds (proven; client unit, replace, central trust)" in found["epsilon"]
    assert network.processes() == []


@pytest.mark.slow
def test_a_secure_sum_goes_on_without_a_node(local: Any) -> None:
    """Killed while it trains: the others have masked for it, and uncover what they added."""
    with local.LocalNetwork(3) as network:
        result = network.submit(REAL_SECURE)

        def started() -> int:
            return int(network.log("node-2", 10**6).count("Start `flwr-clientapp` process"))

        what = "who are you, keys, shares, and the request for training"
        wait_for(network, lambda: started() >= 4, what)
        network.kill(2)
        wait_for(network, result.exists, "the result")
        found = network.run_result(result)
    (only,) = found["rounds"]
    assert (only["selected"], only["present"], only["void"]) == (3, 2, "")
    assert only["silent"] + len(only["refused"]) == 1
    # Two nodes give 55% with a standard deviation of 5% (40 runs): 20% is seven of them away.
    assert found["accuracy"][0] < 0.15
    assert found["accuracy"][1] > 0.2
    assert "over 1 round (proven; client unit, replace, distributed trust)" in found["epsilon"]
    assert network.processes() == []


@pytest.mark.slow
def test_two_aggregators_lose_a_node_and_the_helper(local: Any) -> None:
    """Killed while the node trains (plain), or after it has sent and the helper sums (TLS).

    The helper is started again at once, under another node id. Both networks run side by side, as
    most of the time is that until the SuperLinks take the killed for lost.
    """
    config = {**REAL_SECURE, "secure-sum": "two"}
    with (
        local.LocalNetwork(3, helper=True) as plain,
        local.LocalNetwork(3, tls=True, helper=True) as tls,
    ):
        results = {network: network.submit(config) for network in (plain, tls)}
        # The second message to whoever is killed in the middle of it: the first asks who it is.
        todo = {plain: "node-2", tls: "helper"}

        def killed() -> bool:
            for network, name in tuple(todo.items()):
                log = network.log(name, 10**6)
                if log.count("Start `flwr-clientapp` process") >= 2:
                    network.kill(2)
                    network.kill(3)
                    network.nodes[3] = network.start_helper()
                    del todo[network]
            return not todo

        wait_for(plain, killed, "the request for training, and that for a sum")
        for network, result in results.items():
            wait_for(network, result.exists, "the result")
        found = [network.run_result(result) for network, result in results.items()]
    for present, outcome in zip((2, 3), found, strict=True):
        (only,) = outcome["rounds"]
        assert (only["selected"], only["present"], only["void"]) == (3, present, "")
        assert outcome["accuracy"][0] < 0.15
        assert outcome["accuracy"][1] > 0.2  # as above
        assert "summed by two aggregators that do not collude" in outcome["claim"]
    assert plain.processes() == tls.processes() == []
