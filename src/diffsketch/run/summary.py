"""What a run came to, as data: everything that its report shows, and how to run it again."""

from __future__ import annotations

import dataclasses
from typing import Any

from diffsketch.engines.simulate import Simulation
from diffsketch.run.directory import RunDirectory
from diffsketch.run.loop import Loop
from diffsketch.run.metrics import epsilon_data, finite
from diffsketch.run.status import Outcome

__all__ = ["summarise"]


def summarise(
    simulation: Simulation, loop: Loop, outcome: Outcome, *, directory: RunDirectory
) -> dict[str, Any]:
    """The content of `summary.json`. No times of the clock, so that the same run gives the same.

    Ratios are of real bytes: those of the vectors in float32 to those of the messages with their
    headers.
    """
    config, totals = directory.config, loop.totals
    loss, accuracy = loop.evaluation
    raw = 4 * simulation.method.dim * totals.messages
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
        "messages": totals.messages,
        "bytes_up": totals.bytes_up,
        "bytes_down": totals.bytes_down,
        "uncompressed_bytes_each_way": raw,
        "compression_up": raw / totals.bytes_up if totals.bytes_up else None,
        "compression_down": raw / totals.bytes_down if totals.bytes_down else None,
        "compression": 2 * raw / sent if sent else None,
        "epsilon": epsilon_data(simulation.epsilon(config.delta)),
        "claim": loop.claim,
        "noised_share": totals.noised_share,
        "left_out": totals.left_out,
        "seed": config.seed,
        "config": {
            name: value for name, value in dataclasses.asdict(config).items() if value is not None
        },
        "versions": directory.start["versions"],
        "command": directory.start["command"],
    }
