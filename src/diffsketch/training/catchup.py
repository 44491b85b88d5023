"""What devices download: the rounds that they missed, or the whole model where that is smaller.

All devices have the first model: it follows from the run's seed. A device that is drawn in round
`r` and was last drawn in round `s` lacks what the rounds `s`, ..., `r - 1` published; the server
keeps these, and the device applies them one by one (`Server.advance`). The model as it is costs
4 bytes a weight, and as many again for a momentum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from diffsketch.errors import check

__all__ = ["Downloads", "Synced", "behind"]

Synced: TypeAlias = npt.NDArray[np.int64]
"""For each device the number of rounds that its model contains."""


@dataclass(frozen=True)
class Downloads:
    """What a download costs.

    Args:
        round_bytes: What one round published.
        model_bytes: The whole model.

    >>> import numpy as np
    >>> downloads, synced = Downloads(round_bytes=664, model_bytes=31_448), np.zeros(5, np.int64)
    >>> downloads.catch_up(synced, np.array([1, 3]), round_index=10)[0]  # ten rounds each
    13280
    """

    round_bytes: int
    model_bytes: int

    def __post_init__(self) -> None:
        check(self.round_bytes >= 1, "round_bytes", "be >= 1", self.round_bytes)
        check(self.model_bytes >= 1, "model_bytes", "be >= 1", self.model_bytes)

    def catch_up(
        self, synced: Synced, cohort: npt.NDArray[np.int64], *, round_index: int
    ) -> tuple[int, Synced]:
        """Bytes that the cohort downloads to have the round's model, and who has which then.

        Args:
            synced: Rounds that each device's model contains. Not changed.
            cohort: Who is drawn.
            round_index: The round, before which as many rounds were published.
        """
        missed = round_index - synced[cohort]
        after = synced.copy()
        after[cohort] = round_index
        return int(np.minimum(missed * self.round_bytes, self.model_bytes).sum()), after

    def broadcast(self, devices: int) -> int:
        """Bytes of what one round published, to all devices."""
        return devices * self.round_bytes


def behind(synced: Synced, cohort: npt.NDArray[np.int64], *, round_index: int) -> int:
    """How many of the cohort lack a round: without compression each downloads one model.

    >>> behind(np.array([0, 3, 2]), np.array([0, 1]), round_index=3)
    1
    """
    return int(np.count_nonzero(synced[cohort] < round_index))
