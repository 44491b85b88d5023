"""Which models a DDP hook can average, and what DDP itself sends beside the hook.

A hook sees gradients only. DDP sends more than that, as it is: rank 0's buffers before each
forward pass, which parameters were used, who has inputs left. No claim is about these, so with a
method that claims something they are refused. `trusted_group` changes nothing: they do not only
reach the other processes, they also end up in the model (a parameter that nobody used is not
updated), or make the gradients of one rank depend on the data of another, whose clip then bounds
nothing.
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from diffsketch.errors import ArgumentError

__all__ = ["check_averaged", "check_nothing_else_is_sent", "trained"]


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that DDP averages, by name, in the model's order."""
    ignored: set[str] = set()
    if isinstance(model, DistributedDataParallel):
        ignored, model = set(model.parameters_to_ignore), model.module
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and name not in ignored
    }


def check_averaged(model: nn.Module) -> None:
    """Raise unless a hook gets all gradients of the model, as real numbers.

    Raises:
        ArgumentError: The model is sharded, DDP has a hook of its own, or parameters are not
            real floating numbers.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be a module, got {type(model).__name__}")
    if _is_sharded(model):
        raise ArgumentError(
            "model must not be sharded: FSDP and tensor-parallel modules hold parts of their "
            "parameters and average by themselves; wrap the whole module in "
            "DistributedDataParallel, or average gradients of your own with all_reduce_mean"
        )
    if getattr(model, "mixed_precision", None) is not None and isinstance(
        model, DistributedDataParallel
    ):
        raise ArgumentError(
            "mixed_precision of DistributedDataParallel must be None: it is a hook itself, and "
            "there can be one; use torch.autocast, or parameters of type bfloat16"
        )
    for name, parameter in trained(model).items():
        if not parameter.is_floating_point():
            raise ArgumentError(
                f"parameters must be of real floating types, got {name} of type "
                f"{parameter.dtype}; keep complex ones as two real parts (torch.view_as_real)"
            )


def check_nothing_else_is_sent(model: nn.Module, method: str) -> None:
    """Raise if ranks would send what the method's claim is not about.

    Guarantees (`tests/ddp/test_ddp_claims.py`): each of the ways below is refused, and a model
    that sends nothing else is not.

    Args:
        model: What the hook is for.
        method: Its name, for the error.

    Raises:
        ArgumentError: The model is not wrapped yet, so that this cannot be seen, or DDP or its
            modules send something of a rank's data.
    """
    if not isinstance(model, DistributedDataParallel):
        raise ArgumentError(
            f"model must be wrapped in DistributedDataParallel before a state of method={method!r} "
            "is made: what DDP sends beside the hook decides whether its claim holds, got "
            f"{type(model).__name__}"
        )
    for sends, what, instead in _channels(model):
        if sends:
            raise ArgumentError(
                f"the claim of method={method!r} does not cover all that is sent: {what}; {instead}"
            )


def _channels(model: DistributedDataParallel) -> tuple[tuple[bool, str, str], ...]:
    """Whether it is there, what it sends, and what to do instead."""
    used = "all ranks learn, exactly, which parameters a rank's data has used"
    use_all = "leave it off, and use every parameter in every step (add 0 times those left over)"
    return (
        (
            bool(_syncs_buffers(model) and model.modules_buffers),
            "broadcast_buffers of DistributedDataParallel sends rank 0's buffers, such as means of "
            "BatchNorm, to all ranks",
            "wrap with broadcast_buffers=False (forward_sync_buffers=False from PyTorch 2.13 on), "
            "or use layers without buffers (GroupNorm)",
        ),
        (
            any(isinstance(one, nn.SyncBatchNorm) for one in model.modules()),
            "SyncBatchNorm sends statistics of each rank's batch, and makes all gradients depend "
            "on them",
            "use layers that look at one example at a time (GroupNorm, LayerNorm)",
        ),
        (bool(model.find_unused_parameters), f"with find_unused_parameters {used}", use_all),
        (bool(model.static_graph), f"with static_graph {used} in the first step", use_all),
        (
            bool(getattr(model, "_delay_all_reduce_params", ())),
            "delay_all_reduce_named_params averages gradients without the hook",
            "wrap without it",
        ),
        (
            bool(getattr(getattr(model, "_join_config", None), "enable", False)),
            "join tells all ranks how many inputs a rank has",
            "give all ranks the same number of steps",
        ),
    )


def _syncs_buffers(model: DistributedDataParallel) -> bool:
    """By the newer name, where there is one."""
    newer = getattr(model, "forward_sync_buffers", None)
    return bool(model.broadcast_buffers if newer is None else newer)


def _is_sharded(model: nn.Module) -> bool:
    """By the classes of FSDP and DTensor, which need not be imported for other models."""
    fsdp, tensors = (sys.modules.get(f"torch.distributed.{one}") for one in ("fsdp", "tensor"))
    names = ("FullyShardedDataParallel", "FSDPModule")
    kinds = tuple(getattr(fsdp, name) for name in names if hasattr(fsdp, name))
    tensor = getattr(tensors, "DTensor", None)
    return any(isinstance(one, kinds) for one in model.modules()) or (
        tensor is not None and any(isinstance(_data(one), tensor) for one in model.parameters())
    )


def _data(parameter: nn.Parameter) -> torch.Tensor:
    return parameter.data
