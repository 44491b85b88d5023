"""A checkpoint as bytes: tensors in the safetensors format, and JSON in its metadata.

Nothing is unpickled. A digest over all of it tells a damaged file from a whole one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from diffsketch.errors import DataError, MismatchError

__all__ = ["pack", "unpack"]

_FORMAT, _ENTRY = "diffsketch checkpoint 1", "checkpoint"


def pack(state: Mapping[str, Any], progress: Mapping[str, Any], *, identity: str) -> bytes:
    """The content of a checkpoint.

    Guarantees (`tests/app/test_checkpoint.py`): `unpack` gives the same back, bit by bit; a file
    with any byte changed or missing is refused.

    Args:
        state: Of the simulation: tensors, and values that JSON can hold.
        progress: Of the run around it: values that JSON can hold.
        identity: Of the run, so that another run's checkpoint is refused.
    """
    tensors = {
        name: value.detach().cpu().contiguous()
        for name, value in state.items()
        if isinstance(value, Tensor)
    }
    rest = {name: value for name, value in state.items() if name not in tensors}
    content = {"format": _FORMAT, "identity": identity, "state": rest, "progress": dict(progress)}
    text = json.dumps(content)
    whole = json.dumps({"content": text, "sha256": _digest(tensors, text)})
    # One entry: several come in any order, and the same checkpoint shall have the same bytes.
    return safetensors.torch.save(tensors, metadata={_ENTRY: whole})


def unpack(content: bytes, path: Path, *, identity: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state and the progress of a checkpoint.

    Args:
        content: Of the file.
        path: Its name, for errors.
        identity: Of the run that it has to belong to.

    Raises:
        DataError: The content is damaged.
        MismatchError: It is of another run, or of another version's format.
    """
    try:
        tensors = safetensors.torch.load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        metadata = json.loads(header["__metadata__"][_ENTRY])
        text = metadata["content"]
        if _digest(tensors, text) != metadata["sha256"]:
            raise ValueError("its checksum differs")
        found = json.loads(text)
        kind, owner = found["format"], found["identity"]
        state, progress = {**found["state"], **tensors}, found["progress"]
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: damaged checkpoint ({error}); it was not changed") from error
    if kind != _FORMAT:
        raise MismatchError(f"{path}: must have the format {_FORMAT!r}, got {kind!r}")
    if owner != identity:
        raise MismatchError(f"{path}: is the checkpoint of a run with other settings")
    return state, progress


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    digest.update(safetensors.torch.save(dict(tensors)))
    return digest.hexdigest()
