"""What each rank does with local steps, and returns; `test_local_steps.py` says what it must be."""

from __future__ import annotations

import io
import runpy
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from diffsketch.ddp import (
    LocalSteps,
    own_gradients,
    same_weights,
)
from diffsketch.methods import PlainSketch
from diffsketch.privacy import Budget
from tests.ddp.processes import Checks, error_of, logged

EXAMPLE = Path(__file__).parents[2] / "examples" / "local_steps.py"
NONE: dict[str, Any] = {"method": "none"}
SKETCH: dict[str, Any] = {"compression": 8}
PROVEN: dict[str, Any] = {
    "method": "sketch-gaussian", "compression": 4, "clip": 1.0, "noise_multiplier": 5.0,
}  # fmt: skip
LR, MOMENTUM = 0.7, 0.6


def make_model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """With a parameter that has gaps in its memory, and one that is not trained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(dtype)
    first, last = model[0], model[2]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    first.weight = nn.Parameter(first.weight.detach().t().contiguous().t())
    last.bias.requires_grad_(False)
    return model


def local_of(model: nn.Module, **options: Any) -> LocalSteps:
    return LocalSteps(model, **{"every": 3, "seed": 1, **SKETCH, **options})


def break_digest(local: LocalSteps) -> None:
    """Let this rank fail before it sends."""

    def fail(fragment: int) -> int:
        raise OSError(f"planted in fragment {fragment}")

    local._common.digest = fail  # type: ignore[method-assign]


def weights_of(model: nn.Module) -> Tensor:
    return torch.cat([one.detach().reshape(-1).double() for one in model.parameters()])


def change(model: nn.Module, rank: int, step: int) -> None:
    """A step of training, whatever it was: weights move, at each rank in another way."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    with torch.no_grad():
        for one in model.parameters():
            if one.requires_grad:
                one.add_(0.1 * torch.randn(one.shape, generator=generator).to(one.dtype))


def moved(model: nn.Module, local: LocalSteps, rank: int, steps: range) -> list[Tensor]:
    """The weights after each step."""
    found = []
    for step in steps:
        change(model, rank, step)
        local.step()
        found.append(weights_of(model))
    return found


def trainable() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(8, 15), nn.Tanh(), nn.Linear(15, 4))


def train(model: nn.Module, local: LocalSteps | None, rank: int, steps: range) -> None:
    """Gradients are averaged inside a machine; without a model that does it, over its examples."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    for step in steps:
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(1000 * rank + step)
        inputs = torch.randn(6, 8, generator=generator)
        model(inputs).square().mean().backward()
        optimizer.step()
        if local is not None:
            local.step()


def by_hand(rank: int, steps: int, *, every: int, bounds: list[int], delay: int) -> list[Tensor]:
    """The same without compression: float64, one fragment after another, with nothing shared."""
    model = make_model(torch.float64)
    parameters = [one for one in model.parameters() if one.requires_grad]
    count = len(bounds) - 1

    def flat() -> Tensor:
        return torch.cat([one.detach().reshape(-1) for one in parameters])

    def put(values: Tensor) -> None:
        parts = torch.split(values, [one.numel() for one in parameters])
        for one, part in zip(parameters, parts, strict=True):
            one.data.copy_(part.view(one.shape))

    start, buffer, found = flat(), torch.zeros_like(flat()), []
    under_way: dict[int, tuple[int, Tensor, Tensor]] = {}
    for step in range(1, steps + 1):
        change(model, rank, step - 1)
        for index in range(count):
            part = slice(bounds[index], bounds[index + 1])
            if step % every == (index + 1) * every // count % every:
                sent = flat()[part]
                mean = start[part] - sent
                dist.all_reduce(mean)
                under_way[index] = (step + delay, sent, mean / dist.get_world_size())
            if index in under_way and under_way[index][0] == step:
                _, sent, mean = under_way.pop(index)
                buffer[part] = MOMENTUM * buffer[part] + mean
                start[part] -= LR * (mean + MOMENTUM * buffer[part])
                now = flat()
                now[part] += start[part] - sent
                put(now)
        found.append(weights_of(model))
    return found


SCHEDULES: dict[str, dict[str, Any]] = {
    "whole": {"every": 3},
    "fragments": {"every": 5, "fragments": 3},
    "delay": {"every": 4, "delay": 3},
    "both": {"every": 5, "fragments": 2, "delay": 2},
    "float64": {"every": 3, "dtype": torch.float64},
}


def schedule(name: str, rank: int) -> dict[str, Any]:
    options = dict(SCHEDULES[name])
    model = make_model(options.pop("dtype", torch.float32))
    local = local_of(model, **NONE, **options, compression=None)
    found = moved(model, local, rank, range(14))
    dim, count = local._weights.dim, options.get("fragments", 1)
    bounds = [dim * index // count for index in range(count + 1)]
    expected = by_hand(
        rank, 14, every=options["every"], bounds=bounds, delay=options.get("delay", 0)
    )
    local.finish()
    return {"found": found, "expected": expected, "last": weights_of(model)}


def sketched(rank: int) -> dict[str, Any]:
    """Ranks begin with other weights, and buffers of their own."""
    norm = nn.BatchNorm1d(4)
    model = nn.Sequential(make_model(), norm)
    change(model, rank, 99)
    assert norm.running_mean is not None
    norm.running_mean.fill_(float(rank))
    local = local_of(model)
    found = [weights_of(model), *moved(model, local, rank, range(6))]
    common = torch.cat([one.reshape(-1).double() for one in local.global_weights().values()])
    dim = local._weights.dim
    return {
        "found": found,
        "common": common,
        "buffer": norm.running_mean[0].item(),
        "bytes": [local.payload_bytes, local.bytes_per_step, 4 * dim],
        "claim": str(local.claim),
    }


def bfloat16(rank: int) -> dict[str, Any]:
    """Steps too small for the type of the parameters add up."""
    model = nn.Linear(4, 4, bias=False)
    nn.init.ones_(model.weight).bfloat16()
    model = model.to(torch.bfloat16)
    local = local_of(model, **NONE, compression=None, every=1, outer_lr=0.1, outer_momentum=0.0)
    found = []
    for _ in range(4):
        with torch.no_grad():
            model.weight.sub_(2**-8 if rank else 0)  # one unit in the last place, below 1
        local.step()
        found.append(model.weight[0, 0].item())
    return {"found": found, "common": local._common._values[0][0].item()}


def resumed(rank: int) -> dict[str, Any]:
    """Eleven steps at once; and five, a file, and six of everything made anew."""
    options: dict[str, Any] = {"every": 5, "fragments": 2, "delay": 3}
    whole = make_model()
    expected = moved(whole, local_of(whole, **options), rank, range(11))
    half = make_model()
    local = local_of(half, **options)
    moved(half, local, rank, range(6))  # one exchange is under way
    file = io.BytesIO()
    torch.save({"model": half.state_dict(), "local": local.state_dict()}, file)
    file.seek(0)
    kept = torch.load(file, weights_only=True)
    found = {}
    for name in ("with", "before", "without"):
        again = make_model()
        if name == "before":  # and rank 0's weights go to all when the object is made
            again.load_state_dict(kept["model"])
        local = local_of(again, **options)
        if name != "before":
            again.load_state_dict(kept["model"])
        if name != "without":
            local.load_state_dict(kept["local"])
        else:
            local.steps = 6
        found[name] = moved(again, local, rank, range(6, 11))
    state = kept["local"]
    other = local_of(make_model(), **{**options, "delay": 2})
    damaged = {**state, "common": {**state["common"], "momentum": [torch.zeros(3)]}}
    return {
        "expected": expected[6:],
        **found,
        "other": error_of(lambda: other.load_state_dict(state)),
        "damaged": error_of(lambda: local.load_state_dict(damaged if rank else state)),
        "empty": error_of(lambda: local.load_state_dict({})),
    }


def finished(rank: int) -> dict[str, Any]:
    """Right after an exchange, twice, from a state; and where rank 1 has made a step more."""
    found: dict[str, Any] = {}
    for name, options in {"whole": {"every": 2}, "delay": {"every": 4, "delay": 2}}.items():
        model = make_model()
        local = local_of(model, **options)
        weights = [moved(model, local, rank, range(4))[-1]]
        for _ in range(2):
            local.finish()
            weights.append(weights_of(model))
        again = make_model()
        other = local_of(again, **options)
        other.load_state_dict(local.state_dict())
        other.finish()
        found[name] = [*weights, weights_of(again)]
        found[f"{name} rounds"] = local.means[0].round_index
    if rank == 1:
        moved(model, local, rank, range(4, 5))
    found["uneven"] = error_of(local.finish)
    return found


def apart(rank: int) -> dict[str, Any]:
    """Rank 1 has something else, or fails; both raise, and can go on."""
    second = rank == 1
    found: dict[str, Any] = {
        name: error_of(lambda options=options: local_of(make_model(), **options))  # type: ignore[misc]
        for name, options in {
            "every": {"every": 4 if second else 3},
            "seed": {"seed": rank},
            "lr": {"outer_lr": 0.5 if second else 0.6},
            "fails": {"every": 0 if second else 3},
            "kind": {"method": 3 if second else "sketch"},
            "group": {"group": "x" if second else None},
            "compression": {"compression": 16 if second else 8},
        }.items()
    }
    base = make_model()  # its last bias is frozen
    if second:
        dict(base.named_parameters())["2.bias"].data[0] += 1e-6
    found["frozen"] = error_of(lambda: local_of(base))
    other = make_model() if second else nn.Linear(3, 5)
    found["model"] = error_of(lambda: local_of(other, method="none", compression=None))
    model = make_model()
    local = local_of(model, every=2)
    moved(model, local, rank, range(2))
    if second:
        local._common._values[0][3] += 1e-6  # as a broken memory would
    change(model, rank, 2)
    local.step()
    found["weights"] = error_of(local.step)
    model = make_model()
    local = local_of(model, every=1)
    digest = local._common.digest
    if second:
        break_digest(local)
    found["planted"] = error_of(local.step)
    local._common.digest = digest  # type: ignore[method-assign]
    found["after"] = moved(model, local, rank, range(1))
    return found


def not_finite(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, options in {"none": {"every": 2}, "delay": {"every": 2, "delay": 1}}.items():
        model = make_model()
        local = local_of(model, **options)
        moved(model, local, rank, range(3))
        before = local.global_weights()["0.bias"]
        if rank == 1:
            with torch.no_grad():
                next(model.parameters())[0, 0] = torch.nan
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            moved(model, local, rank, range(3, 5))
        found[f"{name} warned"] = [str(one.message) for one in caught]
        same = torch.equal(before, local.global_weights()["0.bias"])
        found[name] = [same, bool(weights_of(model).isfinite().all())]
        moved(model, local, rank, range(5, 8))
        found[f"{name} after"] = bool(weights_of(model).isfinite().all())
    return found


def private(folder: str, rank: int) -> dict[str, Any]:
    """Silos with a budget for some exchanges, and what is refused there."""
    budget = Budget(5.0, 1e-5)
    options = {**PROVEN, "every": 2, "budget": budget, "account_file": f"{folder}/silo-{rank}.json"}
    model = make_model()
    local = local_of(model, **options)
    error, found = "", []
    for step in range(100):
        change(model, rank, step)
        error = error_of(local.step)
        if error:
            break
        found.append(weights_of(model))
    epsilon = local.epsilon(1e-5)
    changed = make_model()
    change(changed, rank, 0)
    sync = make_model()
    sync.append(nn.SyncBatchNorm(4))
    tries: dict[str, Callable[[], Any]] = {
        "first weights": lambda: local_of(changed, **PROVEN),
        "SyncBatchNorm": lambda: local_of(sync, **PROVEN),
        "fragments": lambda: local_of(make_model(), **PROVEN, fragments=2),
        "trust": lambda: local_of(make_model(), **PROVEN, trust="central"),
        "budget": lambda: local_of(make_model(), budget=budget),
        "again": local_of(make_model(), **{**options, "every": 1}).step,
        "one account": lambda: local_of(
            make_model(), **{**options, "account_file": f"{folder}/silo-0.json"}
        ),
    }
    return {
        "error": error,
        "steps": local.steps,
        "equal": found[1::2],
        "epsilon": float(epsilon),
        "words": str(epsilon),
        "refused": {name: error_of(one) for name, one in tries.items()},
        "swapped": str(
            local_of(
                make_model(), **{**options, "account_file": f"{folder}/silo-{1 - rank}.json"}
            ).epsilon(1e-5)
        ),
        "files": sorted(one.name for one in Path(folder).glob("*.json")),
    }


def refused(rank: int) -> dict[str, str]:
    del rank
    tries: dict[str, Callable[[], Any]] = {
        "DDP": lambda: local_of(DistributedDataParallel(make_model())),
        "key": lambda: local_of(make_model(), seed=None),
        "delay": lambda: local_of(make_model(), delay=3),
        "fragments": lambda: local_of(make_model(), fragments=4),
        "frozen": lambda: local_of(make_model().requires_grad_(False)),
        "complex": lambda: local_of(nn.Linear(2, 2, dtype=torch.complex64)),
        "cols": lambda: local_of(make_model(), cols=3),
        "dim": lambda: local_of(make_model(), method=PlainSketch(5, 1, 2), compression=None),
        "settings": lambda: local_of(make_model(), method=PlainSketch(5, 1, 2)),
        "no tables": lambda: local_of(make_model(), method="none"),
        "every": lambda: local_of(make_model(), every="x"),
        "outer_lr": lambda: local_of(make_model(), outer_lr="x"),
        "outer_momentum": lambda: local_of(make_model(), outer_momentum="x"),
        "compression": lambda: local_of(make_model(), compression="x"),
        "immediate": lambda: local_of(make_model(), immediate="x"),
        "seed": lambda: local_of(make_model(), seed="x"),
        "error_feedback": lambda: local_of(make_model(), error_feedback="yes"),
        "bits": lambda: local_of(make_model(), bits=True),
    }
    return {name: error_of(one) for name, one in tries.items()}


def wrapped(rank: int) -> dict[str, Any]:
    """A DDP over all ranks that averages nothing, as frameworks need it."""
    weights, norm = [], make_model().append(nn.BatchNorm1d(4))
    for ddp in (False, True):
        module = trainable()
        model = DistributedDataParallel(module) if ddp else module
        if isinstance(model, DistributedDataParallel):
            model.register_comm_hook(None, own_gradients)
        train(model, local_of(model), rank, range(8))
        weights.append(weights_of(module))

    def refused(model: nn.Module, **options: Any) -> str:
        prepared = model if options.pop("plain", False) else same_weights(model)
        outer = DistributedDataParallel(prepared, **options)
        outer.register_comm_hook(None, own_gradients)
        return error_of(lambda: local_of(outer, **PROVEN))

    tries = [
        refused(norm, plain=True), refused(trainable(), plain=True),
        refused(trainable(), find_unused_parameters=True), refused(norm),
    ]  # fmt: skip
    return {"weights": weights, "tries": tries}


def guarded(rank: int) -> dict[str, Any]:
    """Rank 1's code raises in its second step, of two to an exchange or to a fragment."""
    found: dict[str, Any] = {}
    for name, options in {
        "proven": {**PROVEN, "every": 2},
        "unproven": {"every": 2},
        "fragments": {"every": 4, "fragments": 2, "delay": 1},
    }.items():
        model = make_model()
        local = local_of(model, **options)

        def step(index: int) -> None:
            with local.guard():  # noqa: B023
                change(model, rank, index)  # noqa: B023
                if rank == 1 and index == 1:
                    raise OSError("planted")

        with logged() as texts:
            errors = [error_of(partial(step, index)) for index in range(2)]
        found[name] = {"errors": errors, "log": texts, "weights": weights_of(model)}
    return found


def overlapping(rank: int) -> Tensor:
    """Rank 0 goes on while rank 1 has not sent yet; if it did not, both would wait forever.

    In the first exchange it waits, until all have agreed on the limit of cells of few bits.
    """
    model = make_model()
    local = local_of(model, every=2, delay=1)
    moved(model, local, rank, range(3))
    store: Any = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["rank 0 goes on"])
    moved(model, local, rank, range(3, 4))
    if rank == 0:
        store.set("rank 0 goes on", "")
    moved(model, local, rank, range(4, 5))
    local.finish()
    return weights_of(model)


def zeros(rank: int) -> dict[str, Any]:
    """Nothing has changed when the limit of the cells is first agreed on; then rank 1 fails."""
    model = make_model()
    local = local_of(model, every=1)
    before = weights_of(model)
    local.step()
    still = float((weights_of(model) - before).abs().max())
    if rank == 1:
        local.means[0]._next_scale = lambda _: 1 // 0  # type: ignore[assignment]
    error = error_of(local.step)
    local.means[0].__dict__.pop("_next_scale", None)
    agreed = local.means[0]._limit_agreed
    found = moved(model, local, rank, range(4))[-1]
    moves = float((found - before).norm())
    return {"still": still, "error": error, "agreed": agreed, "found": found, "moves": moves}


def replaced(rank: int) -> dict[str, Any]:
    """A parameter that is new, a damaged state at rank 1; then both go on."""
    model = make_model()
    local = local_of(model, every=1)
    first: Any = next(iter(model.children()))
    kept = first.weight
    first.weight = torch.nn.Parameter(kept.detach().clone())
    new = error_of(local.step)
    first.weight = kept
    state, errors = local.state_dict(), []
    for name, value in (("means", []), ("steps", "x"), ("under_way", [])):
        bad = {**state, name: value} if rank == 1 else state
        errors.append(error_of(lambda bad=bad: local.load_state_dict(bad)))  # type: ignore[misc]
    local.load_state_dict(state)
    return {"new": new, "errors": errors, "found": moved(model, local, rank, range(2))[-1]}


def example(rank: int) -> float:
    """The example's training, with fewer steps; processes begin with other weights."""
    torch.manual_seed(rank)
    found: float = runpy.run_path(str(EXAMPLE), run_name="example")["train"](60)
    return found


def pair_checks(folder: str) -> Checks:
    own = (
        sketched,
        bfloat16,
        resumed,
        finished,
        apart,
        not_finite,
        refused,
        wrapped,
        guarded,
        overlapping,
        zeros,
        replaced,
    )
    return {
        **{f"schedule {name}": partial(schedule, name) for name in SCHEDULES},
        **{one.__name__: one for one in (*own, example)},
        "private": partial(private, folder),
    }
