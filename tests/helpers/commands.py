"""Python in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from typing import Any


def python(*arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments; what it prints is kept."""
    settings = {"capture_output": True, "text": True, "check": False} | settings
    return subprocess.run([sys.executable, *arguments], **settings)  # noqa: S603
