"""Drawings by name, imported when they are used: `diffsketch reproduce --list` needs none."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias, cast

from diffsketch.errors import ArgumentError
from diffsketch.experiments.experiment import Experiment
from diffsketch.experiments.jobs import Results
from diffsketch.run.settings import nearest

if TYPE_CHECKING:
    from diffsketch.experiments.drawings.drawn import Drawn

__all__ = ["DRAWINGS", "Draw", "drawing"]

Draw: TypeAlias = Callable[[Experiment, Results], "Drawn"]
"""From an experiment and the results of its jobs to what is shown; pure."""

DRAWINGS = {
    "curves": "curves:draw",
    "accuracy-compression": "compression:draw",
    "correction": "correction:draw",
    "privacy-communication": "privacy:draw_compression",
    "local-epsilon": "privacy:draw_histogram",
    "distributions": "distributions:draw",
    "datasets": "tables:draw_datasets",
    "cpsgd-parameters": "tables:draw_cpsgd",
    "convergence": "convergence:draw",
    "audit": "audits:draw",
}
"""By name: the module in this folder, and the function in it."""


def drawing(name: str) -> Draw:
    """The drawing of that name.

    Raises:
        ArgumentError: There is none.
    """
    if name not in DRAWINGS:
        raise ArgumentError(
            f"drawing must be the name of one, got drawing={name!r}; {nearest(name, DRAWINGS)}"
        )
    module, _, function = DRAWINGS[name].partition(":")
    found = getattr(import_module(f"diffsketch.experiments.drawings.{module}"), function)
    return cast(Draw, found)
