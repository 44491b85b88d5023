"""Simulation of a run with all devices in one process: the engine of `diffsketch run`."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
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
from diffsketch.files import finite
from diffsketch.logs import OnRound, RoundSummary, announce, stalled
from diffsketch.methods.base import Method
from diffsketch.methods.gate import NonFiniteUpdate, check_budget, release
from diffsketch.methods.plain import RoundedTables, SaturationWatch
from diffsketch.privacy.accounting.budget import Budget, BudgetExceeded
from diffsketch.privacy.claim import Claim, Epsilon, NoClaim, ProvenClaim, SimulatedClaim
from diffsketch.privacy.noise import SERVER_NOISE, CohortNoise, Noise, NoiseKey
from diffsketch.silos import RecordGradients, Records, check_persons
from diffsketch.sketch.hashing import HashSeed, SketchKey
from diffsketch.training.local import LocalTrainer, trainer_for
from diffsketch.training.models import flatten, load, working_copy
from diffsketch.training.rounds import (
    CLIP_BYTES,
    MOST_STEP,
    Algorithm,
    DistributedSGD,
    ModelState,
    Published,
    ServerOptimizer,
    corrected,
    mask_bytes,
    relative_drift,
)
from diffsketch.training.sampling import AllDevices, PoissonDevices, Sampler, UniformSampler
from diffsketch.training.state import (
    EVERYONE,
    Aggregate,
    Indices,
    Participation,
    RoundResult,
    RunState,
    run_identity,
    run_noise_key,
)
from diffsketch.training.tasks import Task, check_task

Hashes: TypeAlias = Literal["fresh", "fixed"]
OnMeasured: TypeAlias = Callable[[dict[str, Any], bool], object]

_LOGGER = logging.getLogger(__name__)
PART_CELLS = 1 << 23  # numbers of the vectors that are encoded at a time: 32 MiB
_DELTA = 1e-5  # of the epsilon in `history` where no budget has one


class Ending(NamedTuple):
    """End of a run: `finished`, `early`, `budget`, `diverged` or `interrupted`, and why."""

    kind: str
    reason: str = ""
    error: DiffSketchError | None = None  # of the round that could not be done


class Diverged(DiffSketchError):  # noqa: N818 - it says what happened
    """Every update of a round was NaN or infinite. The model keeps its weights."""


class DivergedRound(Diverged):
    """The messages of a round were sent, and the model after it is not finite. It is paid for."""

    def __init__(self, message: str, result: RoundResult) -> None:
        super().__init__(message)
        self.result = result  # the outcome of the round, apart from a new model


class Simulation:
    """A run of distributed SGD or FedAvg, round by round.

    All randomness follows from the arguments, the round and the device, so the arguments
    determine a run: `state_dict` is small, and `load_state_dict` continues to the same bits.

    Runs with one seed have the same devices, batches and hashes, whatever their method, and the
    same noise only if everything else that changes a release is the same too, the data included
    (`identity`): otherwise the difference of two runs would show what the noise of each hides.
    Trainer and processor are not part of it: they change the rounding alone.

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
        trainer: Trainer of the task's model; by default the fastest, by `trainer_for`.
        algorithm: `DistributedSGD(...)` or `FedAvg(...)`.
        rounds: Number of planned rounds; schedules depend on it.
        seed: Fixes weights, batches, devices and hashes; and, with all other settings, the noise.
        sampler: Who takes part; an int is the size of uniformly drawn cohorts, None is everyone.
        server: How the mean is applied.
        hashes: `fresh` in each round, or `fixed` to those of the first.
        budget: Where to stop. Only proven claims can be within one.

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
        trainer: LocalTrainer | None = None,
        seed: int = 0,
        sampler: Sampler | int | None = None,
        server: ServerOptimizer | None = None,
        hashes: Hashes = "fresh",
        budget: Budget | None = None,
    ) -> None:
        check_whole("rounds", rounds, least=1)
        check_whole("seed", seed, least=0, most=2**256 - 1)
        for name, value, kind, wanted in (
            ("task", task, Task, "a Task"),
            ("method", method, Method, "a Method, such as build_method gives"),
            ("algorithm", algorithm, Algorithm, "DistributedSGD(...) or FedAvg(...)"),
            ("budget", budget, Budget | None, "Budget(epsilon, delta)"),
            ("server", server, ServerOptimizer | None, "a ServerOptimizer(...)"),
        ):
            check(isinstance(value, kind), name, f"be {wanted}", value)
        check(hashes in ("fresh", "fixed"), "hashes", "be fresh or fixed", hashes)
        self.task, self.method, self.algorithm = task, method, algorithm
        self.rounds, self.seed, self.hashes = rounds, seed, hashes
        model = task.model(seed)
        check(isinstance(model, nn.Module), "model", "make a module", model)
        if trainer is None:
            trainer = trainer_for(model, loss=task.loss, keep_local=task.keep_local)
        # Otherwise a run would train with one loss and be identified by another.
        check(trainer.loss is task.loss, "trainer", "have the loss of the task", trainer.loss)
        self.trainer, devices = trainer, len(task.devices)
        if sampler is None:
            sampler = AllDevices(devices)
        elif not isinstance(sampler, Sampler):
            check_whole("sampler", sampler, least=1, most=devices)
            sampler = UniformSampler(devices, sampler, seed)
        self.sampler, self.server = sampler, server or ServerOptimizer()
        self._key = SketchKey.from_integer(seed)
        self.history: list[dict[str, Any]] = []  # rows of the rounds that `train` did
        self.curve: list[dict[str, Any]] = []  # what it measured, as files of runs have it
        self.ending: Ending | None = None  # of `train`, until another round is done
        self._ran: dict[str, Any] = {}  # arguments of `run`
        self._best: Tensor | None = None  # weights of the smallest loss in the curve
        self._saturation = SaturationWatch()
        self._check_options()
        self._records: tuple[Records, ...] = ()
        if method.takes_records:
            examples, persons = task.devices.examples, task.devices.persons
            self._records = tuple(
                Records(
                    examples.inputs[start:end], examples.labels[start:end],
                    None if persons is None else persons[start:end],
                )
                for start, end in pairwise(task.devices.starts.tolist())
            )  # fmt: skip
            check_persons(dict(zip(task.devices.names, self._records, strict=True)))
            self._gradients = RecordGradients(
                working_copy(model).to(examples.labels.device), loss=task.loss
            )
        # Before the first round, accounts and budget are about a round of the expected size.
        planned = self._claim_of(max(1, round(sampler.expected)), self._key.seed(0))
        check_budget(method, planned, budget)
        check_task(task, model)
        # Everything is computed where the examples are.
        target = task.devices.examples.labels.device
        self._test = task.test.to(target)
        # Who takes the model and not the sums does not know where the clip has moved.
        clip_bytes = CLIP_BYTES if method.round_clip else 0
        self._model_bytes = self.server.model_bytes(method.dim) + clip_bytes
        self._wire_bytes = method.wire_bytes, method.total_format.sum_bytes  # of a message, a sum
        weights = flatten(model).to(target)
        if not len(weights) == method.dim == trainer.dim:
            raise MismatchError(
                f"model, method and trainer must have the same number of weights, got "
                f"{len(weights)}, {method.dim} and {trainer.dim}"
            )
        # A model for each worker, as each applies a mask of its own.
        if algorithm.correction == "drift":
            weights = weights.repeat(devices, 1)
        self.state = RunState(
            round_index=0,
            model=self.server.start(weights),
            participation=Participation(devices if sampler.fixed_size else 1, budget, planned),
            synced=np.zeros(devices, np.int64),
            clip=method.round_clip,
        )

    def _check_options(self) -> None:
        sampler, method, devices = self.sampler, self.method, len(self.task.devices)
        if sampler.members != devices:
            raise MismatchError(
                f"the sampler must draw from the task's {devices} devices, got {sampler.members}"
            )
        # Sums of whole numbers have bits for as many messages and no more.
        most = method.most_messages
        if most is not None and sampler.fixed_size and sampler.cohort > most:
            raise ArgumentError(
                f"sampler must draw at most the cohort={most} that method={method.name!r} was made "
                f"for, got sampler={sampler}, which draws {sampler.cohort}"
            )
        if method.takes_records:
            single = isinstance(self.algorithm, DistributedSGD)
            check(single, "algorithm", "be DistributedSGD for examples", self.algorithm)
            everyone = isinstance(sampler, AllDevices)
            check(everyone, "sampler", "be of all devices for a claim about examples", sampler)
            off = self.algorithm.correction == "off"
            check(off, "correction", "be off for a claim about examples", self.algorithm.correction)
        rounded = isinstance(method, RoundedTables) and method.grid is not None
        if not sampler.fixed_size and (rounded or method.message_format.cells == "unsigned"):
            raise ArgumentError(
                "poisson sampling is not for messages of unsigned numbers or cells of few bits: "
                "they are decoded by how many messages there are, which is secret, got "
                f"method={method.name!r}"
            )
        # The product of both steps multiplies float32 numbers, too.
        largest = MOST_STEP / max(abs(self.algorithm.step), 1.0)
        requirement = f"be at most {largest:g} with this learning_rate"
        step = self.server.server_step
        check(step <= largest, "server_step", requirement, step)
        if self.algorithm.correction != "off":
            everyone = isinstance(sampler, AllDevices)
            check(everyone, "sampler", "be of all devices with correction", sampler)

    @cached_property
    def identity(self) -> str:
        """Text that identifies the run a state belongs to (`run_identity`)."""
        # A run may be made longer unless its steps depend on the number of rounds.
        planned = f", rounds={self.rounds}" if self.server.schedule in ("linear", "cosine") else ""
        settings = (
            f"method={self.method}, algorithm={self.algorithm}, sampler={self.sampler}, "
            f"server={self.server}, hashes={self.hashes!r}{planned}"
        )
        return run_identity(self.task, self.seed, settings)

    @cached_property
    def noise_key(self) -> NoiseKey:
        """Key of the noise, which changes with anything in the run."""
        return run_noise_key(self.task, self.seed, self.identity)

    @property
    def round_index(self) -> int:
        """Index of the next round: the number of rounds, without a last one that diverged."""
        return self.state.round_index

    @property
    def weights(self) -> Tensor:
        """Weights of the model, `(dim,)`; the mean of the workers' models where they drift."""
        weights = self.state.model.weights
        return weights if weights.dim() == 1 else weights.mean(dim=0)

    @property
    def best_weights(self) -> Tensor:
        """Weights of the smallest loss that `run` measured."""
        if self._best is None:
            raise ArgumentError("best must follow a run that measured a loss, got best=True")
        return self._best

    @property
    def drift(self) -> float | None:
        """Distance between the workers' models (`relative_drift`), where they may drift."""
        return relative_drift(self.state.model.weights)

    @property
    def bytes_up(self) -> int:
        """Bytes sent by all devices so far, headers included."""
        return self.state.bytes_up

    @property
    def bytes_down(self) -> int:
        """Bytes sent to all devices so far, headers included."""
        return self.state.bytes_down

    @property
    def claim(self) -> Claim:
        """Weakest claim of the rounds so far (`Participation.claim`), or what is planned."""
        claim = self.state.participation.claim
        assert claim is not None  # noqa: S101 (it has what is planned)
        return claim

    def epsilon(self, delta: float) -> Epsilon:
        """Return the cost of the run for the client who paid most, with its basis.

        A `proven` one is about the same run with exact noise, and says `simulated`.
        """
        return self.state.participation.epsilon(delta)

    def evaluate(self) -> tuple[float, float]:
        """Compute loss and accuracy on the test set; for drifting models, their averages.

        Accuracy is NaN where labels are no classes.
        """
        # One row for each model: several where workers drift apart.
        rows = self.state.model.weights.view(-1, self.method.dim)
        scores = [self.trainer.evaluate(row, self._test) for row in rows]
        return sum(loss for loss, _ in scores) / len(rows), sum(a for _, a in scores) / len(rows)

    def trained(self, *, best: bool = False) -> nn.Module:
        """Return the task's model in eval mode, with the weights of the run or its `best` ones.

        The best are those of the smallest loss that `run` measured, before the first round too.

        With `keep_local` it still normalises every batch by the batch's statistics: predict for
        batches of several examples.
        """
        weights = self.best_weights if best else self.weights
        model = self.task.model(self.seed)
        load(model, weights.cpu())
        if self.task.keep_local:
            model = working_copy(model, keep_local=True)
        return model.eval()

    def run(
        self,
        *,
        on_round: OnRound | None = None,
        evaluate_every: int | None = None,
        patience: int | None = None,
    ) -> str:
        """Run the remaining rounds. Returns why it stopped early, or an empty string.

        It stops early where one more round would exceed the budget, or the loss is no finite
        number. Each round adds a row to `history`, and a line to the logger
        `diffsketch.training.simulation`.

        Args:
            on_round: Called with the `RoundSummary` of each round.
            evaluate_every: Rounds between measurements of loss, accuracy and epsilon (default: a
                tenth of all rounds); the last round is always measured. Epsilon is at the
                budget's delta, without a budget at 1e-5.
            patience: Stop after this many measurements in a row without a smaller loss.
                `trained(best=True)` is the model of the smallest.

        Raises:
            ArgumentError: Not even one round is within the budget; or see `step`.
        """
        every = max(1, self.rounds // 10) if evaluate_every is None else evaluate_every
        check_whole("evaluate_every", every, least=1)
        if patience is not None:
            check_whole("patience", patience, least=1)
        self._ran = {"evaluate_every": every, "patience": patience}
        ending = self.train(
            evaluate_every=every, patience=patience, since=len(self.curve), on_round=on_round
        )
        if ending.kind == "budget" and self.round_index == 0:
            reason = f"budget must allow one round at least: {ending.reason}"
            raise ArgumentError(reason) from ending.error
        if isinstance(ending.error, Diverged):
            raise ending.error
        return ending.reason

    def train(
        self,
        *,
        evaluate_every: int,
        patience: int | None,
        since: int = 0,
        delta: float | None = None,
        on_round: OnRound | None = None,
        on_measured: OnMeasured | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Ending:
        """Run the remaining rounds: the loop of `run`, and of runs that are kept in directories.

        Args:
            evaluate_every: Rounds between measurements.
            patience: As in `run`.
            since: Row of `curve` from which on patience counts.
            delta: Delta of the measured epsilon, if not that of `run`.
            on_round: Called with the `RoundSummary` of each round.
            on_measured: Called with each new row of `curve`, and whether its loss is the smallest.
            stop: Asked before each round; True interrupts the run.
        """
        if not self.curve:
            self._measure(self._summary(delta), on_measured)
        while (ending := self._ending(patience, since)) is None:
            if stop():
                return Ending("interrupted", self._rounds_done)
            begun = time.monotonic()
            try:
                result = self.step()
            except (BudgetExceeded, Diverged) as error:
                kind = "budget" if isinstance(error, BudgetExceeded) else "diverged"
                ending = Ending(kind, str(error), error)
                break
            seconds, done = time.monotonic() - begun, self.round_index
            measured = done % evaluate_every == 0 or done == self.rounds
            summary = self._summary(delta, result, measured=measured, seconds=seconds)
            self.history.append(summary.row())
            if measured:
                self._measure(summary, on_measured)
            announce(summary, on_round, _LOGGER)
        # The last round is measured, whichever it was.
        if self.curve[-1]["round"] != self.round_index:
            self._measure(self._summary(delta), on_measured)
        self.ending = ending
        return ending

    def _ending(self, patience: int | None, since: int) -> Ending | None:
        """Tell whether there is nothing left to do, and why."""
        if self.state.ended:
            return Ending("diverged", self.state.ended, Diverged(self.state.ended))
        losses = [row["loss"] for row in self.curve]
        if losses[-1] is None:
            return Ending("diverged", f"the loss after {self._rounds_done} is not a finite number")
        if self.round_index == self.rounds:
            return Ending("finished")
        if stalled(losses[since:], patience):
            return Ending("early", f"the loss has not fallen for {patience} evaluations")
        return None

    @property
    def _rounds_done(self) -> str:
        return "1 round" if self.round_index == 1 else f"{self.round_index:,} rounds"

    def _measure(self, summary: RoundSummary, on_measured: OnMeasured | None) -> None:
        """Keep what was measured, and the weights if no loss was smaller."""
        state, progress, loss = self.state, self.state.progress, finite(summary.loss)
        moving = {
            "drift": self.drift, "clip": state.clip, "saturated_share": progress.saturated_share,
        }  # fmt: skip
        row = {
            "round": summary.round,
            "loss": loss,
            "accuracy": finite(summary.accuracy),
            "bytes_up": summary.bytes_up,
            "bytes_down": summary.bytes_down,
            "epsilon": None if summary.epsilon is None else summary.epsilon.to_json(),
            "noised_share": progress.noised_share,
            "left_out": progress.left_out,
            **{name: value for name, value in moving.items() if value is not None},
        }
        losses = [before["loss"] for before in self.curve if before["loss"] is not None]
        is_best = loss is not None and loss < min(losses, default=math.inf)
        if is_best:
            self._best = self.weights.clone()
        self.curve.append(row)
        if on_measured is not None:
            on_measured(row, is_best)

    def save(self, directory: Path | str) -> None:
        """Write the run so far to a directory, as `diffsketch.train` would have kept it.

        `diffsketch report` shows it beside other runs; `train` continues it if it is not over.

        Raises:
            ArgumentError: The directory is not new or empty.
        """
        import diffsketch  # the front door: files of runs are above this room

        path = Path(directory)
        empty = not path.is_dir() or not any(path.iterdir())
        check(empty, "directory", "be new or empty", str(path))
        diffsketch.train(self, path, stop=lambda: True, **self._ran)

    def _summary(
        self,
        delta: float | None,
        result: RoundResult | None = None,
        *,
        measured: bool = True,
        seconds: float | None = None,
    ) -> RoundSummary:
        """Summarise the round that was just done; loss, accuracy and epsilon if `measured`."""
        loss, accuracy = self.evaluate() if measured else (None, None)
        budget = self.state.participation.budget
        if delta is None:
            delta = _DELTA if budget is None else budget.delta
        left_out = () if result is None else result.left_out
        return RoundSummary(
            self.round_index, loss, accuracy, self.bytes_up, self.bytes_down,
            self.epsilon(delta) if measured else None,
            dict.fromkeys(left_out, "its vector has NaN or infinite values"), seconds,
        )  # fmt: skip

    def step(self) -> RoundResult:
        """Run the next round.

        A round that raises, or is interrupted, changes nothing, except for `DivergedRound`: its
        messages were sent, so bytes and epsilon have it, the model has not, and it is the last.

        Raises:
            BudgetExceeded: The round would cost too much. It was not run.
            DivergedRound: The new weights are not finite.
            Diverged: No worker's vector is finite, where nothing is proven; or a round diverged
                before.
            ArgumentError: All rounds are done, or the sampler draws devices more than once.
        """
        if self.state.ended:
            raise Diverged(self.state.ended)
        self.ending = None
        # A function of the state: whatever it raises, or wherever it is interrupted, the state
        # stays.
        state, result = self._round(self.state)
        self.state = state
        if state.ended:
            raise DivergedRound(state.ended, result)
        return result

    def _round(self, state: RunState) -> tuple[RunState, RoundResult]:
        index = state.round_index
        if index >= self.rounds:
            check(False, "round_index", f"be below rounds={self.rounds}", index)
        method = self._method_at(state.clip)
        seed = self._key.seed(index if self.hashes == "fresh" else 0)
        cohort = self.sampler.draw(index)
        members = cohort.numpy()
        # Noise follows from the device and the round: one drawn twice would send its noise twice.
        if not (members[1:] > members[:-1]).all():
            raise ArgumentError(
                f"the sampler must draw devices once each, in ascending order, got {members}"
            )
        # The number drawn is public here; on a secret sample the claim is for any number.
        claim = self._claim_of(len(members), seed)
        payers = members if self.sampler.fixed_size else EVERYONE
        # Charged before anything is encoded: beyond the budget no message exists.
        participation = state.participation.after(claim, payers)
        agreed = 0
        bare = index == 0 and isinstance(claim, NoClaim)
        if bare and isinstance(method, RoundedTables) and method.wants_limit:
            # As in process groups: workers tell the sizes of their vectors, and hear one limit.
            first = cohort[: max(1, PART_CELLS // method.dim)]
            method = method.at_limit_of(self._vectors(state.model.weights, first, index))
            state = replace(state, clip=method.round_clip)
            agreed = CLIP_BYTES * len(members)

        summed = self._sum(method, state.model.weights, cohort, seed, index, claim=claim)
        left_out = tuple(self.task.devices.names[device] for device in summed.broken)
        if left_out:
            fate = "count as zeros, with their noise"
            if not claim.noise_is_proven:
                # Fewer messages may have less noise together: the claim is for those that count.
                fate = "are left out of the mean"
                claim = self._claim_of(summed.count, seed)
                participation = state.participation.after(claim, payers)
            warnings.warn(
                f"round {index}: NaN or infinite values in the vectors of "
                f"{', '.join(map(repr, left_out))}, which {fate}",
                NonFiniteUpdate,
                stacklevel=3,
            )
        if summed.saturated is not None:
            cells = summed.count * method.message_format.cell_count
            self._saturation.see(summed.saturated, cells, method=method, index=index, whose="")
        # From here on everything is what the server publishes, noise included.
        total, count = self._publish(method, summed, index, drawn=len(members))
        published = Published(total, count, seed, index, state.clip)

        up, down, downloads, synced = self._traffic(state.synced, members, index, summed.count)
        up, down = up + agreed, down + agreed
        model, ended = state.model, ""
        try:
            model = self._next_model(state.model, published, summed.vectors)
        except Diverged as error:  # the messages were sent all the same, and are paid for
            ended = str(error)
        result = RoundResult(
            index, cohort, published, up, down, claim, left_out, summed,
            relative_drift(model.weights), downloads,
        )  # fmt: skip
        after = replace(
            state, participation=participation, synced=synced, ended=ended,
            bytes_up=state.bytes_up + up, bytes_down=state.bytes_down + down,
            progress=state.progress.after(result),
        )  # fmt: skip
        if ended:
            return after, result
        # By the published sum alone, so that every device computes the same clip.
        clip = None if state.clip is None else method.after(total, count=count).round_clip
        return replace(after, round_index=index + 1, model=model, clip=clip), result

    def _method_at(self, clip: float | None) -> Method:
        return self.method if clip is None else self.method.at_clip(clip)

    def _publish(
        self, method: Method, summed: Aggregate, index: int, *, drawn: int
    ) -> tuple[Tensor, int | float]:
        """Add the server's noise to a sum; return it with the number of messages to divide by."""
        noise = CohortNoise(self.noise_key, [SERVER_NOISE], round_index=index)
        total = method.publish(summed.total, noise)
        if self.sampler.fixed_size:
            return total, summed.count
        # The number drawn is secret: only the share that was left out may change the divisor.
        return total, self.sampler.expected * (summed.count / drawn if drawn else 1.0)

    def _vectors(self, weights: Tensor, part: Tensor, index: int) -> Tensor:
        """Compute the vectors of a part of a round's cohort."""
        return self.algorithm.vectors(
            weights, part, trainer=self.trainer, devices=self.task.devices,
            seed=self.seed, round_index=index,
        )  # fmt: skip

    def _claim_of(self, present: int, seed: HashSeed) -> Claim:
        """Return the claim of a round with `present` workers; on a secret sample, with any number.

        Its noise is simulated, and it says so. A method's claim is amplified where devices are
        drawn by Poisson sampling, which is for central trust only, and void where error correction
        carries gradients around the messages.
        """
        lottery = self.sampler.lottery if isinstance(self.sampler, PoissonDevices) else None
        if lottery is not None:
            # The number drawn is secret: the claim must not depend on it.
            present = max(1, round(lottery.expected))
        claim = self.method.claim_for(present, seed)
        if self.algorithm.correction != "off":
            return NoClaim(
                claim.scope, "the mask of the error correction carries the raw gradients"
            )
        if lottery is None or isinstance(claim, NoClaim):
            return SimulatedClaim.of(claim)
        if not isinstance(claim, ProvenClaim):
            raise ArgumentError(
                "poisson sampling is for proven claims under central trust, or for none, got "
                f"method={self.method.name!r}, whose claim is {claim.basis}"
            )
        return SimulatedClaim.of(lottery.amplified(claim))

    def _noise_of(self, workers: Sequence[int], index: int, rows: Sequence[int]) -> Noise:
        return CohortNoise(self.noise_key, [workers[row] for row in rows], round_index=index)

    def _sum(
        self, method: Method, weights: Tensor, cohort: Tensor, seed: HashSeed, index: int,
        *, claim: Claim,
    ) -> Aggregate:  # fmt: skip
        """Compute the vectors of a cohort, encode them in parts, and add the messages up."""
        if self._records:
            return self._sum_records(method, weights, cohort, seed, index, claim=claim)
        form, noised = method.total_format, []
        kind = torch.float32 if form.cells == "float32" else torch.int64
        summed = Aggregate(torch.zeros(form.shape, dtype=kind, device=weights.device))
        # Masks compare every worker's vector with the mean, so all of them are kept.
        keep = self.algorithm.correction != "off"
        size = len(cohort) if keep else max(1, PART_CELLS // method.dim)
        for part in torch.split(cohort, size) if len(cohort) else ():
            vectors = self._vectors(weights, part, index)
            released = release(
                vectors, method, seed, claim,
                charge=None,  # `_round` has charged the cohort
                noise_of=partial(self._noise_of, part.tolist(), index),
            )  # fmt: skip
            # None where no vector of the part could be encoded.
            encoded = released.encoded
            summed.broken += tuple(part[~released.kept].tolist())
            if encoded is None:
                continue
            # A sum is a new tensor: a trainer may use the memory of its vectors again.
            summed.total = summed.total + encoded.messages.sum(dim=0)
            summed.count += len(encoded.messages)
            summed.vectors = vectors if keep else None
            if encoded.noised is not None:
                noised.append(encoded.noised)
            if encoded.saturated is not None:
                summed.saturated = (summed.saturated or 0) + int(encoded.saturated.sum())
        # Under a proven claim even this must not show: all of them send zeros and noise.
        if len(summed.broken) == len(cohort) > 0 and not claim.noise_is_proven:
            raise Diverged(
                f"all {len(cohort)} workers of round {index} have vectors with NaN or infinite "
                "values: training diverges, or the data is broken"
            )
        summed.noised = torch.cat(noised) if noised else None
        return summed

    def _sum_records(
        self, method: Method, weights: Tensor, cohort: Tensor, seed: HashSeed, index: int,
        *, claim: Claim,
    ) -> Aggregate:  # fmt: skip
        """Let each silo draw its records in secret, and add the messages up."""
        load(self._gradients.model, weights)
        messages = [
            self._records[silo].message(
                self._gradients, method, seed, claim,
                charge=None,  # `_round` has charged the cohort
                noise=self.noise_key.source(worker=silo, round_index=index),
            )
            for silo in cohort.tolist()
        ]  # fmt: skip
        return Aggregate(torch.stack(messages).sum(dim=0).to(weights.device), len(messages))

    def _next_model(
        self, model: ModelState, published: Published, vectors: Tensor | None
    ) -> ModelState:
        try:
            after = self.advance(model, published, vectors=vectors)
            # A sum is faster to look at, and may overflow where no weight does.
            if math.isfinite(after.weights.sum()) or bool(torch.isfinite(after.weights).all()):
                return after
            what = "the new weights"
        except ArgumentError:
            # Only a sum that is not finite is divergence; any other error is one of the program.
            total = published.total
            if not total.is_floating_point() or bool(torch.isfinite(total).all()):
                raise
            what = "the sum of the messages"
        raise Diverged(
            f"round {published.round_index}: {what} would not be finite: training diverges; the "
            "model before this round is kept, and what was sent is counted. A smaller "
            "learning_rate, server_step or update_clip may help"
        )

    def _traffic(
        self, synced: Indices, cohort: Indices, index: int, present: int
    ) -> tuple[int, int, int, Indices]:
        """Count bytes up and down and devices that download; return the rounds synced after it.

        Workers of distributed SGD get each round's result. Devices of FedAvg catch up when they
        are drawn: with the results that they missed, or with the model where that is smaller.
        """
        mask, masks = 0, 0
        if self.algorithm.correction == "shared":
            mask, masks = mask_bytes(self.method.dim, len(cohort))
        message_bytes, round_bytes = self._wire_bytes
        up = present * (message_bytes + mask)
        if self.algorithm.local_epochs is None:
            return up, len(synced) * (round_bytes + masks), len(synced), synced
        # Who takes part begins with the model of this round, and gets its result when drawn next.
        missed = index - synced[cohort]
        after = synced.copy()
        after[cohort] = index
        down = int(np.minimum(missed * round_bytes, self._model_bytes).sum())
        return up, down, int(np.count_nonzero(missed)), after

    def advance(
        self, model: ModelState, published: Published, *, vectors: Tensor | None = None
    ) -> ModelState:
        """Compute the model after a round from the model before it and the publication.

        A device that catches up with a round that it missed does this.

        Raises:
            ArgumentError: There is error correction, whose masks need the vectors of all workers.
        """
        correct, correction = None, self.algorithm.correction
        if correction != "off":
            if vectors is None:
                raise ArgumentError(f"vectors must be given with correction={correction}")
            correct = partial(corrected, vectors=vectors, correction=correction)
        method = self._method_at(published.clip)
        step = self.algorithm.step * self.server.factor(published.round_index, self.rounds)
        return self.server.advance(model, published, method=method, step=step, correct=correct)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that is needed to continue: tensors, numbers and texts."""
        return {"settings": self.identity, **self.state.saved()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, in a simulation with the same arguments.

        Raises:
            MismatchError: The state is of a simulation with other settings or data, or incomplete.
        """
        if state.get("settings") != self.identity:
            why = difference(self.identity, str(state.get("settings")))
            raise MismatchError(f"the state must be that of the same simulation, but {why}")
        self.state = self.state.restored(state)
        self.ending = None
        # What was measured later belongs to rounds that are to come.
        for rows in (self.history, self.curve):
            rows[:] = [row for row in rows if row["round"] <= self.round_index]
