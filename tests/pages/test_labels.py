"""Epsilons in words: their numbers are rounded to the side on which they stay true."""

from __future__ import annotations

import pytest

from diffsketch.pages.labels import epsilon_text, epsilon_words
from diffsketch.privacy.claim import Basis, Epsilon, Relation, Scope, Trust, Unit

SCOPE = Scope(Unit.CLIENT, Relation.REPLACE, Trust.CENTRAL)


@pytest.mark.parametrize(
    ("basis", "expected"),
    [
        (Basis.PROVEN, "ε = 7.99 at δ = 1e-05 over 3 rounds"),
        (Basis.CLAIMED, "ε = 7.99 at δ = 1e-05 over 3 rounds"),
        (Basis.MEASURED, "ε ≥ 7.98 at δ = 1e-05 after 3 rounds"),
        (Basis.NONE, "ε unlimited"),
    ],
)
def test_bounds_stay_true(basis: Basis, expected: str) -> None:
    epsilon = Epsilon(7.985, 1e-5, 3, basis, SCOPE)
    assert epsilon_text(epsilon) == expected
    assert epsilon_words(epsilon).startswith(f"{expected} (")
