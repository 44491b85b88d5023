"""Accounts of all clients of a simulated run: what each has spent, and a stop at the budget."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.errors import MismatchError, check_whole
from diffsketch.privacy.accounting.budget import (
    Allowance,
    Budget,
    Prices,
    prices_of,
    stated_epsilon,
    weaker,
)
from diffsketch.privacy.claim import Claim, Epsilon, claim_from_json, claim_to_json

_Indices: TypeAlias = npt.NDArray[np.int64]
_Paid: TypeAlias = npt.NDArray[np.float64]  # (2, clients): sums, and their rounding errors

EVERYONE: _Indices = np.zeros(1, np.int64)
"""Index of the single account where every round counts for all clients."""
ACCOUNTS = "participation."
"""Prefix of the accounts' names in a state."""

_prices = lru_cache(maxsize=16)(prices_of)  # pure, and most rounds repeat the claim before


@dataclass(frozen=True, eq=False)
class Participation:
    """Accounts of all simulated clients, as arrays. An immutable value: `after` returns a new one.

    Prices, epsilon and the stop at the budget are those of `Account`, which is the account of one
    party; here they are arrays, as a simulation may have thousands of clients in every round, and
    values, as a round that fails must leave no trace.

    Guarantees (`tests/training/test_clients.py`): epsilon is that of an `Account` that is charged
    the rounds of the busiest client if all rounds are alike, and never less than that of any
    client; the budget is never exceeded, and a round is refused before it is run; accounts that
    are restored under a budget that they exceed still say what was paid.

    Args:
        clients: Number of clients; 1 if every round counts for everyone.
        budget: Where to stop, if anywhere.
        planned: Expected claim of a round: what accounts without rounds are about.

    >>> from diffsketch.privacy.accounting import events
    >>> from diffsketch.privacy.claim import ProvenClaim, Relation, Scope, Trust, Unit
    >>> scope = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
    >>> claim = ProvenClaim(scope, events.gaussian(2.0), "Gaussian noise")
    >>> accounts = Participation(clients=3)
    >>> for cohort in ([0, 1], [1, 2], [0, 1]):
    ...     accounts = accounts.after(claim, np.array(cohort))
    >>> print(accounts.epsilon(1e-5))
    epsilon = 3.709 at delta = 1e-05 over 3 rounds (proven; client unit, replace, local trust)
    """

    clients: int
    budget: Budget | None = None
    planned: Claim | None = field(default=None, repr=False)
    # Set by `replace` only; the arrays are never changed in place.
    rounds: _Indices = field(default=None, repr=False, kw_only=True)  # type: ignore[arg-type]
    _paid: Mapping[str, _Paid] = field(default_factory=dict, repr=False, kw_only=True)
    _weakest: Claim | None = field(default=None, repr=False, kw_only=True)
    _allowance: Allowance | None = field(default=None, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.rounds is None:
            check_whole("clients", self.clients, least=1)
            object.__setattr__(self, "rounds", np.zeros(self.clients, np.int64))
        if self._allowance is None:
            object.__setattr__(self, "_allowance", Allowance(self.budget))

    @property
    def claim(self) -> Claim | None:
        """Weakest claim of all rounds; before the first, what is planned."""
        return self.planned if self._weakest is None else self._weakest

    def after(self, claim: Claim, cohort: _Indices) -> Participation:
        """Return the accounts after the cohort takes part in a round. Call it before the round.

        Raises:
            BudgetExceeded: A client would have paid more than the budget.
            MismatchError: The claim has another scope than those of other rounds.
        """
        weakest = claim if claim is self._weakest else weaker(claim, self._weakest)
        # Copies: whoever holds the value before must not see this round, which may still fail.
        rounds, accounts = self.rounds.copy(), dict(self._paid)
        rounds[cohort] += 1
        for name, price in _prices(claim).items():
            paid = accounts[name].copy() if name in accounts else np.zeros((2, self.clients))
            paid[:, cohort] = _added(paid[:, cohort], price)
            accounts[name] = paid
        after = replace(self, rounds=rounds, _paid=accounts, _weakest=weakest)
        # Only the busiest client can be the first beyond the budget. Each price's maximum on its
        # own may be of different clients, so this errs towards stopping early.
        if self._allowance is not None:
            self._allowance.check(weakest, after._most_paid(), releases=int(rounds.max()))
        return after

    def _most_paid(self) -> Prices:
        """Return the largest sum over clients, for each price on its own."""
        return {name: float(paid.sum(axis=0).max()) for name, paid in self._paid.items()}

    def epsilon(self, delta: float) -> Epsilon:
        """Return the epsilon of the client who paid most, as `Account.epsilon` states it."""
        return stated_epsilon(self.claim, self._most_paid(), int(self.rounds.max()), delta)

    def state(self, prefix: str = "") -> dict[str, Tensor | str]:
        """Return tensors, and the weakest claim as text, under names with this prefix."""
        state: dict[str, Tensor | str] = {f"{prefix}rounds": torch.from_numpy(self.rounds.copy())}
        for name, paid in self._paid.items():
            state[f"{prefix}paid.{name}"] = torch.from_numpy(paid.copy())
        claim = None if self._weakest is None else claim_to_json(self._weakest)
        return state | {f"{prefix}claim": json.dumps(claim)}

    def restored(self, state: Mapping[str, Any], prefix: str = "") -> Participation:
        """Restore accounts from the entries of a state that `state(prefix)` made.

        Raises:
            MismatchError: They are of another number of clients.
        """
        begin = f"{prefix}paid."
        arrays = {"rounds": state[f"{prefix}rounds"].numpy().copy()}
        arrays |= {
            name.removeprefix(begin): value.numpy().copy()
            for name, value in state.items()
            if name.startswith(begin)
        }
        for name, value in arrays.items():
            # Also catches a state of secret samples, which has one account, in a run where each
            # client has its own.
            if value.shape[-1:] != (self.clients,):
                raise MismatchError(f"{name} must be of {self.clients} clients, got {value.shape}")
        claim = json.loads(state[f"{prefix}claim"])
        weakest = None if claim is None else claim_from_json(claim)
        return replace(self, rounds=arrays.pop("rounds"), _paid=arrays, _weakest=weakest)


def _added(paid: _Paid, price: float) -> _Paid:
    """Add a price to each sum of a cohort, and what rounding takes off (Knuth's two-sum).

    Without the second row, thousands of rounds would cost more, or less, than as many times the
    price.
    """
    # The rows are a sum and its correction, so that 20,000 rounds cost 20,000 times the price to 13
    # digits: noise that is made for exactly the budget would else be refused its last round.
    high, low = paid
    total = high + price
    added = total - high
    return np.stack([total, low + ((high - (total - added)) + (price - added))])
