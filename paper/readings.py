"""Readings of the paper that are no part of the library: a signed alpha, and Gaussian noise.

"The 90th percentile value of the gradient vector" may be that of the coordinates' sizes, which is
what a bound needs and what the library takes, or that of the coordinates themselves. And a worker
whose claim falls short may add "Laplacian or Gaussian noise" (Algorithm 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from diffsketch.errors import check
from diffsketch.methods import DiffSketch, SketchLaplace, register
from diffsketch.methods.base import Encoded
from diffsketch.privacy.accounting.budget import gaussian_multiplier
from diffsketch.privacy.noise import Noise
from diffsketch.sketch import HashSeed

_DELTA = 1e-5  # of Gaussian noise
_READINGS = {"percentile": ("sizes", "signed"), "added": ("laplace", "gaussian")}


def signed_alpha(vectors: Tensor) -> Tensor:
    """Return the 90th percentile of each vector's coordinates (float64); 0 where it is negative."""
    percentiles = np.quantile(vectors.double().cpu().numpy(), 0.9, axis=-1)
    return torch.from_numpy(percentiles).clamp(min=0).to(vectors.device)


@register
@dataclass(frozen=True, kw_only=True)
class DiffSketchReading(DiffSketch):
    """DiffSketch with other readings of the paper: the arguments of `DiffSketch`, and two.

    Args:
        percentile: Whose 90th percentile alpha is: of the coordinates' sizes, or `signed`.
        added: `laplace`, or `gaussian`: noise for `per_round` at a delta of 1e-5, of a coordinate
            that alpha bounds. It moves a cell in each row, so a table by `2 alpha sqrt(rows)`.
            The paper gives neither a delta nor a sensitivity; both are our choice.
    """

    percentile: Literal["sizes", "signed"] = "sizes"
    added: Literal["laplace", "gaussian"] = "laplace"

    name: ClassVar[str] = "diffsketch-reading"
    code: ClassVar[Any] = None  # a hash of the name

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, (first, second) in _READINGS.items():
            value = getattr(self, name)
            check(value in (first, second), name, f"be {first} or {second}", value)

    def _alpha_and_sigma(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        alpha, sigma = super()._alpha_and_sigma(batch)
        return alpha if self.percentile == "sizes" else signed_alpha(batch), sigma

    def _noise_share(self, claimed: Tensor) -> Tensor | float:
        return 0.0 if self.added == "gaussian" else super()._noise_share(claimed)

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:
        encoded = super()._encode(batch, seed, noise)
        if self.added == "laplace" or encoded.noised is None:
            return encoded
        tables, (alpha, _) = encoded.messages, self._alpha_and_sigma(batch)
        multiplier = gaussian_multiplier(epsilon=self.per_round, delta=_DELTA, rounds=1)
        scales = 2 * math.sqrt(self.rows) * multiplier * alpha * encoded.noised
        drawn = noise.normal(tuple(tables.shape), 1.0, dtype=tables.dtype).to(tables.device)
        scales = scales.to(tables.dtype).reshape(-1, *(1,) * (tables.dim() - 1))
        return replace(encoded, messages=torch.addcmul(tables, drawn, scales))


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
