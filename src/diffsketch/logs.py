"""One report for each round, the same from every engine, and where it goes.

A function is called with a `RoundSummary` after each round: `Simulation.run` and `train` take it as
`on_round=`; it is an attribute of `GroupMean` (the hook's `state.mean`, each of `LocalSteps.means`)
and of Flower's `SketchStrategy`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from diffsketch.errors import ArgumentError
from diffsketch.privacy.claim import Epsilon


@dataclass(frozen=True)
class RoundSummary:
    """Report of a round. What an engine does not know is None.

    Attributes:
        round: Rounds so far, this one included.
        loss: Loss after the round, if it was measured; may be NaN.
        accuracy: Accuracy after the round, from 0 to 1, if it was measured.
        bytes_up: Bytes from all participants since the start, headers included.
        bytes_down: Bytes to all participants since the start, headers included.
        epsilon: Cost of all rounds so far for the one who paid most, with its words.
        refused: Participants whose message did not count in this round, and why.
        seconds: Duration of this round, without evaluation.
    """

    round: int
    loss: float | None = None
    accuracy: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    epsilon: Epsilon | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = None

    def row(self) -> dict[str, Any]:
        """Return numbers and texts only, the same keys in every round: a row of a data frame.

        >>> RoundSummary(1, bytes_up=640).row()["bytes_up"]
        640
        """
        epsilon = self.epsilon
        return {
            "round": self.round,
            "loss": self.loss,
            "accuracy": self.accuracy,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "epsilon": None if epsilon is None else float(epsilon),
            "delta": None if epsilon is None else epsilon.delta,
            "guarantee": "" if epsilon is None else epsilon.text("short"),
            "refused": len(self.refused),
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        """Format in a line, without what is unknown.

        >>> str(RoundSummary(3, accuracy=0.5, bytes_up=640, bytes_down=664))
        'round 3 | accuracy 50.0% | up 640 B, down 664 B'
        """
        parts = [f"round {self.round:,}"]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4g}")
        if self.accuracy is not None:
            parts.append(f"accuracy {self.accuracy:.1%}")
        parts.append(f"up {self.bytes_up:,} B, down {self.bytes_down:,} B")
        if self.epsilon is not None:
            parts.append(self.epsilon.text("short"))
        return " | ".join(parts)


OnRound: TypeAlias = Callable[[RoundSummary], object]
"""A function that an engine calls after each round; its result is not used."""


def announce(summary: RoundSummary, on_round: OnRound | None, logger: logging.Logger) -> None:
    """Log a round and each refusal in it, then call `on_round`.

    An error in `on_round` ends the training; the round has happened, and is paid for.
    """
    logger.info("%s", summary)
    for name, reason in summary.refused.items():
        logger.warning("round %d: %s does not count: %s", summary.round, name, reason)
    if on_round is not None:
        on_round(summary)


def stalled(losses: Sequence[float | None], patience: int | None) -> bool:
    """Tell whether the last `patience` losses have none that is smaller than all before them.

    >>> stalled([3.0, 2.0, 2.5], 2), stalled([3.0, 2.0, 2.5, 2.0], 2)
    (False, True)
    """
    if patience is None or len(losses) <= patience:
        return False
    # A loss that is NaN, or was too large for a file, is no improvement.
    known = [float("inf") if loss is None or loss != loss else loss for loss in losses]
    return min(known[-patience:]) >= min(known[:-patience])


def json_lines(path: Path) -> OnRound:
    """Make a logger that appends each round to a file, as a line of JSON."""

    def log(summary: RoundSummary) -> None:
        with path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(summary.row()) + "\n")

    return log


def tensorboard(directory: Path) -> OnRound:
    """Make a logger that writes curves for TensorBoard; needs the extra `logs`."""
    writer = import_module("torch.utils.tensorboard").SummaryWriter(str(directory))

    def log(summary: RoundSummary) -> None:
        for name, value in _numbers(summary).items():
            writer.add_scalar(name, value, summary.round)
        writer.flush()

    return log


def mlflow(directory: Path) -> OnRound:
    """Make a logger to a run of MLflow named after a directory; needs the extra `logs`.

    Where runs are kept is MLflow's to know (`MLFLOW_TRACKING_URI`): a server, or, with all of
    MLflow and not its skinny package alone, a database.

    Raises:
        ArgumentError: MLflow keeps no runs there.
    """
    client = import_module("mlflow")
    # One run for all rounds; a run that the caller has begun is used as it is.
    try:
        if client.active_run() is None:
            client.start_run(run_name=directory.name)
    except client.MlflowException as error:
        raise ArgumentError(
            f"MLFLOW_TRACKING_URI must be where MLflow can keep runs, such as a server: {error}"
        ) from error

    def log(summary: RoundSummary) -> None:
        client.log_metrics(_numbers(summary), step=summary.round)
        if summary.epsilon is not None:
            client.set_tag("guarantee", summary.epsilon.text("short"))

    return log


def _numbers(summary: RoundSummary) -> dict[str, float]:
    row = summary.row()
    return {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, int | float) and name != "round"
    }


LOGGERS: Mapping[str, Callable[[Path], OnRound]] = {"tensorboard": tensorboard, "mlflow": mlflow}
"""Loggers of `diffsketch run --log`, whose directory has `metrics.jsonl` in any case."""
