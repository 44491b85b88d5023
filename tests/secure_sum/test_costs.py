"""What plans say that secure sums cost is what members send and receive; the benchmark runs."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from diffsketch.secure_sum import CostlySum, SecureSumServer, Stage, Total
from diffsketch.wire import MessageFormat
from diffsketch.wire.sums import costs_more_than_dense, proposed_sum, sum_bytes
from tests.helpers.refusals import refused
from tests.secure_sum.helpers import LAYOUT, make_params, start
from tests.secure_sum.test_one_shot import inputs_of, messages_of, params_of


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("members", [3, 4, 9])
def test_bytes_of_one_servers_sum(members: int, signed: bool) -> None:
    played = start(make_params(members, signed=signed))
    up = down = 0
    while played.server.stage is not Stage.DONE:
        requests = played.server.requests()
        for index, request in requests.items():
            reply = played.answer(index, request)
            played.server.collect(reply)
            if index == 1:
                up, down = up + len(reply), down + len(request)
        played.server.close()
    assert (up - LAYOUT.full_bytes, down) == sum_bytes("one", members, signed=signed)


@pytest.mark.parametrize("signed", [True, False])
def test_bytes_of_two_aggregators(signed: bool) -> None:
    for data in messages_of(params_of(signed=signed), inputs_of()).values():
        assert (len(data) - LAYOUT.full_bytes, 0) == sum_bytes("two", 10**6, signed=signed)


def test_which_one_is_proposed_and_when_it_costs_more() -> None:
    assert [proposed_sum(count) for count in (2, 100, 101, 10**6)] == ["one", "one", "two", "two"]
    table = MessageFormat("sketch-gaussian", 7850, (1, 5331), "unsigned", 18)
    assert costs_more_than_dense("one", table, 10) == ""
    assert "sends 144,445 bytes up and 351,229 down" in costs_more_than_dense("one", table, 1000)
    assert costs_more_than_dense("two", table, 10**6) == ""
    # Little for anybody; and full vectors, which are not summed to save bytes.
    small = replace(table, dim=100, shape=(1, 20))
    assert costs_more_than_dense("one", small, 15) == ""
    assert costs_more_than_dense("one", small, 25) != ""
    assert costs_more_than_dense("one", replace(table, shape=(1, 50_000)), 1000) == ""


def test_a_sum_that_costs_more_than_it_saves_is_warned_of() -> None:
    table = MessageFormat("sketch-gaussian", 7850, (1, 5331), "unsigned", 18)
    with pytest.warns(CostlySum, match=r"144,265 bytes up .* would send 12,135 up and 12,043"):
        SecureSumServer(make_params(1000, layout=table))
    SecureSumServer(make_params(50, layout=table))  # warnings are errors here


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    return importlib.import_module("benchmarks.secure_sum")


def test_the_benchmark_writes_all_results(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(bench, "SHAPES", ((2, 3),))
    path = tmp_path / "out.json"
    bench.main(["--members", "4", "11", "--quick", "--json", str(path)])
    found = json.loads(path.read_text())
    assert {"commit", "hardware", "versions", "cases"} <= found.keys()
    assert [(case["members"], case["dropouts"]) for case in found["cases"]] == [(4, 0), (4, 1)]
    for case in found["cases"]:
        assert list(case["server_s"]) == ["keys", "shares", "masked", "consistency", "unmask"]
        assert min(*case["server_s"].values(), *case["member_s"].values()) > 0
        assert case["bytes_up"]["masked"] == case["message_bytes"] + 52
    plain, one, first, later = found["two"]["sums"].values()
    more = [sums["bytes_up"] - plain["bytes_up"] for sums in (one, first, later)]
    assert more == [13602, 156, 156]
    assert all(min(sums["client"], sums["leader"]) > 0 for sums in (plain, first, later))
    assert min(first["helper"], later["helper"]) > 0
    printed = capsys.readouterr().out
    assert "A round" in printed
    assert "two aggregators, later round" in printed


def test_a_wrong_total_is_found(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Total(torch.zeros(2, 3, dtype=torch.int64), (0, 1, 2))
    monkeypatch.setattr(SecureSumServer, "total", lambda _: wrong)
    refused(RuntimeError, "must be the plain sum", bench.run_round, 3, (2, 3), 0)
