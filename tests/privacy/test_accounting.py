"""Accountants, budgets and Poisson sampling."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from diffsketch.errors import ArgumentError, DiffSketchError, MismatchError
from diffsketch.privacy.accounting import events, lookahead
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
from diffsketch.privacy.noise import FastNoise
from diffsketch.privacy.noise.secure import SecureNoise

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
    assert accountant.spent[0] == Spending(GAUSSIAN, 5)
    assert [item.rounds for item in accountant.spent] == [5, 3, 2, 40, 1]


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


def test_a_long_run_is_composed_only_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def counted(event: events.Event, delta: float) -> float:
        nonlocal calls
        calls += 1
        return epsilon_for(event, delta)

    monkeypatch.setattr(lookahead, "epsilon_for", counted)
    accountant = Accountant(SCOPE, Budget(3.0, 1e-5))
    spent = exhaust(accountant, claim_of(events.gaussian(100.0)))
    assert spent > 5000
    assert calls < 100


# Poisson sampling.


def test_amplified_claims() -> None:
    sampler = PoissonSampler(members=1000, rate=0.01)
    claim = claim_of(events.gaussian(1.0))
    amplified = sampler.amplified(claim)
    assert amplified.event == events.poisson_sampled(0.01, events.gaussian(1.0))
    assert amplified.scope == SCOPE
    assert str(amplified) == (
        "Proven: noise, on a secret sample that each client joins with probability 0.01, limits "
        "how well anyone who sees what a trusted server publishes, but no message, can tell "
        "whether one client took part."
    )
    assert PoissonSampler(1000, 1.0).amplified(claim).event == claim.event
    assert sampler.expected == 10


def scope_of(unit: Unit, relation: Relation, trust: Trust) -> ProvenClaim:
    return claim_of(events.gaussian(1.0), Scope(unit, relation, trust))


@pytest.mark.parametrize(
    ("claim", "error"),
    [
        (scope_of(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL), ArgumentError),
        (scope_of(Unit.CLIENT, Relation.ADD_OR_REMOVE, Trust.LOCAL), ArgumentError),
        (scope_of(Unit.CLIENT, Relation.REPLACE, Trust.CENTRAL), ArgumentError),
        (scope_of(Unit.EXAMPLE, Relation.ADD_OR_REMOVE, Trust.CENTRAL), MismatchError),
        (scope_of(Unit.COORDINATE, Relation.ADD_OR_REMOVE, Trust.CENTRAL), MismatchError),
        (claim_of(events.approximate(1.0)), ArgumentError),
        (claim_of(events.concentrated(1.0)), ArgumentError),
        (claim_of(events.poisson_sampled(0.5, events.gaussian(1.0))), ArgumentError),
    ],
)
def test_what_sampling_does_not_amplify(claim: ProvenClaim, error: type[Exception]) -> None:
    with pytest.raises(error):
        PoissonSampler(1000, 0.01).amplified(claim)


def test_samples_of_examples() -> None:
    scope = Scope(Unit.EXAMPLE, Relation.ADD_OR_REMOVE, Trust.CENTRAL)
    sampler = PoissonSampler(50_000, 0.01, unit=Unit.EXAMPLE)
    assert sampler.amplified(claim_of(events.laplace(1.0), scope)).scope == scope
    with pytest.raises(MismatchError, match="a sample of examples is no sample of clients"):
        sampler.amplified(claim_of(events.laplace(1.0)))


def test_a_secure_sum_gains_nothing_by_sampling() -> None:
    """Who is not drawn brings no noise: an empty sum shows that nobody was."""
    scope = Scope(Unit.CLIENT, Relation.ADD_OR_REMOVE, Trust.DISTRIBUTED)
    with pytest.raises(ArgumentError, match="trust must be central"):
        PoissonSampler(100, 0.01).amplified(claim_of(events.gaussian(1.0), scope))


def test_many_members_who_drop_out_can_be_counted() -> None:
    """A round for each number of members: more than a hundred kinds of Rényi bounds."""
    accountant = Accountant(SCOPE, Budget(50.0, 1e-5))
    for k in range(150):
        accountant.spend(claim_of(events.concentrated(1e-3 * (1 + k / 1000), 1e-6 * (1 + k / 500))))
    alike = events.repeated(events.concentrated(1e-3, 1e-6), 150)
    worst = events.repeated(events.concentrated(1.15e-3, 1.3e-6), 150)
    found = float(accountant.epsilon(1e-5))
    assert epsilon_for(alike, 1e-5) < found < 1.1 * epsilon_for(worst, 1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: PoissonSampler(0, 0.5),
        lambda: PoissonSampler(True, 0.5),
        lambda: PoissonSampler(2.5, 0.5),  # type: ignore[arg-type]
        lambda: PoissonSampler(10, 0.0),
        lambda: PoissonSampler(10, 1.5),
        lambda: PoissonSampler(10, math.nan),
        lambda: PoissonSampler(10, 0.5, unit=Unit.COORDINATE),
    ],
)
def test_samplers_are_checked(make: Callable[[], object]) -> None:
    with pytest.raises(ArgumentError):
        make()


MEMBERS, RATE, ROUNDS = 40, 0.2, 5000


def drawn(rounds: int = ROUNDS) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    sampler, noise = PoissonSampler(MEMBERS, RATE), FastNoise(2024)
    taken = np.zeros((rounds, MEMBERS), dtype=np.bool_)
    for row in taken:
        row[sampler.draw(noise).numpy()] = True
    return taken


def size_statistic(taken: np.ndarray[tuple[int, int], np.dtype[np.bool_]]) -> float:
    """A p-value: whether the sample sizes are binomial."""
    sizes = taken.sum(axis=1)
    counts = np.bincount(sizes, minlength=MEMBERS + 1)
    expected = len(taken) * stats.binom.pmf(np.arange(MEMBERS + 1), MEMBERS, RATE)
    usual = expected > 5
    observed = np.append(counts[usual], counts[~usual].sum())
    wanted = np.append(expected[usual], expected[~usual].sum())
    return float(stats.chisquare(observed, wanted).pvalue)


def test_samples_are_independent() -> None:
    """p-values of 1e-9 for the sizes, and 7 standard errors for each member and pair of members.

    A false alarm in less than 1 of 10^8. The controls: a fixed number of members in each round,
    as many samplers draw, and members who only ever come together.
    """
    taken = drawn()
    assert size_statistic(taken) > 1e-9
    limit = 7 / math.sqrt(ROUNDS)
    centred = (taken - RATE) / math.sqrt(RATE * (1 - RATE))
    assert np.abs(centred.mean(axis=0)).max() < limit
    pairs = centred.T @ centred / ROUNDS - np.eye(MEMBERS)
    assert np.abs(pairs[~np.eye(MEMBERS, dtype=bool)]).max() < limit

    rng = np.random.default_rng(7)
    fixed = np.zeros_like(taken)
    for row in fixed:
        row[rng.choice(MEMBERS, int(MEMBERS * RATE), replace=False)] = True
    assert size_statistic(fixed) < 1e-9
    together = taken.copy()
    together[:, 1] = together[:, 0]
    scaled = (together - RATE) / math.sqrt(RATE * (1 - RATE))
    assert abs((scaled[:, 0] * scaled[:, 1]).mean()) > limit


def test_secure_samples() -> None:
    """30 rounds of 1,000 members, within 7 standard deviations: a false alarm in 1 of 10^11."""
    sampler, noise = PoissonSampler(1000, 0.1), SecureNoise()
    members = [sampler.draw(noise) for _ in range(30)]
    total = sum(len(cohort) for cohort in members)
    assert abs(total - 3000) < 7 * math.sqrt(30 * 1000 * 0.1 * 0.9)
    for cohort in members:
        assert cohort.tolist() == sorted(set(cohort.tolist()))


def test_everybody_or_almost_nobody() -> None:
    assert PoissonSampler(5, 1.0).draw(FastNoise(1)).tolist() == [0, 1, 2, 3, 4]
    assert PoissonSampler(5, 1e-12).draw(FastNoise(1)).tolist() == []
