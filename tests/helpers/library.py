"""The methods that the library registers: those of the paper may be there too, once imported."""

from __future__ import annotations

from diffsketch.methods import METHODS

LIBRARY = {
    name: kind for name, kind in METHODS.items() if kind.__module__.startswith("diffsketch.")
}
