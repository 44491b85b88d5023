"""The paper's figures and tables as settings files (TOML), and the jobs that are in them.

Keys of a file; all but those marked are required:

* `title`, `place` ("Figure 3"), `says` (what the paper reads from it): text.
* `drawing`: an entry of `figures.toml` that says which function draws it.
* `seeds`: how many, from 0 on; 5 if not given.
* `[paper]` (optional): the paper's values, text by name; "not given" where it has none.
* `[[deviation]]` (any number): `what` is done otherwise, and `why`.
* `[common]` (optional): settings of `diffsketch run` for every `[[run]]` that has not its own.
* `[[run]]` (any number): `name` for the legend, `panels` (the plots that it is drawn in; a list of
  one at least), `seeds` (the file's if not given), `group` ("paper" if not given, "proven" or
  "ablation"), `reading` (in which way the method was run, if not as the others of its name), and
  any settings of `diffsketch run` but the seed. A name is used once in each panel. Rules find a
  line by its method and reading.
* `[panel."NAME"]` (optional): what a panel is about, as `PanelFields` has it: rules and drawings
  read it there, and nothing from the panel's name.
* `[[measure]]` (any number): `name`, used once; `kind`, one of `MEASUREMENTS`; `seeds` (the file's
  if not given); `settings` (a table, empty if not given), which the measurement checks itself.
* `[options]` (optional): for the drawing.

A file with neither runs nor measurements is calculated as it is drawn. Settings of runs are
completed with what their task and method have, so that the same run is found to be the same in two
files. `--quick` takes one seed, and a tenth of the rounds and trials.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from rich.table import Table

from diffsketch.app.settings import Value, checked_table, read_toml, with_task_defaults
from diffsketch.errors import ArgumentError, DataError, DiffSketchError, nearest
from diffsketch.training.defaults import TASK_DEFAULTS
from paper import METHODS

FORMAT = "diffsketch reproduction 1"
SETTINGS = Path(__file__).parent / "settings"
"""The package's settings files."""
RUN = "run"
"""The kind of a training run; all other kinds of jobs are measurements."""


@cache
def texts() -> dict[str, dict[str, Any]]:
    """The content of `figures.toml`."""
    return read_toml(Path(__file__).with_name("figures.toml"))


# Functions by name, imported when they are used: `--list` needs neither PyTorch nor pictures.
DRAWINGS = {
    name: f"paper.drawings:{entry['draw']}" for name, entry in texts().items() if "draw" in entry
}
MEASUREMENTS = {
    "distributions": "paper.measurements:measure_distributions",
    "local-epsilon": "paper.measurements:measure_local_epsilon",
    "masks": "paper.measurements:measure_masks",
    "audit": "paper.audits:measure_audit",
    "successor": "paper.audits:measure_audit",
}


def _name_in(functions: Mapping[str, str]) -> Callable[[str], str]:
    """A check that a name is one of these."""

    def checked(name: str) -> str:
        if name not in functions:
            raise ValueError(f"must be one of {', '.join(functions)}")
        return name

    return checked


_STRICT = ConfigDict(extra="forbid", populate_by_name=True)
_Text = Annotated[str, Field(min_length=1)]
_Count = Annotated[int, Field(ge=1, strict=True)]
_Settings = Mapping[str, Any]


@dataclass(frozen=True, config=_STRICT)
class Deviation:
    """A point in which an experiment differs from the paper's, and the reason."""

    what: _Text
    why: _Text


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """A piece of work. Two with the same kind, settings and seed are the same."""

    kind: str  # `run`, or one of `MEASUREMENTS`
    settings: Mapping[str, Value]  # without the seed
    seed: int  # fixes all random numbers

    @cached_property
    def key(self) -> str:
        """A digest of all of it, by which its result is found again."""
        content = [FORMAT, self.kind, dict(self.settings), self.seed]
        text = json.dumps(content, sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


Results = Mapping[Job, Mapping[str, Any]]
"""The result of each job, as JSON has it.

Of a training run: `{"summary": ..., "times": ..., "curve": [...]}`, the content of the run
directory's `summary.json`, `times.json` and `metrics.jsonl`. Of a measurement: what it returned.
"""


@dataclass(frozen=True, config=_STRICT)
class Variant:
    """Training runs of one line of a figure: the same settings with every seed."""

    kind: ClassVar[str] = RUN

    name: _Text  # for the legend; different from the others' in its panel
    panels: Annotated[tuple[_Text, ...], Field(min_length=1)]
    settings: _Settings  # of `diffsketch run`, without the seed
    group: Literal["paper", "proven", "ablation"] = "paper"

    reading: str = ""  # such as "without padding"
    seeds: _Count | None = None  # how many; the experiment's number if None

    @property
    def method(self) -> str:
        """The library's method that it is, or a form of."""
        method = str(self.settings.get("method", "diffsketch"))
        return METHODS.get(method, method)


@dataclass(frozen=True, config=_STRICT)
class PanelFields:
    """Fields of a panel; what does not apply is left out."""

    ratio: float | None = None  # the paper's compression
    epsilon: float | None = None  # the paper's, of a round
    choice: str = ""  # what the paper leaves open
    task: str = ""  # its title
    kind: str = ""  # of the messages
    beyond: str = ""  # why it is none of the paper's; no verdict rests on it then


@dataclass(frozen=True, config=_STRICT)
class Measurement:
    """Something measured that is no training run."""

    name: _Text  # within the experiment
    kind: Annotated[str, AfterValidator(_name_in(MEASUREMENTS))]
    settings: _Settings = Field(default_factory=dict)  # without the seed
    seeds: _Count | None = None  # how many; the experiment's number if None


@dataclass(frozen=True, config=_STRICT)
class Experiment:
    """A settings file: one figure or table of the paper. Its module documents the fields."""

    name: str
    title: _Text
    place: _Text
    says: _Text
    drawing: Annotated[str, AfterValidator(_name_in(DRAWINGS))]
    paper: Mapping[str, _Text] = Field(default_factory=dict)
    deviations: tuple[Deviation, ...] = Field(default=(), validation_alias="deviation")
    seeds: _Count = 5
    variants: tuple[Variant, ...] = Field(default=(), validation_alias="run")
    measurements: tuple[Measurement, ...] = Field(default=(), validation_alias="measure")
    panels: Mapping[str, PanelFields] = Field(default_factory=dict, validation_alias="panel")
    options: _Settings = Field(default_factory=dict)
    reduced: bool = False

    def jobs_of(self, part: Variant | Measurement) -> tuple[Job, ...]:
        """The jobs of a variant or a measurement, one for each seed."""
        seeds = range(part.seeds or self.seeds)
        return tuple(Job(part.kind, part.settings, seed) for seed in seeds)

    @property
    def parts(self) -> tuple[Variant | Measurement, ...]:
        """Variants and measurements, which have jobs."""
        return (*self.variants, *self.measurements)

    @property
    def named_jobs(self) -> list[tuple[str, Job]]:
        """All jobs with the names of their variants and measurements."""
        return [(part.name, job) for part in self.parts for job in self.jobs_of(part)]

    @property
    def jobs(self) -> tuple[Job, ...]:
        """All jobs, each once."""
        return tuple(dict.fromkeys(job for _, job in self.named_jobs))


_Part = TypeVar("_Part", Variant, Measurement)


def names(folder: Path = SETTINGS) -> tuple[str, ...]:
    """The names of all experiments, in the paper's order; others come last."""
    order = {name: place for place, name in enumerate(texts()["page"]["order"])}
    stems = sorted(path.stem for path in folder.glob("*.toml"))
    return tuple(sorted(stems, key=lambda stem: order.get(stem, len(order))))


def name_of_experiment(name: str, folder: Path = SETTINGS) -> str:
    """The experiment that a user means: by its name, or by its place, as "Figure 3" or "figure3".

    >>> name_of_experiment("figure3"), name_of_experiment("Table 1"), name_of_experiment("mnist")
    ('mnist', 'cpsgd-parameters', 'mnist')
    """
    stems, wanted = names(folder), name.replace(" ", "").lower()
    for stem in stems:
        place = str(read_toml(folder / f"{stem}.toml").get("place"))
        if name == stem or wanted == place.replace(" ", "").lower():
            return stem
    hint = nearest(name, stems, see="python -m paper --list")
    must = "name must be that of an experiment, or of its figure"
    raise ArgumentError(f"{must}, got {name=!r}; {hint}")


def load(name: str, *, reduced: bool, folder: Path = SETTINGS, complete: bool = True) -> Experiment:
    """Read an experiment, by its name.

    Unless `complete`, settings of the runs are neither all checked nor completed with what the
    task and the method have, and nothing heavy is imported.

    Guarantees (`paper/tests/test_experiments.py`): a key that is missing, unknown or of
    another type is an error; all files of the package load.
    """
    path = folder / f"{name}.toml"
    experiment = _read(path)
    variants, measurements = experiment.variants, experiment.measurements
    if complete:
        variants = tuple(_completed(variant, path) for variant in variants)
    if reduced:
        variants, measurements = tuple(map(_less, variants)), tuple(map(_less, measurements))
        experiment = replace(experiment, seeds=1, reduced=True)
    return replace(experiment, variants=variants, measurements=measurements)


_OF_RUNS = {field.name for field in dataclasses.fields(Variant)} - {"settings"}


def _read(path: Path) -> Experiment:
    """The file, with all values of their types."""
    table = read_toml(path)
    common, runs = table.pop("common", {}), table.get("run", ())
    for number, run in enumerate(runs, start=1):
        where = f"{path}: [[run]] {number}:"
        settings = {**common, **{key: run.pop(key) for key in [*run] if key not in _OF_RUNS}}
        if "seed" in settings:
            text = "seed must not be given, since there are as many as seeds says"
            raise DataError(f"{where} {text}, got seed={settings['seed']!r}")
        run["settings"] = checked_table(settings, where)
    try:
        experiment = TypeAdapter(Experiment).validate_python({**table, "name": path.stem})
    except ValidationError as error:
        raise DataError(f"{path}: {mistake_text(error)}") from error
    # Two of the same name would be one: of their facts, the last would be the only ones.
    panels = [(panel, run.name) for run in experiment.variants for panel in run.panels]
    measured = [("[[measure]]", item.name) for item in experiment.measurements]
    for (place, name), count in Counter([*panels, *measured]).items():
        if count > 1:
            raise DataError(f"{path}: name must differ, got {name=!r} twice in {place!r}")
    return experiment


def mistake_text(error: ValidationError) -> str:
    """The first mistake in settings: its place, condition and value."""
    first = error.errors()[0]
    place = " ".join(str(part) for part in first["loc"])
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"unknown key {place!r}, got {first['input']!r}"
    if first["type"] in ("missing", "missing_argument"):
        return f"{place} must be given"
    condition = re.sub(r"^\w+ should", "must", first["msg"].removeprefix("Value error, "))
    return f"{place} {condition}, got {first['input']!r}"


_FEWER = 10  # times fewer rounds and trials in a reduced run
_FEWEST = {"rounds": 2, "evaluate_every": 1, "trials": 2000}


def _less(part: _Part) -> _Part:
    """A variant or a measurement as `--quick` has it."""
    fewer = {
        key: max(part.settings[key] // _FEWER, least)
        for key, least in _FEWEST.items()
        # A run's trials are cpSGD's binomial ones.
        if part.settings.get(key) and not (part.kind == RUN and key == "trials")
    }
    return replace(part, settings={**part.settings, **fewer}, seeds=None)


def _completed(variant: Variant, path: Path) -> Variant:
    """The variant with all that its task and method have."""
    import paper.methods  # noqa: F401 - registers them; PyTorch comes with it
    from diffsketch.app.build import settings_of_methods
    from diffsketch.app.compare import config_of

    try:
        config = config_of(variant.settings, 0)
        whole = with_task_defaults(config, fields=settings_of_methods()[config.method])
    except DiffSketchError as error:
        raise DataError(f"{path}: [[run]] {variant.name!r}: {error}") from error
    kept = {key: value for key, value in whole if value is not None and key != "seed"}
    return replace(variant, settings=kept)


# How long jobs take, roughly: for their order, for the time that is left, and for `--list`.
# Measured on one core of a server of 2023. Nothing but the display and the order depends on it.
_BEGIN = 0.6  # seconds of any job: data, model, files, evaluations
_PROCESS = 4.0  # seconds of a process: imports
_MESSAGE = {"mnist": 0.1, "mnist-devices": 0.1, "shakespeare": 340.0}  # milliseconds, trained
_APPENDED = 0.8  # and of drawing its appended numbers
_FACTOR, _CELLS, _POWER = 25.0, 1300, 2.8  # milliseconds of the factor of so many cells' noise


def seconds_of(job: Job) -> float:
    """Estimate the seconds of one core that a job takes.

    >>> round(seconds_of(Job("run", {"task": "mnist", "method": "none", "rounds": 1000}, 0)), 2)
    1.6
    """
    if job.kind not in (RUN, "masks", "distributions", "local-epsilon"):
        return _BEGIN
    task = str(job.settings.get("task", "mnist"))
    run: dict[str, Any] = {"task": task, **TASK_DEFAULTS[task], **job.settings}
    message = _MESSAGE[task]
    workers = run["workers"] if run["algorithm"] == "sgd" else run["cohort"]
    if run.get("padding"):
        factor = _FACTOR * (run["rows"] * run["cols"] / _CELLS) ** _POWER
        # With the least padding each message has another length, and a factor of its own.
        message += _APPENDED + factor / (1 if run.get("appended") == "least" else workers)
    return float(_BEGIN + run["rounds"] * workers * message / 1000)


def wall_seconds(jobs: Iterable[Job], processes: int) -> float:
    """Estimate the seconds of so many processes, which share the work as well as they can."""
    costs = [seconds_of(job) for job in jobs]
    return _PROCESS + max(sum(costs) / processes, max(costs, default=0.0))


def minutes_text(seconds: float) -> str:
    """A rough time, never less than it is.

    >>> minutes_text(3.2), minutes_text(70), minutes_text(3601)
    ('10 s', '2 min', '61 min')
    """
    if seconds <= 60:
        return f"{10 * math.ceil(seconds / 10)} s"
    return f"{math.ceil(seconds / 60)} min"


def listing(processes: int, folder: Path = SETTINGS) -> tuple[Table | str, ...]:
    """A table of all experiments with rough times for so many processes, and how to read it."""
    table = Table("name", "what it is", title="Experiments", title_justify="left")
    table.add_column("time", justify="right", no_wrap=True)
    every = set[Job]()
    for name in names(folder):
        experiment = load(name, reduced=False, folder=folder, complete=False)
        time = minutes_text(wall_seconds(experiment.jobs, processes))
        table.add_row(name, f"{experiment.title} ({experiment.place})", time)
        every.update(experiment.jobs)
    table.add_section()
    time = minutes_text(wall_seconds(every, processes))
    table.add_row("all", f"each of {len(every):,} jobs once", time)
    with_processes = "1 process" if processes == 1 else f"{processes} processes"
    return table, f"Times are rough, with {with_processes} on cores of a server."
