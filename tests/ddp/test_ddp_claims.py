"""What DDP sends beside the hook: refused where something is claimed, in a group of one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from diffsketch.ddp import (
    HookState,
    all_reduce_mean,
    same_weights,
    sketch_hook,
    sketch_state,
)
from diffsketch.ddp.group import GroupMean
from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.methods import PlainSketch
from diffsketch.sketch import SketchKey
from tests.ddp.processes import alone
from tests.helpers.refusals import refused

PROVEN: dict[str, Any] = {
    "method": "sketch-gaussian", "compression": 4, "clip": 1.0, "noise_multiplier": 2.0,
}  # fmt: skip
CLAIMS: dict[str, dict[str, Any]] = {
    "proven": PROVEN,
    "trusted group": {**PROVEN, "trust": "central", "trusted_group": True},
    "claimed": {"method": "diffsketch", "compression": 4, "per_round": 1.0},
}
NOTHING: dict[str, Any] = {"method": "sketch", "compression": 4}


@pytest.fixture(scope="module", autouse=True)
def _alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with alone(tmp_path_factory.mktemp("group")):
        yield


def network(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), *more, nn.Linear(6, 2))


def wrapped(*more: nn.Module, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(same_weights(network(*more)), **options)


def trained_before() -> DistributedDataParallel:
    """Wrapped anew after its weights have changed, without another comparison."""
    module = same_weights(network())
    with torch.no_grad():
        next(module.parameters()).add_(1.0)
    return DistributedDataParallel(module)


def compared_later() -> DistributedDataParallel:
    """Weights were sent before they were compared."""
    model = DistributedDataParallel(network())
    same_weights(model.module)
    return model


def late_buffer() -> DistributedDataParallel:
    """With a buffer that was not there when weights were compared."""
    module = same_weights(network())
    module.register_buffer("late", torch.ones(2))
    return DistributedDataParallel(module)


def state_for(model: nn.Module, **options: Any) -> HookState:
    return sketch_state(model, options.pop("method"), seed=7, **options)


def step(model: nn.Module) -> None:
    model(torch.ones(8, 4)).sum().backward()


def with_sync_batch_norm() -> DistributedDataParallel:
    """Put in place later, since DDP wraps such layers on GPUs only."""
    model = wrapped(nn.Identity())
    model.module[1] = nn.SyncBatchNorm(6)
    return model


LEAKS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "buffers": (
        lambda: DistributedDataParallel(network(nn.BatchNorm1d(6))),
        r"sends rank 0's buffers, .*; write DistributedDataParallel\(diffsketch.ddp.same_weights\(",
    ),
    "late buffer": (late_buffer, "sends rank 0's buffers"),
    "weights": (lambda: DistributedDataParallel(network()), "gave rank 0's weights to all ranks"),
    "weights compared later": (compared_later, "gave rank 0's weights to all ranks"),
    "other weights": (trained_before, "gave rank 0's weights to all ranks, .*same_weights"),
    "SyncBatchNorm": (with_sync_batch_norm, "SyncBatchNorm sends statistics"),
    "unused": (lambda: wrapped(find_unused_parameters=True), "with find_unused_parameters all"),
    "static": (lambda: wrapped(static_graph=True), "with static_graph all ranks learn"),
    "not wrapped": (network, "must be wrapped in DistributedDataParallel before"),
}


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("leak", LEAKS)
def test_what_a_claim_does_not_cover_is_refused(leak: str, claim: str) -> None:
    make, text = LEAKS[leak]
    refused(ArgumentError, text, state_for, make(), **CLAIMS[claim])
    state_for(make(), **NOTHING)  # which claims nothing


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_model_that_sends_nothing_else_is_trained(claim: str) -> None:
    for model in (wrapped(), wrapped(nn.BatchNorm1d(6))):  # in which buffers are synchronised
        state = state_for(model, **CLAIMS[claim])
        model.register_comm_hook(state, sketch_hook)
        step(model)
        with state.guard():
            step(model)
        assert state.mean.round_index == 2


def test_a_hook_of_another_model_is_refused_in_the_first_step() -> None:
    """The same module, wrapped twice."""
    module = same_weights(network(nn.BatchNorm1d(6)))
    first, second = DistributedDataParallel(module), DistributedDataParallel(module)
    state = state_for(first, **PROVEN)
    second.register_comm_hook(state, sketch_hook)
    for model in (first, second):  # nothing is registered with the first one
        guard = state.guard() if model is first else nullcontext()
        with pytest.raises(MismatchError, match="registered with the model that its state"), guard:
            step(model)
    assert state.epsilon(1e-5).rounds == 0


def turn_on(model: DistributedDataParallel) -> None:
    model.parameters_to_ignore = set()
    model._assign_modules_buffers()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("change", [turn_on, DistributedDataParallel._set_static_graph])
def test_what_is_turned_on_later_is_refused(change: Callable[[Any], None]) -> None:
    model = wrapped(nn.BatchNorm1d(6))
    state = state_for(model, **PROVEN)
    model.register_comm_hook(state, sketch_hook)
    change(model)
    with pytest.raises(ArgumentError, match="does not cover all that is sent"), state.guard():
        step(model)
    refused(ArgumentError, "does not cover all that is sent", step, model)
    assert state.mean.epsilon(1e-5).rounds == 0


def test_a_guard_needs_ddp() -> None:
    for model in (network(), wrapped(static_graph=True)):
        state = state_for(model, **NOTHING)
        with pytest.raises(ArgumentError, match="a guard needs a state that was"), state.guard():
            step(model)


def test_join_is_refused() -> None:
    model = wrapped()
    model.register_comm_hook(state_for(model, **PROVEN), sketch_hook)
    with pytest.raises(ArgumentError, match="join tells all ranks"), model.join():
        step(model)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.ones(4, dtype=torch.complex64))


def fsdp() -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    module = network()
    fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
    return module


def mixed() -> nn.Module:
    from torch.nn.parallel.distributed import _MixedPrecision

    precision = _MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    return wrapped(mixed_precision=precision)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Complex, "real floating types, got weights of type torch.complex64"),
        (lambda: DistributedDataParallel(Complex()), "real floating types"),
        (fsdp, "model must not be sharded"),
        pytest.param(
            mixed,
            "mixed_precision of DistributedDataParallel must be None",
            marks=pytest.mark.skipif(
                torch.version.cuda is not None and not torch.cuda.is_available(),
                reason="PyTorch's CUDA build cannot make this model without a GPU",
            ),
        ),
        (lambda: "a model", "model must be a module, got str"),
    ],
)
def test_models_that_a_hook_cannot_average(make: Callable[[], Any], text: str) -> None:
    refused(ArgumentError, text, state_for, make(), **NOTHING)


def test_a_method_alone_is_one_round_with_hashes_of_its_own() -> None:
    method = PlainSketch(400, 1, 40)
    vector = torch.randn(400, generator=torch.Generator().manual_seed(0))
    first, second = [vector.clone()], [vector.clone()]
    all_reduce_mean(first, method)
    all_reduce_mean(second, method)
    assert not torch.equal(first[0], second[0])  # each call has other hashes
    lasting = GroupMean(method, key=SketchKey.from_integer(1))
    with pytest.raises(ArgumentError, match="must not be given with a GroupMean"):
        all_reduce_mean(first, lasting, trusted_group=True)
    with pytest.raises(ArgumentError, match="mean must be a GroupMean or a Method, got str"):
        all_reduce_mean(first, "sketch")  # type: ignore[arg-type]
