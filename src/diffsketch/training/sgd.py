"""Distributed SGD (Algorithm 3): each worker sends the sketch of a batch's gradient.

In round `r` every worker computes the gradient of its next batch at the common weights `w` and
sends its message; the server publishes the sum, and each worker queries the mean `g` and sets
`w = w - learning_rate * g`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from diffsketch.training.catchup import Downloads, Synced
from diffsketch.training.correction import Correction, check_correction, mask_bytes
from diffsketch.training.devices import Batches, Devices
from diffsketch.training.local.base import LocalTrainer
from diffsketch.training.orders import one_batch
from diffsketch.training.sampling import AllDevices, Sampler
from diffsketch.training.server import check_step
from diffsketch.methods.base import check_whole

__all__ = ["DistributedSGD"]


@dataclass(frozen=True)
class DistributedSGD:
    """The settings of distributed SGD, and what a round of it computes.

    Args:
        learning_rate: Factor of the mean gradient.
        batch_size: Examples of a worker's gradient. Each worker goes through its examples, pass by
            pass, in an order of its own.
        correction: The paper's error correction, an ablation that is not private: off, shared or
            drift (`diffsketch.training.correction`).
    """

    name = "sgd"
    learning_rate: float
    batch_size: int
    correction: Correction = field(default="off", kw_only=True)

    def __post_init__(self) -> None:
        check_step("learning_rate", self.learning_rate)
        check_whole("batch_size", self.batch_size, least=1)
        check_correction(self.correction)

    @property
    def step(self) -> float:
        """What the mean is multiplied by before it is added to the weights."""
        return -self.learning_rate

    def sampler(self, devices: Devices) -> Sampler:
        """Every worker takes part in each round."""
        return AllDevices(len(devices))

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
        """The workers' gradients, `(workers, dim)`: at the common weights, or each at its own."""
        batches = one_batch(
            devices, cohort, seed=seed, round_index=round_index, batch_size=self.batch_size
        )
        if weights.dim() == 1:
            return trainer.gradients(weights, devices.examples, batches)
        own = [
            trainer.gradients(weights[worker], devices.examples, _only(batches, row))
            for row, worker in enumerate(cohort.tolist())
        ]
        return torch.cat(own)

    def bytes_up(self, message: int, present: int, dim: int) -> int:
        """One message of each worker that is in the sum; and its mask, if they are shared."""
        mask = mask_bytes(dim, present)[0] if self.correction == "shared" else 0
        return present * (message + mask)

    def bytes_down(
        self, downloads: Downloads, synced: Synced, *, cohort: Tensor, round_index: int, dim: int
    ) -> tuple[int, Synced]:
        """What was published, to every worker; and the sum of the masks."""
        del round_index
        workers = len(synced)
        mask = mask_bytes(dim, len(cohort))[1] if self.correction == "shared" else 0
        return downloads.broadcast(workers) + workers * mask, synced

    def downloads(self, synced: Synced, *, cohort: Tensor, round_index: int) -> int:
        """Every worker."""
        del cohort, round_index
        return len(synced)


def _only(batches: Batches, row: int) -> Batches:
    """The batches of one worker."""
    present = batches.present
    return Batches(
        batches.indices[row : row + 1], None if present is None else present[row : row + 1]
    )
