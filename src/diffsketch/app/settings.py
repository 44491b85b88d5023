"""Settings of a run: each is an option of `diffsketch run` and a key of its TOML file."""

from __future__ import annotations

import contextlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, partial
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeAlias, cast, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from diffsketch.errors import ArgumentError, DataError, did_you_mean, nearest
from diffsketch.training.defaults import TASK_DEFAULTS

Value: TypeAlias = bool | int | float | str | None
METHOD_NAMES = [
    "none", "sketch", "diffsketch", "laplace", "sketch-laplace", "cpsgd", "sketch-gaussian",
    "sketch-skellam", "gaussian", "skellam",
]  # fmt: skip
"""Those of `diffsketch.methods.METHODS`, which takes PyTorch to import."""
FamilyName: TypeAlias = Literal["blocked", "pairwise"]
RelationName: TypeAlias = Literal["replace", "add-or-remove"]
TrustName: TypeAlias = Literal["local", "distributed", "central"]
UnitName: TypeAlias = Literal["coordinate", "example", "person", "client"]
SamplingName: TypeAlias = Literal["weighted", "uniform", "shuffled", "poisson"]

_TYPE_TEXT = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


@dataclass(frozen=True)
class Setting:
    """One option, as the command line and tables need it."""

    name: str
    kind: Any  # type of its values; str if there are choices
    default: Any  # PydanticUndefined if it must be given
    text: str
    flag: str
    choices: Sequence[str] = ()
    section: str = ""  # heading in --help and in files
    means: str = ""  # what the default stands for, if it is not shown as it is
    argument: str = ""  # its name, if it is no option
    hidden: bool = False  # from --help


def option(text: str, *, default: Any = None, **more: Any) -> Any:
    """Field of a model of options: `default=...` if it must be given.

    Its `choices`, if its type does not have them, its `section` and so on are those of a `Setting`;
    what else is given are limits, as pydantic has them.
    """
    names = {field.name for field in fields(Setting)} & more.keys()
    extra: dict[str, Any] = {name: more.pop(name) for name in names}
    return Field(default, description=text, json_schema_extra=extra, **more)


_task, _training, _method, _server, _privacy, _output = (
    partial(option, section=section)
    for section in ("Task", "Training", "Method", "Server", "Privacy", "Output")
)


def _method_name(name: str) -> str:
    if name not in METHOD_NAMES:
        raise ValueError("unknown method")
    return name


class Options(BaseModel):
    """Base of models whose fields are options of a command; errors are an `ArgumentError`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _refusal(type(self), error) from None


class FileOptions(Options):
    """Options of all questions about a file of people."""

    file: Path = option("CSV or Parquet file.", default=..., argument="FILE")
    epsilon: float = option("The most that the answer may tell of a person.", default=..., gt=0)
    delta: float = option(
        "Probability that --epsilon need not cover.", default=1e-6, ge=1e-300, lt=0.5
    )
    person: str | None = option("Column with the person of each row.", means="each row is one")
    account: Path | None = option(
        "File that remembers what was spent on this data, by whichever command; made if missing."
    )
    budget: float | None = option(
        "Epsilon at which the account refuses.", means="what its file has", gt=0
    )
    budget_delta: float = option(
        "Delta of all answers together; of each, --delta is spent.", default=1e-5, gt=0, lt=1
    )
    output: list[Path] = option(
        "File for the answer: .csv, .json, .parquet, or a picture .png or .svg; may be repeated.",
        default=[],
    )


class RunConfig(Options):
    """Settings of a run. `None` stands for the value of the task or the method.

    Guarantees (`tests/app/test_settings.py`): each value has its type and is within its limits;
    text made by `to_toml` gives the same settings back.

    >>> RunConfig(rounds=0)
    Traceback (most recent call last):
        ...
    diffsketch.errors.ArgumentError: rounds must be a whole number >= 1, got rounds=0
    """

    task: Literal["mnist", "mnist-devices", "shakespeare"] = _task(
        "What to learn: MNIST over 10 workers, MNIST* over 6,000 devices, Shakespeare by role.",
        default="mnist",
    )
    model: Literal["logistic", "lstm"] | None = _task("The model.")
    workers: int | None = _task("Workers or devices that hold data.", ge=1)
    samples: int | None = _task("Examples of each worker (MNIST tasks).", ge=1)
    data_dir: str | None = _task(
        "Directory with your own files of the same format.", means="embedded data", min_length=1
    )

    algorithm: Literal["sgd", "fedavg"] | None = _training(
        "Distributed SGD (Algorithm 3) or FedAvg (Algorithm 4)."
    )
    rounds: int | None = _training("Rounds of communication.", ge=1, le=2**32)
    learning_rate: float | None = _training("Step of SGD.", gt=0, le=1e38)
    batch_size: int | None = _training("Examples of a step.", ge=1)
    local_epochs: int | None = _training("Passes over a device's data in a round (fedavg).", ge=1)
    cohort: int | None = _training("Devices of a round (fedavg).", ge=1)
    sampling: SamplingName | None = _training(
        "How a round's devices are drawn: with probabilities by examples, uniformly, in passes "
        "over all of them, or each on its own (fedavg)."
    )
    seed: int = _training(
        "Fixes weights, batches, devices, hashes and noise.", default=0, ge=0, lt=2**63
    )
    device: Literal["cpu", "cuda"] = _training("Where to compute.", default="cpu")
    threads: int = _training(
        "Threads of PyTorch, on which the last bits of results depend; more help large cohorts.",
        default=1,
        ge=1,
        le=1024,
    )

    method: Annotated[str, AfterValidator(_method_name)] = _method(
        "How vectors become messages.", default="diffsketch", choices=METHOD_NAMES
    )
    rows: int | None = _method("Rows of the sketch.", ge=1)
    cols: int | None = _method("Columns of the sketch.", ge=1)
    family: FamilyName | None = _method("Hash family.")
    combine: Literal["mean", "median"] | None = _method(
        "How rows' estimates become one: by default the paper's median for diffsketch, else the "
        "mean."
    )
    hashes: Literal["fresh", "fixed"] = _method(
        "Other hashes every round, or the same ones.", default="fresh"
    )
    per_round: float | None = _method(
        "Epsilon of one message or round, for methods that are set by it.", ge=1e-6
    )
    padding: int | None = _method("Gaussian numbers appended to each vector.", ge=0)
    appended: Literal["fixed", "least"] | None = _method(
        "diffsketch: --padding numbers to every vector, or to each as many of them as it needs."
    )
    method_settings: str | None = _method(
        "Further settings of a method that is registered elsewhere: name=value, with spaces "
        "between.",
        hidden=True,
    )
    clip: float | None = _method("Limit of what a worker contributes.", gt=0, le=1e30)
    clip_quantile: float | None = _method(
        "Share of workers that should not need clipping: --clip is then the first round's, and "
        "follows that quantile of their norms.",
        means="a fixed clip",
        gt=0,
        lt=1,
    )
    noise_multiplier: float | None = _method(
        "Noise over sensitivity.", means="what --budget allows for all rounds", ge=1e-4, le=1e9
    )
    relation: RelationName | None = _method(
        "Whether neighbouring data sets lack a client or have another one."
    )
    trust: TrustName | None = _method("Whom clients trust: nobody, a secure sum or the server.")
    unit: UnitName | None = _method(
        "What is hidden: a client, or each example in it (Gaussian and Skellam noise, sgd).",
        means="client",
    )
    lost: int | None = _method(
        "Silos under distributed trust whose noise the claim does without (--unit example).", ge=0
    )
    rate: float | None = _method(
        "Probability of an example to be in a batch (--unit example).",
        means="batch size over examples",
        gt=0,
        le=1,
        hidden=True,
    )
    records: float | None = _method(
        "Examples of a batch in the mean (--unit example).", means="batch size", gt=0, hidden=True
    )
    bits: int | None = _method(
        "Bits of a cell on the wire.", means="32 for a bare sketch, else the fewest", ge=1, le=62
    )
    cell_limit: float | None = _method(
        "Limit of a rounded cell in the first round, with --bits below 32.",
        means="what suits the first vectors, or where something is claimed 1e-6, to grow",
        gt=0,
    )
    granularity: float | None = _method(
        "Width of a step of whole numbers.", means="by --bits", gt=0
    )
    claimed: float | None = _method(
        "cpsgd: an epsilon of the paper's table, with its k and m.", gt=0
    )
    levels: int | None = _method("cpsgd: levels of a coordinate (k).", ge=2)
    trials: int | None = _method("cpsgd: trials of the binomial noise (m).", ge=1)
    limit: float | None = _method("cpsgd: range of a coordinate (X).", gt=0)
    correction: Literal["off", "shared", "drift"] = _method(
        "The paper's error correction (sgd); not private.", default="off"
    )

    server_step: float = _server("Factor of the mean update.", default=1.0, gt=0, le=1e38)
    schedule: Literal["constant", "sqrt", "linear", "cosine"] = _server(
        "Course of the steps over the rounds.", default="constant"
    )
    momentum: float = _server("Momentum of the mean update.", default=0.0, ge=0, lt=1)
    update_clip: float | None = _server("Largest norm of the mean update.", means="no limit", gt=0)

    budget: float | None = _privacy("Stop before epsilon exceeds this.", means="none", gt=0)
    delta: float = _privacy("Delta of epsilon.", default=1e-5, gt=0, lt=1)

    evaluate_every: int | None = _output("Rounds between evaluations.", ge=1)
    patience: int | None = _output(
        "Stop after this many evaluations in a row without a smaller loss; best.safetensors is "
        "the model of the smallest.",
        means="no early stop",
        ge=1,
    )
    checkpoint_seconds: float = _output(
        "Least time between checkpoints; 0: after every round.", default=5.0, ge=0
    )

    def replaced(self, **values: Any) -> RunConfig:
        """A copy with other values, checked."""
        return type(self)(**{**dict(self), **values})

    @property
    def data_name(self) -> str:
        """The task, or the directory of the user's own data."""
        folder = "" if self.data_dir is None else Path(self.data_dir).resolve().name
        return folder or self.task

    def known(self) -> dict[str, Value]:
        """Settings that have a value."""
        return {name: value for name, value in self if value is not None}


class OwnRun(RunConfig):
    """Settings of a run whose task or method was made in Python, under the names that it has."""

    task: str = _task("Name of the task.", min_length=1)  # type: ignore[assignment]
    method: str = _method("Name of the method.", default="", min_length=1)


def saved_config(values: Mapping[str, Any]) -> RunConfig:
    """Return the settings of a run that was saved, whether or not its task comes along."""
    known = (
        values.get("task", "mnist") in TASK_DEFAULTS
        and values.get("method", "diffsketch") in METHOD_NAMES
    )
    return (RunConfig if known else OwnRun)(**values)


def _refusal(model: type[BaseModel], error: ValidationError) -> ArgumentError:
    """The first mistake that pydantic found: setting, condition and value, in one line."""
    first = error.errors()[0]
    name, value = str(first["loc"][0]), first["input"]
    if first["type"] == "extra_forbidden":
        return ArgumentError(f"unknown key {name!r}; {nearest(name, model.model_fields)}")
    setting = describe(model)[name]

    def number(value: float) -> str:
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"

    if first["type"] == "less_than_equal":  # the largest number that can be computed with
        expected = f"at most {number(first['ctx']['le'])}"
    elif setting.choices:
        expected = f"one of {', '.join(setting.choices)}"
    else:
        limits = [
            f"{sign} {number(limit)}"
            for item in model.model_fields[name].metadata
            for key, sign in (("ge", ">="), ("gt", ">"), ("lt", "<"))
            if (limit := getattr(item, key, None)) is not None
        ]
        expected = " ".join([_TYPE_TEXT[setting.kind], " and ".join(limits)]).strip()
    hint = did_you_mean(str(value), setting.choices)
    said = f"{name} must be {expected}, got {name}={value!r}"
    return ArgumentError(f"{said}; {hint}" if hint else said)


@cache
def describe(model: type[BaseModel]) -> dict[str, Setting]:
    """The options of a model, by name."""
    settings = {}
    for name, field in model.model_fields.items():
        parts, extra = get_args(field.annotation), cast(Any, field.json_schema_extra)
        kind = parts[0] if NoneType in parts else field.annotation
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        more = {"flag": "--" + name.replace("_", "-"), "choices": choices, **extra}
        kind, text = str if more["choices"] else kind, field.description or ""
        settings[name] = Setting(name, kind, field.default, text, **more)
    return settings


def allow_method(name: str) -> None:
    """Let runs have a method that is registered outside of this package."""
    METHOD_NAMES.append(name)


def parse_setting(name: str, text: str) -> Value:
    """The value of a setting from text, such as `7` or `true`; an `ArgumentError` if it is none.

    >>> parse_setting("learning_rate", "1e-2")
    0.01
    """
    value: object = text  # refused as text, if it is no number
    with contextlib.suppress(ValidationError):
        kind: Any = RunConfig.model_fields[name].annotation
        # As the command line parses it, without its messages.
        value = TypeAdapter(kind).validate_strings(text)
    return cast(Value, getattr(RunConfig(**{name: value}), name))  # type: ignore[arg-type]


def read_settings(path: Path) -> dict[str, Value]:
    """The settings in a TOML file, any of the fields of `RunConfig`; a `DataError` for others."""
    return checked_table(read_toml(path), f"{path}:")


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file; a `DataError` if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a TOML file: {error}") from error


def checked_table(table: Mapping[str, object], where: str) -> dict[str, Value]:
    """The table with values in the types of their settings; else a `DataError` about `where`."""
    try:
        config = RunConfig(**table)  # type: ignore[arg-type]
    except ArgumentError as error:
        raise DataError(f"{where} {error}") from error
    return {name: getattr(config, name) for name in table}


def to_toml(config: RunConfig) -> str:
    """All settings that have a value, by section: the file says what was run.

    >>> print(to_toml(RunConfig(rounds=10)).split("seed")[0])
    # Task
    task = "mnist"
    <BLANKLINE>
    # Training
    rounds = 10
    <BLANKLINE>
    """
    parts: dict[str, list[str]] = {}
    for name, value in config.known().items():
        # As in JSON, apart from one letter that TOML wants to be escaped.
        text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        parts.setdefault(describe(RunConfig)[name].section, []).append(f"{name} = {text}")
    return "\n\n".join("\n".join([f"# {title}", *lines]) for title, lines in parts.items()) + "\n"


METHOD_SETTINGS = frozenset(
    name for name, setting in describe(RunConfig).items() if setting.section == "Method"
) - {"method", "method_settings", "hashes", "correction"}
"""All settings that methods may have, called as the methods call them."""

FEDAVG_SETTINGS = ("local_epochs", "cohort", "sampling")


def with_task_defaults(config: RunConfig, *, fields: frozenset[str]) -> RunConfig:
    """The given settings completed with those of the task, for a method with these fields.

    Anything given that the task, the algorithm or the method does not use is an `ArgumentError`.
    """
    defaults = TASK_DEFAULTS[config.task]
    algorithm = config.algorithm or str(defaults["algorithm"])
    unused = dict.fromkeys(METHOD_SETTINGS - fields, f"--method {config.method}")
    only = FEDAVG_SETTINGS if algorithm == "sgd" else ("correction",)
    # Given and not used would be a silent mistake, so each has the option that rules it out.
    unused |= dict.fromkeys(only, f"--algorithm {algorithm}")
    left_out = set(unused)
    if config.task == "shakespeare":
        unused["samples"] = "--task shakespeare"
    # Tables depend on the round's hashes; other messages do not.
    if "rows" not in fields:
        unused["hashes"] = f"--method {config.method}"
    for name, value in config:
        if name in unused and value != RunConfig.model_fields[name].default:
            raise ArgumentError(
                f"{name} must not be given with {unused[name]}, got {name}={value!r}"
            )
    if config.data_dir is not None and config.task == "shakespeare":
        left_out.add("workers")  # as many roles as there are, up to the paper's number
    # cpSGD is set by its own k and m, or by the epsilon of the paper's table.
    if config.levels is not None or config.trials is not None:
        left_out.add("claimed")
    filled: dict[str, Value] = {k: v for k, v in defaults.items() if k not in left_out}
    filled |= config.known()
    if config.data_dir is not None:
        # A run may be continued from elsewhere.
        filled["data_dir"] = str(Path(config.data_dir).resolve())
    return RunConfig(**filled)  # type: ignore[arg-type]
