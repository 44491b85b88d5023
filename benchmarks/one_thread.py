"""Measuring in one thread, and keeping what was found: the frame of several benchmarks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import environment

__all__ = ["in_one_thread", "save"]


def in_one_thread(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `run` finds with one thread of PyTorch, and commit, hardware and versions."""
    facts, threads = environment(torch.device("cpu")), torch.get_num_threads()
    if (load := facts["hardware"]["load_average"]) > 0.5:
        print(f"  note: other work is running, load {load:.1f}: the times may be far too long")
    torch.set_num_threads(1)
    try:
        return facts | run()
    finally:
        torch.set_num_threads(threads)


def save(result: Mapping[str, Any], path: Path | None) -> None:
    """Write the JSON file, if one was asked for."""
    if path is not None:
        path.write_text(json.dumps(result, indent=1) + "\n")
