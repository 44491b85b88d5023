"""The README and the documents: examples run and print what they say, links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from diffsketch import PlanRequest, plan
from diffsketch.cli import app
from paper.__main__ import app as paper
from tests.helpers.documents import DOCUMENTS, ROOT, blocks, run_blocks
from tests.helpers.refusals import refused

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
    refused(AssertionError, "planted", run_blocks, "planted", ["print(1 + 1)\n# 3\n"], monkeypatch)


def test_blocks_of_the_readme_stand_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    two = ["import math\n", "print(math.floor(2.5))\n# 2\n"]
    run_blocks("planted", two, monkeypatch)
    refused(NameError, "math", run_blocks, "README.md", two, monkeypatch)
    with pytest.raises(NameError, match="optimizer"):  # which other documents may speak of
        run_blocks("README.md", ["optimizer.step()\n"], monkeypatch)


def test_the_readme_has_the_plan_that_its_command_finds() -> None:
    wanted = PlanRequest(
        dim=7850, cohort=1000, rounds=10, target_epsilon=8.0, message_bytes=12_000, vector_norm=0.3
    )
    best, text = plan(wanted).best, " ".join(README.split())
    assert "--dim 7850 --workers 1000 --rounds 10 --epsilon 8 --bytes 12000 --norm 0.3" in text
    assert f'"{best.method.name}", settings' in text
    for name, value in best.settings.items():
        shown = f'"{value}"' if isinstance(value, str) else value
        assert f'"{name}": {shown}' in text or f'["{name}"] = {shown}' in text
    assert str(best.total) in text


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", *PAGES])
def test_commands_are_understood(document: str) -> None:
    """Each command of ours has arguments that its parser takes; scripts exist."""
    text = (ROOT / document).read_text(encoding="utf-8")
    found = "\n".join(re.findall(r"^```(?:sh|bash)\n(.*?)^```", text, flags=re.DOTALL | re.M))
    for line in found.replace("\\\n", " ").splitlines():
        if line.startswith("diffsketch "):
            parsed(shlex.split(line, comments=True)[1:])
        if line.startswith("python -m paper"):
            command: Any = typer.main.get_command(paper)
            command.make_context("paper", shlex.split(line, comments=True)[3:])
        for script in re.findall(r"(?<=python )\S+\.py", line):
            assert (ROOT / script).exists(), line


def parsed(words: list[str]) -> None:
    """Parse a command line as ours would be, and stop there."""
    group: Any = typer.main.get_command(app)
    context = group.context_class(group)
    name, command, rest = group.resolve_command(context, words)
    command.make_context(name, rest, parent=context)


def test_a_wrong_option_is_noticed() -> None:
    refused(Exception, "--cleap", parsed, ["run", "--cleap", "1"])


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "SECURITY.md", *PAGES])
def test_relative_links_exist(document: str) -> None:
    path = ROOT / document
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        assert "://" in link or (path.parent / link).exists(), link


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_map_names_what_exists() -> None:
    tree = README.split("## Map")[1].split("```")[1]
    names = re.findall(r"(?<=\s)[\w/]+(?:\.py|/)(?=\s)", tree)
    assert {"src/diffsketch/", "wire/", "cli.py", "docs/"} <= set(names)
    for name in names:
        assert (ROOT / name).exists() or any(SOURCE.rglob(name)), name
