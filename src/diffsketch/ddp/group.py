"""A method's private mean over a torch.distributed process group."""

from __future__ import annotations

import json
import math
import secrets
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

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
from diffsketch.errors import ArgumentError, MismatchError, check
from diffsketch.files import replace_file
from diffsketch.methods.base import Method, check_out, is_finite
from diffsketch.methods.release import check_release, release_noise
from diffsketch.privacy.accounting.accountant import Budget
from diffsketch.privacy.accounting.ledger import Ledger
from diffsketch.privacy.claim import Claim, Epsilon, NoClaim, ProvenClaim, Trust
from diffsketch.sketch.hashing import HashSeed, SketchKey
from diffsketch.training.clients import Participation
from diffsketch.training.simulation import NonFiniteUpdate, difference


def account_path(path: str | Path, rank: int) -> Path:
    """The file of a rank, beside the one that is named for all.

    >>> account_path("books/account.json", 3).as_posix()
    'books/account-3.json'
    """
    path = Path(path)
    return path.with_name(f"{path.stem}-{rank}{path.suffix}")


class RankAccount:
    """What one rank has sent under a claim, in a file that is opened, or made.

    The file has a random name, in a file beside it, by which a state knows it again.

    Guarantees (`tests/ddp/test_group_account.py`): rounds that were charged stay charged when
    an older state is loaded; rounds of a state that the file lacks are charged; the budget is never
    exceeded.

    Args:
        path: The file.
        claim: Of each round.
        budget: Where to stop.

    Raises:
        ArgumentError: The claim is not proven, so that there is nothing to add up.
        MismatchError: The file has another budget, or is about something else.
        DataError: The file is damaged, or cannot be written.
    """

    def __init__(self, path: Path, claim: Claim, budget: Budget | None) -> None:
        if not isinstance(claim, ProvenClaim):
            raise ArgumentError(
                f"account_file must not be given where nothing is proven: got a claim that is "
                f"{claim.basis} ({claim})"
            )
        self._claim, exists = claim, path.exists()
        self._ledger = (
            Ledger.open(path, claim.scope)
            if exists
            else Ledger.create(path, claim.scope, budget=budget)
        )
        name = path.with_suffix(".name")
        if not exists or not name.exists():
            replace_file(name, secrets.token_hex(8).encode())
        self.name = name.read_text(encoding="ascii")
        if self._ledger.budget != budget:
            raise MismatchError(
                f"budget must be that of {path}, {self._ledger.budget}, got {budget}"
            )

    def charge(self) -> None:
        """Count one round. Send it only after this has returned.

        Raises:
            BudgetExceeded: It would be too much. Nothing was charged.
            DiffSketchError: The file could not be written.
        """
        self._ledger.charge(self._claim)

    def take_over(self, rounds: int, account: str) -> None:
        """Count the rounds of a state that the file has not.

        It may be younger than the state; a state of another file, or of none, counts in full.

        Args:
            rounds: Of the state.
            account: Name of the file that they were counted in.

        Raises:
            BudgetExceeded: The state has more than the budget allows.
        """
        missing = rounds - (self._ledger.rounds if account == self.name else 0)
        if missing > 0:
            self._ledger.charge(self._claim, missing)

    def epsilon(self, delta: float) -> Epsilon:
        """What all rounds in the file amount to."""
        return self._ledger.epsilon(delta)


class Scaler(Protocol):
    """What is needed of a `torch.amp.GradScaler`."""

    def get_scale(self) -> float:
        """What losses are multiplied by."""


def check_types(method: Method, key: SketchKey, *, world: int) -> None:
    """Raise unless these are what they should be, for so many ranks.

    Raises:
        ArgumentError: One is of another type, or the method is for another cohort.
    """
    expected: tuple[tuple[str, object, type], ...] = (
        ("method", method, Method),
        ("key", key, SketchKey),
    )
    for name, value, kind in expected:
        if not isinstance(value, kind):
            raise ArgumentError(f"{name} must be a {kind.__name__}, got {type(value).__name__}")
    cohort = method.most_messages
    good = cohort is None or cohort == world
    check(good, "cohort", f"be {world}, the number of ranks", cohort)
    if method.round_clip is not None:
        raise ArgumentError(
            f"clip_quantile must be None in a process group, got method={method.name!r} with a "
            "clip that moves: simulations and Flower have it"
        )


def check_claim(
    claim: Claim,
    method: Method,
    *,
    budget: Budget | None,
    trusted_group: bool,
) -> None:
    """Raise unless a group can hold what a round claims.

    Raises:
        ArgumentError: It cannot, or a budget is given where nothing is proven.
    """
    check_release(method, claim)
    trust = claim.scope.trust
    if not (isinstance(claim, NoClaim) or trust is Trust.LOCAL or trusted_group):
        raise ArgumentError(
            f"trusted_group must be True for method={method.name!r}: its claim is under "
            f"{trust} trust, and an all-reduce shows messages and sums to all processes. With "
            "it, the claim is about those who see only what comes of the means"
        )
    if budget is not None and not isinstance(claim, ProvenClaim):
        raise ArgumentError(
            "budget must not be given where nothing is proven: the epsilon of "
            f"method={method.name!r} is {claim.basis} here ({claim})"
        )


class Scales:
    """The scales of a scaler, round by round.

    Where the claim is proven, a gradient that is not finite counts as zeros, and no mean is ever
    NaN. A `GradScaler` would take that for success and raise its scale without end: then all
    gradients overflow, and noise is all that is left. So there the scale must stay what it is.

    Guarantees (`tests/ddp/test_group_options.py`): a scale that follows overflows is refused
    where the claim is proven, and nowhere else.
    """

    def __init__(self, scaler: Scaler | None) -> None:
        self.scaler, self._first = scaler, 1.0 if scaler is None else None

    def check(self, claim: Claim) -> None:
        """Raise if the scaler is made to follow overflows, which it could not see.

        Raises:
            ArgumentError: It is an enabled `GradScaler`, or the like, and the claim proven.
        """
        enabled = getattr(self.scaler, "is_enabled", None)
        if isinstance(claim, ProvenClaim) and callable(enabled) and enabled():
            raise ArgumentError(
                "scaler must not change its scale where the claim is proven: there a gradient that "
                "overflows counts as zeros, so that the scaler never learns of it, got an enabled "
                f"{type(self.scaler).__name__}. Use bfloat16, which needs no scaler, or an object "
                "whose get_scale() always returns the factor by which you multiply the loss"
            )

    def next(self, claim: Claim) -> float:
        """Of a round with this claim.

        Raises:
            ArgumentError: The claim is proven, and it is another than before.
        """
        scale = 1.0 if self.scaler is None else float(self.scaler.get_scale())
        self._first = scale if self._first is None else self._first
        if isinstance(claim, ProvenClaim) and scale != self._first:
            raise ArgumentError(
                "scaler must keep its scale where the claim is proven, got "
                f"{scale:g} after {self._first:g}: an overflow would never be seen"
            )
        return scale


def check_vector(vector: Tensor, dim: int) -> None:
    """Raise unless this is a vector of so many coordinates.

    Raises:
        ArgumentError: It is of another type.
        MismatchError: It has another length.
    """
    if not isinstance(vector, Tensor) or vector.dtype not in (torch.float32, torch.float64):
        kind = vector.dtype if isinstance(vector, Tensor) else type(vector).__name__
        raise ArgumentError(f"vector must be a float32 or float64 tensor, got {kind}")
    if tuple(vector.shape) != (dim,):
        raise MismatchError(f"vector must have the shape ({dim},), got {tuple(vector.shape)}")


_ACCOUNTS = "participation."


@dataclass(frozen=True, eq=False)
class GroupState:
    """What a mean has to keep between rounds.

    Attributes:
        accounts: What the rounds so far have cost.
        round_index: Rounds that were begun.
        memory: That of error feedback: what this rank has not sent yet, scaled.
        sent: Rounds that were sent, by the object that sent them: its random name.
        account: Name of the account file, if there is one.
    """

    accounts: Participation
    round_index: int
    memory: Tensor | None
    sent: Mapping[str, int]
    account: str = ""

    def packed(self, settings: str) -> dict[str, Any]:
        """As tensors, numbers and texts, with what it belongs to."""
        found: dict[str, Any] = {"settings": settings, "round_index": self.round_index}
        found |= {"sent": json.dumps(dict(self.sent)), "account": self.account}
        if self.memory is not None:
            found["memory"] = self.memory.clone()
        accounts = self.accounts.state()
        return found | {f"{_ACCOUNTS}{name}": value for name, value in accounts.items()}

    @classmethod
    def unpacked(
        cls, state: Mapping[str, Any], settings: str, *, dim: int, accounts: Participation
    ) -> GroupState:
        """What `packed` was called on.

        Args:
            state: From `packed`.
            settings: What it has to belong to.
            dim: Coordinates of a vector.
            accounts: Whose budget is to hold.

        Raises:
            ArgumentError: It is no state at all.
            MismatchError: It belongs to other settings, or lacks something.
        """
        if not isinstance(state, Mapping):
            raise ArgumentError(f"state must be a mapping, got {type(state).__name__}")
        if state.get("settings") != settings:
            why = difference(settings, str(state.get("settings")))
            raise MismatchError(f"the state must be of the same mean, but {why}")
        needed = ("round_index", "sent", "account", f"{_ACCOUNTS}rounds", f"{_ACCOUNTS}claim")
        if missing := [name for name in needed if name not in state]:
            raise MismatchError(f"the state must have {', '.join(missing)}")
        memory = state.get("memory")
        if memory is not None and tuple(memory.shape) != (dim,):
            raise MismatchError(f"memory must have the shape {(dim,)}, got {tuple(memory.shape)}")
        paid = {
            name.removeprefix(_ACCOUNTS): value
            for name, value in state.items()
            if name.startswith(_ACCOUNTS)
        }
        kept = None if memory is None else memory.clone()
        try:
            sent = {str(name): int(rounds) for name, rounds in json.loads(state["sent"]).items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise MismatchError(f"sent must be what a state has, got {error}") from error
        restored = accounts.restored(paid)
        return cls(restored, int(state["round_index"]), kept, sent, str(state["account"]))


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
            order on all ranks.
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
        mean = _of_one_round(mean, group, trusted_group=trusted_group)
    elif not isinstance(mean, GroupMean):
        raise ArgumentError(f"mean must be a GroupMean or a Method, got {type(mean).__name__}")
    elif group is not None or trusted_group:
        raise ArgumentError("group and trusted_group must not be given with a GroupMean")
    try:
        vector = _joined(tensors)
    except Exception as error:
        mean.fail(error)
    found = mean.mean(vector, layout=str([tuple(tensor.shape) for tensor in tensors]))
    begin = 0
    with torch.no_grad():
        for tensor in tensors:
            tensor.copy_(found[begin : begin + tensor.numel()].view(tensor.shape))
            begin += tensor.numel()


def _of_one_round(
    method: Method, group: dist.ProcessGroup | None, *, trusted_group: bool
) -> GroupMean:
    """With hashes that no other round has: from bytes of all ranks."""
    if not (dist.is_available() and dist.is_initialized()):
        raise ArgumentError("a process group is needed: call init_process_group before")
    share = secrets.token_bytes(32)
    key = SketchKey(handshake(group, {}, device=device_of(group), share=share))
    # This compares the options of all ranks.
    return GroupMean(method, key=key, group=group, trusted_group=trusted_group)


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    for tensor in tensors:
        if tensor.layout != torch.strided or not tensor.is_floating_point():
            raise ArgumentError(
                "tensors must be dense and of a floating type, got a "
                f"{tensor.dtype} tensor with the layout {tensor.layout}"
            )
    flat = [tensor.detach().reshape(-1).to(torch.float32) for tensor in tensors]
    return torch.cat(flat) if flat else torch.zeros(0)
