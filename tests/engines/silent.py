"""Rounds without noise, so that engines can be compared: released noise never repeats."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from diffsketch.audit.releases import Silent
from diffsketch.learning import aggregate

__all__ = ["Silent", "silence"]

SENDERS = (
    "diffsketch.engines.group",
    "diffsketch.engines.flower.client",
    "diffsketch.engines.flower.server",
    "diffsketch.methods.mean",
)
"""Where messages get their noise."""


@contextmanager
def silence() -> Iterator[None]:
    """No noise in this process, neither in what is sent nor in simulations."""
    with pytest.MonkeyPatch.context() as patch:
        for name in SENDERS:
            if name in sys.modules:
                patch.setattr(f"{name}.release_noise", lambda *_, **__: Silent())
        patch.setattr(aggregate, "_LaterNoise", lambda *_: Silent())
        yield
