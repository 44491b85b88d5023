"""The way of the data: files of the package that a round runs through, and changes between them.

    python -m benchmarks.walk [--method NAME] [--files]

Traces one run of `diffsketch run` in this process, with its default settings: the files that are
entered from the command to the end of the first round, and in one later round the files and how
often a call is in another file than the call before it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import diffsketch
from diffsketch.training.simulation import Simulation

ROOT = str(Path(diffsketch.__file__).parent) + "/"


class Walk:
    """Files entered, and changes of file, while it is switched on."""

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self.changes = 0
        self._here = ""

    def __call__(self, frame: FrameType, event: str, _arg: object) -> None:
        """Count a call into a file of the package."""
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(ROOT):
            self.files[name.removeprefix(ROOT)] += 1
            self.changes += name != self._here and self._here != ""
            self._here = name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", default="diffsketch")
    parser.add_argument("--files", action="store_true", help="list the files of a round")
    options = parser.parse_args()
    start, later = Walk(), Walk()
    step = Simulation.step
    rounds = 0

    def traced(self: Simulation, *args: Any, **settings: Any) -> Any:
        nonlocal rounds
        rounds += 1
        if rounds == 4:  # caches are filled by now
            sys.setprofile(later)
        try:
            return step(self, *args, **settings)
        finally:
            sys.setprofile(None)

    Simulation.step = traced  # type: ignore[method-assign]
    from diffsketch.cli import main as command

    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["diffsketch", "run", "--rounds", "5", "--method", options.method]
        sys.argv += ["--output", f"{folder}/run"]
        sys.setprofile(start)
        try:
            command()
        except SystemExit as end:
            if end.code:
                raise
        finally:
            sys.setprofile(None)
    print(f"to the end of the first round: {len(start.files)} files")
    print(f"one round: {len(later.files)} files, {later.changes} changes of file")
    if options.files:
        for name, calls in later.files.most_common():
            print(f"  {name}: {calls} calls")


if __name__ == "__main__":
    main()
