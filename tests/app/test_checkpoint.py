"""Checkpoints: the same bits back, and nothing accepted that is not whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from diffsketch.app.files import pack, unpack
from diffsketch.errors import DataError, MismatchError

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


def test_another_runs_checkpoint_is_refused() -> None:
    with pytest.raises(MismatchError, match="other settings"):
        unpack(pack(STATE, PROGRESS, identity="me"), PATH, identity="you")
