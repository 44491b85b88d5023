"""The hook in real DDP, over gloo: buckets in any shape, accumulation, errors, checkpoints."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from diffsketch.methods import PlainSketch
from diffsketch.sketch import SketchKey
from tests.ddp.ddp_checks import CHECKS, checks, checks_without_bfloat16, make_model, state_of
from tests.ddp.processes import Results, bfloat16_flaw, check_outcomes, run_checks

pytestmark = pytest.mark.slow  # processes are started


@pytest.fixture(scope="module")
def flaw() -> str:
    return bfloat16_flaw()


@pytest.fixture(scope="module")
def results(flaw: str) -> Results:
    return run_checks(checks_without_bfloat16 if flaw else checks)


@pytest.mark.parametrize("name", CHECKS)
def test_two_ranks(name: str, results: Results, flaw: str) -> None:
    if flaw and name == "variant bfloat16":
        pytest.skip(flaw)
    check_outcomes(results[name])


def test_only_an_illegal_instruction_excuses_bfloat16() -> None:
    assert bfloat16_flaw("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    assert not bfloat16_flaw("")
    for script in ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "1 / 0"):
        with pytest.raises(subprocess.CalledProcessError):
            bfloat16_flaw(script)


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
def test_settings_that_do_not_go_together(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        state_of(make_model(), **options)
