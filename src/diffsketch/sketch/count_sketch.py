"""The Count Sketch: a linear map from a long vector to a small table, and estimates back.

A vector is given whole, or as items: its coordinates that are not zero, each with its value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, DiffSketchError, MismatchError, check
from diffsketch.sketch.hashing import MAX_DIM, MAX_KEYS, HashSeed, SketchLayout
from diffsketch.sketch.kernels import INPUT_TYPES, kernels_for, new_result
from diffsketch.sketch.kernels.estimators import COMBINES, Combine


@dataclass(frozen=True)
class CountSketch(SketchLayout):
    """A Count Sketch of vectors with `dim` coordinates in tables of `rows` by `cols` cells.

    A vector may be dense (`encode`, `query`) or a few items (`encode_items`, `query_items`), with
    any 64-bit key as their coordinate: the table is the same.

    Row `j` adds every coordinate, with a random sign, to one of its `cols` cells; the estimate of a
    coordinate is the median over the rows of the cells it was added to, with the signs undone.
    The map is linear: tables of the same seed add up to the table of the summed vector.

    Guarantees (each checked in `tests/sketch`):
        * one row's estimate is unbiased with variance at most `||vector||^2 / cols`;
        * `encode(x + y) == encode(x) + encode(y)` up to rounding;
        * on the CPU, and for `blocked` vectors on CUDA, the same input gives the same bits every
          time, whatever the number of threads; devices agree to rounding;
        * the table of items is that of the vector, up to rounding.

    Args:
        dim: Length of the vectors, up to 2**40; of items in `pairwise` up to 2**64.
        rows: Rows of the table, 1 to 64. An even number averages the two middle values.
        cols: Columns of the table, below 2**31.
        family: `blocked` moves whole blocks and is fast; `pairwise` hashes every coordinate on its
            own, as the paper does. `diffsketch.sketch.hashing` defines both.

    >>> from diffsketch import SketchKey
    >>> sketch = CountSketch(dim=1000, rows=5, cols=100)
    >>> seed = SketchKey.from_integer(7).seed(round_index=0)
    >>> vector = torch.zeros(1000)
    >>> vector[3] = 2.5
    >>> table = sketch.encode(vector, seed)
    >>> table.shape, sketch.query(table, seed)[3].item(), sketch.compression
    (torch.Size([5, 100]), 2.5, 2.0)

    References:
        M. Charikar, K. Chen, M. Farach-Colton, "Finding frequent items in data streams", 2002.
    """

    @property
    def compression(self) -> float:
        """Coordinates per cell: how much smaller a table is than a vector of the same type."""
        return self.dim / (self.rows * self.cols)

    def encode(self, vector: Tensor, seed: HashSeed, *, offset: int | None = None) -> Tensor:
        """The table `(rows, cols)` of a vector, or `(batch, rows, cols)` of a batch of vectors.

        A non-finite coordinate makes a non-finite cell, which `query` refuses. No
        gradient flows through: the table is made of the vector's values.

        Args:
            vector: `(dim,)` or `(batch, dim)`; float32, float64, or float16 and bfloat16, which
                are summed in float32.
            seed: The round's hashes, from `SketchKey.seed`.
            offset: If given, `vector` holds only the coordinates from `offset` on, as many as it
                is long; the others count as zero. Tables of a vector's parts add up to its table.
        """
        check_seed(seed)
        if not isinstance(vector, Tensor) or not 1 <= vector.dim() <= 2:
            raise _wrong("vector must be a tensor (dim,) or (batch, dim)", vector)
        kernels = kernels_for(vector.device)
        if vector.dtype not in INPUT_TYPES:
            allowed = ", ".join(str(kind).removeprefix("torch.") for kind in INPUT_TYPES)
            raise _wrong(f"vector must be one of {allowed}", vector)
        if vector.layout != torch.strided:
            raise ArgumentError(f"vector must be dense, got a {vector.layout} tensor")
        if offset is None:
            self._check_length(vector, "vector")
        # Only a part of a vector may be shorter than `dim`.
        start = self._check_span(offset, vector.shape[-1])
        if vector.requires_grad:
            vector = vector.detach()
        if vector.is_neg():
            vector = vector.resolve_neg()
        return kernels.encode(vector.contiguous(), seed, layout=self, offset=start)

    def encode_items(
        self, keys: Tensor, values: Tensor | float, seed: HashSeed, *, offsets: Tensor | None = None
    ) -> Tensor:
        """The table `(rows, cols)` of items, or `(people, rows, cols)` of the items of each person.

        It is the table of the vector that is `values[i]` at the coordinate `keys[i]`, summed where
        a key is repeated, and zero elsewhere. A table of all items is summed in float64, whatever
        its type: a million ones are not lost on a large cell.

        Args:
            keys: `(items,)`, int64 or uint64, below `dim`. Negative int64 are the uint64 with the
                same bits, and so valid where `dim` is 2**64. `hash_keys` makes keys of strings.
            values: `(items,)`, or one number for all, such as 1 to count. A table has the type of
                float32 and float64 values; it is float32 for halves, and float64, and so exact up
                to 2**53, for whole numbers, booleans, and numbers of Python.
            seed: The round's hashes, from `SketchKey.seed`.
            offsets: `(people + 1,)`, int64, as in SciPy's CSR: the items of person `p` are those
                from `offsets[p]` up to `offsets[p + 1]`. None: one table of all items.

        >>> from diffsketch import SketchKey
        >>> sketch = CountSketch(dim=2**64, rows=5, cols=100, family="pairwise")
        >>> seed = SketchKey.from_integer(7).seed(round_index=0)
        >>> keys = torch.tensor([3, -1, 3])
        >>> table = sketch.encode_items(keys, 1, seed)
        >>> sketch.query_items(table, keys, seed).tolist()
        [2.0, 1.0, 2.0]
        >>> sketch.encode_items(keys, 1, seed, offsets=torch.tensor([0, 2, 3])).sum(0).equal(table)
        True
        """
        check_seed(seed)
        self._check_keys(keys)
        if not isinstance(values, Tensor):
            plain = isinstance(values, int | float)
            check(plain, "values", "be a tensor or a number", values)
            values = torch.tensor(values, dtype=torch.float64, device=keys.device)
        if values.dim() > 1 or (values.dim() == 1 and len(values) != len(keys)):
            raise _wrong(f"values must be ({len(keys)},) like keys", values)
        if values.device != keys.device or values.is_complex():
            raise _wrong("values must be real and where keys are", values, MismatchError)
        if values.dtype in (torch.float16, torch.bfloat16):
            values = values.float()
        elif values.dtype != torch.float32:
            values = values.double()
        if offsets is not None:
            # Kernels follow them without looking: wrong ones would read beyond the keys.
            _check_offsets(offsets, keys)
            offsets = offsets.contiguous()
        # A single number, of no dimensions, becomes one value that kernels take for all keys.
        values = values.detach().resolve_neg().reshape(-1).contiguous()
        return kernels_for(keys.device).encode_items(
            keys.contiguous(), values, seed, layout=self, offsets=offsets
        )

    def query(
        self,
        table: Tensor,
        seed: HashSeed,
        *,
        combine: Combine = "median",
        offset: int | None = None,
        out: Tensor | None = None,
        validate: bool = True,
    ) -> Tensor:
        """Estimates of all coordinates from a table, `(dim,)`, or `(batch, dim)` from a batch.

        Args:
            table: `(rows, cols)` or `(batch, rows, cols)`, float32 or float64, of one seed.
            seed: The seed that the table was encoded with.
            combine: `median` of the rows' estimates, robust to large coordinates; or their `mean`,
                which has the smaller error where no coordinate stands out or noise was added.
            offset: With `out`: the coordinate that `out` starts at.
            out: Where to write the estimates; contiguous, of the table's type and device. Its
                length says how many coordinates are estimated.
            validate: Look for non-finite cells. On the CPU that is done first, and nothing is
                written if there are any; on CUDA it waits for the device, and `out` is written.

        Raises:
            ArgumentError: If `table` is not of this sketch's shape, or has a non-finite cell.
        """
        table = self._checked(table, seed, combine)
        if out is None:
            if offset is not None:
                raise ArgumentError("offset needs out, whose length says how many to estimate")
            self._check_dense()
            lead = table.shape[:1] if table.dim() == 3 else ()
            out = new_result(table, (*lead, self.dim))
        else:
            _check_out(out, table)
            if offset is None:
                self._check_length(out, "out")
        start = self._check_span(offset, out.shape[-1])
        is_fine = kernels_for(table.device).query(
            table, seed, out,
            layout=self, offset=start, combine=combine, validate=validate,
        )  # fmt: skip
        if not is_fine:
            raise _not_finite()
        return out

    def query_items(
        self, table: Tensor, keys: Tensor, seed: HashSeed, *, combine: Combine = "median"
    ) -> Tensor:
        """Estimates of these coordinates only, `(keys,)`, or `(batch, keys)` from a batch.

        Args:
            table: `(rows, cols)` or `(batch, rows, cols)`, float32 or float64, of one seed.
            keys: `(keys,)`, as in `encode_items`, in any order.
            seed: The seed that the table was encoded with.
            combine: As in `query`.
        """
        table = self._checked(table, seed, combine, finite=True)
        self._check_keys(keys)
        if keys.device != table.device:
            raise MismatchError(f"keys must be on {table.device} like the table, got {keys.device}")
        return kernels_for(table.device).query_items(
            table, keys.contiguous(), seed, layout=self, combine=combine
        )

    def add_residual(
        self,
        out: Tensor,
        vector: Tensor,
        table: Tensor,
        seed: HashSeed,
        *,
        scale: float = 1.0,
        combine: Combine = "median",
        scratch: Tensor,
    ) -> None:
        """`out += scale * (vector - query(table))`: add what the estimates miss of a vector.

        It takes one pass over the memory, but for `pairwise` and short rows on CUDA.

        Args:
            out: `(dim,)`, of the table's type and device, contiguous.
            vector: `(dim,)`.
            table: `(rows, cols)`, finite.
            seed: The seed that the table was encoded with.
            scale: How much of it.
            combine: As in `query`.
            scratch: Like `out`; overwritten where it takes more than a pass, so it must not alias
                `out` or `vector`.
        """
        if isinstance(scale, bool) or not isinstance(scale, int | float):
            raise ArgumentError(f"scale must be a number, got scale={scale!r}")
        check(math.isfinite(scale), "scale", "be finite", scale)
        table = self._checked(table, seed, combine)
        if table.dim() != 2:
            raise _wrong("table must be a tensor (rows, cols)", table)
        for name, value in (("out", out), ("scratch", scratch), ("vector", vector)):
            _check_out(value, table, name)
            self._check_length(value, name)
        # The second pass writes the estimates there before it reads the other two.
        if scratch.data_ptr() in (out.data_ptr(), vector.data_ptr()):
            raise ArgumentError("scratch must be in memory of its own, not that of out or vector")
        if vector.is_neg():
            vector = vector.resolve_neg()
        kernels = kernels_for(table.device)
        if not kernels.add_residual(
            out, vector, table, seed, layout=self, scale=float(scale), combine=combine
        ):
            kernels.query(
                table, seed, scratch, layout=self, offset=0, combine=combine, validate=False
            )
            out.add_(torch.sub(vector, scratch, out=scratch), alpha=scale)

    def top_k(
        self, table: Tensor, seed: HashSeed, count: int, *, combine: Combine = "median"
    ) -> tuple[Tensor, Tensor]:
        """The `count` coordinates with the largest estimates in size: their values and indices."""
        check(type(count) is int, "count", "be an int", count)
        check(0 <= count <= self.dim, "count", f"be in 0..dim={self.dim}", count)
        self._check_dense()
        table = self._checked(table, seed, combine, finite=True)
        return kernels_for(table.device).top_k(table, seed, count, layout=self, combine=combine)

    def _check_dense(self) -> None:
        listed = "be at most 2**40 where all coordinates are estimated (see query_items)"
        check(self.dim <= MAX_DIM, "dim", listed, self.dim)

    def _check_keys(self, keys: Tensor) -> None:
        """Raise unless keys are 64-bit words below `dim`. On CUDA it waits for the device."""
        if (
            not isinstance(keys, Tensor)
            or keys.dim() != 1
            or keys.dtype not in (torch.int64, torch.uint64)
        ):
            raise _wrong("keys must be int64 or uint64 (items,)", keys)
        # Then every 64-bit word is a key.
        if self.dim == MAX_KEYS or not len(keys):
            return
        words = keys.view(torch.int64)
        # Signed minimum and maximum in one pass; a negative word is a key of 2**63 or more.
        low, high = (int(end) for end in torch.aminmax(words))
        if low >= 0 and high < self.dim:
            return
        at = int((words ^ -(1 << 63)).argmax())  # with the top bit turned: as if without a sign
        if int(words[at]) % (1 << 64) >= self.dim:
            raise ArgumentError(f"keys must be in [0, dim={self.dim}), got keys[{at}]={keys[at]}")

    def _check_length(self, vectors: Tensor, name: str) -> None:
        if vectors.shape[-1] != self.dim:
            raise _wrong(f"{name} must have dim={self.dim} coordinates", vectors)

    def _check_span(self, offset: int | None, length: int) -> int:
        if offset is None:
            return 0
        # Positions of dense vectors are 40-bit numbers in all kernels, whatever `dim` is.
        last = min(self.dim, MAX_DIM) - length
        if type(offset) is not int or not 0 <= offset <= last:
            raise ArgumentError(
                f"offset must be in 0..{last} for {length} coordinates, got offset={offset!r}"
            )
        return offset

    def _checked(
        self, table: Tensor, seed: HashSeed, combine: Combine, *, finite: bool = False
    ) -> Tensor:
        """The table as kernels take it, if it can be read with this seed and estimator."""
        check_seed(seed)
        if not isinstance(table, Tensor) or not 2 <= table.dim() <= 3:
            raise _wrong("table must be a tensor (rows, cols) or (batch, rows, cols)", table)
        if table.shape[-1] != self.cols or table.shape[-2] != self.rows:
            text = f"table must have rows={self.rows} and cols={self.cols}"
            raise _wrong(text, table, MismatchError)
        if table.dtype not in (torch.float32, torch.float64):
            raise _wrong("table must be float32 or float64", table)
        if combine not in COMBINES:
            raise ArgumentError(f"combine must be {' or '.join(COMBINES)}, got combine={combine!r}")
        if finite and not bool(torch.isfinite(table).all()):
            raise _not_finite()
        return (table.detach() if table.requires_grad else table).contiguous()


def _not_finite() -> ArgumentError:
    return ArgumentError(
        "table must be finite, but it has NaN or infinite cells: a vector that was encoded had "
        "non-finite or overflowing coordinates"
    )


def check_seed(seed: HashSeed) -> None:
    """Raise unless `seed` is a `HashSeed`."""
    if not isinstance(seed, HashSeed):
        raise _wrong("seed must be a HashSeed, as SketchKey.seed(round_index) gives", seed)


def _check_offsets(offsets: Tensor, keys: Tensor) -> None:
    if (
        not isinstance(offsets, Tensor)
        or offsets.dim() != 1
        or offsets.dtype != torch.int64
        or offsets.device != keys.device
        or not len(offsets)
    ):
        raise _wrong(f"offsets must be int64 (people + 1,) on {keys.device}", offsets)
    ends = int(offsets[0]), int(offsets[-1])
    check(ends == (0, len(keys)), "offsets", f"begin with 0 and end with {len(keys)} items", ends)
    check(bool((offsets.diff() >= 0).all()), "offsets", "never decrease", offsets)


def _check_out(out: Tensor, table: Tensor, name: str = "out") -> None:
    if not isinstance(out, Tensor) or out.requires_grad:
        raise _wrong(f"{name} must be a tensor that needs no gradient", out)
    batched = table.dim() == 3
    if (
        out.dim() != (2 if batched else 1)
        or (batched and len(out) != len(table))
        or not out.is_contiguous()
    ):
        raise _wrong(f"{name} must be contiguous with a vector per table", out)
    if out.dtype != table.dtype or out.device != table.device:
        text = f"{name} must be {table.dtype} on {table.device} like the table"
        raise _wrong(text, out, MismatchError)


def _wrong(
    requirement: str, value: object, kind: type[DiffSketchError] = ArgumentError
) -> DiffSketchError:
    """The error that says what a value must be, and what it is."""
    description = f"a {type(value).__name__}"
    if isinstance(value, Tensor):
        description = f"a {value.dtype} tensor of shape {tuple(value.shape)} on {value.device}"
    return kind(f"{requirement}, got {description}")
