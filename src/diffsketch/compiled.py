"""Loops compiled by Numba: how they are cached on disk, and how they run on several threads."""

from __future__ import annotations

import hashlib
import os
import pickle
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from numba import njit, types
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc

SERIAL = 1 << 15
"""Numbers to compute below which starting threads costs more than it gains."""


def compiled(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a function with Numba, without the interpreter's lock and with a cache on disk.

    The cache is good for as long as no source file in the function's folder, or below it, changes:
    a kernel uses constants and helpers of those files only. Where no cache can be written, the
    function is compiled anew in each process.
    """
    if function is None:
        return lambda function: compiled(function, **options)
    dispatcher = njit(nogil=True, **options)(function)
    _cache_on_disk(dispatcher, function)
    return dispatcher


def compiled_callback(function: Callable[..., None], arguments: int, name: str) -> Any:
    """Compile a function of 64-bit integers that compiled loops call by its `address`.

    Such a function may depend on variables around it, so `name` must tell apart those that share
    their code. The address is good for as long as the result is kept.
    """
    function.__qualname__ = name
    callback = CFunc(function, ((types.int64,) * arguments, types.void), {}, {})
    _cache_on_disk(callback, function)
    callback.compile()
    return callback


class _CacheFiles:
    """The compiled forms of one function, each in a file named by all that it depends on.

    Numba's own index of a function's files has no lock: two processes that compile for different
    types at once can leave one with the code of the other.
    """

    def __init__(self, folder: str, name: str, stamp: str) -> None:
        self._folder, self._name, self._stamp = Path(folder), name, stamp

    def _path(self, key: tuple[Any, Any, tuple[str, str]]) -> Path:
        types, machine, (code, _) = key  # the rest is of variables around it, which the name tells
        digest = hashlib.sha256(repr((types, machine, code)).encode()).hexdigest()[:24]
        return self._folder / f"{self._name}.{self._stamp}.{digest}.nbc"

    def load(self, key: Any) -> Any:
        try:
            return pickle.loads(self._path(key).read_bytes())  # noqa: S301 - as Numba does
        except OSError:
            return None

    def save(self, key: Any, data: object) -> None:
        for stale in self._folder.glob(f"{self._name}.*.nbc"):
            if stale.name.split(".")[-3] != self._stamp:
                stale.unlink(missing_ok=True)
        partial = self._folder / f"{uuid4().hex}.tmp"
        partial.write_bytes(pickle.dumps(data))
        partial.replace(self._path(key))


class _DiskCache(FunctionCache):
    """Numba's cache with such files, which goes without where they cannot be written."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        folder = Path(function.__code__.co_filename).parent
        name = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"
        self._cache_file = _CacheFiles(self.cache_path, name, _stamp(folder))

    def save_overload(self, signature: Any, data: Any) -> None:
        try:
            super().save_overload(signature, data)
        except OSError as error:
            _say_uncached(str(error))


def _cache_on_disk(dispatcher: Any, function: Callable[..., Any]) -> None:
    try:
        dispatcher._cache = _DiskCache(function)
    except RuntimeError as error:  # no folder can be written
        _say_uncached(str(error))


@cache
def _stamp(folder: Path) -> str:
    """Digest of the source files that functions in a folder may use."""
    digest = hashlib.sha256()
    for path in (Path(__file__), *sorted(folder.rglob("*.py"))):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _say_uncached(reason: str) -> None:
    global _said
    if not _said:
        _said = True
        warnings.warn(f"compiled kernels are not cached: {reason}", RuntimeWarning, stacklevel=2)


_said = False


def threads_for(work: int) -> int:
    """How many threads so many numbers are worth."""
    return 1 if work < SERIAL else torch.get_num_threads()


def run_tasks(
    kernel: Callable[..., None],
    tasks: int,
    threads: int,
    *arguments: Any,
    scratch: Callable[[], Any] = tuple,
) -> None:
    """Call `kernel(task, *arguments, *scratch())` for each of `range(tasks)`, on several threads.

    Each thread takes the next task and has scratch arrays of its own. The calling thread works
    too, so that nothing waits for threads that are busy elsewhere.
    """
    if threads == 1 or tasks == 1:
        own = scratch()
        for task in range(tasks):
            kernel(task, *arguments, *own)
        return
    left, job = iter(range(tasks)), [(kernel, arguments, scratch)]

    def work() -> None:
        for task in left:
            kernel, arguments, scratch = job[0]
            own = scratch()
            kernel(task, *arguments, *own)
            for further in left:
                kernel(further, *arguments, *own)

    helpers = [_pool.submit(work) for _ in range(min(threads, tasks) - 1)]
    try:
        work()
    finally:
        for helper in helpers:
            if not helper.cancel():
                helper.result()
        job.clear()  # the pool keeps what was cancelled for a while, but not the arrays


def _new_pool() -> None:
    """A forked child has none of its parent's threads."""
    global _pool
    _pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="diffsketch")


_pool: ThreadPoolExecutor
_new_pool()
os.register_at_fork(after_in_child=_new_pool)
