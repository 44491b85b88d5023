"""The paper's error correction beside its control: what is learnt from the masks alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from diffsketch.pages.exhibits import Axis, Plot, Series, Table
from diffsketch.reproduction.drawings.curves import (
    ACCURACY,
    FAIR,
    facts_of,
    series_of,
    table_of,
)
from diffsketch.reproduction.drawings.drawn import Drawn, Fact
from diffsketch.reproduction.drawings.measured import Measured
from diffsketch.reproduction.drawings.trained import (
    Trained,
    mean_and_spread,
    panels_of,
    points_of,
    slug,
    trained,
)
from diffsketch.reproduction.experiment import Experiment
from diffsketch.reproduction.jobs import Results
from diffsketch.training.rounds import mask_bytes

__all__ = ["draw"]

_ROUNDS = Axis("rounds")
_BYTES = Axis("bytes up and down, with masks", log=True)
_CONTROL = "control"


def draw(experiment: Experiment, results: Results) -> Drawn:
    """A plot for each panel, each with the controls; what a mask costs; and what the facts are.

    Guarantees (`tests/reproduction/test_correction.py`): the lead compares the control with the
    sketch by their numbers; bytes are those that were counted.

    Args:
        experiment: With variants, and measurements of the kind `masks`.
        results: Of all of its jobs.
    """
    panels = panels_of(trained(experiment, results))
    controls = Measured.all_of(experiment, results)
    shown = tuple(_control_series(control) for control in controls)
    plots = [_plot(experiment, name, own, shown) for name, own in panels.items()]
    facts = facts_of(experiment, panels) | _facts(controls) | _sizes(panels)
    table = table_of(experiment, panels, proven=False)
    return Drawn(
        lead=_lead(panels, controls, facts),
        exhibits=(*plots, _control_table(experiment, controls), table),
        text=(
            f"{FAIR} The controls have them too, with fresh hashes, and replace the sum that the "
            "server publishes by Gaussian noise of the same norm: nothing of the data is in it but "
            "that norm. With shared masks workers send one bit a coordinate, computed from their "
            "raw gradients; no claim about the messages covers them.",
        ),
        facts=facts,
    )


def _plot(
    experiment: Experiment, panel: str, lines: list[Trained], controls: tuple[Series, ...]
) -> Plot:
    """Over rounds first: masks are not in the paper's count of bytes."""
    spread = "; bands are standard deviations over the seeds" if experiment.seeds > 1 else ""
    return Plot(
        name=f"{experiment.name}-{slug(panel)}",
        title=f"{panel[:1].upper()}{panel[1:]}, and noise instead of the sketch",
        x=_ROUNDS,
        y=ACCURACY,
        series=(*(_over_rounds(line) for line in lines), *controls),
        caption=f"What the masks teach without any sketch{spread}. Where models drift apart, the "
        "accuracy is the mean of the workers'.",
        other_x=(_BYTES,),
    )


def _over_rounds(line: Trained) -> Series:
    """The line of the other figures, over the axes of this one."""
    return replace(
        series_of(line),
        x=tuple(float(point.round) for point in line.points),
        other_x={_BYTES.label: tuple(point.both for point in line.points)},
    )


def _control_series(control: Measured) -> Series:
    points = points_of([run["curve"] for run in control.found])
    several = all(point.spread is not None for point in points)
    return Series(
        name=control.name,
        x=tuple(float(point.round) for point in points),
        y=tuple(point.accuracy for point in points),
        low=tuple(point.accuracy - (point.spread or 0.0) for point in points) if several else (),
        high=tuple(point.accuracy + (point.spread or 0.0) for point in points) if several else (),
        kind="band" if several else "line",
        other_x={_BYTES.label: tuple(point.both for point in points)},
        note="what the server publishes is noise of the sum's norm",
    )


def _control_table(experiment: Experiment, controls: Sequence[Measured]) -> Table:
    rows = []
    for control in controls:
        runs = control.found
        accuracy, spread = mean_and_spread([run["accuracy"] for run in runs])
        drifts = [run["curve"][-1].get("drift") for run in runs]
        drift = None if None in drifts else round(mean_and_spread(drifts)[0], 3)
        rows.append(
            (
                control.name,
                round(accuracy, 4),
                None if spread is None else round(spread, 4),
                int(control.first["message_bytes"]),
                int(control.first["mask_bytes"]),
                drift,
            )
        )
    columns = ("control", "accuracy", "± over seeds", "message, bytes", "mask, bytes", "drift")
    caption = (
        "Messages and masks of one worker in a round, with headers. Drift is the distance of the "
        "workers' models from their mean, over its norm."
    )
    name, title = f"{experiment.name}-controls", "Noise instead of the sketch"
    return Table(name, title, columns, tuple(rows), caption)


def _facts(controls: Sequence[Measured]) -> dict[str, Fact]:
    facts: dict[str, Fact] = {}
    for control in controls:
        mean, spread = mean_and_spread([run["accuracy"] for run in control.found])
        place = f"{_CONTROL}/{control.name}"
        facts |= {f"accuracy/{place}": mean, f"spread/{place}": spread}
    return facts


def _sizes(panels: Mapping[str, list[Trained]]) -> dict[str, Fact]:
    """Bytes of one worker's mask, and of its sketch."""
    line = next(iter(panels.values()))[0]
    own, _ = mask_bytes(line.summaries[0]["dim"], line.config["workers"])
    return {"mask-bytes": own, "sketch-bytes": line.summaries[0]["message_bytes"]}


def _lead(
    panels: Mapping[str, list[Trained]],
    controls: Sequence[Measured],
    facts: Mapping[str, Fact],
) -> str:
    """What the masks do to each panel, and what they do alone."""
    parts = []
    for panel, lines in panels.items():
        known = {line.config["correction"]: line for line in lines}
        if "off" in known and "shared" in known:
            off, shared = _share(known["off"].accuracy), _share(known["shared"].accuracy)
            parts.append(f"With {panel}, shared masks take the sketch from {off} to {shared}.")
    for control in controls:
        accuracy = mean_and_spread([run["accuracy"] for run in control.found])[0]
        parts.append(f"{control.name[:1].upper()}{control.name[1:]}: {_share(accuracy)}.")
    parts.append(
        f"A mask takes {facts['mask-bytes']:,} bytes, the sketch {facts['sketch-bytes']:,}."
    )
    return " ".join(parts)


def _share(value: float | None) -> str:
    return "divergence" if value is None else f"{value:.1%}"
