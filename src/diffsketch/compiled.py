"""Loops compiled by Numba: how they are cached on disk, and how they run on several threads."""

from __future__ import annotations

import ctypes
import hashlib
import os
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import njit, typeof, types
from numba.core import config
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc
from numba.extending import intrinsic

from diffsketch.files import private_folder, replace_file

SERIAL = 1 << 15
"""Numbers to compute below which starting threads costs more than it gains."""

_DIGEST = 32  # bytes in front of a file of compiled code: against accidents, not attacks


def compiled(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a function with Numba, without the interpreter's lock and with a cache on disk.

    The cache is good for as long as no source file in the function's folder, or below it, changes:
    a kernel uses constants and helpers of those files only. It is beside the sources, or in the
    user's home, or else in `private_folder`. Where no cache can be written, the function is
    compiled anew in each process.
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
    types at once can leave one with the code of the other. A file begins with a digest of its name
    and the rest: one that is empty, cut off or another's is not read any further, and is replaced.
    """

    def __init__(self, folder: str, name: str, stamp: str) -> None:
        self._folder, self._name, self._stamp = Path(folder), name, stamp

    def _path(self, key: tuple[Any, Any, tuple[str, str]]) -> Path:
        # The last part is of variables around the function, which its name tells apart.
        types, machine, (code, _) = key
        # What is in a file is Numba's own layout, which may change with its version.
        parts = numba.__version__, types, machine, code
        digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:24]
        return self._folder / f"{self._name}.{self._stamp}.{digest}.nbc"

    def load(self, key: Any) -> Any:
        path = self._path(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        if content[:_DIGEST] != _digest(path, content[_DIGEST:]):
            return None
        return pickle.loads(content[_DIGEST:])  # noqa: S301 - as Numba does

    def save(self, key: Any, data: object) -> None:
        for stale in self._folder.glob(f"{self._name}.*.nbc"):
            if stale.name.split(".")[-3] != self._stamp:
                stale.unlink(missing_ok=True)
        path, content = self._path(key), pickle.dumps(data)
        replace_file(path, _digest(path, content) + content)


def _digest(path: Path, content: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + content).digest()


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
        folder, given = private_folder(), config.CACHE_DIR
        if folder is None:
            _say_uncached(str(error))
            return
        config.CACHE_DIR = str(folder)  # which Numba looks at while a cache is made
        try:
            dispatcher._cache = _DiskCache(function)
        finally:
            config.CACHE_DIR = given


@cache
def _stamp(folder: Path) -> str:
    """Digest of the source files that functions in a folder may use."""
    own, digest = Path(__file__), hashlib.sha256()
    # This file's own functions use nothing else: the rest of the package need not be read.
    for path in (own, *(() if folder == own.parent else sorted(folder.rglob("*.py")))):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _say_uncached(reason: str) -> None:
    global _said
    if not _said:
        _said = True
        warnings.warn(f"compiled kernels are not cached: {reason}", RuntimeWarning, stacklevel=2)


_said = False


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Give PyTorch, and with it the loops here, `count` threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def threads_for(work: int) -> int:
    """Threads to use for this much work; one where a second would cost more than it does."""
    return 1 if work < SERIAL else torch.get_num_threads()


def run_tasks(
    kernel: Callable[..., None],
    tasks: int,
    threads: int,
    *arguments: Any,
    scratch: Callable[[], Any] = tuple,
) -> None:
    """Call `kernel(task, *arguments, *scratch())` for each of `range(tasks)`, on several threads.

    Each thread takes the next task and has scratch arrays of its own. The threads are those of
    OpenMP, as PyTorch has loaded it: they start at once, where a pool of Python's takes 0.1 ms.
    They are asked for by number, so that PyTorch's own number stays what it is. Without OpenMP, in
    a forked child (its parent's threads are gone), and for Python functions there is one thread.
    """
    if threads > 1 < tasks and _openmp is not None and hasattr(kernel, "py_func"):
        _run_team(kernel, tasks, [(*arguments, *scratch()) for _ in range(min(threads, tasks))])
        return
    own = scratch()
    for task in range(tasks):
        kernel(task, *arguments, *own)


def _run_team(kernel: Any, tasks: int, arguments: list[tuple[Any, ...]]) -> None:
    """Let OpenMP's threads run tasks, each with one of the tuples of arguments.

    The threads read them from memory: the next task, the number of tasks, the next thread, and
    the tuples as Numba lays them out (an array takes up to 5 + 2 * 5 words).
    """
    key = kernel, *[
        (each.dtype, each.ndim, each.flags.c_contiguous) if hasattr(each, "dtype") else type(each)
        for each in arguments[0]
    ]  # fmt: skip
    if key not in _entries:
        _entries[key] = _entry(kernel, tuple(typeof(each) for each in arguments[0]))
    memory = np.zeros(3 + len(arguments) * len(arguments[0]) * 15, np.int64)
    memory[1] = tasks
    for number, some in enumerate(arguments):
        _write_arguments(memory, number, some)
    _openmp(_entries[key].address, memory.ctypes.data, len(arguments), 0)


def _entry(kernel: Any, kinds: tuple[Any, ...]) -> Any:
    """Compile what a thread does: take a number of its own, then one task after the other."""

    @intrinsic
    def arguments_at(typingctx, place, number):
        kind = types.Tuple(kinds)

        def codegen(context, builder, sig, args):
            layout = context.get_value_type(kind).as_pointer()
            value = builder.load(builder.gep(builder.inttoptr(args[0], layout), [args[1]]))
            for i, each in enumerate(kinds):
                if isinstance(each, types.Array):  # the caller owns it: nothing to count or free
                    array = context.make_array(each)(
                        context, builder, builder.extract_value(value, i)
                    )
                    array.meminfo = ir.Constant(array.meminfo.type, None)
                    value = builder.insert_value(value, array._getvalue(), i)
            return value

        return kind(types.int64, types.int64), codegen

    def run(place):
        number = _take(place + 16, 1)
        arguments, tasks = arguments_at(place + 24, number), _take(place + 8, 0)
        task = _take(place, 1)
        while task < tasks:
            kernel(task, *arguments)
            task = _take(place, 1)

    run.__code__ = run.__code__.replace(co_filename=kernel.py_func.__code__.co_filename)
    digest = hashlib.sha256(repr(kinds).encode()).hexdigest()[:12]
    module = kernel.py_func.__module__.rpartition(".")[2]
    return compiled_callback(run, 1, f"{module}.{kernel.py_func.__qualname__}_team_{digest}")


@intrinsic
def _take(typingctx, place, more):
    """The number at an address, to which `more` is added at once."""

    def codegen(context, builder, sig, args):
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, args[1], "monotonic")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def _store_tuple(typingctx, memory, number, arguments):
    def codegen(context, builder, sig, args):
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        first = builder.gep(data, [ir.Constant(ir.IntType(64), 3)])
        to = builder.bitcast(first, args[2].type.as_pointer())
        builder.store(args[2], builder.gep(to, [args[1]]))
        return context.get_dummy_value()

    return types.void(memory, types.int64, arguments), codegen


@compiled
def _write_arguments(memory, number, arguments):
    """Write a tuple as the one with this number, after the first three words."""
    _store_tuple(memory, number, arguments)


def _find_openmp() -> Any:
    """OpenMP's way to start threads, if the library is there that PyTorch loads on Linux."""
    try:
        start = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError):
        return None
    start.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    start.restype = None
    return start


_entries: dict[Any, Any] = {}
_openmp: Any = _find_openmp()


def _after_fork() -> None:
    global _openmp
    _openmp = None


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)
