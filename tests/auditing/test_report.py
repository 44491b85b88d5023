"""`diffsketch audit`: what it selects, prints and writes, and its errors in one line."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from diffsketch.auditing import report
from diffsketch.auditing.cases import cases, select
from diffsketch.auditing.exploits import EXPLOITS
from diffsketch.auditing.releases import PLANTS, RELEASES, own_release
from diffsketch.auditing.report import run_suite
from tests.app.commands import invoke, plain, refused

WORDS = {"epsilon", "delta", "rounds", "basis", "unit", "relation", "trust", "simulated"}
EXACT = ({"epsilon", "how"}, "exact best attack")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The directory and the printed text of one short run."""
    directory = tmp_path_factory.mktemp("audit") / "new"
    words = "--plant reused-noise --case bare-known --case bare-client --case gaussian-local "
    words += "--case laplace --trials 2000 --confidence 0.999999"
    result = invoke("audit", "--output", directory, *words.split())
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
        "with 1 confidence", "bare-known", "gaussian-local", "reused", "contradicts", "nothing is",
        "public hashes, all else known", "client, replace, local", "probability at most 1e-06 in a",
        "Planted errors found: 2 of 2", "audit.json",
    ):  # fmt: skip
        assert text in printed, text


def test_json(run: tuple[Path, str]) -> None:
    data = json.loads((run[0] / "audit.json").read_text(encoding="utf-8"))
    verdicts = {each["case"]: each["verdict"] for each in data["audits"]}
    assert verdicts == {
        "bare-known": "contradicts the claim",
        "bare-client": "nothing is claimed",
        "gaussian-local": "consistent",
        "gaussian-local+reused-noise": "contradicts the claim",
        "laplace": "consistent",
        "laplace+reused-noise": "contradicts the claim",
    }
    found = epsilons(data)
    assert len(found) == 6 * 2 + 2
    for each in found:
        assert each["epsilon"] is None or isinstance(each["epsilon"], float)
        assert set(each) == WORDS or (set(each), each["how"]) == EXACT
    assert data["confidence_of_each_bound"] == 0.999999
    assert data["false_alarm_probability_of_this_run_at_most"] == pytest.approx(2e-6)
    (bare,) = (each for each in data["audits"] if each["case"] == "bare-known")
    assert bare["best_possible"]["epsilon"] is None
    (crowd,) = (each for each in data["audits"] if each["case"] == "bare-client")
    assert 0 < crowd["best_possible"]["epsilon"] < 100
    assert bare["judged"]["trials"] * 2 == bare["trials_per_world"] == 2000
    simulated = {each["case"]: each["simulated_noise"] for each in data["audits"]}
    assert not simulated["gaussian-local"]
    assert simulated["laplace+reused-noise"]  # the planted error is noise from a seed


def test_selection() -> None:
    everything, quick = select(), select(is_quick=True)
    assert set(cases()) == set(everything)
    assert set(quick) == {"bare-known", "bare-parity", *EXPLOITS, *RELEASES}
    chosen = select(names=["laplace"], plants=["small-noise", "no-clip"])
    assert list(chosen) == ["laplace", "laplace+small-noise", "laplace+no-clip"]
    sampled = ["gaussian-sampled", "gaussian-sampled+no-draw"]
    assert list(select(plants=["no-draw"])) == sampled
    own = own_release("gaussian", "clip=1 noise_multiplier=2", dim=5, cohort=1)
    assert list(select(release=own)) == ["gaussian"]
    chosen = select(release=own, plants=["small-noise", "row-blind"])
    assert list(chosen) == ["gaussian", "gaussian+small-noise"]


def test_own_method(tmp_path: Path) -> None:
    """A false alarm has probability at most 1e-6; the planted error is one that nobody misses."""
    result = invoke(
        *["audit", "--method", "sketch-gaussian", "--dim", "60", "--trials", "2000",
         "--settings", "rows=1 cols=30 clip=1.5 noise_multiplier=1", "--plant", "no-clip",
         "--confidence", "0.999999", "--output", str(tmp_path)],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    data = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))
    found = [(each["title"], each["verdict"]) for each in data["audits"]]
    title = "sketch-gaussian, 1 x 30 cells"
    assert found == [(title, "consistent"), (title, "contradicts the claim")]
    assert "standard deviation" in data["audits"][0]["claim"]


def test_quick_takes_half_and_progress_is_told() -> None:
    told: list[tuple[float, str]] = []
    makers = [cases()["bare-parity"]]
    found = run_suite(makers, quick=True, on_progress=lambda done, what: told.append((done, what)))
    assert found.results[0].trials == 2000
    shares = [done for done, _ in told]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert "bare-parity" in {what for _, what in told}


def test_80_columns_are_enough() -> None:
    """The widest cases, basis, verdict and planted errors, with nothing cut off."""
    names = ["bare-known", "sketch-gaussian-member-flag", "skellam-distributed"]
    selection = select(names=names, plants=["reused-noise", "small-noise"])
    simulated = replace(EXPLOITS["low-bits"](), name="simulated", simulated=True)
    suite = run_suite([*selection.values(), lambda: simulated], trials=100, confidence=0.9)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(*report.report(suite))
    printed = console.export_text()
    assert "…" not in printed
    assert max(map(len, printed.splitlines())) <= 80
    for result in suite.results:
        bound, stated = result.measured.lower_bound, result.claimed
        if result.case.planted is None:
            assert f">= {bound.shown()}" in printed
            assert stated.shown() in printed
        elif not result.is_wrong:  # an error that is missed has a row of its own
            name = result.case.name.partition("+")[0]
            assert re.search(rf"{name} +[│|] +[\d.]+ [│|] +{bound.shown(2)}\b", printed)
    assert re.search(r"^reused-noise .* 2 of 2", printed, re.M)
    assert "noise 20% too small" in printed
    for text in ("client, replace, distributed", "contradicts", "simulated noise: engines"):
        assert text in printed, text


def test_too_few_trials_are_blamed(tmp_path: Path) -> None:
    words = "--case laplace --plant small-noise --trials 100"
    printed = plain(invoke("audit", "--output", tmp_path, *words.split()).output)
    assert "Planted errors found: 0 of 1." in printed
    assert "100 trials may be too few to find laplace+small-noise" in printed


def test_files_are_written_all_or_none(tmp_path: Path) -> None:
    (tmp_path / "audit.png").mkdir()  # a file cannot take a directory's place
    arguments = ["--case", "bare-known", "--trials", "200", "--output", str(tmp_path)]
    result = invoke("audit", *arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert f"error: {tmp_path / 'audit.png'}: Is a directory" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["audit.png"]


def test_list_names_every_case_and_writes_nothing(tmp_path: Path) -> None:
    result = invoke("audit", "--list", "--output", tmp_path / "none")
    printed = plain(result.output)
    assert result.exit_code == 0
    assert not (tmp_path / "none").exists()
    for name in [*(name for name in cases() if "+" not in name), *PLANTS]:
        assert name in printed


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--case", "bare-know"], "got --case='bare-know'; did you mean bare-known"),
        (["--case", "x"], "one that diffsketch audit --list names, got --case='x'; see that list"),
        (["--plant", "nonsense"], "--plant must be one of float-noise"),
        (["--method", "nonsense"], "--method must be one of none, sketch"),
        (["--method", "sketch", "--settings", "rows"], "--settings must be name=value"),
        (["--settings", "rows=1"], "--settings must come with --method"),
        (["--case", "bare-known", "--trials", "5"], "--trials must be in 100..100000000"),
        (["--case", "bare-known", "--delta", "2"], "--delta must be in [0, 1)"),
    ],
)
def test_errors_are_one_line(tmp_path: Path, arguments: list[str], text: str) -> None:
    result = invoke("audit", "--output", tmp_path / "new", *arguments)
    assert text in refused(result)
    assert list(tmp_path.iterdir()) == []
