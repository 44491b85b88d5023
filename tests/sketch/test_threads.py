"""Numba's threads: as many as PyTorch has, and both numbers stay what they were.

The real disturbance (Numba starts, and PyTorch has as many threads as Numba) happens once in a
process, and only where both use one library of OpenMP; so it is also planted.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numba
import pytest
import torch

from diffsketch.sketch import CountSketch, SketchKey
from diffsketch.sketch.hashing import FAMILIES, Family
from diffsketch.sketch.kernels import cpu_blocked, cpu_joint, cpu_scattered, cpu_threads

SEED = SketchKey.from_integer(5).seed(0)
SKETCHES = [CountSketch(200_000, 5, 4000, family) for family in FAMILIES]
SKETCHES.append(CountSketch(200_000, 5, 22, "pairwise"))
THREADS, OTHER = 2, 3  # PyTorch's number, and what the disturbance makes of it
OF_NUMBA = min(THREADS, cpu_threads._MOST_THREADS)
LOOPS: tuple[tuple[ModuleType, str], ...] = (
    (cpu_blocked, "encode_long_parallel"),
    (cpu_blocked, "query_parallel"),
    (cpu_joint, "encode_parallel"),
    (cpu_joint, "query_parallel"),
    (cpu_scattered, "encode_parallel"),
    (cpu_scattered, "query_parallel"),
)
Numbers = tuple[int, int]


def numbers() -> Numbers:
    """Of PyTorch's threads, and of Numba's."""
    return torch.get_num_threads(), numba.get_num_threads()


@pytest.fixture(autouse=True)
def known_threads() -> Iterator[None]:
    """Two of PyTorch and one of Numba, which is not what a loop gets; and afterwards as before."""
    of_torch, of_numba = numbers()
    torch.set_num_threads(THREADS)
    numba.set_num_threads(1)
    yield
    numba.set_num_threads(of_numba)
    torch.set_num_threads(of_torch)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Numbers]:
    """The numbers within each parallel loop."""
    found: list[Numbers] = []

    def watched(loop: Any) -> Any:
        def run(*arguments: Any) -> Any:
            found.append((torch.get_num_threads(), numba.get_num_threads()))
            return loop(*arguments)

        return run

    for module, name in LOOPS:
        monkeypatch.setattr(module, name, watched(getattr(module, name)))
    return found


def disturb(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a function of Numba, as `cpu_threads` sees it, change PyTorch's number, too."""
    harmless = getattr(numba, name)

    def disturbing(*arguments: int) -> Any:
        found = harmless(*arguments)
        torch.set_num_threads(OTHER)
        return found

    class Disturbing:
        """Numba with this function in place of its own."""

        def __getattr__(self, wanted: str) -> Any:
            return disturbing if wanted == name else getattr(numba, wanted)

    monkeypatch.setattr(cpu_threads, "numba", Disturbing())


@pytest.mark.parametrize("name", ["get_num_threads", "set_num_threads"])
@pytest.mark.parametrize("sketch", SKETCHES, ids=lambda sketch: sketch.family)
def test_a_disturbance_is_put_right(
    sketch: CountSketch, name: str, seen: list[Numbers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numba starts when it is first asked for its number, or given one: either may disturb."""
    vector = torch.randn(sketch.dim, generator=torch.Generator().manual_seed(1))
    table = sketch.encode(vector, SEED)
    estimates = sketch.query(table, SEED)
    seen.clear()
    disturb(name, monkeypatch)
    assert torch.equal(sketch.encode(vector, SEED), table)
    assert numbers() == (THREADS, 1)
    assert torch.equal(sketch.query(table, SEED), estimates)
    assert numbers() == (THREADS, 1)
    assert seen == [(THREADS, OF_NUMBA)] * 2


def test_the_start_of_numba_is_put_right() -> None:
    """In a process of its own, for Numba starts once; with more threads than PyTorch has."""
    code = (
        "import torch, diffsketch as d\n"
        "torch.set_num_threads(2)\n"
        "sketch, seed = d.CountSketch(200_000, 5, 4000), d.SketchKey.from_integer(1).seed(0)\n"
        "sketch.encode(torch.ones(200_000), seed)\n"
        "raise SystemExit(0 if torch.get_num_threads() == 2 else 3)\n"
    )
    environment = {**os.environ, "NUMBA_NUM_THREADS": "4"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, check=False, timeout=120)  # noqa: S603
    assert done.returncode == 0


@pytest.mark.parametrize("family", ["blocked", "pairwise"])
def test_threads_do_not_change_the_bits(family: Family, seen: list[Numbers]) -> None:
    sketch = CountSketch(200_000, 5, 4000, family)
    vector = torch.randn(sketch.dim, generator=torch.Generator().manual_seed(2))
    together = sketch.encode(vector, SEED)
    assert len(seen) == 1
    torch.set_num_threads(1)
    assert torch.equal(sketch.encode(vector, SEED), together)
    assert len(seen) == 1  # this time with the other form of the loop


@pytest.mark.parametrize("name", ["get_num_threads", "set_num_threads"])
def test_numbers_are_put_back_after_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> None:
        raise RuntimeError("planted")

    run = cpu_threads.runner(lambda: "serial", failing, THREADS)
    disturb(name, monkeypatch)
    for _ in range(2):  # the second time shows that the first has let go of the threads
        with pytest.raises(RuntimeError, match="planted"):
            run()
        assert numbers() == (THREADS, 1)


def test_one_thread_leaves_numba_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_threads, "numba", None)
    assert cpu_threads.runner(lambda: "serial", lambda: "parallel", 1)() == "serial"
    assert cpu_threads.threads_for(cpu_threads.SERIAL - 1) == 1
    assert cpu_threads.threads_for(cpu_threads.SERIAL) == THREADS
