"""A page for a user's own runs: finished, under way or interrupted, and comparisons of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from diffsketch.app.files import versions
from diffsketch.app.session import bytes_in_words
from diffsketch.pages.exhibits import Page, Section
from diffsketch.pages.runs_found import find_runs
from diffsketch.pages.runs_lines import Line, lines_of
from diffsketch.pages.runs_plots import OUTCOMES, plots_of
from diffsketch.pages.runs_reading import Run, read_run
from diffsketch.pages.runs_tables import details_of, numbers_of, table_of
from diffsketch.privacy.claim import Basis

__all__ = ["page_of_runs"]

_TITLES = {"mnist": "MNIST", "mnist-devices": "MNIST*", "shakespeare": "Shakespeare"}
_BASES = {
    Basis.PROVEN: "Proven privacy",
    Basis.CLAIMED: "Claimed only, which is no guarantee",
    Basis.NONE: "No claim of privacy",
}


def page_of_runs(paths: Iterable[Path], *, title: str = "", command: str = "") -> Page:
    """The page: a section for each task, the same settings with several seeds as one line.

    Guarantees (`tests/pages/test_runs.py`, `tests/pages/test_runs_reading.py`): nothing is
    written, and no run is locked; a run that two paths lead to is counted once; each epsilon is an
    `Epsilon`, with everything it means.

    Args:
        paths: Directories of runs, of comparisons, or with some of them below.
        title: Of the page; made from the tasks by default.
        command: That makes it, for the record.

    Raises:
        DataError: There is no run in one of the directories, or something is damaged.
        MismatchError: A run is of another version's format, or its settings were changed.
    """
    found = find_runs(paths)
    runs = [read_run(path, name) for path, name in found.runs.items()]
    tasks = list(dict.fromkeys(run.config.task for run in runs))
    sections, notes, leads, all_lines = [], list(found.notes), [_count(runs)], list[Line]()
    for task in tasks:
        lines, more = lines_of(run for run in runs if run.config.task == task)
        notes += more
        sections.append(_section(task, lines))
        leads += _most_accurate(lines, task)
        all_lines += lines
    named = ", ".join(_TITLES.get(task, task) for task in tasks)
    return Page(
        title=title or f"Training runs: {named}",
        lead=" ".join(leads),
        sections=(*sections, *_meaning(all_lines)),
        notice=" ".join([*_unfinished(runs), *notes]),
        origin=_origin(runs, command),
    )


def _section(task: str, lines: Sequence[Line]) -> Section:
    return Section(
        name=task,
        title=_TITLES.get(task, task),
        lead=" ".join([*_fewest_bytes(lines), *_privacy(lines), *_diverged(lines)]),
        exhibits=(*plots_of(lines, prefix=task), table_of(lines, prefix=task)),
        details=details_of(lines, prefix=task),
    )


def _meaning(lines: Sequence[Line]) -> list[Section]:
    """What the runs that ended say about their privacy. Long, and so below the numbers."""
    text = (*_said(lines, "claim"), *_said(lines, "assumes"))
    title = "What the epsilons mean, and what they rest on"
    return [Section(name="privacy", title=title, text=text)] if text else []


def _count(runs: Sequence[Run]) -> str:
    return "1 run." if len(runs) == 1 else f"{len(runs)} runs."


def _most_accurate(lines: Sequence[Line], task: str) -> list[str]:
    """Which line is, at which price."""
    known = [
        (line, numbers) for line in lines if (numbers := numbers_of(line)).accuracy is not None
    ]
    if not known:
        return []
    line, best = max(known, key=lambda pair: pair[1].accuracy or 0.0)
    epsilon = line.epsilon
    head = f"On {_TITLES.get(task, task)}, {line.name} "
    head += "is the most accurate with" if len(known) > 1 else "has an accuracy of"
    spread = "" if best.spread is None else f" ± {100 * best.spread:.2f}"
    price = f"{best.rounds:,} rounds and {bytes_in_words(best.bytes)} up and down"
    words = "" if epsilon is None else f", {epsilon.text('short')}"
    so_far = "" if all(run.ended for run in line.runs) else " so far,"
    return [f"{head} {100 * (best.accuracy or 0.0):.2f}%{spread}{so_far} after {price}{words}."]


def _fewest_bytes(lines: Sequence[Line]) -> list[str]:
    """Which line sends the fewest bytes for a round, against the one that sends the most."""
    each = [
        (numbers.bytes / numbers.rounds, line, numbers)
        for line in lines
        if (numbers := numbers_of(line)).rounds and numbers.bytes
    ]
    if len(each) < 2:
        return []
    (few, line, numbers), (many, other, _) = (
        choose(each, key=lambda one: one[0]) for choose in (min, max)
    )
    if few == many:
        return []
    return [
        f"{line.name} sends the fewest bytes, {bytes_in_words(few)} a round with all workers "
        f"({100 * (numbers.accuracy or 0.0):.2f}% accuracy); {other.name} sends {many / few:.3g} "
        "times as many."
    ]


def _privacy(lines: Sequence[Line]) -> list[str]:
    sentences = []
    for basis, words in _BASES.items():
        names = [
            one.name for one in lines if one.epsilon is not None and one.epsilon.basis is basis
        ]
        if names:
            sentences.append(f"{words}: {'; '.join(names)}.")
    return sentences


def _diverged(lines: Sequence[Line]) -> list[str]:
    found = []
    for line in lines:
        count = sum(run.outcome in ("diverged", "diverging") for run in line.runs)
        many = f" ({count} of {len(line.runs)})" if len(line.runs) > 1 else ""
        found += [f"{line.name}{many}"] if count else []
    return [f"Diverged: {'; '.join(found)}."] if found else []


def _unfinished(runs: Sequence[Run]) -> list[str]:
    sentences = []
    for outcome in ("under way", "interrupted"):
        count = sum(run.outcome == outcome for run in runs)
        if count:
            verb = "is" if count == 1 else "are"
            sentences.append(
                f"{count} of {len(runs)} runs {verb} {OUTCOMES[outcome]}, and shown as far as "
                f"{'it goes' if count == 1 else 'they go'}."
            )
    return sentences


def _said(lines: Sequence[Line], key: str) -> list[str]:
    """What summaries say about privacy, and for which lines."""
    names: dict[str, dict[str, None]] = {}
    for line in lines:
        for run in line.runs:
            said: Any = run.summary[key] if run.summary is not None else []
            for text in [said] if isinstance(said, str) else said:
                names.setdefault(str(text), {})[line.name] = None
    return [f"{'; '.join(of_text)}: {text}" for text, of_text in names.items()]


def _origin(runs: Sequence[Run], command: str) -> dict[str, str]:
    """What made the page and the runs."""

    def words(found: Iterable[tuple[str, str]]) -> str:
        return ", ".join(f"{name} {value}" for name, value in found)

    commands = dict.fromkeys(run.command for run in runs if run.command)
    began_with = dict.fromkeys(words(run.versions.items()) for run in runs)
    seeds = sorted({run.config.seed for run in runs})
    origin = {
        "Command": command,
        "Made with": words(versions().items()),
        "Directories": ", ".join(str(run.path) for run in runs),
        "Seeds": ", ".join(str(seed) for seed in seeds),
        "Commands of the runs": "\n".join(commands),
        "Versions of the runs": "\n".join(began_with),
    }
    return {name: text for name, text in origin.items() if text}
