"""What the trainers of any module share."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod

from torch import Tensor, nn

from diffsketch.training.devices import Batches, Examples
from diffsketch.training.local.base import check_one_step
from diffsketch.training.local.refusals import check_model
from diffsketch.training.models import WeightLayout

__all__ = ["AnyModelTrainer"]


class AnyModelTrainer(ABC):
    """Keeps a copy of a model; its subclasses say how cohorts are trained with it.

    Args:
        model: Its structure and constant buffers are taken (a copy), not its weights.

    Raises:
        ArgumentError: Training it would change buffers or draw random numbers.
    """

    def __init__(self, model: nn.Module) -> None:
        check_model(model)
        self._layout = WeightLayout.of(model)
        self._model = copy.deepcopy(model).train()

    @property
    def dim(self) -> int:
        """Length of the weights."""
        return self._layout.dim

    def gradients(self, weights: Tensor, examples: Examples, batches: Batches) -> Tensor:
        """The gradient of each worker's only step: see `LocalTrainer`."""
        check_one_step(batches)
        return self._train(weights, examples, batches, None)

    def updates(
        self, weights: Tensor, examples: Examples, batches: Batches, *, learning_rate: float
    ) -> Tensor:
        """What each worker's SGD changes: see `LocalTrainer`."""
        return self._train(weights, examples, batches, learning_rate)

    @abstractmethod
    def evaluate(self, weights: Tensor, examples: Examples) -> tuple[float, float]:
        """Mean loss and accuracy: see `LocalTrainer`."""

    @abstractmethod
    def _train(
        self, weights: Tensor, examples: Examples, batches: Batches, rate: float | None
    ) -> Tensor:
        """Gradients if there is no learning rate, else updates."""
