"""Experiments that take a second, for tests: a folder of settings, a measurement, a drawing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from diffsketch.pages.exhibits import Table
from paper.experiments import DRAWINGS, MEASUREMENTS, Experiment, Results
from paper.figures import Figure

HEAD = 'title = "Tiny"\nplace = "Figure 0"\nsays = "It is small."\ndrawing = "tiny"\n'
COMMON = (
    "[common]\nworkers = 3\nsamples = 20\nrounds = 6\nevaluate_every = 2\ncheckpoint_seconds = 0\n"
)
RUNS = """
[[run]]
name = "plain"
panels = ["a", "b"]
method = "none"

[[run]]
name = "sketch"
panels = ["a"]
group = "ablation"
method = "sketch"
rows = 3
cols = 22
"""
MEASURE = '\n[[measure]]\nname = "sum"\nkind = "tiny"\nseeds = 1\nsettings = { numbers = [1, 2] }\n'
RUN_STEPS = 2 * 2 * 6  # variants, seeds, rounds


def write(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.toml").write_text(text, encoding="utf-8")


def both(folder: Path) -> Path:
    """Two experiments that share all training runs; the second measures something, too."""
    write(folder, "one", f"{HEAD}seeds = 2\n{COMMON}{RUNS}")
    write(folder, "two", f"{HEAD}seeds = 2\n{COMMON}{RUNS}{MEASURE}")
    return folder


def draw(experiment: Experiment, results: Results) -> Figure:
    runs = [(one, job) for one in experiment.variants for job in experiment.jobs_of(one)]
    measured = [job for one in experiment.measurements for job in experiment.jobs_of(one)]
    rows = [(one.name, job.seed, results[job]["summary"]["accuracy"]) for one, job in runs]
    rows += [(job.kind, job.seed, results[job]["sum"]) for job in measured]
    table = Table(f"{experiment.name}-all", "All", ("name", "seed", "value"), tuple(rows))
    proven = Table(f"{experiment.name}-true", "Proven", ("name",), (("nothing",),))
    facts = {f"value/{name}/{seed}": value for name, seed, value in rows}
    return Figure((table,), (proven,), ("Small it is.",), {**facts, "most": float("inf")})


def measure(
    settings: Mapping[str, Any], *, seed: int, on_progress: Callable[[float], None]
) -> dict[str, Any]:
    on_progress(0.5)
    return {"sum": sum(settings["numbers"]) + seed}


def register(patch: pytest.MonkeyPatch, **functions: Callable[..., Any]) -> None:
    """Make the drawing and the measurement known, in this process; or others in their place."""
    patch.setitem(DRAWINGS, "tiny", f"{__name__}:draw")
    patch.setitem(MEASUREMENTS, "tiny", f"{__name__}:measure")
    for name, function in functions.items():
        patch.setattr(f"{__name__}.{name}", function)
