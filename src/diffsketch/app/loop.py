"""The rounds of a run: train, measure, write checkpoints, stop.

Whatever is decided here depends on rounds and never on the clock, except when a checkpoint is
written: so an interrupted run that continues makes the same decisions.
"""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from diffsketch.training.simulate import DivergedRound, Simulation
from diffsketch.errors import DataError, DiffSketchError, MismatchError
from diffsketch.training.aggregate import Diverged
from diffsketch.privacy.accounting.accountant import BudgetExceeded
from diffsketch.privacy.claim import Epsilon
from diffsketch.app.checkpoint import pack, unpack
from diffsketch.app.directory import RunDirectory
from diffsketch.app.metrics import Metrics, epsilon_data, finite, read_metrics
from diffsketch.app.run_files import CONFIG
from diffsketch.app.status import Outcome, Status, Totals

__all__ = ["CheckpointFailed", "Loop"]

_FALL = 0.05  # of accuracy below its best
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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


class Loop:
    """The rounds of one run, from its last checkpoint on.

    Guarantees: killed at any moment and continued, a run ends with the same files, bit by bit
    (`tests/app/test_resume.py`); an error while writing leaves the last checkpoint as it was
    (`tests/app/test_resume.py`).

    Args:
        simulation: As it is before the first round.
        directory: Of the run; its checkpoint is loaded if there is one.
        metrics: Its measurements.
        show: Called after every round.
        stop: Asked before every round whether to interrupt.

    Raises:
        DataError: The checkpoint or the measurements are damaged, or it is missing.
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
        if self._saved_round is None:
            self._save()  # so that rounds without a checkpoint mean that it was lost
        while simulation.round_index < self._rounds:
            if self._diverged():
                return Outcome("diverged", f"the loss after {self._after()} is not a finite number")
            if self._stop():
                return Outcome("interrupted", f"interrupted after {self._after()}")
            before = time.monotonic()
            try:
                result = simulation.step()
            except (BudgetExceeded, Diverged) as error:
                if isinstance(error, DivergedRound):
                    self._progress.totals.add(error.result)
                self._evaluate()
                kind = "budget" if isinstance(error, BudgetExceeded) else "diverged"
                return Outcome(kind, str(error))
            self._times["training"] += time.monotonic() - before
            self._progress.totals.add(result)
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
        if self._simulation.drift is not None:
            record["drift"] = self._simulation.drift
        if self._simulation.clip is not None:
            record["clip"] = self._simulation.clip
        self._metrics.append(record)
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
            self._check_new()
            self._metrics.restore(None)
            return
        state, saved = unpack(path.read_bytes(), path, identity=self._directory.identity)
        try:
            self._simulation.load_state(state)
        except MismatchError as error:
            raise MismatchError(f"{path}: {error}") from error
        self._metrics.restore(saved.pop("metrics"))  # last: it cuts the file
        self._progress = _Progress(**{**saved, "totals": Totals(**saved["totals"])})
        self._saved_round = self._simulation.round_index

    def _check_new(self) -> None:
        """Raise if there were rounds: to begin again would throw away what is known of them."""
        directory = self._directory
        try:
            rounds = max((one["round"] for one in read_metrics(directory.metrics)), default=0)
        except DataError:
            rounds = 1  # whatever it is, it is not the beginning of a run
        if directory.begun or rounds > 0:
            raise DataError(
                f"{directory.checkpoint}: missing, though the run had begun: put it back, or begin "
                f"again with diffsketch run --config {directory.path / CONFIG}"
            )

    def _failure(self, error: OSError) -> str:
        directory = self._directory
        where = error.filename2 or error.filename or directory.path
        said = f"{where}: {error.strerror or error}"
        if not directory.path.is_dir():
            return f"{said}; the directory of the run is gone, and its checkpoint with it"
        if self._saved_round is None:
            return f"{said}; no checkpoint was written yet"
        if not directory.checkpoint.exists():
            return f"{said}; the checkpoint is gone"
        once = "there is room" if error.errno in _FULL else "it can be written"
        return (
            f"{said}; the checkpoint after {self._saved_round:,} rounds is intact: once {once}, "
            f"continue with diffsketch run --resume {directory.path}"
        )
