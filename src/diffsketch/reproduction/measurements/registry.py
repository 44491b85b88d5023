"""Measurements by name, imported when they are used: `diffsketch reproduce --list` needs none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from diffsketch.reproduction.importing import imported

__all__ = ["MEASUREMENTS", "Measure", "measurement"]


class Measure(Protocol):
    """Measures something."""

    def __call__(
        self, settings: Mapping[str, Any], *, seed: int, on_progress: Callable[[float], None]
    ) -> Mapping[str, Any]:
        """What was measured, for JSON.

        Args:
            settings: Of the settings file.
            seed: Fixes all random numbers.
            on_progress: Told the share that is done; may raise to interrupt.
        """


MEASUREMENTS = {
    "distributions": "distributions:measure",
    "local-epsilon": "local_epsilon:measure",
    "datasets": "datasets:measure",
    "cpsgd-parameters": "cpsgd_parameters:measure",
    "convergence": "convergence:measure",
    "audit": "audits:measure",
    "masks": "masks:measure",
}
"""By name: the module in this folder, and the function in it."""


def measurement(name: str) -> Measure:
    """The measurement of that name.

    Raises:
        ArgumentError: There is none.
    """
    found = imported(
        name,
        MEASUREMENTS,
        package="diffsketch.reproduction.measurements",
        argument="kind",
        condition="be the name of a measurement",
    )
    return cast(Measure, found)
