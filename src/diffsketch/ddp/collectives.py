"""Rounds over a process group: exact sums, and sums that are rounded again on their way back.

An all-reduce of whole numbers needs bits for the sum, `log2` of the ranks more than a message has.
Where a sum may be rounded (`RoundedTables.rounds_sums`), it need not be: each rank gets all ranks'
cells of a part of the table, sums them exactly, rounds the sum at random to as few bits as a
message has, and sends it to all. So both ways take the same bytes at any number of ranks.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from diffsketch.ddp.agreement import (
    CELLS_PER_RANK,
    RankReport,
    RankStatus,
    Reports,
    Traffic,
    Transport,
    check_settings,
    control_cells,
    device_of,
    digest_of,
    is_started,
    name_ranks,
    raise_told,
    read_reports,
)
from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.methods.base import Method
from diffsketch.methods.plain import RoundedTables
from diffsketch.privacy.claim import Trust
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.hashing import HashSeed
from diffsketch.sketch.rounding import WORD_BITS, CellGrid, SumPacking

_WORD = WORD_BITS // 8
_SHARE_WORDS = 4  # words of 64 bits that each rank adds to a common key
# Settings that ranks compare, at most. Every rank sends this number of words: a rank that fails has
# fewer settings to compare, and a gather of two sizes would hang.
_MOST_SETTINGS = 15
# Headers and acknowledgements of gloo and TCP: bytes for each other rank, in a round whose sums are
# rounded again and in an all-reduce. `python -m benchmarks.wire_bytes` counts them. Other backends
# are taken to add as much.
FRAMES_AGAIN, FRAMES_EXACT = 1_100, 1_400


@dataclass(frozen=True)
class Parts:
    """The parts of a table of few bits, one for each rank, as words on the way to it and back.

    On the way there, a part is followed by the message's size cells, which all ranks need.

    Args:
        grid: Of the cells.
        cells: Of the table.
        world: Number of ranks.
    """

    grid: CellGrid
    cells: int
    world: int

    @property
    def length(self) -> int:
        """Cells of a part."""
        return -(-self.cells // self.world)

    @property
    def packing(self) -> SumPacking:
        """Packing of cells into words: of single messages, which nobody adds up as words."""
        return SumPacking(self.grid.bits, -(1 << (self.grid.bits - 1)), 1)

    @property
    def words(self) -> tuple[int, int]:
        """Words of a part on the way there, and on the way back, without what is for control."""
        there = self.packing.words(self.length + self.grid.size_cells)
        return there, self.packing.words(self.length)

    @property
    def bytes(self) -> int:
        """Bytes of a part both ways, with the report of a rank, and with the limit of a part."""
        return _WORD * (CELLS_PER_RANK + 1 + sum(self.words))

    def packed(self, message: Tensor) -> Tensor:
        """Pack a message: `(world, words)`, int32."""
        rows = message.new_zeros(self.world, self.length + self.grid.size_cells)
        missing = self.length * self.world - self.cells
        body = torch.nn.functional.pad(message[: self.cells], (0, missing))
        rows[:, : self.length] = body.view(self.world, self.length)
        rows[:, self.length :] = message[self.cells :]
        return self.packing.pack(rows)

    def unpacked(self, words: Tensor, length: int) -> Tensor:
        """Unpack rows of words to rows of cells, `(world, length)`, float32."""
        return self.packing.unpack(words, length, torch.float32)


class GroupTransport(Transport):
    """Collectives of a process group.

    A round is one all-reduce of cells and reports: cells as float32, as int32 or int64, whichever
    holds the sum, or, where sums have few bits, several of them in an int32. Where sums are rounded
    again it is an all-to-all of `Parts`, and an all-gather of their sums.

    Raises:
        ArgumentError: `group` is no process group, or none was started.
    """

    in_step = True

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        if not is_started():
            raise ArgumentError("a process group is needed: call init_process_group before")
        outside: Any = dist.GroupMember.NON_GROUP_MEMBER  # what ranks outside a new group have
        if not isinstance(group, dist.ProcessGroup) and group not in (None, outside):
            kind = type(group).__name__
            raise ArgumentError(f"group must be a ProcessGroup or a StoreGroup, got {kind}")
        self.group = group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self._halfway: list[Callable[[], None]] = []  # rounds whose sums are still to be sent

    def agree(
        self, settings: Mapping[str, str], *, failure: Exception | None = None,
        doing: str = "start", party: str = "",
    ) -> str:  # fmt: skip
        """Compare settings by one gather of a fixed size.

        A rank that is about to raise a `failure` takes part all the same, so that the others learn
        of it at once. The name that is returned follows from random bytes of all ranks.
        """
        words = [0 if failure is None else 1, digest_of(party), *map(digest_of, settings.values())]
        words += [0] * (2 + _MOST_SETTINGS - len(words))
        share = bytearray(secrets.token_bytes(8 * _SHARE_WORDS))
        row = torch.cat([torch.tensor(words), torch.frombuffer(share, dtype=torch.int64)])
        row = row.to(device_of(self.group))
        gathered = [torch.empty_like(row) for _ in range(self.world)]
        dist.all_gather(gathered, row, group=self.group)
        if failure is not None:
            raise failure
        table = torch.stack(gathered).cpu()
        check_settings(settings, dict(enumerate(table[:, 2:].tolist())), rank=self.rank,
                       failed=table[:, 0].nonzero().flatten().tolist(), doing=doing)  # fmt: skip
        parties = table[:, 1].tolist()
        if party and (alike := [r for r, name in enumerate(parties) if parties.count(name) > 1]):
            raise MismatchError(
                f"each rank must have an account of its own, but {name_ranks(alike)} opened copies "
                "of the same one: account_file is the path of one party's file"
            )
        shares = table[:, -_SHARE_WORDS:].contiguous().numpy().tobytes()
        return hashlib.blake2b(shares, digest_size=32, person=b"ds-common-key").hexdigest()

    def join(
        self, size: float | None, *, largest: bool, round_index: int, like: Tensor | None  # noqa: ARG002
    ) -> float | None:  # fmt: skip
        """Join sizes by an all-reduce of two numbers: the size, and the number of ranks with one.

        The maximum of the second is 1, by which the largest size may be divided as well.
        """
        absent = [-1e9 if largest else 0.0, 0.0]
        sizes = torch.tensor(absent if size is None else [size, 1.0])
        sizes = sizes.to(device_of(self.group, like))
        dist.all_reduce(
            sizes, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, group=self.group
        )
        total, count = sizes.tolist()
        return total / count if count else None

    def parts(self, method: Method) -> Parts | None:
        """The parts of a table whose sum is rounded again; None where the sum is exact."""
        if self.world == 1 or not (isinstance(method, RoundedTables) and method.rounds_sums):
            return None
        assert method.grid is not None  # noqa: S101 (for the type checker)
        return Parts(method.grid, math.prod(method.encoder.shape), self.world)

    def sums(self, method: Method) -> tuple[torch.dtype, SumPacking | None]:
        """Type in which exact sums are made, and the packing of cells, if they have few bits."""
        form, bits = method.message_format, method.sum_bits(self.world)
        if form.cells == "float32":
            return torch.float32, None
        most = 32 if form.cells == "signed" else 31
        kind = torch.int32 if bits <= most else torch.int64
        # The noise of a trusted server is added at one rank, beyond what messages may hold.
        central = method.noise.whole and method.noise.trust is Trust.CENTRAL
        if form.cells == "signed" and not central and bits <= WORD_BITS // 2:
            return kind, SumPacking(bits, form.limits[0], self.world)
        return kind, None

    def send(
        self, message: Tensor, report: RankReport, *, method: Method, seed: HashSeed,  # noqa: ARG002
        rounding: Callable[[], Noise],
    ) -> Callable[[], tuple[Tensor, Reports]]:  # fmt: skip
        """Begin the round's first collective, after the second ones of all rounds before it."""
        self.advance()
        parts = self.parts(method)
        if parts is not None:
            return self._exchange(parts, message, report, rounding)
        return self._all_reduce(message, report, *self.sums(method))

    def advance(self) -> None:
        """Begin the second collective of rounds, in their order, when the first one is done.

        At points that all ranks pass in the same order: before another round, where a result is
        waited for, and halfway through the delay of `LocalSteps`.
        """
        while self._halfway:
            self._halfway.pop(0)()

    def _all_reduce(
        self, message: Tensor, report: RankReport, kind: torch.dtype, packing: SumPacking | None
    ) -> Callable[[], tuple[Tensor, Reports]]:
        flat = message.reshape(-1)
        flat = (flat if packing is None else packing.pack(flat)).to(kind)
        control = control_cells(report, rank=self.rank, world=self.world, like=flat)
        payload = torch.cat([flat, control])
        work = dist.all_reduce(payload, group=self.group, async_op=True)

        def wait() -> tuple[Tensor, Reports]:
            if work is not None:  # None where this process is not in the group
                work.wait()
            summed, control = payload.tensor_split([flat.numel()])
            if packing is not None:
                summed = packing.unpack(summed, message.numel())
            total = summed.to(torch.float32 if message.is_floating_point() else torch.int64)
            return total.reshape(message.shape), dict(enumerate(read_reports(control)))

        return wait

    def _exchange(
        self, parts: Parts, message: Tensor, report: RankReport, rounding: Callable[[], Noise]
    ) -> Callable[[], tuple[Tensor, Reports]]:
        """Send every rank its part of the message; sum this rank's part, and round the sum again.

        The result is the sum in steps of the messages' grid, with fractions.
        """
        words = parts.packed(message)
        if words.is_cuda and "nccl" not in dist.get_backend(self.group):
            words = words.cpu()  # gloo exchanges nothing else
        control = control_cells(report, rank=0, world=1, like=words)
        sent = torch.cat([control.expand(self.world, -1), words], dim=1)
        received = torch.empty_like(sent)
        first = dist.all_to_all_single(received, sent, group=self.group, async_op=True)
        grid, middle = parts.grid, parts.grid.middle(self.world)
        gathered = sent.new_empty(self.world, 1 + parts.words[1])
        reports: Reports = {}
        sizes: list[Tensor] = []
        second: list[Any] = []  # the second collective; none in a round that is void for all

        def sum_part() -> None:
            first.wait()
            reports.update(enumerate(read_reports(received[:, :CELLS_PER_RANK])))
            if any(told is None or told.status is not RankStatus.FINE for told in reports.values()):
                return  # all ranks read the same, and go on together
            cells = parts.unpacked(received[:, CELLS_PER_RANK:], parts.length + grid.size_cells)
            total = cells.sum(0)
            sizes.append(total[parts.length :])
            levels, limit = grid.again(total[: parts.length] + middle, rounding().words((1, 2)))
            summed = torch.cat([limit.view(1).view(torch.int32), parts.packing.pack(levels)])
            # Newer versions of PyTorch have another name for it.
            gather: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
            second.append(gather(gathered.view(-1), summed, group=self.group, async_op=True))

        self._halfway.append(sum_part)

        def wait() -> tuple[Tensor, Reports]:
            self.advance()
            if not second:
                return torch.zeros_like(message, dtype=torch.float32), reports
            second[0].wait()
            limits = gathered[:, :1].contiguous().view(torch.float32)
            table = grid.restored(parts.unpacked(gathered[:, 1:], parts.length), limits)
            total = torch.cat([table.reshape(-1)[: parts.cells] - middle, sizes[0]])
            return total.to(message.device), reports

        return wait

    def round_bytes(self, method: Method) -> Traffic:
        """Bytes that a rank sends, and receives: without its own part, which stays where it is."""
        payload, frames = self._payload(method)
        one_way = (payload / self.world + frames) * (self.world - 1)
        return Traffic(one_way, one_way)

    def share(self, method: Method, *, framed: bool = True) -> float:
        """Share of what a ring sends for a mean in float32: nearly each number twice."""
        payload, frames = self._payload(method)
        if framed and self.world > 1:
            payload += frames * self.world
        return payload / (8 * method.dim)

    def _payload(self, method: Method) -> tuple[int, int]:
        """Bytes of a round, both ways, of a rank that also sends to itself; and of frames."""
        parts = self.parts(method)
        if parts is not None:
            return parts.bytes * self.world, FRAMES_AGAIN
        (kind, packing), cells = self.sums(method), method.total_format.cell_count
        words = cells if packing is None else packing.words(cells)
        return 2 * (words + CELLS_PER_RANK * self.world) * kind.itemsize, FRAMES_EXACT


def transport_of(group: dist.ProcessGroup | Transport | None) -> Transport:
    """Return the transport of a process group, or the transport itself."""
    return group if isinstance(group, Transport) else GroupTransport(group)


def fail_together(group: dist.ProcessGroup | Transport | None, error: Exception) -> NoReturn:
    """Raise an error that a rank finds before it has a mean, on the other ranks as well."""
    if isinstance(group, Transport) or is_started():
        raise_told(error, lambda: transport_of(group).agree({}, failure=error))
    raise error
