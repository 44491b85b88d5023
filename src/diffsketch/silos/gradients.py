"""The gradient of each record, for any module that `torch.func` takes.

Linear and convolutional layers have a fast way: one pass over a piece of records gives every
layer's input and the gradient of its output, and a record's gradient is their product. Models with
any other trained layer go through `torch.func`. Both write to one buffer, a piece at a time, so
that memory does not grow with the batch.

*A record's gradient must not depend on other records.* Claims bound what a record adds to a sum;
if it also changed the last bits of others' gradients, which batched products may do, it would move
the sum by more. So every piece has the same shape, with rows of zeros where there are no records,
and `RecordGradients` tries on made-up records and weights whether a row has the same bits at every
place and in any company. If not, records are taken one at a time. A module that changes its buffers
while training would carry something of a record to later ones, and is refused.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, unfold
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from diffsketch.errors import ArgumentError, MismatchError, check, check_whole

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]

_LOG = logging.getLogger("diffsketch.silos")
_PIECE = 64
_TOLERANCE = 1e-3  # of the largest coordinate, between both ways to one gradient
_RECORDS_TRIED = 4


class _NoFastWay(Exception):  # noqa: N818 - caught here
    """A layer was called more than once, or with something that the fast way does not know."""


def check_separable(model: nn.Module) -> None:
    """Raise an `ArgumentError`, with the usual replacement, if a layer mixes records."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            cure = "use nn.GroupNorm(min(32, channels), channels), or LayerNorm"
        elif isinstance(module, _InstanceNorm) and module.track_running_stats:
            cure = "give track_running_stats=False"
        else:
            continue
        kind = type(module).__name__
        raise ArgumentError(f"model must not mix records, got {kind} at {name!r}: {cure}")


class RecordGradients:
    """Gradients of the loss of single records, with respect to a module's trained parameters.

    Coordinates are those of `model.parameters()` that require a gradient, in their order.

    Guarantees (`tests/silos/test_gradients.py`): each row is the gradient that autograd computes
    for that record alone, to rounding; it has the same bits whatever the other records are, also
    where one of them makes the module fail (its row is NaN, which counts as zeros); the module and
    its `.grad` stay as they are; memory does not grow with the number of records.

    Args:
        model: The module, whose parameters at the time of a call are used. Not a DDP wrapper.
        loss: Loss of scores and labels, a mean over the batch; cross-entropy if None.
        piece: Records at a time.

    Raises:
        ArgumentError: A layer mixes records (BatchNorm), or nothing is to be trained.
    """

    def __init__(self, model: nn.Module, *, loss: Loss | None = None, piece: int = _PIECE) -> None:
        check(isinstance(model, nn.Module), "model", "be a module", model)
        check_whole("piece", piece, least=1)
        check_separable(model)
        self.model, self.loss, self.piece = model, loss or cross_entropy, piece
        self._names = [name for name, p in model.named_parameters() if p.requires_grad]
        check(bool(self._names), "model", "have parameters to train", model)
        sizes = [dict(model.named_parameters())[name].numel() for name in self._names]
        self._ends = torch.tensor(sizes).cumsum(0).tolist()
        self.dim = self._ends[-1]
        self._starts = dict(zip(self._names, [0, *self._ends], strict=False))
        self._layers = _fast_layers(model, self._names)
        self._tried = False

    def pieces(self, inputs: Tensor, labels: Tensor) -> Iterator[Tensor]:
        """Compute gradients `(records, dim)`, float32, of as many records at a time as `piece`.

        Each piece is written over the one before it.
        """
        if len(inputs) != len(labels):
            raise MismatchError(f"labels must be {len(inputs)}, one for each input: {len(labels)}")
        self._try(inputs, labels)
        buffer = inputs.new_empty((self.piece, self.dim), dtype=torch.float32)
        for start in range(0, len(inputs), self.piece):
            stop = min(start + self.piece, len(inputs))
            # Always of one shape: products of another may round in another way.
            missing = self.piece - (stop - start)
            rows = [
                torch.cat([values[start:stop], values.new_zeros((missing, *values.shape[1:]))])
                for values in (inputs, labels)
            ]
            try:
                self._compute(rows[0], rows[1], out=buffer)
            except Exception as error:  # raising would reveal something about a record
                _LOG.warning("records are taken one by one, as their gradients failed: %s", error)
                self._compute_apart(rows[0], rows[1], buffer)
            yield buffer[: stop - start]

    def _compute(self, inputs: Tensor, labels: Tensor, *, out: Tensor) -> None:
        """Write the gradients of a whole piece."""
        if self._layers is not None:
            try:
                self._compute_fast(inputs, labels, self._layers, out)
            except _NoFastWay:
                self._layers = None
        if self._layers is None:
            self._compute_any(inputs, labels, out)

    def _compute_apart(self, inputs: Tensor, labels: Tensor, out: Tensor) -> None:
        """Write each record's gradient, computed in a piece of its own; NaN where that fails."""
        alone = torch.empty_like(out)
        for row in range(len(inputs)):
            single = [torch.zeros_like(values) for values in (inputs, labels)]
            for values, every in zip(single, (inputs, labels), strict=True):
                values[0] = every[row]
            try:
                self._compute(single[0], single[1], out=alone)
                out[row] = alone[0]
            except Exception as error:
                _LOG.warning("a record counts as zeros, as its gradient failed: %s", error)
                out[row] = torch.nan

    def _compute_any(self, inputs: Tensor, labels: Tensor, out: Tensor) -> None:
        """Write gradients by `torch.func`."""
        values = dict(self.model.named_parameters())
        trained = {name: values[name].detach() for name in self._names}
        rest = {name: p.detach() for name, p in values.items() if name not in trained}
        rest |= dict(self.model.named_buffers())

        def loss_of(weights: dict[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
            scores = functional_call(self.model, {**rest, **weights}, (record[None],))
            return self.loss(_scores(scores), label[None])

        gradients = vmap(grad(loss_of), in_dims=(None, 0, 0), randomness="different")
        for name, gradient in gradients(trained, inputs, labels).items():
            start = self._starts[name]
            out[:, start : start + trained[name].numel()] = gradient.flatten(1)

    def _compute_fast(
        self, inputs: Tensor, labels: Tensor, names: Sequence[str], out: Tensor
    ) -> None:
        """Write gradients as products of the layers' inputs and the gradients of their outputs."""
        seen: dict[str, tuple[Tensor, Tensor]] = {}
        layers = {name: self.model.get_submodule(name) for name in names}

        def keep(name: str) -> Callable[..., None]:
            def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
                del module
                if name in seen or len(args) != 1 or len(args[0]) != len(inputs):
                    raise _NoFastWay
                seen[name] = args[0].detach(), output

            return hook

        handles = [layer.register_forward_hook(keep(name)) for name, layer in layers.items()]
        try:
            with torch.enable_grad():
                scores = _scores(self.model(inputs))
                if self.loss is cross_entropy:
                    total = cross_entropy(scores, labels, reduction="none").sum()
                else:
                    total = vmap(lambda s, y: self.loss(s[None], y[None]))(scores, labels).sum()
                if len(seen) < len(layers):
                    raise _NoFastWay
                gradients = torch.autograd.grad(total, [output for _, output in seen.values()])
        finally:
            for handle in handles:
                handle.remove()
        for (name, (before, _)), gradient in zip(seen.items(), gradients, strict=True):
            layer = layers[name]
            prefix = f"{name}." if name else ""
            if isinstance(layer, nn.Conv2d):
                padding: Any = layer.padding  # numbers: a layer with a name for it has no fast way
                before = unfold(before, layer.kernel_size, layer.dilation, padding, layer.stride)
                gradient = gradient.flatten(2)
                weight = torch.bmm(gradient, before.transpose(1, 2))
                bias = gradient.sum(2)
            else:
                if gradient.dim() == 2:  # a subclass may flatten and convert its inputs
                    before = before.flatten(1).to(gradient.dtype)
                weight, bias = None, gradient
                if gradient.dim() > 2:
                    before, gradient = before.flatten(1, -2), gradient.flatten(1, -2)
                    weight, bias = torch.bmm(gradient.transpose(1, 2), before), gradient.sum(1)
            start = self._starts.get(f"{prefix}weight")
            if start is not None:
                matrix = layer.get_parameter("weight").flatten(1)
                rows, cols = matrix.shape
                target = out[:, start : start + rows * cols].view(-1, rows, cols)
                if weight is None:
                    torch.mul(gradient[:, :, None], before[:, None, :], out=target)
                else:
                    target.copy_(weight.view_as(target))
            if (start := self._starts.get(f"{prefix}bias")) is not None:
                out[:, start : start + bias.shape[1]] = bias

    def _try(self, inputs: Tensor, labels: Tensor) -> None:
        """Once: compare both ways, and a record's bits at all places; refuse changing buffers.

        With made-up records and made-up weights: with those of the first round, which others may
        choose, and which are often zeros, much goes unnoticed.
        """
        if self._tried:
            return
        generator = torch.Generator().manual_seed(0)

        def made_up(values: Tensor) -> Tensor:
            shape = (self.piece, *values.shape[1:])
            if values.is_floating_point():
                return torch.randn(shape, generator=generator).to(values)
            return torch.randint(2, shape, generator=generator).to(values)  # two classes, or tokens

        model, self.model = self.model, copy.deepcopy(self.model)
        try:
            with torch.no_grad():
                for weight in self.model.parameters():
                    scale = max(1, weight.shape[1:].numel()) ** -0.5
                    weight.copy_(scale * torch.randn(weight.shape, generator=generator))
            first, second = made_up(inputs), made_up(labels)
            gradients = first.new_empty((self.piece, self.dim), dtype=torch.float32)
            buffers = _versions(self.model)
            with torch.random.fork_rng(range(torch.cuda.device_count())):
                self._compute(first, second, out=gradients)
            changed = sorted({name for name, _, _ in _versions(self.model) ^ buffers})
            check(not changed, "model", "not change its buffers while training", changed)
            mixes = self._mixes(first, second, made_up(inputs), made_up(labels), gradients)
            self.model.eval()  # without dropout, so that rows can be compared
            self._compute(first, second, out=gradients)
            if self._layers is not None:
                few = min(_RECORDS_TRIED, self.piece)
                slow = torch.empty_like(gradients[:few])
                self._compute_any(first[:few], second[:few], slow)
                gap = (slow - gradients[:few]).abs().max()
                if not bool(gap <= _TOLERANCE * slow.abs().max()):  # parameters used elsewhere
                    self._layers = None
                    self._compute(first, second, out=gradients)
            moved, company = torch.empty_like(gradients), made_up(inputs)
            for shift in {1, self.piece // 2, self.piece - 1} & {*range(1, self.piece)}:
                # Each record at another place, beside the same ones, then beside none but others.
                self._compute(first.roll(shift, 0), second.roll(shift, 0), out=moved)
                same = torch.equal(moved, gradients.roll(shift, 0))
                company[shift], companions = first[0], second.roll(shift, 0)
                self._compute(company, companions, out=moved)
                if not (same and torch.equal(moved[shift], gradients[0])):
                    self.piece = 1
                    break
            if mixes:
                self.piece = 1
        finally:
            self.model = model
        self._tried = True  # not after an error: nothing may be computed before all of this holds

    def _mixes(
        self, inputs: Tensor, labels: Tensor, others: Tensor, their_labels: Tensor, out: Tensor
    ) -> bool:
        """Whether a record's gradient in training depends on the records beside it.

        With the same draws of dropout, beside others that are far larger. And the same records must
        have the same gradients after others as before: what a module keeps would tell of those.
        """
        if others.is_floating_point():
            sizes = torch.logspace(0, 30, self.piece).to(others)  # most far beyond any real record
            others = others * sizes.view(-1, *[1] * (others.dim() - 1))
        others[0], their_labels[0] = inputs[0], labels[0]
        again = torch.empty_like(out)

        def compute(rows: Tensor, their: Tensor, out: Tensor) -> None:
            with torch.random.fork_rng(range(torch.cuda.device_count())):  # the caller's goes on
                torch.manual_seed(0)
                self._compute(rows, their, out=out)

        compute(inputs, labels, out)
        compute(others, their_labels, again)
        mixes = not torch.equal(again[0], out[0])
        compute(inputs, labels, again)
        model = type(self.model).__name__
        check(
            torch.equal(again, out), "model", "remember nothing of the records it has seen", model
        )
        return mixes


def _versions(model: nn.Module) -> set[tuple[str, int, int]]:
    """Name the state of each buffer: another tensor, or one written to, has another."""
    return {(name, id(values), values._version) for name, values in model.named_buffers()}


def _scores(output: Any) -> Tensor:
    scores: Tensor = output if isinstance(output, Tensor) else output.logits
    return scores


def _fast_layers(model: nn.Module, names: list[str]) -> list[str] | None:
    """Name all layers with trained parameters, if there is a fast way for each of them."""
    layers, covered = list[str](), 0
    for name, module in model.named_modules():
        if getattr(module, "inplace", False):
            return None  # the gradient of an output that is written over is another's
        if not any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
            continue
        # What a subclass of Linear computes is compared with `torch.func`, as all else here.
        plain = isinstance(module, nn.Linear) or (
            type(module) is nn.Conv2d
            and module.groups == 1
            and module.padding_mode == "zeros"
            and not isinstance(module.padding, str)
        )
        if not plain:
            return None
        layers.append(name)
        covered += len(list(module.parameters(recurse=False)))
    return layers if covered >= len(names) else None


def opacus_gradients(model: nn.Module) -> Tensor:
    """Take the gradients `(records, dim)` that Opacus's `GradSampleModule` has left in `model`.

    For `release_records` of `diffsketch.silos.messages`, on a batch of `Records.drawn`; they are
    removed. Nothing here tries whether a record has the same last bits in any company there, on
    which a proven claim then rests.

    Raises:
        ArgumentError: A parameter has none.
    """
    rows = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        sample = getattr(parameter, "grad_sample", None)
        check(isinstance(sample, Tensor), "model", f"have a grad_sample at {name!r}", sample)
        rows.append(sample.flatten(1).float())  # type: ignore[union-attr]
        parameter.grad_sample = None  # type: ignore[attr-defined]
    return torch.cat(rows, dim=1)
