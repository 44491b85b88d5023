"""The hook in real DDP, over gloo: buckets in any shape, accumulation, errors, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diffsketch.methods import PlainSketch
from diffsketch.sketch import SketchKey
from tests.ddp.ddp_checks import CHECKS, checks, make_model, state_of
from tests.ddp.processes import Results, alone, check_outcomes, run_checks

pytestmark = pytest.mark.slow  # processes are started


@pytest.fixture(scope="module")
def results() -> Results:
    return run_checks(checks)


@pytest.mark.parametrize("name", CHECKS)
def test_two_ranks(name: str, results: Results) -> None:
    check_outcomes(results[name])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"seed": None}, "seed or key must be given"),
        ({"key": SketchKey.from_integer(1)}, "seed or key must be given"),
        ({"method": "none", "error_feedback": False}, "compression is for methods with tables"),
        ({"cols": 5}, "compression or cols must be given, and not both"),
        ({"compression": 0.5}, r"compression must be in \[1, "),
        ({"method": PlainSketch(5, 1, 2)}, "settings must not be given with a method"),
    ],
)
def test_settings_that_do_not_go_together(
    options: dict[str, Any], text: str, tmp_path: Path
) -> None:
    with alone(tmp_path), pytest.raises(ValueError, match=text):
        state_of(make_model(), **options)
