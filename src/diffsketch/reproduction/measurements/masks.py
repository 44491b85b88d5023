"""The control of the paper's error correction: noise instead of the sketch, with the same masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from diffsketch.app.build import build
from diffsketch.app.files import finite
from diffsketch.app.settings import RunConfig, Value
from diffsketch.training.rounds import NoiseControl, mask_bytes
from diffsketch.training.simulation import Simulation

__all__ = ["measure"]


def measure(
    settings: Mapping[str, Value], *, seed: int, on_progress: Callable[[float], None]
) -> dict[str, Any]:
    """A run of `diffsketch run` whose published sums are replaced by noise of the same norm.

    Weights, batches and hashes are those of the run without the replacement. What the model still
    learns, it learns from the masks: nothing else has seen the data but a norm.

    Guarantees (`tests/reproduction/test_masks.py`): without masks nothing is learnt; with shared
    masks it is; a run can be interrupted by `on_progress`.

    Args:
        settings: Of `diffsketch run`, without the seed.
        seed: Of the run.
        on_progress: Told the share of the rounds that is done; may raise.

    Returns:
        `curve` with rounds, accuracies and bytes as in a run's `metrics.jsonl`; `accuracy`;
        `message_bytes`, and `mask_bytes` of one worker's mask.
    """
    built = build(RunConfig(**dict(settings), seed=seed))  # type: ignore[arg-type]
    config, simulation = built.config, _with_noise(built.simulation)
    rounds, every = simulation.rounds, config.evaluate_every or 1
    curve = [_record(simulation)]
    for index in range(1, rounds + 1):
        simulation.step()
        if index % every == 0 or index == rounds:
            curve.append(_record(simulation))
            on_progress(index / rounds)
    masked = simulation.algorithm.correction != "off"
    own, _ = mask_bytes(simulation.method.dim, len(simulation.task.devices))
    return {
        "curve": curve,
        "accuracy": curve[-1]["accuracy"],
        "dim": simulation.method.dim,
        "message_bytes": simulation.method.wire_bytes,
        "mask_bytes": own if masked else 0,
    }


def _with_noise(simulation: Simulation) -> Simulation:
    method = simulation.method
    return Simulation(
        simulation.task,
        method=NoiseControl(dim=method.dim, inner=method),
        trainer=simulation.trainer,
        algorithm=simulation.algorithm,
        rounds=simulation.rounds,
        seed=simulation.seed,
        sampler=simulation.sampler,
        server=simulation.server,
        hashes=simulation.hashes,
    )


def _record(simulation: Simulation) -> dict[str, Any]:
    loss, accuracy = simulation.evaluate()
    record = {
        "round": simulation.round_index,
        "loss": finite(loss),
        "accuracy": accuracy,
        "bytes_up": simulation.bytes_up,
        "bytes_down": simulation.bytes_down,
    }
    if simulation.drift is not None:
        record["drift"] = simulation.drift
    return record
