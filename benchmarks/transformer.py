"""How well does a transformer learn, by what its workers send each other?

    python -m benchmarks.transformer                                  # small, on any machine
    python -m benchmarks.transformer --params 10M --json one.json     # on a GPU
    python -m benchmarks.transformer --params 10M --rows none diloco --json two.json
    python -m benchmarks.transformer --merge one.json two.json --show --json all.json

A byte-level GPT learns Python (`benchmarks.gpt`), by workers that one process plays at once. Each
row is a way to exchange gradients, in every step, or what 15 steps of AdamW did to the weights
(DiLoCo; an outer step with Nesterov's momentum follows). All rows start from the same weights, draw
the same sequences, clip gradients to a norm of 1, use AdamW with the same schedule, and are judged
by the same files that were held out.

*Learning rates* are tuned in the same way for each row: the best of three after fewer steps, with a
seed of its own, and then the best outer step where a row has several. *Bytes* are those of one
worker, for ours with the header: up is its message, down what it receives. Sums are received as one
sum, with the bits that it needs; messages that cannot be added (top-k), from all others. "x" is the
bytes of float32 gradients in every step over these.

*The private row* hides a whole silo of 8, with epsilon 8 at delta 1e-5 over all rounds (proven, for
adding or removing one; Gaussian noise on whole numbers that a secure sum shares out). Its clip is
`rate * sqrt(15 * dim)`: Adam moves a number by about `rate` in a step, and in all directions. All
that is known of the noise before the run shrinks its outer step: `1 / (1 + noise^2 / clip^2)`.

Runs can be made in pieces: what `--merge` has is not run again. Nothing is timed with care.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
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
from benchmarks.one_thread import save
from benchmarks.report import print_table
from benchmarks.timing import environment
from benchmarks.transformer_peers import ChunkTopK, Dense, Exchange, Half, PowerSGD, TopK
from diffsketch.errors import ArgumentError
from diffsketch.methods.client_noise import SketchGaussian
from diffsketch.methods.feedback import ErrorFeedback
from diffsketch.methods.gate import release_noise
from diffsketch.methods.plain import PlainSketch
from diffsketch.privacy.claim import Relation, Trust
from diffsketch.privacy.simulated_noise import CohortNoise, NoiseKey
from diffsketch.sketch.hashing import SketchKey

EVERY = 15  # steps between exchanges of weights
NESTEROV, PLAIN = (0.7, 0.6), (1.0, 0.0)  # outer learning rate and momentum
RATES = (3e-4, 1e-3, 3e-3)
TUNING_SEED = 100
SILOS, EPSILON, DELTA = 8, 8.0, 1e-5
LEAST = {"parameters": 10**7, "steps": 2000, "seeds": 3}  # what the goals are about


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
    """A way to exchange: what, how often, and the outer steps to choose from."""

    exchange: Callable[[GPT, Setting, torch.device], Exchange]
    text: str
    every: int = 1
    outer: tuple[tuple[float, float], ...] = (PLAIN,)
    ours: bool = False
    silos: int | None = None  # in place of workers, with as many sequences in all


class Sketched:
    """The mean of tables, of float32 or of few bits, with error feedback or without.

    As `GroupMean` finds it, whose ranks are in processes of their own.
    """

    def __init__(
        self, dim: int, setting: Setting, compression: float, *, bits: int, feedback: bool
    ) -> None:
        workers = setting.workers
        self._method = PlainSketch(dim, 1, math.floor(dim / compression), bits=bits, cohort=workers)
        self._workers, self._round = workers, 0
        self._key, self._noise = SketchKey.from_integer(setting.seed), NoiseKey(bytes(32))
        self.up = float(self._method.wire_bytes)
        self.down = float(self._method.total_format.sum_bytes)
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
        for memory, vector, own, message in zip(
            self._memories, vectors, mixed, messages, strict=False
        ):
            memory.keep(vector, own, self._method.mean_table(message, 1), seed)
        total = messages.sum(0)
        found = self._method.decode(total, seed, count=self._workers)
        self._method, self._round = self._method.after(total, count=self._workers), self._round + 1
        return found


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


def _sketch(compression: float, bits: int, *, feedback: bool, every: int = 1) -> Row:
    def exchange(model: GPT, setting: Setting, _: torch.device) -> Exchange:
        return Sketched(model.dim, setting, compression, bits=bits, feedback=feedback)

    text = f"sketch {compression:g}x, {bits} bits" + (", feedback" if feedback else "")
    return Row(exchange, text, every, (NESTEROV if every > 1 else PLAIN,), ours=True)


def _chunks(kept: int) -> Row:
    def exchange(model: GPT, setting: Setting, device: torch.device) -> Exchange:
        return ChunkTopK(model.shapes, setting.workers, kept, device)

    # The paper's outer step is plain; ours is tried too, since it may be better.
    return Row(exchange, f"SparseLoCo: {kept} of 4,096, 2 bits", EVERY, (PLAIN, NESTEROV))


def _power(rank: int) -> Row:
    def exchange(model: GPT, _: Setting, device: torch.device) -> Exchange:
        return PowerSGD(model.shapes, rank, device)

    return Row(exchange, f"PowerSGD, rank {rank}")


ROWS: dict[str, Row] = {
    "none": Row(lambda model, *_: Dense(model.dim), "all, in float32"),
    "fp16": Row(lambda model, *_: Half(model.dim), "all, in float16"),
    "powersgd-6": _power(6),
    "powersgd-1": _power(1),
    "top-k": Row(lambda m, s, d: TopK(m.dim, s.workers, 50, d), "top-k with memory"),
    "sketch": _sketch(50, 32, feedback=False),
    "sketch-feedback": _sketch(50, 32, feedback=True),
    "sketch-bits": _sketch(6.25, 4, feedback=False),
    "sketch-2-bits": _sketch(3.125, 2, feedback=False),
    "diloco": Row(lambda m, *_: Dense(m.dim), "DiLoCo: all, in float32", EVERY, (NESTEROV,)),
    "sparseloco-64": _chunks(64),
    "sparseloco-256": _chunks(256),
    "local-4x4": _sketch(4, 4, feedback=True, every=EVERY),
    "local-4.8x3": _sketch(4.8, 3, feedback=True, every=EVERY),
    "local-10x4": _sketch(10, 4, feedback=True, every=EVERY),
    "local-10.5x3": _sketch(10.5, 3, feedback=True, every=EVERY),
    "local-10x2": _sketch(10, 2, feedback=True, every=EVERY),
    "private": Row(
        lambda model, setting, _: Private(model.dim, setting),
        f"private: epsilon {EPSILON:g}, {SILOS} silos",
        EVERY, ours=True, silos=SILOS,
    ),
}  # fmt: skip


class Bench:
    """A device with the text, and trainers for batches of each size."""

    def __init__(
        self, params: str, text: Text, device: torch.device, *, compiled: bool, batches: int
    ) -> None:
        self.model, self.text, self.device = GPT(SIZES[params]), text.to(device), device
        self._compiled, self._batches = compiled, batches
        self._trainers: dict[tuple[int, int], Trainer] = {}
        self._initial = lru_cache(lambda seed: self.model.initial(seed).to(device))

    def run(self, row: Row, setting: Setting, outer: tuple[float, float]) -> dict[str, Any]:
        """Train and judge once."""
        if row.silos is not None:
            each = setting.sequences * setting.workers // row.silos
            setting = replace(setting, workers=row.silos, sequences=max(1, each))
        sizes = (setting.workers, setting.sequences)
        if sizes not in self._trainers:
            # To compile for one row would take longer than it saves.
            compiled = self._compiled and row.silos is None
            self._trainers[sizes] = Trainer(self.model, self.text, *sizes, compiled=compiled)
        trainer, began = self._trainers[sizes], time.perf_counter()
        exchange = row.exchange(self.model, setting, self.device)
        center = self._initial(setting.seed).clone()
        generator = torch.Generator(self.device).manual_seed(setting.seed)
        shape = (setting.steps, setting.workers, setting.sequences)
        starts = draw_starts(self.text, self.model.size.context, shape, generator)
        rates = schedule(setting.steps, setting.rate)
        try:
            if row.every == 1:
                every_step(trainer, exchange, center, starts, rates)
            else:
                local_steps(trainer, exchange, center, starts, rates, row.every, outer)
        except ArgumentError:  # ours refuse to send what is not finite
            center.fill_(math.nan)
        loss = trainer.held_out_loss(center, batches=self._batches)
        seconds, rounds = time.perf_counter() - began, setting.steps // row.every
        return {
            "rate": setting.rate, "outer": outer if row.every > 1 else None, "seed": setting.seed,
            "steps": setting.steps, "loss": loss if math.isfinite(loss) else None,
            "up": exchange.up * rounds, "down": exchange.down * rounds,
            "epsilon": getattr(exchange, "epsilon", None), "seconds": seconds,
        }  # fmt: skip


def every_step(
    trainer: Trainer, exchange: Exchange, center: Tensor, starts: Tensor, rates: Sequence[float]
) -> None:
    """Exchange gradients in every step; all workers have the same weights, which `center` gets."""
    trainer.restart(center)
    for batches, rate in zip(starts, rates, strict=True):
        trainer.backward(batches)
        trainer.grads.copy_(exchange.mean(trainer.grads))
        trainer.step(rate)
    center.copy_(trainer.weights[0])


def local_steps(
    trainer: Trainer,
    exchange: Exchange,
    center: Tensor,
    starts: Tensor,
    rates: Sequence[float],
    every: int,
    outer: tuple[float, float],
) -> None:
    """Exchange what so many steps of each worker did to the weights; steps left over are not made.

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


def tune(bench: Bench, row: Row, setting: Setting, rates: Sequence[float]) -> list[dict[str, Any]]:
    """Try all learning rates, then the other outer steps with the best."""
    setting = replace(setting, seed=TUNING_SEED)
    found = [bench.run(row, replace(setting, rate=rate), row.outer[0]) for rate in rates]
    best = replace(setting, rate=best_of(found)["rate"])
    return found + [bench.run(row, best, outer) for outer in row.outer[1:]]


def run_once(
    bench: Bench,
    name: str,
    setting: Setting,
    rates: Sequence[float],
    tuning_steps: int,
    result: dict[str, Any],
) -> None:
    """Tune a row unless it is tuned already, run it, and add to the results."""
    row, outer = ROWS[name], ROWS[name].outer[0]
    tried = [run for run in result["tuning"] if run["row"] == name]
    if tuning_steps and not tried:
        short = replace(setting, steps=tuning_steps)
        tried = [{"row": name} | run for run in tune(bench, row, short, rates)]
        result["tuning"] += tried
    if tried:
        best = best_of(tried)
        setting = replace(setting, rate=best["rate"])
        outer = tuple(best["outer"]) if best["outer"] else outer
    run = bench.run(row, setting, outer)
    result["runs"].append({"row": name} | run)
    loss = "-" if run["loss"] is None else f"{run['loss']:.4f}"
    each = f"{run['seconds'] / setting.steps * 1e3:.2f} ms a step"
    print(f"  {name}, seed {setting.seed}, rate {setting.rate:g}: {loss}, {each}", flush=True)


def best_of(runs: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    return min(runs, key=lambda run: math.inf if run["loss"] is None else run["loss"])


@dataclass(frozen=True)
class Summary:
    """A row's results: the mean loss over the seeds, and how many fewer bytes went each way."""

    name: str
    loss: float
    losses: tuple[float, ...]
    up: float
    down: float
    run: Mapping[str, Any]

    @property
    def both(self) -> float:
        """Times fewer bytes, in the direction that has more of them."""
        return min(self.up, self.down)


def summaries(result: Mapping[str, Any]) -> dict[str, Summary]:
    """Summarise the runs by row, in the order of `ROWS`."""
    found = {}
    for name in ROWS:
        runs = [run for run in result["runs"] if run["row"] == name]
        if not runs:
            continue
        losses = tuple(math.inf if run["loss"] is None else run["loss"] for run in runs)
        dense = 4 * result["parameters"] * runs[0]["steps"]
        up, down = dense / runs[0]["up"], dense / runs[0]["down"]
        found[name] = Summary(name, statistics.mean(losses), losses, up, down, runs[0])
    return found


@dataclass(frozen=True)
class Goal:
    """A goal, what was found, and whether that reaches it; None if rows are missing."""

    name: str
    text: str
    found: str
    reached: bool | None


def goals(rows: Mapping[str, Summary]) -> list[Goal]:
    """Judge the goals from what was found."""
    local = [
        row for name, row in rows.items()
        if ROWS[name].ours and ROWS[name].every > 1 and ROWS[name].silos is None
    ]  # fmt: skip

    def at_least(times: float, *, both: bool = True) -> Summary | None:
        fitting = [row for row in local if (row.both if both else row.up) >= times]
        return min(fitting, key=lambda row: row.loss, default=None)

    def judge(name: str, text: str, one: Summary | None, other: str, factor: float) -> Goal:
        peer = rows.get(other)
        if one is None or peer is None:
            return Goal(name, text, "not run", None)
        ratio = one.loss / peer.loss
        shown = f"{one.name} ({one.up:,.0f}x up, {one.down:,.0f}x down) {one.loss:.4f}, "
        shown += f"{other} ({peer.up:,.0f}x, {peer.down:,.0f}x) {peer.loss:.4f}: {ratio - 1:+.1%}"
        return Goal(name, text, shown, ratio <= factor)

    found = [
        judge("a", f">= {times:,}x both ways within {share:.1%} of DiLoCo", at_least(times),
              "diloco", 1 + share)
        for times, share in ((450, 0.005), (1000, 0.015))
    ]  # fmt: skip
    text = ">= 1,000x both ways better than PowerSGD at 40x"
    found.append(judge("b", text, at_least(1000), "powersgd-6", 1.0))
    for name in ("sparseloco-64", "sparseloco-256"):
        text = f"with no more bytes up, better than {name}"
        best = at_least(rows[name].up, both=False) if name in rows else None
        found.append(judge("c", text, best, name, 1.0))
    each = [rows[name] for name in ("sketch-bits", "sketch-2-bits") if name in rows]
    step = min(each, key=lambda row: row.loss, default=None)
    found.append(judge("d", "50x up in every step, within 5% of float32", step, "none", 1.05))
    text = "50x up in every step, better than PowerSGD at as many bytes"
    found.append(judge("d", text, step, "powersgd-6", 1.0))
    hidden, shown = rows.get("private"), "not run"
    if hidden is not None:
        epsilon = hidden.run["epsilon"]
        shown = f"epsilon {epsilon:.2f} at delta {DELTA:g} over the run: loss {hidden.loss:.4f}"
    text = "with a proven epsilon of 8 for each silo, the loss is reported"
    return [*found, Goal("e", text, shown, None if hidden is None else hidden.run["epsilon"] <= 8)]


def show(result: dict[str, Any]) -> None:
    """Print the table and the goals, and keep the goals."""
    rows = summaries(result)
    lines = []
    for name, row in rows.items():
        kind, outer = ROWS[name], row.run["outer"]
        lines.append([
            name, kind.text, "each step" if kind.every == 1 else f"every {kind.every}",
            f"{row.up:,.0f}x", f"{row.down:,.0f}x",
            f"{row.run['rate']:g}" + (f", {outer[0]:g}/{outer[1]:g}" if outer else ""),
            f"{row.loss:.4f}", " ".join(f"{loss:.4f}" for loss in row.losses),
        ])  # fmt: skip
    headers = ["row", "what is sent", "when", "fewer bytes up", "down", "rate", "loss", "seeds"]
    title = f"{result['parameters'] / 1e6:.1f}M parameters, {result['setting']['steps']} steps"
    print_table(title, headers, lines)
    found = goals(rows)
    seeds = min((len(row.losses) for row in rows.values()), default=0)
    sizes = {"parameters": result["parameters"], "seeds": seeds}
    sizes |= {"steps": result["setting"]["steps"]}
    if short := [f"{name} >= {LEAST[name]:,}" for name in LEAST if sizes[name] < LEAST[name]]:
        print(f"This run is smaller than what the goals are about: {', '.join(short)}")
    said = {True: "reached", False: "NOT reached", None: "-"}
    for goal in found:
        print(f"({goal.name}) {goal.text}: {said[goal.reached]}\n      {goal.found}")
    result["goals"] = [asdict(goal) for goal in found]


def merged(paths: Sequence[Path]) -> dict[str, Any]:
    """Put pieces of one benchmark together; the first piece's environment is kept."""
    pieces = [json.loads(path.read_text()) for path in paths]
    for key in ("setting", "text", "parameters", "rates", "tuning_steps"):
        if any(piece[key] != pieces[0][key] for piece in pieces):
            raise SystemExit(f"pieces of one benchmark must have the same {key}")
    found: dict[str, Any] = pieces[0]
    for part, keys in (("tuning", ("row", "rate", "outer")), ("runs", ("row", "seed"))):
        known = {
            json.dumps([run[key] for key in keys]): run for piece in pieces for run in piece[part]
        }
        found[part] = list(known.values())
    return found


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--params", choices=SIZES, default="small")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, help="150 for small, else 2010")
    parser.add_argument("--tuning-steps", type=int, help="75 for small, else 1005; 0: no tuning")
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--sequences", type=int, help="of a worker's batch: 8 for small, else 16")
    parser.add_argument("--batches", type=int, default=32, help="of 64 held-out sequences")
    parser.add_argument("--text-bytes", type=int, default=60_000_000, help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-compile", action="store_true", help="PyTorch compiles nothing")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no run after these")
    parser.add_argument("--merge", type=Path, nargs="+", help="results that need not be run again")
    parser.add_argument("--show", action="store_true", help="run nothing, show what was merged")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args(arguments)
    defaults = {"steps": (150, 2010), "tuning_steps": (75, 1005), "sequences": (8, 16)}
    for name, (small, large) in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, small if options.params == "small" else large)
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options, began = parse(arguments), time.perf_counter()
    known = merged(options.merge) if options.merge else None
    if options.show and known is not None:
        show(known)
        save(known, options.json)
        return
    device = torch.device(options.device)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
    text = installed_sources(options.text_bytes)
    bench = Bench(
        options.params, text, device, compiled=not options.no_compile, batches=options.batches
    )
    setting = Setting(options.params, options.steps, options.workers, options.sequences)
    common = {key: value for key, value in asdict(setting).items() if key not in ("seed", "rate")}
    result: dict[str, Any] = environment(device) | {
        "setting": common, "text": text.facts(), "parameters": bench.model.dim,
        "rates": options.rates, "tuning_steps": options.tuning_steps, "tuning": [], "runs": [],
    }  # fmt: skip
    if known is not None:
        if any(known[key] != result[key] for key in ("setting", "text", "rates", "tuning_steps")):
            raise SystemExit("what is merged must be of the same benchmark: setting, text, rates")
        result |= {key: known[key] for key in ("tuning", "runs")}
    for seed in options.seeds:  # all rows with one, then with the next: time may be short
        for name in options.rows:
            if time.perf_counter() - began > options.seconds:
                break
            if any(run["row"] == name and run["seed"] == seed for run in result["runs"]):
                continue
            one = replace(setting, seed=seed)
            run_once(bench, name, one, options.rates, options.tuning_steps, result)
            save(result, options.json)  # so that a broken run leaves something
    show(result)
    save(result, options.json)


if __name__ == "__main__":
    main()
