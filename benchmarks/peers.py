"""Other ways to compute a Count Sketch: torch, NumPy, SciPy, CSVec, and loops in Numba and C.

    python -m benchmarks.peers    # the loops against ours, with warm and with cold caches

We are generous to the peers: float32, columns and signs computed beforehand (8 + 4 bytes per row
and coordinate that we do not need), and results and scratch written to memory that is allocated
beforehand wherever their interface has `out=`. NumPy and SciPy use one thread whatever is asked.
"""

from __future__ import annotations

import ctypes
import importlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from benchmarks.timing import Job, available_memory
from diffsketch.sketch import CountSketch, SketchKey
from diffsketch.sketch.hashing import FAMILIES, HashSeed, SketchLayout, columns_and_signs
from diffsketch.sketch.kernels.estimators import estimator

MAX_INDEX_BYTES = 4 * 10**9
MAX_MEMORY_SHARE = 0.5  # of the memory that is free, for one peer
HASHED_DIM = 10**7  # beyond this the peers' columns are drawn at random: as fast, sooner ready


@dataclass(frozen=True)
class Problem:
    """A vector to encode, its `pairwise` table to query, and where to write the estimates."""

    layout: SketchLayout
    seed: HashSeed
    vector: Tensor
    table: Tensor
    out: Tensor

    @property
    def entries(self) -> int:
        """Non-zeros of the sketch's matrix."""
        return self.layout.rows * self.layout.dim


def peer_jobs(problem: Problem, note: Callable[[str], None]) -> list[Job]:
    """The peers that fit into memory and are installed; `note` hears about the others."""
    device = problem.vector.device
    index_bytes = 8 * problem.entries
    if index_bytes > MAX_INDEX_BYTES:
        note(f"all peers skipped: their columns would take {index_bytes / 1e9:.0f} GB")
        return []
    if not _fits(problem, 16, device, "torch", note):
        return []
    columns, signs = _index(problem)
    scratch = torch.empty_like(signs)
    jobs = _torch_encode(problem, columns, signs, scratch)
    jobs += _torch_query(problem, columns, signs, scratch)
    if device.type == "cpu":
        jobs += _numpy_jobs(problem, columns, signs) + loop_jobs(problem, columns, signs, note)
        if not _installed("scipy"):
            note("SciPy skipped: not installed")
        else:
            jobs += _clarkson_woodruff(problem)
            if _fits(problem, 10, device, "SciPy sparse", note):
                with_csr = _fits(problem, 20, device, "SciPy sparse CSR", note)
                jobs += _scipy_sparse(problem, columns, signs, with_csr=with_csr)
    if not _installed("csvec"):
        note("CSVec skipped: not installed")
    elif _fits(problem, 16, device, "CSVec", note) and _fits(
        problem, 40, torch.device("cpu"), "CSVec", note
    ):
        jobs += _csvec_jobs(problem)
    return jobs


def _fits(
    problem: Problem, bytes_per_entry: int, device: torch.device, name: str,
    note: Callable[[str], None],
) -> bool:  # fmt: skip
    needed = bytes_per_entry * problem.entries
    fits = needed <= MAX_MEMORY_SHARE * available_memory(device)
    if not fits:
        note(f"{name} skipped: it would take {needed / 1e9:.0f} GB of {device} memory")
    return fits


def _installed(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def _index(problem: Problem) -> tuple[Tensor, Tensor]:
    """Columns (int64) and signs (float32), both `(rows, dim)`."""
    layout, device = problem.layout, problem.vector.device
    shape = (layout.rows, layout.dim)
    if layout.dim > HASHED_DIM:
        columns = torch.randint(layout.cols, shape, device=device)
        signs = torch.randint(2, shape, dtype=torch.float32, device=device)
        return columns, signs.mul_(2).sub_(1)
    columns, signs = torch.empty(shape, dtype=torch.int64), torch.empty(shape)
    for start in range(0, layout.dim, 1 << 20):
        part = slice(start, min(start + (1 << 20), layout.dim))
        hashed = columns_and_signs(np.arange(part.start, part.stop), problem.seed, layout=layout)
        columns[:, part], signs[:, part] = map(torch.from_numpy, hashed)
    return columns.to(device), signs.to(device)


def _torch_encode(problem: Problem, columns: Tensor, signs: Tensor, scratch: Tensor) -> list[Job]:
    vector, table = problem.vector, torch.zeros_like(problem.table)

    def scatter_add() -> Tensor:
        torch.mul(signs, vector, out=scratch)
        return table.zero_().scatter_add_(1, columns, scratch)

    def index_add() -> Tensor:
        table.zero_()
        for row, column, sign in zip(table, columns, signs, strict=True):
            row.index_add_(0, column, torch.mul(sign, vector, out=scratch[0]))
        return table

    return [
        Job("torch scatter_add_", "encode", scatter_add, comparable=True),
        Job("torch index_add_", "encode", index_add, comparable=True),
    ]


def _torch_query(problem: Problem, columns: Tensor, signs: Tensor, scratch: Tensor) -> list[Job]:
    """Gather, then torch's median, or the minima and maxima of a selection network."""
    table, out, (rows, dim) = problem.table, problem.out, signs.shape
    where = torch.empty(dim, dtype=torch.int64, device=out.device)

    def median() -> Tensor:
        torch.gather(table, 1, columns, out=scratch).mul_(signs)
        torch.median(scratch, dim=0, out=(out, where))
        return out

    def network() -> Tensor:
        values = list(torch.gather(table, 1, columns, out=scratch).mul_(signs))
        for i, j in estimator("median", rows).comparators:
            low, high = torch.minimum(values[i], values[j]), torch.maximum(values[i], values[j])
            values[i], values[j] = low, high
        return out.copy_(values[rows // 2])

    return [
        Job("torch gather + median", "query", median, comparable=True),
        Job("torch gather + min/max network", "query", network, comparable=True),
    ]


def _numpy_jobs(problem: Problem, columns: Tensor, signs: Tensor) -> list[Job]:
    vector, cols = problem.vector.numpy(), problem.layout.cols
    rows = list(zip(columns.numpy(), signs.numpy(), strict=True))
    scratch, table = np.empty_like(vector), np.empty(problem.table.shape, dtype=np.float32)

    def bincount() -> Tensor:
        for j, (column, sign) in enumerate(rows):
            weights = np.multiply(sign, vector, out=scratch)
            table[j] = np.bincount(column, weights, minlength=cols)
        return torch.from_numpy(table)

    return [Job("NumPy bincount", "encode", bincount, comparable=True)]


@njit(fastmath=True, nogil=True)
def _numba_encode(vector: Any, columns: Any, signs: Any, table: Any) -> None:
    table[:] = 0
    for j in range(columns.shape[0]):
        for i in range(vector.size):
            table[j, columns[j, i]] += signs[j, i] * vector[i]


@njit(fastmath=True, nogil=True)
def _numba_query(table: Any, columns: Any, signs: Any, network: Any, out: Any) -> None:
    rows, values = columns.shape[0], np.zeros((columns.shape[0], 256), np.float32)
    for start in range(0, out.size, 256):
        count = min(256, out.size - start)
        for j in range(rows):
            for k in range(count):
                values[j, k] = signs[j, start + k] * table[j, columns[j, start + k]]
        for c in range(network.shape[0]):  # a comparator for all coordinates at once: vectorised
            one, two = values[network[c, 0]], values[network[c, 1]]
            for k in range(256):
                one[k], two[k] = min(one[k], two[k]), max(one[k], two[k])
        for k in range(count):
            out[start + k] = (values[(rows - 1) // 2, k] + values[rows // 2, k]) / 2


_C_LOOPS = """
#include <string.h>
void encode(const float *x, const int *column, const float *sign, float *table,
            long n, long rows, long cols) {
    memset(table, 0, rows * cols * sizeof(float));
    for (long j = 0; j < rows; j++)
        for (long i = 0; i < n; i++)
            table[j * cols + column[j * n + i]] += sign[j * n + i] * x[i];
}
void query(const float *table, const int *column, const float *sign, float *out,
           long n, long rows, long cols, const int *network, long comparators) {
    static float values[64][256];
    for (long start = 0; start < n; start += 256) {
        long count = n - start < 256 ? n - start : 256;
        for (long j = 0; j < rows; j++)
            for (long k = 0; k < count; k++) {
                long i = j * n + start + k;
                values[j][k] = sign[i] * table[j * cols + column[i]];
            }
        for (long c = 0; c < comparators; c++) {
            float *one = values[network[2 * c]], *two = values[network[2 * c + 1]];
            for (long k = 0; k < 256; k++) {
                float a = one[k], b = two[k];
                one[k] = a < b ? a : b;
                two[k] = a < b ? b : a;
            }
        }
        for (long k = 0; k < count; k++)
            out[start + k] = (values[(rows - 1) / 2][k] + values[rows / 2][k]) / 2;
    }
}
"""


def loop_jobs(
    problem: Problem, columns: Tensor, signs: Tensor, note: Callable[[str], None]
) -> list[Job]:
    """The loops that an engineer would write, in Numba and in C; they use one thread.

    Medians are taken by a network of minima and maxima, over many coordinates at once.
    """
    vector, out = problem.vector.numpy(), problem.out.numpy()
    where, sign = columns.numpy().astype(np.int32), signs.numpy()
    cells, table = problem.table.numpy(), np.empty(problem.table.shape, np.float32)
    network = np.array(estimator("median", len(cells)).comparators, np.int32).reshape(-1, 2)

    def numba_encode() -> Tensor:
        _numba_encode(vector, where, sign, table)
        return torch.from_numpy(table)

    def numba_query() -> Tensor:
        _numba_query(cells, where, sign, network, out)
        return problem.out

    jobs = [
        Job("Numba loop", "encode", numba_encode, comparable=True),
        Job("Numba loop", "query", numba_query, comparable=True),
    ]
    compiler = shutil.which("cc")
    if compiler is None:
        note("C loop skipped: there is no compiler")
        return jobs
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "loops.c"), Path(folder, "loops.so")
        source.write_text(_C_LOOPS)
        options = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC"]
        subprocess.run([compiler, *options, str(source), "-o", str(library)], check=True)  # noqa: S603
        loops = ctypes.CDLL(str(library))
        torch.set_flush_denormal(False)  # loading it turned this on, for the whole process
    sizes = [ctypes.c_long(k) for k in (vector.size, *cells.shape)]

    def call(name: str, source: Any, to: Any, result: Tensor) -> Tensor:
        addresses = [ctypes.c_void_p(array.ctypes.data) for array in (source, where, sign, to)]
        further = ctypes.c_void_p(network.ctypes.data), ctypes.c_long(len(network))
        getattr(loops, name)(*addresses, *sizes, *(further if name == "query" else ()))
        return result

    encoded = torch.from_numpy(table)
    return [
        *jobs,
        Job("C loop", "encode", lambda: call("encode", vector, table, encoded), comparable=True),
        Job("C loop", "query", lambda: call("query", cells, out, problem.out), comparable=True),
    ]


def _scipy_sparse(problem: Problem, columns: Tensor, signs: Tensor, *, with_csr: bool) -> list[Job]:
    """The sketch as a sparse matrix, built beforehand, times the vector."""
    sparse: Any = importlib.import_module("scipy.sparse")
    rows, dim = signs.shape
    cols, vector = problem.layout.cols, problem.vector.numpy()
    indices = np.empty((dim, rows), dtype=np.int32)
    data = np.empty((dim, rows), dtype=np.float32)
    for j in range(rows):
        indices[:, j] = columns[j].numpy() + j * cols
        data[:, j] = signs[j].numpy()
    starts = np.arange(0, rows * dim + 1, rows, dtype=np.int32)
    csc = sparse.csc_array((data.reshape(-1), indices.reshape(-1), starts), (rows * cols, dim))

    def product(name: str, matrix: Any) -> Job:
        return Job(
            name,
            "encode",
            lambda: torch.from_numpy(matrix @ vector).view(rows, cols),
            comparable=True,
        )

    jobs = [product("SciPy sparse CSC", csc)]
    return [*jobs, product("SciPy sparse CSR", csc.tocsr())] if with_csr else jobs


def _clarkson_woodruff(problem: Problem) -> list[Job]:
    """One call gives one row. It draws its hash on each call, which the others do beforehand."""
    linalg: Any = importlib.import_module("scipy.linalg")
    layout, vector = problem.layout, problem.vector.numpy()[:, None]

    def transform() -> list[Any]:
        draw = linalg.clarkson_woodruff_transform
        return [draw(vector, layout.cols) for _ in range(layout.rows)]

    return [Job("SciPy clarkson_woodruff", "encode", transform)]


def _csvec_jobs(problem: Problem) -> list[Job]:
    """CSVec, with its hashes computed beforehand."""
    layout, vector = problem.layout, problem.vector
    kind: Any = importlib.import_module("csvec").CSVec
    sketch = kind(
        d=layout.dim, c=layout.cols, r=layout.rows, device=vector.device.type, numBlocks=1
    )
    sys.modules[kind.__module__].cache.clear()  # or it keeps the hashes of every case

    def accumulate() -> Any:
        sketch.zero()
        sketch.accumulateVec(vector)
        return sketch.table

    return [Job("CSVec", "encode", accumulate), Job("CSVec", "query", sketch._findAllValues)]


def main() -> None:
    """Print the loops' times against ours, with warm caches and after they were emptied."""
    torch.set_num_threads(1)
    seed, sweep = SketchKey.from_integer(0).seed(0), np.zeros(1 << 25)
    for dim, rows, cols in ((7850, 7, 22), (10**6, 5, 4000), (10**7, 5, 40_000)):
        vector = torch.randn(dim)
        sketches = {name: CountSketch(dim, rows, cols, name) for name in FAMILIES}
        tables = {name: sketch.encode(vector, seed) for name, sketch in sketches.items()}
        layout, out = sketches["pairwise"], torch.zeros(dim)
        problem = Problem(layout, seed, vector, tables["pairwise"], out)
        jobs = loop_jobs(problem, *_index(problem), print)
        for name, sketch in sketches.items():
            jobs += [
                Job(name, "encode", partial(sketch.encode, vector, seed)),
                Job(name, "query", partial(sketch.query, tables[name], seed, out=out)),
            ]
        for job in sorted(jobs, key=lambda job: job.operation):
            times: dict[bool, list[float]] = {False: [], True: []}
            job.run()
            for cold in [False, True] * 9:
                if cold:
                    sweep += 1
                start = time.perf_counter()
                job.run()
                times[cold].append(time.perf_counter() - start)
            warm, cold_one = (1e6 * statistics.median(times[cold]) for cold in (False, True))
            size = f"{dim:>10,} to {rows}x{cols:<6,}"
            print(f"{size} {job.operation} {job.name:12} {warm:10.1f} us, cold {cold_one:10.1f} us")


if __name__ == "__main__":
    main()
