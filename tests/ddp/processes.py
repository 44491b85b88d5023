"""Real processes that sum over gloo: started once, they run many checks one after another.

A check is a function of the rank that asserts what holds there, and returns what has to be the same
on all ranks. Tests read its outcomes by `check_outcomes`.
"""

from __future__ import annotations

import logging
import os
import runpy
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

WORLD = 2
WAIT = timedelta(seconds=30)  # a collective that takes longer is a hang, and fails
LONGEST = 300.0  # seconds, for all checks together

Check: TypeAlias = Callable[[int], Any]
Checks: TypeAlias = Mapping[str, Check]
Results: TypeAlias = dict[str, list[tuple[str, Any]]]
"""By name of the check: each rank's traceback, empty if all held, and what it returned."""


def run_checks(checks: Callable[[], Checks], *, world: int = WORLD) -> Results:
    """Run all checks in `world` processes. Checks are given by a function that a module has.

    They are forks of a server that has no threads, and has imported what they need.

    Raises:
        TimeoutError: The processes did not finish.
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
        files = [Path(folder) / f"{rank}.pt" for rank in range(world)]
        ranks = [torch.load(file, weights_only=True) for file in files]
    return {name: [rank[name] for rank in ranks] for name in ranks[0]}


def check_outcomes(outcomes: list[tuple[str, Any]]) -> None:
    """Assert that a check held on all ranks, which returned the same to the last bit."""
    errors = [error for error, _ in outcomes]
    assert not any(errors), "\n".join(errors)
    assert all(same(value, outcomes[0][1]) for _, value in outcomes)


def same(value: Any, other: Any) -> bool:
    """Whether two values, or lists of them, are the same to the last bit."""
    if isinstance(value, Tensor):
        return torch.equal(value, other)
    if isinstance(value, list | tuple):
        return len(value) == len(other) and all(map(same, value, other))
    return bool(value == other)


def everyone(value: Any) -> list[Any]:
    """The values of all ranks, on each of them."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def assert_fails(call: Callable[[], Any], text: str) -> None:
    """Assert that a call raises an error whose type and text begin with, or contain, a text."""
    error = error_of(call)
    assert text in error, f"{text!r} is not in {error!r}"


def assert_voids(
    call: Callable[[], Any], text: str, *, rank: int, by: int = 1, index: int = 0
) -> None:
    """Assert that a call raises an error at rank `by`, and on the others that the round is void."""
    void = f"MismatchError: round {index} is void: rank {by} failed, see the error there"
    assert_fails(call, text if rank == by else void)


@contextmanager
def logged(level: int = logging.WARNING) -> Iterator[list[str]]:
    """Texts that this rank's log gets from a level on, with the errors that it names."""
    texts, logger = list[str](), logging.getLogger("diffsketch.ddp")

    class Log(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = f": {record.exc_info[1]}" if record.exc_info else ""
            texts.append(record.getMessage() + error)

    handler, before = Log(), logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield texts
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


class Scale:
    """A scaler without overflows to follow."""

    def __init__(self, value: float) -> None:
        self.value = value

    def get_scale(self) -> float:
        return self.value


def example_learns(name: str, rank: int) -> float:
    """An example learns with fewer steps; processes begin with other weights."""
    torch.manual_seed(rank)
    path = Path(__file__).parents[2] / "examples" / name
    accuracy: float = runpy.run_path(str(path), run_name="example")["train"](60)
    assert accuracy > 0.6  # guessing has 0.1
    return accuracy


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
        outcomes: dict[str, tuple[str, Any]] = {}
        for name, check in checks().items():
            try:
                outcomes[name] = "", check(rank)
            except Exception:
                outcomes[name] = traceback.format_exc(), None
            dist.barrier()
        torch.save(outcomes, Path(folder) / f"{rank}.pt")
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
