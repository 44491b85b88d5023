"""A sketch as a value: a table together with what it takes to refuse a wrong use of it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.sketch.count_sketch import Combine, CountSketch, check_seed
from diffsketch.sketch.hashing import HashSeed

__all__ = ["Sketch"]


@dataclass(frozen=True, eq=False)
class Sketch:
    """A table, the sketch that made it and the fingerprint of its seed.

    Adding two of them checks that they belong together, which bare tables cannot. Nothing in it
    gives the seed away, so it may travel to a server that sums without being able to query.

    >>> import torch
    >>> from diffsketch import SketchKey
    >>> maker, key = CountSketch(dim=8, rows=3, cols=4), SketchKey.from_integer(1)
    >>> one = Sketch.of(torch.ones(8), maker, key.seed(0))
    >>> two = one + one
    >>> two + Sketch.of(torch.ones(8), maker, key.seed(1))  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
        ...
    MismatchError: sketches of different seeds cannot be added: ...
    """

    table: Tensor
    maker: CountSketch
    fingerprint: bytes

    def __post_init__(self) -> None:
        if not isinstance(self.maker, CountSketch):
            kind = type(self.maker).__name__
            raise ArgumentError(f"maker must be a CountSketch, got a {kind}")
        self.maker.check_table(self.table)
        if not isinstance(self.fingerprint, bytes) or len(self.fingerprint) != 8:
            raise ArgumentError("fingerprint must be the 8 bytes of HashSeed.fingerprint")

    @classmethod
    def of(cls, vector: Tensor, maker: CountSketch, seed: HashSeed) -> Sketch:
        """Encode a vector, or a batch of vectors."""
        return cls(maker.encode(vector, seed), maker, seed.fingerprint)

    def __add__(self, other: Sketch) -> Sketch:
        if not isinstance(other, Sketch):
            return NotImplemented
        if other.maker != self.maker:
            raise MismatchError(
                f"different sketches cannot be added: {self.maker} and {other.maker}"
            )
        if other.fingerprint != self.fingerprint:
            raise MismatchError(
                "sketches of different seeds cannot be added: fingerprints "
                f"{self.fingerprint.hex()} and {other.fingerprint.hex()}"
            )
        for name in ("device", "dtype", "shape"):
            mine, theirs = getattr(self.table, name), getattr(other.table, name)
            if mine != theirs:
                raise MismatchError(
                    f"sketches of different {name} cannot be added: {mine} and {theirs}"
                )
        return Sketch(self.table + other.table, self.maker, self.fingerprint)

    def query(self, seed: HashSeed, *, combine: Combine = "median") -> Tensor:
        """Estimates of all coordinates, if `seed` is the one the vectors were encoded with."""
        self._check_fingerprint(seed)
        return self.maker.query(self.table, seed, combine=combine, validate=False)

    def top_k(
        self, seed: HashSeed, count: int, *, combine: Combine = "median"
    ) -> tuple[Tensor, Tensor]:
        """The `count` coordinates with the largest estimates in size: their values and indices."""
        self._check_fingerprint(seed)
        return self.maker.top_k(self.table, seed, count, combine=combine)

    def _check_fingerprint(self, seed: HashSeed) -> None:
        check_seed(seed)
        if seed.fingerprint != self.fingerprint:
            raise MismatchError(
                f"seed must be the one that the sketch was encoded with, fingerprint "
                f"{self.fingerprint.hex()}, got {seed.fingerprint.hex()}"
            )
