"""What the tests of runs share besides `commands.py`."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory that commands are run in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
