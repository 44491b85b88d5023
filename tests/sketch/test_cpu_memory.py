"""Arrays that compiled loops use by their addresses stay theirs for as long."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from diffsketch.sketch.kernels.cpu_hashes import address, keep


@njit
def _reused(size: int, branch: bool, kept: bool) -> Any:
    """Whether memory that is in use by its address is handed out a second time."""
    first = np.zeros(size)
    used, again = address(first), 0
    if branch:
        second = np.zeros(size)
        again = address(second)
        keep(second)
    if kept:
        keep(first)
    return used == again


@njit
def _reused_without(size: int, branch: bool) -> Any:
    first = np.zeros(size)
    used, again = address(first), 0
    if branch:
        second = np.zeros(size)
        again = address(second)
        keep(second)
    return used == again


def test_kept_memory_is_not_given_back() -> None:
    assert not _reused(100, True, True)


def test_memory_is_given_back_at_a_branch() -> None:
    """Why `keep` is there: the control. Numba sees no use of the array after its address."""
    assert _reused_without(100, True)
