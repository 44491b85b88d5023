"""Formulas by name: numbers that claims are judged by, calculated and not measured.

Each takes numbers and gives one. `claims.toml` uses them by the names of `FORMULAS`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from diffsketch.compiled import torch_threads
from diffsketch.privacy.claim import Relation
from diffsketch.privacy.clipping import CoordinateBound
from diffsketch.privacy.mechanisms.additive import GaussianMechanism
from diffsketch.privacy.mechanisms.binomial import BinomialMechanism
from diffsketch.privacy.theorems import theorem1
from diffsketch.sketch import CountSketch, SketchKey
from diffsketch.wire import MessageFormat
from paper.bounds import ConvexProblem, lemma1_error, padding_for, theorem2

_ALPHA = 1.645  # the 90th percentile of a Gaussian's sizes, in standard deviations
_DELTA = 1e-5
_KEY = SketchKey.from_integer(5)


# --- Theorem 1, and noise --------------------------------------------------------------------


def theorem_1(dim: int, rows: int, cols: int) -> float:
    """The epsilon of a Gaussian vector by Theorem 1."""
    claim = theorem1(dim, rows, cols, alpha=_ALPHA, sigma=1.0)
    return float(claim.epsilon(delta=0.0, rounds=1))


def theorem_1_padded(lengths: int, dim: int, rows: int, cols: int) -> float:
    """The same with noise appended, so many lengths of the vector."""
    return theorem_1(dim * (1 + lengths), rows, cols)


def proven_padded(lengths: int, dim: int, rows: int, cols: int) -> float:
    """The epsilon that is proven for such noise, if coordinates are clipped to alpha.

    The noise is what a cell gets on average, and taken to be independent in each cell.
    """
    bound = CoordinateBound(_ALPHA, rows)
    multiplier = math.sqrt(lengths * dim / cols) / bound.sensitivity(Relation.REPLACE)
    mechanism = GaussianMechanism(bound, multiplier, Relation.REPLACE)
    return float(mechanism.claim.epsilon(delta=_DELTA, rounds=1))


def noise_ratio(dim: int, rows: int, cols: int, epsilon: float) -> float:
    """The variance that appended noise adds to a cell over that of Laplace noise.

    With the least noise for which Theorem 1 claims the epsilon, for a Gaussian vector; Laplace
    noise has the scale `2 alpha t / epsilon`.
    """
    length = padding_for(epsilon, dim, rows, cols, ratio=_ALPHA)
    laplace = 2 * (2 * _ALPHA * rows / epsilon) ** 2
    return math.inf if length is None else length / cols / laplace


def client_epsilon(dim: int, rows: int, cols: int) -> float:
    """A lower bound for a client under the noise that gives one coordinate an epsilon of 1.

    For Laplace noise, epsilon is the L1 distance of two tables over the scale. The tables of a
    vector that has the signs of the first row's hash and of its negative are farthest apart there.
    """
    sketch, seed = CountSketch(dim, rows, cols), SketchKey.from_integer(0).seed(0)
    first_row = torch.zeros(rows, cols)
    first_row[0] = 1.0
    vector = sketch.query(first_row, seed, combine="mean").sign()
    distance = float((sketch.encode(vector, seed) - sketch.encode(-vector, seed)).abs().sum())
    return distance / (2 * rows)


def _cpsgd(levels: int, trials: int, cohort: int) -> BinomialMechanism:
    """The mechanism of cpSGD on the paper's vectors."""
    return BinomialMechanism(dim=7850, clip=1.0, limit=1.0, levels=levels, trials=trials,
                             cohort=cohort, delta=_DELTA)  # fmt: skip


def cpsgd_epsilon(cohort: int, levels: int, trials: int) -> float:
    """The epsilon that cpSGD's theorem proves; infinite if none."""
    claim = _cpsgd(levels, trials, cohort).claim
    return float(claim.epsilon(delta=_DELTA, rounds=1))


def cpsgd_bits(cohort: int, levels: int, trials: int) -> int:
    """The bits that hold cpSGD's k and m."""
    return _cpsgd(levels, trials, cohort).bits


# --- the Count Sketch itself, on vectors with fixed seeds ------------------------------------


def _gaussian(dim: int) -> Tensor:
    return torch.randn(dim, generator=torch.Generator().manual_seed(dim))


def compression(dim: int, rows: int, cols: int) -> float:
    """Parameters over cells."""
    return CountSketch(dim, rows, cols).compression


def full_bins(dim: int, cols: int) -> float:
    """The probability that no bin of a row is empty, at least (a union bound)."""
    return 1 - cols * (1 - 1 / cols) ** dim


def uneven(items: int, bins: int) -> int:
    """The difference of the fullest and the emptiest bin where both of Lemma 2 are least."""

    def weight(filling: tuple[int, ...]) -> float:
        return math.prod(map(math.factorial, filling)) * math.sqrt(math.prod(filling))

    def inverses(filling: tuple[int, ...]) -> float:
        return math.fsum(1 / each for each in filling)

    every = itertools.combinations_with_replacement(range(1, items + 1), bins)
    fillings = [filling for filling in every if sum(filling) == items]
    least = [min(fillings, key=quantity) for quantity in (weight, inverses)]
    return max(filling[-1] - filling[0] for filling in least)


def additive(dim: int, rows: int, cols: int, count: int, threads: int) -> float:
    """The largest difference of the table of a sum and the sum of the tables.

    Of vectors of whole numbers, of which sums are exact in any order; threads make the table of
    the sum, and one alone the others.
    """
    sketch, seed = CountSketch(dim, rows, cols), _KEY.seed(0)
    vectors = _gaussian(count * dim).mul(100).round().reshape(count, dim)
    with torch_threads(threads):
        table = sketch.encode(vectors.sum(0), seed)
    with torch_threads(1):
        return float((sketch.encode(vectors, seed).sum(0) - table).abs().max())


def told_apart(dim: int, rows: int, cols: int, change: float) -> bool:
    """Whether the tables of two vectors that differ in one coordinate differ."""
    sketch, seed = CountSketch(dim, rows, cols), SketchKey.from_integer(dim).seed(0)
    first, second = torch.ones(2, dim)
    second[0] += change
    return not torch.equal(sketch.encode(first, seed), sketch.encode(second, seed))


def beyond_bound(dim: int, rows: int, cols: int) -> float:
    """The share of cells beyond 2 alpha, for a Gaussian vector."""
    table = CountSketch(dim, rows, cols).encode(_gaussian(dim), _KEY.seed(0))
    return float((table.abs() > 2 * _ALPHA).double().mean())


def _errors(vector: Tensor, sketch: CountSketch, seeds: int) -> Tensor:
    """Estimates less the vector, a row for each seed."""
    estimates = [sketch.query(sketch.encode(vector, seed), seed)
                 for seed in map(_KEY.seed, range(seeds))]  # fmt: skip
    return torch.stack(estimates) - vector


def relative_error(dim: int, rows: int, cols: int) -> float:
    """The L2 error of one estimate over the norm."""
    vector = _gaussian(dim)
    return float(_errors(vector, CountSketch(dim, rows, cols), 1).norm() / vector.norm())


def missed(dim: int, rows: int, cols: int, every: int, failure: float) -> float:
    """The share of coordinates beyond Lemma 1's error; of the vector each `every`th is not 0."""
    vector = _gaussian(dim) * (torch.arange(dim) % every == 0)
    bound = lemma1_error(rows, cols, failure=failure) * vector.norm()
    errors = _errors(vector, CountSketch(dim, rows, cols), 20)
    return float((errors.abs() > bound).double().mean())


def bias(dim: int, rows: int, cols: int, seeds: int) -> float:
    """The largest mean error of a coordinate over the seeds, in standard errors."""
    errors = _errors(_gaussian(dim), CountSketch(dim, rows, cols, "pairwise"), seeds)
    return float((errors.mean(0) / errors.std(0)).abs().max()) * math.sqrt(seeds)


def convergence_bound(rows: int, cols: int, dim: int) -> float:
    """Theorem 2's bound after 1,000 rounds, for G = D = c = 1 and a failure of 5%."""
    error = lemma1_error(rows, cols, failure=0.05)
    return theorem2(ConvexProblem(dim, 1.0, 1.0, 1.0), 1000, error=error)


# --- reach and cost --------------------------------------------------------------------------


def histogram_error(holders: int, codes: int, rows: int, cols: int) -> float:
    """The mean error of the ten largest shares, in the mean of histograms of 100 reports each."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.arange(1, codes + 1).double() ** -1.5
    reports = torch.multinomial(weights, 100 * holders, replacement=True, generator=generator)
    ones = torch.full((holders, 100), 0.01)
    histograms = torch.zeros(holders, codes).scatter_add_(1, reports.reshape(holders, 100), ones)
    sketch, seed = CountSketch(codes, rows, cols), _KEY.seed(0)
    estimate = sketch.query(sketch.encode(histograms, seed).mean(0), seed, combine="median")
    shares, frequent = histograms.mean(0).topk(10)
    return float((estimate[frequent] - shares).abs().mean())


def secure_sum_cost(members: int, *shape: int) -> float:
    """The bytes that a member of a secure sum sends and receives, over those of its message.

    The sum is that of Bonawitz et al. (2017) with signatures, nobody dropping out; of 20 bits.
    """
    from diffsketch import secure_sum as sums  # needs the extra `secure`

    kind = "skellam" if len(shape) == 1 else "sketch-skellam"
    form = MessageFormat(kind, 7850, shape, "unsigned", 20)
    identities = {
        index: sums.SigningIdentity(index.to_bytes(32, "big")) for index in range(members)
    }
    threshold = sums.default_threshold(members)
    params = sums.Params(
        form,
        run=bytes(16),
        round_index=0,
        fingerprint=bytes(8),
        members=tuple(identities),
        threshold=threshold,
        min_present=threshold,
        identities={index: identity.public for index, identity in identities.items()},
    )
    server, cells = sums.SecureSumServer(params), partial(torch.ones, shape, dtype=torch.int64)
    clients = [sums.SecureSumClient(index, params, identity=identity)
               for index, identity in identities.items()]  # fmt: skip
    sent = 0
    while server.stage is not sums.Stage.DONE:
        for index, request in server.requests().items():
            reply = clients[index].answer(request, cells)
            server.collect(reply)
            if index == 0:
                sent += len(request) + len(reply)
        server.close()
    return sent / form.full_bytes


FORMULAS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        additive, beyond_bound, bias, theorem_1, theorem_1_padded, client_epsilon, compression,
        convergence_bound, cpsgd_bits, cpsgd_epsilon, full_bins, histogram_error, missed,
        noise_ratio, proven_padded, relative_error, secure_sum_cost, told_apart, uneven,
    )
}  # fmt: skip
