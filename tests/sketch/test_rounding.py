"""Cells of few bits. The statistical test fails by chance with probability below 1e-8."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError
from diffsketch.sketch.hashing import mix64
from diffsketch.sketch.rounding import CELL_BITS, CellGrid, SumPacking
from tests.helpers.refusals import refused

every_width = pytest.mark.parametrize("bits", CELL_BITS)


def draws(count: int, seed: int = 0) -> Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(-(2**63), 2**63, (count, 3)))


def reference(tables: Tensor, grid: CellGrid, keys: Tensor) -> Tensor:
    """The definition, one table after the other."""
    index, rows = np.arange(tables.shape[1], dtype=np.uint64), []
    for table, (first, second) in zip(tables.numpy(), keys.numpy().view(np.uint64), strict=True):
        chance = (mix64(index, first, second) >> np.uint64(40)).astype(np.float32)
        shift = chance * np.float32(2**-24) - np.float32(0.5)
        if grid.bits >= 4:
            table = table + np.float32(grid.step / 2)
        place = np.floor(table * np.float32(1 / grid.step) + shift)
        rows.append(np.clip(place, -(2 ** (grid.bits - 1)), 2 ** (grid.bits - 1) - 1))
    return torch.from_numpy(np.stack(rows)).to(grid.type)


@every_width
def test_is_the_definition(bits: int) -> None:
    """Also where several pieces and tables are rounded, beyond the limit, and at its edge."""
    tables = torch.randn(3, 70_001, generator=torch.Generator().manual_seed(1))
    tables[0, :2] = torch.tensor([1.5, -1.5])
    grid, keys = CellGrid(bits, 1.5), draws(3)
    messages, saturated = grid.round(tables, keys)
    expected = reference(tables, grid, keys[:, :2].contiguous())
    assert messages.dtype == grid.type
    assert messages.shape == (3, 70_001 + grid.size_cells)
    # One rounding of a product and a sum, or two: neighbours, for a few cells in a million.
    assert (messages[:, :70_001] != expected).sum() <= 3
    surely = (tables.abs() > 1.5 + 2 * grid.step).sum(dim=1)
    possibly = (tables.abs() > 1.5 - grid.step / 8).sum(dim=1)
    assert ((saturated >= surely) & (saturated <= possibly)).all()
    assert not torch.equal(messages[0], grid.round(tables, draws(3, 1))[0][0])


@every_width
def test_unbiased_within_the_limit(bits: int) -> None:
    """And a grid that is shifted by a tenth of its step is found."""
    grid, count = CellGrid(bits, 1.0), 20_000
    values = torch.linspace(-1, 1, 41)
    messages, _ = grid.round(values.repeat(1, count), draws(1))
    found = grid.mean(messages[0, : 41 * count], 1).reshape(count, 41).double().mean(dim=0)
    allowed = 6 * grid.step / 2 / count**0.5 + 1e-6
    assert ((found - values).abs() <= allowed).all()
    assert not ((found + grid.step / 10 - values).abs() <= allowed).all()


@every_width
@pytest.mark.parametrize("factor", [1e-5, 1.0, 1e5])
def test_limits_follow_the_tables(bits: int, factor: float) -> None:
    """From far off to what the tables want, in few rounds; all from sums of messages."""
    tables = factor * torch.randn(8, 500, generator=torch.Generator().manual_seed(2))
    grid = CellGrid(bits, 1.0)
    wanted = float(grid.best_limit(tables.square().mean(dim=1).sqrt().double()).mean())
    for index in range(12):
        messages, _ = grid.round(tables, draws(8, index))
        grid = CellGrid(bits, grid.next_limit(messages.sum(dim=0)[500:], 8))
    assert wanted / 1.8 < grid.limit < wanted * 1.8


def test_zeros_stay_near_zero() -> None:
    grid = CellGrid(4, 1.0)
    messages, saturated = grid.round(torch.zeros(1, 100), draws(1))
    assert set(messages[0, :100].tolist()) == {0}
    assert not saturated
    narrow, _ = CellGrid(2, 1.0).round(torch.zeros(1, 100), draws(1))
    assert set(narrow[0, :100].tolist()) == {-1, 0}


@pytest.mark.parametrize(("bits", "kept"), [(4, 0.96), (8, 0.99), (16, 0.99)])
def test_what_stands_out_is_kept(bits: int, kept: float) -> None:
    """One cell of 100 among zeros: from 4 bits on it comes back, and the zeros as zeros."""
    table = torch.zeros(1, 100_000)
    table[0, 7] = 100.0
    grid, found = CellGrid(bits, 1.0), []
    for index in range(30):
        messages, _ = grid.round(table, draws(1, index))
        found.append(grid.mean(messages[0, :100_000], 1))
        grid = CellGrid(bits, grid.next_limit(messages[0, 100_000:], 1))
    last = torch.stack(found[6:])
    assert kept * 100 < float(last[:, 7].mean()) < 100 / kept
    assert float(last.abs().sum()) == pytest.approx(float(last[:, 7].sum()))


@pytest.mark.parametrize(("bits", "larger"), [(8, 10.0), (16, 1e4)])
def test_many_bits_leave_room_for_a_larger_sender(bits: int, larger: float) -> None:
    """From that of the larger of two tables, the limit falls to a mean, and neither is cut."""
    tables = torch.randn(2, 500, generator=torch.Generator().manual_seed(5))
    tables[1] *= larger
    first = float(CellGrid(bits, 1.0).best_limit(torch.tensor(larger).double()))
    grid, cut = CellGrid(bits, first), []
    for index in range(40):
        messages, saturated = grid.round(tables, draws(2, index))
        cut.append(int(saturated.sum()))
        grid = CellGrid(bits, grid.next_limit(messages.sum(dim=0)[500:], 2))
    assert sum(cut[20:]) <= 2
    assert grid.limit < first / 2
    assert grid.rounding_share < 0.005
    assert CellGrid(4, 1.0).headroom == 1


@pytest.mark.filterwarnings("error")
def test_cells_far_beyond_the_limit_move_it_quietly() -> None:
    grid = CellGrid(4, 1e-30)
    messages, saturated = grid.round(torch.full((1, 8), 1e30), draws(1))
    assert int(saturated) == 8
    assert grid.next_limit(messages[0, 8:], 1) / grid.limit == pytest.approx(2**3.75)


def test_tables_of_zeros_leave_the_limit_to_the_others() -> None:
    """And to themselves, where there are no others."""
    tables = torch.randn(10, 500, generator=torch.Generator().manual_seed(4))
    tables[5:] = 0
    grid = CellGrid(4, 2.6)
    for index in range(20):
        messages, _ = grid.round(tables, draws(10, index))
        grid = CellGrid(4, grid.next_limit(messages.sum(dim=0)[500:], 10))
    assert 2.0 < grid.limit < 5.0
    for index in range(20):
        messages, _ = grid.round(torch.zeros_like(tables), draws(10, index))
        limit = grid.next_limit(messages.sum(dim=0)[500:], 10)
        assert 0.7 < limit / grid.limit < 1.4


def test_refuses() -> None:
    refused(ArgumentError, "bits must be 1 to 8, or 16", CellGrid, 9, 1.0)
    refused(ArgumentError, "limit must be", CellGrid, 4, 0.0)
    refused(ArgumentError, "limit must be in", CellGrid, 4, 1e31)


@pytest.mark.parametrize(("bits", "workers"), [(1, 2), (2, 3), (4, 4), (4, 16), (8, 100), (16, 1)])
def test_packed_words_sum_to_the_sums(bits: int, workers: int) -> None:
    """At both ends of every field, beside others; and last words that are not full."""
    low, width = -(2 ** (bits - 1)), bits + (workers - 1).bit_length()
    packing = SumPacking(width, low, workers)
    kind = torch.int8 if bits <= 8 else torch.int16
    generator, size = torch.Generator().manual_seed(bits), 70_000 * packing.fields + 1
    cells = torch.randint(low, -low, (workers, size), generator=generator).to(kind)
    cells[:, :3], cells[:, 3:6] = low, -low - 1
    words = packing.pack(cells)
    assert words.dtype == torch.int32
    assert words.shape[1] == packing.words(size) == 70_001
    total = words.sum(dim=0, dtype=torch.int32)  # wraps, as an all-reduce does
    assert torch.equal(packing.unpack(total, size), cells.long().sum(dim=0))
