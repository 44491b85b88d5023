"""The example runs, and what it prints is what it found."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "private_histogram.py"


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE), run_name="example")


def test_it_finds_the_frequent_codes(
    example: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """With fixed seeds. Of the ten shares only one is above 14 points."""
    example["main"]()
    printed = capsys.readouterr().out
    errors = dict(re.findall(r"^([\w-]+): [^\n]*\n    errors of ([\d.]+) points", printed, re.M))
    assert list(errors) == list(example["METHODS"])
    found = {name: float(value) for name, value in errors.items()}
    assert found["none"] == 0
    assert found["sketch"] < 0.2
    assert found["sketch-gaussian"] < 0.6
    assert found["sketch-skellam"] < 0.6
    assert printed.count("(proven; client unit, replace,") == 2
    assert printed.count("(no claim; client unit, replace,") == 2


def test_its_histograms_are_histograms(example: dict[str, Any]) -> None:
    vectors = example["histograms"](seed=3)
    assert float((vectors.sum(dim=1) - 1).abs().max()) < 1e-5
    assert float(vectors.min()) >= 0
    assert float(vectors.norm(dim=1).max()) <= 1 + 1e-6  # what the clip is made for
