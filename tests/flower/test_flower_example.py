"""The example app without a network, and what the benchmark measures it with."""

from __future__ import annotations

import importlib
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict

from benchmarks.flower import EXAMPLE, Relay, without_sketches
from diffsketch.secure_sum import SigningIdentity
from diffsketch.sketch import SketchKey
from tests.flower.flower_world import RUN, Node, World

CONFIG: dict[str, Any] = {
    "rounds": 2,
    "nodes": 3,
    "hidden": 0,
    "samples": 100,
    "learning-rate": 0.2,
    "local-epochs": 2,
    "batch-size": 20,
    "method": "sketch",
    "settings": "rows=1 cols=2000",
    "min-replies": 2,
    "secure-sum": False,
    "delta": 1e-5,
    "timeout": 9.0,
    "pause": 0.0,
}

SECURE = {
    "method": "sketch-skellam",
    "settings": "rows=1 cols=2000 clip=4.0 noise_multiplier=0.01",
    "secure-sum": True,
}
"""So little noise that both learn alike: no privacy to speak of."""


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "secure sum"])
def test_the_app_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secure: bool) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.setenv("DIFFSKETCH_KEY", SketchKey.from_integer(1).secret.hex())
    client: Any = importlib.import_module("mnist_app.client_app")
    server: Any = importlib.import_module("mnist_app.server_app")
    world, result = World(), tmp_path / "result.json"
    settings = CONFIG | (SECURE if secure else {})
    members = tmp_path / "members.txt"
    secrets = [bytes([number]) * 32 for number in range(3)]
    members.write_text("\n".join(SigningIdentity(one).public.hex() for one in secrets))
    monkeypatch.setenv("DIFFSKETCH_IDENTITIES_FILE", str(members))
    for number, secret in enumerate(secrets):
        path = tmp_path / f"{number}.key"
        path.write_text(secret.hex())
        own = {"diffsketch-identity-file": str(path)}
        node = Node(number, client.app, 1000 + number, own)
        node.context.run_config = settings
        world.nodes[node.node_id] = node
    config = {**settings, "result": str(result)}
    server.app(world, Context(RUN, 1, {}, RecordDict(), config))
    found = json.loads(result.read_text())
    # Untrained it is a guess, and both rounds of the three nodes give more than half.
    assert found["accuracy"][0] < 0.2
    assert found["accuracy"][2] > 0.5
    assert [one["present"] for one in found["rounds"]] == [3, 3]
    expected = "distributed trust" if secure else "epsilon = inf"
    assert expected in found["epsilon"]


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
