"""Gradient inversion: what a server sees of a handwritten digit in one message.

A client computes the gradient of a logistic regression on one image, in the first round of
training (all weights 0), and sends the sketch of it. The gradient of class `c` is
`(1/10 - [c is the label]) (pixels, 1)`: one image, ten times over, with a known factor for each of
ten possible labels. So for each label the table is a known linear map of the pixels, and the
server, which knows the round's hashes, solves for them.

The attack: pixels of each label are taken to be Gaussian with the mean and the covariance of other,
public images (and whatever noise the mechanism adds); the estimate is the posterior mean, averaged
over the labels with their posterior probabilities. It uses everything that such a server knows, so
that what it does not recover is not in the message, as far as second moments go. `invert_batches`
does the same for the mean gradient of a batch.

    python -m paper.inversion PICTURE.png

draws the images that are recovered from each kind of message (`docs/images/inversion.png`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

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
from diffsketch.privacy.accounting.calibration import gaussian_multiplier
from diffsketch.privacy.claim import Basis, Epsilon, NoClaim, Relation, Scope, Trust, Unit
from diffsketch.privacy.clipping import NormBound
from diffsketch.privacy.mechanisms.additive import GaussianMechanism
from diffsketch.privacy.simulated_noise import NoiseKey
from diffsketch.privacy.theorems import claimed_per_round, estimate_alpha, estimate_sigma
from diffsketch.sketch import CountSketch, SketchKey
from diffsketch.training.data import load_mnist
from diffsketch.training.tasks import Examples

CLASSES, SIDE = 10, 28
PIXELS = SIDE * SIDE
DIM = CLASSES * (PIXELS + 1)
ROWS = 7
COLS = (112, 22, 6)  # 10, 51 and 187 coordinates per cell
NOISY_COLS = 22
TARGETS = (8.0, 1.0)
DELTA = 1e-5
PUBLIC_PER_CLASS, _PUBLIC_GRADIENTS = 1000, 300
_SHOWN = 10  # images in a row of the picture
_TEXTURE = 0.02  # standard deviation of what a thousand images do not show of the others
ROUNDING = 1e-8  # variance of a cell that has no noise

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
        kept = [images[labels == label] for label in range(CLASSES)]
        fewest = min(len(some) for some in kept)
        check(fewest >= 2, "images", "have two of each class at least", fewest)
        texture = _TEXTURE**2 * np.eye(images.shape[1])
        covariances = np.stack([np.cov(some.T) + texture for some in kept])
        return cls(np.stack([some.mean(axis=0) for some in kept]), covariances)

    @property
    def average(self) -> Numbers:
        """Best guess of whoever sees no message at all."""
        return np.asarray(self.means.mean(axis=0))


@dataclass(frozen=True, eq=False)
class ImageRecovery:
    """Images recovered from one kind of message.

    The similarity of an image is the correlation of estimate and truth, both less the average of
    public images: 0 for whoever learns nothing, 1 for a perfect copy.
    """

    name: str  # of the message
    epsilon: Epsilon  # guarantee of its sender
    claimed: Epsilon | None  # by the paper, at the median over the images; for bare sketches
    images: Numbers  # (count, pixels), values in 0..1
    similarities: Numbers
    labels_right: float  # share of the images whose label was found; one in ten is luck

    def to_json(self) -> dict[str, Any]:
        """Return all but the images as plain data; `guaranteed` is null where nothing is."""
        limited = math.isfinite(float(self.epsilon))
        return {
            "message": self.name,
            "guaranteed": epsilon_to_json(self.epsilon) if limited else None,
            "claimed_by_theorem_1": None if self.claimed is None else epsilon_to_json(self.claimed),
            "mean_similarity": float(self.similarities.mean()),
            "least_similarity": float(self.similarities.min()),
            "largest_similarity": float(self.similarities.max()),
            "labels_right": self.labels_right,
            "similarities": [round(value, 4) for value in self.similarities.tolist()],
        }


@dataclass(frozen=True, eq=False)
class InversionResult:
    """Private images, and those recovered from each kind of message."""

    images: Numbers
    labels: Labels
    average: Numbers
    recoveries: tuple[ImageRecovery, ...]


def invert(
    *,
    per_class: int = 10,
    seed: int = 0,
    per_round: float | None = None,
    on_progress: Callable[[float], None] = lambda _: None,
) -> InversionResult:
    """Attack `per_class` test images of each digit of MNIST; the training images are public.

    The seed fixes the hashes and the noise; `on_progress` is told the share that is done. With
    `per_round` the messages are those that DiffSketch sends for this epsilon with nothing appended,
    and no others.
    """
    check(1 <= per_class <= 100, "per_class", "be in 1..100", per_class)
    public, public_labels = first_of_each(load_mnist(split="train"), PUBLIC_PER_CLASS)
    prior = Prior.of(public, public_labels)
    images, labels = first_of_each(load_mnist(split="test"), per_class)
    gradients = gradients_of(images, labels)
    few = gradients_of(public[:_PUBLIC_GRADIENTS], public_labels[:_PUBLIC_GRADIENTS])

    def compare(
        name: str, found: tuple[Numbers, Labels], epsilon: Epsilon, claimed: Epsilon | None = None
    ) -> ImageRecovery:
        ours, truth = found[0] - prior.average, images - prior.average
        lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(truth, axis=1)
        similarities = (ours * truth).sum(axis=1) / np.maximum(lengths, 1e-12)
        right = float((found[1] == labels).mean())
        return ImageRecovery(name, epsilon, claimed, found[0], similarities, right)

    # Raw gradients are read off: a bias tells the label, its factor the pixels.
    parts = gradients.numpy().reshape(len(gradients), CLASSES, -1)
    read = parts[:, :, -1].argmin(axis=1)
    own = parts[np.arange(len(read)), read]
    recoveries = [compare("raw gradient", (own[:, :-1] / own[:, -1:], read), UNLIMITED)]
    messages = [*((cols, None) for cols in COLS), *((NOISY_COLS, target) for target in TARGETS)]
    if per_round is not None:
        recoveries, messages = [], [(cols, None) for cols in COLS]
    for index, (cols, target) in enumerate(messages):
        on_progress(0.2 + 0.8 * index / len(messages))
        sketch, hashes = CountSketch(DIM, ROWS, cols), SketchKey.from_integer(seed).seed(cols)
        size = f"{sketch.compression:.0f}x smaller"
        encode = partial(sketch.encode, seed=hashes)
        if target is None:
            sent, variance = encode(gradients), ROUNDING
            claimed = theorem1_claim(gradients, cols)
            name, epsilon = f"bare sketch, {size}", UNLIMITED
            if per_round is not None:
                sent, variance, claimed = diffsketch_message(
                    sent, gradients, cols, seed=seed, per_round=per_round
                )
                name = f"DiffSketch at epsilon {per_round:g}, {size}"
        else:
            # Half of all tables are longer: known from public images, so it gives nothing away.
            bound = NormBound(float(encode(few).flatten(start_dim=1).norm(dim=1).median()))
            multiplier = gaussian_multiplier(epsilon=target, delta=DELTA, rounds=1)
            mechanism = GaussianMechanism(bound, multiplier)
            noise = NoiseKey.from_integer(seed).source(worker=0, round_index=round(1000 * target))
            sent = mechanism.release(gradients, noise, encode=encode)
            name, variance, claimed = f"sketch with noise, {size}", mechanism.std**2, None
            epsilon = mechanism.claim.epsilon(delta=DELTA, rounds=1)
        tables = sent.flatten(start_dim=1).numpy()
        matrix = matrix_of(sketch, hashes)
        found = reconstruct(tables, matrix, prior=prior, variance=variance)
        recoveries.append(compare(name, found, epsilon, claimed))
    on_progress(1.0)
    return InversionResult(images, labels, prior.average, tuple(recoveries))


def diffsketch_message(
    tables: Tensor, gradients: Tensor, cols: int, *, seed: int, per_round: float
) -> tuple[Tensor, float, Epsilon]:
    """Make what Algorithm 2 sends with nothing appended: messages, noise in a cell, the claim.

    The attack takes the median variance of the noise for all messages: each has its own, by an
    alpha that only its sender knows.
    """
    alpha, sigma = estimate_alpha(gradients), estimate_sigma(gradients)
    claimed = claimed_per_round(DIM, ROWS, cols, alpha=alpha, sigma=sigma)
    weak = ~(claimed <= per_round)
    sent = tables.clone()
    if bool(weak.any()):
        noise = NoiseKey.from_integer(seed).source(worker=1, round_index=cols)
        sent[weak] = add_laplace(
            tables[weak], gradients[weak], noise,
            alpha=alpha[weak], rows=ROWS, per_round=per_round,
        )  # fmt: skip
    # Where nine coordinates in ten are zero, the largest stands in for alpha.
    bound = torch.where(alpha > 0, alpha, gradients.abs().amax(dim=-1).double()) * weak
    variance = 2 * float((2 * ROWS * bound / per_round).median()) ** 2
    return sent, variance + ROUNDING, Epsilon(per_round, 0.0, 1, Basis.CLAIMED, _COORDINATE)


def theorem1_claim(gradients: Tensor, cols: int) -> Epsilon:
    """Compute what the paper claims of gradients' sketches: the median over the gradients."""
    claims = claimed_per_round(
        DIM, ROWS, cols, alpha=estimate_alpha(gradients), sigma=estimate_sigma(gradients)
    )
    return Epsilon(float(claims.median()), 0.0, 1, Basis.CLAIMED, _COORDINATE)


def gradients_of(images: Numbers, labels: Labels) -> Tensor:
    """Compute the gradient of the cross-entropy at zero weights for each image, `(count, DIM)`.

    Class by class: the weights of its pixels, then its bias.
    """
    inputs = np.concatenate([images, np.ones((len(images), 1))], axis=1)
    errors = np.full((len(images), CLASSES), 1 / CLASSES)
    errors[np.arange(len(images)), labels] -= 1
    return torch.from_numpy((errors[:, :, None] * inputs[:, None, :]).reshape(len(images), -1))


def reconstruct(
    tables: Numbers, matrix: Numbers, *, prior: Prior, variance: float
) -> tuple[Numbers, Labels]:
    """Estimate images and labels from tables `(count, cells)` of gradients.

    The matrix is the sketch's, `(cells, DIM)`; the variance that of the noise in a cell.
    """
    count, cells = tables.shape
    parts = matrix.reshape(cells, CLASSES, -1)
    shared = parts.sum(axis=1) / CLASSES
    evidence = np.empty((CLASSES, count))
    estimates = np.empty((CLASSES, count, prior.means.shape[1]))
    for label in range(CLASSES):
        columns = shared - parts[:, label]
        pixels, bias = columns[:, :-1], columns[:, -1]
        spread = pixels @ prior.covariances[label]
        factor = np.linalg.cholesky(spread @ pixels.T + variance * np.eye(cells))
        surprise = tables - bias - pixels @ prior.means[label]
        white = linalg.solve_triangular(factor, surprise.T, lower=True)
        evidence[label] = -0.5 * (white**2).sum(axis=0) - np.log(np.diag(factor)).sum()
        weights = linalg.solve_triangular(factor, white, lower=True, trans="T")
        estimates[label] = prior.means[label] + weights.T @ spread
    chances = np.exp(evidence - evidence.max(axis=0))
    chances /= chances.sum(axis=0)
    images = (chances[:, :, None] * estimates).sum(axis=0).clip(0, 1)
    return images, evidence.argmax(axis=0)


def first_of_each(dataset: Examples, count: int) -> tuple[Numbers, Labels]:
    """Take the first images of each class: one of each, then the next of each."""
    labels = dataset.labels.numpy()
    chosen = np.stack([np.flatnonzero(labels == label)[:count] for label in range(CLASSES)], axis=1)
    images = dataset.inputs[torch.from_numpy(chosen.ravel())].flatten(start_dim=1)
    return images.double().numpy() / 255, labels[chosen.ravel()]


def invert_batches(
    count: int, *, size: int = 10, seed: int = 0, per_round: float | None = None
) -> tuple[ImageRecovery, ...]:
    """Attack bare sketches of the mean gradient of batches of test images, in the data's order.

    Or, with `per_round`, what DiffSketch sends for this epsilon with nothing appended.

    Such a gradient is linear in the sum of the images and the number of images of each class. The
    estimate of these is the best linear one, from the public images' first two moments and labels
    that are drawn uniformly. Similarities are those of each image with what is estimated for its
    class, both less the class's public mean: 0 for whoever learns nothing but the labels. Labels
    are the `size` likeliest ones, of which luck finds about two thirds in ten.
    """
    check(1 <= count <= 100, "count", "be in 1..100", count)
    public, public_labels = first_of_each(load_mnist(split="train"), PUBLIC_PER_CLASS)
    prior, data = Prior.of(public, public_labels), load_mnist(split="test")
    images = data.inputs[: count * size].flatten(start_dim=1).double().numpy() / 255
    labels = data.labels[: count * size].numpy()
    gradients = gradients_of(images, labels).view(count, size, DIM).mean(dim=1)
    means = np.concatenate([prior.means, np.ones((CLASSES, 1))], axis=1)
    scatter = size / CLASSES * (np.eye(CLASSES) - 1 / CLASSES)  # of the numbers of images
    recoveries = []
    for cols in COLS:
        sketch, hashes = CountSketch(DIM, ROWS, cols), SketchKey.from_integer(seed).seed(cols)
        cells = matrix_of(sketch, hashes).reshape(ROWS * cols, CLASSES, -1)
        seen = (cells.mean(axis=1, keepdims=True) - cells) / size  # by class, of pixels and one
        spread = [size / CLASSES * seen[:, c, :-1] @ prior.covariances[c] for c in range(CLASSES)]
        of_means = np.einsum("rcp,cp->rc", seen, means)
        sent, variance = sketch.encode(gradients, hashes), ROUNDING
        name, claimed = "bare sketch", theorem1_claim(gradients, cols)
        if per_round is not None:
            name = f"DiffSketch at epsilon {per_round:g}"
            sent, variance, claimed = diffsketch_message(
                sent, gradients, cols, seed=seed, per_round=per_round
            )
        gram = of_means @ scatter @ of_means.T + variance * np.eye(len(cells))
        gram += sum(spread[c] @ seen[:, c, :-1].T for c in range(CLASSES))
        tables = sent.flatten(start_dim=1).double().numpy()
        weights = np.linalg.solve(gram, (tables - of_means.sum(axis=1) * size / CLASSES).T)
        counts = (size / CLASSES + scatter @ of_means.T @ weights).T  # (count, CLASSES)
        beyond = np.stack([(spread[c].T @ weights).T for c in range(CLASSES)], axis=1)
        owner = np.repeat(np.arange(count), size)
        ours, truth = beyond[owner, labels], images - prior.means[labels]
        lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(truth, axis=1)
        right = [
            _in_common(labels[owner == each], likeliest(counts[each], size))
            for each in range(count)
        ]
        found = np.asarray((prior.means[labels] + ours).clip(0, 1))
        name = f"{name}, {sketch.compression:.0f}x smaller, batch of {size}"
        similarities = (ours * truth).sum(axis=1) / np.maximum(lengths, 1e-12)
        share = float(np.mean(right)) / size
        recoveries.append(ImageRecovery(name, UNLIMITED, claimed, found, similarities, share))
    return tuple(recoveries)


def likeliest(counts: Numbers, size: int) -> Labels:
    """Guess `size` labels from estimated numbers of images: one by one, where most is left."""
    left, chosen = counts.copy(), []
    for _ in range(size):
        chosen.append(int(left.argmax()))
        left[chosen[-1]] -= 1
    return np.array(chosen)


def _in_common(first: Labels, second: Labels) -> int:
    """Count the labels that two lists share, each as often as it comes in both."""
    both = (np.bincount(each, minlength=CLASSES) for each in (first, second))
    return int(np.minimum(*both).sum())


def draw(result: InversionResult, path: Path) -> None:
    """Draw private images, and those recovered from each kind of message."""
    rows = [("the client's image", "", result.images)]
    for recovery in result.recoveries:
        shares = f"similarity {recovery.similarities.mean():.2f}"
        shares += f", labels right {recovery.labels_right:.0%}"
        rows.append((recovery.name, f"{_limits(recovery)}\n{shares}", recovery.images))
    guess = np.broadcast_to(result.average, result.images.shape)
    rows.append(("no message", "the average of public images", guess))
    shown = min(_SHOWN, len(result.images))
    figure = Figure(figsize=(4.2 + 0.78 * shown, 0.86 * len(rows) + 0.7), dpi=130)
    figure.suptitle("What a server that knows the hashes sees of one image's gradient", fontsize=12)
    grid = figure.add_gridspec(
        len(rows), shown + 1, width_ratios=[4.6, *[1] * shown], wspace=0.06, hspace=0.1,
        left=0.01, right=0.99, bottom=0.01, top=0.93,
    )  # fmt: skip
    for index, (name, caption, images) in enumerate(rows):
        text = figure.add_subplot(grid[index, 0])
        text.axis("off")
        text.text(0, 0.78, name, fontsize=10, fontweight="bold", va="bottom")
        text.text(0, 0.7, caption, fontsize=7.5, va="top", linespacing=1.3)
        for column in range(shown):
            axes = figure.add_subplot(grid[index, column + 1])
            axes.imshow(images[column].reshape(SIDE, SIDE), cmap="gray", vmin=0, vmax=1)
            axes.axis("off")
    figure.savefig(path, format="png")


def _limits(recovery: ImageRecovery) -> str:
    """Say what limits a recovery: the guarantee of the sender, and what the paper claims."""
    lines = []
    for prefix, epsilon, nothing in (
        ("", recovery.epsilon, "nothing proven"),
        ("Theorem 1: ", recovery.claimed, "no claim"),
    ):
        if epsilon is not None and math.isinf(float(epsilon)):
            lines.append(f"{prefix}{nothing}\n({epsilon.scope.short})")
        elif epsilon is not None:
            lines.append(
                f"{prefix}epsilon = {epsilon.shown()}, delta = {epsilon.delta:g}\n"
                f"({epsilon.terms('short')})"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    draw(invert(), Path(sys.argv[1]))
