"""The server: FedAvg as Flower's tutorials have it, and one line for the sketches."""

from __future__ import annotations

import json
import time
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from diffsketch.flower import SketchStrategy, find_sketch_key
from mnist_app.task import accuracy_of, model_of, plan_of, task_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds, and say what they brought and cost."""
    config = context.run_config
    nodes, task = int(config["nodes"]), task_of(config)
    nodes += config["secure-sum"] == "two"  # the helper
    while len(list(grid.get_node_ids())) < nodes:  # later rounds go on without those that are lost
        time.sleep(0.5)
    least = int(config["min-replies"])
    inside = FedAvg(fraction_evaluate=0.0, min_train_nodes=least, min_available_nodes=least)
    strategy = SketchStrategy(inside, plan_of(config), key=find_sketch_key())
    times: list[float] = []

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        times.append(time.monotonic())
        return MetricRecord({"accuracy": accuracy_of(model_of(config, arrays), task)})

    result = strategy.start(
        grid,
        ArrayRecord(model_of(config).state_dict()),
        num_rounds=int(config["rounds"]),
        timeout=float(config["timeout"]),
        evaluate_fn=evaluate,
    )
    outcome = {
        "accuracy": [metrics["accuracy"] for metrics in result.evaluate_metrics_serverapp.values()],
        "times": times,
        **cost_of(strategy, float(config["delta"])),
    }
    print(json.dumps(outcome, indent=1))
    if config["result"]:
        path = Path(str(config["result"]))
        beside = path.with_suffix(".new")  # whoever waits for the file finds all of it
        beside.write_text(json.dumps(outcome), encoding="utf-8")
        beside.replace(path)


def cost_of(strategy: SketchStrategy, delta: float) -> dict[str, object]:
    """Bytes of each round as they were on the wire, and what the clients paid."""
    return {
        "epsilon": str(strategy.epsilon(delta)),
        "claim": str(strategy.claim),
        "rounds": [
            {
                "present": len(report.present),
                "selected": len(report.selected),
                "silent": len(report.silent),
                "refused": list(report.refused.values()),
                "bytes_up": report.bytes_up,
                "bytes_down": report.bytes_down,
                "void": report.void,
            }
            for report in strategy.reports
        ],
    }
