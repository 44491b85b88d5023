"""Private, communication-efficient distributed learning with sketches."""

from typing import TYPE_CHECKING, Any

from diffsketch.errors import ArgumentError, DataError, DiffSketchError, MismatchError

if TYPE_CHECKING:
    from diffsketch.methods import build_method, private_mean
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
    "build_method",
    "private_mean",
]
_METHODS = ("build_method", "private_mean")


def __getattr__(name: str) -> Any:
    """Import sketches and methods, and PyTorch with them, when first asked for.

    `--help` needs neither.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _METHODS:
        from diffsketch import methods

        return getattr(methods, name)
    from diffsketch import sketch

    return getattr(sketch, name)
