"""Kernels of logistic regression in closed form: no autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from diffsketch.compiled import compiled

_TOGETHER = 5  # examples that are added to a row of weights in one pass


# Sums may be reordered, so that they are vectorised; NaN and infinity keep their meaning, since a
# worker that diverges must be noticed.
@njit(fastmath={"reassoc", "contract", "nsz"})
def _dot(a: Any, b: Any) -> Any:
    total = np.float32(0)
    for i in range(a.size):
        total += a[i] * b[i]
    return total


@njit(fastmath={"contract"})
def _add_examples(row: Any, inputs: Any, chosen: Any, factors: Any) -> None:
    """`row += sum(factors[b] * inputs[chosen[b]])`."""
    count, done = chosen.size, 0
    # Written out: a pass over the row for each example would load and store it five times as often.
    while count - done >= _TOGETHER:
        a, b, c = inputs[chosen[done]], inputs[chosen[done + 1]], inputs[chosen[done + 2]]
        d, e = inputs[chosen[done + 3]], inputs[chosen[done + 4]]
        p, q, r = factors[done], factors[done + 1], factors[done + 2]
        s, t = factors[done + 3], factors[done + 4]
        for i in range(row.size):
            row[i] += p * a[i] + q * b[i] + r * c[i] + s * d[i] + t * e[i]
        done += _TOGETHER
    for k in range(done, count):
        example, factor = inputs[chosen[k]], factors[k]
        for i in range(row.size):
            row[i] += factor * example[i]


@njit
def _residuals(
    model: Any, classes: Any, inputs: Any, labels: Any, chosen: Any, example_weights: Any, out: Any
) -> None:
    """`(softmax(scores) - onehot(label)) * example_weights[b]`, as `(classes, examples)`."""
    features = inputs.shape[1]
    bias = model[classes * features :]
    for b in range(chosen.size):
        example, most = inputs[chosen[b]], np.float32(-np.inf)
        for c in range(classes):
            # Weights come first and biases last, as `named_parameters` has them.
            score = _dot(model[c * features : (c + 1) * features], example) + bias[c]
            out[c, b] = score
            # Unlike `max`, keeps a NaN: a worker that diverges must be noticed.
            most = score if not score <= most else most
        total = np.float32(0)
        for c in range(classes):
            out[c, b] = np.exp(out[c, b] - most)
            total += out[c, b]
        for c in range(classes):
            probability = out[c, b] / total
            out[c, b] = (probability - np.float32(c == labels[chosen[b]])) * example_weights[b]


@njit
def _train_worker(
    weights: Any, classes: Any, inputs: Any, labels: Any, indices: Any, shares: Any, factor: Any,
    out: Any,
) -> None:  # fmt: skip
    """Take all steps of one worker.

    `shares` are the places' weights in a step's mean loss. `factor` is minus the learning rate, or
    1 for the gradient itself.
    """
    steps, size = indices.shape
    features = inputs.shape[1]
    residuals, scale = np.empty((classes, size), np.float32), np.empty(size, np.float32)
    # A single step reads the shared weights and writes its change only: no copy, and no rounding by
    # adding the weights and taking them off again.
    model = weights if steps == 1 else weights.copy()
    if steps == 1:
        out[:] = 0
    for step in range(steps):
        for b in range(size):
            scale[b] = factor * (shares[step, b] if shares.size else np.float32(1 / size))
        _residuals(model, classes, inputs, labels, indices[step], scale, residuals)
        change = out if steps == 1 else model
        for c in range(classes):
            row = change[c * features : (c + 1) * features]
            _add_examples(row, inputs, indices[step], residuals[c])
            bias = np.float32(0)
            for b in range(size):
                bias += residuals[c, b]
            change[classes * features + c] += bias
    if steps > 1:
        for i in range(out.size):
            out[i] = model[i] - weights[i]


@compiled
def train(
    task: Any, tasks: Any, weights: Any, classes: Any, inputs: Any, labels: Any, indices: Any,
    shares: Any, factor: Any, out: Any,
) -> None:  # fmt: skip
    """Write the change of the weights of one of `tasks` parts of the workers to `out`.

    Indices and shares are `(workers, steps, size)`; shares are empty if every place has its
    `1 / size`.
    """
    workers = indices.shape[0]
    # Consecutive workers, whose examples and results lie beside each other.
    for worker in range(workers * task // tasks, workers * (task + 1) // tasks):
        share = shares[worker] if shares.size else shares[0]
        _train_worker(weights, classes, inputs, labels, indices[worker], share, factor, out[worker])
