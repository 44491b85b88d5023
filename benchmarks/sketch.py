"""How fast are encode and query, against what else computes a Count Sketch and what memory allows?

    python -m benchmarks.sketch --json benchmark-sketch.json
    python -m benchmarks.sketch --sizes 7850,1000000 --threads 1 --quick
    python -m benchmarks.sketch --device cuda --startup

Peers (`benchmarks/peers.py`) and ours run in the same rounds; what counts is the ratio of their
median times. Ours are calls of the public interface, hashing included: `encode`, and `query` with
`out=`, since the peers' results go to memory that is allocated beforehand too (our encode allocates
its table within the timed call; SciPy and CSVec allocate their results as well). The limits are one
read of the vector (`sum`), one write (`fill_`) and both (`copy_`).

On CUDA these are times of the device, which works while the host prepares. `Calls` are times from
a call on an idle device to its end, against three reads of the vector and 50 us, and what rounding
the cells to four bits, and taking sums of such cells from packed words, adds to them.

`Edges` (`--edges`, on a CPU) are calls at a border of the kernels, each beside one on its other
side: at most what the last column says of their work should show in their times.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import torch

import diffsketch
from benchmarks.peers import HASHED_DIM, Problem, peer_jobs
from benchmarks.report import LIMIT_OF, Report, print_table, print_timings, readable, summarise
from benchmarks.timing import Job, available_memory, environment, extra_memory, measure, wait_for
from diffsketch import CountSketch, SketchKey
from diffsketch.errors import DiffSketchError
from diffsketch.sketch.hashing import FAMILIES, Family, HashSeed
from diffsketch.sketch.rounding import SumPacking

# A call, what it is set beside, and the ratio of their work.
Edge: TypeAlias = tuple[str, Callable[[], Any], str, Callable[[], Any], float]

SMALL = (7850, 7, 22)  # the model of the paper's experiments: dim, rows, cols
ROWS = 5
COMPRESSIONS = (50, 500)
BATCH = 1000
MAX_SECONDS = 20.0
MEMORY_DIM = 10**7  # from here on the extra memory is measured as well
DEFAULT_SIZES = {"cpu": (7850, 10**6, 10**7, 10**8), "cuda": (10**8, 10**9)}
QUICK_SIZES = {"cpu": (7850, 10**6), "cuda": (10**7,)}
CALL_SIZES = (10**6, 10**7, 10**8)
CALL_TABLES = ((1, 4), (1, 50), (ROWS, 50))  # rows and compression
CALL_SECONDS = 50e-6  # that a call may take beyond three reads of the vector
CALL_REPEAT = 100
FEW_BITS, SUM_BITS = 4, 8  # of a cell, and of the sum of 16

_STARTUP = """
import json
import time
import torch
dim, device, times = {dim}, "{device}", []
vector, out = torch.ones(dim, device=device), torch.empty(dim, device=device)
start = time.perf_counter()
import diffsketch
seed = diffsketch.SketchKey.from_integer(0).seed(0)
for rows in (5, 7):
    sketch = diffsketch.CountSketch(dim, rows, dim // 250)
    table = sketch.encode(vector, seed)
    table.sum().item()
    times.append(time.perf_counter() - start)
    start = time.perf_counter()
    sketch.query(table, seed, out=out).sum().item()
    times.append(time.perf_counter() - start)
    start = time.perf_counter()
print(json.dumps(times))
"""


def shapes(dim: int) -> list[tuple[int, int]]:
    """The tables, as rows and columns, that vectors of a length are encoded to."""
    if dim == SMALL[0]:
        return [SMALL[1:]]
    return [(ROWS, max(1, dim // (ROWS * compression))) for compression in COMPRESSIONS]


def our_jobs(problem: Problem) -> list[Job]:
    jobs, out = [], problem.out
    for family in FAMILIES:
        layout, seed, vector = problem.layout, problem.seed, problem.vector
        sketch = CountSketch(layout.dim, layout.rows, layout.cols, family)
        table = sketch.encode(vector, seed)
        jobs += [
            Job(family, "encode", _call(sketch.encode, vector, seed), ours=True),
            Job(family, "query", _call(sketch.query, table, seed, out=out), ours=True),
            Job(
                f"{family}, validate=False", "query",
                _call(sketch.query, table, seed, out=out, validate=False), ours=True,
            ),
        ]  # fmt: skip
    return jobs


def _call(function: Any, *arguments: Any, **options: Any) -> Any:
    return lambda: function(*arguments, **options)


def limit_jobs(problem: Problem) -> list[Job]:
    vector, out = problem.vector, problem.out
    return [
        Job("sum", "limit", lambda: torch.sum(vector)),
        Job("copy_", "limit", lambda: out.copy_(vector)),
        Job("fill_", "limit", lambda: out.fill_(1.0)),
    ]


def run_case(dim: int, rows: int, cols: int, report: Report) -> None:
    sketch = CountSketch(dim, rows, cols, "pairwise")
    print(f"\n{dim:,} coordinates to {rows} x {cols:,} ({sketch.compression:.3g}x)", flush=True)
    if 16 * dim > available_memory(report.device):
        report.note(f"dim={dim} skipped: not enough memory")
        return
    vector = torch.randn(dim, device=report.device)
    seed = SketchKey.from_integer(0).seed(round_index=0)
    table = sketch.encode(vector, seed)
    problem = Problem(sketch, seed, vector, table, torch.zeros_like(vector))
    ours, peers = our_jobs(problem), peer_jobs(problem, report.note)
    case = {"dim": dim, "rows": rows, "cols": cols, "compression": sketch.compression}
    agreement = disagreements(problem, ours + peers)
    for threads in report.threads:
        torch.set_num_threads(threads)
        jobs = limit_jobs(problem) + ours + _quick_enough(peers, dim, threads, report)
        timings = measure(jobs, device=report.device, repeat=report.repeat)
        for timing in timings:
            key = (timing.job.name, timing.job.operation, threads)
            report.rates[key] = min(timing.samples) / dim
        print_timings(timings, threads)
        report.cases.append(
            case
            | {"threads": threads, "timings": [timing.as_json() for timing in timings]}
            | {"summary": summarise(timings), "disagreement": agreement}
        )
    if dim >= MEMORY_DIM:
        run_memory(problem, ours, report)


def _quick_enough(peers: list[Job], dim: int, threads: int, report: Report) -> list[Job]:
    kept = []
    for job in peers:
        seconds = dim * report.rates.get((job.name, job.operation, threads), 0.0)
        if seconds <= MAX_SECONDS:
            kept.append(job)
        else:
            report.note(f"{job.name} skipped: a call would take about {seconds:.0f} s")
    return kept


def disagreements(problem: Problem, jobs: Sequence[Job]) -> dict[str, float]:
    """How far the peers with our hashes are from our `pairwise`, relative to its largest value."""
    if problem.layout.dim > HASHED_DIM:
        return {}
    found = {}
    for operation in LIMIT_OF:
        same = [job for job in jobs if job.operation == operation]
        ours = next(job for job in same if job.name == "pairwise").run().clone()
        for job in same:
            if job.comparable:
                gap = (job.run() - ours).abs().max() / ours.abs().max()
                found[f"{operation}: {job.name}"] = gap.item()
    return found


def run_batch(report: Report) -> None:
    """Time per vector of a batch of small vectors, against a call with a single one."""
    dim, rows, cols = SMALL
    seed = SketchKey.from_integer(0).seed(round_index=0)
    vectors = torch.randn(BATCH, dim, device=report.device)
    out = torch.empty_like(vectors)
    for threads in report.threads:
        torch.set_num_threads(threads)
        jobs = []
        for family in FAMILIES:
            sketch = CountSketch(dim, rows, cols, family)
            jobs += _batch_jobs(sketch, seed, vectors, out)
        timings = measure(jobs, device=report.device, repeat=report.repeat)
        lines = []
        for one, many in zip(timings[::2], timings[1::2], strict=True):
            each = many.median / BATCH
            entry = {"family": one.job.name, "operation": one.job.operation, "threads": threads}
            report.batches.append(
                entry | {"batch": BATCH, "single_s": one.median, "per_vector_s": each}
            )
            name = f"{one.job.name} {one.job.operation}"
            lines.append([name, readable(one.median), readable(each), f"{one.median / each:.2f}x"])
        title = f"{BATCH:,} vectors of {dim:,}, {threads} threads"
        print_table(title, ["", "single call", "per vector of a batch", "ratio"], lines)


def _batch_jobs(
    sketch: CountSketch, seed: HashSeed, vectors: torch.Tensor, out: torch.Tensor
) -> list[Job]:
    tables, name = sketch.encode(vectors, seed), sketch.family
    return [
        Job(name, "encode", _call(sketch.encode, vectors[0], seed), ours=True),
        Job(name, "encode", _call(sketch.encode, vectors, seed), ours=True),
        Job(name, "query", _call(sketch.query, tables[0], seed, out=out[0]), ours=True),
        Job(name, "query", _call(sketch.query, tables, seed, out=out), ours=True),
    ]


def run_memory(problem: Problem, jobs: Sequence[Job], report: Report) -> None:
    """Memory that our calls take beyond the vector and the table, as a share of the vector."""
    lines = []
    for job in jobs:
        if job.name not in FAMILIES:
            continue
        taken = extra_memory(job.run, device=report.device)
        if taken is None:
            report.note("extra memory not measured: it needs Linux")
            return
        extra = taken - (problem.table.nbytes if job.operation == "encode" else 0)
        entry = {"family": job.name, "operation": job.operation, "dim": problem.layout.dim}
        share = max(0, extra) / problem.vector.nbytes
        report.memory.append(
            entry | {"cols": problem.layout.cols, "extra_bytes": extra, "share_of_vector": share}
        )
        lines.append([f"{job.name} {job.operation}", f"{extra / 1e6:.2f} MB", f"{share:.2%}"])
    print_table("Extra memory", ["", "beyond vector and table", "of the vector"], lines)


def run_calls(report: Report) -> None:
    """Time from a call on an idle device to its end, and what few bits add to it."""
    lines = []
    for dim in CALL_SIZES:
        vector = torch.randn(dim, device=report.device)
        job = Job("sum", "limit", lambda vector=vector: torch.sum(vector))  # type: ignore[misc]
        (read,) = measure([job], device=report.device, repeat=report.repeat)
        limit = 3 * read.median + CALL_SECONDS
        for rows, compression in CALL_TABLES:
            sketch = CountSketch(dim, rows, dim // (rows * compression))
            times = {name: wait_for(run, repeat=CALL_REPEAT) for name, run in calls(sketch, vector)}
            case = {"dim": dim, "rows": rows, "cols": sketch.cols}
            report.calls.append(case | {"limit_s": limit, "seconds": times})
            shape = f"{dim:,} to {rows}x{sketch.cols:,}"
            for name in ("encode", "query"):
                call, few = times[name], times[f"{name}, few bits"]
                others = (times.get(f"{name}, {what}") for what in ("new seed", "validated"))
                line = [shape, name, readable(limit), readable(call), f"{call / limit:.2f}"]
                line += [readable(time) if time else "-" for time in others]
                lines.append([*line, f"{few / call:.2f}"])
    headers = ["", "", "3 reads + 50 us", "call", "ratio", "new seed", "validated", "few bits"]
    print_table("Calls", headers, lines)


def calls(sketch: CountSketch, vector: torch.Tensor) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Name and function of each call: encode and query, and both with cells of few bits."""
    from diffsketch.sketch.kernels import gpu

    key, rounds = SketchKey.from_integer(0), count()
    seed = key.seed(next(rounds))
    table, out = sketch.encode(vector, seed), torch.empty_like(vector)
    keys = torch.tensor([[3, 4]])
    cells = torch.empty(table.shape, dtype=torch.int8, device=table.device)
    step = 6 * table.std().item() / (1 << FEW_BITS)

    def query(seed: HashSeed = seed, *, validate: bool = False) -> None:
        sketch.query(table, seed, out=out, validate=validate)

    def encode_few() -> None:
        made = sketch.encode(vector, seed)
        tables, to = made.view(1, -1), cells.view(1, -1)
        gpu.round_cells(tables, step, FEW_BITS, keys, to, shift=step / 2, order=math.inf)

    yield "encode", lambda: sketch.encode(vector, seed)
    yield "encode, new seed", lambda: sketch.encode(vector, key.seed(next(rounds)))
    yield "encode, few bits", encode_few
    packing = SumPacking(SUM_BITS, -(1 << (FEW_BITS - 1)), 1)
    packed = packing.pack(cells.view(-1))

    def query_few() -> None:
        table.view(-1).copy_(packing.unpack(packed, table.numel(), torch.float32))
        query()

    yield "query", query
    yield "query, new seed", lambda: query(key.seed(next(rounds)))
    yield "query, validated", lambda: query(validate=True)
    yield "query, few bits", query_few


class _Calls:
    """Calls of one sketch, into memory of their own."""

    def __init__(self, dim: int, rows: int, cols: int, family: Family = "blocked") -> None:
        self.sketch, self.vector = CountSketch(dim, rows, cols, family), torch.randn(dim)
        self.seed = SketchKey.from_integer(0).seed(round_index=0)
        self.table = self.sketch.encode(self.vector, self.seed)
        self.out, self.scratch = torch.zeros(dim), torch.zeros(dim)

    def encode(self) -> torch.Tensor:
        return self.sketch.encode(self.vector, self.seed)

    def query(self) -> torch.Tensor:
        return self.sketch.query(self.table, self.seed, out=self.out)

    def fresh_query(self) -> torch.Tensor:
        return self.sketch.query(self.table, self.seed)

    def residual(self) -> None:
        self.sketch.add_residual(self.out, self.vector, self.table, self.seed, scratch=self.scratch)


def edges() -> Iterator[Edge]:
    """A call at a border, its neighbour, and how much more work the call has."""
    for threads in (1, 2):
        calls = _Calls(10**7, ROWS, 40_000)
        fresh, there = _on(threads, calls.fresh_query), _on(threads, calls.query)
        yield f"query of 10^7, {threads} threads", fresh, "with out=", there, 1.0
    for dim in (32_768, 100_000, 250_000):
        call, least = (_on(1, _Calls(size, ROWS, 200).encode) for size in (dim, dim // 4))
        yield f"encode of {dim:,} to 5x200", call, f"of {dim // 4:,}", least, 4.0
    yield from _edges_of_threads()
    for cols in (1, 4, 12):
        narrow, wide = (_Calls(20_000, ROWS, size) for size in (cols, 16))
        name = f"of 20,000, {cols} columns"
        yield f"encode {name}", _on(1, narrow.encode), "16 columns", _on(1, wide.encode), 1.0
        yield f"query {name}", _on(1, narrow.query), "16 columns", _on(1, wide.query), 1.0
    tall, half = (_on(1, _Calls(10**5, rows, 1000).query) for rows in (64, 32))
    yield "query of 64 rows", tall, "32 rows", half, 2.9  # as many minima and maxima
    calls, other, short = (_Calls(10**6, ROWS, 4000) for _ in range(3))
    other.vector = torch.zeros(10**6 + 1)[1:]
    yield "encode, unaligned", _on(1, other.encode), "aligned", _on(1, calls.encode), 1.0
    short.vector = short.vector.bfloat16()
    yield "encode, bfloat16", _on(1, short.encode), "float32", _on(1, calls.encode), 1.0


def _edges_of_threads() -> Iterator[Edge]:
    """The same call on two threads and on one."""
    for family, dim, cols in (("blocked", 10**6, 4000), ("blocked", 10**7, 40_000),
                              ("pairwise", 10**6, 4000), ("pairwise", 10**7, 40_000)):  # fmt: skip
        calls = _Calls(dim, ROWS, cols, family)  # type: ignore[arg-type]
        for call in (calls.encode, calls.query, calls.residual):
            name = f"{family} {call.__name__} of 10^{math.log10(dim):.0f}, 2 threads"
            yield name, _on(2, call), "1 thread", _on(1, call), 1.0
    for dim in (32_768, 65_536, 131_072, 262_144):
        calls = _Calls(dim, ROWS, 1000)
        for call in (calls.encode, calls.query):
            name = f"{call.__name__} of {dim:,}, 5x1,000, 2 threads"
            yield name, _on(2, call), "1 thread", _on(1, call), 1.0


def _on(threads: int, call: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        torch.set_num_threads(threads)
        return call()

    return run


def run_edges(report: Report) -> None:
    """Least times of calls at borders of the kernels, beside calls on the other side."""
    lines = []
    for name, call, other, beside, work in edges():
        jobs = [Job(name, "step", call, ours=True), Job(other, "step", beside, ours=True)]
        try:
            timings = measure(jobs, device=report.device, repeat=report.repeat)
        except DiffSketchError as error:
            report.note(f"{name}: {error}")
            continue
        here, there = (min(timing.samples) for timing in timings)
        entry = {"call": name, "beside": other, "work": work}
        report.edges.append(entry | {"call_s": here, "beside_s": there})
        times = [readable(here), other, readable(there), f"{here / there:.2f}"]
        lines.append([name, *times, f"{work:g}"])
    headers = ["call", "least", "beside", "least", "ratio", "of work"]
    print_table("Edges", headers, lines)


def run_startup(report: Report, *, dim: int = 10**6) -> dict[str, Any]:
    """Seconds for `import diffsketch` and a first encode, in fresh processes that have torch.

    The first process has to compile, and says how long what it waits for takes.
    """
    code = _STARTUP.format(dim=dim, device=report.device.type)
    samples = []
    with TemporaryDirectory() as directory:
        caches = dict.fromkeys(("NUMBA_CACHE_DIR", "TRITON_CACHE_DIR"), directory)
        for _ in range(4):
            done = subprocess.run(  # noqa: S603 (our own code)
                [sys.executable, "-c", code],
                env={**os.environ, **caches}, capture_output=True, text=True, check=True,
            )  # fmt: skip
            samples.append(json.loads(done.stdout))
    steps = ("import and encode", "query", "encode to other rows", "query of other rows")
    cold = dict(zip(steps, samples[0], strict=True))
    warm = sorted(times[0] for times in samples[1:])
    print(f"\nimport to first encode of {dim:,}: {readable(warm[1])}; nothing compiled:")
    print(", ".join(f"{step} {readable(seconds)}" for step, seconds in cold.items()))
    return {"dim": dim, "compiling_s": cold, "median_s": warm[1], "min_s": warm[0]}


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(float(part)) for part in text.split(","))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    auto = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--sizes", type=_numbers, help="lengths of the vectors: 7850,1e6")
    parser.add_argument("--threads", type=_numbers, help="on a CPU; default: 1 and all cores")
    parser.add_argument("--device", choices=("cpu", "cuda"), default=auto)
    parser.add_argument("--repeat", type=int, help="rounds; default: 9, on CUDA 25")
    parser.add_argument("--quick", action="store_true", help="small sizes and three rounds")
    parser.add_argument("--startup", action="store_true", help="time the first encode as well")
    parser.add_argument("--edges", action="store_true", help="only calls at borders of the kernels")
    parser.add_argument("--json", type=Path, help="where to write all results")
    options = parser.parse_args(argv)
    cuda = options.device == "cuda"
    sizes = QUICK_SIZES if options.quick else DEFAULT_SIZES
    options.sizes = sorted(options.sizes or sizes[options.device])
    options.repeat = options.repeat or (3 if options.quick else 25 if cuda else 9)
    present = torch.get_num_threads()
    options.threads = (present,) if cuda else options.threads or tuple(sorted({1, present}))
    return options


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    device, present = torch.device(options.device), torch.get_num_threads()
    torch.manual_seed(0)
    report = Report(device, options.repeat, options.threads)
    report.result |= environment(device)
    report.result["versions"]["diffsketch"] = diffsketch.__version__
    if (load := report.result["hardware"]["load_average"]) > 0.5:
        report.note(f"other work is running, load {load:.1f}: the times may be far too long")
    for dim in () if options.edges else options.sizes:
        for rows, cols in shapes(dim):
            run_case(dim, rows, cols, report)
            report.save(options.json)
        if dim == SMALL[0]:
            run_batch(report)
    torch.set_num_threads(present)
    if device.type == "cuda":
        run_calls(report)
    if options.edges:
        run_edges(report)
    if options.startup:
        report.result["startup"] = run_startup(report)
    report.save(options.json)
    if report.cases:
        report.print_summary()


if __name__ == "__main__":
    main()
