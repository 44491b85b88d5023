"""The benchmark of the simulation runs, and its peers compute the same round. No speed is asserted.

pfl and Flower are not installed here; what they compute is not checked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import simulation
from diffsketch.training.models import flatten
from diffsketch.training.tasks import Batches, Task, load_task
from tests.helpers.results import results_of

bench: Any = simulation


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task("mnist-devices", workers=20, samples=10)


@pytest.mark.slow
def test_writes_all_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for peer in ("pfl_seconds", "flower_seconds"):  # which take minutes, should they be installed
        monkeypatch.setattr(bench, peer, lambda *_, **__: [])
    with torch.random.fork_rng(devices=[]):
        result = results_of(bench.main, "--cohorts 3 --steps 2 --memory 0 --repeat 1", tmp_path)
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
    expected = bench.torch_loop(task, 20)()
    torch.testing.assert_close(bench.vmap_loop(task, 20)(), expected, rtol=1e-4, atol=1e-6)
    for kind in bench.TRAINERS:
        run = bench.simulation(task, 20, kind=kind, method="none")
        run.step()
        torch.testing.assert_close(run.weights, expected, rtol=1e-4, atol=1e-6)
    # A sketched round is another one.
    run = bench.simulation(task, 20, kind="closed", method="diffsketch")
    run.step()
    assert not torch.allclose(run.weights, expected, atol=1e-5)


def test_plain_lstm_loop_trains_each_device_on_its_own() -> None:
    examples = load_task("shakespeare", workers=2).devices.examples
    chosen = torch.arange(20).view(2, 1, 10)
    with torch.random.fork_rng(devices=[]):
        found = bench.lstm_loop(examples, Batches(chosen))()
    assert found.shape == (2, len(flatten(bench.PlainLSTM())))
    assert not torch.equal(found[0], found[1])


def test_goals() -> None:
    seconds = {"pfl": 1.0, "closed, none": 0.05, "closed, diffsketch": 0.2}
    seconds |= {"batched, none": 0.1, "batched, diffsketch": 0.3}
    missed: list[str] = []
    found = bench.goals(seconds, note=missed.append)
    assert [entry["goal"] for entry in found] == [15, 7.5, 5, 2.5]
    assert missed == ["goal MISSED: closed, diffsketch is 5.0x pfl, 7.5x wanted"]


def test_memory_of_a_process(capsys: pytest.CaptureFixture[str]) -> None:
    bench.main(["--memory-of", "6000", "closed", "none"])
    # At least the images, and what the loader took; torch alone takes 100 MB.
    assert int(capsys.readouterr().out) > 188e6
