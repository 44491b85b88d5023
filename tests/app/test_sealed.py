"""JSON with a digest of itself: any change is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffsketch.app.files import read_sealed, sealed
from diffsketch.errors import DataError

DATA = {"accuracy": 0.5, "names": ["a", "b"], "nothing": None, "deep": {"x": 1}}


def test_there_and_back(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_bytes(sealed(DATA))
    assert read_sealed(path) == DATA


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"0.5", b"0.6"), (b'"a"', b'"c"'), (b"sha256", b"sha255"), (b"{", b"["), (b"null", b"\xff")],
)
def test_changes_are_noticed(tmp_path: Path, old: bytes, new: bytes) -> None:
    path = tmp_path / "data.json"
    content = sealed(DATA)
    assert old in content
    path.write_bytes(content.replace(old, new))
    with pytest.raises(DataError, match=r"data\.json: damaged"):
        read_sealed(path)


def test_missing_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_sealed(tmp_path / "none.json")
