"""How many bytes does a step really send? Counted on a loopback device of its own.

    python -m benchmarks.wire_bytes                    # as root: it needs `unshare -n`
    python -m benchmarks.wire_bytes --ranks 2 4 --width 2048 --json wire_bytes.json

Processes over gloo in a network namespace train one layer, 1,049,600 parameters if its width is
1024, and the device's counter is read before and after. That counts all: TCP's headers and
acknowledgements as well. Beside it is what the library says, and how many times fewer bytes were
counted than with plain DDP at the same ranks.

Probes for lost packets are turned off in that namespace: nothing is lost there, and where processes
wait for a core, probes would send whole messages twice.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.one_thread import save
from benchmarks.report import print_table
from benchmarks.timing import environment
from diffsketch.ddp import LocalSteps, same_weights, sketch_hook, sketch_state

INSIDE = "DIFFSKETCH_WIRE_BYTES"  # set in the namespace
EVERY, WARM = 15, 2
HOOKS: dict[str, tuple[str, dict[str, Any]]] = {
    "hook": ("sketch", {}), "hook-2-bits": ("sketch", {"bits": 2}),
    "gaussian": ("sketch-gaussian", {"clip": 1.0, "noise_multiplier": 4.0}),
}  # fmt: skip
TEXTS = {
    "ddp": "DDP, no hook", "fp16": "DDP, fp16_compress_hook", "powersgd-4": "DDP, PowerSGD, rank 4",
    "hook": "sketch, compression=50", "hook-2-bits": "sketch, compression=50, bits=2",
    "gaussian": "sketch-gaussian, compression=50",
    "local": "LocalSteps(every=15, compression=32)",
}  # fmt: skip
NO_PROBES = Path("/proc/sys/net/ipv4/tcp_early_retrans")


def bring_up_loopback() -> None:
    """Do what `ip link set lo up` does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
        request = struct.pack("16sh", b"lo", 0)
        (flags,) = struct.unpack("16xh", fcntl.ioctl(device, 0x8913, request)[:18])
        fcntl.ioctl(device, 0x8914, struct.pack("16sh", b"lo", flags | 1))


def sent_bytes() -> int:
    """Bytes that the loopback device has sent."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    (line,) = [line for line in lines if line.strip().startswith("lo:")]
    return int(line.split(":")[1].split()[8])


def train(
    rank: int, ranks: int, way: str, steps: int, width: int, port: int, results: Any
) -> None:  # fmt: skip
    """Train in one process; rank 0 reads the counter."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    model: nn.Module = nn.Linear(width, width)
    local, said = None, None
    if way == "local":
        local = LocalSteps(model, every=EVERY, compression=32, seed=7)
        said = local.bytes_per_step.sent
    else:
        model = wrapped = DistributedDataParallel(same_weights(model))
        if way == "fp16":
            wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif way == "powersgd-4":
            settings: Any = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=4, start_powerSGD_iter=2, min_compression_rate=1
            )
            wrapped.register_comm_hook(settings, powerSGD_hook.powerSGD_hook)
        elif way != "ddp":
            method, options = HOOKS[way]
            state = sketch_state(wrapped, method, compression=50, seed=7, **options)
            wrapped.register_comm_hook(state, sketch_hook)
            said = state.bytes_per_step.sent
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    # The first rounds agree on a limit, rebuild buckets, and are PowerSGD's uncompressed ones.
    warm = EVERY if local is not None else WARM + 1
    before = 0
    for step in range(warm + steps):
        if step == warm:
            dist.barrier()
            before = sent_bytes()
            dist.barrier()
        model(torch.randn(2, width, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if local is not None:
            local.step()
    dist.barrier()
    if rank == 0:
        results.put({"way": way, "ranks": ranks, "steps": steps, "said": said,
                     "sent": (sent_bytes() - before) / steps / ranks})  # fmt: skip
    dist.barrier()
    dist.destroy_process_group()


def measure(ranks: int, way: str, width: int, port: int) -> dict[str, Any]:
    """Train by one of the ways."""
    context = mp.get_context("fork")
    results, steps = context.SimpleQueue(), 10 * EVERY if way == "local" else 10
    arguments = (ranks, way, steps, width, port, results)
    processes = [context.Process(target=train, args=(rank, *arguments)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit(f"{way} with {ranks} ranks failed")
    result: dict[str, Any] = results.get()
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--ways", nargs="+", choices=TEXTS, default=list(TEXTS))
    parser.add_argument("--width", type=int, default=1024, help="of the layer that is trained")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args(arguments)
    if INSIDE not in os.environ:
        command = ["unshare", "-n", sys.executable, "-m", "benchmarks.wire_bytes"]
        rest = list(arguments) if arguments is not None else sys.argv[1:]
        environ = os.environ | {
            INSIDE: "1", "NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # it looks for names of hosts, and warns
        }  # fmt: skip
        done = subprocess.run([*command, *rest], env=environ, check=False)  # noqa: S603
        raise SystemExit(done.returncode)
    bring_up_loopback()
    NO_PROBES.write_text("0")
    runs: list[dict[str, Any]] = []
    for ranks in options.ranks:
        for way in options.ways:
            runs.append(measure(ranks, way, options.width, 29700 + len(runs)))
            print(runs[-1], flush=True)
    dense = {run["ranks"]: run["sent"] for run in runs if run["way"] == "ddp"}
    lines = []
    for run in runs:
        said = "" if run["said"] is None else f"{run['said']:,.0f}"
        times = f"{dense[run['ranks']] / run['sent']:.1f}x" if run["ranks"] in dense else ""
        lines.append([str(run["ranks"]), TEXTS[run["way"]], f"{run['sent']:,.0f}", said, times])
    headers = ["ranks", "way", "bytes a rank sends in a step", "the library says", "fewer"]
    print_table("counted on the loopback device", headers, lines)
    save(environment(torch.device("cpu")) | {"runs": runs}, options.json)


if __name__ == "__main__":
    main()
