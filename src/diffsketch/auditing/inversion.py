"""Gradient inversion: what a server sees of a handwritten digit in one message.

A client computes the gradient of a logistic regression on one image, in the first round of
training (all weights 0), and sends the sketch of it. The gradient of class `c` is
`(1/10 - [c is the label]) (pixels, 1)`: one image, ten times over, with a known factor for each of
ten possible labels. So for each label the table is a known linear map of the pixels, and the
server, which knows the round's hashes, solves for them.

The attack: pixels of each label are taken to be Gaussian with the mean and the covariance of other,
public images (and whatever noise the mechanism adds); the estimate is the posterior mean, averaged
over the labels with their posterior probabilities. It uses everything that such a server knows, so
that what it does not recover is not in the message, as far as second moments go.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import linalg
from torch import Tensor

from diffsketch.auditing.attacks import matrix_of
from diffsketch.auditing.bounds import Numbers
from diffsketch.auditing.run import epsilon_to_json
from diffsketch.errors import check
from diffsketch.privacy.accounting.calibration import gaussian_multiplier
from diffsketch.privacy.claim import Basis, Epsilon, NoClaim, Relation, Scope, Trust, Unit
from diffsketch.privacy.clipping import NormBound
from diffsketch.privacy.mechanisms.additive import GaussianMechanism
from diffsketch.privacy.noise import NoiseKey
from diffsketch.privacy.theorems import claimed_per_round, estimate_alpha, estimate_sigma
from diffsketch.sketch import CountSketch, SketchKey
from diffsketch.training.data import ImageDataset, load_mnist

__all__ = ["InversionResult", "Prior", "Recovery", "gradients_of", "invert", "reconstruct"]

CLASSES, SIDE = 10, 28
PIXELS = SIDE * SIDE
DIM = CLASSES * (PIXELS + 1)
ROWS = 7
COLS = (112, 22, 6)  # 10, 51 and 187 coordinates per cell
NOISY_COLS = 22
TARGETS = (8.0, 1.0)
DELTA = 1e-5
_PUBLIC_PER_CLASS, _PUBLIC_GRADIENTS = 1000, 300
_TEXTURE = 0.02  # standard deviation of what a thousand images do not show of the others
_ROUNDING = 1e-8  # variance of a cell that has no noise

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Prior:
    """What is publicly known of images: for each label, the mean and the covariance of pixels."""

    means: Numbers
    covariances: Numbers

    @classmethod
    def of(cls, images: Numbers, labels: Labels) -> Prior:
        """From public images `(count, pixels)` with values in 0..1."""
        kept = [images[labels == label] for label in range(CLASSES)]
        fewest = min(len(some) for some in kept)
        check(fewest >= 2, "images", "have two of each class at least", fewest)
        texture = _TEXTURE**2 * np.eye(images.shape[1])
        covariances = np.stack([np.cov(some.T) + texture for some in kept])
        return cls(np.stack([some.mean(axis=0) for some in kept]), covariances)

    @property
    def average(self) -> Numbers:
        """The best guess of whoever sees no message at all."""
        return np.asarray(self.means.mean(axis=0))


@dataclass(frozen=True, eq=False)
class Recovery:
    """What came back from one kind of message.

    Attributes:
        name: Of the message.
        epsilon: What its sender is guaranteed.
        claimed: What the paper claims, at the median over the images; for bare sketches.
        images: `(count, pixels)`, values in 0..1.
        similarities: For each image the correlation of estimate and truth, both less the average
            of public images: 0 for whoever learns nothing, 1 for a perfect copy.
        labels_right: Share of the images whose label was found; one in ten is luck.
    """

    name: str
    epsilon: Epsilon
    claimed: Epsilon | None
    images: Numbers
    similarities: Numbers
    labels_right: float

    def to_json(self) -> dict[str, Any]:
        """All but the images; `guaranteed` is null where nothing is."""
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
    """Private images, and what came back of them from each kind of message."""

    images: Numbers
    labels: Labels
    average: Numbers
    recoveries: tuple[Recovery, ...]


def invert(
    *,
    per_class: int = 10,
    seed: int = 0,
    on_progress: Callable[[float], None] = lambda _: None,
) -> InversionResult:
    """Attack test images of MNIST; the training images are the public ones.

    Args:
        per_class: How many private images of each digit.
        seed: Fixes the hashes and the noise.
        on_progress: Called with the share of the work that is done, from 0 to 1.
    """
    check(1 <= per_class <= 100, "per_class", "be in 1..100", per_class)
    public, public_labels = _first_of_each(load_mnist(split="train"), _PUBLIC_PER_CLASS)
    prior = Prior.of(public, public_labels)
    victims = _Victims(*_first_of_each(load_mnist(split="test"), per_class), prior)
    few = gradients_of(public[:_PUBLIC_GRADIENTS], public_labels[:_PUBLIC_GRADIENTS])
    messages: list[tuple[int, float | None]] = [(cols, None) for cols in COLS]
    messages += [(NOISY_COLS, target) for target in TARGETS]
    found = [victims.raw()]
    for index, (cols, target) in enumerate(messages):
        on_progress(0.2 + 0.8 * index / len(messages))
        if target is None:
            found.append(victims.bare(cols, seed=seed))
        else:
            found.append(victims.noisy(cols, seed=seed, target=target, public=few))
    on_progress(1.0)
    return InversionResult(victims.images, victims.labels, prior.average, tuple(found))


def gradients_of(images: Numbers, labels: Labels) -> Tensor:
    """The gradient of the cross-entropy at zero weights for each image, `(count, DIM)`.

    Class by class: the weights of its pixels, then its bias.
    """
    inputs = np.concatenate([images, np.ones((len(images), 1))], axis=1)
    errors = np.full((len(images), CLASSES), 1 / CLASSES)
    errors[np.arange(len(images)), labels] -= 1
    return torch.from_numpy((errors[:, :, None] * inputs[:, None, :]).reshape(len(images), -1))


def reconstruct(
    tables: Numbers, matrix: Numbers, *, prior: Prior, variance: float
) -> tuple[Numbers, Labels]:
    """Images and labels from tables `(count, cells)` of gradients.

    Args:
        tables: What was sent.
        matrix: The sketch's matrix, `(cells, DIM)`.
        prior: Of the images.
        variance: Of the noise in a cell.
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


@dataclass(frozen=True, eq=False)
class _Victims:
    """Private images, and the messages that are sent about them."""

    images: Numbers
    labels: Labels
    prior: Prior

    @property
    def gradients(self) -> Tensor:
        return gradients_of(self.images, self.labels)

    def raw(self) -> Recovery:
        """From the gradient itself: the bias tells the label, and its factor the pixels."""
        gradients = self.gradients.numpy().reshape(len(self.labels), CLASSES, -1)
        labels = gradients[:, :, -1].argmin(axis=1)
        own = gradients[np.arange(len(labels)), labels]
        return self._compare("raw gradient", own[:, :-1] / own[:, -1:], labels, _nothing())

    def bare(self, cols: int, *, seed: int) -> Recovery:
        """From a sketch without noise."""
        sketch, hashes = CountSketch(DIM, ROWS, cols), SketchKey.from_integer(seed).seed(cols)
        gradients = self.gradients
        tables = sketch.encode(gradients, hashes).flatten(start_dim=1).numpy()
        images, labels = reconstruct(
            tables, matrix_of(sketch, hashes), prior=self.prior, variance=_ROUNDING
        )
        alpha, sigma = estimate_alpha(gradients), estimate_sigma(gradients)
        claims = claimed_per_round(DIM, ROWS, cols, alpha=alpha, sigma=sigma)
        claimed = Epsilon(float(claims.median()), 0.0, 1, Basis.CLAIMED, _COORDINATE)
        return self._compare(f"bare sketch, {_size(sketch)}", images, labels, _nothing(), claimed)

    def noisy(self, cols: int, *, seed: int, target: float, public: Tensor) -> Recovery:
        """From a sketch with as much Gaussian noise as the target needs."""
        sketch, hashes = CountSketch(DIM, ROWS, cols), SketchKey.from_integer(seed).seed(cols)
        # Half of all tables are longer: known from public images, so that it gives nothing away.
        norms = sketch.encode(public, hashes).flatten(start_dim=1).norm(dim=1)
        bound = NormBound(float(norms.median()))
        multiplier = gaussian_multiplier(epsilon=target, delta=DELTA, rounds=1)
        mechanism = GaussianMechanism(bound, multiplier)
        noise = NoiseKey.from_integer(seed).source(worker=0, round_index=round(1000 * target))
        sent = mechanism.release(
            self.gradients, noise, encode=lambda vectors: sketch.encode(vectors, hashes)
        )
        images, labels = reconstruct(
            sent.flatten(start_dim=1).numpy(),
            matrix_of(sketch, hashes),
            prior=self.prior,
            variance=mechanism.std**2,
        )
        epsilon = mechanism.claim.epsilon(delta=DELTA, rounds=1)
        return self._compare(f"sketch with noise, {_size(sketch)}", images, labels, epsilon)

    def _compare(
        self,
        name: str,
        images: Numbers,
        labels: Labels,
        epsilon: Epsilon,
        claimed: Epsilon | None = None,
    ) -> Recovery:
        ours, truth = images - self.prior.average, self.images - self.prior.average
        lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(truth, axis=1)
        similarities = (ours * truth).sum(axis=1) / np.maximum(lengths, 1e-12)
        right = float((labels == self.labels).mean())
        return Recovery(name, epsilon, claimed, images, similarities, right)


_COORDINATE = Scope(Unit.COORDINATE, Relation.REPLACE, Trust.LOCAL)
_CLIENT = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)


def _nothing() -> Epsilon:
    claim = NoClaim(_CLIENT, "there is no noise and everybody knows the hashes")
    return claim.epsilon(delta=DELTA, rounds=1)


def _size(sketch: CountSketch) -> str:
    return f"{sketch.compression:.0f}x smaller"


def _first_of_each(dataset: ImageDataset, count: int) -> tuple[Numbers, Labels]:
    """The first images of each class: one of each, then the next of each."""
    labels = dataset.labels.numpy()
    chosen = np.stack([np.flatnonzero(labels == label)[:count] for label in range(CLASSES)], axis=1)
    images = dataset.images[torch.from_numpy(chosen.ravel())].flatten(start_dim=1)
    return images.double().numpy() / 255, labels[chosen.ravel()]
