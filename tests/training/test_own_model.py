"""The example with a model and data of one's own learns, within its budget."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_model.py"


def test_own_model_and_data(capsys: pytest.CaptureFixture[str]) -> None:
    """With a fixed seed: guessing has 50%, and one without an update about that."""
    runpy.run_path(str(EXAMPLE), run_name="example")["main"]()
    printed = capsys.readouterr().out
    (accuracy,) = re.findall(r"accuracy ([\d.]+)%", printed)
    assert float(accuracy) > 95
    (epsilon,) = re.findall(
        r"epsilon = ([\d.]+) .*\(proven, simulated; client unit, replace, dist", printed
    )
    assert 1 < float(epsilon) <= 8
