"""The command `python -m paper.run`: `diffsketch run`, with the methods of this package too."""

from __future__ import annotations

import sys

import paper.readings
import paper.repaired  # noqa: F401 - both register their methods
from diffsketch.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "run")
    main()
