"""The command `python -m paper`: the jobs of the experiments, then the page."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from diffsketch.app.files import locked, read_json, versions
from diffsketch.app.terminal import Interrupts, print_line
from diffsketch.errors import ArgumentError, DiffSketchError, MismatchError, check
from diffsketch.files import prepare_output, replace_file
from diffsketch.pages.page import pictures_of, write_page
from paper.claims import judged, summary_text
from paper.document import (
    command_of,
    notice_of,
    page_of,
    records,
    reductions,
    write_document,
)
from paper.experiments import (
    FIGURES,
    FORMAT,
    SETTINGS,
    Experiment,
    function_of,
    load,
    minutes_text,
    names,
    wall_seconds,
)
from paper.figures import Figure
from paper.jobs import JobsOutcome, State, Store, do_jobs

_MARK, _CACHE, _RESULTS, _ERRORS = "reproduction.json", "cache", "results.json", "errors.txt"
_NOTES = 3  # that are shown: after a change of version there is one for each job
_LINE_SECONDS = 30.0
_SPEED_SECONDS = 300.0  # over which the time left is estimated: jobs differ
_WIDEST = 48  # letters of what is being done


class JobsFailed(DiffSketchError):  # noqa: N818 - it says what happened
    """Some runs or measurements failed. What the others came to is kept, and drawn."""


def reproduce(
    wanted: Sequence[str],
    output: Path,
    console: Console,
    *,
    reduced: bool,
    jobs: int,
    folder: Path = SETTINGS,
) -> int:
    """Run what is not in the cache of the output directory, and draw all; the exit status.

    Guarantees (`paper/tests/test_reproduce.py`): a second call only draws; interrupted and
    called again, it writes the same numbers; a directory that is not its own stays as it is.

    Args:
        wanted: Names of experiments; all of them if none.
        output: Directory for the page, numbers and cache; new, empty, or of an earlier call.
        console: Where to show it.
        reduced: Whether as `--quick` has it.
        jobs: Processes at a time.
        folder: Folder of the settings files.

    Raises:
        ArgumentError: A name is none, or the directory is somebody else's.
        JobsFailed: Some jobs failed, after the others were done and drawn.
    """
    begin = time.monotonic()
    check(jobs >= 1, "jobs", "be a whole number >= 1", jobs)
    every = names(folder)
    for name in wanted:
        load(name, reduced=reduced, folder=folder)  # which says what is wrong with a name
    chosen = [name for name in every if name in wanted or not wanted]
    experiments = [load(name, reduced=reduced, folder=folder) for name in chosen]
    full = [load(name, reduced=False, folder=folder) for name in chosen]
    left_out = [name for name in every if name not in chosen]
    with _owned(output, reduced=reduced):
        if notice := notice_of(full, experiments, left_out=left_out):
            print_line(console, notice.replace("`", ""))
        with Interrupts() as interrupts:
            outcome = _work(experiments, output, console, jobs=jobs, interrupts=interrupts)
        if outcome.interrupted:
            print_line(
                console, "Interrupted; what is done is kept. Continue with the same command."
            )
            return interrupts.exit_status
        good = [one for one in experiments if all(job in outcome.results for job in one.jobs)]
        if good:
            failed = [one.name for one in experiments if one not in good]
            notice = notice_of(full, experiments, left_out=left_out, failed=failed)
            both = zip(full, experiments, strict=True)
            less = {new.name: reductions(old, new) for old, new in both}
            asked = chosen if left_out else []
            with _drawing(console) as show:
                score, page = _write(
                    good, outcome, output, notice=notice, asked=asked, less=less, show=show
                )
            print_line(console, score)
            seconds, old = time.monotonic() - begin, len(outcome.results) - outcome.made
            took = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
            done = f"{_count(outcome.made, 'job')} done, {old} from the cache; took {took}."
            print_line(console, done)
            print_line(console, f"Wrote {page}")
        path, failures = output / _ERRORS, outcome.failures
        path.unlink(missing_ok=True)
        if failures:  # all else is kept
            text = "\n".join(f"{one.label}: {one.reason}\n\n{one.trace}" for one in failures)
            replace_file(path, text.encode(errors="replace"))
            more = f"and {_count(len(failures) - 1, 'other')}: " if len(failures) > 1 else ""
            raise JobsFailed(
                f"{failures[0].label}: {failures[0].reason} ({more}see {path}); what is done is "
                "kept, and the same command tries the rest again"
            )
    return 0


def _work(
    experiments: Sequence[Experiment],
    output: Path,
    console: Console,
    *,
    jobs: int,
    interrupts: Interrupts,
) -> JobsOutcome:
    pieces = {job for one in experiments for job in one.jobs}
    estimate = minutes_text(wall_seconds(pieces, jobs))
    print_line(
        console,
        f"{_count(len(experiments), 'experiment')}, {_count(len(pieces), 'job')}: about {estimate} "
        f"with {_count(jobs, 'process')}, less what is in {output / _CACHE} already.",
    )
    with _progress(console, experiments=len(experiments)) as show:
        outcome = do_jobs(
            experiments,
            Store(output / _CACHE),
            processes=jobs,
            command=["python", "-m", "paper"],
            show=show,
            stop=lambda: interrupts.signal is not None,
        )
    for note in outcome.notes[:_NOTES]:
        print_line(console, f"note: {note}")
    if more := len(outcome.notes[_NOTES:]):
        print_line(console, f"note: {_count(more, 'other')} as well")
    return outcome


@contextmanager
def _progress(console: Console, *, experiments: int) -> Iterator[Callable[[State], None]]:
    """Two bars where there is a terminal, a line every half minute elsewhere."""
    if not console.is_terminal:
        begin = last = time.monotonic()

        def line(state: State) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last < _LINE_SECONDS or state.done <= 0:
                return
            last = now
            left = minutes_text((now - begin) * (state.total - state.done) / state.done)
            print_line(
                console,
                f"{state.done / state.total:.0%} of the work, {state.experiments} of "
                f"{experiments} experiments, about {left} left",
            )

        yield line
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[share]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        speed_estimate_period=_SPEED_SECONDS,
    ) as progress:
        whole = progress.add_task("experiments", total=experiments, share="")
        work = progress.add_task("work", total=1.0, share="")

        def bars(state: State) -> None:
            total, now = max(state.total, 1e-9), "; ".join(state.now)
            now = now if len(now) <= _WIDEST else f"{now[: _WIDEST - 1]}…"
            share = f"{state.experiments} of {experiments}"
            progress.update(whole, completed=state.experiments, share=share)
            progress.update(
                work,
                total=total,
                completed=state.done,
                share=f"{state.done / total:.0%}",
                description=escape(now) or "work",
            )

        yield bars


@contextmanager
def _drawing(console: Console) -> Iterator[Callable[[str, float], None]]:
    """Show what is being drawn, and how much of it is done: a bar, or a line now and then."""
    if not console.is_terminal:
        last, before = time.monotonic(), ""

        def line(what: str, share: float) -> None:
            nonlocal last, before
            now = time.monotonic()
            if what != before or now - last >= _LINE_SECONDS:
                last, before = now, what
                print_line(console, f"{what}: {share:.0%}")

        yield line
        return
    bar = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*bar, console=console, transient=True) as progress:
        task = progress.add_task("Drawing", total=1.0)

        def move(what: str, share: float) -> None:
            if progress.tasks[0].description != what:
                progress.reset(task, description=what)
            progress.update(task, completed=share)

        yield move


def _write(
    experiments: Sequence[Experiment],
    outcome: JobsOutcome,
    output: Path,
    *,
    notice: str,
    asked: Sequence[str],
    less: Mapping[str, Mapping[str, str]],
    show: Callable[[str, float], None],
) -> tuple[str, Path]:
    """Draw the experiments, judge the claims, and write the page and `results.json`.

    Of a full run of all of them also `reproduction.md` and its details. Gives how many claims stand
    how, as a sentence, and the page. `show` is told what is done, and the share of it.
    """
    figures = []
    for count, one in enumerate(experiments):
        show("Drawing the figures", count / len(experiments))
        try:
            figure: Figure = function_of(FIGURES[one.drawing])(one, outcome.results)
        except DiffSketchError as error:
            error.args = (f"{error} (while drawing {one.name})",)
            raise
        figures.append((one, figure))
    reduced, here = any(one.reduced for one in experiments), versions()
    facts = {one.name: figure.facts for one, figure in figures}
    verdicts = judged(facts, reduced=reduced, show=partial(show, "Judging the claims"))
    page = page_of(figures, verdicts, reduced=less, notice=notice, versions=here, names=asked)
    command = command_of(asked, reduced=reduced)
    numbers = records(figures, outcome.results, command=command, versions=here, verdicts=verdicts)
    replace_file(output / _RESULTS, numbers)
    pictures = pictures_of(page, partial(show, "Making the pictures"))
    written = [*write_page(page, output, pictures=pictures), output / _RESULTS]
    folders = ["figures", "data"]
    if not reduced and not asked:
        written += write_document(page, output, pictures=pictures)
        folders += ["images/reproduction", "reproduction"]
    # Pictures and numbers of an earlier page that are not on this one.
    for folder in folders:
        for path in sorted((output / folder).glob("*")):
            if path.suffix in (".svg", ".png", ".csv", ".md") and path not in written:
                path.unlink()
    return summary_text(verdicts), written[0]


@contextmanager
def _owned(output: Path, *, reduced: bool) -> Iterator[None]:
    """Make the directory ours, alone, while the work goes on; raise if it is somebody else's."""
    mark, shown = output / _MARK, str(output)
    entries = sorted(output.iterdir()) if output.is_dir() else []
    others = [path for path in entries if not path.name.startswith(f".{_MARK}.")]
    if others and not mark.is_file():
        raise ArgumentError(
            "output must be new, empty, or of an earlier python -m paper, got "
            f"output={shown!r}, which has other files, such as {others[0].name!r}"
        )
    if others:
        found = read_json(mark)
        if found.get("format") != FORMAT:
            raise MismatchError(
                f"{mark}: must have the format {FORMAT!r}, got {found.get('format')!r}"
            )
        if found.get("reduced") != reduced:
            there = "a reduced" if found.get("reduced") else "a full"
            raise ArgumentError(
                f"output must be another directory, since this one has the page of {there} run, "
                f"got output={shown!r}"
            )
    prepare_output(output)
    with locked(output):
        content = json.dumps({"format": FORMAT, "reduced": reduced}).encode() + b"\n"
        replace_file(mark, content)
        yield


def _count(number: int, word: str) -> str:
    plural = f"{word}es" if word.endswith("s") else f"{word}s"
    return f"{number:,} {word if number == 1 else plural}"
