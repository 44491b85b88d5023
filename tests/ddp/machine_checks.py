"""What holds on each of four ranks that make local steps: machines of two, ranks in a store."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from diffsketch.ddp import GroupMean, StoreGroup, all_reduce_mean, sketch_state
from diffsketch.ddp.transport import (
    FRAMES_AGAIN,
    FRAMES_EXACT,
    RankReport,
    RankStatus,
    transport_of,
)
from diffsketch.methods import PlainSketch, Uncompressed
from diffsketch.methods.gate import rounding_noise
from diffsketch.privacy import CohortNoise, NoiseKey
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
from tests.ddp.processes import Checks, assert_fails, assert_voids, everyone


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


def machines(mesh: DeviceMesh, rank: int) -> list[Tensor]:
    """The same training in four ways: shards and DDP inside, both with tables and without."""
    between, weights, plain = mesh["between"].get_group(), [], {**NONE, "compression": None}
    tables = {"compression": 4, "fragments": 2, "delay": 1}
    for make, options in (
        (sharded, plain), (replicated, plain), (sharded, tables), (replicated, tables)
    ):  # fmt: skip
        model = make(mesh)
        local = local_of(model, **options, group=between)
        train(model, local, rank, range(7))
        local.finish()
        weights.append(whole(model))
        dim = local._weights.dim
        assert dim == (199 if make is replicated else (104, 95)[rank % 2])  # no rank has all shards
        if make is replicated:
            assert (local.bytes_per_step.sent > 0) == (rank % 2 == 0)
        elif options is plain:
            assert local.bytes_per_step.sent == (4 * dim + 16 + FRAMES_EXACT) / 3
        state = local.state_dict()
        train(model, local, rank, range(7, 10))
        local.load_state_dict(state)
        assert local.steps == 7
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(weights[2], weights[0], rtol=1e-2)
    return weights


def machines_not_finite(mesh: DeviceMesh, rank: int) -> Tensor:
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
    after = whole(model)
    assert torch.equal(after, before)
    assert "the outer step is skipped" in str(caught[-1].message)
    return after


def machines_refused(mesh: DeviceMesh, rank: int) -> None:
    between, inside = mesh["between"].get_group(), mesh["inside"].get_group()
    model = sharded(mesh)
    mixed = trainable()
    fully_shard(mixed[0], mesh=mesh["inside"])
    averaged = "model must not be averaged or sharded over the ranks of group"
    tries: tuple[tuple[Callable[[], Any], str], ...] = (
        (lambda: local_of(sharded(mesh)), averaged),
        (lambda: local_of(sharded(mesh), group=inside), averaged),
        (lambda: local_of(replicated(mesh), group=inside), averaged),
        (lambda: local_of(mixed, group=between), "model must be sharded as a whole: wrap its root"),
        (
            lambda: local_of(sharded(mesh), group=between, **PROVEN),
            "model must not be sharded: the claim of method='sketch-gaussian' is about one",
        ),
        (
            lambda: sketch_state(model, "sketch", compression=4, seed=1),
            "use diffsketch.ddp.LocalSteps between machines",
        ),
        (
            lambda: local_of(
                fully_shard(trainable(), mesh=mesh), group=dist.new_group([rank])  # type: ignore[arg-type]
            ),
            "DTensors must be sharded along all dimensions of their mesh, got",
        ),
    )  # fmt: skip
    for make, text in tries:
        assert_fails(make, text)
    silo = local_of(replicated(mesh), group=between, every=1, **PROVEN)
    silo.step()
    if rank % 2:
        assert_fails(lambda: silo.epsilon(1e-5), "ask the first rank")
    else:
        first = "over 1 round (proven; client unit, replace, local trust)"
        assert first in str(silo.epsilon(1e-5))
    for shard in (sharded, replicated):  # at rank 0; its machine and its partner raise
        local = local_of(shard(mesh), group=between, every=1)
        if rank == 0:
            break_digest(local)
        text = "another rank of this machine failed to exchange"
        if rank % 2 == 0:
            text = "round 0 is void: rank 0 failed" if rank else "OSError: planted in fragment 0"
        assert_fails(local.step, text)


def gradients(mesh: DeviceMesh, rank: int) -> None:
    """`all_reduce_mean` of gradients of shards, between machines."""
    model = sharded(mesh)
    model(torch.full((2, 8), float(1 + rank // 2))).sum().backward()
    tensors = [one.grad for one in model.parameters() if one.grad is not None]
    dim = sum(one.to_local().numel() for one in tensors)  # type: ignore[attr-defined]
    own = torch.cat([one.full_tensor().reshape(-1) for one in tensors])  # type: ignore[attr-defined]
    key, between = SketchKey.from_integer(1), mesh["between"].get_group()
    mean_of_all = GroupMean(Uncompressed(10), key=key)
    assert_fails(lambda: all_reduce_mean(tensors, mean_of_all), "the ranks of group, got rank")
    all_reduce_mean(tensors, GroupMean(Uncompressed(dim), key=key, group=between))
    mean = torch.cat([one.full_tensor().reshape(-1) for one in tensors])  # type: ignore[attr-defined]
    parts = everyone(own)
    torch.testing.assert_close(mean, (parts[0] + parts[2]) / 2)


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


def punctual(store: Any, rank: int) -> Tensor:
    """Nobody is late: the means of a process group."""
    weights = []
    for group in (None, meeting(store, "punctual", rank, wait=15.0)):
        model = make_model()
        local = local_of(model, **NONE, compression=None, group=group)
        weights.append(moved(model, local, rank, range(6))[-1])
    torch.testing.assert_close(*weights)
    local.finish()
    assert local.means[0].round_index == 2  # and nothing was left for the end
    return weights_of(model)


def late(store: Any, rank: int) -> Tensor:
    """Rank 3 sleeps over some exchanges, and goes on."""
    model = make_model()
    local = local_of(model, group=meeting(store, "late", rank), every=2)
    for step in range(12):
        if rank == 3 and step == 3:
            sleep_until(store, "late/2/present")
        time.sleep(0.05)
        change(model, rank, step)
        local.step()
        assert not (rank == step == 3 and local.means[0].present)
    local.finish()
    return weights_of(model)


def returning(store: Any, rank: int) -> tuple[Tensor, int]:
    """Rank 2 stops after two exchanges and is made anew from its file, rank 3 from rank 0's."""
    model = make_model()
    local = local_of(model, group=meeting(store, "returning", rank), every=2)
    moved(model, local, rank, range(4))
    if rank < 2:
        moved(model, local, rank, range(4, 8))
    states = everyone({"model": model.state_dict(), "local": local.state_dict()})
    if rank >= 2:
        kept = states[rank if rank == 2 else 0]
        model = make_model()
        local = local_of(model, group=meeting(store, "returning", rank), every=2)
        model.load_state_dict(kept["model"])
        local.load_state_dict(kept["local"])
    dist.barrier()
    for step in range(8, 12):
        time.sleep(0.05)
        change(model, rank, step)
        local.step()
    local.finish()
    return weights_of(model), local.means[0].round_index


def store_refused(store: Any, rank: int) -> None:
    for name, options, text in (
        ("a", {"fragments": 2}, "fragments must be 1 with a StoreGroup"),
        ("b", {"delay": 1}, "delay must be 0 with a StoreGroup"),
        (
            "c", {**PROVEN, "trust": "central", "trusted_group": True},
            "must claim under local trust in a StoreGroup",
        ),
    ):  # fmt: skip
        assert_fails(
            partial(local_of, make_model(), group=meeting(store, name, rank), **options), text
        )
    if rank == 0:
        alone = meeting(store, "alone", rank, min_ranks=4, wait=0.1, timeout=0.2)
        text = "min_ranks=4 must start within 0.2 seconds, and only [0] did"
        assert_fails(lambda: local_of(make_model(), group=alone), text)
    local = local_of(make_model(), group=meeting(store, "failing", rank, min_ranks=4), every=1)
    if rank == 1:
        break_digest(local)
    assert_voids(local.step, "OSError: planted in fragment 0", rank=rank)
    other = meeting(store, "other", rank, min_ranks=4)
    text = "all ranks must have the same key, but rank"
    assert_fails(lambda: local_of(make_model(), group=other, seed=rank // 3), text)
    model = make_model()
    local = local_of(model, group=meeting(store, "old", rank, keep=2, min_ranks=3), every=1)
    if rank < 3:
        moved(model, local, rank, range(5))
    dist.barrier()
    if rank == 3:
        assert_fails(local.step, "round 0 must still be in the store, which keeps 2 of 5")


def machines_in_a_store(mesh: DeviceMesh, store: Any, rank: int) -> Tensor:
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
    text = "a StoreGroup is for whole models"
    assert_fails(lambda: local_of(sharded(mesh), group=group), text)
    return whole(model)


def summed_again(rank: int) -> None:
    """A sum is rounded again without bias, each part in steps of its own, and its size is exact.

    Roundings follow from a key, so that nothing fails by chance. Cells that stand out are cut by
    grids of less than 4 bits, and left out here.
    """
    key, transport, rounds, sent = SketchKey.from_integer(1), transport_of(None), 200, list[int]()
    exchange, gather = dist.all_to_all_single, dist.all_gather_single
    vectors = torch.randn(4, 60, generator=torch.Generator().manual_seed(2))

    def counted(collective: Any, copies: int) -> Any:
        def call(out: Tensor, mine: Tensor, **options: Any) -> Any:
            sent.append(copies * mine.nbytes)
            return collective(out, mine, **options)

        return call

    for bits, cols in ((1, 64), (2, 37), (3, 38), (4, 37), (8, 3), (16, 39)):
        method = PlainSketch(60, 1, cols, bits=bits, cohort=4).at_limit_of(vectors)
        assert method.grid is not None
        noise = CohortNoise(NoiseKey.from_integer(3), range(4), round_index=0)
        messages = method.encode(vectors, key.seed(0), noise).messages
        sent.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dist, "all_to_all_single", counted(exchange, 1))
            patch.setattr(dist, "all_gather_single", counted(gather, 4))
            mean = torch.zeros(messages.shape[1])
            for index in range(rounds):
                report = RankReport.of(index, 0, RankStatus.FINE)
                draws = partial(rounding_noise, key, index, 4 + rank)
                total, _ = transport.send(
                    messages[rank], report, method=method, seed=key.seed(0), rounding=draws
                )()
                mean += total / rounds
        assert sum(sent) * 3 / 4 == rounds * (transport.round_bytes(method).sent - 3 * FRAMES_AGAIN)
        exact = messages.long().sum(0)
        assert torch.equal(mean[cols:].round(), exact[cols:].float())
        # In steps of the messages; those of cells below 4 bits are half a step up.
        values = exact[:cols] + (2 if bits < 4 else 0)
        largest = float(values.abs().max())
        inside = values.abs() <= (largest if bits >= 4 else 0.3 * largest)
        step = largest / max(2 ** (bits - 1) - 1, 0.5)
        assert inside.any()
        assert (mean[:cols] - exact[:cols])[inside].abs().max() < 0.2 * step  # some 5 deviations


MESHED = (machines, machines_not_finite, machines_refused, gradients)
STORED = (punctual, late, returning, store_refused)
NAMES = [check.__name__ for check in (*MESHED, *STORED, machines_in_a_store, summed_again)]


def four_checks() -> Checks:
    mesh = mesh_of()

    def with_store(check: Callable[[Any, int], Any], rank: int) -> Any:
        with store_of(rank) as store:
            return check(store, rank)

    return {
        **{check.__name__: partial(check, mesh) for check in MESHED},
        **{check.__name__: partial(with_store, check) for check in STORED},
        "summed_again": summed_again,
        "machines_in_a_store": partial(with_store, partial(machines_in_a_store, mesh)),
    }
