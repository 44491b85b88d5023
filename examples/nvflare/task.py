"""What sites and server have agreed on: the method, the model, and the data of this example."""

from __future__ import annotations

import torch
from torch import nn

from diffsketch import SketchKey
from diffsketch.methods import SketchGaussian
from diffsketch.silos import Records
from diffsketch.training.tasks import Task, load_task

SITES, PATIENTS = 3, 2000  # records of each site, one of each patient: images, in place of scans
KEY = SketchKey.from_integer(7)  # of the hashes, which need not be secret here
METHOD = SketchGaussian(
    7850, 1, 1570, clip=1.0, noise_multiplier=1.5, unit="example", relation="add-or-remove",
    # NVFlare's server sees the message of each site, so each adds all of the noise.
    trust="local", rate=0.1, records=0.1 * PATIENTS,
)  # fmt: skip


class Net(nn.Module):
    """Scores of ten classes, with first weights that are the same everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(784, 10)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Compute scores `(batch, 10)`."""
        scores: torch.Tensor = self.layer(images)
        return scores


def all_data() -> Task:
    """Load the images of all sites, and those for the test."""
    return load_task("mnist", workers=SITES, samples=PATIENTS)


def records_of(site: int) -> Records:
    """Take a site's part."""
    devices = all_data().devices
    start, end = devices.starts[site : site + 2].tolist()
    return Records(devices.examples.inputs[start:end], devices.examples.labels[start:end])
