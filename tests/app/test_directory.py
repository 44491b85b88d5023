"""The directory of a run: what may be overwritten, who may write, what belongs together."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from diffsketch.app.files import RunBusy, RunDirectory, RunFiles, free_name, look, sealed
from diffsketch.app.settings import RunConfig
from diffsketch.errors import ArgumentError, DataError, MismatchError

CONFIG = RunConfig(rounds=3, method="none")
COMMAND = ["diffsketch", "run"]
WAYS = pytest.mark.parametrize("way", [RunDirectory.open, look], ids=["open", "look"])


def begin(path: Path) -> None:
    with RunDirectory.create(path, CONFIG, command=COMMAND) as directory:
        directory.write_checkpoint(b"content", {"training": 0.5, "total": 1.0})


def test_begun_and_opened(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    with RunDirectory.open(tmp_path / "run") as directory:
        assert directory.config == CONFIG
        assert (tmp_path / "run" / "command.txt").read_text() == "diffsketch run\n"
        assert directory.checkpoint.read_bytes() == b"content"
        assert directory.times() == {"training": 0.5, "total": 1.0}
        assert directory.summary() is None
        directory.write_results(model=b"model", summary={"accuracy": 0.5})
        assert directory.summary() == {"accuracy": 0.5}


def test_a_run_is_not_removed_silently(tmp_path: Path) -> None:
    begin(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    content = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ArgumentError, match=r"holds a run: .*--resume .*--overwrite"):
        RunDirectory.create(tmp_path, CONFIG, command=COMMAND)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == content
    RunDirectory.create(tmp_path, CONFIG, command=COMMAND, overwrite=True).close()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"command.txt", "config.toml", "run.json", "notes.txt"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_files_of_others_are_never_removed(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "config.toml").write_text("mine")
    with pytest.raises(ArgumentError, match="not those of a run"):
        RunDirectory.create(tmp_path, CONFIG, command=COMMAND, overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]
    assert (tmp_path / "config.toml").read_text() == "mine"


def test_one_process_at_a_time(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from diffsketch.app.files import RunDirectory\n"
        "run = RunDirectory.open(Path(sys.argv[1]))\n"
        "print('open', flush=True); sys.stdin.read()\n"
    )
    begin(tmp_path)
    arguments = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(  # noqa: S603
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(RunBusy, match="another process"):
            RunDirectory.open(tmp_path)
        with pytest.raises(RunBusy, match="another process"):
            RunDirectory.create(tmp_path, CONFIG, command=COMMAND, overwrite=True)
        other.kill()
    RunDirectory.open(tmp_path).close()  # a process that was killed holds no lock


def test_failed_opening_lets_others_in(tmp_path: Path) -> None:
    begin(tmp_path)
    with pytest.raises(ArgumentError):
        RunDirectory.create(tmp_path, CONFIG, command=COMMAND)
    RunDirectory.open(tmp_path).close()


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    begin(tmp_path)
    leftover = tmp_path / f".checkpoint.safetensors.{os.getpid() + 1}.tmp"
    leftover.write_bytes(b"half")
    RunDirectory.open(tmp_path).close()
    assert not leftover.exists()


@WAYS
@pytest.mark.parametrize("changed", ["rounds = 4", "rounds ="])
def test_changed_settings_are_noticed(
    tmp_path: Path, way: Callable[[Path], RunFiles], changed: str
) -> None:
    begin(tmp_path)
    path = tmp_path / "config.toml"
    path.write_text(path.read_text().replace("rounds = 3", changed))
    with pytest.raises(MismatchError, match=r"config\.toml: changed since the run began"):
        way(tmp_path)


@pytest.mark.parametrize("name", ["diffsketch", "torch"])
def test_other_versions_are_refused(tmp_path: Path, name: str) -> None:
    begin(tmp_path)
    path = tmp_path / "run.json"
    start = json.loads(path.read_text())
    del start["sha256"]
    start["versions"][name] = "0.0.1"
    path.write_bytes(sealed(start))
    with pytest.raises(MismatchError, match=rf"begun with {name} 0\.0\.1"):
        RunDirectory.open(tmp_path)


@WAYS
@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "damaged"),
        ("[]", "damaged"),
        ('{"format": "diffsketch run 9"}', "another version"),
        ('{"format": "diffsketch run 2"}', "its checksum differs"),
    ],
)
def test_damaged_start_is_refused(
    tmp_path: Path, way: Callable[[Path], RunFiles], content: str, said: str
) -> None:
    begin(tmp_path)
    (tmp_path / "run.json").write_text(content)
    with pytest.raises((DataError, MismatchError), match=said):
        way(tmp_path)


def test_no_run_is_said(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(DataError, match="not the directory of a run"):
            RunDirectory.open(path)


def test_free_names(tmp_path: Path) -> None:
    names = [free_name(tmp_path / "runs" / "a").name for _ in range(3)]
    assert names == ["a", "a-2", "a-3"]


def test_lock_errors_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(OSError, match="not implemented"):
        RunDirectory.create(tmp_path, CONFIG, command=COMMAND)
