"""Data of people, items (person, key, value) or rows of columns, and bounds on each person.

Nothing here is ever as large as people times keys. Everything that one person adds to a table is
decided by that person's data, public settings and random numbers of its own: so another person's
data changes nothing of it, and the bounds below are bounds on what one person can change.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from diffsketch.errors import ArgumentError, MismatchError, check, check_whole
from diffsketch.methods.gate import sparse_rows

Codes: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Bounds: TypeAlias = tuple[float, float]
_PIECE = 1 << 19  # items that are bounded at a time
STEPS = 1 << 30  # of half a range: rounding is below 1e-9 of it, and sums of 2**32 people fit


def column(values: Any, name: str) -> npt.NDArray[Any]:
    """Make a one-dimensional array of a column: a list, an array, a pandas or an Arrow column.

    Raises:
        ArgumentError: It has no values, several dimensions, or a value is missing; the error names
            the first row without one.
    """
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    elif hasattr(values, "to_numpy"):  # pandas, Polars and Arrow
        values = values.to_numpy()
    if isinstance(values, list | tuple) and any(isinstance(value, str) for value in values):
        values = _objects(values)
    array = np.asarray(values)
    if array.ndim != 1 or not len(array):
        raise ArgumentError(f"{name} must be a column of values, got the shape {array.shape}")
    if array.dtype == object:
        absent = np.array([value is None or value != value for value in array.tolist()])
    else:
        absent = array != array  # NaN, and pandas' NaT
    if absent.any():
        raise ArgumentError(f"{name} must have a value in each row, got none in row {_row(absent)}")
    if array.dtype == object:
        kinds = {type(value) for value in array.tolist()}
        if kinds == {str}:
            return array  # as it is: an array of texts has the longest one's width in every row
        if not kinds <= {int, float, bool, np.bool_}:
            types = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise ArgumentError(f"{name} must be numbers or texts in all rows, got {types}")
        return np.asarray(array.tolist())
    return array


def numbers(values: Any, name: str) -> Floats:
    """Make finite float64 numbers of a column; truth values are 0 and 1.

    Raises:
        ArgumentError: It holds something else; the error names the column and the first such row.
    """
    array = column(values, name)
    if array.dtype.kind not in "biuf":
        bad = np.array([not _is_number(value) for value in array.tolist()])
        where = f": row {_row(bad)} has {array.tolist()[_row(bad)]!r}" if bad.any() else ""
        kind = "texts" if array.dtype.kind in "OU" else array.dtype
        raise ArgumentError(f"{name} must have numbers, got {kind}{where}")
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        wrong = _row(~np.isfinite(array))
        raise ArgumentError(f"{name} must be finite, got {array[wrong]} in row {wrong}")
    return array


def _is_number(text: object) -> bool:
    try:
        float(str(text))
    except ValueError:
        return False
    return True


def _row(wrong: npt.NDArray[np.bool_]) -> int:
    return int(np.flatnonzero(wrong)[0])


def codes(values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Codes]:
    """Return the distinct values in order, and the place of each row's value among them."""
    if values.dtype != object:
        names = np.unique(values)  # with the places as well it would take twice the memory
        return names, np.searchsorted(names, values)
    texts = values.tolist()
    distinct = sorted(set(texts))
    place = {text: i for i, text in enumerate(distinct)}
    return _objects(distinct), np.fromiter(map(place.__getitem__, texts), np.int64, len(texts))


def _objects(texts: Sequence[Any]) -> npt.NDArray[Any]:
    array = np.empty(len(texts), object)
    array[:] = texts
    return array


def persons_of(person: Any, rows: int, name: str) -> tuple[Codes | None, int]:
    """Return the place of each row's person among all persons, and the number of persons.

    Without a column of persons each row is a person of its own, and the first is None.
    """
    if person is None:
        return None, rows
    persons, places = codes(column(person, name))
    if len(places) != rows:
        raise MismatchError(f"{name} must have {rows} rows, as the data, got {len(places)}")
    return places, len(persons)


@dataclass(frozen=True, eq=False)
class Items:
    """Items of people: (person, key, value) columns of one length.

    Attributes:
        person: Code of each item's person, below `people`.
        key: Code of each item's key: its place in `names`; or -1, for items that do not count.
        value: Number of each item; None where only presence counts.
        people: Number of people, also of those without an item. It is public.
        names: The keys, in order.
    """

    person: Codes
    key: Codes
    value: Floats | None
    people: int
    names: npt.NDArray[Any]
    listed: bool = False  # whether the names were known without the data

    @classmethod
    def of(cls, people: Any, keys: Any = None, values: Any = None) -> Items:
        """Read items from columns, or from a sparse matrix with a row a person.

        Args:
            people: The person of each row: ids of any kind. Or a SciPy or torch sparse matrix
                `(people, keys)`; or a number, where each row is a person of its own.
            keys: The key of each row; whole numbers or texts.
            values: The number of each row; None where only presence counts.

        Raises:
            ArgumentError: Columns have different lengths, a value is missing or of a wrong kind.
        """
        if isinstance(people, Items):
            return people
        if keys is None:
            matrix = sparse_rows(people)
            if matrix is None:
                kind = type(people).__name__
                raise ArgumentError(f"keys must be given where people is no sparse matrix: {kind}")
            # Views of the matrix, but for rows: a column of them as long as its data.
            matrix = matrix.tocoo(copy=False)
            row, key, value = matrix.row, matrix.col, matrix.data
            if value.dtype.kind not in "biuf":
                raise ArgumentError(f"people must be a matrix of numbers, got {value.dtype}")
            if not value.all():  # a stored zero is no item
                row, key, value = (side[value != 0] for side in (row, key, value))
            if not np.isfinite(value).all():
                wrong = row[_row(~np.isfinite(value))]
                raise ArgumentError(f"people must have finite values, got others in row {wrong}")
            return cls(row, key, value, matrix.shape[0], np.arange(matrix.shape[1]), listed=True)
        names, key = codes(column(keys, "keys"))
        who, count = persons_of(people, len(key), "people")
        value = None if values is None else numbers(values, "values")
        if value is not None and len(value) != len(key):
            raise MismatchError(f"values must have {len(key)} rows, as keys, got {len(value)}")
        person = np.arange(count) if who is None else who
        return cls(person, key, value, count, names)

    def pieces(self, most: int, bounds: Bounds | None = None) -> Iterator[Items]:
        """Bound what each person contributes: `most` keys, and values within `bounds`.

        Rows of a person with the same key are one item, of the sum of their values. Of a person
        with more keys, `most` are drawn at random, so that no key is favoured. Yields some people
        at a time, so that memory beyond the data is that of a piece.
        """
        check_whole("keys_per_person", most, least=1)
        width = max(1, len(self.names))
        check(self.people <= 2**63 // width - 1, "people", "times keys be below 2**63", self.people)
        is_sorted = bool((self.person[1:] >= self.person[:-1]).all())
        order = None if is_sorted else np.argsort(self.person, kind="stable")
        end = 0
        while (start := end) < len(self.person):
            end = min(start + _PIECE, len(self.person))
            last = self.person[end - 1 if order is None else order[end - 1]]
            # To the end of a person.
            end = int(np.searchsorted(self.person, last, side="right", sorter=order))
            rows = slice(start, end) if order is None else order[start:end]
            yield self._bounded(rows, most, bounds, width)

    def _bounded(self, rows: Any, most: int, bounds: Bounds | None, width: int) -> Items:
        """Bound the contributions of the people who have these rows, all of each."""
        key = self.key[rows].astype(np.int64)
        asked = key >= 0
        codes_of_rows = self.person[rows].astype(np.int64)[asked] * width + key[asked]
        pairs, places = np.unique(codes_of_rows, return_inverse=True)
        person, key = pairs // width, pairs % width
        value: Floats | None = None
        if bounds is not None:
            held = np.ones(len(asked)) if self.value is None else self.value[rows]
            sums = np.bincount(places.ravel(), held[asked], minlength=len(pairs))
            value = np.clip(sums, *bounds).astype(np.float64)
        # Pairs are in the order of people. Within a person a random order decides what is dropped:
        # drawn anew for each pair, so its law for others is the same whatever a person has.
        draws = np.frombuffer(secrets.token_bytes(8 * len(pairs)), np.uint64)
        order = np.lexsort((draws, person))
        rank = np.arange(len(pairs)) - np.searchsorted(person, person)
        kept = np.sort(order[rank < most])
        return Items(
            person[kept], key[kept], None if value is None else value[kept], self.people, self.names
        )

    def asked(self, keys: Any) -> Items:
        """Give items the places of their keys among these; -1 for others, which are left out."""
        wanted = column(keys, "asked")
        if len(set(wanted.tolist())) != len(wanted):
            raise ArgumentError("asked must name each key once")
        place = {name: i for i, name in enumerate(wanted.tolist())}
        new = np.array([place.get(name, -1) for name in self.names.tolist()], np.int64)
        return Items(self.person, new[self.key], self.value, self.people, wanted, listed=True)


def check_bounds(bounds: Any, name: str = "bounds") -> Bounds:
    """Return a lower and an upper bound, finite and in this order; or raise."""
    try:
        low, high = (float(value) for value in bounds)
    except (TypeError, ValueError):
        raise ArgumentError(f"{name} must be two numbers, low and high, got {bounds!r}") from None
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise ArgumentError(f"{name} must be finite, and low < high, got {low:g}:{high:g}")
    return low, high


def columns_of(data: Any) -> dict[str, Any]:
    """Columns by name: of a mapping, a data frame, an Arrow table, or an array `(people, columns)`.

    Columns of an array are named by their numbers.
    """
    if isinstance(data, Mapping):
        return {str(name): values for name, values in data.items()}
    names = getattr(data, "column_names", None) or getattr(data, "columns", None)
    if names is not None:
        return {str(name): data[name] for name in names}
    if isinstance(data, torch.Tensor):
        data = data.detach().cpu().numpy()
    array = np.asarray(data)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or not array.size:
        raise ArgumentError(f"data must be columns of numbers, got the shape {array.shape}")
    return {str(place): array[:, place] for place in range(array.shape[1])}


def bounds_of(bounds: Any, names: Sequence[str]) -> list[Bounds]:
    """Bounds of each column, by name or in the order of the columns; or one pair for all."""
    if isinstance(bounds, Mapping):
        unknown = [str(name) for name in bounds if str(name) not in names]
        missing = [name for name in names if name not in {str(other) for other in bounds}]
        if unknown or missing:
            wrong = f"unknown: {unknown}" if unknown else f"missing: {missing}"
            raise ArgumentError(f"bounds must name each column once, {wrong}; got {list(bounds)}")
        by_name = {str(name): pair for name, pair in bounds.items()}
        return [check_bounds(by_name[name], f"bounds of {name}") for name in names]
    is_pair = len(bounds) == 2 and not any(np.ndim(end) for end in bounds)
    pairs = [bounds] * len(names) if is_pair else list(bounds)
    if len(pairs) != len(names):
        raise ArgumentError(f"bounds must be a pair for each of {len(names)} columns: {bounds!r}")
    return [check_bounds(p, f"bounds of {name}") for p, name in zip(pairs, names, strict=True)]


def steps_of(values: Floats, pair: Bounds) -> Codes:
    """Clip values to their bounds, in whole steps: `-STEPS` at the lower, `STEPS` at the upper."""
    low, high = pair
    scaled = (np.clip(values, low, high) - (low + high) / 2) / ((high - low) / 2)
    # Clipped again: the quotient may exceed 1 by a rounding.
    return np.rint(np.clip(scaled, -1, 1) * STEPS).astype(np.int64)


def person_steps(steps: Codes, person: Codes | None, people: int) -> Codes:
    """Mean of each person's rows, in whole steps.

    Sums of whole numbers are the same in any order, so an engine that adds rows up as they come
    gets the same, and nothing of it depends on the rows of others.
    """
    if person is None:
        return steps
    sums = np.zeros(people, np.int64)
    np.add.at(sums, person, steps)
    return np.rint(sums / np.bincount(person, minlength=people)).astype(np.int64)
