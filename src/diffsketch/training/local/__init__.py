"""Local training: the gradients or updates of a whole cohort as one computation.

`trainer_for` chooses among `ClosedForm` (logistic regression), `Functional` (any feed-forward
module, all workers at once), `BatchedGRU` (the same for `CharGRU`) and `Loop` (any module, one
worker after another or on threads).
"""

from diffsketch.training.local.any_model import Functional, Loop
from diffsketch.training.local.base import LocalTrainer
from diffsketch.training.local.choose import TrainerKind, trainer_for
from diffsketch.training.local.closed_form import BatchedGRU, ClosedForm

__all__ = [
    "BatchedGRU",
    "ClosedForm",
    "Functional",
    "LocalTrainer",
    "Loop",
    "TrainerKind",
    "trainer_for",
]
