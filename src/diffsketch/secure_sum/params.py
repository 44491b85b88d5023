"""What all parties of a round agree on beforehand."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from types import MappingProxyType

from diffsketch.errors import ArgumentError, check
from diffsketch.wire.formats import MessageFormat
from diffsketch.wire.message import SERVER, Header

__all__ = ["PUBLIC_BYTES", "Params", "default_threshold"]

PUBLIC_BYTES = 32
"""Of a public key, X25519 or Ed25519."""

_RUN_BYTES = range(16, 65)
_LABEL = b"diffsketch secure sum 1"


def default_threshold(count: int) -> int:
    """The smallest threshold above two thirds of the members.

    With it, a malicious server and fewer than a third of the members together cannot have both
    secrets of an honest member: `2 threshold > members + corrupt`.

    >>> default_threshold(3), default_threshold(10), default_threshold(100)
    (3, 7, 67)
    """
    check(count >= 2, "count", "be >= 2", count)
    return 2 * count // 3 + 1


@dataclass(frozen=True)
class Params:
    """A round of a secure sum. Everybody has the same one, or no message is understood.

    All of it goes into `context`, which is part of every message, every signature and every key
    that is derived. So a message of another run or round, or of a server that tells members
    different thresholds, is refused or cannot be decrypted.

    `threshold` must exceed half of the members. Otherwise a server could tell one half that a
    member is in the sum and the other half that it dropped out, and would have enough shares of
    both of its secrets, which together uncover its input. Above half, two such groups overlap in a
    member that answers once.

    Args:
        layout: Format of the inputs: unsigned cells. Sums are taken modulo `2**bits`.
        run: Identifies the run: 16 to 64 bytes that no other run has, such as a random number.
        round_index: The round.
        fingerprint: Of the round's hashes.
        members: The numbers of those who take part, ascending.
        threshold: Members that must be left at every stage; more than half of them. See
            `default_threshold`.
        min_present: Inputs that must be in the sum, at least `threshold`: with fewer, too little
            noise would be in it. Members refuse to uncover such a sum, whatever the server says.
        identities: The members' public Ed25519 keys, from somewhere else than the server. With
            them, members sign, and one more stage makes sure that all were told the same. Without,
            the protocol is secure only against a server that follows it.

    Raises:
        ArgumentError: A value is outside of what is said here.

    >>> layout = MessageFormat("sketch-skellam", 9, (1, 2), "unsigned", 8)
    >>> about = {"run": bytes(16), "round_index": 0, "fingerprint": bytes(8), "min_present": 3}
    >>> Params(layout, **about, members=(1, 2, 3, 4), threshold=3).signed
    False
    >>> Params(layout, **about, members=(1, 2, 3, 4), threshold=2)
    Traceback (most recent call last):
        ...
    diffsketch.errors.ArgumentError: threshold must be in 3..4 for 4 members, got threshold=2
    """

    layout: MessageFormat
    _: KW_ONLY
    run: bytes
    round_index: int
    fingerprint: bytes
    members: tuple[int, ...]
    threshold: int
    min_present: int
    identities: Mapping[int, bytes] | None = None

    def __post_init__(self) -> None:
        check(self.layout.cells == "unsigned", "layout", "have unsigned cells", self.layout.cells)
        if not isinstance(self.run, bytes) or len(self.run) not in _RUN_BYTES:
            raise ArgumentError("run must be 16 to 64 bytes")
        members = tuple(self.members)
        object.__setattr__(self, "members", members)
        good = all(type(index) is int and 0 <= index < SERVER for index in members)
        check(good, "members", "be numbers in [0, 2**64 - 1)", members)
        check(members == tuple(sorted(set(members))), "members", "be ascending, each once", members)
        count = len(members)
        check(count >= 2, "members", "be two or more", members)
        _check_count("threshold", self.threshold, count // 2 + 1, count)
        _check_count("min_present", self.min_present, self.threshold, count)
        if self.identities is not None:
            object.__setattr__(self, "identities", _checked(self.identities, members))
        _ = self.context  # checks the other numbers

    @property
    def signed(self) -> bool:
        """Whether members sign."""
        return self.identities is not None

    @cached_property
    def context(self) -> bytes:
        """32 bytes that stand for all of this."""
        header = Header.of(
            self.layout,
            round_index=self.round_index,
            fingerprint=self.fingerprint,
            sender=SERVER,
            count=len(self.members),
        )
        name = self.layout.method.encode()
        parts = [_LABEL, header.to_bytes(), len(name).to_bytes(4, "little"), name]
        parts += [len(self.run).to_bytes(4, "little"), self.run]
        numbers = (self.threshold, self.min_present, int(self.signed))
        parts += [number.to_bytes(8, "little") for number in numbers]
        for index in self.members:
            parts.append(index.to_bytes(8, "little"))
            if self.identities is not None:
                parts.append(self.identities[index])
        return hashlib.sha256(b"".join(parts)).digest()

    @cached_property
    def points(self) -> Mapping[int, int]:
        """Where each member's share lies on a polynomial: 1, 2, ...; the secrets are at 0."""
        return MappingProxyType({index: at for at, index in enumerate(self.members, start=1)})


def _check_count(name: str, value: int, least: int, most: int) -> None:
    if type(value) is not int:
        raise ArgumentError(f"{name} must be an int, got {name}={value!r}")
    check(least <= value <= most, name, f"be in {least}..{most} for {most} members", value)


def _checked(identities: Mapping[int, bytes], members: tuple[int, ...]) -> Mapping[int, bytes]:
    """The identities of exactly the members, as a copy that nobody changes."""
    if set(identities) != set(members):
        raise ArgumentError("identities must be those of the members, each one's and no other")
    keys = list(identities.values())
    if not all(isinstance(key, bytes) and len(key) == PUBLIC_BYTES for key in keys):
        raise ArgumentError(f"identities must be public keys of {PUBLIC_BYTES} bytes")
    if len(set(keys)) != len(keys):
        raise ArgumentError("identities must differ: two members have the same key")
    return MappingProxyType(dict(identities))
