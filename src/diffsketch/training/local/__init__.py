"""Local training: the gradients or updates of a whole cohort as one computation.

`trainer_for` chooses among `ClosedForm` (logistic regression), `Functional` (any feed-forward
module, all workers at once), `BatchedGRU` (the same for `CharGRU`) and `Loop` (any module, one
worker after another or on threads).
"""

from diffsketch.training.local.base import LocalTrainer
from diffsketch.training.local.choose import TrainerKind, trainer_for
from diffsketch.training.local.closed import ClosedForm
from diffsketch.training.local.functional import Functional
from diffsketch.training.local.gru import BatchedGRU
from diffsketch.training.local.loop import Loop

__all__ = [
    "BatchedGRU",
    "ClosedForm",
    "Functional",
    "LocalTrainer",
    "Loop",
    "TrainerKind",
    "trainer_for",
]
