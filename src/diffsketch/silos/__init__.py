"""Records in silos: per-record gradients, and the batches of a party that are drawn in secret."""

from diffsketch.silos.gradients import RecordGradients, opacus_gradients
from diffsketch.silos.records import Records, check_persons

__all__ = ["RecordGradients", "Records", "check_persons", "opacus_gradients"]
