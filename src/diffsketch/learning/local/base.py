"""What a round asks of local training: one vector for each worker of a cohort."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from diffsketch.learning.devices import Batches, Examples

__all__ = ["LocalTrainer"]


class LocalTrainer(Protocol):
    """Trains all workers of a cohort from the same weights, as one computation where it can.

    Weights are flat: all parameters of the model, in the order of `named_parameters`.

    Guarantees, for each trainer (`tests/learning/test_local.py`): the result is that of a plain
    loop over the workers with `torch.optim.SGD`, to rounding; the same input gives the same bits.
    """

    @property
    def dim(self) -> int:
        """Length of the weights."""

    def gradients(self, weights: Tensor, examples: Examples, batches: Batches) -> Tensor:
        """The gradient of the mean loss of each worker's only step: `(workers, dim)`, float32."""

    def updates(
        self, weights: Tensor, examples: Examples, batches: Batches, *, learning_rate: float
    ) -> Tensor:
        """The weights after all steps of SGD less those before: `(workers, dim)`, float32."""

    def evaluate(self, weights: Tensor, examples: Examples) -> tuple[float, float]:
        """Mean loss and accuracy on examples, computed in parts that fit into memory."""
