"""Sizes of a bare sketch for a number of bytes: columns and bits together, without privacy."""

from __future__ import annotations

from dataclasses import dataclass

from diffsketch.errors import check, check_whole
from diffsketch.methods.forecast import RelativeError, Vectors
from diffsketch.methods.plain import PlainSketch
from diffsketch.sketch.hashing import MAX_COLS
from diffsketch.sketch.rounding import CELL_BITS
from diffsketch.wire.message import payload_within

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

    One row each: the mean over rows has the same error for all tables with equally many cells.
    Left out are cells with so few bits that saturation takes more than a tenth of the mean, and
    tables that take more bytes than the vectors themselves, unless all do.

    Args:
        dim: Length of the vectors.
        cohort: Workers whose messages are summed.
        message_bytes: The most that one message may take, header included.
        rounds: Rounds that are averaged, as training does: what errors are compared over.
        spread: As in `PlanRequest`.

    Raises:
        ArgumentError: No sketch fits into `message_bytes`.

    >>> best = sketch_sizes(7850, 10, 8)[0].method
    >>> best.bits, best.cols, best.wire_bytes, round(best.compression)
    (2, 22, 8, 3925)
    """
    check_whole("message_bytes", message_bytes, least=1)
    check_whole("cohort", cohort, least=1)
    check_whole("rounds", rounds, least=1)
    room, sizes = 8 * payload_within(message_bytes), list[SketchSize]()
    vectors = Vectors(dim, cohort, spread=spread)
    for bits in (*CELL_BITS, 32):
        cols = room // bits - (0 if bits == 32 else -(-4 // bits))  # less those for the size
        cols = min(cols, dim, MAX_COLS)
        if cols >= 1:
            method = PlainSketch(dim, 1, cols, bits=bits, cohort=cohort)
            error = method.forecast(vectors)
            if error.kept >= _MIN_KEPT:
                sizes.append(SketchSize(method, error))
    check(bool(sizes), "message_bytes", "be enough for a header and one cell", message_bytes)
    smaller = [size for size in sizes if size.method.compression > 1]  # than the vectors themselves
    return sorted(smaller or sizes, key=lambda size: (size.over(rounds), size.method.wire_bytes))
