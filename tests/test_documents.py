"""The README and the documents: examples run and print what they say, links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from diffsketch.cli import app
from tests.helpers.documents import DOCUMENTS, ROOT, blocks, run_blocks

SOURCE = ROOT / "src" / "diffsketch"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")]


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS)
def test_examples_run_and_print_what_they_say(
    document: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = blocks(document, flower=False)
    if not found:
        pytest.skip("all of its examples need Flower, and run with its tests")
    monkeypatch.chdir(tmp_path)
    run_blocks(document, found, monkeypatch)


def test_a_wrong_comment_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="planted"):
        run_blocks("planted", ["print(1 + 1)\n# 3\n"], monkeypatch)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", *PAGES])
def test_commands_are_understood(document: str) -> None:
    """Each command of ours has arguments that its parser takes; scripts exist."""
    text = (ROOT / document).read_text(encoding="utf-8")
    found = "\n".join(re.findall(r"^```(?:sh|bash)\n(.*?)^```", text, flags=re.DOTALL | re.M))
    for line in found.replace("\\\n", " ").splitlines():
        if line.startswith("diffsketch "):
            parsed(shlex.split(line, comments=True)[1:])
        for script in re.findall(r"(?<=python )\S+\.py", line):
            assert (ROOT / script).exists(), line


def parsed(words: list[str]) -> None:
    """Parse a command line as ours would be, and stop there."""
    group: Any = typer.main.get_command(app)
    context = group.context_class(group)
    name, command, rest = group.resolve_command(context, words)
    command.make_context(name, rest, parent=context)


def test_a_wrong_option_is_noticed() -> None:
    with pytest.raises(Exception, match="--cleap"):
        parsed(["run", "--cleap", "1"])


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", *PAGES])
def test_relative_links_exist(document: str) -> None:
    path = ROOT / document
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        assert "://" in link or (path.parent / link).exists(), link


def test_map_names_what_exists() -> None:
    tree = README.split("## Map")[1].split("```")[1]
    for name in re.findall(r"^ *([\w/]+(?:\.py|/))\s", tree, flags=re.MULTILINE):
        assert (ROOT / name).exists() or any(SOURCE.rglob(name)), name
