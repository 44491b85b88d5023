"""Local training of any module: vectorised by torch.func, or worker by worker."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, log_softmax

from diffsketch.errors import ArgumentError
from diffsketch.training.local.base import (
    LocalTrainer,
    NotAtOnce,
    clear_absent,
    enough_examples,
    own_places,
)
from diffsketch.training.models import WeightLayout
from diffsketch.training.tasks import Batches, Examples, Loss, scores_of

_MOST_TRACES = 64

Gradient: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Batched(LocalTrainer):
    """Local SGD of many workers at once, given the gradient of all of them."""

    examples_at_once: int

    @abstractmethod
    def _gradient(self, current: Tensor, inputs: Tensor, labels: Tensor, places: Tensor) -> Tensor:
        """Gradient of the loss of each worker, `(workers, dim)`: a new tensor.

        Current weights are all's, `(dim,)`, or each one's own, `(workers, dim)`; inputs and labels
        `(workers, batch, ...)`; places say what each weighs in the mean loss.
        """

    def _train(
        self, weights: Tensor, examples: Examples, batches: Batches, rate: float | None
    ) -> Tensor:
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


class Functional(Batched):
    """Trains cohorts of any module whose examples do not depend on each other.

    The gradient of all workers is traced to a list of plain tensor operations, once for each shape
    of a batch; later calls run that list and pay nothing for torch.func, which is half of the time
    of small cohorts. The first trace of a process takes a second or two, others a tenth.
    """

    examples_at_once = 1280  # enough to keep a core busy, few enough to stay in cache

    def __init__(self, model: nn.Module, *, keep_local: bool = False) -> None:
        super().__init__(model, keep_local=keep_local)
        self._frozen = [n for n, p in model.named_parameters() if not p.requires_grad]
        self._traces: OrderedDict[tuple[Any, ...], Gradient] = OrderedDict()

    def _gradient(self, current: Tensor, inputs: Tensor, labels: Tensor, places: Tensor) -> Tensor:
        key = (current.dim(), inputs.shape, inputs.dtype, inputs.device)
        trace = self._traces.get(key)
        if trace is None:
            trace = self._traces[key] = self._trace(current, inputs, labels, places)
            if len(self._traces) > _MOST_TRACES:
                self._traces.popitem(last=False)
        self._traces.move_to_end(key)
        return trace(current, inputs, labels, places)

    def _trace(self, *arguments: Tensor) -> Gradient:
        # Imported here: it takes a second, which those who train something else need not wait for.
        from torch.fx.experimental.proxy_tensor import make_fx

        shared = arguments[0].dim() == 1
        gradients = vmap(grad(self._loss), in_dims=(None if shared else 0, 0, 0, 0))

        def flat(current: Tensor, inputs: Tensor, labels: Tensor, places: Tensor) -> Tensor:
            split = dict(zip(self._layout.names, self._layout.split(current), strict=True))
            found = gradients(split, inputs, labels, places)
            for name in self._frozen:
                found[name] = torch.zeros_like(found[name])
            return torch.cat([found[name].flatten(1) for name in self._layout.names], 1)

        try:
            graph = make_fx(flat)(*arguments)
        except RuntimeError as error:
            raise NotAtOnce(
                "model cannot be trained for all workers at once, torch.func says "
                f"{str(error).splitlines()[0]!r}"
            ) from error
        graph.graph.eliminate_dead_code()
        graph.recompile()
        return graph

    def _loss(
        self, named: dict[str, Tensor], inputs: Tensor, labels: Tensor, places: Tensor
    ) -> Tensor:
        """Mean cross-entropy over the places that are taken.

        Written out, since torch's own handles labels to be ignored, in a dozen operations more.
        """
        scores = scores_of(functional_call(self._model, named, (inputs,)))
        found = log_softmax(scores, 1).gather(1, labels.unsqueeze(1)).squeeze(1)
        return -(found * places).sum()


class WorkerLoop(LocalTrainer):
    """Trains the workers of a cohort one by one: works for every module, and any loss.

    What a model draws for a worker, the masks of dropout for one, follows from the worker's seed.

    With `threads`, as many workers at a time as torch has threads, each on one: the fastest way
    measured for recurrent models, whose kernels are fused but too short to be shared by threads.
    A worker's bits do not depend on how many there are, since each is trained on one thread always.
    On CUDA it makes no difference.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        threads: bool = False,
        loss: Loss | None = None,
        keep_local: bool = False,
    ) -> None:
        self.draws = not threads  # which would share the global generator
        super().__init__(model, loss=loss, keep_local=keep_local)
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._replicas: list[_Replica] = []

    def _train(
        self, weights: Tensor, examples: Examples, batches: Batches, rate: float | None
    ) -> Tensor:
        out = weights.new_empty(len(batches.indices), self.dim)
        threads = torch.get_num_threads() if self._threads and weights.device.type == "cpu" else 1
        if self._replicas and self._replicas[0].device != weights.device:
            self._replicas = []
        while len(self._replicas) < threads:
            replica = _Replica(self._model, self._layout, weights.device, self.loss)
            self._replicas.append(replica)
        job = (weights, examples, batches, rate, out)
        if threads == 1:
            with _own_generator(batches, weights.device):
                self._replicas[0].train(iter(range(len(out))), *job)
            self._replicas[0].watch.check()
            return out
        if self._pool is None or self._pool._max_workers < threads:
            # Torch's number of threads is the calling thread's own: the others keep theirs.
            self._pool = ThreadPoolExecutor(
                threads, initializer=torch.set_num_threads, initargs=(1,)
            )
        order = list(range(len(out)))
        if batches.present is not None:  # the longest first, lest one is left with it at the end
            sizes = batches.present.flatten(1).sum(1)
            order = sizes.argsort(descending=True, stable=True).tolist()
        turns = iter(order)  # shared by the threads: whoever is free takes the next
        for done in [self._pool.submit(r.train, turns, *job) for r in self._replicas[:threads]]:
            done.result()
        for replica in self._replicas[:threads]:
            replica.watch.check()
        return out


def _own_generator(batches: Batches, device: torch.device) -> AbstractContextManager[None]:
    """Keep the global generator as it is, if workers have seeds: they set it."""
    if batches.seeds is None:
        return nullcontext()
    return torch.random.fork_rng(devices=[] if device.type == "cpu" else [device])


class _Replica:
    """A copy of the model whose parameters are views of one flat vector."""

    def __init__(
        self, model: nn.Module, layout: WeightLayout, device: torch.device, loss: Loss | None
    ) -> None:
        self.device = device
        self._loss = cross_entropy if loss is None else loss
        self._model = copy.deepcopy(model).to(device)
        self._flat = torch.empty(layout.dim, device=device)
        self._layout = layout
        parameters = dict(self._model.named_parameters())
        for parameter, view in zip(parameters.values(), layout.split(self._flat), strict=True):
            parameter.data = view
        self._trained: list[Tensor] = [p for p in parameters.values() if p.requires_grad]
        self.watch = _StateWatch(self._model)

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
            if batches.seeds is not None:
                torch.manual_seed(int(batches.seeds[worker]))
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

    def _step(self, examples: Examples, chosen: Tensor, rate: float | None, row: Tensor) -> None:
        with enough_examples(len(chosen)):
            given = self._model(examples.inputs.index_select(0, chosen))
        loss = self._loss(scores_of(given), examples.labels.index_select(0, chosen))
        found = torch.autograd.grad(loss, self._trained, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            if rate is not None:
                torch._foreach_add_(self._trained, found, alpha=-rate)
                return
            views = zip(self._model.parameters(), self._layout.split(row), strict=True)
            own = [view for parameter, view in views if parameter.requires_grad]
            torch._foreach_copy_(own, found)


class _StateWatch:
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
            raise NotAtOnce(
                "model must not draw from torch's global generator while workers are trained at "
                "once"
            )
        self._generator = None
