"""Benchmarks run and cover what they say, and their peers compute what we compute.

No speed is asserted. pfl and Flower are not installed here: what they compute is not checked.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import benchmarks.feedback
import benchmarks.scale
import benchmarks.simulation
import benchmarks.sketch
from benchmarks import accounts, calls, noise, scale_model, wire
from diffsketch import ArgumentError, CountSketch, SketchKey
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.hashing import columns_and_signs
from diffsketch.training.models import flatten
from diffsketch.training.tasks import Batches, Task, load_task
from tests.helpers.documents import ROOT
from tests.helpers.refusals import refused
from tests.helpers.results import results_of

pytestmark = pytest.mark.usefixtures("restore_threads")
feedback: Any = benchmarks.feedback
scale: Any = benchmarks.scale
simulation: Any = benchmarks.simulation
sketch: Any = benchmarks.sketch
DIM, ROWS, COLS = 2000, 5, 8
ROUNDING = 1e-5


# -- Sketches --------------------------------------------------------------------------------------


@pytest.fixture
def problem() -> Any:
    ours = CountSketch(DIM, ROWS, COLS, "pairwise")
    seed = SketchKey.from_integer(1).seed(0)
    vector = torch.randn(DIM, generator=torch.Generator().manual_seed(2))
    table = ours.encode(vector, seed)
    return sketch.Problem(ours, seed, vector, table, torch.zeros(DIM))


@pytest.mark.slow
def test_sketches_beside_their_peers(tmp_path: Path) -> None:
    options = f"--sizes {DIM} --repeat 1 --threads 1 --device cpu"
    result = results_of(sketch.main, options, tmp_path)
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
    other = replace(problem, seed=SketchKey.from_integer(1).seed(1))
    notes: list[str] = []
    jobs = sketch.our_jobs(problem) + sketch.peer_jobs(other, notes.append)
    assert min(sketch.disagreements(problem, jobs).values()) > 0.1
    assert np.float64(5e-324) * 1.0 > 0  # no peer changes how this process computes


def test_peers_without_room_are_skipped(problem: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.MAX_INDEX_BYTES", 8 * DIM * ROWS - 1)
    notes: list[str] = []
    assert sketch.peer_jobs(problem, notes.append) == []
    assert notes[0].startswith("all peers skipped")


def test_batch_and_memory(problem: Any) -> None:
    report = sketch.Report(torch.device("cpu"), repeat=1, threads=(1,))
    sketch.run_batch(report)
    assert len(report.batches) == 4
    assert all(entry["per_vector_s"] > 0 for entry in report.batches)
    sketch.run_memory(problem, sketch.our_jobs(problem), report)
    assert len(report.memory) == 4 or report.notes


def test_edges_are_set_beside_their_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = sketch._Calls(1000, 3, 20)

    def refused() -> None:
        raise ArgumentError("not taken here")

    cases = [
        (name, sketch._on(1, call), "encode", calls.encode, 2.0)
        for name, call in (
            ("query", calls.fresh_query), ("residual", calls.residual), ("refused", refused)
        )
    ]  # fmt: skip
    monkeypatch.setattr(sketch, "edges", lambda: cases)
    report = sketch.Report(torch.device("cpu"), repeat=1, threads=(1,))
    sketch.run_edges(report)
    assert [edge["call"] for edge in report.edges] == ["query", "residual"]
    assert all(edge["call_s"] > 0 < edge["beside_s"] for edge in report.edges)
    assert report.notes == ["refused: not taken here"]


def test_sizes_and_tables() -> None:
    assert sketch.shapes(7850) == [(7, 22)]
    assert sketch.shapes(10**8) == [(5, 400_000), (5, 40_000)]
    options = sketch.parse(["--device", "cpu", "--sizes", "1e6,7850", "--quick"])
    assert options.sizes == [7850, 10**6]
    assert options.repeat == 3


# -- Error feedback --------------------------------------------------------------------------------


def test_uncompressed_is_plain_sgd() -> None:
    setting, sending = feedback.Setting(8, 0.3), feedback.SENDINGS[0]
    found = feedback.loss_after(setting, sending, steps=3, seed=1)
    images, labels = feedback._examples()
    model = feedback.perceptron((8, 8), 1)
    generator = torch.Generator().manual_seed(1001)
    for _ in range(3):
        drawn = torch.randint(len(labels), (feedback.RANKS, feedback.BATCH), generator=generator)
        rows = drawn.flatten()
        loss: Any = cross_entropy(model(images[rows]), labels[rows])
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.3 * cast(torch.Tensor, parameter.grad)
    with torch.no_grad():
        expected = float(cross_entropy(model(images[:10_000]), labels[:10_000]))
    assert found == pytest.approx(expected, rel=1e-4)
    fewer = feedback.loss_after(setting, sending, steps=2, seed=1)
    assert fewer != pytest.approx(expected, rel=1e-4)


def test_ranks_send_all_in_the_end() -> None:
    """What was applied and what is kept add up to the vectors, and feedback is what keeps it."""
    sending = feedback.Sending("feedback", immediate=0.3)
    ranks = feedback.Ranks(600, feedback.Setting(8, 0.1, compression=6), sending, seed=0)
    generator = torch.Generator().manual_seed(0)
    applied, given = torch.zeros(600), torch.zeros(600)
    for _ in range(5):
        vectors = list(torch.randn(feedback.RANKS, 600, generator=generator))
        applied += ranks.mean(vectors)
        given += torch.stack(vectors).mean(0)
    kept = torch.stack([each.memory / each.later for each in ranks._memories]).mean(0)
    assert torch.allclose(applied + kept, given, atol=1e-4)
    assert not torch.allclose(applied, given, atol=0.1)


def test_every_case_of_feedback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feedback, "SETTINGS", (feedback.Setting(8, 0.1),))
    found = results_of(feedback.main, "--quick", tmp_path)
    assert [one["sending"] for one in found["found"]] == [one.name for one in feedback.SENDINGS]
    assert all(0 < one["loss"] < 3 for one in found["found"])


# -- Accounts, calls, noise and the wire format ----------------------------------------------------


@pytest.mark.slow
def test_charges_of_accounts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = results_of(accounts.main, f"--quick --folder {tmp_path}", tmp_path)
    cases = {(one["kinds"], one["rounds"], one["budget"]) for one in found["charges"]}
    assert len(cases) == 8
    sizes = {one["kinds"]: one["bytes"] for one in found["charges"]}
    assert sizes[2] < 1000 < sizes[50] < 12_000  # whatever the number of rounds
    assert [one["clients"] for one in found["accounts"]] == [100, 10_000]
    assert all(one["seconds"] > 0 for one in (*found["charges"], *found["accounts"]))
    printed = capsys.readouterr().out
    assert "A charge of an account" in printed
    assert "a charge: " in printed


def test_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = results_of(calls.main, "--quick --threads 1", tmp_path)
    assert [case["family"] for case in found["cases"]] == ["blocked", "pairwise"]
    for case in found["cases"]:
        assert len(case["seconds"]) == 8
        assert 0 < min(case["seconds"].values()) < max(case["seconds"].values()) < 60
    assert "over query" in capsys.readouterr().out


def test_every_sampler_of_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = results_of(noise.main, "--cells 200 --repeat 2 --secure-repeat 1", tmp_path)
    assert found["cells"] == 200
    inner = {"part", "integers"}  # which draw nothing by themselves, or for all samplers
    every = {name for name in dir(Noise) if name[0] != "_"} - inner
    exact = {"discrete_gaussian", "discrete_laplace"}
    samplers = {"fast": every, "secure": every - {"normal", "laplace"}, "opendp": exact}
    assert {(one["cells"], one["source"], one["sampler"]) for one in found["results"]} == {
        (cells, source, sampler)
        for cells in (200, 154) for source, names in samplers.items() for sampler in names
    }  # fmt: skip
    for result in found["results"]:
        assert 0 < result["min_s"] <= result["median_s"]
        assert result["samples"] == (2 if result["source"] == "fast" else 1)
    printed = capsys.readouterr().out
    for text in ("Noise for 200 cells", "Noise for 154 cells", "slowest fast", "slowest secure"):
        assert text in printed


def test_noise_may_be_quick() -> None:
    assert noise.parse([]).cells == 10**6
    assert noise.parse(["--quick"]).cells == 10**5
    assert noise.parse(["--quick", "--cells", "10"]).cells == 10


def test_packing_and_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = results_of(wire.main, "--cells 1e3 --repeat 1", tmp_path)
    assert [case["bits"] for case in found["packing"]] == list(wire.BITS)
    for case in found["packing"] + found["messages"]:
        assert len(case["seconds"]) == 4
        assert min(case["seconds"].values()) > 0
    assert "Packing 1,000 cells" in capsys.readouterr().out


def test_a_wrong_peer_of_packing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "by_packbits", lambda cells, bits: bytes(cells.size * bits // 8))
    refused(RuntimeError, "must give the same bytes", wire.run_packing, 8, 5, 1)


# -- Large rounds ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_large_rounds_and_what_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second count is left out, and a note says so; servers run in processes of their own."""
    monkeypatch.setattr(scale, "SHAPES", ((2, 3),))
    result = results_of(scale.main, "--quick --counts 1000 9 --limit 1e-3", tmp_path)
    assert "settings" in result
    servers = [(case["cells"], case["messages"]) for case in result["servers"]]
    assert servers == [("float32", 9), ("unsigned", 9)]
    for case in result["servers"]:
        assert min(case["add_s"], case["to_bytes_s"], case["total_s"]) > 0
        assert case["process_bytes"] > 50e6
    assert sum("left out" in note for note in result["notes"]) == 2


@pytest.mark.parametrize("kind", ["float32", "unsigned"])
def test_a_wrong_total_is_found(kind: str) -> None:
    found = scale.run_server(kind, (2, 3), 20)
    assert found["messages"] == 20
    layout = scale.layout_of(kind, (2, 3))
    tables = scale.tables_of(layout)
    inbox = scale.Inbox(layout, **scale.ABOUT)
    for index in range(20):
        inbox.add(scale.message(layout, tables, index))
    total = inbox.total()
    scale.check_total(total, tables, 20)
    cells = total.cells.clone()
    cells[0, 0] = torch.nextafter(cells[0, 0], torch.tensor(9e9)) + 1e-4 if kind == "float32" else 7
    for wrong in (replace(total, count=19), replace(total, cells=cells)):
        refused(RuntimeError, "must be their sum, and is not", scale.check_total, wrong, tables, 20)


def test_handshakes_take_time() -> None:
    pytest.importorskip("cryptography")
    assert scale.handshake_seconds(3) > 0


def cost(**changes: Any) -> Any:
    """A microsecond to add, 125 bytes, which take one on a link of 1 Gbit/s; nothing else."""
    settings = {"message_bytes": 125, "add_s": 1e-6, "handshake_s": 0.0}
    return scale_model.Cost(**(settings | {"table_bytes": 1000.0, "sender_bytes": 100.0} | changes))


def test_a_plan_is_the_smallest_tree() -> None:
    machine = scale_model.Machine(link=1e9, seconds=10.0, closing=1.0)
    found = scale_model.plan(10**7, cost(), machine)
    assert (found.leaves, found.levels, found.closing_s) == (1, 0, 0.0)
    assert found.leaf_bytes == 1000 + 100 * 10**7
    found = scale_model.plan(10**7, cost(add_s=1e-3), machine)
    assert (found.leaves, found.bottleneck) == (1000, "adding")
    assert (found.levels, found.fan_in) == (1, 1000)  # 1000 sums take a ms each: just in time
    assert found.closing_s == pytest.approx(1.0)
    found = scale_model.plan(10**7, cost(add_s=1.001e-3), machine)
    assert (found.leaves, found.levels, found.fan_in) == (1001, 2, 32)
    assert found.closing_s == pytest.approx(2 * 32 * 1.001e-3)


def test_a_plan_names_its_bottleneck() -> None:
    machine = scale_model.Machine(link=1e9, seconds=10.0, closing=1.0)
    found = scale_model.plan(10**8, cost(message_bytes=1249), machine)
    assert (found.leaves, found.bottleneck) == (100, "network")
    found = scale_model.plan(10**8, cost(handshake_s=3.99e-6), machine)
    assert (found.leaves, found.bottleneck) == (50, "handshakes")
    # Sums above come from aggregators that stay connected.
    assert found.closing_s == pytest.approx(50 * 1e-6)


def test_the_document_has_the_tables() -> None:
    """`benchmarks/results/scale.md` is what the command prints, from the stored results."""
    text = (ROOT / "benchmarks" / "results" / "scale.md").read_text()
    tables = scale_model.tables(ROOT / "benchmarks" / "results", scale_model.Machine())
    assert len(tables) == 4
    for table in tables:
        assert table in text
    other = scale_model.tables(ROOT / "benchmarks" / "results", scale_model.Machine(seconds=61.0))
    assert sum(table not in text for table in other) == 2  # the control: another round, the models


# -- Simulations -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task("mnist-devices", workers=20, samples=10)


@pytest.mark.slow
def test_rounds_beside_those_of_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for peer in ("pfl_seconds", "flower_seconds"):  # which take minutes, should they be installed
        monkeypatch.setattr(simulation, peer, lambda *_, **__: [])
    with torch.random.fork_rng(devices=[]):
        result = results_of(
            simulation.main, "--cohorts 3 --steps 2 --memory 0 --repeat 1", tmp_path
        )
    assert {"settings", "notes", "memory"} <= result.keys()
    (rounds,) = result["rounds"]
    ours = {"closed, none", "closed, diffsketch", "batched, none", "batched, diffsketch"}
    assert rounds["median_s"].keys() == {"torch loop", "torch.func", *ours}
    assert all(taken > 0 for taken in rounds["median_s"].values())
    assert rounds["goals"] == []
    (steps,) = result["steps"]
    assert steps["median_s"].keys() == {"nn.LSTM loop", "ours, lstm"}


def test_all_devices_give_the_same_round(task: Task) -> None:
    """With everybody in the cohort there is no choice of devices to differ in."""
    expected = simulation.torch_loop(task, 20)()
    torch.testing.assert_close(simulation.vmap_loop(task, 20)(), expected, rtol=1e-4, atol=1e-6)
    for kind in simulation.TRAINERS:
        run = simulation.simulation(task, 20, kind=kind, method="none")
        run.step()
        torch.testing.assert_close(run.weights, expected, rtol=1e-4, atol=1e-6)
    # A sketched round is another one.
    run = simulation.simulation(task, 20, kind="closed", method="diffsketch")
    run.step()
    assert not torch.allclose(run.weights, expected, atol=1e-5)


def test_plain_lstm_loop_trains_each_device_on_its_own() -> None:
    examples = load_task("shakespeare", workers=2).devices.examples
    chosen = torch.arange(20).view(2, 1, 10)
    with torch.random.fork_rng(devices=[]):
        found = simulation.lstm_loop(Batches(examples, chosen))()
    assert found.shape == (2, len(flatten(simulation.PlainLSTM())))
    assert not torch.equal(found[0], found[1])


def test_goals() -> None:
    seconds = {"pfl": 1.0, "closed, none": 0.05, "closed, diffsketch": 0.2}
    seconds |= {"batched, none": 0.1, "batched, diffsketch": 0.3}
    missed: list[str] = []
    found = simulation.goals(seconds, note=missed.append)
    assert [entry["goal"] for entry in found] == [15, 7.5, 5, 2.5]
    assert missed == ["goal MISSED: closed, diffsketch is 5.0x pfl, 7.5x wanted"]


def test_memory_of_a_process(capsys: pytest.CaptureFixture[str]) -> None:
    simulation.main(["--memory-of", "6000", "closed", "none"])
    # At least the images, and what the loader took; torch alone takes 100 MB.
    assert int(capsys.readouterr().out) > 188e6
