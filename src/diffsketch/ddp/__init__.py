"""Private, compressed means over torch.distributed: process groups, DDP's hooks, local steps."""

from diffsketch.ddp.group import GroupMean, SiloSteps, all_reduce_mean
from diffsketch.ddp.hook import HookState, own_gradients, same_weights, sketch_hook, sketch_state
from diffsketch.ddp.local_steps import LocalSteps
from diffsketch.ddp.store import StoreGroup, StoreMean

__all__ = [
    "GroupMean", "HookState", "LocalSteps", "SiloSteps", "StoreGroup", "StoreMean",
    "all_reduce_mean", "own_gradients", "same_weights", "sketch_hook", "sketch_state",
]  # fmt: skip
