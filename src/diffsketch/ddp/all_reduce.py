"""Means of tensors over a process group by a method, without DDP."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from diffsketch.ddp.agreement import device_of, handshake
from diffsketch.ddp.group import GroupMean
from diffsketch.errors import ArgumentError
from diffsketch.methods.base import Method
from diffsketch.sketch.hashing import SketchKey

__all__ = ["all_reduce_mean"]


def all_reduce_mean(
    tensors: Sequence[Tensor],
    mean: GroupMean | Method,
    *,
    group: dist.ProcessGroup | None = None,
    trusted_group: bool = False,
) -> None:
    """Replace tensors by their means over all ranks, in place: one round, without DDP.

    Args:
        tensors: Of any floating type; together as many numbers as the method's `dim`, in the same
            order on all ranks.
        mean: How they are averaged: `GroupMean(method, key=key)`, made once for all rounds, which
            counts what they cost. Or a method, for a single round: ranks then make up a key for
            its hashes and compare their options, by two small gathers, and nothing is counted.
        group: With a method, the processes; all of them if not given.
        trusted_group: With a method, as in `GroupMean`.

    Raises:
        ArgumentError: `mean` is something else; or a tensor is not dense or not floating, and then
            the other ranks raise as well.
        MismatchError: Ranks disagree, or the tensors have another number of coordinates.
    """
    if isinstance(mean, Method):
        mean = _of_one_round(mean, group, trusted_group=trusted_group)
    elif not isinstance(mean, GroupMean):
        raise ArgumentError(f"mean must be a GroupMean or a Method, got {type(mean).__name__}")
    elif group is not None or trusted_group:
        raise ArgumentError("group and trusted_group must not be given with a GroupMean")
    try:
        vector = _joined(tensors)
    except Exception as error:
        mean.fail(error)
    found = mean.mean(vector, layout=str([tuple(tensor.shape) for tensor in tensors]))
    begin = 0
    with torch.no_grad():
        for tensor in tensors:
            tensor.copy_(found[begin : begin + tensor.numel()].view(tensor.shape))
            begin += tensor.numel()


def _of_one_round(
    method: Method, group: dist.ProcessGroup | None, *, trusted_group: bool
) -> GroupMean:
    """With hashes that no other round has: from bytes of all ranks."""
    if not (dist.is_available() and dist.is_initialized()):
        raise ArgumentError("a process group is needed: call init_process_group before")
    share = secrets.token_bytes(32)
    key = SketchKey(handshake(group, {}, device=device_of(group), share=share))
    # This compares the options of all ranks.
    return GroupMean(method, key=key, group=group, trusted_group=trusted_group)


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    for tensor in tensors:
        if tensor.layout != torch.strided or not tensor.is_floating_point():
            raise ArgumentError(
                "tensors must be dense and of a floating type, got a "
                f"{tensor.dtype} tensor with the layout {tensor.layout}"
            )
    flat = [tensor.detach().reshape(-1).to(torch.float32) for tensor in tensors]
    return torch.cat(flat) if flat else torch.zeros(0)
