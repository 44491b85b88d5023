"""The Markdown documents: whole, deterministic, and safe from what is in their texts."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from diffsketch.pages.charts import COLOURS, looks_of
from diffsketch.pages.exhibits import (
    Axis,
    Page,
    Plot,
    Section,
    Series,
    Table,
    all_exhibits,
)
from diffsketch.privacy.claim import Basis, Epsilon, Relation, Scope, Trust, Unit
from paper.claims import ClaimVerdict, Standing, statements
from paper.document import (
    Origin,
    claims_table,
    documents,
    image_link,
    page_of,
    table_markdown,
    write_document,
)
from paper.experiments import load
from paper.figures import Figure
from paper.rules import Statement
from tests.pages import sample

EPSILON = Epsilon(1.0, 0.0, 1, Basis.CLAIMED,
                  Scope(Unit.COORDINATE, Relation.REPLACE, Trust.LOCAL))  # fmt: skip
PLOT = Plot(
    "mnist-50x", "50x | epsilon 1", Axis("bytes", log=True), Axis("accuracy", percent=True),
    (Series("DiffSketch", (1.0, 2.0), (0.5, 0.8), epsilon=EPSILON),), caption="Mean over 5 seeds.",
)  # fmt: skip
RUNS = Table("mnist-runs", "All runs", ("method", "epsilon"), (("DiffSketch | ours", EPSILON),))
VALUES = Table("mnist-details-values", "In the paper", ("setting", "in the paper"),
               (("rounds", "not | given"),))  # fmt: skip
DEVIATIONS = Table(
    "mnist-details-deviations", "Our choices", ("what", "why"), (("1 <b>", "2 *times*"),)
)
STATEMENT = Statement("marginal", "Little | loss", "20-50x <b>", "abstract")
VERDICT = ClaimVerdict(Standing.IN_PART, "3_000 bytes.", "in 1 of 2", "At least 5.")
CLAIMS = claims_table("mnist", {STATEMENT: VERDICT})
APART = replace(STATEMENT, name="bits", label="Bits", aside="slip")
SECTION = Section(
    "mnist", "MNIST* <script>", "1 holds in part.", (PLOT, CLAIMS), badge="Figure 3",
    row={"the paper says": "It | is.", "we find": "50%", "proven instead": "1"},
    notes=("Better on MNIST* by 3_000: `code <b>` and <b>.",),
    details={"Numbers": (RUNS,), "In the paper": (VALUES,), "Our choices": (DEVIATIONS,)},
)  # fmt: skip
READING = Section("reading", "Reading")
OTHERS = claims_table("apart", {APART: replace(VERDICT, standing=Standing.FAILS)})
PAGE = Page(
    "Run again", "What came out. Of 2 distinct claims: 1.",
    (SECTION, Section("apart", "Others", exhibits=(OTHERS,)), READING),
    origin={"Versions": "torch 2", "Seeds": "0"},
)  # fmt: skip


def test_it_has_all_parts_in_order_as_they_are() -> None:
    found = documents(PAGE)
    names = ["mnist", "apart", "reading"]
    assert list(found) == ["reproduction.md", *(f"reproduction/{name}.md" for name in names)]
    orders = (
        ["# Run again", "What came out.", "**Of 2 distinct claims: 1.**",
         '| <img alt="Figure 3" src="images/reproduction/small-mnist.png" width="160"> |',
         "| --- |",
         "| **[Figure 3](reproduction/mnist.md)** The paper: It \\| is. "
         "**Ours:** 1 holds in part. |",
         "[Others](reproduction/apart.md)", "Versions: torch 2; Seeds: 0."],
        ["# Figure 3: MNIST\\* \\<script\\>",
         "![50x \\| epsilon 1](../images/reproduction/mnist-50x.svg)", "Mean over 5 seeds.",
         "[Summary](../reproduction.md)", "**The paper says.** It \\| is.",
         "**We find.** 50%", "**Proven instead.** 1", "| rounds | not \\| given |",
         "**Our choices:**", "- 1 \\<b\\>", "## Claims",
         "| “20-50x \\<b\\>” (abstract) | holds in part: in 1 of 2 | 3\\_000 bytes.",
         "## Data", "[All runs](data/mnist-runs.csv), plots: `data/mnist-*.csv`.",
         "Made by `python -m paper mnist`"],
        ["# Others", "## Claims", "| Bits (abstract) | fails: in 1 of 2 (slip) |"],
        ["# Reading", "## How to run it", "python -m paper --redraw docs"],
    )  # fmt: skip
    for text, order in zip(found.values(), orders, strict=True):
        places = [text.index(part) for part in order]
        assert places == sorted(places)
        assert text.endswith("\n")
        assert not text.endswith("\n\n")
        assert ">" not in [line[:1] for line in text.splitlines()]
    notice = documents(replace(PAGE, notice="Reduced run (`--quick`)."))["reproduction.md"]
    assert notice.splitlines()[2] == "> **Reduced run (`--quick`).**"


def test_figures_are_in_two_rows_and_those_without_a_claim_are_only_linked() -> None:
    plots = [replace(PLOT, name=f"plot-{number}") for number in range(4)]
    sections = [replace(SECTION, name=f"s{number}", exhibits=(plot,), details={})
                for number, plot in enumerate(plots)]  # fmt: skip
    sections[3] = replace(sections[3], lead="")
    summary = documents(replace(PAGE, sections=(*sections, READING)))["reproduction.md"]
    table = [line for line in summary.splitlines() if line.startswith("|")]
    assert [line.count("small-") for line in table] == [2, 0, 0, 1, 0]
    assert "[Figure 3](reproduction/s3.md), [Reading]" in summary


def test_a_section_without_a_plot_shows_its_first_table_with_epsilons_in_full() -> None:
    section = replace(SECTION, exhibits=(), details={"Numbers": (RUNS,)})
    text = documents(replace(PAGE, sections=(section, READING)))["reproduction/mnist.md"]
    row = next(line for line in text.splitlines() if "ours" in line)
    assert "claimed; coordinate unit, replace, local trust" in row  # every epsilon in full
    assert len(re.findall(r"(?<!\\)\|", row)) == 3  # cells stay cells


def test_the_documents_of_the_recorded_run_are_short_and_begin_with_their_figures() -> None:
    """As `wc -w` counts: 700 words a page, 12,000 in all."""
    docs = Path(__file__).parents[2] / "docs"
    pages = (docs / "reproduction.md", *(docs / "reproduction").glob("*.md"))
    words = {path.name: len(path.read_text("utf-8").split()) for path in pages}
    assert {name: count for name, count in words.items() if count > 700} == {}
    assert 2000 < sum(words.values()) <= 12_000
    for path in (docs / "reproduction").glob("*.md"):
        lines = [line for line in path.read_text("utf-8").splitlines() if line]
        if any(line.startswith("![") for line in lines):
            assert lines[1].startswith("!["), path
    summary = (docs / "reproduction.md").read_text("utf-8")
    assert re.search(r"source of the run: digest [0-9a-f]{16}", summary)


def test_every_claim_is_on_the_page_once_beside_its_figure() -> None:
    verdicts = dict.fromkeys(statements(), ClaimVerdict(Standing.FAILS, "5.", "it does"))
    plots = tuple(replace(PLOT, name=f"plot-{number}") for number in range(8))
    figure = Figure((*plots, RUNS), proven=(replace(RUNS, name="proven"),))
    figures = [(load(name, reduced=False, complete=False), figure) for name in ("mnist", "audit")]
    exhibits = [replace(one, name=f"audit-{one.name}") for one in figure.exhibits]
    proven = (replace(RUNS, name="audit-proven"),)
    figures[1] = (figures[1][0], replace(figure, exhibits=tuple(exhibits), proven=proven))
    versions = dict.fromkeys(("diffsketch", "torch", "numpy", "python", "source", "machine"), "1")
    page = page_of(figures, verdicts, Origin("x", versions))
    assert [one.name for one in page.sections] == [
        "audit", "mnist", "textbook", "apart", "configurations", "beyond", "reading",
    ]  # fmt: skip
    shown = {each.name.partition("-details")[0]: each.rows for each in all_exhibits(page)
             if each.name.endswith("-details-claims") and isinstance(each, Table)}  # fmt: skip
    assert sum(map(len, shown.values())) == len(statements())

    def row_of(section: str, words: str) -> Any:
        (found,) = (row for row in shown[section] if words in str(row[0]))
        return found

    assert row_of("audit", "(Theorem 1, section 3.2)")[1:] == ("fails: it does", "5.", "")
    assert row_of("mnist", "orders-of-magnitude less communication")
    assert row_of("apart", "Better than cpSGD")  # was not run
    assert row_of("textbook", "Lemma 2")
    assert row_of("apart", "Sketches are private")[1:] == (
        "fails: it does (says the same: Theorem 1)", "", "",
    )  # fmt: skip
    section = page.sections[1]
    assert section.lead == "3 fail."
    assert list(section.row) == ["the paper says", "we find", "proven instead"]
    # What epsilons are worth, and how readings were chosen, is on the pages in Markdown, too.
    assert "coordinate unit, replace, local trust" in section.row["proven instead"]
    reading = documents(page)["reproduction/reading.md"]
    assert "the reading that does best counts" in reading
    assert "{" not in reading
    (configured,) = (one.text for one in page.sections if one.name == "configurations")
    assert configured == ("No row makes two of these claims hold, of what was measured.",)
    assert len(section.exhibits) == 6 + 1  # the claims; the rest is folded away
    assert [one.name for one in section.details["Further plots"]] == ["plot-6", "plot-7"]
    assert section.badge == "Figure 3"
    blue, orange = (
        looks_of(all_exhibits(page), page.roles)[f"Laplace on {what}"].colour
        for what in ("sketches", "raw gradients")
    )
    assert (blue, orange) == (COLOURS[0], COLOURS[1])  # as in the caption of Figure 3


def test_it_writes_the_text_and_the_smaller_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All or none; the other form of an earlier call is removed, what is another's stays."""
    folder, forms = tmp_path / "images" / "reproduction", {"svg": b"<svg>" * 100, "png": b"png"}
    monkeypatch.setattr("paper.document.picture", lambda *_, form: forms[form])
    (tmp_path / "reproduction.md").mkdir()
    with pytest.raises(IsADirectoryError):
        write_document(PAGE, tmp_path)
    assert not list(folder.iterdir())
    (tmp_path / "reproduction.md").rmdir()
    written = write_document(PAGE, tmp_path)
    assert written[0] == tmp_path / "reproduction.md"
    names = ["mnist-50x.png", "small-mnist.png"]
    assert sorted(path.name for path in folder.iterdir()) == names
    (folder / "other.txt").write_bytes(b"mine")
    forms["png"] = b"png" * 1000
    write_document(PAGE, tmp_path)
    names = ["mnist-50x.svg", "other.txt", "small-mnist.png"]
    assert sorted(path.name for path in folder.iterdir()) == names
    text = (tmp_path / "reproduction" / "mnist.md").read_text("utf-8")
    assert "](../images/reproduction/mnist-50x.svg)" in text
    assert (tmp_path / "reproduction" / "data" / "mnist-runs.csv").is_file()


# Tables and pictures in Markdown are read back as they are.


def cells(text: str) -> list[str]:
    """The cells of a table, as a reader of Markdown sees them."""
    found = []
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for before, token in pairwise(tokens):
        if before.type in ("th_open", "td_open"):
            children = token.children or []
            assert {child.type for child in children} <= {"text", "text_special", "code_inline"}
            found.append("".join(child.content for child in children))
    return found


@pytest.mark.parametrize(
    "text", ["a|b", "*a* _b_", "[x](y)", "a `c|d` <b>", "1\n2\\", sample.NASTY]
)
def test_text_comes_back_as_it_is(text: str) -> None:
    table = Table("t", "T", ("heading", text), ((text, 1),))
    plain = " ".join(text.replace("`", "").split())
    assert cells(table_markdown(table)) == ["heading", plain, plain, "1"]


def test_epsilons_and_pictures() -> None:
    text = table_markdown(sample.CLAIMS)
    assert text.splitlines()[1] == "| --- | --- | ---: | --- | ---: |"
    assert "ε = 7.99 at δ = 1e-05 over 60 rounds (proven; client unit" in text
    assert len(cells(text)) == 5 * (1 + len(sample.CLAIMS.rows))
    picture = image_link("Accuracy, [in] *percent*", "images/a.png")
    (token,) = MarkdownIt().parseInline(picture)[0].children or []
    assert (token.type, token.attrs["src"]) == ("image", "images/a.png")
    assert token.content == r"Accuracy, \[in\] \*percent\*"
