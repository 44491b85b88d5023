"""Fuzz the wire format with atheris, which looks for inputs that reach new code.

    python fuzz/wire.py -runs=200000 fuzz/corpus/wire

Options are those of libFuzzer. What it finds, it writes to `crash-...`; new inputs go to the first
folder that is named. Needs the package `atheris`; `tests/wire/test_fuzz.py` needs it only to start
this for a moment.
"""

from __future__ import annotations

import importlib
import os
import sys


def main() -> None:
    """Run libFuzzer with the arguments of the command line; it ends the process."""
    os.environ["NUMBA_DISABLE_JIT"] = "1"  # Numba cannot read instrumented code
    atheris = importlib.import_module("atheris")
    importlib.import_module("torch")  # before the hook, which would only make it slower to import
    with atheris.instrument_imports(include=["diffsketch.wire", "wire_target"]):
        target = importlib.import_module("wire_target")
    atheris.Setup(sys.argv, lambda data: target.fuzz_one(data) and None)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
