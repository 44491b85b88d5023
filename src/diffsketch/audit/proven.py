"""Cases of mechanisms whose claim is proven: an audit must not contradict them.

Inputs exceed the clipping bound, so that clipping is audited too, and neighbours differ by all
that the bound allows. Each has a total shift of mu = 1, for the reason that `cases` gives.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from torch import Tensor

from diffsketch.audit.adversaries import Game, Method, Neighbours, every_round, every_worker
from diffsketch.audit.attacks import matrix_of
from diffsketch.audit.cases import (
    PURE_DELTA,
    Case,
    encoder,
    known_numbers,
    of_mechanism,
    released,
)
from diffsketch.privacy.claim import Relation, Trust, Unit
from diffsketch.privacy.mechanisms.bounds import CoordinateBound, NormBound
from diffsketch.privacy.mechanisms.gaussian import GaussianMechanism
from diffsketch.privacy.mechanisms.laplace import LaplaceMechanism
from diffsketch.privacy.mechanisms.padding import PaddedGaussian
from diffsketch.privacy.mechanisms.privunit import PrivUnitG
from diffsketch.privacy.mechanisms.quantize import Quantizer
from diffsketch.privacy.mechanisms.skellam import SkellamMechanism
from diffsketch.privacy.noise import Noise
from diffsketch.sketch import CountSketch, HashSeed, SketchKey

__all__ = [
    "ROUNDS", "SKETCH", "gaussian_central", "gaussian_client", "gaussian_coordinate",
    "gaussian_example", "gaussian_rounds", "gaussian_workers", "laplace_coordinate",
    "noisy_sum", "padded_coordinate", "privunit_client", "skellam_client",
]  # fmt: skip

SKETCH = CountSketch(32, 2, 16)
ROUNDS = 3
_COORDINATE = 3


def gaussian_coordinate() -> Case:
    """One coordinate, replaced."""
    return of_mechanism(
        GaussianMechanism(CoordinateBound(1.0, rows=SKETCH.rows), 1.0),
        _coordinates(_COORDINATE),
        sketch=SKETCH,
        name="gaussian-coordinate",
        title="Gaussian noise on a table",
    )


def laplace_coordinate() -> Case:
    """One coordinate, replaced; pure differential privacy with epsilon = 2."""
    return of_mechanism(
        LaplaceMechanism(CoordinateBound(1.0, rows=SKETCH.rows), 0.5),
        _coordinates(_COORDINATE),
        sketch=SKETCH,
        name="laplace-coordinate",
        title="Laplace noise on a table",
        delta=PURE_DELTA,
    )


def padded_coordinate() -> Case:
    """The paper's appended noise, repaired; the coordinate that it hides least, replaced."""
    seed = SketchKey.from_integer(0).seed(0)  # the claim is about these hashes, which are public
    mechanism = PaddedGaussian(SKETCH, seed, CoordinateBound(1.0), padding=96, std=1.0)
    matrix = matrix_of(mechanism.padded_sketch, seed)
    real, pad = matrix[:, : SKETCH.dim], matrix[:, SKETCH.dim :]
    reaches = (real * np.linalg.solve(pad @ pad.T, real)).sum(axis=0)
    worst = int(reaches.argmax())
    mechanism = dataclasses.replace(mechanism, std=2 * math.sqrt(reaches[worst]))

    def method(inputs: Tensor, noise: Noise, seed: HashSeed) -> Tensor:  # noqa: ARG001
        return mechanism.release(inputs, noise)

    return Case(
        "padded-coordinate",
        "96 Gaussian numbers appended to 32",
        mechanism.claim,
        Game(every_round(method), _coordinates(worst)),
        appended=mechanism.padding,
    )


def privunit_client() -> Case:
    """A client's whole vector, replaced; pure local differential privacy with epsilon = 2."""
    mechanism = PrivUnitG(8, 2.0)
    vector = known_numbers(8)

    def method(inputs: Tensor, noise: Noise, seed: HashSeed) -> Tensor:  # noqa: ARG001
        return mechanism.release(inputs, noise)

    game = Game(every_round(method), Neighbours(vector, -vector))
    return Case(
        "privunit-client", "PrivUnitG on 8 numbers", mechanism.claim, game, delta=PURE_DELTA
    )


def skellam_client() -> Case:
    """A client in a secure sum of whole numbers, to which each adds a share of the noise."""
    quantizer = Quantizer(NormBound(1.0), granularity=0.01, cells=SKETCH.rows * SKETCH.cols)
    mechanism = SkellamMechanism(
        quantizer, 1.0, relation=Relation.ADD_OR_REMOVE, trust=Trust.DISTRIBUTED, cohort=4
    )

    def method(inputs: Tensor, noise: Noise, seed: HashSeed) -> Tensor:
        messages = mechanism.release(inputs, noise, encode=encoder(SKETCH, seed))
        return mechanism.decode(messages.sum(dim=1), 4)

    game = Game(every_round(method), _crowd())
    return Case(
        "skellam-client", "Skellam noise, secure sum of 4", mechanism.claim, game, trials=20_000
    )


def gaussian_client() -> Case:
    """A client's whole vector, replaced."""
    return of_mechanism(
        GaussianMechanism(NormBound(1.0), 1.0),
        _clients(),
        sketch=SKETCH,
        name="gaussian-client",
        title="Gaussian noise on a table",
    )


def gaussian_rounds() -> Case:
    """The same client over several rounds, with fresh noise and hashes in each."""
    return of_mechanism(
        GaussianMechanism(NormBound(1.0), math.sqrt(ROUNDS)),
        _clients(),
        sketch=SKETCH,
        name="gaussian-rounds",
        title=f"Gaussian noise on tables, {ROUNDS} rounds",
        rounds=ROUNDS,
    )


def gaussian_workers() -> Case:
    """A client's message, and beside it that of another client whose vector is known."""
    mechanism = GaussianMechanism(NormBound(1.0), 1.0)
    game = Game(every_worker(released(mechanism, SKETCH)), _workers())
    return Case("gaussian-workers", "Gaussian noise, two workers' tables", mechanism.claim, game)


def gaussian_example() -> Case:
    """One example of a worker, who sums the examples' clipped tables and adds noise."""
    bound = NormBound(1.0, unit=Unit.EXAMPLE)
    mechanism = GaussianMechanism(bound, 1.0, Relation.ADD_OR_REMOVE, Trust.LOCAL)
    game = Game(every_round(noisy_sum(mechanism)), _crowd())
    return Case("gaussian-example", "Gaussian noise on a sum of 4 tables", mechanism.claim, game)


def gaussian_central() -> Case:
    """One client of several, whose clipped tables a trusted server sums and adds noise to."""
    mechanism = GaussianMechanism(NormBound(1.0), 1.0, Relation.ADD_OR_REMOVE, Trust.CENTRAL)
    game = Game(every_round(noisy_sum(mechanism)), _crowd())
    return Case("gaussian-central", "Gaussian noise on a sum of 4 tables", mechanism.claim, game)


def noisy_sum(mechanism: GaussianMechanism) -> Method:
    """Tables of `(trials, units, dim)`, clipped one by one, summed, and noise added once.

    The same as `release_sum`, which takes one trial at a time (`tests/audit/test_run.py`).
    """

    def method(inputs: Tensor, noise: Noise, seed: HashSeed) -> Tensor:
        total = mechanism.bound.apply(inputs, encoder(SKETCH, seed)).sum(dim=1)
        return total + noise.normal(tuple(total.shape), mechanism.std, dtype=total.dtype)

    return method


def _coordinates(place: int) -> Neighbours:
    """One coordinate far above the bound, or far below it."""
    first = known_numbers(SKETCH.dim)
    second = first.clone()
    first[place], second[place] = 3.0, -3.0
    return Neighbours(first, second)


def _clients() -> Neighbours:
    """A vector and its negative; their tables are longer than the bound of 1."""
    vector = known_numbers(SKETCH.dim)
    return Neighbours(vector, -vector)


def _workers() -> Neighbours:
    """Two workers, of whom the first has a vector or its negative."""
    first = known_numbers(2, SKETCH.dim)
    second = first.clone()
    second[0] = -second[0]
    return Neighbours(first, second)


def _crowd() -> Neighbours:
    """Four units, of whom the first is there or not."""
    first = known_numbers(4, SKETCH.dim)
    second = first.clone()
    second[0] = 0
    return Neighbours(first, second)
