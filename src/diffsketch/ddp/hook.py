"""A method as a communication hook of DistributedDataParallel."""

# No `from __future__ import annotations` here: DDP compares the hook's annotations with its types.

import warnings
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from diffsketch.ddp.group import GroupMean, Scaler, all_reduce_mean
from diffsketch.ddp.transport import (
    LOGGER,
    Caught,
    SavedByState,
    Traffic,
    Transport,
    fail_together,
    log_bytes,
    transport_of,
)
from diffsketch.ddp.weights import check_floating, named_digest, sharded_kinds, trained
from diffsketch.errors import ArgumentError, MismatchError, check_between, check_whole
from diffsketch.methods.base import Method, build_method, settings_of
from diffsketch.privacy.accounting.budget import Budget
from diffsketch.privacy.claim import Claim, Epsilon, NoClaim
from diffsketch.sketch.hashing import SketchKey

# A bucket's future and buffer, and its parameters with their gradients.
_Pending: TypeAlias = tuple[Future[Tensor], Tensor, list[tuple[Tensor, Tensor]]]

Module = TypeVar("Module", bound=nn.Module)

_SHORT = 1.05  # times: by so much a compression may be missed before there is a warning

_USED = "all ranks learn, exactly, which parameters a rank's data has used"
_USE_ALL = "leave it off, and use every parameter in every step (add 0 times those left over)"
_WRAP = "write DistributedDataParallel(diffsketch.ddp.same_weights(module))"
# With a digest, a name on the list of what DDP leaves alone, which DDP copies as it wraps a module:
# so a model shows that its weights were compared before, and which they were.
_COMPARED = "diffsketch compared "

# What DDP may send besides the hook: whether it does, what that is, and what to do instead.
#
# It sends three things more. Wrapping gathers the shapes of parameters, and broadcasts rank 0's
# weights, which `check_wrapping` finds to be those that all ranks had. The second forward pass
# tells all ranks in which order rank 0's gradients came in the first backward pass: the model's own
# order, as long as its graph does not depend on data. In a `guard` that is not sent.
_CHANNELS: tuple[tuple[Callable[[Any], Any], str], ...] = (
    # The buffers that DDP has broadcast when it wrapped the module, and will in forward passes, if
    # options of whatever name say so.
    (lambda ddp: ddp.modules_buffers,
     "DistributedDataParallel sends rank 0's buffers, such as means of BatchNorm, to all ranks; "
     f"{_WRAP}, which leaves each rank its own, or use layers without buffers (GroupNorm)"),
    (lambda ddp: any(isinstance(module, nn.SyncBatchNorm) for module in ddp.modules()),
     "SyncBatchNorm sends statistics of each rank's batch, and makes all gradients depend on them; "
     "use layers that look at one example at a time (GroupNorm, LayerNorm)"),
    (lambda ddp: ddp.find_unused_parameters, f"with find_unused_parameters {_USED}; {_USE_ALL}"),
    (lambda ddp: ddp.static_graph, f"with static_graph {_USED} in the first step; {_USE_ALL}"),
    (lambda ddp: getattr(ddp, "_delay_all_reduce_params", ()),
     "delay_all_reduce_named_params averages gradients without the hook; wrap without it"),
    (lambda ddp: getattr(getattr(ddp, "_join_config", None), "enable", False),
     "join tells all ranks how many inputs a rank has; give all ranks the same number of steps"),
)  # fmt: skip


def check_averaged(model: nn.Module) -> None:
    """Raise an `ArgumentError` unless a hook gets all gradients of the model, as real numbers."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be a module, got {type(model).__name__}")
    modules, tensors = sharded_kinds()
    values: list[Any] = [parameter.data for parameter in model.parameters()]
    if any(isinstance(part, modules + tensors) for part in [*model.modules(), *values]):
        raise ArgumentError(
            "model must not be sharded, as shards are averaged without DDP's hook: shard inside a "
            "machine with fully_shard and use diffsketch.ddp.LocalSteps between machines, with "
            "group= the ranks that hold the same shard"
        )
    wrapped = isinstance(model, DistributedDataParallel)
    if wrapped and getattr(model, "mixed_precision", None) is not None:
        raise ArgumentError(
            "mixed_precision of DistributedDataParallel must be None: it is a hook itself, and "
            "there can be one; use torch.autocast, or parameters of type bfloat16"
        )
    check_floating(trained(model))


def same_weights(module: Module, group: dist.ProcessGroup | None = None) -> Module:
    """Prepare a module for DDP under a claim; all ranks call it, right before it is wrapped.

        model = DistributedDataParallel(same_weights(module))

    DDP gives all ranks the weights and buffers of rank 0. Here ranks compare their weights, so that
    nothing is told by sending them; and buffers, such as means of BatchNorm, are put on the list of
    what DDP leaves alone, so that each rank keeps its own. Also call it before a framework
    (Lightning, Accelerate) wraps the module, and again before it is wrapped anew.

    Ranks compare by digests, which are no secret: do not give it weights of private data.

    Returns:
        The module.

    Raises:
        ArgumentError: It is no module, or is wrapped already. The other ranks raise as well.
        MismatchError: Weights differ, or another rank failed. All ranks raise.
    """
    transport, digest = transport_of(group), ""
    with Caught() as caught:
        if not isinstance(module, nn.Module) or isinstance(module, DistributedDataParallel):
            raise ArgumentError(
                f"module must be one that is not wrapped yet, got {type(module).__name__}: {_WRAP}"
            )
        digest = named_digest(dict(module.named_parameters()))
    transport.agree({"weights": digest}, failure=caught.error, doing="compare its weights")
    before = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    names = {name for name in before if not name.startswith(_COMPARED)}
    # All names of a buffer that has several: they may part later.
    names |= {name for name, _ in module.named_buffers(remove_duplicate=False)}
    ignore: Any = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
    ignore(module, [*names, _COMPARED + digest])
    return module


def check_wrapping(model: nn.Module, method: str) -> None:
    """Raise an `ArgumentError` unless wrapping a model in DDP has told, and will tell, nothing.

    Guarantees (`tests/ddp/test_ddp_claims.py`): each of the ways is refused, and a model that sends
    nothing else is not. A model that is not wrapped yet is refused: nothing can be seen there.
    """
    if not isinstance(model, DistributedDataParallel):
        raise ArgumentError(
            f"model must be wrapped in DistributedDataParallel before a state of method={method!r} "
            f"is made, as its claim is about all that DDP sends, got {type(model).__name__}"
        )
    check_nothing_else_is_sent(model, method)
    digest = named_digest(dict(model.module.named_parameters()))
    if _COMPARED + digest not in model.parameters_to_ignore:
        raise _uncovered(
            method, "DistributedDataParallel gave rank 0's weights to all ranks, and nothing says "
            f"that they had them before; {_WRAP}, and go on before weights change"
        )  # fmt: skip


def check_nothing_else_is_sent(model: nn.Module, method: str) -> None:
    """Raise an `ArgumentError` if DDP would send what the method's claim is not about."""
    for sends, what in _CHANNELS:
        if sends(model):
            raise _uncovered(method, what)


def _uncovered(method: str, what: str) -> ArgumentError:
    return ArgumentError(f"the claim of method={method!r} does not cover all that is sent: {what}")


class HookState(SavedByState):
    """State of `sketch_hook`: where each parameter is, the buckets of a step, and the mean.

    Guarantees (`tests/ddp/test_ddp.py`): without compression a step is that of plain DDP;
    several buckets, their rebuilding, `no_sync`, unused parameters, `static_graph`,
    `gradient_as_bucket_view` and 16-bit parameters give what a single flat vector gives; errors
    are raised by `backward` on all ranks, and none waits.

    A method that claims something needs the model as DDP has wrapped it, after `same_weights`, and
    is refused if DDP sends more of a rank's data than the hook does
    (`tests/ddp/test_ddp_claims.py`): when the state is made, and again in each step.

    An error of your own code, in a forward or backward pass, ends this rank's process, which other
    ranks see, and it may depend on data: use `guard`.

    It cannot be pickled, and so neither can a model that it is registered with: save the module's
    `state_dict` and this one's.

    An error that `backward` raises leaves DDP in the middle of a step: wrap the module anew to go
    on after it.

    Args:
        model: The module; for a method that claims something, wrapped in DDP. What requires no
            gradient now has no place.
        mean: How the gradients are averaged; its method's `dim` is the number of parameters.

    Raises:
        ArgumentError: The model cannot be averaged by a hook, or the claim would not hold for it.
        MismatchError: The method is for another number of parameters, the models of ranks differ,
            or another rank fails. All ranks raise.
    """

    def __init__(self, model: nn.Module, mean: GroupMean) -> None:
        self.mean = mean
        self._vector: Tensor | None = None
        self._pending: list[_Pending] = []  # buckets whose result is still to come
        self._layout = ""
        with Caught() as caught:
            self._place(model)
        mean.agree({"layout": self._layout}, failure=caught.error)

    def _place(self, model: nn.Module) -> None:
        """Give every parameter its place, if the model can be averaged."""
        check_averaged(model)
        self._model = weakref.ref(model)  # the model has the state already
        self._parameters = trained(model)
        self._places: dict[int, tuple[str, slice]] = {}
        end = 0
        for name, parameter in self._parameters.items():
            self._places[id(parameter)] = name, slice(end, end + parameter.numel())
            end += parameter.numel()
        dim = self.mean.method.dim
        if end != dim:
            raise MismatchError(f"the method must have dim={end}, as the model has, got dim={dim}")
        self._layout = named_digest(self._parameters, values=False)
        self._claims = not isinstance(self.claim, NoClaim)
        if self._claims:
            check_wrapping(model, self.mean.method.name)

    @property
    def bytes_per_step(self) -> Traffic:
        """Bytes that this rank sends and receives in a step, as a network device counts them."""
        return self.mean.bytes_per_round

    @property
    def claim(self) -> Claim:
        """Claim of all steps so far. Its unit, a client, is a rank with all its data."""
        return self.mean.claim

    def epsilon(self, delta: float) -> Epsilon:
        """Cost of the steps for each rank, with the basis of that number."""
        return self.mean.epsilon(delta)

    def state_dict(self) -> dict[str, Any]:
        """State of the mean, which each rank has to keep for itself, and the model's layout."""
        return {**self.mean.state_dict(), "layout": self._layout}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called. All ranks must load theirs together.

        Raises:
            MismatchError: The state belongs to other settings, another model or another rank, or
                another rank cannot load its own. All ranks raise, and none has loaded anything
                but into its account.
        """
        other = isinstance(state, Mapping) and state.get("layout") != self._layout
        text = "the state must be of a model with the same parameters, but theirs have changed"
        self.mean.load_state_dict(state, failure=MismatchError(text) if other else None)

    def finish(self) -> None:
        """Meet all ranks after the last step, so that none exits while another still sends.

        Raises:
            MismatchError: Ranks have made different numbers of steps. All ranks raise.
        """
        self.mean.meet(layout=self._layout)

    def take(self, bucket: Any) -> Future[Tensor]:
        """Take a bucket of the step; with the last one, all are averaged."""
        if bucket.index() == 0:  # a backward pass that was interrupted may have left some
            self._pending = []
        buffer, parts = bucket.buffer(), []
        if buffer.layout == torch.strided:
            parts = [*zip(bucket.parameters(), bucket.gradients(), strict=True)]
        future = _future_of(buffer)
        self._pending.append((future, buffer, parts))
        if bucket.is_last():
            self._finish()
        return future

    def _check_model(self) -> None:
        """Raise unless the model is still one whose claim holds, and the hook is that model's."""
        if not self._claims:
            return
        model = self._model()
        hooks = getattr(model, "_comm_hooks", ())
        if model is None or all(state is not self for _, state in hooks):
            raise MismatchError(
                f"the hook of method={self.mean.method.name!r} must be registered with the model "
                "that its state was made for: another one may send what the claim does not cover"
            )
        check_nothing_else_is_sent(model, self.mean.method.name)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Make one step, and let no error in it tell other ranks of this one's data.

            with state.guard():
                loss_of(model(inputs), labels).backward()
            optimizer.step()

        Gradients are averaged when the block ends, by the same mean as in the hook, which is left
        out here: DDP itself sends nothing. A parameter without a gradient counts as zeros. All
        ranks make a step in a guard, or none.

        An error in the block, under a proven claim, goes to this rank's log (`diffsketch.ddp`), and
        its gradient counts as zeros, with noise, and is paid for: other ranks see a step like any
        other. Under other claims all ranks raise. What is no `Exception`, such as an interrupt,
        ends the process, which others see.

        Guarantees (`tests/ddp/test_ddp.py`): a step is that of the hook.
        `tests/ddp/test_non_interference.py`: all that is sent beside noised cells is the same,
        whatever the block does.

        Raises:
            ArgumentError: The model is not in DDP, or has a `static_graph`. All ranks raise.
            MismatchError: As for the hook.
            BudgetExceeded: As for the hook.
        """
        model: Any = self._model()
        parameters = list(self._parameters.values())
        with self.mean.failing(like=parameters[0]):  # what does not depend on data
            self._check_model()
            if not isinstance(model, DistributedDataParallel) or model.static_graph:
                raise ArgumentError(
                    "a guard needs a state that was made for a model in DistributedDataParallel, "
                    f"without static_graph, got {type(model).__name__}"
                )
        try:
            with model.no_sync():  # an error would leave DDP in the middle of a step
                yield
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense()
                         for p in parameters]  # fmt: skip
        except Exception:
            if not self.mean.proven:
                with self.mean.failing(like=parameters[0]):
                    raise
            LOGGER.exception("the step counts as zeros, with its noise, since its code raised")
            gradients = [torch.zeros_like(parameter) for parameter in parameters]
        all_reduce_mean(gradients, self.mean)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient

    def _finish(self) -> None:
        """Average the gradients of all buckets in place, and complete their futures."""
        pending, self._pending = self._pending, []
        try:
            # All that can fail at this rank alone.
            with self.mean.failing(layout=self._layout, like=pending[0][1]):
                self._check_model()
                vector, places = self._gathered(pending)
            self.mean.mean(vector, layout=self._layout, out=vector)
            for gradient, place in places:
                gradient.copy_(vector[place].view(gradient.shape))
        except Exception as error:
            for future, _, _ in pending:
                future.set_exception(error)  # type: ignore[arg-type]
            raise
        for future, buffer, _ in pending:
            future.set_result(buffer)

    def _gathered(self, pending: Sequence[_Pending]) -> tuple[Tensor, list[tuple[Tensor, slice]]]:
        """Copy the gradients to one vector, and return it with the place of each."""
        device, missing = pending[0][1].device, dict(self._places)
        if self._vector is None or self._vector.device != device:
            self._vector = torch.zeros(self.mean.method.dim, device=device)
        # The vector is used again in every step, so all of its places must be written anew.
        places = []
        for _, buffer, parts in pending:
            if buffer.layout != torch.strided:
                raise ArgumentError(f"gradients must be dense, got a {buffer.layout} tensor")
            for parameter, gradient in parts:
                if id(parameter) not in missing:
                    raise MismatchError(
                        f"a parameter of the shape {tuple(parameter.shape)} was not trained when "
                        "the hook's state was made: make a new state, and wrap the module anew"
                    )
                _, place = missing.pop(id(parameter))
                places.append((gradient, place))
                self._vector[place].copy_(gradient.reshape(-1))
        for name, _ in missing.values():
            raise MismatchError(
                f"DDP has no gradient of {name}, and of {len(missing)} parameters in all: the "
                "hook's state is of another model, or was made before parameters were frozen"
            )
        return self._vector, places


def sketch_hook(
    state: HookState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> Future[Tensor]:
    """Communication hook for `ddp_model.register_comm_hook(state, sketch_hook)`.

    Futures of all buckets but the last are left open; with the last one, the whole gradient is
    averaged, and all are done.
    """
    return state.take(bucket)


def own_gradients(
    state: object,  # noqa: ARG001
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> Future[Tensor]:
    """Communication hook that leaves each rank its own gradients, and sends nothing.

    For `LocalSteps` in frameworks that wrap every model in DDP:
    `ddp_model.register_comm_hook(None, own_gradients)` before the first step.
    """
    buffer: Tensor = bucket.buffer()
    future = _future_of(buffer)
    future.set_result(buffer)
    return future


def _future_of(buffer: Tensor) -> Future[Tensor]:
    """A future that will have a buffer, on its device."""
    return Future(devices=[buffer.device] if buffer.device.type == "cuda" else None)


def keeps_own_gradients(model: nn.Module) -> bool:
    """Whether a model is in DDP with the hook `own_gradients`, so that DDP averages nothing."""
    return any(hook is own_gradients for hook, _ in getattr(model, "_comm_hooks", ()))


def sketch_state(
    model: nn.Module, method: str | Method, *, seed: int | None = None,
    key: SketchKey | None = None, compression: float | None = None,
    group: dist.ProcessGroup | None = None, error_feedback: bool = False,
    immediate: float | None = None, budget: Budget | None = None, trusted_group: bool = False,
    scaler: Scaler | None = None, account_file: str | Path | None = None, **settings: object,
) -> HookState:  # fmt: skip
    """The state of `sketch_hook` for a model. All processes must make it, at the same point.

    Args:
        model: The module; for a method that claims something, wrapped in DDP after `same_weights`.
        method: A name of `diffsketch.methods.METHODS`, or a method.
        seed: A number that the hashes follow from; the same on all ranks, and no secret.
        key: Or a secret that they follow from.
        compression: How many times fewer bytes a step sends than plain DDP, in place of `cols`;
            with one row, unless `rows` is given, and for the bare sketch with cells of 4 bits,
            unless `bits` is given.
        group: The processes; DDP's own if not given, or all of them.
        error_feedback: As in `GroupMean`. For plain SGD with large steps; with Adam it was measured
            to raise the loss, as what is fed back is many steps late (`docs/guides/ddp.md`).
        immediate: As in `GroupMean`.
        budget: As in `GroupMean`.
        trusted_group: As in `GroupMean`.
        scaler: As in `GroupMean`.
        account_file: As in `GroupMean`.
        **settings: Those of the method, such as `clip` and `noise_multiplier`.

    Raises:
        ArgumentError: Settings are missing, unknown or do not go together, or the model is not for
            a hook, or sends what the method's claim does not cover.
        MismatchError: Ranks have different ones, or another rank fails. All ranks raise.
    """
    if isinstance(model, DistributedDataParallel) and group is None:
        group = model.process_group
    with Caught() as caught:
        check_averaged(model)
        secret, dim = key_from(seed, key), sum(p.numel() for p in trained(model).values())
        chosen = method_from(method, settings, compression, dim=dim, to=transport_of(group))
    if caught.error is not None:
        fail_together(group, caught.error)
    mean = GroupMean(
        chosen, key=secret, group=group, error_feedback=error_feedback, immediate=immediate,
        budget=budget, trusted_group=trusted_group, scaler=scaler, account_file=account_file,
    )  # fmt: skip
    state = HookState(model, mean)
    log_bytes(state.bytes_per_step, 1 / mean.transport.share(chosen))
    return state


def key_from(seed: int | None, key: SketchKey | None) -> SketchKey:
    """Return the key of the hashes, from the one of the two arguments that is given."""
    if seed is not None and key is None:
        check_whole("seed", seed, least=0)
        return SketchKey.from_integer(seed)
    if key is None or seed is not None:
        raise ArgumentError("seed or key must be given, and not both")
    return key


def method_from(
    method: str | Method, settings: dict[str, object], compression: float | None, *, dim: int,
    to: Transport,
) -> Method:  # fmt: skip
    """Return a method as it is, or build it from its name, its settings and a compression.

    Warns where what is sent for control leaves no room for cells. To be called right where a user's
    call arrives, which the warning is about.
    """
    if isinstance(method, Method):
        if settings or compression is not None:
            raise ArgumentError("settings must not be given with a method that has its own")
        return method
    if compression is None:
        return build_method(method, dim=dim, cohort=to.world, settings=settings)
    chosen = compressed(method, settings, compression, dim=dim, to=to)
    if (reached := 1 / to.share(chosen, framed=False)) < compression / _SHORT:
        warnings.warn(
            f"compression={compression:g} leaves too few of {4 * dim:,} bytes for cells beside "
            f"what {to.world} ranks send for control: it is {reached:.0f}x, with one cell or more "
            "for each",
            stacklevel=3,
        )
    return chosen


def compressed(
    name: str, settings: dict[str, object], compression: float, *, dim: int, to: Transport
) -> Method:
    """Build the method with the most columns with which a round has that share of the bytes.

    All that a round sends counts: bits of sums, words that are not full, reports, frames. So what
    is promised is what a device counts, at any number of ranks. Only where frames would take more
    than half of so few bytes, the other half is for cells all the same.
    """
    if "cols" not in settings_of(name):
        raise ArgumentError(f"compression is for methods with tables, got method={name!r}")
    if "cols" in settings:
        raise ArgumentError("compression or cols must be given, and not both")
    check_between("compression", compression, 1, 32 * dim)
    settings = {"rows": 1, **settings}
    if name == "sketch" and "bits" not in settings:
        # 4 bits have 10% more error than 32, and no bias. Fewer cut the cells that stand out.
        settings["bits"] = next((bits for bits in (4, 8, 16) if compression >= 32 / bits), 32)

    def sized(cols: int) -> Method:
        return build_method(name, dim=dim, cohort=to.world, settings={**settings, "cols": cols})

    def too_many(cols: int) -> bool:
        method = sized(cols)
        return compression * min(to.share(method), 2 * to.share(method, framed=False)) > 1

    # By bisection: what a cell costs depends on all of them. A single column is always allowed.
    return sized(1 + bisect_left(range(2, dim + 1), True, key=too_many))
