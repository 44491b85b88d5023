"""Claims about Count Sketch itself: measured here, on vectors with fixed seeds."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from diffsketch.privacy.theorems import lemma1_error
from diffsketch.reproduction.verdicts.verdict import Facts, Standing, Statement, Verdict, graded
from diffsketch.reproduction.verdicts.words import listed, percent
from diffsketch.sketch import CountSketch, SketchKey

__all__ = ["RULES"]

_ALPHA = 1.645
_KEY = SketchKey.from_integer(5)


def linear(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """The table of a sum must be the sum of the tables: exactly, for whole numbers."""
    sketch = _sketch(statement)
    vectors = _gaussian(2, sketch.dim).mul(100).round()
    seeds = [_KEY.seed(index) for index in range(20)]
    hits = [
        torch.equal(sketch.encode(vectors.sum(0), seed), sketch.encode(vectors, seed).sum(0))
        for seed in seeds
    ]
    measured = f"Exact for whole numbers with {sum(hits)} of {len(hits)} seeds ({_size(sketch)})."
    return graded(hits, measured, part="with {hits} of {total} seeds", none="it is not linear")


def lemma_1(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """The share of coordinates that miss the bound must be at most the stated failure."""
    sketch, failure = _sketch(statement), statement.values["failure"]
    error = lemma1_error(sketch.rows, sketch.cols, failure=failure)
    dense = _gaussian(1, sketch.dim)[0]
    vectors = {"Gaussian": dense, "a few large": dense * (torch.arange(sketch.dim) % 500 == 0)}
    shares = {}
    for name, vector in vectors.items():
        missed = 0.0
        for index in range(20):
            seed = _KEY.seed(index)
            wrong = sketch.query(sketch.encode(vector, seed), seed) - vector
            missed += float((wrong.abs() > error * vector.norm()).double().mean()) / 20
        shares[name] = missed
    texts = [f"{percent(share)} ({name} coordinates)" for name, share in shares.items()]
    measured = (
        f"{_size(sketch)}, an error of {error:.2f} norms with a failure of {percent(failure)}: "
        f"missed by {listed(texts)}."
    )
    return graded([share <= failure for share in shares.values()], measured,
                  part="for {hits} of {total} vectors", none="missed too often")  # fmt: skip


def unbiased(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """Over the seeds, no coordinate's mean error may be over five standard errors.

    For 60 coordinates in two tables that happens by chance with a probability below 1e-4.
    """
    dim, seeds = 60, statement.values["seeds"]
    vector = _gaussian(1, dim)[0]
    worst = {}
    for rows in statement.values["rows"]:
        sketch = CountSketch(dim, rows, 8, "pairwise")
        errors = torch.stack([
            sketch.query(sketch.encode(vector, seed), seed) - vector
            for seed in map(_KEY.seed, range(seeds))
        ])  # fmt: skip
        standard = errors.std(0) / math.sqrt(seeds)
        worst[rows] = float((errors.mean(0) / standard).abs().max())
    texts = [f"{value:.1f} with {rows} rows" for rows, value in worst.items()]
    measured = (
        f"Mean error over {seeds:,} seeds, at the worst of {dim} coordinates, in standard errors: "
        f"{listed(texts)}."
    )
    return graded([value < 5 for value in worst.values()], measured,
                  part="with {hits} of {total} numbers of rows", none="it is biased")  # fmt: skip


def recovered(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """The estimate must be within 50% of the vector (relative L2 error).

    Fails above 100%, where an estimate of zero is nearer; in part between.
    """
    errors = {}
    for dim, rows, cols in statement.values["tables"]:
        sketch, vector, seed = CountSketch(dim, rows, cols), _gaussian(1, dim)[0], _KEY.seed(0)
        wrong = sketch.query(sketch.encode(vector, seed), seed) - vector
        errors[f"{rows} x {cols}"] = float(wrong.norm() / vector.norm())
    texts = [f"{percent(error)} at {name}" for name, error in errors.items()]
    measured = (
        f"Relative error of one estimate of a Gaussian vector: {listed(texts)}. Training works "
        "because the errors are unbiased and average out over the rounds."
    )
    if max(errors.values()) <= 0.5:
        return Verdict(Standing.HOLDS, measured)
    if max(errors.values()) <= 1:
        return Verdict(Standing.IN_PART, measured, "roughly")
    return Verdict(Standing.FAILS, measured, "an estimate of zero is nearer")


def bounded_bins(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """At most 1% of the cells may be beyond 2 alpha, for vectors as Theorem 1 assumes them."""
    shares = {}
    for dim, rows, cols in statement.values["tables"]:
        sketch = CountSketch(dim, rows, cols)
        table = sketch.encode(_gaussian(1, dim)[0], _KEY.seed(0))
        shares[f"{rows} x {cols} of {dim:,}"] = float((table.abs() > 2 * _ALPHA).double().mean())
    texts = [f"{percent(share)} at {name}" for name, share in shares.items()]
    measured = (
        f"Cells beyond 2 alpha, for Gaussian vectors: {listed(texts)}. A cell's standard deviation "
        "is sigma sqrt(n/k), and alpha is 1.645 sigma."
    )
    return graded([share <= 0.01 for share in shares.values()], measured,
                  part="{hits} of {total} sizes", none="cells are far larger")  # fmt: skip


def _sketch(statement: Statement) -> CountSketch:
    rows, cols = statement.values["table"]
    return CountSketch(statement.values["dim"], rows, cols)


def _size(sketch: CountSketch) -> str:
    return f"{sketch.rows} x {sketch.cols} of {sketch.dim:,}"


def _gaussian(count: int, dim: int) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(dim))


RULES = {
    "linear": linear,
    "lemma-1": lemma_1,
    "unbiased": unbiased,
    "recovered": recovered,
    "bounded-bins": bounded_bins,
}
