"""Comparisons: processes, plans, the same batches for all, one table."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from diffsketch.app import compare as compare_report
from diffsketch.app.build import build
from diffsketch.app.compare import (
    Member,
    _check_member,
    contenders_of,
    folder_of,
    has_plan,
    parse_method,
    read_plan,
    write_plan,
)
from diffsketch.app.files import RunDirectory, locked, read_sealed, sealed
from diffsketch.app.pool import PoolBroken, run_all
from diffsketch.app.settings import RunConfig
from diffsketch.errors import ArgumentError, DataError, MismatchError
from diffsketch.methods.gate import NonFiniteUpdate
from tests.app.commands import NEEDED, done, interrupted, invoke, read, refused

# In a module of its own, so that a process can import it.
WORK = """
import os, signal, time, warnings

def square(item, *, tell, stop):
    tell(0.5)
    return None if stop() else item * item

def fail(item, *, tell, stop):
    if item == 1:
        raise KeyError(item)
    return item

def vanish(item, *, tell, stop):
    if item == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return item

def warn(item, *, tell, stop):
    warnings.warn(item("noise"))

def wait(item, *, tell, stop):
    tell(0.25)
    while not stop():
        time.sleep(0.01)
    return os.getpid()
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "pool_work.py").write_text(WORK)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pool_work", raising=False)
    return import_module("pool_work")


def quietly(shares: Sequence[float | None]) -> None:
    assert all(share is None or 0 <= share <= 1 for share in shares)


@pytest.mark.parametrize("processes", [1, 2])
def test_results_are_in_order(work: ModuleType, processes: int) -> None:
    seen: list[list[float]] = []
    found = run_all(
        work.square, [3, 1, 2], processes=processes, watch=lambda now: seen.append(list(now)),
        stop=lambda: False,
    )  # fmt: skip
    assert found == [9, 1, 4]
    assert seen[-1] == [1.0, 1.0, 1.0]
    if processes == 1:  # this one
        assert seen[0] == [pytest.approx(0, abs=1e-6), 0, 0]
    assert run_all(work.square, [], processes=4, watch=quietly, stop=lambda: False) == []


@pytest.mark.parametrize("processes", [1, 2])
def test_errors_come_through(work: ModuleType, processes: int) -> None:
    with pytest.raises(KeyError, match="1"):
        run_all(work.fail, [0, 1, 2], processes=processes, watch=quietly, stop=lambda: False)


def test_killed_processes_are_an_error(work: ModuleType) -> None:
    with pytest.raises(PoolBroken, match="a process that did a part of the work was ended"):
        run_all(work.vanish, [0, 1, 2], processes=2, watch=quietly, stop=lambda: False)


def test_processes_are_told_to_stop(work: ModuleType) -> None:
    begun: list[float] = []

    def watch(shares: Sequence[float]) -> None:
        begun[:] = shares

    found = run_all(work.wait, [0, 1], processes=2, watch=watch, stop=lambda: begun == [0.25, 0.25])
    assert len(set(found)) == 2
    assert run_all(work.square, [3], processes=1, watch=quietly, stop=lambda: True) == [None]


def test_other_processes_do_not_warn_of_vectors_that_are_counted(
    work: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    kinds = [UserWarning, NonFiniteUpdate]
    run_all(work.warn, kinds, processes=2, watch=quietly, stop=lambda: False)
    said = capfd.readouterr().err
    assert "UserWarning: noise" in said
    assert "NonFiniteUpdate" not in said


SHORT = ["--workers", "3", "--samples", "20", "--rounds", "4", "--evaluate-every", "2"]


@pytest.fixture
def compared(here: Path) -> Path:
    """A comparison that is finished."""
    methods = ["--method", "none", "--method", "none:learning_rate=0.5"]
    done("compare", *SHORT, *methods, "--output", "out")
    return here / "out"


def test_flags_do_not_lose_silently(here: Path) -> None:
    file = here / "all.toml"
    file.write_text('workers = 3\nsamples = 20\n[[run]]\nname = "a"\nmethod = "none"\nrounds = 4\n')
    said = refused(invoke("compare", "--config", "all.toml", "--rounds", "3", "--output", "out"))
    assert "--rounds must not be given on the command line and differently" in said
    assert "[[run]] 'a', got --rounds=3 and 4 there" in said
    assert not (here / "out").exists()
    done("compare", "--config", "all.toml", "--rounds", "4", "--output", "out")


def test_a_changed_plan_or_one_at_work_is_refused(compared: Path) -> None:
    plan = compared / "comparison.plan.json"
    content = plan.read_text()
    for changed in (content.replace("0.5", "0.25"), "{", "[]", content[:-20]):
        plan.write_text(changed)
        assert "comparison.plan.json: damaged" in refused(invoke("compare", "--resume", compared))
    plan.write_text(content)
    with locked(compared):
        said = refused(invoke("compare", "--resume", compared))
    assert "out: another process is writing to it" in said
    done("compare", "--resume", compared)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"format": "diffsketch comparison 9"}, MismatchError, "must have the format"),
        ({"seeds": ["x"]}, DataError, "damaged: ValueError"),
        ({"seeds": [-1]}, DataError, "damaged: ArgumentError"),
        ({"runs": [{"name": "a"}]}, DataError, "damaged: KeyError"),
        ({"runs": [{"name": "a", "settings": {"row": 1}}]}, DataError, "damaged: ArgumentError"),
    ],
)
def test_plans_that_we_did_not_write(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], said: str
) -> None:
    """Their checksums are right."""
    assert not has_plan(tmp_path)
    contenders = {"a": {"method": "none"}}
    write_plan(contenders, [0, 1], tmp_path)
    assert has_plan(tmp_path)
    assert read_plan(tmp_path) == (contenders, [0, 1])
    plan = tmp_path / "comparison.plan.json"
    plan.write_bytes(sealed({**read_sealed(plan), **changes}))
    with pytest.raises(error, match=rf"comparison\.plan\.json: {said}"):
        read_plan(tmp_path)


@pytest.mark.parametrize("finished", [True, False])
def test_runs_of_others_are_refused(compared: Path, finished: bool) -> None:
    own, other = compared / "none" / "seed-0", compared / "none-learning_rate=0.5" / "seed-0"
    shutil.rmtree(own)
    shutil.copytree(other, own)
    if not finished:
        (own / "summary.json").unlink()
    said = refused(invoke("compare", "--resume", compared))
    assert "is no run of this comparison, whose plan has learning_rate=0.01" in said
    assert "it has learning_rate=0.5" in said


@pytest.mark.parametrize("method", ["diffsketch", "skellam", "cpsgd"])
def test_own_runs_are_known(tmp_path: Path, method: Any) -> None:
    """Whatever the task and the method have added to what the plan says."""
    config = RunConfig(method=method, workers=3, samples=10, rounds=2, **NEEDED.get(method, {}))
    with RunDirectory.create(tmp_path / "run", build(config).config, command=["x"]) as directory:
        _check_member(Member(method, 0, tmp_path / "run", config), directory)


def test_lost_times_of_a_member(compared: Path) -> None:
    (compared / "none" / "seed-0" / "times.json").write_text("{")
    done("compare", "--resume", compared)
    rows = read(compared / "comparison.json")["rows"]
    assert rows[0]["milliseconds_per_round"] is None
    assert rows[1]["milliseconds_per_round"] > 0


def test_all_cores_work(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(compare_report, "start", lambda *_, jobs, **__: taken.append(jobs))
    for more in ([], ["--jobs", "2"]):
        done("compare", "--method", "none", *more, cores=5)
    assert taken == [5, 2]


def test_last_line_says_what_diverged(tmp_path: Path) -> None:
    methods = ["--method", "none", "--method", "none:learning_rate=1e38"]
    short = (*SHORT, "--rounds", "8")
    result = done("compare", *short, *methods, "--output", tmp_path / "out")
    assert result.output.rstrip().endswith("Diverged: 1 of 2 runs.")
    assert "warning: round 1: NaN or infinite values in the vectors of" in result.output
    assert result.stderr == ""


def test_output_that_has_files_is_refused(here: Path) -> None:
    (here / "mine").write_text("mine")
    said = refused(invoke("compare", *SHORT, "--method", "none", "--output", here))
    assert "--output must be a new or empty directory" in said
    assert [item.name for item in here.iterdir()] == ["mine"]


def test_folders_are_short_and_differ() -> None:
    folders = [folder_of("sketch:" + "x" * 300 + end) for end in ("a", "b")]
    assert len(set(folders)) == 2
    assert all(len(folder) <= 80 for folder in folders)
    assert folder_of("comparison.json") != "comparison.json"
    assert folder_of("sketch:rows=7,cols=22") == "sketch-rows=7-cols=22"


def test_names_that_were_given_are_not_split() -> None:
    assert compare_report._name("sketch:rows=7,cols=22") == "[bold]sketch[/bold]\nrows=7\ncols=22"
    assert compare_report._name("mine: a, b") == "[bold]mine: a, b[/bold]"


SMALL = ["--workers", "4", "--samples", "30", "--rounds", "20", "--evaluate-every", "10"]


@pytest.mark.slow
def test_table_and_files(here: Path) -> None:
    result = done(
        "compare", *SMALL, "--rows", "3", "--cols", "22", "--seeds", "2", "--seed", "5",
        "--method", "none", "--method", "sketch", "--method", "sketch-laplace:per_round=0.5,rows=1",
        "--method", "none:learning_rate=1e38", "--output", "out", columns=80,
    )  # fmt: skip
    assert all(len(line) <= 80 for line in result.stdout.splitlines() if "Wrote" not in line)
    assert "…" not in result.output
    for text in (
        "Means over 2 seeds", "±", "no claim", "epsilon 0.5", "round", "1e-05;",
        "claimed;", "coordinate,", "replace,", "local", "diverged", "ratio", "guarantees nothing",
        "sketch-laplace: Simulated: the noise follows from the seed",
    ):  # fmt: skip
        assert text in result.output, text
    data = read(here / "out" / "comparison.json")
    rows = {row["name"]: row for row in data["rows"]}
    assert rows["none"]["message_bytes"] == 4 + 4 * 7850
    assert rows["sketch"]["message_bytes"] == 4 + 4 * 3 * 22
    assert rows["sketch-laplace:per_round=0.5,rows=1"]["message_bytes"] == 4 + 4 * 22
    assert rows["none"]["bytes_up"] == 20 * 4 * (4 + 4 * 7850)
    assert rows["none"]["bytes_down"] == 20 * 4 * (8 + 4 * 7850)
    assert rows["none:learning_rate=1e38"]["ended"] == {"diverged": 2}
    assert rows["sketch"]["ended"] == {"finished": 2}
    assert [run["seed"] for run in data["runs"]] == [5] * 4 + [6] * 4
    own = [run["summary"]["accuracy"] for run in data["runs"] if run["name"] == "sketch"]
    assert rows["sketch"]["accuracy"] == pytest.approx(sum(own) / 2)
    assert rows["sketch"]["accuracy_spread"] == pytest.approx(abs(own[0] - own[1]) / 2**0.5)
    laplace = rows["sketch-laplace:per_round=0.5,rows=1"]["epsilon"]
    assert (laplace["basis"], laplace["trust"]) == ("claimed", "local")
    assert rows["sketch"]["epsilon"]["value"] is None


@pytest.mark.slow
def test_processes_give_the_same_and_can_be_interrupted(here: Path) -> None:
    arguments = ["compare", *SMALL, "--method", "none", "--method", "diffsketch"]
    done(*arguments, "--output", "whole")
    result = interrupted(10, *arguments, "--output", "parts")  # in the first run
    assert "Continue with: diffsketch compare --resume parts" in result.output
    assert not (here / "parts" / "comparison.json").exists()
    result = done("compare", "--resume", "parts", "--jobs", "2")
    table = (here / "parts" / "comparison.json").read_bytes()
    # What is finished is not run again.
    done("compare", "--resume", "parts", "--page")
    assert "none" in (here / "parts" / "page" / "index.html").read_text()
    assert (here / "parts" / "comparison.json").read_bytes() == table
    for run in ("none/seed-0", "diffsketch/seed-0"):
        for name in ("metrics.jsonl", "model.safetensors", "config.toml"):
            own = (here / "parts" / run / name).read_bytes()
            assert own == (here / "whole" / run / name).read_bytes()
    whole, parts = (read(here / name / "comparison.json")["rows"] for name in ("whole", "parts"))
    assert [row["accuracy"] for row in whole] == [row["accuracy"] for row in parts]


def test_methods_see_the_same_batches_and_devices() -> None:
    """From the same weights, the same vectors of a round, whatever they become."""

    def vectors(**method_and_seed: Any) -> torch.Tensor:
        sizes: dict[str, Any] = {"workers": 20, "cohort": 3, "samples": 10, "rounds": 3}
        run = build(RunConfig(task="mnist-devices", **sizes, **method_and_seed)).simulation
        return run.algorithm.vectors(
            run.weights, run.sampler.draw(1), trainer=run.trainer, devices=run.task.devices,
            seed=run.seed, round_index=1,
        )  # fmt: skip

    expected = vectors(method="none", seed=3)
    assert torch.equal(vectors(method="sketch", seed=3), expected)
    assert not torch.equal(vectors(method="none", seed=4), expected)  # so the check can fail


def test_file_with_tables(here: Path) -> None:
    (here / "all.toml").write_text(
        'workers = 3\nsamples = 20\nrounds = 4\n[[run]]\nname = "plain"\nmethod = "none"\n'
        '[[run]]\nmethod = "sketch"\nrows = 1\ncols = 50\n'
    )
    done("compare", "--config", "all.toml", "--rounds", "3", "--output", "out")
    rows = read(here / "out" / "comparison.json")["rows"]
    assert [row["name"] for row in rows] == ["plain", "sketch:rows=1,cols=50"]
    assert [row["rounds"] for row in rows] == [3, 3]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--method must be given, once for each run"),
        (["--method", "nonne"], "got --method='nonne'; did you mean none?"),
        (["--method", "sketch:row=7"], "'row=7' is no setting; did you mean rows"),
        (["--method", "sketch:rows"], "'rows' is no setting"),
        (["--method", "sketch:x=1"], "'x=1' is no setting; see diffsketch compare --help for all"),
        (["--method", "sketch:rows=7,rows=8"], "--method must have rows once"),
        (["--method", "sketch:rows=x"], "--rows must be a whole number >= 1, got --rows='x'"),
        (["--method", "none", "--method", "none"], "--method must differ from run to run"),
        (["--method", "none", "--rows", "7"], "--rows must be a setting of one of the methods"),
        (["--method", "none", "--method", "gaussian"], "(in gaussian)"),
        (["--method", "none", "--seeds", "0"], "--seeds must be a whole number >= 1"),
        (["--method", "none", "--jobs", "0"], "--jobs must be a whole number >= 1"),
        (
            ["--method", "none", "--seed", str(2**63 - 1), "--seeds", "2"],
            "--seeds must be at most 1, so that all are below",
        ),
        (["--resume", "none"], "none: no such directory; it must be that of a comparison"),
        (["--resume", "none", "--method", "none"], "--resume takes everything from none"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    here: Path, arguments: list[str], said: str
) -> None:
    assert said in refused(invoke("compare", *arguments))
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rouns = 1", "all.toml: unknown key 'rouns'; did you mean rounds"),
        ("[[run]]\nrow = 1", "all.toml: [[run]] 1: unknown key 'row'"),
        ("[[run]]\nseed = 1", "[[run]] 1: seed must be the same for all runs"),
        ("run = 1", "run must be tables"),
        ("[[run]]\nname = 1", "name must be text, got name=1"),
    ],
)
def test_bad_files(here: Path, text: str, said: str) -> None:
    (here / "all.toml").write_text(text)
    assert said in refused(invoke("compare", "--config", "all.toml"))


def test_shared_settings_go_where_they_are_used() -> None:
    each = [parse_method("none"), parse_method("sketch:cols=5")]
    contenders = contenders_of({"rows": 7, "rounds": 2}, each)
    assert contenders == {
        "none": {"rounds": 2, "method": "none"},
        "sketch:cols=5": {"rounds": 2, "rows": 7, "method": "sketch", "cols": 5},
    }
    with pytest.raises(ArgumentError, match="clip must be a setting"):
        contenders_of({"clip": 1.0}, each)
