"""Measurements: appended, cut back to what they were, and never repaired."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from diffsketch.app.files import Metrics, epsilon_data
from diffsketch.app.session import epsilon_from_data
from diffsketch.errors import DataError
from diffsketch.privacy.claim import Basis, Epsilon, Relation, Scope, Trust, Unit

SCOPE = Scope(Unit.CLIENT, Relation.REPLACE, Trust.DISTRIBUTED)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_restored_to_what_it_was(path: Path) -> None:
    with Metrics(path) as metrics:
        metrics.append({"round": 0})
        metrics.append({"round": 1, "loss": 0.1})
        state = metrics.state()
        before = path.read_bytes()
        metrics.append({"round": 2})
    path.write_bytes(path.read_bytes() + b'{"half')  # killed while it wrote
    with Metrics(path) as metrics:
        metrics.restore(state)
        assert path.read_bytes() == before
        assert metrics.state() == state
        metrics.append({"round": 2})
    assert [json.loads(line)["round"] for line in path.read_text().splitlines()] == [0, 1, 2]
    with Metrics(path) as metrics:
        metrics.restore(None)
    assert path.read_bytes() == b""


@pytest.mark.parametrize("damage", ["shorter", "changed"])
def test_damage_is_noticed_and_kept(path: Path, damage: str) -> None:
    with Metrics(path) as metrics:
        metrics.append({"round": 0})
        state = metrics.state()
    content = path.read_bytes()
    damaged = content[:-2] if damage == "shorter" else content.replace(b"0", b"7")
    path.write_bytes(damaged)
    with Metrics(path) as metrics, pytest.raises(DataError, match=r"metrics\.jsonl: damaged"):
        metrics.restore(state)
    assert path.read_bytes() == damaged


def test_what_json_cannot_say_is_a_bug(path: Path) -> None:
    with Metrics(path) as metrics, pytest.raises(ValueError, match="JSON"):
        metrics.append({"loss": math.nan})


@pytest.mark.parametrize("value", [0.5, math.inf])
def test_epsilon_there_and_back(value: float) -> None:
    epsilon = Epsilon(value, 1e-5, 7, Basis.PROVEN, SCOPE)
    data = json.loads(json.dumps(epsilon_data(epsilon), allow_nan=False))
    assert data["value"] == (None if math.isinf(value) else value)
    assert epsilon_from_data(data) == epsilon
