"""Gradient inversion: what a server sees of a handwritten digit in one message.

A client computes the gradient of a logistic regression on one image, in the first round of
training (all weights 0), and sends the sketch of it. The gradient of class `c` is
`(1/10 - [c is the label]) (pixels, 1)`: one image, ten times over, with a known factor for each of
ten possible labels. So for each label the table is a known linear map of the pixels, and the
server, which knows the round's hashes, solves for them.

The attack: pixels of each label are taken to be Gaussian with the mean and the covariance of other,
public images (and whatever noise the mechanism adds); the estimate is the posterior mean, averaged
over the labels with their posterior probabilities. It uses everything that such a server knows, so
that what it does not recover is not in the message, as far as second moments go. `recover_batches`
does the same for the mean gradient of a batch.

    python -m paper.inversion PICTURE.png

draws the images that are recovered from each kind of message (`docs/images/inversion.png`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from scipy import linalg
from torch import Tensor

from diffsketch.auditing.attacks import Numbers, matrix_of
from diffsketch.auditing.audits import epsilon_to_json
from diffsketch.errors import check
from diffsketch.methods.paper import add_laplace
from diffsketch.privacy.accounting.budget import gaussian_multiplier
from diffsketch.privacy.claim import Basis, Epsilon, NoClaim, Relation, Scope, Trust, Unit
from diffsketch.privacy.clipping import NormBound
from diffsketch.privacy.mechanisms.additive import GaussianMechanism
from diffsketch.privacy.noise import NoiseKey
from diffsketch.privacy.theorems import claimed_per_round, estimates
from diffsketch.sketch import CountSketch, SketchKey
from diffsketch.training.data import load_mnist
from diffsketch.training.tasks import Examples
from paper.measurements import Found, Given, MeasurementSettings, Progress, Whole

CLASSES, SIDE = 10, 28
DIM = CLASSES * (SIDE * SIDE + 1)
ROWS = 7
COLS = (112, 22, 6)  # 10, 51 and 187 coordinates per cell
NOISY_COLS = 22
TARGETS = (8.0, 1.0)
DELTA = 1e-5
BATCH = 10
_PUBLIC_PER_CLASS, _PUBLIC_GRADIENTS = 1000, 300
_SHOWN = 10  # images in a row of the picture
_TEXTURE = 0.02  # standard deviation of what a thousand images do not show of the others
_ROUNDING = 1e-8  # variance of a cell that has no noise

_COORDINATE = Scope(Unit.COORDINATE, Relation.REPLACE, Trust.LOCAL)
_CLIENT = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
UNLIMITED = NoClaim(_CLIENT, "there is no noise and everybody knows the hashes").epsilon(
    delta=DELTA, rounds=1
)
"""Guarantee of a client that sends a bare sketch, or the gradient itself."""

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Prior:
    """Public knowledge of images: for each label, the mean and the covariance of pixels."""

    means: Numbers
    covariances: Numbers

    @classmethod
    def of(cls, images: Numbers, labels: Labels) -> Prior:
        """Estimate from public images `(count, pixels)` with values in 0..1."""
        by_label = [images[labels == label] for label in range(CLASSES)]
        fewest = min(map(len, by_label))
        check(fewest >= 2, "images", "have two of each class at least", fewest)
        texture = _TEXTURE**2 * np.eye(images.shape[1])
        covariances = np.stack([np.cov(group.T) + texture for group in by_label])
        return cls(np.stack([group.mean(axis=0) for group in by_label]), covariances)


@dataclass(frozen=True, eq=False)
class SentGradients:
    """One message of each of several gradients, all of one kind."""

    name: str
    tables: Numbers  # (count, cells)
    matrix: Numbers  # of the sketch, (cells, DIM)
    variance: float  # of the noise in a cell
    guaranteed: Epsilon
    claimed: Epsilon | None = None  # by the paper, at the median over the gradients


@dataclass(frozen=True, eq=False)
class Recovery:
    """Images recovered from one kind of message.

    The similarity of an image is the correlation of estimate and truth, both less what is public:
    0 for whoever learns nothing, 1 for a perfect copy.
    """

    message: SentGradients
    images: Numbers  # (count, pixels), values in 0..1
    similarities: Numbers
    labels_right: float  # share of the labels that were found

    def to_json(self) -> Found:
        """Return all but the images as plain data; `guaranteed` is null where nothing is."""
        guaranteed, claimed = self.message.guaranteed, self.message.claimed
        limited = math.isfinite(float(guaranteed))
        return {
            "message": self.message.name,
            "guaranteed": epsilon_to_json(guaranteed) if limited else None,
            "claimed_by_theorem_1": None if claimed is None else epsilon_to_json(claimed),
            "mean_similarity": float(self.similarities.mean()),
            "least_similarity": float(self.similarities.min()),
            "labels_right": self.labels_right,
        }


class _Inversion(MeasurementSettings):
    case: Literal["inversion"]
    images: Whole
    batches: Whole
    per_round: float | None = None


def measure_inversion(settings: Given, *, seed: int, on_progress: Progress) -> Found:
    """Attack `images` test images of each digit, and as many batches of ten as `batches` says.

    With `per_round` the messages are those that DiffSketch sends for this epsilon with nothing
    appended; else bare sketches, and for single images gradients and proven noise too. The seed
    fixes the hashes and the noise.
    """
    options = _Inversion.read(settings)
    single = invert(per_class=options.images, seed=seed, per_round=options.per_round)
    on_progress(0.7)
    batches = invert_batches(options.batches, seed=seed, per_round=options.per_round)
    on_progress(1.0)
    return {
        "inversion": [recovery.to_json() for recovery in single],
        "batches": [recovery.to_json() for recovery in batches],
    }


# --- messages --------------------------------------------------------------------------------


def gradients_of(images: Numbers, labels: Labels) -> Tensor:
    """Compute the gradient of the cross-entropy at zero weights for each image, `(count, DIM)`.

    Class by class: the weights of its pixels, then its bias.
    """
    inputs = np.concatenate([images, np.ones((len(images), 1))], axis=1)
    errors = 1 / CLASSES - np.eye(CLASSES)[labels]
    return torch.from_numpy((errors[:, :, None] * inputs[:, None, :]).reshape(len(images), -1))


def messages_of(
    gradients: Tensor, *, seed: int, per_round: float | None = None
) -> Iterator[SentGradients]:
    """Sketch gradients in tables of each size: as they are, or as DiffSketch does for an epsilon.

    The attack takes the median variance of DiffSketch's noise for all messages: each has its own,
    by an alpha that only its sender knows.
    """
    alpha, sigma = estimates(gradients)
    for cols in COLS:
        sketch, hashes = CountSketch(DIM, ROWS, cols), SketchKey.from_integer(seed).seed(cols)
        tables = sketch.encode(gradients, hashes)
        claims = claimed_per_round(DIM, ROWS, cols, alpha=alpha, sigma=sigma)
        name, claimed, variance = "bare sketch", float(claims.median()), 0.0
        if per_round is not None:
            name, claimed = f"DiffSketch at epsilon {per_round:g}", per_round
            weak = ~(claims <= per_round)
            noise = NoiseKey.from_integer(seed).source(worker=1, round_index=cols)
            if bool(weak.any()):
                tables[weak] = add_laplace(
                    tables[weak], gradients[weak], noise,
                    alpha=alpha[weak], rows=ROWS, per_round=per_round,
                )  # fmt: skip
            # Where nine coordinates in ten are zero, the largest stands in for alpha.
            bound = torch.where(alpha > 0, alpha, gradients.abs().amax(dim=-1)) * weak
            variance = 2 * float((2 * ROWS * bound / per_round).median()) ** 2
        yield SentGradients(
            f"{name}, {sketch.compression:.0f}x smaller",
            tables.flatten(start_dim=1).numpy(),
            matrix_of(sketch, hashes),
            variance + _ROUNDING,
            UNLIMITED,
            Epsilon(claimed, 0.0, 1, Basis.CLAIMED, _COORDINATE),
        )


def noisy_messages_of(gradients: Tensor, public: Tensor, *, seed: int) -> Iterator[SentGradients]:
    """Sketch gradients with noise for a proven epsilon of the client, for each of the targets."""
    key = SketchKey.from_integer(seed)
    sketch, hashes = CountSketch(DIM, ROWS, NOISY_COLS), key.seed(NOISY_COLS)
    encode = partial(sketch.encode, seed=hashes)
    # Half of all tables are longer: known from public images, so it gives nothing away.
    bound = NormBound(float(encode(public).flatten(start_dim=1).norm(dim=1).median()))
    for target in TARGETS:
        multiplier = gaussian_multiplier(epsilon=target, delta=DELTA, rounds=1)
        mechanism = GaussianMechanism(bound, multiplier)
        noise = NoiseKey.from_integer(seed).source(worker=0, round_index=round(1000 * target))
        yield SentGradients(
            f"sketch with noise, {sketch.compression:.0f}x smaller",
            mechanism.release(gradients, noise, encode=encode).flatten(start_dim=1).numpy(),
            matrix_of(sketch, hashes),
            mechanism.std**2,
            mechanism.claim.epsilon(delta=DELTA, rounds=1),
        )


# --- single images ---------------------------------------------------------------------------


@cache
def _public() -> tuple[Prior, Tensor]:
    """Public knowledge: the moments of the training images, and a few of their gradients."""
    images, labels = first_of_each(load_mnist(split="train"), _PUBLIC_PER_CLASS)
    few = gradients_of(images[:_PUBLIC_GRADIENTS], labels[:_PUBLIC_GRADIENTS])
    return Prior.of(images, labels), few


def first_of_each(dataset: Examples, count: int) -> tuple[Numbers, Labels]:
    """Take the first images of each class: one of each, then the next of each."""
    labels = dataset.labels.numpy()
    chosen = np.stack([np.flatnonzero(labels == label)[:count] for label in range(CLASSES)], axis=1)
    images = dataset.inputs[torch.from_numpy(chosen.ravel())].flatten(start_dim=1)
    return images.double().numpy() / 255, labels[chosen.ravel()]


def invert(*, per_class: int = 10, seed: int = 0, per_round: float | None = None) -> list[Recovery]:
    """Attack `per_class` test images of each digit of MNIST; the training images are public."""
    check(1 <= per_class <= 100, "per_class", "be in 1..100", per_class)
    prior, public_gradients = _public()
    average = prior.means.mean(axis=0)  # the best guess of whoever sees no message at all
    images, labels = first_of_each(load_mnist(split="test"), per_class)
    gradients = gradients_of(images, labels)
    messages = list(messages_of(gradients, seed=seed, per_round=per_round))
    estimates = []
    if per_round is None:
        messages += noisy_messages_of(gradients, public_gradients, seed=seed)
        # Raw gradients are read off: a bias tells the label, its factor the pixels.
        parts = gradients.numpy().reshape(len(gradients), CLASSES, -1)
        guesses = parts[:, :, -1].argmin(axis=1)
        read = parts[np.arange(len(guesses)), guesses]
        raw = SentGradients("raw gradient", gradients.numpy(), np.empty((0, DIM)), 0.0, UNLIMITED)
        estimates = [(raw, read[:, :-1] / read[:, -1:], guesses)]
    estimates += [(message, *reconstruct(message, prior)) for message in messages]
    return [
        Recovery(
            message, estimate, _similarities(estimate - average, images - average),
            float((guesses == labels).mean()),
        )
        for message, estimate, guesses in estimates
    ]  # fmt: skip


def _similarities(ours: Numbers, truth: Numbers) -> Numbers:
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(truth, axis=1)
    return np.asarray((ours * truth).sum(axis=1) / np.maximum(lengths, 1e-12))


def reconstruct(message: SentGradients, prior: Prior) -> tuple[Numbers, Labels]:
    """Estimate images and labels from the tables of gradients."""
    tables, (count, cells) = message.tables, message.tables.shape
    parts = message.matrix.reshape(cells, CLASSES, -1)
    shared = parts.sum(axis=1) / CLASSES
    evidence = np.empty((CLASSES, count))
    estimates = np.empty((CLASSES, count, prior.means.shape[1]))
    for label in range(CLASSES):
        columns = shared - parts[:, label]
        pixels, bias = columns[:, :-1], columns[:, -1]
        spread = pixels @ prior.covariances[label]
        factor = np.linalg.cholesky(spread @ pixels.T + message.variance * np.eye(cells))
        surprise = tables - bias - pixels @ prior.means[label]
        white = linalg.solve_triangular(factor, surprise.T, lower=True)
        evidence[label] = -0.5 * (white**2).sum(axis=0) - np.log(np.diag(factor)).sum()
        weights = linalg.solve_triangular(factor, white, lower=True, trans="T")
        estimates[label] = prior.means[label] + weights.T @ spread
    chances = np.exp(evidence - evidence.max(axis=0))
    chances /= chances.sum(axis=0)
    images = (chances[:, :, None] * estimates).sum(axis=0).clip(0, 1)
    return images, evidence.argmax(axis=0)


# --- batches ---------------------------------------------------------------------------------


def invert_batches(count: int, *, seed: int = 0, per_round: float | None = None) -> list[Recovery]:
    """Attack sketches of the mean gradient of batches of ten test images, in the data's order.

    Such a gradient is linear in the sum of the images and the number of images of each class.
    Similarities are those of each image with what is estimated for its class, both less the class's
    public mean: 0 for whoever learns nothing but the labels. Labels are the likeliest ones, of
    which luck finds about two thirds in ten.
    """
    check(1 <= count <= 100, "count", "be in 1..100", count)
    (prior, _), data = _public(), load_mnist(split="test")
    images = data.inputs[: count * BATCH].flatten(start_dim=1).double().numpy() / 255
    labels = data.labels[: count * BATCH].numpy()
    gradients = gradients_of(images, labels).view(count, BATCH, DIM).mean(dim=1)
    batch, means = np.repeat(np.arange(count), BATCH), prior.means[labels]
    truth = np.eye(CLASSES)[labels].reshape(count, BATCH, CLASSES).sum(axis=1)
    recoveries = []
    for message in messages_of(gradients, seed=seed, per_round=per_round):
        numbers, beyond = recover_batches(message, prior)
        ours = beyond[batch, labels]
        similarities = _similarities(ours, images - means)
        in_common = np.minimum(truth, likeliest(numbers)).sum(axis=1)
        batches = replace(message, name=f"{message.name}, batch of {BATCH}")
        right = float(in_common.mean()) / BATCH
        recoveries.append(Recovery(batches, (means + ours).clip(0, 1), similarities, right))
    return recoveries


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


# --- the picture -----------------------------------------------------------------------------


def draw(recoveries: list[Recovery], path: Path) -> None:
    """Draw the images that are recovered from each kind of message."""
    figure = Figure(figsize=(_SHOWN, 1.6 * len(recoveries)), dpi=130, layout="tight")
    figure.suptitle("What a server that knows the hashes sees of one image's gradient")
    for recovery, axes in zip(recoveries, figure.subplots(len(recoveries)), strict=True):
        message, shown = recovery.message, recovery.images[:_SHOWN].reshape(-1, SIDE, SIDE)
        stated = [epsilon for epsilon in (message.guaranteed, message.claimed) if epsilon]
        limits = [epsilon.text("short") for epsilon in stated if math.isfinite(float(epsilon))]
        caption = f"{message.name}: similarity {recovery.similarities.mean():.2f}, "
        caption += f"labels right {recovery.labels_right:.0%}\n"
        caption += "; ".join(limits) or "nothing is stated"
        axes.set_title(caption, loc="left", fontsize=8)
        axes.imshow(np.hstack(list(shown)), cmap="gray", vmin=0, vmax=1)
        axes.axis("off")
    figure.savefig(path, format="png")


if __name__ == "__main__":
    draw(invert(), Path(sys.argv[1]))
