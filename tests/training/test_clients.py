"""Accounts of clients: against `Account`, the stop at the budget, values that stay as they are."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.account import Account
from diffsketch.privacy.accounting.budget import Budget, BudgetExceeded, gaussian_multiplier
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
from diffsketch.training.state import Participation
from tests.helpers.refusals import refused

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


def repeated(accounts: Participation, claim: Claim, rounds: int) -> Participation:
    """Rounds of the first client alone."""
    for _ in range(rounds):
        accounts = accounts.after(claim, of(0))
    return accounts


def test_each_clients_sum_decides() -> None:
    """Exact if all noise is Gaussian, or all rounds are alike; else never below."""
    rng = np.random.default_rng(0)
    kinds = [proven(events.gaussian(float(rng.uniform(2, 9)))) for _ in range(30)]
    mixed: list[ProvenClaim] = [GAUSSIAN, LAPLACE, PADDED] * 4
    exact = 1 + 1e-9
    for claims, factor in ((kinds, exact), ([PADDED] * 9, exact), ([ROWS] * 9, exact), (mixed, 2)):
        accounts, own = Participation(5), [Account() for _ in range(5)]
        for claim in claims:
            cohort = np.sort(rng.choice(5, 2, replace=False))
            accounts = accounts.after(claim, cohort)
            for client in cohort:
                own[client].charge(claim)
        accounts = accounts.after(GAUSSIAN, of())  # nobody pays for an empty round
        most = max(float(account.epsilon(DELTA)) for account in own)
        assert most * (1 - 1e-9) <= float(accounts.epsilon(DELTA)) <= factor * most
        everyone = Account()  # negative control: not what all rounds together would cost
        for account in own:
            for spent, rounds in account.spent:
                everyone.charge(spent, rounds)
        assert float(everyone.epsilon(DELTA)) > 1.5 * most


@pytest.mark.parametrize("claim", [LAPLACE, PADDED], ids=["laplace", "padded"])
def test_budget_stops_in_the_round_that_an_account_does(claim: ProvenClaim) -> None:
    budget = Budget(epsilon=4.0, delta=DELTA)
    allowed = Account(budget).rounds_left(claim)
    accounts = repeated(Participation(2, budget), claim, allowed)
    refused(BudgetExceeded, "above the budget of 4", accounts.after, claim, of(0))
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
    claim = proven(events.gaussian(multiplier))
    spent = float(repeated(Participation(1, budget), claim, rounds).epsilon(DELTA))
    assert spent == pytest.approx(8.0, rel=1e-9)
    exact = float(claim.epsilon(delta=DELTA, rounds=rounds))
    assert spent == pytest.approx(exact, rel=1e-13)


def test_restored_accounts_say_what_was_paid_and_not_the_budget() -> None:
    """What was paid is said, whatever the budget is."""
    free = repeated(Participation(2), GAUSSIAN, 10)
    paid = float(free.epsilon(DELTA))
    small, large = Budget(paid / 4, DELTA), Budget(2 * paid, DELTA)
    for accounts in (
        Participation(2, small).restored(free.saved()),
        Participation(2, small).restored(Participation(2, large).restored(free.saved()).saved()),
    ):
        assert float(accounts.epsilon(DELTA)) == paid
        assert accounts.epsilon(DELTA).basis is Basis.PROVEN
        with pytest.raises(BudgetExceeded):
            accounts.after(GAUSSIAN, of(1))
    enough = Participation(2, large).restored(free.saved())
    enough = repeated(enough, GAUSSIAN, Account(large).rounds_left(GAUSSIAN) - 10)
    assert paid < float(enough.epsilon(DELTA)) <= large.epsilon


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
    for one in (accounts, Participation(2, planned=planned).restored(accounts.saved())):
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
        assert Participation(2).restored(accounts.saved()).claim == weakest


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
    state = accounts.saved()
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
        Participation(3).restored(accounts.saved())
    refused(ArgumentError, "clients must be >= 1", Participation, 0)
    assert torch.equal(accounts.saved()["participation.rounds"], torch.tensor([1, 0]))  # type: ignore[arg-type]


def test_values_are_never_changed() -> None:
    """Whichever value a round starts from, it and all values before it stay as they are."""
    first = Participation(4).after(GAUSSIAN, of(0, 1))
    cohort = of(1, 2)
    second = first.after(LAPLACE, cohort)
    cohort[:] = 3  # the caller may use its array again
    third, branch = second.after(GAUSSIAN, of(1)), first.after(GAUSSIAN, of(3))
    counts = [one.rounds.tolist() for one in (first, second, third, branch)]
    assert counts == [[1, 1, 0, 0], [1, 2, 1, 0], [1, 3, 1, 0], [1, 1, 0, 1]]
    prices = [float(one.epsilon(DELTA)) for one in (first, second, third, branch)]
    assert prices[0] == prices[3] < prices[1] < prices[2]
    for value in first.saved().values():
        if isinstance(value, torch.Tensor):
            value.fill_(9)
    assert first.rounds.tolist() == counts[0]
    assert float(first.epsilon(DELTA)) == prices[0]
