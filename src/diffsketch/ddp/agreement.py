"""Agreement of a process group on a round, and failing together."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from diffsketch.errors import ArgumentError, MismatchError

LOGGER = logging.getLogger("diffsketch.ddp")
"""Log of this rank alone: what others must not learn of."""

CELLS_PER_RANK = 2
_PIECE = 1 << 24  # values of a cell, from 1 on
_SHARE_WORDS = 4  # of 64 bits: a key
_MOST_SETTINGS = 15  # that a handshake compares; always as many words, also of who fails


class SavedByState:
    """An object of a process group: saved by its `state_dict`, and never pickled or copied."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} must not be pickled or copied: it belongs to a process group. "
            "Save its state_dict() on each rank, make a new one and call load_state_dict()"
        )


class RankStatus(Enum):
    """Status of a rank's message. The values are the signs of its two cells."""

    FINE = (1, 1)
    NOT_FINITE = (-1, 1)
    """Its vector has NaN or infinite values; the message is zeros."""
    FAILED = (1, -1)
    """It raises an error of its own; the message is zeros."""
    IDLE = (-1, -1)
    """It has nothing to send, and no round is made unless another rank has begun one."""


@dataclass(frozen=True)
class RankReport:
    """A rank's report of a round."""

    round_index: int  # modulo 2**24
    settings: int  # 24 bits of a digest of all that has to be the same besides
    status: RankStatus = RankStatus.FINE

    @classmethod
    def of(cls, round_index: int, settings: str, status: RankStatus) -> RankReport:
        """The report of a round with these settings, given as text."""
        return cls(round_index % _PIECE, digest_of(settings) % _PIECE, status)


def device_of(group: dist.ProcessGroup | None, like: Tensor | None = None) -> torch.device:
    """Device on which a tensor for a group has to be.

    A group may have a backend for each kind of device (`init_process_group()` without a name makes
    such a one), and they do not meet: a tensor has to be where those of the other ranks are, as
    `like` is. Without it, that is the CPU where the group allows it.
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


def check_started() -> None:
    """Raise an `ArgumentError` unless this process is in a group."""
    if not (dist.is_available() and dist.is_initialized()):
        raise ArgumentError("a process group is needed: call init_process_group before")


def control_bytes(world: int) -> int:
    """Bytes that the reports of so many ranks take in words of 32 bits."""
    return 4 * CELLS_PER_RANK * world


def digest_of(text: str) -> int:
    """63 bits that tell two texts apart."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, person=b"ds-agreement")
    return int.from_bytes(digest.digest(), "little") >> 1


def control_cells(report: RankReport, *, rank: int, world: int, like: Tensor) -> Tensor:
    """Cells for all ranks, where only this one's are filled, of the type and place of `like`.

    >>> report = RankReport.of(3, "method=...", RankStatus.FAILED)
    >>> cells = control_cells(report, rank=1, world=2, like=torch.zeros(0))
    >>> read_reports(cells)[1] == report
    True
    """
    signs, numbers = report.status.value, (report.round_index, report.settings)
    cells = torch.zeros(world, CELLS_PER_RANK, dtype=torch.int64)
    for place, (sign, number) in enumerate(zip(signs, numbers, strict=True)):
        cells[rank, place] = sign * (number + 1)  # never 0, which has no sign
    return cells.reshape(-1).to(like)


def read_reports(cells: Tensor) -> list[RankReport | None]:
    """Reports of all ranks, from the sum of the cells; None where a report makes no sense."""
    reports: list[RankReport | None] = []
    for pair in cells.to("cpu", torch.float64).reshape(-1, CELLS_PER_RANK).tolist():
        signs = tuple(1 if value > 0 else -1 for value in pair)
        whole = all(value == int(value) for value in pair if abs(value) <= _PIECE)
        good = whole and all(1 <= abs(value) <= _PIECE for value in pair)
        known = [status for status in RankStatus if status.value == signs] if good else []
        first, second = (int(abs(value)) - 1 if known else 0 for value in pair)
        reports.append(RankReport(first, second, known[0]) if known else None)
    return reports


def check_reports(found: Mapping[int, RankReport | None], own: RankReport, *, rank: int) -> None:
    """Raise a `MismatchError` unless all ranks did the same, so that they raise together."""
    failed = [r for r, report in found.items() if report and report.status is RankStatus.FAILED]
    if failed:
        raise MismatchError(
            f"round {own.round_index} is void: {_ranks(failed)} failed, see the error there"
        )
    if lost := [r for r, report in found.items() if report is None]:
        raise MismatchError(
            f"round {own.round_index} is void: {_ranks(lost)} cannot be understood; another "
            "collective may have been mixed with the sum"
        )
    rounds = {r: report.round_index for r, report in found.items() if report}
    if len(set(rounds.values())) > 1:
        told = ", ".join(f"rank {r} is in round {index}" for r, index in rounds.items())
        raise MismatchError(f"all ranks must be in the same round, but {told}")
    others = [r for r, report in found.items() if report and report.settings != own.settings]
    if others:
        raise MismatchError(
            f"all ranks must have the same seed, method and layout in round {own.round_index}, "
            f"but {_ranks(others)} {'differs' if len(others) == 1 else 'differ'} from rank {rank}"
        )


def handshake(
    group: dist.ProcessGroup | None,
    settings: Mapping[str, str],
    *,
    device: torch.device,
    failure: Exception | None = None,
    share: bytes = bytes(8 * _SHARE_WORDS),
    party: str = "",
    doing: str = "start",
) -> bytes:
    """Compare settings with all processes of a group: one gather of a fixed size.

    A process that is going to raise a `failure` takes part all the same, so that the others learn
    of it at once: they raise a `MismatchError` that says what it was `doing`, as all do where
    settings differ, or where two have an account of the same `party`. Returns 32 bytes that follow
    from the shares of all, the same everywhere.
    """
    words = [0 if failure is None else 1, digest_of(party), *map(digest_of, settings.values())]
    words += [0] * (2 + _MOST_SETTINGS - len(words))
    shared = torch.frombuffer(bytearray(share), dtype=torch.int64)
    own = torch.cat([torch.tensor(words), shared]).to(device)
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, own, group=group)
    if failure is not None:
        raise failure
    table = torch.stack(gathered).cpu()
    if failed := table[:, 0].nonzero().flatten().tolist():
        raise MismatchError(f"{_ranks(failed)} failed to {doing}, see the error there")
    parties = table[:, 1].tolist()
    if party and (alike := [r for r, name in enumerate(parties) if parties.count(name) > 1]):
        raise MismatchError(
            f"each rank must have an account of its own, but {_ranks(alike)} opened copies of the "
            "same one: account_file is the path of one party's file"
        )
    rank = dist.get_rank(group)
    for place, (name, value) in enumerate(settings.items(), start=2):
        other = (table[:, place] != table[rank, place]).nonzero().flatten().tolist()
        if other:
            raise MismatchError(
                f"all ranks must have the same {name}, but {_ranks(other)} "
                f"{'differs' if len(other) == 1 else 'differ'} from rank {rank}, which has {value}"
            )
    common = hashlib.blake2b(digest_size=32, person=b"ds-common-key")
    common.update(table[:, -_SHARE_WORDS:].contiguous().numpy().tobytes())
    return common.digest()


def fail_together(group: dist.ProcessGroup | None, error: Exception) -> NoReturn:
    """Raise an error that a rank finds before its handshake, on the other ranks as well."""
    if dist.is_available() and dist.is_initialized():
        try:
            handshake(group, {}, device=device_of(group), failure=error)
        except Exception as lost:
            if lost is not error:  # the group is broken, which must not hide why
                error.add_note(f"the other ranks could not be told: {lost}")
    raise error


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
