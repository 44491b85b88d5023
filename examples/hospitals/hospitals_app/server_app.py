"""The server: momentum on private sums, and a budget that ends the run."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvgM

from diffsketch.flower import SketchStrategy, find_sketch_key
from diffsketch.privacy import Budget
from hospitals_app.task import PATIENTS, PLAN, all_data, new_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run rounds until the budget is spent, and write what became of them."""
    config, path = context.run_config, Path(str(context.run_config["result"]))
    log = logging.FileHandler(path.with_suffix(".log"))  # a line for each round
    logging.getLogger("flwr.diffsketch").addHandler(log)
    while len(list(grid.get_node_ids())) < len(PATIENTS) + 1:  # the helper
        time.sleep(0.5)
    inside = FedAvgM(
        fraction_evaluate=0.0, min_train_nodes=PLAN.min_replies,
        min_available_nodes=PLAN.min_replies,
        server_learning_rate=float(config["learning-rate"]), server_momentum=0.5,
    )  # fmt: skip
    budget = Budget(float(config["budget"]), delta=1e-5)
    strategy = SketchStrategy(inside, PLAN, key=find_sketch_key(), budget=budget)
    test = all_data().test

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        model = new_model()
        model.load_state_dict(arrays.to_torch_state_dict())
        hits = model(test.inputs).argmax(dim=1) == test.labels
        return MetricRecord({"accuracy": float(hits.double().mean())})

    result = strategy.start(
        grid, ArrayRecord(new_model().state_dict()), num_rounds=int(config["rounds"]),
        timeout=float(config["timeout"]), evaluate_fn=evaluate,
    )  # fmt: skip
    measured = result.evaluate_metrics_serverapp.values()
    outcome = {
        "accuracy": [metrics["accuracy"] for metrics in measured],
        "rounds": [str(report) for report in strategy.reports],
        "present": [len(report.present) for report in strategy.reports],
        "ended": strategy.ended,
        "epsilon": str(strategy.epsilon(budget.delta)),
    }
    beside = path.with_suffix(".new")  # whoever waits for the file finds all of it
    beside.write_text(json.dumps(outcome), encoding="utf-8")
    beside.replace(path)
