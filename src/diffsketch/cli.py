"""The command line: parses, calls, and turns errors into one line.

Commands import the rest of the package when they run, so that `--help` does not wait for PyTorch.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import re
import secrets
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer
from pydantic import ValidationError, create_model
from pydantic_core import PydanticUndefined
from typer.core import TyperCommand, TyperGroup

from diffsketch import __version__
from diffsketch.app.settings import (
    FileOptions,
    Options,
    RelationName,
    RunConfig,
    SamplingName,
    Setting,
    TrustName,
    UnitName,
    describe,
    option,
    read_settings,
)
from diffsketch.app.terminal import LastingConsole, command_line
from diffsketch.errors import ArgumentError, DiffSketchError, did_you_mean
from diffsketch.files import cores, private_folder

EXIT_ERROR, EXIT_INTERRUPTED = 2, 130
_KEYWORD = inspect.Parameter.KEYWORD_ONLY

# Where it is defined depends on Typer's version: in click, or in a copy of it.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]
# Options that are called otherwise elsewhere, and where an error may name an argument: at its
# beginning, and before each value.
_RENAMED = {"target_epsilon": "epsilon", "vector_norm": "norm"}
_ARGUMENT = re.compile(r"^\w+(?: \* \w+)*(?= (?:must|needs) )|(?<= )\w+(?==)")
_EXTRAS = {
    **dict.fromkeys(("jinja2", "markupsafe", "matplotlib", "plotly"), "pages"),
    "cryptography": "secure",
    **dict.fromkeys(("tensorboard", "mlflow"), "logs"),
    "duckdb": "files",
}
_NO_MEMORY = re.compile("can't allocate memory|out of memory")  # as PyTorch says it
_KINDS = {"float_parsing": "be a number", "bool_parsing": "be true or false"}
_WIDE = 20  # letters of a list of choices that leave no room for the text beside it

# Not a docstring, of which every line break would be kept.
HELP = (
    "Train models over many workers with private, compressed messages.\n\n"
    "A Count Sketch squeezes a vector, such as a gradient, into a table many times smaller. Tables "
    "of several workers add up to the table of their sum, and whoever has the hash seed can "
    "estimate the sum from it. Start with [bold]diffsketch run[/bold], which trains a model on "
    "MNIST and says what it cost and what privacy it gave."
)


class _PlainHelp:
    """Shows `--help` as what it is: a flag, without a type."""

    def get_help_option(self, context: Any) -> Any:
        option = super().get_help_option(context)  # type: ignore[misc]
        if option is not None:
            option.metavar = ""
        return option


class _Command(_PlainHelp, TyperCommand):
    pass


class _Group(_PlainHelp, TyperGroup):
    pass


app = typer.Typer(
    name="diffsketch",
    cls=_Group,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    no_args_is_help=True,
    epilog="Example: [bold]diffsketch run --output runs/first --seed 1[/bold]",
)


@contextmanager
def errors_in_one_line(context: typer.Context) -> Iterator[None]:
    """Print an expected error as `error: ...` and exit; anything else is a bug and passes."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except Exception as error:
        text = _error_text(error, context)
        if text is None:
            raise
        typer.echo(f"error: {text}", err=True)
        raise typer.Exit(EXIT_ERROR) from None


def _error_text(error: Exception, context: typer.Context) -> str | None:
    """Say an expected error in a line; None for a bug."""
    text = " ".join(str(error).split())
    if isinstance(error, ModuleNotFoundError):
        extra = _EXTRAS.get(str(error.name).partition(".")[0])
        install = f'python -m pip install ".[{extra}]" in the clone'
        return extra and f"{context.command_path} needs the extra {extra}: {install}"
    if isinstance(error, MemoryError | RuntimeError) and (
        isinstance(error, MemoryError) or _NO_MEMORY.search(text)
    ):
        return f"not enough memory{f': {text}' if text else ''}"
    if isinstance(error, OSError) and error.strerror:
        # Replacing a file names two: the second is the one that the user knows.
        name = error.filename2 or error.filename
        return f"{name}: {error.strerror}" if name else error.strerror
    if isinstance(error, ArgumentError):
        # As the user knows them: `message_bytes must ..., got message_bytes=4` is about `--bytes`.
        # A name that is no option of the command is somebody else's, and stays.
        params = context.command.params
        flags = {str(param.name): str(param.opts[0]) for param in params if param.opts}
        flags |= {name: f"--{flag}" for name, flag in _RENAMED.items() if flag in flags}
        return _ARGUMENT.sub(
            lambda names: " ".join(flags.get(name, name) for name in names[0].split(" ")), text
        )
    return text if isinstance(error, DiffSketchError | OSError) else None


def command(
    epilog: str | None = None, *, shared: type[Options] | None = None, to: typer.Typer = app
) -> Callable[[Callable[..., int | None]], Any]:
    """Make a function a command of `diffsketch`, or of `to`; its result is the exit status.

    Each parameter becomes an option, which its default describes. With `shared`, the fields of
    that model become options, too, unless a parameter has the name; those given are the parameter
    `settings`.
    """

    def decorate(function: Callable[..., int | None]) -> Any:
        hints = get_type_hints(function)
        fields: dict[str, Any] = {
            name: (hints[name], parameter.default)
            for name, parameter in inspect.signature(function).parameters.items()
            if shared is None or name != "settings"
        }
        model: type[Options] = create_model(function.__name__, __base__=Options, **fields)
        own, more = describe(model), {} if shared is None else describe(shared)
        more = {name: setting for name, setting in more.items() if name not in own}

        def wrapper(context: typer.Context, **arguments: Any) -> None:
            passed = {name: value for name, value in arguments.items() if value is not None}
            with errors_in_one_line(context):
                values = dict(model(**{name: passed[name] for name in own if name in passed}))
                if shared is not None:
                    values["settings"] = {name: passed[name] for name in more if name in passed}
                if status := function(**values):
                    raise typer.Exit(status)

        context = inspect.Parameter("context", _KEYWORD, annotation=typer.Context)
        parameters = [context, *map(_parameter, [*own.values(), *more.values()])]
        # A function with the right signature, since Typer makes options from annotations.
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {item.name: item.annotation for item in parameters}
        paragraphs = (function.__doc__ or "").split("\n\n")
        wrapper.__doc__ = "\n\n".join(" ".join(part.split()) for part in paragraphs)
        to.command(name=function.__name__, cls=_Command, epilog=epilog)(wrapper)
        return function

    return decorate


def _parameter(setting: Setting) -> inspect.Parameter:
    """Make an option of Typer; None by default, which tells what was not given."""
    required = setting.default is PydanticUndefined
    text, metavar, shown = setting.text, setting.argument or None, setting.means
    if len("|".join(setting.choices)) > _WIDE:
        text, metavar = f"{text} One of {', '.join(setting.choices)}.", "<name>"
    if setting.kind is bool:
        metavar = ""  # a flag has no value
    if not (required or setting.default in ("", None) or isinstance(setting.default, bool | list)):
        shown = f"{setting.default:g}" if setting.kind is float else str(setting.default)
    make: Any = typer.Argument if setting.argument else partial(typer.Option, setting.flag)
    if setting.kind is int:
        make = partial(make, parser=_whole_number)
        metavar = metavar or "<integer>"
    if setting.kind in (Path, str) and not setting.argument:
        make = partial(make, callback=_no_option)
    declared = make(
        help=text, show_default=shown or False, metavar=metavar,
        rich_help_panel=setting.section or None, hidden=setting.hidden,
    )  # fmt: skip
    kind: Any = Literal[tuple(setting.choices)] if setting.choices else setting.kind
    return inspect.Parameter(
        setting.name, _KEYWORD, default=inspect.Parameter.empty if required else None,
        annotation=Annotated[kind if required else kind | None, declared],
    )  # fmt: skip


def _whole_number(text: str) -> int:
    """Parse a whole number, also one written as 1e6."""
    with contextlib.suppress(ValueError, OverflowError):
        return int(text)
    with contextlib.suppress(ValueError, OverflowError):
        if (value := float(text)).is_integer():
            return int(value)
    raise typer.BadParameter(f"it must be a whole number, got {text!r}")


def _no_option(context: typer.Context, value: Any) -> Any:
    """Refuse an option as the value of another, which lacks its own."""
    if str(value) in {flag for param in context.command.params for flag in param.opts}:
        raise typer.BadParameter(f"it needs a value, got the option {value}")
    return value


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"diffsketch {__version__}")
        raise typer.Exit


@app.callback(help=HELP)
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            metavar="",
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """Options that come before the command."""


@command(
    "Examples: [bold]diffsketch run --method none[/bold], "
    "[bold]diffsketch run --task shakespeare --server-step 0.3 --rounds 100[/bold], "
    "[bold]diffsketch run --resume runs/mnist-diffsketch[/bold]",
    shared=RunConfig,
)
def run(
    output: Path | None = option(
        "Directory of the run; must be new or empty.",
        means="the first free of runs/DATA-METHOD, -2, -3, ...",
    ),
    config: Path | None = option(
        "TOML file with any of the settings below; command-line flags override it."
    ),
    resume: Path | None = option(
        "Continue the run in this directory, with the settings that it has."
    ),
    log: Literal["tensorboard", "mlflow"] | None = option(
        "Log every round to it as well: TensorBoard's files go to the run's directory, MLflow's "
        "runs where MLFLOW_TRACKING_URI says."
    ),
    *,
    settings: dict[str, Any],
) -> int:
    """Train a model with a method, and show accuracy, bytes and epsilon with its basis.

    Without options: MNIST over 10 workers by distributed SGD, each message a table of 7 x 22
    numbers. What has no default below comes from the task, with the paper's hyper-parameters, or
    from the method.

    Writes config.toml, metrics.jsonl, model.safetensors, summary.json and checkpoints,
    from which --resume continues to the same bits after any interruption. The same settings write
    the same files, but for command.txt and times.json.

    Exit status: 0 if all rounds are done or the budget is spent, 2 on an error or if training
    diverged, 130 after Ctrl-C and 143 after SIGTERM.
    """
    if resume is not None:
        others = {"output": output, "config": config, **settings}
        names = [name for name, value in others.items() if value is not None]
        if names:
            flags = ", ".join("--" + name.replace("_", "-") for name in names)
            raise ArgumentError(
                f"--resume takes all settings from {resume / 'config.toml'}: leave out {flags}"
            )
    values = read_settings(config) if config is not None else {}
    chosen = RunConfig(**{**values, **settings})
    from diffsketch.app import session

    if resume is not None:
        return session.resume(resume, log=log)
    return session.start(chosen, output, log=log)


@command(
    "Example: [bold]diffsketch compare --rows 7 --cols 22 --seeds 3 --method none --method sketch "
    "--method diffsketch:per_round=0.1[/bold]",
    shared=RunConfig,
)
def compare(
    method: list[str] = option(
        "NAME or NAME:key=value,key=value with any of the settings below; repeat it.", default=[]
    ),
    config: Path | None = option(
        r"TOML file: settings of all runs, then a \[\[run]] table with those of each."
    ),
    seeds: int = option(
        "How many seeds, from --seed on, each method is run with.", default=1, ge=1
    ),
    jobs: int | None = option("Processes at a time.", means="one for each core", ge=1),
    output: Path | None = option(
        "Directory for comparison.json and all runs; new or empty.",
        means="the first free of runs/compare, -2, -3, ...",
    ),
    page: bool = option("Also write a page of the runs, as `report` does.", default=False),
    resume: Path | None = option("Continue the comparison in this directory."),
    *,
    settings: dict[str, Any],
) -> int:
    """Run several methods on the same batches and devices, and print one table.

    Settings below are for all runs; those of methods (such as --rows) for the methods that have
    them. What a NAME:key=value has goes first; a table of --config that has another value is
    an error.

    Exit status: 0 if all runs ended, even if some diverged (the last line says so), 2 on an error,
    130 after Ctrl-C and 143 after SIGTERM.
    """
    from diffsketch.app import compare as comparisons

    jobs = cores() if jobs is None else jobs
    if resume is not None:
        if method or config or output or settings or seeds != 1:
            raise ArgumentError(
                f"--resume takes everything from {resume}: leave out all but --jobs"
            )
        return comparisons.resume(resume, jobs=jobs, page=page)
    shared, tables = comparisons.read_comparison(config) if config else ({}, [])
    # A flag is for all runs, and a table for one: which wins would be a guess.
    for name, table in tables:  # neither a flag nor a table may lose silently
        for key, value in settings.items():
            if table.get(key, value) != value:
                raise ArgumentError(
                    f"{key} must not be given on the command line and differently in the file's "
                    f"[[run]] {name!r}, got {key}={value!r} and {table[key]!r} there"
                )
    tables += [comparisons.parse_method(text) for text in method]
    shared |= settings
    return comparisons.start(shared, tables, output, seeds=seeds, jobs=jobs, page=page)


@command(
    "Examples: [bold]diffsketch plan --dim 40 --cohort 5000 --rounds 1 --epsilon 1 "
    "--bytes 200[/bold], [bold]diffsketch plan --dim 7850 --population 6000 --cohort 1000 "
    "--rounds 60 --epsilon 8 --bytes 500[/bold]"
)
def plan(
    dim: int = option("Length of the vectors, such as gradients.", default=...),
    rounds: int = option("Rounds of the whole run.", default=...),
    epsilon: float | None = option(
        "Target: the most that the run may cost any client. Without it: bare sketches."
    ),
    message_bytes: int = option(
        "The most bytes of one client's message in a round.", default=..., flag="--bytes"
    ),
    workers: int | None = option("Workers, if all of them send a message in each round."),
    population: int | None = option("Clients that the cohort of a round is drawn from."),
    cohort: int | None = option("Clients that send a message in a round."),
    sampling: SamplingName = option(
        "How a cohort is drawn: in passes over all clients, uniformly, by examples, or each client "
        "on its own and in secret.",
        default="shuffled",
    ),
    delta: float = option("Delta of the target; 0 for pure differential privacy.", default=1e-5),
    unit: UnitName = option(
        "What is protected: a client, (far weaker) a coordinate, an example or person in a silo.",
        default="client",
    ),
    records: float | None = option("Records of a silo's message in the mean, for example, person."),
    rate: float = option("Probability of a record to be in a message.", default=1.0),
    relation: RelationName = option(
        "Whether neighbours lack the unit or have another one.", default="replace"
    ),
    trust: TrustName = option(
        "Whom to trust: nobody (local), a secure sum (distributed) or a server (central).",
        default="distributed",
    ),
    norm: float = option("Norm of a client's vector; longer ones are clipped.", default=1.0),
    spread: float = option(
        "Variance among the vectors over what they have in common; 0: all same.", default=0.0
    ),
    code: bool = option("Print Python code that runs the best plan.", default=False),
) -> None:
    """Find the private method with the least error for a budget of epsilon and of bytes.

    Compares the private methods of `diffsketch run`, each with its best settings, and predicts
    their errors. Says how to run the best one. Without an epsilon nothing is private, and the bare
    sketch gets the columns and bits that fit the bytes.
    """
    from diffsketch import planning
    from diffsketch.app import plans

    senders, console = cohort if workers is None else workers, LastingConsole()
    choices: dict[str, Any] = {
        "population": population, "sampling": sampling, "delta": delta, "unit": unit,
        "relation": relation, "trust": trust, "vector_norm": norm, "records": records, "rate": rate,
    }  # fmt: skip
    # Given without an epsilon they would be ignored.
    is_chosen = any(getattr(planning.PlanRequest, name) != choices[name] for name in choices)
    for wrong, said in (
        (workers is not None and (cohort, population) != (None, None),
         "--workers stands for --cohort and --population: leave them out"),
        (senders is None, "--cohort must be given, or --workers if all take part each round"),
        (epsilon is None and code, "--epsilon must be given with --code"),
        (epsilon is None and is_chosen,
         "--epsilon must be given with --trust, --unit, --relation, --sampling, --delta, --norm, "
         "--population, --records and --rate: bare sketches have no privacy to choose"),
    ):  # fmt: skip
        if wrong:
            raise ArgumentError(said)
    if epsilon is None:
        sizes = planning.sketch_sizes(
            dim, senders or 0, message_bytes, rounds=rounds, spread=spread
        )
        console.show(*plans.report_sizes(sizes, rounds=rounds, message_bytes=message_bytes))
        return
    request = planning.PlanRequest(
        dim, senders or 0, rounds, epsilon, message_bytes, spread=spread, **choices
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", planning.PlanWarning)  # they are printed below
        answer = planning.plan(request)
    if code:
        typer.echo(plans.python_code(answer.best, request), nl=False)
    else:
        console.show(*plans.report_plan(answer))


@command(
    "Example: [bold]diffsketch audit --method sketch-gaussian --dim 7850 "
    '--settings "rows=1 cols=154 clip=1 noise_multiplier=4"[/bold]'
)
def audit(
    output: Path = option(
        "Directory for audit.json and audit.png; made if missing.",
        default=Path("runs/audit"),
    ),
    case: list[str] = option("Only this case (see --list); may be repeated.", default=[]),
    plant: list[str] = option(
        "Only cases that this error applies to (see --list), with it and without; may be repeated.",
        default=[],
    ),
    method: str | None = option("Only this method, with the settings that follow."),
    settings: str = option("Settings of the method: name=value, with spaces between.", default=""),
    dim: int = option("Length of the method's vectors.", default=100),
    cohort: int = option("Clients of the method's round.", default=2),
    show_list: bool = option("List the cases and exit.", default=False, flag="--list"),
    quick: bool = option("Hardly any planted errors, and half of the trials.", default=False),
    trials: int | None = option("Trials of each world; by default what each case needs."),
    confidence: float = option(
        "Probability that a lower bound holds; the rest are false alarms.", default=0.999
    ),
    delta: float | None = option("Where epsilon is bounded; by default where a case shows most."),
    seed: int = option("Number that fixes all but exact noise.", default=0, ge=0),
) -> None:
    """Attack bare sketches, what methods send, and planted errors; measure epsilon from below.

    Prints tables, and writes them as JSON with pictures. What an attack achieves is a lower bound
    on epsilon: it can refute a claim, never prove one.
    """
    from diffsketch.auditing import report as reports
    from diffsketch.auditing.audits import check_settings
    from diffsketch.auditing.cases import select
    from diffsketch.auditing.releases import own_release

    console = LastingConsole()
    if show_list:  # which needs no pictures
        console.print(reports.listing())
        return
    from diffsketch.auditing.pictures import write_results
    from diffsketch.files import prepare_output

    shared: dict[str, Any] = {
        "trials": trials, "confidence": confidence, "delta": delta, "seed": seed,
    }  # fmt: skip
    check_settings(**shared)
    release = None
    if method is not None:
        release = own_release(method, settings, dim=dim, cohort=cohort)
    elif settings:
        raise ArgumentError("--settings must come with --method")
    chosen = select(names=case, plants=plant, release=release, is_quick=quick)
    prepare_output(output)
    with console.progress("Auditing") as on_progress:
        suite = reports.run_suite(chosen.values(), quick=quick, on_progress=on_progress, **shared)
    paths = write_results(suite, output)
    console.show(*reports.report(suite), wrote=paths)


@command(
    "Examples: [bold]diffsketch report runs[/bold], "
    "[bold]diffsketch report runs/compare runs/mnist-none --output pages/first[/bold]"
)
def report(
    runs: list[Path] = option(
        "Directories of runs or comparisons, or with some of them below.",
        default=...,
        argument="RUN_DIR...",
    ),
    output: Path | None = option(
        "Directory for index.html and data; must be new or empty.",
        means="the first free of runs/report, -2, -3, ...",
    ),
    figures: bool = option(
        "Also write the plots as PDF and SVG, and the tables as LaTeX, to data.", default=False
    ),
) -> None:
    """Make a page of runs: accuracy, bytes, epsilon and time per round side by side.

    One HTML file that needs no network, with interactive plots, and all numbers as CSV. Seeds of
    the same settings become one line with its spread. Unfinished runs are shown up to their last
    round; nothing in their directories is changed.

    Exit status: 0, or 2 on an error; then nothing was written.
    """
    from diffsketch.app.files import check_empty, free_name
    from diffsketch.app.run_pages import page_of_runs
    from diffsketch.pages.page import write_page

    if output is not None:
        check_empty(output)
    page = page_of_runs(runs, command=shlex.join(command_line()))
    path = output or free_name(Path("runs") / "report")
    index, *others = write_page(page, path, figures=figures)
    LastingConsole().show(wrote=[index, f"{path / 'data'} ({len(others)} files)"])


@command(
    "Example: [bold]diffsketch mean people.csv --columns age,income --bounds 0:120,0:250000 "
    "--epsilon 1[/bold]",
    shared=FileOptions,
)
def mean(
    columns: str = option("Columns, with commas between.", default=...),
    bounds: str = option(
        "low:high of each column, with commas between; values beyond are clipped. Choose them "
        "without looking at the data.",
        default=...,
    ),
    *,
    settings: dict[str, Any],
) -> None:
    """Compute private means of columns of a file, with 95% intervals.

    Each row is a person, or the rows with the same --person: such a person counts once, with the
    mean of its rows.

    Exit status: 0, or 2 on an error, by which nothing is charged.
    """
    from diffsketch.app import answers

    titles, pairs = answers.listed(columns), answers.parse_bounds(bounds)
    answers.answer_file(
        FileOptions(**settings), lambda people, terms: people.mean(titles, pairs, terms)
    )


@command(
    "Example: [bold]diffsketch count people.csv --column city --top 20 --epsilon 1[/bold]",
    shared=FileOptions,
)
def count(
    column: str = option("Column of keys.", default=...),
    top: int | None = option("The most keys to name.", means="all above the threshold", ge=1),
    keys_per_person: int = option(
        "Keys of a person that count, with --person; of others that many are drawn at random.",
        default=1,
        ge=1,
    ),
    *,
    settings: dict[str, Any],
) -> None:
    """Count the people that have each key of a file, with 95% intervals, the most frequent first.

    Keys are named from a threshold on, which no single person reaches but with a probability that
    is part of --delta. Each row is a person, or the rows with the same --person.

    Exit status: 0, or 2 on an error, by which nothing is charged.
    """
    from diffsketch.app import answers

    answers.answer_file(
        FileOptions(**settings),
        lambda people, terms: people.counts(
            column, terms, top=top, keys_per_person=keys_per_person
        ),
    )


@command(
    "Example: [bold]diffsketch quantiles people.csv --column income --bounds 0:250000 "
    "--epsilon 1[/bold]",
    shared=FileOptions,
)
def quantiles(
    column: str = option("Column of numbers.", default=...),
    bounds: str = option(
        "low:high; values beyond are clipped. Choose them without looking at the data.",
        default=...,
    ),
    levels: str = option(
        "Levels in (0, 1), with commas between.", default="0.05,0.25,0.5,0.75,0.95"
    ),
    *,
    settings: dict[str, Any],
) -> None:
    """Estimate private quantiles of a column of a file, with 95% intervals.

    Each row is a person, or the rows with the same --person: such a person counts once, with the
    mean of its rows.

    Exit status: 0, or 2 on an error, by which nothing is charged.
    """
    from diffsketch.app import answers

    asked, pairs = answers.parse_levels(levels), answers.parse_bounds(bounds)
    answers.answer_file(
        FileOptions(**settings),
        lambda people, terms: people.quantiles(column, asked, pairs, terms),
    )


@command("Example: [bold]diffsketch key sketch.key[/bold]")
def key(
    file: Path | None = option(
        "New file for the key, which only you can read. Without it, the key is printed.",
        argument="FILE",
    ),
) -> None:
    """Make a secret key of a sketch's hashes, for clients of a Flower network to share.

    Every client has it, and the server if it must reconstruct the model.
    """
    secret = secrets.token_hex(32)
    whom = "on every client, and on the server if it must reconstruct the model"
    if file is None:
        typer.echo(secret)
        typer.echo(f"set DIFFSKETCH_KEY to it {whom}", err=True)
        return
    # O_EXCL: a key is never replaced.
    with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as target:
        target.write(secret)
    LastingConsole().show(wrote=[file])
    typer.echo(f"copy it and set DIFFSKETCH_KEY_FILE {whom}, such as by")
    typer.echo(f"export DIFFSKETCH_KEY_FILE={shlex.quote(str(file.absolute()))}")


def _usage_text(error: Any) -> str:
    """Say what was wrong with the arguments; nothing if there were none and help was printed."""
    said, cause = " ".join(error.format_message().split()), error.__cause__
    if not said:
        return ""
    if isinstance(cause, ValidationError):  # in Pydantic's words, and perhaps without the value
        mistake, option = cause.errors()[0], said.partition(": ")[0]
        value, names = repr(mistake["input"]), re.findall("'([^']+)'", mistake["msg"])[1:]
        wanted = _KINDS.get(mistake["type"], f"be one of {', '.join(names)}")
        said = f"{option}: it must {wanted}, got {value}"
        hint = did_you_mean(str(mistake["input"]), names)
        said += f"; {hint}" if hint else ""
    return f"{said} (see {f'{error.ctx.command_path} ' if error.ctx else 'diffsketch '}--help)"


def main(program: typer.Typer | None = None) -> None:
    """Run a command line, by default that of the `diffsketch` script."""
    # Importing PyTorch makes a million objects, of which none is garbage: to look through them
    # now and then, and once more at the exit, took a third of the time of a short run.
    gc.set_threshold(200_000, 30, 30)
    homeless = not os.access(os.environ.get("HOME", ""), os.W_OK)
    if homeless and (folder := private_folder()) is not None:
        # Else Matplotlib would make new files for its cache each time, and say so.
        os.environ.setdefault("MPLCONFIGDIR", str(folder / "matplotlib"))
    try:
        status = (program or app)(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(EXIT_INTERRUPTED)
    except UsageError as error:
        if said := _usage_text(error):
            typer.echo(f"error: {said}", err=True)
        sys.exit(EXIT_ERROR)
    finally:
        if "duckdb" not in sys.modules:  # which complains of objects that are never collected
            gc.freeze()
    sys.exit(status if isinstance(status, int) else 0)
