"""Real processes that sum over gloo: started once, they run many checks one after another."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WORLD = 2
WAIT = timedelta(seconds=30)  # a collective that takes longer is a hang, and fails
LONGEST = 300.0  # seconds, for all checks together

# Layers of several shapes, trained with nothing but PyTorch.
BFLOAT16 = """
import torch
torch.set_num_threads(1)
for rows, width in ((16, 32), (8, 6), (8, 30), (8, 20)):
    layer = torch.nn.Linear(width, 32).bfloat16()
    layer(torch.ones(rows, width, dtype=torch.bfloat16)).float().sum().backward()
"""

Check: TypeAlias = Callable[[int], Any]
"""What a rank does, and returns, as tensors, numbers, texts, lists and dicts."""
Checks: TypeAlias = Mapping[str, Check]
"""By name."""
Results: TypeAlias = dict[str, list[Any]]
"""By name of the check: what each rank returned."""


def run_checks(checks: Callable[[], Checks], *, world: int = WORLD) -> Results:
    """Run all checks in so many processes. Checks are given by a function that a module has.

    They are forks of a server that has no threads, and has imported what they need.

    Raises:
        Exception: A check raised, or the processes did not finish.
    """
    server = mp.get_context("forkserver")
    preloaded = ("ddp_checks", "group_checks", "local_checks", "machine_checks")
    server.set_forkserver_preload([f"tests.ddp.{name}" for name in preloaded])
    with tempfile.TemporaryDirectory() as folder:
        start: Any = mp.start_processes  # type: ignore[attr-defined]
        context = start(
            _work, (checks, world, folder), nprocs=world, join=False, start_method="forkserver"
        )
        try:
            deadline = time.monotonic() + LONGEST
            while not context.join(timeout=10):  # also returns when the first one is done
                if time.monotonic() > deadline:
                    raise TimeoutError("the processes did not finish")
        finally:
            for process in context.processes:
                if process.is_alive():
                    process.kill()
        each = [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(world)]
    return {name: [one[name] for one in each] for name in each[0]}


def bfloat16_flaw(script: str = BFLOAT16) -> str:
    """Why bfloat16 cannot be tested here; empty if it can. Tried in a process of its own.

    Virtual machines that advertise AMX without having it kill PyTorch with SIGILL. Nothing else is
    a reason: any other failure of the script raises.
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)  # noqa: S603
    if done.returncode == -signal.SIGILL:
        return "PyTorch itself dies with SIGILL on layers of type bfloat16, on this machine"
    done.check_returncode()
    return ""


@contextmanager
def logged() -> Iterator[list[str]]:
    """Texts that this rank's log gets, with the errors that it names."""
    texts: list[str] = []

    class Log(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = f": {record.exc_info[1]}" if record.exc_info else ""
            texts.append(record.getMessage() + error)

    handler = Log()
    logging.getLogger("diffsketch.ddp").addHandler(handler)
    try:
        yield texts
    finally:
        logging.getLogger("diffsketch.ddp").removeHandler(handler)


def error_of(call: Callable[[], Any]) -> str:
    """Type and text of the error that a call raises; empty if it raises none."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _work(rank: int, checks: Callable[[], Checks], world: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/init", rank=rank, world_size=world, timeout=WAIT
    )
    try:
        found = {}
        for name, check in checks().items():
            found[name] = check(rank)
            dist.barrier()
        torch.save(found, Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """A process group of this one process, over gloo, with a file in the folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", init_method=f"file://{folder}/init", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
