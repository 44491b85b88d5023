"""Drawings by name, imported when they are used: `diffsketch reproduce --list` needs none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, cast

from diffsketch.reproduction.experiment import Experiment
from diffsketch.reproduction.importing import imported
from diffsketch.reproduction.jobs import Results

if TYPE_CHECKING:
    from diffsketch.reproduction.drawings.drawn import Drawn

__all__ = ["DRAWINGS", "Draw", "drawing"]

Draw: TypeAlias = Callable[[Experiment, Results], "Drawn"]
"""From an experiment and the results of its jobs to what is shown; pure."""

DRAWINGS = {
    "curves": "curves:draw",
    "accuracy-compression": "compression:draw",
    "correction": "correction:draw",
    "privacy-communication": "privacy_communication:draw",
    "local-epsilon": "local_epsilon:draw",
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
    found = imported(
        name,
        DRAWINGS,
        package="diffsketch.reproduction.drawings",
        argument="drawing",
        condition="be the name of one",
    )
    return cast(Draw, found)
