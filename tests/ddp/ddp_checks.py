"""What holds on each of two ranks that train with DDP, over gloo."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from diffsketch.ddp import (
    HookState,
    all_reduce_mean,
    same_weights,
    sketch_hook,
    sketch_state,
)
from diffsketch.ddp.group import GroupMean
from diffsketch.ddp.hook import compressed
from diffsketch.ddp.transport import transport_of
from diffsketch.methods import Method, PlainSketch, Uncompressed
from diffsketch.privacy import Budget
from diffsketch.sketch import SketchKey
from tests.ddp.processes import (
    WORLD,
    Checks,
    assert_fails,
    assert_voids,
    error_of,
    everyone,
    example_learns,
    logged,
)
from tests.helpers.silent import silence

STEPS = 5
SMALL = 0.002  # megabytes: several buckets
SKETCH: dict[str, Any] = {
    "method": "sketch", "compression": 4, "bits": 32, "seed": 7, "error_feedback": True,
}  # fmt: skip


class Network(nn.Module):
    """With a side branch that not every rank uses in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 30), nn.ReLU(), nn.Linear(30, 20), nn.ReLU())
        self.side, self.head = nn.Linear(20, 20), nn.Linear(20, 3)

    def forward(self, inputs: Tensor, side: bool = True) -> Tensor:
        hidden = self.layers(inputs)
        found: Tensor = self.head(hidden + self.side(hidden) if side else hidden)
        return found


def make_model(dtype: torch.dtype = torch.float32) -> Network:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Network().to(dtype)


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(8, 6, generator=generator)
    return inputs, (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long()


def loss_of(model: nn.Module, rank: int, step: int, **options: Any) -> Tensor:
    inputs, labels = batch(rank, step)
    dtype = next(model.parameters()).dtype
    return cross_entropy(model(inputs.to(dtype), **options).float(), labels)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)


def weights_of(model: nn.Module) -> Tensor:
    return torch.cat([one.detach().float().reshape(-1) for one in model.parameters()])


def state_of(model: nn.Module, **options: Any) -> HookState:
    options = {**SKETCH, **options}
    if options["method"] != "sketch":
        del options["bits"]
    return sketch_state(model, options.pop("method"), **options)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, which: range) -> None:
    for step in which:
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def side_used(rank: int, step: int) -> bool:
    """Some steps by one rank, some by both, some by nobody."""
    return step % 4 == 0 or step % 4 == 1 + rank


def trained(
    rank: int, *, options: dict[str, Any] | None = None, ddp: dict[str, Any] | None = None,
    hook: bool = True, dtype: torch.dtype = torch.float32, accumulate: int = 1, side: bool = False,
    guard: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Train with DDP, and count the buckets of the last step; in a guard there are none."""
    model = DistributedDataParallel(make_model(dtype), **(ddp or {}))
    optimizer, counted = optimizer_of(model), list[int]()
    if hook:
        state = state_of(model, **(options or {}))

        class Counting(HookState):
            def take(self, bucket: Any) -> Any:
                counted.append(bucket.index())
                return super().take(bucket)

        state.__class__ = Counting
        model.register_comm_hook(state, sketch_hook)
    for step in range(STEPS):
        optimizer.zero_grad()
        counted.clear()
        for part in range(accumulate):
            use = side_used(rank, step) if side else True
            last = state.guard() if guard else nullcontext()
            with last if part == accumulate - 1 else model.no_sync():
                loss_of(model, rank, 10 * step + part, side=use).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {"weights": weights_of(model), "buckets": len(counted)}


def by_hand(
    rank: int, *, dtype: torch.dtype = torch.float32, accumulate: int = 1, side: bool = False,
    method: str = "sketch",
) -> Tensor:  # fmt: skip
    """The same without DDP: `all_reduce_mean` of the gradients."""
    model = make_model(dtype)
    parameters = list(model.parameters())
    dim = sum(one.numel() for one in parameters)
    chosen: Method = Uncompressed(dim)
    if method == "sketch":
        chosen = compressed("sketch", {"bits": 32}, 4, dim=dim, to=transport_of(None))
    mean = GroupMean(chosen, key=SketchKey.from_integer(7), error_feedback=method == "sketch")
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(accumulate):
            use = side_used(rank, step) if side else True
            loss_of(model, rank, 10 * step + part, side=use).backward()  # type: ignore[no-untyped-call]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        all_reduce_mean(gradients, mean)
        used = [torch.tensor(float(side_used(one, step) or not side)) for one in range(WORLD)]
        for name, parameter, gradient in zip(
            dict(model.named_parameters()), parameters, gradients, strict=True
        ):
            # DDP leaves alone what no rank has used.
            skip = name.startswith("side") and not any(used)
            parameter.grad = None if skip else gradient
        optimizer.step()
    return weights_of(model)


# How DDP is wrapped and used, and what by_hand has to be told.
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one bucket": ({}, {}),
    "buckets": ({"ddp": {"bucket_cap_mb": SMALL}}, {}),
    "views": ({"ddp": {"bucket_cap_mb": SMALL, "gradient_as_bucket_view": True}}, {}),
    "static": ({"ddp": {"bucket_cap_mb": SMALL, "static_graph": True}}, {}),
    "no_sync": ({"ddp": {"bucket_cap_mb": SMALL}, "accumulate": 3}, {"accumulate": 3}),
    "unused": (
        {"ddp": {"bucket_cap_mb": SMALL, "find_unused_parameters": True}, "side": True},
        {"side": True},
    ),
    "guard": ({"ddp": {"bucket_cap_mb": SMALL}, "guard": True}, {}),
    "guard no_sync": (
        {"ddp": {"bucket_cap_mb": SMALL, "gradient_as_bucket_view": True}, "accumulate": 3,
         "guard": True},
        {"accumulate": 3},
    ),
    "float16": (
        {"ddp": {"bucket_cap_mb": SMALL}, "dtype": torch.float16}, {"dtype": torch.float16},
    ),
    "none": (
        {"ddp": {"bucket_cap_mb": SMALL},
         "options": {"method": "none", "compression": None, "error_feedback": False}},
        {"method": "none"},
    ),
}  # fmt: skip


def variant(name: str, rank: int) -> Tensor:
    """The hook is one mean of the flat gradient."""
    ddp, hand = VARIANTS[name]
    trained_by_hook, expected = trained(rank, **ddp), by_hand(rank, **hand)
    weights: Tensor = trained_by_hook["weights"]
    buckets = trained_by_hook["buckets"]
    rtol, atol = (0.0, 0.02) if name == "float16" else (1e-5, 1e-6)
    torch.testing.assert_close(weights, expected, rtol=rtol, atol=atol)
    few = {"one bucket": 1, "guard": 0, "guard no_sync": 0}
    assert buckets == few[name] if name in few else buckets > 1
    if name != "float16":
        assert float((weights - weights_of(make_model())).norm()) > 0.01  # or nothing was compared
    if name in ("none", "buckets"):  # without compression it is plain DDP
        plain = trained(rank, hook=False)["weights"]
        assert torch.allclose(weights, plain, rtol=1e-5 if name == "none" else 1e-2, atol=1e-6) == (
            name == "none"
        )
    return weights


def resumed(rank: int) -> Tensor:
    """Six steps at once; and three, a checkpoint, and three of everything made anew."""
    options: dict[str, Any] = {
        "method": "sketch-gaussian", "clip": 0.5, "noise_multiplier": 0.1,
        "budget": Budget(1e6, 1e-5),
    }  # fmt: skip

    def make() -> tuple[DistributedDataParallel, HookState, torch.optim.Optimizer]:
        model = DistributedDataParallel(same_weights(make_model()), bucket_cap_mb=SMALL)
        state = state_of(model, **options)
        model.register_comm_hook(state, sketch_hook)
        return model, state, optimizer_of(model)

    with silence():
        whole, all_steps, optimizer = make()
        steps(whole, optimizer, rank, range(6))
        half, state, optimizer = make()
        steps(half, optimizer, rank, range(3))
        # A copy: optimizers go on with the tensors that they are given.
        kept = half.module.state_dict(), state.state_dict(), copy.deepcopy(optimizer.state_dict())
        for with_hook in (False, True):
            again, state, optimizer = make()
            again.module.load_state_dict(kept[0])
            optimizer.load_state_dict(copy.deepcopy(kept[2]))
            if with_hook:
                state.load_state_dict(kept[1])
            steps(again, optimizer, rank, range(3, 6))
            assert torch.equal(weights_of(again), weights_of(whole)) == with_hook
    assert str(state.epsilon(1e-5)) == str(all_steps.epsilon(1e-5))
    assert "over 6 rounds (proven; client unit" in str(state.epsilon(1e-5))
    other = {**kept[1], "layout": "another"}
    assert_fails(lambda: state.load_state_dict(other), "a model with the same parameters")
    return weights_of(whole)


def backward_of(model: DistributedDataParallel, state: HookState, rank: int) -> Callable[[], Any]:
    model.register_comm_hook(state, sketch_hook)
    return lambda: loss_of(model, rank, 0).backward()  # type: ignore[no-untyped-call]


def changed_later(rank: int) -> None:
    """Parameters that are frozen, or no longer, between the hook's state and DDP."""
    for frozen, text in (
        (False, "MismatchError: DDP has no gradient of side.weight, and of 2 p"),
        (True, "MismatchError: a parameter of the shape (20"),
    ):
        module = make_model()
        module.side.requires_grad_(frozen is False)
        state = state_of(module)
        module.side.requires_grad_(frozen)
        model = DistributedDataParallel(module, bucket_cap_mb=SMALL)
        assert_fails(backward_of(model, state, rank), text)


def of_rank_0(rank: int) -> None:
    """All ranks load rank 0's file, the usual mistake; then they go on without."""
    model = DistributedDataParallel(make_model(), bucket_cap_mb=SMALL)
    state = state_of(model)
    backward_of(model, state, rank)()
    kept = state.state_dict()
    first, failed = everyone(kept)[0], "MismatchError: rank 1 failed to load its state, see the"
    text = "rank is 1 here and was 0" if rank else failed
    assert_fails(lambda: state.load_state_dict(first), text)
    text = "a model with the same parameters" if rank else failed
    assert_fails(lambda: state.load_state_dict(kept if rank == 0 else {}), text)
    assert torch.equal(state.state_dict()["memory"], kept["memory"])
    state.load_state_dict(kept)
    loss_of(model, rank, 1).backward()  # type: ignore[no-untyped-call]
    assert state.mean.round_index == 2


def failing(rank: int) -> None:
    """Errors of one rank, which both raise, from `backward` or at the start."""
    model = DistributedDataParallel(make_model(), bucket_cap_mb=SMALL)
    state = state_of(make_model() if rank == 1 else model)
    text = "MismatchError: a parameter of the shape"
    assert_voids(backward_of(model, state, rank), text, rank=rank)
    model = DistributedDataParallel(make_model(), bucket_cap_mb=SMALL)
    state = state_of(model)
    state.mean.round_index = 3 * rank  # as no state can bring it about
    text = "rank 0 is in round 0, rank 1 is in round 3"
    assert_fails(backward_of(model, state, rank), text)
    failed = "MismatchError: rank 1 failed to start, see the error there"
    text = "ArgumentError: compression must be in [1, " if rank else failed
    assert_fails(lambda: state_of(make_model(), compression=1e9 if rank == 1 else 4.0), text)


def guarded_steps(rank: int, method: str, *, raises: bool, **settings: Any) -> dict[str, Any]:
    """Three steps; in the second, rank 1's backward pass raises halfway, or has a loss of zero."""
    model = DistributedDataParallel(same_weights(make_model()), bucket_cap_mb=SMALL)
    state = state_of(model, method=method, error_feedback=False, **settings)
    model.register_comm_hook(state, sketch_hook)
    optimizer, errors = optimizer_of(model), []

    def fail(_: Tensor) -> None:
        raise OSError("planted")

    def step(index: int) -> None:
        planted = rank == 1 and index == 1
        optimizer.zero_grad()
        with state.guard():
            loss = loss_of(model, rank, index)
            if planted and raises:
                model.module.layers[2].weight.register_hook(fail)
            (0 * loss if planted else loss).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    with logged() as texts:
        for index in range(3):
            errors.append(error_of(partial(step, index)))
            model.module.layers[2].weight._backward_hooks = None
    rounds = state.epsilon(1e-5).rounds
    return {"weights": weights_of(model), "errors": errors, "log": texts, "rounds": rounds}


def guarded(rank: int) -> list[Tensor]:
    """An error in a guard is a step of zeros, or raised by all."""
    proven = partial(guarded_steps, rank, "sketch-gaussian", clip=1.0, noise_multiplier=0.1)
    with silence():
        raised, zeros = proven(raises=True), proven(raises=False)
        unproven = guarded_steps(rank, "sketch", raises=True)
    assert raised["errors"] == ["", "", ""]
    assert raised["rounds"] == 3
    assert torch.equal(raised["weights"], zeros["weights"])
    logged_error = "the step counts as zeros, with its noise, since its code raised: planted"
    assert raised["log"] == [logged_error] * rank
    assert zeros["log"] == unproven["log"] == []
    void = "MismatchError: round 1 is void: rank 1 failed, see the error there"
    assert unproven["errors"] == ["", "OSError: planted" if rank else void, ""]
    return [raised["weights"], unproven["weights"]]


def different_weights(rank: int) -> None:
    """Ranks that begin with other weights, and what became of a rank's buffers after wrapping."""
    module = make_model()
    with torch.no_grad():
        module.head.bias[0] += 1e-6 * rank
    text = f"all ranks must have the same weights, but rank {1 - rank} dif"
    assert_fails(lambda: same_weights(module), text)
    failed = "MismatchError: rank 1 failed to compare its weights, see the error there"
    text = "ArgumentError: module must be one that is not wrapped yet, got str" if rank else failed
    assert_fails(lambda: same_weights("module" if rank == 1 else module), text)  # type: ignore[type-var]
    for compared in (True, False):  # plain DDP sends them
        norm = nn.BatchNorm1d(3)
        assert norm.running_mean is not None
        norm.running_mean.fill_(float(rank))
        layers = nn.Sequential(nn.Linear(2, 3), norm)
        DistributedDataParallel(same_weights(layers) if compared else layers)
        assert norm.running_mean[0] == (rank if compared else 0)


def not_finite(rank: int) -> list[Tensor]:
    """A step with NaN at rank 1: a scaler skips it on both."""
    model = DistributedDataParallel(make_model(), bucket_cap_mb=SMALL)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    model.register_comm_hook(state_of(model, scaler=scaler), sketch_hook)
    optimizer, weights = optimizer_of(model), []
    for step, scale in enumerate((64.0, 32.0, 32.0)):
        optimizer.zero_grad()
        loss = loss_of(model, rank, step)
        if step == 1 and rank == 1:
            loss = loss * torch.nan
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == scale
        weights.append(weights_of(model))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    assert weights[2].isfinite().all()
    unscaled = DistributedDataParallel(make_model())
    unscaled.register_comm_hook(state_of(unscaled), sketch_hook)
    steps(unscaled, optimizer_of(unscaled), rank, range(1))
    torch.testing.assert_close(weights[0], weights_of(unscaled))
    return weights


def interrupted(rank: int) -> list[Tensor]:
    """`all_reduce_mean` with tensors that do not fit, at one rank."""
    mean = GroupMean(PlainSketch(12, 1, 4), key=SketchKey.from_integer(1))
    good = [torch.ones(2, 3), torch.ones(6, dtype=torch.bfloat16)]
    integers = [torch.ones(12, dtype=torch.int64)] if rank == 1 else good
    text = "ArgumentError: tensors must be dense and of a floating type"
    assert_voids(lambda: all_reduce_mean(integers, mean), text, rank=rank)
    text = "MismatchError: vector must have the shape (12,), got (6,)"
    short = good[:1] if rank == 1 else good
    assert_voids(lambda: all_reduce_mean(short, mean), text, rank=rank, index=1)
    all_reduce_mean(good, mean)
    assert good[1].dtype == torch.bfloat16
    parameter, once = nn.Parameter(torch.full((12,), float(rank))), [torch.full((12,), float(rank))]
    all_reduce_mean([parameter], GroupMean(Uncompressed(12), key=SketchKey.from_integer(1)))
    all_reduce_mean(once, Uncompressed(12))
    for averaged in (parameter.detach(), *once):
        assert torch.equal(averaged, torch.full((12,), 0.5))
    text = "all ranks must have the same method"
    assert_fails(lambda: all_reduce_mean(once, PlainSketch(12, 1, 4 + rank)), text)
    return good


def ended_apart(rank: int) -> None:
    """Rank 1 is done one step earlier: both are told, and neither waits."""
    model = DistributedDataParallel(make_model())
    state = state_of(model)
    model.register_comm_hook(state, sketch_hook)
    for step in range(2):  # before the second one DDP itself compares its buckets
        loss_of(model, rank, step).backward()  # type: ignore[no-untyped-call]
    state.finish()  # as many steps: nothing happens
    text = "MismatchError: round 2 is void: rank 1 made no more steps; all must make as many"
    assert_fails(loss_of(model, rank, 2).backward if rank == 0 else state.finish, text)


def subgroup(rank: int) -> None:
    """DDP in a group of one: its state belongs to that group."""
    groups = [dist.new_group([number]) for number in range(WORLD)]
    model = DistributedDataParallel(make_model(), process_group=groups[rank])
    state = state_of(model, compression=None, rows=2, cols=50)
    backward_of(model, state, rank)()
    assert state.mean.world == 1
    assert state.mean.method.message_format.shape == (2, 50)


CHECKS: Checks = {
    **{f"variant {name}": partial(variant, name) for name in VARIANTS},
    **{
        check.__name__: check
        for check in (
            resumed, changed_later, of_rank_0, failing, guarded, different_weights, not_finite,
            interrupted, ended_apart, subgroup,
        )
    },
    "example": partial(example_learns, "ddp.py"),
}  # fmt: skip


def checks() -> Checks:
    return CHECKS
