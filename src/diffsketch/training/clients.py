"""Accounts of all clients of a simulated run: what each has spent, and a stop at the budget."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.errors import MismatchError, check
from diffsketch.privacy.accounting.account import (
    Allowance,
    Budget,
    BudgetExceeded,
    Prices,
    prices_of,
    stated_epsilon,
    weaker,
)
from diffsketch.privacy.claim import (
    Claim,
    Epsilon,
    ProvenClaim,
    claim_from_json,
    claim_to_json,
)

_Array: TypeAlias = npt.NDArray[Any]
_Places: TypeAlias = npt.NDArray[np.int64]

EVERYONE: _Places = np.zeros(1, np.int64)
"""The one account where every round counts for all."""
ACCOUNTS = "participation."
"""Beginning of the names of the accounts in a state."""


class Columns:
    """Arrays by name with a column for each client. A value: `changed` gives the next one.

    The newest has the arrays, and changes them in place. The one before it knows what it had there,
    and makes arrays of its own should it still be used: after a round that failed, say.

    Guarantees (`tests/training/test_clients.py`): each is as if it had arrays of its own, also if
    an interrupt ends `changed` half-way. For one thread at a time: a lock would survive interrupts.
    Nobody else may change the arrays.
    """

    def __init__(self, arrays: Mapping[str, _Array]) -> None:
        self.names = tuple(arrays)
        self._arrays = dict(arrays)
        # The one that has the arrays now, or knows who has, and what to put back into a copy.
        self._undo: tuple[Columns, _Places, Mapping[str, _Array]] | None = None

    def at(self, name: str, places: _Places) -> _Array:
        """The columns of some clients."""
        return np.array(self._own()[name][..., places])

    def whole(self, name: str) -> _Array:
        """All columns, as a copy."""
        return self._own()[name].copy()

    def changed(self, places: _Places, values: Mapping[str, _Array]) -> Columns:
        """Replace the values of some clients; new names are zero for all others."""
        places = places.copy()
        arrays = self._own()
        fresh = tuple(name for name in values if name not in self.names)
        for name in fresh:
            shape = (*values[name].shape[:-1], arrays[self.names[0]].shape[-1])
            arrays[name] = np.zeros(shape, values[name].dtype)
        other = copy.copy(self)
        other.names += fresh
        # First of all, and in one step: whatever happens now, this one is as it was.
        self._undo = other, places, {name: arrays[name][..., places] for name in values}
        for name, value in values.items():
            arrays[name][..., places] = value
        return other

    def _own(self) -> dict[str, _Array]:
        if self._undo is not None:
            later = [self._undo]
            while (more := later[-1][0]._undo) is not None:
                later.append(more)
            newest = later[-1][0]._arrays
            arrays = {name: newest[name].copy() for name in self.names}
            for _, places, values in reversed(later):
                for name in values.keys() & arrays.keys():
                    arrays[name][..., places] = values[name]
            self._arrays = arrays
            self._undo = None
        return self._arrays


_Paid: TypeAlias = npt.NDArray[np.float64]  # (2, cohort): sums, and what rounding took off

_ROUNDS = "rounds"


@dataclass(frozen=True, eq=False)
class Participation:
    """The accounts of all simulated clients, as columns. A value: `after` gives the next one.

    Prices, epsilon and the stop at the budget are those of `Account`, which is the account of one
    party; here they are arrays, as a simulation may have thousands of clients in every round, and
    values, as a round that fails must leave no trace.

    Guarantees (`tests/training/test_clients.py`): epsilon is that of an `Account` that is charged
    the rounds of the busiest client if all rounds are alike, and never less than that of any
    client; the budget is never exceeded, and a round is refused before it is run; accounts that
    are restored under a budget that they exceed still say what was paid.

    Args:
        clients: How many there are; 1 if every round counts for everyone.
        budget: Where to stop, if anywhere.
        planned: What a round is expected to claim: what accounts without rounds are about.

    >>> from diffsketch.privacy.accounting import events
    >>> from diffsketch.privacy.claim import Relation, Scope, Trust, Unit
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
    # Set by `replace` only. Values are never changed in place.
    _accounts: Columns = field(default=None, repr=False, kw_only=True)  # type: ignore[assignment]
    _busiest: int = field(default=0, repr=False, kw_only=True)  # rounds of a client
    _most: Prices = field(default_factory=dict, repr=False, kw_only=True)  # largest over clients
    _weakest: Claim | None = field(default=None, repr=False, kw_only=True)
    _last: tuple[ProvenClaim, Prices] | None = field(default=None, repr=False, kw_only=True)
    _allowance: Allowance = field(default=None, repr=False, kw_only=True)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.clients < 1:
            check(False, "clients", "be >= 1", self.clients)  # not called in each round
        if self._accounts is None:
            columns = Columns({_ROUNDS: np.zeros(self.clients, np.int64)})
            object.__setattr__(self, "_accounts", columns)
        if self._allowance is None:
            object.__setattr__(self, "_allowance", Allowance(self.budget))

    @property
    def rounds(self) -> npt.NDArray[np.int64]:
        """Number of rounds that each client took part in, as a copy."""
        return self._accounts.whole(_ROUNDS)

    @property
    def claim(self) -> Claim | None:
        """Weakest claim of all rounds; before the first, what is planned."""
        return self.planned if self._weakest is None else self._weakest

    def after(self, claim: Claim, cohort: npt.NDArray[np.int64]) -> Participation:
        """The accounts if these clients take part in a round with this claim. Ask before it.

        Raises:
            BudgetExceeded: Somebody would have paid more than the budget.
            MismatchError: The claim is about something else than those of other rounds.
        """
        weakest = claim if self._weakest is claim else weaker(claim, self._weakest)
        accounts = self._accounts
        rounds = accounts.at(_ROUNDS, cohort) + 1
        busiest = int(rounds.max(initial=self._busiest))
        changes: dict[str, npt.NDArray[Any]] = {_ROUNDS: rounds}
        if not isinstance(claim, ProvenClaim):
            if self.budget is not None:
                raise BudgetExceeded(
                    f"the budget of {self.budget.epsilon:g} is for what is proven: this round's "
                    f"epsilon is {claim.basis}; nothing was spent ({claim})"
                )
            accounts = accounts.changed(cohort, changes)
            return replace(self, _accounts=accounts, _busiest=busiest, _weakest=weakest)
        last = self._last  # claims mostly are those of the round before
        prices = last[1] if last is not None and last[0] == claim else prices_of(claim)
        most = dict(self._most)
        for name, price in prices.items():
            seen = name in accounts.names
            paid = accounts.at(name, cohort) if seen else np.zeros((2, len(cohort)))
            changes[name] = _added(paid, price)
            if len(cohort):
                most[name] = max(most.get(name, 0.0), float(changes[name].sum(axis=0).max()))
        self._allowance.check(most, releases=busiest, scope=claim.scope)
        return replace(
            self,
            _accounts=accounts.changed(cohort, changes),
            _busiest=busiest,
            _most=most,
            _weakest=weakest,
            _last=(claim, prices),
        )

    def epsilon(self, delta: float) -> Epsilon:
        """Epsilon of the client who paid most, as `Account.epsilon` states it."""
        return stated_epsilon(self.claim, self._most, self._busiest, delta)

    def state(self, prefix: str = "") -> dict[str, Tensor | str]:
        """For a checkpoint: tensors, and the weakest claim as text, by names with this prefix."""
        state: dict[str, Tensor | str] = {}
        for name in self._accounts.names:
            shown = name if name == _ROUNDS else f"paid.{name}"
            state[prefix + shown] = torch.from_numpy(self._accounts.whole(name))
        claim = None if self._weakest is None else claim_to_json(self._weakest)
        state[f"{prefix}claim"] = json.dumps(claim)
        return state

    def restored(self, state: Mapping[str, Any], prefix: str = "") -> Participation:
        """Restore what `state(prefix)` gave, of all in a state, for these clients and this budget.

        Raises:
            MismatchError: It is of another number of clients.
        """
        paid = f"{prefix}paid."
        accounts = {
            name.removeprefix(paid): value.numpy().copy()
            for name, value in state.items()
            if name.startswith(paid)
        }
        rounds = state[prefix + _ROUNDS].numpy().copy()
        for name, value in {"rounds": rounds, **accounts}.items():
            if value.shape[-1:] != (self.clients,):
                raise MismatchError(f"{name} must be of {self.clients} clients, got {value.shape}")
        claim = json.loads(state[f"{prefix}claim"])
        return replace(
            self,
            _accounts=Columns({_ROUNDS: rounds, **accounts}),
            _busiest=int(rounds.max()),
            _most={name: float(account.sum(axis=0).max()) for name, account in accounts.items()},
            _weakest=None if claim is None else claim_from_json(claim),
        )


def _added(paid: _Paid, price: float) -> _Paid:
    """Prices of a cohort after each of it has paid this, too.

    What rounding takes off a sum is kept beside it, lest thousands of rounds cost more, or less,
    than as many times the price.
    """
    high, low = paid
    total = high + price
    added = total - high
    return np.stack([total, low + ((high - (total - added)) + (price - added))])
