"""What does the README's private Flower plan send? A round of its 1,000 clients, in one process.

    python -m benchmarks.private_plan

Every client is Flower's own `ClientApp` with the mod, and messages pass through Flower's
serialisation; sizes are those of their records. Takes half a minute, with `flwr` installed.
"""

from __future__ import annotations

import argparse
import secrets
import tempfile
from pathlib import Path

import torch
from flwr.app import Array, ArrayRecord

from diffsketch.flower import FlowerPlan, SecureClientAggregation, TwoAggregators
from diffsketch.secure_sum import KeyPair
from tests.flower import network as flower

DIM, CLIENTS = 7850, 1000
SETTINGS = {"rows": 1, "cols": 5331, "clip": 0.3, "trust": "distributed", "bits": 18}


def record_of(weights: torch.Tensor) -> ArrayRecord:
    return ArrayRecord({"weights": Array(weights.numpy().copy())})


def weights_of(arrays: ArrayRecord) -> torch.Tensor:
    return torch.from_numpy(arrays["weights"].numpy().copy())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    rounds = parser.parse_args().rounds
    flower.record_of, flower.weights_of = record_of, weights_of  # a model of one array
    settings = {**SETTINGS, "noise_multiplier": 1.899}
    plan = FlowerPlan(
        "sketch-gaussian", settings, cohort=CLIENTS, min_replies=900, secure_sum="two",
        identities=False,
    )  # fmt: skip
    secret = secrets.token_bytes(32)
    helper = KeyPair(secret).public
    network = flower.Network()
    with tempfile.TemporaryDirectory() as folder:
        own_side = SecureClientAggregation(helper=helper)
        for number in range(CLIENTS):
            network.join(
                number, plan, key=flower.KEY, aggregation=own_side,
                train=lambda _, weights, __: weights + 0.003 * torch.randn(DIM),
            )  # fmt: skip
        Path(folder, "secret.key").write_text(secret.hex(), encoding="ascii")
        files = {
            "diffsketch-helper-secret-file": str(Path(folder, "secret.key")),
            "diffsketch-helper-memory": folder,
        }
        network.join(0, plan, node_id=1, config=files)
        strategy = flower.strategy_of(plan, aggregation=TwoAggregators(helper))
        arrays = record_of(torch.zeros(DIM))
        for server_round in range(1, rounds + 1):
            arrays = flower.one_round(strategy, network, arrays, server_round)
            report = strategy.reports[-1]
            up, down = report.bytes_up / CLIENTS, report.bytes_down / CLIENTS
            print(f"{report}\na client: {up:,.0f} bytes up, {down:,.0f} down")
    print(strategy.epsilon(1e-5))


if __name__ == "__main__":
    main()
