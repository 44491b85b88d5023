"""One worker after another, with autograd: for any module; on a CPU, on several threads."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from diffsketch.training.devices import Batches, Examples
from diffsketch.training.local.any_model import AnyModelTrainer
from diffsketch.training.local.base import check_batches, mean_scores
from diffsketch.training.local.refusals import StateWatch
from diffsketch.training.models import WeightLayout

__all__ = ["Loop"]


class Loop(AnyModelTrainer):
    """Trains the workers of a cohort one by one: works for every module.

    With `threads`, as many workers at a time as torch has threads, each on one: the fastest way
    measured for recurrent models, whose kernels are fused but too short to be shared by threads.
    A worker's bits do not depend on how many there are, since each is trained on one thread always.

    Args:
        model: Its structure and constant buffers are taken (a copy), not its weights.
        threads: Whether to train several workers at a time. On CUDA it makes no difference.

    Raises:
        ArgumentError: Training it would change buffers or draw random numbers.
    """

    def __init__(self, model: nn.Module, *, threads: bool = False) -> None:
        super().__init__(model)
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._replicas: list[_Replica] = []

    def evaluate(self, weights: Tensor, examples: Examples) -> tuple[float, float]:
        """Mean loss and accuracy: see `LocalTrainer`."""
        self._layout.check_weights(weights)
        replica = self._take_replicas(1, weights.device)[0]
        return replica.evaluate(weights, examples)

    def _train(
        self, weights: Tensor, examples: Examples, batches: Batches, rate: float | None
    ) -> Tensor:
        """Gradients if there is no learning rate, else updates."""
        self._layout.check_weights(weights)
        check_batches(batches)
        out = weights.new_empty(len(batches.indices), self.dim)
        job = (weights, examples, batches, rate, out)
        threads = torch.get_num_threads() if self._threads and weights.device.type == "cpu" else 1
        if threads == 1:
            self._take_replicas(1, weights.device)[0].train(iter(range(len(out))), *job)
            return out
        replicas = self._take_replicas(threads, weights.device)
        # Shared by the threads: whoever is free takes the next. The longest first, so that none
        # is left with a long one at the end.
        turns = iter(_longest_first(batches))
        waiting = [self._executor(threads).submit(r.train, turns, *job) for r in replicas]
        for done in waiting:
            done.result()
        return out

    def _take_replicas(self, count: int, device: torch.device) -> list[_Replica]:
        if self._replicas and self._replicas[0].device != device:
            self._replicas = []
        while len(self._replicas) < count:
            self._replicas.append(_Replica(self._model, self._layout, device))
        return self._replicas[:count]

    def _executor(self, threads: int) -> ThreadPoolExecutor:
        if self._pool is None or self._pool._max_workers < threads:
            # Torch's number of threads is the calling thread's own: the others keep theirs.
            self._pool = ThreadPoolExecutor(
                threads, initializer=torch.set_num_threads, initargs=(1,)
            )
        return self._pool


class _Replica:
    """A copy of the model whose parameters are views of one flat vector."""

    def __init__(self, model: nn.Module, layout: WeightLayout, device: torch.device) -> None:
        self.device = device
        self._model = copy.deepcopy(model).to(device)
        self._flat = torch.empty(layout.dim, device=device)
        self._layout = layout
        parameters = dict(self._model.named_parameters())
        for parameter, view in zip(parameters.values(), layout.split(self._flat), strict=True):
            parameter.data = view
        self._trained: list[Tensor] = [p for p in parameters.values() if p.requires_grad]
        self._watch = StateWatch(self._model)

    def train(
        self,
        turns: Iterator[int],
        weights: Tensor,
        examples: Examples,
        batches: Batches,
        rate: float | None,
        out: Tensor,
    ) -> None:
        """Train those workers of the cohort whose turn it is; write to their rows of `out`."""
        for worker in turns:
            self._flat.copy_(weights)
            row = out[worker]
            if rate is None:
                row.zero_()
            indices = batches.indices[worker]
            present = None if batches.present is None else batches.present[worker]
            for step, chosen in enumerate(indices):
                if present is not None:
                    chosen = chosen[present[step]]
                if len(chosen):
                    self._step(examples, chosen, rate, row)
            if rate is not None:
                torch.sub(self._flat, weights, out=row)
        self._watch.check()

    def _step(self, examples: Examples, chosen: Tensor, rate: float | None, row: Tensor) -> None:
        scores = self._model(examples.inputs.index_select(0, chosen))
        loss = cross_entropy(scores, examples.labels.index_select(0, chosen))
        found = torch.autograd.grad(loss, self._trained, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            if rate is not None:
                torch._foreach_add_(self._trained, found, alpha=-rate)
                return
            views = zip(self._model.parameters(), self._layout.split(row), strict=True)
            own = [view for parameter, view in views if parameter.requires_grad]
            torch._foreach_copy_(own, found)

    def evaluate(self, weights: Tensor, examples: Examples) -> tuple[float, float]:
        """Mean loss and accuracy with these weights."""
        self._flat.copy_(weights)
        self._model.eval()
        try:
            return mean_scores(self._model, examples)
        finally:
            self._model.train()


def _longest_first(batches: Batches) -> list[int]:
    if batches.present is None:
        return list(range(len(batches.indices)))
    sizes = batches.present.flatten(1).sum(1)
    order: list[int] = sizes.argsort(descending=True, stable=True).tolist()
    return order
