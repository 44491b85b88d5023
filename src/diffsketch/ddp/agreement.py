"""Transport between the ranks of a mean: reports of a round, and failing together."""

from __future__ import annotations

import hashlib
import logging
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
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.hashing import HashSeed

LOGGER = logging.getLogger("diffsketch.ddp")
"""Log of this rank alone: for messages that other ranks must not see."""

CELLS_PER_RANK = 2
# Largest magnitude of a control cell. Cells may be summed in float32, which is exact up to here.
_PIECE = 1 << 24


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
    if "cpu" in kinds or not kinds:
        return torch.device("cpu")
    if "cuda" in kinds:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device(kinds[0])


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
    """The way between the ranks of a mean: a process group, or a store (`StoreGroup`).

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
