"""The hash families, written once, plainly; every kernel computes these same numbers.

A family says, for coordinate `i` and row `j`, which column it lands in and with which sign.

**pairwise** (the paper's): each coordinate on its own. The column comes from a strongly universal
multiply-shift, the signs of all rows from one mixing hash of `i` (signs taken from the
multiply-shift as well would follow the coordinates' order: `tests/sketch/test_laws.py`).

**blocked**: no scatter. The vector is cut into blocks of `block` consecutive coordinates and the
blocks are dealt in turn to `runs` runs, at most `slots` blocks each, so a run holds no more
coordinates than a row has columns. In row `j` a run is laid over the row end to end and rotated
by its own random `shift`:

    b = i div block,  run = b mod runs,  slot = b div runs
    column_j(i) = (slot * block + i mod block + shift_j(run)) mod cols
    sign_j(i)   = flip_j(run) * weyl(i)

Two coordinates of one run never share a column; two of different runs do with probability 1/cols,
because the runs' shifts are independent and uniform. Neighbouring blocks are in different runs.
`weyl(i)` is shared by all rows: the top bit of `a * (i mod block) + c` in 32 bits, with fresh
random words `a`, `c` for every block. Any two such bits are exactly independent, and given them
the rows are independent, so the usual variance and median arguments hold as they stand.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Self, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_whole

Family: TypeAlias = Literal["pairwise", "blocked"]
FAMILIES: tuple[Family, ...] = get_args(Family)

Words: TypeAlias = npt.NDArray[np.uint64]

MAX_ROWS = 64
MAX_DIM = 1 << 40  # of vectors, and of the blocked family
MAX_KEYS = 1 << 64  # of items, in the pairwise family: every 64-bit word may be a key
MAX_COLS = (1 << 31) - 1
_MAX_BLOCK = 1 << 14
_WORDS_PER_ROW = 3
_SIGN_WORDS = 2


@dataclass(frozen=True)
class HashSeed:
    """The hash functions of one round: 32 bytes, expanded to 64-bit words by keyed BLAKE2.

    Workers that use the same seed can add their tables; whoever has the seed can query them.
    """

    value: bytes

    def __post_init__(self) -> None:
        _check_secret("value", self.value)

    def words_for(self, rows: int) -> Words:
        """Two words for the signs, then three for each of `rows` rows.

        Those of row `j` do not depend on the number of rows.
        """
        key = "words", rows
        words: Words | None = self.memo.get(key)
        if words is None:
            count = _SIGN_WORDS + _WORDS_PER_ROW * rows
            # Counter mode: each keyed hash of a number gives eight words, and no two share a
            # counter.
            stream = b"".join(
                hashlib.blake2b(
                    i.to_bytes(8, "little"), key=self.value, person=b"ds-hash-words"
                ).digest()
                for i in range(-(-count // 8))
            )
            words = np.frombuffer(stream, dtype="<u8")[:count].astype(np.uint64)
            words.setflags(write=False)
            self.memo[key] = words
        return words

    @cached_property
    def fingerprint(self) -> bytes:
        """Eight bytes that tell two seeds apart without giving either away."""
        return hashlib.blake2b(self.value, digest_size=8, person=b"ds-fingerprint").digest()

    @cached_property
    def memo(self) -> dict[Any, Any]:
        """Values of kernels that follow from the seed: its words, a short vector's hashes."""
        return {}

    def __reduce__(self) -> tuple[type[HashSeed], tuple[bytes]]:
        return HashSeed, (self.value,)

    def __repr__(self) -> str:
        return f"HashSeed(fingerprint={self.fingerprint.hex()})"


@dataclass(frozen=True, repr=False)
class Secret:
    """A secret of 256 bits. Each kind of secret has a purpose, so that no two kinds are equal."""

    secret: bytes

    purpose: ClassVar[bytes]

    def __post_init__(self) -> None:
        _check_secret("secret", self.secret)

    @classmethod
    def from_integer(cls, number: int) -> Self:
        """A key for experiments, where a run is named by a number. Not a secret."""
        check_whole("number", number, least=0, most=(1 << 256) - 1)
        text = number.to_bytes(32, "little")
        return cls(hashlib.blake2b(text, digest_size=32, person=cls.purpose).digest())

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<secret>)"


@dataclass(frozen=True, repr=False)
class SketchKey(Secret):
    """A 256-bit secret shared by the workers, from which every round's hashes are derived.

    >>> key = SketchKey(bytes(32))
    >>> key.seed(0) == key.seed(0), key.seed(0) == key.seed(1)
    (True, False)
    """

    purpose: ClassVar[bytes] = b"ds-number"

    def seed(self, round_index: int) -> HashSeed:
        """The hash seed of a round."""
        if type(round_index) is not int or not 0 <= round_index < 1 << 64:  # it has the words
            check_whole("round_index", round_index, least=0, most=(1 << 64) - 1)
        text = round_index.to_bytes(8, "little")
        return HashSeed(
            hashlib.blake2b(text, key=self.secret, digest_size=32, person=b"ds-round").digest()
        )


@dataclass(frozen=True)
class Geometry:
    """Cut of a vector in the blocked family: blocks of `block`, `runs` runs of `slots` blocks."""

    block: int
    slots: int
    runs: int

    @classmethod
    def of(cls, dim: int, cols: int) -> Geometry:
        """Blocks are a power of two, near an eighth of a row where the row is long enough.

        Fewer, longer blocks would be faster still, but then a cluster of large coordinates hits a
        column either once or never, which the median repairs less well than scattered hits.
        """
        near_eighth = max(16, cols * 1000 // 5657)  # the power of two below is nearest to cols / 8
        block = min(1 << (min(cols, near_eighth).bit_length() - 1), _MAX_BLOCK)
        slots = cols // block
        blocks = -(-dim // block)
        return cls(block=block, slots=slots, runs=max(1, -(-blocks // slots)))


def check_sizes(dim: int, rows: int, cols: int, *, most: int = MAX_DIM) -> None:
    """Raise an `ArgumentError` unless a table may have these sizes, for vectors of up to `most`."""
    for name, value, limit in (
        ("dim", dim, most),
        ("rows", rows, MAX_ROWS),
        ("cols", cols, MAX_COLS),
    ):
        check_whole(name, value, least=1, most=limit)


@dataclass(frozen=True)
class SketchLayout:
    """Everything that fixes a sketch's table, apart from the seed. Kernels take this.

    They look up what they have compiled and planned by it in every call.
    """

    dim: int
    rows: int
    cols: int
    family: Family = "blocked"

    def __post_init__(self) -> None:
        check(self.family in FAMILIES, "family", f"be one of {', '.join(FAMILIES)}", self.family)
        check_sizes(self.dim, self.rows, self.cols, most=MAX_KEYS)
        # Every 64-bit word may be a key where each coordinate is hashed on its own; blocks are
        # numbered by 40 bits.
        numbered = self.family == "pairwise" or self.dim <= MAX_DIM
        check(numbered, "dim", "be at most 2**40 with family='blocked'", self.dim)

    @cached_property
    def geometry(self) -> Geometry:
        """The cut of the blocked family."""
        return Geometry.of(self.dim, self.cols)


def _check_secret(name: str, value: object) -> None:
    if not isinstance(value, bytes) or len(value) != 32:  # without showing it
        size = f"{len(value)} bytes" if isinstance(value, bytes) else f"a {type(value).__name__}"
        raise ArgumentError(f"{name} must be 32 bytes, got {size}")


def mix64(value: Words, first_key: np.uint64 | Words, second_key: np.uint64 | Words) -> Words:
    """A keyed mixing hash: SplitMix64's finaliser with a second key word between its rounds."""
    # Stafford's constants, as in SplitMix64. A tensor's words have a sign: the same, less 2**64.
    less = 1 << 64 if isinstance(value, Tensor) else 0
    with np.errstate(over="ignore"):
        z: Any = value + first_key
        # Added at once, the two keys would be one sum: so the second comes between the rounds.
        z = (z ^ _right(z, 30)) * (0xBF58476D1CE4E5B9 - less)
        z = z ^ second_key
        z = (z ^ _right(z, 27)) * (0x94D049BB133111EB - less)
        mixed: Words = z ^ _right(z, 31)
    return mixed


def columns_and_signs(
    coordinates: npt.NDArray[np.int64] | Words, seed: HashSeed, *, layout: SketchLayout
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int8]]:
    """Column and sign of each coordinate in each row, both of shape `(rows, len(coordinates))`."""
    shape = layout.rows, len(coordinates)
    columns, signs = np.empty(shape, np.int64), np.empty(shape, np.int8)
    words = seed.words_for(layout.rows)
    for j, (column, bit) in enumerate(hash_rows(coordinates.astype(np.uint64), words, layout)):
        columns[j], signs[j] = column, 1 - 2 * bit.astype(np.int8)
    return columns, signs


def hash_rows(index: Any, words: Any, layout: SketchLayout) -> Iterator[tuple[Any, Any]]:
    """Columns of coordinates in one row after the other, and the bits that make signs negative.

    `index` is of `uint64` in NumPy, or of `int64` in PyTorch, whose sums and products wrap around
    as those without a sign do; only shifts to the right have to be told apart. `words` are those of
    the seed, in the same form.
    """
    cols, signs, rest = layout.cols, words[:_SIGN_WORDS], words[_SIGN_WORDS:]
    by_row = (rest[at : at + _WORDS_PER_ROW] for at in range(0, len(rest), _WORDS_PER_ROW))
    if layout.family == "pairwise":
        # Both halves of a key have a factor of their own: strongly universal for 64-bit keys
        # (Dietzfelbinger).
        low, high = index & 0xFFFFFFFF, _right(index, 32)
        bits = mix64(index, *signs)  # one hash for all rows: row `j` takes its bit `j`
        for j, (a_low, a_high, b) in enumerate(by_row):
            yield _scaled(a_low * low + a_high * high + b, cols), _right(bits, j) & 1
        return
    size, runs = layout.geometry.block, layout.geometry.runs
    block = index // size
    offset, slot = index - block * size, block // runs
    run, place = block - slot * runs, slot * size + offset
    common = mix64(block, *signs)
    # The upper half is the step of the block's sign sequence, the lower half its start.
    weyl = _right(_right(common, 32) * offset + common, 31)
    for first, second, _ in by_row:
        h = mix64(run, first, second)
        # The run is laid end to end and rotated by its shift, uniform in `[0, cols)`. The flip is
        # the lowest bit: the shift took the upper half, so they are independent.
        yield (place + _scaled(h, cols)) % cols, (h ^ weyl) & 1


def _scaled(h: Any, cols: int) -> Any:
    """The upper half of a word to `[0, cols)` by multiplication, uniform up to 2^-32."""
    return _right(_right(h, 32) * cols, 32)


def _right(value: Any, bits: int) -> Any:
    """Shift to the right, zeros following."""
    if isinstance(value, Tensor) and bits:
        return (value >> bits) & ((1 << (64 - bits)) - 1)
    return value >> bits
