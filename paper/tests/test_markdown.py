"""Tables and pictures in Markdown: read back as they are."""

from __future__ import annotations

import itertools

import pytest
from markdown_it import MarkdownIt

from diffsketch.errors import ArgumentError
from diffsketch.pages.exhibits import Table
from paper.markdown import image_link, table_markdown
from tests.pages import sample


def cells(text: str) -> list[str]:
    """The cells of a table, as a reader of Markdown sees them."""
    found = []
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for before, token in itertools.pairwise(tokens):
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


def test_claims() -> None:
    text = table_markdown(sample.CLAIMS)
    assert text.splitlines()[1] == "| --- | --- | ---: | --- | ---: |"
    assert "ε = 7.99 at δ = 1e-05 over 60 rounds (proven; client unit" in text
    assert len(cells(text)) == 5 * (1 + len(sample.CLAIMS.rows))


def test_a_table_without_columns_is_none() -> None:
    with pytest.raises(ArgumentError, match="columns must not be empty"):
        table_markdown(Table("t", "T", (), ()))


def test_pictures() -> None:
    text = image_link("Accuracy, [in] *percent*", "images/a.png")
    (token,) = MarkdownIt().parseInline(text)[0].children or []
    assert token.type == "image"
    assert token.attrs["src"] == "images/a.png"
    assert token.content == r"Accuracy, \[in\] \*percent\*"
    with pytest.raises(ArgumentError, match="path"):
        image_link("a", "b>c")
