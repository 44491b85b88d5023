"""A run that is looked at: whoever wrote it, whoever writes to it, and nothing is changed."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest

from diffsketch.app.files import RunDirectory, has_run, locked, look, sealed
from diffsketch.errors import DataError
from tests.app.test_directory import CONFIG, begin


def tree(path: Path) -> dict[str, tuple[bytes, int]]:
    return {one.name: (one.read_bytes(), one.stat().st_mtime_ns) for one in path.iterdir()}


def test_what_there_is_to_see(tmp_path: Path) -> None:
    assert not has_run(tmp_path)
    begin(tmp_path)
    assert has_run(tmp_path)
    files = look(tmp_path)
    assert (files.path, files.config, files.command) == (tmp_path, CONFIG, "diffsketch run")
    assert files.checkpoint.read_bytes() == b"content"
    assert files.times() == {"training": 0.5, "total": 1.0}
    assert (files.begun, files.finished, files.summary()) == (True, False, None)
    with RunDirectory.open(tmp_path) as directory:
        assert (files.identity, files.start) == (directory.identity, directory.start)
        directory.write_results(model=b"model", summary={"accuracy": 0.5})
    assert (files.finished, files.summary()) == (True, {"accuracy": 0.5})


def test_nothing_is_locked_or_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a lock was taken")

    begin(tmp_path)
    leftover = tmp_path / f".checkpoint.safetensors.{os.getpid() + 1}.tmp"
    leftover.write_bytes(b"half")  # that another process may be writing now
    before, lock = tree(tmp_path), locked(tmp_path)
    monkeypatch.setattr(fcntl, "flock", refuse)
    try:
        assert look(tmp_path).config == CONFIG
    finally:
        os.close(lock)
    assert tree(tmp_path) == before
    with pytest.raises(AssertionError, match="a lock was taken"):  # so the check can fail
        RunDirectory.open(tmp_path)


def test_other_versions_are_shown(tmp_path: Path) -> None:
    begin(tmp_path)
    path = tmp_path / "run.json"
    start = json.loads(path.read_text())
    del start["sha256"]
    start["versions"] = {"diffsketch": "0.0.1", "torch": 2}
    path.write_bytes(sealed(start))
    assert look(tmp_path).start["versions"] == {"diffsketch": "0.0.1", "torch": "2"}


@pytest.mark.parametrize(
    ("name", "said"),
    [("run.json", r"run\.json: missing"), ("config.toml", r"config\.toml: No such file")],
)
def test_what_is_missing_is_said(tmp_path: Path, name: str, said: str) -> None:
    begin(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(DataError, match=said):
        look(tmp_path)


def test_the_command_is_not_needed(tmp_path: Path) -> None:
    begin(tmp_path)
    (tmp_path / "command.txt").unlink()
    assert look(tmp_path).command == ""
