"""The benchmark of the secure sum runs. No speed is asserted."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from diffsketch.secure_sum import SecureSumServer, Total


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    return importlib.import_module("benchmarks.secure_sum")


def test_writes_all_results(
    bench: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
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
    assert [sums["bytes_up"] - plain["bytes_up"] for sums in (one, first, later)] == [
        13602,
        156,
        156,
    ]
    assert all(min(sums["client"], sums["leader"]) > 0 for sums in (plain, first, later))
    assert min(first["helper"], later["helper"]) > 0
    printed = capsys.readouterr().out
    assert "A round" in printed
    assert "two aggregators, later round" in printed


def test_a_wrong_total_is_found(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Total(torch.zeros(2, 3, dtype=torch.int64), (0, 1, 2))
    monkeypatch.setattr(SecureSumServer, "total", lambda _: wrong)
    with pytest.raises(RuntimeError, match="must be the plain sum"):
        bench.run_round(3, (2, 3), 0)
