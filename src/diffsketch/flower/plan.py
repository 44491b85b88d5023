"""The agreement of server and clients before a run: method, settings, cohort, keys."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diffsketch.errors import ArgumentError, DataError, check, check_whole
from diffsketch.methods import Method, build_method
from diffsketch.methods.base import parse_settings, settings_of
from diffsketch.privacy.claim import Claim, ProvenClaim, Trust
from diffsketch.secure_sum import Identity, default_threshold
from diffsketch.sketch import SketchKey
from diffsketch.sketch.hashing import HashSeed

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


SKETCH_KEY = "DIFFSKETCH_KEY"
"""Environment: the clients' common key, or with `_FILE` a file; `diffsketch-key-file` of a node."""

CLIENT_KEY = "DIFFSKETCH_CLIENT_KEY"
"""Environment: a client's own key, or with `_FILE`; `diffsketch-client-key-file` of a node."""

IDENTITY = "DIFFSKETCH_IDENTITY"
"""Environment: a client's own secret identity, or with `_FILE`; `diffsketch-identity-file`."""

IDENTITIES = "DIFFSKETCH_IDENTITIES"
"""Environment, with `_FILE`: all members' public keys, one in a line; `diffsketch-identities-file`.
"""

_BYTES = 32


def find_sketch_key(node_config: Mapping[str, object] | None = None) -> SketchKey | None:
    """The key that all clients share, if there is one."""
    secret = _find(SKETCH_KEY, "diffsketch-key-file", node_config)
    return None if secret is None else SketchKey(secret)


def find_client_key(node_config: Mapping[str, object] | None = None) -> bytes | None:
    """The client's own key, if there is one."""
    return _find(CLIENT_KEY, "diffsketch-client-key-file", node_config)


def find_identity(node_config: Mapping[str, object] | None = None) -> Identity | None:
    """The client's own identity for secure sums, if there is one."""
    secret = _find(IDENTITY, "diffsketch-identity-file", node_config)
    return None if secret is None else Identity(secret)


def find_identities(node_config: Mapping[str, object] | None = None) -> list[bytes] | None:
    """The public keys of all who may be members of secure sums, if they are there."""
    path = (node_config or {}).get("diffsketch-identities-file")
    path = path or os.environ.get(f"{IDENTITIES}_FILE")
    return [_decoded(line, str(path)) for line in _text(path).split()] if path else None


def _find(name: str, entry: str, node_config: Mapping[str, object] | None) -> bytes | None:
    path = (node_config or {}).get(entry) or os.environ.get(f"{name}_FILE")
    if path:
        return _decoded(_text(path), str(path))
    text = os.environ.get(name, "").strip()
    return _decoded(text, name) if text else None


def _text(path: object) -> str:
    try:
        return Path(str(path)).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the key file {path} must be readable text: {error}") from error


def _decoded(text: str, where: str) -> bytes:
    """Never says what it found: it may be a key."""
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) != _BYTES:
        raise ArgumentError(f"{where} must have 64 hexadecimal digits")
    return secret
