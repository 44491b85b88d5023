"""The benchmark of noise runs and covers every sampler. No speed is asserted."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

from diffsketch.privacy.noise import Noise


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
    return importlib.import_module("benchmarks.noise")


def test_writes_all_results(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.json"
    bench.main(["--cells", "1e2", "--repeat", "2", "--json", str(path)])
    found = json.loads(path.read_text())
    assert {"commit", "hardware", "versions", "cells", "results"} <= found.keys()
    assert found["cells"] == 100
    fast = {result["sampler"] for result in found["results"] if not result["secure"]}
    assert fast == Noise.__abstractmethods__
    secure = {result["sampler"] for result in found["results"] if result["secure"]}
    assert secure == Noise.__abstractmethods__ - {"normal", "laplace"}
    for result in found["results"]:
        assert 0 < result["min_s"] <= result["median_s"]
        assert result["samples"] == (1 if result["secure"] else 2)
    printed = capsys.readouterr().out
    assert "Noise for 100 cells" in printed
    assert "slowest fast sampler" in printed


def test_quick_is_smaller(bench: ModuleType) -> None:
    assert bench.parse([]).cells == 10**6
    assert bench.parse(["--quick"]).cells == 10**5
    assert bench.parse(["--quick", "--cells", "10"]).cells == 10
