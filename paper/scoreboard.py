"""The scoreboard of a page: the paper's claims and their verdicts, linked there and back."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from diffsketch.pages.exhibits import Page, Section
from diffsketch.pages.page import prose

# Standings, in the order of the scoreboard: the class of the chip of each.
CHIPS = {
    "holds": "holds",
    "holds in part": "part",
    "fails": "fails",
    "not measured": "unmeasured",
    "undecided": "unmeasured",
    "not for an experiment": "unmeasured",
    "not judged": "unmeasured",
}
APART = "counted apart"
_CLAIMS = """\
<ul class="claims" aria-label="Claims">
{% for entry in entries %}
<li id="claim-{{ entry.name }}"><a class="back" href="#board-{{ entry.name }}" \
aria-label="To the scoreboard">↑</a>\
<span class="chip chip-{{ chips[entry.standing] }}">{{ entry.standing }}</span> \
<b>{{ entry.label }}</b>{% if entry.aside %} <span class="where">({{ entry.aside }})</span>\
{% endif %} <q>{{ entry.quote }}</q> <span class="where">{{ entry.where }}</span>\
{% if entry.why %} <span class="why">{{ entry.why | prose }}</span>{% endif %}
{% if entry.measured %}<details class="small"><summary>numbers</summary>\
<p>{{ entry.measured | prose }}</p>{% if entry.rule %}<p>Rule: {{ entry.rule | prose }}</p>\
{% endif %}</details>{% endif %}</li>
{% endfor %}
</ul>"""
_BOARD = """\
<p class="score">{{ score | prose }}</p>
<div class="board">
{% for heading, entries in board.items() %}
<div class="column column-{{ chips.get(heading, "apart") }}"><h2>{{ heading }} \
<b>{{ entries | length }}</b></h2><ul>{% for entry in entries %}<li id="board-{{ entry.name }}">\
<a href="#claim-{{ entry.name }}">{{ entry.label }}</a></li>{% endfor %}</ul></div>
{% endfor %}
</div>"""


@dataclass(frozen=True)
class VerdictEntry:
    """A claim, and how it stands: a link on the scoreboard, to an entry in a section and back."""

    name: str  # of its anchors
    label: str  # a few words, on the scoreboard
    standing: str  # such as "holds"; those of the same standing are together
    quote: str
    where: str
    why: str = ""
    measured: str = ""  # folded away
    aside: str = ""  # why it is counted apart, if it is
    rule: str = ""  # what it takes to hold, in a line


@dataclass(frozen=True)
class ClaimedSection(Section):
    """A section about some of the paper's claims."""

    verdicts: tuple[VerdictEntry, ...] = ()


@dataclass(frozen=True)
class ClaimedPage(Page):
    """A page about the paper's claims."""

    score: str = ""  # what the scoreboard comes to, in a sentence


def board_of(page: Page) -> dict[str, list[VerdictEntry]]:
    """Group all verdicts by their standing; those that are counted apart come last."""
    board: dict[str, list[VerdictEntry]] = {standing: [] for standing in (*CHIPS, APART)}
    for section in page.sections:
        for entry in getattr(section, "verdicts", ()):
            board[APART if entry.aside else entry.standing].append(entry)
    return {heading: entries for heading, entries in board.items() if entries}


def with_scoreboard(page: ClaimedPage) -> Page:
    """Return the page with its verdicts drawn: a scoreboard first, and entries in the sections."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["prose"] = prose

    def drawn(template: str, **values: object) -> Markup:
        html = environment.from_string(template).render(chips=CHIPS, **values)
        return Markup(html)  # noqa: S704 - the template escapes

    sections = [
        replace(section, extra=drawn(_CLAIMS, entries=section.verdicts))
        if isinstance(section, ClaimedSection) and section.verdicts else section
        for section in page.sections
    ]  # fmt: skip
    board = Section("board", "Score", extra=drawn(_BOARD, score=page.score, board=board_of(page)))
    return replace(page, sections=(board, *sections))
