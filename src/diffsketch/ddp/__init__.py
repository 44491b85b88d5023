"""Private, compressed means over torch.distributed: process groups, and hooks of DDP."""

from diffsketch.ddp.group import GroupMean, all_reduce_mean
from diffsketch.ddp.hook import HookState, sketch_hook, sketch_state

__all__ = ["GroupMean", "HookState", "all_reduce_mean", "sketch_hook", "sketch_state"]
