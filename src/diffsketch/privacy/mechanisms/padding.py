"""The paper's appended noise: Gaussian numbers at the end of a vector, sketched with it.

With `S_real` and `S_pad` the parts of the sketch's matrix that meet the vector and the numbers,

    table = S_real g + S_pad z  ~  N(S_real g, std^2 G),    G = S_pad S_pad'.

*Two ways to draw it.* It is made so, `padding` numbers for each worker; or it is drawn from that
very distribution as `std L z`, with `L L' = G` and as many standard Gaussian numbers z as the table
has cells. L belongs to the round's hashes and is computed once for all workers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diffsketch.privacy.noise import Noise
from diffsketch.sketch.count_sketch import CountSketch
from diffsketch.sketch.gram import gram, products
from diffsketch.sketch.hashing import HashSeed

# Nanoseconds, on a processor of 2.5 GHz: what appending numbers costs and what a factor does.
_APPENDED = 12  # to draw a number and to add it to all rows
_COUNTED = 1.1  # to count a coordinate, or a run of them, for two rows
_CELL = 30  # to write a number of G
_FACTORED = 0.012  # of a factorisation, times cells^3
_WORKERS = 10  # of a small cohort, who share a factor

_GROUP = 1 << 24  # numbers of extended vectors that are there at a time: 64 MiB


def factor(
    sketch: CountSketch, seed: HashSeed, start: int, stop: int | None = None
) -> Tensor | None:
    """L, lower triangular, with `L L' = G` for the coordinates from `start` to `stop` (or the end).

    It factors G up to `(cells + 1) unit trace(G)`, unit = 2^-53 (Higham, "Accuracy and Stability",
    theorem 10.3). None where G is singular, or so near to it that rounding hides whether it is.
    The last one is kept with the seed.
    """
    key, stop = ("factor", sketch, start), sketch.dim if stop is None else stop
    # Counts of the span that was asked for last, and its factor.
    counted, counts, lower = seed.memo.get(key, (start, 0.0, None))
    if stop < counted:
        counted, counts, lower = start, 0.0, None
    if stop > counted:
        # G of a longer padding is that of a shorter one, and of the numbers between.
        counts = counts + gram(sketch, seed, counted, stop)
        matrix = torch.from_numpy(counts)
        lower, info = torch.linalg.cholesky_ex(matrix)
        # Regular only if its least pivot is above what rounding can make of a zero.
        rounding = 16 * len(lower) * 2.0**-53 * float(matrix.trace())
        if info.item() != 0 or float(lower.diagonal().min()) ** 2 <= rounding:
            lower = None
        seed.memo[key] = stop, counts, lower
    result: Tensor | None = lower
    return result


def is_factored(sketch: CountSketch, start: int, stop: int) -> bool:
    """Whether noise in the coordinates from `start` to `stop` is cheaper to draw by a factor of G.

    Decided by the sizes alone, for a cohort of ten: a worker's noise must not depend on how many
    others there are.
    """
    rows, cells = sketch.rows, sketch.rows * sketch.cols
    padding = stop - start
    if padding < cells:
        return False  # G is singular
    geometry = sketch.geometry
    # What is counted: a coordinate by itself, or a run, which costs as much however long it is.
    units = padding if sketch.family == "pairwise" else min(padding, geometry.runs)
    counted = _COUNTED * units * rows * (rows + 1) / 2
    return counted + _CELL * cells**2 + _FACTORED * cells**3 < _WORKERS * _APPENDED * padding


def padded_tables(
    vectors: Tensor,
    sketch: CountSketch,
    *,
    seed: HashSeed,
    std: Tensor,
    noise: Noise,
    lengths: Tensor | None = None,
) -> Tensor:
    """Tables of `(workers, dim)` vectors with Gaussian numbers appended to each.

    Worker `i` appends `lengths[i]` numbers, or as many as there is room for in the sketch, of
    standard deviation `std[i]`, from its own row of the noise. All have the hashes of the sketch's
    whole length, so that tables can be added up.

    Guarantees (`tests/privacy/test_padding.py`): both ways have the same distribution, a worker's
    table is the same alone and in any batch, and which way is taken follows from the sizes and the
    hashes alone.
    """
    dim, cells = vectors.shape[-1], sketch.rows * sketch.cols
    full = torch.full((len(vectors),), sketch.dim - dim)
    lengths = full if lengths is None else lengths.cpu()
    # By the longer sketch, whose other coordinates count as zeros.
    tables = sketch.encode(vectors, seed, offset=0)
    # The shortest first, so that each factor goes on with the counts of the one before.
    for length in sorted(set(lengths.tolist()) - {0}):
        workers, stop = (lengths == length).nonzero().flatten(), dim + length
        lower = factor(sketch, seed, dim, stop) if is_factored(sketch, dim, stop) else None
        if lower is not None:
            normals = noise.part(workers).normal((len(workers), cells), 1.0, dtype=torch.float64)
            mixed = torch.from_numpy(products(lower.numpy(), normals.numpy()))
            # L z has the covariance G: times the deviation, that of the appended numbers.
            drawn = mixed * std[workers].cpu().double()[:, None]
            tables[workers] += drawn.reshape(-1, sketch.rows, sketch.cols).to(tables)
            continue
        # In groups: a thousand vectors with 20n appended numbers would not fit into memory.
        for group in workers.split(max(1, _GROUP // stop)):
            normals = noise.part(group).normal((len(group), length), 1.0, dtype=vectors.dtype)
            appended = normals.to(vectors.device)
            appended *= std[group, None].to(appended)
            extended = torch.cat([vectors[group], appended], dim=-1)
            tables[group] = sketch.encode(extended, seed, offset=0)
    return tables
