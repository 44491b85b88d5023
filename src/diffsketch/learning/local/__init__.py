"""Local training: the gradients or updates of a whole cohort as one computation.

`trainer_for` chooses among `ClosedForm` (logistic regression), `Functional` (any feed-forward
module, all workers at once), `BatchedGRU` (the same for `CharGRU`) and `Loop` (any module, one
worker after another or on threads).
"""

from diffsketch.learning.local.base import LocalTrainer
from diffsketch.learning.local.choose import TrainerKind, trainer_for
from diffsketch.learning.local.closed import ClosedForm
from diffsketch.learning.local.functional import Functional
from diffsketch.learning.local.gru import BatchedGRU
from diffsketch.learning.local.loop import Loop

__all__ = [
    "BatchedGRU",
    "ClosedForm",
    "Functional",
    "LocalTrainer",
    "Loop",
    "TrainerKind",
    "trainer_for",
]
