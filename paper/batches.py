"""Gradient inversion of batches: what a server sees of ten digits in the sketch of their mean."""

from __future__ import annotations

import numpy as np

from diffsketch.auditing.attacks import Numbers, matrix_of
from diffsketch.auditing.inversion import (
    CLASSES,
    COLS,
    DIM,
    PUBLIC_PER_CLASS,
    ROUNDING,
    ROWS,
    UNLIMITED,
    ImageRecovery,
    Labels,
    Prior,
    first_of_each,
    gradients_of,
    theorem1_claim,
)
from diffsketch.errors import check
from diffsketch.sketch import CountSketch, SketchKey
from diffsketch.training.data import load_mnist


def invert_batches(count: int, *, size: int = 10, seed: int = 0) -> tuple[ImageRecovery, ...]:
    """Attack bare sketches of the mean gradient of batches of test images, in the data's order.

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
        gram = of_means @ scatter @ of_means.T + ROUNDING * np.eye(len(cells))
        gram += sum(spread[c] @ seen[:, c, :-1].T for c in range(CLASSES))
        tables = sketch.encode(gradients, hashes).flatten(start_dim=1).double().numpy()
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
        name = f"bare sketch, {sketch.compression:.0f}x smaller, batch of {size}"
        claimed = theorem1_claim(gradients, cols)
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
