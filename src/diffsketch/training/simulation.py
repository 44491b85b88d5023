"""Simulation of a run with all devices in one process: the engine of `diffsketch run`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from diffsketch.errors import (
    ArgumentError,
    DiffSketchError,
    MismatchError,
    check,
    check_whole,
    difference,
)
from diffsketch.methods.base import Method
from diffsketch.methods.gate import NonFiniteUpdate, check_budget, release
from diffsketch.methods.plain import RoundedTables, SaturationWatch
from diffsketch.privacy.accounting.account import Budget, BudgetExceeded
from diffsketch.privacy.claim import Claim, Epsilon, NoClaim, ProvenClaim, SimulatedClaim
from diffsketch.privacy.simulated_noise import SERVER_NOISE, CohortNoise, Noise, NoiseKey
from diffsketch.sketch.hashing import HashSeed, SketchKey
from diffsketch.training.clients import ACCOUNTS, EVERYONE, Participation
from diffsketch.training.identity import run_identity, run_noise_key, tensor_digest
from diffsketch.training.local import LocalTrainer, TrainerKind, trainer_for
from diffsketch.training.local.base import NotAtOnce
from diffsketch.training.models import load, working_copy
from diffsketch.training.rounds import (
    CLIP_BYTES,
    Algorithm,
    ModelState,
    Published,
    ServerOptimizer,
    ServerRule,
    corrected,
    mask_bytes,
    relative_drift,
)
from diffsketch.training.sampling import AllDevices, PoissonDevices, Sampler, UniformSampler
from diffsketch.training.tasks import Examples, Task, check_task

Hashes: TypeAlias = Literal["fresh", "fixed"]

PART_CELLS = 1 << 23  # numbers of the vectors that are encoded at a time: 32 MiB
_PLAIN = ("round_index", "bytes_up", "bytes_down", "ended")  # of `RunState`, as they are in a state


class Diverged(DiffSketchError):  # noqa: N818 - it says what happened
    """A round gave nothing finite: training diverges. The model is that before the round."""


class DivergedRound(Diverged):
    """The messages of a round were sent, and what they give is not finite. It is paid for."""

    def __init__(self, message: str, result: RoundResult) -> None:
        super().__init__(message)
        self.result = result  # the round's, but for a new model


@dataclass(eq=False)
class Aggregate:
    """The sum of a cohort's messages."""

    total: Tensor | None = None  # before the server adds anything; None if nobody takes part
    count: int = 0  # messages in it
    broken: tuple[int, ...] = ()  # devices whose vectors were not finite, ascending
    vectors: Tensor | None = None  # of all workers, if they were to be kept
    noised: Tensor | None = None  # as in `Encoded`, of all messages
    saturated: int | None = None  # cells of all messages, where they have few bits


@dataclass(frozen=True, eq=False)
class RoundResult:
    """Outcome of a round."""

    round_index: int
    cohort: Tensor  # indices of the devices that were drawn
    published: Published  # with `Simulation.advance`, all that a device needs
    bytes_up: int  # by the devices, headers included
    bytes_down: int  # to the devices, headers included
    claim: Claim
    # Workers whose vectors were not finite: left out of the mean, or counted as zeros with their
    # noise if the claim is proven.
    left_out: tuple[str, ...]
    summed: Aggregate
    drift: float | None  # how far apart the workers' models are, if they may be
    downloads: int  # devices that received something: as many vectors, if nothing were compressed

    @property
    def noised(self) -> float | None:
        """The share of workers that had to add noise, for methods that validate by Theorem 1."""
        noised = self.summed.noised
        return None if noised is None else float(noised.double().mean())


@dataclass(frozen=True, eq=False)
class RunState:
    """All that a round changes. Replaced as a whole, so that a round happens or does not."""

    round_index: int  # rounds that changed the model
    model: ModelState
    average: Tensor | None  # exponential, of the weights, before its bias is corrected
    participation: Participation
    synced: npt.NDArray[np.int64]  # rounds that each device's model contains
    bytes_up: int = 0
    bytes_down: int = 0
    # Why there can be no further round, if so. The accounts have the round of which nothing came,
    # and the model has not.
    ended: str = ""
    clip: float | None = None  # the next round's, for methods whose clip moves


class Simulation:
    """A run of distributed SGD or FedAvg, round by round.

    Everything random follows from the arguments and the round (and the device), so a run is
    determined by its arguments: `state` is small, and `load_state` continues to the same bits.

    Runs with one seed have the same devices, batches and hashes, whatever their method, and the
    same noise only if all else that changes what is released is the same too, the data included
    (`identity`): else the difference of two runs would show what the noise of each hides. The
    trainer, and where it computes, are not among it: they change the rounding.

    Guarantees: without compression a round is the textbook's (`tests/training/test_rounds.py`); a
    round that raises, or is interrupted, has not changed anything, unless its messages were sent
    and it diverged, when it is paid for and the last one
    (`tests/training/test_simulation_failures.py`); the budget stops a run before the round that
    would exceed it, and all bytes are counted (`tests/training/test_simulation.py`); a state that
    is loaded continues bit-identically, and different runs have different noise
    (`tests/training/test_simulation_state.py`).

    Args:
        task: Devices, test set and model. Its examples say where to compute: CPU or CUDA.
        method: How vectors become messages.
        trainer: Of the task's model: a kind of `trainer_for`, or one made with the task's loss.
            With `auto`, a model that cannot be trained at once is trained in a loop.
        algorithm: `DistributedSGD(...)` or `FedAvg(...)`.
        rounds: How many are planned; schedules depend on it.
        seed: Fixes weights, batches, devices and hashes; and, with all other settings, the noise.
        sampler: Who takes part: so many devices, drawn uniformly; everyone if not given.
        server: What is done with the mean.
        hashes: `fresh` in each round, or `fixed` to those of the first.
        importance: `p_k` of each device, if devices count differently: the vector of device `k` is
            multiplied by `devices * p_k / sum(p)` before it is encoded, so that sums stay sums.
        budget: Where to stop. Only proven claims can be within one.
        noise_key: The secret of the noise, if it is not to follow from the other arguments. For
            simulation. One key is for one release: never give it to runs that differ in anything.

    Raises:
        ArgumentError: Options do not go together.
        MismatchError: Task, trainer, sampler and method are of different sizes.
    """

    def __init__(
        self,
        task: Task,
        *,
        method: Method,
        algorithm: Algorithm,
        rounds: int,
        trainer: LocalTrainer | TrainerKind = "auto",
        seed: int = 0,
        sampler: Sampler | int | None = None,
        server: ServerRule | None = None,
        hashes: Hashes = "fresh",
        importance: Tensor | None = None,
        budget: Budget | None = None,
        noise_key: NoiseKey | None = None,
    ) -> None:
        check_whole("rounds", rounds, least=1)
        check_whole("seed", seed, least=0, most=2**256 - 1)
        for name, value, kind, wanted in (
            ("task", task, Task, "a Task"),
            ("method", method, Method, "a Method, such as build_method gives"),
            ("algorithm", algorithm, Algorithm, "DistributedSGD(...) or FedAvg(...)"),
            ("budget", budget, Budget | None, "Budget(epsilon, delta)"),
            ("server", server, ServerRule | None, "a ServerOptimizer(...) or FetchSGD(...)"),
        ):
            check(isinstance(value, kind), name, f"be {wanted}", value)
        check(hashes in ("fresh", "fixed"), "hashes", "be fresh or fixed", hashes)
        self.task, self.method, self.algorithm = task, method, algorithm
        self.rounds, self.seed, self.hashes = rounds, seed, hashes
        first = task.model(seed)
        check(isinstance(first, nn.Module), "model", "make a module", first)
        self._may_loop = trainer == "auto"  # where the model cannot be trained at once
        if not isinstance(trainer, LocalTrainer):
            trainer = trainer_for(first, kind=trainer, loss=task.loss, keep_local=task.keep_local)
        good = trainer.loss is task.loss
        check(good, "trainer", "have the loss of the task", trainer.loss)
        self.trainer = trainer
        if not isinstance(sampler, Sampler):
            members, count = len(task.devices), sampler
            if count is not None:
                check_whole("sampler", count, least=1, most=members)
            sampler = AllDevices(members) if not count else UniformSampler(members, count, seed)
        self.sampler = sampler
        self.server = ServerOptimizer() if server is None else server
        self._given_noise_key = noise_key
        self._key = SketchKey.from_integer(seed)
        self._fixed_seed = self._key.seed(0)
        self._saturation = SaturationWatch()
        self._amplified: tuple[ProvenClaim, Claim] | None = None  # the last: they repeat
        self._scales = _device_scales(importance, len(task.devices))
        self._check_options()
        planned = self._claim_of(max(1, round(self.sampler.expected)), self._fixed_seed)
        check_budget(method, planned, budget)
        target = task.devices.examples.labels.device
        self._test = Examples(task.test.inputs.to(target), task.test.labels.to(target))
        self._message_bytes, self._round_bytes = method.wire_bytes, self.server.round_bytes(method)
        clip_bytes = CLIP_BYTES if method.round_clip else 0
        self._model_bytes = self.server.model_bytes(method.dim) + clip_bytes
        self._state = self._first_state(first, target, budget, planned)

    def _check_options(self) -> None:
        sampler, method, devices = self.sampler, self.method, len(self.task.devices)
        if sampler.members != devices:
            raise MismatchError(
                f"the sampler must draw from the task's {devices} devices, got {sampler.members}"
            )
        most = method.most_messages
        if most is not None and sampler.fixed_size and sampler.cohort > most:
            raise ArgumentError(
                f"sampler must draw at most the cohort={most} that method={method.name!r} was made "
                f"for, got sampler={sampler}, which draws {sampler.cohort}"
            )
        rounded = isinstance(method, RoundedTables) and method.grid is not None
        if not sampler.fixed_size and (rounded or method.message_format.cells == "unsigned"):
            raise ArgumentError(
                "poisson sampling is not for messages of unsigned numbers or cells of few bits: "
                "they are decoded by how many messages there are, which is secret, got "
                f"method={method.name!r}"
            )
        fresh = self.hashes == "fresh"
        self.server.check_options(method, step=self.algorithm.step, fresh=fresh)
        if self.algorithm.correction != "off":
            everyone = isinstance(sampler, AllDevices)
            check(everyone, "sampler", "be of all devices with correction", sampler)
            plain = isinstance(self.server, ServerOptimizer)
            check(plain, "server", "be a ServerOptimizer with correction", self.server)

    def _first_state(
        self, first: nn.Module, target: torch.device, budget: Budget | None, planned: Claim
    ) -> RunState:
        check_task(self.task, first)
        parameters = [one.detach().reshape(-1) for one in first.parameters()]
        weights = torch.cat(parameters).to(target, torch.float32)
        if not len(weights) == self.method.dim == self.trainer.dim:
            raise MismatchError(
                f"model, method and trainer must have the same number of weights, got "
                f"{len(weights)}, {self.method.dim} and {self.trainer.dim}"
            )
        devices = len(self.task.devices)
        if self.algorithm.correction == "drift":
            weights = weights.repeat(devices, 1)
        return RunState(
            round_index=0,
            model=self.server.start(weights, self.method),
            average=torch.zeros_like(weights) if self.server.averaging else None,
            participation=Participation(devices if self.sampler.fixed_size else 1, budget, planned),
            synced=np.zeros(devices, np.int64),
            clip=self.method.round_clip,
        )

    @cached_property
    def identity(self) -> str:
        """Text of all that a state belongs to (`diffsketch.training.identity`)."""
        planned = f", rounds={self.rounds}" if self.server.schedule in ("linear", "cosine") else ""
        scales = "" if self._scales is None else f", importance={tensor_digest(self._scales)}"
        settings = (
            f"method={self.method}, algorithm={self.algorithm}, sampler={self.sampler}, "
            f"server={self.server}, hashes={self.hashes!r}{planned}{scales}"
        )
        return run_identity(self.task, self.seed, settings, noise_key=self._given_noise_key)

    @cached_property
    def noise_key(self) -> NoiseKey:
        """Key of the noise as given; else one that is another if anything is different."""
        if self._given_noise_key is not None:
            return self._given_noise_key
        return run_noise_key(self.task, self.seed, self.identity)

    @property
    def round_index(self) -> int:
        """Rounds that were done, without a last one that diverged: the index of the next one."""
        return self._state.round_index

    @property
    def model(self) -> ModelState:
        """Weights and what the server's rule remembers."""
        return self._state.model

    @property
    def weights(self) -> Tensor:
        """Weights of the model, `(dim,)`; the mean of the workers' models where they drift."""
        weights = self._state.model.weights
        return weights if weights.dim() == 1 else weights.mean(dim=0)

    @property
    def averaged_weights(self) -> Tensor:
        """Weights that are evaluated: the exponential average, if there is one."""
        average, share = self._state.average, self.server.averaging
        if average is None or self.round_index == 0:
            return self.weights
        average = average if average.dim() == 1 else average.mean(dim=0)
        return average / (1 - share**self.round_index)

    @property
    def drift(self) -> float | None:
        """Distance between the workers' models (`relative_drift`), where they may drift."""
        return relative_drift(self._state.model.weights)

    @property
    def clip(self) -> float | None:
        """The next round's clip, for methods whose clip moves; else None."""
        return self._state.clip

    @property
    def bytes_up(self) -> int:
        """Sent by all devices so far, headers included."""
        return self._state.bytes_up

    @property
    def bytes_down(self) -> int:
        """Sent to all devices so far, headers included."""
        return self._state.bytes_down

    @property
    def participation(self) -> Participation:
        """The clients' accounts."""
        return self._state.participation

    @property
    def claim(self) -> Claim:
        """The weakest claim of the rounds so far (`Participation.claim`), or what is planned."""
        claim = self._state.participation.claim
        assert claim is not None  # noqa: S101 (it has what is planned)
        return claim

    def epsilon(self, delta: float) -> Epsilon:
        """Cost of the run for the client who paid most, with the basis of that number.

        If that is `proven`, it is about the same run with exact noise, and says `simulated`.
        """
        return self._state.participation.epsilon(delta)

    def evaluate(self) -> tuple[float, float]:
        """Mean loss and accuracy on the test set; of drifting models, on average over them.

        Accuracy is NaN where labels are no classes.
        """
        weights = self._state.model.weights
        if weights.dim() == 1 or self._state.average is not None:
            return self.trainer.evaluate(self.averaged_weights, self._test)
        each = [self.trainer.evaluate(own, self._test) for own in weights]
        return sum(one[0] for one in each) / len(each), sum(one[1] for one in each) / len(each)

    def trained(self) -> nn.Module:
        """The task's model with the weights that are evaluated, in its own type and in eval mode.

        With `keep_local` it normalises every batch by its own statistics all the same: predict for
        batches of several examples.
        """
        model = self.task.model(self.seed)
        load(model, self.averaged_weights.cpu())
        if self.task.keep_local:
            model = working_copy(model, keep_local=True)
        return model.eval()

    def run(self) -> str:
        """Do the rounds that are left; why it ended before the last one, if so, or else "".

        It ends early where one more round would exceed the budget.

        Raises:
            ArgumentError: Not even one round is within the budget; or see `step`.
        """
        try:
            while self.round_index < self.rounds:
                self.step()
        except BudgetExceeded as error:
            if self.round_index == 0:
                raise ArgumentError(f"budget must allow one round at least: {error}") from error
            return str(error)
        return ""

    def step(self) -> RoundResult:
        """Do the next round.

        If this raises, or is interrupted, everything is as before the round; but for
        `DivergedRound`. Then messages were sent: the model is as before, but bytes and epsilon
        have the round, and it was the last one.

        Raises:
            BudgetExceeded: The round would cost too much. It was not run.
            DivergedRound: The new weights are not finite.
            Diverged: No worker's vector is finite, where nothing is proven; or a round diverged
                before.
            ArgumentError: All rounds are done, or the sampler draws devices more than once.
        """
        if self._state.ended:
            raise Diverged(self._state.ended)
        state, result = self._round(self._state)
        self._state = state
        if state.ended:
            raise DivergedRound(state.ended, result)
        return result

    def _round(self, state: RunState) -> tuple[RunState, RoundResult]:
        index = state.round_index
        if index >= self.rounds:
            check(False, "round_index", f"be below rounds={self.rounds}", index)
        method = self.method if state.clip is None else self.method.at_clip(state.clip)
        seed = self._key.seed(index) if self.hashes == "fresh" else self._fixed_seed
        cohort = self.sampler.draw(index)
        members = cohort.numpy()
        if not (members[1:] > members[:-1]).all():
            # Whoever is drawn twice would add the same noise twice.
            raise ArgumentError(
                f"the sampler must draw devices once each, in ascending order, got {members}"
            )
        claim = self._claim_of(len(members), seed)
        payers = members if self.sampler.fixed_size else EVERYONE
        participation = state.participation.after(claim, payers)  # or it stops here
        proven = isinstance(claim, ProvenClaim)
        agreed = 0
        bare = index == 0 and isinstance(claim, NoClaim)
        if bare and isinstance(method, RoundedTables) and method.wants_limit:
            # As in process groups: workers tell the sizes of their vectors, and hear one limit.
            some = cohort[: max(1, PART_CELLS // method.dim)]
            method = method.at_limit_of(self._vectors(state.model.weights, some, index))
            state = replace(state, clip=method.round_clip)
            agreed = CLIP_BYTES * len(members)

        summed = self._sum(method, state.model.weights, cohort, seed, index, claim=claim)
        left_out: tuple[str, ...] = ()
        if summed.broken:
            left_out = tuple(self.task.devices.names[device] for device in summed.broken)
            if not proven:
                claim = self._claim_of(summed.count, seed)
                participation = state.participation.after(claim, payers)
            fate = "count as zeros, with their noise" if proven else "are left out of the mean"
            warnings.warn(
                f"round {index}: NaN or infinite values in the vectors of "
                f"{', '.join(map(repr, left_out))}, which {fate}",
                NonFiniteUpdate,
                stacklevel=3,
            )

        self._watch_saturation(method, summed, index)
        total = summed.total
        if total is None:
            form = method.total_format
            kind = torch.float32 if form.cells == "float32" else torch.int64
            total = torch.zeros(form.shape, dtype=kind, device=state.model.weights.device)
        total = method.publish(
            total, CohortNoise(self.noise_key, [SERVER_NOISE], round_index=index)
        )
        count: int | float = summed.count
        if not self.sampler.fixed_size:  # the number drawn is secret
            count = self.sampler.expected * (count / len(members) if len(members) else 1.0)
        published = Published(total, count, seed, index, state.clip)

        up, down, downloads, synced = self._traffic(state.synced, members, index, summed.count)
        up, down = up + agreed, down + agreed
        model, ended = state.model, ""
        try:
            model = self._next_model(state.model, published, summed.vectors)
        except Diverged as error:  # what was sent is known, whatever became of it
            ended = str(error)
        result = RoundResult(
            index, cohort, published, up, down,
            claim, left_out, summed,
            relative_drift(model.weights) if model.weights.dim() > 1 else None, downloads,
        )  # fmt: skip
        up, down = state.bytes_up + up, state.bytes_down + down
        if ended:
            paid = replace(state, participation=participation, synced=synced)
            return replace(paid, bytes_up=up, bytes_down=down, ended=ended), result
        average = state.average
        if average is not None:
            share = self.server.averaging
            average = torch.add(average * share, model.weights, alpha=1 - share)
        clip = state.clip
        if clip is not None:
            clip = method.after(published.total, count=published.count).round_clip
        after = RunState(index + 1, model, average, participation, synced, up, down, clip=clip)
        return after, result

    def _watch_saturation(self, method: Method, summed: Aggregate, index: int) -> None:
        """Warn once where most cells have saturated in several rounds in a row."""
        cells = summed.count * method.message_format.cell_count
        limit = method.round_clip
        self._saturation.see(summed.saturated, cells, limit=limit, index=index, whose="")

    def _vectors(self, weights: Tensor, part: Tensor, index: int) -> Tensor:
        """Compute the vectors of some devices in a round."""
        try:
            vectors = self.algorithm.vectors(
                weights, part, trainer=self.trainer, devices=self.task.devices,
                seed=self.seed, round_index=index,
            )  # fmt: skip
        except NotAtOnce:
            if not self._may_loop:
                raise
            self._may_loop, task = False, self.task
            self.trainer = trainer_for(
                task.model(self.seed), kind="loop", loss=task.loss, keep_local=task.keep_local
            )
            return self._vectors(weights, part, index)
        if self._scales is not None:
            vectors = vectors * self._scales[part].to(vectors)[:, None]
        return vectors

    def _claim_of(self, present: int, seed: HashSeed) -> Claim:
        """Claim of a round with `present` workers; on a secret sample, with any number of them.

        It says that its noise is simulated, wherever it goes from here. A method's claim is
        amplified where devices are drawn by Poisson sampling, which is for central trust only, and
        void where error correction carries gradients around the messages.
        """
        sampler = self.sampler
        if isinstance(sampler, PoissonDevices):
            present = max(1, round(sampler.expected))
        claim = self.method.claim_for(present, seed)
        if self.algorithm.correction != "off":
            return NoClaim(
                claim.scope, "the mask of the error correction carries the raw gradients"
            )
        if not isinstance(sampler, PoissonDevices) or isinstance(claim, NoClaim):
            return SimulatedClaim.of(claim)
        if not isinstance(claim, ProvenClaim):
            raise ArgumentError(
                "poisson sampling is for proven claims under central trust, or for none, got "
                f"method={self.method.name!r}, whose claim is {claim.basis}"
            )
        known = self._amplified
        if known is None or known[0] != claim:
            amplified = SimulatedClaim.of(sampler.lottery.amplified(claim))
            self._amplified = known = claim, amplified
        return known[1]

    def _worker_noise(self, workers: Sequence[int], index: int, rows: Sequence[int]) -> Noise:
        """Noise of some rows of a part of the cohort, whose workers have these numbers."""
        chosen = workers if len(rows) == len(workers) else [workers[row] for row in rows]
        return CohortNoise(self.noise_key, chosen, round_index=index)

    def _sum(
        self,
        method: Method,
        weights: Tensor,
        cohort: Tensor,
        seed: HashSeed,
        index: int,
        *,
        claim: Claim,
    ) -> Aggregate:
        """Compute the vectors of a cohort, encode them in parts, and add the messages up."""
        summed, noised = Aggregate(), []
        keep = self.algorithm.correction != "off"
        size = len(cohort) if keep else max(1, PART_CELLS // method.dim)

        for part in torch.split(cohort, size) if len(cohort) else ():
            vectors = self._vectors(weights, part, index)
            if len(vectors) != len(part):
                raise MismatchError(
                    f"{len(part)} workers must have as many vectors, got {len(vectors)}"
                )
            released = release(
                vectors, method, seed, claim,
                charge=None,  # `_round` has charged the whole cohort
                noise_of=partial(self._worker_noise, part.tolist(), index),
            )  # fmt: skip
            encoded = released.encoded
            summed.broken += tuple(part[~released.kept].tolist())
            if encoded is None:
                continue
            # A sum is a tensor of its own: a trainer may use the memory of its vectors again.
            added = encoded.messages.sum(dim=0)
            summed.total = added if summed.total is None else summed.total + added
            summed.count += len(encoded.messages)
            summed.vectors = vectors if keep else None
            if encoded.noised is not None:
                noised.append(encoded.noised)
            if encoded.saturated is not None:
                summed.saturated = (summed.saturated or 0) + int(encoded.saturated.sum())
        unproven = not isinstance(claim, ProvenClaim)
        if len(cohort) and len(summed.broken) == len(cohort) and unproven:
            raise Diverged(
                f"all {len(cohort)} workers of round {index} have vectors with NaN or infinite "
                "values: training diverges, or the data is broken"
            )
        summed.noised = torch.cat(noised) if noised else None
        return summed

    def _next_model(
        self, model: ModelState, published: Published, vectors: Tensor | None
    ) -> ModelState:
        correct, correction = None, self.algorithm.correction
        if correction != "off" and vectors is not None:
            correct = partial(corrected, vectors=vectors, correction=correction)
        what = "the new weights"
        try:
            after = self._advance(model, published, correct)
            if math.isfinite(after.weights.sum()) or bool(torch.isfinite(after.weights).all()):
                return after
        except ArgumentError:
            total = published.total
            if not total.is_floating_point() or bool(torch.isfinite(total).all()):
                raise
            what = "the sum of the messages"
        raise Diverged(
            f"round {published.round_index}: {what} would not be finite: training diverges; the "
            "model before this round is kept, and what was sent is counted. A smaller "
            "learning_rate, server_step or update_clip may help"
        )

    def _advance(self, model: ModelState, published: Published, correct: Any) -> ModelState:
        step = self.algorithm.step * self.server.factor(published.round_index, self.rounds)
        method = self.method if published.clip is None else self.method.at_clip(published.clip)
        return self.server.advance(model, published, method=method, step=step, correct=correct)

    def _traffic(
        self,
        synced: npt.NDArray[np.int64],
        cohort: npt.NDArray[np.int64],
        index: int,
        present: int,
    ) -> tuple[int, int, int, npt.NDArray[np.int64]]:
        """Bytes up and down, devices that download, and rounds that their models contain then.

        Workers of distributed SGD get each round's result. Devices of FedAvg catch up when they
        are drawn: with the results that they missed, or with the model where that is smaller.
        """
        own_mask, all_masks = 0, 0
        if self.algorithm.correction == "shared":
            own_mask, all_masks = mask_bytes(self.method.dim, len(cohort))
        up = present * (self._message_bytes + own_mask)
        if self.algorithm.local_epochs is None:
            return up, len(synced) * (self._round_bytes + all_masks), len(synced), synced
        missed = index - synced[cohort]
        after = synced.copy()
        after[cohort] = index
        down = int(np.minimum(missed * self._round_bytes, self._model_bytes).sum())
        return up, down, int(np.count_nonzero(missed)), after

    def advance(self, model: ModelState, published: Published) -> ModelState:
        """The model after a round, from the model before and what was published.

        A device that catches up with a round that it missed does this. (With FetchSGD a device is
        sent the extracted coordinates; this gives the same.)

        Raises:
            ArgumentError: With error correction the masks would be needed as well.
        """
        plain = self.algorithm.correction == "off"
        check(plain, "correction", "be off for a model to follow", self.algorithm.correction)
        return self._advance(model, published, None)

    def state(self) -> dict[str, Any]:
        """All that has to be kept to continue: tensors, numbers and texts."""
        state = self._state
        found: dict[str, Any] = {"settings": self.identity}
        found |= {name: getattr(state, name) for name in _PLAIN}
        found["weights"] = state.model.weights.clone()
        found["synced"] = torch.from_numpy(state.synced.copy())
        found |= {f"memory.{name}": value.clone() for name, value in state.model.memory.items()}
        if state.average is not None:
            found["average"] = state.average.clone()
        if state.clip is not None:
            found["clip"] = state.clip
        return found | state.participation.state(ACCOUNTS)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` gave, in a simulation with the same arguments.

        Raises:
            MismatchError: It is the state of a simulation with other settings or data, or not all
                of it.
        """
        if state.get("settings") != self.identity:
            why = difference(self.identity, str(state.get("settings")))
            raise MismatchError(f"the state must be that of the same simulation, but {why}")
        paid = f"{ACCOUNTS}paid."  # by claims that may not be made here yet
        own = {name: value for name, value in self.state().items() if not name.startswith(paid)}
        if missing := sorted(own.keys() - state.keys()):
            raise MismatchError(f"the state must have {', '.join(missing)}")
        for name, value in own.items():
            if isinstance(value, Tensor) and state[name].shape != value.shape:
                found, wanted = tuple(state[name].shape), tuple(value.shape)
                raise MismatchError(f"{name} must have the shape {wanted}, got {found}")
        before = self._state
        weights, *memory = (
            state[name].to(before.model.weights.device).clone()
            for name in ("weights", *(f"memory.{name}" for name in before.model.memory))
        )
        self._state = RunState(
            **{name: state[name] for name in _PLAIN},
            model=ModelState(weights, dict(zip(before.model.memory, memory, strict=True))),
            average=None if before.average is None else state["average"].to(weights).clone(),
            participation=before.participation.restored(state, ACCOUNTS),
            synced=state["synced"].cpu().numpy().copy(),
            clip=None if before.clip is None else state["clip"],
        )


def _device_scales(importance: Tensor | None, devices: int) -> Tensor | None:
    """Factors of the devices' vectors, so that devices count by their importance."""
    if importance is None:
        return None
    good = importance.shape == (devices,)
    check(good, "importance", f"have the shape ({devices},)", tuple(importance.shape))
    shares = importance.to("cpu", torch.float64)
    good = bool(((shares > 0) & torch.isfinite(shares)).all())
    check(good, "importance", "be > 0 and finite", importance)
    return shares * (devices / shares.sum())
