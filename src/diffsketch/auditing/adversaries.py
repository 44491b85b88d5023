"""Who attacks, what they know, and what they get to see.

A *protocol* is everything that reaches the adversary: the messages of all rounds and workers. The
two worlds of an audit run the same protocol on two neighbouring inputs. What the adversary does
not know (the other units' values, the hashes) is drawn anew for every trial; what they know stays
as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from diffsketch.auditing.bounds import Numbers
from diffsketch.errors import ArgumentError, check
from diffsketch.privacy.noise import Noise, NoiseKey
from diffsketch.sketch import HashSeed, SketchKey

__all__ = [
    "PUBLIC", "Adversary", "Game", "Neighbours", "Protocol", "Sender", "Stream", "every_trial",
]  # fmt: skip

PUBLIC = "public hashes"  # the name of the hashes that all trials of an audit share

# One message for each trial: `(trials, ...)` inputs, noise and hashes to `(trials, ...)`.
Sender: TypeAlias = Callable[[Tensor, Noise, HashSeed], Tensor]
# All that the adversary sees, from the keys that noise and hashes are derived from.
Protocol: TypeAlias = Callable[[Tensor, NoiseKey, SketchKey], Tensor]


class Adversary(StrEnum):
    """What the adversary knows besides the messages."""

    ALL_KNOWN = "public hashes, all else known"
    OTHERS_UNKNOWN = "public hashes, others unknown"
    SECRET_HASHES = "secret hashes, others unknown"  # noqa: S105
    SECRET_HASHES_OTHERS_KNOWN = "secret hashes, others known"  # noqa: S105

    @property
    def knows_hashes(self) -> bool:
        """Whether the hashes are public, so that they stay the same over all trials."""
        return self in (Adversary.ALL_KNOWN, Adversary.OTHERS_UNKNOWN)

    @property
    def knows_others(self) -> bool:
        """Whether all but the unit under attack is known."""
        return self in (Adversary.ALL_KNOWN, Adversary.SECRET_HASHES_OTHERS_KNOWN)


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Two inputs that differ in one unit: `(dim,)`, or more dimensions for units and rounds.

    Where the two agree they hold the values of the others. An adversary who does not know those
    faces independent normal numbers of standard deviation `others_std` there.
    """

    first: Tensor
    second: Tensor
    others_std: float = 1.0

    def __post_init__(self) -> None:
        same = self.first.shape == self.second.shape and self.first.dtype == self.second.dtype
        check(same, "second", f"be like first, {tuple(self.first.shape)}", self.second.shape)
        check(self.others_std > 0, "others_std", "be > 0", self.others_std)

    @property
    def others(self) -> Tensor:
        """Where the two agree."""
        return self.first == self.second

    def draw(self, count: int, others: torch.Generator | None) -> Iterator[Tensor]:
        """The first input `count` times over, then the second.

        With a generator, the others' values are drawn: once for both, as trials need only be
        independent of those of the same world. Use each before asking for the next.
        """
        if others is None:
            for base in (self.first, self.second):
                yield base.expand(count, *base.shape)
            return
        drawn = torch.empty((count, *self.first.shape), dtype=self.first.dtype)
        drawn.normal_(0, self.others_std, generator=others)
        target = np.flatnonzero(~self.others.numpy())
        for base in (self.first, self.second):
            # NumPy's, since PyTorch's threads take longer to start than this.
            drawn.view(count, -1).numpy()[:, target] = base.flatten().numpy()[target]
            yield drawn


@dataclass(frozen=True)
class Stream:
    """Independent randomness for every named part of one audit."""

    seed: int
    name: str

    def _number(self, *path: object) -> int:
        text = repr((self.seed, self.name, *path)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=32, person=b"ds-audit").digest())

    def noise(self, *path: object) -> NoiseKey:
        """A key for the mechanism's noise."""
        return NoiseKey.from_integer(self._number("noise", *path))

    def hashes(self, *path: object) -> SketchKey:
        """A key for hashes."""
        return SketchKey.from_integer(self._number("hashes", *path))

    def generator(self, *path: object) -> torch.Generator:
        """For what is not known of the others. Vectorised: long vectors take most of the time."""
        return torch.Generator().manual_seed(self._number("others", *path) % (1 << 63))


@dataclass(frozen=True, eq=False)
class Game:
    """A protocol, two neighbours, and an adversary who is to tell them apart."""

    protocol: Protocol
    neighbours: Neighbours
    adversary: Adversary = Adversary.ALL_KNOWN

    def play(self, count: int, *, stream: Stream, part: str) -> tuple[Numbers, Numbers]:
        """What the adversary sees in `count` trials of each world: `(count, features)` each."""
        generator = None if self.adversary.knows_others else stream.generator(part)
        first, second = (
            self._see(inputs, stream=stream, part=f"{part}, world {world}")
            for world, inputs in enumerate(self.neighbours.draw(count, generator))
        )
        return first, second

    def _see(self, inputs: Tensor, *, stream: Stream, part: str) -> Numbers:
        if self.adversary.knows_hashes:
            seen = self.protocol(inputs, stream.noise(part), stream.hashes(PUBLIC))
        else:
            # Each trial has hashes of its own.
            single = [
                self.protocol(inputs[i : i + 1], stream.noise(part, i), stream.hashes(part, i))
                for i in range(len(inputs))
            ]
            seen = torch.cat(single)
        check(len(seen) == len(inputs), "protocol", f"return {len(inputs)} trials", len(seen))
        numbers = np.asarray(seen.flatten(start_dim=1).double().numpy())
        if not np.isfinite(numbers).all():
            raise ArgumentError("protocol must return finite numbers, got NaN or infinity")
        return numbers


def every_trial(sender: Sender) -> Protocol:
    """One worker sends one message."""
    return lambda inputs, noise, hashes: sender(
        inputs, noise.source(worker=0, round_index=0), hashes.seed(0)
    )
