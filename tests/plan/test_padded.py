"""Appended noise that is fitted to each round's hashes."""

from __future__ import annotations

import pytest
import torch

from diffsketch.errors import ArgumentError
from diffsketch.plan.padded import FittedPadding
from diffsketch.privacy.claim import ProvenClaim, Relation, Trust, Unit
from diffsketch.privacy.mechanisms.bounds import CoordinateBound
from diffsketch.privacy.noise import NoiseKey
from diffsketch.sketch import CountSketch, SketchKey

KEY = SketchKey.from_integer(5)


@pytest.mark.parametrize("relation", Relation)
def test_every_round_has_the_promised_event(relation: Relation) -> None:
    mechanism = FittedPadding(CountSketch(300, 3, 8), CoordinateBound(0.5), 1500, 7.0, relation)
    promised = mechanism.claim.epsilon(delta=1e-5, rounds=9)
    assert promised.scope.unit is Unit.COORDINATE
    assert (promised.scope.relation, promised.scope.trust) == (relation, Trust.LOCAL)
    deviations = set()
    for index in range(5):
        fitted = mechanism.at(KEY.seed(index))
        claim = fitted.claim
        assert isinstance(claim, ProvenClaim)
        assert claim.scope == promised.scope
        one = claim.epsilon(delta=1e-5, rounds=9)
        assert float(promised) * (1 - 1e-9) <= float(one) <= float(promised)
        deviations.add(fitted.std)
    assert len(deviations) == 5  # the hashes do matter


def test_mechanism_runs() -> None:
    mechanism = FittedPadding(CountSketch(300, 3, 8), CoordinateBound(0.5), 1500, 7.0)
    fitted = mechanism.at(KEY.seed(0))
    noise = NoiseKey.from_integer(0).source(worker=0, round_index=0)
    table = fitted.release(torch.zeros(300), noise)
    assert table.shape == (3, 8)
    assert fitted.query(table, combine="mean").shape == (300,)


def test_what_cannot_be_proven_is_refused() -> None:
    with pytest.raises(ArgumentError, match="seed must allow a proof"):
        FittedPadding(CountSketch(300, 3, 8), CoordinateBound(0.5), 20, 7.0).at(KEY.seed(0))
    with pytest.raises(ArgumentError, match="sketch must have at most"):
        FittedPadding(CountSketch(10**5, 5, 1000), CoordinateBound(0.5), 10**6, 7.0)
    with pytest.raises(ArgumentError, match="noise_multiplier must be > 0"):
        FittedPadding(CountSketch(300, 3, 8), CoordinateBound(0.5), 1500, float("nan"))
