"""What distributed SGD and FedAvg have in common: the protocol that engines run."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from diffsketch.training.catchup import Downloads, Synced
from diffsketch.training.correction import Correction
from diffsketch.training.devices import Devices
from diffsketch.training.local.base import LocalTrainer
from diffsketch.training.sampling import Sampler

__all__ = ["Algorithm"]


class Algorithm(Protocol):
    """What is averaged in a round, what becomes of the mean, and what that costs."""

    @property
    def name(self) -> str:
        """As in settings."""

    @property
    def correction(self) -> Correction:
        """The paper's error correction."""

    @property
    def step(self) -> float:
        """What the mean is multiplied by before it is added to the weights."""

    def sampler(self, devices: Devices) -> Sampler:
        """Who takes part, unless told otherwise."""

    def vectors(
        self,
        weights: Tensor,
        cohort: Tensor,
        *,
        trainer: LocalTrainer,
        devices: Devices,
        seed: int,
        round_index: int,
    ) -> Tensor:
        """What the workers of a cohort contribute: `(workers, dim)`."""

    def bytes_up(self, message: int, present: int, dim: int) -> int:
        """All that the workers send, if so many send a message of so many bytes."""

    def bytes_down(
        self, downloads: Downloads, synced: Synced, *, cohort: Tensor, round_index: int, dim: int
    ) -> tuple[int, Synced]:
        """All that the devices receive, and which rounds their models contain then."""

    def downloads(self, synced: Synced, *, cohort: Tensor, round_index: int) -> int:
        """How many devices receive something: as many vectors, if nothing were compressed."""
