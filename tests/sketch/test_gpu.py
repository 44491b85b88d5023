"""CUDA kernels against the reference. They run where there is a CUDA device."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from diffsketch import CountSketch, SketchKey
from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.sketch import Combine
from diffsketch.sketch.hashing import FAMILIES, Family, mix64
from diffsketch.sketch.rounding import SumPacking
from tests.helpers.refusals import refused
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
    (2_500_000, 1, 600_000),
    (100_000, 33, 700),
]


def random_vectors(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, device="cuda", dtype=torch.float64).to(dtype)


def check(sketch: CountSketch, vectors: torch.Tensor, offset: int, tolerance: float) -> None:
    plain = reference.encode(vectors, sketch, SEED, offset=offset)
    table = sketch.encode(vectors, SEED, offset=offset)
    assert table.dtype == plain.dtype
    scale = plain.abs().max().item() + 1
    torch.testing.assert_close(table, plain, rtol=0, atol=tolerance * scale)
    for combine in ("median", "mean"):
        expected = reference.query(
            plain, sketch, SEED, vectors.shape[-1], offset=offset, combine=combine
        )
        out = torch.empty_like(expected)
        sketch.query(plain, SEED, combine=combine, offset=offset, out=out)
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


def test_launches_are_kept_for_tensors_of_any_alignment() -> None:
    sketch, long = CountSketch(300_000, 3, 4000), random_vectors(300_001)
    for _ in range(2):
        for vector in (long[:-1], long[1:]):
            table = sketch.encode(vector, SEED)
            assert torch.equal(table, sketch.encode(vector.clone(), SEED))
            plain = sketch.query(table, SEED)
            for out in (torch.empty_like(long)[:-1], torch.empty_like(long)[1:]):
                assert torch.equal(sketch.query(table, SEED, out=out), plain)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_items_give_the_tables_of_the_cpu(family: Family, dtype: torch.dtype) -> None:
    """More than a piece of them; whole numbers, whose sums are exact in any order."""
    dim = 1 << 64 if family == "pairwise" else 1 << 40
    sketch, rng = CountSketch(dim, 5, 700, family), np.random.default_rng(2)
    keys = torch.from_numpy(rng.integers(0, dim, 1_500_000, dtype=np.uint64))
    values = torch.from_numpy(rng.integers(-9, 9, len(keys))).to(dtype)
    offsets = torch.from_numpy(np.sort(rng.integers(0, len(keys), 101)))
    offsets[0], offsets[-1] = 0, len(keys)
    for value in (values, 1):
        there = value.cuda() if isinstance(value, torch.Tensor) else value
        for starts in (None, offsets):
            tables = sketch.encode_items(keys, value, SEED, offsets=starts)
            begins = None if starts is None else starts.cuda()
            found = sketch.encode_items(keys.cuda(), there, SEED, offsets=begins)
            assert torch.equal(found.cpu(), tables)
            for combine in ("median", "mean"):
                few, batch = keys[-2000:], tables[:3] if starts is not None else tables
                estimates = sketch.query_items(batch.cuda(), few.cuda(), SEED, combine=combine)
                expected = sketch.query_items(batch, few, SEED, combine=combine)
                torch.testing.assert_close(estimates.cpu(), expected, rtol=1e-5, atol=1e-5)
    small, keys, one = CountSketch(100, 3, 10), torch.tensor([0, 100]).cuda(), torch.tensor([1])
    refused(ArgumentError, r"got keys\[1\]=100", small.encode_items, keys, 1, SEED)
    table = torch.zeros(3, 10, device="cuda")
    refused(MismatchError, "keys must be on cuda", small.query_items, table, one, SEED)
    text = "values must be real and where keys are"
    refused(MismatchError, text, small.encode_items, one.cuda(), torch.ones(1), SEED)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_waits_for_the_device(family: Family) -> None:
    vector = random_vectors(3, 100_000)
    for cols in (50, 5000):
        sketch = CountSketch(100_000, 3, cols, family)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for round_index in range(2):
                seed = SketchKey(bytes(32)).seed(round_index)
                sketch.query(sketch.encode(vector, seed), seed, validate=False)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_streams_share_a_seed() -> None:
    """What one stream still waits for is not there yet for another."""
    sketch, vector = CountSketch(300_000, 3, 4000), random_vectors(300_000)
    seed, long = SketchKey(bytes(32)).seed(0), torch.empty(1 << 31, device="cuda")
    expected = sketch.encode(vector, SketchKey(bytes(32)).seed(0))
    torch.cuda.synchronize()
    first, second = torch.cuda.Stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(first):
        long.fill_(1.0)
        sketch.encode(vector, seed)
    with torch.cuda.stream(second):
        table = sketch.encode(vector, seed)
    torch.cuda.synchronize()
    assert torch.equal(table, expected)


def rounded(tables: torch.Tensor, step: float, keys: torch.Tensor) -> torch.Tensor:
    """Whole numbers by the definition, without limits."""
    cell = np.arange(tables.shape[1], dtype=np.uint64)
    words = [mix64(cell, *pair) for pair in keys.numpy().view(np.uint64)]
    drawn = (np.stack(words) >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
    scaled = tables.cpu().numpy() * np.float32(1 / step)
    return torch.from_numpy(np.floor(scaled + (drawn - np.float32(0.5)))).long()


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("cells", [1, 1024, 3_000_001])
def test_rounding_of_cells(cells: int, bits: int) -> None:
    from diffsketch.sketch.kernels import gpu

    tables, step = random_vectors(3, cells), 4 / ((1 << bits) - 1)
    keys = torch.from_numpy(np.random.default_rng(bits).integers(-(2**63), 2**63, (3, 2)))
    kind, half = torch.int16 if bits > 8 else torch.int8, 1 << (bits - 1)
    expected = rounded(tables, step, keys)
    kept = expected.clamp(-half, half - 1)
    for extra, given, order in ((0, keys, 4.0), (3, keys.cuda(), math.inf)):
        out = torch.full((3, cells + extra), 99, dtype=kind, device="cuda")
        found, norms = gpu.round_cells(
            tables, step, bits, given, out[:, :cells], shift=0.0, order=order
        )
        exact = torch.linalg.vector_norm(tables.double(), ord=order, dim=1) / step
        torch.testing.assert_close(norms.double(), exact, rtol=1e-5, atol=0)
        assert torch.equal(out[:, :cells].cpu().long(), kept)
        assert (out[:, cells:] == 99).all()
        assert torch.equal(found.cpu(), (expected != kept).sum(dim=1))


@pytest.mark.parametrize(("bits", "count"), [(1, 1), (4, 16), (16, 1000)])
def test_sums_of_packed_cells(bits: int, count: int) -> None:
    kind, lowest, cells = torch.int16 if bits > 8 else torch.int8, -(1 << (bits - 1)), 100_001
    packing = SumPacking(bits + (count - 1).bit_length(), lowest, count)
    messages = torch.randint(lowest, -lowest, (count, cells), dtype=kind, device="cuda")
    words = packing.pack(messages)
    assert torch.equal(words.cpu(), packing.pack(messages.cpu()))
    total = words.sum(dim=0, dtype=torch.int32)
    for dtype in (torch.int32, torch.int64, torch.float32):
        summed = packing.unpack(total, cells, dtype)
        assert torch.equal(summed.int(), messages.sum(dim=0, dtype=torch.int32))


def test_devices_do_not_mix_and_bad_values_are_refused() -> None:
    sketch, vector = CountSketch(1000, 3, 50), random_vectors(1000)
    table = sketch.encode(vector, SEED)
    refused(MismatchError, "out must be", sketch.query, table, SEED, out=torch.empty(1000))
    secret = torch.zeros(32, dtype=torch.uint8, device="cuda")
    refused(ArgumentError, "secret must be 32 bytes", SketchKey, secret)
    vector[7] = torch.nan
    refused(ArgumentError, "finite", sketch.query, sketch.encode(vector, SEED), SEED)
    refused(ArgumentError, "vector must be one of", sketch.encode, vector.long(), SEED)


@pytest.mark.parametrize("cols", [800_000, 80_000])
def test_memory_beyond_vector_and_table(cols: int) -> None:
    """At most 1% of the vector, at 50x and at 500x."""
    dim = 200_000_000  # large against the granularity of torch's allocator
    sketch, vector = CountSketch(dim, 5, cols), torch.ones(dim, device="cuda")
    table, out = sketch.encode(vector, SEED), torch.empty_like(vector)
    sketch.query(table, SEED, out=out, validate=False)
    calls: list[tuple[Callable[[], object], int]] = [
        (partial(sketch.encode, vector, SEED), table.nbytes),
        (partial(sketch.query, table, SEED, out=out, validate=False), 0),
    ]
    for call, result_bytes in calls:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        extra = torch.cuda.max_memory_allocated() - before - result_bytes
        assert extra <= vector.nbytes // 100
