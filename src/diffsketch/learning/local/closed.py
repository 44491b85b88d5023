"""Logistic regression in closed form: batched matrix products, no autograd."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from diffsketch.compiled import run_tasks, threads_for
from diffsketch.errors import MismatchError
from diffsketch.learning.devices import Batches, Examples
from diffsketch.learning.local import closed_cpu
from diffsketch.learning.local.base import (
    check_batches,
    check_chosen,
    check_one_step,
    clear_absent,
    mean_scores,
    own_places,
)
from diffsketch.learning.models import LogisticRegression, WeightLayout

__all__ = ["ClosedForm"]

_NO_SHARES = np.zeros((1, 0, 0), np.float32)
_WORKERS = {"cpu": 128, "cuda": 4096}  # at a time; on a CPU so that their examples stay in cache


class ClosedForm:
    """Trains cohorts of `LogisticRegression`: the `LocalTrainer` for that model.

    A step of one worker moves its weights by `-learning_rate / batch * residual inputs`, with
    `residual = softmax(scores) - onehot(labels)`, shape `(classes, batch)`. Only the change is kept
    for each worker: `scores = weight x + change x`, where the first product is one for all workers
    and the second begins with the second step. Classes come first everywhere, so that the products
    have the layout of the flat weights. On the CPU, in float32, compiled loops do the same without
    tensors in between.

    Args:
        model: Whose sizes are taken, not its weights.
    """

    def __init__(self, model: LogisticRegression) -> None:
        self._layout = WeightLayout.of(model)
        self._classes, self._features = model.weight.shape
        self._scratch: dict[str, Tensor] = {}

    @property
    def dim(self) -> int:
        """Length of the weights."""
        return self._layout.dim

    def gradients(self, weights: Tensor, examples: Examples, batches: Batches) -> Tensor:
        """The gradient of each worker's only step: see `LocalTrainer`."""
        check_one_step(batches)
        return self._train(weights, examples, batches, 1.0)

    def updates(
        self, weights: Tensor, examples: Examples, batches: Batches, *, learning_rate: float
    ) -> Tensor:
        """What each worker's SGD changes: see `LocalTrainer`."""
        return self._train(weights, examples, batches, -learning_rate)

    def evaluate(self, weights: Tensor, examples: Examples) -> tuple[float, float]:
        """Mean loss and accuracy: see `LocalTrainer`."""
        self._layout.check_weights(weights)
        weight, bias = self._layout.split(weights)
        return mean_scores(
            lambda inputs: functional.linear(inputs.flatten(1).float(), weight, bias), examples
        )

    def _train(
        self, weights: Tensor, examples: Examples, batches: Batches, factor: float
    ) -> Tensor:
        self._layout.check_weights(weights)
        check_batches(batches)
        indices, places = own_places(batches)
        workers = len(indices)
        if indices.numel() == 0:
            return weights.new_zeros(workers, self.dim)
        out = weights.new_empty(workers, self.dim)
        if _compiled(weights, examples):
            self._train_compiled(weights, examples, indices, places, factor, out)
            return clear_absent(out, batches)
        at_once = _WORKERS.get(weights.device.type, 4096)
        for start in range(0, workers, at_once):
            rows = slice(start, start + at_once)
            part = None if places is None else places[rows]
            self._train_part(weights, examples, indices[rows], part, factor, out[rows])
        return clear_absent(out, batches)

    def _train_compiled(
        self,
        weights: Tensor,
        examples: Examples,
        indices: Tensor,
        places: Tensor | None,
        factor: float,
        out: Tensor,
    ) -> None:
        inputs, labels, chosen = examples.inputs.flatten(1), examples.labels, indices.contiguous()
        if inputs.shape[1] != self._features:
            raise MismatchError(
                f"inputs must have {self._features} numbers each, got {inputs.shape[1]}"
            )
        shares = _NO_SHARES if places is None else places.float().numpy()
        check_chosen(chosen, examples, classes=self._classes)
        threads = threads_for(out.numel())
        tasks = min(len(out), 4 * threads) if threads > 1 else 1
        run_tasks(
            closed_cpu.train, tasks, threads, tasks,
            weights.detach().numpy(), self._classes, inputs.numpy(), labels.numpy(),
            chosen.numpy(), shares, np.float32(factor), out.numpy(),
        )  # fmt: skip

    def _train_part(
        self,
        weights: Tensor,
        examples: Examples,
        indices: Tensor,
        places: Tensor | None,
        factor: float,
        out: Tensor,
    ) -> None:
        """Write the sum of all steps of some workers to `out`."""
        workers, steps, size = indices.shape
        classes, end = self._classes, self._classes * self._features
        # Slices: `split` of the layout takes three times as long, which shows in small cohorts.
        weight, bias = weights[:end].view(classes, -1), weights[end:].view(classes, 1)
        change = self._buffer("change", (workers, classes, self._features), weights)
        bias_change = None
        for step in range(steps):
            chosen = indices[:, step].reshape(-1)
            inputs = self._gather(examples.inputs, chosen)
            each = inputs.view(workers, size, -1)
            scores = torch.addmm(bias, weight, inputs.t())
            if bias_change is not None:
                more = torch.baddbmm(bias_change.t().unsqueeze(2), change, each.transpose(1, 2))
                scores.view(classes, workers, size).add_(more.transpose(0, 1))
            residual = torch.softmax(scores, 0)
            labels = examples.labels.index_select(0, chosen).unsqueeze(0)
            residual.scatter_add_(0, labels, self._minus_one(weights).expand(1, len(chosen)))
            if places is None:
                residual *= factor / size
            else:
                residual *= places[:, step].reshape(-1) * factor
            residual = residual.view(classes, workers, size)
            if bias_change is None:
                torch.bmm(residual.transpose(0, 1), each, out=change)
                bias_change = residual.sum(2)
            else:
                change.baddbmm_(residual.transpose(0, 1), each)
                bias_change += residual.sum(2)
        out[:, :end].copy_(change.view(workers, end))
        if bias_change is not None:  # there is a step at least
            out[:, end:].copy_(bias_change.t())

    def _gather(self, inputs: Tensor, chosen: Tensor) -> Tensor:
        """The chosen inputs, flat and in float32."""
        if inputs.dtype != torch.float32:
            return inputs.index_select(0, chosen).flatten(1).float()
        out = self._buffer("inputs", (len(chosen), *inputs.shape[1:]), inputs)
        return torch.index_select(inputs, 0, chosen, out=out).flatten(1)

    def _buffer(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Memory that the next call takes again: fresh pages cost as much as the products do."""
        size = math.prod(shape)
        kept = self._scratch.get(name)
        if kept is None or len(kept) < size or kept.device != like.device:
            kept = self._scratch[name] = like.new_empty(size)
        return kept[:size].view(shape)

    def _minus_one(self, like: Tensor) -> Tensor:
        one = self._scratch.get("minus one")
        if one is None or one.device != like.device:
            one = self._scratch["minus one"] = like.new_full((1, 1), -1.0)
        return one


def _compiled(weights: Tensor, examples: Examples) -> bool:
    """Whether the compiled loops can read everything where it lies."""
    inputs = examples.inputs
    here = weights.device.type == inputs.device.type == "cpu"
    plain = weights.dtype == inputs.dtype == torch.float32
    return here and plain and inputs.is_contiguous() and weights.is_contiguous()
