"""The paper's figures and tables as settings files (TOML), and the jobs that are in them.

Keys of a file; all but those marked are required:

* `title`, `place` ("Figure 3"), `says` (what the paper reads from it): text.
* `drawing`: one of `FIGURES`.
* `seeds`: how many, from 0 on; 5 if not given.
* `[paper]` (optional): the paper's values, text by name; "not given" where it has none.
* `[[deviation]]` (any number): `what` is done otherwise, and `why`.
* `[common]` (optional): settings of `diffsketch run` for every `[[run]]`. As in the files of
  `diffsketch compare`, settings of methods (such as `rows`) go to the methods that have them.
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
* `[quick]` (optional): what `--quick` replaces.

  * `seeds`: instead of the file's, and the most that any `[[measure]]` has.
  * `common`: a table of settings of `diffsketch run`, instead of those of `[common]` and of the
    `[[run]]`s that have the same keys.
  * `measure`: a table, instead of the same keys in the `settings` of every `[[measure]]` that has
    them; one at least has to.
  * `panels`: only the `[[run]]`s in these panels are run, and drawn only there.

There is a `[[run]]` or a `[[measure]]` at least. Settings of runs are completed with what their
task and method have, so that the same run is found to be the same in two files.
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
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

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

# Functions by name, imported when they are used: `--list` needs neither PyTorch nor pictures.
_HERE = "paper"
FIGURES = {
    "curves": f"{_HERE}.figures_trained:draw_curves",
    "choices": f"{_HERE}.figures_trained:draw_choices",
    "accuracy-compression": f"{_HERE}.figures_trained:draw_compression",
    "correction": f"{_HERE}.figures_trained:draw_correction",
    "privacy-communication": f"{_HERE}.figures_private:draw_privacy_communication",
    "local-epsilon": f"{_HERE}.figures_private:draw_local_epsilon",
    "audit": f"{_HERE}.figures_private:draw_audits",
    "successors": f"{_HERE}.successors:draw_successors",
    "distributions": f"{_HERE}.figures:draw_distributions",
    "free": f"{_HERE}.free:draw_free",
    "datasets": f"{_HERE}.figures:draw_datasets",
    "cpsgd-parameters": f"{_HERE}.figures:draw_cpsgd",
    "convergence": f"{_HERE}.figures:draw_convergence",
    "scope": f"{_HERE}.scope:draw_scope",
}
MEASUREMENTS = {
    "distributions": f"{_HERE}.measurements:measure_distributions",
    "local-epsilon": f"{_HERE}.measurements:measure_local_epsilon",
    "datasets": f"{_HERE}.measurements:measure_datasets",
    "cpsgd-parameters": f"{_HERE}.measurements:measure_cpsgd",
    "convergence": f"{_HERE}.measurements:measure_convergence",
    "masks": f"{_HERE}.measurements:measure_masks",
    "audit": f"{_HERE}.audits:measure_audit",
    "scope": f"{_HERE}.scope:measure_scope",
    "successor": f"{_HERE}.successors:measure_successor",
}
_ORDER = (
    "cpsgd", "mnist", "choices", "shakespeare", "accuracy-compression", "privacy-communication",
    "gradients", "updates", "local-epsilon", "datasets", "cpsgd-parameters", "convergence",
    "correction", "audit", "scope", "successors", "free",
)  # fmt: skip  # that of the paper, then what it does not have


def _known_in(functions: Mapping[str, str]) -> Callable[[str], str]:
    """A check that a name is one of these."""

    def known(name: str) -> str:
        if name not in functions:
            raise ValueError(f"must be one of {', '.join(functions)}")
        return name

    return known


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
    kind: Annotated[str, AfterValidator(_known_in(MEASUREMENTS))]
    settings: _Settings = Field(default_factory=dict)  # without the seed
    seeds: _Count | None = None  # how many; the experiment's number if None


@dataclass(frozen=True, config=_STRICT)
class Quick:
    """The `[quick]` table of a settings file."""

    seeds: _Count | None = None
    common: _Settings = Field(default_factory=dict)
    measure: _Settings = Field(default_factory=dict)
    panels: tuple[_Text, ...] = ()


@dataclass(frozen=True, config=_STRICT)
class Experiment:
    """A settings file: one figure or table of the paper. Its module documents the fields."""

    name: str
    title: _Text
    place: _Text
    says: _Text
    drawing: Annotated[str, AfterValidator(_known_in(FIGURES))]
    paper: Mapping[str, _Text] = Field(default_factory=dict)
    deviations: tuple[Deviation, ...] = Field(default=(), validation_alias="deviation")
    seeds: _Count = 5
    variants: tuple[Variant, ...] = Field(default=(), validation_alias="run")
    measurements: tuple[Measurement, ...] = Field(default=(), validation_alias="measure")
    panels: Mapping[str, PanelFields] = Field(default_factory=dict, validation_alias="panel")
    options: _Settings = Field(default_factory=dict)
    common: _Settings = Field(default_factory=dict)
    quick: Quick = Field(default_factory=Quick)
    reduced: bool = False

    def jobs_of(self, part: Variant | Measurement) -> tuple[Job, ...]:
        """The jobs of a variant or a measurement, one for each seed."""
        seeds = range(part.seeds or self.seeds)
        return tuple(Job(part.kind, part.settings, seed) for seed in seeds)

    @property
    def named_jobs(self) -> list[tuple[str, Job]]:
        """All jobs with the names of their variants and measurements."""
        parts: tuple[Variant | Measurement, ...] = (*self.variants, *self.measurements)
        return [(part.name, job) for part in parts for job in self.jobs_of(part)]

    @property
    def jobs(self) -> tuple[Job, ...]:
        """All jobs, each once."""
        return tuple(dict.fromkeys(job for _, job in self.named_jobs))


Lacking = tuple[str, int, int]
"""A run (with its panels) or a measurement, and how many seeds of how many it has."""


def present(experiment: Experiment, results: Results) -> tuple[Experiment, tuple[Lacking, ...]]:
    """The experiment with what has results, and what lacks some.

    Seeds count from 0 on, up to the first that is missing.
    """
    lacking: list[Lacking] = []

    def kept(parts: Iterable[Any]) -> tuple[Any, ...]:
        some = []
        for part in parts:
            jobs = experiment.jobs_of(part)
            count = next((i for i, job in enumerate(jobs) if job not in results), len(jobs))
            if count < len(jobs):
                places = f" ({'; '.join(part.panels)})" if part.kind == RUN else ""
                lacking.append((f"{part.name}{places}", count, len(jobs)))
            some += [replace(part, seeds=count)] if count else []
        return tuple(some)

    variants, measurements = kept(experiment.variants), kept(experiment.measurements)
    return replace(experiment, variants=variants, measurements=measurements), tuple(lacking)


def function_of(place: str) -> Callable[..., Any]:
    """The function at a place of `FIGURES` or `MEASUREMENTS`.

    >>> function_of("json:dumps")([1])
    '[1]'
    """
    module, _, name = place.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def names(folder: Path = SETTINGS) -> tuple[str, ...]:
    """The names of all experiments, in the paper's order; others come last."""
    found = sorted(path.stem for path in folder.glob("*.toml"))
    return (*(one for one in _ORDER if one in found), *(one for one in found if one not in _ORDER))


def name_of_experiment(given: str, folder: Path = SETTINGS) -> str:
    """The experiment that a user means: by its name, or by its place, as "Figure 3" or "figure3".

    >>> name_of_experiment("figure3"), name_of_experiment("Table 1"), name_of_experiment("mnist")
    ('mnist', 'cpsgd-parameters', 'mnist')
    """
    known = names(folder)
    if given in known:
        return given
    for name in known:
        place = str(read_toml(folder / f"{name}.toml").get("place"))
        if place.replace(" ", "").lower() == given.replace(" ", "").lower():
            return name
    hint = nearest(given, known, see="python -m paper --list")
    raise ArgumentError(
        f"name must be that of an experiment, or of its figure, got name={given!r}; {hint}"
    )


def load(name: str, *, reduced: bool, folder: Path = SETTINGS, complete: bool = True) -> Experiment:
    """Read an experiment, by its name.

    Unless `complete`, settings of the runs are neither all checked nor completed with what the
    task and the method have, and nothing heavy is imported.

    Guarantees (`paper/tests/test_experiments.py`): a key that is missing, unknown or of
    another type is an error; all files of the package load.
    """
    path = folder / f"{name}.toml"
    found = _read(path)
    found = _less(found) if reduced else found
    variants = [replace(one, settings={**found.common, **one.settings}) for one in found.variants]
    if complete and variants:
        variants = _complete(found, path)
    if reduced and (kept := found.quick.panels):
        panels = [tuple(panel for panel in one.panels if panel in kept) for one in variants]
        both = zip(variants, panels, strict=True)
        variants = [replace(one, panels=some) for one, some in both if some]
    return replace(found, variants=tuple(variants))


_OF_RUNS = ("name", "panels", "group", "reading", "seeds")


def _read(path: Path) -> Experiment:
    """The file, with all values of their types."""
    table = read_toml(path)
    runs = []
    for number, run in enumerate(table.get("run", ()), start=1):
        own = {key: run[key] for key in _OF_RUNS if key in run}
        settings = {key: value for key, value in run.items() if key not in own}
        runs.append({**own, "settings": _settings_of(settings, f"{path}: [[run]] {number}:")})
    table |= {"name": path.stem, "run": runs}
    table["common"] = _settings_of(table.get("common", {}), f"{path}: [common]:")
    try:
        found = TypeAdapter(Experiment).validate_python(table)
    except ValidationError as error:
        raise DataError(f"{path}: {mistake_text(error)}") from error
    # Two of the same name would be one: of their facts, the last would be the only ones.
    named = [*((panel, one.name) for one in found.variants for panel in one.panels),
             *(("[[measure]]", one.name) for one in found.measurements)]  # fmt: skip
    for (place, name), count in Counter(named).items():
        if count > 1:
            raise DataError(f"{path}: name must differ, got {name=!r} twice in {place!r}")
    return found


def _settings_of(table: Mapping[str, Any], where: str) -> dict[str, Value]:
    if "seed" in table:
        text = "seed must not be given, since there are as many as seeds says"
        raise DataError(f"{where} {text}, got seed={table['seed']!r}")
    return checked_table(table, where)


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


def _less(full: Experiment) -> Experiment:
    """The experiment as `--quick` has it.

    Runs that are left out keep their panels until settings are completed: common settings may be
    theirs alone.
    """
    quick, seeds = full.quick, full.quick.seeds or full.seeds

    def replaced(settings: Mapping[str, Any], instead: Mapping[str, Any]) -> dict[str, Any]:
        return {key: instead.get(key, value) for key, value in settings.items()}

    return replace(
        full,
        seeds=seeds,
        common={**full.common, **quick.common},
        variants=tuple(
            replace(one, settings=replaced(one.settings, quick.common), seeds=None)
            for one in full.variants
        ),
        measurements=tuple(
            replace(one, settings=replaced(one.settings, quick.measure),
                    seeds=one.seeds and min(one.seeds, seeds))
            for one in full.measurements
        ),
        reduced=True,
    )  # fmt: skip


def _complete(experiment: Experiment, path: Path) -> list[Variant]:
    """The variants with the common settings, and with what the task and the method have."""
    import paper.readings
    import paper.repaired
    import paper.rotated  # noqa: F401 - all register methods; PyTorch comes with them
    from diffsketch.app.build import settings_of_methods
    from diffsketch.app.compare import config_of, contenders_of

    fields_of = settings_of_methods()
    # By number: in different panels there may be the same names.
    each = [(str(index), one.settings) for index, one in enumerate(experiment.variants)]
    try:
        contenders = contenders_of(experiment.common, each, fields_of=fields_of)
    except DiffSketchError as error:
        raise DataError(f"{path}: [common]: {error}") from error
    found = []
    for variant, (index, own) in zip(experiment.variants, contenders.items(), strict=True):
        try:
            config = config_of(own, 0)
            whole = with_task_defaults(config, fields=fields_of[config.method])
        except DiffSketchError as error:
            where = f"{path}: [[run]] {int(index) + 1} ({variant.name})"
            raise DataError(f"{where}: {error}") from error
        kept = {key: value for key, value in whole if value is not None and key != "seed"}
        found.append(replace(variant, settings=kept))
    return found


# How long jobs take, roughly: for their order, for the time that is left, and for `--list`.
# Measured on one core of a server of 2023. Nothing but the display and the order depends on it.
_BEGIN = 0.3  # seconds of any job: data, model, files
_PROCESS = 4.0  # seconds of a process: imports
_MEASUREMENT = 2.0  # seconds of one that trains nothing
_DEVICE = {"mnist": 0.04, "mnist-devices": 0.04, "shakespeare": 400.0}  # milliseconds of a round
_EVALUATION = {"mnist": 10.0, "mnist-devices": 10.0, "shakespeare": 750.0}
_MESSAGE = {"none": 0.0, "sketch": 0.02, "cpsgd": 0.5, "skellam": 0.7, "gaussian": 0.7}
_OTHERS = 0.1  # milliseconds of a message of other methods
_CORRECTION = 0.3
_PADDED, _CELLS, _POWER = 0.4, 154, 1.4  # milliseconds of a message of so many cells, and of more


def seconds_of(job: Job) -> float:
    """Estimate the seconds of one core that a job takes.

    >>> round(seconds_of(Job("run", {"task": "mnist", "method": "none", "rounds": 1000}, 0)), 2)
    0.82
    """
    if job.kind not in (RUN, "masks", "distributions", "local-epsilon"):
        return _BEGIN + _MEASUREMENT
    task = str(job.settings.get("task", "mnist"))
    given: dict[str, Any] = {"task": task, **TASK_DEFAULTS[task], **job.settings}
    rounds = given.get("fedavg_rounds", given["rounds"])
    workers = given["workers"] if given["algorithm"] == "sgd" else given["cohort"]
    message = _MESSAGE.get(given.get("method", "diffsketch"), _OTHERS)
    if given.get("correction", "off") != "off":
        message += _CORRECTION
    if given.get("padding"):
        message += _PADDED * (given["rows"] * given["cols"] / _CELLS) ** _POWER
    total = rounds * workers * (_DEVICE[task] + message)
    if job.kind in (RUN, "masks"):  # the others look at vectors, and evaluate nothing
        total += (2 + rounds / given["evaluate_every"]) * _EVALUATION[task]
    return float(_BEGIN + total / 1000)


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
    table = Table(title="Experiments", title_justify="left", pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what it is")
    for heading in ("jobs", "time", "--quick"):
        table.add_column(heading, justify="right", no_wrap=True)

    def row(name: str, text: str, *jobs: Iterable[Job]) -> None:
        times = [minutes_text(wall_seconds(some, processes)) for some in jobs]
        table.add_row(name, text, str(len(list(jobs[0]))), *times)

    every: tuple[set[Job], set[Job]] = (set(), set())
    for name in names(folder):
        both = [load(name, reduced=less, folder=folder, complete=False) for less in (False, True)]
        row(name, f"{both[0].title} ({both[0].place})", both[0].jobs, both[1].jobs)
        for all_of_them, one in zip(every, both, strict=True):
            all_of_them.update(one.jobs)
    if every[0]:
        table.add_section()
        row("all", "each job once", *every)
    with_processes = "1 process" if processes == 1 else f"{processes} processes"
    return table, f"Times are rough, with {with_processes} on cores of a server."
