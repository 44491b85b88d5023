"""Commands as tests run them: in this process, and interrupted where a test wants it."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from typer import Typer
from typer.testing import CliRunner, Result

from diffsketch.cli import app
from diffsketch.training.simulation import Simulation

# Settings that methods cannot do without.
NEEDED: dict[str, dict[str, Any]] = {
    "cpsgd": {"levels": 16, "trials": 64},
    "sketch-gaussian": {"clip": 1.0, "noise_multiplier": 1.0},
    "sketch-skellam": {"clip": 1.0, "budget": 8.0},
    "gaussian": {"clip": 1.0, "noise_multiplier": 1.0},
    "skellam": {"clip": 1.0, "budget": 8.0},
}


def invoke(
    *arguments: str | Path, columns: int = 100, cores: int = 1, program: Typer = app
) -> Result:
    """Run `program` with these arguments on a terminal that is `columns` wide.

    Comparisons take one process where they are not told otherwise: starting others takes seconds.
    """
    words = [str(argument) for argument in arguments]
    with mock.patch("diffsketch.cli.cores", return_value=cores):
        return CliRunner().invoke(program, words, env={"COLUMNS": str(columns)})


def done(*arguments: str | Path, **options: Any) -> Result:
    """Run a command as `invoke` does, which has to succeed."""
    result = invoke(*arguments, **options)
    assert result.exit_code == 0, result.output
    return result


def refused(result: Result) -> str:
    """What a command said that failed: one line, and nothing but it on its standard error."""
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
    assert result.stderr.startswith("error: ")
    return result.stderr


def uncoloured(text: str) -> str:
    """Without colours, where they are forced."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def plain(text: str) -> str:
    """Without colours, and without line breaks of a narrow terminal."""
    return " ".join(uncoloured(text).split())


def read(path: Path) -> dict[str, Any]:
    """A JSON object."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def read_lines(path: Path) -> list[dict[str, Any]]:
    """JSON objects, one a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@contextmanager
def before_round(number: int, act: Callable[[], object]) -> Iterator[None]:
    """Do something right before a round, counted from 1 over all that is simulated meanwhile."""
    real, rounds = Simulation.step, 0

    def step(self: Simulation) -> Any:
        nonlocal rounds
        rounds += 1
        if rounds == number:
            act()
        return real(self)

    with mock.patch.object(Simulation, "step", step):
        yield


def interrupted(number: int, *arguments: str | Path) -> Result:
    """Run a command and press Ctrl-C in a round, counted as above: it is the last one."""
    with before_round(number, lambda: signal.raise_signal(signal.SIGINT)):
        result = invoke(*arguments)
    assert result.exit_code == 130, result.output
    return result
