"""Means of columns with a bound each, and the front door of all private means."""

from __future__ import annotations

import math
import warnings
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from diffsketch.analytics.counts import asked_answer, asked_noise, count_total
from diffsketch.analytics.items import (
    STEPS,
    Bounds,
    Codes,
    Floats,
    Items,
    bounds_of,
    check_bounds,
    codes,
    column,
    columns_of,
    numbers,
    person_steps,
    steps_of,
)
from diffsketch.analytics.release import NORMAL_95, Answer, TableNoise, Terms, answer
from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.methods import gate
from diffsketch.methods.base import Method
from diffsketch.methods.forecast import Plannable, Vectors
from diffsketch.methods.gate import PrivateMean, sparse_rows
from diffsketch.planning import PlanWarning
from diffsketch.privacy.clipping import WholeTables


@overload
def private_mean(data: Any, method: Method, **options: Any) -> PrivateMean: ...


@overload
def private_mean(
    data: Any,
    *,
    bounds: Any,
    epsilon: float,
    person: Any = None,
    keys_per_person: int = 1,
    **terms: Any,
) -> Answer: ...


def private_mean(
    data: Any,
    method: Method | None = None,
    *,
    bounds: Any = None,
    epsilon: float | None = None,
    person: Any = None,
    keys_per_person: int = 1,
    **options: Any,
) -> PrivateMean | Answer:
    """Compute the mean of what people hold, without giving any of them away.

    **With `bounds` and `epsilon`**: the mean of each column, with an interval. Values are clipped
    to the bounds of their column, so that columns of any scale go together; the noise of a column
    is in proportion to the width of its bounds. Choose bounds without looking at the data.

    **With a `method`** (`diffsketch.plan` finds one): the mean of vectors by messages, as a server
    learns it that sees no vector: `diffsketch.methods.gate.private_mean` has its arguments.

    Guarantees (`tests/analytics/test_questions.py`): no two data sets that differ in one person's
    rows move the sums by more than the noise is made for; 95% intervals have the mean of the
    clipped data in 95% of runs (`test_coverage.py`).

    Args:
        data: Columns of numbers: a mapping, a data frame, an Arrow table or an array. Or vectors
            with many zeros: a sparse matrix of SciPy or torch with a row a person, or `Items`; then
            the mean of every key is over all people, and who has no value counts as 0.
        method: How vectors become messages, instead of bounds.
        bounds: `(low, high)` of each column, by name or in order; or one pair for all.
        epsilon: The most that the answer may tell of one person, over all columns together.
        person: The person of each row, where people may have several: then each counts once, with
            the mean of its rows. Without it every row is a person.
        keys_per_person: Of sparse data: the most keys of a person; others are dropped at random.
        **options: With bounds, those of `Terms`: `delta`, `trust`, `relation`, `account`. With a
            method, those of `gate.private_mean`.

    Warns:
        PlanWarning: The noise is more than any mean within the bounds can be off: the middle of
            the bounds would be a better answer. With a method: more than the mean itself, so that
            zeros would be better.

    Raises:
        ArgumentError: Values are missing or no numbers (the error names column and row), bounds are
            the wrong way round. Nothing was charged.
        BudgetExceeded: The account cannot pay. Nothing was released.

    >>> import numpy as np
    >>> rng = np.random.default_rng(1)
    >>> people = {"age": rng.uniform(20, 70, 5000), "income": rng.uniform(0, 90_000, 5000)}
    >>> found = private_mean(people, bounds=[(0, 120), (0, 250_000)], epsilon=1.0)
    >>> found.names, bool(abs(found["age"] - 45) < 2)
    (('age', 'income'), True)
    >>> print(found.epsilon)
    epsilon = 1 at delta = 1e-06 over 1 round (proven; client unit, replace, central trust)
    """
    if method is not None:
        for name, value in (("bounds", bounds), ("epsilon", epsilon), ("person", person)):
            if value is not None:
                raise ArgumentError(f"{name} must not be given with a method, got {value!r}")
        found = gate.private_mean(as_rows(data), method, **options)
        _warn_if_drowned(method, found.count)
        return found
    if bounds is None or epsilon is None:
        raise ArgumentError("bounds and epsilon must be given, or a method")
    terms = Terms(epsilon, **options)
    if isinstance(data, Items) or sparse_rows(data) is not None:
        return _sparse_mean(Items.of(data), check_bounds(bounds), keys_per_person, terms)
    columns = columns_of(data)
    pairs = bounds_of(bounds, list(columns))
    values = [numbers(held, name) for name, held in columns.items()]
    check_lengths(dict(zip(columns, values, strict=True)))
    who: Codes | None = None
    people = len(values[0])
    if person is not None:
        names, who = codes(column(person, "person"))
        if len(who) != people:
            raise MismatchError(f"person must have {people} rows, as the columns, got {len(who)}")
        people = len(names)
    noise = mean_noise(pairs, people, terms)
    total = [
        person_steps(steps_of(held, pair), who, people).sum()
        for held, pair in zip(values, pairs, strict=True)
    ]
    return mean_answer(np.array(total), list(columns), pairs, noise)


def _warn_if_drowned(method: Method, count: int) -> None:
    """Warn where the noise is more than any mean that the method lets through.

    For vectors that are all the same and as long as the clip: whatever others are, it is worse.
    What the sketch loses is left out, as it depends on the vectors: little, where few numbers are
    large.
    """
    clip = getattr(method, "clip", None)
    if not isinstance(method, Plannable) or clip is None:
        return
    if getattr(method, "combine", "mean") != "mean":  # of the median's error no forecast is known
        return
    norm = clip / math.sqrt(method.encoder.rows)  # a table is that much longer than its vector
    error = method.forecast(Vectors(method.dim, count, norm=norm))
    lost = error.noise + error.rounding
    if lost > 1:
        warnings.warn(
            f"This is worse than nothing: the noise is {lost:.3g} times the squared "
            f"norm of the mean of {count:,} vectors as long as the clip; zeros have 1",
            PlanWarning,
            stacklevel=3,
        )


def as_rows(data: Any) -> Any:
    """Vectors for a method: of `Items` with whole keys, a sparse matrix; else the data itself."""
    if not isinstance(data, Items):
        return data
    if data.names.dtype.kind not in "iu" or data.names.min() < 0:
        raise ArgumentError("keys must be whole numbers >= 0 for a method: places of a vector")
    from scipy.sparse import csr_matrix

    value = np.ones(len(data.key)) if data.value is None else data.value
    places = data.names[data.key]
    shape = (data.people, int(data.names.max()) + 1)
    return csr_matrix((value, (data.person, places)), shape=shape)


def check_lengths(columns: dict[str, Floats]) -> None:
    """Raise unless all columns have the same number of rows."""
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise MismatchError(f"data must have columns of one length, got {lengths}")


def mean_noise(pairs: list[Bounds], people: int, terms: Terms) -> TableNoise:
    """Calibrate the noise of means, and warn where it drowns whatever the data is.

    A person's table has a number in `[-STEPS, STEPS]` for each column: the value from the middle
    of its bounds to either end. So its norm is at most `STEPS * sqrt(columns)`, and another
    person's is at most twice that away.
    """
    norm = STEPS * math.sqrt(len(pairs))
    tables = WholeTables(len(pairs), norm, 2 * norm, granularity=1 / STEPS)
    noise = TableNoise.of(terms, tables, people=people)
    if noise.std > people:
        warnings.warn(
            f"This is worse than nothing: the noise of each mean, {noise.std / people:.2g} times "
            f"half the width of its bounds, is more than the middle of the bounds can be off: "
            f"{people:,} people are too few for {len(pairs)} columns at epsilon "
            f"{terms.epsilon:g}",
            PlanWarning,
            stacklevel=3,
        )
    return noise


def mean_answer(
    total: npt.NDArray[np.int64], names: list[str], pairs: list[Bounds], noise: TableNoise
) -> Answer:
    """Release the sum of all people's steps, a number a column, and say what the means are."""
    low, high = np.array(pairs).T
    half, people = (high - low) / 2, noise.people
    sums = noise.release(total)
    means = np.clip((low + high) / 2 + half * sums / people, low, high)
    margin = NORMAL_95 * noise.std / people * half
    how = (
        f"sums of values within their bounds, with Skellam noise: a standard deviation of "
        f"{noise.std / people:.2g} times half the width of each column's bounds"
    )
    return answer("means", names, means, margin, noise, how)


def _sparse_mean(items: Items, pair: Bounds, keys_per_person: int, terms: Terms) -> Answer:
    if not items.listed:
        raise ArgumentError("keys must be known without the data: give Items(...).asked(keys)")
    cells = len(items.names)
    noise = asked_noise(cells, keys_per_person, pair, items.people, terms)
    total, _ = count_total(items.pieces(keys_per_person, pair), cells, noise.mechanism.step)
    return asked_answer("means of keys", items.names, total, noise, scale=1 / items.people)
