"""Work in processes: in order, to an end, and with an error if one of them is killed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from diffsketch.app.pool import PoolBroken, run_all

# In a module of its own, so that a process can import it.
WORK = """
import os, signal, time, warnings

def square(item, *, tell, stop):
    tell(0.5)
    return None if stop() else item * item

def fail(item, *, tell, stop):
    if item == 1:
        raise KeyError(item)
    return item

def vanish(item, *, tell, stop):
    if item == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return item

def warn(item, *, tell, stop):
    warnings.warn("noise", UserWarning)

def wait(item, *, tell, stop):
    tell(0.25)
    while not stop():
        time.sleep(0.01)
    return os.getpid()
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "pool_work.py").write_text(WORK)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pool_work", raising=False)
    return import_module("pool_work")


def quiet(shares: Sequence[float | None]) -> None:
    assert all(share is None or 0 <= share <= 1 for share in shares)


@pytest.mark.parametrize("processes", [1, 2])
def test_results_are_in_order(work: ModuleType, processes: int) -> None:
    seen: list[list[float | None]] = []
    found = run_all(
        work.square, [3, 1, 2], processes=processes, watch=lambda now: seen.append(list(now)),
        stop=lambda: False,
    )  # fmt: skip
    assert found == [9, 1, 4]
    assert seen[-1] == [1.0, 1.0, 1.0]


def test_one_process_is_this_one(work: ModuleType) -> None:
    seen: list[list[float | None]] = []
    run_all(
        work.square, [3, 1], processes=1, watch=lambda now: seen.append(list(now)),
        stop=lambda: False,
    )  # fmt: skip
    assert seen[0] == [0.0, None]
    assert [1.0, 0.0] in seen
    assert run_all(work.square, [], processes=4, watch=quiet, stop=lambda: False) == []


@pytest.mark.parametrize("processes", [1, 2])
def test_errors_come_through(work: ModuleType, processes: int) -> None:
    with pytest.raises(KeyError, match="1"):
        run_all(work.fail, [0, 1, 2], processes=processes, watch=quiet, stop=lambda: False)


def test_killed_processes_are_an_error(work: ModuleType) -> None:
    with pytest.raises(PoolBroken, match="a process that did a part of the work was ended"):
        run_all(work.vanish, [0, 1, 2], processes=2, watch=quiet, stop=lambda: False)


def test_processes_are_told_to_stop(work: ModuleType) -> None:
    begun: list[float | None] = []

    def watch(shares: Sequence[float | None]) -> None:
        begun[:] = shares

    found = run_all(work.wait, [0, 1], processes=2, watch=watch, stop=lambda: begun == [0.25, 0.25])
    assert len(set(found)) == 2
    assert run_all(work.square, [3], processes=1, watch=quiet, stop=lambda: True) == [None]


@pytest.mark.parametrize("quiet_ones", [(), (UserWarning,)])
def test_warnings_of_processes(
    work: ModuleType, capfd: pytest.CaptureFixture[str], quiet_ones: tuple[type[Warning], ...]
) -> None:
    run_all(work.warn, [0, 1], processes=2, watch=quiet, stop=lambda: False, quiet=quiet_ones)
    assert ("noise" in capfd.readouterr().err) is not bool(quiet_ones)
