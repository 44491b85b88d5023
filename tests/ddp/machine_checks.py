"""What each of four ranks does with local steps: two machines of two, and ranks in a store.

`test_local_steps.py` says what the results must be.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from diffsketch.ddp import GroupMean, StoreGroup, all_reduce_mean, sketch_state
from diffsketch.methods import Uncompressed
from diffsketch.sketch import SketchKey
from tests.ddp.local_checks import (
    NONE,
    PROVEN,
    break_digest,
    change,
    local_of,
    make_model,
    moved,
    train,
    trainable,
    weights_of,
)
from tests.ddp.processes import Checks, error_of


def mesh_of() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("between", "inside"))


def sharded(mesh: DeviceMesh) -> nn.Sequential:
    """Shards of 8 and 7 rows: not all of the same size."""
    model = trainable()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh["inside"])
    fully_shard(model, mesh=mesh["inside"])
    return model


def replicated(mesh: DeviceMesh) -> DistributedDataParallel:
    return DistributedDataParallel(trainable(), process_group=mesh["inside"].get_group())


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
