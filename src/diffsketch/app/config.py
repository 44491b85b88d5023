"""The settings of a run: every one a flag of `diffsketch run` and a key of its TOML file.

Imports nothing heavy, so that `--help` is quick.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from diffsketch.app.settings import Value, describe, setting

__all__ = ["METHOD_NAMES", "RunConfig"]

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

    The task's own values are the paper's hyper-parameters (`diffsketch.app.defaults`).

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
