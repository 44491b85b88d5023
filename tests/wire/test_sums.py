"""Sums are exact, whatever the order."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsketch.wire import WireError
from diffsketch.wire.formats import MessageFormat
from diffsketch.wire.inbox import FloatSum, WholeSum

LARGEST = float(np.finfo(np.float32).max)
TINY = 2.0**-149

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
terms = st.lists(finite | st.sampled_from([TINY, -TINY, 2.0**-126, 1.0, -1.0]), max_size=30)


def total(values: list[float]) -> float:
    running = FloatSum((1,))
    for value in values:
        running.add(torch.tensor([value]))
    return float(running.value())


@settings(max_examples=300, deadline=None)
@given(terms, st.randoms(use_true_random=False))
def test_floats_are_exact_in_any_order(values: list[float], rng: random.Random) -> None:
    exact = sum(map(Fraction, values), Fraction(0))
    if abs(exact) > Fraction(LARGEST):
        return
    found = total(values)
    spacing = Fraction(2) ** max(-149, math.frexp(found)[1] - 24)
    assert abs(Fraction(found) - exact) < spacing
    shuffled = list(values)
    rng.shuffle(shuffled)
    assert total(shuffled) == found


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([LARGEST, TINY, -LARGEST], TINY),
        ([LARGEST, -TINY, -LARGEST], -TINY),
        ([-1.0, TINY, 1.0, TINY], 2 * TINY),
        ([LARGEST, LARGEST, -LARGEST], LARGEST),
        ([2.0**24, 1.0, 1.0], 2.0**24 + 2),
        ([1.0] * 300, 300.0),
        ([-0.0], 0.0),
        ([], 0.0),
    ],
)
def test_sums_that_float32_or_float64_would_lose(values: list[float], expected: float) -> None:
    assert total(values) == expected
    assert total(values[::-1]) == expected


def test_many_terms_in_every_shape() -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((200, 3, 5)) * 10.0 ** rng.integers(-30, 30, (200, 3, 5))
    values = values.astype(np.float32)
    results = []
    for order in (range(200), reversed(range(200)), rng.permutation(200)):
        running = FloatSum((3, 5))
        for i in order:
            running.add(torch.from_numpy(values[i]))
        results.append(running.value())
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    np.testing.assert_allclose(results[0].numpy(), values.astype(float).sum(0), rtol=1e-6)


def test_digits_may_appear_one_after_the_other() -> None:
    """Later terms, and later cells, are of other sizes than the first."""
    values = torch.randn(4, 7, 11, generator=torch.Generator().manual_seed(3))
    values[1:, 3:] *= 1e-20
    values[2] *= 1e10
    values[3] = 0
    running = FloatSum((7, 11))
    for count, value in enumerate(values, start=1):
        running.add(value)
        assert torch.equal(running.value(), values[:count].double().sum(0).float())


def test_plain_float32_does_depend_on_the_order() -> None:
    """The control: these terms are such that a plain sum would show their order."""
    values = torch.randn(200, generator=torch.Generator().manual_seed(1))
    forth, back = torch.zeros(()), torch.zeros(())
    for value in values:
        forth += value
    for value in values.flip(0):
        back += value
    assert forth != back
    assert total(values.tolist()) == total(values.flip(0).tolist())


def test_a_sum_beyond_float32_is_refused() -> None:
    running = FloatSum((2,))
    for _ in range(2):
        running.add(torch.tensor([0.0, LARGEST]))
    with pytest.raises(WireError, match="beyond float32"):
        running.value()
    running.add(torch.tensor([0.0, -LARGEST]))
    assert running.value().tolist() == [0.0, LARGEST]


@pytest.mark.parametrize("bits", [1, 22, 62])
def test_whole_numbers_wrap_where_totals_have_no_more_bits(bits: int) -> None:
    top = (1 << bits) - 1
    running = WholeSum(MessageFormat("cpsgd", 2, (2,), "unsigned", bits), wraps=True)
    for _ in range(5):
        running.add(torch.tensor([top, 1]))
    assert running.value().tolist() == [5 * top % (1 << bits), 5 % (1 << bits)]


@pytest.mark.parametrize("bits", [3, 62])
def test_whole_numbers_that_do_not_fit_are_refused_in_any_order(bits: int) -> None:
    half, form = 1 << (bits - 1), MessageFormat("cpsgd", 1, (1,), "unsigned", bits)
    for values in ([half, half, 0, 1], [1, 0, half, half], [half] * 50):
        running = WholeSum(form, wraps=False)
        for value in values:
            running.add(torch.tensor([value]))
        with pytest.raises(WireError, match=f"does not fit in the {bits} bits"):
            running.value()
    running = WholeSum(form, wraps=False)
    for value in (half, half - 1):
        running.add(torch.tensor([value]))
    assert running.value().tolist() == [2 * half - 1]


@pytest.mark.parametrize("bits", [3, 62])
def test_signed_numbers_are_summed_and_refused_beyond_their_bits(bits: int) -> None:
    half, form = 1 << (bits - 1), MessageFormat("sketch-gaussian", 1, (1,), "signed", bits)
    for values, total in (([half - 1, -half], -1), ([-half, 0], -half), ([half - 1], half - 1)):
        running = WholeSum(form, wraps=False)
        for value in values:
            running.add(torch.tensor([value]))
        assert running.value().tolist() == [total]
    for values in ([half - 1, 1, -5], [-1, -half, 7], [-half] * 50):
        running = WholeSum(form, wraps=False)
        for value in values:
            running.add(torch.tensor([value]))
        with pytest.raises(WireError, match=f"does not fit in the {bits} bits"):
            running.value()
