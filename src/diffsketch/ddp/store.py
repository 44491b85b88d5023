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

from diffsketch.ddp.agreement import RankReport, RankStatus, digest_of
from diffsketch.ddp.group import GroupMean, Reports
from diffsketch.errors import ArgumentError, MismatchError, check, check_positive, check_whole
from diffsketch.privacy.accounting.account import Account
from diffsketch.privacy.claim import NoClaim, Trust
from diffsketch.wire.formats import WireError
from diffsketch.wire.message import SERVER, Message


class RunOver(MismatchError):  # noqa: N818 - it says what happened
    """Enough ranks have finished, and there will be no further round."""


_SOON, _LATER = 0.002, 0.05  # seconds from one look to the next: first and at last


class StoreGroup:
    """Ranks that meet in a store. A round needs `min_ranks` of them.

    No process group is needed, so that a rank that died can come back: it makes the same object
    again. The store has to outlive all ranks; run its server where nothing else may fail.

    Args:
        store: Of `torch.distributed`, the same for all ranks, with a prefix that no other run has.
        rank: This one's number.
        world: How many ranks there are.
        min_ranks: How many a round needs.
        wait: Seconds that a rank which has sent its message waits for all others. After them, it
            goes on as soon as there are `min_ranks`.
        timeout: Seconds after which it raises if there are not.
        keep: Rounds whose sums stay in the store, for ranks that have missed them.

    Raises:
        ArgumentError: A value is out of range.
    """

    def __init__(
        self, store: Store, *, rank: int, world: int, min_ranks: int, wait: float = 30.0,
        timeout: float = 1800.0, keep: int = 16,
    ) -> None:  # fmt: skip
        if not isinstance(store, Store):
            raise ArgumentError(f"store must be a dist.Store, got {type(store).__name__}")
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
        """The ranks that have not finished."""
        return [rank for rank in range(self.world) if not self.has(f"finished/{rank}")]

    @property
    def closes(self) -> bool:
        """Whether `min_ranks` have finished, or so many that the others are too few."""
        active = len(self.active)
        return self.world - active >= self.min_ranks or active < self.min_ranks

    def agree(self, settings: Mapping[str, str], *, failure: Exception | None = None) -> None:
        """Compare settings with those of the ranks that are there: `min_ranks` at least.

        What a rank has compared stays in the store, for those that come later.
        """
        name, self._agreements = f"start/{self._agreements}", self._agreements + 1
        own = {key: digest_of(value) for key, value in settings.items()}
        self.store.delete_key(f"finished/{self.rank}")  # if it was here before
        self.store.set(f"{name}/{self.rank}", json.dumps({"failed": failure is not None} | own))
        if failure is not None:
            raise failure

        def there() -> list[int]:
            return [rank for rank in range(self.world) if self.has(f"{name}/{rank}")]

        if not self.until(lambda: len(there()) >= self.min_ranks, seconds=self.timeout):
            raise MismatchError(
                f"min_ranks={self.min_ranks} must start within {self.timeout:g} seconds, and only "
                f"{there()} did"
            )
        for rank in there():
            other = json.loads(self.store.get(f"{name}/{rank}"))
            if other.pop("failed"):
                raise MismatchError(f"rank {rank} failed to start, see the error there")
            for key, value in settings.items():
                if other.get(key) != own[key]:
                    raise MismatchError(
                        f"all ranks must have the same {key}, but rank {rank} differs from rank "
                        f"{self.rank}, which has {value}"
                    )


class StoreMean(GroupMean):
    """The mean of the vectors of the ranks that are there in time.

    As `GroupMean`, with these differences. A rank leaves its message in the store and waits; when
    all are there, or after `wait` seconds at least `min_ranks`, whoever sees it first proposes who
    counts, the store keeps the first proposal, and its rank publishes the sum. Should it die in
    between, the others sum for themselves, to the same bits. A rank that comes too late gets the
    mean as well, though its vector is not in it (`present`); the rounds after that are in the store
    for it (`missed`). The run is over when `min_ranks` have finished (`rest`).

    A message that has come too late was sent, and counts for the budget.

    Guarantees (`tests/ddp/test_local_steps.py`): all ranks get the same bits, those that came late
    too; a round with a rank that fails raises on all that are in it.

    Args:
        method: One that claims nothing, or under local trust: other claims need all messages.
        group: Where the ranks meet.
        **options: Those of `GroupMean`.

    Attributes:
        present: Whether this rank's vector was in the last mean.
        over: Whether the run is over.
    """

    def __init__(self, method: Any, *, group: StoreGroup, **options: Any) -> None:
        self._peers, self.present, self.over = group, True, False
        if not isinstance(group, StoreGroup):
            raise ArgumentError(f"group must be a StoreGroup, got {type(group).__name__}")
        super().__init__(method, group=group, **options)  # type: ignore[arg-type]

    @staticmethod
    def _join(group: Any) -> tuple[int, int]:
        return group.rank, group.world

    @property
    def payload_bytes(self) -> int:
        """Bytes of the message that a rank leaves in the store in a round. It reads the sum."""
        return self.method.wire_bytes

    def agree(
        self, settings: Mapping[str, str], *, failure: Exception | None = None, doing: str = "start"
    ) -> str:
        """Compare settings with the ranks that are there; a state is loaded by each for itself.

        Returns the name of a new series of the account, which no earlier life of this rank has
        counted in. All ranks have the same in their first lives, and so on: so a state that another
        one has saved counts no round of this run twice.
        """
        if failure is None:
            claim = self.method.claim_for(self.world, self._key.seed(0))
            if not isinstance(claim, NoClaim) and claim.scope.trust is not Trust.LOCAL:
                failure = ArgumentError(
                    f"method={self.method.name!r} must claim under local trust in a StoreGroup: "
                    "where ranks may be left out, so may the noise that others rely on, got "
                    f"{claim.scope.trust} trust"
                )
        if doing == "start":
            self._peers.agree(settings, failure=failure)
        elif failure is not None:
            raise failure
        store = self._peers.store
        run = store.compare_set("series", "", secrets.token_hex(8)).decode()
        return f"{run}-{store.add(f'series/{self.rank}', 1)}"

    @property
    def awaited(self) -> bool:
        """Whether another rank has sent its message of the round that comes, or it is over."""
        index = self._round_index
        names = [f"{index}/report/{rank}" for rank in range(self.world) if rank != self.rank]
        return any(map(self._peers.has, [*names, f"{index}/present"]))

    @property
    def rounds_decided(self) -> int:
        """Rounds that have taken place in the store."""
        return int(self._peers.store.add("decided", 0))

    @property
    def ended(self) -> bool:
        """Whether enough ranks have finished, whatever rounds this one knows."""
        name = f"{self.rounds_decided}/present"
        return self._peers.has(name) and "over" in json.loads(self._peers.store.get(name))

    def missed(self) -> Tensor | None:
        """The mean of the next round, if it took place without this rank; None if it is open.

        Nothing is sent. NaN where the vectors of that round were not finite.

        Raises:
            MismatchError: The store has forgotten that round.
        """
        while True:
            index, peers = self._round_index, self._peers
            decided = self.rounds_decided
            if not peers.has(f"{index}/present"):
                if index < decided:
                    raise MismatchError(
                        f"round {index} must still be in the store, which keeps {peers.keep} of "
                        f"{decided}: load a newer state, this rank's or another one's"
                    )
                return None
            try:
                reports = self._reports(index)
            except RunOver:
                self.over = True
                return None
            self._agree_on_limit(None)  # as it was before the first round
            self._round_index, self.present = index + 1, False
            if any(one and one.status is RankStatus.FAILED for one in reports.values()):
                continue  # void: nobody has used it
            total = self._total(index, reports, mine=False)
            seed = self._key.seed(index)
            if any(one is None or one.status is not RankStatus.FINE for one in reports.values()):
                return torch.full((self.method.dim,), torch.nan, device=total.device)
            return self._decoded(total, seed, count=len(reports))

    def rest(self) -> Iterator[Tensor]:
        """Send no more; the means of the rounds that others still make, until the run is over.

        That is when `min_ranks` have come here, so that all end with the same mean.
        """
        peers = self._peers
        peers.store.set(f"finished/{self.rank}", "")
        while not self.over:
            if (found := self.missed()) is not None:
                yield found
                continue

            def changed() -> bool:
                return peers.has(f"{self._round_index}/present") or self._closed(self._round_index)

            if not peers.until(changed, seconds=peers.timeout):
                raise MismatchError(
                    f"min_ranks={peers.min_ranks} must finish within {peers.timeout:g} seconds, "
                    f"and {peers.active} have not"
                )

    def load_state_dict(
        self, state: Mapping[str, Any], *, failure: Exception | None = None
    ) -> None:
        """Continue where `state_dict` was called: each rank for itself, whenever it likes.

        From the state of another rank, only what all have in common is taken; and its account, if
        that may be this party's from a time when it had another number: a copy of this one, or one
        without a file.

        Raises:
            ArgumentError: The state is of another rank, which does not know what this one has sent,
                and there is no `account_file` that does.
        """
        other = isinstance(state, Mapping) and state.get("rank", self.rank) != self.rank
        if failure is None and other:
            if self.proven and not self._in_file:
                raise ArgumentError(
                    "account_file must be given to go on from the state of another rank, which "
                    "does not know what this one has sent"
                )
            account = Account.from_text(state["account"])
            if account.party == self._account.party or not state["in_file"]:
                self._account.merge(account)
            self._go_on_from(state)
            return
        super().load_state_dict(state, failure=failure)

    def state_dict(self) -> dict[str, Any]:
        """Round, account and error feedback, and whose they are."""
        return {**super().state_dict(), "rank": self.rank, "in_file": self._in_file}

    def _common_size(self, size: float | None, like: Tensor | None) -> float | None:  # noqa: ARG002
        """The mean or largest of the ranks that are there in time, by whoever proposes first."""
        peers, sizes_of = self._peers, f"{self._round_index}/size"
        name = f"{sizes_of}/common"
        peers.store.set(f"{sizes_of}/{self.rank}", json.dumps(size))

        def there() -> list[int]:
            return [rank for rank in peers.active if peers.has(f"{sizes_of}/{rank}")]

        peers.until(
            lambda: peers.has(name) or len(there()) == len(peers.active), seconds=peers.wait
        )
        sizes = [json.loads(peers.store.get(f"{sizes_of}/{rank}")) for rank in there()]
        known = [one for one in sizes if one is not None]
        common = sum(known) / len(known) if known else None
        if known and self._by_largest:
            common = max(known)
        found: float | None = json.loads(peers.store.compare_set(name, "", json.dumps(common)))
        return found

    def _send(self, message: Tensor, own: RankReport) -> Callable[[], tuple[Tensor, Reports]]:
        index, store = own.round_index, self._peers.store
        cells = message.cpu() if message.is_floating_point() else message.cpu().to(torch.int64)
        fingerprint = self._key.seed(index).fingerprint
        wire = Message(
            self.method.message_format, cells, round_index=index, fingerprint=fingerprint,
            sender=self.rank,
        )  # fmt: skip
        data: Any = wire.to_bytes(agreed=True)
        store.set(f"{index}/cells/{self.rank}", data)
        store.set(f"{index}/report/{self.rank}", json.dumps(_told(own)))

        def wait() -> tuple[Tensor, Reports]:
            mine = self._decide(index)
            reports = self._reports(index)
            self.present = self.rank in reports
            if not self.present:
                for kind in ("cells", "report"):
                    store.delete_key(f"{index}/{kind}/{self.rank}")
            if any(one is None or one.status is RankStatus.FAILED for one in reports.values()):
                return torch.zeros_like(message), reports
            return self._total(index, reports, mine=mine), reports

        return wait

    def _decide(self, index: int) -> bool:
        """Wait until it is known who is present in a round; whether this rank has said it."""
        peers, name = self._peers, f"{index}/present"

        def there() -> list[int]:
            ranks = range(self.world)
            return [rank for rank in ranks if peers.has(f"{index}/report/{rank}")]

        def complete() -> bool:
            return peers.has(name) or not set(peers.active) - set(there())

        def enough() -> bool:
            return peers.has(name) or len(there()) >= peers.min_ranks or self._closed(index)

        peers.until(complete, seconds=peers.wait)
        if not peers.until(enough, seconds=peers.timeout - peers.wait):
            raise MismatchError(
                f"round {index} must have min_ranks={peers.min_ranks} within {peers.timeout:g} "
                f"seconds, and only has {there()}"
            )
        if peers.has(name):
            return False
        found = {rank: json.loads(peers.store.get(f"{index}/report/{rank}")) for rank in there()}
        proposal = json.dumps({"by": self.rank, "reports": found})
        kept = json.loads(peers.store.compare_set(name, "", proposal))
        if kept.get("by") != self.rank:
            return False
        peers.store.add("decided", 1)
        return True

    def _closed(self, index: int) -> bool:
        """End the run with the round before this one, if that is due and nobody was faster."""
        peers, name = self._peers, f"{index}/present"
        if not peers.closes:
            return False
        kept = json.loads(peers.store.compare_set(name, "", json.dumps({"over": True})))
        return "over" in kept

    def _reports(self, index: int) -> Reports:
        decided = json.loads(self._peers.store.get(f"{index}/present"))
        if "over" in decided:
            raise RunOver(f"round {index} must not be: {self._peers.min_ranks} ranks have finished")
        return {int(rank): _heard(told) for rank, told in decided["reports"].items()}

    def _total(self, index: int, reports: Reports, *, mine: bool) -> Tensor:
        """The published sum of a round: read, or made of the messages by the rank that decides."""
        peers, name, method = self._peers, f"{index}/total", self.method
        about: dict[str, Any] = {
            "round_index": index, "fingerprint": self._key.seed(index).fingerprint,
        }  # fmt: skip
        device = torch.device("cpu") if self._like is None else self._like.device
        if not mine and peers.until(lambda: peers.has(name), seconds=peers.wait):
            data = peers.store.get(name)
            form, most = method.total_format, peers.world
            read = Message.from_agreed(data, form, sender=SERVER, most=most, **about)
            if read.count != len(reports):
                raise WireError(f"the sum is of {read.count} messages, and not of {len(reports)}")
            return read.cells.to(device)
        cells = []
        for rank in sorted(reports):  # in this order everywhere: sums are rounded
            data = peers.store.get(f"{index}/cells/{rank}")
            read = Message.from_agreed(data, method.message_format, sender=rank, **about)
            cells.append(read.cells)
        total = cells[0].clone()
        for one in cells[1:]:
            total += one
        total = method.reduced(total)
        if not total.is_floating_point() or bool(torch.isfinite(total).all()):
            sender, count = SERVER, len(reports)
            told = Message(method.total_format, total, sender=sender, count=count, **about)
            published: Any = told.to_bytes(agreed=True)
            peers.store.set(name, published)
        self._forget(index)
        return total.to(device)

    def _forget(self, index: int) -> None:
        """Take out of the store what nobody needs any more."""
        store = self._peers.store
        old = [f"{index - 2}/{kind}/{rank}" for kind in ("cells", "report")
               for rank in range(self.world)]  # fmt: skip
        old += [f"{index - self._peers.keep}/{kind}" for kind in ("total", "present")]
        for key in old:
            if self._peers.has(key):
                store.delete_key(key)


def _told(report: RankReport) -> list[Any]:
    return [report.round_index, report.settings, report.status.name]


def _heard(told: list[Any]) -> RankReport | None:
    try:
        return RankReport(int(told[0]), int(told[1]), RankStatus[told[2]])
    except (ValueError, TypeError, KeyError, IndexError):
        return None
