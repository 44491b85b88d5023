"""The benchmark of the wire format runs. No speed is asserted."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    return importlib.import_module("benchmarks.wire")


def test_writes_all_results(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.json"
    bench.main(["--cells", "1e3", "--repeat", "1", "--json", str(path)])
    found = json.loads(path.read_text())
    assert {"commit", "hardware", "versions", "packing", "messages"} <= found.keys()
    assert [case["bits"] for case in found["packing"]] == list(bench.BITS)
    for case in found["packing"] + found["messages"]:
        assert len(case["seconds"]) == 4
        assert min(case["seconds"].values()) > 0
    assert "Packing 1,000 cells" in capsys.readouterr().out


def test_a_wrong_peer_is_found(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "by_packbits", lambda cells, bits: bytes(cells.size * bits // 8))
    with pytest.raises(RuntimeError, match="must give the same bytes"):
        bench.run_packing(8, 5, 1)
