"""The command `python -m paper`: the paper's evaluation, run again and judged."""

from __future__ import annotations

from pathlib import Path

import typer

from diffsketch.app.settings import option
from diffsketch.app.terminal import LastingConsole
from diffsketch.cli import command, main
from diffsketch.errors import check
from diffsketch.files import cores

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")


@command(
    "Examples: [bold]python -m paper --quick[/bold], [bold]python -m paper figure3 audit[/bold]",
    to=app,
)
def paper(
    name: list[str] = option(
        "Only these experiments (see --list) or figures (figure3); all without.",
        default=[],
        argument="NAME",
    ),
    quick: bool = option(
        "One seed, a tenth of the rounds; minutes. Shows that all works, judges no claim.",
        default=False,
    ),
    output: Path | None = option(
        "Directory for the page, the numbers and the cache; continued if it has them.",
        means="runs/reproduction, or runs/reproduction-quick with --quick",
    ),
    redraw: Path | None = option(
        "Directory of documents, such as docs: judge and draw their recorded run again, with what "
        "it lacks from the output directory. Runs nothing."
    ),
    jobs: int | None = option("Processes at a time.", means="as many as there are cores", ge=1),
    show_list: bool = option(
        "List the experiments, with rough times, and exit.", default=False, flag="--list"
    ),
) -> int:
    """Run the paper's evaluation again, and make a page of it: what it claims, and what is true.

    Writes index.html, which needs no network, pictures, all numbers as CSV and results.json.
    Results are cached by their settings: interrupted, the same command continues, and a second
    run only draws.

    Exit status: 0, also if claims fail or runs diverge (the page says so), 2 on an error, 130
    after Ctrl-C and 143 after SIGTERM.
    """
    console = LastingConsole()
    processes = jobs or cores()
    if show_list:  # which needs neither PyTorch nor pictures
        from paper.experiments import listing

        console.show(*listing(processes))
        return 0
    from paper.reproduce import redraw as draw_again
    from paper.reproduce import reproduce

    output = output or Path("runs") / ("reproduction-quick" if quick else "reproduction")
    if redraw is not None:
        check(not (name or quick), "redraw", "come without NAME and --quick", [*name, quick])
        return draw_again(redraw, output, console)
    return reproduce(name, output, console, reduced=quick, jobs=processes)


if __name__ == "__main__":
    main(app)
