"""cpSGD: the paper's settings, its secure sum, and what it refuses."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from diffsketch.errors import ArgumentError
from diffsketch.methods import CpSgd
from diffsketch.privacy import FastNoise, PaperClaim
from diffsketch.privacy.claim import NoClaim, ProvenClaim
from diffsketch.privacy.mechanisms.binomial import PAPER_SETTINGS
from diffsketch.sketch import SketchKey
from tests.helpers.refusals import refused

DIM = 300
SEED = SketchKey.from_integer(3).seed(1)


@pytest.mark.parametrize("setting", PAPER_SETTINGS)
def test_the_papers_cpsgd_is_claimed(setting: tuple[float, int, int, int]) -> None:
    claimed, bits, levels, trials = setting
    method = CpSgd(dim=7850, cohort=10, claimed=claimed, bits=bits)
    assert (method.mechanism.levels, method.mechanism.trials) == (levels, trials)
    assert method.message_format.bits == bits
    claim = method.claim_for(10, SEED)
    assert isinstance(claim, PaperClaim)
    assert float(claim.epsilon(delta=1e-5, rounds=1)) == claimed
    assert "Claimed, not proven" in str(claim)
    assert f"variance 524 in the sum, and 10 members give {10 * trials / 4:g}" in str(claim)
    refused(ArgumentError, "rounds must be 1", claim.epsilon, delta=1e-5, rounds=2)
    same = CpSgd(dim=7850, cohort=10, claimed=claimed, levels=levels, trials=trials)
    assert same.message_format == method.message_format
    # Without the paper's word for it there is nothing to be said.
    unsaid = CpSgd(dim=7850, cohort=10, levels=levels, trials=trials)
    assert isinstance(unsaid.claim_for(10, SEED), NoClaim)


def test_cpsgd_takes_four_bits_where_nothing_is_said() -> None:
    method = CpSgd(dim=100, cohort=10, claimed=10.0)
    assert method.message_format.bits == 4
    # A secure sum of ten such numbers needs more, and the claim says that there is no room.
    assert method.total_format.bits == 8
    for present in (9, 10):
        assert "4 bits that leave no room for a secure sum" in str(method.claim_for(present, SEED))


def test_messages_of_a_secure_sum_have_its_modulus() -> None:
    method = CpSgd(dim=DIM, cohort=10, levels=12, trials=4)
    assert method.message_format == method.total_format
    assert method.message_format.bits == (10 * 15).bit_length()
    # With very many workers the paper's numbers are proven, and then not of the paper's bits.
    many = CpSgd(dim=DIM, cohort=1000, claimed=5.0)
    assert isinstance(many.claim_for(1000, SEED), ProvenClaim)
    assert many.message_format == many.total_format


def test_cpsgd_refuses() -> None:
    build = partial(CpSgd, dim=10, cohort=5)
    refused(ArgumentError, "levels must be given", build)
    refused(ArgumentError, "trials must be given", build, levels=4)
    refused(ArgumentError, "row of the paper's table", build, claimed=3.0)
    refused(ArgumentError, "row of the paper's table", build, claimed=5.0, bits=6)
    refused(ArgumentError, "row of the paper's table", build, claimed=5.0, levels=12, trials=5)
    refused(ArgumentError, "bits must come with claimed", build, levels=4, trials=4, bits=3)
    refused(ArgumentError, "levels must be >= 2", build, levels=1, trials=4)
    refused(ArgumentError, "trials must be >= 1", build, levels=4, trials=0)
    refused(ArgumentError, "limit must be", build, levels=4, trials=4, limit=0.0)
    refused(ArgumentError, "clip must be", build, levels=4, trials=4, clip=-1.0)
    refused(ArgumentError, "delta must be", build, levels=4, trials=4, delta=1.0)
    refused(ArgumentError, "relation must be", build, levels=4, trials=4, relation="other")


def test_cpsgd_clips_nothing_that_fits_the_range_by_default() -> None:
    method = CpSgd(dim=DIM, cohort=1, levels=2, trials=1, limit=0.5)
    assert method.mechanism.clip == 0.5 * math.sqrt(DIM)
    corner = torch.full((DIM,), 0.5)
    drawn = method.encode(corner, SEED, FastNoise(1)).messages
    assert bool((drawn >= 1).all())  # the upper level for sure, plus noise


def test_the_largest_sum_fits_its_format() -> None:
    for levels, trials, cohort in ((12, 4, 10), (2, 1, 1), (64, 3200, 1000)):
        method = CpSgd(dim=3, cohort=cohort, levels=levels, trials=trials)
        largest = torch.full((3,), cohort * (levels - 1 + trials))
        assert int(largest[0]) < 1 << method.total_format.bits
        assert int(largest[0]) >= 1 << (method.total_format.bits - 1)
        method.decode(largest, SEED, count=cohort)
