"""The benchmark of accounts runs and covers both. No speed is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import accounts


@pytest.mark.slow
def test_writes_all_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    accounts.main(["--quick", "--folder", str(tmp_path), "--json", str(path)])
    found = json.loads(path.read_text())
    cases = {(one["kinds"], one["rounds"], one["budget"]) for one in found["charges"]}
    assert len(cases) == 8
    sizes = {one["kinds"]: one["bytes"] for one in found["charges"]}
    assert sizes[2] < 1000 < sizes[50] < 12_000  # whatever the number of rounds
    assert [one["clients"] for one in found["accounts"]] == [100, 10_000]
    assert all(one["seconds"] > 0 for one in (*found["charges"], *found["accounts"]))
    printed = capsys.readouterr().out
    assert "A charge of an account" in printed
    assert "a charge: " in printed
