"""`diffsketch run`: its files, what it prints, and what becomes of damage and signals."""

from __future__ import annotations

import dataclasses
import errno
import io
import math
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from diffsketch import files
from diffsketch.app import build as build_module
from diffsketch.app import terminal
from diffsketch.app.build import build
from diffsketch.app.files import RunDirectory
from diffsketch.app.session import TrainingSession
from diffsketch.app.settings import RunConfig, describe, read_settings
from diffsketch.app.terminal import Interrupts, LastingConsole
from diffsketch.logs import RoundSummary
from diffsketch.methods import SketchGaussian
from diffsketch.privacy.claim import Basis, Epsilon, NoClaim, Relation, Scope, Trust, Unit
from diffsketch.sketch import HashSeed, SketchKey
from diffsketch.training.local import ClosedForm
from diffsketch.training.rounds import ModelState, Published, ServerOptimizer
from diffsketch.training.tasks import load_task
from tests.app.commands import (
    before_round,
    done,
    interrupted,
    invoke,
    plain,
    read,
    read_lines,
    refused,
    uncoloured,
)
from tests.training.reference import write_images

SMALL = ["--workers", "4", "--samples", "30", "--rounds", "30", "--evaluate-every", "10"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run and what it printed."""
    path = tmp_path_factory.mktemp("runs") / "run"
    result = done("run", *SMALL, "--output", path)
    return path, plain(result.output)


def contents(path: Path) -> dict[str, bytes]:
    return {item.name: item.read_bytes() for item in path.iterdir()}


def test_help_shows_every_setting_but_hidden_ones() -> None:
    printed = plain(invoke("run", "--help", columns=120).output)
    for item in describe(RunConfig).values():
        assert (f"{item.flag} " in printed) == (not item.hidden)
    for text in ("--resume", "--config", "Task", "Privacy", "sketch-skellam", "[default: (fresh)]"):
        assert text in printed


def test_files_of_a_run(finished: tuple[Path, str]) -> None:
    path, _ = finished
    assert {item.name for item in path.iterdir()} == {
        "config.toml", "run.json", "metrics.jsonl", "model.safetensors", "summary.json",
        "times.json", "checkpoint.safetensors", "command.txt",
    }  # fmt: skip
    lines = read_lines(path / "metrics.jsonl")
    assert [line["round"] for line in lines] == [0, 10, 20, 30]
    # 4 workers send a table of 7 x 22 numbers and a header of 4 bytes each; all receive the sum.
    assert [line["bytes_up"] for line in lines] == [n * 4 * 620 for n in (0, 10, 20, 30)]
    assert lines[-1]["bytes_down"] == 30 * 4 * 624  # and its count
    assert lines[-1]["accuracy"] > lines[0]["accuracy"] + 0.1
    assert lines[-1]["epsilon"] == {
        "value": 1.0, "delta": 1e-05, "basis": "claimed", "unit": "coordinate",
        "relation": "replace", "trust": "local", "rounds": 1, "simulated": False,
    }  # fmt: skip
    assert not any("second" in key for line in lines for key in line)


def test_summary_and_what_is_printed(finished: tuple[Path, str]) -> None:
    path, printed = finished
    summary = read(path / "summary.json")
    assert summary["outcome"] == "finished"
    assert summary["rounds"] == summary["planned_rounds"] == 30
    assert summary["bytes_up"] == 30 * 4 * 620
    assert summary["compression_up"] == pytest.approx(4 * 7850 / 620)
    assert 0 <= summary["noised_share"] <= 1
    assert summary["claim"].startswith("Claimed, not proven")
    assert len(summary["assumes"]) == 1
    assert summary["config"]["rows"] == 7
    assert summary["versions"]["torch"] == torch.__version__
    assert set(read(path / "times.json")) == {"training", "total", "rounds"}
    for text in (
        "round 30/30", "epsilon 1 per round (delta 1e-05; claimed; coordinate, replace, local)",
        "compression 50.6x", "620 B for 7,850 numbers", "so this is no guarantee",
        "added noise", "of the messages needed it",
        "Simulated: the noise follows from the seed", "do not publish it as a private release",
        f"Wrote {path / 'summary.json'}",
    ):  # fmt: skip
        assert text in printed, text


def test_model_is_the_trained_one(finished: tuple[Path, str]) -> None:
    path, _ = finished
    weights = load_file(path / "model.safetensors")
    built = build(RunConfig(**read_settings(path / "config.toml")))  # type: ignore[arg-type]
    task = built.simulation.task
    model, test = task.model(0), task.test
    model.load_state_dict(weights)
    with torch.no_grad():
        right = model(test.inputs).argmax(dim=1) == test.labels
    assert float(right.double().mean()) == pytest.approx(read(path / "summary.json")["accuracy"])


def test_finished_run_is_not_touched(finished: tuple[Path, str]) -> None:
    path, _ = finished
    before = {item.name: item.stat().st_mtime_ns for item in path.iterdir()}
    printed = plain(done("run", "--resume", path).output)
    assert "is finished: there is nothing to continue" in printed
    assert "compression 50.6x" in printed
    assert {item.name: item.stat().st_mtime_ns for item in path.iterdir()} == before


def test_config_file_and_flags(here: Path) -> None:
    (here / "run.toml").write_text('method = "none"\nrounds = 5\nworkers = 3\nsamples = 20\n')
    result = done("run", "--config", "run.toml", "--rounds", "4", "--output", "out")
    settings = read_settings(here / "out" / "config.toml")
    assert (settings["method"], settings["rounds"], settings["workers"]) == ("none", 4, 3)
    assert "no claim" in plain(result.output)
    # The resolved file is a file of settings like any other, and gives the same run.
    done("run", "--config", "out/config.toml", "--output", "again")
    one, again = contents(here / "out"), contents(here / "again")
    assert len(one) == 8
    for name in one.keys() - {"command.txt", "times.json"}:
        assert again[name] == one[name], name


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--local-epochs", "2"], "--local-epochs must not be given with --algorithm sgd"),
        (
            ["--method", "gaussian", "--clip", "1", "--unit", "person"],
            "--unit must be example: tasks of the command line have one record a person",
        ),
        (
            ["--method", "sketch-skellam", "--clip", "1"],
            "error: --noise-multiplier (or a --budget that it is found from) must be given for",
        ),
        (
            ["--method", "sketch-gaussian"],
            "error: --clip and --noise-multiplier (or a --budget that it is found from) must be",
        ),
        (["--data-dir", "none"], "none"),
        (["--algorithm", "fedavg", "--cohort", "11"], "--cohort must be at most the number of"),
        (["--config", "none.toml"], "none.toml: No such file"),
        pytest.param(
            ["--device", "cuda"], "--device must be cpu where PyTorch finds no CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
        (["--resume", "none"], "none: no such directory; it must be that of a run"),
        (["--resume", "none", "--seed", "1"], "--resume takes all settings from none"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_writes_nothing(
    here: Path, arguments: list[str], said: str
) -> None:
    assert said in refused(invoke("run", *arguments))
    assert list(here.iterdir()) == []


def test_budget_stops_the_run(here: Path) -> None:
    result = done(
        "run", *SMALL, "--method", "sketch-gaussian", "--clip", "1", "--noise-multiplier", "5",
        "--budget", "3", "--output", "out",
    )  # fmt: skip
    summary = read(here / "out" / "summary.json")
    assert summary["outcome"] == "budget"
    assert 1 <= summary["rounds"] < 30
    assert summary["epsilon"]["value"] <= 3
    assert summary["epsilon"]["basis"] == "proven"
    printed = plain(result.output)
    assert "Stopped, out of budget: 1 more round would bring epsilon to" in printed
    assert "(delta 1e-05; proven, simulated; client, replace, local)" in printed
    assert "Who takes part in which round is taken as public. Simulated: " in printed


def test_claim_is_that_of_the_whole_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One round without a claim, and the run has none, whatever the last round has."""
    real, bad = SketchGaussian._claim_for, SketchKey.from_integer(0).seed(5)

    def claim_for(self: SketchGaussian, present: int, seed: HashSeed) -> Any:
        claim = real(self, present, seed)
        return NoClaim(claim.scope, "of a test") if seed == bad else claim

    monkeypatch.setattr(SketchGaussian, "_claim_for", claim_for)
    result = done(
        "run", *SMALL, "--method", "sketch-gaussian", "--clip", "1", "--noise-multiplier", "5",
        "--output", "out",
    )  # fmt: skip
    summary = read(here / "out" / "summary.json")
    assert summary["claim"].startswith("No claim: of a test")
    assert (summary["epsilon"]["basis"], summary["assumes"]) == ("none", [])
    assert "No claim: of a test" in plain(result.output)


def test_proven_rounds_that_add_up_to_nothing(here: Path) -> None:
    """A share of the run's delta for each round is what keeps cpSGD's epsilon finite."""
    arguments = [
        "run", *SMALL, "--rounds", "3", "--method", "cpsgd", "--levels", "4", "--trials", "4000",
        "--output",
    ]  # fmt: skip
    done(*arguments, "out")
    epsilon = read(here / "out" / "summary.json")["epsilon"]
    assert (epsilon["basis"], epsilon["rounds"]) == ("proven", 3)
    assert epsilon["value"] is not None
    built = build(RunConfig(**read_settings(here / "out" / "config.toml")))  # type: ignore[arg-type]
    # With all of it for each round, nothing is left.
    whole = dataclasses.replace(built.simulation.method, delta=1e-5)  # type: ignore[call-arg]
    lost = whole.claim_for(4, SketchKey.from_integer(0).seed(0)).epsilon(delta=1e-5, rounds=3)
    assert float(lost) == math.inf


def test_full_disk_is_one_line(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = files._write, 0

    def full(path: Path, content: bytes) -> None:
        nonlocal calls
        calls += "checkpoint" in path.name
        if calls == 4:  # the first one is before the first round
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        real(path, content)

    monkeypatch.setattr(files, "_write", full)
    said = refused(invoke("run", *SMALL, "--checkpoint-seconds", "0", "--output", "out"))
    assert "No space left on device; the checkpoint after 2 rounds is intact" in said
    assert "diffsketch run --resume out" in said
    monkeypatch.undo()
    monkeypatch.chdir(here)
    done("run", "--resume", "out")
    assert read(here / "out" / "summary.json")["rounds"] == 30


def test_divergence_is_said_and_kept(here: Path) -> None:
    result = invoke("run", *SMALL, "--method", "none", "--learning-rate", "1e38", "--output", "out")
    assert result.exit_code == 2, result.output
    summary = read(here / "out" / "summary.json")
    assert summary["outcome"] == "diverged"
    assert summary["diverging"]
    assert "diverged" in plain(result.output)
    assert all(math.isfinite(float(part.sum())) for part in load_file(
        here / "out" / "model.safetensors"
    ).values())  # fmt: skip


@pytest.mark.slow
def test_a_clip_and_models_that_move_are_measured_and_continued(here: Path) -> None:
    masks = ["--method", "sketch", "--hashes", "fixed", "--correction", "drift"]
    done("run", *SMALL, *masks, "--output", here / "run")
    drifts = [line["drift"] for line in read_lines(here / "run" / "metrics.jsonl")]
    assert drifts[0] == 0
    assert drifts[-1] > 0.01
    noised = ["--method", "sketch-skellam", "--clip", "4", "--noise-multiplier", "0.2"]
    moving = [*noised, "--clip-quantile", "0.5", "--checkpoint-seconds", "0"]
    done("run", *SMALL, *moving, "--output", here / "whole")
    lines = read_lines(here / "whole" / "metrics.jsonl")
    clips = [line["clip"] for line in lines]
    assert clips[0] == 4.0
    assert len(set(clips)) == len(clips)
    interrupted(15, "run", *SMALL, *moving, "--output", here / "part")
    done("run", "--resume", here / "part")
    assert read_lines(here / "part" / "metrics.jsonl") == lines
    assert "--clip-quantile must be a number > 0 and < 1" in refused(
        invoke("run", *SMALL, *noised, "--clip-quantile", "1")
    )


SHORT = [
    "--workers", "3", "--samples", "20", "--rounds", "12", "--evaluate-every", "2",
    "--method", "none",
]  # fmt: skip


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run with a checkpoint after 5 rounds."""
    path = tmp_path / "run"
    result = interrupted(5, "run", *SHORT, "--output", path)
    again = f"Interrupted after 5 rounds. Continue with: diffsketch run --resume {path}"
    assert again in plain(result.output)
    return path


def test_damaged_checkpoint_is_named(stopped: Path) -> None:
    path = stopped / "checkpoint.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    said = refused(invoke("run", "--resume", stopped))
    assert "run/checkpoint.safetensors: damaged checkpoint" in said
    assert path.read_bytes() == content


@pytest.mark.parametrize("also", [[], ["times.json"], ["times.json", "metrics.jsonl"]])
def test_a_lost_checkpoint_is_no_new_run(stopped: Path, also: list[str]) -> None:
    for name in ("checkpoint.safetensors", *also):
        (stopped / name).unlink()
    before = contents(stopped)
    if len(also) == 2:  # nothing is left of its rounds
        done("run", "--resume", stopped)
        return
    said = refused(invoke("run", "--resume", stopped))
    assert "checkpoint.safetensors: missing, though the run had begun" in said
    assert contents(stopped) == before


def test_a_run_is_begun_once_it_has_a_checkpoint(tmp_path: Path) -> None:
    """Killed before that, it begins again; there are no measurements of rounds without one."""

    def kill() -> None:
        raise KeyboardInterrupt

    with before_round(1, kill):
        assert invoke("run", *SHORT, "--output", tmp_path / "run").exit_code == 130
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
    done("run", "--resume", tmp_path / "run")


@pytest.mark.parametrize("content", ["{", '{"training": "x", "total": 1}'])
def test_times_are_not_needed(stopped: Path, content: str) -> None:
    (stopped / "times.json").write_text(content)
    done("run", "--resume", stopped)
    (stopped / "times.json").write_text(content)
    assert "time " not in done("run", "--resume", stopped).output


def test_damaged_summary(stopped: Path) -> None:
    done("run", "--resume", stopped)
    summary = stopped / "summary.json"
    for content in ("{", '{"accuracy": 1}', summary.read_text().replace("finished", "budget")):
        summary.write_text(content)
        assert "summary.json: damaged" in refused(invoke("run", "--resume", stopped))


def test_what_the_checkpoint_knows_is_written_again(stopped: Path) -> None:
    content = (stopped / "metrics.jsonl").read_bytes()
    (stopped / "metrics.jsonl").write_bytes(b"changed\n")
    # And not at the end only: somebody may look meanwhile.
    interrupted(2, "run", "--resume", stopped)
    assert [line["round"] for line in read_lines(stopped / "metrics.jsonl")] == [0, 2, 4, 6]
    done("run", "--resume", stopped)
    before = contents(stopped)
    assert before["metrics.jsonl"].startswith(content)
    assert [line["round"] for line in read_lines(stopped / "metrics.jsonl")] == [*range(0, 13, 2)]
    (stopped / "model.safetensors").unlink()
    done("run", "--resume", stopped)
    after = contents(stopped)
    del before["times.json"], after["times.json"]
    assert after == before


@pytest.mark.parametrize("part", ["train", "test"])
def test_changed_data_is_said(stopped: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    def load(*arguments: Any, **options: Any) -> Any:
        task = load_task(*arguments, **options)
        examples = task.test if part == "test" else task.devices.examples
        examples.labels[0] = (examples.labels[0] + 1) % 10
        return task

    monkeypatch.setattr(build_module, "load_task", load)
    before = contents(stopped)
    said = refused(invoke("run", "--resume", stopped))
    what = "the test data has" if part == "test" else "the data has"
    assert f"{what} changed since the run began" in said
    assert len(said) < 300
    assert contents(stopped) == before


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    stopped = tmp_path / "run"
    with before_round(5, lambda: shutil.rmtree(stopped)):
        said = refused(invoke("run", *SHORT, "--checkpoint-seconds", "0", "--output", stopped))
    assert "the directory of the run is gone" in said
    assert "intact" not in said


def test_a_diverged_round_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, stopped = ServerOptimizer.advance, tmp_path / "run"

    def advance(
        self: ServerOptimizer, model: ModelState, published: Published, **rest: Any
    ) -> ModelState:
        after = real(self, model, published, **rest)
        if published.round_index == 2:
            return ModelState(after.weights / 0, after.memory)
        return after

    monkeypatch.setattr(ServerOptimizer, "advance", advance)
    result = invoke("run", *SHORT, "--output", stopped)
    assert result.exit_code == 2, result.output
    summary = read(stopped / "summary.json")
    assert (summary["outcome"], summary["rounds"]) == ("diverged", 2)
    assert summary["bytes_up"] == 3 * 3 * (4 + 4 * 7850)
    assert summary["bytes_down"] == 3 * 3 * (8 + 4 * 7850)


SCOPE = Scope(Unit.CLIENT, Relation.REPLACE, Trust.DISTRIBUTED)
SPENT = Epsilon(3.2002, 1e-5, 7, Basis.PROVEN, SCOPE)


def shown(**options: Any) -> str:
    """Ten rounds as a display shows them."""
    stream = io.StringIO()
    console = LastingConsole(file=stream, width=40, **options)
    with console.progress("round", total=10) as show:
        for number in range(1, 11):
            show(number, str(RoundSummary(number, 0.5, 0.875, 1234, 567, SPENT)))
    return uncoloured(stream.getvalue())


def test_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "BAR_SECONDS", 0.0)
    text = " ".join(shown(force_terminal=True).split())
    assert "round 10/10" in text
    assert "━" in text
    assert "epsilon 3.21 (delta 1e-05; proven; client, replace, distributed)" in text
    assert "…" not in text


def test_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown().splitlines() == [
        "round 10/10 | round 10 | loss 0.5 | accuracy 87.5% | up 1,234 B, down 567 B | "
        "epsilon 3.21 (delta 1e-05; proven; client, replace, distributed)"
    ]
    monkeypatch.setattr(terminal, "LINE_SECONDS", 0.0)
    assert len(shown().splitlines()) == 10


def test_an_older_evaluation_is_not_shown_as_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "LINE_SECONDS", 0.0)
    lines = done("run", *SHORT, "--output", tmp_path / "run", columns=200).output.splitlines()
    assert lines[0] == "round 1/12"
    assert all(lines[at].startswith(f"round {at + 1}/12 | round 2 | loss ") for at in (1, 2))


def test_a_run_is_named_after_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    write_images(tmp_path / "digits")
    result = done(
        "run", "--data-dir", "digits", "--workers", "3", "--samples", "4", "--rounds", "1"
    )
    assert "digits, sgd, diffsketch" in result.output
    assert (tmp_path / "runs" / "digits-diffsketch" / "summary.json").exists()
    assert RunConfig().data_name == RunConfig(data_dir="/").data_name == "mnist"


def test_worker_that_is_broken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ClosedForm._train

    def broken(*arguments: Any) -> Tensor:
        vectors = real(*arguments)
        return torch.cat([vectors[:1] * math.nan, vectors[1:]])

    monkeypatch.setattr(ClosedForm, "_train", broken)
    path = tmp_path / "run"
    arguments = ["run", "--workers", "3", "--samples", "10", "--rounds", "6", "--method", "none"]
    result = done(*arguments, "--output", path, columns=200)
    warnings = [line for line in result.output.splitlines() if line.startswith("warning: round")]
    assert len(warnings) == 3  # and not one for each round
    assert "'worker-0'" in warnings[0]
    assert "left out of the mean" in warnings[0]
    summary = read(path / "summary.json")
    assert (summary["left_out"], summary["messages"]) == (6, 12)
    assert summary["accuracy"] > 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_first_signal_is_noted(number: signal.Signals, status: int) -> None:
    before = signal.getsignal(number)
    with Interrupts() as interrupts:
        assert (interrupts.signal, interrupts.exit_status) == (None, 0)
        signal.raise_signal(number)
        assert (interrupts.signal, interrupts.exit_status) == (number, status)
        assert signal.getsignal(number) == before  # so that a second one acts
    with pytest.raises(ZeroDivisionError), Interrupts():
        raise ZeroDivisionError
    assert signal.getsignal(number) == before


def test_second_interrupt_acts() -> None:
    # A shell starts what it runs in the background with the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Interrupts(), pytest.raises(KeyboardInterrupt):  # noqa: PT012
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_are_left_alone() -> None:
    def enter() -> None:
        with Interrupts() as interrupts:
            assert interrupts.signal is None

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()


FEDAVG: dict[str, Any] = {"algorithm": "fedavg", "cohort": 3, "sampling": "uniform"}


def summary_of(path: Path, **settings: Any) -> dict[str, Any]:
    built = build(RunConfig(workers=6, samples=10, rounds=8, **settings))
    with RunDirectory.create(path, built.config, command=["x"]) as directory:
        TrainingSession(built.simulation, directory).run(stop=lambda: False)
        return directory.summary() or {}


@pytest.mark.parametrize("settings", [{}, FEDAVG, {**FEDAVG, "momentum": 0.5}])
def test_without_compression_it_is_one_at_most(tmp_path: Path, settings: dict[str, Any]) -> None:
    summary = summary_of(tmp_path / "none", method="none", **settings)
    for name in ("compression", "compression_up", "compression_down"):
        assert 0.4 < summary[name] <= 1, name
    if "momentum" not in settings:  # which has to be downloaded as well
        assert summary["compression_down"] == pytest.approx(4 * 7850 / (8 + 4 * 7850))


def test_same_devices_same_raw_bytes(tmp_path: Path) -> None:
    none = summary_of(tmp_path / "none", method="none", **FEDAVG)
    sketch = summary_of(tmp_path / "sketch", method="sketch", **FEDAVG)
    for way in ("up", "down"):
        assert none[f"uncompressed_bytes_{way}"] == sketch[f"uncompressed_bytes_{way}"]
        raw = sketch[f"uncompressed_bytes_{way}"]
        assert sketch[f"compression_{way}"] == pytest.approx(raw / sketch[f"bytes_{way}"])
    # Nobody downloads anything before the first round.
    assert sketch["uncompressed_bytes_down"] < sketch["uncompressed_bytes_up"]


def test_whole_numbers_as_they_are(tmp_path: Path) -> None:
    """What the method chose where nothing was given."""
    settings = {"clip": 1.0, "noise_multiplier": 2.0, "rows": 1, "cols": 16}
    summary = summary_of(tmp_path / "run", method="sketch-skellam", **settings)
    assert "bits" not in summary["config"]
    assert summary["message_bytes"] == 2 + 2 * summary["bits"]
    assert 0 < summary["granularity"] < 1


def test_saturated_cells_are_counted(tmp_path: Path) -> None:
    """Nearly all in the first round, whose limit is far too small; then few."""
    settings = {"rows": 1, "cols": 64, "bits": 4, "cell_limit": 0.01}
    summary = summary_of(tmp_path / "few", method="sketch", **settings)
    assert 0.01 < summary["saturated_share"] < 1
    whole = summary_of(tmp_path / "float32", method="sketch", rows=1, cols=64)
    assert whole["saturated_share"] is None
