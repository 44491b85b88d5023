"""Whether the next rounds still fit into a budget, without composing anew for each of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeAlias

from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.composition import epsilon_for
from diffsketch.privacy.accounting.losses import no_better

__all__ = ["Lookahead"]

_Key: TypeAlias = tuple[tuple[events.Event, int], ...]  # an event's leaves, which can be hashed
Rounds: TypeAlias = tuple[events.Event, int]
_MOST_ROUNDS = 10**6
_ALIKE = 1.02  # ratio of the noise of events that may share a reserve


class Lookahead:
    """Reserves rounds ahead, as many as were spent, and hands them out one by one.

    What was spent and what is reserved, composed, are within the budget: so is all that is taken
    from the reserve. All kinds of rounds are reserved at once, in proportion to what was spent of
    them: rounds that go on as before are composed when their number has doubled, however many
    kinds there are. When that is too much it is a smaller share of them; when no more can be
    reserved, the very rounds that are asked for decide. Events that are nearly alike share what is
    reserved for a slightly less private one, so that rounds that all differ a little are not
    composed one by one either.
    """

    def __init__(self, epsilon: float, delta: float) -> None:
        self._epsilon, self._delta = epsilon, delta
        self._reserve: Counter[_Key] = Counter()
        self._share = 1.0  # of what was spent, to be reserved next
        self._alike: dict[_Key, _Key] = {}  # by key, so as not to be computed again

    def admits(
        self, event: events.Event, rounds: int, *, spent: Callable[[], Iterable[Rounds]]
    ) -> bool:
        """Whether the rounds fit; if so they count as spent from now on.

        Args:
            event: Of one of them.
            rounds: How many.
            spent: Gives the events so far and their rounds; called only if need be.
        """
        if self.takes(event, rounds):
            return True
        total = _counted([*spent(), (event, rounds)])
        self._reserve.clear()
        groups = self._groups(total, _key(event))
        while reserve := {key: n for key in groups if (n := int(self._share * groups[key]))}:
            if self._total(total + Counter(reserve)) <= self._epsilon:
                self._reserve.update(reserve)
                self._share = min(1.0, 2 * self._share)
                return True
            self._share /= 4
        self._share *= 4
        return self._total(total) <= self._epsilon

    def takes(self, event: events.Event, rounds: int) -> bool:
        """Whether the rounds were reserved; if so they count as spent from now on."""
        exact = _key(event)
        for key in (exact, self._alike_to(exact)):
            if self._reserve[key] >= rounds:
                self._reserve[key] -= rounds
                return True
        return False

    def most(self, event: events.Event, *, spent: Iterable[Rounds]) -> int:
        """How many such rounds fit, up to a million."""
        known, key = _counted(spent), _key(event)
        return _last_within(lambda n: self._total(known + Counter({key: n})), self._epsilon)

    def copy(self) -> Lookahead:
        """Another one in the same state."""
        other = Lookahead(self._epsilon, self._delta)
        other._reserve, other._share = self._reserve.copy(), self._share
        other._alike = self._alike  # the same for all
        return other

    def _alike_to(self, key: _Key) -> _Key:
        """Of a slightly less private event, that others have as well."""
        if key not in self._alike:
            self._alike[key] = tuple((no_better(leaf, _ALIKE), count) for leaf, count in key)
        return self._alike[key]

    def _groups(self, total: Counter[_Key], asked: _Key) -> dict[_Key, float]:
        """Rounds that are alike, taken together.

        What is asked for counts as if there had been as many as of others: it may be what is to
        come.
        """
        groups: dict[_Key, list[_Key]] = {}
        for key in total:
            groups.setdefault(self._alike_to(key), []).append(key)
        found: dict[_Key, float] = {}
        for alike, keys in groups.items():
            least = total.total() / len(groups) if alike == self._alike_to(asked) else 0
            rounds = max(least, sum(total[key] for key in keys))
            found[keys[0] if len(keys) == 1 else alike] = rounds
        return found

    def _total(self, rounds: Counter[_Key]) -> float:
        parts = [
            events.repeated(leaf, count * number)
            for key, number in rounds.items()
            for leaf, count in key
        ]
        return epsilon_for(events.composed(*parts), self._delta)


def _key(event: events.Event) -> _Key:
    return tuple(events.leaves(event))


def _counted(rounds: Iterable[Rounds]) -> Counter[_Key]:
    total: Counter[_Key] = Counter()
    for event, count in rounds:
        total[_key(event)] += count
    return total


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
