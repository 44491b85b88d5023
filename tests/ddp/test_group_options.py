"""Scales of mixed precision, where overflows are seen and where they are not."""

from __future__ import annotations

import pytest
import torch

from diffsketch.ddp.group import Scales
from diffsketch.errors import ArgumentError
from diffsketch.methods import PlainSketch, SketchGaussian
from diffsketch.sketch import SketchKey

SEED = SketchKey.from_integer(1).seed(0)
NOTHING = PlainSketch(40, 1, 8).claim_for(2, SEED)
PROVEN = SketchGaussian(40, 1, 8, clip=1.0, noise_multiplier=1.0).claim_for(2, SEED)


class Scale:
    value = 64.0

    def get_scale(self) -> float:
        return self.value


def test_a_scaler_that_follows_overflows_is_refused_where_none_is_seen() -> None:
    scaler = torch.amp.GradScaler("cpu")
    Scales(scaler).check(NOTHING)
    with pytest.raises(ArgumentError, match=r"enabled GradScaler\. Use bfloat16"):
        Scales(scaler).check(PROVEN)
    for fine in (torch.amp.GradScaler("cpu", enabled=False), Scale(), None):
        Scales(fine).check(PROVEN)


def test_a_scale_stays_where_the_claim_is_proven() -> None:
    scale = Scale()
    scales = Scales(scale)
    assert [scales.next(PROVEN), scales.next(PROVEN)] == [64.0, 64.0]
    scale.value = 32.0
    with pytest.raises(ArgumentError, match=r"must keep its scale .* got 32 after 64"):
        scales.next(PROVEN)
    assert scales.next(NOTHING) == 32.0
    assert Scales(None).next(PROVEN) == 1.0
