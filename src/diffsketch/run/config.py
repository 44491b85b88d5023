"""The settings of a run: every one a flag of `diffsketch run` and a key of its TOML file.

Imports nothing heavy, so that `--help` is quick.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["RunConfig"]


def _setting(default: Any, text: str, section: str) -> Any:
    return field(default=default, metadata={"help": text, "section": section})


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What to train, how, with which method. `None` means: what the task or the method has.

    The task's own values are the paper's hyper-parameters.
    """

    # What is learnt
    task: str = _setting("mnist", "mnist, mnist-devices (MNIST*) or shakespeare.", "task")
    model: str | None = _setting(None, "logistic, cnn, lstm or gru.", "task")
    workers: int | None = _setting(None, "Devices that hold data.", "task")
    samples: int | None = _setting(None, "Examples of each device (MNIST tasks).", "task")
    data_dir: str | None = _setting(None, "Your own files of the same format.", "task")

    # How
    algorithm: str | None = _setting(None, "sgd (Algorithm 3) or fedavg (Algorithm 4).", "training")
    rounds: int | None = _setting(None, "Rounds of communication.", "training")
    learning_rate: float | None = _setting(None, "Step of SGD.", "training")
    batch_size: int | None = _setting(None, "Examples of a step.", "training")
    local_epochs: int | None = _setting(None, "Passes over a device's data (fedavg).", "training")
    cohort: int | None = _setting(None, "Devices of a round (fedavg).", "training")
    sampling: str | None = _setting(
        None, "Of devices: weighted (by examples), uniform, shuffled or poisson.", "training"
    )
    seed: int = _setting(0, "Fixes weights, batches, devices, hashes and noise.", "training")
    device: str = _setting("cpu", "cpu or cuda.", "training")

    # The method
    method: str = _setting("diffsketch", "How vectors become messages.", "method")
    rows: int | None = _setting(None, "Rows of the sketch.", "method")
    cols: int | None = _setting(None, "Columns of the sketch.", "method")
    family: str | None = _setting(None, "Hash family: blocked or pairwise.", "method")
    combine: str | None = _setting(None, "Of the rows' estimates: mean or median.", "method")
    hashes: str = _setting("fresh", "Hashes of the rounds: fresh, or fixed.", "method")
    per_round: float | None = _setting(
        None, "Epsilon of one message or round, where the method is set by it.", "method"
    )
    padding: int | None = _setting(None, "Gaussian numbers appended to each vector.", "method")
    std: float | None = _setting(None, "Standard deviation of appended numbers.", "method")
    clip: float | None = _setting(None, "Limit of what a worker contributes.", "method")
    noise_multiplier: float | None = _setting(
        None, "Noise over sensitivity; found from the budget if not given.", "method"
    )
    relation: str | None = _setting(None, "replace or add-or-remove.", "method")
    trust: str | None = _setting(None, "local, distributed or central.", "method")
    bits: int | None = _setting(None, "Of a whole number on the wire.", "method")
    levels: int | None = _setting(None, "cpsgd: levels of a coordinate (k).", "method")
    trials: int | None = _setting(None, "cpsgd: trials of the binomial noise (m).", "method")
    limit: float | None = _setting(None, "cpsgd: range of a coordinate (X).", "method")
    rotate: bool | None = _setting(None, "cpsgd: rotate vectors first.", "method")
    size: int | None = _setting(None, "projunit: numbers of a message.", "method")
    correction: str = _setting(
        "off", "The paper's error correction: off, shared or drift; not private.", "method"
    )

    # What the server does with the mean
    server_step: float = _setting(1.0, "Factor of the mean update.", "server")
    schedule: str = _setting("constant", "Of steps: constant, sqrt, linear or cosine.", "server")
    momentum: float = _setting(0.0, "Of the mean update.", "server")
    update_clip: float | None = _setting(None, "Largest norm of the mean update.", "server")
    averaging: float = _setting(0.0, "Weight of the past in the averaged model; 0: off.", "server")
    top_k: int | None = _setting(
        None, "Coordinates extracted from the table a round (FetchSGD).", "server"
    )
    table_momentum: float = _setting(0.0, "Momentum in sketch space (with top_k).", "server")

    # Privacy of the whole run
    budget: float | None = _setting(None, "Stop before epsilon exceeds this.", "privacy")
    delta: float = _setting(1e-5, "Delta of epsilon.", "privacy")

    # What is written
    evaluate_every: int | None = _setting(None, "Rounds between evaluations.", "output")
    checkpoint_seconds: float = _setting(5.0, "Between checkpoints, at least.", "output")
