"""Rounds without noise, so that engines can be compared: released noise never repeats."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from diffsketch.auditing.releases import Silent
from diffsketch.training import simulation

__all__ = ["Silent", "silence"]

SENDERS = (
    "diffsketch.ddp.group",
    "diffsketch.flower.server",
    "diffsketch.methods.gate",
    "diffsketch.silos.messages",
)
"""Where messages get their noise."""


@contextmanager
def silence() -> Iterator[None]:
    """No noise in this process, neither in what is sent nor in simulations."""
    with pytest.MonkeyPatch.context() as patch:
        for name in SENDERS:
            if name in sys.modules:
                patch.setattr(f"{name}.release_noise", lambda *_, **__: Silent())
        patch.setattr(simulation, "CohortNoise", lambda *_, **__: Silent())
        yield
