"""Local training: the gradients or updates of a whole cohort as one computation."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from torch import nn

from diffsketch.errors import check
from diffsketch.training.local.any_model import Functional, WorkerLoop
from diffsketch.training.local.base import LocalTrainer
from diffsketch.training.local.closed_form import BatchedGRU, ClosedForm
from diffsketch.training.models import CharGRU, CharLSTM, LogisticRegression

__all__ = [
    "BatchedGRU",
    "ClosedForm",
    "Functional",
    "LocalTrainer",
    "TrainerKind",
    "WorkerLoop",
    "trainer_for",
]

TrainerKind: TypeAlias = Literal["auto", "closed", "batched", "threads", "loop"]

_RECURRENT = (CharGRU, CharLSTM, nn.RNNBase, nn.RNNCellBase)


def trainer_for(model: nn.Module, *, kind: TrainerKind = "auto") -> LocalTrainer:
    """The trainer for a model.

    Args:
        model: Maps inputs `(batch, ...)` to scores `(batch, classes)`. Its weights are not taken.
        kind: `closed` is for logistic regression only; `batched` trains all workers at once by
            torch.func, for modules without control flow that depends on values; `threads` trains
            several workers at a time, each on a thread; `loop` one after another. `auto` takes the
            fastest: closed, threads for recurrent models but `CharGRU`, batched for others.

    Raises:
        ArgumentError: There is no such kind, it does not fit the model, or training the model
            would change buffers or draw random numbers.

    >>> type(trainer_for(LogisticRegression())).__name__
    'ClosedForm'
    """
    check(kind in get_args(TrainerKind), "kind", f"be one of {get_args(TrainerKind)}", kind)
    # Exactly this class: a subclass may compute something else.
    logistic = isinstance(model, LogisticRegression) and type(model) is LogisticRegression
    if kind == "closed" or (kind == "auto" and logistic):
        check(logistic, "model", "be a LogisticRegression for kind='closed'", type(model).__name__)
        assert isinstance(model, LogisticRegression)  # noqa: S101 (for the type checker)
        return ClosedForm(model)
    if type(model) is CharGRU and kind in ("auto", "batched"):
        return BatchedGRU(model)
    recurrent = any(isinstance(module, _RECURRENT) for module in model.modules())
    if kind == "threads" or (kind == "auto" and recurrent):
        return WorkerLoop(model, threads=True)
    return WorkerLoop(model) if kind == "loop" else Functional(model)
