"""The README and the documents: examples run and print what they say, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "diffsketch"
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_example_prints_what_its_comment_says(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(example.split("\n\n", maxsplit=1)[1].strip().splitlines()) <= 10
    exec(compile(example, "README.md", "exec"), {})  # noqa: S102
    assert capsys.readouterr().out.strip() == example.strip().rsplit("# ", maxsplit=1)[1]


def test_privacy_examples_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    claims, rounds = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    exec(compile(claims, "docs/privacy.md", "exec"), {})  # noqa: S102
    said = " ".join(line[2:] for line in claims.splitlines() if line.startswith("# "))
    assert " ".join(capsys.readouterr().out.split()) == said
    monkeypatch.chdir(tmp_path)
    exec(compile(rounds, "docs/privacy.md", "exec"), {})  # noqa: S102
    assert (tmp_path / "ledger.json").exists()


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "CONTRIBUTING.md",
        "docs/dependencies.md",
        "docs/engines.md",
        "docs/performance.md",
        "docs/privacy.md",
        "docs/secure-sum.md",
    ],
)
def test_relative_links_exist(document: str) -> None:
    path = ROOT / document
    for link in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        assert "://" in link or (path.parent / link).exists(), link


def test_map_names_what_exists() -> None:
    tree = README.split("## Map")[1].split("```")[1]
    for name in re.findall(r"^ *([\w/]+(?:\.py|/))\s", tree, flags=re.MULTILINE):
        assert (ROOT / name).exists() or any(SOURCE.rglob(name)), name
