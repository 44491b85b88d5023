"""One way to send the vectors, with what it costs and what it gives; and the shapes to choose from.

The mechanisms are known here by their protocol only; `candidates` and its siblings build them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from diffsketch.plan.error_model import RelativeError
from diffsketch.plan.request import HEADER_BYTES, PlanRequest
from diffsketch.privacy.claim import Epsilon, ProvenClaim, Trust
from diffsketch.privacy.digits import rounded_up as shown_rounded_up
from diffsketch.privacy.mechanisms.bounds import CoordinateBound, NormBound
from diffsketch.sketch.count_sketch import CountSketch
from diffsketch.sketch.hashing import MAX_COLS

__all__ = [
    "MIN_KEPT",
    "ROWS",
    "TIE",
    "Draft",
    "Layout",
    "Mechanism",
    "Method",
    "Option",
    "layouts",
    "least_error",
    "rounded_up",
]

MIN_KEPT = 0.9
"""What clipping must leave of the mean. Where noise is larger than the mean itself, clipping away
all of it would look best: the error of sending nothing is 1."""

ROWS = (1, 3, 5, 7, 9, 11, 15)
"""Of the tables that are tried."""

_STEP = math.sqrt(2)  # between sizes of tables
TIE = 1.01  # errors closer than this count as equal, and then bytes decide
_FEWEST_CELLS = 16  # of a table smaller than the budget


class Method(StrEnum):
    """What is sent, and which noise is in it."""

    RAW_GAUSSIAN = "vector + Gaussian"
    RAW_LAPLACE = "vector + Laplace"
    RAW_DISCRETE_GAUSSIAN = "vector + discrete Gaussian"
    RAW_SKELLAM = "vector + Skellam"
    SKETCH_GAUSSIAN = "sketch + Gaussian"
    SKETCH_LAPLACE = "sketch + Laplace"
    SKETCH_DISCRETE_GAUSSIAN = "sketch + discrete Gaussian"
    SKETCH_SKELLAM = "sketch + Skellam"
    PADDED_SKETCH = "sketch + appended noise"
    PRIV_UNIT = "PrivUnit"
    PROJ_UNIT = "ProjUnit"


class Mechanism(Protocol):
    """What every mechanism can say."""

    @property
    def claim(self) -> ProvenClaim:
        """What one round guarantees."""


@dataclass(frozen=True)
class Layout:
    """The cells of a message: a sketch's table, or (`rows` is None) the vector itself."""

    dim: int
    rows: int | None
    cols: int

    @property
    def table_rows(self) -> int:
        """Rows of what is sent; a vector is one."""
        return self.rows or 1

    @property
    def cells(self) -> int:
        """Numbers in a message."""
        return self.table_rows * self.cols

    def message_bytes(self, bits: int) -> int:
        """Header and packed cells."""
        return HEADER_BYTES + -(-self.cells * bits // 8)

    def sketch(self) -> CountSketch | None:
        """The sketch that makes the table, if there is one."""
        return None if self.rows is None else CountSketch(self.dim, self.rows, self.cols)


def layouts(request: PlanRequest, bits: int, *, rows: Sequence[int] = ROWS) -> Iterator[Layout]:
    """The vector, if it fits, and tables from the whole budget down to a small part of it.

    The largest table of each number of rows comes first.
    """
    most = request.payload_bytes * 8 // bits
    if most >= request.dim:
        yield Layout(request.dim, None, request.dim)
    most = min(most, request.dim - 1)
    for count in rows:
        cols = min(most // count, MAX_COLS)
        while cols >= 1:
            yield Layout(request.dim, count, cols)
            cols = int(cols / _STEP)
            if count * cols < _FEWEST_CELLS:
                break


@dataclass(frozen=True)
class Draft:
    """A shape with its error, before a mechanism is made of it."""

    layout: Layout
    bits: int
    bound: CoordinateBound | NormBound
    error: RelativeError

    @property
    def message_bytes(self) -> int:
        """What one message takes."""
        return self.layout.message_bytes(self.bits)


def least_error(drafts: Iterable[Draft]) -> Draft | None:
    """The draft with the least error; of those that are nearly as good, the smallest message."""
    good = [draft for draft in drafts if draft.error.kept >= MIN_KEPT]
    if not good:
        return None
    limit = TIE * min(draft.error.total for draft in good)
    close = [draft for draft in good if draft.error.total <= limit]
    return min(close, key=lambda draft: (draft.message_bytes, draft.error.total))


@dataclass(frozen=True)
class Option:
    """A method with all its parameters.

    Attributes:
        method: What is sent.
        mechanism: Clipping, noise and claim; `diffsketch.plan.snippet` shows how to run it.
        sketch: The sketch, if there is one. Query it with the mean of the rows.
        cells: Numbers in a message.
        bits: Per cell; 32 stands for float32, fewer for packed whole numbers.
        clip: The limit of the norm, or of each coordinate if that is the unit.
        noise_std: Of the noise in a cell: of each message for local trust, of the sum for others.
            None where there is no such thing.
        noise_multiplier: That in sensitivities; None where noise has another form.
        message_bytes: What one worker sends in a round.
        compression: How many times smaller that is than the vector in float32.
        error: Predicted relative error of one round.
        total: Epsilon of all rounds, composed from the mechanism's own claim.
        scaling: The noise's part of the error falls with this power of the number of workers.
    """

    method: Method
    mechanism: Any
    sketch: CountSketch | None
    cells: int
    bits: int
    clip: float
    noise_std: float | None
    noise_multiplier: float | None
    message_bytes: int
    compression: float
    error: RelativeError
    total: Epsilon
    scaling: int

    @property
    def trust(self) -> Trust:
        """Whom this method needs to be trusted."""
        return self.total.scope.trust

    @property
    def shape(self) -> str:
        """Of a message, as people write it."""
        if self.sketch is None:
            return str(self.cells)
        return f"{self.sketch.rows} x {self.sketch.cols}"


def rounded_up(value: float, digits: int = 4) -> float:
    """`value` with so many significant digits, never less: numbers that can be read and copied.

    >>> rounded_up(3.14159), rounded_up(1234567.0)
    (3.142, 1235000.0)
    """
    return float(shown_rounded_up(value, digits))
