"""What others send when a model is trained together: exchanges to compare with.

An exchange turns the vectors of all workers, `(workers, dim)`, into what every worker applies, and
says how many bytes a worker sends (`up`) and receives (`down`) for it. Where sums are sent, a
worker receives one sum; where messages cannot be added, those of all others.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["ChunkTopK", "Dense", "Exchange", "Half", "PowerSGD", "Rounded", "TopK"]

CHUNK, INDEX_BITS, VALUE_BITS = 4096, 12, 2
LEVELS = 1 << VALUE_BITS
LEAST_COMPRESSION = 2  # of a matrix, or PowerSGD sends it as it is


class Exchange(Protocol):
    """A way to make one vector of those of all workers."""

    @property
    def up(self) -> float:
        """Bytes that a worker sends."""

    @property
    def down(self) -> float:
        """Bytes that a worker receives."""

    def mean(self, vectors: Tensor) -> Tensor:
        """Compute what all workers apply; the vectors may be overwritten."""


class Dense:
    """Sums in float32."""

    def __init__(self, dim: int) -> None:
        self.up = self.down = 4.0 * dim

    def mean(self, vectors: Tensor) -> Tensor:
        """Compute the mean."""
        return vectors.mean(0)


class Half:
    """Sums in float16, divided before they are summed: torch's `fp16_compress_hook`."""

    def __init__(self, dim: int) -> None:
        self.up = self.down = 2.0 * dim

    def mean(self, vectors: Tensor) -> Tensor:
        """Compute the mean, in float16."""
        total = torch.zeros_like(vectors[0], dtype=torch.float16)
        for vector in vectors:
            total += vector.to(torch.float16) / len(vectors)
        return total.float()


class PowerSGD:
    """Low-rank factors of each matrix, as torch's `powerSGD_hook` sums them.

    With error feedback and a warm start, from the first step on. Vectors, and matrices that become
    less than twice as small, are summed as they are. Factors are linear in the vectors, so the mean
    of the errors is all that matters.

    Args:
        shapes: Of the parameters, in the order of the vector.
        rank: Of the factors.
        device: Where they are.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], rank: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        starts: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.up, offset = 0.0, 0
        for shape in shapes:
            size = math.prod(shape)
            if len(shape) == 2 and sum(shape) * rank * LEAST_COMPRESSION < size:
                starts[shape[0], shape[1]].append(offset)
                self.up += 4 * sum(shape) * rank
            else:
                self.up += 4 * size
            offset += size
        self.down = self.up
        self._starts = starts  # matrices of a shape, which are handled together
        self._right = {
            shape: torch.randn(len(found), shape[1], rank, generator=generator).to(device)
            for shape, found in starts.items()
        }
        self._error = torch.zeros(offset, device=device)

    def mean(self, vectors: Tensor) -> Tensor:
        """Approximate the mean and keep what is missing."""
        wanted = vectors.mean(0).add_(self._error)
        found = wanted.clone()
        for (rows, cols), starts in self._starts.items():
            size = rows * cols
            matrices = torch.stack([wanted[at : at + size].view(rows, cols) for at in starts])
            left = _orthonormal(matrices @ _orthonormal(self._right[rows, cols]))
            self._right[rows, cols] = right = matrices.mT @ left
            for at, matrix in zip(starts, left @ right.mT, strict=True):
                found[at : at + size] = matrix.reshape(-1)
        torch.sub(wanted, found, out=self._error)
        return found


def _orthonormal(columns: Tensor) -> Tensor:
    """Orthonormal bases of what the columns span: by Cholesky, in float64, for speed."""
    wide = columns.double()
    gram = wide.mT @ wide
    rank = gram.shape[-1]
    scale = gram.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None] + 1e-30
    gram = gram + 1e-12 * scale * torch.eye(rank, dtype=gram.dtype, device=gram.device)
    factor, _ = torch.linalg.cholesky_ex(gram)
    found: Tensor = torch.linalg.solve_triangular(factor, wide.mT, upper=False).mT
    return found.to(columns.dtype)


class Rounded:
    """Single coordinates in few bits, with memory of what was not sent.

    All of them, or a share: a random one that all workers share, or one after the other. One bit is
    a sign, times the mean size of 4,096 coordinates; two are the four values of least error for
    Gaussian ones, of their root mean square. Sizes are averaged over the workers, so that values
    can be summed; a sum has the bits of its whole numbers.

    Args:
        dim: Length of the vectors.
        workers: Whose messages are summed.
        bits: 1 or 2.
        share: Of the coordinates in an exchange.
        cyclic: Whether shares follow each other in the vector.
        device: Where the memories are.
    """

    def __init__(
        self, dim: int, workers: int, bits: int, device: torch.device, *, share: int = 1,
        cyclic: bool = False,
    ) -> None:  # fmt: skip
        self._bits, self._share, self._cyclic = bits, share, cyclic
        length, wide = -(-dim // share), bits + (workers - 1).bit_length()
        sizes = 4 * -(-length // CHUNK)
        self.up, self.down = length * bits / 8 + sizes, length * wide / 8 + sizes
        self._length, self._round = length, 0
        self._generator = torch.Generator(device).manual_seed(5)
        self._error = torch.zeros(workers, dim, device=device)

    def mean(self, vectors: Tensor) -> Tensor:
        """Add up what was sent."""
        wanted = self._error.add_(vectors)
        dim, device = wanted.shape[1], wanted.device
        if self._cyclic:
            begin = self._round % self._share * self._length
            chosen = torch.arange(begin, min(begin + self._length, dim), device=device)
        else:
            chosen = torch.randperm(dim, generator=self._generator, device=device)[: self._length]
        self._round += 1
        values = wanted[:, chosen]
        padded = torch.nn.functional.pad(values, (0, -values.shape[1] % CHUNK))
        chunks = padded.view(len(values), -1, CHUNK)
        there = torch.nn.functional.pad(torch.ones_like(values[0]), (0, -values.shape[1] % CHUNK))
        counts = there.view(-1, CHUNK).sum(1)
        if self._bits == 1:
            sizes = (chunks.abs().sum(2) / counts).mean(0)[None, :, None]
            sent = torch.where(chunks > 0, sizes, -sizes)
        else:
            sizes = (chunks.square().sum(2) / counts).sqrt().mean(0)[None, :, None]
            level = torch.where(chunks.abs() > 0.9816 * sizes, 1.510, 0.4528)
            sent = torch.where(chunks > 0, sizes, -sizes) * level
        sent = sent.flatten(1)[:, : values.shape[1]]
        total = torch.zeros(dim, device=device)
        total[chosen] = sent.mean(0)
        wanted[:, chosen] -= sent
        return total


class TopK:
    """The largest numbers of each worker, float32 with 32-bit indices; the rest is kept for later.

    Args:
        dim: Length of the vectors.
        workers: Whose messages are gathered.
        compression: Bytes of a vector over those of a message.
        device: Where the memories are.
    """

    def __init__(self, dim: int, workers: int, compression: float, device: torch.device) -> None:
        self._count = max(1, round(dim / compression / 2))
        self.up = 8.0 * self._count
        self.down = self.up * (workers - 1)
        self._error = torch.zeros(workers, dim, device=device)

    def mean(self, vectors: Tensor) -> Tensor:
        """Add up what was sent."""
        wanted = self._error.add_(vectors)
        total = torch.zeros_like(vectors[0])
        for row in wanted:
            indices = row.abs().topk(self._count, sorted=False).indices
            total.index_add_(0, indices, row[indices])
            row[indices] = 0.0
        return total / len(vectors)


class ChunkTopK:
    """The largest numbers of every chunk: SparseLoCo's scheme (arXiv 2508.15706).

    A worker adds its vector to its error, which decays, and sends the largest `kept` of each 4,096
    numbers of a parameter, with indices of 12 bits and values of 2: a sign, and whether the size is
    above the mean. The four values that these stand for are the means of each parameter's numbers,
    in float32 beside them.

    Args:
        shapes: Of the parameters, in the order of the vector.
        workers: Whose messages are gathered.
        kept: Of each chunk.
        decay: Of the error.
        device: Where the memories are.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        workers: int,
        kept: int,
        device: torch.device,
        *,
        decay: float = 0.95,
    ) -> None:
        self._kept, self._decay = kept, decay
        sizes = torch.tensor([math.prod(shape) for shape in shapes])
        chunks = -(-sizes // CHUNK)
        ends = torch.cumsum(chunks, 0)
        # Where each number is among the chunks: those of a parameter begin with a new one.
        shift = (ends - chunks) * CHUNK - (torch.cumsum(sizes, 0) - sizes)
        dim = int(sizes.sum())
        self._places = (torch.arange(dim) + shift.repeat_interleave(sizes)).to(device)
        self._owner = torch.arange(len(shapes)).repeat_interleave(chunks).to(device)
        self._cells, self._parameters = int(ends[-1]) * CHUNK, len(shapes)
        full, rest = sizes // CHUNK, sizes % CHUNK
        numbers = int((full * kept + rest.clamp(max=kept)).sum())
        self.up = numbers * (INDEX_BITS + VALUE_BITS) / 8 + 4.0 * LEVELS * len(shapes)
        self.down = self.up * (workers - 1)
        self._error = torch.zeros(workers, dim, device=device)

    def mean(self, vectors: Tensor) -> Tensor:
        """Add up what was sent."""
        wanted = self._error.mul_(self._decay).add_(vectors)
        total = torch.zeros_like(vectors[0])
        for row in wanted:
            sent = self._sent(row)
            row -= sent
            total += sent
        return total / len(vectors)

    def _sent(self, vector: Tensor) -> Tensor:
        chunks = vector.new_zeros(self._cells).index_copy_(0, self._places, vector)
        chunks = chunks.view(-1, CHUNK)
        indices = chunks.abs().topk(self._kept, dim=1, sorted=False).indices
        values = chunks.gather(1, indices)
        sizes, owner = values.abs(), self._owner[:, None]
        there = (values != 0).to(values.dtype)  # a short parameter's chunk is filled with zeros
        middle = self._by_owner(sizes.sum(1)) / self._by_owner(there.sum(1)).clamp(min=1)
        level = 2 * (values > 0).long() + (sizes > middle[owner]).long()
        is_level = (level[..., None] == torch.arange(LEVELS, device=level.device)) * there[
            ..., None
        ]
        sums, counts = self._by_owner((values[..., None] * is_level).sum(1)), is_level.sum(1)
        means = sums / self._by_owner(counts).clamp(min=1)
        rounded = means[owner, level] * there
        kept = torch.zeros_like(chunks).scatter_(1, indices, rounded)
        return kept.view(-1)[self._places]

    def _by_owner(self, values: Tensor) -> Tensor:
        """Sums of chunks' values over each parameter."""
        found = values.new_zeros(self._parameters, *values.shape[1:])
        return found.index_add_(0, self._owner, values)
