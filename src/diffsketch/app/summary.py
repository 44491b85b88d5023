"""What a run came to, as data: everything that its report shows, and how to run it again."""

from __future__ import annotations

import dataclasses
from typing import Any

from diffsketch.training.simulate import Simulation
from diffsketch.methods.base import Method
from diffsketch.methods.noisy import SketchSkellam
from diffsketch.app.assumptions import assumptions
from diffsketch.app.directory import RunDirectory
from diffsketch.app.loop import Loop
from diffsketch.app.metrics import epsilon_data, finite
from diffsketch.app.status import Outcome

__all__ = ["summarise"]


def summarise(
    simulation: Simulation, loop: Loop, outcome: Outcome, *, directory: RunDirectory
) -> dict[str, Any]:
    """The content of `summary.json`. No times of the clock, so that the same run gives the same.

    Ratios are of real bytes: those of the vectors in float32 that a run without compression would
    send to and from the same workers, to those of the messages with their headers.
    """
    config, totals = directory.config, loop.totals
    loss, accuracy = loop.evaluation
    claim = simulation.claim
    vector = 4 * simulation.method.dim
    raw_up, raw_down = vector * totals.messages, vector * totals.downloads
    sent = totals.bytes_up + totals.bytes_down
    return {
        "outcome": outcome.kind,
        "reason": outcome.reason,
        "diverging": loop.diverging,
        "rounds": simulation.round_index,
        "planned_rounds": config.rounds,
        "loss": finite(loss),
        "accuracy": accuracy,
        "best_accuracy": loop.best_accuracy,
        "dim": simulation.method.dim,
        "message_bytes": simulation.method.wire_bytes,
        **_whole_numbers(simulation.method),
        "messages": totals.messages,
        "bytes_up": totals.bytes_up,
        "bytes_down": totals.bytes_down,
        "uncompressed_bytes_up": raw_up,
        "uncompressed_bytes_down": raw_down,
        "compression_up": raw_up / totals.bytes_up if totals.bytes_up else None,
        "compression_down": raw_down / totals.bytes_down if totals.bytes_down else None,
        "compression": (raw_up + raw_down) / sent if sent else None,
        "epsilon": epsilon_data(simulation.epsilon(config.delta)),
        "claim": str(claim),
        "assumes": assumptions(claim, simulation.sampler),
        "noised_share": totals.noised_share,
        "left_out": totals.left_out,
        "seed": config.seed,
        "config": {
            name: value for name, value in dataclasses.asdict(config).items() if value is not None
        },
        "versions": directory.start["versions"],
    }


def _whole_numbers(method: Method) -> dict[str, Any]:
    """Bits and width of a step, as they are where they were not given."""
    if not isinstance(method, SketchSkellam):
        return {}
    return {
        "bits": method.mechanism.bits,
        "granularity": method.mechanism.quantizer.granularity,
    }
