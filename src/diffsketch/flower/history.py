"""What the server keeps of the model, and what it sends to a node that has an older one.

Versions count the rounds that changed the model. If a round's mean was added to the model as it is,
a node follows by the published total; if the strategy did something else with it (a server's
momentum, Adam), nodes cannot, and the next download is the dense model. Which of the two it was is
seen from the result, not guessed from the strategy's type.
"""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import ArrayRecord

from diffsketch.flower.records import NO_MODEL
from diffsketch.flower.vectors import digest_of
from diffsketch.errors import ArgumentError

__all__ = ["Download", "History"]


@dataclass(frozen=True, eq=False)
class Download:
    """What a node needs to have the model.

    Attributes:
        arrays: The dense model, if it is sent.
        base: Its version; -1 if it is not sent.
        first: Version that the first of the totals makes.
        totals: Published totals, in order.
        rounds: Their rounds.
        version: After all of them.
        digest: Of the model then; empty if not known.
    """

    arrays: ArrayRecord | None
    base: int
    first: int
    totals: list[bytes]
    rounds: list[int]
    version: int
    digest: bytes


class History:
    """The dense model that there is, and the totals since.

    Guarantees (`tests/flower/test_flower_books.py`): a node that follows a download has the
    server's model; the smaller of the two ways is taken.

    Args:
        arrays: The first model.
        keyed: Whether the server has the key: its dense model is the current one then, and the
            first one for ever if not.
    """

    def __init__(self, arrays: ArrayRecord, *, keyed: bool) -> None:
        self._keyed = keyed
        self.arrays, self.base = arrays, 0
        self._first = 1  # version that the first kept total makes
        self._totals: list[bytes] = []
        self._rounds: list[int] = []
        self._dense_bytes = sum(len(one.data) for one in arrays.values())
        self._digest = digest_of(arrays)

    @property
    def version(self) -> int:
        """Rounds that changed the model."""
        return self._first - 1 + len(self._totals)

    def holds(self, arrays: ArrayRecord) -> bool:
        """Whether these arrays are the dense model here."""
        return digest_of(arrays) == self._digest

    def followed(self, total: bytes, round_index: int, arrays: ArrayRecord | None) -> None:
        """A round whose mean was added.

        Args:
            total: What it has published.
            round_index: The round.
            arrays: The model then, if the server can know it.
        """
        self._totals.append(total)
        self._rounds.append(round_index)
        if arrays is not None:
            self._take(arrays)
        while self._keyed and not self._is_smaller(0):  # nobody would be sent them all
            self._totals, self._rounds = self._totals[1:], self._rounds[1:]
            self._first += 1

    def replaced(self, arrays: ArrayRecord) -> None:
        """The model has become another one in a way that nodes cannot follow."""
        if not self._keyed:
            raise ArgumentError("arrays must stay as they are where the server has no key")
        self._first, self._totals, self._rounds = self.version + 2, [], []
        self._take(arrays)

    def download(self, version: int) -> Download:
        """For a node that has this version; -1 for none."""
        digest = self._digest if self._keyed else b""
        skip = version - (self._first - 1)
        can_follow = version != NO_MODEL and 0 <= skip <= len(self._totals)
        if can_follow and (not self._keyed or self._is_smaller(skip)):
            totals, rounds = self._totals[skip:], self._rounds[skip:]
            return Download(None, NO_MODEL, version + 1, totals, rounds, self.version, digest)
        first = self.base + 1
        totals = self._totals[self.base - (self._first - 1) :]
        rounds = self._rounds[len(self._rounds) - len(totals) :]
        return Download(self.arrays, self.base, first, totals, rounds, self.version, digest)

    def _is_smaller(self, skip: int) -> bool:
        return sum(map(len, self._totals[skip:])) < self._dense_bytes

    def _take(self, arrays: ArrayRecord) -> None:
        self.arrays, self.base = arrays, self.version
        self._digest = digest_of(arrays)
