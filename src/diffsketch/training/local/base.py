"""The interface of local training, checks of its arguments, and the models that it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from diffsketch.errors import ArgumentError, MismatchError, check
from diffsketch.training.models import WeightLayout
from diffsketch.training.tasks import Batches, Examples

_EVALUATED = 4096  # examples at a time


class LocalTrainer(Protocol):
    """Trains all workers of a cohort from the same weights, as one computation where it can.

    Weights are flat: all parameters of the model, in the order of `named_parameters`.

    Guarantees, for each trainer (`tests/training/test_local.py`): the result is that of a plain
    loop over the workers with `torch.optim.SGD`, to rounding; the same input gives the same bits;
    what a worker's examples hold, NaN for one, shows in its own row only.
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


def check_model(model: nn.Module) -> None:
    """Raise an `ArgumentError` if training the model changes buffers or draws random numbers.

    Buffers that stay as they are, a table of positions for one, are fine.
    """
    for name, module in model.named_modules():
        where = f"model's layer {name or 'itself'!r} ({type(module).__name__})"
        if isinstance(module, _NormBase) and module.track_running_stats:
            raise ArgumentError(
                f"{where} must not keep running statistics, which only weights' owners could "
                "average: use GroupNorm or LayerNorm, or track_running_stats=False"
            )
        dropout = isinstance(module, _DropoutNd) and module.p > 0
        between = isinstance(module, nn.RNNBase) and module.dropout > 0
        if dropout or between or isinstance(module, nn.RReLU):
            raise ArgumentError(
                f"{where} must not draw random numbers while training: they would come from the "
                "global generator, and a run could not be repeated; set its probability to 0"
            )


class StateWatch:
    """Notices what `check_model` cannot see: a model that changes its buffers or draws numbers."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._buffers = self._versions()
        self._generator: Tensor | None = torch.get_rng_state()

    def _versions(self) -> dict[str, tuple[int, int]]:
        # Torch counts the in-place changes of a tensor; another tensor has another identity.
        return {name: (id(b), b._version) for name, b in self._model.named_buffers()}

    def check(self) -> None:
        """Raise if buffers have changed since the start; the first time, also for drawn numbers."""
        versions = self._versions()
        if versions != self._buffers:
            changed = {n for n, v in versions.items() if self._buffers.get(n) != v}
            names = ", ".join(sorted(changed | (self._buffers.keys() - versions.keys())))
            raise ArgumentError(f"model must not change its buffers while training: {names}")
        if self._generator is not None and not torch.equal(self._generator, torch.get_rng_state()):
            raise ArgumentError("model must not draw from torch's global generator while training")
        self._generator = None


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


def mean_scores(forward: Callable[[Tensor], Tensor], examples: Examples) -> tuple[float, float]:
    """Mean cross-entropy and accuracy of the scores that `forward` gives examples."""
    check(len(examples) >= 1, "examples", "not be empty", len(examples))
    loss = torch.zeros((), dtype=torch.float64, device=examples.labels.device)
    correct = torch.zeros((), dtype=torch.int64, device=examples.labels.device)
    with torch.no_grad():
        for start in range(0, len(examples), _EVALUATED):
            labels = examples.labels[start : start + _EVALUATED]
            scores = forward(examples.inputs[start : start + _EVALUATED])
            loss += functional.cross_entropy(scores, labels, reduction="sum")
            correct += (scores.argmax(1) == labels).sum()
    return float(loss) / len(examples), int(correct) / len(examples)
