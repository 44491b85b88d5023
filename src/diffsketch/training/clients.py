"""Privacy accounts of all clients of a run: what each has spent, and a stop at the budget."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, MismatchError, check
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.accountant import Budget, BudgetExceeded
from diffsketch.privacy.accounting.events import epsilon_for
from diffsketch.privacy.claim import (
    Basis,
    Claim,
    Epsilon,
    NoClaim,
    PaperClaim,
    ProvenClaim,
    Relation,
    Scope,
    Trust,
    Unit,
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


_Account: TypeAlias = npt.NDArray[np.float64]  # (2, cohort): sums, and what rounding took off
_Prices: TypeAlias = Mapping[str, float]  # of a round, or the largest of each over the clients

_ROUNDS = "rounds"
_SQUARE, _FAILURE = "gaussian", "failure"  # other prices are named by their event, as JSON text
_ROUNDING = 2.0**-50  # relative, and more than is lost in adding the prices up


@dataclass(frozen=True, eq=False)
class Participation:
    """The accounts of all clients. A value: `after` gives the accounts after one more round.

    Guarantees (`tests/training/test_clients.py`): epsilon is that of an `Accountant` that is
    told the rounds of the busiest client if all rounds are alike, and never less than that of any
    client; the budget is never exceeded, and a round is refused before it is run; accounts that
    are restored under a budget that they exceed still say what was paid.

    Args:
        clients: How many there are; 1 if every round counts for everyone.
        budget: Where to stop, if anywhere.
        planned: What a round is expected to claim: what accounts without rounds are about.

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
    _most: _Prices = field(default_factory=dict, repr=False, kw_only=True)
    _within: _Prices = field(default_factory=dict, repr=False, kw_only=True)
    _weakest: Claim | None = field(default=None, repr=False, kw_only=True)
    _last: tuple[ProvenClaim, _Prices] | None = field(default=None, repr=False, kw_only=True)
    _watched: bool = field(default=True, repr=False, kw_only=True)  # all was within the budget

    def __post_init__(self) -> None:
        if self.clients < 1:
            check(False, "clients", "be >= 1", self.clients)  # not called in each round
        if self._accounts is None:
            columns = Columns({_ROUNDS: np.zeros(self.clients, np.int64)})
            object.__setattr__(self, "_accounts", columns)

    @property
    def rounds(self) -> npt.NDArray[np.int64]:
        """Number of rounds that each client took part in, as a copy."""
        return self._accounts.whole(_ROUNDS)

    @property
    def claim(self) -> Claim | None:
        """Weakest claim of the rounds: it holds for the whole run.

        Nothing is claimed if nothing is for a single round. Of claims without proof it is the
        largest; of proven ones, which `epsilon` composes, it is the first round's. Before the
        first round it is what is planned, if that is known.
        """
        return self.planned if self._weakest is None else self._weakest

    def after(self, claim: Claim, cohort: npt.NDArray[np.int64]) -> Participation:
        """The accounts if these clients take part in a round with this claim. Ask before it.

        Raises:
            BudgetExceeded: Somebody would have paid more than the budget.
            MismatchError: The claim is about something else than those of other rounds.
        """
        weakest = self._weaker(claim)
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
        prices = last[1] if last is not None and last[0] == claim else _prices(claim)
        most = dict(self._most)
        for name, price in prices.items():
            known = name in accounts.names
            paid = accounts.at(name, cohort) if known else np.zeros((2, len(cohort)))
            changes[name] = _added(paid, price)
            if len(cohort):
                most[name] = max(most.get(name, 0.0), float(changes[name].sum(axis=0).max()))
        within = self._admitted(most, busiest, claim.scope)
        return replace(
            self,
            _accounts=accounts.changed(cohort, changes),
            _busiest=busiest,
            _most=most,
            _within=within,
            _weakest=weakest,
            _last=(claim, prices),
        )

    def epsilon(self, delta: float) -> Epsilon:
        """Epsilon of the client who paid most.

        Proven claims are composed. Of claims without proof the largest is given, for one round:
        they do not compose. Where nothing is claimed it is infinite. The weakest claim of all
        rounds decides which it is. Before the first round it is 0 over 0 rounds, or infinite where
        nothing will be claimed, with the basis and the scope of what is planned.
        """
        rounds, claim = self._busiest, self.claim
        if claim is None:
            scope = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
            return Epsilon(0.0, delta, 0, Basis.PROVEN, scope)
        if rounds == 0:
            value = math.inf if isinstance(claim, NoClaim) else 0.0
            return Epsilon(value, delta, 0, claim.basis, claim.scope)
        if isinstance(claim, PaperClaim):
            return claim.epsilon(delta=max(delta, claim.per_round.delta), rounds=1)
        if not isinstance(claim, ProvenClaim):
            return claim.epsilon(delta=delta, rounds=rounds)
        value = epsilon_for(_event(self._most), delta)
        budget = self.budget
        if self._watched and budget is not None and delta >= budget.delta:
            value = min(value, budget.epsilon)  # or a round would have been refused
        return Epsilon(value, delta, rounds, Basis.PROVEN, claim.scope)

    def state(self, prefix: str = "") -> dict[str, Tensor | str]:
        """For a checkpoint: tensors, and the weakest claim as text, by names with this prefix."""
        state: dict[str, Tensor | str] = {}
        for name in self._accounts.names:
            shown = name if name == _ROUNDS else f"paid.{name}"
            state[prefix + shown] = torch.from_numpy(self._accounts.whole(name))
        state[f"{prefix}claim"] = json.dumps(_claim_to_json(self._weakest))
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
        most = {name: float(account.sum(axis=0).max()) for name, account in accounts.items()}
        claim = _claim_from_json(json.loads(state[f"{prefix}claim"]))
        return replace(
            self,
            _accounts=Columns({_ROUNDS: rounds, **accounts}),
            _busiest=int(rounds.max()),
            _most=most,
            _within={},
            _weakest=claim,
            _watched=self._allows(most),
        )

    def _weaker(self, claim: Claim) -> Claim:
        """The claim that all rounds together can have."""
        known = self._weakest
        if known is claim:
            return claim
        ranks = {Basis.PROVEN: 0, Basis.CLAIMED: 1, Basis.NONE: 2}
        if claim.basis not in ranks:
            raise ArgumentError(f"claim must be of a mechanism, not {claim.basis}, got {claim}")
        if known is None:
            return claim
        if known.scope != claim.scope:
            raise MismatchError(
                f"claims of one run must be about the same: {known.scope}, got {claim.scope}"
            )
        if isinstance(known, PaperClaim) and isinstance(claim, PaperClaim):
            return max(known, claim, key=lambda one: float(one.per_round))
        return claim if ranks[claim.basis] > ranks[known.basis] else known

    def _allows(self, most: _Prices) -> bool:
        """Whether these prices are within the budget."""
        budget = self.budget
        if budget is None or not any(most.values()):
            return True
        return epsilon_for(_event(most), budget.delta) <= budget.epsilon

    def _admitted(self, most: _Prices, rounds: int, scope: Scope) -> _Prices:
        """Prices that include `most` and are within the budget, so as not to compose each round."""
        budget = self.budget
        if budget is None or all(most[name] <= self._within.get(name, 0.0) for name in most):
            return self._within

        def within(factor: float) -> bool:
            return self._allows(_more(most, factor))

        if not within(1.0):
            total = epsilon_for(_event(most), budget.delta)
            raise BudgetExceeded(
                f"1 more round would bring epsilon to {total:.6g} at delta = {budget.delta:g}, "
                f"above the budget of {budget.epsilon:g} ({scope}); nothing was spent"
            )
        low, high = 1.0, 2.0
        if within(high):
            return _more(most, high)
        while (high - low) * rounds > 0.5:  # less than a round further, nothing is gained
            middle = (low + high) / 2
            low, high = (middle, high) if within(middle) else (low, middle)
        return _more(most, low)


def _added(paid: _Account, price: float) -> _Account:
    """Prices of a cohort after each of it has paid this, too.

    What rounding takes off a sum is kept beside it, lest thousands of rounds cost more, or less,
    than as many times the price.
    """
    high, low = paid
    total = high + price
    added = total - high
    return np.stack([total, low + ((high - (total - added)) + (price - added))])


def _more(prices: _Prices, factor: float) -> _Prices:
    """So many times as much; of what is counted, whole numbers."""
    return {
        name: price * factor if name in (_SQUARE, _FAILURE) else float(math.floor(price * factor))
        for name, price in prices.items()
    }


def _prices(claim: ProvenClaim) -> _Prices:
    prices: dict[str, float] = {}
    for leaf, count in events.leaves(claim.event):
        data = events.to_json(leaf)
        if data["kind"] == "gaussian":
            name, price = _SQUARE, count / data["noise_multiplier"] ** 2
        elif data["kind"] == "approximate" and data["epsilon"] == 0:
            name, price = _FAILURE, count * data["delta"]
        else:
            name, price = json.dumps(data, sort_keys=True), float(count)
        prices[name] = prices.get(name, 0.0) + price
    return prices


def _event(prices: _Prices) -> events.Event:
    """Event that has at least these prices."""
    parts: list[events.Event] = []
    for name, price in prices.items():
        if price == 0:
            continue
        above = price * (1 + _ROUNDING)
        if name == _SQUARE:
            parts.append(events.gaussian(1 / math.sqrt(above)))
        elif name == _FAILURE:
            parts.append(events.approximate(0.0, min(above, math.nextafter(1.0, 0.0))))
        else:
            parts.append(events.repeated(events.from_json(json.loads(name)), int(price)))
    return events.composed(*parts)


def _claim_to_json(claim: Claim | None) -> dict[str, Any] | None:
    if claim is None:
        return None
    scope = claim.scope
    data: dict[str, Any] = {"scope": [scope.unit, scope.relation, scope.trust]}
    if isinstance(claim, ProvenClaim):
        return {**data, "event": events.to_json(claim.event), "mechanism": claim.mechanism}
    if isinstance(claim, PaperClaim):
        number = claim.per_round
        values = {"epsilon": float(number), "delta": number.delta, "source": claim.source}
        return {**data, **values}
    if isinstance(claim, NoClaim):
        return {**data, "reason": claim.reason}
    raise ArgumentError(f"claim must be of a mechanism, not {claim.basis}, got {claim}")


def _claim_from_json(data: Mapping[str, Any] | None) -> Claim | None:
    if data is None:
        return None
    scope = Scope(*data["scope"])
    if "event" in data:
        return ProvenClaim(scope, events.from_json(data["event"]), data["mechanism"])
    if "source" in data:
        number = Epsilon(data["epsilon"], data["delta"], 1, Basis.CLAIMED, scope)
        return PaperClaim(scope, number, data["source"])
    return NoClaim(scope, data["reason"])
