"""Gradient inversion: what a server sees of handwritten digits in one message.

A client computes the mean gradient of a logistic regression on a batch of ten images, in the first
round of training (all weights 0), and sends the sketch of it. An image of label `c` gives class `k`
the gradient `(1/10 - [k = c]) (pixels, 1)`. So the table is a known linear map of the sums of the
images of each class and of their numbers, and the server, which knows the round's hashes, solves
for them.

The attack: the best linear estimate, from the mean and the covariance of other, public images of
each class, labels that are drawn uniformly, and whatever noise the mechanism adds. It uses all that
such a server knows up to second moments, so that what it does not recover is not in the message, as
far as those go.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from diffsketch.auditing.attacks import Numbers
from diffsketch.auditing.audits import epsilon_to_json
from diffsketch.methods import DiffSketch
from diffsketch.privacy.claim import Basis, Epsilon
from diffsketch.privacy.noise import NoiseKey
from diffsketch.privacy.theorems import claimed_per_round, estimates, least_padding
from diffsketch.sketch import CountSketch, SketchKey
from diffsketch.training.data import load_mnist
from paper.measurements import Found, Given, MeasurementSettings, Progress, Whole
from paper.methods import COORDINATE

CLASSES, SIDE = 10, 28
DIM = CLASSES * (SIDE * SIDE + 1)
ROWS = 7
COLS = (22, 15, 6)  # 51, 75 and 187 coordinates per cell
BATCH = 10
_PUBLIC_PER_CLASS = 1000
_TEXTURE = 0.02  # standard deviation of what a thousand images do not show of the others
_ROUNDING = 1e-8  # variance of a cell that has no noise

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Prior:
    """Public knowledge of images: for each label, the mean and the covariance of pixels."""

    means: Numbers
    covariances: Numbers


@dataclass(frozen=True, eq=False)
class SentGradients:
    """One message of each of several gradients, all of one kind."""

    name: str
    tables: Numbers  # (count, cells)
    matrix: Numbers  # of the sketch, (cells, DIM)
    variance: float  # of the noise in a cell
    claimed: Epsilon  # by the paper, at the median over the gradients


class _Inversion(MeasurementSettings):
    case: Literal["inversion"]
    batches: Annotated[int, Field(ge=1, le=100)]
    per_round: float | None = None
    least: Whole = (
        0  # the most that is appended, in lengths of the vector; 0 for Laplace noise alone
    )


# --- messages --------------------------------------------------------------------------------


def gradients_of(images: Numbers, labels: Labels) -> Tensor:
    """Compute the gradient of the cross-entropy at zero weights for each image, `(count, DIM)`.

    Class by class: the weights of its pixels, then its bias.
    """
    inputs = np.concatenate([images, np.ones((len(images), 1))], axis=1)
    errors = 1 / CLASSES - np.eye(CLASSES)[labels]
    return torch.from_numpy((errors[:, :, None] * inputs[:, None, :]).reshape(len(images), -1))


def messages_of(
    gradients: Tensor, *, seed: int, per_round: float | None = None, least: int = 0
) -> Iterator[SentGradients]:
    """Sketch gradients in tables of each size: as they are, or with noise for an epsilon.

    That is what DiffSketch sends, with the least padding that each message needs, up to `least`
    lengths of the vector; with 0 it is the baseline, Laplace noise. The attack takes the median
    variance of the noise for all messages: each has its own, by a deviation or an alpha that only
    its sender knows.
    """
    alpha, sigma = estimates(gradients)
    # Where nine coordinates in ten are zero, the largest stands in for alpha.
    bound = torch.where(alpha > 0, alpha, gradients.abs().amax(dim=-1))
    for cols in COLS:
        hashes, padding = SketchKey.from_integer(seed).seed(cols), least * DIM
        sketch, size = CountSketch(DIM + padding, ROWS, cols), (DIM, ROWS, cols)
        tables = sketch.encode(gradients, hashes, offset=0)
        name, variance = "bare sketch", 0.0
        claimed = float(claimed_per_round(*size, alpha=alpha, sigma=sigma).median())
        if per_round is not None:
            noise = NoiseKey.from_integer(seed).source(worker=1, round_index=cols)
            appended: Literal["least", "fixed"] = "least" if least else "fixed"
            method = DiffSketch(*size, per_round=per_round, padding=padding, appended=appended)
            encoded = method.encode(gradients, hashes, noise)
            tables, claimed = encoded.messages, per_round
            lengths, reached = least_padding(
                per_round, *size, alpha=alpha, sigma=sigma, most=padding
            )
            laplace = 2 * (2 * ROWS * bound / per_round) ** 2
            # Each cell gets its share of the appended numbers, or Laplace noise.
            share = torch.where(reached <= per_round, sigma**2 * lengths / cols, laplace)
            variance = float(share.median())
            name = f"{'DiffSketch' if least else 'Laplace on sketches'} at epsilon {per_round:g}"
        yield SentGradients(
            f"{name}, {DIM / (ROWS * cols):.0f}x smaller, batch of {BATCH}",
            tables.flatten(start_dim=1).double().numpy(),
            sketch.encode(torch.eye(DIM, dtype=torch.float64), hashes, offset=0)
            .flatten(1)
            .T.numpy(),
            variance + _ROUNDING,
            Epsilon(claimed, 0.0, 1, Basis.CLAIMED, COORDINATE),
        )


@cache
def _public() -> Prior:
    """The moments of the first training images of each class."""
    data = load_mnist(split="train")
    by_label = [
        data.inputs[data.labels == label][:_PUBLIC_PER_CLASS].flatten(start_dim=1).double() / 255
        for label in range(CLASSES)
    ]
    texture = _TEXTURE**2 * np.eye(SIDE * SIDE)
    covariances = [np.cov(images.numpy().T) + texture for images in by_label]
    return Prior(np.stack([images.numpy().mean(axis=0) for images in by_label]),
                 np.stack(covariances))  # fmt: skip


# --- the attack ------------------------------------------------------------------------------


def measure_inversion(settings: Given, *, seed: int, on_progress: Progress) -> Found:
    """Attack sketches of the mean gradient of batches of ten test images of MNIST, in their order.

    There are as many as `batches` says. With `per_round` the messages have noise for this epsilon
    (`messages_of`), else they are bare sketches. The seed fixes the hashes and the noise.

    The similarity of an image is the correlation of what is estimated for its class with the image,
    both less the public mean of the class: 0 for whoever learns nothing but the labels, 1 for a
    perfect copy. Labels are the likeliest ones, of which luck finds about two thirds in ten.
    """
    options = _Inversion.read(settings)
    count, prior, data = options.batches, _public(), load_mnist(split="test")
    images = data.inputs[: count * BATCH].flatten(start_dim=1).double().numpy() / 255
    labels = data.labels[: count * BATCH].numpy()
    gradients = gradients_of(images, labels).view(count, BATCH, DIM).mean(dim=1)
    batch, means = np.repeat(np.arange(count), BATCH), prior.means[labels]
    truth = np.eye(CLASSES)[labels].reshape(count, BATCH, CLASSES).sum(axis=1)
    rows = []
    for message in messages_of(
        gradients, seed=seed, per_round=options.per_round, least=options.least
    ):
        numbers, beyond = recover_batches(message, prior)
        similarities = _similarities(beyond[batch, labels], images - means)
        in_common = np.minimum(truth, likeliest(numbers)).sum(axis=1)
        rows.append({
            "message": message.name,
            "claimed_by_theorem_1": epsilon_to_json(message.claimed),
            "mean_similarity": float(similarities.mean()),
            "least_similarity": float(similarities.min()),
            "labels_right": float(in_common.mean()) / BATCH,
        })  # fmt: skip
    on_progress(1.0)
    return {"batches": rows}


def _similarities(ours: Numbers, truth: Numbers) -> Numbers:
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(truth, axis=1)
    return np.asarray((ours * truth).sum(axis=1) / np.maximum(lengths, 1e-12))


def recover_batches(message: SentGradients, prior: Prior) -> tuple[Numbers, Numbers]:
    """Estimate the number of images of each class in each batch, and their sum beyond the mean.

    The best linear estimate, from the public images' first two moments and labels that are drawn
    uniformly.
    """
    means = np.concatenate([prior.means, np.ones((CLASSES, 1))], axis=1)
    expected = BATCH / CLASSES  # images of a class in a batch, on average
    scatter = expected * (np.eye(CLASSES) - 1 / CLASSES)  # of the numbers of images
    cells = message.matrix.reshape(len(message.matrix), CLASSES, -1)
    seen = (cells.mean(axis=1, keepdims=True) - cells) / BATCH  # by class, of pixels and one
    pixels = seen[:, :, :-1]
    spread = [expected * pixels[:, c] @ prior.covariances[c] for c in range(CLASSES)]
    of_means = np.einsum("rcp,cp->rc", seen, means)
    gram = of_means @ scatter @ of_means.T + message.variance * np.eye(len(cells))
    gram += sum(spread[c] @ pixels[:, c].T for c in range(CLASSES))
    weights = np.linalg.solve(gram, (message.tables - of_means.sum(axis=1) * expected).T)
    numbers = (expected + scatter @ of_means.T @ weights).T
    return numbers, np.stack([(spread[c].T @ weights).T for c in range(CLASSES)], axis=1)


def likeliest(numbers: Numbers) -> Numbers:
    """Guess a batch's labels from estimated numbers of images: one by one, where most is left."""
    left = numbers[:, :, None] - np.arange(BATCH)  # before the first, the second ... of a class
    chosen = (-left).reshape(len(numbers), -1).argsort(axis=1)[:, :BATCH] // BATCH
    return np.asarray(np.eye(CLASSES)[chosen].sum(axis=1))
