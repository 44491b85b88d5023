"""One thread or several: which form of a compiled loop is run, and when it must be the first."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numba
import torch

__all__ = ["SERIAL", "Loop", "runner", "threads_for"]

Loop: TypeAlias = Callable[..., Any]

SERIAL = 1 << 15
"""Coordinates under which starting threads costs more than it gains."""


def threads_for(work: int) -> int:
    """How many threads so many numbers are worth."""
    return 1 if work < SERIAL else torch.get_num_threads()


def runner(serial: Loop, parallel: Loop, threads: int) -> Loop:
    """Of two forms of a loop, which compute the same bits, the one for so many threads."""
    return serial if threads == 1 else partial(_run_parallel, serial, parallel, threads)


def _run_parallel(serial: Loop, parallel: Loop, threads: int, *arguments: Any) -> Any:
    """With all threads; with one where Numba's would abort the process, to the same bits.

    That is in a forked child, whose parent's threads are gone, and (with one of Numba's threading
    layers) while another thread of this process is at it.
    """
    if _forked or not _pool.acquire(blocking=False):
        return serial(*arguments)
    of_torch = torch.get_num_threads()  # before Numba is asked for anything, which starts it
    before = numba.get_num_threads()
    try:
        _set_threads(min(threads, _MOST_THREADS), of_torch)
        return parallel(*arguments)
    finally:
        _set_threads(before, of_torch)
        _pool.release()


def _set_threads(count: int, of_torch: int) -> None:
    """Numba's number of threads, while PyTorch keeps its own.

    Numba starts as many threads as there are cores, and where it shares OpenMP's library with
    PyTorch that becomes PyTorch's number, too. Several processes with all cores each would then
    wait for one another at every step.
    """
    numba.set_num_threads(count)
    if torch.get_num_threads() != of_torch:
        torch.set_num_threads(of_torch)


_MOST_THREADS: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
_pool = threading.Lock()
_forked = False


def _after_fork() -> None:
    global _forked, _pool
    _forked, _pool = True, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
