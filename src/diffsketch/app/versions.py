"""What the numbers of a run depend on besides its settings: versions, and our own source."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy
import torch

from diffsketch import __version__
from diffsketch.errors import MismatchError

__all__ = ["check_versions", "source_digest", "versions"]

_PLACE = Path(__file__).parents[1]


def versions() -> dict[str, str]:
    """Of this package and what it computes with, and a digest of its source."""
    return {
        "diffsketch": __version__,
        "source": source_digest(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def check_versions(written: Mapping[str, str], path: Path) -> None:
    """Raise unless what a run was begun with is what is here: else its result might be another.

    Args:
        written: Of `versions`, when the run was begun.
        path: The file that has them, for errors.

    Raises:
        MismatchError: Something else is here.
    """
    here = versions()
    for name in ("diffsketch", "torch", "numpy", "machine"):
        if written.get(name) != here[name]:
            raise MismatchError(
                f"{path}: the run was begun with {name} {written.get(name)} and can only be "
                f"continued with that, got {name} {here[name]}"
            )
    if written.get("source") != here["source"]:
        raise MismatchError(
            f"{path}: the source of diffsketch {__version__} has changed since the run began "
            f"(digest {written.get('source')}, here {here['source']}): the rest of the run might "
            "not be what it would have been; continue it with the source that it was begun with"
        )


@lru_cache  # the code that runs does not change while it runs
def source_digest(*parts: str) -> str:
    """A digest of our own source: of all modules, or of those in some parts of the package.

    Guarantees (`tests/app/test_versions.py`): it changes with every module's content and name.

    Args:
        parts: Folders, with all that is in them, and modules, as in "learning/tasks.py"; the whole
            package if none is given.
    """
    places = [_PLACE / part for part in parts] or [_PLACE]
    found = [[place] if place.suffix == ".py" else place.rglob("*.py") for place in places]
    digest = hashlib.sha256()
    for path in sorted(path for some in found for path in some):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(_PLACE).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16]
