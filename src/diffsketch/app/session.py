"""One session of a run: begin or resume, train, measure, write checkpoints, report."""

from __future__ import annotations

import dataclasses
import errno
import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import safetensors.torch
import torch
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from diffsketch.app.build import Built, assumptions, build
from diffsketch.app.files import (
    CONFIG,
    Metrics,
    RunDirectory,
    epsilon_data,
    finite,
    free_name,
    pack,
    read_metrics,
    unpack,
)
from diffsketch.app.settings import RunConfig
from diffsketch.errors import DataError, DiffSketchError, MismatchError
from diffsketch.methods.base import Method
from diffsketch.methods.client_noise import SketchSkellam
from diffsketch.privacy.accounting.accountant import BudgetExceeded
from diffsketch.privacy.claim import Basis, Epsilon, Relation, Scope, Trust, Unit
from diffsketch.training.simulation import (
    Diverged,
    DivergedRound,
    NonFiniteUpdate,
    RoundResult,
    Simulation,
)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """While it is open, the first signal is noted and the second acts as it did before.

    Guarantees (`tests/app/test_interrupts.py`): handlers are as before afterwards. Outside of the
    main thread, where Python handles no signals, nothing is changed.

    Attributes:
        signal: The number of the signal that came, or None.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    @property
    def exit_status(self) -> int:
        """What a program returns that a signal has ended: 130 for Ctrl-C."""
        return 128 + self.signal if self.signal is not None else 0

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.signal = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


_UNITS = ("B", "kB", "MB", "GB", "TB")


def bytes_in_words(count: float) -> str:
    """A number of bytes, in the unit that suits it.

    >>> bytes_in_words(664), bytes_in_words(33_200_000)
    ('664 B', '33.2 MB')
    """
    for unit in _UNITS:
        if count < 999.5 or unit == _UNITS[-1]:
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"


def epsilon_in_words(epsilon: Epsilon) -> str:
    """An epsilon with its delta and its words: basis; unit, relation, trust.

    What is claimed is for one round, what is proven for all of them.

    >>> from diffsketch.privacy.claim import Relation, Scope, Trust, Unit
    >>> scope = Scope(Unit.CLIENT, Relation.REPLACE, Trust.DISTRIBUTED)
    >>> epsilon_in_words(Epsilon(7.981, 1e-5, 100, Basis.PROVEN, scope))
    'eps 7.99 at 1e-05 (proven; client, replace, distributed)'
    >>> epsilon_in_words(Epsilon(7.981, 1e-5, 100, Basis.PROVEN, scope, simulated=True))
    'eps 7.99 at 1e-05 (proven, simulated; client, replace, distributed)'
    >>> epsilon_in_words(Epsilon(1.0, 1e-5, 1, Basis.CLAIMED, scope))
    'eps 1 per round at 1e-05 (claimed; client, replace, distributed)'
    >>> epsilon_in_words(Epsilon(math.inf, 1e-5, 100, Basis.PROVEN, scope))
    'proven per round, nothing at 1e-05 over 100 rounds (client, replace, distributed)'
    """
    if epsilon.basis is Basis.NONE:
        return "no claim"
    at, scope = f"at {epsilon.delta:g}", epsilon.scope
    about = f"{scope.unit}, {scope.relation}, {scope.trust}"
    if math.isinf(float(epsilon)):
        basis = epsilon.basis_text
        return f"{basis} per round, nothing {at} over {epsilon.rounds:,} rounds ({about})"
    times = " per round" if epsilon.basis is Basis.CLAIMED else ""
    return f"eps {epsilon.shown()}{times} {at} ({epsilon.basis_text}; {about})"


def sentence(text: str) -> str:
    """The text with a capital letter and a full stop.

    >>> sentence("interrupted after 3 rounds")
    'Interrupted after 3 rounds.'
    """
    return f"{text[:1].upper()}{text[1:]}."


def time_in_words(seconds: float) -> str:
    """A time, in the unit that suits it.

    >>> time_in_words(0.00389), time_in_words(1.132)
    ('3.89 ms', '1.13 s')
    """
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


@dataclass
class Totals:
    """What all rounds so far amount to.

    Attributes:
        bytes_up: Sent by workers, headers included.
        bytes_down: Sent to workers, headers included.
        messages: Sent by workers.
        validated: Messages that their workers checked by Theorem 1.
        noised: Those of them that needed noise.
        left_out: Messages that were left out, or zeros, since their vectors were not finite.
        downloads: How often a worker received something: without compression, a vector each time.
    """

    bytes_up: int = 0
    bytes_down: int = 0
    messages: int = 0
    validated: int = 0
    noised: int = 0
    left_out: int = 0
    downloads: int = 0

    def add(self, result: RoundResult) -> None:
        """Count a round."""
        self.bytes_up += result.bytes_up
        self.bytes_down += result.bytes_down
        self.messages += result.summed.count
        self.left_out += len(result.left_out)
        self.downloads += result.downloads
        if result.noised is not None:
            self.validated += result.summed.count
            self.noised += round(result.noised * result.summed.count)

    @property
    def noised_share(self) -> float | None:
        """Of the messages that were validated, which needed noise."""
        return self.noised / self.validated if self.validated else None


@dataclass(frozen=True)
class Status:
    """What a display may show after a round.

    Attributes:
        round_index: Rounds that are done.
        rounds: Rounds that are planned.
        loss: Of the last evaluation.
        accuracy: Of the last evaluation.
        totals: Of all rounds so far.
        epsilon: What has been spent, when asked: it may take a while to compute.
    """

    round_index: int
    rounds: int
    loss: float | None
    accuracy: float | None
    totals: Totals
    epsilon: Callable[[], Epsilon]


@dataclass(frozen=True)
class Outcome:
    """How the loop ended.

    Attributes:
        kind: `finished`, `budget`, `diverged` or `interrupted`.
        reason: Why, in a sentence; empty if all rounds were done.
    """

    kind: str
    reason: str = ""


def summarise(
    simulation: Simulation, loop: Loop, outcome: Outcome, *, directory: RunDirectory
) -> dict[str, Any]:
    """The content of `summary.json`. No times of the clock, so that the same run gives the same.

    Ratios are of real bytes: those of the vectors in float32 that a run without compression would
    send to and from the same workers, to those of the messages with their headers.
    """
    config, totals = directory.config, loop.totals
    loss, accuracy = loop.evaluation
    claim = simulation.claim
    vector = 4 * simulation.method.dim
    raw_up, raw_down = vector * totals.messages, vector * totals.downloads
    sent = totals.bytes_up + totals.bytes_down
    return {
        "outcome": outcome.kind,
        "reason": outcome.reason,
        "diverging": loop.diverging,
        "rounds": simulation.round_index,
        "planned_rounds": config.rounds,
        "loss": finite(loss),
        "accuracy": accuracy,
        "best_accuracy": loop.best_accuracy,
        "dim": simulation.method.dim,
        "message_bytes": simulation.method.wire_bytes,
        **_whole_numbers(simulation.method),
        "messages": totals.messages,
        "bytes_up": totals.bytes_up,
        "bytes_down": totals.bytes_down,
        "uncompressed_bytes_up": raw_up,
        "uncompressed_bytes_down": raw_down,
        "compression_up": raw_up / totals.bytes_up if totals.bytes_up else None,
        "compression_down": raw_down / totals.bytes_down if totals.bytes_down else None,
        "compression": (raw_up + raw_down) / sent if sent else None,
        "epsilon": epsilon_data(simulation.epsilon(config.delta)),
        "claim": str(claim),
        "assumes": assumptions(claim, simulation.sampler),
        "noised_share": totals.noised_share,
        "left_out": totals.left_out,
        "seed": config.seed,
        "config": {
            name: value for name, value in dataclasses.asdict(config).items() if value is not None
        },
        "versions": directory.start["versions"],
    }


def _whole_numbers(method: Method) -> dict[str, Any]:
    """Bits and width of a step, as they are where they were not given."""
    if not isinstance(method, SketchSkellam):
        return {}
    return {
        "bits": method.mechanism.bits,
        "granularity": method.mechanism.quantizer.granularity,
    }


_ENDED = {
    "finished": "all rounds done",
    "budget": "stopped: one more round would exceed the budget",
    "diverged": "stopped: diverged",
}


def report(summary: dict[str, Any], times: dict[str, float]) -> tuple[Table | str, ...]:
    """The parts to print.

    Args:
        summary: Of `summarise`, or read from `summary.json`.
        times: Seconds, as in `times.json`.
    """
    config = summary["config"]
    title = f"{config['task']}, {config['algorithm']}, {config['method']}"
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, value in _rows(summary, times):
        table.add_row(name, value)
    parts: list[Table | str] = [table, summary["claim"]]
    if summary["assumes"]:
        parts.append(" ".join(summary["assumes"]))
    if summary["reason"]:
        parts.append(sentence(f"{_ENDED[summary['outcome']]}: {summary['reason']}"))
    return tuple(parts)


def epsilon_from_data(data: dict[str, Any]) -> Epsilon:
    """The epsilon that `epsilon_data` wrote."""
    scope = Scope(Unit(data["unit"]), Relation(data["relation"]), Trust(data["trust"]))
    value = float("inf") if data["value"] is None else data["value"]
    return Epsilon(
        value, data["delta"], data["rounds"], Basis(data["basis"]), scope, data["simulated"]
    )


def _rows(summary: dict[str, Any], times: dict[str, float]) -> list[tuple[str, str]]:
    done, planned = summary["rounds"], summary["planned_rounds"]
    rows = [
        ("accuracy", _accuracy(summary)),
        ("rounds", f"{done:,}" if done == planned else f"{done:,} of {planned:,}"),
        ("bytes up", _bytes(summary, "up")),
        ("bytes down", _bytes(summary, "down")),
        ("message", f"{summary['message_bytes']:,} B for {summary['dim']:,} numbers"),
        ("epsilon", _epsilon(summary)),
    ]
    if summary["noised_share"] is not None:
        rows.append(("noise needed", f"{summary['noised_share']:.1%} of messages"))
    if summary["left_out"]:
        rows.append(("not finite", f"{summary['left_out']:,} vectors of workers"))
    if times:
        each = time_in_words(times["training"] / max(done, 1))
        rows.append(("time", f"{times['total']:.1f} s, of training {each} a round"))
    return rows


def _accuracy(summary: dict[str, Any]) -> str:
    text = "none" if summary["accuracy"] is None else f"{summary['accuracy']:.2%}"
    return f"{text}, diverging" if summary["diverging"] else text


def _bytes(summary: dict[str, Any], way: str) -> str:
    text = bytes_in_words(summary[f"bytes_{way}"])
    ratio = summary[f"compression_{way}"]
    return text if ratio is None else f"{text}, compression {ratio:.3g}x"


def _epsilon(summary: dict[str, Any]) -> str:
    epsilon = epsilon_from_data(summary["epsilon"])
    return epsilon_in_words(epsilon)


_LINE_SECONDS = 5.0
_BAR_SECONDS = 0.1


class Show(Protocol):
    """Shows how far a run is."""

    def __call__(self, status: Status) -> None:
        """After a round."""


@contextmanager
def showing(console: Console, *, rounds: int) -> Iterator[Show]:
    """What to call after each round while the run goes on.

    Args:
        console: Where to show it.
        rounds: All rounds of the run.
    """
    if not console.is_terminal:
        yield _Lines(console)
        return
    bar = Progress(
        TextColumn("round {task.completed:,.0f}/{task.total:,.0f}"),
        BarColumn(bar_width=None),
        TimeRemainingColumn(),
        console=console,
        expand=True,
    )
    task = bar.add_task("", total=rounds)
    last = 0.0
    with Live(bar, console=console, transient=True, refresh_per_second=10) as live:

        def show(status: Status) -> None:
            nonlocal last
            now = time.monotonic()
            # A round may take less time than drawing the bar.
            if now - last >= _BAR_SECONDS or status.round_index == status.rounds:
                last = now
                bar.update(task, completed=status.round_index)
                # A line of its own, so that nothing is cut off in a narrow terminal.
                live.update(Group(bar, Text(in_words(status))))

        yield show


def in_words(status: Status) -> str:
    """Loss, accuracy, bytes and epsilon with its basis."""
    parts = []
    if status.loss is not None and status.accuracy is not None:
        parts += [f"loss {status.loss:.4g}", f"accuracy {status.accuracy:.1%}"]
    up, down = status.totals.bytes_up, status.totals.bytes_down
    parts.append(f"up {bytes_in_words(up)}, down {bytes_in_words(down)}")
    parts.append(epsilon_in_words(status.epsilon()))
    return " | ".join(parts)


class _Lines:
    """A line every few seconds, and one for the last round."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = time.monotonic()

    def __call__(self, status: Status) -> None:
        now = time.monotonic()
        if now - self._last >= _LINE_SECONDS or status.round_index == status.rounds:
            self._last = now
            line = f"round {status.round_index:,}/{status.rounds:,} | {in_words(status)}"
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)


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


EXIT_DIVERGED = 2
_MOST_WARNINGS = 3


def start(
    config: RunConfig,
    output: Path | None,
    console: Console,
    *,
    command: list[str],
    overwrite: bool = False,
) -> int:
    """Begin a run and train until it ends; the exit status.

    Args:
        config: What is given; what is not comes from the task and the method.
        output: The directory; by default a new one below `runs`.
        console: Where to show it.
        command: For the record.
        overwrite: Whether a run in the directory may be replaced.

    Raises:
        DiffSketchError: Something that is given is wrong; nothing was written then.
    """
    with threads(config.threads):
        built = build(config)
        chosen = built.config
        path = output or free_name(Path("runs") / f"{chosen.task}-{chosen.method}")
        with RunDirectory.create(path, chosen, command=command, overwrite=overwrite) as directory:
            return _show_session(built, directory, console)


def resume(path: Path, console: Console) -> int:
    """Continue a run until it ends; the exit status.

    Raises:
        DiffSketchError: There is no run, or it is damaged, or of another version.
    """
    with RunDirectory.open(path) as directory:
        summary = directory.summary()
        if summary is not None and directory.finished:
            _print(console, f"The run in {path} is finished: there is nothing to continue.")
            for part in report(summary, directory.times()):
                console.print(part, highlight=False)
            return 0
        with threads(directory.config.threads):
            return _show_session(build(directory.config), directory, console)


def session(
    built: Built,
    directory: RunDirectory,
    *,
    show: Callable[[Status], None],
    stop: Callable[[], bool],
) -> Outcome:
    """Train until the run ends or is interrupted; if it ends, write its results.

    Raises:
        CheckpointFailed: A file could not be written.
    """
    simulation = built.simulation
    with Metrics(directory.metrics) as metrics:
        loop = Loop(simulation, directory, metrics=metrics, show=show, stop=stop)
        outcome = loop.run()
        if outcome.kind != "interrupted":
            loop.write_results(
                model=_model_bytes(built, simulation),
                summary=summarise(simulation, loop, outcome, directory=directory),
            )
    return outcome


@contextmanager
def warnings_in_lines(console: Console) -> Iterator[None]:
    """Print warnings of workers that are left out as lines, the first few of them."""
    shown = 0

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        nonlocal shown
        shown += 1
        if shown <= _MOST_WARNINGS or not issubclass(category, NonFiniteUpdate):
            _print(console, f"warning: {message}")
        if shown == _MOST_WARNINGS:
            _print(console, "warning: more of these are counted, but not shown")

    with warnings.catch_warnings():
        warnings.simplefilter("always", NonFiniteUpdate)
        warnings.showwarning = show
        yield


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Give PyTorch so many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _show_session(built: Built, directory: RunDirectory, console: Console) -> int:
    path = directory.path
    with (
        Interrupts() as interrupts,
        showing(console, rounds=built.config.rounds or 0) as show,
        warnings_in_lines(console),
    ):
        outcome = session(built, directory, show=show, stop=lambda: interrupts.signal is not None)
    if outcome.kind == "interrupted":
        _print(
            console,
            f"{sentence(outcome.reason)} Continue with: diffsketch run --resume {path}",
        )
        return interrupts.exit_status
    for part in report(directory.summary() or {}, directory.times()):
        console.print(part, highlight=False)
    for file in directory.files():
        _print(console, f"Wrote {file}")
    return EXIT_DIVERGED if outcome.kind == "diverged" else 0


def _model_bytes(built: Built, simulation: Simulation) -> bytes:
    named = built.named_weights(simulation.averaged_weights)
    return safetensors.torch.save({name: part.cpu().contiguous() for name, part in named.items()})


def _print(console: Console, text: str) -> None:
    # Not wrapped, so that it can be copied.
    console.print(text, highlight=False, markup=False, soft_wrap=True)
