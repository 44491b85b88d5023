"""Lines of runs as tables: what each came to, single runs, and their settings."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from diffsketch.app.compare import Result, rows_of
from diffsketch.pages.exhibits import Cell, Table
from diffsketch.pages.runs_lines import Line, of_settings
from diffsketch.pages.runs_plots import OUTCOMES, outcome_of
from diffsketch.pages.runs_reading import Run

__all__ = ["Numbers", "details_of", "numbers_of", "table_of"]

_COLUMNS = (
    "Run", "Outcome", "Seeds", "Accuracy, %", "±", "Best accuracy, %", "Epsilon", "Rounds",
    "Bytes of a message", "Bytes up", "Bytes down", "Compression", "Messages with noise, %",
    "Milliseconds a round",
)  # fmt: skip
_RUN_COLUMNS = (
    "Directory", "Run", "Seed", "Outcome", "Reason", "Rounds", "Accuracy, %", "Loss", "Bytes up",
    "Bytes down", "Epsilon", "Milliseconds a round", "Command", "Version",
)  # fmt: skip


@dataclass(frozen=True)
class Numbers:
    """What a line came to: means over the seeds that ended, or, if none did, of all so far.

    Attributes:
        accuracy: Of the last measurement; None if there is none.
        spread: Its standard deviation over the seeds; None for one seed.
        best: The best accuracy of each seed.
        rounds: Of the seed that did most.
        bytes_up: Sent by workers.
        bytes_down: Sent to workers.
        message_bytes: Of one message; None if no seed ended.
        compression: Bytes of vectors in float32 over those of the messages; None if not known.
        noised: Share of messages that needed noise, in percent; None where nobody asks.
        milliseconds: Of training, for a round; None if not known.
    """

    accuracy: float | None
    spread: float | None
    best: float | None
    rounds: int
    bytes_up: float
    bytes_down: float
    message_bytes: int | None = None
    compression: float | None = None
    noised: float | None = None
    milliseconds: float | None = None

    @property
    def bytes(self) -> float:
        """Up and down."""
        return self.bytes_up + self.bytes_down


def numbers_of(line: Line) -> Numbers:
    """The numbers of a line."""
    seconds = [run.seconds for run in line.runs if run.seconds is not None]
    milliseconds = 1000 * statistics.fmean(seconds) if seconds else None
    ended = [run for run in line.runs if run.ended]
    begun = ended or [run for run in line.runs if run.curve]
    if not begun:
        return Numbers(None, None, None, 0, 0, 0, milliseconds=milliseconds)
    last = [run.curve[-1].accuracy for run in begun]
    shares = [run.curve[-1].noised_share for run in begun]
    known = [share for share in shares if share is not None]
    so_far = Numbers(
        accuracy=statistics.fmean(last),
        spread=statistics.stdev(last) if len(last) > 1 else None,
        best=statistics.fmean(max(point.accuracy for point in run.curve) for run in begun),
        rounds=max(run.rounds for run in begun),
        bytes_up=statistics.fmean(_sent(run)[0] for run in begun),
        bytes_down=statistics.fmean(_sent(run)[1] for run in begun),
        noised=100 * statistics.fmean(known) if known else None,
        milliseconds=milliseconds,
    )
    if not ended:
        return so_far
    (row,) = rows_of([Result(line.name, run.config.seed, run.summary, {}, []) for run in ended])
    return dataclasses.replace(
        so_far,
        accuracy=row["accuracy"],
        spread=row["accuracy_spread"],
        message_bytes=row["message_bytes"],
        compression=row["compression"] if row["bytes"] else None,
    )


def table_of(lines: Sequence[Line], *, prefix: str) -> Table:
    """One row for each line, without columns that would be empty."""
    rows = [_row(line) for line in lines]
    kept = [
        place for place, _ in enumerate(_COLUMNS) if any(row[place] is not None for row in rows)
    ]
    many = any(len(line.runs) > 1 for line in lines)
    return Table(
        name=f"{prefix}-results",
        title="Side by side",
        columns=tuple(_COLUMNS[place] for place in kept),
        rows=tuple(tuple(row[place] for place in kept) for row in rows),
        caption=(
            ("Means over the seeds, ± the standard deviation; epsilon is the largest. " * many)
            + "Accuracy is that of the last measurement. Bytes are those of all messages with "
            "their headers; compression is of vectors in float32 to them. Interrupted: not "
            "finished, and no process of this machine is writing to it."
        ),
    )


def details_of(lines: Sequence[Line], *, prefix: str) -> dict[str, Table]:
    """Folded away: all single runs, and the settings of each line."""
    runs = [(line, run) for line in lines for run in line.runs]
    found = {
        "Single runs": Table(
            name=f"{prefix}-runs",
            title="Single runs",
            columns=_RUN_COLUMNS,
            rows=tuple(_run_row(line, run) for line, run in runs),
        )
    }
    for number, line in enumerate(lines, start=1):
        settings: list[tuple[Cell, ...]] = list(of_settings(line.config).items())
        found[f"Settings of {line.name}"] = Table(
            name=f"{prefix}-settings-{number}",
            title=line.name,
            columns=("Setting", "Value"),
            rows=(*settings, ("seeds", line.seeds)),
        )
    return found


def _row(line: Line) -> tuple[Cell, ...]:
    numbers, planned = numbers_of(line), line.config.rounds
    early = f" (of {planned:,} rounds)" if planned != numbers.rounds else ""
    return (
        line.name,
        f"{outcome_of(line)}{early}",
        len(line.runs),
        _percent(numbers.accuracy),
        _percent(numbers.spread),
        _percent(numbers.best),
        line.epsilon,
        numbers.rounds,
        numbers.message_bytes,
        round(numbers.bytes_up),
        round(numbers.bytes_down),
        numbers.compression,
        numbers.noised,
        numbers.milliseconds,
    )


def _run_row(line: Line, run: Run) -> tuple[Cell, ...]:
    last = run.curve[-1] if run.curve else None
    up, down = _sent(run)
    return (
        str(run.path),
        line.name,
        run.config.seed,
        OUTCOMES.get(run.outcome, run.outcome),
        str(run.summary["reason"]) if run.summary is not None else "",
        run.rounds,
        _percent(last.accuracy) if last else None,
        last.loss if last else None,
        up,
        down,
        run.epsilon,
        1000 * run.seconds if run.seconds is not None else None,
        run.command,
        ", ".join(f"{name} {value}" for name, value in run.versions.items()),
    )


def _sent(run: Run) -> tuple[int, int]:
    """Bytes up and down. The summary has also those of a round that diverged."""
    if run.summary is not None:
        return int(run.summary["bytes_up"]), int(run.summary["bytes_down"])
    return (run.curve[-1].bytes_up, run.curve[-1].bytes_down) if run.curve else (0, 0)


def _percent(share: float | None) -> float | None:
    # Without the digits that only come from the multiplication.
    return None if share is None else round(100 * share, 6)
