"""One session of a run: begin or resume, train, measure, write checkpoints, report."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
from rich.table import Table
from torch import Tensor

from diffsketch.app import files
from diffsketch.app.build import assumptions, build, settings_of_simulation
from diffsketch.app.files import RunDirectory
from diffsketch.app.settings import RunConfig, saved_config
from diffsketch.app.terminal import Interrupts, LastingConsole, command_line, print_line
from diffsketch.compiled import torch_threads
from diffsketch.errors import DataError, DiffSketchError, MismatchError
from diffsketch.logs import LOGGERS, OnRound, RoundSummary
from diffsketch.methods.client_noise import ClientNoise
from diffsketch.methods.gate import NonFiniteUpdate
from diffsketch.privacy.claim import Epsilon
from diffsketch.training.models import unflatten
from diffsketch.training.simulation import Ending, Simulation

EXIT_DIVERGED = 2
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")
_FALL = 0.05  # of accuracy below its best
_MOST_WARNINGS = 3


class CheckpointFailed(DiffSketchError):  # noqa: N818 - it says what happened
    """A file of the run could not be written. The last checkpoint is as it was."""


def bytes_in_words(count: float) -> str:
    """A number of bytes, in the unit that suits it.

    >>> bytes_in_words(664), bytes_in_words(33_200_000)
    ('664 B', '33.2 MB')
    """
    for unit in _BYTE_UNITS:
        if count < 999.5 or unit == _BYTE_UNITS[-1]:
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"


class TrainingSession:
    """The rounds of one run, from the last checkpoint in its directory on.

    Guarantees (`tests/app/test_resume.py`): killed at any moment and continued, a run ends with
    the same files, bit by bit; an error while writing leaves the last checkpoint as it was.
    """

    def __init__(self, simulation: Simulation, directory: RunDirectory) -> None:
        self.simulation, self.directory = simulation, directory
        self.curve = simulation.curve  # measurements so far
        self._model = simulation.task.model(simulation.seed)
        spent = sum(row["seconds"] for row in self.simulation.history)
        self._times = {"training": spent, "total": spent, **directory.times(), "rounds": 0}
        self._saved_round: int | None = None
        self._last_save = self._clock = time.monotonic()
        self._restore()

    def run(self, on_round: OnRound | None = None, *, stop: Callable[[], bool]) -> Ending:
        """Do the rounds that are left and save them; at the end, write model and summary."""
        directory = self.directory
        try:
            ending = self._train(on_round, stop)
            self._save()
            if ending.kind != "interrupted":
                model = self._model_bytes(self.simulation.weights)
                summary = self._summary(ending)
                directory.write_results(curve=self.curve, model=model, summary=summary)
        # Before OSError, which a DataError is as well.
        except DiffSketchError:
            raise  # some of these are also an OSError, but not about writing
        except OSError as error:
            text = f"{error.filename2 or error.filename or directory.path}: {error.strerror}; "
            if not directory.path.is_dir():
                text += "the directory of the run is gone, and its checkpoint with it"
            elif self._saved_round is None or not directory.checkpoint.exists():
                text += "there is no checkpoint"
            else:
                text += (
                    f"the checkpoint after {self._saved_round:,} rounds is intact: once files can "
                    f"be written, continue with diffsketch run --resume {directory.path}"
                )
            raise CheckpointFailed(text) from error
        return ending

    def _train(self, on_round: OnRound | None, stop: Callable[[], bool]) -> Ending:
        simulation, config = self.simulation, self.directory.config
        if self._saved_round is None:
            self._save()  # so that rounds without a checkpoint mean that it was lost
        if simulation.ending is not None:  # before it came here
            return simulation.ending

        def after_round(summary: RoundSummary) -> None:
            self._times["training"] += summary.seconds or 0.0
            if on_round is not None:
                on_round(summary)
            if time.monotonic() - self._last_save >= config.checkpoint_seconds:
                self._save()

        return simulation.train(
            evaluate_every=config.evaluate_every or 1,
            patience=config.patience,
            delta=config.delta,
            on_round=after_round,
            on_measured=self._write_measurement,
            stop=stop,
        )

    def _write_measurement(self, row: dict[str, Any], is_best: bool) -> None:
        self.directory.add_measurement(row)
        # Killed before the next checkpoint, the run comes here again with the same model.
        if self.directory.config.patience and is_best:
            self.directory.write_best(self._model_bytes(self.simulation.weights))

    def _model_bytes(self, weights: Tensor) -> bytes:
        named = unflatten(self._model, weights)
        return safetensors.torch.save({name: w.cpu().contiguous() for name, w in named.items()})

    def _save(self) -> None:
        now = time.monotonic()
        self._times["total"] += now - self._clock
        self._times["rounds"] = self.simulation.round_index
        self._clock = self._last_save = now
        progress = {"curve": self.curve}
        content = files.pack(
            self.simulation.state_dict(), progress, identity=self.directory.identity
        )
        self.directory.write_checkpoint(content, self._times)
        self._saved_round = self.simulation.round_index

    def _restore(self) -> None:
        directory, path = self.directory, self.directory.checkpoint
        if not path.exists():
            # To begin again would throw away what is known of rounds that there were.
            try:
                begun = len(files.read_metrics(directory.metrics)) > 1
            except DataError:
                begun = True  # whatever the file is, it is not the beginning of a run
            if (directory.path / files.TIMES).exists() or begun:
                raise DataError(
                    f"{path}: missing, though the run had begun: put it back, or begin again with "
                    f"diffsketch run --config {directory.path / files.CONFIG}"
                )
            directory.write_metrics(self.curve)
            if directory.config.patience and any(point["loss"] is not None for point in self.curve):
                directory.write_best(self._model_bytes(self.simulation.best_weights))
            return
        state, saved = files.unpack(path.read_bytes(), path, identity=directory.identity)
        try:
            self.simulation.load_state_dict(state)
        except MismatchError as error:
            raise MismatchError(f"{path}: {error}") from error
        self.curve[:] = saved["curve"]
        self._saved_round = self.simulation.round_index
        directory.write_metrics(self.curve)

    def _summary(self, ending: Ending) -> dict[str, Any]:
        """The content of `summary.json`. No times, so that the same run gives the same.

        Ratios are of real bytes: those of the vectors in float32 that a run without compression
        would send to and from the same workers, to those of the messages with their headers.
        """
        simulation, config = self.simulation, self.directory.config
        progress = simulation.state.progress
        method, claim = simulation.method, simulation.claim
        first, last = self.curve[0], self.curve[-1]
        known = [point["accuracy"] for point in self.curve if point["accuracy"] is not None]
        best = max(known, default=None)
        # Not by the loss alone: a confident model may have a large one.
        worse = None not in (first["loss"], last["loss"]) and last["loss"] > first["loss"]
        # Labels that are no classes have no accuracy.
        fell = best is None or (last["accuracy"] or 0) < best - _FALL
        raw_up, raw_down = 4 * method.dim * progress.messages, 4 * method.dim * progress.downloads
        up, down = simulation.bytes_up, simulation.bytes_down
        chosen: dict[str, Any] = {}  # by the method, where it was not given
        # These choose bits and step by themselves, and config has what was given.
        if isinstance(method, ClientNoise):
            mechanism = method.mechanism
            chosen = {"bits": mechanism.bits, "granularity": mechanism.quantizer.granularity}
        return {
            "outcome": ending.kind,
            "reason": ending.reason,
            "diverging": last["loss"] is None or (worse and fell),
            "rounds": simulation.round_index,
            "planned_rounds": config.rounds,
            "loss": last["loss"],
            "accuracy": last["accuracy"],
            "best_accuracy": best,
            "dim": method.dim,
            "message_bytes": method.wire_bytes,
            **chosen,
            "messages": progress.messages,
            "bytes_up": up,
            "bytes_down": down,
            "uncompressed_bytes_up": raw_up,
            "uncompressed_bytes_down": raw_down,
            "compression_up": raw_up / up if up else None,
            "compression_down": raw_down / down if down else None,
            "compression": (raw_up + raw_down) / (up + down) if up + down else None,
            "epsilon": simulation.epsilon(config.delta).to_json(),
            "claim": str(claim),
            "assumes": assumptions(claim, simulation.sampler),
            "noised_share": progress.noised_share,
            "saturated_share": progress.saturated_share,
            "left_out": progress.left_out,
            "seed": config.seed,
            "config": config.known(),
            "versions": self.directory.start["versions"],
        }


def report(summary: dict[str, Any], times: dict[str, float]) -> tuple[Table | str, ...]:
    """Parts to print: a table, the claim, its assumptions and why the run ended."""
    config, done, planned = summary["config"], summary["rounds"], summary["planned_rounds"]
    accuracy = "none" if summary["accuracy"] is None else f"{summary['accuracy']:.2%}"
    rows = {
        "accuracy": f"{accuracy}, diverging" if summary["diverging"] else accuracy,
        "rounds": f"{done:,}" if done == planned else f"{done:,} of {planned:,}",
    }
    for way in ("up", "down"):
        text, ratio = bytes_in_words(summary[f"bytes_{way}"]), summary[f"compression_{way}"]
        rows[f"bytes {way}"] = text if ratio is None else f"{text}, compression {ratio:.3g}x"
    rows["message"] = f"{summary['message_bytes']:,} B for {summary['dim']:,} numbers"
    rows["epsilon"] = Epsilon.from_json(summary["epsilon"]).text("short")
    if summary["noised_share"] is not None:
        rows["added noise"] = f"{summary['noised_share']:.1%} of the messages needed it"
    if summary.get("saturated_share") is not None:
        rows["saturated"] = f"{summary['saturated_share']:.2%} of cells"
    if summary["left_out"]:
        rows["not finite"] = f"{summary['left_out']:,} vectors of workers"
    if times:
        seconds = times["training"] / max(done, 1)
        text = f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
        rows["time"] = f"{times['total']:.1f} s, of training {text} a round"
    data = saved_config(config).data_name
    title = f"{data}, {config['algorithm']}, {config['method']}"
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for row in rows.items():
        table.add_row(*row)
    parts: list[Table | str] = [table, summary["claim"]]
    if summary["assumes"]:
        parts.append(" ".join(summary["assumes"]))
    if summary["reason"]:
        why = "out of budget" if summary["outcome"] == "budget" else summary["outcome"]
        parts.append(f"Stopped, {why}: {summary['reason']}.")
    return tuple(parts)


def train(
    simulation: Simulation,
    directory: Path | str,
    *,
    evaluate_every: int | None = None,
    patience: int | None = None,
    on_round: OnRound | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> str:
    """Run a simulation and keep it in a directory, as `diffsketch run` does.

    `diffsketch report` shows it beside other runs. A run that was interrupted is continued by the
    same call, to the same result; one that is finished is not run again.

    Args:
        simulation: Its rounds so far are kept, too.
        directory: New or empty, or that of the same run.
        evaluate_every: Rounds between measurements (default: a tenth of all rounds).
        patience: Stop after this many measurements in a row without a smaller loss.
        on_round: Called with the `RoundSummary` of each round that this call runs.
        stop: Asked before each round; True interrupts the run.

    Returns:
        Why it stopped early, or an empty string.

    Raises:
        ArgumentError: The directory has other files; or not even one round is within the budget.
        MismatchError: The directory has another run.
    """
    path, every = Path(directory), evaluate_every or max(1, simulation.rounds // 10)
    config = settings_of_simulation(simulation, evaluate_every=every, patience=patience)
    begun = files.has_run(path)
    opened = (
        RunDirectory.open(path) if begun
        else RunDirectory.create(path, config, command=["diffsketch.train"])
    )  # fmt: skip
    with opened as kept:
        # Field by field: read back, it is of the class of runs of built-in tasks if it can be.
        if dict(kept.config) != dict(config):
            raise MismatchError(f"{path}: has a run with other settings")
        if kept.finished:
            return str((kept.summary() or {}).get("reason", ""))
        return TrainingSession(simulation, kept).run(on_round, stop=stop).reason


def start(config: RunConfig, output: Path | None, *, log: str | None = None) -> int:
    """Begin a run in a directory, by default a new one below `runs`; the exit status."""
    with torch_threads(config.threads):
        built = build(config)
        chosen = built.config
        path = output or files.free_name(Path("runs") / f"{chosen.data_name}-{chosen.method}")
        with RunDirectory.create(path, chosen, command=command_line()) as directory:
            return _session_on(built.simulation, directory, log=log)


def resume(path: Path, *, log: str | None = None) -> int:
    """Continue a run until it ends; the exit status."""
    with RunDirectory.open(path) as directory:
        summary = directory.summary()
        if summary is not None and directory.finished:
            console = LastingConsole()
            print_line(console, f"The run in {path} is finished: there is nothing to continue.")
            console.show(*report(summary, directory.times()))
            return 0
        with torch_threads(directory.config.threads):
            return _session_on(build(directory.config).simulation, directory, log=log)


def _session_on(simulation: Simulation, directory: RunDirectory, *, log: str | None) -> int:
    console = LastingConsole()
    logger, measured = None if log is None else LOGGERS[log](directory.path), ""
    with (
        Interrupts() as interrupts,
        console.progress("round", total=simulation.rounds) as show,
        warnings_in_lines(console),
    ):

        def on_round(summary: RoundSummary) -> None:
            nonlocal measured
            if logger is not None:
                logger(summary)
            # Between measurements the last one stays, with its round.
            measured = measured if summary.loss is None else str(summary)
            show(summary.round, measured)

        session = TrainingSession(simulation, directory)
        ending = session.run(on_round, stop=lambda: interrupts.signal is not None)
    if ending.kind == "interrupted":
        again = f"Continue with: diffsketch run --resume {directory.path}"
        print_line(console, f"Interrupted after {ending.reason}. {again}")
        return interrupts.exit_status
    written = [path for name in files.SHOWN if (path := directory.path / name).exists()]
    console.show(*report(directory.summary() or {}, directory.times()), wrote=written)
    return EXIT_DIVERGED if ending.kind == "diverged" else 0


@contextmanager
def warnings_in_lines(console: LastingConsole) -> Iterator[None]:
    """Print warnings of workers that are left out as lines, the first few of them."""
    shown = 0

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        nonlocal shown
        shown += 1
        if shown <= _MOST_WARNINGS or not issubclass(category, NonFiniteUpdate):
            print_line(console, f"warning: {message}")
        if shown == _MOST_WARNINGS:
            print_line(console, "warning: more of these are counted, but not shown")

    with warnings.catch_warnings():
        warnings.simplefilter("always", NonFiniteUpdate)
        warnings.showwarning = show
        yield
