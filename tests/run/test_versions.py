"""A run is continued by the code that began it."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffsketch.errors import MismatchError
from diffsketch.run import versions as module
from diffsketch.run.versions import check_versions, versions


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
    module._source.cache_clear()
    digests = {module._source()}
    for name in ("a.py", "inner/b.py"):
        (tmp_path / name).write_text("x = 2\n")
        module._source.cache_clear()
        digests.add(module._source())
    (tmp_path / "a.py").rename(tmp_path / "c.py")
    module._source.cache_clear()
    digests.add(module._source())
    module._source.cache_clear()
    assert len(digests) == 4
