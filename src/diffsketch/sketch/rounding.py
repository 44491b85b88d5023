"""Cells of few bits: a table rounded at random onto a grid that all workers of a round share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from diffsketch.errors import check, check_between
from diffsketch.sketch.kernels import kernels_for

CELL_BITS = (1, 2, 3, 4, 5, 6, 7, 8, 16)
"""Bits that a rounded cell may have."""

_WIDE = 4  # bits from which on grids reach to the largest cell, and have a zero
# Largest value of a narrower grid over the root mean square of Gaussian cells: a smaller number
# saturates more of them, a larger one rounds coarser. Cells are sums of many coordinates, and so
# nearly Gaussian; the fewer there are in a cell, the more cells stand out. So a table's size is the
# fourth root of the mean fourth power, which large cells move more than the mean square.
_REACH = {1: 1.2, 2: 1.7, 3: 2.2}
_MARGIN = 2**0.25  # a limit moves by half octaves: this far it may be below what is wanted
_LARGEST = 4.5 * _MARGIN  # a wide grid's, of some 10^5 Gaussian cells, in standard deviations
# Octaves of a grid above the largest cells of the usual table, for senders of larger ones: with so
# many bits, the roundings of a coarser grid still add less than 0.5% to the cells' variance.
_HEADROOM = {8: 2, 16: 8}
LIMITS = 1e-30, 1e30
"""Smallest and largest limit of a grid."""

_SIZES = 16  # values of a table's own size, in half octaves around the limit: 4 bits


@dataclass(frozen=True)
class CellGrid:
    """A grid of `2**bits` values from `-limit` to `limit`, numbered by whole numbers `k`.

    From 4 bits on the values are `k step`, and the limit follows the largest cells: of senders with
    tables of one size, nothing saturates but by chance, and zeros stay zeros. It follows the
    geometric mean over the senders, all that a sum of few bits can tell: tables far larger than
    that are cut in every round. With 8 bits those up to 4 times larger are not, with 16 bits up to
    256 times. With fewer bits that would be too coarse. There
    the values are `(k + 1/2) step`, and the limit follows the cells' usual size: cells that stand
    out are cut, and what stands out in the vectors comes back too small.

    A cell goes to one of its two neighbours on the grid at random, so that its mean is the cell:
    sums of rounded tables are as unbiased as sums of tables. Only cells beyond the limit are not,
    and they are counted.

    A message has some cells more than its table (`size_cells`), which say which limit suits the
    sender's table. From their sum everybody has the next limit (`next_limit`).

    Guarantees (`tests/sketch/test_rounding.py`): the same whole numbers on the CPU and CUDA, for
    the same keys; unbiased within the limit; limits follow tables that grow or shrink.

    Args:
        bits: Of a cell, 1 to 8 or 16.
        limit: The largest value, common to all tables of a sum.

    >>> grid = CellGrid(bits=4, limit=1.5)
    >>> round(grid.step, 4), grid.type
    (0.2143, torch.int8)
    >>> message, saturated = grid.round(torch.tensor([[0.0, 9.0]]), torch.tensor([[1, 2, 3]]))
    >>> grid.mean(message[0, :2], 1), saturated
    (tensor([0.0000, 1.5000]), tensor([1]))
    """

    bits: int
    limit: float

    def __post_init__(self) -> None:
        check(self.bits in CELL_BITS, "bits", "be 1 to 8, or 16", self.bits)
        check_between("limit", self.limit, *LIMITS)

    @cached_property
    def step(self) -> float:
        """Distance of two values of the grid."""
        if self._wide:
            # Zero is a value, so one of the `2**bits` values at an end stays unused.
            return self.limit / ((1 << (self.bits - 1)) - 1)
        return 2 * self.limit / ((1 << self.bits) - 1)

    @cached_property
    def _wide(self) -> bool:
        return self.bits >= _WIDE

    @property
    def headroom(self) -> float:
        """The limit over the largest cell of the usual table, but for half an octave."""
        return 2.0 ** _HEADROOM.get(self.bits, 0)

    @property
    def _reach(self) -> float:
        return _REACH.get(self.bits, _LARGEST * self.headroom)

    @property
    def rounding_share(self) -> float:
        """Variance of the rounding over the mean square of the cells, at the limit they want."""
        # Random rounding of `x + f` has the variance `f (1 - f)` steps squared: 1/6 on average.
        return (self._reach * self.step / self.limit) ** 2 / 6

    @property
    def kept(self) -> float:
        """Share of a cell that saturation leaves, on average over Gaussian cells."""
        return 1.0 if self._wide else math.erf(_REACH[self.bits] / math.sqrt(2))

    @property
    def type(self) -> torch.dtype:
        """Type of the whole numbers."""
        return torch.int8 if self.bits <= 8 else torch.int16

    @cached_property
    def size_cells(self) -> int:
        """Cells that a message has for its table's size."""
        return -(-4 // self.bits)

    def round(self, tables: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Round tables `(tables, cells)`, float32 and finite, to messages of whole numbers.

        Args:
            tables: In contiguous memory.
            draws: `(tables, 3)`, int64: random numbers, fresh for each message. Two are the key of
                the roundings, the third rounds the size.

        Returns:
            The messages, `(tables, cells + size_cells)`, and how many cells of each saturated.
        """
        items, cells = tables.shape
        shape = items, cells + self.size_cells
        out = torch.empty(shape, dtype=self.type, device=tables.device)
        kernels, keys = kernels_for(tables.device), draws[:, :2].contiguous()
        # The kernels' values are half a step off. Norms are in steps, lest fourth powers overflow
        # or vanish; of Gaussian numbers the mean fourth power is 3.
        shift, order = (self.step / 2, math.inf) if self._wide else (0.0, 4.0)
        saturated, norms = kernels.round_cells(
            tables, self.step, self.bits, keys, out[:, :cells], shift=shift, order=order
        )
        # `E x**4 = 3 std**4`: so a fourth root of `sum(x**4) / (3 cells)` is a standard deviation.
        reach = _MARGIN * self.headroom if self._wide else _REACH[self.bits] / (3 * cells) ** 0.25
        wanted = norms * (reach * self.step / self.limit)
        self._write_sizes(out[:, cells:], wanted, draws)
        return out, saturated

    def mean(self, total: Tensor, count: int | float) -> Tensor:
        """Cells of the mean table, float32, from the sum of `count` rounded ones."""
        cells = total.float().mul_(self.step / count)
        return cells if self._wide else cells.add_(self.step / 2)

    def again(self, total: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Round cells of a sum, with their `middle` added, to as few bits as those of a message.

        A sum's cells are as Gaussian as a message's, so as few bits carry them, with a limit of
        their own: the largest cell where grids are wide, so that the result is unbiased.

        Args:
            total: `(cells,)`, float32.
            draws: `(1, 2)`, int64: the key of the roundings.

        Returns:
            The whole numbers `(cells,)`, and their limit, of no dimensions, on the same device:
            nothing here waits for a GPU.
        """
        if self._wide:
            limit = total.abs().amax()
        else:  # as messages measure theirs; over the largest, lest fourth powers overflow
            largest = total.abs().amax().clamp_min(LIMITS[0])
            moment = (total / largest).square_().square_().mean()
            limit = (moment / 3) ** 0.25 * largest * self._reach
        limit, unit = limit.clamp_min(LIMITS[0]), CellGrid(self.bits, 1.0)
        out = torch.empty((1, len(total)), dtype=self.type, device=total.device)
        shift = unit.step / 2 if self._wide else 0.0
        kernels_for(total.device).round_cells(
            (total / limit)[None], unit.step, self.bits, draws, out, shift=shift, order=math.inf
        )
        return out[0], limit

    def restored(self, levels: Tensor, limits: Tensor) -> Tensor:
        """The cells that whole numbers of `again` stand for, float32."""
        return CellGrid(self.bits, 1.0).mean(levels, 1) * limits

    def middle(self, count: int) -> float:
        """Steps to add to a sum of `count` messages, as narrow grids have no zero of their own."""
        return 0.0 if self._wide else count / 2

    def best_limit(self, rms: Tensor) -> Tensor:
        """The best limits for tables whose Gaussian cells have these root mean squares, float64."""
        return (rms * self._reach).clamp(*LIMITS)

    def _write_sizes(self, out: Tensor, wanted: Tensor, draws: Tensor) -> None:
        """Write the whole numbers `(tables, size_cells)` of the limits that tables want.

        `wanted` is the limit over the present one. In half octaves, it is rounded at random to one
        of 16 values, whose digits in base `2**bits` are the cells. A table of zeros asks for no
        other limit. Few operations: on a device, each launch costs microseconds.
        """
        # The middle of the 16 values asks for the present limit; 0.5 makes `floor` round at random.
        shift = 0.5 + (_SIZES - 1) / 2
        chance = (draws[:, 2].double() / 2.0**64 + shift).to(out.device, non_blocking=True)
        steps = torch.where(wanted > 0, wanted.double().log2_().mul_(2), 0.0)
        place = chance.add_(steps).floor_().clamp_(0, _SIZES - 1)
        base = 2**self.bits
        for digit in range(self.size_cells):
            out[:, digit] = place.remainder(base).sub_(base // 2)
            place = place.div_(base).floor_()

    def next_limit(self, sizes: Tensor, count: int | float) -> float:
        """The limit of the next round, from the sum of `count` messages' size cells."""
        base, steps = 2**self.bits, 0.0
        for place, digit in enumerate(sizes.tolist()):
            steps += base**place * (digit / count + base // 2)
        low, high = LIMITS
        # Half octaves away from the middle value, of which the sum holds the mean over the senders.
        factor = 2 ** ((min(max(steps, 0), _SIZES - 1) - (_SIZES - 1) / 2) / 2)
        return min(max(self.limit * factor, low), high)


WORD_BITS = 32
"""Bits of the words that collectives sum: int32 is the smallest type that all of them know."""


@dataclass(frozen=True)
class SumPacking:
    """Several cells in each word of a sum: fields of a word, which never run into one another.

    Args:
        bits: Of a cell of the sum.
        lowest: The smallest number in a cell of a message; it is subtracted, so that fields are
            never negative.
        count: Messages of the sum.

    >>> packing = SumPacking(bits=6, lowest=-8, count=4)
    >>> words = packing.pack(torch.tensor([-8, 7, 0, 1, 2, 3, -1], dtype=torch.int8))
    >>> len(words), packing.unpack(4 * words, 7).tolist()
    (2, [-32, 28, 0, 4, 8, 12, -4])
    """

    bits: int
    lowest: int
    count: int

    @cached_property
    def fields(self) -> int:
        """Cells in a word."""
        return WORD_BITS // self.bits

    def words(self, cells: int) -> int:
        """Words that a message of this length takes."""
        return -(-cells // self.fields)

    def pack(self, cells: Tensor) -> Tensor:
        """Pack messages' cells `(..., cells)`, whole numbers, into `(..., words)`, int32.

        Cells that are `words` apart share a word, the first of them in its lowest bits.
        """
        count = cells.shape[-1]
        size = self.words(count)
        # Cells that are `size` apart share a word, so that packing is one shift and one sum over
        # fields.
        fields = cells.new_zeros((*cells.shape[:-1], self.fields, size), dtype=torch.int32)
        fields.flatten(-2)[..., :count].copy_(cells).sub_(self.lowest)  # a view: it is contiguous
        return (fields << self._shifts(cells.device)).sum(-2, dtype=torch.int32)

    def unpack(self, words: Tensor, cells: int, kind: torch.dtype = torch.int64) -> Tensor:
        """Unpack cells of the sum `(..., cells)`, from the sum of the words of all messages."""
        fields = words.unsqueeze(-2) >> self._shifts(words.device)
        # A shift of a negative word brings ones from above: the mask takes them away.
        fields.bitwise_and_((1 << self.bits) - 1).add_(self.count * self.lowest)
        return fields.flatten(-2)[..., :cells].to(kind)

    def _shifts(self, device: torch.device) -> Tensor:
        ends = self.fields * self.bits
        return torch.arange(0, ends, self.bits, dtype=torch.int32, device=device)[:, None]
