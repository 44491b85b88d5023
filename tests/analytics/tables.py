"""Data in memory, and checks that a table elsewhere has the same sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from diffsketch import Answer, private_counts, private_mean, private_quantiles
from diffsketch.analytics import Terms
from diffsketch.analytics.queries import PeopleTable
from tests.analytics.neighbours import tables_of

RNG = np.random.default_rng(2)
ROWS = 3000
COLUMNS: dict[str, Any] = {
    "who": RNG.integers(0, 900, ROWS),
    "age": RNG.normal(45, 30, ROWS),  # beyond the bounds at either end
    "gross income": RNG.lognormal(10, 1, ROWS),
    "paid": RNG.random(ROWS) < 0.3,
    "city": RNG.choice(["Rome", 'B"ath', "Zürich, old", "Y\ns", "L'Aquila"], ROWS),
}
TERMS = Terms(1.0)


def check_sums(table: PeopleTable) -> None:
    """Check a table of `COLUMNS`: bit for bit the same, and the same noise: so the same law."""
    who = None if table.person is None else COLUMNS["who"]
    names, bounds = ["age", "gross income", "paid"], [(0.1, 77.7), (-3, 250_000), (0, 1)]
    data = {name: COLUMNS[name] for name in names}
    income = COLUMNS["gross income"]
    pairs: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
        (lambda: table.mean(names, bounds, TERMS),
         lambda: private_mean(data, bounds=bounds, epsilon=1.0, person=who)),
        (lambda: table.quantiles("gross income", 0.5, (0.1, 99_999.9), TERMS),
         lambda: private_quantiles(income, 0.5, bounds=(0.1, 99_999.9), epsilon=1.0, person=who)),
    ]  # fmt: skip
    for here, there in pairs:
        with tables_of(here) as ours, tables_of(there) as theirs:
            ((total, mechanism),), ((other, same),) = ours, theirs
            np.testing.assert_array_equal(total, other)
            assert mechanism == same
    answers: list[Answer] = []
    most: Any = {"keys_per_person": 5}
    with (
        tables_of(lambda: answers.append(table.counts("city", TERMS, **most))),
        tables_of(
            lambda: answers.append(private_counts(who, COLUMNS["city"], epsilon=1.0, **most))
        ),
    ):
        assert list(answers[0].rows()) == list(answers[1].rows())
        assert answers[0].people == answers[1].people
        assert answers[0].claim == answers[1].claim
        assert len(answers[0]) == 5


def check_no_key_is_favoured(table: PeopleTable) -> None:
    """Check a table of 10,000 people with 10 keys each: of these 1 is kept, each equally often.

    Within 5 standard deviations: fails by chance with a probability of 1e-5.
    """
    answers: list[Answer] = []
    with tables_of(lambda: answers.append(table.counts("key", TERMS))):
        counts = answers[0].estimates
    assert counts.sum() == 10_000
    assert np.abs(counts - 1000).max() < 5 * math.sqrt(900)
