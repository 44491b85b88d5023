"""Tables of vectors that Gaussian numbers are appended to, by the cheaper of two ways.

The sketch is linear, so the table of an extended vector is the vector's own plus that of the
appended numbers. With hashes that are given, the latter is a linear map of independent Gaussian
numbers, and thus Gaussian itself with mean 0 and covariance `std^2 G`, `G = S_pad S_pad'`: nothing
else about how it was made is left in it. Hence it is either made so, `padding` numbers for each
worker; or it is drawn from that very distribution as `std L z`, with `L L' = G` and as many
standard Gaussian numbers z as the table has cells. L belongs to the round's hashes and is computed
once for all workers. Both have the same distribution, up to rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diffsketch.privacy.mechanisms.covariance import factor, is_factored
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.count_sketch import CountSketch
from diffsketch.sketch.hashing import HashSeed

__all__ = ["in_groups", "padded_tables"]

_GROUP = 1 << 24  # numbers of extended vectors that are there at a time: 64 MiB


def padded_tables(
    vectors: Tensor, sketch: CountSketch, *, seed: HashSeed, std: Tensor, noise: Noise
) -> Tensor:
    """Tables of vectors that are as long as the sketch's once Gaussian numbers are appended.

    Guarantees (`tests/privacy/test_appended.py`): both ways have the same distribution, a worker's
    table is the same alone and in any batch, and which way is taken follows from the sizes and the
    hashes alone.

    Args:
        vectors: `(workers, dim)`, shorter than `sketch.dim`.
        sketch: Of the extended vectors.
        seed: The hashes.
        std: Standard deviation of the numbers that each worker appends, `(workers,)`.
        noise: With a row for each worker.
    """
    dim = vectors.shape[-1]
    lower = factor(sketch, seed, dim) if is_factored(sketch, dim) else None
    if lower is None:
        return _extended(vectors, sketch, seed, std, noise)
    drawn = _drawn(lower, len(vectors), noise) * std.cpu().double()[:, None]
    own = sketch.encode(vectors, seed, offset=0)
    return own + drawn.reshape(own.shape).to(own)


def _drawn(lower: Tensor, workers: int, noise: Noise) -> Tensor:
    """`L z` for each worker, in float64."""
    from diffsketch.sketch import gram

    normals = noise.normal((workers, len(lower)), 1.0, dtype=torch.float64)
    return torch.from_numpy(gram.products(lower.numpy(), normals.numpy()))


def _extended(
    vectors: Tensor, sketch: CountSketch, seed: HashSeed, std: Tensor, noise: Noise
) -> Tensor:
    workers, dim = vectors.shape
    tables = vectors.new_empty(workers, sketch.rows, sketch.cols)
    for some, own in in_groups(workers, sketch.dim, noise):
        shape = some.stop - some.start, sketch.dim - dim
        appended = own.normal(shape, 1.0, dtype=vectors.dtype).to(vectors.device)
        appended *= std[some, None].to(appended)
        tables[some] = sketch.encode(torch.cat([vectors[some], appended], dim=-1), seed)
    return tables


def in_groups(workers: int, length: int, noise: Noise) -> list[tuple[slice, Noise]]:
    """Groups of workers whose vectors of this length fit into memory, with the noise of each."""
    size = max(1, _GROUP // length)
    if workers <= size:
        return [(slice(0, workers), noise)]
    starts = range(0, workers, size)
    groups = [slice(start, min(start + size, workers)) for start in starts]
    return [(some, noise.part(torch.arange(some.start, some.stop))) for some in groups]
