"""The figures of training runs: accuracy over communication, by compression, with correction."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scipy.optimize import brentq

from diffsketch.app.run_records import RunLine, RunRecord
from diffsketch.app.settings import RunConfig
from diffsketch.pages.exhibits import Axis, Exhibit, Mark, Plot, Series
from diffsketch.privacy.accounting.events import gaussian_epsilon
from diffsketch.privacy.claim import Basis, Epsilon, Unit
from diffsketch.training.rounds import mask_bytes
from diffsketch.wire.formats import payload_within
from paper.experiments import Experiment, PanelFields, Results, Variant
from paper.figures import (
    Fact,
    Figure,
    Rows,
    banded,
    mean_and_spread,
    mean_or_none,
    measured_of,
    name_of,
    plot,
    slug,
    table,
    texts,
)

_ACCURACY = Axis("test accuracy", percent=True)
_UPLOADS = Axis("uploads (rounds / ratio)", log=True)
_BYTES = Axis("bytes up and down", log=True, unit="B")
_BYTES_WITH_MASKS = Axis("bytes up and down, with masks", log=True, unit="B")
_ROUNDS = Axis("rounds")
_FAIR = (
    "Runs with one seed have the same first weights, mini-batches and devices, whatever their "
    "method."
)
_SAME = 1.05  # times as many bytes are as many
_TARGET = 0.9  # of the uncompressed run's last accuracy, for `bytes-to`
_REPEATED = ("none", "diffsketch", "cpsgd")  # of the paper's: proven ones stand beside these


@dataclass(frozen=True)
class CurvePoint:
    """A place on a curve: the model after some round, as means over the seeds."""

    round: int  # rounds that were done
    accuracy: float  # mean over the seeds
    spread: float | None  # standard deviation over the seeds; None for a single one
    up: float  # bytes that all workers sent by then, headers included
    both: float  # bytes up and down


class TrainedLine:
    """The runs of a variant, one for each seed, and their means."""

    def __init__(self, variant: Variant, runs: Sequence[Mapping[str, Any]]) -> None:
        self.variant, self.name = variant, variant.name
        self.summaries: list[Mapping[str, Any]] = [run["summary"] for run in runs]
        count, first, line = len(runs), self.summaries[0], line_of(runs)
        self.config: Mapping[str, Any] = first["config"]  # with settings that were not given
        self.method = str(self.config["method"])
        self.points = points_of(line)
        # After the last round; of a run that diverged, before it did.
        self.accuracies = line.values("accuracy")
        stopped = line.outcomes["diverged"]
        self.accuracy, self.spread = line.mean("accuracy"), line.spread
        if stopped == count:
            self.accuracy = self.spread = None
        # Those that stopped, or ended worse than they began and than they had been.
        worse = sum(one["diverging"] and one["outcome"] != "diverged" for one in self.summaries)
        self.diverged, spent = stopped + worse, line.outcomes["out of budget"]
        ends = {"diverged": stopped, "diverging": worse, "out of budget": spent}
        self.ended = ", ".join(
            word if number == count == 1 else f"{number} of {count} seeds {word}"
            for word, number in ends.items()
            if number
        )
        # Share of the messages that needed noise, for those that Theorem 1 validates.
        self.noised = mean_or_none([one["noised_share"] for one in self.summaries])
        # Bytes of all workers in a run, headers included.
        self.up = line.mean("bytes_up") or 0.0
        self.both = line.mean(lambda run: run.value("bytes_up") + run.value("bytes_down")) or 0.0
        self.compression = line.compression("up") or 0.0
        # Message over vector in float32: the paper's ratio, without any header.
        self.share = payload_within(first["message_bytes"]) / (4 * first["dim"])
        self.seconds = line.seconds  # of a round

    @property
    def role(self) -> str:
        """Name that decides the colour: a proven line has that of the method which it repairs."""
        of = self.variant
        parts = (name_of(of.method), of.reading) if of.group == "proven" else (of.name,)
        return ", ".join(filter(None, parts))

    @property
    def shown(self) -> str:
        """The accuracy as a text."""
        return "diverged" if self.accuracy is None else f"{self.accuracy:.1%}"

    @property
    def epsilon(self) -> Epsilon:
        """The epsilon of the run that cost most: of all its rounds if proven, of one if claimed."""
        every = [(Epsilon.from_json(one["epsilon"]), one["rounds"]) for one in self.summaries]
        most, rounds = max(every, key=lambda each: float(each[0]))
        once = most.rounds == 1 and most.scope.unit is not Unit.COORDINATE
        # Of devices that send once in a run: it is that of the run, and not "per round".
        return replace(most, rounds=rounds) if most.basis is Basis.PROVEN and once else most

    @property
    def per_round(self) -> tuple[Epsilon, str]:
        """The epsilon that one message guarantees or claims, and its value as a text.

        For what is proven about a client it is the epsilon of the whole run, without a text: the
        run is what such a number is for. For appended noise, whose guarantee depends on the
        hashes, it is that of a round which, repeated, costs what the run did.
        """
        epsilon, given = self.epsilon, self.config.get("per_round")
        if epsilon.basis is Basis.NONE:
            return epsilon, ""
        if epsilon.basis is Basis.CLAIMED and given is not None:
            # Theorem 1 and the paper's Laplace noise claim it without the delta that runs ask at.
            epsilon = replace(epsilon, delta=0.0)
        if epsilon.basis is Basis.PROVEN:
            if epsilon.scope.unit is not Unit.COORDINATE:
                return epsilon, ""
            if given is None:
                epsilon = _round_of(epsilon)
                at = f"{epsilon.shown()} a round at delta {epsilon.delta:g}"
                return epsilon, f"{at}, on average"
            epsilon = replace(epsilon, value=float(given), delta=0.0, rounds=1)
        return epsilon, f"{epsilon.shown()} a round"


def panels_of(experiment: Experiment, results: Results) -> dict[str, list[TrainedLine]]:
    """The lines by the panels that they are drawn in, in their order."""
    panels: dict[str, list[TrainedLine]] = {}
    for variant in experiment.variants:
        line = TrainedLine(variant, [results[job] for job in experiment.jobs_of(variant)])
        for panel in variant.panels:
            panels.setdefault(panel, []).append(line)
    return panels


def line_of(runs: Sequence[Mapping[str, Any]]) -> RunLine:
    """The runs of several seeds, as the library averages them."""
    nowhere = Path()
    return RunLine("", tuple(
        RunRecord(nowhere, RunConfig(), run.get("summary"), run["curve"], run.get("times", {}))
        for run in runs
    ))  # fmt: skip


def points_of(line: RunLine) -> tuple[CurvePoint, ...]:
    """Means of measurements after the rounds that all curves have, without round 0.

    If they have none in common, since one stopped at once, there is one point: of their last ones.
    """
    columns = [column for index, column in line.columns(hold=False).items() if index > 0]
    points = []
    for records in columns or [[run.curve[-1] for run in line.runs]]:
        accuracy, spread = mean_and_spread([one["accuracy"] for one in records])
        up, down = (
            statistics.fmean(one[way] for one in records) for way in ("bytes_up", "bytes_down")
        )
        first = min(one["round"] for one in records)
        points.append(CurvePoint(first, accuracy, spread, up, up + down))
    return tuple(points)


def accuracy_at(points: Sequence[CurvePoint], up: float) -> float | None:
    """The accuracy after so many bytes up, between evaluations in a straight line.

    None before the first evaluation; after the last one, that of the last.
    """
    if not points or up < points[0].up:
        return None
    for before, after in itertools.pairwise(points):
        if up <= after.up:
            sent = after.up - before.up
            part = (up - before.up) / sent if sent else 0.0
            return before.accuracy + part * (after.accuracy - before.accuracy)
    return points[-1].accuracy


def _round_of(total: Epsilon) -> Epsilon:
    """The epsilon of one of `rounds` equal releases with Gaussian noise that together have this."""
    value, delta = float(total), total.delta

    def excess(shift: float) -> float:
        return gaussian_epsilon(shift, delta) - value

    if value == 0 or math.isinf(value):
        return total
    most = 1.0
    while excess(most) < 0:
        most *= 2
    shift = float(brentq(excess, 0.0, most, xtol=1e-12)) / math.sqrt(total.rounds)
    return replace(total, value=gaussian_epsilon(shift, delta), rounds=1)


# --- accuracy over communication -------------------------------------------------------------


def draw_curves(experiment: Experiment, results: Results) -> Figure:
    """One plot a panel; beside the paper's methods, in further plots, those with proven privacy.

    Options: `ours` and `baseline` are the variants that the first sentence compares in each panel
    that has both; `subject` begins it.

    Guarantees (`paper/tests/test_figures_trained.py`): facts and lines are means over the
    seeds; a run that diverges is marked, and its line ends where the first of its seeds did.
    """
    panels = panels_of(experiment, results)
    exhibits: list[Exhibit] = []
    proven: list[Exhibit] = []
    for panel, lines in panels.items():
        ours, paper = _by_group(lines, proven=True), _by_group(lines, proven=False)
        name = f"{experiment.name}-{slug(panel)}"
        if paper:
            exhibits.append(_curves(name, panel, paper))
        if ours:
            repeated = [
                line for line in paper if line.variant.group == "paper" and line.method in _REPEATED
            ]
            beside = _curves(f"{name}-proven", f"{panel}, proven", [*ours, *repeated])
            dashes = "Solid lines have proven privacy; dashed ones a claim without proof, or none."
            proven.append(replace(beside, caption=f"{beside.caption} {dashes}"))
    exhibits.append(_runs_table(experiment, panels, proven=False))
    if proven:
        proven.append(_runs_table(experiment, panels, proven=True))
    reduced = "" if experiment.seeds > 1 else " Reduced: one seed, so there is no spread."
    return Figure(
        lead=_lead(experiment, panels),
        exhibits=tuple(exhibits),
        proven=tuple(proven),
        text=(texts()["curves"]["text"].format(fair=_FAIR, reduced=reduced),),
        facts=facts_of(experiment, panels),
    )


def _by_group(lines: Sequence[TrainedLine], *, proven: bool) -> list[TrainedLine]:
    """The proven ones, or those of the paper and of ablations."""
    return [line for line in lines if (line.variant.group == "proven") is proven]


def _curves(name: str, title: str, lines: Sequence[TrainedLine]) -> Plot:
    """Accuracy over communication, of some variants."""
    seeds = max(len(line.summaries) for line in lines)
    caption = f"Mean over {seeds} seeds; the band is the standard deviation over them."
    if seeds == 1:
        caption = "One seed."
    elif any(one["outcome"] == "diverged" for line in lines for one in line.summaries):
        caption += " A line ends with a cross where the first of its seeds diverged."
    series = tuple(_curve(line) for line in lines)
    axes = (_BYTES, _ROUNDS)
    return Plot(name, title, _UPLOADS, _ACCURACY, series, caption=caption, other_x=axes)


def _curve(line: TrainedLine) -> Series:
    """The curve of a variant: its mean over the seeds, with the standard deviation as a band."""
    points, config = line.points, line.config
    epsilon, text = line.per_round
    size = f"{config['rows']} x {config['cols']}, " if "rows" in config else ""
    note = f"{line.method}, {size}{1 / line.share:.3g}x"
    if line.noised is not None:
        note += f"; noise needed in {line.noised:.1%} of the messages"
    return Series(
        name=line.name,
        x=tuple(point.round * line.share for point in points),
        **banded((point.accuracy, point.spread) for point in points),
        dashed=epsilon.basis is not Basis.PROVEN,
        role="none" if line.method == "none" else line.role,
        epsilon=epsilon,
        epsilon_text=text,
        other_x={
            _BYTES.label: tuple(point.both for point in points),
            _ROUNDS.label: tuple(float(point.round) for point in points),
        },
        ended=line.ended,
        note=note,
    )


def _runs_table(
    experiment: Experiment, panels: Mapping[str, list[TrainedLine]], *, proven: bool
) -> Exhibit:
    """A row for each variant of each panel: of the paper's and of ablations, or of proven ones."""
    rows: Rows = []
    for panel, lines in panels.items():
        for line in _by_group(lines, proven=proven):
            epsilon, _ = line.per_round
            whole = line.epsilon if epsilon.basis is Basis.PROVEN else None
            shares = (line.accuracy, line.spread, line.noised)
            rows.append(
                (
                    panel,
                    line.name,
                    *(None if one is None else round(one, 4) for one in shares),
                    int(line.summaries[0]["message_bytes"]),
                    round(line.both / 1e6, 3),
                    round(line.compression, 2),
                    None if epsilon == whole else epsilon,  # of a client it is that of the run
                    whole,
                    line.ended or "finished",
                )
            )
    title = "With proven privacy" if proven else "All runs"
    name = f"{experiment.name}-{'proven' if proven else 'runs'}"
    return table("runs", name, rows, title=title)


def facts_of(experiment: Experiment, panels: Mapping[str, list[TrainedLine]]) -> dict[str, Fact]:
    """The numbers of all panels and variants, by name."""
    facts: dict[str, Fact] = {"seeds": experiment.seeds, **fields_of(experiment)}
    for panel, lines in panels.items():
        whole = [line.accuracy or 0.0 for line in lines if line.method == "none"]
        target = _TARGET * max(whole) if any(whole) else None
        fewest = min(line.up for line in lines)
        facts[f"rounds/{panel}"] = max(line.points[-1].round for line in lines)
        facts[f"target/{panel}"] = target
        for line in lines:
            place = f"{panel}/{line.name}"
            enough = [
                point.up for point in line.points if target is not None and point.accuracy >= target
            ]
            best = statistics.fmean(one["best_accuracy"] for one in line.summaries)
            facts |= {
                f"accuracy/{place}": line.accuracy,
                f"spread/{place}": line.spread,
                f"best/{place}": best,
                f"diverged/{place}": line.diverged,
                f"noised/{place}": line.noised,
                f"bytes/{place}": line.up,
                f"compression/{place}": line.compression,
                f"at-bytes/{place}": accuracy_at(line.points, fewest),
                f"bytes-to/{place}": enough[0] if enough else None,
                f"seconds/{place}": line.seconds,
                f"seeds/{place}": len(line.summaries),
            }
            if (padding := line.config.get("padding")) is not None:
                facts[f"padding/{place}"] = padding / line.summaries[0]["dim"]
        # Differences of `ours`, in each of its readings, to the others, seed by seed.
        ours = experiment.options.get("ours")
        readings = [line for line in lines if line.variant.method == ours]
        for one, other in itertools.product(readings, lines):
            if other is not one:
                # Of different numbers of seeds, the first ones of both.
                gaps = [a - b for a, b in zip(one.accuracies, other.accuracies, strict=False)]
                mean, spread = mean_and_spread(gaps)
                place = f"{panel}/{one.name} - {other.name}"
                facts |= {f"paired/{place}": mean, f"paired-spread/{place}": spread,
                          f"paired-seeds/{place}": len(gaps)}  # fmt: skip
    return facts


def fields_of(experiment: Experiment) -> dict[str, Fact]:
    """Fields of panels and lines by the settings: no rule has to read them out of names."""
    facts: dict[str, Fact] = {}
    for one in experiment.variants:
        fields: dict[str, Fact] = {
            "method": one.method, "reading": one.reading, "group": one.group,
            "appended": one.settings.get("appended"),
        }  # fmt: skip
        for panel in one.panels:
            about = experiment.panels.get(panel, PanelFields())
            facts |= {f"panel-{key}/{panel}": of for key, of in asdict(about).items() if of}
            facts |= {f"{key}/{panel}/{one.name}": of for key, of in fields.items() if of}
    return facts


def _lead(experiment: Experiment, panels: Mapping[str, list[TrainedLine]]) -> str:
    """Compare `ours` and `baseline`, and the best of the proven ones that send no more."""
    options = experiment.options
    ours, baseline = (str(options.get(one, "")) for one in ("ours", "baseline"))
    parts: list[str] = []
    meanings: dict[str, None] = {}

    def shown(line: TrainedLine) -> str:
        ended = f" ({line.ended})" if line.ended and line.accuracy is not None else ""
        return line.shown + ended

    for panel, lines in panels.items():
        papers = [line for line in lines if line.variant.group == "paper"]
        readings = [line for line in papers if line.variant.method == ours]
        second = next((line for line in papers if line.variant.method == baseline), None)
        if not readings or second is None:
            continue
        shares = [f"{one.variant.reading} {shown(one)}".strip() for one in readings]
        text = f"{panel}: {', '.join(shares)} against {shown(second)}"
        for who, line in ((ours, readings[0]), (baseline, second)):
            epsilon, _ = line.per_round
            meanings[f"{name_of(who)}'s: {epsilon.basis_text}; {epsilon.scope}"] = None
        best: dict[Unit, TrainedLine] = {}  # by unit, the most accurate that sends no more
        for line in lines:
            unit, fits = line.epsilon.scope.unit, line.up <= _SAME * readings[0].up
            if line.epsilon.basis is Basis.PROVEN and line.accuracy is not None and fits:
                known = best.setdefault(unit, line).accuracy or 0.0
                best[unit] = line if line.accuracy > known else best[unit]
        for unit, top in best.items():
            text += f", proven for a {unit} {shown(top)} ({top.role})"
        parts.append(text)
    subject = options.get("subject", f"{name_of(ours)} against {name_of(baseline)}")
    lead = f"{subject}. {'; '.join(parts)}." if parts else ""
    if meanings:
        lead += f" Epsilons are of one round ({'. '.join(meanings)})."
    every = [
        line
        for lines in panels.values()
        for line in lines
        if (line.variant.method, line.variant.reading, line.variant.group) == (ours, "", "paper")
    ]
    noised = [line.noised for line in every if line.noised is not None]
    if noised:
        ends = dict.fromkeys((f"{min(noised):.0%}", f"{max(noised):.0%}"))
        lead += f" {name_of(ours)} had to add noise to {' to '.join(ends)} of its messages."
    return lead


# --- the choices that the paper leaves open --------------------------------------------------


def draw_choices(experiment: Experiment, results: Results) -> Figure:
    """One table: by choice, the accuracies of `ours` and `baseline`, and by how much ours leads.

    A panel has those two lines; its choice is a row, its ratio and epsilon a group of columns.

    Guarantees (`paper/tests/test_figures_trained.py`): the difference is that of the seeds,
    one by one; a choice that was not run with a size and epsilon has none there.
    """
    panels = panels_of(experiment, results)
    ours, baseline = (str(experiment.options[one]) for one in ("ours", "baseline"))
    facts, leads = facts_of(experiment, panels), dict[str, dict[str, float]]()
    cells: dict[str, dict[str, tuple[float | None, ...]]] = {}
    for panel, lines in panels.items():
        fields, named = experiment.panels[panel], {line.variant.method: line for line in lines}
        if not {ours, baseline} <= set(named):
            continue  # not measured yet
        setting, choice = f"{fields.ratio:g}x, epsilon {fields.epsilon:g}", fields.choice
        place = f"{panel}/{named[ours].name} - {named[baseline].name}"
        gap, spread = (facts[f"{one}/{place}"] for one in ("paired", "paired-spread"))
        points = [None if one is None else round(100 * float(one), 2) for one in (gap, spread)]
        shares = [named[one].accuracy for one in (ours, baseline)]
        own = [None if one is None else round(one, 4) for one in shares]
        cells.setdefault(choice, {})[setting] = (*own, *points)
        if gap is not None and None not in shares:
            leads.setdefault(setting, {})[choice] = float(gap)
    settings = list(dict.fromkeys(one for each in cells.values() for one in each))
    entry, parts = texts()["choices"], []
    series = [_leads_by_choice(one, cells, experiment.seeds) for one in settings]
    ours, baseline = name_of(ours), name_of(baseline)
    headings = [entry["choice"]]
    for one in settings:
        headings += [column.format(ours=ours, baseline=baseline, at=one) for column in entry["at"]]
    empty = (None,) * len(entry["at"])
    rows: Rows = [
        (choice, *itertools.chain.from_iterable(each.get(one, empty) for one in settings))
        for choice, each in cells.items()
    ]
    for setting, gaps in leads.items():
        least, most = min(gaps, key=gaps.__getitem__), max(gaps, key=gaps.__getitem__)
        facts |= {
            f"choice-least/{setting}": gaps[least],
            f"choice-most/{setting}": gaps[most],
            f"choice-best/{setting}": most,
        }
        ends = (f"{100 * gaps[one]:+.1f} points ({one})" for one in (least, most))
        parts.append(f"{setting}: from {' to '.join(ends)}")
    return Figure(
        lead=entry["lead"].format(ours=ours, baseline=baseline, parts="; ".join(parts)),
        exhibits=(
            plot(
                "choices-leads",
                f"{experiment.name}-leads",
                series,
                categories=list(cells),
                ours=ours,
                baseline=baseline,
            ),
            table("choices", f"{experiment.name}-table", rows, headings),
        ),
        text=(entry["text"].format(fair=_FAIR),),
        facts=facts,
    )


def _leads_by_choice(
    setting: str, cells: Mapping[str, Mapping[str, tuple[float | None, ...]]], seeds: int
) -> Series:
    """The lead of each choice in points, with twice its standard error to both sides."""
    every: list[tuple[float | None, float]] = []
    for each in cells.values():
        *_, gap, spread = each.get(setting, (None, None))
        every.append((gap, 2 * (spread or 0.0) / math.sqrt(seeds)))
    return Series(
        setting,
        tuple(map(float, range(len(every)))),
        tuple(gap for gap, _ in every),
        tuple(None if gap is None else gap - wide for gap, wide in every),
        tuple(None if gap is None else gap + wide for gap, wide in every),
        kind="points",
    )


# --- accuracy by compression -----------------------------------------------------------------


def draw_compression(experiment: Experiment, results: Results) -> Figure:
    """For each panel the curves of all ratios, and over all panels of a task the last accuracies.

    A panel has a task and a kind of messages; a variant whose method is `none` is the reference.

    Guarantees (`paper/tests/test_figures_trained.py`): ratios are those of the messages,
    whatever a variant is called; the lead says where accuracy falls.
    """
    panels, name = panels_of(experiment, results), experiment.name
    exhibits = [_curves(f"{name}-{slug(panel)}", panel, own) for panel, own in panels.items()]
    series: dict[str, list[Series]] = {}
    marks: dict[str, list[Mark]] = {}
    parts = []
    for panel, lines in panels.items():
        fields = experiment.panels[panel]
        task = fields.task
        known = sorted((one for one in lines if one.method != "none"), key=lambda o: 1 / o.share)
        whole = [line for line in lines if line.method == "none"]
        epsilon, text = known[0].per_round
        series.setdefault(task, []).append(
            Series(
                name=fields.kind,
                x=tuple(1 / one.share for one in known),
                **banded((one.accuracy, one.spread) for one in known),
                dashed=True,  # nothing here is proven
                epsilon=epsilon,
                epsilon_text=text,
                note="; ".join(f"{one.name}: {one.ended}" for one in known if one.ended),
            )
        )
        marks.setdefault(task, []).extend(
            Mark(one.accuracy, "uncompressed") for one in whole if one.accuracy is not None
        )
        shown = [f"{one.name} {one.shown}" for one in known]
        shown += [f"uncompressed {one.shown}" for one in whole[:1]]
        parts.append(f"{panel}: {', '.join(shown)}")
    seeds = experiment.seeds
    spread = f", with the standard deviation over {seeds} seeds" if seeds > 1 else ""
    for task, own in series.items():
        final = f"{name}-{slug(task)}-final"
        exhibits.append(
            plot("compression", final, own, marks=marks[task][:1], task=task, spread=spread)
        )
    return Figure(
        lead=f"Accuracy after the last round. {'; '.join(parts)}.",
        exhibits=(*exhibits, _runs_table(experiment, panels, proven=False)),
        text=(_FAIR,),
        facts=facts_of(experiment, panels),
    )


# --- the error correction, beside what is learnt from the masks alone ------------------------


def draw_correction(experiment: Experiment, results: Results) -> Figure:
    """A plot for each panel, each with the controls; what a mask costs; and what the facts are.

    Guarantees (`paper/tests/test_figures_trained.py`): the lead compares the control with
    the sketch by their numbers; bytes are those that were counted.
    """
    panels, name = panels_of(experiment, results), experiment.name
    facts, shown, rows = facts_of(experiment, panels), [], list[Any]()
    parts = []
    for panel, lines in panels.items():
        known = {line.config["correction"]: line for line in lines}
        if "off" in known and "shared" in known:
            off, shared = (
                "divergence" if known[one].accuracy is None else known[one].shown
                for one in ("off", "shared")
            )
            parts.append(f"With {panel}, shared masks take the sketch from {off} to {shared}.")
    for control in measured_of(experiment, results):
        runs = control.found
        accuracy, spread = mean_and_spread([run["accuracy"] for run in runs])
        drift = mean_or_none([run["curve"][-1].get("drift") for run in runs])
        points = points_of(line_of(runs))
        pairs = ((point.accuracy, point.spread) for point in points)
        note = "what the server publishes is noise of the sum's norm"
        shown.append(_over_rounds(Series(control.name, (), **banded(pairs), note=note), points))
        own = control.settings.get("correction") == "drift"  # masks that stay with the worker
        masks = 0 if own else int(control.first["mask_bytes"])
        sizes = (int(control.first["message_bytes"]), masks)
        spread_ = None if spread is None else round(spread, 4)
        last = None if drift is None else round(drift, 3)
        rows.append((control.name, round(accuracy, 4), spread_, *sizes, last))
        place = f"control/{control.name}"
        facts |= {f"accuracy/{place}": accuracy, f"spread/{place}": spread}
        parts.append(f"{control.name[:1].upper()}{control.name[1:]}: {accuracy:.1%}.")
    line = next(iter(panels.values()))[0]
    mask, _ = mask_bytes(line.summaries[0]["dim"], line.config["workers"])
    sketch = line.summaries[0]["message_bytes"]
    facts |= {"mask-bytes": mask, "sketch-bytes": sketch}
    for each in itertools.chain.from_iterable(panels.values()):
        if each.variant.reading:  # bytes that a worker sends in a round beside its table
            rounds = each.summaries[0]["rounds"] * each.config["workers"]
            facts[f"sent-beside/{each.variant.reading}"] = each.up / rounds - line.up / rounds
    parts.append(f"A shared mask takes {mask:,} bytes, the sketch {sketch:,}; own masks none.")
    bands = "; bands are standard deviations over the seeds" if experiment.seeds > 1 else ""
    # Over rounds first: masks are not in the paper's count of bytes.
    plots = [
        Plot(
            name=f"{name}-{slug(panel)}",
            title=f"{panel[:1].upper()}{panel[1:]}, and noise instead of the sketch",
            x=_ROUNDS,
            y=_ACCURACY,
            series=(*(_over_rounds(_curve(line), line.points) for line in lines), *shown),
            caption=texts()["correction"]["caption"].format(spread=bands),
            other_x=(_BYTES_WITH_MASKS,),
        )
        for panel, lines in panels.items()
    ]
    controls = table("controls", f"{name}-controls", rows)
    return Figure(
        lead=" ".join(parts),
        exhibits=(*plots, controls, _runs_table(experiment, panels, proven=False)),
        text=(texts()["correction"]["text"].format(fair=_FAIR),),
        facts=facts,
    )


def _over_rounds(series: Series, points: Sequence[CurvePoint]) -> Series:
    return replace(
        series,
        x=tuple(float(point.round) for point in points),
        other_x={_BYTES_WITH_MASKS.label: tuple(point.both for point in points)},
    )
