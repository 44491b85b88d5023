"""FedAvg (Algorithm 4): each device of a sample trains on its own data and sends the change.

In round `r` the server samples devices. Each one catches up with the model that it missed
(`diffsketch.training.catchup`), trains `local_epochs` epochs of SGD on its own examples, and sends
the message of the weights after less the weights before; the server publishes the sum, and the
mean is added to the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from diffsketch.training.catchup import Downloads, Synced, behind
from diffsketch.training.correction import Correction
from diffsketch.training.devices import Devices
from diffsketch.training.local.base import LocalTrainer
from diffsketch.training.orders import device_batches
from diffsketch.training.sampling import AllDevices, Sampler
from diffsketch.training.server import check_step
from diffsketch.methods.base import check_whole

__all__ = ["FedAvg"]


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
