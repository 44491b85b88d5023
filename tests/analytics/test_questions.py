"""Private means, counts and quantiles: near the truth, and bounded in what one person changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from diffsketch import (
    Account,
    Answer,
    Budget,
    Items,
    private_counts,
    private_mean,
    private_quantiles,
)
from diffsketch.analytics.counts import count_tables, named_noise
from diffsketch.analytics.release import TableNoise, Terms
from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.methods import GaussianMean
from diffsketch.planning import PlanWarning
from diffsketch.privacy import BudgetExceeded, Relation, Scope, Trust, Unit
from tests.analytics.neighbours import moved, tables_of
from tests.helpers.refusals import refused

RNG = np.random.default_rng(3)
PEOPLE = 4000
AGES, INCOMES = RNG.uniform(20, 70, PEOPLE), RNG.uniform(0, 90_000, PEOPLE)
CITIES = RNG.zipf(1.6, PEOPLE).clip(max=500)
BOUNDS = {"age": (0, 120), "income": (0, 250_000)}
EASY: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6}


def mean(trust: str = "central", **more: Any) -> Answer:
    data: Any = {"age": AGES, "income": INCOMES}
    answer: Answer = private_mean(data, bounds=BOUNDS, trust=trust, **EASY | more)
    return answer


def counts(trust: str = "central", **more: Any) -> Answer:
    return private_counts(None, CITIES, asked=[1, 2, 3, 499], trust=trust, **EASY | more)


def sketches(trust: str = "distributed", **more: Any) -> Answer:
    settings: dict[str, Any] = {"asked": range(1, 501), "message_bytes": 900, "trust": trust}
    return private_counts(None, CITIES, **settings | EASY | more)


def quantiles(trust: str = "central", **more: Any) -> Answer:
    return private_quantiles(AGES, [0.25, 0.5], bounds=(0, 120), trust=trust, **EASY | more)


ASKED: dict[str, Callable[..., Answer]] = {
    "mean": mean, "counts": counts, "sketches": sketches, "quantiles": quantiles,
}  # fmt: skip


def test_answers_are_near_the_truth() -> None:
    """Within 6 standard deviations: fails by chance with a probability below 1e-7."""
    answer = mean()
    errors = [abs(answer["age"] - AGES.mean()), abs(answer["income"] - INCOMES.mean())]
    assert answer.names == ("age", "income")
    assert (errors < 6 * (answer.high - answer.estimates) / 1.96).all()
    answer = counts()
    truths = [int((key == CITIES).sum()) for key in answer.names]
    assert np.abs(answer.estimates - truths).max() < 6 * 4.0
    answer = quantiles()
    assert abs(answer[0.5] - np.median(AGES)) < 2.0
    text = str(answer)
    assert "95% intervals" in text
    assert "client unit, replace, central trust" in text


@pytest.mark.filterwarnings("ignore:This is worse than nothing")  # as some are under local trust
@pytest.mark.parametrize("question", ASKED)
@pytest.mark.parametrize("trust", ["central", "distributed", "local"])
def test_epsilon_has_its_words_and_the_account_pays(question: str, trust: str) -> None:
    if (question, trust) == ("sketches", "central"):
        trust = "distributed"
    account = Account(Budget(2.5, 1e-6))
    answer = ASKED[question](trust, account=account)
    assert answer.epsilon.scope == Scope(Unit.CLIENT, Relation.REPLACE, Trust(trust))
    assert 1.99 < float(answer.epsilon) <= 2.0
    assert account.rounds == 1
    assert float(account.epsilon(delta=1e-6)) == pytest.approx(float(answer.epsilon))
    refused(BudgetExceeded, "budget", ASKED[question], trust, account=account)
    assert account.rounds == 1


@pytest.mark.filterwarnings("ignore:This is worse than nothing")
@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("question", ["mean", "persons", "counts", "values", "signed", "sketches",
                                      "quantiles"])  # fmt: skip
def test_one_person_moves_a_table_by_what_noise_is_made_for(
    question: str, relation: Relation
) -> None:
    """The worst neighbours reach it, none exceed it: extreme values, too many keys, repeats."""
    many = RNG.integers(40, size=60)

    def run(world: list[Any]) -> Any:
        who = np.concatenate([np.full(len(part), i) for i, part in enumerate(world)])
        held = np.concatenate(world)
        common: dict[str, Any] = {"epsilon": 1.0, "relation": relation}
        if question == "mean":
            return lambda: private_mean(np.array([p[0] for p in world]), bounds=(-3, 5), **common)
        if question == "persons":
            return lambda: private_mean(held, person=who, bounds=(-3, 5), **common)
        if question == "quantiles":
            return lambda: private_quantiles(held, person=who, bounds=(-3, 5), **common)
        keys: dict[str, Any] = {"asked": list(range(40)), "keys_per_person": 3, **common}
        if question == "values":
            return lambda: private_counts(who, held % 40, values=held + 1.0, bounds=(0, 7), **keys)
        if question == "signed":
            signs = np.where(who == 0, 50.0, -50.0)
            return lambda: private_counts(who, held % 40, values=signs, bounds=(-9, 9), **keys)
        if question == "sketches":
            keys |= {"trust": "distributed", "message_bytes": 36}
        return lambda: private_counts(who, held, **keys)

    others = [RNG.integers(40, size=5) for _ in range(30)]
    shares = []
    high, low = np.array([1e9]), np.array([-1e9])
    other_keys = np.arange(30, 33), np.arange(37, 40)
    pairs = [(high, low), (many, many[::-1]), (many[:30], many[30:]), other_keys, (high, high)]
    for first, second in pairs:
        if question in ("mean", "persons", "quantiles"):
            worlds = ([first, *others], [second, *others])
        else:
            ids = [np.abs(side.astype(np.int64)) % 40 for side in (first, second)]
            worlds = ([ids[0], *others], [ids[1], *others])
        shares += moved(run(worlds[0]), run(worlds[1]))
    assert max(shares) <= (1 + 1e-9) * (1 if relation is Relation.REPLACE else 2)
    if question not in ("signed", "sketches") and relation is Relation.REPLACE:
        assert max(shares) > 0.99


def test_a_key_of_one_person_is_not_named() -> None:
    """Tail probabilities are stated for each; 3,000 single keys, and delta 1e-2 for a control."""
    people = 3000
    single = [f"only {i}" for i in range(people)]
    strict = private_counts(None, single + ["all"] * 500, epsilon=1.0, delta=1e-9)
    assert strict.names == ("all",)
    lax = private_counts(None, single, epsilon=1.0, delta=1e-2)
    assert len(lax) <= 40  # 15 in the mean at most; 40 have a probability below 1e-6
    noise, threshold = named_noise(1, None, people, Terms(1.0, delta=1e-2))
    steps = round((threshold - 1) / noise.mechanism.step)
    assert noise.tail_bound(steps) <= 5e-3 < noise.tail_bound(steps - 2)
    several, higher = named_noise(4, None, people, Terms(1.0, delta=1e-2))  # for each of four keys
    assert 4 * several.tail_bound(round((higher - 1) / several.mechanism.step)) <= 5e-3
    draws = noise.release(np.full(200_000, round(1 / noise.mechanism.step)))
    share = float((draws > threshold).mean())
    assert 1e-4 < share <= 5e-3  # the bound holds, and is no more than some times too large


def test_local_noise_is_bounded_with_that_of_all_people() -> None:
    terms = Terms(1.0, trust="local")
    noise = TableNoise.of(terms, count_tables(1, 1, None, terms), people=100)
    found = noise.tail_bound(noise.std / noise.mechanism.step)
    assert found == pytest.approx(math.exp(-0.5), rel=0.01)  # Chernoff's, of a normal number


def test_threshold_is_paid_for() -> None:
    """The claim holds with delta only with the threshold's part; without it, less delta is left."""
    answer = private_counts(None, CITIES, epsilon=1.0, delta=1e-6)
    assert float(answer.claim.epsilon(delta=1e-6, rounds=1)) <= 1.0
    assert math.isinf(float(answer.claim.epsilon(delta=4e-7, rounds=1)))
    known = private_counts(None, CITIES, asked=[1], epsilon=1.0, delta=1e-6)
    assert math.isfinite(float(known.claim.epsilon(delta=4e-7, rounds=1)))


def test_names_come_in_the_order_of_noisy_counts() -> None:
    answer = private_counts(None, CITIES, epsilon=1.0)
    assert (np.diff(answer.estimates) <= 0).all()
    again = private_counts(None, CITIES[::-1], epsilon=1.0)
    assert set(answer.names[:2]) == set(again.names[:2])


def test_sparse_means_are_sums_over_people() -> None:
    dense = (RNG.random((3000, 40)) < np.linspace(0.5, 0.01, 40)).astype(float)
    matrix = csr_matrix(dense)
    answer = private_mean(matrix, bounds=(0, 1), keys_per_person=40, epsilon=20.0)
    assert np.abs(answer.estimates - dense.mean(axis=0)).max() < 0.02
    row, col = matrix.nonzero()
    items = Items.of(row, col, np.ones(len(row)))
    with pytest.raises(ArgumentError, match="keys must be known without the data"):
        private_mean(items, bounds=(0, 1), keys_per_person=40, epsilon=20.0)
    asked = items.asked(range(40))
    same = private_mean(asked, bounds=(0, 1), keys_per_person=40, epsilon=20.0)
    assert np.abs(same.estimates - dense[dense.any(axis=1)].mean(axis=0)).max() < 0.02


def test_worse_than_nothing_is_a_warning() -> None:
    with pytest.warns(PlanWarning, match="worse than nothing.*middle of the bounds"):
        private_mean([1.0, 2.0], bounds=(0, 10), epsilon=0.1)
    with pytest.warns(PlanWarning, match="worse than nothing"):
        private_counts(None, [1, 2], asked=[1, 2], epsilon=0.1)
    with pytest.warns(PlanWarning, match="tells no rank"):
        private_quantiles([1.0, 2.0], 0.5, bounds=(0, 10), epsilon=0.1)
    for ask in (mean, counts, quantiles):  # where warnings are errors, as in all tests
        ask()


def test_a_method_that_is_worse_than_nothing_is_a_warning() -> None:
    vectors = np.full((20, 50), 0.1)
    loud = GaussianMean(50, clip=1.0, noise_multiplier=50.0, trust="central")
    with pytest.warns(PlanWarning, match="worse than nothing.*20 vectors"):
        private_mean(vectors, loud)
    private_mean(vectors, replace(loud, noise_multiplier=1.0))  # here a warning is an error


def test_which_way_is_said() -> None:
    answer = sketches()
    assert "sketches of 6 x" in answer.how
    assert answer.message_bytes == 900
    plain = counts("distributed", message_bytes=900)
    assert "plain sums" in plain.how
    assert plain.message_bytes == 8


def test_bad_input_charges_nothing() -> None:
    account = Account()
    paid: dict[str, Any] = {"account": account, "epsilon": 1.0}
    unbounded, counts = partial(private_mean, **paid), partial(private_counts, None, [1], **paid)
    mean = partial(unbounded, bounds=(0, 1))
    quantiles = partial(private_quantiles, **paid | {"bounds": (0, 1)})
    refused(ArgumentError, "age must have numbers.*row 1", mean, {"age": ["1", "x"]})
    refused(MismatchError, "one length|rows", mean, {"a": [1.0], "b": [1.0, 2.0]})
    refused(MismatchError, "person must have 2 rows", mean, [1.0, 2.0], person=["a"])
    refused(ArgumentError, "person must .* value.*row 1", mean, [1.0, 2.0], person=["a", None])
    refused(ArgumentError, "bounds and epsilon", unbounded, [1.0])
    refused(ArgumentError, "asked must be given", counts, trust="local")
    refused(ArgumentError, "each key once", counts, asked=[1, 1])
    refused(ArgumentError, "values and bounds", counts, values=[1])
    refused(ArgumentError, "keys_per_person", counts, keys_per_person=0)
    refused(ArgumentError, "levels", quantiles, [1.0], [1.5])
    refused(ArgumentError, "low < high", quantiles, [1.0], 0.5, bounds=(1, 0))
    refused(ArgumentError, "delta", quantiles, [1.0], 0.5, delta=0.0)
    assert account.rounds == 0
    refused(ArgumentError, "method must be", private_mean, [1.0], "none")


def test_tables_bound_is_that_of_both_kinds_of_change() -> None:
    terms = Terms(1.0)
    plain = count_tables(100, 3, None, terms)
    assert plain.distance / plain.norm == pytest.approx(math.sqrt(2))
    all_cells = count_tables(3, 3, None, terms)
    assert all_cells.distance == pytest.approx(all_cells.norm)
    signed = count_tables(100, 3, (-1.0, 1.0), terms)
    assert signed.distance == pytest.approx(2 * signed.norm)


@pytest.mark.filterwarnings("ignore:This is worse than nothing")  # one person alone
def test_items_of_a_person_that_meet_in_a_cell_count_once() -> None:
    """A person of 60 keys in rows of 10 cells: at most a 1 in each cell, whatever the hashes."""
    with tables_of(
        lambda: private_counts(
            np.zeros(60, int), range(60), asked=range(60), keys_per_person=60, epsilon=1000.0,
            trust="distributed", message_bytes=119,
        )
    ) as seen:  # fmt: skip
        ((total, mechanism),) = seen
    assert total.shape[0] == 6
    assert np.abs(total).max() == 1
    assert mechanism.quantizer.norm >= np.linalg.norm(total)
