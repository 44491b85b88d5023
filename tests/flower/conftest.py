"""Fixtures of the tests of Flower's engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.silent import silence


@pytest.fixture
def without_noise() -> Iterator[None]:
    """Rounds without noise, which can be compared."""
    with silence():
        yield
