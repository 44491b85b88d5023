"""Ratios are to a run without compression that has the same devices: `none` is never above 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diffsketch.app.build import build
from diffsketch.app.files import RunDirectory
from diffsketch.app.session import session
from diffsketch.app.settings import RunConfig

FEDAVG: dict[str, Any] = {"algorithm": "fedavg", "cohort": 3, "sampling": "uniform"}


def summary_of(path: Path, **settings: Any) -> dict[str, Any]:
    built = build(RunConfig(workers=6, samples=10, rounds=8, **settings))
    with RunDirectory.create(path, built.config, command=["x"]) as directory:
        session(built, directory, show=lambda _: None, stop=lambda: False)
        return directory.summary() or {}


@pytest.mark.parametrize("settings", [{}, FEDAVG, {**FEDAVG, "momentum": 0.5}])
def test_without_compression_it_is_one_at_most(tmp_path: Path, settings: dict[str, Any]) -> None:
    summary = summary_of(tmp_path / "none", method="none", **settings)
    for name in ("compression", "compression_up", "compression_down"):
        assert 0.4 < summary[name] <= 1, name
    if "momentum" not in settings:  # which has to be downloaded as well
        assert summary["compression_down"] == pytest.approx(4 * 7850 / (48 + 4 * 7850))


def test_same_devices_same_raw_bytes(tmp_path: Path) -> None:
    none = summary_of(tmp_path / "none", method="none", **FEDAVG)
    sketch = summary_of(tmp_path / "sketch", method="sketch", **FEDAVG)
    for way in ("up", "down"):
        assert none[f"uncompressed_bytes_{way}"] == sketch[f"uncompressed_bytes_{way}"]
        raw = sketch[f"uncompressed_bytes_{way}"]
        assert sketch[f"compression_{way}"] == pytest.approx(raw / sketch[f"bytes_{way}"])
    # Nobody downloads anything before the first round.
    assert sketch["uncompressed_bytes_down"] < sketch["uncompressed_bytes_up"]


def test_whole_numbers_as_they_are(tmp_path: Path) -> None:
    """What the method chose where nothing was given."""
    settings = {"clip": 1.0, "noise_multiplier": 2.0, "rows": 1, "cols": 16}
    summary = summary_of(tmp_path / "run", method="sketch-skellam", **settings)
    assert "bits" not in summary["config"]
    assert summary["message_bytes"] == 48 + 2 * summary["bits"]
    assert 0 < summary["granularity"] < 1
