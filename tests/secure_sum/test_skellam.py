"""With the method that needs it: the sum, the mean and the claim for those present."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from diffsketch import SketchKey
from diffsketch.methods.client_noise import SketchSkellam
from diffsketch.privacy.noise import SecureNoise
from diffsketch.secure_sum import Stage, VoidError
from tests.secure_sum.playing import Played, make_params, start

COHORT, MIN_PRESENT, DIM, DELTA = 6, 4, 200, 1e-5
PLANNED = SketchSkellam(DIM, 3, 40, clip=1.0, noise_multiplier=2.0, cohort=MIN_PRESENT)
METHOD = replace(PLANNED, cohort=COHORT, noise_multiplier=2.0 * math.sqrt(COHORT / MIN_PRESENT))
SEED = SketchKey.from_integer(1).seed(0)


def epsilon(method: SketchSkellam, present: int) -> float:
    return method.claim_for(present, SEED).epsilon(delta=DELTA, rounds=1).value


def play() -> Played:
    params = make_params(
        COHORT,
        threshold=MIN_PRESENT,
        layout=METHOD.message_format,
        fingerprint=SEED.fingerprint,
        signed=True,
    )
    played, generator = start(params), torch.Generator().manual_seed(3)
    for index in played.inputs:
        vector = torch.randn(DIM, generator=generator) / 20
        played.inputs[index] = METHOD.encode(vector, SEED, SecureNoise()).messages
    return played


@pytest.mark.parametrize("silent", [{}, {2: Stage.MASKED}, {1: Stage.KEYS, 6: Stage.MASKED}])
def test_the_claim_holds_for_those_present(silent: dict[int, Stage]) -> None:
    """Noise that is planned for `min_present` members is there after any dropouts within it."""
    played = play().until(Stage.DONE, silent)
    total = played.server.total()
    assert len(total.present) == COHORT - len(silent)
    planned = epsilon(PLANNED, MIN_PRESENT)
    assert epsilon(METHOD, len(total.present)) <= planned * (1 + 1e-9)
    plain = torch.stack([played.inputs[index] for index in total.present]).sum(dim=0)
    assert torch.equal(total.cells, METHOD.publish(plain, SecureNoise()))
    one, other = (METHOD.decode(cells, SEED, count=len(total.present)) for cells in
                  (total.cells, METHOD.publish(plain, SecureNoise())))  # fmt: skip
    assert torch.equal(one, other)


def test_the_plan_is_met_exactly_at_min_present() -> None:
    assert epsilon(METHOD, MIN_PRESENT) == pytest.approx(epsilon(PLANNED, MIN_PRESENT))
    assert epsilon(METHOD, COHORT) < epsilon(PLANNED, MIN_PRESENT)


def test_one_fewer_would_weaken_the_claim_and_is_void() -> None:
    assert epsilon(METHOD, MIN_PRESENT - 1) > epsilon(PLANNED, MIN_PRESENT)
    with pytest.raises(VoidError, match="3 of 6 replied, and the threshold is 4"):
        play().until(Stage.DONE, dict.fromkeys((1, 2, 3), Stage.MASKED))
