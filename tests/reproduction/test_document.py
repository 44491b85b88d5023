"""The Markdown document: whole, deterministic, and safe from what is in its texts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from diffsketch.errors import MismatchError
from diffsketch.pages.exhibits import Axis, Page, Plot, Section, Series, Table
from diffsketch.pages.page import pictures_of
from diffsketch.privacy.claim import Basis, Epsilon, Relation, Scope, Trust, Unit
from diffsketch.reproduction.claims import ClaimVerdict, Standing, statements
from diffsketch.reproduction.document import document, write_document

EPSILON = Epsilon(1.0, 0.0, 1, Basis.CLAIMED,
                  Scope(Unit.COORDINATE, Relation.REPLACE, Trust.LOCAL))  # fmt: skip
PLOT = Plot(
    "mnist-50x", "50x | epsilon 1", Axis("bytes", log=True), Axis("accuracy", percent=True),
    (Series("DiffSketch", (1.0, 2.0), (0.5, 0.8), epsilon=EPSILON),), caption="Mean over 5 seeds.",
)  # fmt: skip
RUNS = Table("mnist-runs", "All runs", ("method", "epsilon"), (("DiffSketch | ours", EPSILON),))
DEVIATIONS = Table("mnist-details-deviations", "", ("what", "why"), (("1 <b>", "2 *times*"),))
COMMANDS = Table("mnist-details-commands", "", ("what", "command"),
                 (("all of it", "diffsketch reproduce mnist"),))  # fmt: skip
SECTION = Section(
    "mnist", "MNIST* <script>", lead="Better on MNIST* by 3_000.", exhibits=(PLOT, RUNS),
    text=("The paper: `code <b>` and <b>.",), badge="Figure 3",
    details={"Where this is not as in the paper": DEVIATIONS, "Commands": COMMANDS},
)  # fmt: skip
PAGE = Page("Run again", "What came out.", (SECTION,), origin={"Versions": "torch 2", "Seeds": "0"})


STANDINGS = [Standing.HOLDS, *[Standing.IN_PART] * 2, *[Standing.FAILS] * 3]
VERDICTS = dict.fromkeys(statements(), ClaimVerdict(Standing.NOT_MEASURED, ""))
VERDICTS |= {
    statement: ClaimVerdict(standing, "")
    for statement, standing in zip(statements(), STANDINGS, strict=False)
}


def test_it_has_all_parts_in_order_as_they_are() -> None:
    text = document(PAGE, VERDICTS)
    order = [
        "# Run again", "What came out.",
        f"**{len(statements())} claims of the paper: 1 hold, 2 hold in part, 3 fail, "
        f"{len(statements()) - 6} were not measured.**",
        "## How to run it", "## MNIST\\* \\<script\\> (Figure 3)", "Better on MNIST", "3\\_000",
        "The paper: `code <b>` and \\<b\\>.", "![50x \\| epsilon 1]", "Mean over 5 seeds.",
        "### All runs", "### Where this is not", "| 1 \\<b\\> | 2 \\*times\\* |",
        "Made by `diffsketch reproduce mnist`.", "## What made this document", "torch 2",
    ]  # fmt: skip
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    row = next(line for line in text.splitlines() if line.startswith("| DiffSketch"))
    assert "claimed; coordinate unit, replace, local trust" in row  # every epsilon in full
    assert len(re.findall(r"(?<!\\)\|", row)) == 3  # cells stay cells
    assert ">" not in [line[:1] for line in text.splitlines()]
    notice = document(replace(PAGE, notice="Reduced run (`--quick`)."), VERDICTS).splitlines()[2]
    assert notice == "> **Reduced run (`--quick`).**"


def test_long_tables_are_left_to_the_page_but_not_the_claims() -> None:
    rows = tuple((str(index), index) for index in range(41))
    for name, there in (("mnist-runs", False), ("claims-privacy", True)):
        table = Table(name, "All", ("a", "b"), rows)
        text = document(Page("P", "L", (Section("s", "S", exhibits=(table,)),)), VERDICTS)
        assert ("| 40 | 40 |" in text) is there
        assert (f"`data/{name}.csv`" in text) is not there


def test_it_writes_the_text_and_every_picture(tmp_path: Path) -> None:
    pictures = pictures_of(PAGE)
    written = write_document(PAGE, VERDICTS, tmp_path / "docs", pictures=pictures)
    assert written[0] == tmp_path / "docs" / "reproduction.md"
    text = written[0].read_text("utf-8")
    links = re.findall(r"\]\((images/reproduction/[\w.-]+)\)", text)
    assert [tmp_path / "docs" / link for link in links] == written[1:]
    assert len(links) == 1
    content = written[1].read_bytes()
    assert content.startswith(b"\x89PNG") or b"<svg" in content
    again = write_document(PAGE, VERDICTS, tmp_path / "again", pictures=pictures_of(PAGE))
    assert again[0].read_text("utf-8") == text
    assert (tmp_path / "again" / links[0]).read_bytes() == content


def test_the_smaller_picture_is_kept_and_its_twin_removed(tmp_path: Path) -> None:
    folder = tmp_path / "images" / "reproduction"
    forms = {"svg": b"<svg>" * 100, "png": b"png"}
    write_document(PAGE, VERDICTS, tmp_path, pictures={PLOT.name: forms})
    assert [path.name for path in folder.iterdir()] == ["mnist-50x.png"]
    (folder / "other.svg").write_bytes(b"mine")
    forms["png"] = b"png" * 1000
    write_document(PAGE, VERDICTS, tmp_path, pictures={PLOT.name: forms})
    assert sorted(path.name for path in folder.iterdir()) == ["mnist-50x.svg", "other.svg"]
    assert "mnist-50x.svg" in (tmp_path / "reproduction.md").read_text("utf-8")


def test_all_or_nothing(tmp_path: Path) -> None:
    pictures = pictures_of(PAGE)
    (tmp_path / "reproduction.md").mkdir()
    with pytest.raises(IsADirectoryError):
        write_document(PAGE, VERDICTS, tmp_path, pictures=pictures)
    assert not list((tmp_path / "images" / "reproduction").iterdir())
    with pytest.raises(MismatchError, match="pictures must have one of each plot"):
        write_document(PAGE, VERDICTS, tmp_path / "new", pictures={})
    assert not (tmp_path / "new").exists()
