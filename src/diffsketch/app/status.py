"""Where a run is: what its rounds amount to, what a display shows, how it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from diffsketch.training.simulate import RoundResult
from diffsketch.privacy.claim import Epsilon

__all__ = ["Outcome", "Status", "Totals"]


@dataclass
class Totals:
    """What all rounds so far amount to.

    Attributes:
        bytes_up: Sent by workers, headers included.
        bytes_down: Sent to workers, headers included.
        messages: Sent by workers.
        validated: Messages that their workers checked by Theorem 1.
        noised: Those of them that needed noise.
        left_out: Messages that were left out, or zeros, since their vectors were not finite.
        downloads: How often a worker received something: without compression, a vector each time.
    """

    bytes_up: int = 0
    bytes_down: int = 0
    messages: int = 0
    validated: int = 0
    noised: int = 0
    left_out: int = 0
    downloads: int = 0

    def add(self, result: RoundResult) -> None:
        """Count a round."""
        self.bytes_up += result.bytes_up
        self.bytes_down += result.bytes_down
        self.messages += result.summed.count
        self.left_out += len(result.left_out)
        self.downloads += result.downloads
        if result.noised is not None:
            self.validated += result.summed.count
            self.noised += round(result.noised * result.summed.count)

    @property
    def noised_share(self) -> float | None:
        """Of the messages that were validated, which needed noise."""
        return self.noised / self.validated if self.validated else None


@dataclass(frozen=True)
class Status:
    """What a display may show after a round.

    Attributes:
        round_index: Rounds that are done.
        rounds: Rounds that are planned.
        loss: Of the last evaluation.
        accuracy: Of the last evaluation.
        totals: Of all rounds so far.
        epsilon: What has been spent, when asked: it may take a while to compute.
    """

    round_index: int
    rounds: int
    loss: float | None
    accuracy: float | None
    totals: Totals
    epsilon: Callable[[], Epsilon]


@dataclass(frozen=True)
class Outcome:
    """How the loop ended.

    Attributes:
        kind: `finished`, `budget`, `diverged` or `interrupted`.
        reason: Why, in a sentence; empty if all rounds were done.
    """

    kind: str
    reason: str = ""
