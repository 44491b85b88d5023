"""What does a round cost a server, as devices and tables grow, and what would ten million cost?

    python -m benchmarks.scale --json benchmarks/results/scale.json
    python -m benchmarks.scale --quick
    python -m benchmarks.scale --model > benchmarks/results/scale.md    # measures nothing

Each case is a process of its own: real messages, each with its own sender, are made and taken in by
an `Inbox`, some at a time, and the total is compared with the sum that it has to be. Times are
seconds that the thread has computed, so that other work on the machine does not count as ours;
memory is the process's peak above what it had before the first message, with the messages that are
waiting (at most 256 KiB, or one). Counts that would take too long are left out, and a note says so.

The server's part of a TLS 1.3 handshake is measured too, in memory (ECDSA P-256, no client
certificate, no session resumed): each device that connects anew costs one.

The encoding of vectors is not measured again: see `benchmarks.sketch`. `benchmarks.scale_model` has
the formulas.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.report import print_table, readable
from benchmarks.scale_model import print_model
from benchmarks.timing import environment, extra_memory
from diffsketch.wire import Inbox, Message, MessageFormat

SHAPES = ((7, 22), (1, 2_000), (1, 200_000))
COUNTS = (100, 1_000, 10_000, 100_000)
KINDS = {"float32": ("sketch", 32), "unsigned": ("sketch-skellam", 22)}
CPU = torch.device("cpu")
ABOUT: dict[str, Any] = {"round_index": 0, "fingerprint": bytes(8)}
DIM = 10**6  # no work depends on it
TABLES = 8  # different ones, which take turns
WAITING_BYTES = 1 << 18
SPREAD = 0x9E3779B97F4A7C15  # odd, so that senders are different numbers of 64 bits


def layout_of(kind: str, shape: tuple[int, ...]) -> MessageFormat:
    method, bits = KINDS[kind]
    cells: Any = kind
    return MessageFormat(method, DIM, shape, cells, bits)


def tables_of(layout: MessageFormat) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    if layout.cells == "float32":
        return list(torch.randn(TABLES, *layout.shape, generator=generator))
    return list(torch.randint(1 << layout.bits, (TABLES, *layout.shape), generator=generator))


def message(layout: MessageFormat, tables: Sequence[Tensor], index: int) -> bytes:
    sender = index * SPREAD % 2**64
    return Message(layout, tables[index % TABLES], **ABOUT, sender=sender).to_bytes()


def check_total(total: Message, tables: Sequence[Tensor], count: int) -> None:
    """Compare with the tables times how often each was sent."""
    often = [len(range(first, count, TABLES)) for first in range(TABLES)]
    if total.format.cells == "unsigned":
        expected = sum(table * n for table, n in zip(tables, often, strict=True))
        good = torch.equal(total.cells, torch.as_tensor(expected) & ((1 << total.format.bits) - 1))
    else:
        terms = torch.stack([table.double() * n for table, n in zip(tables, often, strict=True)])
        error = (total.cells.double() - terms.sum(dim=0)).abs()
        good = bool((error <= 2.0**-23 * terms.abs().sum(dim=0)).all())
    if not good or total.count != count:
        raise RuntimeError(f"the total of {count} messages must be their sum, and is not")


def run_server(kind: str, shape: tuple[int, ...], count: int) -> dict[str, Any]:
    """A round of so many messages in this process."""
    layout = layout_of(kind, shape)
    tables, waiting = tables_of(layout), max(1, WAITING_BYTES // layout.wire_bytes)
    warm = Inbox(layout, **ABOUT)
    for index in range(TABLES):
        warm.add(message(layout, tables, index))
    totals = [warm.total()]
    del warm
    seconds = {"to_bytes": 0.0, "add": 0.0, "total": 0.0}

    def play() -> None:
        inbox = Inbox(layout, **ABOUT)
        for first in range(0, count, waiting):
            start = time.thread_time()
            arrived = [
                message(layout, tables, index)
                for index in range(first, min(first + waiting, count))
            ]
            made = time.thread_time()
            for data in arrived:
                inbox.add(data)
            seconds["to_bytes"] += made - start
            seconds["add"] += time.thread_time() - made
        start = time.thread_time()
        totals.append(inbox.total())
        seconds["total"] = time.thread_time() - start

    memory = extra_memory(play, device=CPU)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    check_total(totals[-1], tables, count)
    return {
        "cells": kind,
        "shape": shape,
        "bits": layout.bits,
        "messages": count,
        "message_bytes": layout.wire_bytes,
        "add_s": seconds["add"] / count,
        "to_bytes_s": seconds["to_bytes"] / count,
        "total_s": seconds["total"],
        "extra_bytes": memory,
        "process_bytes": peak,
    }


def run_process(kind: str, shape: tuple[int, ...], count: int) -> dict[str, Any]:
    """The same in a process of its own, whose memory is nobody else's."""
    command = [sys.executable, "-m", "benchmarks.scale", "--server-of", kind]
    done = subprocess.run(  # noqa: S603 (our own code)
        [*command, *map(str, (*shape, count))],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def run_servers(
    counts: Sequence[int], limit_s: float, notes: list[str]
) -> Iterator[dict[str, Any]]:
    for kind in KINDS:
        for shape in SHAPES:
            each = 0.0
            for count in sorted(counts):
                if each * count > limit_s:
                    text = f"{count:,} {kind} messages of {shape[0]}x{shape[1]:,} left out: "
                    notes.append(text + f"they would take {each * count:.0f} s")
                    print(f"  note: {notes[-1]}", flush=True)
                    continue
                found = run_process(kind, shape, count)
                each = found["add_s"] + found["to_bytes_s"]
                yield found


def handshake_seconds(repeat: int) -> float | None:
    """The server's part of a TLS handshake; None without `cryptography`, which makes the key."""
    try:
        from benchmarks.certificate import write_certificate
    except ImportError:
        return None
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.pem"
        write_certificate(path)
        server.load_cert_chain(path)
        client.load_verify_locations(path)
    return statistics.median(_handshake(server, client) for _ in range(repeat))


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> float:
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    start = time.thread_time()
    there = server.wrap_bio(up, down, server_side=True)
    taken = time.thread_time() - start
    here = client.wrap_bio(down, up, server_hostname="localhost")
    waiting = True
    while waiting:
        waiting = not _step(here)
        start = time.thread_time()
        waiting = not _step(there) or waiting
        taken += time.thread_time() - start
    if there.version() != "TLSv1.3":
        raise RuntimeError(f"the handshake must be of TLS 1.3, and is of {there.version()}")
    return taken


def _step(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def show(cases: Sequence[dict[str, Any]], handshake: float | None) -> None:
    lines = []
    for case in cases:
        rows, cols = case["shape"]
        memory = "-" if case["extra_bytes"] is None else f"{case['extra_bytes'] / 2**20:.1f} MiB"
        lines.append(
            [
                f"{rows}x{cols:,} {case['cells']}", f"{case['messages']:,}",
                f"{case['message_bytes']:,}", readable(case["add_s"]),
                readable(case["to_bytes_s"]), readable(case["total_s"]), memory,
                f"{case['process_bytes'] / 2**20:.0f} MiB",
            ]
        )  # fmt: skip
    headers = ["table", "messages", "bytes", "add one", "make one", "total", "memory", "process"]
    print_table("One server process", headers, lines)
    if handshake is not None:
        print(f"A TLS handshake, the server's part: {readable(handshake)}")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--counts", type=int, nargs="+", default=list(COUNTS))
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for a case")
    parser.add_argument("--quick", action="store_true", help="at most 1,000 messages")
    parser.add_argument("--model", action="store_true", help="print the tables of results/scale.md")
    parser.add_argument("--json", type=Path, help="where to write all results")
    parser.add_argument("--server-of", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.quick:
        options.counts = [count for count in options.counts if count <= 1_000]
    return options


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    if options.model:
        print_model(Path(__file__).parent / "results")
        return
    if options.server_of:
        torch.set_num_threads(1)  # a process of its own
        kind, rows, cols, count = options.server_of
        print(json.dumps(run_server(kind, (int(rows), int(cols)), int(count))))
        return
    facts, notes = environment(CPU), []
    if (load := facts["hardware"]["load_average"]) > 0.5:
        notes.append(f"other work is running, load {load:.1f}; times are of computing only")
        print(f"  note: {notes[-1]}", flush=True)
    settings = {"limit_s": options.limit, "clock": "thread CPU time", "nice": os.nice(0)}
    handshake = handshake_seconds(20 if options.quick else 200)
    cases: list[dict[str, Any]] = []

    def keep() -> None:
        if options.json:
            parts = {"settings": settings, "notes": notes, "handshake_s": handshake}
            text = json.dumps(facts | parts | {"servers": cases}, indent=1)
            options.json.write_text(text + "\n")

    for case in run_servers(options.counts, options.limit, notes):
        cases.append(case)
        keep()  # after each case, so that a broken run leaves something
    keep()  # what was left out after the last one
    show(cases, handshake)


if __name__ == "__main__":
    main()
