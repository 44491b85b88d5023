"""Noise that hides a client: grids, secure sums, trust, and clips that find a quantile."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from diffsketch.errors import ArgumentError
from diffsketch.methods import (
    METHODS,
    GaussianMean,
    Method,
    SketchGaussian,
    SketchSkellam,
    client_noise,
)
from diffsketch.methods.client_noise import ClientNoise, flag_share, next_clip
from diffsketch.privacy import CohortNoise, FastNoise, NoiseKey
from diffsketch.privacy.accounting.events import gaussian_epsilon
from diffsketch.privacy.claim import Relation, Trust
from diffsketch.privacy.clipping import FlaggedBound, Quantizer
from diffsketch.sketch import SketchKey
from diffsketch.wire import WireError
from tests.helpers.refusals import each_refused, refused

KEY = SketchKey.from_integer(3)
SEED = KEY.seed(1)
NOISE = NoiseKey.from_integer(3)
SIZE, COHORT = 300, 20
VECTORS = torch.randn(COHORT, SIZE, generator=torch.Generator().manual_seed(6)) / math.sqrt(SIZE)


def noise(workers: int = COHORT) -> CohortNoise:
    return CohortNoise(NOISE, range(workers), round_index=0)


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
    small = SketchSkellam(SIZE, 1, 20, clip=2.0, noise_multiplier=1.0, cohort=100)
    assert small.mechanism.quantizer.granularity == 2.0 / 256
    many = SketchSkellam(SIZE, 1, 20, clip=2.0, noise_multiplier=1.0, cohort=10**6)
    assert many.mechanism.quantizer.granularity == pytest.approx(2.0 / 2500)
    large = SketchSkellam(SIZE, 10, 2000, clip=2.0, noise_multiplier=1.0, cohort=100)
    assert large.mechanism.quantizer.granularity == pytest.approx(2.0 / (5 * math.sqrt(20_000)))
    for method in (small, many, large):
        quantizer = method.mechanism.quantizer
        assert isinstance(quantizer, Quantizer)
        assert quantizer.longest * quantizer.granularity < 2.0 * 1.03
        # What rounding may add to the noise's variance in the sum.
        rounding = method.mechanism.cohort * quantizer.granularity**2 / 4
        assert rounding < 0.011 * method.mechanism.std**2
        assert method.mechanism.overflow_bound() <= 1e-6


def test_skellam_bits_are_the_fewest_or_the_steps_the_finest() -> None:
    build_it = partial(SketchSkellam, SIZE, 1, 20, clip=2.0, noise_multiplier=1.0, cohort=100)
    free = build_it()
    bits = free.message_format.bits
    given = build_it(bits=bits - 3)
    assert given.message_format.bits == bits - 3
    coarser = given.mechanism.quantizer.granularity / free.mechanism.quantizer.granularity
    assert 3 < coarser < 16
    step = free.mechanism.quantizer.granularity
    assert build_it(bits=bits, granularity=step).mechanism == free.mechanism
    refused(ArgumentError, rf"bits must be >= {bits}", build_it, bits=bits - 1, granularity=step)
    refused(ArgumentError, "bits must be more", build_it, bits=3)


def test_skellam_refuses() -> None:
    build = partial(SketchSkellam, SIZE, 2, 20, clip=1.0, noise_multiplier=1.0, cohort=5)
    refused(ArgumentError, "cohort must be given", build, trust="distributed", cohort=None)
    refused(ArgumentError, "bits must not be given for central", build, trust="central", bits=9)
    refused(ArgumentError, "trust must be one of", build, trust="nobody")
    refused(ArgumentError, "relation must be", build, relation="none")
    refused(ArgumentError, "cohort must be >= 1", build, cohort=0)
    refused(ArgumentError, "bits must be >= 1", build, bits=0)
    refused(ArgumentError, "bits must be in", build, bits=63)
    refused(ArgumentError, "granularity must be", build, granularity=0.0)
    refused(ArgumentError, "clip must be", build, clip=math.nan)
    refused(ArgumentError, "noise_multiplier must be", build, noise_multiplier=-1.0)


@pytest.mark.parametrize("trust", Trust)
def test_what_is_sent_is_clipped_as_whole_numbers(trust: Trust) -> None:
    """A client with everything in one place moves the table by no more than its claim allows."""
    for relation, change in ((Relation.REPLACE, 2), (Relation.ADD_OR_REMOVE, 1)):
        method = SketchGaussian(
            SIZE, 5, 2, clip=1.5, noise_multiplier=2.0, cohort=4, trust=trust, relation=relation
        )
        grid = method.mechanism.quantizer
        assert isinstance(grid, Quantizer)
        equal = torch.full((SIZE,), 50.0)
        tables = [whole_numbers(method, sign * equal, 1) for sign in (1.0, -1.0)]
        for table in tables:
            assert float(table.double().norm()) <= grid.longest
            assert float(table.double().norm()) == pytest.approx(1.5 / grid.granularity, rel=0.01)
        moved = (tables[0] - tables[1]).double().norm()
        assert float(moved) <= grid.sensitivity(Relation.REPLACE)
        std = 2.0 * change * grid.longest * grid.granularity
        assert method.mechanism.std == pytest.approx(std)


@pytest.mark.parametrize("trust", Trust)
@pytest.mark.parametrize(
    ("multiplier", "shape"), [(0.5, (10, 2000)), (4.0, (1, 154)), (50.0, (1, 20))]
)
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
    rounding = method.mechanism.quantizer.granularity**2 / (4 * count)
    assert real < method.mechanism.std**2 / count**2 + rounding < 1.01 * real
    assert method.message_format.bits < 32
    for rounds in (1, 100):
        exact = gaussian_epsilon(math.sqrt(rounds) / multiplier, 1e-5)
        stated = float(method.claim_for(cohort, SEED).epsilon(delta=1e-5, rounds=rounds))
        assert exact * 0.999 < stated < exact * 1.01


@pytest.mark.parametrize("multiplier", [1.0, 1e5])  # the second is beyond all sums of messages
def test_a_trusted_server_adds_noise_once_and_workers_none(multiplier: float) -> None:
    method = SketchGaussian(SIZE, 2, 20, clip=2.0, noise_multiplier=multiplier, trust="central")
    bare = method.encode(VECTORS, SEED, noise()).messages
    assert int(bare.abs().max()) <= method.mechanism.quantizer.peak
    server = CohortNoise(NOISE, [1 << 62], round_index=0)
    total = method.publish(bare.sum(dim=0), server)
    same = CohortNoise(NOISE, [1 << 62], round_index=0)
    std = method.mechanism.std / method.mechanism.quantizer.granularity
    drawn = same.discrete_gaussian((1, 2, 20), std)[0]
    assert torch.equal(total, bare.sum(dim=0) + drawn)
    local = SketchGaussian(SIZE, 2, 20, clip=2.0, noise_multiplier=1.0)
    assert torch.equal(local.publish(bare[0], server), bare[0])


# Clips that find a quantile


DIM, WORKERS = 24, 40
TABLE = {"rows": 2, "cols": 8}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gaussian": ("gaussian", {}),
    "gaussian-central": ("gaussian", {"trust": Trust.CENTRAL}),
    "skellam": ("skellam", {}),
    "sketch-gaussian": ("sketch-gaussian", {**TABLE, "relation": Relation.ADD_OR_REMOVE}),
    "sketch-skellam": ("sketch-skellam", TABLE),
    "sketch-skellam-removed": ("sketch-skellam", {**TABLE, "relation": Relation.ADD_OR_REMOVE}),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def build(kind: str, **more: Any) -> ClientNoise:
    name, options = KINDS[kind]
    usual = {"clip": 1.5, "noise_multiplier": 2.0, "cohort": WORKERS, "clip_quantile": 0.5}
    method = METHODS[name](dim=DIM, **{**usual, **options, **more})
    assert isinstance(method, ClientNoise)
    return method


def bound_of(method: ClientNoise) -> FlaggedBound:
    bound = method.mechanism.quantizer.bound
    assert isinstance(bound, FlaggedBound)
    return bound


def round_of(method: Method, vectors: Tensor, index: int) -> Tensor:
    noise = FastNoise(index)
    total = method.encode(vectors, KEY.seed(index), noise).messages.sum(dim=0)
    return method.publish(total, noise)


def fixed_norms(count: int = WORKERS) -> Tensor:
    """Vectors of one coordinate: norms of vector and (one-row) table are 0.1, 0.2, ..."""
    vectors = torch.zeros(count, DIM)
    vectors[torch.arange(count), torch.arange(count) % DIM] = torch.arange(1, count + 1) * 0.1
    return vectors


# Sensitivity


def whole_numbers(method: ClientNoise, vector: Tensor, source: int) -> Tensor:
    """A client's message without its noise."""
    law = method.mechanism.quantizer
    cells = method.encoder.encode(vector[None], SEED).flatten(1).double()
    return law.rounded(law.bounded(cells / (method.round_clip or 1)), FastNoise(source))[0]


@every_kind
@given(source=st.integers(0, 2**32), scales=st.tuples(*2 * [st.floats(0, 1e6)]), same=st.booleans())
@settings(max_examples=60, deadline=None)
def test_neighbours_are_within_the_sensitivity(
    kind: str, source: int, scales: tuple[float, float], same: bool
) -> None:
    """On the whole numbers that are sent, flag and all; whatever the clip."""
    method = build(kind, clip_quantile=0.3).at_clip(10.0 ** (source % 7 - 3))
    generator = torch.Generator().manual_seed(source)
    one = torch.randn(DIM, generator=generator)
    other = -one if same else torch.randn(DIM, generator=generator)
    if method.relation is Relation.ADD_OR_REMOVE:
        scales = scales[0], 0.0
    sent = [
        whole_numbers(method, vector * scale, source + place)
        for place, (vector, scale) in enumerate(zip((one, other), scales, strict=True))
    ]
    change = sent[0] - sent[1]
    quantizer = method.mechanism.quantizer
    assert float(change.square().sum()) <= quantizer.sensitivity(method.relation) ** 2 + 1e-6


@every_kind
def test_the_worst_neighbours_need_the_flag(kind: str) -> None:
    """A client just within the clip and one beyond it, opposite: the flags differ as well.

    The control: a sensitivity of the data alone, as if the flag came for free, does not hold.
    """
    method = build(kind, noise_multiplier=20.0)  # a large flag
    beyond, within = torch.zeros(2, DIM)
    beyond[0] = 1e4
    if method.relation is Relation.REPLACE:
        within[0] = -method.clip * 0.999 / (math.sqrt(2) if "sketch" in kind else 1.0)
    change = whole_numbers(method, beyond, 1) - whole_numbers(method, within, 2)
    found = math.sqrt(float(change.square().sum()))
    quantizer = method.mechanism.quantizer
    without = Quantizer(
        replace(bound_of(method), share=1e-12), quantizer.granularity, quantizer.cells
    )
    assert without.sensitivity(method.relation) < found
    assert found <= quantizer.sensitivity(method.relation)
    # Not by much: the flag takes no more noise than it needs.
    assert found > 0.97 * quantizer.sensitivity(method.relation)


def test_a_client_without_data_sends_zeros() -> None:
    """Add-or-remove compares with zeros, so nothing of a flag may be left of them."""
    zeros = torch.zeros(DIM)
    assert not whole_numbers(build("sketch-skellam-removed"), zeros, 1).any()
    assert int(whole_numbers(build("sketch-skellam"), zeros, 1)[-1]) < 0


# The rule


@every_kind
def test_without_noise_it_is_the_papers_update(kind: str) -> None:
    vectors = fixed_norms()
    method = build(kind, noise_multiplier=1e-6, clip=2.55, clip_quantile=0.3)
    if "sketch" in kind:
        vectors = vectors / math.sqrt(2)  # a coordinate is in both rows
    shares, clip = [], 2.55
    for index in range(30):
        share = min(math.floor(clip * 10 + 1e-9), WORKERS) / WORKERS
        shares.append(share)
        following = method.after(round_of(method, vectors, index), count=WORKERS)
        clip *= math.exp(-0.2 * (share - 0.3))
        assert following.clip == pytest.approx(clip, rel=1e-3)
        method = following.at_clip(clip)
    assert len(set(shares)) > 1


def test_noise_that_hides_the_share_slows_the_clip_down() -> None:
    assert next_clip(1.0, 1.0, 0.5, error=0.4) == pytest.approx(math.exp(-0.1))
    assert next_clip(1.0, 1.0, 0.5, error=5.0) == pytest.approx(math.exp(-0.001))
    assert next_clip(1.0, 1e9, 0.5, error=0.1) == pytest.approx(math.exp(-1))
    assert next_clip(1e-30, 1.0, 0.5, error=0.1) == 1e-30
    assert next_clip(1e30, 0.0, 0.5, error=0.1) == 1e30


@pytest.mark.parametrize("kind", ["gaussian", "gaussian-central", "skellam"])
def test_the_rule_knows_the_noise_on_the_share(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its deviation over 200 rounds, within 31%: six standard errors, or 2e-9.

    All clients are within the clip, so that nothing but noise and roundings moves the share.
    """
    shares, errors = [], []

    def watched(clip: float, within: float, _: float, *, error: float) -> float:
        shares.append(within)
        errors.append(error)
        return clip

    monkeypatch.setattr(client_noise, "next_clip", watched)
    method, vectors = build(kind), torch.zeros(WORKERS, DIM)
    for index in range(200):
        method.after(round_of(method, vectors, index), count=WORKERS)
    assert float(torch.tensor(shares).std()) / errors[0] == pytest.approx(1, abs=0.31)


def test_the_flag_is_as_large_as_it_needs() -> None:
    """The share is known to 0.05, or better with the smallest flag; else it is the largest."""
    for multiplier, cohort, trust, rest in (
        (1.0, 1000, Trust.CENTRAL, 0.02),
        (5.0, 1000, Trust.DISTRIBUTED, None),
        (0.5, 2000, Trust.LOCAL, None),
        (1.0, 10, Trust.LOCAL, 0.5),
        (1e-3, 10, Trust.LOCAL, 0.02),
    ):
        share = flag_share(multiplier, cohort=cohort, trust=trust)
        count = math.sqrt(cohort) if trust is Trust.LOCAL else cohort
        error = multiplier * math.hypot(1, share) / (share * count)
        assert share == rest or error == pytest.approx(0.05)


# Claims and messages


@every_kind
def test_the_claim_is_the_fixed_clips_and_the_same_in_every_round(kind: str) -> None:
    method = build(kind)
    claims = [one.claim_for(WORKERS, SEED) for one in (method, method.at_clip(7.25e-3))]
    assert claims[0] == claims[1]
    assert "clips" in str(claims[0])
    fixed = build(kind, clip_quantile=None).claim_for(WORKERS, SEED)
    for rounds in (1, 100):
        ours, theirs = (float(one.epsilon(delta=1e-5, rounds=rounds)) for one in (claims[0], fixed))
        assert ours == pytest.approx(theirs, rel=2e-3)
    # The data pays with a little more noise.
    ratio = method.mechanism.std * method.clip / build(kind, clip_quantile=None).mechanism.std
    assert ratio == pytest.approx(math.hypot(1, bound_of(method).share), rel=0.02)


@every_kind
def test_a_round_is_that_of_the_fixed_clip_but_for_the_flag(kind: str) -> None:
    """Without noise the means are those of a method with this clip, to rounding."""
    vectors = torch.randn(WORKERS, DIM, generator=torch.Generator().manual_seed(1)) * 0.3
    method = build(kind, noise_multiplier=1e-4, clip=40.0).at_clip(1.5)
    fixed = build(kind, noise_multiplier=1e-4, clip=1.5, clip_quantile=None)
    means = [one.decode(round_of(one, vectors, 0), SEED, count=WORKERS) for one in (method, fixed)]
    assert float((means[0] - means[1]).norm() / means[1].norm()) < 0.02
    assert method.message_format.shape == (math.prod(fixed.message_format.shape) + 1,)
    out = torch.empty(DIM)
    total = round_of(method, vectors, 0)
    assert torch.equal(method.decode(total, SEED, count=WORKERS, out=out), means[0])


@every_kind
def test_honest_messages_are_told_from_longer_ones(kind: str) -> None:
    """With the flag, in clips, whatever the clip; false refusals have a chance of 1e-9 or less."""
    method = build(kind, noise_multiplier=0.01).at_clip(3e-4)
    vectors = torch.cat([fixed_norms()[:5], 1e-5 * fixed_norms()[:5]])
    messages = method.encode(vectors, SEED, FastNoise(2)).messages
    for message in messages:
        method.check_honest(message)
    with pytest.raises(WireError, match="and that of honest clients is at most"):
        method.check_honest(method.reduced(3 * messages[0]))


def test_sums_are_divided_by_the_records_of_their_messages() -> None:
    """A total of 1,000 steps of 0.01 from 4 silos, of 20 records each in the mean."""
    method = GaussianMean(
        dim=DIM, clip=1.0, noise_multiplier=1.0, granularity=0.01, unit="example",
        relation="add-or-remove", rate=0.1, records=20.0,
    )  # fmt: skip
    mean = method.decode(torch.full((DIM,), 1000), SEED, count=4)
    assert mean.tolist() == pytest.approx([1000 * 0.01 / (4 * 20)] * DIM)


def test_bad_quantiles_clips_and_totals() -> None:
    for quantile in (0.0, 1.0, math.nan, 1):
        text = "clip_quantile must be > 0 and < 1"
        refused(ArgumentError, text, build, "gaussian", clip_quantile=quantile)
    method, fixed = build("gaussian"), build("gaussian", clip_quantile=None)
    clips = (0.0, -1.0, math.inf, math.nan, 1e31, 1e-31)
    each_refused(ArgumentError, "clip must be in", method.at_clip, clips)
    for unchanging in (fixed, METHODS["none"](dim=3)):
        refused(ArgumentError, "has no clip that changes", unchanging.at_clip, 1.0)
    total = torch.zeros(DIM, dtype=torch.int64)
    assert fixed.after(total, count=3) is fixed
    assert fixed.round_clip is None
