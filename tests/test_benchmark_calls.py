"""The benchmark of calls runs, and times all of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import calls


def test_writes_all_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads, path = torch.get_num_threads(), tmp_path / "out.json"
    try:
        calls.main(["--quick", "--threads", "1", "--json", str(path)])
    finally:
        torch.set_num_threads(threads)
    found = json.loads(path.read_text())
    assert [case["family"] for case in found["cases"]] == ["blocked", "pairwise"]
    for case in found["cases"]:
        assert len(case["seconds"]) == 8
        assert 0 < min(case["seconds"].values()) < max(case["seconds"].values()) < 60
    assert "over query" in capsys.readouterr().out
