"""Finite vectors whose sums are not: the error names the row."""

from __future__ import annotations

import pytest
import torch

from diffsketch.errors import ArgumentError
from diffsketch.methods.release import private_mean
from diffsketch.methods.base import build_method
from diffsketch.sketch.hashing import SketchKey


@pytest.mark.parametrize("name", ["sketch", "laplace", "sketch-gaussian", "sketch-skellam"])
def test_overflow_names_the_row(name: str) -> None:
    settings: dict[str, dict[str, object]] = {
        "sketch": {"rows": 1, "cols": 10},
        "laplace": {"per_round": 1.0},
        "sketch-gaussian": {"rows": 1, "cols": 10, "clip": 1.0, "noise_multiplier": 1.0},
        "sketch-skellam": {"rows": 1, "cols": 10, "clip": 1.0, "noise_multiplier": 1.0},
    }
    method = build_method(name, dim=200, cohort=4, settings=settings[name])
    vectors = torch.zeros(4, 200)
    vectors[2] = 3e38
    with pytest.raises(ArgumentError, match=r"coordinates overflow in rows 2$"):
        private_mean(vectors, method, key=SketchKey.from_integer(0))
