"""Means and quantiles of columns of numbers with a bound each: noise on sums of whole steps.

`private_mean` is the front door of all private means: of sparse data and of methods as well.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from diffsketch.analytics.counts import asked_counts
from diffsketch.analytics.items import (
    STEPS,
    Bounds,
    Codes,
    Floats,
    Items,
    bounds_of,
    check_bounds,
    columns_of,
    numbers,
    person_steps,
    persons_of,
    steps_of,
)
from diffsketch.analytics.release import (
    CONFIDENCE,
    NORMAL_95,
    Answer,
    TableNoise,
    Terms,
    answer,
    steps_for,
)
from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.methods import gate
from diffsketch.methods.base import Method
from diffsketch.methods.forecast import Plannable, Vectors
from diffsketch.methods.gate import PrivateMean, sparse_rows
from diffsketch.planning import PlanWarning
from diffsketch.privacy.clipping import WholeTables

_FAN = 16  # children of a node: 3 levels of 16 have a quarter of the error of 12 levels of 2
_DEPTHS = (2, 3, 4, 5)
FINEST = _FAN ** _DEPTHS[-1]
_PEOPLE_PER_BIN = 30  # bins this fine hide nothing beside the noise of a usual epsilon
_REPLAYS = 400


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
    >>> means = private_mean(people, bounds=[(0, 120), (0, 250_000)], epsilon=1.0)
    >>> means.names, bool(abs(means["age"] - 45) < 2)
    (('age', 'income'), True)
    >>> print(means.epsilon)
    epsilon = 1 at delta = 1e-06 over 1 round (proven; client unit, replace, central trust)
    """
    if method is not None:
        for name, value in (("bounds", bounds), ("epsilon", epsilon), ("person", person)):
            if value is not None:
                raise ArgumentError(f"{name} must not be given with a method, got {value!r}")
        means = gate.private_mean(as_rows(data), method, **options)
        _warn_if_drowned(method, means.count)
        return means
    if bounds is None or epsilon is None:
        raise ArgumentError("bounds and epsilon must be given, or a method")
    terms = Terms(epsilon, **options)
    if isinstance(data, Items) or sparse_rows(data) is not None:
        items = Items.of(data)
        if not items.listed:
            raise ArgumentError("keys must be known without the data: give Items(...).asked(keys)")
        # A key's sum over all people, in units of 1 / people: who has no value counts as 0.
        return asked_counts(
            items, keys_per_person, check_bounds(bounds), terms, "means of keys",
            scale=1 / items.people,
        )  # fmt: skip
    columns = columns_of(data)
    pairs = bounds_of(bounds, list(columns))
    values = [numbers(held, name) for name, held in columns.items()]
    lengths = dict(zip(columns, map(len, values), strict=True))
    if len(set(lengths.values())) > 1:
        raise MismatchError(f"data must have columns of one length, got {lengths}")
    who, people = persons_of(person, len(values[0]), "person")
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


def private_quantiles(
    values: Any,
    levels: float | Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95),
    *,
    bounds: Bounds,
    epsilon: float,
    person: Any = None,
    **terms: Any,
) -> Answer:
    """Estimate quantiles of what people hold: `levels` of them are below the answers.

    Each person adds 1 to its bin of a histogram and to every node above it in a tree of 16 children
    a node; noise is added to all nodes. The tree is made consistent (each node the sum of its
    children, by least squares), and its cumulated counts are made to rise.

    *Intervals.* An interval reaches as many ranks to either side of the level as the noise may move
    a rank, to the ends of their bins: by simulated errors of the noise, which cost no privacy. As
    bins are taken in whole, it is a little fewer ranks.

    Guarantees (`tests/analytics/test_questions.py`): one person moves the tree by what the noise
    is made for; intervals have the quantile of the clipped data in 95% of runs
    (`test_coverage.py`), and in more where many people share a value.

    Args:
        values: A column of numbers; they are clipped to the bounds.
        levels: Of each answer, in (0, 1); 0.5 is the median.
        bounds: `(low, high)`. Choose them without looking at the data.
        epsilon: The most that the answer may tell of one person, over all levels together.
        person: The person of each row, where people may have several: then each counts once, with
            the mean of its rows.
        **terms: Those of `Terms`: `delta`, `trust`, `relation`, `account`.

    Warns:
        PlanWarning: The noise of a rank is more than half of the people.

    >>> import numpy as np
    >>> ages = np.random.default_rng(1).uniform(0, 100, 20_000)
    >>> found = private_quantiles(ages, [0.25, 0.5], bounds=(0, 120), epsilon=1.0)
    >>> bool(abs(found[0.5] - 50) < 2)
    True
    """
    held = numbers(values, "values")
    asked = checked_levels(levels)
    pair, promise = check_bounds(bounds), Terms(epsilon, **terms)
    who, people = persons_of(person, len(held), "person")
    tree = Tree.of(pair, people, promise)
    bins = finest_bins(person_steps(steps_of(held, pair), who, people))
    return tree.answer(tree.table(np.bincount(bins, minlength=FINEST)), asked)


def checked_levels(levels: float | Sequence[float]) -> list[float]:
    """Levels of quantiles, in (0, 1); or raise."""
    asked = [levels] if isinstance(levels, float) else list(levels)
    if not asked or not all(isinstance(level, float) and 0 < level < 1 for level in asked):
        raise ArgumentError(f"levels must be numbers in (0, 1), got {asked}")
    return asked


def finest_bins(steps: Codes) -> Codes:
    """Bin of each value, of the deepest tree: those of other trees are unions of these."""
    bins: Codes = np.minimum((steps + STEPS) // (2 * STEPS // FINEST), FINEST - 1)
    return bins


@dataclass(frozen=True, eq=False)
class Tree:
    """Histogram on a tree: a count for each node below the root, level by level."""

    pair: Bounds
    depth: int
    noise: TableNoise

    @classmethod
    def of(cls, pair: Bounds, people: int, terms: Terms) -> Tree:
        """Choose the depth by the number of people, calibrate the noise, and warn of too much."""
        bins = people / _PEOPLE_PER_BIN
        depth = next((d for d in _DEPTHS if _FAN**d >= bins), _DEPTHS[-1])
        cells = sum(_FAN**level for level in range(1, depth + 1))
        # A person has one node on each level; another person has others.
        norm, distance = math.sqrt(depth), math.sqrt(2 * depth)
        coarse = TableNoise.of(terms, WholeTables(cells, norm, distance), people=people)
        step = steps_for(coarse.std)
        tables = WholeTables(cells, norm / step, distance / step, granularity=step)
        noise = TableNoise.of(terms, tables, people=people)
        if noise.std > people / 2:
            warnings.warn(
                f"This is worse than nothing: noise of standard deviation {noise.std:.3g} in the "
                f"counts of {people:,} people tells no rank",
                PlanWarning,
                stacklevel=3,
            )
        return cls(pair, depth, noise)

    @property
    def bins(self) -> int:
        """Number of leaves."""
        return int(_FAN**self.depth)

    def table(self, counts: Codes) -> Codes:
        """Sum of the tables of people, given how many are in each of the finest bins."""
        levels = [counts.reshape(_FAN**level, -1).sum(axis=1) for level in range(1, self.depth + 1)]
        steps = round(1 / self.noise.mechanism.step)
        return np.concatenate(levels).astype(np.int64) * steps

    def answer(self, total: npt.NDArray[np.int64], levels: Sequence[float]) -> Answer:
        """Release the tree and read the quantiles from it."""
        people = self.noise.people
        ranks = self._ranks(self.noise.release(total))
        targets = np.array(levels) * people
        ends = np.searchsorted(ranks, targets).clip(1, self.bins)  # of the bins with the answers
        errors = self._errors(ends)
        wide = np.quantile(np.abs(errors), CONFIDENCE, axis=0)
        low, high = self.pair
        width = (high - low) / self.bins
        edges = low + width * np.arange(self.bins + 1, dtype=np.float64)
        # To the ends of bins: so as many ranks less as a bin has, for values anywhere in it.
        below, above = _around(ranks, targets, wide)
        spare = 2 * wide / (above - below) * np.random.default_rng().random(errors.shape)
        spread = np.quantile(np.abs(errors) - spare, CONFIDENCE, axis=0).clip(0)
        below, above = _around(ranks, targets, spread)
        std = float(errors.std(axis=0).max())
        how = (
            f"a histogram of {self.bins:,} bins of width {width:.3g}, on a tree of {self.depth} "
            f"levels with Skellam noise: a standard deviation of at most {std:.3g} ranks of "
            f"{people:,}"
        )
        return Answer(
            "quantiles", tuple(levels), np.interp(targets, ranks, edges),
            edges[below], edges[above],
            self.noise.epsilon, self.noise.claim, people, how,
        )  # fmt: skip

    def _ranks(self, table: Floats) -> Floats:
        """Cumulated counts at the edges of bins: consistent, rising, from 0 to the people."""
        from scipy.optimize import isotonic_regression

        ranks = np.concatenate([[0.0], np.cumsum(self._leaves(table, self.noise.people))])
        rising = isotonic_regression(ranks).x.clip(0, self.noise.people)
        rising[0], rising[-1] = 0.0, self.noise.people
        return np.asarray(rising)

    def _leaves(self, table: Floats, people: int) -> Floats:
        """Counts of leaves by least squares: every node the sum of its children.

        From the leaves up, a node's own count and the sum of its children are averaged with weights
        in inverse proportion to their variances; from the root down, what children lack of their
        node is shared evenly (Hay et al., 2010). The root is known: all people.
        """
        levels = np.split(table, np.cumsum([_FAN**n for n in range(1, self.depth)]))
        best, variance = [levels[-1]], 1.0
        for level in reversed(levels[:-1]):
            of_sum = _FAN * variance
            variance = of_sum / (1 + of_sum)
            sums = best[0].reshape(-1, _FAN).sum(axis=1)
            best.insert(0, variance * level + (1 - variance) * sums)
        parent = np.array([float(people)])
        for level in best:
            children = level.reshape(-1, _FAN)
            lacking = parent - children.sum(axis=1)
            parent = (children + lacking[:, None] / _FAN).ravel()
        return parent

    def _errors(self, edges: npt.NDArray[np.int64]) -> Floats:
        """Draw errors of the ranks at these edges, one array a replay: what the noise alone gives.

        They are larger than those of ranks that have been made to rise.
        """
        rng, cells = np.random.default_rng(), sum(_FAN**n for n in range(1, self.depth + 1))
        replays = max(50, min(_REPLAYS, 2**24 // cells))
        drawn = (rng.normal(0, self.noise.std, cells) for _ in range(replays))
        leaves = (self._leaves(noise, people=0) for noise in drawn)
        return np.stack([np.concatenate([[0.0], np.cumsum(held)])[edges] for held in leaves])


def _around(
    ranks: Floats, targets: Floats, spread: Floats
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Edges of the bins around ranks, and `spread` ranks to either side."""
    below = np.searchsorted(ranks, targets - spread, side="left") - 1
    above = np.searchsorted(ranks, targets + spread, side="right")
    return below.clip(0), above.clip(max=len(ranks) - 1)
