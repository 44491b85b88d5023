"""Whether the next rounds still fit into a budget, without composing anew for each of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.composition import epsilon_for
from diffsketch.privacy.accounting.losses import no_better

__all__ = ["Lookahead"]

_Key: TypeAlias = tuple[tuple[events.Event, int], ...]  # an event's leaves, which can be hashed
_Spent: TypeAlias = Callable[[], events.Event]  # asked for only if need be
_MOST_ROUNDS = 10**6
_ALIKE = 1.02  # ratio of the noise of events that may share a reserve


class Lookahead:
    """Reserves rounds ahead, twice as many each time, and hands them out one by one.

    What was spent and what is reserved, composed, are within the budget: so is all that is taken
    from the reserve. When no more can be reserved, the very rounds that are asked for decide.
    Events that come for the first time may take from what is reserved for a slightly less private
    one, so that rounds that all differ a little are not composed one by one either.
    """

    def __init__(self, epsilon: float, delta: float) -> None:
        self._epsilon, self._delta = epsilon, delta
        self._reserve: Counter[_Key] = Counter()
        self._ahead = 1
        self._seen: set[_Key] = set()

    def admits(self, event: events.Event, rounds: int, *, spent: _Spent) -> bool:
        """Whether the rounds fit; if so they count as spent from now on."""
        exact = tuple(events.leaves(event))
        alike = tuple((no_better(leaf, _ALIKE), count) for leaf, count in exact)
        for key in (exact, alike):
            if self._reserve[key] >= rounds:
                self._reserve[key] -= rounds
                return True
        key = exact if exact in self._seen else alike
        self._seen.add(exact)
        if self._reserved(key, rounds, spent()):
            self._reserve[key] -= rounds
            return True
        self._reserve.clear()
        return self._within(spent(), {exact: rounds})

    def most(self, event: events.Event, *, spent: _Spent) -> int:
        """How many such rounds fit, up to a million."""
        key, total = tuple(events.leaves(event)), spent()
        return _last_within(lambda rounds: self._total(total, {key: rounds}), self._epsilon)

    def copy(self) -> Lookahead:
        """Another one in the same state."""
        other = Lookahead(self._epsilon, self._delta)
        other._reserve, other._ahead = self._reserve.copy(), self._ahead
        other._seen = set(self._seen)
        return other

    def _reserved(self, key: _Key, rounds: int, spent: events.Event) -> bool:
        """Whether at least so many rounds could be reserved; also reserves more."""
        ahead, failed = max(rounds, self._ahead), False
        while not self._within(spent, self._reserve + Counter({key: ahead})):
            failed = True
            if ahead > rounds:
                ahead = max(rounds, ahead // 4)
            elif self._reserve.total() > 0:
                self._reserve.clear()  # it was too much only because of what others have
            else:
                return False
        # Near the end half of what fits is left to other events, lest they take it in turns.
        self._ahead = ahead // 2 if failed else min(2 * ahead, _MOST_ROUNDS)
        self._reserve[key] += max(rounds, ahead // 2) if failed else ahead
        return True

    def _within(self, spent: events.Event, more: dict[_Key, int] | Counter[_Key]) -> bool:
        return self._total(spent, more) <= self._epsilon

    def _total(self, spent: events.Event, more: dict[_Key, int] | Counter[_Key]) -> float:
        parts = [
            events.repeated(leaf, count * rounds)
            for key, rounds in more.items()
            if rounds > 0
            for leaf, count in key
        ]
        return epsilon_for(events.composed(spent, *parts), self._delta)


def _last_within(total: Callable[[int], float], limit: float) -> int:
    """The largest number of rounds, up to a million, whose total is within the limit.

    Totals are nearly powers of the number of rounds, which makes a good guess; every other step
    halves the range in any case.
    """
    least, most, low, high = 0, 1, 0.0, total(1)
    while high <= limit:
        if most == _MOST_ROUNDS:
            return most
        least, low = most, high
        most = min(8 * most, _MOST_ROUNDS)
        high = total(most)
    halve = False
    while most - least > 1:
        guess = (least + most) // 2
        if not halve and 0 < low < high < math.inf:
            share = math.log(limit / low) / math.log(high / low)
            guess = round(least * (most / least) ** share)
        guess = min(max(guess, least + 1), most - 1)
        value = total(guess)
        halve = not halve
        if value <= limit:
            least, low = guess, value
        else:
            most, high = guess, value
    return least
