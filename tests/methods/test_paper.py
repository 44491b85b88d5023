"""The paper's methods do what its algorithms say, line by line, and claim no more than it does."""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import pytest
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError
from diffsketch.methods import CpSgd, DiffSketch, PlainSketch, RawLaplace, SketchLaplace
from diffsketch.methods.plain import TableMethod
from diffsketch.privacy import (
    CohortNoise,
    FastNoise,
    NoiseKey,
    PaperClaim,
    ProvenClaim,
    estimate_alpha,
    estimate_sigma,
    theorem1,
)
from diffsketch.privacy import theorems as appended
from diffsketch.privacy.claim import NoClaim
from diffsketch.privacy.mechanisms.binomial import PAPER_SETTINGS
from diffsketch.privacy.theorems import least_padding
from diffsketch.sketch import CountSketch, SketchKey
from diffsketch.sketch.gram import gram
from tests.helpers.refusals import refused

DIM, WORKERS = 3000, 6
KEY, SEED = NoiseKey.from_integer(2), SketchKey.from_integer(2).seed(1)


def noise() -> CohortNoise:
    return CohortNoise(KEY, range(WORKERS), round_index=0)


@pytest.fixture(scope="module")
def vectors() -> Tensor:
    """Worker `i` has one coordinate that makes its sigma larger, and with that claims smaller."""
    values = torch.randn(WORKERS, DIM, generator=torch.Generator().manual_seed(5))
    values[:, 7] += 40.0 * torch.arange(WORKERS)
    return values


def test_validation_is_theorem_1(vectors: Tensor) -> None:
    per_round = 0.05
    method = DiffSketch(DIM, 3, 2, per_round=per_round)
    encoded = method.encode(vectors, SEED, noise())
    assert encoded.claimed is not None
    assert encoded.noised is not None
    for worker in range(WORKERS):
        alpha, sigma = (float(f(vectors[worker])) for f in (estimate_alpha, estimate_sigma))
        claim = theorem1(DIM, 3, 2, alpha=alpha, sigma=sigma)
        expected = float(claim.epsilon(delta=0.0, rounds=1))
        assert float(encoded.claimed[worker]) == pytest.approx(expected, rel=1e-12)
        assert bool(encoded.noised[worker]) == (not expected <= per_round)
    assert 0 < int(encoded.noised.sum()) < WORKERS
    # Noise only where the claim fails: the others send their bare tables.
    bare = method.sketch.encode(vectors, SEED)
    same = (encoded.messages == bare).flatten(1).all(dim=1)
    assert torch.equal(same, ~encoded.noised)


def test_the_noise_is_the_workers_own_whoever_else_adds_some(vectors: Tensor) -> None:
    """Some of a batch, all of it, or one alone: the same numbers."""
    for per_round in (0.05, 1e-6):
        method = DiffSketch(DIM, 3, 2, per_round=per_round)
        together = method.encode(vectors, SEED, noise()).messages
        for worker in range(WORKERS):
            own = CohortNoise(KEY, [worker], round_index=0)
            assert torch.equal(method.encode(vectors[worker], SEED, own).messages, together[worker])


def test_the_least_padding_is_what_theorem_1_needs_for_each_message(vectors: Tensor) -> None:
    """Most numbers are drawn by a factor of a rounder length, the others themselves."""
    most, size, target = 7500, (7, 4), 0.44
    vectors = vectors.clone()
    vectors[4, 7] = 20.0  # its padding is between those of the first and the second
    method = DiffSketch(DIM, *size, per_round=target, padding=most, appended="least")
    encoded = method.encode(vectors, SEED, noise())
    assert encoded.claimed is not None
    assert encoded.noised is not None
    longer, lengths = CountSketch(DIM + most, *size), list[int]()
    bare = longer.encode(vectors, SEED, offset=0)
    for worker in range(WORKERS):
        alpha, sigma = (float(f(vectors[worker])) for f in (estimate_alpha, estimate_sigma))
        sizes = (torch.tensor([alpha]), torch.tensor([sigma]))
        needed, _ = least_padding(target, DIM, *size, alpha=sizes[0], sigma=sizes[1], most=10**6)
        length = int(needed)
        own = CohortNoise(KEY, [worker], round_index=0)
        message = encoded.messages[worker]
        assert torch.equal(method.encode(vectors[worker], SEED, own).messages, message)
        lengths.append(length if length <= most else -1)
        assert bool(encoded.noised[worker]) == (length > most)
        if length > most:
            continue
        claim = theorem1(DIM + length, *size, alpha=alpha, sigma=sigma)
        claimed = float(claim.epsilon(delta=0.0, rounds=1))
        assert float(encoded.claimed[worker]) == pytest.approx(claimed, rel=1e-12)
        own = CohortNoise(KEY, [worker], round_index=0)
        part, drawn = appended.factored_length(longer, length, shared=False), torch.zeros(size)
        if part:
            lower = torch.linalg.cholesky(torch.from_numpy(gram(longer, SEED, DIM, DIM + part)))
            drawn = (lower @ own.normal((1, 28), 1.0, dtype=torch.float64)[0]).reshape(size)
        if part < length:
            numbers = own.normal((1, length - part), 1.0, dtype=torch.float32)
            drawn = drawn + longer.encode(numbers, SEED, offset=DIM + part)[0].double()
        torch.testing.assert_close(message, bare[worker] + (sigma * drawn).float())
    # All ways are taken: too many, none, a factor for most of them and the rest one by one.
    assert {-1, 0} < set(lengths)
    parts = [appended.factored_length(longer, one, shared=False) for one in lengths if one > 0]
    assert parts == [3584, 192, 6144]
    with pytest.raises(ArgumentError, match="padding must be >= 1"):
        DiffSketch(DIM, *size, per_round=target, appended="least")


def test_the_query_is_that_of_the_longer_sketch(vectors: Tensor) -> None:
    """It leaves the appended numbers out."""
    method = DiffSketch(DIM, 7, 40, per_round=1.0, padding=5000)
    table = method.encode(vectors, SEED, noise()).messages.sum(dim=0)
    longer = CountSketch(DIM + 5000, 7, 40)
    estimate = method.decode(table, SEED, count=WORKERS)
    expected = longer.query(table / WORKERS, SEED)[:DIM]
    assert torch.equal(estimate, expected)
    wrong = CountSketch(DIM, 7, 40).query(table / WORKERS, SEED)
    assert not torch.allclose(estimate, wrong)  # the control: the shorter sketch


def test_algorithm_1_queries_by_the_median(vectors: Tensor) -> None:
    method = DiffSketch(DIM, 7, 40, per_round=1.0)
    table = method.encode(vectors, SEED, noise()).messages.sum(dim=0)
    estimate = method.decode(table, SEED, count=WORKERS)
    for combine in ("median", "mean"):
        asked = dataclasses.replace(method, combine=combine)
        same = torch.equal(asked.decode(table, SEED, count=WORKERS), estimate)
        assert same == (combine == "median")
    assert PlainSketch(DIM, 7, 40).combine == "mean"


def test_groups_change_nothing(vectors: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    check_groups(DiffSketch(DIM, 7, 4, per_round=1e12, padding=40), vectors, monkeypatch)


def check_groups(method: TableMethod, vectors: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers whose appended numbers do not fit into memory together get the same messages."""
    padding = method.sketch.dim - DIM
    assert appended.factored_length(method.sketch, padding, shared=True) == 0
    whole, parts = method.encode(vectors, SEED, noise()).messages, list[Tensor]()
    part = CohortNoise.part

    def recorded(own: CohortNoise, rows: Tensor) -> CohortNoise:
        parts.append(rows)
        return part(own, rows)

    monkeypatch.setattr(CohortNoise, "part", recorded)
    monkeypatch.setattr(appended, "_GROUP", 2 * padding)
    assert torch.equal(method.encode(vectors, SEED, noise()).messages, whole)
    assert [rows.tolist() for rows in parts] == [[0, 1], [2, 3], [4, 5]]


def test_alpha_of_zero_is_not_no_noise() -> None:
    """Nine zeros in ten: by the paper's rule alone they would be sent as they are."""
    vectors = torch.zeros(WORKERS, DIM)
    vectors[:-1, :10] = 3.0
    assert float(estimate_alpha(vectors).max()) == 0
    tables = CountSketch(DIM, 2, 20).encode(vectors, SEED)
    for method, bare, rows in (
        (RawLaplace(DIM, per_round=1.0), vectors, 1),
        (SketchLaplace(DIM, 2, 20, per_round=1.0), tables, 2),
        (DiffSketch(DIM, 2, 20, per_round=1.0), tables, 2),
    ):
        added = (method.encode(vectors, SEED, noise()).messages - bare).flatten(1).abs()
        # The mean size of Laplace noise is its scale; five standard errors of 40 numbers and more.
        assert bool((added[:-1].mean(dim=1) > 0.2 * 2 * 3.0 * rows).all())
        assert float(added[-1].max()) == 0  # only zeros: a largest coordinate of 0


@pytest.mark.parametrize("rows", [1, 3])
def test_clipped_laplace_is_proven_with_the_sensitivity_of_its_rows(rows: int) -> None:
    method = SketchLaplace(DIM, rows, 20, per_round=0.5, clip=0.25)
    assert method.mechanism is not None
    assert 0 < method.mechanism.scale - 2 * 256 * rows / 0.5 < 0.25
    assert method.mechanism.quantizer.granularity == 0.25 / 256
    claim = method.claim_for(3, SEED)
    assert isinstance(claim, ProvenClaim)
    assert float(claim.epsilon(delta=0.0, rounds=1)) == pytest.approx(0.5, rel=1e-3)
    # What is sent depends on the clipped vector only.
    large = torch.full((WORKERS, DIM), 7.0)
    clipped = torch.full((WORKERS, DIM), 0.25)
    assert torch.equal(
        method.encode(large, SEED, noise()).messages, method.encode(clipped, SEED, noise()).messages
    )


@pytest.mark.parametrize(
    "method",
    [
        DiffSketch(DIM, 7, 22, per_round=0.1),
        RawLaplace(DIM, per_round=0.1),
        SketchLaplace(DIM, 7, 22, per_round=0.1),
    ],
    ids=lambda method: method.name,
)
def test_the_papers_readings_are_claimed_for_one_round(
    method: DiffSketch | RawLaplace | SketchLaplace,
) -> None:
    claim = method.claim_for(10, SEED)
    assert isinstance(claim, PaperClaim)
    assert float(claim.epsilon(delta=0.0, rounds=1)) == 0.1
    refused(ArgumentError, "does not compose", claim.epsilon, delta=1e-5, rounds=2)
    assert "no guarantee" in str(claim)


# cpSGD


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
    many = CpSgd(dim=300, cohort=1000, claimed=5.0)
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
