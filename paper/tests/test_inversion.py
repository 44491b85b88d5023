"""Gradient inversion: the estimate is the best linear one, and batches do not hide images."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from diffsketch.errors import ArgumentError
from diffsketch.privacy.claim import Basis, Epsilon
from paper.inversion import (
    BATCH,
    CLASSES,
    Prior,
    SentGradients,
    gradients_of,
    likeliest,
    measure_inversion,
    recover_batches,
)
from paper.methods import COORDINATE


def inverted(**settings: float) -> Any:
    """The attack on ten batches or as many as are given."""
    whole = {"case": "inversion", "batches": 10, **settings}
    return measure_inversion(whole, seed=0, on_progress=lambda _: None)["batches"]


def test_gradients_are_those_of_the_cross_entropy() -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.random((3, 6)), np.array([4, 0, 9])
    found = gradients_of(images, labels)
    inputs = torch.from_numpy(np.c_[images, np.ones(3)])
    for index in range(3):
        weights = torch.zeros(CLASSES, 7, dtype=torch.float64, requires_grad=True)
        loss = cross_entropy((weights @ inputs[index])[None], torch.tensor([labels[index]]))
        (gradient,) = torch.autograd.grad(loss, weights)
        assert torch.allclose(found[index], gradient.flatten())


def test_bad_settings_are_refused() -> None:
    for wrong, match in (({"batches": 0}, "batches must"), ({"typo": 1}, "unknown key 'typo'")):
        with pytest.raises(ArgumentError, match=match):
            inverted(**wrong)


def test_likeliest_labels_are_taken_one_by_one() -> None:
    numbers = np.array([[5.2, 0.1, 2.4, 0.3, -0.2, 0.0, 0.0, 0.0, 0.0, 1.2]])
    assert likeliest(numbers).tolist() == [[5, 0, 3, 1, 0, 0, 0, 0, 0, 1]]


def test_the_estimate_is_the_best_linear_one() -> None:
    """By the joint moments of numbers, sums and tables, in a world of five pixels; both are known.

    The moments are those of 20,000 drawn batches: each entry is within five standard errors.
    """
    rng = np.random.default_rng(1)
    means, factors = rng.random((CLASSES, 5)), rng.normal(size=(CLASSES, 5, 5)) / 20
    prior = Prior(means, factors @ factors.transpose(0, 2, 1))
    matrix, count = rng.normal(size=(4, CLASSES * 6)), 20_000
    labels = rng.integers(CLASSES, size=(count, BATCH))
    beyond = np.einsum("bipq,biq->bip", factors[labels], rng.normal(size=(count, BATCH, 5)))
    images = means[labels] + beyond
    gradients = gradients_of(images.reshape(-1, 5), labels.ravel()).numpy()
    noise = 0.1 * rng.normal(size=(count, 4))
    tables = gradients.reshape(count, BATCH, -1).mean(axis=1) @ matrix.T + noise
    claimed = Epsilon(1.0, 0.0, 1, Basis.CLAIMED, COORDINATE)
    message = SentGradients("m", tables, matrix, 0.01, claimed)
    numbers, sums = recover_batches(message, prior)
    hot = np.eye(CLASSES)[labels]
    errors = np.concatenate(
        [hot.sum(axis=1) - numbers,
         (np.einsum("bic,bip->bcp", hot, beyond) - sums).reshape(count, -1)], axis=1
    )  # fmt: skip
    # What is left is 0 on average, and in no way linear in the tables.
    assert np.abs(errors.mean(axis=0) / errors.std(axis=0)).max() * count**0.5 < 5
    off = (tables - tables.mean(axis=0)) / tables.std(axis=0)
    scores = (errors / errors.std(axis=0)).T @ off / count**0.5
    assert np.abs(scores).max() < 5
    # Control: with ten times the noise that there is, it would be.
    numbers, _ = recover_batches(replace(message, variance=1.0), prior)
    left = hot.sum(axis=1) - numbers
    assert np.abs((left / left.std(axis=0)).T @ off / count**0.5).max() > 8


@pytest.mark.slow
def test_batches_do_not_hide_images() -> None:
    """Ten batches of ten: blurred, the more so the smaller the table; labels are found.

    One hundred similarities of nothing would have a mean of 0 with a standard error of 0.025.
    """
    found = inverted(batches=10)
    means = [row["mean_similarity"] for row in found]
    assert 0.9 > means[0] > means[1] > means[2] > 0.2
    assert found[0]["labels_right"] > 0.9
    assert all(row["labels_right"] > 0.75 for row in found)
    assert json.loads(json.dumps(found, allow_nan=False))[2]["claimed_by_theorem_1"]["epsilon"] > 0


@pytest.mark.slow
def test_appended_noise_hides_more_than_laplace_noise_alone() -> None:
    """At the same epsilon, where a cell gets more of it, and both more than the bare sketch."""
    bare, laplace, ours = (
        inverted(**settings)[0]["mean_similarity"]
        for settings in ({}, {"per_round": 1.0}, {"per_round": 1.0, "least": 1000})
    )
    assert bare > laplace + 0.15
    assert laplace > ours + 0.1
    assert ours > 0
