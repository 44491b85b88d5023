"""Private answers about a file of people: asked for, shown as a table, and written to files."""

from __future__ import annotations

import csv
import io
import json
import warnings
from collections.abc import Callable
from itertools import islice

from rich.table import Table
from rich.text import Text

from diffsketch.analytics import Answer, Terms
from diffsketch.analytics.files import PeopleFile, parquet
from diffsketch.app.plans import table_of
from diffsketch.app.settings import FileOptions
from diffsketch.app.terminal import LastingConsole
from diffsketch.errors import ArgumentError
from diffsketch.files import csv_cell, replace_file
from diffsketch.privacy import Account, Budget

Question = Callable[[PeopleFile, Terms], Answer]
_FORMS = (".csv", ".json", ".parquet", ".png", ".svg")
_SHOWN, _DRAWN, _LETTERS = 100, 30, 50  # rows on a screen, bars of a picture, letters of a name


def listed(text: str) -> list[str]:
    """Titles between commas; in quotes where they have one.

    >>> listed('age,"income, gross"')
    ['age', 'income, gross']
    """
    return next(csv.reader([text]), [])


def parse_bounds(text: str) -> list[tuple[float, float]]:
    """Bounds from text.

    >>> parse_bounds("0:120,-1.5:2e5")
    [(0.0, 120.0), (-1.5, 200000.0)]
    """
    try:
        pairs = [tuple(map(float, pair.split(":"))) for pair in text.split(",")]
        return [(low, high) for low, high in pairs]
    except ValueError:
        raise ArgumentError(
            f"bounds must be low:high of each column, such as 0:120,0:250000, got {text!r}"
        ) from None


def parse_levels(text: str) -> list[float]:
    """Levels of quantiles from text."""
    try:
        return [float(level) for level in text.split(",")]
    except ValueError:
        raise ArgumentError(f"levels must be numbers, such as 0.25,0.5, got {text!r}") from None


def answer_file(options: FileOptions, question: Question) -> None:
    """Ask a question about a file, show the answer, and write it.

    Guarantees (`tests/app/test_answers.py`): whatever is wrong with the file, the question or an
    output is found before anything is charged.
    """
    for output in options.output:
        if output.suffix not in _FORMS or not output.parent.is_dir():
            raise ArgumentError(
                f"output must end with one of {', '.join(_FORMS)}, in a directory that exists, got "
                f"{str(output)!r}"
            )
        if output.suffix in _FORMS[3:]:
            import matplotlib.figure  # noqa: F401 - which may not be installed
    if options.budget is not None and options.account is None:
        raise ArgumentError("--budget must come with --account")
    console, account = LastingConsole(), None
    with console.progress(f"Reading {options.file}") as on_progress:
        people = PeopleFile(options.file, person=options.person, progress=on_progress)
        if options.account is not None:
            limit = None if options.budget is None else Budget(options.budget, options.budget_delta)
            account = Account.open(options.account, budget=limit)
        terms = Terms(options.epsilon, delta=options.delta, account=account)
        with warnings.catch_warnings(record=True) as cautions:
            warnings.simplefilter("always")
            answer = question(people, terms)
    lines = [Text.assemble(("Warning: ", "bold red"), str(item.message)) for item in cautions]
    lines += [Text(answer.how), Text(str(answer.epsilon), style="bold")]
    if account is not None:
        limit = account.budget
        delta = options.budget_delta if limit is None else limit.delta
        most = "" if limit is None else f" of {limit.epsilon:g}"
        lines.append(Text(f"spent in all{most}: {account.epsilon(delta=delta)}"))
    # First on the screen: it is paid for, and a file that cannot be written must not lose it.
    console.show(_table(answer), *lines)
    for output in options.output:
        replace_file(output, _content(answer, output.suffix))
    console.show(wrote=options.output)


def _table(answer: Answer) -> Table:
    """Lay out the answer, its first names at least."""
    rows: list[tuple[list[str | Text], bool]] = [
        ([_printable(name), *(f"{number:,.6g}" for number in numbers)], False)
        for name, *numbers in islice(map(dict.values, answer.rows()), _SHOWN)
    ]
    more = f"; {len(answer) - len(rows):,} more names: see --output" if len(answer) > _SHOWN else ""
    title = f"{answer.question} ({answer.people:,} people{more})"
    return table_of(title, ("name", "estimate", "95% from", "to"), rows)


def _printable(name: object) -> Text:
    """Show a key as it is, whatever somebody has put into it: no escape codes, no markup."""
    text = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(name)
    )
    return Text(text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…")


def _content(answer: Answer, form: str) -> bytes:
    """The answer as a file; tables have its epsilon in a column."""
    words = str(answer.epsilon)
    if form == ".json":
        about = {"question": answer.question, "people": answer.people, "how": answer.how}
        epsilon = {"epsilon": answer.epsilon.to_json(), "confidence": answer.confidence}
        return (
            json.dumps({**about, **epsilon, "rows": list(answer.rows())}, indent=1) + "\n"
        ).encode()
    if form in (".png", ".svg"):
        return _picture(answer, form[1:])
    columns = {
        "name": list(answer.names), "estimate": answer.estimates.tolist(),
        "low": answer.low.tolist(), "high": answer.high.tolist(),
        "privacy": [words] * len(answer),
    }  # fmt: skip
    if form == ".parquet":
        return parquet(columns)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([map(csv_cell, row) for row in zip(*columns.values(), strict=True)])
    return text.getvalue().encode()


def _picture(answer: Answer, form: str) -> bytes:
    """Draw estimates and intervals: bars for names, a line over the levels of quantiles."""
    from matplotlib.figure import Figure

    is_line, stream = answer.question == "quantiles", io.BytesIO()
    shown = slice(None if is_line else _DRAWN)
    names = [name if is_line else _printable(name).plain for name in answer.names[shown]]
    estimates, low, high = (column[shown] for column in (answer.estimates, answer.low, answer.high))
    figure = Figure(figsize=(7.2, 4.5), layout="constrained")
    axes, places = figure.subplots(), names if is_line else range(len(names))
    if is_line:
        axes.plot(places, estimates)
    else:
        axes.bar(places, estimates)
        # A key is text, whatever is in it: dollar signs would begin a formula.
        axes.set_xticks(places, [name.replace("$", r"\$") for name in names], rotation=20)
    axes.vlines(places, low, high, color="black")
    # Columns in units of their own, such as years and euros.
    if answer.question == "means" and min(low) > 0 and max(high) > 100 * min(high):
        axes.set_yscale("log")
    title = f"{answer.question} ({answer.people:,} people), with 95% intervals"
    axes.set_title(f"{title}\n{answer.epsilon}", fontsize=9)
    figure.savefig(stream, format=form)
    return stream.getvalue()
