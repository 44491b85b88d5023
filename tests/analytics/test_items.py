"""What people hold becomes items; bounds hold for each person, whatever it has."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array, csr_matrix

from benchmarks.timing import extra_memory
from diffsketch import private_counts, private_mean
from diffsketch.analytics.columns import FINEST, finest_bins
from diffsketch.analytics.items import (
    STEPS,
    Items,
    bounds_of,
    column,
    columns_of,
    numbers,
    person_steps,
    steps_of,
)
from diffsketch.errors import ArgumentError, MismatchError
from tests.helpers.refusals import refused


class Frame:
    """As a data frame: columns by name."""

    columns = ("age", "income")

    def __getitem__(self, name: str) -> Any:
        return np.arange(3) if name == "age" else [1.5, 2.5, 3.5]


def test_columns_of_whatever_has_columns() -> None:
    for data in (Frame(), {"age": [0, 1, 2], "income": (1.5, 2.5, 3.5)}):
        assert list(columns_of(data)) == ["age", "income"]
        assert numbers(columns_of(data)["income"], "income").tolist() == [1.5, 2.5, 3.5]
    assert list(columns_of(np.zeros((4, 2)))) == ["0", "1"]
    assert list(columns_of(torch.zeros(4))) == ["0"]
    refused(ArgumentError, "shape", columns_of, np.zeros((2, 2, 2)))


def test_truth_values_are_numbers() -> None:
    assert numbers([True, False], "paid").tolist() == [1.0, 0.0]
    assert numbers(torch.tensor([True]), "paid").tolist() == [1.0]


def test_errors_name_column_and_row() -> None:
    refused(ArgumentError, "age must have numbers.*row 1 has 'x'", numbers, ["1", "x", "2"], "age")
    refused(ArgumentError, "age must have a value in each row", numbers, [1.0, math.nan], "age")
    refused(ArgumentError, "none in row 1", numbers, [1.0, None, 2.0], "age")
    refused(ArgumentError, "age must be finite", numbers, [1.0, math.inf], "age")
    refused(ArgumentError, "age must be a column", numbers, [], "age")
    refused(ArgumentError, "shape", numbers, [[1.0]], "age")
    refused(ArgumentError, "age must", numbers, [1, "a"], "age")
    refused(ArgumentError, "numbers or texts", numbers, [object()], "age")


def test_items_of_a_sparse_matrix_and_of_columns_are_the_same() -> None:
    dense = np.array([[0, 2.0, 0], [1, 0, 3], [0, 0, 0]])
    for matrix in (csr_matrix(dense), coo_array(dense), torch.tensor(dense).to_sparse()):
        items = Items.of(matrix)
        assert (items.people, len(items.names)) == (3, 3)  # the person with nothing counts
        assert items.value is not None
        listed = zip(items.person.tolist(), items.key.tolist(), items.value, strict=True)
        assert sorted(listed) == [(0, 1, 2.0), (1, 0, 1.0), (1, 2, 3.0)]
    stored = csr_matrix((np.array([0.0, 1.0]), np.array([0, 1]), np.array([0, 2])), shape=(1, 2))
    assert Items.of(stored).key.tolist() == [1]  # a stored zero is no item
    columns = Items.of(["b", "a", "a"], ["y", "x", "y"], [1, 2, 3])
    assert columns.names.tolist() == ["x", "y"]
    assert columns.person.tolist() == [1, 0, 0]
    refused(MismatchError, "people must have 2 rows", Items.of, ["a"], ["x", "y"])
    refused(MismatchError, "values must have 2 rows", Items.of, None, ["x", "y"], [1.0])
    refused(ArgumentError, "keys must be given", Items.of, ["a", "b"])
    refused(ArgumentError, "none in row 1", Items.of, ["a", None], ["x", "y"])


def test_bounds_hold_for_every_person() -> None:
    rng = np.random.default_rng(1)
    person, key = rng.integers(50, size=2000), rng.integers(30, size=2000)
    (items,) = Items.of(person, key, rng.normal(0, 5, 2000)).pieces(4, (-2.0, 3.0))
    assert np.bincount(items.person).max() == 4
    pairs = set(zip(items.person.tolist(), items.key.tolist(), strict=True))
    assert len(pairs) == len(items.person)  # rows of a person with one key are one item
    assert items.value is not None
    assert items.value.min() == -2.0
    assert items.value.max() == 3.0


def test_values_of_a_person_and_key_add_up_before_they_are_clipped() -> None:
    (items,) = Items.of(["a", "a", "b"], ["x", "x", "x"], [4.0, 5.0, 1.0]).pieces(1, (0.0, 6.0))
    assert items.value is not None
    assert items.value.tolist() == [6.0, 1.0]


@pytest.mark.parametrize("size", [1, 7, 10**6])
def test_pieces_have_whole_people(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In however many pieces, and whatever the order of the rows: the same items."""
    rng = np.random.default_rng(2)
    person, key = rng.integers(50, size=2000), rng.integers(30, size=2000)
    monkeypatch.setattr("secrets.token_bytes", lambda count: bytes(count))
    (whole,) = Items.of(person, key, key).pieces(3, (0.0, 20.0))
    monkeypatch.setattr("diffsketch.analytics.items._PIECE", size)
    order = np.argsort(person, kind="stable")
    for rows in (slice(None), order):
        pieces = list(Items.of(person[rows], key[rows], key[rows]).pieces(3, (0.0, 20.0)))
        assert len(pieces) == {1: 50, 7: 50, 10**6: 1}[size]
        for name in ("person", "key", "value"):
            held = np.concatenate([getattr(piece, name) for piece in pieces])
            np.testing.assert_array_equal(held, getattr(whole, name))


@pytest.mark.slow
def test_memory_beyond_the_data() -> None:
    """Of 200,000 people with 20 keys each of 100,000: 80 GB if they were dense, 32 MB as CSR."""
    people, each, keys, cpu = 200_000, 20, 100_000, torch.device("cpu")
    places = np.random.default_rng(1).integers(keys, size=each * people, dtype=np.int32)
    starts = np.arange(people + 1, dtype=np.int32) * each
    matrix = csr_matrix((np.ones(len(places), np.float32), places, starts), shape=(people, keys))
    columns = matrix.tocoo()
    settings: Any = {"epsilon": 1.0, "keys_per_person": each}
    for call in (
        lambda: private_mean(matrix, bounds=(0, 1), **settings),
        lambda: private_counts(columns.row, columns.col, **settings),
    ):
        taken = extra_memory(call, device=cpu)
        assert taken is None or taken < 300 * 2**20
    dense = extra_memory(lambda: matrix[:1000].toarray(), device=cpu)
    assert dense is None or dense > 350 * 2**20  # the measure sees what it is to see


def test_no_key_is_favoured() -> None:
    """Of 10 keys one is kept, each equally often: 10,000 people, 5 standard deviations, 1e-5."""
    people = np.repeat(np.arange(10_000), 10)
    (kept,) = Items.of(people, np.tile(np.arange(10), 10_000)).pieces(1)
    counts = np.bincount(kept.key, minlength=10)
    assert counts.sum() == 10_000
    assert np.abs(counts - 1000).max() < 5 * math.sqrt(900)


def test_bounds() -> None:
    assert bounds_of((0, 1), ["a", "b"]) == [(0, 1), (0, 1)]
    assert bounds_of({"b": (0, 2), "a": (0, 1)}, ["a", "b"]) == [(0, 1), (0, 2)]
    refused(ArgumentError, "bounds of b must be finite, and low < high, got 2:0", bounds_of,
            [(0, 1), (2, 0)], ["a", "b"])  # fmt: skip
    refused(ArgumentError, "unknown: .'c'", bounds_of, {"a": (0, 1), "c": (0, 1)}, ["a"])
    refused(ArgumentError, "missing: .'b'", bounds_of, {"a": (0, 1)}, ["a", "b"])
    refused(ArgumentError, "two numbers", bounds_of, [(0, 1), 5], ["a", "b"])
    refused(ArgumentError, "pair for each of 3", bounds_of, [(0, 1), (0, 1)], ["a", "b", "c"])


def test_a_person_counts_once_whatever_the_order_of_its_rows() -> None:
    """In any order to the last bit: sums of rounded numbers in floating point would differ."""
    rng = np.random.default_rng(7)
    values, person = rng.uniform(-9, 9, 4000), rng.integers(50, size=4000)
    steps = steps_of(values, (-2, 5))
    order = rng.permutation(4000)
    means = person_steps(steps, person, 50)
    np.testing.assert_array_equal(means, person_steps(steps[order], person[order], 50))
    clipped = [values[person == i].clip(-2, 5).mean() for i in range(50)]
    np.testing.assert_allclose(1.5 + 3.5 * means / STEPS, clipped, atol=1e-8)
    assert person_steps(steps, None, 4000) is steps
    assert steps_of(np.array([-9.0, 1.5, 9.0]), (-2, 5)).tolist() == [-STEPS, 0, STEPS]
    assert finest_bins(np.array([-STEPS, -1, 0, STEPS])).tolist() == [
        0, FINEST // 2 - 1, FINEST // 2, FINEST - 1,
    ]  # fmt: skip
    assert column(["a", "b"], "x").tolist() == ["a", "b"]
