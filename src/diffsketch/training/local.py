"""Local training: in closed form, for all workers at once by torch.func, or worker by worker."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, log_softmax
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd

from diffsketch.compiled import run_tasks, threads_for
from diffsketch.errors import ArgumentError, MismatchError, check
from diffsketch.training.closed_form import train as train_logistic
from diffsketch.training.models import CharLSTM, LogisticRegression, WeightLayout, working_copy
from diffsketch.training.tasks import Batches, Examples, Loss, first_line, scores_of

_RECURRENT = (CharLSTM, nn.RNNBase, nn.RNNCellBase)
_EVALUATED = 4096  # examples at a time
_NO_SHARES = np.zeros((1, 0, 0), np.float32)
_MOST_TRACES = 64  # a secret sample may have any size, and each has a trace

Gradient: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class _UntraceableError(RuntimeError):
    """The model draws numbers, or branches on values: workers have to be trained one by one."""


class LocalTrainer(ABC):
    """Trains all workers of a cohort from the same weights, as one computation where it can.

    Weights are flat: all parameters of the model, in the order of `named_parameters`. Of the model,
    structure and constant buffers, such as a table of positions, are kept. One that would change
    buffers is refused.

    Guarantees, for each trainer (`tests/training/test_local.py`): the result is that of a plain
    loop over the workers with `torch.optim.SGD`, to rounding; the same input gives the same bits;
    NaN or infinity in a worker's examples shows in that worker's row only.
    """

    def __init__(
        self, model: nn.Module, *, loss: Loss | None = None, keep_local: bool = False
    ) -> None:
        # The layout of the caller's model, whose order of parameters is that of flat weights.
        self._layout = WeightLayout.of(model)
        self.dim = self._layout.dim  # length of the weights
        self.loss = loss  # None for cross-entropy
        self._model = working_copy(model, keep_local=keep_local).train()
        for name, module in self._model.named_modules():
            if isinstance(module, _NormBase) and module.track_running_stats:
                raise ArgumentError(
                    f"model's layer {name or 'itself'!r} ({type(module).__name__}) must not keep "
                    "running statistics: they are of a device's private data, and are not averaged "
                    "with the weights. Use GroupNorm or LayerNorm, or give keep_local=True, with "
                    "which each device normalises by its own batches"
                )

    def updates(self, weights: Tensor, batches: Batches, *, learning_rate: float | None) -> Tensor:
        """Compute the change of the weights by each worker's SGD: `(workers, dim)`, float32.

        Without a learning rate: the gradient of each worker's only step.
        """
        # Compared here first: nearly always nothing is wrong, and a round may be short.
        if weights.dtype != torch.float32 or weights.shape != (self.dim,):
            self._layout.check_weights(weights)
        indices, present = batches.indices, batches.present
        if indices.dtype != torch.int64 or indices.dim() != 3:
            raise MismatchError(
                "indices must be (workers, steps, batch_size) in int64, got "
                f"{tuple(indices.shape)} in {indices.dtype}"
            )
        if present is not None and (present.dtype, present.shape) != (torch.bool, indices.shape):
            raise MismatchError(
                f"present must have the shape of indices, {tuple(indices.shape)}, in bool, got "
                f"{tuple(present.shape)} in {present.dtype}"
            )
        if learning_rate is None and indices.shape[1] != 1:
            raise MismatchError(f"gradients need exactly one step, got {indices.shape[1]}")
        return self._train(weights, batches, learning_rate)

    def evaluate(self, weights: Tensor, examples: Examples) -> tuple[float, float]:
        """Compute mean loss and accuracy, in parts that fit into memory.

        Accuracy is the share of labels with the largest score; NaN if labels are no classes.
        """
        self._layout.check_weights(weights)
        check(len(examples) >= 1, "examples", "not be empty", len(examples))
        state = dict(zip(self._layout.names, self._layout.split(weights), strict=True))
        state |= {name: buffer.to(weights.device) for name, buffer in self._model.named_buffers()}
        # In double, as sums of many batches would lose digits.
        loss = torch.zeros((), dtype=torch.float64, device=examples.labels.device)
        correct, classes = 0, examples.labels.dtype == torch.int64
        self._model.eval()  # without dropout
        try:
            with torch.no_grad():
                both = examples.inputs, examples.labels
                parts = (torch.split(values, _EVALUATED) for values in both)
                for inputs, labels in zip(*parts, strict=True):
                    with enough_examples(len(labels)):
                        scores = scores_of(functional_call(self._model, state, (inputs,)))
                    if self.loss is None:
                        loss += cross_entropy(scores, labels, reduction="sum")
                    else:
                        loss += self.loss(scores, labels) * len(labels)
                    classes = classes and scores.shape[:-1] == labels.shape
                    correct += int((scores.argmax(-1) == labels).sum()) if classes else 0
        finally:
            self._model.train()
        accuracy = correct / examples.labels.numel() if classes else math.nan
        return float(loss) / len(examples), accuracy

    @abstractmethod
    def _train(self, weights: Tensor, batches: Batches, rate: float | None) -> Tensor:
        """Compute gradients if there is no learning rate, else updates."""


@contextmanager
def enough_examples(count: int) -> Iterator[None]:
    """Say what to do where a layer, such as BatchNorm, refuses a batch of `count` examples."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, ArgumentError):
            raise
        text = f"model must take batches of {count}, as the data gives: it says: "
        text += first_line(error)
        if count == 1:
            text += "; give a batch_size that leaves no example alone, or use GroupNorm"
        raise ArgumentError(text) from error


def weighted_places(batches: Batches) -> tuple[Tensor, Tensor | None]:
    """Return indices for a batched computation, and each place's weight in its step's mean loss.

    An empty place gets the worker's own first example, with weight zero: zero times another
    worker's NaN would be NaN. The weights are None if all places are taken.
    """
    indices, present = batches.indices, batches.present
    if present is None:
        return indices, None
    first = present.flatten(1).byte().argmax(1, keepdim=True)
    filling = indices.flatten(1).gather(1, first).unsqueeze(2)
    count = present.sum(2, keepdim=True).clamp_(min=1)
    return torch.where(present, indices, filling), present / count


def clear_absent(rows: Tensor, batches: Batches) -> Tensor:
    """Zero the rows of workers without any example: their places hold another's."""
    if batches.present is not None:
        rows[~batches.present.flatten(1).any(1)] = 0
    return rows


class Functional(LocalTrainer):
    """Trains cohorts of any module whose examples do not depend on each other.

    The gradient of all workers is traced to a list of plain tensor operations, once for each shape
    of a batch; later calls run that list without the overhead of torch.func, which is half of the
    time of small cohorts. The first trace of a process takes a second or two, others a tenth. A
    model that cannot be traced, as it draws numbers or branches on values, is trained in a loop.
    """

    examples_at_once = 1280  # enough to keep a core busy, few enough to stay in cache

    def __init__(self, model: nn.Module, *, keep_local: bool = False) -> None:
        super().__init__(model, keep_local=keep_local)
        # Empty places would be among the examples.
        mixing = any(isinstance(module, _BatchNorm) for module in model.modules())
        check(not mixing, "model", "have no layers that mix examples", type(model).__name__)
        self._loop: WorkerLoop | None = None
        self._frozen = [n for n, p in model.named_parameters() if not p.requires_grad]
        self._traces: dict[tuple[Any, ...], Gradient] = {}  # the least recently used first

    def _train(self, weights: Tensor, batches: Batches, rate: float | None) -> Tensor:
        if self._loop is not None:
            return self._loop._train(weights, batches, rate)
        # Workers without examples have places that point at another's, with weight zero: cleared at
        # the end.
        indices, places = weighted_places(batches)
        if indices.numel() == 0:
            return weights.new_zeros(len(indices), self.dim)
        if places is None:
            places = weights.new_full((1, 1, 1), 1 / indices.shape[2]).expand(indices.shape)
        # In parts, whose intermediate tensors stay in cache however many workers there are.
        at_once = max(1, self.examples_at_once // indices.shape[2])
        cut = zip(torch.split(indices, at_once), torch.split(places, at_once), strict=True)
        try:
            parts = [self._train_part(weights, batches.examples, part, rate) for part in cut]
        except _UntraceableError:
            self._loop = WorkerLoop(self._model)
            return self._loop._train(weights, batches, rate)
        return clear_absent(parts[0] if len(parts) == 1 else torch.cat(parts), batches)

    def _train_part(
        self, weights: Tensor, examples: Examples, part: tuple[Tensor, Tensor], rate: float | None
    ) -> Tensor:
        indices, places = part
        current = weights
        for step in range(indices.shape[1]):
            chosen = indices[:, step]
            inputs, labels = (
                values.index_select(0, chosen.reshape(-1)).view(*chosen.shape, *values.shape[1:])
                for values in (examples.inputs, examples.labels)
            )
            gradient = self._gradient(current, inputs, labels, places[:, step])
            if rate is None:
                return gradient
            # The change of a single step is exact without the weights' rounding.
            if indices.shape[1] == 1:
                return gradient.mul_(-rate)
            # The first step makes a row for each worker, the others change it.
            if step == 0:
                current = torch.add(weights, gradient, alpha=-rate)
            else:
                current.add_(gradient, alpha=-rate)
        return current.sub_(weights)

    def _gradient(self, current: Tensor, inputs: Tensor, labels: Tensor, places: Tensor) -> Tensor:
        """Compute the gradient of each worker's loss, `(workers, dim)`: a new tensor.

        Current weights are shared, `(dim,)`, or one row for each worker, `(workers, dim)`; inputs
        and labels `(workers, batch, ...)`; places are the examples' weights in the mean loss.
        """
        key = (current.dim(), inputs.shape, inputs.dtype, inputs.device)
        trace = self._traces.pop(key, None) or self._trace(current, inputs, labels, places)
        self._traces[key] = trace
        if len(self._traces) > _MOST_TRACES:
            del self._traces[next(iter(self._traces))]
        return trace(current, inputs, labels, places)

    def _trace(self, *arguments: Tensor) -> Gradient:
        # Imported here: it takes a second, which other trainers need not wait for.
        from torch.fx.experimental.proxy_tensor import make_fx

        shared = arguments[0].dim() == 1
        # Weights are shared in the first step, where all workers begin alike; afterwards each has
        # its own.
        gradients = vmap(grad(self._loss), in_dims=(None if shared else 0, 0, 0, 0))

        def flat(current: Tensor, inputs: Tensor, labels: Tensor, places: Tensor) -> Tensor:
            split = dict(zip(self._layout.names, self._layout.split(current), strict=True))
            named = gradients(split, inputs, labels, places)
            for name in self._frozen:
                named[name] = torch.zeros_like(named[name])
            return torch.cat([named[name].flatten(1) for name in self._layout.names], 1)

        try:
            graph = make_fx(flat)(*arguments)
        except RuntimeError as error:
            raise _UntraceableError from error
        # What torch.func computes and nobody reads, such as the loss itself.
        graph.graph.eliminate_dead_code()
        graph.recompile()
        return graph

    def _loss(
        self, named: dict[str, Tensor], inputs: Tensor, labels: Tensor, places: Tensor
    ) -> Tensor:
        """Compute the mean cross-entropy over the places that are taken.

        Written out: torch's own handles labels to be ignored, in a dozen operations more.
        """
        scores = scores_of(functional_call(self._model, named, (inputs,)))
        # A sum of places' weights: those of a batch add up to 1, and empty places have none.
        chosen = log_softmax(scores, 1).gather(1, labels.unsqueeze(1)).squeeze(1)
        return -(chosen * places).sum()


class ClosedForm(Functional):
    """Trains cohorts of `LogisticRegression`.

    A step of one worker moves its weights by `-learning_rate / batch * residual inputs`, with
    `residual = softmax(scores) - onehot(labels)`. On the CPU, in float32, compiled loops do that
    without intermediate tensors or copies of the examples; elsewhere it is a module like others.
    """

    def __init__(self, model: LogisticRegression) -> None:
        super().__init__(model)
        self._classes, self._features = model.weight.shape

    def _train(self, weights: Tensor, batches: Batches, rate: float | None) -> Tensor:
        examples, inputs = batches.examples, batches.examples.inputs
        # Compiled loops take float32 as it lies in memory; everything else goes the general way.
        here = weights.device.type == inputs.device.type == "cpu" and inputs.dtype == torch.float32
        if not (here and inputs.is_contiguous() and weights.is_contiguous()):
            return super()._train(weights, batches, rate)
        indices, places = weighted_places(batches)
        if indices.numel() == 0:
            return weights.new_zeros(len(indices), self.dim)
        self._check_chosen(indices, examples)
        out = weights.new_empty(len(indices), self.dim)
        shares = _NO_SHARES if places is None else places.float().numpy()
        threads = threads_for(out.numel())
        # Four tasks a thread, so that a slow one does not keep the others waiting at the end.
        tasks = min(len(out), 4 * threads) if threads > 1 else 1
        run_tasks(
            train_logistic, tasks, threads, tasks,
            weights.detach().numpy(), self._classes, inputs.flatten(1).numpy(),
            examples.labels.numpy(), indices.contiguous().numpy(), shares,
            np.float32(1.0 if rate is None else -rate), out.numpy(),
        )  # fmt: skip
        return out if places is None else clear_absent(out, batches)

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


class WorkerLoop(LocalTrainer):
    """Trains the workers of a cohort one by one: works for every module, and any loss.

    As many workers at a time as torch has threads, each on one: the fastest way measured for
    recurrent models, whose kernels are fused but too short to be shared by threads. A worker's bits
    do not depend on the number of threads, since each worker is always trained on one. Models that
    draw numbers, such as dropout's masks, share torch's global generator: there it is one worker
    after another, each with a seed of its own.
    """

    def __init__(
        self, model: nn.Module, *, loss: Loss | None = None, keep_local: bool = False
    ) -> None:
        super().__init__(model, loss=loss, keep_local=keep_local)
        self._draws = any(map(_draws_numbers, model.modules()))
        self._replicas: list[_Replica] = []

    def _train(self, weights: Tensor, batches: Batches, rate: float | None) -> Tensor:
        out, before = weights.new_empty(len(batches.indices), self.dim), torch.get_rng_state()
        self._train_all(weights, batches, rate, out)
        if not self._draws and not torch.equal(before, torch.get_rng_state()):
            # A function of the model draws numbers, which no layer told: again, with seeds.
            torch.set_rng_state(before)
            self._draws = True
            self._train_all(weights, batches, rate, out)
        for replica in self._replicas:
            replica.check_buffers()
        return out

    def _train_all(
        self, weights: Tensor, batches: Batches, rate: float | None, out: Tensor
    ) -> None:
        device, present = weights.device, batches.present
        threads = 1 if self._draws or device.type != "cpu" else torch.get_num_threads()
        # Weights may have moved to another device since the last call.
        if self._replicas and self._replicas[0].device != device:
            self._replicas = []
        while len(self._replicas) < threads:
            self._replicas.append(_Replica(self._model, self._layout, device, self.loss))
        seeds = batches.seeds() if self._draws and batches.seeds is not None else None
        job = weights, batches, rate, seeds, out
        if threads == 1:
            # Workers with seeds set the global generator, which must stay as it is.
            cuda = [] if device.type == "cpu" else [device]
            with nullcontext() if seeds is None else torch.random.fork_rng(devices=cuda):
                self._replicas[0].train(iter(range(len(out))), *job)
            return
        order = list(range(len(out)))
        if present is not None:  # the longest first, so that threads end together
            order = present.flatten(1).sum(1).argsort(descending=True, stable=True).tolist()
        turns = iter(order)  # shared by the threads: whoever is free takes the next
        # Torch's number of threads belongs to the calling thread: each new one has its own.
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            replicas = self._replicas[:threads]
            # A result is asked of every thread, so that an error in one of them is raised here.
            for done in [pool.submit(replica.train, turns, *job) for replica in replicas]:
                done.result()


def _draws_numbers(module: nn.Module) -> bool:
    """Whether a layer draws random numbers while training."""
    dropout = isinstance(module, _DropoutNd) and module.p > 0
    between = isinstance(module, nn.RNNBase) and module.dropout > 0
    return dropout or between or isinstance(module, nn.RReLU)


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
        # As views, all weights are set by one copy, and steps change the flat vector.
        parameters = list(self._model.parameters())
        for parameter, view in zip(parameters, layout.split(self._flat), strict=True):
            parameter.data = view
        self._trained: list[Tensor] = [p for p in parameters if p.requires_grad]
        self._buffers = self._versions()

    def train(
        self,
        turns: Iterator[int],
        weights: Tensor,
        batches: Batches,
        rate: float | None,
        seeds: Tensor | None,
        out: Tensor,
    ) -> None:
        """Train the workers of the cohort that are next in turn; write to their rows of `out`."""
        for worker in turns:
            if seeds is not None:
                torch.manual_seed(int(seeds[worker]))
            self._flat.copy_(weights)
            row = out[worker]
            if rate is None:
                row.zero_()
            present = None if batches.present is None else batches.present[worker]
            for step, chosen in enumerate(batches.indices[worker]):
                if present is not None:
                    chosen = chosen[present[step]]
                if len(chosen):
                    self._step(batches.examples, chosen, rate, row)
            if rate is not None:
                torch.sub(self._flat, weights, out=row)

    def _step(self, examples: Examples, chosen: Tensor, rate: float | None, row: Tensor) -> None:
        with enough_examples(len(chosen)):
            scores = scores_of(self._model(examples.inputs.index_select(0, chosen)))
        loss = self._loss(scores, examples.labels.index_select(0, chosen))
        slopes = torch.autograd.grad(loss, self._trained, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            if rate is not None:
                torch._foreach_add_(self._trained, slopes, alpha=-rate)
                return
            views = zip(self._model.parameters(), self._layout.split(row), strict=True)
            trained = [view for parameter, view in views if parameter.requires_grad]
            torch._foreach_copy_(trained, slopes)

    def _versions(self) -> dict[str, tuple[int, int]]:
        # Torch counts the in-place changes of a tensor; another tensor has another identity.
        return {name: (id(b), b._version) for name, b in self._model.named_buffers()}

    def check_buffers(self) -> None:
        """Raise if training has changed buffers, which no layer told: they are not averaged."""
        versions, before = self._versions(), self._buffers
        if versions != before:
            names = {n for n in versions | before if versions.get(n) != before.get(n)}
            raise ArgumentError(
                f"model must not change its buffers while training: {', '.join(sorted(names))}"
            )


def trainer_for(
    model: nn.Module, *, loss: Loss | None = None, keep_local: bool = False
) -> LocalTrainer:
    """Make the fastest trainer for a model.

    In closed form for logistic regression; in a loop for models with recurrent layers, dropout or
    BatchNorm, and for a loss of one's own; else all workers at once.

    Args:
        model: Maps inputs `(batch, ...)` to scores `(batch, classes)`. Its weights are not taken.
        loss: As the `Task` has it; cross-entropy if None.
        keep_local: As the `Task` has it.

    Raises:
        ArgumentError: The model has no parameters, or training it would change buffers.

    >>> type(trainer_for(LogisticRegression())).__name__
    'ClosedForm'
    """
    # Exactly this class: a subclass may compute something else.
    if type(model) is LogisticRegression and loss is None:
        return ClosedForm(model)
    looped = (*_RECURRENT, _BatchNorm)
    if loss is not None or any(isinstance(m, looped) or _draws_numbers(m) for m in model.modules()):
        return WorkerLoop(model, loss=loss, keep_local=keep_local)
    return Functional(model, keep_local=keep_local)
