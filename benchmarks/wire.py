"""How long do messages take to become bytes and back, and to be summed?

    python -m benchmarks.wire --json benchmark-wire.json
    python -m benchmarks.wire --cells 1e5 --quick

Packing is compared with the obvious way, all bits as bytes through `numpy.packbits`. Whole messages
(header, checksum, payload) are those of the paper's tasks and one of many cells; an inbox's sum is
compared with adding tensors, whose result depends on the order. One thread; jobs take turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.one_thread import in_one_thread, save
from benchmarks.report import print_table, readable
from benchmarks.timing import Job, extra_memory, measure
from diffsketch.wire import HEADER_BYTES, Message, MessageFormat
from diffsketch.wire.inbox import FloatSum, WholeSum
from diffsketch.wire.message import pack, unpack

BITS = (4, 5, 13, 22, 62)
FORMATS = (
    MessageFormat("sketch", 7850, (7, 22), "float32", 32),
    MessageFormat("sketch-skellam", 7850, (7, 22), "unsigned", 22),
    MessageFormat("cpsgd", 7850, (7850,), "unsigned", 4),
    MessageFormat("sketch", 10**6, (5, 2000), "float32", 32),
)
CPU = torch.device("cpu")
ABOUT: dict[str, Any] = {"round_index": 0, "fingerprint": bytes(8)}


def by_packbits(cells: npt.NDArray[np.int64], bits: int) -> bytes:
    spread = ((cells[:, None] >> np.arange(bits)) & 1).astype(np.uint8)
    return np.packbits(spread.reshape(-1), bitorder="little").tobytes()


def by_unpackbits(data: bytes, count: int, bits: int) -> npt.NDArray[np.int64]:
    spread = np.unpackbits(np.frombuffer(data, np.uint8), count=count * bits, bitorder="little")
    cells: npt.NDArray[np.int64] = spread.reshape(count, bits) @ (1 << np.arange(bits))
    return cells


def cells_of(layout: MessageFormat) -> torch.Tensor:
    rng = np.random.default_rng(0)
    if layout.cells == "float32":
        return torch.from_numpy(rng.standard_normal(layout.shape, dtype=np.float32))
    return torch.from_numpy(rng.integers(0, 1 << layout.bits, layout.shape))


def seconds(jobs: dict[str, Callable[[], Any]], repeat: int) -> dict[str, float]:
    work = [Job(name, "encode", run, ours=True) for name, run in jobs.items()]
    timings = measure(work, device=CPU, repeat=repeat)
    return {timing.job.name: timing.median for timing in timings}


def run_packing(count: int, bits: int, repeat: int) -> dict[str, Any]:
    layout = MessageFormat("cpsgd", count, (count,), "unsigned", bits)
    cells = cells_of(layout)
    values, data = cells.numpy(), pack(cells, layout)
    message = bytes(HEADER_BYTES) + data
    if by_packbits(values, bits) != data:
        raise RuntimeError(f"both ways must give the same bytes, and for {bits} bits they do not")
    found = seconds(
        {
            "pack": lambda: pack(cells, layout),
            "packbits": lambda: by_packbits(values, bits),
            "unpack": lambda: unpack(message, layout),
            "unpackbits": lambda: by_unpackbits(data, count, bits),
        },
        repeat,
    )
    memory = {
        "pack": extra_memory(lambda: pack(cells, layout), device=CPU),
        "packbits": extra_memory(lambda: by_packbits(values, bits), device=CPU),
    }
    return {"cells": count, "bits": bits, "seconds": found, "memory_bytes": memory}


def run_message(layout: MessageFormat, repeat: int) -> dict[str, Any]:
    cells = cells_of(layout)
    message = Message(layout, cells, **ABOUT, sender=0)
    data, plain = message.to_bytes(), torch.zeros_like(cells)
    exact = layout.cells == "float32"
    running = FloatSum(layout.shape) if exact else WholeSum(layout, wraps=True)
    found = seconds(
        {
            "to_bytes": message.to_bytes,
            "from_bytes": lambda: Message.from_bytes(data, layout, **ABOUT),
            "sum": lambda: running.add(cells),
            "torch add_": lambda: plain.add_(cells),
        },
        repeat,
    )
    return {
        "method": layout.method,
        "shape": layout.shape,
        "bits": layout.bits,
        "wire_bytes": len(data),
        "seconds": found,
    }


def run(cells: int, repeat: int) -> dict[str, Any]:
    many = MessageFormat("none", cells, (cells,), "float32", 32)
    return {
        "packing": [run_packing(cells, bits, repeat) for bits in BITS],
        "messages": [run_message(layout, repeat) for layout in (*FORMATS, many)],
    }


def show(packing: Sequence[dict[str, Any]], messages: Sequence[dict[str, Any]]) -> None:
    lines = []
    for case in packing:
        found, memory = case["seconds"], case["memory_bytes"]
        line = [str(case["bits"])]
        for ours, peer in (("pack", "packbits"), ("unpack", "unpackbits")):
            line += [readable(found[ours]), readable(found[peer])]
            line.append(f"{found[peer] / found[ours]:.1f}x")
        line += ["-" if size is None else f"{size / 2**20:.0f} MiB" for size in memory.values()]
        lines.append(line)
    headers = ["bits", "pack", "packbits", "faster", "unpack", "unpackbits", "faster"]
    headers += ["pack takes", "packbits takes"]
    print_table(f"Packing {packing[0]['cells']:,} cells", headers, lines)
    lines = [
        [f"{case['method']} {case['shape']}", str(case["bits"]), f"{case['wire_bytes']:,}"]
        + [readable(value) for value in case["seconds"].values()]
        for case in messages
    ]
    headers = ["message", "bits", "bytes", "to bytes", "from bytes", "exact sum", "torch add_"]
    print_table("Messages", headers, lines)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cells", type=lambda text: int(float(text)), default=10**6)
    parser.add_argument("--repeat", type=int, default=9, help="rounds in which jobs take turns")
    parser.add_argument("--quick", action="store_true", help="10^5 cells and three rounds")
    parser.add_argument("--json", type=Path, help="where to write all results")
    options = parser.parse_args(argv)
    if options.quick:
        options.cells, options.repeat = min(options.cells, 10**5), min(options.repeat, 3)
    return options


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    result = in_one_thread(lambda: run(options.cells, options.repeat))
    show(result["packing"], result["messages"])
    save(result, options.json)


if __name__ == "__main__":
    main()
