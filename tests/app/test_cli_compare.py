"""`diffsketch compare`: the same batches for all, one table, and what diverges is shown so."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from diffsketch.app import compare as compare_report
from diffsketch.app.build import build, settings_of_methods
from diffsketch.app.compare import contenders_of, parse_method
from diffsketch.app.files import epsilon_data
from diffsketch.app.settings import RunConfig
from diffsketch.errors import ArgumentError
from diffsketch.privacy.claim import Basis, Epsilon, Relation, Scope, Trust, Unit
from diffsketch.training.simulation import Simulation
from tests.app.commands import interrupted_in_round, invoke, plain, read, refused

SMALL = ["--workers", "4", "--samples", "30", "--rounds", "20", "--evaluate-every", "10"]


def test_help() -> None:
    printed = plain(invoke("compare", "--help", columns=120).output)
    for text in ("a [[run]] table", "NAME:key=value", "--seeds", "--rows", "Example: diffsketch"):
        assert text in printed, text


def test_table_and_files(here: Path) -> None:
    result = invoke(
        "compare", *SMALL, "--rows", "3", "--cols", "22", "--seeds", "2", "--seed", "5",
        "--method", "none", "--method", "sketch", "--method", "sketch-laplace:per_round=0.5,rows=1",
        "--method", "none:learning_rate=1e38", "--output", "out", columns=80,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.stdout.splitlines() if "Wrote" not in line)
    assert "…" not in result.output
    for text in (
        "Means over 2 seeds",
        "±",
        "no claim",
        "0.5 a round",
        "at 1e-05",
        "claimed;",
        "coordinate,",
        "replace,",
        "local ",
        "sketch-laplace: Simulated: the noise follows from the seed",
        "diverged",
        "ratio",
    ):
        assert text in result.output, text
    data = read(here / "out" / "comparison.json")
    rows = {row["name"]: row for row in data["rows"]}
    assert rows["none"]["message_bytes"] == 48 + 4 * 7850
    assert rows["sketch"]["message_bytes"] == 48 + 4 * 3 * 22
    assert rows["sketch-laplace:per_round=0.5,rows=1"]["message_bytes"] == 48 + 4 * 22
    assert rows["none"]["bytes"] == 2 * 20 * 4 * (48 + 4 * 7850)
    assert rows["none:learning_rate=1e38"]["ended"] == {"diverged": 2}
    assert rows["sketch"]["ended"] == {"finished": 2}
    assert [run["seed"] for run in data["runs"]] == [5] * 4 + [6] * 4
    own = [run["summary"]["accuracy"] for run in data["runs"] if run["name"] == "sketch"]
    assert rows["sketch"]["accuracy"] == pytest.approx(sum(own) / 2)
    assert rows["sketch"]["accuracy_spread"] == pytest.approx(abs(own[0] - own[1]) / 2**0.5)
    with (here / "out" / "comparison.csv").open(newline="") as stream:
        table = list(csv.DictReader(stream))
    assert len(table) == 8
    assert table[2]["basis"] == "claimed"
    assert (table[1]["epsilon"], table[1]["trust"]) == ("", "local")


def test_epsilons_of_the_table_have_all_their_words() -> None:
    scope = Scope(Unit.CLIENT, Relation.REPLACE, Trust.DISTRIBUTED)

    def shown(value: float) -> str:
        data = epsilon_data(Epsilon(value, 1e-5, 3, Basis.PROVEN, scope))
        return compare_report._epsilon({"epsilon": data})

    assert shown(7.981) == "7.99\nat 1e-05\nproven;\nclient,\nreplace,\ndistributed"
    assert shown(math.inf) == (
        "proven per round,\nnothing at 1e-05\nover 3 rounds\nclient,\nreplace,\ndistributed"
    )


def test_processes_give_the_same_and_can_be_interrupted(here: Path) -> None:
    arguments = ["compare", *SMALL, "--method", "none", "--method", "diffsketch"]
    assert invoke(*arguments, "--output", "whole").exit_code == 0
    with interrupted_in_round(10):  # of the first run
        result = invoke(*arguments, "--output", "parts")
    assert result.exit_code == 130
    assert "Continue with: diffsketch compare --resume parts" in result.output
    assert not (here / "parts" / "comparison.json").exists()
    result = invoke("compare", "--resume", "parts", "--jobs", "2")
    assert result.exit_code == 0, result.output
    table = (here / "parts" / "comparison.csv").read_bytes()
    # What is finished is not run again.
    assert invoke("compare", "--resume", "parts").exit_code == 0
    assert (here / "parts" / "comparison.csv").read_bytes() == table
    for run in ("none/seed-0", "diffsketch/seed-0"):
        for name in ("metrics.jsonl", "model.safetensors", "config.toml"):
            own = (here / "parts" / run / name).read_bytes()
            assert own == (here / "whole" / run / name).read_bytes()
    whole, parts = (read(here / name / "comparison.json")["rows"] for name in ("whole", "parts"))
    assert [row["accuracy"] for row in whole] == [row["accuracy"] for row in parts]


def test_methods_see_the_same_batches_and_devices() -> None:
    settings: dict[str, Any] = {
        "task": "mnist-devices", "workers": 20, "cohort": 3, "samples": 10, "rounds": 3,
    }  # fmt: skip
    one = build(RunConfig(method="none", seed=3, **settings)).simulation
    other = build(RunConfig(method="sketch", seed=3, **settings)).simulation
    another = build(RunConfig(method="none", seed=4, **settings)).simulation
    assert torch.equal(one.weights, other.weights)
    cohorts = []
    for _ in range(3):
        results = [one.step(), other.step(), another.step()]
        assert torch.equal(results[0].cohort, results[1].cohort)
        cohorts.append(torch.equal(results[0].cohort, results[2].cohort))
    assert not all(cohorts)  # so the check can fail
    # The same batches: from the same weights the same vectors, whatever they become.
    first, second = (
        build(RunConfig(method=name, seed=3, **settings)) for name in ("none", "sketch")
    )
    vectors = [_vectors(built.simulation) for built in (first, second)]
    assert torch.equal(vectors[0], vectors[1])


def _vectors(simulation: Simulation) -> torch.Tensor:
    return simulation.algorithm.vectors(
        simulation.weights,
        simulation.sampler.draw(1),
        trainer=simulation.trainer,
        devices=simulation.task.devices,
        seed=simulation.seed,
        round_index=1,
    )


def test_file_with_tables(here: Path) -> None:
    (here / "all.toml").write_text(
        'workers = 3\nsamples = 20\nrounds = 4\n[[run]]\nname = "plain"\nmethod = "none"\n'
        '[[run]]\nmethod = "sketch"\nrows = 1\ncols = 50\n'
    )
    result = invoke("compare", "--config", "all.toml", "--rounds", "3", "--output", "out")
    assert result.exit_code == 0, result.output
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
        (["--method", "sketch:rows=x"], "--rows must be a whole number >= 1, got --rows='x'"),
        (["--method", "none", "--method", "none"], "--method must differ from run to run"),
        (["--method", "none", "--rows", "7"], "--rows must be a setting of one of the methods"),
        (["--method", "none", "--method", "projunit"], "(in projunit)"),
        (["--method", "none", "--seeds", "0"], "--seeds must be a whole number >= 1"),
        (["--method", "none", "--jobs", "0"], "--jobs must be a whole number >= 1"),
        (["--resume", "none"], "none: not the directory of a comparison"),
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
    contenders = contenders_of({"rows": 7, "rounds": 2}, each, fields_of=settings_of_methods())
    assert dict(contenders[0].settings) == {"rounds": 2, "method": "none"}
    assert dict(contenders[1].settings) == {"rounds": 2, "rows": 7, "method": "sketch", "cols": 5}
    with pytest.raises(ArgumentError, match="clip must be a setting"):
        contenders_of({"clip": 1.0}, each, fields_of=settings_of_methods())


def test_output_that_has_files_is_refused(here: Path) -> None:
    (here / "out").mkdir()
    (here / "out" / "mine").write_text("mine")
    result = invoke("compare", *SMALL, "--method", "none", "--output", "out")
    assert result.exit_code == 2
    assert "--output must be a new or empty directory" in result.stderr
    assert [item.name for item in (here / "out").iterdir()] == ["mine"]
