"""The benchmark runs, and its peers compute what we compute. No speed is asserted."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import sketch as sketch_benchmark
from diffsketch import ArgumentError, CountSketch, SketchKey
from diffsketch.sketch.hashing import columns_and_signs
from tests.helpers.results import results_of

pytestmark = pytest.mark.usefixtures("restore_threads")
bench: Any = sketch_benchmark
DIM, ROWS, COLS = 2000, 5, 8
ROUNDING = 1e-5


@pytest.fixture
def problem() -> Any:
    sketch = CountSketch(DIM, ROWS, COLS, "pairwise")
    seed = SketchKey.from_integer(1).seed(0)
    vector = torch.randn(DIM, generator=torch.Generator().manual_seed(2))
    table = sketch.encode(vector, seed)
    return bench.Problem(sketch, seed, vector, table, torch.zeros(DIM))


@pytest.mark.slow
def test_writes_all_results(tmp_path: Path) -> None:
    options = f"--sizes {DIM} --repeat 1 --threads 1 --device cpu"
    result = results_of(bench.main, options, tmp_path)
    assert {"settings", "notes", "memory"} <= result.keys()
    assert [(case["rows"], case["cols"]) for case in result["cases"]] == [(5, 8), (5, 1)]
    for case in result["cases"]:
        names = {(timing["operation"], timing["name"]) for timing in case["timings"]}
        assert {("encode", "blocked"), ("query", "pairwise"), ("limit", "sum")} <= names
        assert {("encode", "torch scatter_add_"), ("query", "torch gather + median")} <= names
        assert all(0 < timing["min_s"] <= timing["median_s"] for timing in case["timings"])
        for summary in case["summary"].values():
            ratio = summary["fastest_peer_s"] / summary["blocked"]["median_s"]
            assert summary["blocked"]["times_faster_than_peer"] == pytest.approx(ratio)
        assert case["disagreement"]
        assert max(case["disagreement"].values()) < ROUNDING


def test_ours_equals_scatter_add(problem: Any) -> None:
    hashed = columns_and_signs(np.arange(DIM), problem.seed, layout=problem.layout)
    columns, signs = map(torch.from_numpy, hashed)
    expected = torch.zeros(ROWS, COLS).scatter_add_(1, columns, signs * problem.vector)
    torch.testing.assert_close(problem.table, expected, rtol=ROUNDING, atol=1e-4)


@pytest.mark.slow
def test_disagreement_shows_wrong_hashes(problem: Any) -> None:
    other = dataclasses.replace(problem, seed=SketchKey.from_integer(1).seed(1))
    notes: list[str] = []
    jobs = bench.our_jobs(problem) + bench.peer_jobs(other, notes.append)
    assert min(bench.disagreements(problem, jobs).values()) > 0.1
    assert np.float64(5e-324) * 1.0 > 0  # no peer changes how this process computes


def test_peers_without_room_are_skipped(problem: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.MAX_INDEX_BYTES", 8 * DIM * ROWS - 1)
    notes: list[str] = []
    assert bench.peer_jobs(problem, notes.append) == []
    assert notes[0].startswith("all peers skipped")


def test_batch_and_memory(problem: Any) -> None:
    report = bench.Report(torch.device("cpu"), repeat=1, threads=(1,))
    bench.run_batch(report)
    assert len(report.batches) == 4
    assert all(entry["per_vector_s"] > 0 for entry in report.batches)
    bench.run_memory(problem, bench.our_jobs(problem), report)
    assert len(report.memory) == 4 or report.notes


def test_edges_are_set_beside_their_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = bench._Calls(1000, 3, 20)

    def refused() -> None:
        raise ArgumentError("not taken here")

    cases = [
        (name, bench._on(1, call), "encode", calls.encode, 2.0)
        for name, call in (
            ("query", calls.fresh_query), ("residual", calls.residual), ("refused", refused)
        )
    ]  # fmt: skip
    monkeypatch.setattr(bench, "edges", lambda: cases)
    report = bench.Report(torch.device("cpu"), repeat=1, threads=(1,))
    bench.run_edges(report)
    assert [edge["call"] for edge in report.edges] == ["query", "residual"]
    assert all(edge["call_s"] > 0 < edge["beside_s"] for edge in report.edges)
    assert report.notes == ["refused: not taken here"]


def test_sizes_and_tables() -> None:
    assert bench.shapes(7850) == [(7, 22)]
    assert bench.shapes(10**8) == [(5, 400_000), (5, 40_000)]
    options = bench.parse(["--device", "cpu", "--sizes", "1e6,7850", "--quick"])
    assert options.sizes == [7850, 10**6]
    assert options.repeat == 3
