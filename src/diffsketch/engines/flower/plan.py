"""What server and clients agree on before a run: the method, its settings, and how many take part.

Both sides hold a plan of their own. The server's request says which one it has, and a client whose
own is different sends nothing: a server cannot talk a client into a method with less noise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diffsketch.errors import ArgumentError, check
from diffsketch.methods import Method, build_method
from diffsketch.methods.base import check_whole
from diffsketch.methods.registry import settings_of

__all__ = ["Plan"]


@dataclass(frozen=True)
class Plan:
    """A method without the length of the vectors, which the model decides.

    Args:
        method: Its name, as in `diffsketch.methods.METHODS`.
        settings: Its settings.
        cohort: Clients of a round, at most, for methods that need to know.
        min_replies: A round with fewer messages is void: nothing is published, and the model stays.
            Where members of a cohort share the noise, clients account for this many.

    Raises:
        ArgumentError: No such method or setting, or a number out of range.

    >>> Plan("sketch", {"rows": 7, "cols": 22}).build(7850).wire_bytes
    664
    >>> Plan.parse("sketch-gaussian", "rows=1 cols=64 clip=1.5 noise_multiplier=2 trust=central")
    Plan(method='sketch-gaussian', settings={'rows': 1, 'cols': 64, 'clip': 1.5, \
'noise_multiplier': 2, 'trust': 'central'}, cohort=1, min_replies=1)
    """

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    cohort: int = 1
    min_replies: int = 1

    def __post_init__(self) -> None:
        check_whole("cohort", self.cohort, least=1)
        check_whole("min_replies", self.min_replies, least=1)
        known = settings_of(self.method)
        unknown = [name for name in self.settings if name not in known]
        check(not unknown, "settings", f"be of {', '.join(known) or 'nothing'}", unknown)

    @classmethod
    def parse(cls, method: str, settings: str, *, cohort: int = 1, min_replies: int = 1) -> Plan:
        """From the texts of a run's configuration: `name=value` with spaces between."""
        found: dict[str, Any] = {}
        for part in settings.split():
            name, sign, value = part.partition("=")
            if not (name and sign and value):
                raise ArgumentError(f"settings must be name=value, with spaces between: {part!r}")
            try:
                found[name] = json.loads(value)
            except ValueError:
                found[name] = value
        return cls(method, found, cohort, min_replies)

    def build(self, dim: int) -> Method:
        """The method for vectors of this length."""
        return build_method(self.method, dim=dim, cohort=self.cohort, settings=self.settings)

    def text(self, dim: int) -> str:
        """All of it in words: two plans are the same if these are."""
        return f"{self.build(dim)}, min_replies={self.min_replies}"
