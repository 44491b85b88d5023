"""Means over the ranks that are there in time: messages and sums in a key-value store.

A collective waits for all ranks. In a store (`torch.distributed.TCPStore`, for one), a rank leaves
its message and reads those of others, so that a round needs no more than `min_ranks` of them. Keys
of round `r`, each written once:

    r/cells/RANK    a rank's message (`diffsketch.wire`)
    r/report/RANK   its report, written after the message: the rank is present
    r/present       the reports of the ranks that count, by whoever proposes first; or that the run
                    is over, and this and all later rounds will not be
    r/total         the sum of their messages, by the same rank

Besides, `start/N/RANK` has the settings of a rank, `r/size/RANK` and `r/size/common` the sizes
of first vectors where cells have few bits, `finished/RANK` says that a rank will send no more, and
`decided` counts the rounds.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from diffsketch.ddp.group import GroupMean
from diffsketch.ddp.transport import (
    RankReport,
    RankStatus,
    Reports,
    Traffic,
    Transport,
    check_settings,
    digest_of,
)
from diffsketch.errors import MismatchError, check, check_positive, check_type, check_whole
from diffsketch.methods.base import Method
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.hashing import HashSeed
from diffsketch.wire.message import SERVER, Message, WireError


class RunOver(MismatchError):  # noqa: N818 - it says what happened
    """Enough ranks have finished, and there will be no further round."""


_SOON, _LATER = 0.002, 0.05  # seconds between two looks at the store: at first, and at most


class StoreGroup(Transport):
    """Ranks that meet in a store. A round needs `min_ranks` of them.

    No process group is needed, so that a rank that died can come back: it makes the same object
    again. The store has to outlive all ranks; run its server where nothing else may fail.

    A rank leaves its message in the store and waits; when all are there, or after `wait` seconds at
    least `min_ranks`, whoever sees it first proposes who counts, the store keeps the first
    proposal, and its rank publishes the sum. Should it die in between, the others sum for
    themselves, to the same bits.

    Args:
        store: Store of `torch.distributed`, the same for all ranks, with a prefix that no other run
            has.
        rank: Number of this rank.
        world: Number of ranks.
        min_ranks: Number of ranks that a round needs.
        wait: Seconds that a rank which has sent its message waits for all others. After them, it
            goes on as soon as there are `min_ranks`.
        timeout: Seconds after which it raises if there are not.
        keep: Rounds whose sums stay in the store, for ranks that have missed them.

    Raises:
        ArgumentError: A value is out of range.
    """

    in_step = False

    def __init__(
        self, store: Store, *, rank: int, world: int, min_ranks: int, wait: float = 30.0,
        timeout: float = 1800.0, keep: int = 16,
    ) -> None:  # fmt: skip
        check_type("store", store, Store)
        check_whole("world", world, least=1)
        check_whole("rank", rank, least=0, most=world - 1)
        check_whole("min_ranks", min_ranks, least=1, most=world)
        check_positive("wait", wait)
        check(timeout >= wait, "timeout", f"be >= wait={wait:g}", timeout)
        check_whole("keep", keep, least=2)
        self.store, self.rank, self.world, self.min_ranks = store, rank, world, min_ranks
        self.wait, self.timeout, self.keep = wait, timeout, keep
        self._agreements = 0

    def has(self, key: str) -> bool:
        """Whether somebody has written a key."""
        return bool(self.store.check([key]))

    def read(self, key: str) -> Any:
        """Value of a key that is JSON."""
        return json.loads(self.store.get(key))

    def settle(self, key: str, value: Any) -> Any:
        """Write JSON to a key that nobody has written; return what is there now."""
        return json.loads(self.store.compare_set(key, "", json.dumps(value)))

    def with_key(self, key: str) -> list[int]:
        """Ranks that have written their own key, `key/RANK`."""
        return [rank for rank in range(self.world) if self.has(f"{key}/{rank}")]

    def until(self, ready: Callable[[], Any], *, seconds: float) -> bool:
        """Look again and again until something is ready, or the time is over."""
        end, pause = time.monotonic() + seconds, _SOON
        while not ready():
            if time.monotonic() > end:
                return False
            time.sleep(pause)
            pause = min(1.5 * pause, _LATER)
        return True

    @property
    def active(self) -> list[int]:
        """Ranks that have not finished."""
        return [rank for rank in range(self.world) if not self.has(f"finished/{rank}")]

    @property
    def rounds_decided(self) -> int:
        """Number of rounds that have taken place."""
        return int(self.store.add("decided", 0))

    def closes(self, index: int) -> bool:
        """End the run with the round before this one, if that is due and nobody was faster.

        It is due when `min_ranks` have finished, or too many for the others to make a round.
        """
        active = len(self.active)
        if self.world - active < self.min_ranks <= active:
            return False
        return "over" in self.settle(f"{index}/present", {"over": True})

    def agree(
        self, settings: Mapping[str, str], *, failure: Exception | None = None,
        doing: str = "start", party: str = "",  # noqa: ARG002 (a rank may come back as another)
    ) -> str:  # fmt: skip
        """Compare settings with those of the ranks that are there: `min_ranks` at least.

        What a rank has compared stays in the store, for those that come later. A state is loaded by
        each rank for itself, and nothing is compared.
        """
        if doing == "start":
            self._compare(settings, failed=failure is not None)
        if failure is not None:
            raise failure
        # A name that nobody else can choose: whoever writes to the store may not say what counts.
        return secrets.token_hex(8)

    def _compare(self, settings: Mapping[str, str], *, failed: bool) -> None:
        # Numbered: a rank that comes back compares the same settings in the same order.
        name, self._agreements = f"start/{self._agreements}", self._agreements + 1
        row = {"failed": failed} | {key: digest_of(value) for key, value in settings.items()}
        self.store.delete_key(f"finished/{self.rank}")  # if it was here before
        self.store.set(f"{name}/{self.rank}", json.dumps(row))
        if failed:
            return
        if not self.until(lambda: len(self.with_key(name)) >= self.min_ranks, seconds=self.timeout):
            raise MismatchError(
                f"min_ranks={self.min_ranks} must start within {self.timeout:g} seconds, and only "
                f"{self.with_key(name)} did"
            )
        rows = {rank: self.read(f"{name}/{rank}") for rank in self.with_key(name)}
        # A rank that failed, or another program, has other names.
        digests = {rank: [row.get(key) for key in settings] for rank, row in rows.items()}
        check_settings(settings, digests, rank=self.rank, doing="start",
                       failed=[rank for rank, row in rows.items() if row["failed"]])  # fmt: skip

    def join(
        self, size: float | None, *, largest: bool, round_index: int, like: Tensor | None  # noqa: ARG002
    ) -> float | None:  # fmt: skip
        """Join the sizes of the ranks that are there in time, by whoever proposes first."""
        name = f"{round_index}/size"
        self.store.set(f"{name}/{self.rank}", json.dumps(size))

        def there() -> list[int]:
            return [rank for rank in self.active if self.has(f"{name}/{rank}")]

        self.until(
            lambda: self.has(f"{name}/common") or len(there()) == len(self.active),
            seconds=self.wait,
        )
        written = [self.read(f"{name}/{rank}") for rank in there()]
        sizes = [value for value in written if value is not None]
        common = (max(sizes) if largest else sum(sizes) / len(sizes)) if sizes else None
        settled: float | None = self.settle(f"{name}/common", common)
        return settled

    def send(
        self, message: Tensor, report: RankReport, *, method: Method, seed: HashSeed,
        rounding: Callable[[], Noise],  # noqa: ARG002 (all who sum must get the same bits)
    ) -> Callable[[], tuple[Tensor, Reports]]:  # fmt: skip
        """Leave a message in the store, and then the report, which makes the rank present."""
        index, store = report.round_index, self.store
        cells = message.cpu() if message.is_floating_point() else message.cpu().to(torch.int64)
        wire = Message(
            method.message_format, cells, round_index=index, fingerprint=seed.fingerprint,
            sender=self.rank,
        )  # fmt: skip
        store.set(f"{index}/cells/{self.rank}", wire.to_bytes(agreed=True))  # type: ignore[arg-type]
        told = [report.round_index, report.settings, report.status.name]
        store.set(f"{index}/report/{self.rank}", json.dumps(told))

        def wait() -> tuple[Tensor, Reports]:
            decides = self.decide(index)
            reports = self.reports(index)
            if self.rank not in reports:
                for kind in ("cells", "report"):
                    store.delete_key(f"{index}/{kind}/{self.rank}")
            if any(read is None or read.status is RankStatus.FAILED for read in reports.values()):
                return torch.zeros_like(message), reports
            total = self.total(index, reports, method=method, seed=seed, make=decides)
            return total.to(message.device), reports

        return wait

    def round_bytes(self, method: Method) -> Traffic:
        """Bytes of the message that a rank leaves in the store, and of the sum that it reads.

        Whoever makes the sum reads all messages for it, and writes it.
        """
        return Traffic(method.wire_bytes, method.total_format.sum_bytes)

    def share(self, method: Method, *, framed: bool = True) -> float:  # noqa: ARG002
        """Share of a vector in float32 that the longer of the two has: the sum."""
        return max(self.round_bytes(method)) / (4 * method.dim)

    def decide(self, index: int) -> bool:
        """Wait until it is known who is present in a round; whether this rank has decided it."""
        name, reports = f"{index}/present", f"{index}/report"

        def complete() -> bool:
            return self.has(name) or not set(self.active) - set(self.with_key(reports))

        def enough() -> bool:
            there = len(self.with_key(reports))
            return self.has(name) or there >= self.min_ranks or self.closes(index)

        # First for all, and then, if that takes too long, for enough.
        self.until(complete, seconds=self.wait)
        if not self.until(enough, seconds=self.timeout - self.wait):
            raise MismatchError(
                f"round {index} must have min_ranks={self.min_ranks} within {self.timeout:g} "
                f"seconds, and only has {self.with_key(reports)}"
            )
        if self.has(name):
            return False
        present = {rank: self.read(f"{reports}/{rank}") for rank in self.with_key(reports)}
        kept = self.settle(name, {"by": self.rank, "reports": present})
        if kept.get("by") != self.rank:
            return False
        self.store.add("decided", 1)
        return True

    def reports(self, index: int) -> Reports:
        """Read the reports of the ranks that are present in a round.

        Raises:
            RunOver: The run ended before that round.
        """
        decided = self.read(f"{index}/present")
        if "over" in decided:
            raise RunOver(
                f"the run ended before round {index}: {self.min_ranks} ranks have called finish()"
            )
        return {int(rank): _report_of(told) for rank, told in decided["reports"].items()}

    def total(
        self, index: int, reports: Reports, *, method: Method, seed: HashSeed, make: bool
    ) -> Tensor:
        """Return the published sum of a round: read, or made of the messages and published.

        A rank that finds no sum within `wait` seconds makes it as well: whoever decided is gone.
        """
        name = f"{index}/total"
        about: dict[str, Any] = {"round_index": index, "fingerprint": seed.fingerprint}
        if not make and self.until(lambda: self.has(name), seconds=self.wait):
            form, data = method.total_format, self.store.get(name)
            read = Message.from_agreed(data, form, sender=SERVER, most=self.world, **about)
            if read.count != len(reports):
                raise WireError(f"the sum is of {read.count} messages, and not of {len(reports)}")
            return read.cells
        first, *others = (
            Message.from_agreed(
                self.store.get(f"{index}/cells/{rank}"), method.message_format, sender=rank, **about
            ).cells
            for rank in sorted(reports)  # in this order everywhere: sums are rounded
        )
        total = method.reduced(sum(others, start=first))
        # The wire has no infinite numbers: then each rank makes the sum, and finds it not finite.
        if not total.is_floating_point() or bool(torch.isfinite(total).all()):
            published = Message(method.total_format, total, sender=SERVER, count=len(reports),
                                **about)  # fmt: skip
            self.store.set(name, published.to_bytes(agreed=True))  # type: ignore[arg-type]
        # Messages of the round before may still be summed by a slow rank.
        old = [f"{index - 2}/{kind}/{rank}" for kind in ("cells", "report")
               for rank in range(self.world)]  # fmt: skip
        old += [f"{index - self.keep}/{kind}" for kind in ("total", "present")]
        for key in filter(self.has, old):
            self.store.delete_key(key)
        return total


def _report_of(told: list[Any]) -> RankReport | None:
    try:
        return RankReport(int(told[0]), int(told[1]), RankStatus[told[2]])
    except (ValueError, TypeError, KeyError, IndexError):
        return None


class StoreMean(GroupMean):
    """The mean of the vectors of the ranks that are there in time.

    A `GroupMean` over a `StoreGroup`, with the rounds that took place without this rank. A rank
    that comes too late gets the mean as well, though its vector is not in it (`present`); the
    rounds after that are in the store for it (`missed`). The run is over when `min_ranks` have
    finished (`rest`).

    A message that has come too late was sent, and counts for the budget.

    Guarantees (`tests/ddp/test_local_steps.py`): all ranks get the same bits, those that came late
    too; a round with a rank that fails raises on all that are in it.

    Args:
        method: A method that claims nothing, or under local trust: other claims need all messages.
        group: The store where the ranks meet.
        **options: Options of `GroupMean`.

    Attributes:
        over: Whether the run is over.
    """

    def __init__(self, method: Method, *, group: StoreGroup, **options: Any) -> None:
        check_type("group", group, StoreGroup)
        self.store, self.over = group, False
        super().__init__(method, group=group, **options)

    @property
    def awaited(self) -> bool:
        """Whether another rank has sent its message of the next round, or that is decided."""
        index, store = self.round_index, self.store
        others = set(store.with_key(f"{index}/report")) - {self.rank}
        return bool(others) or store.has(f"{index}/present")

    @property
    def ended(self) -> bool:
        """Whether enough ranks have finished, whatever rounds this one knows."""
        name = f"{self.store.rounds_decided}/present"
        return self.store.has(name) and "over" in self.store.read(name)

    def missed(self) -> Tensor | None:
        """The mean of the next round, if it took place without this rank; None if it is open.

        Nothing is sent. NaN where the vectors of that round were not finite.

        Raises:
            MismatchError: The store has forgotten that round.
        """
        while True:
            index, store = self.round_index, self.store
            decided = store.rounds_decided
            if not store.has(f"{index}/present"):
                if index < decided:
                    raise MismatchError(
                        f"round {index} must still be in the store, which keeps {store.keep} of "
                        f"{decided}: load a newer state, this rank's or another one's"
                    )
                return None
            try:
                reports = store.reports(index)
            except RunOver:
                self.over = True
                return None
            self._agree_on_limit(None)  # as the others did before the first round
            self.round_index, self.present = index + 1, False
            statuses = [report and report.status for report in reports.values()]
            if RankStatus.FAILED in statuses:
                continue  # void: nobody has used it
            seed = self._key.seed(index)
            total = store.total(index, reports, method=self.method, seed=seed, make=False)
            total = total if self._like is None else total.to(self._like.device)
            if any(status is not RankStatus.FINE for status in statuses):
                return torch.full((self.method.dim,), torch.nan, device=total.device)
            return self._decoded(total, seed, count=len(reports))

    def rest(self) -> Iterator[Tensor]:
        """Send no more; yield the means of the rounds that others still make.

        The run is over when `min_ranks` have come here, so that all end with the same mean.
        """
        store = self.store
        store.store.set(f"finished/{self.rank}", "")

        def changed() -> bool:
            return store.has(f"{self.round_index}/present") or store.closes(self.round_index)

        while not self.over:
            if (mean := self.missed()) is not None:
                yield mean
            elif not self.over and not store.until(changed, seconds=store.timeout):
                enough = f"min_ranks={store.min_ranks} must finish within {store.timeout:g} seconds"
                raise MismatchError(f"{enough}, and {store.active} have not")
