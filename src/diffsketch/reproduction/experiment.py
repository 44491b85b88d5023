"""An experiment: one figure or table of the paper, as its settings file has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from diffsketch.app.settings import Value
from diffsketch.reproduction.jobs import Job

__all__ = ["Deviation", "Experiment", "Measurement", "Variant"]


@dataclass(frozen=True)
class Deviation:
    """Where an experiment is not as in the paper.

    Attributes:
        what: Is done otherwise.
        why: It is.
    """

    what: str
    why: str


@dataclass(frozen=True)
class Variant:
    """Training runs of one line of a figure: the same settings with every seed.

    Attributes:
        name: For the legend; different from the others' in its panel.
        panel: The plot that it belongs to, such as "50x, epsilon 1"; several, if it is drawn in
            all of them.
        settings: Of `diffsketch run`, without the seed.
        group: "paper" for what the paper compares, "proven" for what we set beside it,
            "ablation" for the rest.
    """

    name: str
    panels: tuple[str, ...]
    settings: Mapping[str, Value]
    group: str = "paper"


@dataclass(frozen=True)
class Measurement:
    """Something measured that is no training run with the same settings for each seed.

    Attributes:
        name: Within the experiment.
        kind: Of `diffsketch.reproduction.measurements`.
        settings: That it takes, without the seed.
        seeds: How many; the experiment's number if None.
    """

    name: str
    kind: str
    settings: Mapping[str, Value]
    seeds: int | None = None


@dataclass(frozen=True)
class Experiment:
    """What a settings file says.

    Attributes:
        name: Of the file, and on the command line.
        title: For the page.
        place: In the paper, such as "Figure 3".
        says: What the paper reads from it.
        drawing: Which of `diffsketch.reproduction.drawings` draws it.
        paper: The paper's values by name, "not given" where it has none.
        deviations: Of ours.
        seeds: How many.
        variants: Training runs.
        measurements: Others.
        options: For the drawing.
        reduced: Whether it was read for `--quick`.
    """

    name: str
    title: str
    place: str
    says: str
    drawing: str
    paper: Mapping[str, str]
    deviations: tuple[Deviation, ...] = ()
    seeds: int = 5
    variants: tuple[Variant, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    options: Mapping[str, Value] = field(default_factory=dict)
    reduced: bool = False

    def runs(self, variant: Variant) -> tuple[Job, ...]:
        """The jobs of a variant, one for each seed."""
        return tuple(Job("run", variant.settings, seed) for seed in range(self.seeds))

    def measured(self, measurement: Measurement) -> tuple[Job, ...]:
        """The jobs of a measurement, one for each seed."""
        count = self.seeds if measurement.seeds is None else measurement.seeds
        return tuple(Job(measurement.kind, measurement.settings, seed) for seed in range(count))

    @property
    def jobs(self) -> tuple[Job, ...]:
        """All of them, each once."""
        runs = [job for variant in self.variants for job in self.runs(variant)]
        others = [job for item in self.measurements for job in self.measured(item)]
        return tuple(dict.fromkeys([*runs, *others]))
