"""How well does a transformer learn, by what its workers send each other?

    python -m benchmarks.transformer                             # small, on any machine
    python -m benchmarks.transformer --params 1M --workers 16 4 --jobs 12 --limit-s 500  # on a GPU
    python -m benchmarks.transformer --params 1M --workers 16 4 --table  # the tables, the figure

A byte-level GPT learns Python (`benchmarks.gpt`), by workers that one process plays at once. Each
row is a way to exchange gradients, in every step, or what 15 steps did to the weights (DiLoCo; an
outer step with Nesterov's momentum follows). All rows start from the same weights, draw the same
sequences, clip gradients to a norm of 1, have the same schedule, and are judged by the same files
that were held out. The inner optimizer is AdamW, or Muon for the layers' matrices.

*Every row is tuned alike* (`next_try`), over half of the steps with a seed of its own: the learning
rate, in factors of two until the best is none of the outermost; then the outer rate and momentum;
then half factors of the learning rate.

*Bytes* are those of one worker. Up is its message, down what it receives: a sum, with its bits, or,
where messages cannot be added (top-k), the messages of all others. "x" is the bytes of float32
gradients in every step over these. Ours are those of the library's rounds: sums are rounded again.

*The private row* hides a whole silo of 8, with epsilon 8 at delta 1e-5 over all rounds (proven, for
adding or removing one; Gaussian noise on whole numbers that a secure sum shares out). Its clip is
`rate * sqrt(15 * dim)`: Adam moves a number by about `rate` in a step, and in all directions. All
that is known of the noise before the run shrinks its outer step: `1 / (1 + noise^2 / clip^2)`.

Each run is a line of `results.jsonl` in the folder `--out`. Whatever is there is not run again, so
a run that was stopped goes on. Nothing is timed with care.
"""

from __future__ import annotations

import argparse
import json
import math
import queue
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import Tensor

from benchmarks.gpt import (
    GPT,
    SIZES,
    Text,
    Trainer,
    draw_starts,
    installed_sources,
    schedule,
)
from benchmarks.timing import environment
from benchmarks.transformer_peers import ChunkTopK, Dense, Exchange, Half, PowerSGD, Rounded, TopK
from diffsketch.ddp.transport import Parts
from diffsketch.errors import ArgumentError
from diffsketch.methods.client_noise import SketchGaussian
from diffsketch.methods.feedback import ErrorFeedback
from diffsketch.methods.gate import release_noise
from diffsketch.methods.plain import PlainSketch
from diffsketch.privacy.claim import Relation, Trust
from diffsketch.privacy.noise import CohortNoise, NoiseKey
from diffsketch.sketch.hashing import SketchKey

EVERY = 15  # steps between exchanges of weights
RATES = (1e-3, 2e-3, 4e-3)  # where tuning begins
LEAST_RATE, LARGEST_RATE = 6e-5, 7e-2
PLAIN = (1.0, 0.0)  # outer learning rate and momentum
OUTER = ((0.7, 0.6), (0.7, 0.3), (0.5, 0.6), PLAIN, (1.0, 0.5), (0.7, 0.8))
TUNING_SEED = 100
CURVE = 6  # points of a run at which it is judged as well
SILOS, EPSILON, DELTA = 8, 8.0, 1e-5


@dataclass(frozen=True)
class Setting:
    """What all rows have in common, and a run's own: its seed and learning rate."""

    params: str
    steps: int
    workers: int
    sequences: int
    seed: int = 0
    rate: float = RATES[1]


@dataclass(frozen=True)
class Row:
    """A way to exchange: what, and how often."""

    exchange: Callable[[GPT, Setting, torch.device], Exchange]
    text: str
    every: int = 1
    ours: bool = False
    muon: bool = False
    silos: int | None = None  # in place of workers, with as many sequences in all

    @property
    def outer(self) -> tuple[tuple[float, float], ...]:
        """Outer steps to choose from."""
        return (PLAIN,) if self.every == 1 else OUTER


class Sketched:
    """The mean of tables of few bits, with error feedback or without, by sums rounded again.

    As `GroupMean` computes it, whose ranks are in processes of their own.

    Args:
        dim: Length of the vectors.
        setting: Of the run.
        compression: Coordinates over cells.
        bits: Of a cell.
        feedback: Whether workers remember what was not sent.
        keep_sums: Whether they remember what the sum lost as well.
    """

    def __init__(
        self, dim: int, setting: Setting, compression: float, *, bits: int, feedback: bool,
        keep_sums: bool = False,
    ) -> None:  # fmt: skip
        workers, cols = setting.workers, math.floor(dim / compression)
        self._method = PlainSketch(dim, 1, cols, bits=bits, cohort=workers)
        self._workers, self._round, self._keep_sums = workers, 0, keep_sums
        self._key, self._noise = SketchKey.from_integer(setting.seed), NoiseKey(bytes(32))
        grid = self._method.grid
        self.up = self.down = 4.0 * cols
        if grid is not None:
            self.up = self.down = Parts(grid, cols, workers).bytes * workers / 2
        self._memories: list[ErrorFeedback] = []
        if feedback:
            claim = self._method.claim_for(workers, self._key.seed(0))
            self._memories = [ErrorFeedback(self._method, claim) for _ in range(workers)]

    def mean(self, vectors: Tensor) -> Tensor:
        """Send, keep what was not sent, and estimate the mean from the sum."""
        seed = self._key.seed(self._round)
        noise = CohortNoise(self._noise, range(self._workers), round_index=self._round)
        mixed = vectors
        if self._memories:
            mixed = torch.stack([m.mixed(v) for m, v in zip(self._memories, vectors, strict=True)])
        if self._round == 0 and self._method.grid is not None:
            limits = [self._method.limit_for(vector) for vector in vectors]
            self._method = self._method.at_clip(statistics.geometric_mean(filter(None, limits)))
        messages = self._method.encode(mixed, seed, noise).messages
        for memory, vector, kept, message in zip(
            self._memories, vectors, mixed, messages, strict=False
        ):
            memory.keep(vector, kept, message, seed, self._method)
        total = self._rounded_again(messages.sum(0), seed)
        estimate = self._method.decode(total, seed, count=self._workers)
        self._method, self._round = self._method.after(total, count=self._workers), self._round + 1
        return estimate

    def _rounded_again(self, total: Tensor, seed: Any) -> Tensor:
        grid, method = self._method.grid, self._method
        if grid is None:
            return total
        noise = CohortNoise(self._noise, [self._workers], round_index=self._round)
        cells, sizes = total[: -grid.size_cells].float(), total[-grid.size_cells :].float()
        middle = grid.middle(self._workers)
        levels, limit = grid.again(cells + middle, noise.words((1, 2)))
        again = torch.cat([grid.restored(levels, limit) - middle, sizes])
        if self._keep_sums:
            lost = method.mean_table(total, self._workers) - method.mean_table(again, self._workers)
            lost_vector = method.sketch.query(lost, seed, combine="mean")
            for memory in self._memories:
                if memory.memory is not None:
                    memory.memory.add_(lost_vector, alpha=memory.later)
        return again


class Private:
    """The mean of clipped tables with exact noise, shrunk by what is known of the noise.

    The noise is the least, to 1%, with which all rounds together have the epsilon.
    """

    def __init__(self, dim: int, setting: Setting) -> None:
        self._silos, self._round = setting.workers, 0
        self._key = SketchKey.from_integer(setting.seed)
        clip, self.epsilon, multiplier = setting.rate * math.sqrt(EVERY * dim), math.inf, 0.5
        while self.epsilon > EPSILON:
            # Cells of a larger table would cost bytes and say no more, with so much noise.
            self._method = SketchGaussian(
                dim, 1, max(8, dim // 10_000), clip=clip, noise_multiplier=multiplier,
                cohort=self._silos, relation=Relation.ADD_OR_REMOVE, trust=Trust.DISTRIBUTED,
            )  # fmt: skip
            claim = self._method.claim_for(self._silos, self._key.seed(0))
            rounds = max(1, setting.steps // EVERY)
            self.epsilon = claim.epsilon(delta=DELTA, rounds=rounds).value
            multiplier *= 1.01
        self.up, self.down = map(
            float, (self._method.wire_bytes, self._method.total_format.sum_bytes)
        )
        noise = self._method.mechanism.std / self._silos * math.sqrt(dim)
        self._shrink = 1 / (1 + (noise / clip) ** 2)

    def mean(self, vectors: Tensor) -> Tensor:
        """Release tables, sum them as a secure sum would, and estimate the mean."""
        method, seed = self._method, self._key.seed(self._round)
        claim = method.claim_for(self._silos, seed)
        noise = release_noise(method, claim, messages=self._silos)
        total = method.reduced(method.encode(vectors, seed, noise).messages.sum(0))
        self._round += 1
        return method.decode(total, seed, count=self._silos).mul_(self._shrink)


def _sketch(
    compression: float, bits: int, *, every: int = 1, muon: bool = False, keep_sums: bool = False
) -> Row:
    """Ours: local steps with feedback, as the library does, and gradients without."""
    feedback = every > 1

    def exchange(model: GPT, setting: Setting, _: torch.device) -> Exchange:
        return Sketched(model.dim, setting, compression, bits=bits, feedback=feedback,
                        keep_sums=keep_sums)  # fmt: skip

    text = f"sketch {compression:g}x, {bits} bits" + (", Muon" if muon else "")
    text += ", feedback of the sum too" if keep_sums else ""
    return Row(exchange, text, every, ours=True, muon=muon)


def _chunks(kept: int) -> Row:
    def exchange(model: GPT, setting: Setting, device: torch.device) -> Exchange:
        return ChunkTopK(model.shapes, setting.workers, kept, device)

    return Row(exchange, f"SparseLoCo: {kept} of 4,096, 2 bits", EVERY)


def _power(rank: int) -> Row:
    def exchange(model: GPT, _: Setting, device: torch.device) -> Exchange:
        return PowerSGD(model.shapes, rank, device)

    return Row(exchange, f"PowerSGD, rank {rank}")


def _rounded(bits: int, text: str, **options: Any) -> Row:
    def exchange(model: GPT, setting: Setting, device: torch.device) -> Exchange:
        return Rounded(model.dim, setting.workers, bits, device, **options)

    return Row(exchange, text, EVERY)


def _dense(model: GPT, *_: Any) -> Exchange:
    return Dense(model.dim)


# In the order in which they are run: time may be short.
ROWS: dict[str, Row] = {
    "diloco": Row(_dense, "DiLoCo: all, in float32", EVERY),
    "local-4x2": _sketch(4, 2, every=EVERY),
    "local-10x2": _sketch(10, 2, every=EVERY),
    "sparseloco-64": _chunks(64),
    "sparseloco-256": _chunks(256),
    "local-4x4": _sketch(4, 4, every=EVERY),
    "none": Row(_dense, "all, in float32"),
    "powersgd-1": _power(1),
    "powersgd-2": _power(2),
    "sketch-2-bits": _sketch(3.13, 2),
    "sketch-4-bits": _sketch(6.26, 4),
    "local-2x2": _sketch(2, 2, every=EVERY),
    "local-20x2": _sketch(20, 2, every=EVERY),
    "local-10x4": _sketch(10, 4, every=EVERY),
    "local-20x4": _sketch(20, 4, every=EVERY),
    "local-8x1": _sketch(8, 1, every=EVERY),
    "diloco-muon": Row(_dense, "DiLoCo: all, in float32, Muon", EVERY, muon=True),
    "local-4x2-muon": _sketch(4, 2, every=EVERY, muon=True),
    "all-2-bits": _rounded(2, "all, in 2 bits, memory"),
    "all-1-bit": _rounded(1, "all, in 1 bit, memory"),
    "mask-random": _rounded(2, "a random quarter in 2 bits, memory", share=4),
    "mask-cyclic": _rounded(2, "a quarter after another in 2 bits, memory", share=4, cyclic=True),
    "local-4x2-sums": _sketch(4, 2, every=EVERY, keep_sums=True),
    "sketch-1-bit": _sketch(1.57, 1),
    "sketch-2-bits-84": _sketch(5.25, 2),
    "fp16": Row(lambda model, *_: Half(model.dim), "all, in float16"),
    "top-k": Row(lambda m, s, d: TopK(m.dim, s.workers, 50, d), "top-k with memory"),
    "sketch": _sketch(50, 32),
    "private": Row(
        lambda model, setting, _: Private(model.dim, setting),
        f"private: epsilon {EPSILON:g}, {SILOS} silos", EVERY, ours=True, silos=SILOS,
    ),
}  # fmt: skip
DEFAULT = [name for name in ROWS if name not in ("fp16", "top-k", "sketch", "private")]


class Bench:
    """A device with the text, and trainers for batches of each size."""

    def __init__(
        self, params: str, text: Text, device: torch.device, *, compiled: bool, batches: int
    ) -> None:
        self.model, self.text, self.device = GPT(SIZES[params]), text.to(device), device
        self._compiled, self._batches = compiled, batches
        self._trainers: dict[Any, Trainer] = {}
        self._initial = lru_cache(lambda seed: self.model.initial(seed).to(device))

    def run(self, row: Row, setting: Setting, outer: tuple[float, float]) -> dict[str, Any]:
        """Train and judge once."""
        if row.silos is not None:
            each = setting.sequences * setting.workers // row.silos
            setting = replace(setting, workers=row.silos, sequences=max(1, each))
        sizes = (setting.workers, setting.sequences, row.muon)
        if sizes not in self._trainers:
            # To compile for one row would take longer than it saves.
            compiled = self._compiled and row.silos is None
            self._trainers[sizes] = Trainer(
                self.model, self.text, *sizes[:2], compiled=compiled, muon=row.muon
            )
        trainer, began = self._trainers[sizes], time.perf_counter()
        exchange = row.exchange(self.model, setting, self.device)
        center = self._initial(setting.seed).clone()
        generator = torch.Generator(self.device).manual_seed(setting.seed)
        shape = (setting.steps, setting.workers, setting.sequences)
        starts = draw_starts(self.text, self.model.size.context, shape, generator)
        rates = schedule(setting.steps, setting.rate)
        curve: list[tuple[int, float]] = []
        rounds = local_steps(trainer, exchange, center, starts, rates, row.every, outer)
        if row.every == 1:
            rounds = every_step(trainer, exchange, center, starts, rates)
        try:
            for step in rounds:
                part, before = (at * CURVE // setting.steps for at in (step, step - row.every))
                if part > before and setting.seed != TUNING_SEED:
                    curve.append((step, trainer.held_out_loss(center, batches=4)))
        except ArgumentError:  # ours refuse to send what is not finite
            center.fill_(math.nan)
        loss = trainer.held_out_loss(center, batches=self._batches)
        seconds, count = time.perf_counter() - began, setting.steps // row.every
        return {
            "params": setting.params, "workers": setting.workers, "sequences": setting.sequences,
            "steps": setting.steps, "seed": setting.seed, "rate": setting.rate, "outer": outer,
            "loss": loss if math.isfinite(loss) else None, "curve": curve,
            "up": exchange.up * count, "down": exchange.down * count,
            "epsilon": getattr(exchange, "epsilon", None), "seconds": round(seconds, 2),
        }  # fmt: skip


def every_step(
    trainer: Trainer, exchange: Exchange, center: Tensor, starts: Tensor, rates: Sequence[float]
) -> Iterator[int]:
    """Exchange gradients in every step; all workers have the same weights, which `center` gets."""
    trainer.restart(center)
    for step, (batches, rate) in enumerate(zip(starts, rates, strict=True), 1):
        trainer.backward(batches)
        trainer.grads.copy_(exchange.mean(trainer.grads))
        trainer.step(rate)
        center.copy_(trainer.weights[0])
        yield step


def local_steps(
    trainer: Trainer, exchange: Exchange, center: Tensor, starts: Tensor, rates: Sequence[float],
    every: int, outer: tuple[float, float],
) -> Iterator[int]:  # fmt: skip
    """Exchange what `every` steps of each worker did to the weights; steps left over are not made.

    The outer step is that of `torch.optim.SGD` with Nesterov's momentum.
    """
    (outer_rate, momentum), speed = outer, torch.zeros_like(center)
    trainer.restart(center)
    for first in range(0, len(rates) - every + 1, every):
        for step in range(first, first + every):
            trainer.backward(starts[step])
            trainer.step(rates[step])
        change = exchange.mean(center - trainer.weights)
        speed.mul_(momentum).add_(change)
        center.sub_(change.add(speed, alpha=momentum), alpha=outer_rate)
        trainer.weights.copy_(center)
        yield first + every


def next_try(row: Row, runs: Sequence[Mapping[str, Any]]) -> tuple[float, Any] | None:
    """The rate and outer step to try next, by what was tried; None when a row is tuned."""

    def tried(rate: float, outer: Any) -> bool:
        return any(math.isclose(run["rate"], rate, rel_tol=1e-3) and tuple(run["outer"]) == outer
                   for run in runs)  # fmt: skip

    first = row.outer[0]
    for rate in RATES:
        if not tried(rate, first):
            return rate, first
    rates = [run for run in runs if tuple(run["outer"]) == first]
    best = best_of(rates)["rate"]
    for factor in (2.0, 0.5):
        if LEAST_RATE < best * factor < LARGEST_RATE and not tried(best * factor, first):
            return best * factor, first
    for outer in row.outer[1:]:
        if not tried(best, outer):
            return best, outer
    chosen = best_of(runs)
    centre = chosen["rate"]
    if any(math.isclose(centre, best * 2**half, rel_tol=1e-3) for half in (0.5, -0.5)):
        centre = best
    for factor in (math.sqrt(2), math.sqrt(0.5)):
        if not tried(centre * factor, tuple(chosen["outer"])):
            return centre * factor, tuple(chosen["outer"])
    return None


def best_of(runs: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The run with the lowest loss; those that diverged come last."""
    return min(runs, key=lambda run: math.inf if run["loss"] is None else run["loss"])


def runs_of(
    results: Iterable[Mapping[str, Any]], name: str, setting: Setting
) -> list[Mapping[str, Any]]:
    """Runs of a row in a setting, whatever their seeds, rates and steps."""
    workers = setting.workers if ROWS[name].silos is None else ROWS[name].silos
    return [run for run in results if run["row"] == name and run["params"] == setting.params
            and run["workers"] == workers]  # fmt: skip


def next_run(
    name: str, setting: Setting, results: Sequence[Mapping[str, Any]], options: argparse.Namespace
) -> tuple[Setting, Any] | None:
    """The next run of a row: of its tuning, or with a seed; None when there is none left."""
    runs = runs_of(results, name, setting)
    tuning = [run for run in runs if run["seed"] == TUNING_SEED]
    following = next_try(ROWS[name], tuning)
    if following is not None:
        rate, outer = following
        return replace(setting, seed=TUNING_SEED, steps=options.tuning_steps, rate=rate), outer
    best = best_of(tuning)
    done = {run["seed"] for run in runs}
    for seed in options.seeds:
        if seed not in done:
            return replace(setting, seed=seed, rate=best["rate"]), tuple(best["outer"])
    return None


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Lines of results; one that was cut off by the end of a run is left out."""
    path, results = folder / "results.jsonl", []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            results.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return results


def work(index: int, tasks: Any, text: str, options: argparse.Namespace, deadline: float) -> None:
    """Run the rows of a queue, one after another, as long as there is time."""
    torch.set_num_threads(1)
    device = torch.device(options.device)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
    benches: dict[str, Bench] = {}
    corpus, longest = Text(**torch.load(text)), 0.0
    while True:
        try:
            params, workers, name = tasks.get(timeout=1)
        except queue.Empty:
            return
        try:
            if params not in benches:
                benches[params] = Bench(
                    params, corpus, device, compiled=options.compile, batches=options.batches
                )
            setting = Setting(params, options.steps, workers, options.sequences)
            results: list[Any] = list(read_results(options.out))
            while (following := next_run(name, setting, results, options)) is not None:
                if time.time() + 1.3 * longest > deadline:
                    return
                began = time.time()
                run = {"row": name} | benches[params].run(ROWS[name], *following)
                longest = max(longest, time.time() - began)
                results.append(run)
                with (options.out / "results.jsonl").open(
                    "a"
                ) as file:  # one write: lines stay whole
                    file.write(json.dumps(run) + "\n")
            print(f"[{index}] {params}, {workers} workers, {name}: done", flush=True)
        except Exception:  # the other rows go on
            print(f"[{index}] {name} failed\n{traceback.format_exc()}", flush=True)


def run_all(options: argparse.Namespace) -> None:
    """Run what is missing, by processes that share the rows."""
    deadline = time.time() + options.limit_s
    options.out.mkdir(parents=True, exist_ok=True)
    corpus = installed_sources(options.text_bytes)
    about = environment(torch.device(options.device)) | {
        "text": corpus.facts(), "steps": options.steps, "tuning_steps": options.tuning_steps,
    }  # fmt: skip
    (options.out / "about.json").write_text(json.dumps(about, indent=1))
    context = mp.get_context("spawn")
    tasks = context.Queue()
    for params in options.params:
        for name in options.rows:
            for workers in options.workers:
                tasks.put((params, workers, name))
    with tempfile.TemporaryDirectory() as folder:
        text = str(Path(folder) / "text.pt")
        torch.save({"train": corpus.train, "held_out": corpus.held_out, "files": corpus.files,
                    "digest": corpus.digest}, text)  # fmt: skip
        arguments = (tasks, text, options, deadline)
        if options.jobs == 1:
            time.sleep(0.5)  # until the queue's thread has written
            work(0, *arguments)
            return
        processes = [context.Process(target=work, args=(index, *arguments))
                     for index in range(options.jobs)]  # fmt: skip
        for process in processes:
            process.start()
        for process in processes:
            process.join(max(1.0, deadline + 20 - time.time()))
            if process.is_alive():
                process.kill()
    tasks.cancel_join_thread()
    results = read_results(options.out)
    print(f"{len(results)} runs, {sum(run['seconds'] for run in results):.0f} s of them")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--params", choices=SIZES, nargs="+", default=["small"])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=DEFAULT, metavar="ROW")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, help="150 for small, else 600")
    parser.add_argument("--tuning-steps", type=int, help="half of the steps, if not given")
    parser.add_argument("--workers", type=int, nargs="+", default=[4])
    parser.add_argument("--sequences", type=int, default=8, help="of a worker's batch")
    parser.add_argument("--batches", type=int, default=32, help="of 64 held-out sequences")
    parser.add_argument("--text-bytes", type=int, default=20_000_000, help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="PyTorch compiles the model")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--limit-s", type=float, default=math.inf, help="seconds to stop after")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/transformer"))
    parser.add_argument("--table", action="store_true", help="run nothing, write what there is")
    options = parser.parse_args(arguments)
    if options.steps is None:
        options.steps = 150 if options.params == ["small"] else 600
    if options.tuning_steps is None:
        options.tuning_steps = options.steps // 2
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if not options.table:
        run_all(options)
        return
    from benchmarks.transformer_table import write_table

    write_table(read_results(options.out), options)


if __name__ == "__main__":
    main()
