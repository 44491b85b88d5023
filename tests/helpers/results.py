"""What benchmarks write when they run, however short."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def results_of(main: Callable[[list[str]], object], options: str, folder: Path) -> Any:
    """Run a benchmark with these options; its results, which say what they were measured on."""
    path = folder / "out.json"
    main([*options.split(), "--json", str(path)])
    results = json.loads(path.read_text())
    assert {"commit", "hardware", "versions"} <= results.keys()
    return results
