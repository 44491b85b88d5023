"""Logistic regression in closed form: no autograd."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from diffsketch.compiled import compiled, run_tasks, threads_for
from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.training.local.trainers import Batched, clear_absent, weighted_places
from diffsketch.training.models import LogisticRegression
from diffsketch.training.tasks import Batches, Examples

_NO_SHARES = np.zeros((1, 0, 0), np.float32)
_TOGETHER = 5  # examples that are added to a row of weights in one pass


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
    """Take all steps of one worker; `shares` are the places' weights in a step's mean loss."""
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

    Indices and shares are `(workers, steps, size)`; shares are empty if every place has its
    `1 / size`.
    """
    workers = indices.shape[0]
    for worker in range(workers * task // tasks, workers * (task + 1) // tasks):
        own = shares[worker] if shares.size else shares[0]
        _train_worker(weights, classes, inputs, labels, indices[worker], own, factor, out[worker])


class ClosedForm(Batched):
    """Trains cohorts of `LogisticRegression`.

    A step of one worker moves its weights by `-learning_rate / batch * residual inputs`, with
    `residual = softmax(scores) - onehot(labels)`. On the CPU, in float32, compiled loops do that
    without tensors in between, and read everything where it lies.
    """

    examples_at_once = 40960  # where the compiled loops are not taken: on CUDA, for one

    def __init__(self, model: LogisticRegression) -> None:
        super().__init__(model)
        self._classes, self._features = model.weight.shape

    def _train(
        self, weights: Tensor, examples: Examples, batches: Batches, rate: float | None
    ) -> Tensor:
        inputs = examples.inputs
        here = weights.device.type == inputs.device.type == "cpu" and inputs.dtype == torch.float32
        if not (here and inputs.is_contiguous() and weights.is_contiguous()):
            return super()._train(weights, examples, batches, rate)
        indices, places = weighted_places(batches)
        if indices.numel() == 0:
            return weights.new_zeros(len(indices), self.dim)
        self._check_chosen(indices, examples)
        out = weights.new_empty(len(indices), self.dim)
        shares = _NO_SHARES if places is None else places.float().numpy()
        threads = threads_for(out.numel())
        tasks = min(len(out), 4 * threads) if threads > 1 else 1
        run_tasks(
            train, tasks, threads, tasks,
            weights.detach().numpy(), self._classes, inputs.flatten(1).numpy(),
            examples.labels.numpy(), indices.contiguous().numpy(), shares,
            np.float32(1.0 if rate is None else -rate), out.numpy(),
        )  # fmt: skip
        return clear_absent(out, batches)

    def _check_chosen(self, indices: Tensor, examples: Examples) -> None:
        """Raise unless sizes, indices and labels fit the model: compiled loops do not check."""
        features = math.prod(examples.inputs.shape[1:])
        if features != self._features:
            raise MismatchError(f"inputs must have {self._features} numbers each, got {features}")
        chosen, count = indices.numpy().reshape(-1), len(examples.labels.numpy())
        # As unsigned numbers, negative ones are very large: one comparison for both ends.
        if int(chosen.view(np.uint64).max()) >= count:
            raise ArgumentError(f"indices must be in [0, {count}), got {chosen}")
        low, high = examples.label_range
        if low >= 0 and high < self._classes:
            return  # all of them are, so these are
        labels = examples.labels.numpy()[chosen]
        if int(labels.view(np.uint64).max()) >= self._classes:
            raise ArgumentError(f"labels must be in [0, {self._classes}), got {labels}")

    def _gradient(self, current: Tensor, inputs: Tensor, labels: Tensor, places: Tensor) -> Tensor:
        weight, bias = self._layout.split(current)
        rows = inputs.flatten(2).float()
        residual = score_gradient(rows @ weight.mT + bias.unsqueeze(-2), labels, places)
        out = rows.new_empty(len(rows), self.dim)
        of_weight, of_bias = self._layout.split(out)
        torch.bmm(residual.mT, rows, out=of_weight)
        torch.sum(residual, 1, out=of_bias)
        return out


def score_gradient(scores: Tensor, labels: Tensor, places: Tensor) -> Tensor:
    """Gradient of the loss by the scores `(workers, batch, classes)`."""
    residual = torch.softmax(scores, 2)
    minus_one = residual.new_full((1, 1, 1), -1.0).expand(*labels.shape, 1)
    residual.scatter_add_(2, labels.unsqueeze(2), minus_one)
    return residual.mul_(places.unsqueeze(2))
