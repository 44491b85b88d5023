"""Events, accounts, budgets, calibrated noise and Poisson sampling."""

from __future__ import annotations

import json
import math
from collections import deque
from itertools import count
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event, gaussian_mechanism
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from diffsketch.errors import ArgumentError, DiffSketchError, MismatchError
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.account import Account
from diffsketch.privacy.accounting.budget import (
    Budget,
    BudgetExceeded,
    PoissonSampler,
    calibrate,
    gaussian_multiplier,
)
from diffsketch.privacy.accounting.events import Event, epsilon_for
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
from tests.helpers.refusals import each_refused, refused

SCOPE = Scope(Unit.CLIENT, Relation.ADD_OR_REMOVE, Trust.CENTRAL)
LOCAL = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
BUDGET = Budget(epsilon=3.0, delta=1e-5)


def claim_of(event: Event, scope: Scope = SCOPE) -> ProvenClaim:
    return ProvenClaim(scope, event, "noise")


GAUSSIAN = claim_of(events.gaussian(10.0))
PURE = claim_of(events.approximate(0.1))

# Events: only sensible ones can be made, and JSON keeps them exactly.

positive = st.floats(1e-300, 1e300)
noises = st.one_of(st.builds(events.gaussian, positive), st.builds(events.laplace, positive))
simple = st.one_of(
    noises,
    st.builds(events.approximate, st.floats(0, 1e300), st.floats(0, 1, exclude_max=True)),
    st.builds(events.poisson_sampled, st.floats(1e-300, 1.0), noises),
)
nested = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.builds(events.repeated, inner, st.integers(1, 10**6)),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: events.composed(*parts)),
    ),
    max_leaves=6,
)


@given(nested)
def test_json_keeps_events_exactly(event: Event) -> None:
    text = json.dumps(events.to_json(event), allow_nan=False)
    assert events.from_json(json.loads(text)) == event
    events.check_event(event)


def test_senseless_events_cannot_be_made() -> None:
    gaussian, pure = events.gaussian(1.0), events.approximate(1.0)
    sampled, other = events.poisson_sampled, dp_event.NonPrivateDpEvent()
    refused(ArgumentError, "must be > 0 and finite", events.gaussian, 0.0)
    refused(ArgumentError, "must be > 0 and finite", events.laplace, math.inf)
    refused(ArgumentError, "must be > 0 and finite", events.laplace, "1")
    refused(ArgumentError, "epsilon must be >= 0", events.approximate, -0.1)
    refused(ArgumentError, "delta must be in", events.approximate, 1.0, 1.0)
    refused(ArgumentError, "rate must be in", sampled, 0.0, gaussian)
    refused(ArgumentError, "rate must be in", sampled, math.nan, gaussian)
    refused(ArgumentError, "Gaussian or Laplace", sampled, 0.5, pure)
    refused(ArgumentError, "Gaussian or Laplace", sampled, 1.0, pure)
    refused(ArgumentError, "count must be >= 1", events.repeated, gaussian, 0)
    refused(ArgumentError, "count must be an int", events.repeated, gaussian, 2.5)
    refused(ArgumentError, "one that diffsketch makes", events.repeated, other, 2)
    refused(ArgumentError, "one that diffsketch makes", events.composed, gaussian, "two")


NOISE = {"kind": "gaussian", "noise_multiplier": 2.0}


def test_other_data_is_refused() -> None:
    values: list[Any] = [
        {},
        {"kind": "gauss"},
        {"kind": "gaussian"},
        {"kind": "gaussian", "noise_multiplier": "2.0"},
        {"kind": "gaussian", "noise_multiplier": True},
        {"kind": "gaussian", "noise_multiplier": math.nan},
        {"kind": "gaussian", "noise_multiplier": 2.0, "count": 3},
        {"kind": "gaussian", "noise_multiplier": 2.0, "event": NOISE},
        {"kind": "approximate", "epsilon": 1.0, "delta": 2.0},
        {"kind": "repeated", "count": 2.7, "event": NOISE},
        {"kind": "repeated", "count": 2},
        {"kind": "poisson", "rate": 0.5, "event": {"kind": "approximate", "epsilon": 1.0}},
        {"kind": "composed", "events": [3]},
        {"kind": ["gaussian"]},
        [],
        None,
    ]
    each_refused(ArgumentError, "data must describe an event", events.from_json, values)


@pytest.mark.parametrize("rate", [1e-6, 0.5, 1.0])
@pytest.mark.parametrize("scale", [0.01, 1.0, 50.0])
def test_largest_loss_of_sampled_laplace_noise(scale: float, rate: float) -> None:
    """Against the densities themselves, on a grid that has both peaks."""
    noise = np.linspace(-1.0, 2.0, 301)
    ratio = (np.abs(noise) - np.abs(noise - 1)) / scale  # logarithms, with the unit to without it
    with np.errstate(divide="ignore"):
        loss = np.logaddexp(np.log(1 - rate), math.log(rate) + ratio)
    largest = float(np.abs(loss).max())
    event = events.poisson_sampled(rate, events.laplace(scale))
    assert events.pure_bound(event) == pytest.approx(largest, rel=1e-8)
    assert events.pure_bound(events.approximate(0.7, 1e-6)) == 0.7
    assert events.pure_bound(events.poisson_sampled(rate, events.gaussian(1.0))) == math.inf


# Accounts and budgets.


@pytest.mark.parametrize(
    "claim",
    [
        PaperClaim(SCOPE, Epsilon(0.1, 0.0, 1, Basis.CLAIMED, SCOPE), "a paper"),
        MeasuredClaim(SCOPE, Epsilon(0.1, 0.0, 1, Basis.MEASURED, SCOPE), 0.9, "an attack"),
        NoClaim(SCOPE, "there is no noise"),
        0.5,
    ],
    ids=lambda claim: type(claim).__name__,
)
def test_only_what_is_proven_is_accepted(claim: Any) -> None:
    account = Account(BUDGET)
    for use in (account.charge, account.rounds_left, PoissonSampler(9, 0.1).amplified):
        with pytest.raises(
            (ArgumentError, BudgetExceeded), match=r"ProvenClaim|proven|mechanism|must be a"
        ):
            use(claim)
    assert account.rounds == 0


def test_rounds_of_all_kinds_add_up() -> None:
    account = Account()
    assert str(account.epsilon(delta=1e-5)).startswith("epsilon = 0 at delta = 1e-05 over 0 rou")
    parts = [
        (GAUSSIAN, 5),
        (claim_of(events.laplace(20.0)), 3),
        (GAUSSIAN, 1),
        (GAUSSIAN, 1),
        (claim_of(events.poisson_sampled(0.01, events.gaussian(1.0))), 40),
        (claim_of(events.repeated(events.laplace(30.0), 7)), 1),
    ]
    for claim, rounds in parts:
        account.charge(claim, rounds)
    together = events.composed(*(events.repeated(claim.event, n) for claim, n in parts))
    epsilon = account.epsilon(delta=1e-5)
    assert float(epsilon) == pytest.approx(epsilon_for(together, 1e-5), rel=1e-9)
    assert (epsilon.rounds, epsilon.basis, epsilon.scope) == (51, Basis.PROVEN, SCOPE)
    assert account.spent[0] == (GAUSSIAN, 7)
    assert [rounds for _, rounds in account.spent] == [7, 3, 40, 1]


def test_arguments_are_checked() -> None:
    account = Account(BUDGET)
    for rounds in (0, -1, True, 1.5):
        refused(ArgumentError, "rounds must be", account.charge, GAUSSIAN, rounds)
    assert account.rounds == 0
    bad = [(0.0, 1e-5), (-1.0, 1e-5), (math.nan, 1e-5), (math.inf, 1e-5), (1.0, 1.0)]
    for epsilon, delta in bad:
        refused(ArgumentError, "must be", Budget, epsilon, delta)
    refused(ArgumentError, "budget must be given", Account().rounds_left, GAUSSIAN)


def exhaust(account: Account, claim: ProvenClaim) -> int:
    spent = 0
    while True:
        try:
            account.charge(claim)
        except BudgetExceeded:
            return spent
        spent += 1


@pytest.mark.parametrize("claim", [GAUSSIAN, PURE, claim_of(events.laplace(7.0))])
def test_the_budget_is_used_up_and_never_exceeded(claim: ProvenClaim) -> None:
    account = Account(BUDGET)
    left = account.rounds_left(claim)
    assert exhaust(account, claim) == left == account.rounds
    assert account.rounds_left(claim) == 0
    assert float(claim.epsilon(delta=1e-5, rounds=left)) <= 3.0
    assert float(claim.epsilon(delta=1e-5, rounds=left + 1)) > 3.0
    # Whoever counts rounds by another claim, with a fifth more noise, would be stopped too late.
    less = claim_of(events.gaussian(12.0))
    if claim is GAUSSIAN:
        assert Account(BUDGET).rounds_left(less) > 1.3 * left


def test_a_refused_round_changes_nothing() -> None:
    account = Account(BUDGET)
    account.charge(GAUSSIAN, 10)
    before, left = account.spent, account.rounds_left(PURE)
    message = (
        r"1,000 more rounds would bring epsilon to \d+\.\d+ at delta = 1e-05, above the budget of "
        r"3 \(client unit, add-or-remove, central trust\); nothing was spent"
    )
    with pytest.raises(BudgetExceeded, match=message) as refusal:
        account.charge(GAUSSIAN, 1000)
    assert isinstance(refusal.value, DiffSketchError)
    assert account.spent == before
    assert account.rounds_left(PURE) == left
    account.charge(PURE, left)
    refused(BudgetExceeded, "1 more round would", account.charge, PURE)


def test_pure_budgets_and_the_ends() -> None:
    account = Account(Budget(epsilon=1.0, delta=0.0))
    refused(BudgetExceeded, "epsilon to inf", account.charge, GAUSSIAN)
    assert account.rounds_left(GAUSSIAN) == 0
    assert exhaust(account, claim_of(events.approximate(0.25))) == 4
    account = Account(BUDGET)
    assert account.rounds_left(claim_of(events.approximate(0.0))) == 10**6
    assert account.rounds_left(claim_of(events.gaussian(1e6))) == 10**6
    assert account.rounds_left(claim_of(events.gaussian(1e-3))) == 0
    large, small = claim_of(events.approximate(2.0)), claim_of(events.approximate(0.4))
    account.charge(large)
    refused(BudgetExceeded, "budget", account.charge, large)
    account.charge(small, 2)  # a smaller round may fit where a larger does not


def test_a_restored_account_may_be_beyond_its_budget() -> None:
    """Then nothing more fits, and nothing is hidden."""
    free = Account()
    free.charge(PURE, 500)
    restored = Account.from_text(free.to_text(), budget=BUDGET)
    assert restored.spent == free.spent
    assert float(restored.epsilon(delta=1e-5)) > 3.0
    refused(BudgetExceeded, "budget", restored.charge, PURE)


kinds = st.one_of(
    st.floats(3.0, 60.0).map(events.gaussian),
    st.sampled_from([events.gaussian(9.0), events.gaussian(9.01)]),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(kinds, st.integers(1, 12)), min_size=1, max_size=40))
def test_looking_ahead_decides_as_composing_anew_would(sequence: list[tuple[Event, int]]) -> None:
    """Gaussian noise composes in closed form, so the two have to agree in every case."""
    account = Account(BUDGET)
    spent: list[Event] = []
    for event, rounds in sequence:
        more = events.repeated(event, rounds)
        fits = epsilon_for(events.composed(*spent, more), BUDGET.delta) <= BUDGET.epsilon
        try:
            account.charge(claim_of(event), rounds)
            admitted = True
        except BudgetExceeded:
            admitted = False
        assert admitted == fits
        if fits:
            spent.append(more)
    assert float(account.epsilon(BUDGET.delta)) <= BUDGET.epsilon


MIXED = [
    claim_of(events.gaussian(9.0)),
    claim_of(events.laplace(25.0)),
    claim_of(events.gaussian(14.0)),
    claim_of(events.poisson_sampled(0.05, events.gaussian(1.5))),
    claim_of(events.approximate(0.02, 1e-8)),
]


@pytest.mark.parametrize("seed", range(4))
def test_alternating_kinds_never_exceed_the_budget(seed: int) -> None:
    """Kinds in random turns until none fits: composed anew, all of it is within the budget."""
    rng = np.random.default_rng(seed)
    budget, left = Budget(6.0, 1e-5), dict(enumerate(MIXED))
    account, spent = Account(budget), list[Event]()
    while left:
        place = int(rng.choice(list(left)))
        for rounds in (int(rng.integers(2, 30)), 1):
            try:
                account.charge(left[place], rounds)
            except BudgetExceeded:
                if rounds == 1:
                    del left[place]
            else:
                spent.append(events.repeated(left[place].event, rounds))
                break
    total = epsilon_for(events.composed(*spent), budget.delta)
    assert total <= budget.epsilon
    assert float(account.epsilon(budget.delta)) == pytest.approx(total, rel=1e-9)
    assert account.rounds_left(MIXED[0]) == 0


@pytest.mark.parametrize("differing", [1, 30, 1000])
def test_a_long_run_is_composed_a_few_times(
    differing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its rounds are alike, take turns, or all have a noise of their own."""
    calls = 0

    def counted(event: Event, delta: float) -> float:
        nonlocal calls
        calls += 1
        return epsilon_for(event, delta)

    monkeypatch.setattr(events, "epsilon_for", counted)
    account = Account(Budget(3.0, 1e-5))
    claims = (claim_of(events.gaussian(60 + n % differing / 100)) for n in count())
    refused(BudgetExceeded, "budget", deque, map(account.charge, claims), maxlen=0)
    assert account.rounds > 1500
    assert calls < 120


def test_repetitions_in_a_claim_are_paid_for() -> None:
    """Of each kind of price; the control forgets one of them."""
    parts = [
        events.repeated(events.gaussian(9.0), 4),
        events.repeated(events.approximate(0.0, 1e-7), 3),
        events.repeated(events.laplace(20.0), 2),
    ]
    account = Account()
    account.charge(claim_of(events.composed(*parts)), rounds=2)
    paid = float(account.epsilon(1e-6))

    def composed(*counted: Event) -> float:
        return epsilon_for(events.repeated(events.composed(*counted), 2), 1e-6)

    assert paid == pytest.approx(composed(*parts), rel=1e-6)
    for place, part in enumerate(parts):
        once = part.event if isinstance(part, events.RepeatedEvent) else part
        assert composed(*parts[:place], once, *parts[place + 1 :]) < 0.999 * paid


# Calibration: noise meets its target, and hardly more; checked by composing it again.


@pytest.mark.parametrize(
    ("epsilon", "delta", "rounds", "rate"),
    [
        (1.0, 1e-5, 100, 1.0),
        (0.01, 1e-12, 10_000, 1.0),
        (1000.0, 1e-5, 1, 1.0),
        pytest.param(1.0, 1e-5, 1000, 0.01, marks=pytest.mark.slow),
        pytest.param(50.0, 1e-5, 1, 0.1, marks=pytest.mark.slow),
    ],
)
def test_gaussian_noise_meets_its_target(
    epsilon: float, delta: float, rounds: int, rate: float
) -> None:
    def total(noise: float) -> float:
        event = events.poisson_sampled(rate, events.gaussian(noise))
        return epsilon_for(events.repeated(event, rounds), delta)

    found = gaussian_multiplier(epsilon=epsilon, delta=delta, rounds=rounds, rate=rate)
    assert total(found) <= epsilon < total(found * 0.999)  # 0.1% less (the control) is not enough
    if rate == 1:  # the inverse of an independent function
        one = float(gaussian_mechanism.get_sigma_gaussian(epsilon, delta))
        assert found == pytest.approx(one * math.sqrt(rounds), rel=1e-7)


def test_the_ends_of_the_search() -> None:
    budget = Budget(epsilon=1.0, delta=1e-5)
    assert calibrate(events.gaussian, budget, least=5.0, most=10.0) == 5.0
    with pytest.raises(ArgumentError, match="no number up to 2 keeps epsilon within 1"):
        calibrate(events.gaussian, budget, least=0.5, most=2.0)
    with pytest.raises(ArgumentError, match="no number up to"):
        calibrate(lambda _: events.approximate(0.1, 1e-4), budget)


def test_bad_arguments() -> None:
    refused(ArgumentError, "delta", gaussian_multiplier, epsilon=1.0, delta=0.0, rounds=1)
    refused(ArgumentError, "epsilon", gaussian_multiplier, epsilon=math.nan, delta=1e-5, rounds=1)
    refused(ArgumentError, "rounds", gaussian_multiplier, epsilon=1.0, delta=1e-5, rounds=0)
    refused(ArgumentError, "rate", gaussian_multiplier, epsilon=1.0, delta=1e-5, rounds=1, rate=0.0)
    refused(ArgumentError, "least|most", calibrate, events.gaussian, BUDGET, least=2.0, most=1.0)
    refused(ArgumentError, "tolerance", calibrate, events.gaussian, BUDGET, tolerance=0.0)
    refused(ArgumentError, "members", PoissonSampler, 0, 0.5)
    refused(ArgumentError, "rate", PoissonSampler, 10, 0.0)
    refused(ArgumentError, "rate", PoissonSampler, 10, math.nan)
    refused(ArgumentError, "unit", PoissonSampler, 10, 0.5, unit=Unit.COORDINATE)


# Poisson samples: how they are drawn, and where they gain something.


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
    scope = Scope(Unit.EXAMPLE, Relation.ADD_OR_REMOVE, Trust.CENTRAL)
    examples = PoissonSampler(50_000, 0.01, unit=Unit.EXAMPLE)
    assert examples.amplified(claim_of(events.laplace(1.0), scope)).scope == scope
    with pytest.raises(MismatchError, match="a sample of examples is no sample of clients"):
        examples.amplified(claim)


ADDED = Relation.ADD_OR_REMOVE


def test_claims_that_are_not_amplified() -> None:
    amplified, gaussian = PoissonSampler(1000, 0.01).amplified, events.gaussian(1.0)
    # Who is not drawn brings no noise: an empty secure sum shows that nobody was.
    for trust in (Trust.LOCAL, Trust.DISTRIBUTED):
        scope = Scope(Unit.CLIENT, Relation.ADD_OR_REMOVE, trust)
        refused(ArgumentError, "trust must be central", amplified, claim_of(gaussian, scope))
    refused(ArgumentError, "relation must be|trust must be", amplified, claim_of(gaussian, LOCAL))
    replaced = Scope(Unit.CLIENT, Relation.REPLACE, Trust.CENTRAL)
    refused(ArgumentError, "relation must be", amplified, claim_of(gaussian, replaced))
    examples = Scope(Unit.EXAMPLE, Relation.ADD_OR_REMOVE, Trust.CENTRAL)
    refused(MismatchError, "no sample of examples", amplified, claim_of(gaussian, examples))
    for event in (events.approximate(1.0), events.poisson_sampled(0.5, gaussian)):
        refused(ArgumentError, "Gaussian or Laplace", amplified, claim_of(event))


MEMBERS, RATE, ROUNDS = 40, 0.2, 3000


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
    sampler, noise = PoissonSampler(MEMBERS, RATE), FastNoise(2024)
    taken = np.zeros((ROUNDS, MEMBERS), dtype=np.bool_)
    for row in taken:
        row[sampler.draw(noise).numpy()] = True
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
    assert abs((centred[:, 0] * centred[:, 0]).mean()) > limit  # two that only come together
