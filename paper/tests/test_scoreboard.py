"""The scoreboard: every verdict is on it once, linked there and back."""

from __future__ import annotations

import re

from diffsketch.pages.page import render
from tests.pages.sample import NASTY, PAGE, VERDICTS


def test_it_has_its_columns_and_every_verdict_there_and_back() -> None:
    text = render(PAGE)
    columns = re.findall(r"<h2>([^<]*) <b>(\d+)</b></h2>", text)
    expected = [("holds", "1"), ("holds in part", "1"), ("fails", "1"), ("counted apart", "1")]
    assert columns == expected
    assert '<p class="score">Of 3 distinct claims 1 holds.</p>' in text
    for one in VERDICTS:
        for place, other in (("claim", "board"), ("board", "claim")):
            assert text.count(f'id="{place}-{one.name}"') == 1
            assert text.count(f'href="#{other}-{one.name}"') == 1
    assert '<span class="chip chip-part">holds in part</span>' in text
    assert NASTY not in text
