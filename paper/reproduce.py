"""The command `python -m paper`: the jobs of the experiments, then the page.

A run's `results.json` is written with the page, and read back to draw and judge it again.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from diffsketch.app.files import check_empty, locked, read_json, versions
from diffsketch.app.pool import Stop
from diffsketch.app.terminal import Interrupts, LastingConsole, print_line
from diffsketch.errors import DiffSketchError, MismatchError, check
from diffsketch.files import leftovers, prepare_output, replace_file
from diffsketch.pages.exhibits import Page
from diffsketch.pages.page import write_page
from paper.claims import Verdicts, judged, summary_text
from paper.document import Origin, command_of, notice_of, page_of, write_document
from paper.experiments import (
    DRAWINGS,
    FORMAT,
    SETTINGS,
    Experiment,
    Job,
    Results,
    load,
    minutes_text,
    name_of_experiment,
    names,
    wall_seconds,
)
from paper.figures import Fact, Figure, Figures
from paper.jobs import Failure, JobsOutcome, Store, do_jobs, labels_of

_MARK, _CACHE, _RESULTS, _ERRORS = "reproduction.json", "cache", "results.json", "errors.txt"
_CURVE = ("round", "loss", "accuracy", "bytes_up", "bytes_down", "noised_share", "left_out")


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
    begin, every = time.monotonic(), names(folder)
    asked = {name_of_experiment(name, folder) for name in wanted} or set(every)
    left_out = [name for name in every if name not in asked]
    experiments = [load(name, reduced=reduced, folder=folder) for name in every if name in asked]
    with _owned(output, reduced=reduced):
        if notice := notice_of(reduced=reduced, left_out=left_out):
            print_line(console, notice.replace("`", ""))
        with Interrupts() as signals:
            store = Store(output / _CACHE)
            outcome = _work(experiments, store, console, jobs, lambda: signals.signal is not None)
        if outcome.interrupted:
            said = "Interrupted; what is done is kept. Continue with the same command."
            print_line(console, said)
            return signals.exit_status
        done = [each for each in experiments if set(each.jobs) <= outcome.results.keys()]
        if done:
            failed = [each.name for each in experiments if each not in done]
            notice = notice_of(reduced=reduced, left_out=left_out, failed=failed)
            only = [each.name for each in experiments] if left_out else []
            origin = Origin(command_of(only, reduced=reduced), versions(), notice=notice)
            page, results_bytes = _drawn(done, outcome.results, origin, console)
            path = _write(page, results_bytes, output, console, whole=not (left_out or reduced))
            cached = len(outcome.results) - outcome.made
            took = minutes_text(time.monotonic() - begin)
            counts = f"{_count(outcome.made, 'job')} done, {cached} from the cache"
            print_line(console, f"{counts}; took {took}.")
            print_line(console, f"Wrote {path}")
        _raise_failures(outcome.failures, output / _ERRORS)
    return 0


def _raise_failures(failures: Sequence[Failure], path: Path) -> None:
    """Keep the tracebacks of all failures in a file, and raise an error that names the first."""
    path.unlink(missing_ok=True)
    if failures:
        text = "\n".join(f"{each.label}: {each.reason}\n\n{each.trace}" for each in failures)
        replace_file(path, text.encode(errors="replace"))
        more = f"and {_count(len(failures) - 1, 'other')}: " if len(failures) > 1 else ""
        kept = "what is done is kept, and the same command tries the rest again"
        raise JobsFailed(f"{failures[0].label}: {failures[0].reason} ({more}see {path}); {kept}")


def _work(
    experiments: Sequence[Experiment], store: Store, console: LastingConsole, jobs: int, stop: Stop
) -> JobsOutcome:
    pieces = {job for each in experiments for job in each.jobs}
    print_line(
        console,
        f"{_count(len(experiments), 'experiment')}, {_count(len(pieces), 'job')}: about "
        f"{minutes_text(wall_seconds(pieces, jobs))} with {_count(jobs, 'process')}, less what "
        f"is in {store.directory} already.",
    )
    with console.progress("work") as show:
        outcome = do_jobs(experiments, store, processes=jobs, show=show, stop=stop)
    if outcome.again:
        results = _count(outcome.again, "result")
        print_line(console, f"note: {results} made again: damaged, or made by other code")
    return outcome


def redraw(
    documents: Path, store: Path, console: LastingConsole, *, folder: Path = SETTINGS
) -> int:
    """Draw and judge the recorded run below `documents` again, and write its documents anew.

    The run is `reproduction/results.json`. Jobs that it lacks have the results of the cache below
    `store`.

    Guarantees (`paper/tests/test_reproduce.py`): nothing is run, and the same results give the
    same documents as the run itself.

    Raises:
        MismatchError: Some job has a result in neither.
    """
    path = documents / "reproduction" / _RESULTS
    experiments = [load(name, reduced=False, folder=folder) for name in names(folder)]
    results, origin = recorded_results(path, experiments, Store(store / _CACHE))
    page, results_bytes = _drawn(experiments, results, origin, console)
    with console.progress("Making the pictures") as show:
        files = write_document(page, documents, show=show)
    replace_file(path, results_bytes)
    print_line(console, f"Wrote {files[0]}")
    return 0


def _drawn(
    experiments: Sequence[Experiment], results: Results, origin: Origin, console: LastingConsole
) -> tuple[Page, bytes]:
    """Draw the experiments, judge the claims, say how they stand: the page and `results.json`."""
    figures: list[tuple[Experiment, Figure]] = []
    with console.progress("Drawing the figures") as show:
        for count, experiment in enumerate(experiments):
            show(count / len(experiments))
            try:
                figure = resolve_name(DRAWINGS[experiment.drawing])(experiment, results)
            except DiffSketchError as error:
                error.args = (f"{error} (while drawing {experiment.name})",)
                raise
            seconds = origin.seconds.get(experiment.name, {})
            facts = {name: seconds.get(name, value) for name, value in figure.facts.items()}
            figures.append((experiment, replace(figure, facts=facts)))
    all_facts = {experiment.name: figure.facts for experiment, figure in figures}
    verdicts = judged(all_facts, reduced=any(experiment.reduced for experiment in experiments))
    print_line(console, summary_text(verdicts))
    page = page_of(figures, verdicts, origin)
    return page, results_json(figures, results, verdicts, origin)


def _write(
    page: Page, results_bytes: bytes, output: Path, console: LastingConsole, *, whole: bool
) -> Path:
    """Write the page, which is returned, and `results.json`; of a whole run the documents, too."""
    with console.progress("Making the pictures") as show:
        written = write_page(page, output)
        replace_file(output / _RESULTS, results_bytes)
        if whole:
            write_document(page, output, show=show)
            replace_file(output / "reproduction" / _RESULTS, results_bytes)
    for path in sorted((output / "data").glob("*.csv")):  # of an earlier page
        if path not in written:
            path.unlink()
    return written[0]


@contextmanager
def _owned(output: Path, *, reduced: bool) -> Iterator[None]:
    """Make the directory ours, alone, while the work goes on; raise if it is somebody else's."""
    mark = output / _MARK
    content = json.dumps({"format": FORMAT, "reduced": reduced}).encode() + b"\n"
    if not mark.is_file():
        halves = leftovers(output, [_MARK])
        check_empty(output, but=halves, advice="or one of an earlier python -m paper")
    else:
        other = f"the page of a {'full' if reduced else 'reduced'} run, or of another version"
        must = f"be another directory, since this one has {other}"
        check(mark.read_bytes() == content, "output", must, str(output))
    prepare_output(output)
    with locked(output):
        replace_file(mark, content)
        yield


def _count(number: int, word: str) -> str:
    plural = f"{word}es" if word.endswith("s") else f"{word}s"
    return f"{number:,} {word if number == 1 else plural}"


# --- `results.json` -------------------------------------------------------------------------


def results_json(figures: Figures, results: Results, verdicts: Verdicts, origin: Origin) -> bytes:
    """The content of `results.json`: everything that was measured, facts and verdicts.

    No times of the clock are in it but in the facts, so that the same work gives the same bytes.
    """

    def fact(value: Fact) -> Fact:
        # JSON has no word for what is not finite.
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    def keyed(job: Job) -> dict[str, Any]:
        later = origin.sources.get(job.key)
        return {"seed": job.seed, "key": job.key, **({"source": later} if later else {})}

    experiments = {}
    for experiment, figure in figures:
        experiments[experiment.name] = {
            "facts": {name: fact(value) for name, value in figure.facts.items()},
            "runs": [
                {"name": variant.name, "panels": list(variant.panels), "group": variant.group,
                 **keyed(job), **_run_record(results[job])}
                for variant in experiment.variants
                for job in experiment.jobs_of(variant)
            ],
            "measurements": [
                {"name": item.name, "kind": item.kind, "settings": dict(item.settings),
                 **keyed(job), "result": results[job]}
                for item in experiment.measurements
                for job in experiment.jobs_of(item)
            ],
        }  # fmt: skip
    content = {
        "format": FORMAT,
        "command": origin.command,
        "versions": dict(origin.versions),
        "reduced": any(experiment.reduced for experiment, _ in figures),
        "claims": [
            {"name": claim.name, "claim": claim.quote, "where": claim.where,
             "verdict": str(verdict), "measured": verdict.measured, "rule": verdict.rule}
            for claim, verdict in verdicts.items()
        ],
        "experiments": experiments,
    }  # fmt: skip
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _run_record(result: Mapping[str, Any]) -> dict[str, Any]:
    """A run; its curve has a list for each quantity, a third of the bytes of a record a round."""
    curve = result["curve"]
    columns = {name: [point.get(name) for point in curve] for name in _CURVE}
    columns["epsilon"] = [point["epsilon"]["value"] for point in curve]
    if any("drift" in point for point in curve):
        columns["drift"] = [point.get("drift") for point in curve]
    # The versions are those of all; every other run would repeat them.
    summary = {name: value for name, value in result["summary"].items() if name != "versions"}
    return {"summary": summary, "curve": columns}


def recorded_results(
    path: Path, experiments: Sequence[Experiment], store: Store
) -> tuple[dict[Job, Mapping[str, Any]], Origin]:
    """Read a full run's results of all jobs; of those that it lacks, from the store.

    Raises:
        MismatchError: It is not the file of a full run, or lacks a job that the store lacks, too.
    """
    data, here = read_json(path), versions()["source"]
    if data.get("format") != FORMAT or data.get("reduced") is not False:
        raise MismatchError(
            f"{path}: must be the results of a full run, with the format {FORMAT!r}, got "
            f"format={data.get('format')!r}, reduced={data.get('reduced')!r}"
        )
    by_key, records = {}, data["experiments"]
    for record in records.values():
        for run in record["runs"]:
            by_key[run["key"]] = _run_of(run, record["facts"]), run.get("source", "")
        for item in record["measurements"]:
            by_key[item["key"]] = item["result"], item.get("source", "")
    results: dict[Job, Mapping[str, Any]] = {}
    sources: dict[str, str] = {}
    for job, label in labels_of(experiments).items():
        result, later = by_key.get(job.key) or (store.find(job), here)
        if result is None:
            raise MismatchError(f"{path}: lacks {label}; python -m paper makes it")
        results[job] = result
        sources |= {job.key: later} if later else {}
    drawn_by = "" if here == data["versions"]["source"] else here
    known = [experiment for experiment in experiments if experiment.name in records]
    seconds = {each.name: _recorded_seconds(each, records[each.name]) for each in known}
    return results, Origin(data["command"], data["versions"], sources, drawn_by, seconds)


def _run_of(record: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """A training run as jobs give it; of its time the mean over the seeds was kept."""
    summary, columns = record["summary"], record["curve"]
    points = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for point in points:
        point["epsilon"] = {"value": point["epsilon"]}
    seconds = facts.get(f"seconds/{record['panels'][0]}/{record['name']}")
    times = {} if seconds is None else {"training": seconds * summary["rounds"]}
    return {"summary": summary, "times": times, "curve": points}


def _recorded_seconds(experiment: Experiment, record: Mapping[str, Any]) -> dict[str, Fact]:
    """The recorded seconds of a round, of each line whose runs are all in its record.

    Runs have lost their own: another experiment's mean of a run that both have would change them.
    """
    runs = {(panel, run["name"], run["key"]) for run in record["runs"] for panel in run["panels"]}
    names = {
        f"seconds/{panel}/{line.name}"
        for line in experiment.variants
        for panel in line.panels
        if runs >= {(panel, line.name, job.key) for job in experiment.jobs_of(line)}
    }
    return {name: value for name, value in record["facts"].items() if name in names}
