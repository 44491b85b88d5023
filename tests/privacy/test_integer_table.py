"""Tables draw integers whose law is exact, whatever decides: a bound, a float, or many digits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsketch.privacy import integer_table as module
from diffsketch.privacy.integer_table import (
    SLACK,
    CoinsLaw,
    ExponentialLaw,
    Integers,
    IntegerTable,
    Law,
    SkellamLaw,
    WordSource,
    integer_table,
)
from tests.privacy.laws import exact_weight, words_of

LAWS: list[Law] = [
    *(ExponentialLaw(std, 2) for std in (5e-324, 1e-3, 0.5, 5.3, 800.0, 2.0**50)),
    *(ExponentialLaw(scale, 1) for scale in (1e-300, 1e-3, 0.5, 5.3, 800.0, 2.0**50)),
    *(SkellamLaw(variance) for variance in (1e-300, 1e-3, 7.5, 150.0, 1e6, 2.0**100)),
    *(CoinsLaw(pairs) for pairs in (1, 2, 15, 300, 10**6, 2**49)),
]


@pytest.fixture(autouse=True)
def many_digits() -> Iterator[None]:
    with mpmath.workprec(600):
        yield


def some_places(radius: int) -> list[int]:
    places = {0, 1, 2, radius // 9, radius // 4, radius // 2, radius, radius + 1}
    return sorted(places | {-x for x in places})


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_weights_are_within_their_bounds(law: Law) -> None:
    """In floating point and in many digits; control: with the next larger parameter."""
    name = fields(law)[0].name  # type: ignore[arg-type]
    value = getattr(law, name)
    larger = value + 1 if isinstance(law, CoinsLaw) else value * (1 + 2.0**-45)
    wrong: Law = replace(law, **{name: larger})  # type: ignore[type-var]
    found = False
    for x in some_places(law.radius):
        weight = exact_weight(law, x)
        assert abs(law.weights(np.array([x]))[0] - weight) < SLACK / 4
        for bits in (64, 300):
            assert abs(law.digits(x, bits) - weight * 2**bits) <= 1
        found |= bool(abs(wrong.digits(x, 300) - weight * 2**300) > 1)
    assert found == (value > 1e-9 and not (isinstance(law, ExponentialLaw) and value < 1e-2))


def faults(table: IntegerTable) -> list[str]:
    """Where a table's words are not enough, or kept where they should not be."""
    law, factor, starts = table.law, table.factor, [int(word) for word in table.starts]
    found, count, end = [], len(starts) - 2, -table.lowest
    assert starts[0] == 0
    assert starts[-1] < 2**64
    assert table.lowest + (count << table.shift) == end  # blocks from -end to end - 1
    for b in {0, 1, count // 3, *range(count // 2 - 2, count // 2 + 2), count - 1}:
        first = table.lowest + (b << table.shift)
        last = first + (1 << table.shift) - 1
        near, far = sorted((first, last), key=abs)
        if starts[b + 1] - starts[b] < factor * exact_weight(law, near):
            found.append(f"too few words for {near}")
        if int(table.sure[b]) - starts[b] > factor * exact_weight(law, far):
            found.append(f"words sure beyond the weight of {far}")
    assert not table.sure[-2:].any()
    bits = end.bit_length()
    for k in range(4):
        weight = (law.digits(end + (k << bits), 300) + 1) / mpmath.mpf(2) ** 300
        words = factor * weight * 2 ** (k + 2 + bits - table.shift)
        if starts[-1] - starts[-2] < words:
            found.append(f"too few words for step {k} of the tails")
    return found


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_tables_are_beyond_exact_weights(law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    table = IntegerTable.build(law)
    assert not faults(table)
    assert int(table.starts[-1]) > 2**64 * (1 - 2.0**-25)  # next to no word is wasted
    assert not table.starts.flags.writeable
    assert not table.sure.flags.writeable
    monkeypatch.setattr(module, "SLACK", -SLACK)
    assert faults(IntegerTable.build(law))


def proposed(table: IntegerTable, words: list[int], after: int = 0) -> tuple[int, bool]:
    """The integer that these words propose, and whether it is kept."""
    source = words_of(words, after)
    first, lows = source(1), source(1, table.low_bits) if table.shift else None
    values, unsettled = table.look_up(first, lows)
    if not len(unsettled):
        return int(values[0]), True
    again: list[int] = []  # what is not kept is drawn again
    seen = values.copy()

    def redrawn(_: IntegerTable, __: object, count: int) -> Integers:
        again.append(count)
        return seen[:count]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IntegerTable, "draw", redrawn)
        keep = IntegerTable._keep

        def kept(table: IntegerTable, source: WordSource, x: int, *about: int) -> bool:
            seen[0] = x
            return keep(table, source, x, *about)

        patch.setattr(IntegerTable, "_keep", kept)
        table.settle(source, first, values)
    return int(seen[0]), not again


def decisions(table: IntegerTable, x: int, offsets: list[int]) -> tuple[bool, bool]:
    """Whether words that propose `x` at about its weight keep it, and whether they should."""
    block = (x - table.lowest) >> table.shift
    limit = table.factor * exact_weight(table.law, x)
    place = max(0, int(limit) + offsets[0])
    words = [int(table.starts[block]) + place]
    if table.shift:
        width = 32 if table.shift <= 32 else 64
        words.append(((x - table.lowest) & (1 << table.shift) - 1) << width - table.shift)
    real = mpmath.mpf(place)
    for i, offset in enumerate(offsets[1:]):
        digits = int((limit - int(limit)) * 2 ** (64 * (i + 1))) % 2**64
        words.append(min(max(digits + offset, 0), 2**64 - 1))
        real += mpmath.mpf(words[-1]) / 2 ** (64 * (i + 1))
    real += mpmath.mpf(2) ** (64 - 64 * len(offsets) - 1)  # by the word after
    value, kept = proposed(table, words, after=1 << 63)
    assert value == x
    return kept, bool(real < limit)


@given(
    law=st.sampled_from([law for law in LAWS if law.radius > 2]),
    where=st.floats(-1, 1),
    offsets=st.lists(st.integers(-1, 1), min_size=5, max_size=5),
)
@settings(deadline=None, max_examples=150)
def test_words_are_kept_as_exact_weights_say(law: Law, where: float, offsets: list[int]) -> None:
    """Random reals that agree with the exact limit in 0 to 256 binary digits, or just do not."""
    kept, expected = decisions(integer_table(law), int(where * law.radius), offsets)
    assert kept == expected


@pytest.mark.parametrize(
    "law",
    [ExponentialLaw(5.3, 2), ExponentialLaw(1e6, 1), SkellamLaw(1e12), CoinsLaw(10**7)],
    ids=str,
)
def test_errors_in_the_last_digits_are_found(law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are 2**-120 off."""
    right, table = type(law).digits, integer_table(law)
    monkeypatch.setattr(
        type(law), "digits", lambda law, x, bits: right(law, x, bits) + (1 << bits >> 120)
    )
    cases = [decisions(table, x, [0, 0, 0, 1, 0]) for x in range(1, 5)]
    assert any(kept != expected for kept, expected in cases)


@pytest.mark.parametrize(
    "law", [ExponentialLaw(5.3, 2), ExponentialLaw(1e6, 1), SkellamLaw(7.5), CoinsLaw(15)], ids=str
)
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("negative", [False, True])
def test_tails_are_drawn_as_exact_weights_say(law: Law, steps: int, negative: bool) -> None:
    table = integer_table(law)
    end, size = -table.lowest, int(table.starts[-1] - table.starts[-2])
    bits = end.bit_length()
    for inside in (0, 1, 2**bits - 1):
        x = end + (steps << bits) + inside
        x = -x - 1 if negative else x
        limit = exact_weight(law, x) * table.factor * 2 ** (steps + 2 + bits - table.shift)
        assert limit <= size
        place, digits = int(limit), int(limit % 1 * 2**64)
        for word, expected in ((digits - 1, True), (digits + 1, False)):
            if 0 <= word < 2**64:
                words = [int(table.starts[-2]) + place, *([0] if table.shift else []), *[1] * steps]
                words += [0, (negative << 63) + inside, word]
                assert proposed(table, words) == (x, expected)


def test_words_beyond_all_blocks_are_not_kept() -> None:
    """The next word decides: 0 means the first block, whose words are all sure or more."""
    table = integer_table(ExponentialLaw(5.3, 2))
    middle = len(table.starts) // 2 - 1
    words = [2**64 - 1, int(table.starts[-1]), int(table.starts[middle])]
    assert table.draw(words_of(words), 1).tolist() == [0]


def test_the_guide_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    words = rng.integers(0, 1 << 64, 40_000, dtype=np.uint64)
    tables = [integer_table(law) for law in LAWS]
    words = np.concatenate([words, *(table.starts[:-1] for table in tables)])
    guided = [table.find(words) for table in tables]
    monkeypatch.setattr(module, "_GUIDE_FROM", 10**9)
    for table, (index, unclear) in zip(tables, guided, strict=True):
        assert np.array_equal(index, np.searchsorted(table.starts[1:], words, side="right"))
        assert all(map(np.array_equal, table.find(words), (index, unclear)))
        assert np.array_equal(unclear, np.flatnonzero(words >= table.sure[index]))
