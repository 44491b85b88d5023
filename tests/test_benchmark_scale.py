"""The benchmark of large rounds runs, its model adds up, and its tables are those of its results.

No speed is asserted.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import scale
from benchmarks import scale_model as model
from tests.helpers.refusals import refused
from tests.helpers.results import results_of

bench: Any = scale

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_writes_all_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second count is left out, and a note says so; servers run in processes of their own."""
    monkeypatch.setattr(bench, "SHAPES", ((2, 3),))
    result = results_of(bench.main, "--quick --counts 1000 9 --limit 1e-3", tmp_path)
    assert "settings" in result
    servers = [(case["cells"], case["messages"]) for case in result["servers"]]
    assert servers == [("float32", 9), ("unsigned", 9)]
    for case in result["servers"]:
        assert min(case["add_s"], case["to_bytes_s"], case["total_s"]) > 0
        assert case["process_bytes"] > 50e6
    assert sum("left out" in note for note in result["notes"]) == 2


@pytest.mark.parametrize("kind", ["float32", "unsigned"])
def test_a_wrong_total_is_found(kind: str) -> None:
    found = bench.run_server(kind, (2, 3), 20)
    assert found["messages"] == 20
    layout = bench.layout_of(kind, (2, 3))
    tables = bench.tables_of(layout)
    inbox = bench.Inbox(layout, **bench.ABOUT)
    for index in range(20):
        inbox.add(bench.message(layout, tables, index))
    total = inbox.total()
    bench.check_total(total, tables, 20)
    cells = total.cells.clone()
    cells[0, 0] = torch.nextafter(cells[0, 0], torch.tensor(9e9)) + 1e-4 if kind == "float32" else 7
    for wrong in (replace(total, count=19), replace(total, cells=cells)):
        refused(RuntimeError, "must be their sum, and is not", bench.check_total, wrong, tables, 20)


def test_handshakes_take_time() -> None:
    pytest.importorskip("cryptography")
    assert bench.handshake_seconds(3) > 0


def cost(**changes: Any) -> Any:
    """A microsecond to add, 125 bytes, which take one on a link of 1 Gbit/s; nothing else."""
    settings = {"message_bytes": 125, "add_s": 1e-6, "handshake_s": 0.0}
    return model.Cost(**(settings | {"table_bytes": 1000.0, "sender_bytes": 100.0} | changes))


def test_a_plan_is_the_smallest_tree() -> None:
    machine = model.Machine(link=1e9, seconds=10.0, closing=1.0)
    found = model.plan(10**7, cost(), machine)
    assert (found.leaves, found.levels, found.closing_s) == (1, 0, 0.0)
    assert found.leaf_bytes == 1000 + 100 * 10**7
    found = model.plan(10**7, cost(add_s=1e-3), machine)
    assert (found.leaves, found.bottleneck) == (1000, "adding")
    assert (found.levels, found.fan_in) == (1, 1000)  # 1000 sums take a ms each: just in time
    assert found.closing_s == pytest.approx(1.0)
    found = model.plan(10**7, cost(add_s=1.001e-3), machine)
    assert (found.leaves, found.levels, found.fan_in) == (1001, 2, 32)
    assert found.closing_s == pytest.approx(2 * 32 * 1.001e-3)


def test_a_plan_names_its_bottleneck() -> None:
    machine = model.Machine(link=1e9, seconds=10.0, closing=1.0)
    found = model.plan(10**8, cost(message_bytes=1249), machine)
    assert (found.leaves, found.bottleneck) == (100, "network")
    found = model.plan(10**8, cost(handshake_s=3.99e-6), machine)
    assert (found.leaves, found.bottleneck) == (50, "handshakes")
    # Sums above come from aggregators that stay connected.
    assert found.closing_s == pytest.approx(50 * 1e-6)


def test_the_document_has_the_tables() -> None:
    """`benchmarks/results/scale.md` is what the command prints, from the stored results."""
    text = (ROOT / "benchmarks" / "results" / "scale.md").read_text()
    tables = model.tables(ROOT / "benchmarks" / "results", model.Machine())
    assert len(tables) == 4
    for table in tables:
        assert table in text
    other = model.tables(ROOT / "benchmarks" / "results", model.Machine(seconds=61.0))
    assert sum(table not in text for table in other) == 2  # the control: another round, the models
