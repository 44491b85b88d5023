"""Files of a run: sealed JSON, checkpoints, measurements, versions, the directory and its lock."""

from __future__ import annotations

import fcntl
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from diffsketch.app import files as module
from diffsketch.app.files import (
    RunBusy,
    RunDirectory,
    check_versions,
    free_name,
    lines_of,
    look,
    pack,
    read_metrics,
    read_sealed,
    sealed,
    source_digest,
    unpack,
    versions,
)
from diffsketch.app.settings import RunConfig
from diffsketch.errors import ArgumentError, DataError, MismatchError
from diffsketch.privacy.claim import Basis, Epsilon, Relation, Scope, Trust, Unit

DATA = {"accuracy": 0.5, "names": ["a", "b"], "nothing": None, "deep": {"x": 1}}


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"0.5", b"0.6"), (b'"a"', b'"c"'), (b"sha256", b"sha255"), (b"{", b"["), (b"null", b"\xff")],
)
def test_changes_are_noticed(tmp_path: Path, old: bytes, new: bytes) -> None:
    path = tmp_path / "data.json"
    content = sealed(DATA)
    path.write_bytes(content)
    assert read_sealed(path) == DATA
    assert old in content
    path.write_bytes(content.replace(old, new))
    with pytest.raises(DataError, match=r"data\.json: damaged"):
        read_sealed(path)


STATE: dict[str, Any] = {
    "weights": torch.tensor([1.5, float("nan"), float("-inf"), 1e-45]),
    "counts": torch.arange(6).reshape(2, 3).T,  # not contiguous
    "mask": torch.tensor([True, False]),
    "wide": torch.tensor(0.1, dtype=torch.float64),
    "round_index": 3,
    "share": 0.1 + 0.2,
    "name": "ünïcode",
    "list": [1, 2.5, "x"],
}
PROGRESS = {"bytes": 10, "loss": float("nan"), "nested": {"a": [1]}}
PATH = Path("checkpoint.safetensors")


def test_same_back() -> None:
    state, progress = unpack(pack(STATE, PROGRESS, identity="me"), PATH, identity="me")
    assert state.keys() == STATE.keys()
    for name, value in STATE.items():
        if isinstance(value, Tensor):
            assert state[name].dtype == value.dtype
            assert torch.equal(state[name].isnan(), value.isnan())
            assert torch.equal(state[name].nan_to_num(), value.nan_to_num())
        else:
            assert state[name] == value
    assert progress["bytes"] == 10
    assert progress["loss"] != progress["loss"]
    with pytest.raises(MismatchError, match="other settings"):
        unpack(pack(STATE, PROGRESS, identity="me"), PATH, identity="you")


def test_every_changed_or_missing_byte_is_noticed() -> None:
    small = {"weights": torch.tensor([1.5, -2.0]), "round_index": 3}
    content = pack(small, {"a": 1}, identity="me")
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1
        with pytest.raises((DataError, MismatchError), match="checkpoint"):
            unpack(bytes(changed), PATH, identity="me")
    for length in range(len(content)):
        with pytest.raises(DataError, match="damaged checkpoint"):
            unpack(content[:length], PATH, identity="me")
    with pytest.raises(DataError, match="damaged checkpoint"):
        unpack(content + b"x", PATH, identity="me")


SCOPE = Scope(Unit.CLIENT, Relation.REPLACE, Trust.DISTRIBUTED)


def record(index: int, **more: Any) -> dict[str, Any]:
    """A measurement."""
    spent = Epsilon(1.0, 1e-5, index, Basis.PROVEN, SCOPE).to_json()
    values = {"round": index, "accuracy": 0.5, "loss": 0.1, "noised_share": None}
    return {**values, "bytes_up": 0, "bytes_down": 0, "epsilon": spent, **more}


def test_lines_that_are_growing_are_read_as_far_as_they_are_whole(tmp_path: Path) -> None:
    path, curve = tmp_path / "metrics.jsonl", [record(0), record(2)]
    path.write_bytes(lines_of(curve) + b'{"half')
    assert read_metrics(path) == curve
    with pytest.raises(ValueError, match="JSON"):
        lines_of([{"loss": math.nan}])


@pytest.mark.parametrize(("value", "doors"), [(0.5, ()), (math.inf, ("evaluation",))])
def test_epsilon_there_and_back(value: float, doors: tuple[str, ...]) -> None:
    epsilon = Epsilon(value, 1e-5, 7, Basis.PROVEN, SCOPE, simulated=True, doors=doors)
    data = json.loads(json.dumps(epsilon.to_json(), allow_nan=False))
    assert data["value"] == (None if math.isinf(value) else value)
    assert Epsilon.from_json(data) == epsilon


CONFIG = RunConfig(rounds=3, method="none")
COMMAND = ["diffsketch", "run"]


def begin(path: Path) -> None:
    with RunDirectory.create(path, CONFIG, command=COMMAND) as directory:
        directory.write_checkpoint(b"content", {"training": 0.5, "total": 1.0})


@pytest.mark.parametrize("runs", [True, False])
def test_files_that_are_there_stay(tmp_path: Path, runs: bool) -> None:
    if runs:
        begin(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    content = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    said = r"holds a run: .*--resume" if runs else "not those of a run"
    with pytest.raises(ArgumentError, match=said):
        begin(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == content


@pytest.mark.slow
def test_one_process_at_a_time(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from diffsketch.app.files import RunDirectory\n"
        "with RunDirectory.open(Path(sys.argv[1])):\n"
        "    print('open', flush=True); sys.stdin.read()\n"
    )
    begin(tmp_path)
    arguments = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(  # noqa: S603
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(RunBusy, match="another process"), RunDirectory.open(tmp_path):
            pass
        with pytest.raises(RunBusy, match="another process"):
            begin(tmp_path)
        other.kill()
    with RunDirectory.open(tmp_path):
        pass  # a process that was killed holds no lock


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    begin(tmp_path)
    leftover = tmp_path / f".checkpoint.safetensors.{os.getpid() + 1}.tmp"
    leftover.write_bytes(b"half")
    with RunDirectory.open(tmp_path):
        assert not leftover.exists()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.toml", "rounds = 4", r"config\.toml: changed since the run began"),
        ("config.toml", "rounds =", r"config\.toml: changed since the run began"),
        ("run.json", "{", "damaged"),
        ("run.json", "[]", "damaged"),
        ("run.json", '{"format": "diffsketch run 9"}', "another version"),
        ("run.json", '{"format": "diffsketch run 3"}', "its checksum differs"),
    ],
)
def test_changed_and_damaged_files_are_refused(
    tmp_path: Path, name: str, content: str, said: str
) -> None:
    begin(tmp_path)
    path = tmp_path / name
    before = path.read_text()
    path.write_text(before.replace("rounds = 3", content) if name == "config.toml" else content)
    with pytest.raises((DataError, MismatchError), match=said), RunDirectory.open(tmp_path):
        pass
    with pytest.raises((DataError, MismatchError), match=said):
        look(tmp_path)


def test_lock_errors_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(OSError, match="not implemented"):
        begin(tmp_path)


def test_other_versions_are_shown_and_not_continued(tmp_path: Path) -> None:
    begin(tmp_path)
    path = tmp_path / "run.json"
    start = json.loads(path.read_text())
    del start["sha256"]
    start["versions"] = {"diffsketch": "0.0.1", "torch": 2}
    path.write_bytes(sealed(start))
    assert look(tmp_path).start["versions"] == {"diffsketch": "0.0.1", "torch": "2"}
    said = r"begun with diffsketch 0\.0\.1"
    with pytest.raises(MismatchError, match=said), RunDirectory.open(tmp_path):
        pass


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, said in (
        (tmp_path, "not the directory of a run"), (tmp_path / "none", "none: no such directory"),
        (tmp_path / "file", "file: is no directory; it must be that of a run"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=said), RunDirectory.open(path):
            pass
    (tmp_path / "file").unlink()
    begin(tmp_path)
    settings = (tmp_path / "config.toml").read_bytes()
    (tmp_path / "config.toml").unlink()  # as a run that was killed while it began
    assert look(tmp_path).config == CONFIG
    with RunDirectory.open(tmp_path):
        assert (tmp_path / "config.toml").read_bytes() == settings
    (tmp_path / "run.json").unlink()
    with pytest.raises(DataError, match=r"run\.json: missing"):
        look(tmp_path)


@pytest.mark.parametrize("name", ["diffsketch", "torch", "numpy", "machine", "source"])
def test_others_are_refused(name: str) -> None:
    with pytest.raises(MismatchError, match=r"run\.json: the (run was begun with|source of)"):
        check_versions({**versions(), name: "another"}, Path("run.json"))


def test_the_digest_is_of_all_source_or_of_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (module._SOURCE / "app" / "files.py").is_file()
    for folder in ("inner", "other"):
        (tmp_path / folder).mkdir()
    names = ("a.py", "inner/b.py", "other/b.py")
    for name in names:
        (tmp_path / name).write_text("x = 1\n")
    monkeypatch.setattr(module, "_SOURCE", tmp_path)

    def digests() -> tuple[str, str]:
        source_digest.cache_clear()
        return source_digest(), source_digest("a.py", "inner")

    whole, part = digests()
    for name in names:
        (tmp_path / name).write_text("x = 2\n")
        assert digests()[0] != whole
        assert (digests()[1] == part) is (name == "other/b.py")
        (tmp_path / name).write_text("x = 1\n")
    assert digests() == (whole, part)
    (tmp_path / "a.py").rename(tmp_path / "c.py")
    source_digest.cache_clear()
    assert source_digest() != whole
    source_digest.cache_clear()


def test_free_names(tmp_path: Path) -> None:
    names = [free_name(tmp_path / "runs" / "a").name for _ in range(3)]
    assert names == ["a", "a-2", "a-3"]
