"""The fast kernels against the plain reference, and invariances of the bits."""

from __future__ import annotations

import pickle
import tracemalloc

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from diffsketch import CountSketch, SketchKey, compiled
from diffsketch.sketch.hashing import FAMILIES, Family, columns_and_signs
from diffsketch.sketch.kernels import cpu, cpu_blocked, cpu_pairwise, new_result
from tests.sketch import reference

pytestmark = pytest.mark.usefixtures("restore_threads")
SEED = SketchKey(bytes(range(32))).seed(3)
SHAPES = [
    (7850, 7, 22),  # short blocks, several copies of the table
    (40_001, 33, 7),  # several parts, more rows than a word has bits
    (8200, 2, 32),
    (1, 1, 1),
    (33, 2, 1),
    (100, 2, 13),  # blocks shorter than a vector
    (100, 2, 500),  # more columns than coordinates
    (50_000, 5, 2100),
    (60_000, 5, 9001),  # blocks longer than a chunk
    (300_000, 5, 40_000),  # adds into the table itself
    (120_000, 5, 300),  # long vector, several parts
    (3000, 7, 64),
    (3000, 33, 64),
    (40_000, 5, 1000),  # parts and copies
    (32_768, 1, 22),
]
every_sketch = pytest.mark.parametrize(
    "sketch", [CountSketch(*shape, family) for shape in SHAPES for family in FAMILIES], ids=str
)
PER_LOOP: list[tuple[int, int, Family]] = [  # shapes that take each of the loops
    (3000, 64, "blocked"), (9000, 20_000, "blocked"), (3000, 64, "pairwise"), (3000, 7, "pairwise"),
]  # fmt: skip
LOOPS = (
    cpu_blocked.encode_short, cpu_blocked.query_short, cpu_blocked.encode,
    cpu_blocked.query, cpu_pairwise.encode, cpu_pairwise.query,
)  # fmt: skip


def random_vectors(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def assert_close(fast: torch.Tensor, plain: torch.Tensor) -> None:
    tolerance = 1e-4 if fast.dtype == torch.float32 else 1e-12
    assert fast.shape == plain.shape
    assert fast.dtype == plain.dtype
    torch.testing.assert_close(fast, plain, rtol=tolerance, atol=tolerance)


def check_against_reference(sketch: CountSketch, vectors: torch.Tensor) -> None:
    plain = reference.encode(vectors, sketch, SEED)
    assert_close(sketch.encode(vectors, SEED), plain)
    for combine in ("median", "mean"):
        expected = reference.query(plain, sketch, SEED, sketch.dim, combine=combine)
        assert_close(sketch.query(plain, SEED, combine=combine), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_sketch
def test_cpu_equals_reference(sketch: CountSketch, dtype: torch.dtype) -> None:
    check_against_reference(sketch, random_vectors(2, sketch.dim, dtype=dtype))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [4, 16, 17, 33, 64])
def test_any_number_of_rows(rows: int) -> None:
    """With loops that are compiled once for all of them: only what combines the rows is not."""
    torch.set_num_threads(1)

    def check(rows: int) -> None:
        for dim, cols, family in PER_LOOP:
            check_against_reference(CountSketch(dim, rows, cols, family), random_vectors(dim))

    check(5)
    compiled = [len(loop.signatures) for loop in LOOPS]
    assert min(compiled) > 0
    check(rows)
    assert [len(loop.signatures) for loop in LOOPS] == compiled


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cols", [1, 4, 22])
def test_cells_are_as_exact_with_a_mean(cols: int, family: Family) -> None:
    """Sums of signed numbers stay small; sums that are signed later would lose digits, or end."""
    sketch = CountSketch(400_000, 2, cols, family)
    vector = 0.1 + random_vectors(sketch.dim).abs() / 100
    exact = reference.encode(vector.double(), sketch, SEED)
    error = (sketch.encode(vector, SEED) - exact).norm() / exact.norm()
    assert error < 1e-5
    if cols == 1:  # the planted error
        signs = columns_and_signs(np.arange(sketch.dim), SEED, layout=sketch)[1][0]
        plus, minus = (vector.numpy()[signs == sign] for sign in (1, -1))
        late = np.cumsum(plus)[-1] - np.cumsum(minus)[-1]
        assert abs(float(late) / float(exact[0, 0]) - 1) > 1e-4
    huge = torch.full((30_000,), 5e35)
    assert torch.isfinite(CountSketch(30_000, 2, 2, family).encode(huge, SEED)).all()


def test_what_is_not_finite_stays_in_its_cells() -> None:
    sketch, vector = CountSketch(4000, 2, 8, "pairwise"), torch.ones(4000)
    vector[6] = torch.nan
    assert sketch.encode(vector, SEED).isnan().sum(1).tolist() == [1, 1]


@every_sketch
def test_bits_do_not_depend_on_threads(
    sketch: CountSketch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "SERIAL", 1)  # threads also where they are not worth it
    monkeypatch.setattr(cpu, "_CACHE", 1 << 10)  # and memory of their own
    vectors = random_vectors(3, sketch.dim)
    results = []
    for threads in (1, 2, 3, 7, 16, 64):
        torch.set_num_threads(threads)
        tables = sketch.encode(vectors, SEED)
        results.append((tables, sketch.query(tables, SEED), sketch.encode(vectors[0], SEED)))
    for tables, estimates, first in results[1:]:
        assert torch.equal(tables, results[0][0])
        assert torch.equal(estimates, results[0][1])
        assert torch.equal(first, results[0][2])
    assert torch.equal(results[0][0][0], results[0][2])  # nor on the batch


@given(
    dim=st.integers(1, 5000),
    rows=st.sampled_from((1, 2, 5, 7)),
    cols=st.integers(1, 700),
    family=st.sampled_from(FAMILIES),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_parts_add_up(dim: int, rows: int, cols: int, family: Family, data: st.DataObject) -> None:
    """Any shape, any cut: the parts' tables sum to the whole, and part queries are its slices."""
    sketch = CountSketch(dim, rows, cols, family)
    vector = random_vectors(dim, dtype=torch.float64)
    cut = data.draw(st.integers(0, dim))
    whole = sketch.encode(vector, SEED)
    parts = sketch.encode(vector[:cut], SEED, offset=0) + sketch.encode(
        vector[cut:], SEED, offset=cut
    )
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)
    expected = reference.encode(vector, sketch, SEED)
    torch.testing.assert_close(whole, expected, rtol=1e-12, atol=1e-12)
    estimates = sketch.query(whole, SEED)
    out = torch.empty(dim - cut, dtype=torch.float64)
    assert sketch.query(whole, SEED, offset=cut, out=out) is out
    assert torch.equal(out, estimates[cut:])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cols", [2500, 22])
@pytest.mark.parametrize("offset", [(1 << 32) - 1000, (1 << 40) - 30_000])
def test_indices_beyond_32_bits(family: Family, cols: int, offset: int) -> None:
    sketch = CountSketch(1 << 40, 5, cols, family)
    vector = random_vectors(30_000, dtype=torch.float64)
    table = sketch.encode(vector, SEED, offset=offset)
    assert_close(table, reference.encode(vector, sketch, SEED, offset=offset))
    out = torch.empty_like(vector)
    sketch.query(table, SEED, offset=offset, out=out)
    assert_close(out, reference.query(table, sketch, SEED, len(vector), offset=offset))
    assert not torch.equal(table, sketch.encode(vector, SEED, offset=offset - (1 << 32) + 1000))


def test_large_outputs_are_written_whole() -> None:
    """Past the size from which on results bypass the caches, with and without alignment."""
    sketch = CountSketch(5_000_017, 3, 50_000)
    vector = random_vectors(sketch.dim)
    table = sketch.encode(vector, SEED)
    memory = torch.full((sketch.dim + 1,), torch.nan)
    for shift in (0, 1):
        out = memory[shift : shift + sketch.dim]
        sketch.query(table, SEED, out=out)
        assert torch.isfinite(out).all()
        last = reference.query(table, sketch, SEED, 1000, offset=sketch.dim - 1000)
        assert torch.equal(out[-1000:], last)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "sketch", [CountSketch(7850, 7, 22, "pairwise"), CountSketch(2_500_000, 2, 3000)], ids=str
)
def test_half_precision_is_summed_in_float32(sketch: CountSketch, dtype: torch.dtype) -> None:
    """In one piece and in several, of one vector and of two."""
    vectors = random_vectors(2, sketch.dim).to(dtype)
    tables = sketch.encode(vectors, SEED)
    expected = sketch.encode(vectors.float(), SEED)
    torch.testing.assert_close(tables, expected, rtol=1e-5, atol=1e-3)
    assert torch.equal(sketch.encode(vectors[1], SEED), tables[1])
    part = sketch.encode(vectors[0, 1000:], SEED, offset=1000)
    part += sketch.encode(vectors[0, :1000], SEED, offset=0)
    torch.testing.assert_close(part, expected[0], rtol=1e-5, atol=1e-3)


def test_memory_for_results() -> None:
    """From NumPy or not: whole lines of the cache, and ordinary tensors but for resizing."""
    for shape, dtype in (((5,), torch.float32), ((3, 1 << 20), torch.float64), ((0,), torch.half)):
        result = new_result(torch.empty(0, dtype=dtype), shape)
        assert (result.shape, result.dtype, result.is_contiguous()) == (shape, dtype, True)
        assert result.data_ptr() % 64 == 0
        result.fill_(2)
        assert result.sum() == 2 * result.numel()


@pytest.mark.parametrize("family", FAMILIES)
def test_strided_input(family: Family) -> None:
    sketch = CountSketch(1000, 3, 64, family)
    matrix = random_vectors(1000, 4)
    table = sketch.encode(matrix[:, 1], SEED)
    assert torch.equal(table, sketch.encode(matrix[:, 1].clone(), SEED))
    assert torch.equal(sketch.encode(matrix.T, SEED)[1], table)
    padded = torch.zeros(3, 128)[:, ::2]
    padded.copy_(table)
    assert torch.equal(sketch.query(padded, SEED), sketch.query(table, SEED))


def test_planted_errors_are_noticed() -> None:
    """Negative control: a flipped sign or another run's shift does not pass the comparison."""
    sketch = CountSketch(2000, 3, 64)
    vector = random_vectors(2000)
    plain = reference.encode(vector, sketch, SEED)
    for broken in (-vector, vector.roll(1), torch.cat((vector[:-1], -vector[-1:]))):
        with pytest.raises(AssertionError):
            assert_close(cpu.encode(broken, SEED, layout=sketch, offset=0), plain)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("items", "dim", "rows", "cols"), [(100, 32_768, 5, 1000), (300, 1000, 5, 60)]
)
def test_memory_of_a_batch(family: Family, items: int, dim: int, rows: int, cols: int) -> None:
    """Partial tables are for a few vectors at a time, not for all of them."""
    sketch, vectors = CountSketch(dim, rows, cols, family), random_vectors(items, dim)
    torch.set_num_threads(2)
    table = sketch.encode(vectors, SEED)
    tracemalloc.start()
    sketch.encode(vectors, SEED)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak - table.nbytes < 2 * (1 << 19)


def test_seeds_pickle_small() -> None:
    sketch = CountSketch(7850, 7, 22)
    sketch.encode(random_vectors(7850), SEED)
    for value in (SEED, sketch):
        assert len(pickle.dumps(value)) < 500
        assert pickle.loads(pickle.dumps(value)) == value  # noqa: S301 - our own bytes


def test_residuals_take_any_piece() -> None:
    """More coordinates than a piece of the residual's, of every kind of loop; with a scale."""
    for family, cols in (("blocked", 9001), ("blocked", 7), ("blocked", 60), ("pairwise", 300)):
        sketch = CountSketch(200_001, 3, cols, family)  # type: ignore[arg-type]
        vector, memory = random_vectors(sketch.dim), random_vectors(sketch.dim, 1)[:, 0]
        table, found = sketch.encode(vector, SEED), memory.clone()
        sketch.add_residual(found, vector, table, SEED, scale=0.3, scratch=torch.empty_like(found))
        missed = vector.double() - sketch.query(table, SEED).double()
        torch.testing.assert_close(found.double(), memory + 0.3 * missed, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [0, 1, 1000, 70_000])
def test_top_k_of_many(count: int) -> None:
    """Where the limit is guessed from a sample, also a bad one: all that is large is elsewhere."""
    sketch = CountSketch(700_000, 1, 700_001)
    vector = random_vectors(sketch.dim)
    vector[torch.arange(sketch.dim) % 16 == 0] *= 1e3
    for values in (vector, -vector.flip(0), torch.ones(sketch.dim)):
        table = sketch.encode(values, SEED)
        estimates = sketch.query(table, SEED)
        found, indices = sketch.top_k(table, SEED, count)
        expected = estimates.abs().sort(descending=True, stable=True)
        assert torch.equal(indices, expected.indices[:count])
        assert torch.equal(found, estimates[indices])
