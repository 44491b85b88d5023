"""Distributed SGD and FedAvg (Algorithms 3 and 4) as rounds over a method."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from diffsketch.errors import check_whole
from diffsketch.training.clients import Downloads, Synced, behind
from diffsketch.training.correction import Correction, check_correction, mask_bytes
from diffsketch.training.local.base import LocalTrainer
from diffsketch.training.orders import device_batches, one_batch
from diffsketch.training.sampling import AllDevices, Sampler
from diffsketch.training.server import check_step
from diffsketch.training.tasks import Batches, Devices


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


@dataclass(frozen=True)
class FedAvg:
    """The settings of FedAvg, and what a round of it computes.

    Args:
        learning_rate: Of a device's SGD.
        batch_size: Examples of a step.
        local_epochs: Passes of a device over its examples, each in a fresh order.
    """

    name = "fedavg"
    # "Since the local gradients would be stale", the paper says.
    correction: ClassVar[Correction] = "off"
    learning_rate: float
    batch_size: int
    local_epochs: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        check_step("learning_rate", self.learning_rate)
        check_whole("batch_size", self.batch_size, least=1)
        check_whole("local_epochs", self.local_epochs, least=1)

    @property
    def step(self) -> float:
        """What the mean is multiplied by before it is added to the weights."""
        return 1.0

    def sampler(self, devices: Devices) -> Sampler:
        """Every device, unless told otherwise."""
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
        """The devices' changes of the weights, `(devices, dim)`."""
        batches = device_batches(
            devices,
            cohort,
            seed=seed,
            round_index=round_index,
            batch_size=self.batch_size,
            epochs=self.local_epochs,
        )
        return trainer.updates(weights, devices.examples, batches, learning_rate=self.learning_rate)

    def bytes_up(self, message: int, present: int, dim: int) -> int:
        """One message of each device that is in the sum."""
        del dim
        return present * message

    def bytes_down(
        self, downloads: Downloads, synced: Synced, *, cohort: Tensor, round_index: int, dim: int
    ) -> tuple[int, Synced]:
        """What the sampled devices download before they train."""
        del dim
        return downloads.catch_up(synced, cohort.numpy(), round_index=round_index)

    def downloads(self, synced: Synced, *, cohort: Tensor, round_index: int) -> int:
        """The sampled devices that have missed a round; none before the first one."""
        return behind(synced, cohort.numpy(), round_index=round_index)
