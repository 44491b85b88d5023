"""Real Flower networks: a SuperLink and three SuperNodes, some of which are killed.

Each test takes a minute: each message starts a process at its node, and a round waits for the
killed nodes until its time is up.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
CONFIG = {
    "rounds": 2,
    "nodes": 3,
    "samples": 100,
    "learning-rate": 0.2,
    "local-epochs": 2,
    "timeout": 50.0,  # of a round; three times what one takes on two busy cores
    "pause": 4.0,
    "method": "sketch-gaussian",
    "settings": "rows=1 cols=2000 clip=2.0 noise_multiplier=0.03 trust=central",
}

SECURE = {
    **CONFIG,
    "rounds": 1,
    "timeout": 40.0,  # of an exchange; four times what one takes on two busy cores
    "method": "sketch-skellam",
    "settings": "rows=1 cols=2000 clip=2.0 noise_multiplier=0.03",
    "min-replies": 2,
    "secure-sum": True,
}


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 100.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.1)


def test_nodes_are_killed_between_rounds_and_within_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    local: Any = importlib.import_module("local")
    with local.LocalNetwork(3, tls=True) as network:
        result = network.submit(CONFIG)

        def replies() -> int:
            return int(network.log("link", 10**6).count("Push replies from"))

        def trainings() -> int:
            return int(network.log("node-1", 10**6).count("Start `flwr-clientapp` process"))

        wait_for(lambda: replies() == 3, "the replies of the first round")
        network.kill(0)
        wait_for(lambda: trainings() == 2, "the second round to begin")
        network.kill(1)
        wait_for(lambda: bool(result.exists() and result.stat().st_size), "the result")
        found = network.run_result(result)
    first, second = found["rounds"]
    assert (first["selected"], first["present"], first["void"]) == (3, 3, "")
    assert (second["selected"], second["present"], second["void"]) == (3, 1, "")
    assert second["silent"] + len(second["refused"]) == 2
    # The first download is the model, the next one the sum of the first round.
    assert second["bytes_down"] < first["bytes_down"] / 2
    assert second["bytes_up"] < first["bytes_up"] / 2
    # Untrained it says one digit for all: 9.8%. A round gives 63% with a standard deviation of 4%
    # (40 runs), so that less than 30% is seven of them away: once in 10**12 runs.
    assert found["accuracy"][0] < 0.15
    assert found["accuracy"][1] > 0.3
    # All three were asked twice, and pay for it.
    assert "over 2 rounds (proven; client unit, replace, central trust)" in found["epsilon"]
    assert network.processes() == []


def test_a_secure_sum_goes_on_without_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while it trains: the others have masked for it, and uncover what they added."""
    monkeypatch.syspath_prepend(EXAMPLE)
    local: Any = importlib.import_module("local")
    with local.LocalNetwork(3) as network:
        result = network.submit(SECURE)

        def started() -> int:
            return int(network.log("node-2", 10**6).count("Start `flwr-clientapp` process"))

        wait_for(lambda: started() == 4, "who are you, keys, shares, and the request for training")
        network.kill(2)
        wait_for(lambda: bool(result.exists() and result.stat().st_size), "the result")
        found = network.run_result(result)
    (only,) = found["rounds"]
    assert (only["selected"], only["present"], only["void"]) == (3, 2, "")
    assert only["silent"] + len(only["refused"]) == 1
    # Two nodes give 55% with a standard deviation of 5% (40 runs): 20% is seven of them away.
    assert found["accuracy"][0] < 0.15
    assert found["accuracy"][1] > 0.2
    assert "over 1 round (proven; client unit, replace, distributed trust)" in found["epsilon"]
    assert network.processes() == []
