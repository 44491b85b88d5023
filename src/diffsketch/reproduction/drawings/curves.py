"""Accuracy over communication: the paper's figures of training runs, one plot a panel."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from diffsketch.pages.exhibits import Axis, Cell, Plot, Series, Table
from diffsketch.privacy.claim import Basis, Unit
from diffsketch.reproduction.drawings.drawn import Drawn, Fact
from diffsketch.reproduction.drawings.trained import (
    Point,
    Trained,
    at,
    mean_and_spread,
    panels_of,
    slug,
    trained,
)
from diffsketch.reproduction.experiment import Experiment
from diffsketch.reproduction.jobs import Results

__all__ = ["ACCURACY", "FAIR", "draw", "facts_of", "plot_of", "series_of", "table_of"]

ACCURACY = Axis("test accuracy", percent=True)
FAIR = (
    "Runs with one seed have the same first weights, mini-batches and devices, whatever their "
    "method."
)
_UPLOADS = Axis("uploads (rounds / ratio)", log=True)
_BYTES = Axis("bytes up and down", log=True)
_ROUNDS = Axis("rounds")
_SAME = 1.05  # times as many bytes are as many
_TARGET = 0.9  # of the uncompressed run's last accuracy, for `bytes-to`
_REPEATED = ("none", "diffsketch", "cpsgd")  # of the paper's: proven ones stand beside these
_PROVEN = ", proven"  # in the name of a variant; it has the colour of what it repairs
_COLUMNS = (
    "panel", "method", "accuracy", "± over seeds", "messages that needed noise", "message, bytes",
    "sent up and down, MB", "compression up", "epsilon of a round", "epsilon of the run", "outcome",
)  # fmt: skip


def draw(experiment: Experiment, results: Results) -> Drawn:
    """One plot a panel; beside the paper's methods, in further plots, those with proven privacy.

    Options: `ours` and `baseline` are the variants that the first sentence compares in each panel
    that has both; `subject` begins it.

    Guarantees (`tests/reproduction/test_curves.py`): facts and lines are means over the seeds; a
    run that diverges is marked, and its line ends where the first of its seeds did.

    Args:
        experiment: With variants; measurements are not drawn.
        results: Of all of its runs.
    """
    lines = trained(experiment, results)
    panels = panels_of(lines)
    exhibits: list[Plot | Table] = []
    proven: list[Plot | Table] = []
    for panel, members in panels.items():
        paper = [line for line in members if line.variant.group != "proven"]
        ours = [line for line in members if line.variant.group == "proven"]
        name = f"{experiment.name}-{slug(panel)}"
        if paper:
            exhibits.append(plot_of(name, panel, paper))
        if ours:
            repeated = [
                line
                for line in paper
                if line.variant.group == "paper" and line.config["method"] in _REPEATED
            ]
            title = f"{panel}, proven"
            proven.append(plot_of(f"{name}-proven", title, [*ours, *repeated], proven=True))
    exhibits.append(table_of(experiment, panels, proven=False))
    if proven:
        proven.append(table_of(experiment, panels, proven=True))
    return Drawn(
        lead=_lead(experiment, panels),
        exhibits=tuple(exhibits),
        proven=tuple(proven),
        text=(_reading(experiment),),
        facts=facts_of(experiment, panels),
    )


def plot_of(name: str, title: str, lines: Sequence[Trained], *, proven: bool = False) -> Plot:
    """Accuracy over communication, of some variants.

    Args:
        name: Of the plot.
        title: Above it.
        lines: What is drawn.
        proven: Whether it is one of those beside the paper's.
    """
    caption = _caption(lines)
    if proven:
        caption += " Solid lines have proven privacy; dashed ones a claim without proof, or none."
    return Plot(
        name=name,
        title=title,
        x=_UPLOADS,
        y=ACCURACY,
        series=tuple(series_of(line) for line in lines),
        caption=caption,
        other_x=(_BYTES, _ROUNDS),
    )


def series_of(line: Trained, *, name: str | None = None) -> Series:
    """The curve of a variant: its mean over the seeds, with the standard deviation as a band."""
    points, share = line.points, line.share
    epsilon, text = line.per_round
    notes = [f"{line.config['method']}, {_size(line)}"]
    if line.noised is not None:
        notes.append(f"noise needed in {line.noised:.1%} of the messages")
    low, high = _band(points)
    shown = line.name if name is None else name
    return Series(
        name=shown,
        x=tuple(point.round * share for point in points),
        y=tuple(point.accuracy for point in points),
        low=low,
        high=high,
        kind="band" if low else "line",
        dashed=epsilon.basis is not Basis.PROVEN,
        role="none" if line.config["method"] == "none" else shown.partition(_PROVEN)[0],
        epsilon=epsilon,
        epsilon_text=text,
        other_x={
            _BYTES.label: tuple(point.both for point in points),
            _ROUNDS.label: tuple(float(point.round) for point in points),
        },
        ended=line.ended,
        note="; ".join(notes),
    )


def table_of(experiment: Experiment, panels: dict[str, list[Trained]], *, proven: bool) -> Table:
    """A row for each variant of each panel: of the paper's and of ablations, or of proven ones."""
    rows = [
        _row(panel, line)
        for panel, lines in panels.items()
        for line in lines
        if (line.variant.group == "proven") is proven
    ]
    caption = (
        "Accuracy after the last round; ± is the standard deviation over the seeds. An epsilon of "
        "a round that is claimed has no proof and does not compose, so the run has none; one that "
        "is proven composes to that of the run. Megabytes are those of the messages with headers."
    )
    title = "With proven privacy" if proven else "All runs"
    name = f"{experiment.name}-{'proven' if proven else 'runs'}"
    return Table(name, title, _COLUMNS, tuple(rows), caption)


def facts_of(experiment: Experiment, panels: dict[str, list[Trained]]) -> dict[str, Fact]:
    """The numbers of all panels and variants, by name."""
    facts: dict[str, Fact] = {"seeds": experiment.seeds}
    for panel, lines in panels.items():
        whole = [line.accuracy for line in lines if line.config["method"] == "none"]
        target = _TARGET * whole[0] if whole and whole[0] is not None else None
        fewest = min(line.up for line in lines)
        facts[f"rounds/{panel}"] = max(line.points[-1].round for line in lines)
        facts[f"target/{panel}"] = target
        for line in lines:
            place = f"{panel}/{line.name}"
            padding = line.config.get("padding")
            facts |= {
                f"accuracy/{place}": line.accuracy,
                f"spread/{place}": line.spread,
                f"best/{place}": line.best,
                f"diverged/{place}": line.diverged,
                f"noised/{place}": line.noised,
                f"bytes/{place}": line.up,
                f"compression/{place}": line.compression,
                f"at-bytes/{place}": at(line.points, fewest),
                f"bytes-to/{place}": _bytes_to(line.points, target),
                f"seconds/{place}": line.seconds,
            }
            if padding is not None:
                facts[f"padding/{place}"] = padding / line.summaries[0]["dim"]
        facts |= _paired(experiment, panel, lines)
    return facts


def _paired(experiment: Experiment, panel: str, lines: Sequence[Trained]) -> dict[str, Fact]:
    """Differences of `ours`, in each of its readings, to the others of its panel, seed by seed.

    Mean and spread. A reading is a line whose name goes on from that of `ours`, without a comma.
    """
    facts: dict[str, Fact] = {}
    name = experiment.options.get("ours")
    readings = [line for line in lines if line.name == name or line.name.startswith(f"{name} ")]
    for ours, other in itertools.product(readings, lines):
        if other is ours:
            continue
        gaps = [a - b for a, b in zip(ours.accuracies, other.accuracies, strict=True)]
        mean, spread = mean_and_spread(gaps)
        place = f"{panel}/{ours.name} - {other.name}"
        facts |= {f"paired/{place}": mean, f"paired-spread/{place}": spread}
    return facts


def _row(panel: str, line: Trained) -> tuple[Cell, ...]:
    epsilon, _ = line.per_round
    whole = line.epsilon if epsilon.basis is Basis.PROVEN else None
    return (
        panel,
        line.name,
        _rounded(line.accuracy),
        _rounded(line.spread),
        _rounded(line.noised),
        int(line.summaries[0]["message_bytes"]),
        round(line.both / 1e6, 3),
        round(line.compression, 2),
        None if epsilon == whole else epsilon,  # of a client it is that of the run alone
        whole,
        line.ended or "finished",
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _size(line: Trained) -> str:
    config, share = line.config, line.share
    table = f"{config['rows']} x {config['cols']}, " if "rows" in config else ""
    return f"{table}{1 / share:.3g}x"


def _band(points: Sequence[Point]) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
    if any(point.spread is None for point in points):
        return (), ()
    spreads = [(point.accuracy, point.spread or 0.0) for point in points]
    low = tuple(max(0.0, mean - spread) for mean, spread in spreads)
    return low, tuple(min(1.0, mean + spread) for mean, spread in spreads)


def _bytes_to(points: Sequence[Point], target: float | None) -> float | None:
    """Bytes up at the first evaluation that reaches the target."""
    if target is None:
        return None
    return next((point.up for point in points if point.accuracy >= target), None)


def _caption(lines: Sequence[Trained]) -> str:
    seeds = max(len(line.runs) for line in lines)
    if seeds == 1:
        text = "One seed."
    else:
        text = f"Mean over {seeds} seeds; the band is the standard deviation over them."
    if any(line.stopped for line in lines) and seeds > 1:
        text += " A line ends with a cross where the first of its seeds diverged."
    return text


def _reading(experiment: Experiment) -> str:
    several = experiment.seeds > 1
    return (
        f"{FAIR} The first axis is the paper's: rounds divided by the ratio of the vector in "
        "32-bit floats to the message. The others are the bytes that were counted, of all "
        "workers, up and down and with headers, and rounds. The epsilon in the name of a panel is "
        "what the paper asks of one round; the legend says what that of each line is worth."
        + ("" if several else " Reduced: one seed, so there is no spread.")
    )


def _lead(experiment: Experiment, panels: dict[str, list[Trained]]) -> str:
    """What `ours` and `baseline` came to, and the best of the proven ones that send no more."""
    ours, baseline = experiment.options.get("ours"), experiment.options.get("baseline")
    parts: list[str] = []
    meanings: dict[str, None] = {}
    for panel, lines in panels.items():
        named = {line.name: line for line in lines}
        readings = [
            line
            for line in lines
            if line.variant.group == "paper" and f"{line.name} ".startswith(f"{ours} ")
        ]
        if not readings or baseline not in named:
            continue
        second = named[str(baseline)]
        shares = [
            f"{line.name.removeprefix(str(ours))} {_share(line)}".strip() for line in readings
        ]
        text = f"{panel}: {', '.join(shares)} against {_share(second)}"
        for who, line in ((ours, readings[0]), (baseline, second)):
            epsilon, _ = line.per_round
            meanings[f"{who}'s: {epsilon.basis_text}; {epsilon.scope}"] = None
        for top in _best_proven(lines, readings[0]):
            unit = top.epsilon.scope.unit
            text += f", proven for a {unit} {_share(top)} ({top.name.partition(_PROVEN)[0]})"
        parts.append(text)
    subject = experiment.options.get("subject", f"{ours} against {baseline}")
    lead = f"{subject}. {'; '.join(parts)}." if parts else ""
    if meanings:
        lead += f" Epsilons are of one round ({'. '.join(meanings)})."
    noised = [
        line.noised
        for lines in panels.values()
        for line in lines
        if line.name == ours and line.noised is not None
    ]
    if noised:
        low, high = f"{min(noised):.0%}", f"{max(noised):.0%}"
        span = low if low == high else f"{low} to {high}"
        lead += f" {ours} had to add noise to {span} of its messages."
    return lead


def _best_proven(lines: Sequence[Trained], ours: Trained) -> list[Trained]:
    """The most accurate with proven privacy that send no more, one for each unit."""
    found: dict[Unit, Trained] = {}
    for line in lines:
        epsilon = line.epsilon
        if epsilon.basis is not Basis.PROVEN or line.accuracy is None or line.up > _SAME * ours.up:
            continue
        known = found.setdefault(epsilon.scope.unit, line)
        if line.accuracy > (known.accuracy or 0.0):
            found[epsilon.scope.unit] = line
    return list(found.values())


def _share(line: Trained) -> str:
    if line.accuracy is None:
        return "diverged"
    text = f"{line.accuracy:.1%}"
    return f"{text} ({line.ended})" if line.ended else text
