"""Files of a run: names, locks, checkpoints, measurements, JSON with a checksum."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import math
import os
import platform
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from diffsketch import __version__
from diffsketch.app.settings import RunConfig, saved_config, to_toml
from diffsketch.errors import ArgumentError, DataError, DiffSketchError, MismatchError
from diffsketch.files import leftovers, prepare_output, replace_file, replace_files, try_lock
from diffsketch.privacy.claim import Epsilon

START, CONFIG, COMMAND = "run.json", "config.toml", "command.txt"
METRICS, CHECKPOINT, TIMES = "metrics.jsonl", "checkpoint.safetensors", "times.json"
MODEL, BEST, SUMMARY = "model.safetensors", "best.safetensors", "summary.json"

_RUN_FORMAT, _CHECKPOINT_FORMAT = "diffsketch run 3", "diffsketch checkpoint 3"
# The most telling first.
SHOWN = (SUMMARY, METRICS, MODEL, BEST, CONFIG, COMMAND, TIMES, CHECKPOINT)
_FILES = (*SHOWN, START)
# Quantities of a measurement, and the most that each can be.
_MEASURED = {
    "round": math.inf, "bytes_up": math.inf, "bytes_down": math.inf, "accuracy": 1,
    "loss": math.inf, "noised_share": 1,
}  # fmt: skip
_SOURCE = Path(__file__).parents[1]


class RunBusy(DiffSketchError):  # noqa: N818 - it says what happened
    """Another process is writing to the directory. Nothing was changed."""


def sealed(data: Mapping[str, Any]) -> bytes:
    """The content of a JSON file with its own checksum, which `read_sealed` checks."""
    return json_bytes({**data, "sha256": _digest(data)})


def read_sealed(path: Path) -> dict[str, Any]:
    """The data that `sealed` was given; a `DataError` if anything was changed or is missing."""
    data = read_json(path)
    checksum = data.pop("sha256", None)
    if checksum != _digest(data):
        raise DataError(f"{path}: damaged, or changed since it was written: its checksum differs")
    return data


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; a `FileNotFoundError` without a file, a `DataError` for any other content."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    # Callers tell a file that is missing from one that is damaged.
    except FileNotFoundError:
        raise
    except (ValueError, OSError, RecursionError) as error:
        raise DataError(f"{path}: damaged or not readable: {error}") from error
    if not isinstance(data, dict):
        raise DataError(f"{path}: damaged: it holds no JSON object")
    return data


def json_bytes(data: Mapping[str, Any]) -> bytes:
    """The content of a JSON file for people and programs."""
    return json.dumps(data, indent=2, allow_nan=False).encode() + b"\n"


def _digest(data: Mapping[str, Any]) -> str:
    # As it will be read: keys are texts then, and tuples are lists.
    text = json.dumps(json.loads(json.dumps(data)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def pack(state: Mapping[str, Any], progress: Mapping[str, Any], *, identity: str) -> bytes:
    """The content of a checkpoint, for `unpack`: tensors and JSON values, bit by bit."""
    tensors = {
        name: value.detach().cpu().contiguous()
        for name, value in state.items()
        if isinstance(value, Tensor)
    }
    values = {name: value for name, value in state.items() if name not in tensors}
    head = {"format": _CHECKPOINT_FORMAT, "identity": identity}
    text = json.dumps({**head, "state": values, "progress": dict(progress)})
    entry = json.dumps({"content": text, "sha256": _checkpoint_digest(tensors, text)})
    # One entry: several come in any order, and the same checkpoint shall have the same bytes.
    return safetensors.torch.save(tensors, metadata={"checkpoint": entry})


def unpack(content: bytes, path: Path, *, identity: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state and the progress of a checkpoint of the run with this identity.

    A `DataError` if any byte is changed or missing, a `MismatchError` if it is of another run.
    """
    try:
        tensors = safetensors.torch.load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        metadata = json.loads(header["__metadata__"]["checkpoint"])
        text = metadata["content"]
        if _checkpoint_digest(tensors, text) != metadata["sha256"]:
            raise ValueError("its checksum differs")
        values = json.loads(text)
        kind, owner = values["format"], values["identity"]
        state, progress = {**values["state"], **tensors}, values["progress"]
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: damaged checkpoint ({error}); it was not changed") from error
    if kind != _CHECKPOINT_FORMAT:
        raise MismatchError(f"{path}: must have the format {_CHECKPOINT_FORMAT!r}, got {kind!r}")
    if owner != identity:
        raise MismatchError(f"{path}: is the checkpoint of a run with other settings")
    return state, progress


def _checkpoint_digest(tensors: Mapping[str, Tensor], text: str) -> str:
    content = safetensors.torch.save(dict(tensors))
    return hashlib.sha256(text.encode() + content).hexdigest()


def versions() -> dict[str, str]:
    """Versions of this package and the libraries it computes with, and a digest of its source."""
    return {
        "diffsketch": __version__,
        "source": source_digest(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def check_versions(written: Mapping[str, str], path: Path) -> None:
    """Raise a `MismatchError` if a run was begun with other versions: its result might differ."""
    here = versions()
    # The last bits of results depend on each of these; Python itself computes nothing.
    for name in ("diffsketch", "torch", "numpy", "machine", "source"):
        if written.get(name) != here[name]:
            raise MismatchError(
                f"{path}: the run was begun with {name} {written.get(name)} and can only be "
                f"continued with that, got {name} {here[name]}"
            )


@lru_cache  # the code that runs does not change while it runs
def source_digest(*parts: str, root: Path | None = None) -> str:
    """Digest of the source below `root` (by default the package), or of its folders and modules."""
    root = root or _SOURCE
    places = [root / part for part in parts] or [root]
    paths = {path for place in places for path in (place, *place.rglob("*.py"))}
    digest = hashlib.sha256()
    for path in sorted(path for path in paths if path.suffix == ".py"):
        # Names and sizes as well: moving text from one file to another must change the digest.
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def lines_of(curve: Iterable[Mapping[str, Any]]) -> bytes:
    """The content of a file of measurements, one a line."""
    return b"".join(json.dumps(dict(one), allow_nan=False).encode() + b"\n" for one in curve)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read measurements, each checked: the file has no digest of its own.

    The file may be growing: a last line that is not whole yet is left out.
    """
    curve: list[dict[str, Any]] = []
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            for name, most in _MEASURED.items():
                value = record[name]
                if value is None and name in ("loss", "accuracy", "noised_share"):  # unknown
                    continue
                if isinstance(value, bool) or not 0 <= value <= most or value == math.inf:
                    raise ValueError(f"{name} must be a number from 0 to {most}, got {value!r}")
            Epsilon.from_json(record["epsilon"])
            before = curve[-1]["round"] if curve else -1
            if record["round"] <= before:
                raise ValueError(f"round must be above {before}, got {record['round']}")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            where = f"{path}: damaged: line {number}"
            raise DataError(f"{where} is no measurement ({error!r})") from error
        curve.append(record)
    return curve


class RunDirectory:
    """A run as its files have it, whether finished or not.

    `look` gives one to be shown; `create` and `open` lock it for this process meanwhile.

    Guarantees (`tests/app/test_files.py`): no file of anybody else is removed; two processes never
    write to one; settings that were changed since are noticed. A run that was killed while it began
    can be opened, or created again (`tests/app/test_resume.py`).
    """

    def __init__(self, path: Path, config: RunConfig, start: Mapping[str, Any]) -> None:
        self.path, self.config = path, config  # all settings, resolved
        self.start = start  # content of run.json: digest of the settings, versions
        self.metrics, self.checkpoint = path / METRICS, path / CHECKPOINT
        self.identity = hashlib.sha256(to_toml(config).encode()).hexdigest()  # of checkpoints

    @classmethod
    @contextmanager
    def create(cls, path: Path, config: RunConfig, *, command: list[str]) -> Iterator[RunDirectory]:
        """Make a directory for a new run, new or empty but for what a killed process left."""
        prepare_output(path)
        with locked(path):
            halves = leftovers(path, _FILES)
            advice = "the files in it are not those of a run"
            if has_run(path):
                advice = f"it holds a run: continue it with --resume {path}"
            check_empty(path, but=halves, advice=advice)
            # Another process cannot be writing them: the directory is locked.
            for half in halves:
                half.unlink(missing_ok=True)
            settings = to_toml(config)
            start = {"format": _RUN_FORMAT, "settings": settings, "versions": versions()}
            # First: whoever finds run.json finds all settings in it, whenever this is killed.
            replace_file(path / START, sealed(start))
            # In a file of its own, since the same run may be begun by different commands.
            text = f"{shlex.join(command)}\n".encode(errors="replace")
            replace_files({path / COMMAND: text, path / CONFIG: settings.encode()})
            yield cls(path, config, start)

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[RunDirectory]:
        """The directory of a run that was begun by this version, to go on with it."""
        check_directory(path, "a run")
        if not has_run(path):
            raise DataError(
                f"{path}: not the directory of a run: {START} is missing; a run that was "
                "interrupted before it was begun is begun again"
            )
        with locked(path):
            directory = look(path)
            check_versions(directory.start["versions"], path / START)
            for half in leftovers(path, _FILES):
                half.unlink(missing_ok=True)
            if not (path / CONFIG).exists():  # killed before it was written
                replace_file(path / CONFIG, directory.start["settings"].encode())
            yield directory

    @property
    def command(self) -> str:
        """The command that began it; empty if lost."""
        try:
            return (self.path / COMMAND).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def summary(self) -> dict[str, Any] | None:
        """The results of the run, if it is finished; a `DataError` if the file is damaged."""
        try:
            return read_sealed(self.path / SUMMARY)
        except FileNotFoundError:
            return None

    @property
    def finished(self) -> bool:
        """Whether everything is there that a run leaves."""
        return (self.path / SUMMARY).exists() and (self.path / MODEL).exists()

    def times(self) -> dict[str, float]:
        """Seconds that all sessions took; empty if not known: nothing else depends on them."""
        try:
            times = read_json(self.path / TIMES)
            numbers = (times["training"], times["total"])
        except (FileNotFoundError, KeyError, DataError):
            return {}
        valid = all(isinstance(number, int | float) and number >= 0 for number in numbers)
        return times if valid else {}

    def add_measurement(self, record: Mapping[str, Any]) -> None:
        """Add a line, for who looks meanwhile; half of it may be there if that fails."""
        with self.metrics.open("ab") as stream:
            stream.write(lines_of([record]))

    def write_metrics(self, curve: Iterable[Mapping[str, Any]]) -> None:
        """Replace the measurements: the checkpoint knows them, whatever became of the file."""
        replace_file(self.metrics, lines_of(curve))

    def write_checkpoint(self, content: bytes, times: dict[str, float]) -> None:
        """Replace the checkpoint; on an error the old one stays."""
        replace_file(self.checkpoint, content)
        replace_file(self.path / TIMES, json_bytes(times))

    def write_best(self, model: bytes) -> None:
        """Replace the model of the smallest loss so far."""
        replace_file(self.path / BEST, model)

    def write_results(
        self, *, curve: Iterable[Mapping[str, Any]], model: bytes, summary: dict[str, Any]
    ) -> None:
        """Write the results; the summary last, since it says that the run is finished."""
        parts = {self.metrics: lines_of(curve), self.path / MODEL: model}
        # One after the other, in this order.
        replace_files({**parts, self.path / SUMMARY: sealed(summary)})


def has_run(path: Path) -> bool:
    """Whether a run was begun in a directory."""
    return (path / START).is_file()


def look(path: Path) -> RunDirectory:
    """The run in a directory, to be shown.

    Guarantees (`tests/app/test_files.py`): no file is changed and no lock is taken or waited for,
    so that the run may go on meanwhile; versions other than ours are no obstacle.
    """
    file, config = path / START, path / CONFIG
    try:
        kind = read_json(file).get("format")
    except FileNotFoundError as error:
        raise DataError(f"{error.filename}: missing") from error
    if kind != _RUN_FORMAT:  # before the checksum, which another format may not have
        raise MismatchError(
            f"{file}: must have the format {_RUN_FORMAT!r}, got {kind!r}: written by another "
            "version of diffsketch"
        )
    start = read_sealed(file)
    if not isinstance(start.get("versions"), dict) or not isinstance(start.get("settings"), str):
        raise DataError(f"{file}: damaged: it lacks the versions or the settings")
    start["versions"] = {name: str(value) for name, value in start["versions"].items()}
    if config.exists() and config.read_bytes() != start["settings"].encode():
        raise MismatchError(
            f"{config}: changed since the run began: it does not say any more what was run, and a "
            "run can only be continued with the settings that it has"
        )
    try:
        chosen = saved_config(tomllib.loads(start["settings"]))
    except ArgumentError as error:
        raise DataError(f"{file}: {error}") from error
    return RunDirectory(path, chosen, start)


def check_empty(path: Path, *, but: Iterable[Path] = (), advice: str = "") -> None:
    """Raise an `ArgumentError` if an output directory has files, `but` for those named."""
    if path.is_dir() and set(path.iterdir()) - set(but):
        said = f"output must be a new or empty directory, got output={str(path)!r}"
        raise ArgumentError(f"{said}; {advice}" if advice else said)


def free_name(base: Path) -> Path:
    """Make a new directory: the first of `base`, `base-2`, `base-3`, ... that does not exist."""
    base.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        path = base if number == 1 else base.with_name(f"{base.name}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            break
    return path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a directory meanwhile, or until the process ends; `RunBusy` if another one has."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            try_lock(handle)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise RunBusy(f"{path}: another process is writing to it") from None
        yield
    finally:
        os.close(handle)


def check_directory(path: Path, whose: str) -> None:
    """Raise a `DataError` unless there is a directory of this name."""
    if not path.is_dir():
        what = "is no directory" if path.exists() else "no such directory"
        raise DataError(f"{path}: {what}; it must be that of {whose}")
