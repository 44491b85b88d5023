"""Names that options accept, as the command line spells them; tests compare them with the types.

The types themselves take PyTorch to import.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["FamilyName", "RelationName", "SamplingName", "TrustName", "UnitName"]


class FamilyName(StrEnum):
    """The hash families, as the command line spells them."""

    blocked = "blocked"
    pairwise = "pairwise"


class UnitName(StrEnum):
    """What a guarantee protects, as the command line spells it."""

    coordinate = "coordinate"
    example = "example"
    client = "client"


class RelationName(StrEnum):
    """Which data sets are neighbours, as the command line spells it."""

    add_or_remove = "add-or-remove"
    replaced = "replace"


class TrustName(StrEnum):
    """Whom one trusts, as the command line spells it."""

    local = "local"
    distributed = "distributed"
    central = "central"


class SamplingName(StrEnum):
    """How the clients of a round are drawn, as the command line spells it."""

    shuffled = "shuffled"
    uniform = "uniform"
    weighted = "weighted"
    poisson = "poisson"
