"""Compiled loops: a cache that notices every change, or none; and tasks that all run."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core import config

from diffsketch import compiled
from diffsketch.files import private_folder
from diffsketch.sketch.kernels.cpu_lanes import combiner
from tests.helpers.commands import python

SOURCE = Path(compiled.__file__).parent
HELPER = "from numba import njit\nFACTOR = 2\n@njit\ndef double(x):\n    return FACTOR * x\n"
KERNEL = (
    "from diffsketch.compiled import compiled\nfrom kernels.helper import double\n"
    "@compiled\ndef apply(x):\n    return double(x)\n"
)
USE = """
import diffsketch, torch
sketch, seed = diffsketch.CountSketch(100, 3, 20), diffsketch.SketchKey.from_integer(1).seed(0)
print(tuple(sketch.encode(torch.ones(100), seed).shape))
"""


def run(code: str, path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    kept |= {"PYTHONPATH": os.pathsep.join((str(path), str(SOURCE.parent)))} | environment
    return python("-c", code, env=kept)


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    """A package with a kernel in one file and what it uses in another."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    for name, text in (("__init__", ""), ("helper", HELPER), ("kernel", KERNEL)):
        (folder / f"{name}.py").write_text(text)
    return folder


@pytest.fixture
def no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder for Numba's files but those beside the sources, and nothing said of it yet."""
    nowhere = tmp_path / "a file"
    nowhere.write_text("in the place of a folder")
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(nowhere / "home"))
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setattr(compiled, "_said", False)
    monkeypatch.setattr(compiled, "private_folder", lambda: None)


@pytest.fixture
def load(kernels: Path, no_home: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:  # noqa: ARG001
    """The kernel as a new process would have it: from the files, with nothing remembered."""
    monkeypatch.syspath_prepend(kernels.parent)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # its stamps are in whole seconds

    def loaded() -> Any:
        for name in ("kernels", "kernels.helper", "kernels.kernel"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        compiled._stamp.cache_clear()
        return import_module("kernels.kernel").apply

    return loaded


def outcome(apply: Any, value: Any = 21) -> tuple[Any, int, int]:
    """The result, how often code was found on disk, and how often it was compiled."""
    return apply(value), len(apply.stats.cache_hits), len(apply.stats.cache_misses)


def test_a_change_in_another_file_is_noticed(kernels: Path, load: Callable[[], Any]) -> None:
    """Numba by itself looks at the kernel's own file only, and would go on with the old code."""
    assert outcome(load()) == (42, 0, 1)
    assert outcome(load()) == (42, 1, 0)
    files = set(kernels.rglob("*.nbc"))
    (kernels / "helper.py").write_text(HELPER.replace("FACTOR = 2", "FACTOR = 3"))
    assert outcome(load()) == (63, 0, 1)
    assert len(files) == 1
    assert files.isdisjoint(kernels.rglob("*.nbc"))  # the old code does not pile up


def test_without_a_cache_all_runs_with_one_warning(kernels: Path, load: Callable[[], Any]) -> None:
    """Nothing can be written anywhere: read-only folders, and no home."""
    (kernels / "__pycache__").write_text("a file in the place of the folder")
    with pytest.warns(RuntimeWarning, match="compiled kernels are not cached") as said:
        assert [outcome(load()) for _ in range(2)] == [(42, 0, 1)] * 2
    assert len(said) == 1


def test_a_cache_may_break_while_it_is_used(kernels: Path, load: Callable[[], Any]) -> None:
    apply = load()
    shutil.rmtree(kernels / "__pycache__")
    (kernels / "__pycache__").write_text("")
    with pytest.warns(RuntimeWarning, match="compiled kernels are not cached") as said:
        assert (apply(21), apply(1.5)) == (42, 3.0)
    assert len(said) == 1


@pytest.mark.parametrize("kind", ["empty", "half", "one bit", "garbage", "pickle", "foreign"])
def test_a_damaged_cache_file_is_a_miss_and_is_replaced(
    kind: str, kernels: Path, load: Callable[[], Any]
) -> None:
    """As a full disk, a crash or a copy from elsewhere leave it."""
    assert outcome(load()) == (42, 0, 1)
    (path,) = kernels.rglob("*.nbc")
    assert outcome(load(), 1.5) == (3.0, 0, 1)
    (other,) = set(kernels.rglob("*.nbc")) - {path}
    whole = path.read_bytes()
    damaged = {
        "empty": b"",
        "half": whole[: len(whole) // 2],
        "one bit": whole[:-1] + bytes([whole[-1] ^ 1]),
        "garbage": bytes(range(256)) * 8,
        "pickle": pickle.dumps((1, 2)),
        "foreign": other.read_bytes(),
    }
    path.write_bytes(damaged[kind])
    assert outcome(load()) == (42, 0, 1)
    assert outcome(load()) == (42, 1, 0)
    assert set((kernels / "__pycache__").iterdir()) == {path, other}  # nothing is left behind


@pytest.mark.slow
def test_a_command_survives_damaged_cache_files(tmp_path: Path) -> None:
    """An `EOFError` of an empty file was taken for the end of the input: silence, and 130."""
    for content in (None, b"", b"garbage"):
        if content is not None:
            for path in tmp_path.rglob("*.nbc"):
                path.write_bytes(content)
        done = run(USE, tmp_path, NUMBA_CACHE_DIR=str(tmp_path))
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "(3, 20)", "")
    assert all(path.stat().st_size > 1000 for path in tmp_path.rglob("*.nbc"))


@pytest.mark.slow
def test_processes_may_compile_at_once(kernels: Path, load: Callable[[], Any]) -> None:
    """Each for a type of its own: with an index file, one could be left with the other's code."""
    values: tuple[Any, ...] = (21, 1.5, np.float32(2.5), 2j)
    code = """
import multiprocessing, os
import numpy as np
from numba.core.caching import FunctionCache, IndexDataCacheFile
from kernels.kernel import apply
all_are_there = multiprocessing.Barrier(4)
def wait_after(kind, name):
    method = getattr(kind, name)
    setattr(kind, name, lambda *given: (method(*given), all_are_there.wait(60))[0])
wait_after(FunctionCache, "load_overload")
wait_after(IndexDataCacheFile, "_load_index")  # where it is used
for value in (21, 1.5, np.float32(2.5), 2j):
    if os.fork() == 0:
        apply(value)
        os._exit(0)
print(*[os.wait()[1] for _ in range(4)])
"""
    assert run(code, kernels.parent).stdout.split() == ["0"] * 4
    assert len(list(kernels.rglob("*.nbc"))) == len(values)
    for value in values:
        assert outcome(load(), value) == (2 * value, 1, 0)


def test_callbacks_are_kept_by_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They share their code and their types, so that only the name tells them apart."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    usual = {"rows": 4, "itemsize": 4, "combine": "median", "stream": False, "lanewise": False}
    other = {"rows": 8, "itemsize": 8, "combine": "mean", "stream": True, "lanewise": True}
    for settings in (usual, *[usual | {name: other[name]} for name in usual]):
        combiner.__wrapped__(**settings)
    assert len(list(tmp_path.rglob("*.nbc"))) == 1 + len(usual)


def test_kernels_use_only_files_that_the_stamp_covers() -> None:
    """Modules with compiled functions import, of ours, from their folder and below it only."""
    allowed = ("diffsketch.compiled", "diffsketch.errors")
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        # The loops of these use nothing of ours; the rest is Python.
        free = ("compiled.py", "cpu.py", "closed_form.py", "messages.py")
        if "import compiled" not in text or path.name in free:
            continue
        folder = ".".join(path.relative_to(SOURCE.parent).parent.parts)
        for line in text.splitlines():
            if line.startswith("from diffsketch"):
                module = line.split()[1]
                assert module in allowed or module.startswith((folder, "diffsketch.sketch.hashing"))


def test_tasks_without_openmp_run_here_and_may_raise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[tuple[int, int, list[int]]] = []
    monkeypatch.setattr(compiled, "_openmp", None)
    compiled.run_tasks(lambda *given: done.append(given), 8, 2, 7, scratch=lambda: ([],))
    assert [given[:2] for given in done] == [(task, 7) for task in range(8)]
    assert len({id(given[2]) for given in done}) == 1
    with pytest.raises(ZeroDivisionError):
        compiled.run_tasks(lambda task: 1 // (3 - task), 8, 2)


@pytest.mark.slow
def test_the_package_runs_from_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """As installed by another user: no cache beside the sources, and no home for one.

    It is in a folder of the user's own then.
    """
    shutil.copytree(SOURCE, tmp_path / "diffsketch", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in {path.parent for path in (tmp_path / "diffsketch").rglob("*.py")}:
        (folder / "__pycache__").write_text("")
    nowhere = str(tmp_path / "diffsketch" / "__pycache__" / "home")
    places = {"HOME": nowhere, "XDG_CACHE_HOME": nowhere, "TMPDIR": str(tmp_path)}
    done = run(USE, tmp_path, **places)
    assert (done.stdout.strip(), done.stderr) == ("(3, 20)", "")
    assert list((tmp_path / f"diffsketch-{os.getuid()}").rglob("*.nbc"))


def test_a_folder_of_a_user_is_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that others can write is not used: its files are run when they are read."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = tmp_path / f"diffsketch-{os.getuid()}"
    assert private_folder() == own
    assert own.stat().st_mode & 0o777 == 0o700
    assert private_folder() == own
    own.chmod(0o770)  # others may write to it
    assert private_folder() is None
    own.chmod(0o700)
    tmp_path.chmod(0o777)  # others may put theirs in its place
    assert private_folder() is None
    tmp_path.chmod(0o1777)
    assert private_folder() == own
    own.rename(tmp_path / "elsewhere")
    own.symlink_to(tmp_path / "elsewhere")
    assert private_folder() is None
    monkeypatch.setattr(os, "getuid", lambda: 12345)  # made by another
    (tmp_path / "diffsketch-12345").mkdir(mode=0o700)
    assert private_folder() is None
