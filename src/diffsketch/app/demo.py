"""The demonstration: how well a gradient comes back from its sketch."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.table import Table
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from diffsketch.errors import DataError
from diffsketch.files import replace_files
from diffsketch.sketch import CountSketch, Family, SketchKey
from diffsketch.sketch.hashing import HashSeed
from diffsketch.training.data import load_mnist
from diffsketch.training.tasks import Examples

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROWS = 7
COMPRESSIONS = (2, 5, 10, 25, 51, 100, 200)
AVERAGED_COMPRESSION = 51
ROUNDS = (10, 100, 1000)
_TRIALS = 20
_MAX_ROUNDS = 2000  # of all trials of one measurement together; bounds the time that it takes
_SAMPLES, _STEPS, _LEARNING_RATE = 2000, 10, 0.5


@dataclass(frozen=True)
class GradientRecovery:
    """Match between a gradient and the average of `rounds` estimates with fresh hashes.

    Errors are `||estimate - gradient|| / ||gradient||`, and cosines are those of the angle between
    the two; both are means over `trials`.
    """

    rows: int
    cols: int
    compression: float
    rounds: int
    trials: int
    median_error: float
    mean_error: float
    predicted_mean_error: float
    median_cosine: float
    mean_cosine: float


@dataclass(frozen=True)
class DemoResult:
    """Measurements: one round at each compression, and many rounds at one of them."""

    dim: int
    seed: int
    family: Family
    by_compression: tuple[GradientRecovery, ...]
    by_rounds: tuple[GradientRecovery, ...]


def run_demo(
    *,
    seed: int = 0,
    family: Family = "blocked",
    data_dir: Path | None = None,
    on_progress: Callable[[float], None] = lambda _: None,
) -> DemoResult:
    """Sketch the gradient of a logistic regression and measure how well it comes back.

    `data_dir` has MNIST's idx files, instead of the copy in the package; `on_progress` is called
    with the share of the work that is done, from 0 to 1.
    """
    key = SketchKey.from_integer(seed)
    gradient = logistic_gradient(load_mnist(data_dir, split="train"))
    dim = len(gradient)
    plan = [(compression, 1) for compression in COMPRESSIONS]
    plan += [(AVERAGED_COMPRESSION, rounds) for rounds in ROUNDS]
    trials = [min(_TRIALS, _MAX_ROUNDS // rounds) for _, rounds in plan]
    done, total = 0, sum(count * rounds for count, (_, rounds) in zip(trials, plan, strict=True))
    measured: list[GradientRecovery] = []
    for count, (compression, rounds) in zip(trials, plan, strict=True):
        sketch = CountSketch(dim, ROWS, max(1, round(dim / (ROWS * compression))), family)
        # No two measurements share a round, so no two share hashes.
        seeds = [key.seed(done + index) for index in range(count * rounds)]
        measured.append(_measure(gradient, sketch, seeds, trials=count))
        done += len(seeds)
        on_progress(done / total)
    one_round = tuple(measured[: len(COMPRESSIONS)])
    start = one_round[COMPRESSIONS.index(AVERAGED_COMPRESSION)]
    return DemoResult(dim, seed, family, one_round, (start, *measured[len(COMPRESSIONS) :]))


def logistic_gradient(dataset: Examples) -> Tensor:
    """The gradient of a logistic regression after some full-batch steps from zero.

    Weights and biases in one vector: `classes * (pixels + 1)` coordinates, 7,850 for MNIST.
    """
    if len(dataset) == 0:
        raise DataError("the training data must have at least one image, found none")
    inputs = dataset.inputs[:_SAMPLES].flatten(start_dim=1).float() / 255
    inputs = torch.cat([inputs, torch.ones(len(inputs), 1)], dim=1)  # for the biases
    labels = dataset.labels[:_SAMPLES]
    weights = torch.zeros(inputs.shape[1], int(labels.max()) + 1)
    for step in range(_STEPS + 1):
        weights.requires_grad_()
        (gradient,) = torch.autograd.grad(cross_entropy(inputs @ weights, labels), weights)
        if step < _STEPS:
            weights = weights.detach() - _LEARNING_RATE * gradient
    if not gradient.any():
        raise DataError("the training data must have at least two classes: the gradient is zero")
    return gradient.T.flatten()


def _measure(
    gradient: Tensor, sketch: CountSketch, seeds: Sequence[HashSeed], *, trials: int
) -> GradientRecovery:
    """Average the estimates of several rounds, one seed each, in each trial, and compare."""
    rounds = len(seeds) // trials
    averages = torch.zeros(2, trials, len(gradient))
    for index, seed in enumerate(seeds):
        table, trial = sketch.encode(gradient, seed), index // rounds
        averages[0, trial] += sketch.query(table, seed, combine="median") / rounds
        averages[1, trial] += sketch.query(table, seed, combine="mean") / rounds
    errors = ((averages - gradient).norm(dim=-1) / gradient.norm()).mean(dim=-1).tolist()
    cosines = cosine_similarity(averages, gradient, dim=-1).mean(dim=-1).tolist()
    # One row's variance is ||g||^2 / cols per coordinate; rows and rounds are independent.
    predicted = math.sqrt(sketch.compression / rounds)
    return GradientRecovery(
        sketch.rows, sketch.cols, sketch.compression, rounds, trials, errors[0], errors[1],
        predicted, cosines[0], cosines[1],
    )  # fmt: skip


def write_results(result: DemoResult, directory: Path) -> tuple[Path, Path]:
    """Write `recovery.png` and `recovery.csv`, both or none of them."""
    picture, table = directory / "recovery.png", directory / "recovery.csv"
    text = io.StringIO()
    names = [field.name for field in fields(GradientRecovery)]
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    # The first of by_rounds is one of by_compression.
    writer.writerows(asdict(one) for one in result.by_compression + result.by_rounds[1:])
    replace_files({picture: _png(result), table: text.getvalue().encode()})
    return picture, table


def _png(result: DemoResult) -> bytes:
    """The picture: error against compression, and against rounds."""
    # Objects instead of pyplot, which would keep global state and look for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.4), dpi=160, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    _draw(left, result.by_compression, [r.compression for r in result.by_compression])
    left.set_title(f"One sketch of a gradient ({result.dim:,} coordinates)", fontsize=12)
    left.set_xlabel("compression (coordinates per cell)", fontsize=12)
    left.set_ylabel("relative error of the estimate", fontsize=12)
    _draw(right, result.by_rounds, [r.rounds for r in result.by_rounds])
    compression = result.by_rounds[0].compression
    right.set_title(f"Average over rounds of fresh hashes, {compression:.0f}x", fontsize=12)
    right.set_xlabel("rounds", fontsize=12)
    left.annotate(
        "error as large as the gradient", (1, 1), xycoords=left.get_yaxis_transform(),
        xytext=(-4, 3), textcoords="offset points", ha="right", va="bottom", color="0.4",
    )  # fmt: skip
    left.legend(fontsize=11, loc="lower right")
    stream = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(stream, format="png")
    return stream.getvalue()


def _draw(axes: Axes, recoveries: tuple[GradientRecovery, ...], places: Sequence[float]) -> None:
    theory = [recovery.predicted_mean_error for recovery in recoveries]
    axes.plot(places, theory, color="0.8", linewidth=6, label="theory, mean query", zorder=1)
    for query, style in (("mean", "o"), ("median", "s")):
        errors = [getattr(recovery, f"{query}_error") for recovery in recoveries]
        axes.plot(places, errors, style + "-", markersize=6, linewidth=1.5, label=f"{query} query")
    axes.axhline(1, color="0.6", linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(places, [f"{place:.0f}" for place in places], minor=False)
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3, which="both")
    axes.tick_params(labelsize=11)


def report(result: DemoResult) -> tuple[Table | str, ...]:
    """Parts to print: the two tables, and how to read them."""
    fixed = result.by_rounds[0].compression
    titles = {
        "compression": f"One sketch of a gradient with {result.dim:,} coordinates",
        "rounds": f"Average over rounds of fresh hashes at {fixed:.0f}x",
    }
    tables = []
    for first, recoveries in zip(titles, (result.by_compression, result.by_rounds), strict=True):
        table = Table(title=titles[first], title_justify="left")
        headings = ("table", "error\nmedian", "error\nmean", "theory\nmean", "cosine\nmedian")
        for heading in (first, *headings, "cosine\nmean"):
            table.add_column(heading, justify="right")
        for one in recoveries:
            name = f"{one.compression:.1f}x" if first == "compression" else str(one.rounds)
            errors = (one.median_error, one.mean_error, one.predicted_mean_error)
            numbers = (*errors, one.median_cosine, one.mean_cosine)
            table.add_row(name, f"{one.rows} x {one.cols}", *(f"{x:.2f}" for x in numbers))
        tables.append(table)
    reading = [
        "Error is ||estimate - gradient|| / ||gradient||; theory is sqrt(compression / rounds), "
        "for the mean query."
    ]
    above = [one.compression for one in result.by_compression if one.mean_error > 1]
    if above:
        reading.append(
            f"From {min(above):.0f}x on, the error of one sketch exceeds 1. That is expected: the "
            "mean query is unbiased, so averaging over rounds with fresh hashes recovers the "
            "direction (here of one fixed gradient)."
        )
    return (*tables, *reading, "A bare sketch gives no privacy guarantee.")
