"""Secure noise comes from the operating system, repeats nothing, and refuses what is not exact."""

from __future__ import annotations

import multiprocessing
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsketch.errors import ArgumentError
from diffsketch.privacy import SecureNoise
from diffsketch.privacy import noise as module
from tests.helpers.refusals import refused
from tests.privacy.laws import words_of


@given(
    probability=st.floats(0, 1) | st.sampled_from([5e-324, 2.0**-32, 0.5, 1 - 2.0**-53, 0.1]),
    offsets=st.lists(st.integers(-1, 1), min_size=1, max_size=4),
)
@settings(deadline=None, max_examples=300)
def test_bernoulli_compares_with_exact_numbers(probability: float, offsets: list[int]) -> None:
    """Words that agree with the binary digits of the probability, or just do not."""
    exact, words = Fraction(probability), []
    for index, offset in enumerate(offsets):
        digits = int(exact * 2 ** (32 * (index + 1))) % 2**32
        words.append(min(max(digits + offset, 0), 2**32 - 1))
    number = sum((Fraction(w, 2 ** (32 * (i + 1))) for i, w in enumerate(words)), Fraction(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "random_words", words_of(words))
        (result,) = module.bernoulli(np.array([probability]))
    assert result == (number < exact)


def test_bernoulli_takes_more_bits_for_ties(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ties at the first word are decided by the second, for their own places."""
    first = [int(Fraction(p) * 2**32) for p in (0.1, 2.0**-40, 0.1)]
    words = [first[0] + 1, 0, first[2], 9, 2**32 - 1]
    monkeypatch.setattr(module, "random_words", words_of(words))
    result = module.bernoulli(np.array([0.1, 2.0**-40, 0.1]))
    # 2**-40 is 2**24 in units of 2**-64, so 9 is below it
    assert result.tolist() == [0, 1, 0]


def test_takes_no_seed_and_repeats_nothing() -> None:
    """64 numbers of deviation 2**40 are equal twice with a probability below 2**-2000."""
    refused(TypeError, "argument", SecureNoise, 7)
    noise, other = SecureNoise(), SecureNoise()
    for source in (noise, other):
        state = torch.get_rng_state()
        first, second = (source.discrete_gaussian((64,), 2.0**40) for _ in range(2))
        assert not torch.equal(first, second)
        assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(noise.binomial((64,), 999), other.binomial((64,), 999))
    assert not torch.equal(noise.skellam((64,), 1e8), other.skellam((64,), 1e8))


def test_pieces_of_many_threads_are_all_different() -> None:
    """Threads must not share random bits. Numbers agree by chance with probability below 1e-11."""
    count = 3 * module._PIECE
    pieces = SecureNoise().discrete_laplace((count,), 2.0**50).reshape(3, -1)
    assert all(len(set(piece.tolist())) > 65_000 for piece in pieces)
    assert not (pieces[0] == pieces[1]).any()
    assert not (pieces[1] == pieces[2]).any()


def test_floating_point_noise_is_refused() -> None:
    noise, text = SecureNoise(), "whole numbers only.*use discrete_"
    refused(ArgumentError, text + "gaussian", noise.normal, (2,), 1.0, dtype=torch.float64)
    refused(ArgumentError, text + "laplace", noise.laplace, (2,), 1.0, dtype=torch.float64)


def test_a_forked_child_draws_other_numbers() -> None:
    """Tables are kept over the fork. Equal by chance with probability below 2**-300 for each."""
    noise, fork = SecureNoise(), multiprocessing.get_context("fork")

    def draw() -> list[list[int]]:
        drawn = [noise.discrete_gaussian((8,), 1e12), noise.discrete_laplace((8,), 1e12)]
        drawn += [noise.skellam((8,), 1e24), noise.binomial((320,), 999)]
        return [values.tolist() for values in drawn]

    draw()
    queue = fork.SimpleQueue()
    fork.Process(target=lambda: queue.put(draw())).start()
    assert all(a != b for a, b in zip(queue.get(), draw(), strict=True))
