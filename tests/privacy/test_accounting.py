"""Accountants, budgets and Poisson sampling."""

from __future__ import annotations

import math
from collections import deque
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsketch.errors import ArgumentError, DiffSketchError, MismatchError
from diffsketch.privacy.accounting import accountant as lookahead
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.accountant import Accountant, Budget, BudgetExceeded, Spending
from diffsketch.privacy.accounting.composition import epsilon_for
from diffsketch.privacy.accounting.sampler import PoissonSampler
from diffsketch.privacy.claim import (
    Basis,
    Epsilon,
    MeasuredClaim,
    NoClaim,
    PaperClaim,
    ProvenClaim,
    Relation,
    Scope,
    Trust,
    Unit,
)

SCOPE = Scope(Unit.CLIENT, Relation.ADD_OR_REMOVE, Trust.CENTRAL)
LOCAL = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
BUDGET = Budget(epsilon=3.0, delta=1e-5)


def claim_of(event: events.Event, scope: Scope = SCOPE) -> ProvenClaim:
    return ProvenClaim(scope, event, "noise")


GAUSSIAN = claim_of(events.gaussian(10.0))
PURE = claim_of(events.approximate(0.1))


def other_claims() -> list[PaperClaim | MeasuredClaim | NoClaim]:
    return [
        PaperClaim(SCOPE, Epsilon(0.1, 0.0, 1, Basis.CLAIMED, SCOPE), "a paper"),
        MeasuredClaim(SCOPE, Epsilon(0.1, 0.0, 1, Basis.MEASURED, SCOPE), 0.9, "an attack"),
        NoClaim(SCOPE, "there is no noise"),
    ]


@pytest.mark.parametrize("claim", other_claims(), ids=lambda claim: type(claim).__name__)
def test_only_what_is_proven_is_accepted(claim: ProvenClaim) -> None:
    accountant = Accountant(SCOPE, BUDGET)
    for use in (accountant.spend, accountant.rounds_left, PoissonSampler(9, 0.1).amplified):
        with pytest.raises(ArgumentError, match=f"must be a ProvenClaim.*{type(claim).__name__}"):
            use(claim)
    with pytest.raises(ArgumentError, match="must be a ProvenClaim"):
        accountant.spend(0.5)  # type: ignore[arg-type]
    assert accountant.rounds == 0


@pytest.mark.parametrize(
    "scope",
    [
        Scope(Unit.EXAMPLE, Relation.ADD_OR_REMOVE, Trust.CENTRAL),
        Scope(Unit.CLIENT, Relation.REPLACE, Trust.CENTRAL),
        Scope(Unit.CLIENT, Relation.ADD_OR_REMOVE, Trust.DISTRIBUTED),
    ],
)
def test_claims_about_something_else_are_refused(scope: Scope) -> None:
    accountant = Accountant(SCOPE)
    accountant.spend(GAUSSIAN)
    with pytest.raises(MismatchError, match="must be about the same"):
        accountant.spend(claim_of(events.gaussian(10.0), scope))
    assert accountant.rounds == 1


def test_rounds_of_all_kinds_add_up() -> None:
    accountant = Accountant(SCOPE)
    assert str(accountant.epsilon(delta=1e-5)).startswith("epsilon = 0 at delta = 1e-05 over 0 rou")
    parts = [
        (GAUSSIAN, 5),
        (claim_of(events.laplace(20.0)), 3),
        (GAUSSIAN, 2),
        (claim_of(events.poisson_sampled(0.01, events.gaussian(1.0))), 40),
        (claim_of(events.repeated(events.laplace(30.0), 7)), 1),
    ]
    for claim, rounds in parts:
        accountant.spend(claim, rounds)
    together = events.composed(*(events.repeated(claim.event, n) for claim, n in parts))
    epsilon = accountant.epsilon(delta=1e-5)
    assert float(epsilon) == pytest.approx(epsilon_for(together, 1e-5), rel=1e-12)
    assert (epsilon.rounds, epsilon.basis, epsilon.scope) == (51, Basis.PROVEN, SCOPE)
    assert accountant.spent[0] == Spending(GAUSSIAN, 7)
    assert [item.rounds for item in accountant.spent] == [7, 3, 40, 1]


def test_one_round_at_a_time_is_the_same() -> None:
    together, apart = Accountant(SCOPE), Accountant(SCOPE)
    together.spend(GAUSSIAN, 20)
    for _ in range(20):
        apart.spend(GAUSSIAN)
    assert together.spent == apart.spent == (Spending(GAUSSIAN, 20),)


@pytest.mark.parametrize("rounds", [0, -1, True, 1.5])
def test_rounds_are_checked(rounds: int) -> None:
    accountant = Accountant(SCOPE, BUDGET)
    with pytest.raises(ArgumentError, match="count must be"):
        accountant.spend(GAUSSIAN, rounds)
    assert accountant.rounds == 0


def exhaust(accountant: Accountant, claim: ProvenClaim) -> int:
    spent = 0
    while True:
        try:
            accountant.spend(claim)
        except BudgetExceeded:
            return spent
        spent += 1


@pytest.mark.parametrize("claim", [GAUSSIAN, PURE, claim_of(events.laplace(7.0))])
def test_the_budget_is_used_up_and_never_exceeded(claim: ProvenClaim) -> None:
    accountant = Accountant(SCOPE, BUDGET)
    left = accountant.rounds_left(claim)
    assert exhaust(accountant, claim) == left == accountant.rounds
    assert accountant.rounds_left(claim) == 0
    assert float(claim.epsilon(delta=1e-5, rounds=left)) <= 3.0
    assert float(claim.epsilon(delta=1e-5, rounds=left + 1)) > 3.0
    # Whoever counts rounds by another claim, with a fifth more noise, would be stopped too late.
    less = claim_of(events.gaussian(12.0))
    if claim is GAUSSIAN:
        assert Accountant(SCOPE, BUDGET).rounds_left(less) > 1.3 * left


def test_a_refused_round_changes_nothing() -> None:
    accountant = Accountant(SCOPE, BUDGET)
    accountant.spend(GAUSSIAN, 10)
    before, left = accountant.spent, accountant.rounds_left(PURE)
    message = (
        r"1,000 more rounds would bring epsilon to \d+\.\d+ at delta = 1e-05, above the budget of "
        r"3 \(client unit, add-or-remove, central trust\); nothing was spent"
    )
    with pytest.raises(BudgetExceeded, match=message) as refusal:
        accountant.spend(GAUSSIAN, 1000)
    assert isinstance(refusal.value, DiffSketchError)
    assert accountant.spent == before
    assert accountant.rounds_left(PURE) == left
    accountant.spend(PURE, left)
    with pytest.raises(BudgetExceeded, match="1 more round would"):
        accountant.spend(PURE)


def test_a_smaller_round_may_fit_where_a_larger_does_not() -> None:
    accountant = Accountant(SCOPE, BUDGET)
    large, small = claim_of(events.approximate(2.0)), claim_of(events.approximate(0.4))
    accountant.spend(large)
    with pytest.raises(BudgetExceeded):
        accountant.spend(large)
    accountant.spend(small, 2)
    with pytest.raises(BudgetExceeded):
        accountant.spend(small)


def test_pure_budgets() -> None:
    accountant = Accountant(SCOPE, Budget(epsilon=1.0, delta=0.0))
    with pytest.raises(BudgetExceeded, match="epsilon to inf"):
        accountant.spend(GAUSSIAN)
    assert accountant.rounds_left(GAUSSIAN) == 0
    assert exhaust(accountant, claim_of(events.approximate(0.25))) == 4


def test_budgets_are_checked() -> None:
    bad = [(0.0, 1e-5), (-1.0, 1e-5), (math.nan, 1e-5), (math.inf, 1e-5), (1.0, 1.0)]
    for epsilon, delta in bad:
        with pytest.raises(ArgumentError, match="must be"):
            Budget(epsilon, delta)
    with pytest.raises(ArgumentError, match="scope must be of type Scope"):
        Accountant("client")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="budget must be given"):
        Accountant(SCOPE).rounds_left(GAUSSIAN)


def test_rounds_left_are_counted_up_to_a_million() -> None:
    accountant = Accountant(SCOPE, BUDGET)
    assert accountant.rounds_left(claim_of(events.approximate(0.0))) == 10**6
    assert accountant.rounds_left(claim_of(events.gaussian(1e6))) == 10**6
    assert accountant.rounds_left(claim_of(events.gaussian(1e-3))) == 0


def test_copies_go_their_own_ways() -> None:
    one = Accountant(SCOPE, BUDGET)
    one.spend(PURE, 3)
    other = one.copy()
    assert exhaust(other, PURE) == exhaust(one, PURE) > 0
    assert one.spent == other.spent


def test_a_restored_one_knows_what_was_spent() -> None:
    spent = [Spending(PURE, 3), Spending(GAUSSIAN, 4)]
    accountant = Accountant.restored(SCOPE, BUDGET, spent)
    assert accountant.spent == tuple(spent)
    # Even if it is more than the budget: then nothing more fits, and nothing is hidden.
    accountant = Accountant.restored(SCOPE, BUDGET, [Spending(PURE, 500)])
    assert float(accountant.epsilon(delta=1e-5)) > 3.0
    with pytest.raises(BudgetExceeded):
        accountant.spend(PURE)
    with pytest.raises(MismatchError):
        Accountant.restored(LOCAL, BUDGET, spent)


kinds = st.one_of(
    st.floats(3.0, 60.0).map(events.gaussian),
    st.sampled_from([events.gaussian(9.0), events.gaussian(9.01)]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(kinds, st.integers(1, 12)), min_size=1, max_size=40))
def test_looking_ahead_decides_as_composing_anew_would(
    sequence: list[tuple[events.Event, int]],
) -> None:
    """Gaussian noise composes in closed form, so the two have to agree in every case."""
    accountant = Accountant(SCOPE, BUDGET)
    spent: list[events.Event] = []
    for event, rounds in sequence:
        more = events.repeated(event, rounds)
        fits = epsilon_for(events.composed(*spent, more), BUDGET.delta) <= BUDGET.epsilon
        try:
            accountant.spend(claim_of(event), rounds)
            admitted = True
        except BudgetExceeded:
            admitted = False
        assert admitted == fits
        if fits:
            spent.append(more)
    assert float(accountant.epsilon(BUDGET.delta)) <= BUDGET.epsilon


@pytest.mark.parametrize("differing", [1, 2, 30, 1000])
def test_a_long_run_is_composed_only_a_few_times(
    differing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its rounds are alike, take turns, or all have a noise of their own."""
    calls = 0

    def counted(event: events.Event, delta: float) -> float:
        nonlocal calls
        calls += 1
        return epsilon_for(event, delta)

    monkeypatch.setattr(lookahead, "epsilon_for", counted)
    accountant = Accountant(SCOPE, Budget(3.0, 1e-5))
    claims = (claim_of(events.gaussian(100 + n % differing / 100)) for n in count())
    with pytest.raises(BudgetExceeded):
        deque(map(accountant.spend, claims), maxlen=0)
    assert accountant.rounds > 5000
    assert calls < 150


def test_many_members_who_drop_out_can_be_counted() -> None:
    """A round for each number of members: more than a hundred kinds of Rényi bounds."""
    accountant = Accountant(SCOPE, Budget(50.0, 1e-5))
    for k in range(150):
        accountant.spend(claim_of(events.concentrated(1e-3 * (1 + k / 1000), 1e-6 * (1 + k / 500))))
    alike = events.repeated(events.concentrated(1e-3, 1e-6), 150)
    worst = events.repeated(events.concentrated(1.15e-3, 1.3e-6), 150)
    found = float(accountant.epsilon(1e-5))
    assert epsilon_for(alike, 1e-5) < found < 1.1 * epsilon_for(worst, 1e-5)
