"""Secure noise is exact, comes from the operating system, and refuses what cannot be exact."""

from __future__ import annotations

import math
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product

import mpmath  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsketch.errors import ArgumentError
from diffsketch.privacy import secure_noise as secure_sampling
from diffsketch.privacy import simulated_noise as base
from diffsketch.privacy.secure_noise import (
    SLACK,
    ExactTable,
    ExponentialLaw,
    Law,
    SecureNoise,
    SkellamLaw,
    exact_table,
)
from tests.privacy import laws

LAWS: list[Law] = [
    *(ExponentialLaw(std, 2) for std in (5e-324, 1e-3, 0.5, 5.3, 800.0, 2.0**50)),
    *(ExponentialLaw(scale, 1) for scale in (1e-300, 1e-3, 0.5, 5.3, 800.0, 2.0**50)),
    *(SkellamLaw(variance) for variance in (1e-300, 1e-3, 7.5, 150.0, 1e6, 2.0**100)),
]


@pytest.fixture(autouse=True)
def many_digits() -> Iterator[None]:
    with mpmath.workprec(600):
        yield


def exact_weight(law: Law, x: int) -> mpmath.mpf:
    """With 600 bits, by functions of mpmath."""
    if isinstance(law, SkellamLaw):
        return laws.exact_weight("skellam", (law.variance,), x) * 2**law._shift
    return laws.exact_weight("laplace" if law.power == 1 else "gaussian", (law.scale,), x)


def some_places(radius: int) -> list[int]:
    places = {0, 1, 2, radius // 9, radius // 4, radius // 2, radius, radius + 1}
    return sorted(places | {-x for x in places})


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_weights_are_within_their_bounds(law: Law) -> None:
    """In floating point and in many digits; control: with the next larger parameter."""
    name = next(iter(law.__dataclass_fields__))
    value = getattr(law, name)
    wrong: Law = replace(law, **{name: value * (1 + 2.0**-45)})
    found = False
    for x in some_places(law.radius):
        weight = exact_weight(law, x)
        assert abs(law.weights(np.array([x]))[0] - weight) < SLACK / 4
        for bits in (64, 300):
            assert abs(law.digits(x, bits) - weight * 2**bits) <= 1
        found |= bool(abs(wrong.digits(x, 300) - weight * 2**300) > 1)
    assert found == (value > 1e-9 and not (isinstance(law, ExponentialLaw) and value < 1e-2))


def faults(table: ExactTable) -> list[str]:
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
def test_tables_are_on_the_right_side_of_exact_weights(
    law: Law, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ExactTable.build(law)
    assert not faults(table)
    assert int(table.starts[-1]) > 2**64 * (1 - 2.0**-25)  # next to no word is wasted
    assert not table.starts.flags.writeable
    assert not table.sure.flags.writeable
    monkeypatch.setattr(secure_sampling, "SLACK", -SLACK)
    assert faults(ExactTable.build(law))


def bits_of(words: list[int], after: int = 0) -> Callable[..., npt.NDArray[np.uint64]]:
    """A replacement of the system's randomness: these words, then others."""
    rest = iter(words)
    return lambda count, bits=64: np.array(
        [next(rest, after) for _ in range(count)], f"u{bits // 8}"
    )


def decisions(table: ExactTable, x: int, offsets: list[int]) -> tuple[bool, bool]:
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secure_sampling, "random_words", bits_of(words, after=1 << 63))
        values, kept = table._propose(1)
    assert values.tolist() == [x]
    return bool(kept[0]), bool(real < limit)


@given(
    law=st.sampled_from([law for law in LAWS if law.radius > 2]),
    where=st.floats(-1, 1),
    offsets=st.lists(st.integers(-1, 1), min_size=5, max_size=5),
)
@settings(deadline=None, max_examples=150)
def test_words_are_kept_as_exact_weights_say(law: Law, where: float, offsets: list[int]) -> None:
    """Random reals that agree with the exact limit in 0 to 256 binary digits, or just do not."""
    kept, expected = decisions(exact_table(law), int(where * law.radius), offsets)
    assert kept == expected


@pytest.mark.parametrize(
    "law", [ExponentialLaw(5.3, 2), ExponentialLaw(1e6, 1), SkellamLaw(1e12)], ids=str
)
def test_errors_in_the_last_digits_would_be_found(
    law: Law, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that are 2**-120 off."""
    right, table = type(law).digits, exact_table(law)
    monkeypatch.setattr(
        type(law), "digits", lambda law, x, bits: right(law, x, bits) + (1 << bits >> 120)
    )
    cases = [decisions(table, x, [0, 0, 0, 1, 0]) for x in range(1, 5)]
    assert any(kept != expected for kept, expected in cases)


@pytest.mark.parametrize(
    "law", [ExponentialLaw(5.3, 2), ExponentialLaw(1e6, 1), SkellamLaw(7.5)], ids=str
)
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("negative", [False, True])
def test_tails_are_drawn_as_exact_weights_say(law: Law, steps: int, negative: bool) -> None:
    table = exact_table(law)
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
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(secure_sampling, "random_words", bits_of(words))
                    values, kept = table._propose(1)
                assert (values.tolist(), kept.tolist()) == ([x], [expected])


def test_words_beyond_all_blocks_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next word decides: 0 means the first block, whose words are all sure or more."""
    table = exact_table(ExponentialLaw(5.3, 2))
    middle = len(table.starts) // 2 - 1
    words = [2**64 - 1, int(table.starts[-1]), int(table.starts[middle])]
    monkeypatch.setattr(secure_sampling, "random_words", bits_of(words))
    assert table.draw(1).tolist() == [0]


def test_the_guide_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    words = rng.integers(0, 1 << 64, 40_000, dtype=np.uint64)
    tables = [exact_table(law) for law in LAWS]
    words = np.concatenate([words, *(table.starts[:-1] for table in tables)])
    guided = [table._search.find(words) for table in tables]
    monkeypatch.setattr(base, "_GUIDE_FROM", 10**9)
    assert all(
        np.array_equal(table._search.find(words), g)
        for table, g in zip(tables, guided, strict=True)
    )
    assert np.array_equal(guided[3], np.searchsorted(tables[3].starts[1:], words, side="right"))


@given(
    probability=st.floats(0, 1) | st.sampled_from([5e-324, 2.0**-32, 0.5, 1 - 2.0**-53, 0.1]),
    offsets=st.lists(st.integers(-1, 1), min_size=1, max_size=4),
)
@settings(deadline=None, max_examples=300)
def test_bernoulli_compares_with_the_exact_probability(
    probability: float, offsets: list[int]
) -> None:
    """Words that agree with the binary digits of the probability, or just do not."""
    exact, words = Fraction(probability), []
    for index, offset in enumerate(offsets):
        digits = int(exact * 2 ** (32 * (index + 1))) % 2**32
        words.append(min(max(digits + offset, 0), 2**32 - 1))
    number = sum((Fraction(w, 2 ** (32 * (i + 1))) for i, w in enumerate(words)), Fraction(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secure_sampling, "random_words", bits_of(words))
        (result,) = secure_sampling.bernoulli(np.array([probability]))
    assert result == (number < exact)


def test_bernoulli_takes_more_bits_for_those_that_need_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ties at the first word are decided by the second, for their own places."""
    first = [int(Fraction(p) * 2**32) for p in (0.1, 2.0**-40, 0.1)]
    words = [first[0] + 1, 0, first[2], 9, 2**32 - 1]
    monkeypatch.setattr(secure_sampling, "random_words", bits_of(words))
    result = secure_sampling.bernoulli(np.array([0.1, 2.0**-40, 0.1]))
    # 2**-40 is 2**24 in units of 2**-64, so 9 is below it
    assert result.tolist() == [0, 1, 0]


@pytest.mark.parametrize("eighths", range(9))
def test_binomial_is_exact(eighths: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All 512 outcomes of the coins that decide three trials with a probability of three digits."""
    found: Counter[int] = Counter()
    for coins in product(range(8), repeat=3):
        monkeypatch.setattr(secure_sampling, "random_words", bits_of([c << 61 for c in coins]))
        (result,) = secure_sampling.binomial(1, 3, eighths / 8)
        found[int(result)] += 1
    exact = {k: math.comb(3, k) * eighths**k * (8 - eighths) ** (3 - k) for k in range(4)}
    assert {k: n for k, n in exact.items() if n} == dict(found)


@given(tosses=st.lists(st.integers(0, 200), min_size=1, max_size=5), seed=st.integers(0, 99))
@settings(deadline=None)
def test_coins_are_counted_each_once(tosses: list[int], seed: int) -> None:
    drawn: list[int] = []
    rng = np.random.default_rng(seed)

    def record(count: int) -> npt.NDArray[np.uint64]:
        words = rng.integers(0, 2**64, count, dtype=np.uint64)
        drawn.extend(words.tolist())
        return words

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secure_sampling, "random_words", record)
        heads = secure_sampling._coins(np.array(tosses))
    expected, left, rest = [0] * len(tosses), list(tosses), iter(drawn)
    while any(left):
        for place, tossed in enumerate(left):
            if tossed:
                used = min(64, tossed)
                expected[place] += (next(rest) >> (64 - used)).bit_count()
                left[place] -= used
    assert heads.tolist() == expected
    assert next(rest, None) is None


def test_takes_no_seed_and_repeats_nothing() -> None:
    """64 numbers of deviation 2**40 are equal twice with a probability below 2**-2000."""
    with pytest.raises(TypeError):
        SecureNoise(7)  # type: ignore[call-arg]
    noise, other = SecureNoise(), SecureNoise()
    for source in (noise, other):
        state = torch.get_rng_state()
        first, second = (source.discrete_gaussian((64,), 2.0**40) for _ in range(2))
        assert not torch.equal(first, second)
        assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(noise.binomial((64,), 999, 0.3), other.binomial((64,), 999, 0.3))
    assert not torch.equal(noise.skellam((64,), 1e8), other.skellam((64,), 1e8))


def test_pieces_of_many_threads_are_all_different() -> None:
    """Threads must not share random bits. Numbers agree by chance with probability below 1e-11."""
    count = 3 * secure_sampling._PIECE
    pieces = SecureNoise().discrete_laplace((count,), 2.0**50).reshape(3, -1)
    assert all(len(set(piece.tolist())) > 65_000 for piece in pieces)
    assert not (pieces[0] == pieces[1]).any()
    assert not (pieces[1] == pieces[2]).any()


def test_floating_point_noise_is_refused() -> None:
    noise = SecureNoise()
    with pytest.raises(ArgumentError, match=r"whole numbers only.*use discrete_gaussian"):
        noise.normal((2,), 1.0, dtype=torch.float64)
    with pytest.raises(ArgumentError, match=r"whole numbers only.*use discrete_laplace"):
        noise.laplace((2,), 1.0, dtype=torch.float64)


def test_a_forked_child_draws_other_numbers() -> None:
    """Tables are kept over the fork. Equal by chance with probability below 2**-300 for each."""
    noise, fork = SecureNoise(), multiprocessing.get_context("fork")

    def draw() -> list[list[int]]:
        drawn = [noise.discrete_gaussian((8,), 1e12), noise.discrete_laplace((8,), 1e12)]
        drawn += [noise.skellam((8,), 1e24), noise.binomial((320,), 999, 0.3)]
        return [values.tolist() for values in drawn]

    draw()
    queue = fork.SimpleQueue()
    fork.Process(target=lambda: queue.put(draw())).start()
    assert all(a != b for a, b in zip(queue.get(), draw(), strict=True))
