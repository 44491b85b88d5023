"""From what was drawn to the page: a section for each experiment, and what stands around them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from diffsketch.pages.exhibits import Exhibit, Page, Section
from diffsketch.reproduction.details import command_of, details_of
from diffsketch.reproduction.drawings.drawn import Drawn
from diffsketch.reproduction.experiment import Experiment

__all__ = ["notice_of", "origin_of", "page_of", "reductions", "section_of"]

_TRUE = "What is true: "
_NOT_SAID = ("evaluate_every",)  # not less of anything
_NAMED = {"fedavg_rounds": "rounds"}
_SAID = {"seeds": 0, "rounds": 1, "panels": 2}  # first
_INTRO = (
    "DiffSketch sends Count Sketches of gradients in place of the gradients, and its paper claims "
    "that a sketch is differentially private by itself. This page has its figures and tables, "
    "run again, and beside each of them what is true: the same with privacy that is proven, and "
    "what an attack measures."
)
_READING = (
    "Every epsilon says what it is worth. Its basis: proven (a theorem that we checked), claimed "
    "(somebody says so), measured (what an attack achieves: a lower bound, so that a claim below "
    "it is refuted) or none. Its unit: whose data is protected, a single coordinate of a message, "
    "an example or a whole client. Its relation: whether neighbours replace their data or leave. "
    "Its trust: whether already a message is private, only the sum of many, or only the model.",
    "The same method has the same colour everywhere. Dashed lines are only claimed, or are there "
    "for reference. A line that ends in a cross is a run that diverged. Bands are one standard "
    "deviation over the seeds to either side of the mean.",
    "Runs with the same seed have the same batches, the same devices and the same first weights, "
    "whatever their method is. Bytes are those of whole messages with their headers, up and down.",
)


def section_of(experiment: Experiment, drawn: Drawn, *, reduced: Mapping[str, str]) -> Section:
    """The section of an experiment: the paper's figure, then what is true, then its details.

    Args:
        experiment: What was run.
        drawn: What came out.
        reduced: Of `reductions`.
    """
    said = [f"The paper: {experiment.says}"]
    if reduced:
        listed = ", ".join(f"{name} {text}" for name, text in reduced.items())
        said.append(f"Reduced by `--quick`: {listed}.")
    return Section(
        name=experiment.name,
        title=experiment.title,
        lead=drawn.lead,
        exhibits=(*drawn.exhibits, *(_true(exhibit) for exhibit in drawn.proven)),
        text=(*said, *drawn.text),
        details=details_of(experiment),
        badge=experiment.place,
    )


def page_of(
    drawn: Sequence[tuple[Experiment, Drawn]],
    *,
    reduced: Mapping[str, Mapping[str, str]],
    claims: tuple[Exhibit, ...],
    notice: str,
    result: str = "",
    origin: Mapping[str, str],
) -> Page:
    """The whole page.

    Args:
        drawn: Experiments and what was drawn of them, in their order.
        reduced: By experiment what `--quick` has reduced.
        claims: Exhibits about the paper's claims; they come first.
        notice: For the top; empty for none.
        result: What the claims came to, in a sentence.
        origin: What made it.
    """
    first = Section(
        name="claims",
        title="What the paper claims, and what came out",
        lead=result,
        text=("Each claim of the paper with what was measured here.",),
        exhibits=claims,
    )
    reading = Section(name="reading", title="How to read this page", text=_READING)
    return Page(
        title="Privacy for Free, run again",
        lead=_INTRO,
        sections=(
            *((first,) if claims else ()),
            reading,
            *(
                section_of(experiment, one, reduced=reduced.get(experiment.name, {}))
                for experiment, one in drawn
            ),
        ),
        notice=notice,
        origin=origin,
    )


def notice_of(
    full: Sequence[Experiment],
    shown: Sequence[Experiment],
    *,
    left_out: Sequence[str],
    failed: Sequence[str] = (),
) -> str:
    """What a reader has to know first: what is reduced, left out, or went wrong.

    Args:
        full: The experiments as they are without `--quick`.
        shown: As they were run.
        left_out: Names of experiments that were not asked for.
        failed: Names of experiments that could not be finished.
    """
    parts = []
    if any(one.reduced for one in shown):
        less = [reductions(*both) for both in zip(full, shown, strict=True)]
        what = {name: text for found in reversed(less) for name, text in found.items()}
        named = "; ".join(
            f"{name} ({text})" if all(found.get(name, text) == text for found in less) else name
            for name, text in sorted(what.items(), key=lambda item: _SAID.get(item[0], 9))
        )
        parts.append(
            "Reduced run (`--quick`): it shows that everything works; numbers and verdicts are not "
            "those of the full run. "
            + (
                f"There are fewer {named}. How many is said with each experiment."
                if named
                else "What is shown here is not reduced."
            )
        )
    if left_out:
        parts.append(f"Not asked for, so left out: {', '.join(left_out)}.")
    if failed:
        parts.append(f"Left out after an error: {', '.join(failed)}.")
    return " ".join(parts)


def reductions(full: Experiment, less: Experiment) -> dict[str, str]:
    """What `--quick` has reduced in an experiment: by what it is, how much is left, in words."""
    found = {}
    before, after = (_most_seeds(one) for one in (full, less))
    if before != after:
        found["seeds"] = f"{after} instead of {before}"
    changed: dict[str, tuple[list[Any], list[Any]]] = {}
    for whole, part in _pairs(full, less):
        for key, value in part.items():
            if value != whole.get(key) and key not in _NOT_SAID:
                olds, news = changed.setdefault(_NAMED.get(key, key), ([], []))
                olds.append(whole.get(key))
                news.append(value)
    for key, (olds, news) in changed.items():
        found[key.replace("_", " ")] = f"{_listed(news)} instead of {_listed(olds)}"
    panels = [{panel for one in some.variants for panel in one.panels} for some in (full, less)]
    if panels[0] != panels[1]:
        found["panels"] = f"{len(panels[1])} instead of {len(panels[0])}"
    return found


def origin_of(
    experiments: Sequence[Experiment], versions: Mapping[str, str], *, names: Sequence[str]
) -> dict[str, str]:
    """What made the page, in words by name; the same on every machine of a kind.

    Args:
        experiments: That are shown.
        versions: Of `diffsketch.app.files`.
        names: That were asked for; none for all.
    """
    reduced = any(one.reduced for one in experiments)
    most = max((_most_seeds(one) for one in experiments), default=1)
    return {
        "Command": f"`{command_of(names, reduced=reduced)}`",
        "Versions": ", ".join(
            f"{name} {versions[name]}" for name in ("diffsketch", "torch", "numpy", "python")
        ),
        "Source": f"digest {versions['source']} of the package's modules",
        "Machine": f"{versions['machine']}, one thread for each run",
        "Seeds": "0" if most == 1 else f"0 to {most - 1}",
        "Settings": "those of the package, folded away below each figure",
    }


def _true(exhibit: Exhibit) -> Exhibit:
    title = exhibit.title
    return exhibit if title.startswith(_TRUE) else replace(exhibit, title=f"{_TRUE}{title}")


def _most_seeds(experiment: Experiment) -> int:
    return max((job.seed for job in experiment.jobs), default=0) + 1


def _pairs(
    full: Experiment, less: Experiment
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Settings of each run and measurement that is left, before and after."""
    for part in less.variants:
        for whole in full.variants:
            if whole.name == part.name and set(part.panels) <= set(whole.panels):
                yield whole.settings, part.settings
    for one, other in zip(full.measurements, less.measurements, strict=True):
        yield one.settings, other.settings


def _listed(values: Sequence[Any]) -> str:
    """One value, or the least and the largest of them.

    >>> _listed([1500, 1500]), _listed([80, 1500, 200])
    ('1,500', '80 to 1,500')
    """
    numbers = all(isinstance(one, int | float) for one in values)
    ends = sorted(values) if numbers else values
    texts = dict.fromkeys(f"{one:,}" if isinstance(one, int) else str(one) for one in ends)
    first, *others = texts
    return f"{first} to {others[-1]}" if others else first
