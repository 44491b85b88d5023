"""Settings of a run: every one an option of `diffsketch run` and a key of its TOML file."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import tomllib
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, get_args, get_type_hints

from diffsketch.errors import ArgumentError, DataError

Value: TypeAlias = bool | int | float | str | None

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
_BOOLEANS = {"true": True, "false": False}
_LISTED = 12  # names in an error


def setting(
    default: Any,
    text: str,
    section: str,
    *,
    choices: tuple[str, ...] = (),
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    cap: float | None = None,
    means: str | None = None,
) -> Any:
    """A field of a dataclass that is a setting.

    Args:
        default: Its value if none is given.
        text: What it is, for `--help`.
        section: Where `--help` shows it.
        choices: The only texts allowed.
        least: The smallest number allowed.
        above: A number that it has to exceed.
        most: The largest number allowed.
        below: A number that it has to stay below.
        cap: The largest number that can be computed with; said only where it is exceeded.
        means: What a default of None stands for, if not: what the task or the method has.
    """
    limits = {"least": least, "above": above, "most": most, "below": below, "cap": cap}
    rest = {"help": text, "section": section, "choices": choices, "means": means}
    return field(default=default, metadata={**rest, **limits})


@dataclass(frozen=True)
class Setting:
    """One setting, as its field describes it.

    Args:
        name: Of the field.
        kind: `bool`, `int`, `float` or `str`.
        optional: Whether None is allowed.
        default: Its value if none is given.
        metadata: What `setting` was given.
    """

    name: str
    kind: type
    optional: bool
    default: Value
    metadata: types.MappingProxyType[str, Any]

    @property
    def flag(self) -> str:
        """As the command line spells it."""
        return "--" + self.name.replace("_", "-")

    @property
    def choices(self) -> tuple[str, ...]:
        """The only texts allowed; empty if any is."""
        return tuple(self.metadata["choices"])

    @property
    def shown_default(self) -> str:
        """For `--help`; empty if it is the task's or the method's."""
        if self.default is None:
            return str(self.metadata["means"] or "")
        return f"{self.default:g}" if self.kind is float else str(self.default)

    @property
    def expected(self) -> str:
        """What its values have to be, in words.

        >>> from diffsketch.app.settings import RunConfig
        >>> describe(RunConfig)["rounds"].expected
        'a whole number >= 1'
        """
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        signs = (("least", ">="), ("above", ">"), ("most", "<="), ("below", "<"))
        limits = [
            f"{sign} {self.metadata[name]:g}"
            for name, sign in signs
            if self.metadata[name] is not None
        ]
        return " ".join([_WORDS[self.kind], " and ".join(limits)]).strip()

    def checked(self, value: object) -> Value:
        """The value, in the type that it should have: a whole number may stand for a float.

        Raises:
            ArgumentError: It is of another type, or outside the limits.
        """
        if value is None and self.optional:
            return None
        if self.kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value) if abs(value) < 10**308 else math.inf  # refused below
        good = isinstance(value, self.kind) and (self.kind is bool or not isinstance(value, bool))
        name, cap = self.name, self.metadata["cap"]
        if good and cap is not None and cap < value < math.inf:  # type: ignore[operator]
            most = f"{cap:,}" if isinstance(cap, int) else f"{cap:g}"
            raise ArgumentError(f"{name} must be at most {most}, got {name}={value!r}")
        if not good or not self._within(value):
            raise ArgumentError(f"{name} must be {self.expected}, got {name}={value!r}")
        return value  # type: ignore[return-value]

    def parsed(self, text: str) -> Value:
        """The value that a text stands for, such as `7` or `true`.

        >>> from diffsketch.app.settings import RunConfig
        >>> describe(RunConfig)["learning_rate"].parsed("1e-2")
        0.01

        Raises:
            ArgumentError: It stands for none.
        """
        value: object = text
        try:
            if self.kind is bool:
                value = _BOOLEANS.get(text.lower(), text)
            elif self.kind is not str:
                value = self.kind(text)
        except ValueError:
            pass  # refused below, as a text
        return self.checked(value)

    def _within(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        if self.kind is str:
            # What cannot be written to a file as UTF-8 could not be resumed.
            return bool(value) and not any("\ud800" <= letter <= "\udfff" for letter in value)
        limits = self.metadata
        return bool(
            self.kind is bool
            or (
                (self.kind is int or math.isfinite(value))
                and (limits["least"] is None or value >= limits["least"])
                and (limits["above"] is None or value > limits["above"])
                and (limits["most"] is None or value <= limits["most"])
                and (limits["below"] is None or value < limits["below"])
            )
        )


@lru_cache
def describe(config: type) -> dict[str, Setting]:
    """The settings of a dataclass, by name."""
    hints = get_type_hints(config)
    found = {}
    for item in dataclasses.fields(config):
        kinds = get_args(hints[item.name]) or (hints[item.name],)
        optional = type(None) in kinds
        (kind,) = (kind for kind in kinds if kind is not type(None))
        default: Any = item.default
        found[item.name] = Setting(item.name, kind, optional, default, item.metadata)
    return found


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint at what an unknown name may have meant.

    >>> nearest("round", ["rounds", "rows", "seed"])
    'did you mean rounds?'
    """
    names = list(names)
    close = difflib.get_close_matches(name.replace("-", "_"), names, n=2, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return (
        f"there are {', '.join(names)}" if len(names) <= _LISTED else "see --help for all of them"
    )


def read_settings(path: Path) -> dict[str, Value]:
    """The settings in a file of a run: any of the fields of `RunConfig`, by name.

    Raises:
        DataError: It cannot be read, is no TOML, or has a key or value that is none of a run.
    """
    return checked_table(read_toml(path), f"{path}:")


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file.

    Raises:
        DataError: It cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a TOML file: {error}") from error


def checked_table(table: Mapping[str, object], where: str) -> dict[str, Value]:
    """The table with values in the types of their settings.

    Args:
        table: Names and values, as they were read.
        where: What errors begin with: the file, or the place in it.

    Raises:
        DataError: A key is unknown, or a value is not what its setting expects.
    """
    known = describe(RunConfig)
    values = {}
    for name, value in table.items():
        if name not in known:
            raise DataError(f"{where} unknown key {name!r}; {nearest(name, known)}")
        try:
            values[name] = known[name].checked(value)
        except ArgumentError as error:
            raise DataError(f"{where} {error}") from error
    return values


def to_toml(config: RunConfig) -> str:
    """All settings that have a value, by section, so that the file says what was run.

    >>> print(to_toml(RunConfig(rounds=10)).split("seed")[0])
    # Task
    task = "mnist"
    <BLANKLINE>
    # Training
    rounds = 10
    <BLANKLINE>
    """
    parts: dict[str, list[str]] = {}
    for name, value in dataclasses.asdict(config).items():
        if value is not None:
            section = describe(RunConfig)[name].metadata["section"]
            parts.setdefault(section, []).append(f"{name} = {_toml_value(value)}")
    return "\n\n".join("\n".join([f"# {title}", *lines]) for title, lines in parts.items()) + "\n"


def _toml_value(value: Value) -> str:
    if isinstance(value, str):
        # As in JSON, apart from one letter that TOML wants to be escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


METHOD_NAMES = (
    "none",
    "sketch",
    "diffsketch",
    "diffsketch-proven",
    "laplace",
    "sketch-laplace",
    "cpsgd",
    "sketch-gaussian",
    "sketch-skellam",
    "gaussian",
    "skellam",
    "projunit",
)
"""Those of `diffsketch.methods.registry`, which takes PyTorch to import."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What to train, how, with which method. `None` means: what the task or the method has.

    The task's own values are the paper's hyper-parameters (`diffsketch.app.settings`).

    Guarantees (`tests/app/test_config.py`): each value has its type and is within its limits; text
    made by `to_toml` gives the same settings back.

    Raises:
        ArgumentError: A value is not what its setting expects.

    >>> RunConfig(rounds=0)
    Traceback (most recent call last):
        ...
    diffsketch.errors.ArgumentError: rounds must be a whole number >= 1, got rounds=0
    """

    # What is learnt
    task: str = setting(
        "mnist",
        "What to learn: MNIST over 10 workers, MNIST* over 6,000 devices, Shakespeare by role.",
        "Task",
        choices=("mnist", "mnist-devices", "shakespeare"),
    )
    model: str | None = setting(
        None, "The model.", "Task", choices=("logistic", "cnn", "lstm", "gru")
    )
    workers: int | None = setting(None, "Workers or devices that hold data.", "Task", least=1)
    samples: int | None = setting(None, "Examples of each worker (MNIST tasks).", "Task", least=1)
    data_dir: str | None = setting(
        None, "Directory with your own files of the same format.", "Task", means="embedded data"
    )

    # How
    algorithm: str | None = setting(
        None,
        "Distributed SGD (Algorithm 3) or FedAvg (Algorithm 4).",
        "Training",
        choices=("sgd", "fedavg"),
    )
    rounds: int | None = setting(None, "Rounds of communication.", "Training", least=1, cap=2**32)
    learning_rate: float | None = setting(None, "Step of SGD.", "Training", above=0, cap=1e38)
    batch_size: int | None = setting(None, "Examples of a step.", "Training", least=1)
    local_epochs: int | None = setting(
        None, "Passes over a device's data in a round (fedavg).", "Training", least=1
    )
    cohort: int | None = setting(None, "Devices of a round (fedavg).", "Training", least=1)
    sampling: str | None = setting(
        None,
        "How a round's devices are drawn: with probabilities by examples, uniformly, in passes "
        "over all of them, or each on its own (fedavg).",
        "Training",
        choices=("weighted", "uniform", "shuffled", "poisson"),
    )
    seed: int = setting(
        0, "Fixes weights, batches, devices, hashes and noise.", "Training", least=0, below=2**63
    )
    device: str = setting("cpu", "Where to compute.", "Training", choices=("cpu", "cuda"))
    threads: int = setting(
        1,
        "Threads of PyTorch, on which the last bits of results depend; more help large cohorts.",
        "Training",
        least=1,
        cap=1024,
    )

    # The method
    method: str = setting(
        "diffsketch", "How vectors become messages.", "Method", choices=METHOD_NAMES
    )
    rows: int | None = setting(None, "Rows of the sketch.", "Method", least=1)
    cols: int | None = setting(None, "Columns of the sketch.", "Method", least=1)
    family: str | None = setting(None, "Hash family.", "Method", choices=("blocked", "pairwise"))
    combine: str | None = setting(
        None,
        "How rows' estimates become one: by default the paper's median for diffsketch, else the "
        "mean.",
        "Method",
        choices=("mean", "median"),
    )
    hashes: str = setting(
        "fresh", "Other hashes every round, or the same ones.", "Method", choices=("fresh", "fixed")
    )
    per_round: float | None = setting(
        None,
        "Epsilon of one message or round, for methods that are set by it.",
        "Method",
        least=1e-6,
    )
    padding: int | None = setting(
        None, "Gaussian numbers appended to each vector.", "Method", least=0
    )
    std: float | None = setting(None, "Standard deviation of appended numbers.", "Method", above=0)
    clip: float | None = setting(
        None, "Limit of what a worker contributes.", "Method", above=0, cap=1e30
    )
    clip_quantile: float | None = setting(
        None,
        "Share of workers that should not need clipping: --clip is then the first round's, and "
        "follows that quantile of their norms.",
        "Method",
        above=0,
        below=1,
        means="a fixed clip",
    )
    noise_multiplier: float | None = setting(
        None,
        "Noise over sensitivity.",
        "Method",
        least=1e-4,
        cap=1e9,
        means="what --budget allows for all rounds",
    )
    relation: str | None = setting(
        None,
        "Whether neighbouring data sets lack a client or have another one.",
        "Method",
        choices=("replace", "add-or-remove"),
    )
    trust: str | None = setting(
        None,
        "Whom clients trust: nobody, a secure sum or the server.",
        "Method",
        choices=("local", "distributed", "central"),
    )
    bits: int | None = setting(
        None, "Bits of a whole number on the wire.", "Method", least=1, most=62, means="the fewest"
    )
    granularity: float | None = setting(
        None, "Width of a step of whole numbers.", "Method", above=0, means="by --bits"
    )
    claimed: float | None = setting(
        None,
        "cpsgd: an epsilon of the paper's table, with its k and m.",
        "Method",
        above=0,
    )
    levels: int | None = setting(None, "cpsgd: levels of a coordinate (k).", "Method", least=2)
    trials: int | None = setting(
        None, "cpsgd: trials of the binomial noise (m).", "Method", least=1
    )
    limit: float | None = setting(None, "cpsgd: range of a coordinate (X).", "Method", above=0)
    rotate: bool | None = setting(None, "cpsgd: rotate vectors first.", "Method")
    size: int | None = setting(None, "projunit: numbers of a message.", "Method", least=1)
    correction: str = setting(
        "off",
        "The paper's error correction (sgd); not private.",
        "Method",
        choices=("off", "shared", "drift"),
    )

    # What the server does with the mean
    server_step: float = setting(1.0, "Factor of the mean update.", "Server", above=0, cap=1e38)
    schedule: str = setting(
        "constant",
        "Of the steps over the rounds.",
        "Server",
        choices=("constant", "sqrt", "linear", "cosine"),
    )
    momentum: float = setting(0.0, "Of the mean update.", "Server", least=0, below=1)
    update_clip: float | None = setting(
        None, "Largest norm of the mean update.", "Server", above=0, means="no limit"
    )
    averaging: float = setting(
        0.0, "Weight of the past in the averaged model; 0 is off.", "Server", least=0, below=1
    )
    top_k: int | None = setting(
        None,
        "Coordinates that are taken from the table a round, the rest being kept in it (FetchSGD).",
        "Server",
        least=1,
        means="off",
    )
    table_momentum: float = setting(
        0.0, "Momentum in sketch space (with --top-k).", "Server", least=0, below=1
    )

    # Privacy of the whole run
    budget: float | None = setting(
        None, "Stop before epsilon exceeds this.", "Privacy", above=0, means="none"
    )
    delta: float = setting(1e-5, "Delta of epsilon.", "Privacy", above=0, below=1)

    # What is written
    evaluate_every: int | None = setting(None, "Rounds between evaluations.", "Output", least=1)
    checkpoint_seconds: float = setting(
        5.0, "Least time between checkpoints; 0: after every round.", "Output", least=0
    )

    def __post_init__(self) -> None:
        for name, item in describe(RunConfig).items():
            object.__setattr__(self, name, item.checked(getattr(self, name)))

    def given(self) -> dict[str, Value]:
        """The settings that are not as they are by default."""
        values = dataclasses.asdict(self)
        known = describe(RunConfig)
        return {name: value for name, value in values.items() if value != known[name].default}


METHOD_SETTINGS = frozenset(
    name for name, item in describe(RunConfig).items() if item.metadata["section"] == "Method"
) - {"method", "hashes", "correction"}
"""What a method may have, called as the method calls it."""

_FEDAVG_ONLY = ("local_epochs", "cohort", "sampling")
_SGD_ONLY = ("correction",)

TASK_DEFAULTS: dict[str, dict[str, Value]] = {
    "mnist": {
        "model": "logistic",
        "workers": 10,
        "samples": 200,
        "algorithm": "sgd",
        "rounds": 5000,
        "learning_rate": 0.01,
        "batch_size": 10,
        "local_epochs": 1,
        "cohort": 10,
        "sampling": "weighted",
        "rows": 7,
        "cols": 22,
        "per_round": 1.0,
        "evaluate_every": 100,
    },
    "mnist-devices": {
        "model": "logistic",
        "workers": 6000,
        "samples": 10,
        "algorithm": "fedavg",
        "rounds": 3000,
        "learning_rate": 0.01,
        "batch_size": 10,
        "local_epochs": 1,
        "cohort": 10,
        "sampling": "weighted",
        "rows": 10,
        "cols": 78,
        "per_round": 5.0,
        "claimed": 5.0,
        "evaluate_every": 100,
    },
    "shakespeare": {
        "model": "lstm",
        "workers": 46,
        "algorithm": "fedavg",
        "rounds": 250,
        "learning_rate": 0.8,
        "batch_size": 10,
        "local_epochs": 1,
        "cohort": 1,
        "sampling": "weighted",
        "rows": 10,
        "cols": 190,
        "per_round": 1.0,
        "evaluate_every": 10,
    },
}
"""By task. Sizes and epsilon are taken by methods that have them."""


def with_task_defaults(config: RunConfig, *, fields: frozenset[str]) -> RunConfig:
    """The settings with what the task has, where nothing is given.

    Args:
        config: What is given.
        fields: The settings of the method.

    Raises:
        ArgumentError: Something is given that the task, the algorithm or the method does not use.
    """
    defaults = TASK_DEFAULTS[config.task]
    algorithm = config.algorithm or defaults["algorithm"]
    _check_used(config, algorithm=str(algorithm), fields=fields)
    unused = set(_FEDAVG_ONLY) if algorithm == "sgd" else set()
    unused |= METHOD_SETTINGS - fields
    if config.data_dir is not None and config.task == "shakespeare":
        unused.add("workers")  # as many roles as there are, up to the paper's number
    if config.levels is not None or config.trials is not None:
        unused.add("claimed")
    filled: dict[str, Any] = {
        name: value
        for name, value in defaults.items()
        if getattr(config, name) is None and name not in unused
    }
    if config.data_dir is not None:
        # A run may be continued from elsewhere.
        filled["data_dir"] = str(Path(config.data_dir).resolve())
    return dataclasses.replace(config, **filled)


def _check_used(config: RunConfig, *, algorithm: str, fields: frozenset[str]) -> None:
    given = config.given()
    names = _FEDAVG_ONLY if algorithm == "sgd" else _SGD_ONLY
    for name in names:
        if name in given:
            raise _unused(name, given[name], f"--algorithm {algorithm}")
    for name in METHOD_SETTINGS - fields:
        if name in given:
            raise _unused(name, given[name], f"--method {config.method}")
    if config.task == "shakespeare" and "samples" in given:
        raise _unused("samples", given["samples"], "--task shakespeare")
    if config.top_k is None and "table_momentum" in given:
        raise ArgumentError(
            "table_momentum must be 0 without --top-k, got "
            f"table_momentum={given['table_momentum']!r}"
        )
    if config.top_k is not None and "momentum" in given:
        raise _unused("momentum", given["momentum"], "--top-k, which has --table-momentum")
    if not uses_hashes(config, fields) and "hashes" in given:
        raise _unused("hashes", given["hashes"], f"--method {config.method}")


def uses_hashes(config: RunConfig, fields: frozenset[str]) -> bool:
    """Whether messages depend on the round's hashes: tables, projections and rotations do."""
    return bool(fields & {"rows", "size"} or config.rotate)


def _unused(name: str, value: object, because: str) -> ArgumentError:
    return ArgumentError(f"{name} must not be given with {because}, got {name}={value!r}")
