"""The part of a model's parameters that a rank holds: all of them, or its shards of FSDP's."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from diffsketch.ddp.agreement import digest_of
from diffsketch.errors import ArgumentError

_CHUNK = 1 << 20  # words that are mixed at a time


def sharded_kinds() -> tuple[tuple[type, ...], tuple[type, ...]]:
    """Classes of FSDP's modules and of DTensors, if their modules were imported."""
    fsdp, tensors = (sys.modules.get(f"torch.distributed.{one}") for one in ("fsdp", "tensor"))
    names = ("FullyShardedDataParallel", "FSDPModule")
    modules = tuple(getattr(fsdp, name) for name in names if hasattr(fsdp, name))
    return modules, (tensors.DTensor,) if hasattr(tensors, "DTensor") else ()


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that require a gradient, by name, in the model's order.

    Those that DDP is told to ignore are left out.
    """
    ignored: set[str] = set()
    if isinstance(model, DistributedDataParallel):
        ignored, model = set(model.parameters_to_ignore), model.module
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and name not in ignored
    }


def local_part(tensor: Tensor, name: str = "a tensor") -> Tensor:
    """The numbers of a tensor that are on this rank, without their gradient, in the same memory.

    Raises:
        ArgumentError: It is a DTensor that is not cut along all dimensions of its mesh: ranks that
            hold the same numbers would get different means of them.
    """
    detached: Tensor = tensor.detach()
    if not isinstance(detached, sharded_kinds()[1]):
        return detached
    placements, mesh = detached.placements, detached.device_mesh  # type: ignore[attr-defined]
    for dimension, placement in enumerate(placements):
        if mesh.size(dimension) > 1 and not placement.is_shard():
            raise ArgumentError(
                f"DTensors must be sharded along all dimensions of their mesh, got {name} with "
                f"{placement} along {mesh.size(dimension)} ranks, which hold the same numbers"
            )
    local: Tensor = detached.to_local()  # type: ignore[attr-defined]
    return local


def check_between(group: dist.ProcessGroup | None, inside: Sequence[dist.ProcessGroup]) -> None:
    """Raise an `ArgumentError` unless a group has no rank but this one in common with others.

    Ranks among which a model is sharded hold different numbers, and those of one DDP average by
    themselves: between them, a mean makes no sense.
    """
    ranks = dist.get_process_group_ranks
    others = set(ranks(dist.group.WORLD if group is None else group)) - {dist.get_rank()}
    for one in inside:
        if common := others & set(ranks(one)):
            raise ArgumentError(
                "model must not be averaged or sharded over the ranks of group, got rank "
                f"{min(common)} in both: give the bare module, or wrap it over the ranks of one "
                "machine (process_group=, or the mesh of fully_shard), and as group= those that "
                "hold the same part in other machines"
            )


def bits_digest(tensors: Sequence[Tensor]) -> int:
    """63 bits that tell apart tensors of which any bit differs, but by chance.

    The same on all devices: sums of integers, modulo 2**64, in any order.

    >>> bits_digest([torch.tensor([0.0, 1.0])]) == bits_digest([torch.tensor([-0.0, 1.0])])
    False
    """
    total = 0
    for tensor in tensors:
        flat = tensor.detach().reshape(-1).contiguous()
        words = flat.view(torch.int64 if flat.element_size() == 8 else torch.int32)
        for begin in range(0, len(words), _CHUNK):
            part = words[begin : begin + _CHUNK].to(torch.int64)
            index = torch.arange(begin, begin + len(part), device=part.device)
            mixed = (part + index) * -7046029254386353131  # odd: 2**64 over the golden ratio
            mixed = (mixed ^ (mixed >> 32)) * (2 * index + 1)
            total = (total * 3 + int((mixed ^ (mixed >> 29)).sum().item())) % (1 << 64)
    return total >> 1


@dataclass(frozen=True)
class Piece:
    """Coordinates `begin` to `end` of one parameter, and where they are in a fragment."""

    parameter: int
    begin: int
    end: int
    place: int

    @property
    def places(self) -> slice:
        """Where they are in the fragment."""
        return slice(self.place, self.place + self.end - self.begin)


class LocalWeights:
    """The trained parameters of a model, as far as this rank holds them, as one long vector.

    The vector is never built: `pieces` says where each part of it is.

    Args:
        model: A module; wrapped in DDP, or sharded by `fully_shard`.

    Attributes:
        parameters: By name. What requires no gradient now has no place.
        dim: Numbers that this rank holds.
        layout: Text that ranks which hold the same part of the model have in common.
        inside: Groups within which the model trains as one: DDP's, or those of the dimensions of
            FSDP's mesh; none for a plain module.
        replicas: Whether all ranks of such a group hold the same numbers, as with DDP.

    Raises:
        ArgumentError: The model has no trained parameters here, or complex ones, or is sharded in
            another way than by `fully_shard`.
    """

    def __init__(self, model: nn.Module) -> None:
        if not isinstance(model, nn.Module):
            raise ArgumentError(f"model must be a module, got {type(model).__name__}")
        modules, tensors = sharded_kinds()
        if any(type(one).__name__ == "FullyShardedDataParallel" for one in model.modules()):
            raise ArgumentError(
                "model must not be in FullyShardedDataParallel, whose flat parameters may hide "
                "where a weight is; shard it with torch.distributed.fsdp.fully_shard (FSDP2)"
            )
        self.parameters = trained(model)
        self.inside: list[dist.ProcessGroup] = []
        self.replicas = isinstance(model, DistributedDataParallel)
        if isinstance(model, DistributedDataParallel):
            self.inside = [model.process_group]
        meshes = []
        for name, parameter in self.parameters.items():
            if not parameter.is_floating_point():
                raise ArgumentError(
                    f"parameters must be of real floating types, got {name} of type "
                    f"{parameter.dtype}; keep complex ones as two real parts (torch.view_as_real)"
                )
            if isinstance(parameter.data, tensors):
                meshes.append(parameter.data.device_mesh)  # type: ignore[attr-defined]
        if meshes:
            if self.replicas or any(mesh != meshes[0] for mesh in meshes):
                raise ArgumentError(
                    "model must be sharded over a single mesh and not be in "
                    f"DistributedDataParallel as well, got {meshes[0]} and {meshes[-1]}"
                )
            if len(meshes) < len(self.parameters):
                raise ArgumentError(
                    "model must be sharded as a whole: wrap its root in fully_shard, without "
                    f"ignored_params, got {len(self.parameters) - len(meshes)} trained parameters "
                    "that all ranks hold"
                )
            self.inside = list(meshes[0].get_all_groups())
        elif any(isinstance(one, modules) for one in model.modules()):
            raise ArgumentError(
                "model must hold its shards when this is called, but its parameters are gathered: "
                "call it before the first forward pass, or after model.reshard()"
            )
        self.inside = [group for group in self.inside if dist.get_world_size(group) > 1]
        self.replicas = self.replicas and bool(self.inside)
        parts = self.parts
        self.dim = sum(part.numel() for part in parts)
        if not self.dim:
            raise ArgumentError("model must have parameters that require a gradient on each rank")
        devices = {part.device for part in parts}
        if len(devices) > 1:
            raise ArgumentError(
                f"parameters must be on one device, got {sorted(map(str, devices))}"
            )
        self.device = parts[0].device
        shapes = [
            f"{name} {tuple(one.shape)} {tuple(part.shape)} {one.dtype}"
            for (name, one), part in zip(self.parameters.items(), parts, strict=True)
        ]
        self.layout = f"{digest_of(chr(10).join(shapes)):016x}"

    @property
    def parts(self) -> list[Tensor]:
        """This rank's part of each parameter, in its memory."""
        return [local_part(one, name) for name, one in self.parameters.items()]

    def pieces(self, fragments: int) -> list[list[Piece]]:
        """Cut the vector into so many fragments of nearly the same length."""
        bounds = [self.dim * index // fragments for index in range(fragments + 1)]
        found: list[list[Piece]] = [[] for _ in range(fragments)]
        start = 0
        for number, part in enumerate(self.parts):
            for index, (low, high) in enumerate(pairwise(bounds)):
                begin, end = max(low, start), min(high, start + part.numel())
                if begin < end:
                    piece = Piece(number, begin - start, end - start, begin - low)
                    found[index].append(piece)
            start += part.numel()
        return found


def write(part: Tensor, piece: Piece, values: Tensor, *, add: bool = False) -> None:
    """Write the values of a piece to its part of a parameter, or add them."""
    flat = part.reshape(-1)  # the same memory, or a copy where the part has gaps
    target = flat[piece.begin : piece.end]
    if add:
        target.copy_(target.to(values.dtype) + values)
    else:
        target.copy_(values)
    if flat.data_ptr() != part.data_ptr():
        part.copy_(flat.view(part.shape))
