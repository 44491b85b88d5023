"""What every method refuses, tested on all of them: bad vectors, sums, seeds and memory."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.methods import Method
from diffsketch.privacy import CohortNoise
from tests.methods.cases import (
    DIM,
    KEY,
    NOISE_KEY,
    SEED,
    VECTORS,
    WORKERS,
    every_method,
    published,
    sources,
)


@every_method
@pytest.mark.parametrize(
    ("vectors", "error", "match"),
    [
        (torch.zeros(DIM + 1), MismatchError, "dim=40"),
        (torch.zeros(3, DIM - 1), MismatchError, "dim=40"),
        (torch.zeros(2, 3, DIM), MismatchError, "dim=40"),
        (torch.zeros(0, DIM), MismatchError, "dim=40"),
        (torch.tensor(1.0), MismatchError, "dim=40"),
        (torch.zeros(DIM, dtype=torch.int64), ArgumentError, "int64"),
        (torch.zeros(DIM, dtype=torch.float16), ArgumentError, "float16"),
        ([0.0] * DIM, ArgumentError, "list"),
        (torch.full((DIM,), math.nan), ArgumentError, "finite"),
        (torch.full((DIM,), 1e200, dtype=torch.float64), ArgumentError, "finite"),
    ],
)
def test_bad_vectors_are_refused(
    method: Method, vectors: Tensor, error: type[Exception], match: str
) -> None:
    noise = CohortNoise(NOISE_KEY, [1], round_index=0)
    with pytest.raises(error, match=match):
        method.encode(vectors, SEED, noise)


@every_method
def test_rows_that_are_not_finite_are_named(method: Method) -> None:
    vectors = VECTORS.clone()
    vectors[3, 5], vectors[9, 0] = math.inf, math.nan
    with pytest.raises(ArgumentError, match=r"in rows 3, 9$"):
        method.encode(vectors, SEED, sources(0)[0])
    vectors[:7] = math.nan
    with pytest.raises(ArgumentError, match=r"in rows 0, 1, 2, 3, 4 and 3 more$"):
        method.encode(vectors, SEED, sources(0)[0])


@every_method
def test_bad_totals_are_refused(method: Method) -> None:
    total = published(method, VECTORS, SEED, sources(0))
    for bad in (0, -1, True, 2.0):
        with pytest.raises(ArgumentError, match="count"):
            method.decode(total, SEED, count=bad)  # type: ignore[arg-type]
    with pytest.raises(MismatchError, match="shape"):
        method.decode(total[..., :-1], SEED, count=WORKERS)
    with pytest.raises(ArgumentError, match="seed"):
        method.decode(total, KEY, count=WORKERS)  # type: ignore[arg-type]
    if total.is_floating_point():
        broken = total.clone().fill_(math.nan)
        with pytest.raises(ArgumentError, match="finite"):
            method.decode(broken, SEED, count=WORKERS)
        with pytest.raises(ArgumentError, match="floating point"):
            method.decode(total.long(), SEED, count=WORKERS)
        return
    with pytest.raises(ArgumentError, match="int64"):
        method.decode(total.float(), SEED, count=WORKERS)
    for unpublished in (total - (1 << 40), total + (1 << 40)):
        with pytest.raises(MismatchError, match="publish"):
            method.decode(unpublished, SEED, count=WORKERS)


@every_method
def test_bad_seeds_and_sources_are_refused(method: Method) -> None:
    with pytest.raises(ArgumentError, match="seed"):
        method.encode(VECTORS, KEY, sources(0)[0])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="noise"):
        method.encode(VECTORS, SEED, NOISE_KEY)  # type: ignore[arg-type]
    for bad in (0, -3, True, 1.5):
        with pytest.raises(ArgumentError, match="present"):
            method.claim_for(bad, SEED)  # type: ignore[arg-type]


@every_method
def test_what_overflows_in_float32_is_refused_or_clipped(method: Method) -> None:
    """Finite coordinates whose sums are not: no method may send an infinite cell."""
    vectors = torch.full((WORKERS, DIM), 3e38)
    try:
        messages = method.encode(vectors, SEED, sources(0)[0]).messages
    except ArgumentError as error:
        assert "float32" in str(error) or "finite" in str(error)  # noqa: PT017
    else:
        assert bool(torch.isfinite(messages).all())


@every_method
@pytest.mark.parametrize(
    ("out", "error", "match"),
    [
        (torch.zeros(DIM + 1), MismatchError, r"out must have the shape \(40,\), got \(41,\)"),
        (torch.zeros(1, DIM), MismatchError, r"out must have the shape \(40,\), got \(1, 40\)"),
        (torch.zeros(DIM, dtype=torch.float64), ArgumentError, "a float32 tensor, got .*float64"),
        (torch.zeros(DIM, dtype=torch.float16), ArgumentError, "a float32 tensor, got .*float16"),
        ([0.0] * DIM, ArgumentError, "out must be a float32 tensor, got list"),
        (torch.zeros(2 * DIM)[::2], ArgumentError, "contiguous, got a stride of 2"),
        (torch.zeros(1).expand(DIM), ArgumentError, "contiguous, got a stride of 0"),
        (torch.zeros(DIM, requires_grad=True), ArgumentError, "out must need no gradient"),
        (torch.zeros(DIM, device="meta"), MismatchError, "out must be on cpu, got one on meta"),
    ],
)
def test_memory_that_does_not_fit_is_refused(
    method: Method, out: Tensor, error: type[Exception], match: str
) -> None:
    total = published(method, VECTORS, SEED, sources(0))
    with pytest.raises(error, match=match):
        method.decode(total, SEED, count=WORKERS, out=out)
