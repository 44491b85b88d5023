"""A method as a communication hook of `DistributedDataParallel`: two lines in a training script.

    state = sketch_state(ddp_model, "sketch", compression=50, seed=7, error_feedback=True)
    ddp_model.register_comm_hook(state, sketch_hook)

There is one message for the whole gradient, not one for each of DDP's buckets: one claim covers a
step, whatever buckets there are; a sketch is best where it is largest; and a step has a single
collective. The price: it starts when the last bucket is ready, so that nothing is sent while the
backward pass goes on, and the gradient is copied once more.

Buckets are rebuilt after the first step, and come in an order of their own. So everything is kept
by parameter: a coordinate's place follows from the order of the model's parameters.
"""

# No `from __future__ import annotations` here: DDP compares the hook's annotations with its types.
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from diffsketch.engines.agreement import digest_of
from diffsketch.engines.group import GroupMean, Scaler
from diffsketch.errors import ArgumentError, MismatchError, check
from diffsketch.methods.base import Method
from diffsketch.methods.registry import build_method, settings_of
from diffsketch.privacy.accounting.accountant import Budget
from diffsketch.privacy.claim import Claim, Epsilon
from diffsketch.privacy.noise import Noise, NoiseKey
from diffsketch.sketch.hashing import SketchKey

__all__ = ["HookState", "all_reduce_mean", "sketch_hook", "sketch_state"]

_NAMED = 3  # parameters that an error lists


class Bucket(Protocol):
    """What is needed of a `torch.distributed.GradBucket`."""

    def index(self) -> int:
        """Its place in the order of the step."""

    def is_last(self) -> bool:
        """Whether the step has no further one."""

    def buffer(self) -> Tensor:
        """All gradients in one flat tensor."""

    def gradients(self) -> list[Tensor]:
        """Views of the buffer."""

    def parameters(self) -> list[Tensor]:
        """Whose gradients they are."""


@dataclass(frozen=True, eq=False)
class _Pending:
    """A bucket whose result is still to come."""

    future: Future[Tensor]
    buffer: Tensor
    parts: tuple[tuple[Tensor, int], ...]  # gradients, and where each begins in the vector


class HookState:
    """What `sketch_hook` remembers: where each parameter is, the buckets of a step, and the mean.

    Guarantees (`tests/engines/test_ddp.py`): without compression a step is that of plain DDP;
    several buckets, their rebuilding, `no_sync`, unused parameters, `static_graph`,
    `gradient_as_bucket_view` and 16-bit parameters give what a single flat vector gives; errors
    are raised by `backward` on all ranks, and none waits.

    An error that `backward` raises leaves DDP in the middle of a step: wrap the module anew to go
    on after it.

    Args:
        model: The module, wrapped in DDP or not. What requires no gradient now has no place.
        mean: How the gradients are averaged; its method's `dim` is the number of parameters.

    Raises:
        MismatchError: The method is for another number of parameters.
    """

    def __init__(self, model: nn.Module, mean: GroupMean) -> None:
        self.mean = mean
        self._parameters = _trained(model)
        self._places: dict[int, int] = {}
        begin = 0
        for parameter in self._parameters.values():
            self._places[id(parameter)] = begin
            begin += parameter.numel()
        if begin != mean.method.dim:
            raise MismatchError(
                f"the method must have dim={begin}, as the model has parameters that require a "
                f"gradient, got dim={mean.method.dim}"
            )
        shapes = [f"{name} {tuple(p.shape)} {p.dtype}" for name, p in self._parameters.items()]
        self._layout = f"{digest_of(chr(10).join(shapes)):016x}"
        self._vector: Tensor | None = None
        self._pending: list[_Pending] = []
        self._failure: Exception | None = None

    @property
    def claim(self) -> Claim:
        """What holds for all steps so far. Its unit, a client, is a rank with all its data."""
        return self.mean.claim

    def epsilon(self, delta: float) -> Epsilon:
        """What the steps have cost each rank, with the basis of that number."""
        return self.mean.epsilon(delta)

    def state_dict(self) -> dict[str, Any]:
        """That of the mean, which each rank has to keep for itself, and the model's layout."""
        return {**self.mean.state_dict(), "layout": self._layout}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called.

        Raises:
            MismatchError: The state belongs to other settings, another model or another rank.
        """
        if state.get("layout") != self._layout:
            raise MismatchError(
                "the state must be of a model with the same parameters, in their order, shapes and "
                "types, but they have changed"
            )
        self.mean.load_state_dict(state)

    def take(self, bucket: Bucket) -> Future[Tensor]:
        """A bucket of the step; with the last one, all are averaged."""
        if bucket.index() == 0:  # a backward pass that was interrupted may have left some
            self._pending, self._failure = [], None
        buffer, parts = bucket.buffer(), []
        try:
            parts = self._copied(bucket, buffer)
        except Exception as error:  # raised with the last bucket, lest other ranks wait
            self._failure = self._failure or error
        future: Future[Tensor] = (
            Future(devices=[buffer.device]) if buffer.device.type == "cuda" else Future()
        )
        self._pending.append(_Pending(future, buffer, tuple(parts)))
        if bucket.is_last():
            self._finish()
        return future

    def _copied(self, bucket: Bucket, buffer: Tensor) -> list[tuple[Tensor, int]]:
        """Copy the gradients to their places."""
        if buffer.layout != torch.strided:
            raise ArgumentError(f"gradients must be dense, got a {buffer.layout} tensor")
        if self._vector is None or self._vector.device != buffer.device:
            self._vector = torch.zeros(self.mean.method.dim, device=buffer.device)
        parts = []
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            begin = self._places.get(id(parameter))
            if begin is None:
                raise MismatchError(
                    f"a parameter of the shape {tuple(parameter.shape)} was not there, or required "
                    "no gradient, when the hook's state was made: make a new state, and wrap the "
                    "module in DDP anew"
                )
            self._vector[begin : begin + gradient.numel()].copy_(gradient.reshape(-1))
            parts.append((gradient, begin))
        return parts

    def _finish(self) -> None:
        pending, self._pending = self._pending, []
        try:
            mean = self._averaged(pending)
            for bucket in pending:
                for gradient, begin in bucket.parts:
                    part = mean[begin : begin + gradient.numel()]
                    gradient.copy_(part.view(gradient.shape))
        except Exception as error:
            for bucket in pending:
                bucket.future.set_exception(error)  # type: ignore[arg-type]
            raise
        for bucket in pending:
            bucket.future.set_result(bucket.buffer)

    def _averaged(self, pending: Sequence[_Pending]) -> Tensor:
        failure = self._failure or self._missing(pending)
        if failure is not None or self._vector is None:
            self._fail(failure or MismatchError("a step must have gradients, got none"))
        return self.mean.mean(self._vector, layout=self._layout, out=self._vector)

    def _fail(self, error: Exception) -> NoReturn:
        self._failure = None
        self.mean.fail(error, layout=self._layout)

    def _missing(self, pending: Sequence[_Pending]) -> Exception | None:
        """An error if there are places that no bucket has filled."""
        filled = {begin for bucket in pending for _, begin in bucket.parts}
        missing = [
            name
            for name, parameter in self._parameters.items()
            if self._places[id(parameter)] not in filled
        ]
        if not missing:
            return None
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        return MismatchError(
            f"DDP has no gradients of {', '.join(missing[:_NAMED])}{more}: the hook's state is of "
            "another model, or was made before parameters were frozen"
        )


def sketch_hook(
    state: HookState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> Future[Tensor]:
    """For `ddp_model.register_comm_hook(state, sketch_hook)`.

    Futures of all buckets but the last are left open; with the last one, the whole gradient is
    averaged, and all are done.
    """
    return state.take(bucket)


def sketch_state(
    model: nn.Module,
    method: str | Method,
    *,
    seed: int | None = None,
    key: SketchKey | None = None,
    compression: float | None = None,
    group: dist.ProcessGroup | None = None,
    noise: NoiseKey | Noise | None = None,
    error_feedback: bool = False,
    immediate: float | None = None,
    budget: Budget | None = None,
    trusted_group: bool = False,
    scaler: Scaler | None = None,
    **settings: object,
) -> HookState:
    """The state of `sketch_hook` for a model. All processes must make it, at the same point.

    Args:
        model: The module, wrapped in DDP or not.
        method: A name of `diffsketch.methods.METHODS`, or a method.
        seed: A number that the hashes follow from; the same on all ranks, and no secret.
        key: Or a secret that they follow from.
        compression: Coordinates for each cell of a table, in place of `cols`; with one row, unless
            `rows` is given.
        group: The processes; DDP's own if not given, or all of them.
        noise: As in `GroupMean`.
        error_feedback: As in `GroupMean`.
        immediate: As in `GroupMean`.
        budget: As in `GroupMean`.
        trusted_group: As in `GroupMean`.
        scaler: As in `GroupMean`.
        **settings: Those of the method, such as `clip` and `noise_multiplier`.

    Raises:
        ArgumentError: Settings are missing, unknown or do not go together.
        MismatchError: Ranks have different ones.
    """
    if (seed is None) == (key is None):
        raise ArgumentError("seed or key must be given, and not both")
    if isinstance(model, DistributedDataParallel) and group is None:
        group = model.process_group
    dim = sum(parameter.numel() for parameter in _trained(model).values())
    if isinstance(method, str):
        chosen = _with_compression(method, settings, compression=compression, dim=dim)
        cohort = dist.get_world_size(group)
        method = build_method(method, dim=dim, cohort=cohort, settings=chosen)
    elif settings or compression is not None:
        raise ArgumentError("settings must not be given with a method that has its own")
    mean = GroupMean(
        method,
        key=SketchKey.from_integer(seed) if key is None and seed is not None else _given(key),
        group=group,
        noise=noise,
        error_feedback=error_feedback,
        immediate=immediate,
        budget=budget,
        trusted_group=trusted_group,
        scaler=scaler,
    )
    return HookState(model, mean)


def all_reduce_mean(tensors: Sequence[Tensor], mean: GroupMean) -> None:
    """Replace tensors by their means over all ranks, in place: one round, without DDP.

    Args:
        tensors: Of any floating type; together as many numbers as the method's `dim`, in the same
            order on all ranks.
        mean: How they are averaged.

    Raises:
        ArgumentError: A tensor is not dense or not floating. The other ranks raise as well.
        MismatchError: Ranks disagree, or the tensors have another number of coordinates.
    """
    try:
        for tensor in tensors:
            if tensor.layout != torch.strided or not tensor.is_floating_point():
                raise ArgumentError(
                    "tensors must be dense and of a floating type, got a "
                    f"{tensor.dtype} tensor with the layout {tensor.layout}"
                )
        flat = [tensor.detach().reshape(-1).to(torch.float32) for tensor in tensors]
        vector = torch.cat(flat) if flat else torch.zeros(0)
    except Exception as error:
        mean.fail(error)
    found = mean.mean(vector, layout=str([tuple(tensor.shape) for tensor in tensors]))
    begin = 0
    with torch.no_grad():
        for tensor in tensors:
            tensor.copy_(found[begin : begin + tensor.numel()].view(tensor.shape))
            begin += tensor.numel()


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that DDP averages, by name, in the model's order."""
    ignored: set[str] = set()
    if isinstance(model, DistributedDataParallel):
        ignored, model = set(model.parameters_to_ignore), model.module
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and name not in ignored
    }


def _with_compression(
    name: str, settings: Mapping[str, object], *, compression: float | None, dim: int
) -> dict[str, object]:
    """Settings with the columns that a compression means."""
    if compression is None:
        return dict(settings)
    if "cols" not in settings_of(name):
        raise ArgumentError(f"compression is for methods with tables, got method={name!r}")
    if "cols" in settings:
        raise ArgumentError("compression or cols must be given, and not both")
    check(1 <= compression <= dim, "compression", f"be in [1, {dim}]", compression)
    rows = settings.get("rows", 1)
    check(isinstance(rows, int) and rows >= 1, "rows", "be an int >= 1", rows)
    cols = max(1, math.floor(dim / (compression * int(str(rows)))))
    return {**settings, "rows": rows, "cols": cols}


def _given(key: SketchKey | None) -> SketchKey:
    if key is None:
        raise ArgumentError("seed or key must be given")
    return key
