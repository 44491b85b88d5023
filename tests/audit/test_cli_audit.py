"""`diffsketch audit`: what it selects, prints and writes, and its errors in one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from diffsketch.audit import suite
from diffsketch.audit.catalogue import CASES, DEFAULT, QUICK
from diffsketch.audit.inversion import InversionResult, Recovery
from diffsketch.audit.planted import PLANTS
from diffsketch.audit.suite import INVERSION, run_suite, select
from diffsketch.cli import app
from diffsketch.errors import ArgumentError
from diffsketch.privacy.claim import Basis, Epsilon, NoClaim, Relation, Scope, Trust, Unit

WORDS = {"epsilon", "delta", "rounds", "basis", "unit", "relation", "trust"}
EXACT = ({"epsilon", "how"}, "exact best attack")


def plain(text: str) -> str:
    """Without colours, where they are forced, and without line breaks of a narrow terminal."""
    return " ".join(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).split())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The directory and the printed text of one short run."""
    directory = tmp_path_factory.mktemp("audit") / "new"
    result = CliRunner().invoke(
        app,
        ["audit", "--output", str(directory), "--plant", "shared-seed", "--case", "bare-known",
         "--case", "bare-client", "--trials", "2000", "--confidence", "0.95"],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    return directory, plain(result.output)


def epsilons(data: Any) -> list[dict[str, Any]]:
    """All that is called epsilon, with what stands beside it."""
    if isinstance(data, dict):
        own = [data] if "epsilon" in data else []
        return own + [found for value in data.values() for found in epsilons(value)]
    return [found for value in data for found in epsilons(value)] if isinstance(data, list) else []


def test_table_and_files(run: tuple[Path, str]) -> None:
    directory, printed = run
    assert {path.name for path in directory.iterdir()} == {"audit.json", "audit.png"}
    assert (directory / "audit.png").read_bytes().startswith(b"\x89PNG")
    for text in (
        "0.95 confidence", "bare-known", "planted-shared-seed", "two workers share a noise seed",
        "contradicts", "consistent", "nothing is", "public hashes, all else known",
        "client, replace, local", "with probability at most 0.05", "Planted errors found: 1 of 1",
        "audit.json",
    ):  # fmt: skip
        assert text in printed, text


def test_json(run: tuple[Path, str]) -> None:
    data = json.loads((run[0] / "audit.json").read_text(encoding="utf-8"))
    verdicts = {each["case"]: each["verdict"] for each in data["audits"]}
    assert verdicts == {
        "bare-known": "contradicts the claim",
        "bare-client": "nothing is claimed",
        "gaussian-workers": "consistent",
        "planted-shared-seed": "contradicts the claim",
    }
    found = epsilons(data)
    assert len(found) == 4 * 2 + 2
    for each in found:
        assert each["epsilon"] is None or isinstance(each["epsilon"], float)
        assert set(each) == WORDS or (set(each), each["how"]) == EXACT
    assert data["confidence_of_each_bound"] == 0.95
    assert data["false_alarm_probability_of_this_run_at_most"] == pytest.approx(0.05)
    (bare,) = (each for each in data["audits"] if each["case"] == "bare-known")
    assert bare["best_possible"]["epsilon"] is None
    (crowd,) = (each for each in data["audits"] if each["case"] == "bare-client")
    assert 0 < crowd["best_possible"]["epsilon"] < 100
    assert bare["judged"]["trials"] * 2 == bare["trials_per_world"] == 2000


def test_selection() -> None:
    assert select().cases == DEFAULT
    assert select().inversion
    assert select(quick=True).cases == QUICK
    assert set(QUICK) < set(DEFAULT) < set(CASES)
    chosen = select(cases=["inversion", "bare-known"], plants=["small-noise", "no-clipping"])
    assert chosen.inversion
    assert chosen.cases == (
        "bare-known", "gaussian-client", "planted-small-noise", "planted-no-clipping",
    )  # fmt: skip
    assert not select(cases=["bare-known"]).inversion


def fake_inversion(**arguments: Any) -> InversionResult:
    scope = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
    epsilon = Epsilon(1.0, 1e-5, 1, Basis.PROVEN, scope)
    images = np.zeros((10 * arguments["per_class"], 784))
    one = Recovery("sketch with noise", epsilon, epsilon, images, np.zeros(len(images)), 0.1)
    return InversionResult(images, np.zeros(len(images), dtype=np.int64), images[0], (one,))


def test_quick_takes_half_and_progress_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "invert", fake_inversion)
    told: list[tuple[float, str]] = []
    selection = select(cases=["bare-parity", INVERSION], quick=True)
    found = run_suite(selection, on_progress=lambda done, what: told.append((done, what)))
    assert found.results[0].trials == 2000
    assert found.inversion is not None
    assert len(found.inversion.images) == 10
    shares = [done for done, _ in told]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert "bare-parity" in {what for _, what in told}


@pytest.mark.parametrize("arguments", [[], ["--quick"]], ids=str)
def test_inversion_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(suite, "invert", fake_inversion)
    result = CliRunner().invoke(
        app, ["audit", "--case", INVERSION, "--output", str(tmp_path), *arguments]
    )
    assert result.exit_code == 0, result.output
    assert {path.name for path in tmp_path.iterdir()} == {"audit.json", "inversion.png"}
    assert "(proven; client, replace, local)" in plain(result.output)
    assert ("images only, these numbers vary" in plain(result.output)) == (arguments != [])
    (one,) = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))["inversion"]
    assert set(one["guaranteed"]) == WORDS


def test_what_is_not_guaranteed_is_null() -> None:
    scope = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
    nothing = NoClaim(scope, "there is no noise").epsilon(delta=1e-5, rounds=1)
    one = Recovery("gradient", nothing, None, np.zeros((1, 784)), np.zeros(1), 0.1)
    assert one.to_json()["guaranteed"] is None


@pytest.mark.parametrize(("trials", "hint"), [("2000", True), ("200000", False)])
def test_too_few_trials_are_blamed(tmp_path: Path, trials: str, hint: bool) -> None:
    arguments = ["--plant", "small-noise", "--trials", trials, "--output", str(tmp_path)]
    printed = plain(CliRunner().invoke(app, ["audit", *arguments]).output)
    assert f"Planted errors found: {0 if hint else 1} of 1." in printed
    assert ("2,000 trials may be too few to find planted-small-noise" in printed) == hint


def test_files_are_written_all_or_none(tmp_path: Path) -> None:
    (tmp_path / "audit.png").mkdir()  # a file cannot take a directory's place
    arguments = ["--case", "bare-known", "--trials", "200", "--output", str(tmp_path)]
    result = CliRunner().invoke(app, ["audit", *arguments])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert f"error: {tmp_path / 'audit.png'}: Is a directory" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["audit.png"]


def test_list_names_every_case_and_writes_nothing(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["audit", "--list", "--output", str(tmp_path / "none")])
    printed = plain(result.output)
    assert result.exit_code == 0
    assert not (tmp_path / "none").exists()
    for name in [*CASES, INVERSION]:
        assert name in printed


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--case", "nonsense"], "--case must be one of bare-known"),
        (["--plant", "nonsense"], f"--plant must be one of {', '.join(PLANTS)}"),
        (["--case", "bare-known", "--trials", "5"], "--trials must be in 100..100000000"),
        (["--case", "bare-known", "--trials", "0"], "--trials must be in 100..100000000"),
        (["--trials", "1000000000000"], "--trials must be in 100..100000000"),
        (["--case", "bare-known", "--confidence", "2"], "--confidence must be in (0, 1)"),
        (["--case", "bare-known", "--delta", "nan"], "--delta must be in [0, 1)"),
    ],
)
def test_errors_are_one_line(tmp_path: Path, arguments: list[str], text: str) -> None:
    result = CliRunner().invoke(app, ["audit", "--output", str(tmp_path / "new"), *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert text in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_negative_seed_is_refused() -> None:
    with pytest.raises(ArgumentError, match="seed"):
        run_suite(select(cases=["bare-known"]), seed=-1)


def test_output_that_is_a_file_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("mine")
    result = CliRunner().invoke(app, ["audit", "--case", "bare-known", "--output", str(target)])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert target.read_text() == "mine"
