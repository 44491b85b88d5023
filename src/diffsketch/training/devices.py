"""Who holds which examples: all of them in two tensors, one device after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, DataError, check

__all__ = ["Batches", "Devices", "Examples"]


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs with a label each.

    Attributes:
        inputs: `(count, ...)`, of whatever type the model takes.
        labels: `(count,)`, int64.
    """

    inputs: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        check(self.labels.dtype == torch.int64, "labels", "be int64", self.labels.dtype)
        count = len(self.inputs)
        good = self.labels.shape == (count,)
        check(good, "labels", f"have the shape ({count},)", tuple(self.labels.shape))

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def label_range(self) -> tuple[int, int]:
        """The smallest and the largest label; of no examples, 0 and -1. Computed once."""
        if not len(self):
            return 0, -1
        low, high = self.labels.aminmax()
        return int(low), int(high)


@dataclass(frozen=True, eq=False)
class Devices:
    """The examples of all devices (or workers), and where each one's begin.

    Attributes:
        examples: Of all devices, one after another.
        starts: `(devices + 1,)`, int64: device `i` has the examples `starts[i]` to `starts[i+1]`.
        names: Of the devices.
    """

    examples: Examples
    starts: Tensor
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        good = self.starts.dtype == torch.int64 and self.starts.shape == (len(self.names) + 1,)
        check(good, "starts", "be int64 with one entry more than names", tuple(self.starts.shape))
        if not self.names:
            raise DataError("there are no devices: training needs one at least")
        sizes = self.starts.diff()
        if int(self.starts[0]) != 0 or int(self.starts[-1]) != len(self.examples):
            raise ArgumentError("starts must begin with 0 and end with the number of examples")
        if bool((sizes <= 0).any()):
            empty = self.names[int((sizes <= 0).nonzero()[0])]
            raise DataError(f"device {empty!r} has no examples: every device needs one at least")

    @classmethod
    def of(cls, parts: Mapping[str, Examples]) -> Devices:
        """From any map of device to examples.

        >>> one = Examples(torch.zeros(2, 3), torch.tensor([0, 1]))
        >>> devices = Devices.of({"alice": one, "bob": one})
        >>> len(devices), devices.sizes.tolist()
        (2, [2, 2])
        """
        if not parts:
            raise DataError("there are no devices: training needs one at least")
        inputs = torch.cat([part.inputs for part in parts.values()])
        labels = torch.cat([part.labels for part in parts.values()])
        sizes = torch.tensor([0, *(len(part) for part in parts.values())])
        return cls(Examples(inputs, labels), sizes.cumsum(0), tuple(parts))

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def sizes(self) -> Tensor:
        """Examples of each device, int64."""
        return self.starts.diff()

    def to(self, device: torch.device) -> Devices:
        """With the examples on another device of the machine; `starts` stays on the CPU."""
        inputs, labels = self.examples.inputs.to(device), self.examples.labels.to(device)
        return Devices(Examples(inputs, labels), self.starts, self.names)

    def take(self, devices: Sequence[int]) -> dict[str, Examples]:
        """The examples of some devices, by name."""
        return {
            self.names[i]: Examples(
                self.examples.inputs[self.starts[i] : self.starts[i + 1]],
                self.examples.labels[self.starts[i] : self.starts[i + 1]],
            )
            for i in devices
        }


@dataclass(frozen=True, eq=False)
class Batches:
    """Which examples each worker of a cohort takes, step by step.

    Workers with fewer examples have empty places: index 0 and `present` False there. A step
    without any example present changes nothing.

    Attributes:
        indices: `(workers, steps, batch_size)`, int64, into the examples of all devices.
        present: Of the same shape, bool; None if there are no empty places.
    """

    indices: Tensor
    present: Tensor | None = None
