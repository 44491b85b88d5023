"""Transport between the ranks of a mean: reports, failing together, rounds over a process group.

An all-reduce of whole numbers needs bits for the sum, `log2` of the ranks more than a message has.
Where a sum may be rounded (`RoundedTables.rounds_sums`), it need not be: each rank gets all ranks'
cells of a part of the table, sums them exactly, rounds the sum at random to as few bits as a
message has, and sends it to all. So both ways take the same bytes at any number of ranks.
"""

from __future__ import annotations

import hashlib
import logging
import math
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Self, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from diffsketch.errors import ArgumentError, MismatchError, difference
from diffsketch.methods.base import Method
from diffsketch.methods.plain import RoundedTables
from diffsketch.privacy.claim import Trust
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.hashing import HashSeed
from diffsketch.sketch.rounding import WORD_BITS, CellGrid, SumPacking

LOGGER = logging.getLogger("diffsketch.ddp")
"""Log of this rank alone: for messages that other ranks must not see."""

CELLS_PER_RANK = 2
# Largest magnitude of a control cell. Cells may be summed in float32, which is exact up to here.
_PIECE = 1 << 24
_WORD = WORD_BITS // 8
_SHARE_WORDS = 4  # words of 64 bits that each rank adds to a common key
# Settings that ranks compare, at most. Every rank sends this number of words: a rank that fails has
# fewer settings to compare, and a gather of two sizes would hang.
_MOST_SETTINGS = 15
# Headers and acknowledgements of gloo and TCP: bytes for each other rank, in a round whose sums are
# rounded again and in an all-reduce. `python -m benchmarks.wire_bytes` counts them. Other backends
# are taken to add as much.
FRAMES_AGAIN, FRAMES_EXACT = 1_100, 1_400


class SavedByState:
    """Base of objects that belong to a process group: saved by `state_dict`, never pickled."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} must not be pickled or copied: it belongs to a process group. "
            "Save its state_dict() on each rank, make a new one and call load_state_dict()"
        )


class Caught:
    """Context that keeps an `Exception` of its block in `error` instead of raising it.

    For steps that can fail at one rank alone: the rank first has to tell the others, which would
    otherwise wait for it.
    """

    error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if isinstance(error, Exception):
            self.error = error
        return isinstance(error, Exception)


class RankStatus(Enum):
    """Status of a rank's message. The values are the signs of its two control cells."""

    FINE = (1, 1)
    NOT_FINITE = (-1, 1)
    """The vector has NaN or infinite values; the message is zeros."""
    FAILED = (1, -1)
    """The rank raises an error; the message is zeros."""
    IDLE = (-1, -1)
    """The rank has nothing to send; a round takes place only if another rank has begun one."""


@dataclass(frozen=True)
class RankReport:
    """A rank's report of a round."""

    round_index: int  # modulo 2**24
    settings: int  # 24 bits of a digest of everything else that has to be the same on all ranks
    status: RankStatus = RankStatus.FINE

    @classmethod
    def of(cls, round_index: int, settings: int, status: RankStatus) -> RankReport:
        """Reduce a round and a digest to what control cells hold."""
        return cls(round_index % _PIECE, settings % _PIECE, status)


class Traffic(NamedTuple):
    """Bytes that a rank sends and receives."""

    sent: float
    received: float


def log_bytes(traffic: Traffic, times: float) -> None:
    """Log what a step sends and receives, and how many times less that is than plain DDP's."""
    text = "a step sends %.0f bytes and receives %.0f: %.3g times less than plain DDP"
    LOGGER.info(text, *traffic, times)


Reports: TypeAlias = dict[int, RankReport | None]
"""Reports by rank, of the messages that are in a sum; None where a report cannot be understood."""


def is_started() -> bool:
    """Whether this process has called `init_process_group`."""
    return dist.is_available() and dist.is_initialized()


def device_of(group: dist.ProcessGroup | None, like: Tensor | None = None) -> torch.device:
    """Device on which a tensor for a group has to be.

    A group may have a backend for each kind of device (`init_process_group()` without a name makes
    such a group), and tensors of two backends never meet: a tensor has to be where those of the
    other ranks are, as `like` is. Without `like`, that is the CPU where the group allows it.
    """
    members = dist.group.WORLD if group is None else group
    kinds = [device.type for device in getattr(members, "_device_types", [])]
    if like is not None and like.device.type in kinds:
        return like.device
    return torch.device("cpu" if "cpu" in kinds or not kinds else kinds[0])  # the current one


def digest_of(text: str) -> int:
    """Digest of a text: 63 bits, a positive int64."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, person=b"ds-agreement")
    return int.from_bytes(digest.digest(), "little") >> 1


def control_cells(report: RankReport, *, rank: int, world: int, like: Tensor) -> Tensor:
    """Control cells of all ranks, with this rank's filled in, of the type and device of `like`.

    >>> report = RankReport.of(3, digest_of("method=..."), RankStatus.FAILED)
    >>> cells = control_cells(report, rank=1, world=2, like=torch.zeros(0))
    >>> read_reports(cells)[1] == report
    True
    """
    (first, second), cells = report.status.value, [0] * (CELLS_PER_RANK * world)
    # Plus one: a zero would have no sign.
    pair = [first * (report.round_index + 1), second * (report.settings + 1)]
    cells[CELLS_PER_RANK * rank : CELLS_PER_RANK * (rank + 1)] = pair
    return torch.tensor(cells).to(like)


def read_reports(cells: Tensor) -> list[RankReport | None]:
    """Read the reports of all ranks from the summed cells; None for cells that make no report."""
    reports: list[RankReport | None] = []
    for pair in cells.to("cpu", torch.float64).reshape(-1, CELLS_PER_RANK).tolist():
        if all(value.is_integer() and 1 <= abs(value) <= _PIECE for value in pair):
            signs = tuple(1 if value > 0 else -1 for value in pair)
            index, settings = (int(abs(value)) - 1 for value in pair)
            reports.append(RankReport(index, settings, RankStatus(signs)))
        else:
            reports.append(None)
    return reports


def check_reports(reports: Reports, own: RankReport, *, rank: int) -> None:
    """Raise a `MismatchError` unless all ranks did the same, so that they raise together."""
    void = f"round {own.round_index} is void:"
    read = {number: report for number, report in reports.items() if report is not None}
    failed = [number for number, report in read.items() if report.status is RankStatus.FAILED]
    if failed:
        raise MismatchError(f"{void} {name_ranks(failed)} failed, see the error there")
    if lost := [number for number, report in reports.items() if report is None]:
        raise MismatchError(
            f"{void} {name_ranks(lost)} cannot be understood; another collective may have been "
            "mixed with the sum"
        )
    if len({report.round_index for report in read.values()}) > 1:
        rounds = [f"rank {number} is in round {told.round_index}" for number, told in read.items()]
        raise MismatchError(f"all ranks must be in the same round, but {', '.join(rounds)}")
    done = [number for number, report in read.items() if report.status is RankStatus.IDLE]
    if 0 < len(done) < len(read):
        raise MismatchError(f"{void} {name_ranks(done)} made no more steps; all must make as many")
    if others := [number for number, report in read.items() if report.settings != own.settings]:
        raise MismatchError(
            f"all ranks must have the same seed, method and layout in round {own.round_index}, "
            f"but {_differ(others)} from rank {rank}"
        )


def check_state(state: Any, settings: str, *, of: str, needed: Sequence[str]) -> None:
    """Raise unless a state is a mapping with these settings, and with all that is `needed`."""
    if not isinstance(state, Mapping):
        raise ArgumentError(f"state must be a mapping, got {type(state).__name__}")
    if state.get("settings") != settings:
        why = difference(settings, str(state.get("settings")))
        raise MismatchError(f"the state must be of the same {of}, but {why}")
    if missing := [name for name in needed if name not in state]:
        raise MismatchError(f"the state must have {', '.join(missing)}")


def check_settings(
    settings: Mapping[str, str], digests: Mapping[int, Sequence[int]], *, rank: int,
    failed: Sequence[int], doing: str,
) -> None:  # fmt: skip
    """Raise a `MismatchError` if a rank has failed, or has other `digests` than this rank's."""
    if failed:
        raise MismatchError(f"{name_ranks(failed)} failed to {doing}, see the error there")
    for place, (name, value) in enumerate(settings.items()):
        expected = digests[rank][place]
        if others := [number for number, row in digests.items() if row[place] != expected]:
            raise MismatchError(
                f"all ranks must have the same {name}, but {_differ(others)} from rank {rank}, "
                f"which has {value}"
            )


def raise_told(error: Exception, tell: Callable[[], object]) -> NoReturn:
    """Raise an error after telling the other ranks, whatever becomes of that."""
    with Caught() as telling:
        tell()
    if telling.error not in (None, error):  # the group is broken, which must not hide the error
        error.add_note(f"the other ranks could not be told: {telling.error}")
    raise error


class Transport(ABC):
    """Transport between the ranks of a mean: a process group, or a store (`StoreGroup`).

    Attributes:
        rank: Number of this rank.
        world: Number of ranks.
        in_step: Whether a round needs all ranks, so that all of them make the same rounds.
    """

    rank: int
    world: int
    in_step: bool

    @abstractmethod
    def agree(
        self, settings: Mapping[str, str], *, failure: Exception | None = None,
        doing: str = "start", party: str = "",
    ) -> str:  # fmt: skip
        """Compare settings with other ranks; all that are there raise, or none does.

        Returns the name of a new series of the account, which no earlier life of this rank has
        counted in, and which no other rank can choose. In a process group ranks that start together
        have the same name: then a state that another rank has saved counts no round twice.

        Args:
            settings: Texts that have to be the same, by name.
            failure: Error that this rank raises; the others then raise as well.
            doing: What the rank fails to do, for their errors.
            party: Party of this rank's account, which no other rank may have.
        """

    @abstractmethod
    def join(
        self, size: float | None, *, largest: bool, round_index: int, like: Tensor | None
    ) -> float | None:
        """Join the sizes of the ranks' first vectors to their mean, or to the largest.

        None of a rank that has no size, and as the result where no rank has.
        """

    @abstractmethod
    def send(
        self, message: Tensor, report: RankReport, *, method: Method, seed: HashSeed,
        rounding: Callable[[], Noise],
    ) -> Callable[[], tuple[Tensor, Reports]]:  # fmt: skip
        """Send a round's message and report.

        The function that is returned waits for the sum of the messages, and for the reports of the
        ranks whose messages are in it. Where the sum is rounded again, `rounding` makes the noise
        for this rank's share of it: of this rank and round alone.
        """

    def advance(self) -> None:  # noqa: B027 (most rounds are one step)
        """Begin the second half of rounds that are under way; all ranks do, at the same point."""

    @abstractmethod
    def round_bytes(self, method: Method) -> Traffic:
        """Bytes that a rank sends and receives in a round."""

    @abstractmethod
    def share(self, method: Method, *, framed: bool = True) -> float:
        """Share of the bytes of a mean in float32 that a round takes, either way.

        `framed` counts what the transport adds to each message as well.
        """


def name_ranks(numbers: Sequence[int]) -> str:
    """Name ranks in a sentence."""
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _differ(numbers: Sequence[int]) -> str:
    return f"{name_ranks(numbers)} {'differs' if len(numbers) == 1 else 'differ'}"


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
        grid = method.grid if isinstance(method, RoundedTables) and method.rounds_sums else None
        if grid is None or self.world == 1:
            return None
        return Parts(grid, math.prod(method.encoder.shape), self.world)

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
