"""Several threads: the same bits, by OpenMP and by Python's pool, and PyTorch keeps its number."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from diffsketch import compiled
from diffsketch.sketch import CountSketch, SketchKey
from diffsketch.sketch.hashing import FAMILIES
from tests.helpers.commands import python

SEED = SketchKey.from_integer(5).seed(0)
SKETCHES = [CountSketch(200_000, 5, 4000, family) for family in FAMILIES]
SKETCHES += [CountSketch(200_000, 5, 22, "pairwise"), CountSketch(8_000, 5, 22)]


@pytest.fixture(autouse=True)
def two_threads(restore_threads: None) -> None:  # noqa: ARG001 (before it sets others)
    torch.set_num_threads(2)


def vectors(sketch: CountSketch) -> torch.Tensor:
    items = 6 if sketch.dim > 10_000 else 150
    return torch.randn(items, sketch.dim, generator=torch.Generator().manual_seed(2))


@pytest.mark.slow  # where nothing is compiled yet
@pytest.mark.parametrize("sketch", SKETCHES, ids=str)
@pytest.mark.parametrize("openmp", [True, False])
def test_threads_change_neither_bits_nor_numbers(
    sketch: CountSketch, openmp: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, start = vectors(sketch), compiled._openmp
    teams: list[int] = []
    if openmp and start is None:
        pytest.skip("PyTorch has no OpenMP of GNU's")

    def watched(*arguments: int) -> None:
        teams.append(arguments[2])
        start(*arguments)

    monkeypatch.setattr(compiled, "_openmp", watched if openmp else None)
    together = sketch.encode(batch, SEED)
    estimates = sketch.query(together, SEED)
    assert torch.get_num_threads() == 2
    assert teams == ([2] * len(teams) if openmp else [])
    assert bool(teams) == openmp  # or nothing was tested
    for threads in (1, 3):
        torch.set_num_threads(threads)
        assert torch.equal(sketch.encode(batch, SEED), together)
        assert torch.equal(sketch.query(together, SEED), estimates)
        assert torch.get_num_threads() == threads


def test_threads_of_python_may_call_at_once() -> None:
    sketch = SKETCHES[0]
    batch = vectors(sketch)
    wanted = [sketch.encode(vector, SEED) for vector in batch]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda vector: sketch.encode(vector, SEED), batch))
    assert all(map(torch.equal, found, wanted))


@pytest.mark.slow
def test_a_forked_child_has_threads_of_its_own() -> None:
    """Its parent's are gone: to wait for them would be for ever."""
    code = (
        "import os, torch, diffsketch as d\n"
        "torch.set_num_threads(2)\n"
        "sketch, seed = d.CountSketch(200_000, 5, 4000), d.SketchKey.from_integer(1).seed(0)\n"
        "vector = torch.ones(200_000)\n"
        "table = sketch.encode(vector, seed)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0 if sketch.encode(vector, seed).equal(table) else 3)\n"
        "status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
        "raise SystemExit(status or torch.get_num_threads() != 2)\n"
    )
    assert python("-c", code, timeout=120).returncode == 0


def test_one_thread_starts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("threads were started")

    monkeypatch.setattr(compiled, "_openmp", refuse)
    torch.set_num_threads(1)
    for sketch in SKETCHES:
        sketch.query(sketch.encode(vectors(sketch), SEED), SEED)
    assert compiled.threads_for(compiled.SERIAL) == 1
    torch.set_num_threads(2)
    assert compiled.threads_for(compiled.SERIAL - 1) == 1
