"""Values in words, for legends, hovers and cells: numbers, and an epsilon with all its words."""

from __future__ import annotations

import math

from diffsketch.pages.exhibits import Axis, Cell
from diffsketch.privacy.claim import Basis, Epsilon

__all__ = [
    "DASH",
    "cell_text",
    "drawable",
    "epsilon_text",
    "epsilon_words",
    "number_text",
    "value_text",
]

DASH = "\N{EN DASH}"
"""For what there is not."""


def epsilon_text(epsilon: Epsilon) -> str:
    """The value, with delta and rounds: the half of an epsilon that is numbers.

    >>> from diffsketch.privacy.claim import Relation, Scope, Trust, Unit
    >>> scope = Scope(Unit.CLIENT, Relation.REPLACE, Trust.CENTRAL)
    >>> epsilon_text(Epsilon(8.0, 1e-5, 100, Basis.PROVEN, scope))
    'ε = 8 at δ = 1e-05 over 100 rounds'
    >>> epsilon_text(Epsilon(1.0, 0.0, 1, Basis.CLAIMED, scope))
    'ε = 1 per round'
    >>> epsilon_text(Epsilon(2.5, 0.0, 1, Basis.MEASURED, scope))
    'ε ≥ 2.5 after 1 round'
    """
    if epsilon.basis is Basis.NONE:
        return "ε unlimited"
    measured, value = epsilon.basis is Basis.MEASURED, float(epsilon)
    delta = f" at δ = {epsilon.delta:g}" if epsilon.delta > 0 else ""
    if epsilon.rounds == 1:
        rounds = " after 1 round" if measured else " per round"
    else:
        rounds = f" {'after' if measured else 'over'} {epsilon.rounds:,} rounds"
    sign = "≥" if measured else "="
    head = f"ε {sign} {epsilon.shown()}" if math.isfinite(value) else "ε unlimited"
    return f"{head}{delta}{rounds}"


def epsilon_words(epsilon: Epsilon, *, instead: str = "") -> str:
    """An epsilon in full: value, basis, unit, relation, trust.

    Args:
        epsilon: What is said.
        instead: Said in place of the value, where there is none for the whole.

    >>> from diffsketch.privacy.claim import Relation, Scope, Trust, Unit
    >>> scope = Scope(Unit.CLIENT, Relation.REPLACE, Trust.CENTRAL)
    >>> epsilon_words(Epsilon(8.0, 1e-5, 100, Basis.PROVEN, scope))
    'ε = 8 at δ = 1e-05 over 100 rounds (proven; client unit, replace, central trust)'
    >>> epsilon_words(Epsilon(1.0, 0.0, 1, Basis.CLAIMED, scope), instead="0.1 a round")
    '0.1 a round (claimed; client unit, replace, central trust)'
    """
    basis = "no claim" if epsilon.basis is Basis.NONE else epsilon.basis_text
    return f"{instead or epsilon_text(epsilon)} ({basis}; {epsilon.scope})"


def number_text(value: float) -> str:
    """A number for a reader: four significant digits, thousands apart.

    >>> number_text(33200000), number_text(0.98214), number_text(1e-9), number_text(1234.5678)
    ('33,200,000', '0.9821', '1e-09', '1,235')
    """
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else ("∞" if value > 0 else "-∞")
    short = float(f"{value:.4g}")
    return f"{short:,.10g}" if value == 0 or 1e-4 <= abs(value) < 1e10 else f"{short:.4g}"


def value_text(value: float | None, axis: Axis) -> str:
    """A number as an axis shows it.

    >>> value_text(0.9213, Axis("accuracy", percent=True)), value_text(None, Axis("x"))
    ('92.13%', '–')
    """
    if value is None:
        return DASH
    return f"{number_text(100.0 * value)}%" if axis.percent else number_text(value)


def cell_text(cell: Cell) -> str:
    """A cell of a table as a line of text.

    >>> cell_text(None), cell_text(True), cell_text(12345), cell_text("MNIST")
    ('–', 'yes', '12,345', 'MNIST')
    """
    if cell is None:
        return DASH
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, Epsilon):
        return epsilon_words(cell)
    return cell if isinstance(cell, str) else number_text(cell)


def drawable(value: float | None, *, log: bool = False) -> float | None:
    """The number as a plain float, or None if an axis has no place for it.

    >>> drawable(float("nan")), drawable(0, log=True), drawable(0)
    (None, None, 0.0)
    """
    if value is None or not math.isfinite(value) or (log and value <= 0):
        return None
    return float(value)
