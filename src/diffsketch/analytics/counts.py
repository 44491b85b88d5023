"""Counts of keys: plain ones with noise, with a threshold for names, or through a sketch."""

from __future__ import annotations

import math
import secrets
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from diffsketch.analytics.items import Bounds, Codes, Items, check_bounds
from diffsketch.analytics.release import (
    NORMAL_95,
    Answer,
    TableNoise,
    Terms,
    answer,
    plain_names,
    steps_for,
)
from diffsketch.errors import ArgumentError, check_whole
from diffsketch.planning import PlanWarning
from diffsketch.privacy import Budget, Relation, Trust, calibrate
from diffsketch.privacy.accounting.events import approximate, composed, gaussian
from diffsketch.privacy.clipping import WholeTables
from diffsketch.sketch import CountSketch, SketchKey, hash_keys
from diffsketch.sketch.hashing import columns_and_signs

_ROWS = 6  # the smallest and largest of 6 symmetric estimates: an interval of 1 - 2/2**6 = 96.9%
_LEVELS = 1 << 20  # of values that are no counts: rounding is a millionth of the bound
_MOST_CELLS = 1 << 27  # of a plain table: 1 GiB


def private_counts(
    people: Any,
    keys: Any = None,
    *,
    epsilon: float,
    asked: Any = None,
    values: Any = None,
    bounds: Bounds | None = None,
    keys_per_person: int = 1,
    message_bytes: int | None = None,
    **terms: Any,
) -> Answer:
    """Count the people that have each key; or sum their values.

    **Which way.** With the keys in `asked`, a count of each with noise. Without, keys come from the
    data itself, and to name a key that only one person has would give that person away: so counts
    below a threshold are not published (*Names*, below). Where people send messages of at most
    `message_bytes`, and a number for each asked key is more than that, they send Count Sketches,
    whose predicted error is larger. The answer's `how` says what was taken, its predicted error,
    and that of the other way.

    **Names.** Noise is added to each count in the data; a key is published if the sum is above a
    threshold `t`. *Proof of its privacy.* Let two data sets differ in one person. At most `m =
    keys_per_person` keys of either are had by nobody else; call the rest common. Noise is
    independent from key to key, so a release is a pair: what is published of the common keys, and
    of the person's own. The first is a function of Gaussian-dominated noise on counts that differ
    by the person, and by no more than the mechanism's sensitivity. Of the second nothing is
    published but with probability `p <= m P[1 + noise > t]`, in either data set; so the two laws of
    it are within `p` in total variation, which is (0, p)-differentially private. Independent
    releases compose: `composed(gaussian, approximate(0, p))`, which is what is charged. Half of
    delta is for `p`, the rest for the noise. Names are published in the order of their counts,
    which are private, and then of the alphabet.

    Guarantees (`tests/analytics/test_questions.py`): a key of one person is published no more often
    than `p`; neighbours differ by what the noise is made for; intervals (`test_coverage.py`).

    Args:
        people: The person of each row; None where each row is one. Or a sparse matrix `(people,
            keys)`, or `Items`.
        keys: The key of each row: whole numbers or texts.
        epsilon: The most that the answer may tell of one person.
        asked: Keys to count, known without the data. None: keys of the data, under central trust.
        values: Sum these instead of counting people; with `bounds`.
        bounds: `(low, high)` of the sum of a person's values for one key; clipped to them.
        keys_per_person: The most keys of a person; of others that many are drawn at random.
        message_bytes: Bytes of one person's message, at most, under distributed and local trust.
        **terms: Those of `Terms`: `delta`, `trust`, `relation`, `account`.

    Warns:
        PlanWarning: The noise is more than the counts can be: zeros would be a better answer.

    >>> people, cities = range(3000), ["Rome"] * 2000 + ["Bath"] * 999 + ["Ys"]
    >>> found = private_counts(people, cities, epsilon=1.0)
    >>> found.names, bool(abs(found["Rome"] - 2000) < 60)
    (('Rome', 'Bath'), True)
    """
    items, promise = Items.of(people, keys, values), Terms(epsilon, **terms)
    if (values is None) != (bounds is None):
        raise ArgumentError("values and bounds must be given together")
    pair = None if bounds is None else check_bounds(bounds)
    if asked is None:
        if promise.trust != Trust.CENTRAL:
            raise ArgumentError(
                "asked must be given under distributed and local trust, as nobody may see which "
                "keys there are (private_top_k finds them), got None"
            )
        return named_counts(items, keys_per_person, pair, promise, question_of(pair))
    items = items.asked(asked)
    if message_bytes is not None:
        check_whole("message_bytes", message_bytes, least=8)
        cells = 8 * message_bytes // _message_bits(items.people)
        if len(items.names) > cells:
            if pair is not None:
                raise ArgumentError("message_bytes must hold a number for each key, to sum values")
            return _sketched_counts(items, keys_per_person, cells, message_bytes, promise)
    return asked_counts(items, keys_per_person, pair, promise, question_of(pair))


def question_of(pair: Bounds | None) -> str:
    """Name what is counted or summed."""
    return "people with each key" if pair is None else "sums of each key"


def _message_bits(people: int) -> int:
    """Bits of a cell that holds any count of these people, and its noise, without wrapping."""
    return max(16, math.ceil(math.log2(4 * people + 4)))


def count_tables(
    cells: int, keys_per_person: int, pair: Bounds | None, terms: Terms, failure: float = 0.0
) -> WholeTables:
    """Bound how far a person moves a table of counts, or of values within bounds, in whole steps.

    `m` counts of 1 have a norm of `sqrt(m)`, and those of two people are at most `sqrt(2 m)` apart,
    as counts are not negative and keys may be others. Values of either sign may be twice as far
    apart as they are long. Where a person's keys are always the same number of cells, `cells` is
    the limit.
    """
    check_whole("keys_per_person", keys_per_person, least=1)
    most = min(keys_per_person, cells)
    shares = min(2 * most, cells)  # cells in which two people can differ
    norm, distance = math.sqrt(most), math.sqrt(shares)
    if pair is None:
        largest, step = 1.0, steps_for(_gaussian_std(norm, distance, terms, failure))
    else:
        largest = max(abs(pair[0]), abs(pair[1]))
        step = largest / _LEVELS
        # In whole steps, as `count_total` rounds: either end may be rounded away from zero.
        width = largest
        if pair[0] < 0 < pair[1]:
            width = step * (round(pair[1] / step) - round(pair[0] / step))
        # Shared keys move by the width, others by the largest value: worst where all are of a kind.
        distance = min(2 * norm, max(math.sqrt(2 * most), norm * width / largest))
    levels = round(largest / step)
    return WholeTables(cells, levels * norm, levels * distance, granularity=step)


def _gaussian_std(norm: float, distance: float, terms: Terms, failure: float) -> float:
    """Noise that would be needed on real numbers, to choose a step by."""
    multiplier = calibrate(
        lambda level: composed(gaussian(level), approximate(0.0, failure)) if failure
        else gaussian(level),
        Budget(terms.epsilon, terms.delta), tolerance=1e-3,
    )  # fmt: skip
    return multiplier * (distance if terms.relation == Relation.REPLACE else norm)


def count_total(pieces: Iterable[Items], cells: int, step: float) -> tuple[Codes, Codes]:
    """Sum the tables of bounded items, in steps, and count the items of each key."""
    total, count = np.zeros((2, cells), np.int64)
    for items in pieces:
        present = np.bincount(items.key, minlength=cells)
        count += present
        if items.value is None:
            total += present * round(1 / step)
        else:
            np.add.at(total, items.key, np.rint(items.value / step).astype(np.int64))
    return total, count


def asked_noise(
    cells: int, keys_per_person: int, pair: Bounds | None, people: int, terms: Terms
) -> TableNoise:
    """Calibrate the noise of keys that are known without the data, and warn where it drowns them.

    Args:
        cells: Number of keys.
        keys_per_person: The most keys of a person.
        pair: Bounds of a person's value for a key; None for counts.
        people: Number of people.
        terms: Promise to each person.
    """
    if cells > _MOST_CELLS:
        raise ArgumentError(f"asked must be at most {_MOST_CELLS:,} keys, got {cells:,}")
    tables = count_tables(cells, keys_per_person, pair, terms)
    noise = TableNoise.of(terms, tables, people=people)
    largest = 1.0 if pair is None else max(map(abs, pair))
    check_worth(noise.std, people, keys_per_person, cells, largest, stacklevel=5)
    return noise


def asked_counts(
    items: Items,
    keys_per_person: int,
    pair: Bounds | None,
    terms: Terms,
    question: str,
    *,
    scale: float = 1.0,
) -> Answer:
    """Release sums of keys that are known without the data, times `scale`."""
    cells = len(items.names)
    noise = asked_noise(cells, keys_per_person, pair, items.people, terms)
    total, _ = count_total(items.pieces(keys_per_person, pair), cells, noise.mechanism.step)
    how, size = (
        f"plain sums with Skellam noise of standard deviation {noise.std:.3g}; a sketch of fewer "
        "cells would have the same noise and collisions beside"
    ), 0  # fmt: skip
    if terms.trust != Trust.CENTRAL:
        size = -(-cells * _message_bits(noise.people) // 8)
        how += f"; a message has {size:,} bytes"
    margin = NORMAL_95 * noise.std * scale
    sums = noise.release(total) * scale
    return answer(question, items.names, sums, margin, noise, how, message_bytes=size)


def check_worth(
    std: float, people: int, keys_per_person: int, cells: int, largest: float, *, stacklevel: int
) -> None:
    """Warn where zeros are a better answer, whatever the data is.

    The largest sum of squares that counts can have is `keys_per_person` keys that all people share.
    """
    most = min(keys_per_person, cells) * (largest * people) ** 2
    if cells * std**2 > most:
        warnings.warn(
            f"This is worse than nothing: noise of standard deviation {std:.3g} in each of "
            f"{cells:,} cells is more than all that {people:,} people can add to them",
            PlanWarning,
            stacklevel=stacklevel,
        )


def named_noise(
    keys_per_person: int, pair: Bounds | None, people: int, terms: Terms
) -> tuple[TableNoise, float]:
    """Noise and threshold for keys that come from the data.

    Half of delta is for the threshold: `m P[largest + noise > threshold] <= delta / 2`.
    """
    failure = terms.delta / 2
    # Keys are unbounded in number, and none of them is sure to be there: no more than 2 m differ.
    tables = count_tables(2 * keys_per_person, keys_per_person, pair, terms, failure)
    noise = TableNoise.of(terms, tables, people=people, failure=failure)
    low, high = 0.0, 1.0
    while keys_per_person * noise.tail_bound(high) > failure:
        low, high = high, 2 * high
    while high - low > 0.5:
        middle = (low + high) / 2
        fits = keys_per_person * noise.tail_bound(middle) <= failure
        low, high = (low, middle) if fits else (middle, high)
    largest = 1.0 if pair is None else max(map(abs, pair))
    return noise, largest + math.ceil(high) * noise.mechanism.step


def named_counts(
    items: Items,
    most: int,
    pair: Bounds | None,
    terms: Terms,
    question: str,
    k: int | None = None,
) -> Answer:
    """Count the keys of the data, with a threshold: `private_counts` has the proof."""
    noise, threshold = named_noise(most, pair, items.people, terms)
    pieces = items.pieces(most, pair)
    total, count = count_total(pieces, len(items.names), noise.mechanism.step)
    held = np.flatnonzero(count)  # not keys that were dropped: nobody's number of keys is bounded
    sums = [(items.names[held].tolist(), total[held])]
    return named_answer(sums, noise, threshold, question, k)


def named_answer(
    sums: Iterable[tuple[Sequence[Any], npt.NDArray[np.int64]]],
    noise: TableNoise,
    threshold: float,
    question: str,
    k: int | None = None,
) -> Answer:
    """Release sums of keys that come from the data: those above the threshold, largest first.

    Args:
        sums: Keys and the sum of each, in steps; in pieces, where they are too many for the memory.
        noise: The noise that `named_noise` made.
        threshold: Its threshold.
        question: What was asked.
        k: The most names; None for all above the threshold.
    """
    noise.charge(noise.claim)
    named: list[tuple[float, Any]] = []
    for keys, total in sums:
        noisy = noise.release_part(total)
        named += [(-float(noisy[i]), keys[i]) for i in np.flatnonzero(noisy > threshold).tolist()]
    named = sorted(named)[:k]
    how = (
        f"plain sums with Skellam noise of standard deviation {noise.std:.3g}; keys are named from "
        f"{threshold:,.0f} on, so that a key of one person is named with probability "
        f"{noise.terms.delta / 2:.2g} at most"
    )
    estimates = -np.array([value for value, _ in named], np.float64)
    names = [name for _, name in named]
    return answer(question, names, estimates, NORMAL_95 * noise.std, noise, how)


def words_of(names: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """64-bit words of keys: of whole numbers themselves, of texts a public hash."""
    if names.dtype.kind == "u":
        return names.astype(np.uint64)
    if names.dtype.kind in "ib":
        return names.astype(np.int64).view(np.uint64)
    return hash_keys(list(map(str, names.tolist())), SketchKey.from_integer(0))


def first_in_cells(
    person: npt.NDArray[np.int64], cells: npt.NDArray[np.int64], cols: int
) -> npt.NDArray[np.int64]:
    """Places of the items that are their person's first in their cell of a row.

    Two items of one person in one cell would make its table longer than its keys: with the first
    alone, `m` items in a row have a norm of at most `sqrt(m)`.
    """
    first: npt.NDArray[np.int64] = np.unique(person * cols + cells, return_index=True)[1]
    return first


def _sketched_counts(
    items: Items, most: int, cells: int, message_bytes: int, terms: Terms
) -> Answer:
    """Counts through Count Sketches of 6 rows: intervals from the smallest to the largest row.

    A row's error is symmetric, given the data: the sign of a key turns all that collides with it,
    and noise is symmetric. Rows are independent, so the truth is outside of all 6 rows with
    probability `2 / 2**6`.
    """
    cols = cells // _ROWS
    names, people = items.names, items.people
    if cols < 1:
        raise ArgumentError(f"message_bytes must hold {_ROWS} cells, got {message_bytes}")
    norm = math.sqrt(most * _ROWS)
    noise = TableNoise.of(terms, WholeTables(cols * _ROWS, norm, 2 * norm), people=people)
    check_worth(noise.std, people, most, len(names), 1.0, stacklevel=4)
    seed = SketchKey(secrets.token_bytes(32)).seed(0)
    layout = CountSketch(1 << 64, _ROWS, cols, "pairwise")
    columns, signs = columns_and_signs(words_of(names), seed, layout=layout)
    total = np.zeros((_ROWS, cols), np.int64)
    for piece in items.pieces(most):
        for row in range(_ROWS):
            key = piece.key[first_in_cells(piece.person, columns[row][piece.key], cols)]
            np.add.at(total[row], columns[row][key], signs[row][key].astype(np.int64))
    table = noise.release(total)
    estimates = np.stack([table[row, columns[row]] * signs[row] for row in range(_ROWS)])
    # The squared norm of the data's counts, from the table itself, whose noise is known.
    energy = max(0.0, float(np.median((table**2).sum(axis=1))) - cols * noise.std**2)
    predicted = 1.2533 * math.sqrt((energy / cols + noise.std**2) / _ROWS)  # median of a normal
    plain = TableNoise.of(
        terms, count_tables(len(names), most, None, terms), people=people
    ).std  # what a number for each key would have
    how = (
        f"sketches of {_ROWS} x {cols:,} cells in {message_bytes:,} bytes: predicted error "
        f"{predicted:.3g}; a number for each of {len(names):,} keys has {plain:.3g}, in "
        f"{-(-len(names) * _message_bits(people) // 8):,} bytes"
    )
    middle = np.median(estimates, axis=0)
    return Answer(
        question_of(None), plain_names(names), middle, estimates.min(axis=0), estimates.max(axis=0),
        noise.epsilon, noise.claim, people, how, message_bytes=message_bytes,
    )  # fmt: skip
