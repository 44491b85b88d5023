"""Private, communication-efficient distributed learning with sketches."""

from typing import TYPE_CHECKING, Any

from diffsketch.errors import ArgumentError, DataError, DiffSketchError, MismatchError

if TYPE_CHECKING:
    from diffsketch.sketch import CountSketch, HashSeed, Sketch, SketchKey

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "CountSketch",
    "DataError",
    "DiffSketchError",
    "HashSeed",
    "MismatchError",
    "Sketch",
    "SketchKey",
]


def __getattr__(name: str) -> Any:
    """Import the sketch, and PyTorch with it, when first asked for: `--help` needs neither."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from diffsketch import sketch

    return getattr(sketch, name)
