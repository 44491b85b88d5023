"""What a comparison runs, and that what is continued is what was planned."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest

from diffsketch.app import compare as compare_report
from diffsketch.app.build import build
from diffsketch.app.compare import (
    Contender,
    Member,
    _check_member,
    has_plan,
    parse_method,
    read_plan,
    write_plan,
)
from diffsketch.app.files import RunDirectory, locked, read_sealed, sealed
from diffsketch.app.settings import METHOD_NAMES, RunConfig
from diffsketch.errors import ArgumentError, DataError, MismatchError
from tests.app.commands import invoke, read, refused

SMALL = ["--workers", "3", "--samples", "20", "--rounds", "4", "--evaluate-every", "2"]
NEEDED = {
    "sketch-gaussian": {"clip": 1.0, "noise_multiplier": 2.0},
    "sketch-skellam": {"clip": 1.0, "budget": 50.0},
    "gaussian": {"clip": 1.0, "noise_multiplier": 2.0},
    "skellam": {"clip": 1.0, "budget": 50.0},
    "diffsketch-proven": {"clip": 1.0, "padding": 40, "std": 1.0},
    "cpsgd": {"levels": 4, "trials": 4000},
    "projunit": {"clip": 1.0, "size": 20},
}


@pytest.fixture
def path(here: Path) -> Path:
    """A comparison that is finished."""
    methods = ["--method", "none", "--method", "none:learning_rate=0.5"]
    assert invoke("compare", *SMALL, *methods, "--output", "out").exit_code == 0
    return here / "out"


def test_flags_do_not_lose_silently(here: Path) -> None:
    file = here / "all.toml"
    file.write_text('workers = 3\nsamples = 20\n[[run]]\nname = "a"\nmethod = "none"\nrounds = 4\n')
    said = refused(invoke("compare", "--config", "all.toml", "--rounds", "3", "--output", "out"))
    assert "--rounds must not be given on the command line and differently" in said
    assert "[[run]] 'a', got --rounds=3 and 4 there" in said
    assert not (here / "out").exists()
    same = invoke("compare", "--config", "all.toml", "--rounds", "4", "--output", "out")
    assert same.exit_code == 0, same.output


def test_a_changed_plan_is_refused(path: Path) -> None:
    plan = path / "comparison.plan.json"
    content = plan.read_text()
    for changed in (content.replace("0.5", "0.25"), "{", "[]", content[:-20]):
        plan.write_text(changed)
        assert "comparison.plan.json: damaged" in refused(invoke("compare", "--resume", path))
    plan.write_text(content)
    assert invoke("compare", "--resume", path).exit_code == 0


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"format": "diffsketch comparison 9"}, MismatchError, "must have the format"),
        ({"seeds": ["x"]}, DataError, "damaged: ValueError"),
        ({"seeds": [-1]}, DataError, "damaged: ArgumentError"),
        ({"runs": [{"name": "a"}]}, DataError, "damaged: KeyError"),
        ({"runs": [{"name": "a", "settings": {"row": 1}}]}, DataError, "damaged: TypeError"),
    ],
)
def test_plans_that_we_did_not_write(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], said: str
) -> None:
    """Their checksums are right."""
    assert not has_plan(tmp_path)
    contenders = [Contender("a", {"method": "none"})]
    write_plan(contenders, [0, 1], tmp_path)
    assert has_plan(tmp_path)
    assert read_plan(tmp_path) == (contenders, [0, 1])
    plan = tmp_path / "comparison.plan.json"
    plan.write_bytes(sealed({**read_sealed(plan), **changes}))
    with pytest.raises(error, match=rf"comparison\.plan\.json: {said}"):
        read_plan(tmp_path)


@pytest.mark.parametrize("finished", [True, False])
def test_runs_of_others_are_refused(path: Path, finished: bool) -> None:
    own, other = path / "none" / "seed-0", path / "none-learning_rate=0.5" / "seed-0"
    shutil.rmtree(own)
    shutil.copytree(other, own)
    if not finished:
        (own / "summary.json").unlink()
    said = refused(invoke("compare", "--resume", path))
    assert "is no run of this comparison, whose plan has learning_rate=0.01" in said
    assert "it has learning_rate=0.5" in said


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_own_runs_are_known(tmp_path: Path, method: str) -> None:
    """Whatever the task and the method have added to what the plan says."""
    config = RunConfig(
        method=method, workers=3, samples=10, rounds=2,
        **NEEDED.get(method, {}),  # type: ignore[arg-type]
    )  # fmt: skip
    with RunDirectory.create(tmp_path / "run", build(config).config, command=["x"]) as directory:
        _check_member(Member(method, 0, tmp_path / "run", config), directory)


def test_damaged_measurements_of_a_member(path: Path) -> None:
    metrics = path / "none" / "seed-0" / "metrics.jsonl"
    for line in (b"{\n", b"[]\n", b'{"x": 1}\n'):
        metrics.write_bytes(line)
        said = refused(invoke("compare", "--resume", path))
        assert "metrics.jsonl: damaged: line 1 is no measurement" in said


def test_lost_times_of_a_member(path: Path) -> None:
    (path / "none" / "seed-0" / "times.json").write_text("{")
    assert invoke("compare", "--resume", path).exit_code == 0
    rows = read(path / "comparison.json")["rows"]
    assert rows[0]["milliseconds_per_round"] is None
    assert rows[1]["milliseconds_per_round"] > 0
    with (path / "comparison.csv").open(newline="") as stream:
        assert next(csv.DictReader(stream))["milliseconds_per_round"] == ""


def test_one_process_at_a_time(path: Path) -> None:
    lock = locked(path)
    assert "out: another process is writing to it" in refused(invoke("compare", "--resume", path))
    assert lock >= 0


def test_last_line_says_what_diverged(tmp_path: Path) -> None:
    methods = ["--method", "none", "--method", "none:learning_rate=1e38"]
    result = invoke("compare", *SMALL, "--rounds", "8", *methods, "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert result.output.rstrip().endswith("Diverged: 1 of 2 runs.")
    assert "warning: round 1: NaN or infinite values in the vectors of" in result.output
    assert result.stderr == ""


def test_seeds_stay_below_their_limit(here: Path) -> None:
    last = ["--seed", str(2**63 - 1), "--method", "none", *SMALL]
    said = refused(invoke("compare", *last, "--seeds", "2"))
    assert "--seeds must be at most 1, so that all are below" in said
    assert list(here.iterdir()) == []


def test_folders_are_short_and_differ() -> None:
    long = [Contender("sketch:" + "x" * 300 + end, {}) for end in ("a", "b")]
    folders = [one.folder for one in long]
    assert len(set(folders)) == 2
    assert all(len(folder) <= 80 for folder in folders)
    assert Contender("comparison.json", {}).folder != "comparison.json"
    assert Contender("sketch:rows=7,cols=22", {}).folder == "sketch-rows=7-cols=22"


def test_a_key_is_given_once() -> None:
    with pytest.raises(ArgumentError, match="method must have rows once"):
        parse_method("sketch:rows=7,rows=8")


def test_names_that_were_given_are_not_split() -> None:
    assert compare_report._name("sketch:rows=7,cols=22") == "[bold]sketch[/bold]\nrows=7\ncols=22"
    assert compare_report._name("mine: a, b") == "[bold]mine: a, b[/bold]"
