"""Examples of local steps in other frameworks: each runs where its library is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "library", "steps"),
    [
        ("lightning_local_steps.py", "lightning", 384),
        ("lightning_local_steps.py --hook", "lightning", 384),
        ("accelerate_local_steps.py", "accelerate", 320),  # of two batches each
        ("trainer_local_steps.py", "transformers", 300),
    ],
)
def test_an_example_learns_and_ends_with_the_same_weights(
    command: str, library: str, steps: int
) -> None:
    """With fixed seeds; the mean has a loss of 1.1."""
    pytest.importorskip(library)
    name, *options = command.split()
    done = subprocess.run(  # noqa: S603
        [sys.executable, str(EXAMPLES / name), *options], capture_output=True, text=True,
        check=False, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = re.search(
        r"loss ([\d.]+) after (\d+) steps, the same in all[a-z ]*: (\w+)", done.stdout
    )
    assert found is not None, done.stdout
    assert float(found[1]) < 0.5
    assert (int(found[2]), found[3]) == (steps, "True")
