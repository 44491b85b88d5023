"""What server and clients agree on before a run: the method, its settings, and how many take part.

Both sides hold a plan of their own. The server's request says which one it has, and a client whose
own is different sends nothing: a server cannot talk a client into a method with less noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from diffsketch.errors import ArgumentError, check
from diffsketch.methods import Method, build_method
from diffsketch.methods.base import check_whole
from diffsketch.methods.registry import parse_settings, settings_of
from diffsketch.privacy.claim import Claim, ProvenClaim, Trust
from diffsketch.secure_sum import default_threshold
from diffsketch.sketch.hashing import HashSeed

__all__ = ["Plan"]

_FOLLOWS = ", against a server that follows the protocol,"


@dataclass(frozen=True)
class Plan:
    """A method without the length of the vectors, which the model decides.

    Args:
        method: Its name, as in `diffsketch.methods.METHODS`.
        settings: Its settings.
        cohort: Clients of a round, at most, for methods that need to know.
        min_replies: A round with fewer messages is void: nothing is published, and the model stays.
            Where members of a cohort share the noise, clients account for this many.
        secure_sum: Whether messages are summed so that the server sees no single one. Takes a
            method with whole numbers, and `min_replies` above half of the cohort. Where members
            share the noise, `noise_multiplier` is then that of `min_replies` messages: each has
            `sqrt(cohort / min_replies)` times its share, so that the claim that was planned holds
            with as few.
        corrupt: Members of a secure sum that may pass all they have to the server. Their noise
            does not count: `claim_for(min_replies - corrupt)` is what clients account for. And
            thresholds are above half of the members and these together, as a server that does
            anything takes: so `2 min_replies > cohort + corrupt` is needed.
        identities: Whether members of a secure sum sign, by lasting keys that they know of each
            other from somewhere else than the server (`SecureSealing`). With False a claim under
            distributed trust is one against a server that follows the protocol, and says so: it
            could be between any two members.

    Guarantees (`tests/flower/test_flower_secure.py`): the claim of any number from `min_replies`
    to `cohort` is at least the planned one. `tests/flower/test_flower_secure_corrupt.py`: any
    threshold of a plan withstands `corrupt`; both sides charge without their noise.

    Raises:
        ArgumentError: No such method or setting, or a number out of range.

    >>> Plan("sketch", {"rows": 7, "cols": 22}).build(7850).wire_bytes
    664
    >>> Plan.parse("sketch-gaussian", "rows=1 cols=64 clip=1.5 noise_multiplier=2 trust=central")
    Plan(method='sketch-gaussian', settings={'rows': 1, 'cols': 64, 'clip': 1.5, \
'noise_multiplier': 2, 'trust': 'central'}, cohort=1, min_replies=1, secure_sum=False, corrupt=0, \
identities=True)
    """

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    cohort: int = 1
    min_replies: int = 1
    secure_sum: bool = False
    corrupt: int = 0
    identities: bool = True

    def __post_init__(self) -> None:
        check_whole("cohort", self.cohort, least=1)
        check_whole("min_replies", self.min_replies, least=1)
        check_whole("corrupt", self.corrupt, least=0)
        if self.secure_sum:
            self._check_threshold()
        elif self.corrupt:
            raise ArgumentError(
                f"corrupt must be 0 without secure_sum, got corrupt={self.corrupt}: a server that "
                "sees every message needs no member's help"
            )
        known = settings_of(self.method)
        unknown = [name for name in self.settings if name not in known]
        check(not unknown, "settings", f"be of {', '.join(known) or 'nothing'}", unknown)

    @classmethod
    def parse(
        cls,
        method: str,
        settings: str,
        *,
        cohort: int = 1,
        min_replies: int = 1,
        secure_sum: bool = False,
        corrupt: int = 0,
        identities: bool = True,
    ) -> Plan:
        """From the texts of a run's configuration: `name=value` with spaces between."""
        found = parse_settings(settings)
        return cls(method, found, cohort, min_replies, secure_sum, corrupt, identities)

    def build(self, dim: int) -> Method:
        """The method for vectors of this length.

        Raises:
            ArgumentError: A setting is refused, or the method is none for a secure sum.
        """
        method = self._built(dim, self.settings)
        if not self.secure_sum:
            return method
        form, total = method.message_format, method.total_format
        if form.cells != "unsigned" or form != total:
            raise ArgumentError(
                "secure_sum needs messages of whole numbers with room for their sum, and those of "
                f"method={self.method!r} are of {form.bits} bits, {form.cells}, for a sum of "
                f"{total.bits}"
            )
        shared = getattr(method, "trust", None) is Trust.DISTRIBUTED
        if shared and "noise_multiplier" in self.settings:
            more = math.sqrt(self.cohort / self.min_replies)
            scaled = float(self.settings["noise_multiplier"]) * more
            method = self._built(dim, {**self.settings, "noise_multiplier": scaled})
        return method

    def threshold(self, members: int) -> int:
        """Of a secure sum: members that must stay to the end.

        More than two thirds of them, or `min_replies` if that is less; and `2 threshold > members +
        corrupt` in any case, so that the server and those who are corrupt never have both secrets
        of another member.

        >>> coarse = {"levels": 4, "trials": 9}
        >>> plan = Plan("cpsgd", coarse, 10, 9, secure_sum=True)
        >>> plan.threshold(10), plan.threshold(9)
        (7, 7)
        >>> Plan("cpsgd", coarse, 10, 9, secure_sum=True, corrupt=4).threshold(10)
        8
        """
        return min(max(default_threshold(members), self._least(members)), self.min_replies)

    def claim_for(self, method: Method, present: int, seed: HashSeed) -> Claim:
        """Claim of a round with so many messages, without the noise of the corrupt.

        Args:
            method: As `build` gives it.
            present: Messages in the sum.
            seed: The round's hashes.
        """
        claim = method.claim_for(present - self.corrupt, seed)
        trusting = self.secure_sum and not self.identities
        if trusting and isinstance(claim, ProvenClaim) and claim.scope.trust is Trust.DISTRIBUTED:
            return replace(claim, mechanism=claim.mechanism.rstrip(",") + _FOLLOWS)
        return claim

    def text(self, dim: int) -> str:
        """All of it in words: two plans are the same if these are."""
        how = ""
        if self.secure_sum:
            how = ", secure sum with identities" if self.identities else ", secure sum"
        how += f", corrupt={self.corrupt}" if self.corrupt else ""
        return f"{self.build(dim)}, min_replies={self.min_replies}{how}"

    def _least(self, members: int) -> int:
        """The lowest threshold that withstands a server with its accomplices."""
        return (members + self.corrupt) // 2 + 1

    def _check_threshold(self) -> None:
        least, most = max(self._least(self.cohort), 2), self.cohort
        if self.corrupt and least > most:
            raise ArgumentError(
                f"corrupt must be below cohort={most}, got corrupt={self.corrupt}: no threshold "
                "withstands so many"
            )
        among = f" of which {self.corrupt} may be corrupt" if self.corrupt else ""
        check(
            least <= self.min_replies <= most,
            "min_replies",
            f"be in {least}..{max(most, 2)} for a secure sum of a cohort of {most}{among}",
            self.min_replies,
        )

    def _built(self, dim: int, settings: Mapping[str, Any]) -> Method:
        return build_method(self.method, dim=dim, cohort=self.cohort, settings=settings)
