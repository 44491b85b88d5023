"""Accuracy against compression: the paper's trade-off, as curves and as accuracies by ratio."""

from __future__ import annotations

from collections.abc import Sequence

from diffsketch.pages.exhibits import Axis, Mark, Plot, Series
from diffsketch.reproduction.drawings.curves import (
    ACCURACY,
    FAIR,
    facts_of,
    plot_of,
    table_of,
)
from diffsketch.reproduction.drawings.drawn import Drawn
from diffsketch.reproduction.drawings.trained import Trained, panels_of, slug, trained
from diffsketch.reproduction.experiment import Experiment
from diffsketch.reproduction.jobs import Results

__all__ = ["draw"]

_RATIO = Axis("compression ratio: vector in 32-bit floats over message", log=True)
_NONE = "none"


def draw(experiment: Experiment, results: Results) -> Drawn:
    """For each panel the curves of all ratios, and over all panels of a task the last accuracies.

    A panel is named `TASK, METHOD`; its variants are named by their ratios, and one whose method
    is `none` is the reference.

    Guarantees (`tests/reproduction/test_compression.py`): ratios are those of the messages,
    whatever a variant is called; the lead says where accuracy falls.

    Args:
        experiment: With variants.
        results: Of all of its runs.
    """
    panels = panels_of(trained(experiment, results))
    plots = [plot_of(f"{experiment.name}-{slug(name)}", name, own) for name, own in panels.items()]
    tasks: dict[str, list[str]] = {}
    for panel in panels:
        tasks.setdefault(panel.partition(",")[0], []).append(panel)
    finals = [
        _final(experiment, task, {name: panels[name] for name in names})
        for task, names in tasks.items()
    ]
    return Drawn(
        lead=_lead(panels),
        exhibits=(*plots, *finals, table_of(experiment, panels, proven=False)),
        text=(FAIR,),
        facts=facts_of(experiment, panels),
    )


def _final(experiment: Experiment, task: str, panels: dict[str, list[Trained]]) -> Plot:
    """The last accuracy over the ratio, a line for each panel of a task."""
    series = []
    for panel, lines in panels.items():
        known = sorted(_compressed(lines), key=lambda line: 1 / line.share)
        series.append(_by_ratio(panel.partition(", ")[2] or panel, known))
    whole = [line for lines in panels.values() for line in lines if _whole(line)]
    marks = [Mark(line.accuracy, "uncompressed") for line in whole[:1] if line.accuracy is not None]
    seeds = experiment.seeds
    spread = f", with the standard deviation over {seeds} seeds" if seeds > 1 else ""
    return Plot(
        name=f"{experiment.name}-{slug(task)}-final",
        title=f"{task}: accuracy after the last round",
        x=_RATIO,
        y=ACCURACY,
        series=tuple(series),
        caption=f"After the same number of rounds{spread}.",
        marks=tuple(marks),
    )


def _by_ratio(name: str, lines: Sequence[Trained]) -> Series:
    shown = [(line, line.accuracy) for line in lines]
    several = all(line.spread is not None for line, value in shown if value is not None)
    low = tuple(None if y is None else y - (line.spread or 0.0) for line, y in shown)
    high = tuple(None if y is None else y + (line.spread or 0.0) for line, y in shown)
    epsilon, text = lines[0].per_round
    ended = "; ".join(f"{line.name}: {line.ended}" for line in lines if line.ended)
    return Series(
        name=name,
        x=tuple(1 / line.share for line in lines),
        y=tuple(value for _, value in shown),
        low=low if several else (),
        high=high if several else (),
        kind="band" if several else "line",
        dashed=True,  # nothing here is proven
        epsilon=epsilon,
        epsilon_text=text,
        note=ended,
    )


def _lead(panels: dict[str, list[Trained]]) -> str:
    """From the least compressed to the most, for each panel."""
    parts = []
    for panel, lines in panels.items():
        known = sorted(_compressed(lines), key=lambda line: 1 / line.share)
        texts = [f"{line.name} {_share(line)}" for line in known]
        whole = next((line for line in lines if _whole(line)), None)
        if whole is not None:
            texts.append(f"uncompressed {_share(whole)}")
        parts.append(f"{panel}: {', '.join(texts)}")
    return "Accuracy after the last round. " + "; ".join(parts) + "."


def _share(line: Trained) -> str:
    return "diverged" if line.accuracy is None else f"{line.accuracy:.1%}"


def _compressed(lines: Sequence[Trained]) -> list[Trained]:
    return [line for line in lines if not _whole(line)]


def _whole(line: Trained) -> bool:
    return bool(line.config["method"] == _NONE)
