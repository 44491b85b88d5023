"""Cases with an error put in on purpose, each beside its correct twin: an audit must find them.

Each error is one that a programmer could make; the claim stays that of the correct mechanism.

* `small-noise`: the noise's standard deviation is 20% too small.
* `reused-noise`: the noise is derived from the worker alone and not from the round, so that each
  round adds the same numbers. The hashes are fresh, so differences of rounds cancel the noise and
  leave `(S_1 - S_2) v`.
* `no-clipping`: tables are sent as they are, however long.
* `shared-seed`: the noise is derived from the round alone and not from the worker, so that two
  workers add the same numbers. Whoever knows one's vector subtracts the messages and has the
  other's table without any noise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from diffsketch.audit.adversaries import Game, Method, Protocol, every_round
from diffsketch.audit.cases import Case, encoder, released
from diffsketch.audit.proven import (
    ROUNDS,
    SKETCH,
    gaussian_client,
    gaussian_rounds,
    gaussian_workers,
)
from diffsketch.errors import ArgumentError
from diffsketch.privacy.mechanisms.bounds import NormBound
from diffsketch.privacy.mechanisms.gaussian import GaussianMechanism
from diffsketch.privacy.noise import Noise, NoiseKey
from diffsketch.sketch import HashSeed, SketchKey

__all__ = ["PLANTS", "Plant", "plant"]

_TOO_SMALL = 0.8
_REST = GaussianMechanism(NormBound(1.0), 1.0)


@dataclass(frozen=True)
class Plant:
    """An error, the correct case that it is put into, and what the protocol becomes."""

    name: str
    text: str
    twin: Callable[[], Case]
    protocol: Callable[[], Protocol]

    def case(self) -> Case:
        """The twin with the error."""
        twin = self.twin()
        game = Game(self.protocol(), twin.game.neighbours, twin.game.adversary)
        name = f"planted-{self.name}"
        return dataclasses.replace(twin, name=name, game=game, planted=self.text)


def plant(name: str) -> Plant:
    """The planted error of this name.

    Raises:
        ArgumentError: There is none.
    """
    if name not in PLANTS:
        raise ArgumentError(f"plant must be one of {', '.join(PLANTS)}, got plant={name!r}")
    return PLANTS[name]


def _small_noise() -> Protocol:
    return every_round(released(GaussianMechanism(_REST.bound, _TOO_SMALL), SKETCH))


def _reused_noise() -> Protocol:
    method = released(GaussianMechanism(_REST.bound, ROUNDS**0.5), SKETCH)

    def protocol(inputs: Tensor, noise: NoiseKey, hashes: SketchKey) -> Tensor:
        messages = [
            method(inputs, noise.source(worker=0, round_index=0), hashes.seed(index))
            for index in range(ROUNDS)
        ]
        return torch.stack(messages, dim=1)

    return protocol


def _no_clipping() -> Protocol:
    def method(inputs: Tensor, noise: Noise, seed: HashSeed) -> Tensor:
        tables = encoder(SKETCH, seed)(inputs)
        return tables + noise.normal(tuple(tables.shape), _REST.std, dtype=tables.dtype)

    return every_round(method)


def _shared_seed() -> Protocol:
    method: Method = released(_REST, SKETCH)

    def protocol(inputs: Tensor, noise: NoiseKey, hashes: SketchKey) -> Tensor:
        messages = [
            method(inputs[:, worker], noise.source(worker=0, round_index=0), hashes.seed(0))
            for worker in range(inputs.shape[1])
        ]
        return torch.stack(messages, dim=1)

    return protocol


PLANTS = {
    each.name: each
    for each in (
        Plant("small-noise", "noise 20% too small", gaussian_client, _small_noise),
        Plant("reused-noise", "the same noise in every round", gaussian_rounds, _reused_noise),
        Plant("no-clipping", "tables are not clipped", gaussian_client, _no_clipping),
        Plant("shared-seed", "two workers share a noise seed", gaussian_workers, _shared_seed),
    )
}
