"""Cells are packed bit by bit, as the obvious way does it, and nothing else is unpacked."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.wire import HEADER_BYTES, MessageFormat, WireError, packing
from diffsketch.wire.formats import pack, unpack

HEADER = bytes(HEADER_BYTES)


def whole(count: int, bits: int) -> MessageFormat:
    return MessageFormat("cpsgd", count, (count,), "unsigned", bits)


def real(count: int) -> MessageFormat:
    return MessageFormat("none", count, (count,), "float32", 32)


def one_by_one(cells: npt.NDArray[np.int64], bits: int) -> bytes:
    """The definition: one long number, the first cell in its lowest bits."""
    number = sum(int(cell) << (i * bits) for i, cell in enumerate(cells))
    return number.to_bytes(-(-cells.size * bits // 8), "little")


@pytest.mark.parametrize("bits", range(1, 63))
def test_packs_as_defined(bits: int) -> None:
    rng = np.random.default_rng(bits)
    for count in (1, 2, 7, 63, 64, 65, 200):
        cells = rng.integers(0, 1 << bits, count)
        cells[-1] = (1 << bits) - 1
        data = pack(torch.from_numpy(cells), whole(count, bits))
        assert data == one_by_one(cells, bits)
        assert unpack(HEADER + data, whole(count, bits)).numpy().tolist() == cells.tolist()


@pytest.mark.parametrize("bits", [1, 5, 13, 22, 62])
def test_chunks_do_not_show(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = torch.from_numpy(np.random.default_rng(0).integers(0, 1 << bits, 1000))
    expected = pack(cells, whole(1000, bits))
    for chunk in (1, 64, 100, 128):
        monkeypatch.setattr(packing, "_CHUNK", chunk)
        assert pack(cells, whole(1000, bits)) == expected
        assert torch.equal(unpack(HEADER + expected, whole(1000, bits)), cells)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_floats_keep_their_bits(values: list[float]) -> None:
    cells = torch.tensor(values)
    data = pack(cells, real(len(values)))
    assert data == cells.numpy().astype("<f4").tobytes()
    back = unpack(bytearray(HEADER + data), real(len(values)))
    assert torch.equal(back.view(torch.int32), cells.view(torch.int32))  # also the sign of zero


def test_views_and_gradients_are_packed_as_values() -> None:
    layout = MessageFormat("sketch", 9, (2, 3), "float32", 32)
    cells = torch.arange(6.0).reshape(3, 2).t().requires_grad_()
    assert pack(cells, layout) == np.array([0, 2, 4, 1, 3, 5], "<f4").tobytes()


def test_cells_have_memory_of_their_own() -> None:
    data = bytearray(HEADER + pack(torch.ones(3), real(3)))
    cells = unpack(data, real(3))
    data[HEADER_BYTES:] = bytes(12)
    cells += 1
    assert cells.tolist() == [2, 2, 2]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_cells_that_are_not_finite_are_refused(value: float) -> None:
    cells = torch.tensor([1.0, value])
    with pytest.raises(ArgumentError, match="cells must be finite"):
        pack(cells, real(2))
    with pytest.raises(WireError, match="not finite"):
        unpack(HEADER + cells.numpy().tobytes(), real(2))


@pytest.mark.parametrize(("value", "bits"), [(-1, 4), (16, 4), (1 << 62, 62), (-(1 << 63), 62)])
def test_cells_out_of_range_are_refused(value: int, bits: int) -> None:
    with pytest.raises(ArgumentError, match=rf"\[0, {1 << bits}\), got {value} among"):
        pack(torch.tensor([0, value, 1]), whole(3, bits))


@pytest.mark.parametrize("bits", [1, 2, 13, 62])
def test_signed_cells_come_back_to_the_last(bits: int) -> None:
    half, form = 1 << (bits - 1), replace(whole(5, bits), cells="signed")
    cells = torch.tensor([0, -half, half - 1, -1, max(0, half - 2)])
    data = HEADER + pack(cells, form)
    assert torch.equal(unpack(data, form), cells)
    for beyond in (-half - 1, half):
        with pytest.raises(ArgumentError, match=rf"\[-{half}, {half}\), got {beyond} among"):
            pack(torch.tensor([0, beyond, 0, 0, 0]), form)


def test_types_and_shapes_are_not_repaired() -> None:
    with pytest.raises(ArgumentError, match=r"torch\.float32 in this format, got torch\.float64"):
        pack(torch.zeros(2, dtype=torch.float64), real(2))
    with pytest.raises(ArgumentError, match=r"torch\.int64 in this format, got torch\.int32"):
        pack(torch.zeros(2, dtype=torch.int32), whole(2, 4))
    with pytest.raises(MismatchError, match=r"shape \(2,\), got \(1, 2\)"):
        pack(torch.zeros(1, 2), real(2))


@pytest.mark.parametrize(("count", "bits"), [(1, 1), (3, 5), (154, 13), (1, 62)])
def test_every_filling_bit_must_be_zero(count: int, bits: int) -> None:
    layout = whole(count, bits)
    good = HEADER + pack(torch.zeros(count, dtype=torch.int64), layout)
    filling = range(count * bits, 8 * layout.payload_bytes)
    assert filling
    for bit in filling:
        data = bytearray(good)
        data[HEADER_BYTES + bit // 8] |= 1 << bit % 8
        with pytest.raises(WireError, match="other bits than zeros"):
            unpack(data, layout)


def test_little_is_held_beside_the_result() -> None:
    count, bits = 1 << 20, 1
    cells, layout = torch.ones(count, dtype=torch.int64), whole(count, bits)
    tracemalloc.start()
    data = pack(cells, layout)
    packing_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    unpack(HEADER + data, layout)
    unpacking_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(data) == count // 8
    assert packing_peak < 8 * count / 2  # the bits of 2**20 cells as bytes would be as many bytes
    assert unpacking_peak < 8 * count * 1.5
