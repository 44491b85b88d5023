"""The README, documents and notebooks: they print what they say, links lead somewhere."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
import torch
import typer
from matplotlib import pyplot as plt

from diffsketch import PlanRequest, plan
from diffsketch.cli import app
from paper.__main__ import app as paper
from tests.helpers.documents import DOCUMENTS, ROOT, blocks, run_blocks
from tests.helpers.refusals import refused

SOURCE = ROOT / "src" / "diffsketch"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")]


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS)
def test_examples_run_and_print_what_they_say(
    document: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = blocks(document, flower=False)
    if not found:
        pytest.skip("all of its examples need Flower, and run with its tests")
    monkeypatch.chdir(tmp_path)
    run_blocks(document, found, monkeypatch)


def test_a_wrong_comment_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    refused(AssertionError, "planted", run_blocks, "planted", ["print(1 + 1)\n# 3\n"], monkeypatch)


def test_blocks_of_the_readme_stand_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    two = ["import math\n", "print(math.floor(2.5))\n# 2\n"]
    run_blocks("planted", two, monkeypatch)
    refused(NameError, "math", run_blocks, "README.md", two, monkeypatch)
    with pytest.raises(NameError, match="optimizer"):  # which other documents may speak of
        run_blocks("README.md", ["optimizer.step()\n"], monkeypatch)


def test_the_readme_has_the_plan_that_its_command_finds() -> None:
    wanted = PlanRequest(
        dim=7850, cohort=1000, rounds=10, target_epsilon=8.0, message_bytes=12_000, vector_norm=0.3
    )
    best, text = plan(wanted).best, " ".join(README.split())
    assert "--dim 7850 --workers 1000 --rounds 10 --epsilon 8 --bytes 12000 --norm 0.3" in text
    assert f'"{best.method.name}", settings' in text
    for name, value in best.settings.items():
        shown = f'"{value}"' if isinstance(value, str) else value
        assert f'"{name}": {shown}' in text or f'["{name}"] = {shown}' in text
    assert str(best.total) in text


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", *PAGES])
def test_commands_are_understood(document: str) -> None:
    """Each command of ours has arguments that its parser takes; scripts exist."""
    text = (ROOT / document).read_text(encoding="utf-8")
    found = "\n".join(re.findall(r"^```(?:sh|bash)\n(.*?)^```", text, flags=re.DOTALL | re.M))
    for line in found.replace("\\\n", " ").splitlines():
        if line.startswith("diffsketch "):
            parsed(shlex.split(line, comments=True)[1:])
        if line.startswith("python -m paper"):
            command: Any = typer.main.get_command(paper)
            command.make_context("paper", shlex.split(line, comments=True)[3:])
        for script in re.findall(r"(?<=python )\S+\.py", line):
            assert (ROOT / script).exists(), line


def parsed(words: list[str]) -> None:
    """Parse a command line as ours would be, and stop there."""
    group: Any = typer.main.get_command(app)
    context = group.context_class(group)
    name, command, rest = group.resolve_command(context, words)
    command.make_context(name, rest, parent=context)


def test_a_wrong_option_is_noticed() -> None:
    refused(Exception, "--cleap", parsed, ["run", "--cleap", "1"])


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "SECURITY.md", *PAGES])
def test_relative_links_exist(document: str) -> None:
    path = ROOT / document
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        assert "://" in link or (path.parent / link).exists(), link


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_map_names_what_exists() -> None:
    tree = README.split("## Map")[1].split("```")[1]
    names = re.findall(r"(?<=\s)[\w/]+(?:\.py|/)(?=\s)", tree)
    assert {"src/diffsketch/", "wire/", "cli.py", "docs/"} <= set(names)
    for name in names:
        assert (ROOT / name).exists() or any(SOURCE.rglob(name)), name


# -- Notebooks: committed with what they print and draw -------------------------------------------

FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def cells_of(name: str) -> list[dict[str, Any]]:
    """The code cells."""
    cells = json.loads((FOLDER / name).read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def texts_of(cells: list[dict[str, Any]]) -> str:
    """Texts that cells have printed."""
    return "".join("".join(out.get("text", "")) for cell in cells for out in cell["outputs"])


def check_committed(cells: list[dict[str, Any]]) -> None:
    """Raise unless cells were run once, in their order, without a warning, and drew pictures."""
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    kinds = {output.get("name", output["output_type"]) for output in outputs}
    assert kinds == {"stdout", "display_data"}, kinds
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
    assert not re.search(r"/(tmp|home|work|usr)/", texts_of(cells))


def run_cells(cells: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run cells in one namespace. Exact noise is new each time, and epsilons are the same."""
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
    names: dict[str, Any] = {"__name__": "__main__"}
    before = mpl.get_backend()
    plt.switch_backend("agg")
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed, torch.random.fork_rng([]):
            for cell in cells:
                exec("".join(cell["source"]), names)  # noqa: S102
    finally:
        plt.close("all")
        plt.switch_backend(before)
    wanted, found = (
        [line for line in text.splitlines() if "epsilon = " in line]
        for text in (texts_of(cells), printed.getvalue())
    )
    assert found == wanted


def test_there_are_seven_and_they_are_small() -> None:
    assert [name[0] for name in NOTEBOOKS] == list("1234567")
    assert sum((FOLDER / name).stat().st_size for name in NOTEBOOKS) < 1_200_000


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_is_committed_with_its_outputs(name: str) -> None:
    check_committed(cells_of(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_runs(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    run_cells(cells_of(name), monkeypatch)


def test_planted_errors_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    epsilon = {"output_type": "stream", "name": "stdout", "text": ["epsilon = 1\n"]}
    cell = {"source": ["print('epsilon = 2')"], "outputs": [epsilon], "execution_count": 1}
    refused(AssertionError, "epsilon = 1", run_cells, [cell], monkeypatch)
    with pytest.raises(ZeroDivisionError):
        run_cells([{**cell, "source": ["1 / 0"]}], monkeypatch)
    cells = cells_of(NOTEBOOKS[0])
    cells[1]["outputs"].append({"output_type": "error", "ename": "ValueError"})
    refused(AssertionError, "error", check_committed, cells)
    with pytest.raises(AssertionError):
        check_committed([{**one, "outputs": []} for one in cells])
