"""The command `python -m paper`: the jobs of the experiments, then the page."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from diffsketch.app.files import check_empty, locked, read_json, versions
from diffsketch.app.terminal import Interrupts, LastingConsole, print_line
from diffsketch.errors import ArgumentError, DiffSketchError, MismatchError, check
from diffsketch.files import leftovers, prepare_output, replace_file
from diffsketch.pages.page import write_page
from paper.claims import judged, summary_text
from paper.document import (
    command_of,
    notice_of,
    page_of,
    records,
    write_document,
)
from paper.experiments import (
    FIGURES,
    FORMAT,
    SETTINGS,
    Experiment,
    Results,
    function_of,
    load,
    minutes_text,
    name_of_experiment,
    names,
    wall_seconds,
)
from paper.figures import Figure
from paper.jobs import JobsOutcome, State, Store, do_jobs
from paper.scoreboard import with_scoreboard

_MARK, _CACHE, _RESULTS, _ERRORS = "reproduction.json", "cache", "results.json", "errors.txt"
_NOTES = 3  # that are shown: after a change of version there is one for each job


class JobsFailed(DiffSketchError):  # noqa: N818 - it says what happened
    """Some runs or measurements failed. What the others came to is kept, and drawn."""


def reproduce(
    wanted: Sequence[str],
    output: Path,
    console: LastingConsole,
    *,
    reduced: bool,
    jobs: int,
    folder: Path = SETTINGS,
) -> int:
    """Run what is not in the cache of the output directory, and draw all; the exit status.

    Guarantees (`paper/tests/test_reproduce.py`): a second call only draws; interrupted and
    called again, it writes the same numbers; a directory that is not its own stays as it is.

    Args:
        wanted: Names of experiments, or of figures; all of them if none.
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
    asked = {name_of_experiment(name, folder) for name in wanted} or set(every)
    chosen, left_out = ([n for n in every if (n in asked) is side] for side in (True, False))
    experiments = [load(name, reduced=reduced, folder=folder) for name in chosen]
    with _owned(output, reduced=reduced):
        if notice := notice_of(reduced=reduced, left_out=left_out):
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
            notice = notice_of(reduced=reduced, left_out=left_out, failed=failed)
            command = command_of(chosen if left_out else [], reduced=reduced)
            score, page = _write(
                good, outcome.results, output, notice=notice, command=command, console=console
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
    console: LastingConsole,
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
    with console.progress("work") as show:

        def tell(state: State) -> None:
            done = f"{state.experiments} of {len(experiments)} experiments"
            show(state.done / max(state.total, 1e-9), "; ".join([done, *state.now]))

        outcome = do_jobs(
            experiments,
            Store(output / _CACHE),
            processes=jobs,
            command=["python", "-m", "paper"],
            show=tell,
            stop=lambda: interrupts.signal is not None,
        )
    for note in outcome.notes[:_NOTES]:
        print_line(console, f"note: {note}")
    if more := len(outcome.notes[_NOTES:]):
        print_line(console, f"note: {_count(more, 'other')} as well")
    return outcome


def _write(
    experiments: Sequence[Experiment],
    results: Results,
    output: Path,
    *,
    notice: str,
    command: str,
    console: LastingConsole,
) -> tuple[str, Path]:
    """Draw the experiments, judge the claims, and write the page and `results.json`.

    Of a full run of all of them also `reproduction.md` and its details. Gives how many claims stand
    how, as a sentence, and the page.
    """
    figures: list[tuple[Experiment, Figure]] = []
    with console.progress("Drawing the figures") as show:
        for count, one in enumerate(experiments):
            show(count / len(experiments))
            try:
                figures.append((one, function_of(FIGURES[one.drawing])(one, results)))
            except DiffSketchError as error:
                error.args = (f"{error} (while drawing {one.name})",)
                raise
    reduced, here = any(one.reduced for one in experiments), versions()
    facts = {one.name: figure.facts for one, figure in figures}
    with console.progress("Judging the claims") as show:
        verdicts = judged(facts, reduced=reduced, show=show)
    page = page_of(figures, verdicts, notice=notice, versions=here, command=command)
    numbers = records(figures, results, command=command, versions=here, verdicts=verdicts)
    replace_file(output / _RESULTS, numbers)
    folders = ["data"]
    with console.progress("Making the pictures") as show:
        written = [*write_page(with_scoreboard(page), output), output / _RESULTS]
        if command == command_of([], reduced=False):
            written += write_document(page, output, show=show)
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
    if not mark.is_file():
        halves = leftovers(output, [_MARK])
        check_empty(output, but=halves, advice="or one of an earlier python -m paper")
    else:
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
