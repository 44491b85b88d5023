"""A method's private mean over a torch.distributed process group."""

from __future__ import annotations

import math
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from diffsketch.ddp.agreement import (
    CELLS_PER_RANK,
    LOGGER,
    RankReport,
    RankStatus,
    SavedByState,
    check_reports,
    check_started,
    control_cells,
    device_of,
    handshake,
    read_reports,
)
from diffsketch.ddp.weights import check_disjoint, local_part, sharded_kinds
from diffsketch.errors import ArgumentError, MismatchError, check, difference
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
from diffsketch.privacy.accounting.account import Account, Budget
from diffsketch.privacy.claim import Claim, Epsilon, NoClaim, ProvenClaim, Trust
from diffsketch.privacy.simulated_noise import Noise
from diffsketch.sketch.hashing import HashSeed, SketchKey
from diffsketch.sketch.rounding import LIMITS, WORD_BITS, SumPacking

_PROTOCOL = 3  # what ranks send each other; another number for another meaning


Reports: TypeAlias = dict[int, RankReport | None]
"""What the ranks whose messages are in a sum say of it; None where that makes no sense."""


class Scaler(Protocol):
    """The part of a `torch.amp.GradScaler` that is needed."""

    def get_scale(self) -> float:
        """Factor that losses are multiplied by."""


def check_group_options(
    method: Method,
    claim: Claim,
    *,
    budget: Budget | None,
    trusted_group: bool,
    scaler: Scaler | None,
) -> None:
    """Raise unless a group can hold what a round claims.

    Where the claim is proven, a gradient that is not finite counts as zeros, and no mean is ever
    NaN. A `GradScaler` would take that for success and raise its scale without end: then all
    gradients overflow, and noise is all that is left. So there the scale must stay what it is.
    """
    check_release(method, claim, budget=budget)
    trust, proven = claim.scope.trust, isinstance(claim, ProvenClaim)
    if not (isinstance(claim, NoClaim) or trust is Trust.LOCAL or trusted_group):
        raise ArgumentError(
            f"trusted_group must be True for method={method.name!r}: its claim is under "
            f"{trust} trust, and an all-reduce shows messages and sums to all processes. With "
            "it, the claim is about those who see only what comes of the means"
        )
    enabled = getattr(scaler, "is_enabled", None)
    if proven and callable(enabled) and enabled():
        raise ArgumentError(
            "scaler must not change its scale where the claim is proven: there a gradient that "
            "overflows counts as zeros, so that the scaler never learns of it, got an enabled "
            f"{type(scaler).__name__}. Use bfloat16, which needs no scaler, or an object "
            "whose get_scale() always returns the factor by which you multiply the loss"
        )


class GroupMean(SavedByState):
    """The mean of the vectors of all processes of a group, by a method, round after round.

    Each round is one all-reduce of the method's message (before the first one of cells with few
    bits there is one more, of two numbers), with two more cells for each rank
    (`diffsketch.ddp.agreement`). All processes make the object, at the same point of their
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
    the key. Under central trust rank 0 adds the server's to its own
    message. Going back to an older state repeats hashes, which are public, and never noise.

    Guarantees (`tests/ddp/test_group.py`): the means of a simulation with the same keys, to
    rounding; ranks that disagree raise together; a state that is loaded continues to the same bits;
    the budget is never exceeded. `tests/ddp/test_group_account.py`: an account never has less than
    its party has sent. `tests/ddp/test_never_twice.py`: no two messages share noise.
    `tests/ddp/test_non_interference.py`: under a proven claim, all that leaves beside noised cells
    is the same whatever the vectors are.

    Args:
        method: How vectors become messages. Its cohort, if it has one, is the number of ranks.
        key: Of the hashes, shared by all ranks.
        group: The processes; all of them if not given.
        error_feedback: Keep what messages cannot carry, and send it later (`ErrorFeedback`).
        immediate: With error feedback, the share of a vector that is sent at once; by a rule if
            not given.
        budget: Where to stop. Only proven claims can be within one.
        trusted_group: Whether all processes are trusted not to look at what they sum.
        scaler: Of mixed precision: vectors are divided by its scale before they are encoded and
            means multiplied by it, so that clips mean what they say. Where the claim is proven, the
            scale has to stay what it is (`check_group_options`).
        account_file: Path of the file with the account of this rank's party, which is made if there
            is none. Two ranks with copies of one account are refused.

    Attributes:
        saturated: How many cells of this rank's last message were beyond the limit of cells with
            few bits; None for other methods.

    Raises:
        ArgumentError: Options do not go together.
        MismatchError: Ranks have different ones, or one of them fails. All ranks raise.
    """

    def __init__(
        self,
        method: Method,
        *,
        key: SketchKey,
        group: dist.ProcessGroup | None = None,
        error_feedback: bool = False,
        immediate: float | None = None,
        budget: Budget | None = None,
        trusted_group: bool = False,
        scaler: Scaler | None = None,
        account_file: str | Path | None = None,
    ) -> None:
        self.method, self.group, self.trusted_group = method, group, trusted_group
        self._first = method  # the method of the first round: a clip may move
        self.rank, self.world = self._join(group)
        self._key, self._round_index = key, 0
        self._feedback: ErrorFeedback | None = None
        self._account, self._in_file = Account(), account_file is not None
        self._scaler, self._first_scale = scaler, 1.0 if scaler is None else None
        self._like: Tensor | None = None  # says where the group's tensors are
        self._limit_agreed, self._limit_round = False, -1  # of cells of few bits; last try
        self.saturated: Tensor | None = None
        self._saturation = SaturationWatch()
        failure: Exception | None = None
        compared: dict[str, str] = {}
        try:
            for name, value, kind in (("method", method, Method), ("key", key, SketchKey)):
                if not isinstance(value, kind):
                    found = type(value).__name__
                    raise ArgumentError(f"{name} must be a {kind.__name__}, got {found}")
            good = isinstance(error_feedback, bool)
            check(good, "error_feedback", "be True or False", error_feedback)
            cohort = method.most_messages
            good = cohort is None or cohort == self.world
            check(good, "cohort", f"be {self.world}, the number of ranks", cohort)
            planned = method.claim_for(self.world, key.seed(0))
            check_group_options(
                method, planned, budget=budget, trusted_group=trusted_group, scaler=scaler
            )
            opened = Account if account_file is None else partial(Account.open, account_file)
            self._account = opened(budget=budget, planned=planned)
            check_release(method, planned, budget=self._account.budget)  # the file may have one
            if error_feedback:
                self._feedback = ErrorFeedback(method, planned, immediate=immediate)
            feedback = self._feedback
            memory = "False" if feedback is None else f"immediate={feedback.immediate!r}"
            compared = {
                "protocol": str(_PROTOCOL),
                "method": str(self._first),
                "key": f"one with the fingerprint {key.seed(0).fingerprint.hex()}",
                "error_feedback": memory,
                "budget": str(budget),
                "trusted_group": str(trusted_group),
                "scaler": "None" if scaler is None else "one",
            }
        except Exception as error:  # the others must learn of it, or they would wait
            failure = error
        self._account.begin_series(self.agree(compared, failure=failure))

    @staticmethod
    def _join(group: Any) -> tuple[int, int]:
        """This process's rank in the group, and how many there are."""
        check_started()
        return dist.get_rank(group), dist.get_world_size(group)

    @property
    def round_index(self) -> int:
        """Rounds that were begun: the index of the next one."""
        return self._round_index

    @property
    def claim(self) -> Claim:
        """The weakest claim of all rounds so far. Before the first, what is planned."""
        return self._account.claim or self._next_claim

    @property
    def proven(self) -> bool:
        """Whether what comes next is sent under a proven claim."""
        return isinstance(self._next_claim, ProvenClaim)

    @property
    def _next_claim(self) -> Claim:
        return self.method.claim_for(self.world, self._key.seed(self._round_index))

    @property
    def payload_bytes(self) -> int:
        """Bytes that a rank gives to the all-reduce of a round. A ring sends nearly twice that.

        Cells are summed as float32; as int32 or int64, whichever holds the sum; or, where sums have
        few bits, several of them in an int32.
        """
        cells = math.prod(self.method.total_format.shape)
        if self._packing is not None:
            cells = self._packing.words(cells)
        return (cells + CELLS_PER_RANK * self.world) * self._sum_type.itemsize

    @cached_property
    def _packing(self) -> SumPacking | None:
        """Packing of several cells into a word, if all sums surely fit in few bits."""
        method, claim = self._first, self._first.claim_for(self.world, self._key.seed(0))
        sure = isinstance(claim, NoClaim) or claim.scope.trust is Trust.LOCAL
        bits = method.sum_bits(self.world)
        if method.message_format.cells != "signed" or not sure or bits > WORD_BITS // 2:
            return None
        return SumPacking(bits, method.message_format.limits[0], self.world)

    @property
    def _sum_type(self) -> torch.dtype:
        if self.method.message_format.cells == "float32":
            return torch.float32
        signed = self.method.message_format.cells == "signed"
        few = self.method.sum_bits(self.world) <= (32 if signed else 31)
        return torch.int32 if few else torch.int64

    def epsilon(self, delta: float) -> Epsilon:
        """Cost of all that this rank's account has, with the basis of that number."""
        return self._account.epsilon(delta)

    def mean(self, vector: Tensor, *, layout: str = "", out: Tensor | None = None) -> Tensor:
        """An estimate `(dim,)`, float32, of the mean of the vectors of all ranks: one round.

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

        Arguments and errors are those of `mean`: what a rank finds by itself is raised here, and
        what it learns of the others by the function. Call it once, on all ranks, before the next
        round begins, and leave the vector alone until then.
        """
        index, seed, feedback = self._round_index, self._key.seed(self._round_index), self._feedback
        try:  # all that can fail at this rank alone
            self._check_vectors(vector, out)
            claim = self._next_claim
            scale = self._next_scale(claim)
            own_vector = vector if scale == 1 else vector / scale
            mixed = own_vector if feedback is None else feedback.mixed(own_vector)
        except Exception as error:
            self.fail(error, layout=layout, like=vector if isinstance(vector, Tensor) else None)
        self._agree_on_limit(own_vector)
        try:
            message, finite = self._released(mixed, seed, claim)
        except Exception as error:
            self.fail(error, layout=layout, like=vector)
        self._round_index = index + 1  # whatever happens now, these hashes are used
        told = not (finite or isinstance(claim, ProvenClaim))  # under a proof it would tell of data
        status = RankStatus.NOT_FINITE if told else RankStatus.FINE
        own = RankReport.of(index, self._settings_of(seed, layout, scale), status)
        wait = self._send(message, own)

        def finish() -> Tensor:
            total, reports = wait()
            check_reports(reports, own, rank=self.rank)
            all_finite = all(one and one.status is RankStatus.FINE for one in reports.values())
            if not all_finite or (total.is_floating_point() and not is_finite(total)):
                target = torch.empty_like(vector, dtype=torch.float32) if out is None else out
                return target.fill_(math.nan)
            if feedback is not None and finite and self.rank in reports:
                feedback.keep(own_vector, mixed, self._own_table(message), seed)
            mean = self._decoded(total, seed, count=len(reports), out=out)
            return mean if scale == 1 else mean.mul_(scale)

        return finish

    def _decoded(
        self, total: Tensor, seed: HashSeed, *, count: int, out: Tensor | None = None
    ) -> Tensor:
        """The mean of a round whose sum is known, after which the method is the next round's."""
        mean = self.method.decode(total, seed, count=count, out=out)
        self.method = self.method.after(total, count=count)
        return mean

    def fail(self, error: Exception, *, layout: str = "", like: Tensor | None = None) -> NoReturn:
        """Take part in a round with zeros, so that all ranks raise, and raise the error.

        If others did send, the round is used up. `like` is a tensor on the device of their vectors.
        """
        try:
            self._send_nothing(RankStatus.FAILED, layout, like)
        except Exception as lost:  # the group is broken, which must not hide why
            error.add_note(f"the other ranks could not be told: {lost}")
        raise error

    def meet(self, *, layout: str = "", like: Tensor | None = None) -> None:
        """Compare round and layout with all ranks, without a round: nothing is sent or paid for.

        Raises:
            MismatchError: Ranks disagree, or another one has begun a round. All ranks raise.
        """
        own, reports = self._send_nothing(RankStatus.IDLE, layout, like)
        self._limit_round = -1
        check_reports(reports, own, rank=self.rank)

    def _send_nothing(
        self, status: RankStatus, layout: str, like: Tensor | None
    ) -> tuple[RankReport, Reports]:
        """Take part with zeros; if others did send, the round is used up."""
        index = self._round_index
        self._agree_on_limit(None, like=like)
        place = device_of(self.group, self._like if like is None else like)
        settings = self._settings_of(self._key.seed(index), layout, 1.0)
        own = RankReport.of(index, settings, status)
        _, reports = self._send(self._zeros(place), own)()
        if any(one is None or one.status is not status for one in reports.values()):
            self._round_index = index + 1
        return own, reports

    def _zeros(self, place: torch.device) -> Tensor:
        """Cells that add nothing to a sum."""
        form = self.method.total_format
        kind = torch.float32 if form.cells == "float32" else torch.int64
        return torch.zeros(form.shape, dtype=kind, device=place)

    def agree(
        self, settings: Mapping[str, str], *, failure: Exception | None = None, doing: str = "start"
    ) -> str:
        """A `handshake` of the group, with its arguments: all ranks raise, or none.

        Returns the name of a new series of the account. All ranks have the same: so a state that
        another one has saved counts no round twice.
        """
        common = handshake(
            self.group, settings, device=device_of(self.group), failure=failure, doing=doing,
            share=secrets.token_bytes(32), party=self._account.party,
        )  # fmt: skip
        return common.hex()

    def state_dict(self) -> dict[str, Any]:
        """Round, account and error feedback, as tensors, numbers and texts.

        Every rank has to keep its own. The keys are not in it, and neither is what is sent later:
        see `account_file`.
        """
        found: dict[str, Any] = {
            "settings": self._settings(),
            "round_index": self._round_index,
            "clip": self.method.round_clip or 0.0,
            "limit_agreed": self._limit_agreed,
            "account": self._account.to_text(),
        }
        if self._feedback is not None and self._feedback.memory is not None:
            found["memory"] = self._feedback.memory.clone()
        return found

    def load_state_dict(
        self, state: Mapping[str, Any], *, failure: Exception | None = None
    ) -> None:
        """Continue where `state_dict` was called. All ranks must load theirs together.

        If one of them cannot, all raise, and none has loaded anything. No rounds are forgotten:
        what the state has and this rank's account has not is added to it.

        Args:
            state: This rank's.
            failure: An error that this rank has found in it already.

        Raises:
            MismatchError: The state belongs to other settings, to another rank's errors, or to
                another round than those of other ranks; or another rank failed.
        """
        settings: dict[str, str] = {}
        try:
            if failure is None:
                account = self._checked_state(state)
                settings = {"round_index": str(int(state["round_index"]))}
                self._account.merge(account)
        except Exception as error:  # the others must learn of it, or they would wait
            failure, settings = error, {}
        self.agree(settings, failure=failure, doing="load its state")
        self._go_on_from(state)
        if self._feedback is not None:
            memory = state.get("memory")
            self._feedback.memory = None if memory is None else memory.clone()

    def _go_on_from(self, state: Mapping[str, Any]) -> None:
        """Take over what a state has in common with those of all other ranks."""
        self._round_index = int(state["round_index"])
        self.method = self._first.at_clip(state["clip"]) if state["clip"] else self._first
        self._limit_agreed, self._limit_round = bool(state["limit_agreed"]), -1

    def _checked_state(self, state: Mapping[str, Any]) -> Account:
        """The account of a state that belongs here."""
        if not isinstance(state, Mapping):
            raise ArgumentError(f"state must be a mapping, got {type(state).__name__}")
        if state.get("settings") != self._settings():
            why = difference(self._settings(), str(state.get("settings")))
            raise MismatchError(f"the state must be of the same mean, but {why}")
        needed = ("round_index", "clip", "limit_agreed", "account")
        if missing := [name for name in needed if name not in state]:
            raise MismatchError(f"the state must have {', '.join(missing)}")
        memory, shape = state.get("memory"), (self.method.dim,)
        if memory is not None and tuple(memory.shape) != shape:
            raise MismatchError(f"memory must have the shape {shape}, got {tuple(memory.shape)}")
        return Account.from_text(state["account"])

    def _check_vectors(self, vector: Tensor, out: Tensor | None) -> None:
        if not isinstance(vector, Tensor) or vector.dtype not in (torch.float32, torch.float64):
            kind = vector.dtype if isinstance(vector, Tensor) else type(vector).__name__
            raise ArgumentError(f"vector must be a float32 or float64 tensor, got {kind}")
        if tuple(vector.shape) != (self.method.dim,):
            raise MismatchError(
                f"vector must have the shape ({self.method.dim},), got {tuple(vector.shape)}"
            )
        self._like = vector.new_empty(0)
        if out is not None:
            check_out(out, self.method.dim, device=vector.device)

    def _next_scale(self, claim: Claim) -> float:
        """The scaler's scale in this round; it must stay the same where the claim is proven."""
        scale = 1.0 if self._scaler is None else float(self._scaler.get_scale())
        if self._first_scale is None:
            self._first_scale = scale
        if isinstance(claim, ProvenClaim) and scale != self._first_scale:
            raise ArgumentError(
                "scaler must keep its scale where the claim is proven, got "
                f"{scale:g} after {self._first_scale:g}: an overflow would never be seen"
            )
        return scale

    def _agree_on_limit(self, vector: Tensor | None, *, like: Tensor | None = None) -> None:
        """Before the first round, choose the limit of rounded cells by what all ranks will encode.

        A rank that fails has nothing, and one whose vector is zero or not finite has no say; if
        none has, the next round tries again. Nothing is done where something is claimed, as the
        sizes of vectors are data, or where the method has a limit of its own: it starts there.
        """
        method, seed = self.method, self._key.seed(0)
        if self._limit_agreed or not isinstance(method, RoundedTables) or method.grid is None:
            return
        if self._limit_round == self._round_index:
            return  # a rank that fails after it has tried
        self._limit_round = self._round_index
        wanted = isinstance(self._first, RoundedTables) and self._first.wants_limit
        if not wanted or not isinstance(method.claim_for(self.world, seed), NoClaim):
            self._limit_agreed = True
            return
        limit = None if vector is None else method.limit_for(vector)
        if limit is not None and self._feedback is not None:
            limit *= self._feedback.immediate  # of a first vector so much is encoded
        size = self._common_size(None if limit is None else math.log2(limit), like)
        if size is not None:
            low, high = LIMITS
            self.method = method.at_clip(min(max(2.0**size, low), high))
            self._limit_agreed = True

    @property
    def _by_largest(self) -> bool:
        return isinstance(self._first, RoundedTables) and self._first.reaches_largest

    def _common_size(self, size: float | None, like: Tensor | None) -> float | None:
        """The mean of a number over the ranks that have one, or the largest, as the grid wants."""
        place = device_of(self.group, self._like if like is None else like)
        reduced = dist.ReduceOp.MAX if self._by_largest else dist.ReduceOp.SUM
        nothing = [-1e9 if self._by_largest else 0.0, 0.0]
        sizes = torch.tensor(nothing if size is None else [size, 1.0], device=place)
        dist.all_reduce(sizes, reduced, group=self.group)
        total, count = sizes.tolist()
        return total / count if count else None

    def _own_table(self, message: Tensor) -> Tensor:
        """The table that a message stands for."""
        method = self.method
        return method.mean_table(message, 1) if isinstance(method, RoundedTables) else message

    def _released(self, vector: Tensor, seed: HashSeed, claim: Claim) -> tuple[Tensor, bool]:
        """The message, paid for, with the server's noise at rank 0; whether the vector is finite.

        Zeros for a vector that is not finite: with their noise where the claim is proven.
        """
        method, index, self.saturated = self.method, self._round_index, None
        noise_of: Callable[[Sequence[int]], Noise] | None = None
        if isinstance(claim, NoClaim):

            def noise_of(_: Sequence[int]) -> Noise:
                return rounding_noise(self._key, worker=self.rank, round_index=index)

        charge = partial(self._account.charge, claim)
        released = release(vector[None], method, seed, claim, charge=charge, noise_of=noise_of)
        finite = bool(released.kept.all())
        if released.encoded is None:
            message = self._zeros(vector.device)
        else:
            encoded = released.encoded[0]
            message, self.saturated = encoded.messages, encoded.saturated
        if self.saturated is not None and self.saturated.device.type == "cpu":  # no waiting
            self._saturation.see(
                int(self.saturated), method.message_format.cell_count, limit=method.round_clip,
                index=index, whose=f" of rank {self.rank}",
            )  # fmt: skip
        if not finite:
            what = f"round {index}: NaN or infinite values in the vector of rank {self.rank}"
            if isinstance(claim, ProvenClaim):  # a warning could be an error, which others see
                LOGGER.warning("%s, which counts as zeros, with its noise", what)
            else:
                text = f"{what}, which makes the mean NaN on all ranks"
                warnings.warn(text, NonFiniteUpdate, stacklevel=3)
        central = method.central_noise(release_noise(method, claim)) if self.rank == 0 else None
        if central is not None:
            message = message + central.to(message.device)
        return message, finite

    def _send(self, message: Tensor, own: RankReport) -> Callable[[], tuple[Tensor, Reports]]:
        """Begin the round's one collective.

        The function that is returned waits for the sum of all messages as it is published, and
        what all ranks say.
        """
        flat, packing = message.reshape(-1), self._packing
        if packing is not None:
            flat = packing.pack(flat)
        flat = flat.to(self._sum_type)  # modulo 2**32, if it is a modulo at all
        control = control_cells(own, rank=self.rank, world=self.world, like=flat)
        payload = torch.cat([flat, control])
        work = dist.all_reduce(payload, group=self.group, async_op=True)

        def wait() -> tuple[Tensor, Reports]:
            if work is not None:  # as it is where this process is not of the group
                work.wait()
            summed = payload[: flat.numel()]
            if packing is not None:
                summed = packing.unpack(summed, message.numel())
            kind = torch.float32 if message.is_floating_point() else torch.int64
            total = summed.to(kind).reshape(self.method.total_format.shape)
            reports = read_reports(payload[flat.numel() :])
            return self.method.reduced(total), dict(enumerate(reports))

        return wait

    def _settings_of(self, seed: HashSeed, layout: str, scale: float) -> str:
        """Text of all that has to be the same on all ranks in a round."""
        clip = self.method.round_clip
        return f"{_PROTOCOL} {self._first} {clip!r} {seed.fingerprint.hex()} {scale!r} {layout}"

    def _settings(self) -> str:
        """Text of all that a state belongs to."""
        feedback, own = self._feedback, ""
        if feedback is not None:
            own = f", immediate={feedback.immediate!r}, rank={self.rank}"
        fingerprint = self._key.seed(0).fingerprint.hex()
        return f"method={self._first}, key={fingerprint}, ranks={self.world}{own}"


def all_reduce_mean(
    tensors: Sequence[Tensor],
    mean: GroupMean | Method,
    *,
    group: dist.ProcessGroup | None = None,
    trusted_group: bool = False,
) -> None:
    """Replace tensors by their means over all ranks, in place: one round, without DDP.

    Args:
        tensors: Of any floating type; together as many numbers as the method's `dim`, in the same
            order on all ranks. Of a DTensor, such as a gradient of `fully_shard`, those that this
            rank holds: the group must then be of ranks that hold the same part.
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
        check_started()
        # Hashes that no other round has: from bytes of all ranks.
        share = secrets.token_bytes(32)
        key = SketchKey(handshake(group, {}, device=device_of(group), share=share))
        mean = GroupMean(mean, key=key, group=group, trusted_group=trusted_group)
    elif not isinstance(mean, GroupMean):
        raise ArgumentError(f"mean must be a GroupMean or a Method, got {type(mean).__name__}")
    elif group is not None or trusted_group:
        raise ArgumentError("group and trusted_group must not be given with a GroupMean")
    try:
        for tensor in tensors:
            if tensor.layout != torch.strided or not tensor.is_floating_point():
                raise ArgumentError(
                    "tensors must be dense and of a floating type, got a "
                    f"{tensor.dtype} tensor with the layout {tensor.layout}"
                )
            if isinstance(tensor, sharded_kinds()[1]):
                check_disjoint(mean.group, tensor.device_mesh.get_all_groups())  # type: ignore[attr-defined]
        parts = [local_part(tensor) for tensor in tensors]
        flat = [part.reshape(-1).to(torch.float32) for part in parts]
        vector = torch.cat(flat) if flat else torch.zeros(0)
    except Exception as error:
        mean.fail(error)
    found = mean.mean(vector, layout=str([tuple(tensor.shape) for tensor in tensors]))
    with torch.no_grad():
        for part, values in zip(parts, torch.split(found, [len(one) for one in flat]), strict=True):
            part.copy_(values.view(part.shape))
