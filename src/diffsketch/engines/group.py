"""A method's private mean over a `torch.distributed` process group: one collective a round."""

from __future__ import annotations

import hashlib
import math
import secrets
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from diffsketch.engines.agreement import (
    CELLS_PER_RANK,
    Report,
    Status,
    check_reports,
    control_cells,
    device_of,
    handshake,
    read_reports,
)
from diffsketch.engines.feedback import ErrorFeedback
from diffsketch.engines.identity import difference
from diffsketch.errors import ArgumentError, MismatchError, check
from diffsketch.learning.aggregate import NonFiniteUpdate
from diffsketch.learning.participation import Participation
from diffsketch.methods.base import Method, check_out, is_finite
from diffsketch.methods.mean import SERVER_NOISE
from diffsketch.privacy.accounting.accountant import Budget
from diffsketch.privacy.claim import Claim, Epsilon, NoClaim, ProvenClaim, Trust
from diffsketch.privacy.noise import CohortNoise, Noise, NoiseKey
from diffsketch.sketch.hashing import HashSeed, SketchKey

__all__ = ["GroupMean", "Scaler"]

_PROTOCOL = 1  # what ranks send each other; another number for another meaning
_EVERYONE = np.zeros(1, np.int64)  # all ranks take part in each round: one account
_ACCOUNTS = "participation."


class Scaler(Protocol):
    """What is needed of a `torch.amp.GradScaler`."""

    def get_scale(self) -> float:
        """What losses are multiplied by."""


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
    (`diffsketch.engines.agreement`). All processes make the object, at the same point of their
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
    then fails: its noise must not be used again.

    Guarantees (`tests/engines/test_group.py`): the means of a simulation with the same keys, to
    rounding; ranks that disagree raise together; a state that is loaded continues to the same bits;
    the budget is never exceeded; noise differs by rank.

    Args:
        method: How vectors become messages. Its cohort, if it has one, is the number of ranks.
        key: Of the hashes, shared by all ranks.
        group: The processes; all of them if not given.
        noise: Nothing for real use: each rank takes a key of its own from the operating system. A
            `NoiseKey`, the same on all ranks, for rounds that can be repeated: rank `r` then draws
            the noise of worker `r` of a simulation with this key. Or a source such as
            `SecureNoise`, for methods with whole numbers.
        error_feedback: Keep what messages cannot carry, and send it later (`ErrorFeedback`).
        immediate: With error feedback, the share of a vector that is sent at once; by a rule if
            not given.
        budget: Where to stop. Only proven claims can be within one.
        trusted_group: Whether all processes are trusted not to look at what they sum.
        scaler: Of mixed precision: vectors are divided by its scale before they are encoded and
            means multiplied by it, so that clips mean what they say.

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
        noise: NoiseKey | Noise | None = None,
        error_feedback: bool = False,
        immediate: float | None = None,
        budget: Budget | None = None,
        trusted_group: bool = False,
        scaler: Scaler | None = None,
    ) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise ArgumentError("a process group is needed: call init_process_group before")
        self.method, self.group, self.trusted_group = method, group, trusted_group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self._key, self._scaler, self._round_index = key, scaler, 0
        self._noise = NoiseKey(secrets.token_bytes(32)) if noise is None else noise
        self._feedback: ErrorFeedback | None = None
        failure: Exception | None = None
        settings: dict[str, str] = {}
        try:
            self._check_types()
            planned = self._checked_claim(budget)
            if error_feedback:
                self._feedback = ErrorFeedback(method, planned, immediate=immediate)
            self._accounts = Participation(1, budget, planned)
            settings = self._compared(noise, budget)
        except Exception as error:  # the others must learn of it, or they would wait
            failure = error
        share = secrets.token_bytes(32)
        place = device_of(self.group)
        common = handshake(group, settings, device=place, failure=failure, share=share)
        self._server_key = noise if isinstance(noise, NoiseKey) else NoiseKey(common)

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

        Cells are summed as float32 or int64, whatever the wire format of the method packs.
        """
        form = self.method.total_format
        cells = math.prod(form.shape) + CELLS_PER_RANK * self.world
        return cells * (4 if form.cells == "float32" else 8)

    def epsilon(self, delta: float) -> Epsilon:
        """What the rounds have cost each rank, with the basis of that number."""
        return self._accounts.epsilon(delta)

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
            self._join_failing(error, layout)
            raise
        # Before anything is sent: whatever happens then, this noise is used and this round paid.
        self._round_index, self._accounts = index + 1, prepared.accounts
        own = Report.of(index, self._settings_of(seed, layout, prepared.scale), prepared.status)
        total, reports = self._summed(prepared.message, own)
        check_reports(reports, own, rank=self.rank)
        finite = all(report and report.status is Status.FINE for report in reports)
        total = self._published(total, index)
        if not finite or (total.is_floating_point() and not is_finite(total)):
            target = torch.empty_like(vector, dtype=torch.float32) if out is None else out
            return target.fill_(math.nan)
        if self._feedback is not None and prepared.is_finite:
            self._feedback.keep(prepared.vector, prepared.mixed, prepared.message, seed)
        mean = self.method.decode(total, seed, count=self.world, out=out)
        return mean if prepared.scale == 1 else mean.mul_(prepared.scale)

    def fail(self, error: Exception, *, layout: str = "") -> NoReturn:
        """Take part in a round without a vector, so that all ranks raise, and raise the error."""
        self._join_failing(error, layout)
        raise error

    def state_dict(self) -> dict[str, Any]:
        """Round, budget and error feedback, as tensors, numbers and texts.

        With error feedback every rank has to keep its own. The keys are not in it.
        """
        found: dict[str, Any] = {"settings": self._settings(), "round_index": self._round_index}
        if self._feedback is not None and self._feedback.error is not None:
            found["error"] = self._feedback.error.clone()
        accounts = self._accounts.state()
        return found | {f"{_ACCOUNTS}{name}": value for name, value in accounts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called. Ranks that load different rounds raise later.

        Raises:
            MismatchError: The state belongs to other settings, or to another rank's errors.
        """
        own, other = self._settings(), state.get("settings")
        if own != other:
            why = difference(own, str(other))
            raise MismatchError(f"the state must be of the same mean, but {why}")
        error, shape = state.get("error"), (self.method.dim,)
        if error is not None and tuple(error.shape) != shape:
            raise MismatchError(f"error must have the shape {shape}, got {tuple(error.shape)}")
        accounts = {
            name.removeprefix(_ACCOUNTS): value
            for name, value in state.items()
            if name.startswith(_ACCOUNTS)
        }
        self._accounts = self._accounts.restored(accounts)
        self._round_index = int(state["round_index"])
        if self._feedback is not None:
            self._feedback.error = None if error is None else error.clone()

    def _prepare(self, vector: Tensor, seed: HashSeed, out: Tensor | None) -> _Prepared:
        """All that can fail at this rank alone."""
        self._check_vector(vector)
        if out is not None:
            check_out(out, self.method.dim, device=vector.device)
        claim = self.method.claim_for(self.world, seed)
        accounts = self._accounts.after(claim, _EVERYONE)
        scale = 1.0 if self._scaler is None else float(self._scaler.get_scale())
        if scale != 1:
            vector = vector / scale
        mixed = vector if self._feedback is None else self._feedback.mixed(vector)
        status, good = Status.FINE, True
        try:
            message = self._encoded(mixed, seed)
        except ArgumentError:
            # Either the vector is not finite, or this fails for zeros too and is another error.
            message = self._encoded(torch.zeros_like(vector, dtype=torch.float32), seed)
            good, proven = False, isinstance(claim, ProvenClaim)
            self._warn(proven=proven)
            if not proven:
                status, message = Status.NOT_FINITE, torch.zeros_like(message)
        return _Prepared(vector, mixed, message, status, good, accounts, scale)

    def _encoded(self, vector: Tensor, seed: HashSeed) -> Tensor:
        noise = self._noise
        if isinstance(noise, NoiseKey):
            noise = CohortNoise(noise, [self.rank], round_index=self._round_index)
        return self.method.encode(vector, seed, noise).messages

    def _published(self, total: Tensor, round_index: int) -> Tensor:
        server = CohortNoise(self._server_key, [SERVER_NOISE], round_index=round_index)
        return self.method.publish(total.reshape(self.method.total_format.shape), server)

    def _summed(self, message: Tensor, own: Report) -> tuple[Tensor, list[Report | None]]:
        """The sum of all messages, and what all ranks say: one collective."""
        flat = message.reshape(-1)
        control = control_cells(own, rank=self.rank, world=self.world, like=flat)
        payload = torch.cat([flat, control])
        dist.all_reduce(payload, group=self.group)
        cells = flat.numel()
        return payload[:cells], read_reports(payload[cells:])

    def _join_failing(self, error: Exception, layout: str) -> None:
        """Take part with zeros, so that nobody waits. If others did send, the round is used up."""
        index, form = self._round_index, self.method.total_format
        kind = torch.float32 if form.cells == "float32" else torch.int64
        zeros = torch.zeros(form.shape, dtype=kind, device=device_of(self.group))
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

    def _compared(self, noise: NoiseKey | Noise | None, budget: Budget | None) -> dict[str, str]:
        """What has to be the same on all ranks from the beginning."""
        feedback = self._feedback
        source = "a key of its own" if noise is None else type(noise).__name__
        if isinstance(noise, NoiseKey):
            check_value = hashlib.blake2b(noise.secret, digest_size=8, person=b"ds-check-noise")
            source = f"the key with the check value {check_value.hexdigest()}"
        return {
            "protocol": str(_PROTOCOL),
            "method": str(self.method),
            "key": f"one with the fingerprint {self._key.seed(0).fingerprint.hex()}",
            "noise": source,
            "error_feedback": "False" if feedback is None else f"immediate={feedback.immediate!r}",
            "budget": str(budget),
            "trusted_group": str(self.trusted_group),
            "scaler": "None" if self._scaler is None else "one",
        }

    def _checked_claim(self, budget: Budget | None) -> Claim:
        """Of a round as planned, if it can be held here."""
        claim = self.method.claim_for(self.world, self._key.seed(0))
        trust = claim.scope.trust
        if not (isinstance(claim, NoClaim) or trust is Trust.LOCAL or self.trusted_group):
            raise ArgumentError(
                f"trusted_group must be True for method={self.method.name!r}: its claim is under "
                f"{trust} trust, and an all-reduce shows messages and sums to all processes. With "
                "it, the claim is about those who see only what comes of the means"
            )
        if trust is Trust.CENTRAL and not isinstance(self._noise, NoiseKey):
            raise ArgumentError("noise must be a key, or not given, for central trust")
        if budget is not None and not isinstance(claim, ProvenClaim):
            raise ArgumentError(
                "budget must not be given where nothing is proven: the epsilon of "
                f"method={self.method.name!r} is {claim.basis} here ({claim})"
            )
        return claim

    def _check_types(self) -> None:
        expected: tuple[tuple[str, object, tuple[type, ...]], ...] = (
            ("method", self.method, (Method,)),
            ("key", self._key, (SketchKey,)),
            ("noise", self._noise, (NoiseKey, Noise)),
        )
        for name, value, kinds in expected:
            if not isinstance(value, kinds):
                wanted = " or a ".join(kind.__name__ for kind in kinds)
                raise ArgumentError(f"{name} must be a {wanted}, got {type(value).__name__}")
        cohort = getattr(self.method, "cohort", self.world)
        check(cohort == self.world, "cohort", f"be {self.world}, the number of ranks", cohort)

    def _check_vector(self, vector: Tensor) -> None:
        if not isinstance(vector, Tensor) or vector.dtype not in (torch.float32, torch.float64):
            kind = vector.dtype if isinstance(vector, Tensor) else type(vector).__name__
            raise ArgumentError(f"vector must be a float32 or float64 tensor, got {kind}")
        if tuple(vector.shape) != (self.method.dim,):
            raise MismatchError(
                f"vector must have the shape ({self.method.dim},), got {tuple(vector.shape)}"
            )

    def _warn(self, *, proven: bool) -> None:
        fate = "counts as zeros, with its noise" if proven else "makes the mean NaN on all ranks"
        warnings.warn(
            f"round {self._round_index}: NaN or infinite values in the vector of rank "
            f"{self.rank}, which {fate}",
            NonFiniteUpdate,
            stacklevel=4,
        )
