"""Compiled loops: a cache that notices every change, or none; and threads that lose no task."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from diffsketch import compiled

SOURCE = Path(compiled.__file__).parent
HELPER = "from numba import njit\nFACTOR = 2\n@njit\ndef double(x):\n    return FACTOR * x\n"
KERNEL = (
    "from diffsketch.compiled import compiled\nfrom kernels.helper import double\n"
    "@compiled\ndef apply(x):\n    return double(x)\n"
)


def run(code: str, path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    kept |= {"PYTHONPATH": os.pathsep.join((str(path), str(SOURCE.parent)))} | environment
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=kept, text=True, capture_output=True, check=False)  # noqa: S603


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    """A package with a kernel in one file and what it uses in another."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    for name, text in (("__init__", ""), ("helper", HELPER), ("kernel", KERNEL)):
        (folder / f"{name}.py").write_text(text)
    return folder


APPLY = (
    "import time; from kernels.kernel import apply; "
    "print(apply(21), len(apply.stats.cache_hits), len(apply.stats.cache_misses))"
)


def test_a_change_in_another_file_is_noticed(kernels: Path) -> None:
    """Numba by itself looks at the kernel's own file only, and would go on with the old code."""
    assert run(APPLY, kernels.parent).stdout.split() == ["42", "0", "1"]
    assert run(APPLY, kernels.parent).stdout.split() == ["42", "1", "0"]
    files = set(kernels.rglob("*.nbc"))
    (kernels / "helper.py").write_text(HELPER.replace("FACTOR = 2", "FACTOR = 3"))
    assert run(APPLY, kernels.parent).stdout.split() == ["63", "0", "1"]
    assert len(files) == 1
    assert files.isdisjoint(kernels.rglob("*.nbc"))  # the old code does not pile up


def test_without_a_cache_all_runs_and_one_line_says_so(kernels: Path) -> None:
    """Nothing can be written anywhere: read-only folders, and no home."""
    (kernels / "__pycache__").write_text("a file in the place of the folder")
    nowhere = kernels / "__pycache__" / "home"
    code = "from kernels import kernel, kernel as again\n" + KERNEL + APPLY
    done = run(code, kernels.parent, HOME=str(nowhere), XDG_CACHE_HOME=str(nowhere))
    assert done.stdout.split() == ["42", "0", "1"]
    assert done.stderr.count("compiled kernels are not cached") == 1


def test_a_cache_that_breaks_while_running_does_no_harm(kernels: Path) -> None:
    code = (
        "import shutil, pathlib; from kernels.kernel import apply\n"
        f"folder = pathlib.Path({str(kernels / '__pycache__')!r}); shutil.rmtree(folder)\n"
        "folder.write_text(''); print(apply(21), apply(1.5))"
    )
    done = run(code, kernels.parent)
    assert done.stdout.split() == ["42", "3.0"]
    assert done.stderr.count("compiled kernels are not cached") == 1


def test_processes_that_compile_at_once_do_not_mix_up(kernels: Path) -> None:
    """Each for a type of its own: with an index file, one could be left with the other's code."""
    values = ["21", "1.5", "np.float32(2.5)", "2j"]
    code = "import sys, numpy as np; from kernels.kernel import apply; print(apply({}))"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda value: run(code.format(value), kernels.parent), values))
    assert len(list(kernels.rglob("*.nbc"))) == len(values)
    for value, expected in zip(values, ("42", "3.0", "5.0", "4j"), strict=True):
        assert run(code.format(value), kernels.parent).stdout.strip() == expected


def test_callbacks_of_other_settings_are_kept_apart(tmp_path: Path) -> None:
    """They share their code and their types, so that only the name tells them apart."""
    code = """
from itertools import product
from diffsketch.sketch.kernels.cpu_lanes import combiner
for rows, size, mean, stream, lanewise in product((3, 7), (4, 8), *[(False, True)] * 3):
    combiner(rows, size, mean=mean, stream=stream, lanewise=lanewise)
"""
    assert run(code, tmp_path, NUMBA_CACHE_DIR=str(tmp_path)).returncode == 0
    assert len(list(tmp_path.rglob("*.nbc"))) == 2**5


def test_kernels_use_only_files_that_the_stamp_covers() -> None:
    """Modules with compiled functions import, of ours, from their folder and below it only."""
    allowed = ("diffsketch.compiled", "diffsketch.errors")
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        if "import compiled" not in text or path.name == "compiled.py":
            continue
        folder = ".".join(path.relative_to(SOURCE.parent).parent.parts)
        # The loops of these use nothing of ours; the rest is Python.
        if path.name in ("cpu.py", "closed_form.py"):
            folder = ".".join(folder.split(".")[:2])
        for line in text.splitlines():
            if line.startswith("from diffsketch"):
                module = line.split()[1]
                assert module in allowed or module.startswith((folder, "diffsketch.sketch.hashing"))


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_every_task_runs_once_with_scratch_of_its_thread(two_threads: None) -> None:
    del two_threads
    found: list[tuple[int, int]] = []
    threads: dict[int, int] = {}

    def kernel(task: int, factor: int, scratch: list[int]) -> None:
        assert threads.setdefault(id(scratch), threading.get_ident()) == threading.get_ident()
        found.append((task, factor))

    kept: list[list[int]] = []

    def scratch() -> tuple[list[int]]:
        kept.append([])
        return (kept[-1],)

    compiled.run_tasks(kernel, 100, 2, 7, scratch=scratch)
    assert sorted(found) == [(task, 7) for task in range(100)]
    assert compiled.threads_for(compiled.SERIAL - 1) == 1
    assert compiled.threads_for(compiled.SERIAL) == 2


def test_errors_of_tasks_are_raised_and_a_busy_pool_is_not_waited_for() -> None:
    def failing(task: int) -> None:
        if task == 3:
            raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        compiled.run_tasks(failing, 8, 2)
    release, started = threading.Event(), threading.Barrier((os.cpu_count() or 1) + 1)

    def occupied() -> None:
        started.wait(10)
        release.wait(10)

    busy = [compiled._pool.submit(occupied) for _ in range(os.cpu_count() or 1)]
    started.wait(10)
    done: list[int] = []
    compiled.run_tasks(done.append, 8, 4)
    release.set()
    for each in busy:
        each.result()
    assert done == list(range(8))


def test_the_package_runs_from_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """As installed by another user: no cache beside the sources, and no home for one."""
    shutil.copytree(SOURCE, tmp_path / "diffsketch", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in {path.parent for path in (tmp_path / "diffsketch").rglob("*.py")}:
        (folder / "__pycache__").write_text("")
    code = (
        "import diffsketch as d, torch; s = d.CountSketch(100, 3, 20)\n"
        "k = d.SketchKey.from_integer(1).seed(0); t = s.encode(torch.ones(100), k)\n"
        "print(tuple(s.query(t, k).shape))"
    )
    nowhere = str(tmp_path / "diffsketch" / "__pycache__" / "home")
    done = run(code, tmp_path, HOME=nowhere, XDG_CACHE_HOME=nowhere)
    assert done.stdout.strip() == "(100,)", done.stderr
    assert done.stderr.count("compiled kernels are not cached") == 1
