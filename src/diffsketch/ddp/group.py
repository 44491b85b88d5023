"""A method's private mean over a torch.distributed process group: of vectors, or of records."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from diffsketch.ddp.transport import (
    LOGGER,
    Caught,
    RankReport,
    RankStatus,
    Reports,
    SavedByState,
    Traffic,
    Transport,
    check_reports,
    check_state,
    device_of,
    digest_of,
    raise_told,
    transport_of,
)
from diffsketch.ddp.weights import (
    check_disjoint,
    local_part,
    named_digest,
    sharded_kinds,
    trained,
)
from diffsketch.errors import ArgumentError, MismatchError, check, check_type
from diffsketch.logs import OnRound, RoundSummary, announce
from diffsketch.methods.base import Method, check_out, is_finite
from diffsketch.methods.feedback import ErrorFeedback
from diffsketch.methods.gate import (
    NonFiniteUpdate,
    check_release,
    release,
    release_noise,
    rounding_noise,
)
from diffsketch.methods.plain import RoundedTables, SaturationWatch
from diffsketch.privacy.accounting.account import Account
from diffsketch.privacy.accounting.budget import Budget
from diffsketch.privacy.claim import Claim, Epsilon, NoClaim, Trust
from diffsketch.silos.gradients import Loss, RecordGradients
from diffsketch.silos.messages import record_method
from diffsketch.silos.records import Records
from diffsketch.sketch.hashing import HashSeed, SketchKey
from diffsketch.sketch.rounding import LIMITS

_DELTA = 1e-5  # of the epsilon that is reported, where no budget has one
_PROTOCOL = 4  # version of what ranks send each other: change it with the meaning of a message


class Scaler(Protocol):
    """The part of a `torch.amp.GradScaler` that is needed."""

    def get_scale(self) -> float:
        """Factor that losses are multiplied by."""


class GroupMean(SavedByState):
    """The mean of the vectors of all processes of a group, by a method, round after round.

    Each round is one all-reduce of the method's message (before the first round with cells of few
    bits there is one more, of two numbers), with two more cells for each rank
    (`diffsketch.ddp.transport`). All processes make the object, at the same point of their
    program, and call `mean` together.

    *Whom it protects.* The unit of a client's claim is a rank: all that its vector was made of. A
    claim about examples would need each example's gradient to be clipped before they are summed.

    *From whom.* Every process sees sums, and what passes through it. A claim under local trust
    holds against all of them; one under distributed or central trust does not, and is refused
    unless `trusted_group` says that no process will look. It is then about those who see only what
    comes of the means.

    *Vectors that are not finite.* Where the claim is proven, they count as zeros, with their noise,
    and only their own rank's log has it: anything else would tell about its data. Elsewhere all
    ranks get NaN, as they would without compression, and error feedback forgets that round.

    *Errors.* A rank that fails before it sends takes part with zeros and says so; all ranks raise,
    and none waits. A round in which any rank has sent a message counts, and is paid for, even if it
    then fails.

    *The account.* What this rank's party has sent is counted, and paid for, before it is sent
    (`Account`), in the file `account_file` if there is one. The file belongs to the party whose
    data is averaged, not to a rank: keep it with the data, and give each rank the path of its own
    party's file. Whatever ranks are swapped and whatever states are loaded, it never has less than
    was sent. Without a file, a process knows its own rounds and those of the states that it loads,
    and each rank must load its own.

    *Noise* comes from the operating system, anew for every message (`diffsketch.methods.gate`),
    and is exact where the claim is proven; random roundings where nothing is claimed follow from
    the key. Under central trust rank 0 adds the server's to its own message. Going back to an older
    state repeats hashes, which are public, and never noise.

    Guarantees (`tests/ddp/test_group.py`): the means of a simulation with the same keys, to
    rounding; ranks that disagree raise together; a state that is loaded continues to the same bits;
    the budget is never exceeded. `tests/ddp/test_group_account.py`: an account never has less than
    its party has sent. `tests/ddp/test_never_twice.py`: no two messages share noise.
    `tests/ddp/test_non_interference.py`: under a proven claim, all that leaves beside noised cells
    is the same whatever the vectors are.

    Args:
        method: How vectors become messages. Its cohort, if it has one, is the number of ranks.
        key: Key of the hashes, shared by all ranks.
        group: The processes; all of them if not given.
        error_feedback: Keep what messages cannot carry, and send it later (`ErrorFeedback`).
        immediate: With error feedback, the share of a vector that is sent at once; by a rule if
            not given.
        budget: Where to stop. Only proven claims can be within one.
        trusted_group: Whether all processes are trusted not to look at what they sum.
        scaler: Scaler of mixed precision: vectors are divided by its scale before they are encoded
            and means multiplied by it, so that clips mean what they say. Where the claim is proven,
            the scale has to stay what it is, or overflows would raise it without end.
        account_file: Path of the file with the account of this rank's party, which is made if there
            is none. Two ranks of a process group with copies of one account are refused.

    Attributes:
        saturated: Number of cells of this rank's last message that were beyond the limit of cells
            with few bits; None for other methods.
        round_index: Number of rounds that were begun: the index of the next one.
        present: Whether this rank's vector was in the last mean: always, in a process group.
        group: The process group; None for that of all processes, and where ranks meet in a store.
        on_round: Set it to a function that is called, on this rank, with the `RoundSummary` of
            each mean: those of `sketch_state(...).mean` and of `LocalSteps(...).means` as well.

    Raises:
        ArgumentError: Options do not go together.
        MismatchError: Ranks have different ones, or one of them fails. All ranks raise.
    """

    on_round: OnRound | None = None

    def __init__(
        self, method: Method, *, key: SketchKey,
        group: dist.ProcessGroup | Transport | None = None, error_feedback: bool = False,
        immediate: float | None = None, budget: Budget | None = None, trusted_group: bool = False,
        scaler: Scaler | None = None, account_file: str | Path | None = None,
    ) -> None:  # fmt: skip
        self.method = method
        self.transport = transport_of(group)
        self.rank, self.world = self.transport.rank, self.transport.world
        self.group: dist.ProcessGroup | None = getattr(self.transport, "group", None)
        self._first = method  # the method of the first round: a clip may move
        self._key, self.round_index = key, 0
        self._feedback: ErrorFeedback | None = None
        self._account, self._in_file = Account(), account_file is not None
        self._scaler, self._first_scale = scaler, 1.0 if scaler is None else None
        self._like: Tensor | None = None  # on the device where the group's tensors are
        # Whether the limit of cells of few bits stands, and the last round that tried to agree.
        self._limit_agreed, self._limit_round = True, -1
        self.saturated: Tensor | None = None
        self._saturation, self.present = SaturationWatch(), True
        compared: dict[str, str] = {}
        with Caught() as caught:
            check_type("method", method, Method)
            if not isinstance(key, SketchKey):  # its type alone: it may be a secret all the same
                raise ArgumentError(f"key must be a SketchKey, got {type(key).__name__}")
            is_bool = isinstance(error_feedback, bool)
            check(is_bool, "error_feedback", "be True or False", error_feedback)
            cohort, needed = method.most_messages, f"be {self.world}, the number of ranks"
            check(cohort in (None, self.world), "cohort", needed, cohort)
            planned = method.claim_for(self.world, key.seed(0))
            check_release(method, planned, budget=budget)
            self._check_options(planned, trusted_group=trusted_group)
            opened = Account if account_file is None else partial(Account.open, account_file)
            self._account = opened(budget=budget, planned=planned)
            check_release(method, planned, budget=self._account.budget)  # the file may have one
            if error_feedback:
                self._feedback = ErrorFeedback(method, planned, immediate=immediate)
            self._limit_agreed = not self._wants_limit
            self._text = str(method)  # compared in every round, and formatted once
            feedback = self._feedback
            memory = "False" if feedback is None else f"immediate={feedback.immediate!r}"
            fingerprint = f"one with the fingerprint {key.seed(0).fingerprint.hex()}"
            compared = {
                "protocol": str(_PROTOCOL), "method": self._text, "key": fingerprint,
                "error_feedback": memory, "budget": str(budget),
                "trusted_group": str(trusted_group), "scaler": str(scaler is not None),
            }  # fmt: skip
        self._account.begin_series(self.agree(compared, failure=caught.error))

    @property
    def claim(self) -> Claim:
        """The weakest claim of all rounds so far. Before the first, what is planned."""
        return self._account.claim or self._next_claim

    @property
    def proven(self) -> bool:
        """Whether the next message is sent under a proven claim."""
        return self._next_claim.noise_is_proven

    @property
    def _next_claim(self) -> Claim:
        return self.method.claim_for(self.world, self._key.seed(self.round_index))

    @property
    def bytes_per_round(self) -> Traffic:
        """Bytes that this rank sends and receives in a round."""
        return self.transport.round_bytes(self.method)

    def epsilon(self, delta: float) -> Epsilon:
        """Cost of all releases in this rank's account, with the basis of that number."""
        return self._account.epsilon(delta)

    def mean(self, vector: Tensor, *, layout: str = "", out: Tensor | None = None) -> Tensor:
        """Estimate the mean of the vectors of all ranks, `(dim,)`, float32: one round.

        Args:
            vector: `(dim,)`, float32 or float64.
            layout: What the coordinates mean; has to be the same on all ranks.
            out: Where to write the estimate: `(dim,)`, float32, contiguous, on the vector's device;
                may be the vector. Memory that is used again saves most of the time that a large
                mean takes.

        Raises:
            BudgetExceeded: The round would cost too much. Nothing was sent.
            MismatchError: Ranks disagree, another one failed, or the vector or `out` has another
                length. All ranks raise.
            ArgumentError: The vector or `out` is of another type. The others raise as well.
        """
        return self.begin(vector, layout=layout, out=out)()

    def begin(
        self, vector: Tensor, *, layout: str = "", out: Tensor | None = None
    ) -> Callable[[], Tensor]:
        """Send this rank's message of a round; the function that is returned waits for the mean.

        Arguments and errors are those of `mean`: an error of this rank is raised here, one of
        another rank by the function. Call it once, on all ranks, before the next round begins, and
        leave the vector alone until then.
        """
        index, feedback = self.round_index, self._feedback
        seed = self._key.seed(index)
        # All that can fail at this rank alone.
        with self.failing(layout=layout, like=vector if isinstance(vector, Tensor) else None):
            self._check_vectors(vector, out)
            claim = self.method.claim_for(self.world, seed)
            scale = self._next_scale(claim)
            unscaled = vector if scale == 1 else vector / scale
            mixed = unscaled if feedback is None else feedback.mixed(unscaled)
            # A collective, which a rank that has failed before takes part in as well (`failing`).
            self._agree_on_limit(unscaled)
            message, finite = self._released(mixed, seed, claim)
        # Under a proof, the status would tell about the data.
        status_told = not (finite or claim.noise_is_proven)
        status = RankStatus.NOT_FINITE if status_told else RankStatus.FINE
        self.round_index = index + 1  # whatever happens now, these hashes are used
        report, wait = self._send(message, index, seed, status, layout, scale)

        def finish() -> Tensor:
            total, reports = wait()
            check_reports(reports, report, rank=self.rank)
            self.present = self.rank in reports
            all_finite = all(told and told.status is RankStatus.FINE for told in reports.values())
            if not all_finite or (total.is_floating_point() and not is_finite(total)):
                target = torch.empty_like(vector, dtype=torch.float32) if out is None else out
                return target.fill_(math.nan)
            # A message that is not in the mean was not applied: all of it is sent again.
            if feedback is not None and finite and self.present:
                feedback.keep(unscaled, mixed, message, seed, self.method)
            mean = self._decoded(total, seed, count=len(reports), out=out)
            return mean if scale == 1 else mean.mul_(scale)

        return finish

    def _send(
        self, message: Tensor, index: int, seed: HashSeed, status: RankStatus, layout: str,
        scale: float = 1.0,
    ) -> tuple[RankReport, Callable[[], tuple[Tensor, Reports]]]:  # fmt: skip
        """Send a round's message, and a report of all that ranks compare."""
        # The key was compared when ranks started.
        compared = f"{_PROTOCOL} {self._text} {self.method.round_clip!r} {scale!r} {layout}"
        report = RankReport.of(index, digest_of(compared), status)
        # Roundings of the sum at this rank: other ones than those of any rank's message.
        noise = partial(rounding_noise, self._key, index, self.world + self.rank)
        return report, self.transport.send(
            message, report, method=self.method, seed=seed, rounding=noise
        )

    def _decoded(
        self, total: Tensor, seed: HashSeed, *, count: int, out: Tensor | None = None
    ) -> Tensor:
        """Decode the sum of a round, and move the method to the next round."""
        total = self.method.reduced(total)
        mean = self.method.decode(total, seed, count=count, out=out)
        self.method = self.method.after(total, count=count)
        self._announce()
        return mean

    def _announce(self) -> None:
        """Log the round that was just done, and report it."""
        if self.on_round is None and not LOGGER.isEnabledFor(logging.INFO):
            return  # an epsilon takes time
        budget, rounds = self._account.budget, self.round_index
        up, down = (round(rounds * count) for count in self.bytes_per_round)
        spent = self.epsilon(_DELTA if budget is None else budget.delta)
        summary = RoundSummary(rounds, bytes_up=up, bytes_down=down, epsilon=spent)
        announce(summary, self.on_round, LOGGER)

    @contextmanager
    def failing(self, *, layout: str = "", like: Tensor | None = None) -> Iterator[None]:
        """Context in which an error is raised by all ranks: this one takes part with zeros.

        If others did send, the round is used up. `like` is a tensor on the device of their vectors.
        """
        try:
            yield
        except Exception as error:
            raise_told(error, lambda: self._send_nothing(RankStatus.FAILED, layout, like))

    def meet(self, *, layout: str = "", like: Tensor | None = None) -> None:
        """Compare round and layout with all ranks, without a round: nothing is sent or paid for.

        Raises:
            MismatchError: Ranks disagree, or another one has begun a round. All ranks raise.
        """
        report, reports = self._send_nothing(RankStatus.IDLE, layout, like)
        self._limit_round = -1
        check_reports(reports, report, rank=self.rank)

    def _send_nothing(
        self, status: RankStatus, layout: str, like: Tensor | None
    ) -> tuple[RankReport, Reports]:
        """Take part with zeros; if others did send, the round is used up."""
        index, like = self.round_index, self._like if like is None else like
        self._agree_on_limit(None, like=like)
        zeros = self._zeros(device_of(self.group, like))
        report, wait = self._send(zeros, index, self._key.seed(index), status, layout)
        _, reports = wait()
        if any(told is None or told.status is not status for told in reports.values()):
            self.round_index = index + 1
        return report, reports

    def _zeros(self, device: torch.device) -> Tensor:
        """Cells that add nothing to a sum."""
        form = self.method.total_format
        kind = torch.float32 if form.cells == "float32" else torch.int64
        return torch.zeros(form.shape, dtype=kind, device=device)

    def agree(
        self, settings: Mapping[str, str], *, failure: Exception | None = None, doing: str = "start"
    ) -> str:
        """Compare settings with all ranks (`Transport.agree`): all raise, or none does."""
        party = self._account.party
        return self.transport.agree(settings, failure=failure, doing=doing, party=party)

    def state_dict(self) -> dict[str, Any]:
        """Round, account and error feedback, as tensors, numbers and texts.

        Every rank has to keep its own. The keys are not in it, and neither is what is sent later:
        see `account_file`.
        """
        state: dict[str, Any] = {
            "settings": self._settings(), "round_index": self.round_index,
            "clip": self.method.round_clip or 0.0, "limit_agreed": self._limit_agreed,
            "account": self._account.to_text(),
        }  # fmt: skip
        if self._feedback is not None and self._feedback.memory is not None:
            state["memory"] = self._feedback.memory.clone()
        if not self.transport.in_step:  # ranks of a store may load each other's states
            state |= {"rank": self.rank, "in_file": self._in_file}
        return state

    def load_state_dict(
        self, state: Mapping[str, Any], *, failure: Exception | None = None
    ) -> None:
        """Continue where `state_dict` was called. All ranks must load theirs together.

        If one of them cannot, all raise, and none has loaded anything but into its account. No
        rounds are forgotten: what the state has and this rank's account has not is added to it.

        In a store each rank loads for itself, whenever it likes. From the state of another rank,
        only what all have in common is taken; and its account, if that may be this party's from a
        time when it had another number: a copy of this account, or an account without a file.

        Args:
            state: State of this rank.
            failure: An error that this rank has found in it already.

        Raises:
            MismatchError: The state belongs to other settings, to another rank's errors, or to
                another round than those of other ranks; or another rank failed.
            ArgumentError: The state is of another rank of a store, which does not know what this
                one has sent, and there is no `account_file` that does.
        """
        compared: dict[str, str] = {}
        others = isinstance(state, Mapping) and state.get("rank", self.rank) != self.rank
        with Caught() as caught:
            if failure is not None:
                raise failure
            if others and self.proven and not self._in_file:
                raise ArgumentError(
                    "account_file must be given to go on from the state of another rank, which "
                    "does not know what this one has sent"
                )
            if not others:
                self._check_state(state)
            account = Account.from_text(state["account"])
            if not others or account.party == self._account.party or not state["in_file"]:
                self._account.merge(account)
            compared = {"round_index": str(int(state["round_index"]))}
        self.agree(compared, failure=caught.error, doing="load its state")
        self.round_index = int(state["round_index"])
        self.method = self._first.at_clip(state["clip"]) if state["clip"] else self._first
        self._limit_agreed = bool(state["limit_agreed"]) or not self._wants_limit
        self._limit_round = -1
        if self._feedback is not None and not others:
            memory = state.get("memory")
            self._feedback.memory = None if memory is None else memory.clone()

    def _check_state(self, state: Mapping[str, Any]) -> None:
        needed = ("round_index", "clip", "limit_agreed", "account")
        check_state(state, self._settings(), of="mean", needed=needed)
        memory, shape = state.get("memory"), (self.method.dim,)
        if memory is not None and tuple(memory.shape) != shape:
            raise MismatchError(f"memory must have the shape {shape}, got {tuple(memory.shape)}")

    def _check_options(self, claim: Claim, *, trusted_group: bool) -> None:
        """Raise unless the claim of a round holds for what the group does with its messages.

        Where the claim is proven, a gradient that is not finite counts as zeros, and no mean is
        ever NaN. A `GradScaler` would take that for success and raise its scale without end: then
        all gradients overflow, and the means are noise alone. So there the scale must stay.
        """
        trust, name = claim.scope.trust, self.method.name
        if not (isinstance(claim, NoClaim) or trust is Trust.LOCAL):
            if not trusted_group:
                raise ArgumentError(
                    f"trusted_group must be True for method={name!r}: its claim is under {trust} "
                    "trust, and all processes see messages and sums"
                )
            if not self.transport.in_step:
                raise ArgumentError(
                    f"method={name!r} must claim under local trust in a StoreGroup, got {trust} "
                    "trust: where ranks may be left out, so may the noise that others rely on"
                )
        enabled = getattr(self._scaler, "is_enabled", None)
        if claim.noise_is_proven and callable(enabled) and enabled():
            raise ArgumentError(
                "scaler must not change its scale where the claim is proven, as gradients that "
                f"overflow count as zeros there, got an enabled {type(self._scaler).__name__}. Use "
                "bfloat16, or an object whose get_scale() always returns your factor of the loss"
            )

    def _check_vectors(self, vector: Tensor, out: Tensor | None) -> None:
        if not isinstance(vector, Tensor) or vector.dtype not in (torch.float32, torch.float64):
            kind = vector.dtype if isinstance(vector, Tensor) else type(vector).__name__
            raise ArgumentError(f"vector must be a float32 or float64 tensor, got {kind}")
        if tuple(vector.shape) != (self.method.dim,):
            got = tuple(vector.shape)
            raise MismatchError(f"vector must have the shape ({self.method.dim},), got {got}")
        self._like = vector.new_empty(0)
        if out is not None:
            check_out(out, self.method.dim, device=vector.device)

    def _next_scale(self, claim: Claim) -> float:
        """The scaler's scale in this round; it must stay the same where the claim is proven."""
        scale = 1.0 if self._scaler is None else float(self._scaler.get_scale())
        if self._first_scale is None:
            self._first_scale = scale
        if claim.noise_is_proven and scale != self._first_scale:
            raise ArgumentError(
                "scaler must keep its scale where the claim is proven, got "
                f"{scale:g} after {self._first_scale:g}: an overflow would never be seen"
            )
        return scale

    @property
    def _wants_limit(self) -> bool:
        """Whether ranks choose the limit of rounded cells together.

        Not where something is claimed, as sizes of vectors are data, or where a limit was given.
        """
        first = self._first
        wanted = isinstance(first, RoundedTables) and first.wants_limit
        return wanted and isinstance(first.claim_for(self.world, self._key.seed(0)), NoClaim)

    def _agree_on_limit(self, vector: Tensor | None, *, like: Tensor | None = None) -> None:
        """Before the first round, choose the limit of rounded cells by what all ranks will encode.

        A rank that fails has no vector, and one whose vector is zero or not finite has no say; if
        no rank has, the next round tries again.
        """
        method, index = self.method, self.round_index
        if self._limit_agreed or self._limit_round == index:  # or a rank fails after it has tried
            return
        assert isinstance(method, RoundedTables)  # noqa: S101 (for the type checker)
        self._limit_round = index
        limit = None if vector is None else method.limit_for(vector)
        if limit is not None and self._feedback is not None:
            limit *= self._feedback.immediate  # the share of a first vector that is encoded
        size = self.transport.join(
            None if limit is None else math.log2(limit), largest=method.reaches_largest,
            round_index=index, like=self._like if like is None else like,
        )  # fmt: skip
        if size is not None:
            low, high = LIMITS
            self.method = method.at_clip(min(max(2.0**size, low), high))
            self._limit_agreed = True

    def _released(self, vector: Tensor, seed: HashSeed, claim: Claim) -> tuple[Tensor, bool]:
        """The message, paid for, with the server's noise at rank 0; whether the vector is finite.

        Zeros for a vector that is not finite: with their noise where the claim is proven.
        """
        method, index, self.saturated = self.method, self.round_index, None
        charge = partial(self._account.charge, claim)
        roundings = partial(rounding_noise, self._key, index, self.rank)
        noise_of = roundings if isinstance(claim, NoClaim) else None
        released = release(vector[None], method, seed, claim, charge=charge, noise_of=noise_of)
        finite = bool(released.kept.all())
        if released.encoded is None:
            message = self._zeros(vector.device)
        else:
            message, counts = released.encoded.messages[0], released.encoded.saturated
            self.saturated = None if counts is None else counts[0]
        # On a GPU, to look at the count would make the processor wait for the message.
        if self.saturated is not None and self.saturated.device.type == "cpu":
            self._saturation.see(
                int(self.saturated), message.numel(), method=method, index=index,
                whose=f" of rank {self.rank}",
            )  # fmt: skip
        if not finite:
            what = f"round {index}: NaN or infinite values in the vector of rank {self.rank}"
            if claim.noise_is_proven:  # a warning could be an error, which others see
                LOGGER.warning("%s, which counts as zeros, with its noise", what)
            else:
                text = f"{what}, which makes the mean NaN on all ranks"
                warnings.warn(text, NonFiniteUpdate, stacklevel=3)
        return self._with_servers_noise(message, claim), finite

    def _with_servers_noise(self, message: Tensor, claim: Claim) -> Tensor:
        """Add the server's noise at rank 0 under central trust: once for all ranks."""
        if self.rank != 0 or claim.scope.trust is not Trust.CENTRAL:
            return message
        central = self.method.central_noise(release_noise(self.method, claim))
        return message if central is None else message + central.to(message.device)

    def _settings(self) -> str:
        """Text of all that a state belongs to."""
        key = self._key.seed(0).fingerprint.hex()
        text = f"method={self._first}, key={key}, ranks={self.world}"
        if self._feedback is not None:  # its memory is of this rank alone
            text += f", immediate={self._feedback.immediate!r}, rank={self.rank}"
        return text


def all_reduce_mean(
    tensors: Sequence[Tensor], mean: GroupMean | Method, *,
    group: dist.ProcessGroup | None = None, trusted_group: bool = False,
) -> None:  # fmt: skip
    """Replace tensors by their means over all ranks, in place: one round, without DDP.

    Args:
        tensors: Tensors of any floating type; together as many numbers as the method's `dim`, in
            the same order on all ranks. Of a DTensor, such as a gradient of `fully_shard`, those
            that this rank holds: the group must then be of ranks that hold the same part.
        mean: How they are averaged: `GroupMean(method, key=key)`, made once for all rounds, which
            counts what they cost. Or a method, for a single round: ranks then make up a key for
            its hashes and compare their options, by two small gathers, and nothing is counted.
        group: With a method, the processes; all of them if not given.
        trusted_group: With a method, as in `GroupMean`.

    Raises:
        ArgumentError: `mean` is something else; or a tensor is not dense or not floating, and then
            the other ranks raise as well.
        MismatchError: Ranks disagree, or the tensors have another number of coordinates.
    """
    if isinstance(mean, Method):
        # Hashes that no other round has: from random bytes of all ranks.
        key = SketchKey(bytes.fromhex(transport_of(group).agree({})))
        mean = GroupMean(mean, key=key, group=group, trusted_group=trusted_group)
    elif not isinstance(mean, GroupMean):
        raise ArgumentError(f"mean must be a GroupMean or a Method, got {type(mean).__name__}")
    elif group is not None or trusted_group:
        raise ArgumentError("group and trusted_group must not be given with a GroupMean")
    with mean.failing():
        for tensor in tensors:
            if tensor.layout != torch.strided or not tensor.is_floating_point():
                kind = f"{tensor.dtype}, {tensor.layout}"
                raise ArgumentError(f"tensors must be dense and of a floating type, got {kind}")
            if isinstance(tensor, sharded_kinds()[1]):
                check_disjoint(mean.group, tensor.device_mesh.get_all_groups())  # type: ignore[attr-defined]
        parts = [local_part(tensor) for tensor in tensors]
        flat = [part.reshape(-1).to(torch.float32) for part in parts]
        vector = torch.cat(flat) if flat else torch.zeros(0)
    means = mean.mean(vector, layout=str([tuple(tensor.shape) for tensor in tensors]))
    with torch.no_grad():
        sizes = [len(values) for values in flat]
        for part, values in zip(parts, torch.split(means, sizes), strict=True):
            part.copy_(values.view(part.shape))


class SiloSteps(GroupMean):
    """Steps of an optimizer with the private mean gradient of the records of all ranks.

        silo = SiloSteps(model, optimizer, Records(images, labels), method, key=key)
        for _ in range(150):
            silo.step()

    Each rank is a silo with its own records. In a step it draws a batch in secret, bounds every
    record's gradient, adds its noise, and takes part in one round of a `GroupMean`, with whose
    account, budget, gate and errors it shares everything. All ranks then take the same step of
    the optimizer: momentum and Adam are post-processing, and cost nothing. Draw no batches of your
    own, and compute nothing else from the records that others see, such as a loss.

    Models have to be the same on all ranks, and are compared in each round.

    Guarantees (`tests/ddp/test_silos.py`): ranks keep one model; each is charged before its records
    are looked at, and the budget stops the step; a record that is not finite, or fails, counts as
    zeros, and nothing else shows.

    Args:
        model: The module: not wrapped in DDP, which would sum gradients without noise.
        optimizer: Of its parameters.
        records: Those of this rank's silo.
        method: With `unit="example"` or `"person"`, and a cohort of all ranks.
        loss: Loss of scores and labels, a mean over the batch; cross-entropy if None.
        options: Those of `GroupMean`, `key` among them.

    Raises:
        ArgumentError: The method is for whole clients, or the model mixes records.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, records: Records,
        method: Method, *, loss: Loss | None = None, **options: Any,
    ) -> None:  # fmt: skip
        plain = not isinstance(model, nn.parallel.DistributedDataParallel)
        check(plain, "model", "not be wrapped in DDP, which sums gradients without noise", model)
        record_method(method)
        self._model, self._optimizer, self._records = model, optimizer, records
        self._gradients = RecordGradients(model, loss=loss)
        super().__init__(method, **options)

    def step(self) -> None:
        """Take one step: a round, and the optimizer's step with its mean gradient.

        Raises:
            BudgetExceeded: The round would cost too much. Nothing was drawn or sent.
            MismatchError: Ranks disagree, or have different models. All ranks raise.
        """
        parameters = trained(self._model)
        weights = list(parameters.values())
        # In the place of a vector, which is made of the records behind the gate.
        place = weights[0].new_zeros(self.method.dim, dtype=torch.float32)
        mean = self.mean(place, layout=named_digest(parameters))
        parts = torch.split(mean, [parameter.numel() for parameter in weights])
        for parameter, part in zip(weights, parts, strict=True):
            parameter.grad = part.view_as(parameter).to(parameter.dtype)
        self._optimizer.step()

    def _released(self, vector: Tensor, seed: HashSeed, claim: Claim) -> tuple[Tensor, bool]:
        """The message of a batch of records, paid for, with the server's noise at rank 0."""
        method, charge = self.method, partial(self._account.charge, claim)
        message = self._records.message(self._gradients, method, seed, claim, charge=charge)
        return self._with_servers_noise(message.to(vector.device), claim), True
