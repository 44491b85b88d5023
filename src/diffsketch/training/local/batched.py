"""All workers of a cohort step by step, given the gradient of one step of all."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor
from torch.func import functional_call

from diffsketch.training.devices import Batches, Examples
from diffsketch.training.local.any_model import AnyModelTrainer
from diffsketch.training.local.base import (
    check_batches,
    clear_absent,
    mean_scores,
    own_places,
)

__all__ = ["Batched"]


class Batched(AnyModelTrainer):
    """Local SGD of many workers at once.

    Args:
        model: Its structure and constant buffers are taken (a copy), not its weights.

    Raises:
        ArgumentError: Training it would change buffers or draw random numbers.
    """

    examples_at_once: int

    @abstractmethod
    def _gradient(self, current: Tensor, inputs: Tensor, labels: Tensor, places: Tensor) -> Tensor:
        """Of the loss of each worker, `(workers, dim)`: a new tensor.

        Args:
            current: Weights that all share, `(dim,)`, or each one's own, `(workers, dim)`.
            inputs: `(workers, batch, ...)`.
            labels: `(workers, batch)`.
            places: Of the same shape: what each place weighs in the mean loss.
        """

    def evaluate(self, weights: Tensor, examples: Examples) -> tuple[float, float]:
        """Mean loss and accuracy: see `LocalTrainer`."""
        self._layout.check_weights(weights)
        named = dict(zip(self._layout.names, self._layout.split(weights), strict=True))
        self._model.eval()
        try:
            return mean_scores(lambda x: functional_call(self._model, named, (x,)), examples)
        finally:
            self._model.train()

    def _train(
        self, weights: Tensor, examples: Examples, batches: Batches, rate: float | None
    ) -> Tensor:
        """Gradients if there is no learning rate, else updates."""
        self._layout.check_weights(weights)
        check_batches(batches)
        indices, places = own_places(batches)
        workers, _, size = indices.shape
        if indices.numel() == 0:
            return weights.new_zeros(workers, self.dim)
        if places is None:
            places = weights.new_full((1, 1, 1), 1 / size).expand(indices.shape)
        at_once = max(1, self.examples_at_once // size)
        parts = [
            self._train_part(weights, examples, indices[rows], places[rows], rate)
            for rows in (slice(i, i + at_once) for i in range(0, workers, at_once))
        ]
        return clear_absent(parts[0] if len(parts) == 1 else torch.cat(parts), batches)

    def _train_part(
        self,
        weights: Tensor,
        examples: Examples,
        indices: Tensor,
        places: Tensor,
        rate: float | None,
    ) -> Tensor:
        current = weights
        for step in range(indices.shape[1]):
            chosen = indices[:, step].reshape(-1)
            lead = indices[:, step].shape
            inputs = examples.inputs.index_select(0, chosen)
            inputs = inputs.view(*lead, *inputs.shape[1:])
            labels = examples.labels.index_select(0, chosen).view(lead)
            gradient = self._gradient(current, inputs, labels, places[:, step])
            if rate is None:
                return gradient
            if indices.shape[1] == 1:
                return gradient.mul_(-rate)
            # The first step makes a row for each worker, the others change it.
            if step == 0:
                current = torch.add(weights, gradient, alpha=-rate)
            else:
                current.add_(gradient, alpha=-rate)
        return current.sub_(weights)
