"""The benchmark of noise runs and covers every sampler. No speed is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import noise as bench
from diffsketch.privacy.noise import Noise


def test_writes_all_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    bench.main(["--cells", "200", "--repeat", "2", "--secure-repeat", "1", "--json", str(path)])
    found = json.loads(path.read_text())
    assert {"commit", "hardware", "versions", "cells", "results"} <= found.keys()
    assert found["cells"] == 200
    for cells in (200, 154):
        results = [result for result in found["results"] if result["cells"] == cells]
        samplers = {
            source: {result["sampler"] for result in results if result["source"] == source}
            for source in ("fast", "secure", "opendp")
        }
        every = {name for name in dir(Noise) if name != "part" and name[0] != "_"}
        assert samplers["fast"] == every
        assert samplers["secure"] == every - {"normal", "laplace"}
        assert samplers["opendp"] == {"discrete_gaussian", "discrete_laplace"}
    for result in found["results"]:
        assert 0 < result["min_s"] <= result["median_s"]
        assert result["samples"] == (2 if result["source"] == "fast" else 1)
    printed = capsys.readouterr().out
    assert "Noise for 200 cells" in printed
    assert "Noise for 154 cells" in printed
    assert "slowest fast sampler" in printed
    assert "slowest secure sampler" in printed


def test_quick_is_smaller() -> None:
    assert bench.parse([]).cells == 10**6
    assert bench.parse(["--quick"]).cells == 10**5
    assert bench.parse(["--quick", "--cells", "10"]).cells == 10
