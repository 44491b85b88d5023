"""cpSGD's rotation: a signed Hadamard matrix, another one in each round."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hadamard

from diffsketch.privacy import FastNoise
from diffsketch.sketch import SketchKey
from paper.rotated import RotatedCpSgd, rotate, rotate_back


@settings(deadline=None)
@given(dim=st.integers(1, 70), seed=st.integers(0, 2**31))
def test_rotation(dim: int, seed: int) -> None:
    vectors = torch.from_numpy(np.random.default_rng(seed).standard_normal((2, 3, dim)))
    before = vectors.clone()
    rotated = rotate(vectors, seed)
    size = rotated.shape[-1]
    assert size & (size - 1) == 0
    assert dim <= size < 2 * dim
    torch.testing.assert_close(rotated.norm(dim=-1), vectors.norm(dim=-1))
    torch.testing.assert_close(rotate_back(rotated, seed, dim=dim), vectors)
    assert torch.equal(vectors, before)


def test_rotation_is_a_signed_hadamard_matrix() -> None:
    matrix = rotate(torch.eye(8, dtype=torch.float64), 3).T.numpy()
    signs = np.sign(matrix[0])
    np.testing.assert_allclose(matrix, hadamard(8) * signs / math.sqrt(8))
    assert set(signs) == {-1.0, 1.0}
    assert not torch.equal(rotate(torch.eye(8), 3), rotate(torch.eye(8), 4))
    # One coordinate's mass is spread evenly.
    assert np.allclose(np.abs(matrix), 1 / math.sqrt(8))


def test_every_seed_rotates_in_another_way() -> None:
    method = RotatedCpSgd(dim=300, cohort=5, levels=4, trials=4)
    assert method.message_format.shape == (512,)
    key, vector = SketchKey.from_integer(1), torch.ones(300)
    sent = [method.encode(vector, key.seed(index), FastNoise(3)).messages for index in range(50)]
    assert len({tuple(one.tolist()) for one in sent}) == 50
    again = method.encode(vector, key.seed(3), FastNoise(3)).messages
    assert torch.equal(again, sent[3])
