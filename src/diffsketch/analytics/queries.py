"""Answers about the people of a large table, which an engine reads: DuckDB or Spark.

Rows become sums of whole numbers in SQL, by the formulas of `items`. So the sums are bit for bit
those of the same data in memory, and noise, claims and answers are those of the four questions.
"""

from __future__ import annotations

import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, Protocol

import numpy as np

from diffsketch.analytics.columns import FINEST, Tree, checked_levels, mean_answer, mean_noise
from diffsketch.analytics.counts import named_answer, named_noise, question_of
from diffsketch.analytics.items import STEPS, Bounds, Codes, bounds_of
from diffsketch.analytics.release import Answer, Terms
from diffsketch.errors import ArgumentError, DataError, check_whole, nearest

_NUMBERS = re.compile(
    "BOOLEAN|U?(TINY|SMALL|BIG|HUGE)?INT|U?INTEGER|FLOAT|DOUBLE|DECIMAL.*", re.IGNORECASE
)
_LARGEST = "CAST('1.7976931348623157e308' AS DOUBLE)"
_PIECE = 1 << 16  # keys that are released at a time


class Engine(Protocol):
    """Runs SQL that both DuckDB and Spark understand; `rint` rounds half to even."""

    def rows(self, query: str) -> Iterable[Sequence[Any]]:
        """Return the rows of a query."""

    def keep(self, name: str, query: str) -> None:
        """Compute a query once, as a table of this name."""

    def first(self, column: str, value: str) -> tuple[str, Any] | None:
        """Find the first row where `value`, made of a column, is NULL.

        Returns where it is, in words for an error, and what the column holds there; None if there
        is no such row.
        """


class PeopleTable(ABC):
    """A table with a row for each person, or with some rows for each.

    Guarantees (`tests/analytics/test_files.py`, `test_spark.py`): the sums are those of the same
    data in memory; bad rows are an error that names the column, and nothing is charged then.

    Attributes:
        name: Name for errors.
        columns: Title and SQL type of each column; in SQL they are `c0`, `c1`, ...
        source: SQL of the table.
        person: Title of the column with the person of each row; None where each row is a person.
    """

    name: str
    columns: Sequence[tuple[str, str]]
    source: str
    person: str | None

    @abstractmethod
    def session(self) -> AbstractContextManager[Engine]:
        """Open the engine for one question."""

    def mean(self, columns: Sequence[str], bounds: Any, terms: Terms) -> Answer:
        """Compute means of columns, as `private_mean` does."""
        held = dict(zip(columns, bounds_of(bounds, columns), strict=True))
        if len(held) < len(columns):
            raise ArgumentError(f"columns must be named once each, got {', '.join(columns)}")
        parts = ", ".join(f"count(s{i}), sum(s{i})" for i in range(len(held)))
        with self.session() as engine:
            (row,) = engine.rows(f"SELECT count(*), {parts} FROM {self._steps(held)}")
            people, counts, sums = row[0], row[1::2], row[2::2]
            self._check(engine, people, min(counts), numbers=columns)
        pairs = list(held.values())
        noise = mean_noise(pairs, people, terms)
        return mean_answer(np.array(sums, np.int64), list(held), pairs, noise)

    def quantiles(
        self, column: str, levels: float | Sequence[float], bounds: Any, terms: Terms
    ) -> Answer:
        """Estimate quantiles of a column, as `private_quantiles` does."""
        levels, (pair,) = checked_levels(levels), bounds_of(bounds, [column])
        place_sql = f"CAST(floor((s0 + {STEPS}) / {2 * STEPS // FINEST}) AS BIGINT)"
        counts = f"SELECT least({place_sql}, {FINEST - 1}), count(s0), count(*)"
        table, people = np.zeros(FINEST, np.int64), 0
        with self.session() as engine:
            for place, count, everyone in engine.rows(
                f"{counts} FROM {self._steps({column: pair})} GROUP BY 1"
            ):
                people += everyone
                if place is not None:
                    table[place] = count
            self._check(engine, people, int(table.sum()), numbers=[column])
        tree = Tree.of(pair, people, terms)
        return tree.answer(tree.table(table), levels)

    def counts(
        self, column: str, terms: Terms, *, top: int | None = None, keys_per_person: int = 1
    ) -> Answer:
        """Count the people that have each key, as `private_counts` does; `top` keys, if given."""
        check_whole("keys_per_person", keys_per_person, least=1)
        if top is not None:
            check_whole("top", top, least=1)
        if terms.trust != "central":
            condition = "trust must be central where keys come from the data"
            raise ArgumentError(f"{condition}, got trust={terms.trust!r}")
        rows = f"(SELECT {self._who()} AS who, {self._label(column)} AS label FROM {self.source})"
        with self.session() as engine:
            if self.person is None:
                query = f"SELECT label, count(*) AS people FROM {rows} GROUP BY label"
                totals = "sum(people), sum(CASE WHEN label IS NOT NULL THEN people END) FROM sums"
            else:
                engine.keep("pairs", f"SELECT DISTINCT who, label FROM {rows}")
                # A keyed hash and not random numbers, as in `Items.bounded`.
                order = f"salted(who, label, {secrets.randbits(62)})"
                query = (
                    "SELECT label, count(*) AS people FROM (SELECT label, row_number() OVER "
                    f"(PARTITION BY who ORDER BY {order}, label) AS place FROM pairs) AS ranked "
                    f"WHERE place <= {keys_per_person} GROUP BY label"
                )
                # Not count(DISTINCT who): DuckDB holds all that it counts in memory.
                totals = (
                    "count(*), CASE WHEN count(*) = count(who) AND sum(missing) = 0 THEN count(*) "
                    "END FROM (SELECT who, count(*) - count(label) AS missing FROM pairs GROUP BY "
                    "who) AS persons"
                )
            engine.keep("sums", query)
            ((people, complete),) = engine.rows(f"SELECT {totals}")
            self._check(engine, people or 0, complete, labels=[column])
            noise, threshold = named_noise(keys_per_person, None, int(people), terms)
            question = question_of(None) if top is None else f"top {top}"
            step = noise.mechanism.step
            sums = _pieces(engine.rows("SELECT label, people FROM sums"), round(1 / step))
            return named_answer(sums, noise, threshold, question, top)

    def _place(self, title: str) -> tuple[str, str]:
        """SQL and type of a column."""
        titles = [other for other, _ in self.columns]
        if titles.count(title) != 1:
            what = "two have that name" if title in titles else nearest(title, titles, see="it")
            raise ArgumentError(f"column {title!r} must be one of {self.name}: {what}")
        place = titles.index(title)
        return f"c{place}", self.columns[place][1]

    def _who(self) -> str:
        return "NULL" if self.person is None else self._label(self.person)

    def _label(self, title: str) -> str:
        """SQL of a column as texts: NULL where there is none; `nan` is how pandas writes that."""
        text = f"CAST({self._place(title)[0]} AS STRING)"
        return f"CASE WHEN {text} NOT IN ('', 'nan', 'NaN') THEN {text} END"

    def _number(self, title: str) -> str:
        """SQL of a column as finite numbers, truth values among them; NULL for anything else."""
        place, kind = self._place(title)
        if not _NUMBERS.fullmatch(kind):
            place = f"CAST({place} AS STRING)"
        truth = f"CAST(try_cast({place} AS BOOLEAN) AS DOUBLE)"
        number = f"coalesce(try_cast({place} AS DOUBLE), {truth})"
        return f"CASE WHEN abs({number}) <= {_LARGEST} THEN {number} END"

    def _steps(self, columns: Mapping[str, Bounds]) -> str:
        """SQL of a row for each person: `s0`, `s1`, ... by `steps_of` and `person_steps`.

        NULL stands for a person of whom a number or the id is missing.
        """
        numbers = ", ".join(f"{self._number(title)} AS v{i}" for i, title in enumerate(columns))
        steps = ", ".join(_step(f"v{i}", *pair) for i, pair in enumerate(columns.values()))
        rows = f"SELECT {self._who()} AS who, {numbers} FROM {self.source}"
        rows = f"(SELECT who, {steps} FROM ({rows}) AS numbers) AS steps"
        if self.person is None:
            return rows
        means = ", ".join(
            f"CASE WHEN who IS NOT NULL AND count(s{i}) = count(*) THEN "
            f"CAST(rint(CAST(sum(s{i}) AS DOUBLE) / count(*)) AS BIGINT) END AS s{i}"
            for i in range(len(columns))
        )
        return f"(SELECT {means} FROM {rows} GROUP BY who) AS means"

    def _check(
        self, engine: Engine, people: int, complete: int | None, *,
        numbers: Sequence[str] = (), labels: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Raise unless there are people, and all of them complete: name the first bad row."""
        if not people:
            raise DataError(f"{self.name} has no rows")
        if people == complete:
            return
        wanted = [(title, self._number(title), "a finite number") for title in numbers]
        wanted += [(title, self._label(title), "a value") for title in labels]
        if self.person is not None:
            wanted.append((self.person, self._who(), "the id of a person"))
        for title, value, what in wanted:
            bad = engine.first(self._place(title)[0], value)
            if bad is not None:
                got = "nothing" if bad[1] is None else repr(str(bad[1])[:40])
                raise ArgumentError(
                    f"column {title!r} of {self.name} must have {what} in each row, got {got}"
                    f"{bad[0]}"
                )


def _step(value: str, low: float, high: float) -> str:
    """SQL of `steps_of`: the same operations in the same order."""
    ends = low, high, (low + high) / 2, (high - low) / 2
    least, most, middle, half = (f"CAST('{number!r}' AS DOUBLE)" for number in ends)
    clipped = f"(greatest({least}, least({most}, {value})) - {middle}) / {half}"
    steps = f"rint(greatest(-1e0, least(1e0, {clipped})) * {STEPS}e0)"
    return f"CASE WHEN {value} IS NOT NULL THEN CAST({steps} AS BIGINT) END AS s{value[1:]}"


def _pieces(rows: Iterable[Sequence[Any]], whole: int) -> Iterator[tuple[list[str], Codes]]:
    """Labels and their counts, each person `whole` steps."""
    left = iter(rows)
    while piece := list(islice(left, _PIECE)):
        yield [row[0] for row in piece], np.array([row[1] for row in piece], np.int64) * whole
