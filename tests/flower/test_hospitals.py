"""The example of ten hospitals, on a network in one process: one is away for a round."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict

from diffsketch.privacy import Account, Budget
from diffsketch.secure_sum import KeyPair, SigningIdentity
from diffsketch.sketch import SketchKey
from tests.flower.network import RUN, Network, Node

EXAMPLE = Path(__file__).parents[2] / "examples" / "hospitals"
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


def secret_file(folder: Path, name: str, secret: bytes) -> str:
    (folder / name).write_text(secret.hex())
    return str(folder / name)


@pytest.mark.slow
def test_hospitals_learn_until_the_budget_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    task: Any = importlib.import_module("hospitals_app.task")
    monkeypatch.setattr(task, "all_data", cache(task.all_data))  # in one process
    client: Any = importlib.import_module("hospitals_app.client_app")
    server: Any = importlib.import_module("hospitals_app.server_app")
    identities = [bytes([number + 1]) * 32 for number in range(HOSPITALS)]
    members, helper = tmp_path / "identities.txt", bytes([99]) * 32
    members.write_text("\n".join(SigningIdentity(key).public.hex() for key in identities))
    monkeypatch.setenv("DIFFSKETCH_KEY", SketchKey.from_integer(1).secret.hex())
    monkeypatch.setenv("DIFFSKETCH_IDENTITIES_FILE", str(members))
    helper_file = secret_file(tmp_path, "helper.key", KeyPair(helper).public)
    monkeypatch.setenv("DIFFSKETCH_HELPER_FILE", helper_file)

    network, accounts = OneAway(), []
    for number, identity in enumerate(identities):
        account = tmp_path / f"account-{number}.json"
        accounts.append(Account.open(account, budget=Budget(8.0, delta=1e-5)))
        config = {
            "diffsketch-identity-file": secret_file(tmp_path, f"{number}.key", identity),
            "diffsketch-account": str(account),
        }
        network.nodes[1000 + number] = Node(number, client.app, 1000 + number, config)
    config = {
        "diffsketch-helper-secret-file": secret_file(tmp_path, "helper-secret.key", helper),
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
