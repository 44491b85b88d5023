"""A cohort's logistic regressions on the CPU, worker by worker, compiled by Numba.

For small cohorts most of the time of a computation with tensors is not arithmetic. Here a worker's
examples are read where they lie, and its change is written once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from diffsketch.compiled import compiled

_TOGETHER = 5  # examples that are added to a row of weights in one pass


@njit(fastmath={"reassoc", "contract", "nsz"})
def _dot(one: Any, other: Any) -> Any:
    total = np.float32(0)
    for i in range(one.size):
        total += one[i] * other[i]
    return total


@njit(fastmath={"contract"})
def _add_examples(row: Any, inputs: Any, chosen: Any, factors: Any) -> None:
    """`row += sum(factors[b] * inputs[chosen[b]])`."""
    count, done = chosen.size, 0
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
    own: Any, classes: Any, inputs: Any, labels: Any, chosen: Any, weights: Any, out: Any
) -> None:
    """`(softmax(scores) - onehot(label)) * weights[b]` of each example, `(classes, examples)`."""
    features = inputs.shape[1]
    bias = own[classes * features :]
    for b in range(chosen.size):
        example, most = inputs[chosen[b]], np.float32(-np.inf)
        for c in range(classes):
            score = _dot(own[c * features : (c + 1) * features], example) + bias[c]
            out[c, b] = score
            # Unlike `max`, keeps a NaN: a worker that diverges must be noticed.
            most = score if not score <= most else most
        total = np.float32(0)
        for c in range(classes):
            out[c, b] = np.exp(out[c, b] - most)
            total += out[c, b]
        for c in range(classes):
            share = out[c, b] / total
            out[c, b] = (share - np.float32(c == labels[chosen[b]])) * weights[b]


@njit
def _train_worker(
    weights: Any, classes: Any, inputs: Any, labels: Any, indices: Any, shares: Any, factor: Any,
    out: Any,
) -> None:  # fmt: skip
    """All steps of one worker; `shares` say what each place weighs in its step's mean loss."""
    steps, size = indices.shape
    features = inputs.shape[1]
    residuals, scale = np.empty((classes, size), np.float32), np.empty(size, np.float32)
    own = weights if steps == 1 else weights.copy()
    if steps == 1:
        out[:] = 0
    for step in range(steps):
        for b in range(size):
            scale[b] = factor * (shares[step, b] if shares.size else np.float32(1 / size))
        _residuals(own, classes, inputs, labels, indices[step], scale, residuals)
        change = out if steps == 1 else own
        for c in range(classes):
            row = change[c * features : (c + 1) * features]
            _add_examples(row, inputs, indices[step], residuals[c])
            bias = np.float32(0)
            for b in range(size):
                bias += residuals[c, b]
            change[classes * features + c] += bias
    if steps > 1:
        for i in range(out.size):
            out[i] = own[i] - weights[i]


@compiled
def train(
    task: Any, tasks: Any, weights: Any, classes: Any, inputs: Any, labels: Any, indices: Any,
    shares: Any, factor: Any, out: Any,
) -> None:  # fmt: skip
    """Write the change of the weights of one of `tasks` shares of the workers to `out`.

    Args:
        task: Which share.
        tasks: How many there are.
        weights: Flat, that all begin with.
        classes: How many.
        inputs: Of all examples, `(count, features)`.
        labels: Of all examples.
        indices: `(workers, steps, size)`.
        shares: Of the same shape; or empty, if every place has its `1 / size`.
        factor: Of the gradients.
        out: `(workers, dim)`.
    """
    workers = indices.shape[0]
    for worker in range(workers * task // tasks, workers * (task + 1) // tasks):
        own = shares[worker] if shares.size else shares[0]
        _train_worker(weights, classes, inputs, labels, indices[worker], own, factor, out[worker])
