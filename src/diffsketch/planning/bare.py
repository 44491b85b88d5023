"""Sizes of a bare sketch for a number of bytes: columns and bits together, without privacy."""

from __future__ import annotations

from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from diffsketch.errors import ArgumentError, check, check_whole
from diffsketch.methods.forecast import RelativeError, Vectors
from diffsketch.methods.plain import PlainSketch, Uncompressed
from diffsketch.planning.report import TASK, TASK_DEVICES, TASK_DIM
from diffsketch.sketch.hashing import MAX_COLS
from diffsketch.sketch.rounding import CELL_BITS
from diffsketch.wire.formats import payload_within

_MNIST_WORKERS = 300  # that the task of workers has examples for
_MIN_KEPT = 0.9  # of the mean: saturation shortens it, and with it the steps of training


@dataclass(frozen=True)
class SketchSize:
    """A bare sketch that fits the bytes, and the predicted relative error of one round."""

    method: PlainSketch
    error: RelativeError

    def over(self, rounds: int) -> float:
        """Predicted error of the average over rounds with fresh hashes.

        Saturation takes the same of each, and does not average out.
        """
        bias = (1 - self.error.kept) ** 2
        return bias + (self.error.total - bias) / rounds


def sketch_sizes(
    dim: int, cohort: int, message_bytes: int, *, rounds: int = 1, spread: float = 0.0
) -> list[SketchSize]:
    """Find the best sketch for each number of bits, those with the least error first.

    One row each: to the mean over the rows, tables of as many cells are all alike. Cells of so few
    bits that saturation takes more than a tenth of the mean are left out, and tables that take more
    bytes than the vectors themselves, unless all do.

    Args:
        dim: Length of the vectors.
        cohort: Workers whose messages are summed.
        message_bytes: The most that one message may take, header included.
        rounds: Rounds that are averaged, as training does: what errors are compared over.
        spread: As in `PlanRequest`.

    Raises:
        ArgumentError: No sketch fits into so few bytes.

    >>> best = sketch_sizes(7850, 10, 8)[0].method
    >>> best.bits, best.cols, best.wire_bytes, round(best.compression)
    (2, 22, 8, 3925)
    """
    check_whole("message_bytes", message_bytes, least=1)
    check_whole("cohort", cohort, least=1)
    check_whole("rounds", rounds, least=1)
    room, found = 8 * payload_within(message_bytes), list[SketchSize]()
    vectors = Vectors(dim, cohort, spread=spread)
    for bits in (*CELL_BITS, 32):
        cols = room // bits - (0 if bits == 32 else -(-4 // bits))  # less those for the size
        cols = min(cols, dim, MAX_COLS)
        if cols >= 1:
            method = PlainSketch(dim, 1, cols, bits=bits, cohort=cohort)
            error = method.forecast(vectors)
            if error.kept >= _MIN_KEPT:
                found.append(SketchSize(method, error))
    check(bool(found), "message_bytes", "be enough for a header and one cell", message_bytes)
    smaller = [size for size in found if size.method.compression > 1]  # than the vectors themselves
    return sorted(smaller or found, key=lambda size: (size.over(rounds), size.method.wire_bytes))


def _run_command(method: PlainSketch, rounds: int, *, dense: bool) -> str | None:
    """Write a `diffsketch run` with such messages; None if no task of it has these vectors."""
    if method.dim != TASK_DIM or not method.cohort or method.cohort > TASK_DEVICES:
        return None
    where = f"--task {TASK} --cohort {method.cohort}"
    if method.cohort <= _MNIST_WORKERS:
        where = f"--task mnist --workers {method.cohort}"
    sizes = f"--rows 1 --cols {method.cols} --bits {method.bits}"
    chosen = "none" if dense else f"sketch {sizes}"
    return f"diffsketch run {where} --rounds {rounds} --method {chosen}"


def report_sizes(
    sizes: list[SketchSize], *, rounds: int, message_bytes: int, alternatives: int = 5
) -> tuple[Table | Text, ...]:
    """Lay out the sketches side by side, and say how to run the best, where a task has such.

    Where the vectors themselves fit into the bytes, they are the best: their mean is exact.
    """
    if not sizes:
        raise ArgumentError("sizes must not be empty, got []")
    check_whole("alternatives", alternatives, least=0)
    table = Table(
        title="Bare sketches, best first", title_justify="left", box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0), pad_edge=False, show_edge=False,
    )  # fmt: skip
    for name in ("bits", "rows", "columns", "bytes", "ratio", "error", "rounding", "all rounds"):
        table.add_column(name, justify="right", no_wrap=True)
    best = sizes[0].method
    whole = Uncompressed(best.dim).wire_bytes
    dense = whole <= message_bytes
    for index, size in enumerate(sizes[: 1 + alternatives]):
        method, error = size.method, size.error
        table.add_row(
            str(method.bits), "1", f"{method.cols:,}", f"{method.wire_bytes:,}",
            f"{method.compression:,.4g}x", f"{error.total:.3g}", f"{error.rounding:.3g}",
            f"{size.over(rounds):.3g}", style="bold" if index == 0 and not dense else None,
        )  # fmt: skip
    command = _run_command(best, rounds, dense=dense)
    settings = f"rows=1, cols={best.cols}, bits={best.bits}"
    answer = (
        f"{best.bits} bits a cell, {best.wire_bytes:,} bytes a message. Vectors as they are take "
        f"{whole:,} (--method none)."
    )
    if dense:
        answer = (
            f"no sketch. Vectors as they are fit, with {whole:,} bytes a message, and their mean "
            "is exact (--method none)."
        )
    return (
        table,
        Text(
            "error: mean squared error of one round over the squared norm of the mean, predicted "
            "for dense vectors; all rounds: that of their average, by which they are ordered. No "
            "privacy: a bare sketch claims none.", style="dim",
        ),
        Text.assemble(("Best: ", "bold"), answer),
        *(() if command is None else (Text.assemble(("Run it: ", "bold"), command),)),
        *(() if dense else (Text.assemble(
            ("In DDP: ", "bold"), f'sketch_state(model, "sketch", {settings}, seed=7)'
        ),)),
    )  # fmt: skip
