"""The gradient of each record, for any module that `torch.func` takes.

Each record is a batch of its own for the module, and `vmap` computes a piece of them at a time, in
one buffer: so memory does not grow with the batch.

*A record's gradient must not depend on other records.* Claims bound what a record adds to a sum;
if it also changed the last bits of others' gradients, which batched products may do, it would move
the sum by more. So every piece has the same shape, with rows of zeros where there are no records,
and `RecordGradients` tries on made-up records and weights whether a row has the same bits at every
place and in any company. If not, records are taken one at a time. A module that writes to its
buffers while training would carry something of a record to later ones, and is refused; a buffer
that it assigns is gone after the call.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from diffsketch.errors import ArgumentError, MismatchError, check, check_whole

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]

_LOG = logging.getLogger("diffsketch.silos")
_PIECE = 64


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
        self.dim = sum(p.numel() for p in model.parameters() if p.requires_grad)
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
        values = dict(self.model.named_parameters())
        trained = {name: values[name].detach() for name in self._names}
        rest = {name: p.detach() for name, p in values.items() if name not in trained}
        rest |= dict(self.model.named_buffers())

        def loss_of(weights: dict[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
            output = functional_call(self.model, {**rest, **weights}, (record[None],))
            scores: Tensor = output if isinstance(output, Tensor) else output.logits
            return self.loss(scores, label[None])

        gradients = vmap(grad(loss_of), in_dims=(None, 0, 0), randomness="different")
        of_records = gradients(trained, inputs, labels)
        torch.cat([of_records[name].flatten(1) for name in self._names], dim=1, out=out)

    def _compute_apart(self, inputs: Tensor, labels: Tensor, out: Tensor) -> None:
        """Write each record's gradient, computed in a piece of its own; NaN where that fails."""
        alone = torch.empty_like(out)
        for row in range(len(inputs)):
            single, label = (
                torch.cat([values[row : row + 1], torch.zeros_like(values[1:])])
                for values in (inputs, labels)
            )
            try:
                self._compute(single, label, out=alone)
                out[row] = alone[0]
            except Exception as error:
                _LOG.warning("a record counts as zeros, as its gradient failed: %s", error)
                out[row] = torch.nan

    def _try(self, inputs: Tensor, labels: Tensor) -> None:
        """Once: compare a record's bits at all places; refuse what remembers.

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
            records = made_up(inputs), made_up(labels)
            mixes = self._mixes(*records, made_up(inputs), made_up(labels))
            self.model.eval()  # without dropout, so that rows can be compared
            if mixes or self._moves_bits(*records, made_up(inputs)):
                self.piece = 1
        finally:
            self.model = model
        self._tried = True  # not after an error: nothing may be computed before all of this holds

    def _rows(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Gradients of a whole piece, in memory of their own."""
        out = inputs.new_empty((self.piece, self.dim), dtype=torch.float32)
        self._compute(inputs, labels, out=out)
        return out

    def _mixes(self, inputs: Tensor, labels: Tensor, others: Tensor, their_labels: Tensor) -> bool:
        """Whether a record's gradient in training depends on the records beside it.

        With the same draws of dropout, beside others that are far larger. And the same records must
        have the same gradients after others as before: what a module keeps would tell of those.
        """
        if others.is_floating_point():
            sizes = torch.logspace(0, 30, self.piece).to(others)  # most far beyond any real record
            others = others * sizes.view(-1, *[1] * (others.dim() - 1))
        others[0], their_labels[0] = inputs[0], labels[0]

        def rows_of(records: Tensor, of_records: Tensor) -> Tensor:
            with torch.random.fork_rng(range(torch.cuda.device_count())):  # the caller's goes on
                torch.manual_seed(0)
                return self._rows(records, of_records)

        try:
            rows = rows_of(inputs, labels)
        except RuntimeError as error:  # torch.func refuses to write to what is not its own
            raise ArgumentError(
                "model must be one that torch.func takes, and must not change its buffers while "
                f"training, got {type(self.model).__name__}: {error}"
            ) from error
        mixes = not torch.equal(rows_of(others, their_labels)[0], rows[0])
        kept = torch.equal(rows_of(inputs, labels), rows)
        model = type(self.model).__name__
        check(kept, "model", "remember nothing of the records it has seen", model)
        return mixes

    def _moves_bits(self, inputs: Tensor, labels: Tensor, company: Tensor) -> bool:
        """Whether a record's bits depend on its place, or on the records beside it."""
        rows = self._rows(inputs, labels)
        for shift in {1, self.piece // 2, self.piece - 1} & {*range(1, self.piece)}:
            # Each record at another place, beside the same ones, then beside none but others.
            moved_labels = labels.roll(shift, 0)
            company[shift] = inputs[0]
            same = torch.equal(self._rows(inputs.roll(shift, 0), moved_labels), rows.roll(shift, 0))
            if not (same and torch.equal(self._rows(company, moved_labels)[shift], rows[0])):
                return True
        return False


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
