"""The weights that a rank holds, all of them or its shards, and those that ranks have in common."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from diffsketch.ddp.transport import digest_of
from diffsketch.errors import ArgumentError, MismatchError, check
from diffsketch.sketch.kernels import new_result

_CHUNK = 1 << 16  # words that are mixed at a time, in a processor's cache
_GOLDEN = -7046029254386353131  # odd: 2**64 over the golden ratio, as a signed number


def sharded_kinds() -> tuple[tuple[type, ...], tuple[type, ...]]:
    """Classes of FSDP's modules and of DTensors, if their modules were imported."""
    fsdp, tensors = (sys.modules.get(f"torch.distributed.{name}") for name in ("fsdp", "tensor"))
    names = ("FullyShardedDataParallel", "FSDPModule")
    modules = tuple(getattr(fsdp, name) for name in names if hasattr(fsdp, name))
    kind = getattr(tensors, "DTensor", None)
    return modules, () if kind is None else (kind,)


def trained(model: nn.Module, *, trained: bool = True) -> dict[str, nn.Parameter]:
    """The parameters that require a gradient (or none), by name, in the model's order.

    Those that DDP is told to ignore are left out.
    """
    ignored: set[str] = set()
    if isinstance(model, DistributedDataParallel):
        ignored, model = set(model.parameters_to_ignore), model.module
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad == trained and name not in ignored
    }


def check_floating(parameters: Mapping[str, Tensor]) -> None:
    """Raise an `ArgumentError` unless parameters are real numbers."""
    for name, parameter in parameters.items():
        if not parameter.is_floating_point():
            raise ArgumentError(
                f"parameters must be of real floating types, got {name} of type "
                f"{parameter.dtype}; keep complex ones as two real parts (torch.view_as_real)"
            )


def check_shapes(name: str, tensors: Iterable[Tensor], wanted: Iterable[Tensor]) -> None:
    """Raise a `MismatchError` unless tensors of a state have the shapes of those that are there."""
    got, needed = ([tuple(tensor.shape) for tensor in group] for group in (tensors, wanted))
    if got != needed:
        raise MismatchError(f"{name} must have the shapes {needed}, got {got}")


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


def check_disjoint(group: dist.ProcessGroup | None, inside: Sequence[dist.ProcessGroup]) -> None:
    """Raise an `ArgumentError` unless a group has no rank but this one in common with others.

    Ranks among which a model is sharded hold different numbers, and those of one DDP average by
    themselves: between them, a mean makes no sense.
    """
    ranks = dist.get_process_group_ranks
    others = set(ranks(dist.group.WORLD if group is None else group)) - {dist.get_rank()}
    for group_inside in inside:
        if common := others & set(ranks(group_inside)):
            raise ArgumentError(
                "model must not be averaged or sharded over the ranks of group, got rank "
                f"{min(common)} in both: wrap it over one machine, and give as group= the ranks "
                "that hold the same part elsewhere; or register the hook own_gradients with DDP"
            )


def bits_digest(tensors: Sequence[Tensor]) -> int:
    """64 bits that tell apart tensors of which any bit differs, but by chance.

    The same on all devices: sums of integers, modulo 2**64, in any order.

    >>> bits_digest([torch.tensor([0.0, 1.0])]) == bits_digest([torch.tensor([-0.0, 1.0])])
    False
    """
    sums = []
    for tensor in tensors:
        flat = tensor.detach().reshape(-1)
        size = flat.element_size()
        index = torch.arange(_CHUNK, device=flat.device) * _GOLDEN
        factors = (index ^ (index >> 29)) * _GOLDEN | 1  # odd, and in no relation to each other
        for begin in range(0, len(flat), _CHUNK * 8 // size):
            part = flat[begin : begin + _CHUNK * 8 // size]
            missing = -part.numel() * size % 8 // size
            if missing or part.storage_offset() * size % 8:
                part = torch.cat([part, part.new_zeros(missing)])
            words = part.view(torch.int64)
            # The upper bits are mixed in below: in a product, they reach no others.
            mixed = (words >> 32).bitwise_xor_(words).mul_(factors[: len(words)])
            sums.append(mixed.sum())
    total = 0
    for chunk in torch.stack(sums).tolist() if sums else ():  # one transfer from a GPU
        total = (total * _GOLDEN + chunk) % (1 << 64)
    return total


def named_digest(parameters: Mapping[str, nn.Parameter], *, values: bool = True) -> str:
    """Text that tells apart parameters of which a name, a shape, a type or any bit differs.

    Without `values`, bits are left out: then it tells where each number of a vector belongs.
    """
    lines = []
    for name, parameter in parameters.items():
        held: Any = parameter.detach()  # not `local_part`: frozen ones may be whole on all ranks
        local = held.to_local() if hasattr(held, "to_local") else held
        shapes = f"{tuple(parameter.shape)} {tuple(local.shape)}"
        bits = f" {bits_digest([local]):x}" if values else ""
        lines.append(f"{name} {shapes} {parameter.dtype}{bits}")
    return f"{digest_of(chr(10).join(lines)):016x}"


class WeightSlice(NamedTuple):
    """Coordinates of one parameter, and their places in a fragment."""

    parameter: int
    span: slice
    places: slice


class LocalWeights:
    """The trained parameters of a model, as far as this rank holds them, as one long vector.

    The vector is never built: `pieces` says where each part of it is.

    Args:
        model: A module; wrapped in DDP, or sharded by `fully_shard`.
        alone: Whether its DDP averages nothing.

    Attributes:
        model: The module.
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

    def __init__(self, model: nn.Module, *, alone: bool = False) -> None:
        if not isinstance(model, nn.Module):
            raise ArgumentError(f"model must be a module, got {type(model).__name__}")
        modules, tensors = sharded_kinds()
        self.model, self.parameters = model, trained(model)
        self.inside: list[dist.ProcessGroup] = []
        self.replicas = False
        if isinstance(model, DistributedDataParallel) and not alone:
            self.inside, self.replicas = [model.process_group], True
        check_floating(self.parameters)
        values: list[Any] = [parameter.data for parameter in self.parameters.values()]
        meshes = [value.device_mesh for value in values if isinstance(value, tensors)]  # type: ignore[attr-defined]
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
        elif any(isinstance(part, modules) for part in model.modules()):
            raise ArgumentError(
                "model must be sharded by torch.distributed.fsdp.fully_shard, not by "
                "FullyShardedDataParallel, and must hold its shards when this is called: before "
                "the first forward pass, or after model.reshard()"
            )
        # Groups of one have nothing to tell each other.
        self.inside = [group for group in self.inside if dist.get_world_size(group) > 1]
        self.replicas = self.replicas and bool(self.inside)
        parts = self.parts
        self.dim = sum(part.numel() for part in parts)
        if not self.dim:
            raise ArgumentError("model must have parameters that require a gradient on each rank")
        devices = sorted({str(part.device) for part in parts})
        check(len(devices) == 1, "parameters", "be on one device", devices)
        self.device = parts[0].device
        self.layout = named_digest(self.parameters, values=False)
        self.frozen = named_digest(trained(model, trained=False))

    def check_unchanged(self) -> None:
        """Raise a `MismatchError` if the model trains a parameter that has no place here.

        Not for sharded models, whose modules hold other objects while they are gathered.
        """
        if self.inside and not self.replicas:
            return
        places = {id(parameter) for parameter in self.parameters.values()}
        now = trained(self.model)
        if new := [name for name, tensor in now.items() if id(tensor) not in places]:
            raise MismatchError(
                f"the trained parameters must stay those that LocalSteps was made with, got "
                f"{new[0]} and {len(new) - 1} more that are new or no longer frozen: make another"
            )

    @property
    def parts(self) -> list[Tensor]:
        """This rank's part of each parameter, in its memory."""
        return [local_part(parameter, name) for name, parameter in self.parameters.items()]

    def pieces(self, fragments: int) -> list[list[WeightSlice]]:
        """Cut the vector into `fragments` parts of nearly the same length."""
        bounds = [self.dim * index // fragments for index in range(fragments + 1)]
        pieces: list[list[WeightSlice]] = [[] for _ in range(fragments)]
        start = 0
        for number, part in enumerate(self.parts):
            for index, (low, high) in enumerate(pairwise(bounds)):
                begin, end = max(low, start), min(high, start + part.numel())
                if begin < end:
                    span, places = slice(begin - start, end - start), slice(begin - low, end - low)
                    pieces[index].append(WeightSlice(number, span, places))
            start += part.numel()
        return pieces


class CommonWeights:
    """The weights that all ranks had in common last, in fragments, and the steps that move them.

    A step is Nesterov's, with a mean `d` of what the weights changed by, and the momentum `m`:

        m = momentum * m + d
        x = x - lr * (d + momentum * m)

    They are kept in float32, or in the type of a parameter that has more bits, so that parameters
    of few bits do not lose small steps.

    Args:
        weights: Of this rank. What they are now is what is common.
        fragments: How many parts are moved one by one.
        lr: Of the steps.
        momentum: Of the steps.
    """

    def __init__(
        self, weights: LocalWeights, *, fragments: int, lr: float, momentum: float
    ) -> None:
        self._weights, self._lr, self._momentum = weights, lr, momentum
        self._pieces = weights.pieces(fragments)
        self._values = [
            part.reshape(-1).to(torch.promote_types(part.dtype, torch.float32), copy=True)
            for part in weights.parts
        ]
        self._moments = [
            torch.zeros(pieces[-1].places.stop, device=weights.device) for pieces in self._pieces
        ]

    @property
    def _kept(self) -> dict[str, list[Tensor]]:
        return {"weights": self._values, "momentum": self._moments}

    def new_vector(self, fragment: int) -> Tensor:
        """Memory for a number for each weight of a fragment."""
        return new_result(self._moments[fragment], self._moments[fragment].shape)

    def difference(self, fragment: int) -> Tensor:
        """The common weights of a fragment, as the model had them, less what they are now."""
        parts, change = self._weights.parts, self.new_vector(fragment)
        for piece in self._pieces[fragment]:
            common, part = self._value(piece), parts[piece.parameter]
            now = part.reshape(-1)[piece.span]
            # Through the parameter's type: what the model lost to rounding is no step of the rank.
            shown = common.to(part.dtype).to(common.dtype)
            torch.sub(shown, now.to(common.dtype), out=change[piece.places])
        return change

    def move(self, fragment: int, mean: Tensor | None, sent: Tensor | None = None) -> None:
        """Move the common weights, and this rank's to where they are.

        Args:
            fragment: Which part.
            mean: By how much weights have changed, overwritten; None to go back to the common ones.
            sent: The rank's own difference in that mean, if it has made steps since, which it
                shall keep.
        """
        change, parts = None, self._weights.parts
        if mean is not None:
            moment = self._moments[fragment].mul_(self._momentum).add_(mean)
            change = mean.add_(moment, alpha=self._momentum).mul_(self._lr)
        for piece in self._pieces[fragment]:
            common, part = self._value(piece), parts[piece.parameter]
            if change is not None:
                common.sub_(change[piece.places])
            flat = part.reshape(-1)  # the same memory, or a copy where the part has gaps
            target = flat[piece.span]
            if change is not None and sent is not None:
                kept = target.to(common.dtype) + (sent[piece.places] - change[piece.places])
                target.copy_(kept)
            else:
                target.copy_(common)
            if flat.data_ptr() != part.data_ptr():
                part.copy_(flat.view(part.shape))

    def digest(self, fragment: int) -> int:
        """64 bits that tell whether two ranks have a fragment in common, to the last bit.

        Another momentum shows in the weights that it makes.
        """
        return bits_digest([*map(self._value, self._pieces[fragment])])

    def named(self) -> dict[str, Tensor]:
        """Copies of the weights, by name, as the model has them."""
        parts, names = self._weights.parts, self._weights.parameters
        return {
            name: value.to(part.dtype, copy=True).view(part.shape)
            for name, value, part in zip(names, self._values, parts, strict=True)
        }

    def state_dict(self) -> dict[str, list[Tensor]]:
        """Copies of the weights and of the momentum."""
        return {name: [value.clone() for value in kept] for name, kept in self._kept.items()}

    def check_state(self, state: Mapping[str, Sequence[Tensor]]) -> None:
        """Raise a `MismatchError` unless a state has tensors of these shapes."""
        for name, kept in self._kept.items():
            check_shapes(name, state.get(name, ()), kept)

    def load_state_dict(self, state: Mapping[str, Sequence[Tensor]]) -> None:
        """Take over a state that was checked."""
        for name, kept in self._kept.items():
            for tensor, value in zip(kept, state[name], strict=True):
                tensor.copy_(value)

    def _value(self, piece: WeightSlice) -> Tensor:
        return self._values[piece.parameter][piece.span]
