"""Top lists: the right names, none that are false, and groups that keys cannot choose."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from diffsketch import Account, Budget, private_top_k
from diffsketch.analytics.release import Terms
from diffsketch.analytics.top import (
    PrefixTree,
    digits_of,
    extended,
    name_of,
    prefix_words,
    widths_of,
)
from diffsketch.errors import ArgumentError
from diffsketch.privacy import BudgetExceeded
from diffsketch.sketch import CountSketch, SketchKey
from diffsketch.sketch.hashing import columns_and_signs
from tests.analytics.neighbours import moved, tables_of
from tests.helpers.refusals import refused

RNG = np.random.default_rng(5)
PEOPLE = 60_000
FREQUENT = np.array([7, -3, 2**62, -(2**63), 123456789])
TREE: dict[str, Any] = {
    "trust": "distributed", "epsilon": 4.0, "delta": 1e-6, "message_bytes": 1000,
}  # fmt: skip


def skewed() -> npt.NDArray[np.int64]:
    """Five keys of 12, 10, 8, 6 and 4% of the people, and all others different."""
    keys = RNG.integers(-(2**63), 2**63 - 1, PEOPLE)
    for key, share in zip(FREQUENT, (0.12, 0.10, 0.08, 0.06, 0.04), strict=True):
        keys[RNG.random(PEOPLE) < share] = key
    return keys


@pytest.mark.parametrize("numbers", [True, False], ids=["numbers", "texts"])
def test_digits_and_back(numbers: bool) -> None:
    names: Any = np.array([0, -1, 5, -(2**63), 2**63 - 1])
    if not numbers:
        names = np.array(["", "a", "zürich", "0123456789abcdef"])
    widths = widths_of(8 if numbers else 16)
    assert sum(widths) == (64 if numbers else 128)
    digits = digits_of(names, widths)
    back = [
        name_of([int(part[i]) for part in digits], widths, is_text=not numbers)
        for i in range(len(names))
    ]
    assert back == names.tolist()
    large = digits_of(np.array([2**64 - 1], np.uint64), widths_of(8))
    assert [int(part[0]) for part in large] == [65535, 4095, 4095, 4095, 4095]


def test_words_of_prefixes_are_extended_digit_by_digit() -> None:
    digits = digits_of(np.arange(5000), widths_of(8))
    words = prefix_words(digits)
    assert len(np.unique(words)) == 5000
    assert (words == extended(prefix_words(digits[:-1]), digits[-1])).all()


@pytest.mark.slow
@pytest.mark.parametrize("texts", [False, True], ids=["numbers", "texts"])
def test_frequent_keys_are_found_and_no_others(texts: bool) -> None:
    """The counts are 5 standard deviations and more from what decides: fails below 1e-4."""
    keys: Any = skewed()
    wanted: list[Any] = FREQUENT.tolist()
    if texts:
        keys = np.array([f"t{key % 10**9}" for key in keys.tolist()])
        wanted = [f"t{key % 10**9}" for key in wanted]
    settings: Any = TREE | {"max_bytes": 10}
    answer = private_top_k(None, keys, 20, **settings)
    assert list(answer.names) == wanted
    truth = [int((keys == key).sum()) for key in wanted]
    assert (np.abs(answer.estimates - truth) < 3 * (answer.high - answer.estimates)).all()
    assert answer.message_bytes <= 1000
    assert "distributed trust" in str(answer.epsilon)


def test_flat_distributions_give_no_false_names() -> None:
    """1% at most that there is any, in each of three lists: three in a row have 1e-6."""
    keys = RNG.integers(-(2**63), 2**63 - 1, (3, 20_000))
    assert any(private_top_k(None, each, 20, **TREE).names == () for each in keys)


def test_one_person_moves_one_group_by_what_its_noise_is_made_for() -> None:
    """Its message is one cell: the sums of one group move, by at most its noise's distance."""
    keys, settings = skewed()[:3000], TREE | {"relation": "replace"}
    for key in (FREQUENT[1], 99):  # a frequent one, and one that nobody else has
        other = keys.copy()
        other[17] = key
        shares = moved(
            lambda: private_top_k(None, keys, 20, **settings),
            lambda held=other: private_top_k(None, held, 20, **settings),
        )
        assert sum(share > 0 for share in shares) <= 1
        assert max(shares) <= 1 + 1e-9


def test_groups_do_not_depend_on_keys() -> None:
    """Every group has the same number of people, and moving all keys moves no noise."""
    keys = skewed()[:3000]
    with (
        tables_of(lambda: private_top_k(None, keys, 20, **TREE)) as here,
        tables_of(lambda: private_top_k(None, keys * 0 + 5, 20, **TREE)) as there,
    ):
        assert [noise for _, noise in here] == [noise for _, noise in there]
        sizes = [int(np.abs(total).sum()) for total, _ in there[:-1]]
        assert set(sizes) == {78}  # 3,000 people, of whom 65% in 25 groups
        assert there[-1][0].sum() == 3000 - 25 * 78


def test_one_charge_for_all_groups() -> None:
    keys = skewed()[:5000]
    account = Account(Budget(5.0, 1e-6))
    answer = private_top_k(None, keys, 5, account=account, **TREE)
    assert account.rounds == 1
    assert float(account.epsilon(delta=1e-6)) == pytest.approx(float(answer.epsilon))
    refused(BudgetExceeded, "budget", private_top_k, None, keys, 5, account=account, **TREE)


def test_central_trust_takes_plain_counts() -> None:
    answer = private_top_k(None, ["a long name of any length " * 9] * 900 + ["b"], 5, epsilon=1.0)
    assert len(answer) == 1
    assert "plain sums" in answer.how


def test_bad_settings() -> None:
    refused(ArgumentError, "k must be", private_top_k, None, [1], 0, epsilon=1.0)
    refused(ArgumentError, "keys_per_person", private_top_k, None, [1], keys_per_person=2, **TREE)
    refused(ArgumentError, "people must be more", private_top_k, None, [1, 2], **TREE)
    refused(ArgumentError, "k must be at most", private_top_k, None, range(9000), 5000, **TREE)
    refused(ArgumentError, "max_bytes", private_top_k, None, ["a"] * 999, max_bytes=1, **TREE)


def test_the_worst_neighbours_in_a_group_are_what_its_noise_is_made_for() -> None:
    """The same cell with the other sign: 2 apart, and no two messages of one cell are farther."""
    terms = Terms(1.0, trust="distributed", relation="replace")
    tree = PrefixTree.of(terms, 3000, widths_of(8), 5, 64)
    layout = CountSketch(1 << 64, 5, tree.cols, "pairwise")
    columns, signs = columns_and_signs(
        np.arange(200, dtype=np.uint64), SketchKey.from_integer(1).seed(0), layout=layout
    )
    tables = np.zeros((200, tree.cols))
    tables[np.arange(200), columns[0]] = signs[0]
    farthest = max(float(np.linalg.norm(tables - table, axis=1).max()) for table in tables)
    mechanism = tree.noise.mechanism
    assert farthest == mechanism.quantizer.sensitivity(mechanism.relation) == 2.0
