"""Runs that several tests of reports look at. None of them changes anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.commands import interrupted_in_round, invoke
from tests.pages.runs_sample import SCRIPT, SMALL


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison with two seeds: no claim, a claim, a proof, a run that diverges, an odd name."""
    here = tmp_path_factory.mktemp("compared")
    (here / "all.toml").write_text(
        '[[run]]\nname = "plain"\nmethod = "none"\n'
        f'[[run]]\nname = "{SCRIPT}"\nmethod = "sketch"\nrows = 2\ncols = 30\n'
        '[[run]]\nmethod = "diffsketch"\nrows = 2\ncols = 30\n'
        '[[run]]\nname = "gauss"\nmethod = "sketch-gaussian"\nclip = 1.0\nnoise_multiplier = 5.0\n'
        'rows = 2\ncols = 30\nbudget = 9.0\n'
        '[[run]]\nname = "hot"\nmethod = "none"\nlearning_rate = 1e38\n'
    )  # fmt: skip
    out = here / "out"
    arguments: list[str | Path] = ["--config", here / "all.toml", "--seeds", "2", "--output", out]
    assert invoke("compare", *SMALL, *arguments).exit_code == 0
    return out


@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted after 3 of 4 rounds."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    with interrupted_in_round(3):
        result = invoke("run", *SMALL, "--method", "none", "--output", path)
    assert result.exit_code == 130, result.output
    return path
