"""What a round of the strategy did, for whoever reads the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from diffsketch.privacy.claim import Claim

__all__ = ["RoundReport"]


@dataclass(frozen=True, eq=False)
class RoundReport:
    """One round.

    Attributes:
        round_index: For the hashes; Flower's own rounds begin at 1.
        asked: Nodes that were asked for a message.
        present: Nodes whose message is in the sum.
        refused: Other nodes that answered, and why they do not count.
        silent: Nodes that did not answer in time.
        bytes_down: Of what was sent to the nodes, as Flower serialises it.
        bytes_up: Of what came back, wherefore ever.
        message_bytes: Of the methods' messages in `bytes_up`.
        claim: What the round guarantees to those who were asked.
        void: Why the model did not change; empty if it did.
    """

    round_index: int
    asked: tuple[int, ...]
    present: tuple[int, ...]
    refused: Mapping[int, str] = field(default_factory=dict)
    silent: tuple[int, ...] = ()
    bytes_down: int = 0
    bytes_up: int = 0
    message_bytes: int = 0
    claim: Claim | None = None
    void: str = ""

    def __str__(self) -> str:
        """In a line."""
        fate = f"VOID: {self.void}; the model is unchanged" if self.void else "counts"
        return (
            f"round {self.round_index} {fate} ({len(self.present)} of {len(self.asked)} nodes, "
            f"{len(self.refused)} refused, {len(self.silent)} silent; {self.bytes_up:,} bytes up, "
            f"{self.bytes_down:,} bytes down)"
        )
