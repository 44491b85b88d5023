"""CUDA kernels against the reference. They run where there is a CUDA device."""

from __future__ import annotations

import pytest
import torch

from diffsketch import CountSketch, Sketch, SketchKey
from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.sketch import Combine
from diffsketch.sketch.hashing import FAMILIES, Family
from tests.sketch import reference

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SEED = SketchKey(bytes(range(32))).seed(3)
SHAPES = [
    (500, 7, 22),
    (33, 3, 1),
    (100, 2, 500),
    (200_000, 5, 2100),
    (300_000, 10, 4100),
    (4_000_000, 5, 16_000),
    (1_000_003, 9, 20_001),
    (3_000_000, 4, 300_000),
    (100_000, 33, 700),
]


def random_vectors(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, device="cuda", dtype=torch.float64).to(dtype)


def check(sketch: CountSketch, vectors: torch.Tensor, offset: int, tolerance: float) -> None:
    length = vectors.shape[-1]
    plain = reference.encode(vectors, SEED, layout=sketch.layout, offset=offset)
    table = sketch.encode(vectors, SEED, offset=offset)
    assert table.dtype == plain.dtype
    scale = plain.abs().max().item() + 1
    torch.testing.assert_close(table, plain, rtol=0, atol=tolerance * scale)
    for combine in ("median", "mean"):
        out = plain.new_empty((*vectors.shape[:-1], length))
        expected = out.clone()
        sketch.query(plain, SEED, combine=combine, offset=offset, out=out)
        reference.query(
            plain, SEED, expected, layout=sketch.layout, offset=offset, mean=combine == "mean",
            validate=True,
        )  # fmt: skip
        torch.testing.assert_close(out, expected, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dim", "rows", "cols"), SHAPES)
def test_equals_reference(dim: int, rows: int, cols: int, family: Family) -> None:
    sketch = CountSketch(dim, rows, cols, family)
    check(sketch, random_vectors(2, dim), 0, 2e-6)
    check(sketch, random_vectors(dim - dim // 3)[: dim // 2], dim // 3, 2e-6)
    check(sketch, random_vectors(dim, dtype=torch.float64), 0, 1e-14)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    check(CountSketch(300_000, 5, 4000), random_vectors(300_000, dtype=dtype), 0, 2e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_indices_beyond_32_bits(family: Family) -> None:
    for cols, start in ((2500, (1 << 40) - 60_000), (30_000, (1 << 39) + 77)):
        check(CountSketch(1 << 40, 3, cols, family), random_vectors(50_000), start, 2e-6)


@pytest.mark.parametrize("combine", ["median", "mean"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cols", [50, 4000])  # in two steps, and for long rows in one
def test_what_estimates_miss(cols: int, family: Family, combine: Combine) -> None:
    sketch = CountSketch(300_001, 3, cols, family)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        memory, vector = random_vectors(2, 300_001, dtype=dtype)
        table = sketch.encode(vector, SEED)
        missed = vector - sketch.query(table, SEED, combine=combine)
        for scale in (0.3, 1):
            found, scratch = memory.clone(), torch.empty_like(memory)
            sketch.add_residual(
                found, vector, table, SEED, scale=scale, combine=combine, scratch=scratch
            )
            expected = memory + scale * missed
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dim", "rows", "cols"), SHAPES)
def test_blocked_repeats_its_bits(dim: int, rows: int, cols: int) -> None:
    sketch, vector = CountSketch(dim, rows, cols), random_vectors(dim)
    table = sketch.encode(vector, SEED)
    for _ in range(3):
        assert torch.equal(sketch.encode(vector, SEED), table)


def test_devices_do_not_mix() -> None:
    sketch, vector = CountSketch(1000, 3, 50), random_vectors(1000)
    there = Sketch.of(vector, sketch, SEED)
    here = Sketch(there.table.cpu(), sketch, SEED.fingerprint)
    with pytest.raises(MismatchError, match="device"):
        there + here
    with pytest.raises(MismatchError, match="out must be"):
        sketch.query(there.table, SEED, out=torch.empty(1000))
    with pytest.raises(ArgumentError, match="secret must be 32 bytes"):
        SketchKey(torch.zeros(32, dtype=torch.uint8, device="cuda"))  # type: ignore[arg-type]


def test_bad_values_are_refused() -> None:
    sketch, vector = CountSketch(1000, 3, 50), random_vectors(1000)
    vector[7] = torch.nan
    with pytest.raises(ArgumentError, match="finite"):
        sketch.query(sketch.encode(vector, SEED), SEED)
    with pytest.raises(ArgumentError, match="vector must be one of"):
        sketch.encode(vector.long(), SEED)


def test_memory_beyond_vector_and_table() -> None:
    """At most 1% of the vector, at 50x and at 500x."""
    dim = 200_000_000  # large against the granularity of torch's allocator
    for cols in (dim // 250, dim // 2500):
        sketch, vector = CountSketch(dim, 5, cols), torch.ones(dim, device="cuda")
        table, out = sketch.encode(vector, SEED), torch.empty_like(vector)
        sketch.query(table, SEED, out=out, validate=False)
        for encode in (True, False):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            if encode:
                sketch.encode(vector, SEED)
            else:
                sketch.query(table, SEED, out=out, validate=False)
            torch.cuda.synchronize()
            extra = torch.cuda.max_memory_allocated() - before - table.nbytes * encode
            assert extra <= vector.nbytes // 100
