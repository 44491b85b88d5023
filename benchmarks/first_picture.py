"""The README's picture, from stored results of `benchmarks.transformer` and `benchmarks.silos`.

Run it by `python -m benchmarks.first_picture`.
"""

from __future__ import annotations

import json
from typing import Any

from matplotlib.figure import Figure

from benchmarks.silos import RESULTS
from benchmarks.transformer_table import DOCS, TABLES, summaries

WORKERS = 16
OURS, PEER = "#0070d6", "#7b8694"
POINTS = {  # what is drawn of the table, and its name there
    "none": "plain DDP", "sketch-2-bits": "sketch, 2 bits", "powersgd-2": "PowerSGD, rank 2",
    "powersgd-1": "PowerSGD, rank 1", "diloco": "DiLoCo", "local-4x2": "LocalSteps, 2 bits",
    "local-10x2": "LocalSteps 10x, 2 bits", "sparseloco-64": "SparseLoCo-64",
    "sparseloco-256": "SparseLoCo-256",
}  # fmt: skip
# Where a label stands, if not above its point: the others there are too near.
BESIDE = {
    "sparseloco-64": ("right", (-6, -3)), "sparseloco-256": ("left", (6, -3)),
    "powersgd-2": ("left", (6, -3)), "diloco": ("left", (6, -3)), "local-4x2": ("left", (6, -3)),
}  # fmt: skip
LINES = {
    "in each silo": ("noise in each silo", PEER), "shared": ("noise shared", OURS),
    "shared sketch": ("noise shared, in a sketch", "#eb7014"),
}  # fmt: skip


def loss_over_bytes(axes: Any) -> None:
    """Draw the held-out loss over the bytes both ways, a point for each way to send."""
    text = TABLES.with_name("results.jsonl").read_text(encoding="utf-8")
    rows = summaries([json.loads(line) for line in text.splitlines()], "1M", WORKERS)
    for name, label in POINTS.items():
        row, ours = rows[name], name.startswith(("sketch", "local"))
        axes.plot(1 / row.total, row.loss, "o", color=OURS if ours else PEER)
        side, offset = BESIDE.get(name, ("center", (0, 6)))
        axes.annotate(label, (1 / row.total, row.loss), xytext=offset, ha=side, fontsize=8,
                      textcoords="offset points", color=OURS if ours else "black")  # fmt: skip
    axes.set(xscale="log", xlim=(1 / 15_000, 3), ylim=(1.85, 2.9),
             xlabel="bytes up and down, of those of float32", ylabel="loss on held-out files",
             title=f"Without privacy: a small GPT, {WORKERS} workers")  # fmt: skip


def accuracy_over_epsilon(axes: Any) -> None:
    """Draw the accuracy over epsilon, a line for each way to add noise."""
    table = json.loads(RESULTS.read_text(encoding="utf-8"))
    for name, (label, colour) in LINES.items():
        runs = [row for row in table if row["run"].startswith(f"{name}, epsilon ")]
        epsilons = [float(row["run"].rpartition(" ")[2]) for row in runs]
        axes.errorbar(epsilons, [row["accuracy"] for row in runs], [row["std"] for row in runs],
                      fmt="o-", color=colour, label=label, capsize=2, markersize=4)  # fmt: skip
    (plain,) = (row["accuracy"] for row in table if row["run"] == "no privacy")
    axes.axhline(plain, color="black", linestyle=":", label="no privacy")
    axes.set(xscale="log", xlabel="epsilon of each patient, delta = 1e-5, whole run\n(proven, "
             "simulated; example, add-or-remove, local or distributed)", ylabel="accuracy, %",
             title="Ten hospitals, 600 images each: MNIST")  # fmt: skip
    axes.set_xticks([0.5, 1, 2, 8], ["0.5", "1", "2", "8"])
    axes.minorticks_off()
    axes.legend(fontsize=8, loc="lower right")


def main() -> None:
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    loss_over_bytes(left)
    accuracy_over_epsilon(right)
    figure.savefig(DOCS / "images" / "first.png", dpi=110)


if __name__ == "__main__":
    main()
