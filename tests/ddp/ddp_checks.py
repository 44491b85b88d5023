"""What each rank does with DDP, over gloo, and returns; `test_ddp.py` says what it must be."""

from __future__ import annotations

import runpy
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
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
from diffsketch.methods import PlainSketch, Uncompressed
from diffsketch.privacy import Budget
from diffsketch.sketch import SketchKey
from tests.ddp.processes import WORLD, Checks, error_of, logged
from tests.helpers.silent import silence

EXAMPLE = Path(__file__).parents[2] / "examples" / "ddp.py"
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
    """Two groups of parameters, with rates of their own."""
    matrices = [one for one in model.parameters() if one.dim() > 1]
    vectors = [one for one in model.parameters() if one.dim() == 1]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "lr": 0.2}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.5)


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
    clip: float | None = None, guard: bool = False,
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
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return {"weights": weights_of(model), "buckets": len(counted)}


def by_hand(
    rank: int, *, dtype: torch.dtype = torch.float32, accumulate: int = 1, side: bool = False,
    clip: float | None = None, method: str = "sketch",
) -> Tensor:  # fmt: skip
    """The same without DDP: `all_reduce_mean` of the gradients."""
    model = make_model(dtype)
    parameters = list(model.parameters())
    dim = sum(one.numel() for one in parameters)
    chosen = PlainSketch(dim, 1, dim // 4) if method == "sketch" else Uncompressed(dim)
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
        if clip is not None:
            nn.utils.clip_grad_norm_(parameters, clip)
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
    "clipping": ({"ddp": {"bucket_cap_mb": SMALL}, "clip": 0.1}, {"clip": 0.1}),
    "bfloat16": (
        {"ddp": {"bucket_cap_mb": SMALL}, "dtype": torch.bfloat16}, {"dtype": torch.bfloat16},
    ),
    "none": (
        {"ddp": {"bucket_cap_mb": SMALL},
         "options": {"method": "none", "compression": None, "error_feedback": False}},
        {"method": "none"},
    ),
}  # fmt: skip


def variant(name: str, rank: int) -> dict[str, Any]:
    ddp, hand = VARIANTS[name]
    return {**trained(rank, **ddp), "by hand": by_hand(rank, **hand)}


def plain(rank: int) -> Tensor:
    found: Tensor = trained(rank, hook=False)["weights"]
    return found


def resumed(rank: int) -> dict[str, Any]:
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
        return _resumed(rank, make)


def _resumed(
    rank: int, make: Callable[[], tuple[DistributedDataParallel, HookState, torch.optim.Optimizer]]
) -> dict[str, Any]:
    whole, all_steps, optimizer = make()
    steps(whole, optimizer, rank, range(6))
    half, state, optimizer = make()
    steps(half, optimizer, rank, range(3))
    kept = half.module.state_dict(), state.state_dict(), optimizer.state_dict()
    found = []
    for with_hook in (True, False):
        again, state, optimizer = make()
        again.module.load_state_dict(kept[0])
        optimizer.load_state_dict(kept[2])
        if with_hook:
            state.load_state_dict(kept[1])
        steps(again, optimizer, rank, range(3, 6))
        found.append(weights_of(again))
        if with_hook:
            epsilon = [str(all_steps.epsilon(1e-5)), str(state.epsilon(1e-5))]
    layout = error_of(lambda: state.load_state_dict({**kept[1], "layout": "another"}))
    return {"whole": weights_of(whole), "found": found, "epsilon": epsilon, "layout": layout}


def backward_error(
    rank: int, state: Callable[[nn.Module], HookState], *, step: int = 0, **ddp: Any
) -> str:
    model = DistributedDataParallel(same_weights(make_model()), bucket_cap_mb=SMALL, **ddp)
    model.register_comm_hook(state(model), sketch_hook)
    return error_of(lambda: loss_of(model, rank, step).backward())  # type: ignore[no-untyped-call]


def changed_later(rank: int, *, frozen: bool) -> str:
    """Parameters that are frozen, or no longer, between the hook's state and DDP."""
    module = make_model()
    module.side.requires_grad_(frozen is False)
    state = state_of(module)
    module.side.requires_grad_(frozen)
    model = DistributedDataParallel(module, bucket_cap_mb=SMALL)
    model.register_comm_hook(state, sketch_hook)
    return error_of(lambda: loss_of(model, rank, 0).backward())  # type: ignore[no-untyped-call]


def of_rank_0(rank: int) -> list[str | bool]:
    """All ranks load rank 0's file, the usual mistake; then they go on without."""
    model = DistributedDataParallel(make_model(), bucket_cap_mb=SMALL)
    state = state_of(model)
    model.register_comm_hook(state, sketch_hook)
    loss_of(model, rank, 0).backward()  # type: ignore[no-untyped-call]
    kept = state.state_dict()
    found: list[Any] = [None] * WORLD
    dist.all_gather_object(found, kept)
    error = error_of(lambda: state.load_state_dict(found[0]))
    lost = error_of(lambda: state.load_state_dict(kept if rank == 0 else {}))
    same = torch.equal(state.state_dict()["memory"], kept["memory"])
    state.load_state_dict(kept)
    loss_of(model, rank, 1).backward()  # type: ignore[no-untyped-call]
    return [error, lost, same, state.mean.round_index == 2]


def failing(rank: int) -> dict[str, Any]:
    """Errors of one rank, which both have to raise."""

    def of_another_model(model: nn.Module) -> HookState:
        return state_of(make_model() if rank == 1 else model)

    def of_another_round(model: nn.Module) -> HookState:
        state = state_of(model)
        state.mean._round_index = 3 * rank  # as no state can bring it about
        return state

    def out_of_budget(model: nn.Module) -> HookState:
        return state_of(
            model, method="sketch-gaussian", clip=1.0, noise_multiplier=1.0,
            error_feedback=False, budget=Budget(1e-3, 1e-5),
        )  # fmt: skip

    def seeds(rank: int) -> Callable[[], Any]:
        return lambda: state_of(make_model(), seed=rank)

    return {
        "model": backward_error(rank, of_another_model),
        "round": backward_error(rank, of_another_round),
        "frozen": changed_later(rank, frozen=False),
        "thawed": changed_later(rank, frozen=True),
        "budget": backward_error(rank, out_of_budget),
        "seed": error_of(seeds(rank)),
        "settings": error_of(lambda: state_of(make_model(), compression=1e9 if rank == 1 else 4.0)),
        "load": of_rank_0(rank),
    }


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


def guarded(rank: int) -> dict[str, Any]:
    proven = partial(guarded_steps, rank, "sketch-gaussian", clip=1.0, noise_multiplier=0.1)
    with silence():
        return {
            "raised": proven(raises=True),
            "zeros": proven(raises=False),
            "unproven": guarded_steps(rank, "sketch", raises=True),
        }


def different_weights(rank: int) -> dict[str, Any]:
    """Ranks that begin with other weights, and what became of a rank's buffers after wrapping."""
    module = make_model()
    with torch.no_grad():
        module.head.bias[0] += 1e-6 * rank
    apart = error_of(lambda: same_weights(module))
    wrong = error_of(lambda: same_weights("module" if rank == 1 else module))  # type: ignore[type-var]
    kept = []
    choices: tuple[Callable[[nn.Module], nn.Module], ...] = (same_weights, lambda module: module)
    for prepare in choices:
        norm = nn.BatchNorm1d(3)
        assert norm.running_mean is not None
        norm.running_mean.fill_(float(rank))
        DistributedDataParallel(prepare(nn.Sequential(nn.Linear(2, 3), norm)))
        kept.append(float(norm.running_mean[0]))
    return {"apart": apart, "wrong": wrong, "kept": kept}


def not_finite(rank: int) -> dict[str, Any]:
    """A step with NaN at rank 1: a scaler skips it on both."""
    model = DistributedDataParallel(make_model(), bucket_cap_mb=SMALL)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    state = state_of(model, scaler=scaler)
    model.register_comm_hook(state, sketch_hook)
    optimizer = optimizer_of(model)
    scales, weights, nan = [], [], []
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(model, rank, step)
        if step == 1 and rank == 1:
            loss = loss * torch.nan
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        nan.append(all(bool(one.grad.isnan().all()) for one in model.parameters()))  # type: ignore[union-attr]
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        weights.append(weights_of(model))
    unscaled = DistributedDataParallel(make_model())
    unscaled.register_comm_hook(state_of(unscaled), sketch_hook)
    steps(unscaled, optimizer_of(unscaled), rank, range(1))
    return {"scales": scales, "weights": weights, "nan": nan, "unscaled": weights_of(unscaled)}


def interrupted(rank: int) -> dict[str, Any]:
    """all_reduce_mean with tensors that do not fit, at one rank."""
    mean = GroupMean(PlainSketch(12, 1, 4), key=SketchKey.from_integer(1))
    good = [torch.ones(2, 3), torch.ones(6, dtype=torch.bfloat16)]
    whole = [torch.ones(12, dtype=torch.int64)] if rank == 1 else good
    wrong = error_of(lambda: all_reduce_mean(whole, mean))
    short = error_of(lambda: all_reduce_mean(good[:1] if rank == 1 else good, mean))
    all_reduce_mean(good, mean)
    parameter = nn.Parameter(torch.full((12,), float(rank)))
    all_reduce_mean([parameter], GroupMean(Uncompressed(12), key=SketchKey.from_integer(1)))
    once = [torch.full((12,), float(rank))]
    all_reduce_mean(once, Uncompressed(12))
    apart = error_of(lambda: all_reduce_mean(once, PlainSketch(12, 1, 4 + rank)))
    found = {"wrong": wrong, "short": short, "good": good, "parameter": parameter.detach()}
    return found | {"once": once[0], "apart": apart}


def subgroup(rank: int) -> dict[str, Any]:
    """DDP in a group of one: its state belongs to that group."""
    groups = [dist.new_group([one]) for one in range(WORLD)]
    model = DistributedDataParallel(make_model(), process_group=groups[rank])
    state = state_of(model, compression=None, rows=2, cols=50)
    model.register_comm_hook(state, sketch_hook)
    loss_of(model, rank, 0).backward()  # type: ignore[no-untyped-call]
    return {"world": state.mean.world, "cols": state.mean.method.message_format.shape}


def example(rank: int) -> float:
    """The example's training, with fewer steps."""
    del rank
    found: float = runpy.run_path(str(EXAMPLE), run_name="example")["train"](60)
    return found


def checks() -> Checks:
    own = (
        plain, resumed, failing, guarded, different_weights, not_finite, interrupted, subgroup,
        example,
    )  # fmt: skip
    return {
        **{f"variant {name}": partial(variant, name) for name in VARIANTS},
        **{one.__name__: one for one in own},
    }


def checks_without_bfloat16() -> Checks:
    """For machines on which it would take the others with it."""
    return {name: check for name, check in checks().items() if name != "variant bfloat16"}
