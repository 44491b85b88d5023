"""A run is continued by the code that began it."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffsketch.app import files as module
from diffsketch.app.files import check_versions, source_digest, versions
from diffsketch.errors import MismatchError


def test_the_same_is_accepted() -> None:
    check_versions(versions(), Path("run.json"))


@pytest.mark.parametrize("name", ["diffsketch", "torch", "numpy", "machine", "source"])
def test_others_are_refused(name: str) -> None:
    with pytest.raises(MismatchError, match=r"run\.json: the (run was begun with|source of)"):
        check_versions({**versions(), name: "another"}, Path("run.json"))


def test_the_digest_is_of_all_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (module._PLACE / "run" / "versions.py").is_file()
    (tmp_path / "inner").mkdir()
    for name in ("a.py", "inner/b.py"):
        (tmp_path / name).write_text("x = 1\n")
    monkeypatch.setattr(module, "_PLACE", tmp_path)
    source_digest.cache_clear()
    digests = {source_digest()}
    for name in ("a.py", "inner/b.py"):
        (tmp_path / name).write_text("x = 2\n")
        source_digest.cache_clear()
        digests.add(source_digest())
    (tmp_path / "a.py").rename(tmp_path / "c.py")
    source_digest.cache_clear()
    digests.add(source_digest())
    source_digest.cache_clear()
    assert len(digests) == 4


def test_the_digest_of_parts_is_of_these_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("inner", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "b.py").write_text("x = 1\n")
    (tmp_path / "a.py").write_text("x = 1\n")
    monkeypatch.setattr(module, "_PLACE", tmp_path)

    def digest() -> str:
        source_digest.cache_clear()
        return source_digest("a.py", "inner")

    before = digest()
    (tmp_path / "other" / "b.py").write_text("x = 2\n")
    assert digest() == before
    for name in ("a.py", "inner/b.py"):
        (tmp_path / name).write_text("x = 2\n")
        assert digest() != before
        (tmp_path / name).write_text("x = 1\n")
        assert digest() == before
    source_digest.cache_clear()
