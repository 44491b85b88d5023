"""Numbers in the words of the table: points, percentages, and what an epsilon means."""

from __future__ import annotations

import math
from collections.abc import Iterable

from diffsketch.privacy.claim import Basis, Relation, Scope, Trust, Unit, rounded_up

__all__ = ["COORDINATE", "epsilon", "listed", "percent", "points", "times", "words"]

COORDINATE = Scope(Unit.COORDINATE, Relation.REPLACE, Trust.LOCAL)
"""What the paper's epsilons are about."""


def epsilon(value: float) -> str:
    """The bare number of a bound, never smaller than it is, for texts that say its words beside it.

    >>> epsilon(1.5311), epsilon(math.inf)
    ('1.54', 'no claim')
    """
    return "no claim" if math.isinf(value) else rounded_up(value)


def words(basis: Basis, scope: Scope = COORDINATE, *, rounds: int = 1, delta: float = 0.0) -> str:
    """What an epsilon is worth, to stand behind one or several.

    >>> words(Basis.CLAIMED)
    '(claimed; coordinate unit, replace, local trust; one round)'
    """
    span = "one round" if rounds == 1 else f"{rounds:,} rounds"
    at = f"; delta = {delta:g}" if delta else ""
    return f"({basis}; {scope}; {span}{at})"


def percent(share: float) -> str:
    """A share.

    >>> percent(0.8912), percent(0.00012), percent(1.0), percent(0.99996)
    ('89.1%', '0.012%', '100%', '99.996%')
    """
    digits = 2 if 0 < abs(share) < 0.01 else 3
    while 0 < share < 1 and float(f"{100 * share:.{digits}g}") == 100:
        digits += 1  # not all
    return f"{float(f'{100 * share:.{digits}g}'):.15g}%"


def points(difference: float) -> str:
    """A difference of accuracies.

    >>> points(0.0312), points(-0.0012)
    ('+3.1 points', '-0.1 points')
    """
    return f"{100 * difference:+.1f} points"


def times(ratio: float) -> str:
    """A ratio.

    >>> times(50.97), times(1234.5), times(7.8)
    ('51x', '1,234x', '7.8x')
    """
    return f"{ratio:,.0f}x" if ratio >= 10 else f"{ratio:.2g}x"


def listed(parts: Iterable[str]) -> str:
    """Parts of a sentence.

    >>> listed(["a", "b", "c"])
    'a; b; c'
    """
    return "; ".join(parts)
