"""Runs that are read while they go on, after they were interrupted, and before they measured."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from diffsketch.app import files as directory
from diffsketch.app.files import locked
from diffsketch.pages.page import render
from diffsketch.pages.runs import page_of_runs
from diffsketch.pages.runs_reading import read_run
from tests.pages.runs_sample import results_of, series_of


def tree(path: Path) -> dict[str, tuple[bytes, int]]:
    files = [item for item in sorted(path.rglob("*")) if item.is_file()]
    return {str(item): (item.read_bytes(), item.stat().st_mtime_ns) for item in files}


def test_nothing_is_locked_or_changed(
    compared: Path, stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a lock was taken")

    before = tree(compared), tree(stopped)
    lock = locked(stopped)  # a process that writes keeps nobody from reading
    monkeypatch.setattr(fcntl, "flock", refuse)
    try:
        page_of_runs([compared, stopped])
    finally:
        os.close(lock)
    assert (tree(compared), tree(stopped)) == before


def test_interrupted_and_under_way(
    stopped: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = page_of_runs([stopped])
    row = results_of(page)["none"]
    assert (row["Outcome"], row["Rounds"]) == ("interrupted (of 4 rounds)", 3)
    assert "Bytes of a message" not in row  # nobody knows it before the summary
    assert row["Milliseconds a round"] > 0
    line = series_of(page, "mnist-loss", "none")
    assert (line.x, line.ended) == ((0.0, 2.0), "interrupted")
    assert page.notice == "1 of 1 runs is interrupted, and shown as far as it goes."
    assert "so far" in page.lead
    place = stopped.stat()
    where = f"{os.major(place.st_dev):02x}:{os.minor(place.st_dev):02x}:{place.st_ino}"
    (tmp_path / "locks").write_text(f"1: FLOCK  ADVISORY  WRITE 12 {where} 0 EOF\n")
    monkeypatch.setattr(directory, "_LOCKS", tmp_path / "locks")
    assert read_run(stopped).outcome == "under way"
    monkeypatch.setattr(directory, "_LOCKS", tmp_path / "none")
    assert read_run(stopped).outcome == "interrupted"


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the kernel does not tell")
def test_the_kernel_tells_who_writes(stopped: Path) -> None:
    lock = locked(stopped)
    try:
        assert read_run(stopped).outcome == "under way"
    finally:
        os.close(lock)
    assert read_run(stopped).outcome == "interrupted"


def test_a_run_that_has_just_begun(stopped: Path, tmp_path: Path) -> None:
    for name in ("run.json", "config.toml"):
        (tmp_path / name).write_bytes((stopped / name).read_bytes())
    page = page_of_runs([tmp_path])
    assert results_of(page)["none"]["Rounds"] == 0
    assert [one.name for one in page.sections[0].exhibits] == ["mnist-results"]
    render(page)
