"""A method's private mean over a `torch.distributed` process group: one collective a round."""

from __future__ import annotations

import math
import secrets
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from diffsketch.ddp.agreement import (
    CELLS_PER_RANK,
    Report,
    Status,
    check_reports,
    control_cells,
    device_of,
    handshake,
    read_reports,
)
from diffsketch.ddp.feedback import ErrorFeedback
from diffsketch.ddp.group_account import RankAccount, account_path
from diffsketch.ddp.group_options import (
    Scaler,
    Scales,
    check_claim,
    check_types,
    check_vector,
)
from diffsketch.ddp.group_state import GroupState
from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.training.aggregate import NonFiniteUpdate
from diffsketch.training.participation import Participation
from diffsketch.methods.base import Method, check_out, is_finite
from diffsketch.methods.release import release_noise
from diffsketch.privacy.accounting.accountant import Budget
from diffsketch.privacy.claim import Claim, Epsilon, ProvenClaim
from diffsketch.sketch.hashing import HashSeed, SketchKey

__all__ = ["GroupMean", "Scaler"]

_PROTOCOL = 1  # what ranks send each other; another number for another meaning
_EVERYONE = np.zeros(1, np.int64)  # all ranks take part in each round: one account


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A rank's part of a round, before anything is sent."""

    vector: Tensor
    mixed: Tensor
    message: Tensor
    status: Status
    is_finite: bool
    accounts: Participation
    scale: float


class GroupMean:
    """The mean of the vectors of all processes of a group, by a method, round after round.

    Each round is one all-reduce of the method's message, with two more cells for each rank
    (`diffsketch.ddp.agreement`). All processes make the object, at the same point of their
    program, and call `mean` together.

    *Whom it protects.* The unit of a client's claim is a rank: all that its vector was made of. A
    claim about examples would need each example's gradient to be clipped before they are summed.

    *From whom.* Every process sees sums, and what passes through it. A claim under local trust
    holds against all of them; one under distributed or central trust does not, and is refused
    unless `trusted_group` says that no process will look. It is then about those who see only what
    comes of the means.

    *Vectors that are not finite.* Where the claim is proven, they count as zeros, with their noise,
    and only their own rank is warned: anything else would tell about its data. Elsewhere all ranks
    get NaN, as they would without compression, and error feedback forgets that round.

    *Errors.* A rank that fails before it sends takes part with zeros and says so; all ranks raise,
    and none waits. A round in which any rank has sent a message counts, and is paid for, even if it
    then fails.

    *Noise* comes from the operating system, anew for every message (`diffsketch.methods.release`),
    and is exact where the claim is proven. Under central trust rank 0 adds the server's to its own
    message. Going back to an older state repeats hashes, which are public, and never noise.

    Guarantees (`tests/ddp/test_group.py`): the means of a simulation with the same keys, to
    rounding; ranks that disagree raise together; a state that is loaded continues to the same bits;
    the budget is never exceeded; with an `account_file`, rounds that were sent are counted whatever
    state is loaded. `tests/ddp/test_never_twice.py`: no two messages share noise.

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
            scale has to stay what it is (`Scales`).
        account_file: Where what was sent is counted before it is sent: rank `r` has
            `account-r.json` beside an `account.json`. It is opened if it is there, and no state
            that is loaded takes rounds out of it. For proven claims.

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
        if not (dist.is_available() and dist.is_initialized()):
            raise ArgumentError("a process group is needed: call init_process_group before")
        self.method, self.group, self.trusted_group = method, group, trusted_group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self._key, self._round_index = key, 0
        self._name = secrets.token_hex(8)
        self._sent = {self._name: 0}  # rounds, by the object that sent them
        self._feedback: ErrorFeedback | None = None
        self._account: RankAccount | None = None
        self._scales = Scales(scaler)
        self._like: Tensor | None = None  # says where the group's tensors are
        failure: Exception | None = None
        settings: dict[str, str] = {}
        try:
            check_types(method, key, world=self.world)
            planned = method.claim_for(self.world, key.seed(0))
            check_claim(planned, method, budget=budget, trusted_group=trusted_group)
            self._scales.check(planned)
            if error_feedback:
                self._feedback = ErrorFeedback(method, planned, immediate=immediate)
            self._accounts = Participation(1, budget, planned)
            if account_file is not None:
                path = account_path(account_file, self.rank)
                self._account = RankAccount(path, planned, budget)
            settings = self._compared(budget)
        except Exception as error:  # the others must learn of it, or they would wait
            failure = error
        handshake(group, settings, device=device_of(self.group), failure=failure)

    @property
    def round_index(self) -> int:
        """Rounds that were begun: the index of the next one."""
        return self._round_index

    @property
    def claim(self) -> Claim:
        """What holds for all rounds so far: the weakest claim of them. Before, what is planned."""
        return self._accounts.claim or self.method.claim_for(self.world, self._key.seed(0))

    @property
    def error_norm(self) -> float:
        """Of what this rank has not sent yet, with error feedback; else 0."""
        return 0.0 if self._feedback is None else self._feedback.norm

    @property
    def payload_bytes(self) -> int:
        """What a rank gives to the all-reduce of a round. A ring sends and receives nearly twice.

        Cells are summed as float32, or as int32 or int64, whichever holds the sum.
        """
        cells = math.prod(self.method.total_format.shape) + CELLS_PER_RANK * self.world
        return cells * self._sum_type.itemsize

    @property
    def _sum_type(self) -> torch.dtype:
        if not self.method.exact:
            return torch.float32
        signed = self.method.message_format.cells == "signed"
        few = self.method.sum_bits(self.world) <= (32 if signed else 31)
        return torch.int32 if few else torch.int64

    def epsilon(self, delta: float) -> Epsilon:
        """What the rounds have cost each rank, with the basis of that number.

        With an account file it is what this rank's file says: all that it ever sent.
        """
        return (self._accounts if self._account is None else self._account).epsilon(delta)

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
        index, seed = self._round_index, self._key.seed(self._round_index)
        try:
            prepared = self._prepare(vector, seed, out)
        except Exception as error:
            self._join_failing(error, layout, vector if isinstance(vector, Tensor) else None)
            raise
        # Before anything is sent: whatever happens then, this noise is used and this round paid.
        self._round_index, self._accounts = index + 1, prepared.accounts
        self._sent[self._name] += 1
        own = Report.of(index, self._settings_of(seed, layout, prepared.scale), prepared.status)
        total, reports = self._summed(prepared.message, own)
        check_reports(reports, own, rank=self.rank)
        finite = all(report and report.status is Status.FINE for report in reports)
        if not finite or (total.is_floating_point() and not is_finite(total)):
            target = torch.empty_like(vector, dtype=torch.float32) if out is None else out
            return target.fill_(math.nan)
        if self._feedback is not None and prepared.is_finite:
            self._feedback.keep(prepared.vector, prepared.mixed, prepared.message, seed)
        mean = self.method.decode(total, seed, count=self.world, out=out)
        return mean if prepared.scale == 1 else mean.mul_(prepared.scale)

    def fail(self, error: Exception, *, layout: str = "", like: Tensor | None = None) -> NoReturn:
        """Take part in a round without a vector, so that all ranks raise, and raise the error.

        Args:
            error: Why this rank cannot go on.
            layout: As in `mean`.
            like: A tensor on the device of the others' vectors.
        """
        self._join_failing(error, layout, like)
        raise error

    def agree(
        self, settings: Mapping[str, str], *, failure: Exception | None = None, doing: str = "start"
    ) -> None:
        """A `handshake` of the group, with its arguments: all ranks raise, or none."""
        place = device_of(self.group)
        handshake(self.group, settings, device=place, failure=failure, doing=doing)

    def state_dict(self) -> dict[str, Any]:
        """Round, budget and error feedback, as tensors, numbers and texts.

        With error feedback every rank has to keep its own. The keys are not in it, and neither is
        what is sent later: see `account_file`.
        """
        memory = None if self._feedback is None else self._feedback.memory
        account = "" if self._account is None else self._account.name
        state = GroupState(self._accounts, self._round_index, memory, self._sent, account)
        return state.packed(self._settings())

    def load_state_dict(
        self, state: Mapping[str, Any], *, failure: Exception | None = None
    ) -> None:
        """Continue where `state_dict` was called. All ranks must load theirs together.

        If one of them cannot, all raise, and none has loaded anything. Going back to a state of its
        own leaves all rounds counted that this object has sent. A state of another object is for
        one that has sent nothing yet: their rounds add up, and neither knows the other's.

        Args:
            state: This rank's.
            failure: An error that this rank has found in it already.

        Raises:
            MismatchError: The state belongs to other settings, to another rank's errors, or to
                another round than those of other ranks; it has rounds of another object, and this
                one has sent some of its own; or another rank failed.
            BudgetExceeded: The account file lacks rounds of the state, and the budget has no room.
        """
        own, loaded = self._settings(), None
        try:
            if failure is None:
                loaded = GroupState.unpacked(
                    state, own, dim=self.method.dim, accounts=self._accounts
                )
                if not self._knows(loaded) and self._account is not None:
                    self._account.take_over(int(loaded.accounts.rounds.max()), loaded.account)
        except Exception as error:  # the others must learn of it, or they would wait
            failure = error
        settings = {"round_index": str(loaded.round_index)} if loaded is not None else {}
        self.agree(settings, failure=failure, doing="load its state")
        if loaded is None:
            return  # not reached: the failure was raised
        self._round_index = loaded.round_index
        if not self._knows(loaded):  # what was sent stays sent
            self._accounts, self._sent = loaded.accounts, {**loaded.sent, self._name: 0}
        if self._feedback is not None:
            self._feedback.memory = loaded.memory

    def _knows(self, state: GroupState) -> bool:
        """Whether all rounds of a state are counted here.

        Raises:
            MismatchError: They are not, and this object has sent rounds that the state lacks.
        """
        if all(self._sent.get(name, 0) >= rounds for name, rounds in state.sent.items()):
            return True
        if own := sum(self._sent.values()):
            raise MismatchError(
                f"the state must be loaded before this mean has sent anything, or be its own: it "
                f"has rounds of another object, and this one has counted {own}; make a new one"
            )
        return False

    def _prepare(self, vector: Tensor, seed: HashSeed, out: Tensor | None) -> _Prepared:
        """All that can fail at this rank alone."""
        check_vector(vector, self.method.dim)
        self._like = vector
        if out is not None:
            check_out(out, self.method.dim, device=vector.device)
        claim = self.method.claim_for(self.world, seed)
        accounts = self._accounts.after(claim, _EVERYONE)
        scale = self._scales.next(claim)
        if scale != 1:
            vector = vector / scale
        mixed = vector if self._feedback is None else self._feedback.mixed(vector)
        status, good = Status.FINE, True
        method, noise = self.method, release_noise(self.method, claim)
        try:
            message = method.encode(mixed, seed, noise).messages
        except ArgumentError:
            # Either the vector is not finite, or this fails for zeros too and is another error.
            zeros = torch.zeros_like(vector, dtype=torch.float32)
            message = method.encode(zeros, seed, noise).messages
            good, proven = False, isinstance(claim, ProvenClaim)
            self._warn(proven=proven)
            if not proven:
                status, message = Status.NOT_FINITE, torch.zeros_like(message)
        central = method.central_noise(noise) if self.rank == 0 else None
        if central is not None:
            message = message + central.to(message.device)
        if self._account is not None:
            self._account.charge()  # last: what comes now is sent
        return _Prepared(vector, mixed, message, status, good, accounts, scale)

    def _summed(self, message: Tensor, own: Report) -> tuple[Tensor, list[Report | None]]:
        """The sum of all messages as it is published, and what all ranks say: one collective."""
        flat = message.reshape(-1).to(self._sum_type)  # modulo 2**32, if it is a modulo at all
        control = control_cells(own, rank=self.rank, world=self.world, like=flat)
        payload = torch.cat([flat, control])
        dist.all_reduce(payload, group=self.group)
        cells = flat.numel()
        total = payload[:cells].to(message.dtype).reshape(self.method.total_format.shape)
        return self.method.reduced(total), read_reports(payload[cells:])

    def _join_failing(self, error: Exception, layout: str, like: Tensor | None) -> None:
        """Take part with zeros, so that nobody waits. If others did send, the round is used up."""
        index, form = self._round_index, self.method.total_format
        kind = torch.float32 if form.cells == "float32" else torch.int64
        place = device_of(self.group, self._like if like is None else like)
        zeros = torch.zeros(form.shape, dtype=kind, device=place)
        seed = self._key.seed(index)
        own = Report.of(index, self._settings_of(seed, layout, 1.0), Status.FAILED)
        try:
            _, reports = self._summed(zeros, own)
        except Exception as lost:  # the group is broken, which must not hide why
            error.add_note(f"the other ranks could not be told: {lost}")
            return
        if any(report is None or report.status is not Status.FAILED for report in reports):
            self._round_index = index + 1

    def _settings_of(self, seed: HashSeed, layout: str, scale: float) -> str:
        """What has to be the same on all ranks in a round."""
        return f"{_PROTOCOL} {self.method} {seed.fingerprint.hex()} {scale!r} {layout}"

    def _settings(self) -> str:
        """What a state belongs to."""
        feedback, own = self._feedback, ""
        if feedback is not None:
            own = f", immediate={feedback.immediate!r}, rank={self.rank}"
        fingerprint = self._key.seed(0).fingerprint.hex()
        return f"method={self.method}, key={fingerprint}, ranks={self.world}{own}"

    def _compared(self, budget: Budget | None) -> dict[str, str]:
        """What has to be the same on all ranks from the beginning."""
        feedback = self._feedback
        return {
            "protocol": str(_PROTOCOL),
            "method": str(self.method),
            "key": f"one with the fingerprint {self._key.seed(0).fingerprint.hex()}",
            "error_feedback": "False" if feedback is None else f"immediate={feedback.immediate!r}",
            "budget": str(budget),
            "trusted_group": str(self.trusted_group),
            "scaler": "None" if self._scales.scaler is None else "one",
            "account_file": "None" if self._account is None else "one",
        }

    def _warn(self, *, proven: bool) -> None:
        fate = "counts as zeros, with its noise" if proven else "makes the mean NaN on all ranks"
        warnings.warn(
            f"round {self._round_index}: NaN or infinite values in the vector of rank "
            f"{self.rank}, which {fate}",
            NonFiniteUpdate,
            stacklevel=4,
        )
