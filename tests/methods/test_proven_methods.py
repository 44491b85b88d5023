"""What the proven methods add to the contract: settings, secure sums, clipping, dimensions of 1."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError
from diffsketch.methods import (
    CpSgd,
    DiffSketch,
    GaussianMean,
    Method,
    PlainSketch,
    ProjUnitMean,
    ProvenDiffSketch,
    RawLaplace,
    SkellamMean,
    SketchGaussian,
    SketchLaplace,
    SketchSkellam,
    Uncompressed,
)
from diffsketch.privacy import CohortNoise, FastNoise, NoiseKey, PaperClaim, SecureNoise, Trust
from diffsketch.privacy.accounting.composition import gaussian_epsilon
from diffsketch.privacy.claim import NoClaim, ProvenClaim, Relation
from diffsketch.privacy.mechanisms import Quantizer
from diffsketch.privacy.mechanisms.cpsgd import PAPER_SETTINGS
from diffsketch.sketch import SketchKey

DIM, WORKERS = 300, 20
KEY, SEED = NoiseKey.from_integer(3), SketchKey.from_integer(3).seed(1)


def noise(workers: int = WORKERS) -> CohortNoise:
    return CohortNoise(KEY, range(workers), round_index=0)


@pytest.fixture(scope="module")
def vectors() -> Tensor:
    values = torch.randn(WORKERS, DIM, generator=torch.Generator().manual_seed(6))
    return values / math.sqrt(DIM)


# cpSGD


@pytest.mark.parametrize("setting", PAPER_SETTINGS)
def test_the_papers_cpsgd_is_claimed(setting: tuple[float, int, int, int]) -> None:
    claimed, bits, levels, trials = setting
    method = CpSgd(dim=7850, cohort=10, claimed=claimed, bits=bits)
    assert (method.mechanism(SEED).levels, method.mechanism(SEED).trials) == (levels, trials)
    assert method.message_format.bits == bits
    claim = method.claim_for(10, SEED)
    assert isinstance(claim, PaperClaim)
    assert float(claim.epsilon(delta=1e-5, rounds=1)) == claimed
    same = CpSgd(dim=7850, cohort=10, claimed=claimed, levels=levels, trials=trials)
    assert same.message_format == method.message_format
    # Without the paper's word for it there is nothing to be said.
    assert isinstance(
        CpSgd(dim=7850, cohort=10, levels=levels, trials=trials).claim_for(10, SEED), NoClaim
    )


def test_cpsgd_takes_four_bits_where_nothing_is_said() -> None:
    method = CpSgd(dim=100, cohort=10, claimed=10.0)
    assert method.message_format.bits == 4
    # A secure sum of ten such numbers needs more, and the claim says that there is no room.
    assert method.total_format.bits == 8
    for present in (9, 10):
        assert "4 bits that leave no room for a secure sum" in str(method.claim_for(present, SEED))


@pytest.mark.parametrize("rotate", [False, True])
def test_messages_of_a_secure_sum_have_its_modulus(rotate: bool) -> None:
    method = CpSgd(dim=DIM, cohort=10, levels=12, trials=4, rotate=rotate)
    assert method.message_format == method.total_format
    assert method.message_format.bits == (10 * 15).bit_length()
    # With very many workers the paper's numbers are proven, and then not of the paper's bits.
    many = CpSgd(dim=DIM, cohort=1000, claimed=5.0, rotate=rotate)
    assert isinstance(many.claim_for(1000, SEED), ProvenClaim)
    assert many.message_format == many.total_format


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({}, "levels must be given"),
        ({"levels": 4}, "trials must be given"),
        ({"claimed": 3.0}, "row of the paper's table"),
        ({"claimed": 5.0, "bits": 6}, "row of the paper's table"),
        ({"claimed": 5.0, "levels": 12, "trials": 5}, "row of the paper's table"),
        ({"levels": 4, "trials": 4, "bits": 3}, "bits must come with claimed"),
        ({"levels": 1, "trials": 4}, "levels must be >= 2"),
        ({"levels": 4, "trials": 0}, "trials must be >= 1"),
        ({"levels": 4, "trials": 4, "limit": 0.0}, "limit must be"),
        ({"levels": 4, "trials": 4, "clip": -1.0}, "clip must be"),
        ({"levels": 4, "trials": 4, "delta": 1.0}, "delta must be"),
        ({"levels": 4, "trials": 4, "rotate": 1}, "rotate must be"),
        ({"levels": 4, "trials": 4, "relation": "other"}, "relation must be"),
    ],
)
def test_cpsgd_refuses(settings: dict[str, object], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        CpSgd(dim=10, cohort=5, **settings)  # type: ignore[arg-type]


def test_cpsgd_clips_nothing_that_fits_the_range_by_default() -> None:
    method = CpSgd(dim=DIM, cohort=1, levels=2, trials=1, limit=0.5)
    assert method.mechanism(SEED).clip == 0.5 * math.sqrt(DIM)
    corner = torch.full((DIM,), 0.5)
    drawn = method.encode(corner, SEED, FastNoise(1)).messages
    assert bool((drawn >= 1).all())  # the upper level for sure, plus noise


def test_every_seed_rotates_in_another_way() -> None:
    method = CpSgd(dim=DIM, cohort=5, levels=4, trials=4, rotate=True)
    assert method.message_format.shape == (512,)
    key = SketchKey.from_integer(1)
    turns = [method.mechanism(key.seed(index)).rotation_seed for index in range(50)]
    assert len(set(turns)) == 50
    assert method.mechanism(key.seed(3)) == method.mechanism(key.seed(3))


def test_the_largest_sum_fits_its_format() -> None:
    for levels, trials, cohort in ((12, 4, 10), (2, 1, 1), (64, 3200, 1000)):
        method = CpSgd(dim=3, cohort=cohort, levels=levels, trials=trials)
        largest = torch.full((3,), cohort * (levels - 1 + trials))
        assert int(largest[0]) < 1 << method.total_format.bits
        assert int(largest[0]) >= 1 << (method.total_format.bits - 1)
        method.decode(largest, SEED, count=cohort)


# Skellam


def test_members_who_know_their_own_noise_learn_more() -> None:
    """The numbers of `docs/privacy.md`: a member sees the sum with one share of the noise less."""
    shown = {}
    for cohort in (2, 1000):
        method = SketchSkellam(7850, 7, 22, clip=1.0, noise_multiplier=4.0, cohort=cohort)
        claims = [method.claim_for(present, SEED) for present in (cohort, cohort - 1)]
        shown[cohort] = [float(claim.epsilon(delta=1e-5, rounds=1)) for claim in claims]
    assert shown[2] == pytest.approx([0.9264, 1.3565], abs=5e-4)
    assert shown[1000][0] < shown[1000][1] < shown[1000][0] * 1.001


def test_skellam_steps_follow_the_rule() -> None:
    small = SketchSkellam(DIM, 1, 20, clip=2.0, noise_multiplier=1.0, cohort=100)
    assert small.mechanism.quantizer.granularity == 2.0 / 256
    many = SketchSkellam(DIM, 1, 20, clip=2.0, noise_multiplier=1.0, cohort=10**6)
    assert many.mechanism.quantizer.granularity == pytest.approx(2.0 / 2500)
    large = SketchSkellam(DIM, 10, 2000, clip=2.0, noise_multiplier=1.0, cohort=100)
    assert large.mechanism.quantizer.granularity == pytest.approx(2.0 / (5 * math.sqrt(20_000)))
    for method in (small, many, large):
        quantizer = method.mechanism.quantizer
        assert isinstance(quantizer, Quantizer)
        assert quantizer.norm(2) * quantizer.granularity < 2.0 * 1.03
        # What rounding may add to the noise's variance in the sum.
        rounding = quantizer.granularity**2 * method.mechanism.cohort / 4
        assert rounding < method.mechanism.std**2 * 0.011
        assert method.mechanism.overflow_bound() <= 1e-6


def test_skellam_bits_are_the_fewest_or_the_steps_the_finest() -> None:
    free = SketchSkellam(DIM, 1, 20, clip=2.0, noise_multiplier=1.0, cohort=100)
    bits = free.message_format.bits
    given = SketchSkellam(DIM, 1, 20, clip=2.0, noise_multiplier=1.0, cohort=100, bits=bits - 3)
    assert given.message_format.bits == bits - 3
    coarser = given.mechanism.quantizer.granularity / free.mechanism.quantizer.granularity
    assert 3 < coarser < 16
    step = free.mechanism.quantizer.granularity
    both = SketchSkellam(
        DIM, 1, 20, clip=2.0, noise_multiplier=1.0, cohort=100, bits=bits, granularity=step
    )
    assert both.mechanism == free.mechanism
    with pytest.raises(ArgumentError, match=rf"bits must be >= {bits}"):
        SketchSkellam(
            DIM, 1, 20, clip=2.0, noise_multiplier=1.0, cohort=100, bits=bits - 1, granularity=step
        )
    with pytest.raises(ArgumentError, match="bits must be more"):
        SketchSkellam(DIM, 1, 20, clip=2.0, noise_multiplier=1.0, cohort=100, bits=3)


def test_a_skellam_sum_wraps_and_is_still_right(vectors: Tensor) -> None:
    """Reducing at any time changes nothing: a secure sum does it in every step."""
    method = SketchSkellam(DIM, 2, 20, clip=3.0, noise_multiplier=0.1, cohort=WORKERS)
    messages = method.encode(vectors, SEED, noise()).messages
    modulus = 1 << method.message_format.bits
    total = torch.zeros_like(messages[0])
    for message in messages:
        total = (total + message) % modulus
    assert bool((messages.sum(dim=0) >= modulus).any())
    assert torch.equal(method.publish(messages.sum(dim=0), noise()), total)


def test_skellam_noise_may_be_secure(vectors: Tensor) -> None:
    method = SketchSkellam(DIM, 1, 8, clip=3.0, noise_multiplier=0.5, cohort=WORKERS)
    total = method.encode(vectors, SEED, SecureNoise()).messages.sum(dim=0)
    mean = method.decode(method.publish(total, SecureNoise()), SEED, count=WORKERS)
    assert bool(torch.isfinite(mean).all())


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"trust": "distributed", "cohort": None}, "cohort must be given"),
        ({"trust": "central", "bits": 9}, "bits must not be given for central trust"),
        ({"trust": "nobody"}, "trust must be one of"),
        ({"relation": "none"}, "relation must be"),
        ({"cohort": 0}, "cohort must be >= 1"),
        ({"bits": 0}, "bits must be >= 1"),
        ({"bits": 63}, "bits must be in"),
        ({"granularity": 0.0}, "granularity must be"),
        ({"clip": math.nan}, "clip must be"),
        ({"noise_multiplier": -1.0}, "noise_multiplier must be"),
    ],
)
def test_skellam_refuses(settings: dict[str, object], match: str) -> None:
    usual = {"clip": 1.0, "noise_multiplier": 1.0, "cohort": 5}
    with pytest.raises(ArgumentError, match=match):
        SketchSkellam(DIM, 2, 20, **usual | settings)  # type: ignore[arg-type]


# Gaussian


TRUSTS = pytest.mark.parametrize("trust", Trust)


@TRUSTS
def test_what_is_sent_is_clipped_as_whole_numbers(trust: Trust) -> None:
    """A client with everything in one place moves the table by no more than its claim allows."""
    for relation, change in ((Relation.REPLACE, 2), (Relation.ADD_OR_REMOVE, 1)):
        method = SketchGaussian(
            DIM, 5, 2, clip=1.5, noise_multiplier=2.0, cohort=4, trust=trust, relation=relation
        )
        grid = method.mechanism.quantizer
        assert isinstance(grid, Quantizer)
        equal, sketch = torch.full((1, DIM), 50.0), method.sketch
        tables = [
            method.mechanism.rounded(
                sign * equal, noise(1), encode=partial(sketch.encode, seed=SEED)
            )
            for sign in (1.0, -1.0)
        ]
        for table in tables:
            assert float(table.double().norm()) <= grid.norm(2)
            assert float(table.double().norm()) == pytest.approx(1.5 / grid.granularity, rel=0.01)
        moved = (tables[0] - tables[1]).double().norm()
        assert float(moved) <= grid.sensitivity(2, Relation.REPLACE)
        std = 2.0 * change * grid.norm(2) * grid.granularity
        assert method.mechanism.std == pytest.approx(std)


@TRUSTS
@pytest.mark.parametrize("multiplier", [0.5, 4.0, 50.0])
@pytest.mark.parametrize("shape", [(1, 20), (1, 154), (10, 2000)])
def test_the_grid_costs_less_than_one_percent(
    trust: Trust, multiplier: float, shape: tuple[int, int]
) -> None:
    """Against the real-valued mechanism: the same epsilon, and hardly more variance in a mean."""
    cohort = 500
    method = SketchGaussian(
        10**5, *shape, clip=1.0, noise_multiplier=multiplier, cohort=cohort, trust=trust
    )
    count = 1 if trust is Trust.LOCAL else cohort
    real = (2 * multiplier) ** 2 / count**2
    assert (
        real
        < method.mechanism.quantizer.granularity**2
        * (method.mechanism._noise_variance / count**2 + (0.25 / count))
        < 1.01 * real
    )
    assert method.message_format.bits < 32
    for rounds in (1, 100):
        exact = gaussian_epsilon(math.sqrt(rounds) / multiplier, 1e-5)
        stated = float(method.claim_for(cohort, SEED).epsilon(delta=1e-5, rounds=rounds))
        assert exact * 0.999 < stated < exact * 1.01


def test_a_trusted_server_adds_noise_once_and_workers_none(vectors: Tensor) -> None:
    method = SketchGaussian(DIM, 2, 20, clip=2.0, noise_multiplier=1.0, trust=Trust.CENTRAL)
    bare = method.encode(vectors, SEED, noise()).messages
    assert int(bare.abs().max()) <= method.mechanism.quantizer.peak
    server = CohortNoise(KEY, [1 << 62], round_index=0)
    total = method.publish(bare.sum(dim=0), server)
    same = CohortNoise(KEY, [1 << 62], round_index=0)
    std = method.mechanism.std / method.mechanism.quantizer.granularity
    drawn = same.discrete_gaussian((1, 2, 20), std)[0]
    assert torch.equal(total, bare.sum(dim=0) + drawn)
    local = SketchGaussian(DIM, 2, 20, clip=2.0, noise_multiplier=1.0)
    assert torch.equal(local.publish(bare[0], server), bare[0])


# One coordinate


ONE: list[Method] = [
    Uncompressed(1),
    PlainSketch(1, 2, 3),
    DiffSketch(1, 2, 3, per_round=1.0),
    DiffSketch(1, 2, 3, per_round=1.0, padding=10),
    ProvenDiffSketch(1, 2, 3, clip=1.0, padding=40, std=1.0),
    RawLaplace(1, per_round=1.0),
    RawLaplace(1, per_round=1.0, clip=1.0),
    SketchLaplace(1, 1, 1, per_round=1.0),
    CpSgd(dim=1, cohort=3, levels=2, trials=1),
    CpSgd(dim=1, cohort=3, levels=2, trials=1, rotate=True),
    SketchGaussian(1, 1, 1, clip=1.0, noise_multiplier=1.0),
    GaussianMean(dim=1, clip=1.0, noise_multiplier=1.0, trust=Trust.CENTRAL),
    SkellamMean(dim=1, clip=1.0, noise_multiplier=1.0, cohort=3),
    SketchSkellam(1, 1, 1, clip=1.0, noise_multiplier=1.0, cohort=3),
    ProjUnitMean(dim=1, size=1, per_round=1.0, clip=1.0),
]


@pytest.mark.parametrize("method", ONE, ids=lambda method: method.name)
def test_a_single_coordinate(method: Method) -> None:
    vectors = torch.tensor([[0.5], [-0.25], [0.0]])
    total = method.publish(method.encode(vectors, SEED, noise(3)).messages.sum(dim=0), noise(1))
    mean = method.decode(total, SEED, count=3)
    assert mean.shape == (1,)
    assert bool(torch.isfinite(mean).all())
    method.claim_for(3, SEED)
