"""The GRU is torch's, and its gradient by hand that of a plain loop."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from diffsketch.training.models import flatten
from paper.gru import BatchedGRU, CharGRU
from tests.training.local_cases import batches, close, plain, windows
from tests.training.test_models import check_character_model


def test_it_is_torchs_layer_without_the_second_bias() -> None:
    check_character_model(CharGRU(seed=1), nn.GRU)


@pytest.mark.parametrize("ragged", [False, True])
def test_gradients_are_those_of_the_loop(ragged: bool) -> None:
    model, chosen = CharGRU(), batches(6, 1, 5, ragged=ragged)
    found = BatchedGRU(model).gradients(flatten(model), windows(), chosen)
    close(found, plain(model, windows(), chosen, None))
    assert bool(found[3].any())


@pytest.mark.parametrize(("steps", "ragged"), [(1, False), (3, False), (3, True)])
def test_updates_are_those_of_the_loop(steps: int, ragged: bool) -> None:
    model, chosen = CharGRU(), batches(6, steps, 5, ragged=ragged)
    found = BatchedGRU(model).updates(flatten(model), windows(), chosen, learning_rate=0.3)
    expected = plain(model, windows(), chosen, 0.3)
    close(found, expected)
    # The tolerance tells this learning rate from another.
    assert not torch.allclose(found[3], 1.01 * expected[3], rtol=1e-4, atol=2e-6)
