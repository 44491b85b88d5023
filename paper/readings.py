"""Readings of the paper that are no part of Algorithms 1 to 4: a signed alpha, less Laplace noise.

"The 90th percentile value of the gradient vector" may be that of the coordinates' sizes, which is
what a bound needs and what the library takes, or that of the coordinates themselves. And "a small
amount of noise" for a worker whose claim falls short may be all the Laplace noise that would do
alone, as in the library, or the part of it that is missing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from diffsketch.errors import check
from diffsketch.methods import DiffSketch, SketchLaplace, register


def signed_alpha(vectors: Tensor) -> Tensor:
    """Return the 90th percentile of each vector's coordinates (float64); 0 where it is negative.

    Interpolated as `numpy.quantile` does.
    """
    place = 0.9 * (vectors.shape[-1] - 1)
    below = math.floor(place)
    above = min(below + 1, vectors.shape[-1] - 1)
    ordered = torch.from_numpy(np.partition(vectors.cpu().numpy(), (below, above)))
    low, high = (ordered[..., at].double() for at in (below, above))
    return (low + (high - low) * (place - below)).clamp(min=0).to(vectors.device)


@register
@dataclass(frozen=True, kw_only=True)
class DiffSketchReading(DiffSketch):
    """DiffSketch with other readings of the paper: the arguments of `DiffSketch`, and two.

    Args:
        percentile: Whose 90th percentile alpha is: of the coordinates' sizes, or `signed`.
        shortfall: `whole`: the Laplace noise that would do alone; `graded`: the part of it that is
            missing, `1 - per_round / claimed`.
    """

    percentile: Literal["sizes", "signed"] = "sizes"
    shortfall: Literal["whole", "graded"] = "whole"

    name: ClassVar[str] = "diffsketch-reading"
    code: ClassVar[Any] = None  # a hash of the name

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes, whole = ("sizes", "signed"), ("whole", "graded")
        check(self.percentile in sizes, "percentile", "be sizes or signed", self.percentile)
        check(self.shortfall in whole, "shortfall", "be whole or graded", self.shortfall)

    def _alpha_and_sigma(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        alpha, sigma = super()._alpha_and_sigma(batch)
        return alpha if self.percentile == "sizes" else signed_alpha(batch), sigma

    def _noise_share(self, claimed: Tensor) -> Tensor | float:
        return 1 - self.per_round / claimed if self.shortfall == "graded" else 1.0


@register
@dataclass(frozen=True, kw_only=True)
class SignedSketchLaplace(SketchLaplace):
    """Laplace noise on tables by a signed alpha: arguments of `SketchLaplace`, but no clip."""

    name: ClassVar[str] = "sketch-laplace-signed"
    code: ClassVar[Any] = None  # a hash of the name

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.clip is None, "clip", "not be given with a signed alpha", self.clip)

    def _alpha(self, batch: Tensor) -> Tensor:
        return signed_alpha(batch)
