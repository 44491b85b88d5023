"""Accounts of clients: against `Account`, the stop at the budget, values that share arrays."""

from __future__ import annotations

import gc
import json
import math
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.account import (
    Account,
    Budget,
    BudgetExceeded,
)
from diffsketch.privacy.accounting.calibration import gaussian_multiplier
from diffsketch.privacy.accounting.events import epsilon_for
from diffsketch.privacy.claim import (
    Basis,
    Claim,
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
from diffsketch.training.clients import Columns, Participation

SCOPE = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
DELTA = 1e-5


def proven(event: events.Event) -> ProvenClaim:
    return ProvenClaim(SCOPE, event, "noise")


def claimed(epsilon: float, delta: float = 0.0) -> PaperClaim:
    return PaperClaim(SCOPE, Epsilon(epsilon, delta, 1, Basis.CLAIMED, SCOPE), "a paper")


def of(*members: int) -> npt.NDArray[np.int64]:
    return np.array(members, np.int64)


GAUSSIAN = proven(events.gaussian(3.0))
LAPLACE = proven(events.laplace(5.0))
PADDED = proven(events.composed(events.gaussian(4.0), events.approximate(0.0, 1e-8)))
ROWS = proven(events.repeated(events.laplace(20.0), 7))
COHORTS = [of(0, 1), of(1, 2), of(0, 1), of(3), of(1, 3)]  # client 1 takes part four times


@pytest.mark.parametrize("claim", [PADDED, ROWS], ids=["padded", "rows"])
def test_busiest_client_decides(claim: ProvenClaim) -> None:
    accounts, account = Participation(4), Account()
    for cohort in COHORTS:
        accounts = accounts.after(claim, cohort)
    account.charge(claim, rounds=4)
    found, expected = accounts.epsilon(DELTA), account.epsilon(DELTA)
    assert float(found) == pytest.approx(float(expected), rel=1e-9)
    assert float(found) >= float(expected) * (1 - 1e-12)
    assert (found.rounds, found.basis, found.scope) == (4, Basis.PROVEN, SCOPE)


def test_gaussian_rounds_of_different_noise_are_exact() -> None:
    """Each client's own sum decides, though no two rounds are alike."""
    rng = np.random.default_rng(0)
    accounts, own = Participation(5), [Account() for _ in range(5)]
    for _ in range(30):
        claim = proven(events.gaussian(float(rng.uniform(2, 9))))
        cohort = np.sort(rng.choice(5, 2, replace=False))
        accounts = accounts.after(claim, cohort)
        for client in cohort:
            own[client].charge(claim)
    most = max(float(one.epsilon(DELTA)) for one in own)
    assert float(accounts.epsilon(DELTA)) == pytest.approx(most, rel=1e-9)
    everyone = Account()  # negative control: not what all rounds together would cost
    for one in own:
        for spent, rounds in one.spent:
            everyone.charge(spent, rounds)
    assert float(everyone.epsilon(DELTA)) > 1.5 * most


def test_mixed_rounds_are_never_below_any_client() -> None:
    rng = np.random.default_rng(1)
    accounts, own = Participation(4), [Account() for _ in range(4)]
    for _ in range(12):
        claim = (GAUSSIAN, LAPLACE, PADDED)[rng.integers(3)]
        cohort = np.sort(rng.choice(4, 2, replace=False))
        accounts = accounts.after(claim, cohort)
        for client in cohort:
            own[client].charge(claim)
    most = max(float(one.epsilon(DELTA)) for one in own)
    assert most * (1 - 1e-9) <= float(accounts.epsilon(DELTA)) < 2 * most


@pytest.mark.parametrize("claim", [LAPLACE, PADDED], ids=["laplace", "padded"])
def test_budget_stops_in_the_round_that_an_account_does(claim: ProvenClaim) -> None:
    budget = Budget(epsilon=4.0, delta=DELTA)
    allowed = Account(budget).rounds_left(claim)
    accounts = Participation(2, budget)
    for _ in range(allowed):
        accounts = accounts.after(claim, of(0))
    with pytest.raises(BudgetExceeded, match="above the budget of 4"):
        accounts.after(claim, of(0))
    assert allowed > 5
    assert accounts.rounds.tolist() == [allowed, 0]
    assert float(accounts.epsilon(DELTA)) <= 4.0
    other = accounts.after(claim, of(1))  # who has paid nothing yet may go on
    assert other.rounds.tolist() == [allowed, 1]
    with pytest.raises(BudgetExceeded):
        other.after(claim, of(0, 1))


def test_noise_for_exactly_so_many_rounds_suffices_for_them() -> None:
    """Rounding must not refuse the last of the rounds that the noise was chosen for."""
    rounds, budget = 20_000, Budget(epsilon=8.0, delta=DELTA)
    multiplier = gaussian_multiplier(epsilon=8.0, delta=DELTA, rounds=rounds)
    claim, accounts = proven(events.gaussian(multiplier)), Participation(1, budget)
    for _ in range(rounds):
        accounts = accounts.after(claim, of(0))
    spent = float(accounts.epsilon(DELTA))
    assert spent == pytest.approx(8.0, rel=1e-9)
    exact = float(claim.epsilon(delta=DELTA, rounds=rounds))
    assert spent == pytest.approx(exact, rel=1e-13)


def test_budget_is_kept_after_a_restart() -> None:
    budget = Budget(epsilon=2.0, delta=DELTA)
    allowed = Account(budget).rounds_left(GAUSSIAN)
    accounts = Participation(2, budget)
    for _ in range(allowed):
        accounts = accounts.after(GAUSSIAN, of(0))
        accounts = Participation(2, budget).restored(accounts.state())
    with pytest.raises(BudgetExceeded):
        accounts.after(GAUSSIAN, of(0))


def test_restored_accounts_say_what_was_paid_and_not_the_budget() -> None:
    """What was paid is said, whatever the budget is."""
    free = Participation(2)
    for _ in range(10):
        free = free.after(GAUSSIAN, of(0))
    paid = float(free.epsilon(DELTA))
    small, large = Budget(paid / 4, DELTA), Budget(2 * paid, DELTA)
    for accounts in (
        Participation(2, small).restored(free.state()),
        Participation(2, small).restored(Participation(2, large).restored(free.state()).state()),
    ):
        assert float(accounts.epsilon(DELTA)) == paid
        assert accounts.epsilon(DELTA).basis is Basis.PROVEN
        with pytest.raises(BudgetExceeded):
            accounts.after(GAUSSIAN, of(1))
    enough = Participation(2, large).restored(free.state())
    allowed = Account(large).rounds_left(GAUSSIAN)
    for _ in range(allowed - 10):
        enough = enough.after(GAUSSIAN, of(0))
    assert paid < float(enough.epsilon(DELTA)) <= large.epsilon


def test_not_composed_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def counted(event: events.Event, delta: float) -> float:
        nonlocal calls
        calls += 1
        return epsilon_for(event, delta)

    monkeypatch.setattr("diffsketch.privacy.accounting.account.epsilon_for", counted)
    accounts = Participation(3, Budget(epsilon=8.0, delta=DELTA))
    claim = proven(events.gaussian(30.0))
    for _ in range(1000):
        accounts = accounts.after(claim, of(0, 2))
    assert 0 < calls < 100


def test_claims_without_proof_do_not_compose() -> None:
    accounts = Participation(2)
    for epsilon in (0.5, 2.0, 1.0):
        accounts = accounts.after(claimed(epsilon), of(0))
    found = accounts.epsilon(DELTA)
    assert (float(found), found.rounds, found.basis) == (2.0, 1, Basis.CLAIMED)
    assert accounts.rounds.tolist() == [3, 0]
    loose = Participation(2).after(claimed(0.5, delta=1e-3), of(0)).epsilon(DELTA)
    assert (loose.delta, float(loose)) == (1e-3, 0.5)  # nothing is claimed for a smaller delta


@pytest.mark.parametrize("claim", [claimed(0.1), NoClaim(SCOPE, "nothing is hidden")], ids=repr)
def test_budget_is_for_what_is_proven(claim: Claim) -> None:
    with pytest.raises(BudgetExceeded, match="is for what is proven"):
        Participation(2, Budget(8.0, DELTA)).after(claim, of(0))


@pytest.mark.parametrize("basis", [Basis.PROVEN, Basis.CLAIMED, Basis.NONE])
def test_before_the_first_round_it_is_what_is_planned(basis: Basis) -> None:
    scope = Scope(Unit.CLIENT, Relation.ADD_OR_REMOVE, Trust.CENTRAL)
    number = Epsilon(0.5, 0.0, 1, Basis.CLAIMED, scope)
    claims: dict[Basis, Claim] = {
        Basis.PROVEN: ProvenClaim(scope, events.gaussian(3.0), "noise"),
        Basis.CLAIMED: PaperClaim(scope, number, "a paper"),
        Basis.NONE: NoClaim(scope, "nothing is hidden"),
    }
    planned = claims[basis]
    assert (float(Participation(2).epsilon(DELTA)), Participation(2).claim) == (0.0, None)
    accounts = Participation(2, planned=planned)
    for one in (accounts, Participation(2, planned=planned).restored(accounts.state())):
        found = one.epsilon(DELTA)
        assert float(found) == (math.inf if basis is Basis.NONE else 0.0)
        assert (found.rounds, found.basis, found.scope) == (0, basis, scope)
        assert one.claim == planned


def test_the_claim_of_a_run_is_the_weakest() -> None:
    none = NoClaim(SCOPE, "nothing is hidden")
    accounts = Participation(2, planned=GAUSSIAN)
    expected: list[tuple[Claim, Claim]] = [
        (GAUSSIAN, GAUSSIAN),
        (claimed(0.1), claimed(0.1)),
        (claimed(0.7), claimed(0.7)),
        (GAUSSIAN, claimed(0.7)),
        (none, none),
        (GAUSSIAN, none),
    ]
    for claim, weakest in expected:
        accounts = accounts.after(claim, of(0))
        assert accounts.claim == weakest
        found = accounts.epsilon(DELTA)
        assert (found.basis, math.isinf(found)) == (weakest.basis, weakest is none)
        assert Participation(2).restored(accounts.state()).claim == weakest


def test_nobody_pays_for_an_empty_round() -> None:
    accounts = Participation(2).after(GAUSSIAN, of())
    assert float(accounts.epsilon(DELTA)) == 0.0


def test_one_account_for_secret_samples() -> None:
    central = Scope(Unit.CLIENT, Relation.ADD_OR_REMOVE, Trust.CENTRAL)
    claim = ProvenClaim(central, events.poisson_sampled(0.01, events.gaussian(1.0)), "noise")
    accounts = Participation(1)
    for _ in range(20):
        accounts = accounts.after(claim, of(0))
    expected = claim.epsilon(delta=DELTA, rounds=20)
    assert float(accounts.epsilon(DELTA)) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize(
    "claims",
    [
        [],
        [GAUSSIAN, LAPLACE, PADDED, GAUSSIAN],
        [claimed(1.0), claimed(math.inf)],
        [NoClaim(SCOPE, "nothing is hidden")],
    ],
)
def test_state_there_and_back(claims: list[Claim]) -> None:
    accounts = Participation(4)
    for claim, cohort in zip(claims, COHORTS, strict=False):
        accounts = accounts.after(claim, cohort)
    state = accounts.state()
    texts = {name: value for name, value in state.items() if isinstance(value, str)}
    again: dict[str, Any] = {**state, **json.loads(json.dumps(texts))}
    back = Participation(4).restored(again)
    assert back.epsilon(DELTA) == accounts.epsilon(DELTA)
    assert back.rounds.tolist() == accounts.rounds.tolist()
    for claim in claims:
        accounts, back = accounts.after(claim, of(1, 2)), back.after(claim, of(1, 2))
    assert back.epsilon(DELTA) == accounts.epsilon(DELTA)


def test_refusals() -> None:
    accounts = Participation(2).after(GAUSSIAN, of(0))
    other = Scope(Unit.CLIENT, Relation.ADD_OR_REMOVE, Trust.LOCAL)
    with pytest.raises(MismatchError, match="must be about the same"):
        accounts.after(NoClaim(other, "nothing is hidden"), of(0))
    bound = Epsilon(1.0, DELTA, 1, Basis.MEASURED, SCOPE)
    with pytest.raises(ArgumentError, match="claim must be of a mechanism"):
        Participation(2).after(MeasuredClaim(SCOPE, bound, 0.95, "an attack"), of(0))
    with pytest.raises(MismatchError, match="must be of 3 clients"):
        Participation(3).restored(accounts.state())
    with pytest.raises(ArgumentError, match="clients must be >= 1"):
        Participation(0)
    assert torch.equal(accounts.state()["rounds"], torch.tensor([1, 0]))  # type: ignore[arg-type]


CLIENTS = 6
steps = st.tuples(
    st.integers(0, 100),  # which of the values there are is changed
    st.lists(st.integers(0, CLIENTS - 1), unique=True, max_size=4),
    st.sampled_from(["one", "two", "three"]),
)


def as_lists(columns: Columns) -> dict[str, Any]:
    return {name: columns.whole(name).tolist() for name in columns.names}


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, max_size=12), st.randoms(use_true_random=False))
def test_any_one_can_be_changed_at_any_time(sequence: list[Any], order: Any) -> None:
    found = [Columns({"one": np.zeros(CLIENTS, np.int64)})]
    expected: list[dict[str, Any]] = [{"one": np.zeros(CLIENTS, np.int64)}]
    for number, (which, places, name) in enumerate(sequence, 1):
        index, at = which % len(found), np.array(places, np.int64)
        shape = (len(places),) if name == "one" else (2, len(places))
        values = np.full(shape, number)
        found.append(found[index].changed(at, {name: values}))
        copy = {key: value.copy() for key, value in expected[index].items()}
        whole = CLIENTS if name == "one" else (2, CLIENTS)
        copy.setdefault(name, np.zeros(whole, np.int64))[..., at] = values
        expected.append(copy)
        at[:] = 0  # what is handed over may be used again
    for index in order.sample(range(len(found)), len(found)):
        want = {name: value.tolist() for name, value in expected[index].items()}
        assert as_lists(found[index]) == want


def test_an_interrupt_half_way_changes_nothing() -> None:
    before = Columns({"one": np.zeros(3), "two": np.ones(3)})
    values: dict[str, Any] = {"one": np.full(2, 7.0), "two": Broken()}
    with pytest.raises(KeyboardInterrupt):
        before.changed(np.array([0, 2]), values)
    assert as_lists(before) == {"one": [0, 0, 0], "two": [1, 1, 1]}
    after = before.changed(np.array([1]), {"two": np.array([5.0])})
    assert as_lists(after) == {"one": [0, 0, 0], "two": [1, 5, 1]}


class Broken:
    """Values that cannot be written."""

    shape, dtype = (2,), np.dtype(float)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt


def test_arrays_are_changed_in_place_and_old_values_are_forgotten() -> None:
    columns = Columns({"one": np.zeros(3)})
    first, array = weakref.ref(columns), columns._arrays["one"]
    for _ in range(5):
        columns = columns.changed(np.array([1]), {"one": columns.at("one", np.array([1])) + 1})
    gc.collect()
    assert columns._arrays["one"] is array
    assert first() is None
    assert as_lists(columns) == {"one": [0, 5, 0]}
