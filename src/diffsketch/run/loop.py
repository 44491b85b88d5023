"""The rounds of a run: train, measure, write checkpoints, stop.

Whatever is decided here depends on rounds and never on the clock, except when a checkpoint is
written: so an interrupted run that continues makes the same decisions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from diffsketch.engines.simulate import Simulation
from diffsketch.errors import DiffSketchError
from diffsketch.learning.aggregate import Diverged
from diffsketch.privacy.accounting.accountant import BudgetExceeded
from diffsketch.privacy.claim import Claim, Epsilon
from diffsketch.run.checkpoint import pack, unpack
from diffsketch.run.directory import RunDirectory
from diffsketch.run.metrics import Metrics, epsilon_data, finite
from diffsketch.run.status import Outcome, Status, Totals

__all__ = ["CheckpointFailed", "Loop"]

_FALL = 0.05  # of accuracy below its best


class CheckpointFailed(DiffSketchError):  # noqa: N818 - it says what happened
    """A file of the run could not be written. The last checkpoint is as it was."""


@dataclass
class _Progress:
    """What a checkpoint keeps besides the simulation."""

    totals: Totals = field(default_factory=Totals)
    evaluated: int = -1  # the last round after which the model was evaluated
    loss: float | None = None
    accuracy: float | None = None
    first_loss: float | None = None
    best_accuracy: float = 0.0
    claim: str | None = None  # of the last round that was evaluated, in words


class Loop:
    """The rounds of one run, from its last checkpoint on.

    Guarantees: killed at any moment and continued, a run ends with the same files, bit by bit
    (`tests/run/test_resume.py`); an error while writing leaves the last checkpoint as it was
    (`tests/run/test_full_disk.py`).

    Args:
        simulation: As it is before the first round.
        directory: Of the run; its checkpoint is loaded if there is one.
        metrics: Its measurements.
        show: Called after every round.
        stop: Asked before every round whether to interrupt.

    Raises:
        DataError: The checkpoint or the measurements are damaged.
        MismatchError: The checkpoint is of another run.
    """

    def __init__(
        self,
        simulation: Simulation,
        directory: RunDirectory,
        *,
        metrics: Metrics,
        show: Callable[[Status], None],
        stop: Callable[[], bool],
    ) -> None:
        self._simulation, self._directory, self._metrics = simulation, directory, metrics
        self._show, self._stop = show, stop
        config = directory.config
        self._rounds, self._every = config.rounds or 0, config.evaluate_every or 1
        self._delta, self._pause = config.delta, config.checkpoint_seconds
        self._progress = _Progress()
        self._claim: Claim | None = None
        self._times = {"training": 0.0, "total": 0.0, **directory.times()}
        self._saved_round: int | None = None
        self._restore()
        self._epsilon = simulation.epsilon(self._delta)
        self._epsilon_due = 0.0  # when it may be computed for the display again

    @property
    def totals(self) -> Totals:
        """Of all rounds so far."""
        return self._progress.totals

    @property
    def claim(self) -> str | None:
        """Of the last round, in words; None if there was none."""
        return self._progress.claim

    @property
    def times(self) -> dict[str, float]:
        """Seconds of all sessions: of training alone, and with everything around it."""
        return dict(self._times)

    @property
    def best_accuracy(self) -> float:
        """Of all evaluations."""
        return self._progress.best_accuracy

    @property
    def diverging(self) -> bool:
        """Whether the model ended worse than it was: its loss above that of the first weights.

        And its accuracy 5 points below the best: a confident model may have a large loss.
        """
        loss, accuracy = self.evaluation
        first, best = self._progress.first_loss, self._progress.best_accuracy
        if loss is None or accuracy is None or first is None:
            return False
        return not math.isfinite(loss) or (loss > first and accuracy < best - _FALL)

    @property
    def evaluation(self) -> tuple[float | None, float | None]:
        """Loss and accuracy of the last evaluation."""
        return self._progress.loss, self._progress.accuracy

    def run(self) -> Outcome:
        """Do the rounds that are left, evaluate, and write the last checkpoint.

        Raises:
            CheckpointFailed: A file cannot be written.
        """
        self._last_save = self._clock = time.monotonic()
        try:
            outcome = self._go()
            self._save()
        except DiffSketchError:
            raise  # some of these are also an OSError, but not about writing
        except OSError as error:
            raise CheckpointFailed(self._failure(error)) from error
        return outcome

    def _go(self) -> Outcome:
        simulation = self._simulation
        if simulation.round_index == 0 and self._progress.evaluated < 0:
            self._evaluate()
        while simulation.round_index < self._rounds:
            if self._diverged():
                return Outcome("diverged", f"the loss after {self._after()} is not a finite number")
            if self._stop():
                return Outcome("interrupted", f"interrupted after {self._after()}")
            before = time.monotonic()
            try:
                result = simulation.step()
            except (BudgetExceeded, Diverged) as error:
                self._evaluate()
                kind = "budget" if isinstance(error, BudgetExceeded) else "diverged"
                return Outcome(kind, str(error))
            self._times["training"] += time.monotonic() - before
            self._progress.totals.add(result)
            self._claim = result.claim
            if simulation.round_index % self._every == 0 or simulation.round_index == self._rounds:
                self._evaluate()
            self._show(self._status())
            if time.monotonic() - self._last_save >= self._pause:
                self._save()
        self._evaluate()
        if self._diverged():
            return Outcome("diverged", f"the loss after {self._after()} is not a finite number")
        return Outcome("finished")

    def write_results(self, *, model: bytes, summary: dict[str, Any]) -> None:
        """Write what a finished run leaves.

        Raises:
            CheckpointFailed: A file cannot be written.
        """
        try:
            self._directory.write_results(model=model, summary=summary)
        except OSError as error:
            raise CheckpointFailed(self._failure(error)) from error

    def _after(self) -> str:
        index = self._simulation.round_index
        return "1 round" if index == 1 else f"{index:,} rounds"

    def _diverged(self) -> bool:
        loss = self._progress.loss
        return loss is not None and not math.isfinite(loss)

    def _evaluate(self) -> None:
        """Measure the model and add a line, unless this round has one."""
        progress, index = self._progress, self._simulation.round_index
        if progress.evaluated == index:
            return
        loss, accuracy = self._simulation.evaluate()
        epsilon = self._epsilon = self._simulation.epsilon(self._delta)
        record = {
            "round": index,
            "loss": finite(loss),
            "accuracy": accuracy,
            "bytes_up": progress.totals.bytes_up,
            "bytes_down": progress.totals.bytes_down,
            "epsilon": epsilon_data(epsilon),
            "noised_share": progress.totals.noised_share,
            "left_out": progress.totals.left_out,
        }
        self._metrics.append(record)
        if self._claim is not None:
            progress.claim = str(self._claim)
        progress.evaluated, progress.loss, progress.accuracy = index, loss, accuracy
        progress.best_accuracy = max(progress.best_accuracy, accuracy)
        if progress.first_loss is None:
            progress.first_loss = loss

    def _status(self) -> Status:
        progress = self._progress
        return Status(
            round_index=self._simulation.round_index,
            rounds=self._rounds,
            loss=progress.loss,
            accuracy=progress.accuracy,
            totals=progress.totals,
            epsilon=self._shown_epsilon,
        )

    def _shown_epsilon(self) -> Epsilon:
        """What has been spent, or had a moment ago: computing it takes a twentieth of the time."""
        before = time.monotonic()
        if before >= self._epsilon_due:
            self._epsilon = self._simulation.epsilon(self._delta)
            now = time.monotonic()
            self._epsilon_due = now + 20 * (now - before)
        return self._epsilon

    def _save(self) -> None:
        now = time.monotonic()
        self._times["total"] += now - self._clock
        self._clock = self._last_save = now
        progress = {**asdict(self._progress), "metrics": self._metrics.state()}
        state = self._simulation.state()
        content = pack(state, progress, identity=self._directory.identity)
        self._directory.write_checkpoint(content, self._times)
        self._saved_round = self._simulation.round_index

    def _restore(self) -> None:
        path = self._directory.checkpoint
        if not path.exists():
            self._metrics.restore(None)
            return
        state, saved = unpack(path.read_bytes(), path, identity=self._directory.identity)
        self._metrics.restore(saved.pop("metrics"))
        self._progress = _Progress(**{**saved, "totals": Totals(**saved["totals"])})
        self._simulation.load_state(state)
        self._saved_round = self._simulation.round_index

    def _failure(self, error: OSError) -> str:
        where = error.filename2 or error.filename or self._directory.path
        kept = (
            "no checkpoint was written yet"
            if self._saved_round is None
            else f"the checkpoint after {self._saved_round:,} rounds is intact"
        )
        return (
            f"{where}: {error.strerror or error}; {kept}: once there is room, continue with "
            f"diffsketch run --resume {self._directory.path}"
        )
