"""Noise that is left out, and the tables that a release is about, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from torch import Tensor


@contextmanager
def tables_of(call: Any) -> Iterator[list[tuple[npt.NDArray[np.int64], Any]]]:
    """Run a call without noise; yields the (total, mechanism) of each release, in order."""
    seen: list[tuple[npt.NDArray[np.int64], Any]] = []

    def bare(total: Tensor, mechanism: Any, claim: Any, *, count: int, account: Any) -> Tensor:
        assert count >= 1
        if account is not None:
            account.charge(claim)
        seen.append((total.numpy().copy(), mechanism))
        return total

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diffsketch.analytics.release.release_total", bare)
        patch.setattr("secrets.token_bytes", lambda size: bytes(size))
        rng = np.random.default_rng
        patch.setattr("numpy.random.default_rng", lambda seed=0: rng(seed))
        call()
    yield seen


def moved(call_here: Any, call_there: Any) -> list[float]:
    """Distance of the tables of two worlds over what the noise is made for: at most 1."""
    with tables_of(call_here) as here, tables_of(call_there) as there:
        assert len(here) == len(there)
        shares = []
        for (total, mechanism), (other, same) in zip(here, there, strict=True):
            assert total.shape == other.shape
            assert mechanism == same  # nothing of the noise depends on data
            change = float(np.linalg.norm((total - other).astype(np.float64)))
            shares.append(change / mechanism.quantizer.sensitivity(mechanism.relation))
        return shares
