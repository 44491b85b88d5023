"""The rules by the names of their claims."""

from __future__ import annotations

from diffsketch.reproduction.verdicts import (
    audited,
    corrected,
    formulas,
    learned,
    noised,
    sizes,
    sketched,
    trained,
    vectors,
)
from diffsketch.reproduction.verdicts.verdict import Rule

__all__ = ["RULES"]

RULES: dict[str, Rule] = {
    **audited.RULES,
    **corrected.RULES,
    **formulas.RULES,
    **learned.RULES,
    **noised.RULES,
    **sizes.RULES,
    **sketched.RULES,
    **trained.RULES,
    **vectors.RULES,
}
