"""What a drawing gives: exhibits for the page, and facts for the claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from diffsketch.pages.exhibits import Exhibit

__all__ = ["Drawn", "Fact"]

Fact = float | str | bool | None
"""A number that was measured; None where there is none, such as an accuracy of no finished run."""


@dataclass(frozen=True)
class Drawn:
    """A figure of the paper, as it came out.

    Attributes:
        lead: What there is to learn, made from the numbers.
        exhibits: As the paper has them.
        proven: The same with proven privacy, and what an audit measured.
        text: Paragraphs.
        facts: By name, for the claims: `accuracy/<panel>/<variant>` (mean over the seeds of the
            last round), `spread/<panel>/<variant>` (standard deviation), and the like.
    """

    lead: str
    exhibits: tuple[Exhibit, ...]
    proven: tuple[Exhibit, ...] = ()
    text: tuple[str, ...] = ()
    facts: Mapping[str, Fact] = field(default_factory=dict)
