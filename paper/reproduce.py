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
    Made,
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
    Lacking,
    Results,
    function_of,
    load,
    minutes_text,
    name_of_experiment,
    names,
    present,
    wall_seconds,
)
from paper.figures import Figure
from paper.jobs import JobsOutcome, State, Store, do_jobs
from paper.recorded import Recorded
from paper.scoreboard import ClaimedPage, with_scoreboard

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


def redraw(
    documents: Path, store: Path, console: LastingConsole, *, folder: Path = SETTINGS
) -> int:
    """Draw and judge the recorded run below `documents` again, and write its documents anew.

    The run is `reproduction/results.json`. Jobs that it lacks have the results of the cache below
    `store`, if they are there; else the documents say that they are not measured yet.

    Guarantees (`paper/tests/test_reproduce.py`): nothing is run, and the same results give the
    same documents as the run itself.
    """
    recorded = Recorded.read(documents / "reproduction" / _RESULTS)
    experiments = [load(name, reduced=False, folder=folder) for name in names(folder)]
    here = versions()["source"]
    results, sources = recorded.results(experiments, Store(store / _CACHE), source=here)
    drawn, lacking = list[Experiment](), dict[str, Sequence[Lacking]]()
    for one in experiments:
        kept, missing = present(one, results)
        drawn += [kept] if kept.jobs else []
        lacking |= {one.name: missing} if missing else {}
    made = Made(command_of([], reduced=False), recorded.versions, sources,
                "" if here == recorded.versions["source"] else here, lacking)  # fmt: skip
    score, page, numbers = _drawn(drawn, results, made, notice="", console=console)
    with console.progress("Making the pictures") as show:
        files = write_document(page, documents, show=show)
    replace_file(documents / "reproduction" / _RESULTS, numbers)
    print_line(console, score)
    print_line(console, f"Wrote {files[0]}")
    return 0


def _drawn(
    experiments: Sequence[Experiment],
    results: Results,
    made: Made,
    *,
    notice: str,
    console: LastingConsole,
) -> tuple[str, ClaimedPage, bytes]:
    """Draw the experiments and judge the claims: a sentence, the page, and `results.json`."""
    figures: list[tuple[Experiment, Figure]] = []
    with console.progress("Drawing the figures") as show:
        for count, one in enumerate(experiments):
            show(count / len(experiments))
            try:
                figures.append((one, function_of(FIGURES[one.drawing])(one, results)))
            except DiffSketchError as error:
                error.args = (f"{error} (while drawing {one.name})",)
                raise
    reduced = any(one.reduced for one in experiments)
    facts = {one.name: figure.facts for one, figure in figures}
    with console.progress("Judging the claims") as show:
        verdicts = judged(facts, reduced=reduced, show=show)
    page = page_of(figures, verdicts, made, notice=notice)
    return summary_text(verdicts), page, records(figures, results, made=made, verdicts=verdicts)


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
    made = Made(command, versions())
    score, page, numbers = _drawn(experiments, results, made, notice=notice, console=console)
    replace_file(output / _RESULTS, numbers)
    with console.progress("Making the pictures") as show:
        written = [*write_page(with_scoreboard(page), output), output / _RESULTS]
        if command == command_of([], reduced=False):
            write_document(page, output, show=show)
            replace_file(output / "reproduction" / _RESULTS, numbers)
    for path in sorted((output / "data").glob("*.csv")):  # of an earlier page
        if path not in written:
            path.unlink()
    return score, written[0]


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
