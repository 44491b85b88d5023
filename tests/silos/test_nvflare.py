"""The example for NVFlare: three sites in its simulator, and what a server sees of a site."""

from __future__ import annotations

import importlib
import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("nvflare")

import nvflare.client as flare

from diffsketch.privacy import Account, Budget
from diffsketch.silos import RecordGradients, Records

EXAMPLE = Path(__file__).parents[2] / "examples" / "nvflare"


@pytest.mark.slow  # processes are started
def test_three_sites_learn_until_their_budgets_are_spent(tmp_path: Path) -> None:
    output = tmp_path / "outcome.json"
    command = [sys.executable, str(EXAMPLE / "simulate.py"), "--rounds", "4", "--budget", "0.9"]
    subprocess.run([*command, "--output", str(output)], check=True, timeout=500)  # noqa: S603
    outcome = json.loads(output.read_text())
    # Three rounds cost 0.884, four 0.959.
    for index, line in enumerate(outcome["rounds"]):
        sent = "3 sites, 12,378 bytes up" if index < 3 else "0 sites, 0 bytes up"
        assert line.startswith(f"round {index}: {sent}, epsilon = 0.")
    assert len(outcome["rounds"]) == 4
    paid = r"epsilon = 0.884\d* at delta = 1e-05 over 3 rounds \(proven; example unit, .*"
    assert [bool(re.fullmatch(paid, text)) for text in outcome["epsilon"]] == [True] * 3
    assert outcome["accuracy"] > 0.4  # chance is 0.1, a run has 0.6 to 0.8


def test_a_server_sees_the_same_of_any_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    for name in ("client", "task"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    client: Any = importlib.import_module("client")
    net = client.Net()
    weights = {name: value.numpy() for name, value in net.state_dict().items()}
    usual = client.records_of(0)
    broken = Records(usual.inputs[:50], torch.full((50,), 99))  # no such class
    seen: list[list[Any]] = []
    texts = []
    for records in (usual, Records(usual.inputs[:0], usual.labels[:0]), broken):
        account = Account.open(tmp_path / f"{len(seen)}.json", budget=Budget(0.8, 1e-5))
        gradients, answers = RecordGradients(net), list[Any]()
        for index in (0, 0, 1):  # a server that asks for a round again pays like any other
            request = flare.FLModel(params=weights, current_round=index)
            answer = client.answer(request, 0, records, gradients, account)
            header = bytes(answer.params["message"][8:48]) if answer.params else None
            answers.append((header, answer.metrics, answer.meta, answer.params_type))
            answers.append({name: value.shape for name, value in answer.params.items()})
        seen.append(answers)
        texts.append(str(account.epsilon(1e-5)))
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][-1] == {}  # two rounds cost 0.795, three 0.884
    assert len(set(texts)) == 1
    assert any("counts as zeros" in text for text in caplog.messages)  # in the site's own log

    # `main` takes those lines out of the log that NVFlare may stream to the server.
    monkeypatch.setattr(sys, "argv", ["client.py", "--folder", str(tmp_path), "--budget", "1"])
    for name, value in (("init", None), ("get_site_name", "site-1"), ("is_running", False)):
        monkeypatch.setattr(client.flare, name, lambda value=value: value)
    log = logging.getLogger("diffsketch")
    monkeypatch.setattr(log, "propagate", True)
    before = [*log.handlers]
    client.main()
    caplog.clear()
    logging.getLogger("diffsketch.silos").warning("a record counts as zeros")
    for handler in {*log.handlers} - {*before}:
        log.removeHandler(handler)
        handler.close()
    assert not caplog.messages
    assert "a record counts as zeros" in (tmp_path / "site-1.log").read_text()
