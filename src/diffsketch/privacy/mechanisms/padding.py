"""The paper's appended noise: Gaussian numbers at the end of a vector, sketched with it.

With `S_real` and `S_pad` the parts of the sketch's matrix that meet the vector and the numbers,

    table = S_real g + S_pad z  ~  N(S_real g, std^2 G),    G = S_pad S_pad'.

*Two ways to draw it.* It is made so, `padding` numbers for each worker; or it is drawn from that
very distribution as `std L z`, with `L L' = G` and as many standard Gaussian numbers z as the table
has cells. L belongs to the round's hashes and is computed once for all workers.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.privacy.simulated_noise import Noise
from diffsketch.sketch.count_sketch import CountSketch
from diffsketch.sketch.hashing import HashSeed

_Matrix: TypeAlias = npt.NDArray[np.float64]
# Nanoseconds, on a processor of 2.5 GHz: what appending numbers costs and what a factor does.
_APPENDED = 12  # to draw a number and to add it to all rows
_COUNTED = 1.1  # to count a coordinate, or a run of them, for two rows
_CELL = 30  # to write a number of G
_FACTORED = 0.012  # of a factorisation, times cells^3
_WORKERS = 10  # of a small cohort, who share a factor

_GROUP = 1 << 24  # numbers of extended vectors that are there at a time: 64 MiB


def gram(sketch: CountSketch, seed: HashSeed, start: int, stop: int) -> _Matrix:
    """`S S'` of the coordinates from `start` to `stop`, dense; whole numbers, hence exact."""
    from diffsketch.sketch import gram as counts  # at first use: it takes Numba

    return counts.gram(seed, sketch.layout, start, stop)


def factor(sketch: CountSketch, seed: HashSeed, start: int) -> Tensor | None:
    """L, lower triangular, with `L L' = G` for the coordinates from `start` on.

    It factors G up to `(cells + 1) unit trace(G)`, unit = 2^-53 (Higham, "Accuracy and Stability",
    theorem 10.3). None where G is singular, or so near to it that rounding hides whether it is.
    Kept with the seed where noise is drawn with it.
    """
    key = "factor", sketch, start
    if key in seed.memo:
        kept: Tensor | None = seed.memo[key]
        return kept
    result = _factor(gram(sketch, seed, start, sketch.dim))
    if is_factored(sketch, start):
        seed.memo[key] = result
    return result


def _factor(counts: _Matrix) -> Tensor | None:
    # Regular only if its least pivot is above what rounding can make of a zero.
    matrix = torch.from_numpy(counts)
    lower, info = torch.linalg.cholesky_ex(matrix)
    rounding = 16 * len(lower) * 2.0**-53 * float(matrix.trace())
    regular = info.item() == 0 and float(lower.diagonal().min()) ** 2 > rounding
    return lower if regular else None


def is_factored(sketch: CountSketch, start: int, stop: int | None = None) -> bool:
    """Whether noise in the coordinates from `start` on is cheaper to draw by a factor of G.

    By the sizes alone, for a cohort of ten, whoever takes part: a worker's noise must not depend
    on how many others there are.
    """
    rows, cells = sketch.rows, sketch.rows * sketch.cols
    padding = (sketch.dim if stop is None else stop) - start
    if padding < cells:
        return False  # G is singular
    geometry = sketch.layout.geometry
    units = padding if sketch.family == "pairwise" else min(padding, geometry.runs)
    counted = _COUNTED * units * rows * (rows + 1) / 2
    return counted + _CELL * cells**2 + _FACTORED * cells**3 < _WORKERS * _APPENDED * padding


def padded_tables(
    vectors: Tensor, sketch: CountSketch, *, seed: HashSeed, std: Tensor, noise: Noise
) -> Tensor:
    """Tables of `(workers, dim)` vectors, Gaussian numbers appended up to the sketch's length.

    Worker `i` appends numbers of standard deviation `std[i]`, from its own row of the noise.

    Guarantees (`tests/privacy/test_padding.py`): both ways have the same distribution, a worker's
    table is the same alone and in any batch, and which way is taken follows from the sizes and the
    hashes alone.
    """
    workers, dim = vectors.shape
    lower = factor(sketch, seed, dim) if is_factored(sketch, dim) else None
    if lower is not None:
        from diffsketch.sketch import gram as counts

        normals = noise.normal((workers, len(lower)), 1.0, dtype=torch.float64)
        products = torch.from_numpy(counts.products(lower.numpy(), normals.numpy()))
        drawn = products * std.cpu().double()[:, None]
        table = sketch.encode(vectors, seed, offset=0)
        return table + drawn.reshape(table.shape).to(table)
    tables = vectors.new_empty(workers, sketch.rows, sketch.cols)
    # In groups: a thousand vectors with 20n appended numbers would not fit into memory.
    size = max(1, _GROUP // sketch.dim)  # workers whose vectors fit into memory
    for start in range(0, workers, size):
        stop = min(start + size, workers)
        group = slice(start, stop)
        source = noise if workers <= size else noise.part(torch.arange(start, stop))
        shape = stop - start, sketch.dim - dim
        appended = source.normal(shape, 1.0, dtype=vectors.dtype).to(vectors.device)
        appended *= std[group, None].to(appended)
        tables[group] = sketch.encode(torch.cat([vectors[group], appended], dim=-1), seed)
    return tables


def own_padded_tables(
    vectors: Tensor,
    sketch: CountSketch,
    lengths: Tensor,
    *,
    seed: HashSeed,
    std: Tensor,
    noise: Noise,
) -> Tensor:
    """`padded_tables` where worker `i` appends `lengths[i]` numbers, as many as there is room for.

    All have the hashes of the sketch's whole length, so that tables can be added up. G of a longer
    padding is that of a shorter one and of the numbers between: all workers' take one count.
    """
    dim, cells = vectors.shape[-1], sketch.rows * sketch.cols
    tables, drawn = sketch.encode(vectors, seed, offset=0), dict[int, Tensor]()
    order: list[int] = torch.argsort(lengths, stable=True).tolist()
    stops = {worker: dim + int(lengths[worker]) for worker in order}
    factored = [worker for worker in order if is_factored(sketch, dim, stops[worker])]
    counts, counted = np.zeros((cells, cells)), dim
    if factored:
        source = noise.part(torch.tensor(factored))
        normals = source.normal((len(factored), cells), 1.0, dtype=torch.float64)
        for worker, standard in zip(factored, normals, strict=True):
            if stops[worker] > counted:
                counts += gram(sketch, seed, counted, stops[worker])
            counted, lower = stops[worker], _factor(counts)
            if lower is not None:
                drawn[worker] = (lower @ standard).reshape(sketch.rows, sketch.cols)
    for worker in order:
        if worker not in drawn and stops[worker] > dim:
            shape = 1, stops[worker] - dim
            appended = noise.part(torch.tensor([worker])).normal(shape, 1.0, dtype=vectors.dtype)
            drawn[worker] = sketch.encode(appended, seed, offset=dim)[0].double()
    for worker, table in drawn.items():
        tables[worker] += (table * float(std[worker])).to(tables)
    return tables
