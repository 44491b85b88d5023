"""Numbers of all clients as a value, of which a changed one costs only what changes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Columns"]

_Array: TypeAlias = npt.NDArray[Any]
_Places: TypeAlias = npt.NDArray[np.int64]


class Columns:
    """Arrays by name with a column for each client. A value: `changed` gives the next one.

    The newest has the arrays, and changes them in place. The one before it knows what it had there,
    and makes arrays of its own should it still be used: after a round that failed, say.

    Guarantees (`tests/training/test_columns.py`): each is as if it had arrays of its own, also if
    an interrupt ends `changed` half-way. For one thread at a time: a lock would survive interrupts.

    Args:
        arrays: Which nobody else may change.
    """

    def __init__(self, arrays: Mapping[str, _Array]) -> None:
        self.names = tuple(arrays)
        self._arrays = dict(arrays)
        # The one that has the arrays now, or knows who has, and what to put back into a copy.
        self._undo: tuple[Columns, _Places, Mapping[str, _Array]] | None = None

    def at(self, name: str, places: _Places) -> _Array:
        """The columns of some clients."""
        return np.array(self._own()[name][..., places])

    def whole(self, name: str) -> _Array:
        """All columns, as a copy."""
        return self._own()[name].copy()

    def changed(self, places: _Places, values: Mapping[str, _Array]) -> Columns:
        """With other values for some clients; new names are zero for all others."""
        places = places.copy()
        arrays = self._own()
        fresh = tuple(name for name in values if name not in self.names)
        for name in fresh:
            shape = (*values[name].shape[:-1], arrays[self.names[0]].shape[-1])
            arrays[name] = np.zeros(shape, values[name].dtype)
        other = copy.copy(self)
        other.names += fresh
        # First of all, and in one step: whatever happens now, this one is as it was.
        self._undo = other, places, {name: arrays[name][..., places] for name in values}
        for name, value in values.items():
            arrays[name][..., places] = value
        return other

    def _own(self) -> dict[str, _Array]:
        if self._undo is not None:
            later = [self._undo]
            while (more := later[-1][0]._undo) is not None:
                later.append(more)
            newest = later[-1][0]._arrays
            arrays = {name: newest[name].copy() for name in self.names}
            for _, places, values in reversed(later):
                for name in values.keys() & arrays.keys():
                    arrays[name][..., places] = values[name]
            self._arrays = arrays
            self._undo = None
        return self._arrays
