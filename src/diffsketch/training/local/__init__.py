"""Local training: the gradients or updates of a cohort as one computation."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from diffsketch.errors import check
from diffsketch.training.local.closed_form import ClosedForm
from diffsketch.training.local.trainers import Functional, LocalTrainer, WorkerLoop, draws_numbers
from diffsketch.training.models import CharLSTM, LogisticRegression
from diffsketch.training.tasks import Loss

__all__ = ["ClosedForm", "Functional", "LocalTrainer", "TrainerKind", "WorkerLoop", "trainer_for"]

TrainerKind: TypeAlias = Literal["auto", "closed", "batched", "threads", "loop"]

_RECURRENT = (CharLSTM, nn.RNNBase, nn.RNNCellBase)


def trainer_for(
    model: nn.Module,
    *,
    kind: TrainerKind = "auto",
    loss: Loss | None = None,
    keep_local: bool = False,
) -> LocalTrainer:
    """Make the trainer for a model.

    Args:
        model: Maps inputs `(batch, ...)` to scores `(batch, classes)`. Its weights are not taken.
        kind: `closed` is for logistic regression only; `batched` trains all workers at once by
            torch.func, for modules without control flow that depends on values; `threads` trains
            several workers at a time, each on a thread; `loop` one after another, with a generator
            for each if the model draws numbers. `auto` takes the fastest: closed, loop for models
            with dropout, threads for BatchNorm, for a loss of one's own and for recurrent models,
            batched for others.
        loss: As the `Task` has it; cross-entropy if None.
        keep_local: As the `Task` has it.

    Raises:
        ArgumentError: The kind is unknown or does not fit the model or the loss, or training the
            model would change buffers, or draw random numbers for all workers at once.

    >>> type(trainer_for(LogisticRegression())).__name__
    'ClosedForm'
    """
    check(kind in get_args(TrainerKind), "kind", f"be one of {get_args(TrainerKind)}", kind)
    # Exactly this class: a subclass may compute something else.
    logistic = isinstance(model, LogisticRegression) and type(model) is LogisticRegression
    random = any(map(draws_numbers, model.modules()))
    mixing = any(isinstance(module, _BatchNorm) for module in model.modules())
    if kind in ("closed", "batched"):
        check(loss is None, "loss", f"be None, which is cross-entropy, for kind={kind!r}", loss)
        why = f"have no layers that mix examples, as BatchNorm does, for kind={kind!r}"
        check(not mixing, "model", why, type(model).__name__)
    if kind == "closed" or (kind == "auto" and logistic and loss is None):
        check(logistic, "model", "be a LogisticRegression for kind='closed'", type(model).__name__)
        assert isinstance(model, LogisticRegression)  # noqa: S101 (for the type checker)
        return ClosedForm(model)
    recurrent = any(isinstance(module, _RECURRENT) for module in model.modules())
    if kind == "auto" and (random or mixing or recurrent or loss is not None):
        kind = "loop" if random else "threads"
    if kind in ("loop", "threads"):
        return WorkerLoop(model, threads=kind == "threads", loss=loss, keep_local=keep_local)
    return Functional(model, keep_local=keep_local)
