"""The notebooks: committed with what they print and draw, and they still do."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
import torch
from matplotlib import pyplot as plt

from tests.helpers.documents import ROOT
from tests.helpers.refusals import refused

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
