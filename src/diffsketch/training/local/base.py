"""The base of local training, checks of its arguments, and the models that it refuses."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd

from diffsketch.errors import ArgumentError, MismatchError, check
from diffsketch.training.models import WeightLayout, working_copy
from diffsketch.training.tasks import Batches, Examples, Loss, scores_of

_EVALUATED = 4096  # examples at a time


class NotAtOnce(ArgumentError):  # noqa: N818 - it says what happened
    """The model draws numbers, or branches on values: workers have to be trained one by one."""

    def __init__(self, what: str) -> None:
        super().__init__(f'{what}: use trainer="loop", which trains one device after another')


class LocalTrainer(ABC):
    """Trains all workers of a cohort from the same weights, as one computation where it can.

    Weights are flat: all parameters of the model, in the order of `named_parameters`. Of the model,
    structure and constant buffers are kept. One that would change buffers is refused; one that
    draws random numbers, too, unless the trainer `draws`.

    Guarantees, for each trainer (`tests/training/test_local.py`): the result is that of a plain
    loop over the workers with `torch.optim.SGD`, to rounding; the same input gives the same bits;
    what a worker's examples hold, NaN for one, shows in its own row only.
    """

    draws = False  # whether the model may draw numbers, by the seed of each worker in `Batches`

    def __init__(
        self, model: nn.Module, *, loss: Loss | None = None, keep_local: bool = False
    ) -> None:
        self._layout = WeightLayout.of(model)
        self.dim = self._layout.dim  # length of the weights
        self.loss = loss  # None for cross-entropy
        self._model = working_copy(model, keep_local=keep_local).train()
        check_model(self._model, draws=self.draws)

    def gradients(self, weights: Tensor, examples: Examples, batches: Batches) -> Tensor:
        """The gradient of the mean loss of each worker's only step: `(workers, dim)`, float32."""
        check_training(self._layout, weights, batches, one_step=True)
        return self._train(weights, examples, batches, None)

    def updates(
        self, weights: Tensor, examples: Examples, batches: Batches, *, learning_rate: float
    ) -> Tensor:
        """The weights after all steps of SGD less those before: `(workers, dim)`, float32."""
        check_training(self._layout, weights, batches, one_step=False)
        return self._train(weights, examples, batches, learning_rate)

    def evaluate(self, weights: Tensor, examples: Examples) -> tuple[float, float]:
        """Mean loss and accuracy, computed in parts that fit into memory.

        Accuracy is the share of labels with the largest score; NaN if labels are no classes.
        """
        self._layout.check_weights(weights)
        check(len(examples) >= 1, "examples", "not be empty", len(examples))
        state = dict(zip(self._layout.names, self._layout.split(weights), strict=True))
        state |= {name: one.to(weights.device) for name, one in self._model.named_buffers()}
        loss = torch.zeros((), dtype=torch.float64, device=examples.labels.device)
        correct = torch.zeros((), dtype=torch.int64, device=examples.labels.device)
        classes = examples.labels.dtype == torch.int64
        self._model.eval()
        try:
            with torch.no_grad():
                for start in range(0, len(examples), _EVALUATED):
                    labels = examples.labels[start : start + _EVALUATED]
                    inputs = examples.inputs[start : start + _EVALUATED]
                    with enough_examples(len(labels)):
                        scores = scores_of(functional_call(self._model, state, (inputs,)))
                    if self.loss is None:
                        loss += cross_entropy(scores, labels, reduction="sum")
                    else:
                        loss += self.loss(scores, labels) * len(labels)
                    classes = classes and scores.shape[:-1] == labels.shape
                    correct += (scores.argmax(-1) == labels).sum() if classes else 0
        finally:
            self._model.train()
        accuracy = int(correct) / examples.labels.numel() if classes else math.nan
        return float(loss) / len(examples), accuracy

    @abstractmethod
    def _train(
        self, weights: Tensor, examples: Examples, batches: Batches, rate: float | None
    ) -> Tensor:
        """Gradients if there is no learning rate, else updates."""


@contextmanager
def enough_examples(count: int) -> Iterator[None]:
    """Say what to do where a layer, BatchNorm for one, has no use for a batch of so many."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, ArgumentError):
            raise
        said = (str(error).splitlines() or [type(error).__name__])[0]
        text = f"model must take batches of {count}, as the data gives: it says: {said}"
        if count == 1:
            text += "; give a batch_size that leaves no example alone, or use GroupNorm"
        raise ArgumentError(text) from error


def draws_numbers(module: nn.Module) -> bool:
    """Whether a layer draws random numbers while training."""
    dropout = isinstance(module, _DropoutNd) and module.p > 0
    between = isinstance(module, nn.RNNBase) and module.dropout > 0
    return dropout or between or isinstance(module, nn.RReLU)


def mixes_examples(module: nn.Module) -> bool:
    """Whether what a layer gives for an example depends on others of the batch."""
    return isinstance(module, _BatchNorm)


def check_model(model: nn.Module, *, draws: bool = False) -> None:
    """Raise an `ArgumentError` if training the model changes buffers, or draws but must not.

    Buffers that stay as they are, a table of positions for one, are fine.
    """
    for name, module in model.named_modules():
        where = f"model's layer {name or 'itself'!r} ({type(module).__name__})"
        if isinstance(module, _NormBase) and module.track_running_stats:
            raise ArgumentError(
                f"{where} must not keep running statistics: they are of a device's private data, "
                "and are not averaged with the weights. Use GroupNorm or LayerNorm, or give "
                "keep_local=True, with which each device normalises by its own batches"
            )
        if draws_numbers(module) and not draws:
            raise NotAtOnce(
                f"{where} must not draw random numbers while workers are trained at once"
            )


def check_training(
    layout: WeightLayout, weights: Tensor, batches: Batches, *, one_step: bool
) -> None:
    """Raise unless these are weights of a model, and batches as `Batches` documents them."""
    layout.check_weights(weights)
    indices, present = batches.indices, batches.present
    check(indices.dtype == torch.int64, "indices", "be int64", indices.dtype)
    if indices.dim() != 3:
        raise MismatchError(
            f"indices must be (workers, steps, batch_size), got {tuple(indices.shape)}"
        )
    if one_step and indices.shape[1] != 1:
        raise MismatchError(f"gradients need exactly one step, got {indices.shape[1]}")
    if present is not None:
        check(present.dtype == torch.bool, "present", "be bool", present.dtype)
        if present.shape != indices.shape:
            raise MismatchError(
                f"present must have the shape of indices, {tuple(indices.shape)}, "
                f"got {tuple(present.shape)}"
            )


def own_places(batches: Batches) -> tuple[Tensor, Tensor | None]:
    """Indices for a batched computation, and what each place weighs in its step's mean loss.

    An empty place gets the worker's own first example, with weight zero: zero times another
    worker's NaN would be NaN. The weights are None if all places are taken.
    """
    indices, present = batches.indices, batches.present
    if present is None:
        return indices, None
    first = present.flatten(1).byte().argmax(1, keepdim=True)
    own = indices.flatten(1).gather(1, first).unsqueeze(2)
    count = present.sum(2, keepdim=True).clamp_(min=1)
    return torch.where(present, indices, own), present / count


def clear_absent(rows: Tensor, batches: Batches) -> Tensor:
    """Zeros to those workers' rows who have no example at all: their places are not their own."""
    if batches.present is not None:
        rows[~batches.present.flatten(1).any(1)] = 0
    return rows
