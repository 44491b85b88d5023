"""Numbers in words: bytes, and what an epsilon is worth, short enough for a line."""

from __future__ import annotations

import math

from diffsketch.privacy.claim import Basis, Epsilon

__all__ = ["bytes_in_words", "epsilon_in_words", "sentence", "time_in_words"]

_UNITS = ("B", "kB", "MB", "GB", "TB")


def bytes_in_words(count: float) -> str:
    """A number of bytes, in the unit that suits it.

    >>> bytes_in_words(664), bytes_in_words(33_200_000)
    ('664 B', '33.2 MB')
    """
    for unit in _UNITS:
        if count < 999.5 or unit == _UNITS[-1]:
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"


def epsilon_in_words(epsilon: Epsilon) -> str:
    """An epsilon with its delta and its words: basis; unit, relation, trust.

    What is claimed is for one round, what is proven for all of them.

    >>> from diffsketch.privacy.claim import Relation, Scope, Trust, Unit
    >>> scope = Scope(Unit.CLIENT, Relation.REPLACE, Trust.DISTRIBUTED)
    >>> epsilon_in_words(Epsilon(7.981, 1e-5, 100, Basis.PROVEN, scope))
    'eps 7.99 at 1e-05 (proven; client, replace, distributed)'
    >>> epsilon_in_words(Epsilon(7.981, 1e-5, 100, Basis.PROVEN, scope, simulated=True))
    'eps 7.99 at 1e-05 (proven, simulated; client, replace, distributed)'
    >>> epsilon_in_words(Epsilon(1.0, 1e-5, 1, Basis.CLAIMED, scope))
    'eps 1 per round at 1e-05 (claimed; client, replace, distributed)'
    >>> epsilon_in_words(Epsilon(math.inf, 1e-5, 100, Basis.PROVEN, scope))
    'proven per round, nothing at 1e-05 over 100 rounds (client, replace, distributed)'
    """
    if epsilon.basis is Basis.NONE:
        return "no claim"
    at, scope = f"at {epsilon.delta:g}", epsilon.scope
    about = f"{scope.unit}, {scope.relation}, {scope.trust}"
    if math.isinf(float(epsilon)):
        basis = epsilon.basis_text
        return f"{basis} per round, nothing {at} over {epsilon.rounds:,} rounds ({about})"
    times = " per round" if epsilon.basis is Basis.CLAIMED else ""
    return f"eps {epsilon.shown()}{times} {at} ({epsilon.basis_text}; {about})"


def sentence(text: str) -> str:
    """The text with a capital letter and a full stop.

    >>> sentence("interrupted after 3 rounds")
    'Interrupted after 3 rounds.'
    """
    return f"{text[:1].upper()}{text[1:]}."


def time_in_words(seconds: float) -> str:
    """A time, in the unit that suits it.

    >>> time_in_words(0.00389), time_in_words(1.132)
    ('3.89 ms', '1.13 s')
    """
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
