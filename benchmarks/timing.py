"""Timing, memory and environment for the benchmarks.

Jobs take turns in rounds, so that a disturbance of the machine hits all of them alike; a job's
time is the median of its rounds.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import math
import os
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

__all__ = [
    "Job",
    "Operation",
    "Timing",
    "available_memory",
    "environment",
    "extra_memory",
    "measure",
    "wait_for",
]

Operation: TypeAlias = Literal["encode", "query", "limit", "round", "step"]

_SAMPLE_SECONDS = 2e-3
_FLUSH_BYTES = 1 << 31  # takes the device longer than the host needs to launch what is timed
_CLEAR_REFS = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Job:
    """Something to time. `run` returns what it computed.

    Args:
        name: What the tables call it.
        operation: What it does; only jobs of one operation are compared.
        run: The timed call.
        ours: Whether it is this library's.
        comparable: Whether it uses the hashes of our `pairwise`, and so has to give its result.
    """

    name: str
    operation: Operation
    run: Callable[[], Any]
    ours: bool = False
    comparable: bool = False


@dataclass(frozen=True)
class Timing:
    """Seconds for one call of a job."""

    job: Job
    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """The time that is reported."""
        return statistics.median(self.samples)

    def as_json(self) -> dict[str, Any]:
        """Name, kind and times."""
        return {
            "name": self.job.name,
            "operation": self.job.operation,
            "ours": self.job.ours,
            "median_s": self.median,
            "min_s": min(self.samples),
            "samples": len(self.samples),
        }


def measure(
    jobs: Sequence[Job],
    *,
    device: torch.device,
    repeat: int,
    sample_seconds: float = _SAMPLE_SECONDS,
) -> list[Timing]:
    """Time all jobs in `repeat` rounds; slow ones, over half a second, take part in fewer.

    Args:
        jobs: What to time.
        device: Where they run.
        repeat: Rounds.
        sample_seconds: Shorter calls are repeated within a sample until it takes this long.
    """
    flush = torch.empty(
        _FLUSH_BYTES if device.type == "cuda" else 0, dtype=torch.uint8, device=device
    )
    plans = [_plan(job, flush, repeat, sample_seconds) for job in jobs]
    samples: list[list[float]] = [[] for _ in jobs]
    for index in range(repeat):
        for job, (rounds, calls), taken in zip(jobs, plans, samples, strict=True):
            if index < rounds:
                taken.append(_sample(job.run, flush, calls))
    return [Timing(job, tuple(taken)) for job, taken in zip(jobs, samples, strict=True)]


def _plan(job: Job, flush: Tensor, repeat: int, least: float) -> tuple[int, int]:
    """Warm a job up; the number of its rounds, and of its calls in each."""
    seconds = _sample(job.run, flush, 1)
    if seconds < 1 or job.ours:  # our first call may compile
        seconds = _sample(job.run, flush, 1)
    rounds = min(repeat, 1 if seconds > 2 else 3 if seconds > 0.5 else repeat)
    short = flush.device.type == "cpu" and seconds < least
    return rounds, min(1000, math.ceil(least / seconds)) if short else 1


def _sample(run: Callable[[], Any], flush: Tensor, calls: int) -> float:
    if flush.device.type == "cpu":
        start = time.perf_counter()
        for _ in range(calls):
            run()
        return (time.perf_counter() - start) / calls
    event: Any = torch.cuda.Event  # untyped in some versions of torch
    begin, end = event(enable_timing=True), event(enable_timing=True)
    flush.zero_()  # also empties the L2
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def wait_for(run: Callable[[], Any], *, repeat: int) -> float:
    """Median seconds from a call to its end on an idle CUDA device, the host's work included."""
    samples = []
    for _ in range(3 + repeat):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples[3:])


def extra_memory(run: Callable[[], Any], *, device: torch.device) -> int | None:
    """Bytes that a call takes at its peak, its result included; None where that is unknown."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - before)
    if not _CLEAR_REFS.exists():
        return None
    ctypes.CDLL(None).malloc_trim(0)  # freed memory that malloc kept would hide what a call takes
    _CLEAR_REFS.write_text("5")  # makes the present size the peak
    before = _proc("/proc/self/status", "VmHWM")
    run()
    return 1024 * (_proc("/proc/self/status", "VmHWM") - before)


def available_memory(device: torch.device) -> int:
    """Bytes that can still be allocated; without `/proc`, all memory of the machine."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info()[0])
    if Path("/proc/meminfo").exists():
        return 1024 * _proc("/proc/meminfo", "MemAvailable")
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _proc(path: str, name: str) -> int:
    lines = (line.split() for line in Path(path).read_text().splitlines())
    return next(int(words[1]) for words in lines if words and words[0] == f"{name}:")


def environment(device: torch.device) -> dict[str, Any]:
    """Commit, hardware and versions."""
    is_cuda, changes = device.type == "cuda", _git("status", "--porcelain")
    return {
        "commit": _git("rev-parse", "HEAD") or os.environ.get("COMMIT"),
        "uncommitted_changes": None if changes is None else bool(changes),
        "hardware": {
            "cpu": _cpu_name(),
            "cores": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "load_average": os.getloadavg()[0],
            "gpu": torch.cuda.get_device_name() if is_cuda else None,
        },
        "versions": {"python": platform.python_version(), "cuda": torch.version.cuda}
        | {name: _version(name) for name in ("torch", "numpy", "scipy", "numba", "triton")},
    }


def _git(*arguments: str) -> str | None:
    git = shutil.which("git")
    if git is None:
        return None
    done = subprocess.run(  # noqa: S603 (fixed arguments)
        [git, *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
