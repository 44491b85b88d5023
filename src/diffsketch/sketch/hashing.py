"""The hash families, written once in plain NumPy; every kernel computes these same numbers.

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
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Self, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

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
    with np.errstate(over="ignore"):
        z = value + first_key
        # Stafford's constants, as in SplitMix64. Added at once, the two keys would be one sum: so
        # the second comes between the rounds.
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = z ^ second_key
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def columns_and_signs(
    coordinates: npt.NDArray[np.int64] | Words, seed: HashSeed, *, layout: SketchLayout
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int8]]:
    """Column and sign of each coordinate in each row, both of shape `(rows, len(coordinates))`."""
    index = coordinates.astype(np.uint64)
    hash_rows = _pairwise if layout.family == "pairwise" else _blocked
    words = seed.words_for(layout.rows)
    signs, by_row = words[:_SIGN_WORDS], words[_SIGN_WORDS:].reshape(-1, _WORDS_PER_ROW)
    columns, negative = hash_rows(index, signs, by_row, layout)
    return columns.astype(np.int64), (1 - 2 * negative.astype(np.int8)).astype(np.int8)


def _scale(word: Words, cols: int) -> Words:
    """A 32-bit word to `[0, cols)` by multiplication, which keeps it uniform up to 2^-32."""
    return (word * np.uint64(cols)) >> np.uint64(32)


def _pairwise(
    index: Words, signs: Words, by_row: Words, layout: SketchLayout
) -> tuple[Words, Words]:
    rows, cols = layout.rows, layout.cols
    # Both halves of a key have a factor of their own: strongly universal for 64-bit keys
    # (Dietzfelbinger).
    low, high = index & np.uint64(0xFFFFFFFF), index >> np.uint64(32)
    columns = np.empty((rows, index.size), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for j, (a_low, a_high, b) in enumerate(by_row):
            columns[j] = _scale((a_low * low + a_high * high + b) >> np.uint64(32), cols)
    bits = mix64(index, *signs)  # one hash for all rows: row `j` takes its bit `j`
    row = np.arange(rows, dtype=np.uint64)[:, None]
    return columns, (bits >> row) & np.uint64(1)


def _blocked(
    index: Words, signs: Words, by_row: Words, layout: SketchLayout
) -> tuple[Words, Words]:
    cols, geometry = layout.cols, layout.geometry
    size, runs = np.uint64(geometry.block), np.uint64(geometry.runs)
    block, offset = np.divmod(index, size)
    slot, run = np.divmod(block, runs)
    place = slot * size + offset
    common = mix64(block, *signs)
    # The upper half is the step of the block's sign sequence, the lower half its start.
    a, c = common >> np.uint64(32), common & np.uint64(0xFFFFFFFF)
    with np.errstate(over="ignore"):
        weyl = ((a * offset + c) >> np.uint64(31)) & np.uint64(1)
    columns = np.empty((layout.rows, index.size), dtype=np.uint64)
    negative = np.empty_like(columns)
    for j, (first, second, _) in enumerate(by_row):
        h = mix64(run, first, second)
        # The run is laid end to end and rotated by its shift, uniform in `[0, cols)`.
        columns[j] = (place + _scale(h >> np.uint64(32), cols)) % np.uint64(cols)
        # Lowest bit: the shift took the upper half, so the flip is independent of it.
        negative[j] = (h & np.uint64(1)) ^ weyl
    return columns, negative
