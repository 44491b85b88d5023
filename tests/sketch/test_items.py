"""Items (key, value): the cells of the vector they stand for, on both devices' code; keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from diffsketch import ArgumentError, CountSketch, MismatchError, SketchKey, compiled
from diffsketch.sketch import hash_keys
from diffsketch.sketch.hashing import FAMILIES, MAX_DIM, MAX_KEYS, Family, columns_and_signs
from diffsketch.sketch.kernels import cpu, gpu_items
from diffsketch.sketch.keys import siphash
from tests.helpers.refusals import refused

pytestmark = pytest.mark.usefixtures("restore_threads")
KEY = SketchKey(bytes(range(32)))
SEED = KEY.seed(3)
SHAPES = [(1, 1, 1), (50, 40, 7), (3000, 5, 100), (3000, 2, 5000), (20_000, 3, 40)]
SMALL = [CountSketch(*shape, family) for shape in SHAPES for family in FAMILIES]
LARGE = [
    *(CountSketch(MAX_DIM, 5, 60, family) for family in FAMILIES),
    CountSketch(1 << 63, 33, 500, "pairwise"),
    CountSketch(MAX_KEYS, 3, (1 << 18) - 5, "pairwise"),
]


def some_items(dim: int, people: int = 9, count: int = 2500) -> tuple[torch.Tensor, ...]:
    """Keys, whole numbers, and offsets of people of whom some have nothing."""
    rng = np.random.default_rng(count)
    keys = rng.integers(0, dim, count, dtype=np.uint64)
    keys[count // 2 :] = rng.choice(keys[: count // 4 + 1], count - count // 2)  # repeated ones
    keys[:2] = 0, dim - 1
    cuts = np.sort(rng.integers(0, count, people - 1))
    cuts[1:3] = cuts[0]
    offsets = torch.from_numpy(np.concatenate(([0], np.sort(cuts), [count])))
    values = torch.from_numpy(rng.integers(-1000, 1000, count)).double()
    return torch.from_numpy(keys).view(torch.int64), values, offsets


def expected_tables(
    sketch: CountSketch, keys: torch.Tensor, values: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    """By the definition, one item after the other."""
    columns, signs = columns_and_signs(keys.numpy().view(np.uint64), SEED, layout=sketch)
    tables = np.zeros((len(offsets) - 1, sketch.rows, sketch.cols))
    person = np.repeat(np.arange(len(tables)), offsets.diff().numpy())
    for row in range(sketch.rows):
        np.add.at(tables[:, row], (person, columns[row]), values.numpy() * signs[row])
    return torch.from_numpy(tables)


@pytest.mark.parametrize("sketch", SMALL, ids=str)
def test_tables_and_estimates_are_those_of_the_vectors(sketch: CountSketch) -> None:
    keys, values, offsets = some_items(sketch.dim)
    person = torch.repeat_interleave(torch.arange(9), offsets.diff())
    vectors = torch.zeros(9, sketch.dim, dtype=torch.float64)
    vectors.index_put_((person, keys), values, accumulate=True)
    tables = sketch.encode_items(keys, values, SEED, offsets=offsets)
    assert torch.equal(tables, sketch.encode(vectors, SEED))
    total = sketch.encode_items(keys, values, SEED)
    assert torch.equal(total, sketch.encode(vectors.sum(0), SEED))
    for combine in ("median", "mean"):
        estimates = sketch.query(tables, SEED, combine=combine)
        found = sketch.query_items(tables, keys, SEED, combine=combine)
        torch.testing.assert_close(found, estimates[:, keys], rtol=1e-14, atol=1e-12)
    assert torch.equal(found[2], sketch.query_items(tables[2], keys, SEED, combine="mean"))


@pytest.mark.parametrize("kernels", [cpu, gpu_items])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sketch", LARGE, ids=str)
def test_keys_beyond_32_bits(kernels: Any, sketch: CountSketch, dtype: torch.dtype) -> None:
    """The code for CUDA is PyTorch's, and so can be run here as well."""
    keys, values, offsets = some_items(sketch.dim)
    tables = expected_tables(sketch, keys, values, offsets).to(dtype)
    arguments: dict[str, Any] = {"seed": SEED, "layout": sketch}
    found = kernels.encode_items(keys, values.to(dtype), offsets=offsets, **arguments)
    assert torch.equal(found, tables)
    found = kernels.encode_items(keys, values.to(dtype), offsets=None, **arguments)
    assert torch.equal(found, tables.sum(0))
    columns, signs = columns_and_signs(keys.numpy().view(np.uint64), SEED, layout=sketch)
    cells = tables.numpy()[:, np.arange(sketch.rows)[:, None], columns] * signs
    for combine, exact in (("median", np.median(cells, axis=1)), ("mean", cells.mean(axis=1))):
        found = kernels.query_items(tables, keys, combine=combine, **arguments)
        torch.testing.assert_close(found, torch.from_numpy(exact).to(dtype), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cols", [50, 3000])
def test_bits_do_not_depend_on_threads(
    family: Family, cols: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "SERIAL", 1)
    monkeypatch.setattr(cpu, "_LONG", 300)  # several parts
    sketch = CountSketch(100_000, 3, cols, family)
    keys, _, offsets = some_items(sketch.dim, people=40)
    values, results = torch.randn(len(keys)), []
    for spare in (cpu._ITEMS_SPARE, 1):  # the latter shares out the rows of a single part
        monkeypatch.setattr(cpu, "_ITEMS_SPARE", spare)
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            total = sketch.encode_items(keys, values, SEED)
            tables = sketch.encode_items(keys, values, SEED, offsets=offsets)
            results.append((total, tables, sketch.query_items(total, keys, SEED)))
        for other in results:
            assert all(map(torch.equal, other, results[0]))
        torch.testing.assert_close(tables.sum(0), total)
        results.clear()


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (3, torch.float64), (True, torch.float64), (2.5, torch.float64),
        (torch.tensor(3.0), torch.float32), (torch.ones(100, dtype=torch.bool), torch.float64),
        (torch.arange(100), torch.float64), (torch.arange(100).half(), torch.float32),
        (torch.arange(100).bfloat16(), torch.float32), (torch.arange(100).float(), torch.float32),
        (torch.arange(200, dtype=torch.float64)[::2], torch.float64),
        (torch.ones(100, requires_grad=True), torch.float32),
    ],
)  # fmt: skip
def test_values_are_any_numbers(values: Any, dtype: torch.dtype) -> None:
    sketch, keys = CountSketch(1000, 3, 50), torch.arange(100) * 7
    exact = torch.as_tensor(values).detach().double().expand(100).contiguous()
    table = sketch.encode_items(keys, values, SEED)
    assert table.dtype == dtype
    assert not table.requires_grad
    assert torch.equal(table.double(), sketch.encode_items(keys, exact, SEED))
    again = sketch.encode_items(torch.stack((keys, keys), 1)[:, 1].view(torch.uint64), values, SEED)
    assert torch.equal(again, table)


@pytest.mark.parametrize("kernels", [cpu, gpu_items])
def test_one_is_not_lost_on_a_large_sum(kernels: Any) -> None:
    """As it would be in a sum in float32 (the control)."""
    sketch, values = CountSketch(10, 1, 1, "pairwise"), torch.ones(1001)
    values[0] = 2.0**24
    keys = torch.zeros(1001, dtype=torch.int64)
    table = kernels.encode_items(keys, values, SEED, layout=sketch, offsets=None)
    assert table.abs().item() == 2**24 + 1000
    assert np.cumsum(values.numpy())[-1] == 2**24


def test_nothing_to_add() -> None:
    sketch, keys = CountSketch(100, 3, 10), torch.empty(0, dtype=torch.int64)
    assert torch.equal(sketch.encode_items(keys, 1.0, SEED), torch.zeros(3, 10).double())
    offsets = torch.zeros(5, dtype=torch.int64)
    assert sketch.encode_items(keys, keys.float(), SEED, offsets=offsets).shape == (4, 3, 10)
    assert sketch.encode_items(keys, 1, SEED, offsets=offsets[:1]).shape == (0, 3, 10)
    assert sketch.query_items(torch.zeros(2, 3, 10), keys, SEED).shape == (2, 0)
    assert sketch.query_items(torch.zeros(0, 3, 10), keys + 1, SEED).shape == (0, 0)


def collisions(keys: npt.NDArray[np.uint64]) -> float:
    """Pairs of keys in one cell with equal signs, in standard errors from what is expected.

    Seeds are independent of each other, pairs of a seed are not: so seeds are counted.
    """
    sketch, hits = CountSketch(MAX_KEYS, 8, 64, "pairwise"), []
    for number in range(400):
        columns, signs = columns_and_signs(keys, KEY.seed(number), layout=sketch)
        cells = columns * 2 + (signs > 0)
        hits.append(((cells[:, :, None] == cells[:, None, :]).sum() - cells.size) / 2)
    expected = 8 * len(keys) * (len(keys) - 1) / 2 / 128
    return float((np.mean(hits) - expected) / (np.std(hits) / np.sqrt(len(hits))))


def test_keys_that_differ_in_their_upper_half_are_independent() -> None:
    """Within six standard errors; the control leaves the upper half out, as 32 bits would."""
    upper = np.arange(1, 33, dtype=np.uint64) << np.uint64(32)
    for keys in (upper + np.uint64(5), upper << np.uint64(20), np.uint64(MAX_KEYS - 1) - upper):
        assert abs(collisions(keys)) < 6
    lower = (upper + np.uint64(5)) & np.uint64(0xFFFFFFFF)
    lower[::2] += np.uint64(1)  # not all alike: then nothing would be random
    assert collisions(lower) > 60


KEYS, TABLE = torch.tensor([3, 99, 5]), torch.zeros(3, 10)
BAD_ITEMS: list[tuple[dict[str, Any], str]] = [
    ({"keys": KEYS + 1}, r"keys must be in \[0, dim=100\), got keys\[1\]=100"),
    ({"keys": KEYS - 4}, r"got keys\[0\]=-1"),
    ({"keys": (KEYS - 4).view(torch.uint64)}, r"got keys\[0\]=18446744073709551615"),
    ({"keys": KEYS.int()}, "keys must be int64 or uint64"),
    ({"keys": KEYS[None]}, "keys must be int64 or uint64"),
    ({"keys": [1, 2, 3]}, "got a list"),
    ({"values": torch.ones(2)}, r"values must be \(3,\) like keys"),
    ({"values": torch.ones(3, 1)}, r"values must be \(3,\) like keys"),
    ({"values": "1"}, "values must be a tensor or a number"),
    ({"values": torch.ones(3, dtype=torch.complex64)}, "values must be real"),
    ({"offsets": [0, 3]}, "offsets must be int64"),
    ({"offsets": torch.tensor([0, 3]).int()}, "offsets must be int64"),
    ({"offsets": torch.tensor([])}, "offsets must be int64"),
    ({"offsets": torch.tensor([0, 2])}, r"begin with 0 and end with 3 items, got .*\(0, 2\)"),
    ({"offsets": torch.tensor([1, 3])}, "offsets must begin with 0"),
    ({"offsets": torch.tensor([0, 3, 2, 3])}, "offsets must never decrease"),
    ({"seed": KEY}, "seed must be a HashSeed"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_ITEMS)
def test_bad_items(changes: dict[str, Any], message: str) -> None:
    sketch, arguments = CountSketch(100, 3, 10), dict[str, Any](keys=KEYS, values=1, seed=SEED)
    with pytest.raises((ArgumentError, MismatchError), match=message):
        sketch.encode_items(**(arguments | changes))
    if "keys" in changes:
        refused(ArgumentError, message, sketch.query_items, TABLE, changes["keys"], SEED)


def test_bad_queries_of_items() -> None:
    sketch = CountSketch(100, 3, 10)
    refused(ArgumentError, "table must be finite", sketch.query_items, TABLE / 0, KEYS, SEED)
    refused(ArgumentError, "combine must be", sketch.query_items, TABLE, KEYS, SEED, combine="max")


def test_limits_of_dim() -> None:
    with pytest.raises(ArgumentError, match=r"dim must be at most 2\*\*40 with family='blocked'"):
        CountSketch(MAX_DIM + 1, 3, 10)
    with pytest.raises(ArgumentError, match=r"dim must be in 1..18446744073709551616, got"):
        CountSketch(MAX_KEYS + 1, 3, 10, "pairwise")
    sketch = CountSketch(MAX_DIM + 1, 3, 10, "pairwise")
    refused(ArgumentError, "dim must be at most", sketch.query, TABLE, SEED)
    refused(ArgumentError, "dim must be at most", sketch.top_k, TABLE, SEED, 1)
    with pytest.raises(ArgumentError, match=f"offset must be in 0..{MAX_DIM - 5}"):
        sketch.encode(torch.ones(5), SEED, offset=MAX_DIM - 4)
    for dim in ((1 << 63) + 9, (1 << 63) - 9):
        sketch, last = CountSketch(dim, 3, 10, "pairwise"), np.array([4, dim - 1, 5], np.uint64)
        sketch.encode_items(torch.from_numpy(last), 1, SEED)
        with pytest.raises(ArgumentError, match=rf"keys\[1\]={dim}"):
            sketch.encode_items(torch.from_numpy(last + np.uint64(1)), 1, SEED)


def test_siphash_by_its_authors_vectors() -> None:
    first, second = np.arange(16, dtype=np.uint8).view("<u8").astype(np.uint64)
    data, out = np.arange(64, dtype=np.uint8), np.empty(4, np.uint64)
    text = np.concatenate([data[:size] for size in (0, 1, 8, 15)])
    siphash(text, np.array([0, 0, 1, 9, 24]), first, second, out)
    assert [hex(word) for word in out.tolist()] == [
        "0x726fdb47dd0e0e31", "0x74f839c593dc67fd", "0x93f5f5799a932462", "0xa129ca6149be45e5",
    ]  # fmt: skip


def test_keys_of_strings() -> None:
    words = ["", "Rome", "Oslo", "a long name " * 30, "Zürich", "東京", "\ud800"]
    keys = hash_keys(words, KEY)
    assert keys.dtype == np.uint64
    assert len(set(keys.tolist())) == len(words)
    in_bytes = [word.encode("utf-8", "surrogatepass") for word in words]
    mixed = [pair[i % 2] for i, pair in enumerate(zip(words, in_bytes, strict=True))]
    for same in (in_bytes, mixed, (word for word in words), np.array(words, dtype=object)):
        assert hash_keys(same, KEY).tolist() == keys.tolist()
    assert hash_keys(np.array(words[1:3]), KEY).tolist() == keys[1:3].tolist()
    assert [int(hash_keys([word], KEY)[0]) for word in words] == keys.tolist()
    assert not set(hash_keys(words, SketchKey(bytes(32))).tolist()) & set(keys.tolist())
    assert hash_keys([], KEY).shape == (0,)
    # Another release must hash alike, or tables lose their meaning.
    assert hash_keys(["Rome"], SketchKey.from_integer(7)).tolist() == [1265965635480588890]
    message = r"values must be str or bytes, got a float as val.*1\]"
    refused(ArgumentError, message, hash_keys, ["Rome", float("nan")], KEY)
