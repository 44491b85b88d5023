"""What each rank does with local steps, and returns; `test_local_steps.py` says what it must be."""

from __future__ import annotations

import io
import runpy
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from diffsketch.ddp import (
    GroupMean,
    LocalSteps,
    StoreGroup,
    all_reduce_mean,
    own_gradients,
    sketch_state,
)
from diffsketch.methods import PlainSketch, Uncompressed
from diffsketch.privacy import Budget
from diffsketch.sketch import SketchKey
from tests.ddp.processes import Checks, error_of

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
    for name in ("with", "without"):
        again = make_model()
        local = local_of(again, **options)
        again.load_state_dict(kept["model"])
        if name == "with":
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
            "compression": {"compression": 16 if second else 8},
        }.items()
    }
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
    options = {**PROVEN, "every": 2, "budget": budget, "account_file": f"{folder}/account.json"}
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
    }
    return {
        "error": error,
        "steps": local.steps,
        "equal": found[1::2],
        "epsilon": float(epsilon),
        "words": str(epsilon),
        "refused": {name: error_of(one) for name, one in tries.items()},
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
        outer = DistributedDataParallel(model, **options)
        outer.register_comm_hook(None, own_gradients)
        return error_of(lambda: local_of(outer, **PROVEN))

    tries = [refused(norm), refused(trainable(), find_unused_parameters=True), refused(trainable())]
    return {"weights": weights, "tries": tries}


def overlapping(rank: int) -> Tensor:
    """Rank 0 goes on while rank 1 has not sent yet; if it did not, both would wait forever."""
    model = make_model()
    local = local_of(model, every=2, delay=1)
    moved(model, local, rank, range(1))
    store: Any = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["rank 0 goes on"])
    moved(model, local, rank, range(1, 2))
    if rank == 0:
        store.set("rank 0 goes on", "")
    moved(model, local, rank, range(2, 3))
    local.finish()
    return weights_of(model)


def example(rank: int) -> float:
    """The example's training, with fewer steps; processes begin with other weights."""
    torch.manual_seed(rank)
    found: float = runpy.run_path(str(EXAMPLE), run_name="example")["train"](60)
    return found


def pair_checks(folder: str) -> Checks:
    own = (sketched, bfloat16, resumed, apart, not_finite, refused, wrapped, overlapping, example)
    return {
        **{f"schedule {name}": partial(schedule, name) for name in SCHEDULES},
        **{one.__name__: one for one in own},
        "private": partial(private, folder),
    }


# Two machines of two ranks.


def mesh_of() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("between", "inside"))


def trainable() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(8, 15), nn.Tanh(), nn.Linear(15, 4))


def sharded(mesh: DeviceMesh) -> nn.Sequential:
    """Shards of 8 and 7 rows: not all of the same size."""
    model = trainable()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh["inside"])
    fully_shard(model, mesh=mesh["inside"])
    return model


def replicated(mesh: DeviceMesh) -> DistributedDataParallel:
    return DistributedDataParallel(trainable(), process_group=mesh["inside"].get_group())


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


def whole(model: nn.Module) -> Tensor:
    full = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in model.parameters()]
    return torch.cat([one.detach().reshape(-1) for one in full])


def machines(mesh: DeviceMesh, rank: int) -> dict[str, Any]:
    """The same training in three ways: shards, DDP inside, and shards with tables."""
    between = mesh["between"].get_group()
    found: dict[str, Any] = {}
    for name, make, options in (
        ("shards", sharded, {**NONE, "compression": None}),
        ("ddp", replicated, {**NONE, "compression": None}),
        ("shards sketched", sharded, {"compression": 4, "fragments": 2, "delay": 1}),
        ("ddp sketched", replicated, {"compression": 4, "fragments": 2, "delay": 1}),
    ):
        model = make(mesh)
        local = local_of(model, **options, group=between)
        train(model, local, rank, range(7))
        local.finish()
        found[name] = whole(model)
        found[f"{name} bytes"] = local.payload_bytes
        found[f"{name} dim"] = local._weights.dim
        state = local.state_dict()
        train(model, local, rank, range(7, 10))
        local.load_state_dict(state)
        found[f"{name} resumed"] = local.steps
    return found


def machines_not_finite(mesh: DeviceMesh, rank: int) -> dict[str, Any]:
    """One shard of one machine is broken: all shards of all machines go back."""
    model = sharded(mesh)
    local = local_of(model, group=mesh["between"].get_group(), every=2)
    train(model, local, rank, range(2))
    before = whole(model)
    train(model, local, rank, range(2, 3))
    if rank == 1:
        with torch.no_grad():
            next(model.parameters()).to_local()[0] = torch.inf  # type: ignore[attr-defined]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        local.step()
    return {"before": before, "after": whole(model), "warned": str(caught[-1].message)}


def machines_refused(mesh: DeviceMesh, rank: int) -> dict[str, Any]:
    between, inside = mesh["between"].get_group(), mesh["inside"].get_group()
    model = sharded(mesh)
    mixed = trainable()
    fully_shard(mixed[0], mesh=mesh["inside"])
    tries: dict[str, Callable[[], Any]] = {
        "world": lambda: local_of(sharded(mesh)),
        "inside": lambda: local_of(sharded(mesh), group=inside),
        "ddp inside": lambda: local_of(replicated(mesh), group=inside),
        "mixed": lambda: local_of(mixed, group=between),
        "claim": lambda: local_of(sharded(mesh), group=between, **PROVEN),
        "hook": lambda: sketch_state(model, "sketch", compression=4, seed=1),
        "replicas": lambda: local_of(
            fully_shard(trainable(), mesh=mesh), group=dist.new_group([rank]),  # type: ignore[arg-type]
        ),
    }  # fmt: skip
    found: dict[str, Any] = {name: error_of(one) for name, one in tries.items()}
    silo = local_of(replicated(mesh), group=between, every=1, **PROVEN)
    silo.step()
    found["silo"] = error_of(lambda: silo.epsilon(1e-5)) or str(silo.epsilon(1e-5))
    for name, make in (("planted", sharded), ("planted ddp", replicated)):
        local = local_of(make(mesh), group=between, every=1)
        if rank == 0:
            break_digest(local)
        found[name] = error_of(local.step)
    return found


def gradients(mesh: DeviceMesh, rank: int) -> dict[str, Any]:
    """`all_reduce_mean` of gradients of shards, between machines."""
    model = sharded(mesh)
    model(torch.full((2, 8), float(1 + rank // 2))).sum().backward()
    tensors = [one.grad for one in model.parameters() if one.grad is not None]
    dim = sum(one.to_local().numel() for one in tensors)  # type: ignore[attr-defined]
    own = torch.cat([one.full_tensor().reshape(-1) for one in tensors])  # type: ignore[attr-defined]
    key, between = SketchKey.from_integer(1), mesh["between"].get_group()
    everyone = error_of(lambda: all_reduce_mean(tensors, GroupMean(Uncompressed(10), key=key)))
    all_reduce_mean(tensors, GroupMean(Uncompressed(dim), key=key, group=between))
    mean = torch.cat([one.full_tensor().reshape(-1) for one in tensors])  # type: ignore[attr-defined]
    return {"own": own, "mean": mean, "everyone": everyone}


# Ranks that meet in a store.


@contextmanager
def store_of(rank: int) -> Iterator[Any]:
    """A server at rank 0, which lives until all are done."""
    port: list[Any] = [None]
    server = None
    if rank == 0:
        server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port = [server.port]
    dist.broadcast_object_list(port)
    yield server or TCPStore("127.0.0.1", port[0], is_master=False)
    dist.barrier()


def meeting(store: Any, name: str, rank: int, **options: Any) -> StoreGroup:
    options = {"world": 4, "min_ranks": 2, "wait": 0.3, "timeout": 20.0, **options}
    return StoreGroup(PrefixStore(name, store), rank=rank, **options)


def sleep_until(store: Any, key: str) -> None:
    """Be late for certain: until others have gone on."""
    end = time.monotonic() + 20
    while not store.check([key]) and time.monotonic() < end:
        time.sleep(0.01)


def punctual(store: Any, rank: int) -> dict[str, Any]:
    """Nobody is late: the means of a process group."""
    found = []
    for group in (None, meeting(store, "punctual", rank, wait=15.0)):
        model = make_model()
        local = local_of(model, **NONE, compression=None, group=group)
        found.append(moved(model, local, rank, range(6))[-1])
    local.finish()
    return {"found": found, "last": weights_of(model), "round": local.means[0].round_index}


def late(store: Any, rank: int) -> dict[str, Any]:
    """Rank 3 sleeps over some exchanges, and goes on."""
    model = make_model()
    local = local_of(model, group=meeting(store, "late", rank), every=2)
    present = []
    for step in range(12):
        if rank == 3 and step == 3:
            sleep_until(store, "late/2/present")
        time.sleep(0.05)
        change(model, rank, step)
        local.step()
        present.append(local.means[0].present)  # type: ignore[attr-defined]
    local.finish()
    return {"weights": weights_of(model), "present": present}


def returning(store: Any, rank: int) -> dict[str, Any]:
    """Rank 2 stops after two exchanges and is made anew from its file, rank 3 from rank 0's."""
    group = meeting(store, "returning", rank)
    model = make_model()
    local = local_of(model, group=group, every=2)
    moved(model, local, rank, range(4))
    kept = {"model": model.state_dict(), "local": local.state_dict()}
    if rank < 2:
        moved(model, local, rank, range(4, 8))
        kept = {"model": model.state_dict(), "local": local.state_dict()}
    everyone: list[Any] = [None] * 4
    dist.all_gather_object(everyone, kept)
    if rank >= 2:
        source = everyone[rank if rank == 2 else 0]
        model = make_model()
        local = local_of(model, group=meeting(store, "returning", rank), every=2)
        model.load_state_dict(source["model"])
        local.load_state_dict(source["local"])
    dist.barrier()
    for step in range(8, 12):
        time.sleep(0.05)
        change(model, rank, step)
        local.step()
    local.finish()
    return {"weights": weights_of(model), "rounds": local.means[0].round_index}


def store_refused(store: Any, rank: int) -> dict[str, Any]:
    def tried(name: str, **options: Any) -> str:
        return error_of(lambda: local_of(make_model(), group=meeting(store, name, rank), **options))

    alone = meeting(store, "alone", rank, world=4, min_ranks=4, wait=0.1, timeout=0.2)
    with_alone = ""
    if rank == 0:
        with_alone = error_of(lambda: local_of(make_model(), group=alone))
    model = make_model()
    group = meeting(store, "failing", rank, min_ranks=4)
    local = local_of(model, group=group, every=1)
    if rank == 1:
        break_digest(local)
    found = {
        "planted": error_of(local.step),
        "fragments": tried("a", fragments=2),
        "delay": tried("b", delay=1),
        "trust": tried("c", **PROVEN, trust="central", trusted_group=True),
        "alone": with_alone,
    }
    other = meeting(store, "other", rank, min_ranks=4)
    found["seed"] = error_of(lambda: local_of(make_model(), group=other, seed=rank // 3))
    old = meeting(store, "old", rank, keep=2, min_ranks=3)
    model = make_model()
    local = local_of(model, group=old, every=1)
    if rank < 3:
        moved(model, local, rank, range(5))
    dist.barrier()
    found["old"] = error_of(local.step) if rank == 3 else ""
    return found


def machines_in_a_store(mesh: DeviceMesh, store: Any, rank: int) -> dict[str, Any]:
    """Two machines with DDP inside; the second is late once."""
    machine = rank // 2
    group = meeting(store, "machines", machine, world=2, min_ranks=1)
    model = replicated(mesh)
    local = local_of(model, group=group, every=2)
    for step in range(8):
        if rank == 2 and step == 3:
            sleep_until(store, "machines/2/present")
        time.sleep(0.05)
        change(model, machine, step)
        local.step()
    local.finish()
    shards = error_of(lambda: local_of(sharded(mesh), group=group))
    return {"weights": whole(model), "shards": shards}


def four_checks() -> Checks:
    kept: dict[str, Any] = {}

    def with_mesh(check: Callable[[DeviceMesh, int], Any]) -> Callable[[int], Any]:
        def run(rank: int) -> Any:
            if "mesh" not in kept:
                kept["mesh"] = mesh_of()
            return check(kept["mesh"], rank)

        return run

    def with_store(check: Callable[[Any, int], Any]) -> Callable[[int], Any]:
        def run(rank: int) -> Any:
            with store_of(rank) as store:
                return check(store, rank)

        return run

    def both(rank: int) -> Any:
        with store_of(rank) as store:
            return machines_in_a_store(kept["mesh"], store, rank)

    meshed = (machines, machines_not_finite, machines_refused, gradients)
    stored = (punctual, late, returning, store_refused)
    return {
        **{one.__name__: with_mesh(one) for one in meshed},
        **{one.__name__: with_store(one) for one in stored},
        "machines_in_a_store": both,
    }
