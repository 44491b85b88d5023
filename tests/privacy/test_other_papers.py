"""cpSGD against exact divergences; PrivUnitG and ProjUnit by exact densities and simulation."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import integrate, stats
from scipy.stats import binom
from torch import Tensor

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.privacy.accounting.events import ApproximateEvent, epsilon_for, gaussian
from diffsketch.privacy.claim import Basis, NoClaim, PaperClaim, ProvenClaim, Relation, Trust, Unit
from diffsketch.privacy.clipping import clip_norm
from diffsketch.privacy.mechanisms.other_papers import (
    PAPER_SETTINGS,
    BinomialMechanism,
    PrivUnitG,
    ProjUnit,
    _Cap,
    _random_directions,
)
from diffsketch.privacy.secure_noise import SecureNoise
from diffsketch.privacy.simulated_noise import FastNoise, NoiseKey
from diffsketch.sketch.hashing import SketchKey

Vector = npt.NDArray[np.float64]


def unit_shift(trials: int, cohort: int = 1, **changes: float) -> BinomialMechanism:
    """One coordinate on two levels: every shift is of one step."""
    plain = BinomialMechanism(
        dim=1, clip=1.0, limit=1.0, levels=2, trials=trials, cohort=cohort, delta=1e-6
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def proven(mechanism: BinomialMechanism) -> ApproximateEvent:
    claim = mechanism.claim
    assert isinstance(claim, ProvenClaim)
    assert isinstance(claim.event, ApproximateEvent)
    return claim.event


def exact_delta(probabilities: Vector, shifted: Vector, epsilon: float) -> float:
    """By definition, in both directions."""
    scale = math.exp(epsilon)
    one = np.maximum(probabilities - scale * shifted, 0).sum()
    return float(max(one, np.maximum(shifted - scale * probabilities, 0).sum()))


def shifted_binomials(trials: int, p: float, shift: int) -> tuple[Vector, Vector]:
    k = np.arange(-shift, trials + shift + 1)
    return binom.pmf(k, trials, p), binom.pmf(k - shift, trials, p)


# The theorem.


def test_published_values() -> None:
    assert proven(unit_shift(2000)).epsilon == pytest.approx(0.637513, abs=5e-7)
    assert proven(unit_shift(200, cohort=10)).epsilon == pytest.approx(0.637513, abs=5e-7)
    assert proven(unit_shift(2000)).delta == 1e-6
    assert proven(unit_shift(1483)).epsilon < 1
    assert isinstance(unit_shift(1482).claim, NoClaim)


def written_out(
    shift: tuple[float, float, float], *, v: float, delta: float, d: int, p: float
) -> float:
    """The theorem's epsilon once more."""
    d1, d2, dinf = shift
    b = 2 / 3 * (p**2 + (1 - p) ** 2) + 1 - 2 * p
    c = math.sqrt(2) * (3 * p**3 + 3 * (1 - p) ** 3 + 2 * p**2 + 2 * (1 - p) ** 2)
    e = 4 / 3 * (p**2 + (1 - p) ** 2)
    return (
        d2 * math.sqrt(2 * math.log(1.25 / delta)) / math.sqrt(v)
        + (d2 * c * math.sqrt(math.log(10 / delta)) + d1 * b) / (v * (1 - delta / 10))
        + 2 / 3 * dinf * math.log(1.25 / delta) / v
        + dinf * e * math.log(20 * d / delta) * math.log(10 / delta) / v
    )


def test_theorem_term_by_term() -> None:
    """Another p, more levels, more dimensions, with the shift that is certain."""
    mechanism = BinomialMechanism(
        dim=4, clip=1.0, limit=0.5, levels=5, trials=30, cohort=500, delta=1e-5, probability=0.3
    )
    r = 2 / 0.25
    shift = min(2 * r + 4, 4 * 4), min(r + 2, 2 * 4), 4
    expected = written_out(shift, v=30 * 500 * 0.21, delta=1e-5, d=4, p=0.3)
    assert proven(mechanism).epsilon == pytest.approx(expected)


@pytest.mark.parametrize("p", [0.5, 0.4, 0.2])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-9])
def test_theorem_bounds_the_exact_divergence(p: float, delta: float) -> None:
    """In one dimension, for the least noise that the condition allows and for more."""
    for levels in (2, 4, 11):
        plain = unit_shift(1, levels=levels, delta=delta, probability=p)
        for factor in (1, 1.5, 10):
            trials = math.ceil(factor * 23 * math.log(10 / delta) / (p * (1 - p)))
            event = proven(replace(plain, trials=trials))
            for shift in range(1, levels):
                pair = shifted_binomials(trials, p, shift)
                assert exact_delta(*pair, event.epsilon) <= delta


def test_exact_divergence_tells_too_little_noise() -> None:
    """The control of the two tests above: a quarter of the noise would be found out."""
    event = proven(unit_shift(2000))
    assert exact_delta(*shifted_binomials(2000, 0.5, 1), event.epsilon) <= 1e-6
    assert exact_delta(*shifted_binomials(2000, 0.5, 1), event.epsilon / 4) > 1e-6
    assert exact_delta(*shifted_binomials(100, 0.5, 1), event.epsilon) > 1e-6


# The condition.


@pytest.mark.parametrize("setting", PAPER_SETTINGS)
def test_the_paper_s_table_is_not_proven(setting: tuple[float, int, int, int]) -> None:
    claimed, bits, levels, trials = setting
    mechanism = BinomialMechanism(
        dim=7850, clip=1.0, limit=1.0, levels=levels, trials=trials, cohort=10, delta=1e-5
    )
    assert mechanism.bits == bits
    variance = {4: 10.0, 9: 22.5, 2: 5.0}[trials]
    claim = mechanism.claim
    assert isinstance(claim, NoClaim)
    assert f"needs noise of variance 524 in the sum, and 10 members give {variance:g}" in str(claim)
    assert float(claim.epsilon(delta=1e-5, rounds=1)) == math.inf
    shown = replace(mechanism, claimed=claimed).claim
    assert isinstance(shown, PaperClaim)
    assert shown.basis is Basis.CLAIMED
    assert "not proven" in str(shown)
    assert "variance 524" in str(shown)
    assert float(shown.epsilon(delta=1e-5, rounds=1)) == claimed
    with pytest.raises(ArgumentError, match="rounds must be 1"):
        shown.epsilon(delta=1e-5, rounds=2)


def test_condition_on_the_largest_shift() -> None:
    """With very many levels it is twice the largest shift that the variance must reach."""
    mechanism = unit_shift(1, levels=2001)
    assert mechanism.shifts()[0].largest == 2000
    assert isinstance(replace(mechanism, trials=4 * 4000 - 1).claim, NoClaim)
    assert isinstance(replace(mechanism, trials=4 * 4000).claim, ProvenClaim)


def test_claim_says_what_it_is() -> None:
    mechanism = unit_shift(20, cohort=200, unit=Unit.EXAMPLE, relation=Relation.ADD_OR_REMOVE)  # type: ignore[arg-type]
    claim = mechanism.claim
    assert isinstance(claim, ProvenClaim)
    assert claim.scope.unit is Unit.EXAMPLE
    assert claim.scope.relation is Relation.ADD_OR_REMOVE
    assert claim.scope.trust is Trust.DISTRIBUTED
    # A claim which is proven is not replaced by one which is not.
    assert replace(mechanism, claimed=0.01).claim == claim


def test_dropouts_weaken_the_claim() -> None:
    mechanism = unit_shift(20, cohort=200)
    fewer = mechanism.claim_for(100)
    assert isinstance(fewer, ProvenClaim)
    assert isinstance(fewer.event, ApproximateEvent)
    assert fewer.event.epsilon == pytest.approx(proven(unit_shift(20, cohort=100)).epsilon)
    assert fewer.event.epsilon > proven(mechanism).epsilon
    assert isinstance(mechanism.claim_for(10), NoClaim)
    for present in (0, 201, True):
        with pytest.raises(ArgumentError, match="present must"):
            mechanism.claim_for(present)


# How far a member moves the sum.


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("levels", [2, 5, 16, 200])
def test_shift_bounds_hold(levels: int, relation: Relation) -> None:
    """All outcomes of rounding two neighbours with the same random numbers, exactly."""
    dim, clip, limit = 7, 1.0, 0.6
    mechanism = BinomialMechanism(
        dim=dim, clip=clip, limit=limit, levels=levels, trials=1, cohort=1, delta=0.9,
        relation=relation,
    )  # fmt: skip
    certain, likely = mechanism.shifts()
    assert certain.failure == 0
    assert likely.failure == pytest.approx(0.45)
    rng = np.random.default_rng(31)
    exceeded = 0.0
    for _ in range(12):
        one = rng.standard_normal(dim) * rng.integers(0, 2, dim) + 1e-3
        one *= clip / np.linalg.norm(one)
        other = -one if relation is Relation.REPLACE else 0 * one
        gap = np.abs(np.clip(one, -limit, limit) - np.clip(other, -limit, limit)) / mechanism.step
        beyond = 0.0
        for up in itertools.product((0, 1), repeat=dim):
            part = gap - np.floor(gap)
            chance = float(np.prod(np.where(up, part, 1 - part)))
            if chance == 0:
                continue
            shift = np.floor(gap) + up
            norms = (shift.sum(), np.linalg.norm(shift), shift.max())
            assert all(a <= b * (1 + 1e-12) for a, b in zip(norms, certain[:3], strict=True))
            beyond += chance * any(a > b for a, b in zip(norms, likely[:3], strict=True))
            exceeded += chance * (norms[1] > np.linalg.norm(gap))
        assert beyond <= likely.failure
    assert exceeded > 0.3  # control: distances before rounding are no bound


def test_likely_shift_matters_in_high_dimension() -> None:
    """The certain bound grows with the dimension. The other is used, with half of delta."""
    mechanism = BinomialMechanism(
        dim=10_000, clip=1.0, limit=0.05, levels=8, trials=100, cohort=100_000, delta=1e-6
    )
    certain, likely = mechanism.shifts()
    assert likely.l2 < 0.7 * certain.l2
    expected = written_out(likely[:3], v=2.5e6, delta=5e-7, d=10_000, p=0.5)
    assert proven(mechanism).epsilon == pytest.approx(expected)
    assert proven(mechanism).delta == 1e-6
    assert expected < written_out(certain[:3], v=2.5e6, delta=1e-6, d=10_000, p=0.5)


@pytest.mark.parametrize("delta", [1e-8, 0.02, 0.5])
def test_likely_shift_where_rounding_is_widest(delta: float) -> None:
    """Every coordinate half a step apart: the L1 norm and the square are Bin(dim, 1/2)."""
    mechanism = BinomialMechanism(
        dim=400, clip=10.0, limit=1.0, levels=2, trials=1, cohort=1, delta=delta
    )
    _, likely = mechanism.shifts()
    assert binom.sf(math.floor(likely.l1), 400, 0.5) <= delta / 2
    assert binom.sf(math.floor(likely.l2**2), 400, 0.5) <= delta / 2
    # The control: the mean alone is exceeded half of the time.
    assert binom.sf(200, 400, 0.5) > 0.4


# Messages.


def decoded(mechanism: BinomialMechanism, vectors: Tensor, seed: int) -> Tensor:
    messages = mechanism.release(vectors, FastNoise(seed))
    assert messages.dtype == torch.int64
    assert 0 <= int(messages.min()) <= int(messages.max()) < mechanism.levels + mechanism.trials
    return mechanism.decode(messages.sum(-2), vectors.shape[-2])


@pytest.mark.parametrize("rotation_seed", [None, 5])
def test_decoding_is_unbiased(rotation_seed: int | None) -> None:
    """Means within 6.5 standard deviations: fails by chance with probability 5e-10."""
    mechanism = BinomialMechanism(
        dim=6, clip=3.0, limit=3.0, levels=4, trials=9, cohort=5, delta=1e-6, probability=0.3,
        rotation_seed=rotation_seed,
    )  # fmt: skip
    repeats = 10_000
    vectors = torch.from_numpy(np.random.default_rng(41).uniform(-1, 1, (5, 6)))
    mean = decoded(mechanism, vectors.expand(repeats, 5, 6), 42).mean(0)
    variance = (mechanism.std**2 + mechanism.step**2 * 5 / 4) / 25
    tolerance = 6.5 * math.sqrt(variance / repeats)

    def right(estimate: Tensor) -> bool:
        return bool(((estimate - vectors.mean(0)).abs() < tolerance).all())

    assert right(mean)
    # Controls: rounding to the nearest level, and noise that is taken to have a mean 3% off.
    nearest = (((vectors + 3) / 2).round() * 2 - 3).mean(0)
    assert not right(nearest)
    assert not right(mean + 0.03 * 9 * 0.3 * mechanism.step)


def test_stated_variance() -> None:
    """Exact levels, so noise alone: within 6%, some 11 standard deviations."""
    mechanism = BinomialMechanism(
        dim=3, clip=9.0, limit=3.0, levels=4, trials=20, cohort=4, delta=1e-6
    )
    vectors = torch.tensor([[-3.0, -1.0, 1.0], [3.0, 3.0, -3.0], [1.0, 1.0, 1.0], [-1.0, 3.0, 1.0]])
    errors = decoded(mechanism, vectors.expand(25_000, 4, 3), 43) - vectors.double().mean(0)
    for factor, fits in ((1.0, True), (0.8, False)):
        ratio = float((factor * errors).square().mean()) / (mechanism.std**2 / 16)
        assert (abs(ratio - 1) < 0.06) == fits


def test_wire_format() -> None:
    """Messages take `bits`, sums `sum_bits`: the largest possible ones just fit."""
    mechanism = BinomialMechanism(
        dim=2, clip=1.0, limit=1.0, levels=12, trials=4, cohort=10, delta=1e-5
    )
    assert mechanism.bits == 4
    assert 12 + 4 - 1 == 2**4 - 1
    assert mechanism.sum_bits == math.ceil(math.log2(10 * 15 + 1)) == 8
    message = mechanism.release(torch.tensor([[5.0, -5.0]]), SecureNoise())
    assert 0 <= int(message.min()) <= int(message.max()) < 16


def test_clipping_comes_first() -> None:
    """A vector far too long counts as its direction; a coordinate off the grid as its end."""
    mechanism = BinomialMechanism(
        dim=2, clip=1.0, limit=0.5, levels=3, trials=1, cohort=1, delta=1e-5, probability=1e-12
    )
    long = torch.tensor([1e30, 0.0], dtype=torch.float64)
    assert mechanism.release(long, FastNoise(0)).tolist() == [2, 1]
    for bad in (math.nan, math.inf):
        with pytest.raises(ArgumentError, match="finite"):
            mechanism.release(torch.tensor([bad, 0.0]), FastNoise(0))


def test_bad_arguments() -> None:
    good = unit_shift(10)
    for name, values in {
        "dim": (0,), "clip": (0.0, math.nan, math.inf), "limit": (-1.0, math.nan),
        "levels": (1,), "trials": (0,), "cohort": (0,), "delta": (0.0, 1.0, math.nan),
        "probability": (0.0, 1.0, math.nan), "unit": (Unit.COORDINATE,), "relation": ("both",),
    }.items():  # fmt: skip
        for value in values:
            with pytest.raises(ArgumentError, match=f"{name} must"):
                replace(good, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(MismatchError, match="vectors of 1"):
        good.release(torch.zeros(2), FastNoise(0))
    with pytest.raises(MismatchError, match="sums of 1"):
        good.decode(torch.zeros(2, dtype=torch.int64), 1)
    with pytest.raises(ArgumentError, match="count must"):
        good.decode(torch.zeros(1, dtype=torch.int64), 2)


@pytest.mark.parametrize("probability", [0.6, 0.9, 0.99])
def test_the_theorem_does_not_see_the_sign_of_noise(probability: float) -> None:
    """Bin(n, p) mirrors Bin(n, 1 - p); beyond 1/2 one of the constants would turn negative."""
    settings: dict[str, Any] = {
        "dim": 10**6, "clip": 150.0, "limit": 150.0, "levels": 301, "trials": 150,
        "cohort": 1000, "delta": 1e-5,
    }  # fmt: skip
    one = BinomialMechanism(**settings, probability=probability).claim
    other = BinomialMechanism(**settings, probability=1 - probability).claim
    found = float(one.epsilon(delta=1e-5, rounds=1))
    assert found == pytest.approx(float(other.epsilon(delta=1e-5, rounds=1)), rel=1e-9)
    # What a sum over all coordinates gives away: a Gaussian shift, at least.
    variance = 150 * 1000 * probability * (1 - probability)
    assert found > epsilon_for(gaussian(math.sqrt(variance) / 300), 1e-5)


# PrivUnitG and ProjUnit.


KEY = NoiseKey.from_integer(5)
SEED = SketchKey.from_integer(3).seed(0)


def density(cap: _Cap, along: float) -> float:
    """Of the part of a message along the client's own direction."""
    weight = cap.inside / cap.mass if along >= cap.gamma else (1 - cap.inside) / cap.outside_mass
    return weight * float(stats.norm.pdf(along))


def worst_ratio(cap: _Cap) -> float:
    """The largest ratio of the densities of one message under two clients' vectors.

    A message's density is the normal one times a weight that depends on the side of the cap that
    it is on; two orthogonal (or opposite) directions put it on any two sides.
    """
    weights = [cap.inside / cap.mass, (1 - cap.inside) / cap.outside_mass]
    return max(weights) / min(weights)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 4.0, 10.0, 40.0])
@pytest.mark.parametrize("dim", [1, 2, 100, 10**6])
def test_density_ratio_is_bounded(dim: int, epsilon: float) -> None:
    cap = PrivUnitG(dim, epsilon)._cap
    assert worst_ratio(cap) <= math.exp(epsilon) * (1 + 1e-9)
    # The control: entering the cap a fifth more often than allowed.
    wrong = cap._replace(inside=1 - (1 - cap.inside) * 0.8)
    assert worst_ratio(wrong) > math.exp(epsilon) * 1.1


@pytest.mark.parametrize("epsilon", [0.5, 4.0, 10.0])
def test_moments_against_integration(epsilon: float) -> None:
    cap = PrivUnitG(30, epsilon)._cap
    for power, expected in ((0, 1.0), (1, cap.mean), (2, cap.square)):
        below = integrate.quad(lambda a, n=power: a**n * density(cap, a), -40, cap.gamma)[0]
        above = integrate.quad(lambda a, n=power: a**n * density(cap, a), cap.gamma, 40)[0]
        assert below + above == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("dim", "epsilon"), [(10, 1.0), (154, 4.0), (7850, 10.0)])
def test_gamma_is_the_best(dim: int, epsilon: float) -> None:
    best = PrivUnitG(dim, epsilon)
    found = best._length(best._cap) / best._cap.mean**2
    for gamma in np.linspace(-3, 8, 300):
        cap = _Cap.at(float(gamma), epsilon)
        assert found <= best._length(cap) / cap.mean**2 * (1 + 1e-6)


def test_messages_have_the_stated_distribution() -> None:
    """Kolmogorov-Smirnov at 1e-9: fails with that probability on another seed."""
    mechanism = PrivUnitG(5, 2.0)
    cap = mechanism._cap
    vectors = torch.zeros(50_000, 5, dtype=torch.float64)
    vectors[:, 2] = 1.0
    messages = mechanism.release(vectors, KEY.source(worker=0, round_index=0))

    def cdf(along: Any) -> Any:
        below = (1 - cap.inside) * np.minimum(stats.norm.cdf(along) / cap.outside_mass, 1)
        above = cap.inside * np.maximum(1 - stats.norm.sf(along) / cap.mass, 0)
        return below + above

    along = messages[:, 2].numpy()
    assert stats.kstest(along, cdf).pvalue > 1e-9
    assert stats.kstest(along * 0.8, cdf).pvalue < 1e-9  # the control
    assert stats.kstest(messages[:, 0].numpy(), stats.norm.cdf).pvalue > 1e-9
    assert abs(np.corrcoef(along, messages[:, 0].numpy())[0, 1]) < 6.2 / math.sqrt(50_000)


def check_moments(estimates: Tensor, truth: Tensor, squares: Tensor, expected: float) -> None:
    """Seven standard errors in the mean and the mean square: a false alarm in 1 of 10^10.

    The controls: a truth that is off by two fifths and more, and a square by a fifth.
    """

    def off(values: Tensor, mean: Tensor | float) -> float:
        error = values.std(0) / math.sqrt(len(values))
        return float(((values.mean(0) - mean) / error).abs().max())

    assert off(estimates, truth) < 7
    assert off(estimates, 1.4 * truth + 0.1) > 7
    assert off(squares, expected) < 7
    assert off(squares, 1.2 * expected) > 7


@pytest.mark.parametrize("norm", [0.0, 0.3, 1.0, 5.0])
def test_privunit_is_unbiased(norm: float) -> None:
    mechanism = PrivUnitG(8, 3.0, clip=2.0)
    direction = torch.arange(1.0, 9.0, dtype=torch.float64)
    vector = norm * direction / direction.norm()
    source = KEY.source(worker=1, round_index=0)
    estimates = mechanism.decode(mechanism.release(vector.expand(40_000, 8), source))
    truth = vector * min(1.0, 2.0 / norm) if norm else vector
    check_moments(estimates, truth, estimates.square().sum(1), mechanism.squared_norm)


def each_decoded(mechanism: ProjUnit, messages: Tensor) -> Tensor:
    """The estimate of each worker by itself."""
    parts = [mechanism.decode(m[None], seed=SEED, first_worker=i) for i, m in enumerate(messages)]
    return torch.stack(parts)


@pytest.mark.slow
def test_projunit_is_unbiased_with_the_stated_error() -> None:
    mechanism = ProjUnit(20, 6, 4.0, clip=1.5)
    vectors = torch.zeros(8_000, 20, dtype=torch.float64)
    vectors[:, 4], vectors[:, 7] = 0.6, -0.8
    messages = mechanism.release(vectors, KEY.source(worker=2, round_index=0), seed=SEED)
    estimates = each_decoded(mechanism, messages)
    check_moments(estimates, vectors[0], estimates.square().sum(1), mechanism.squared_norm)


@pytest.mark.slow
def test_a_shared_projection_is_unbiased_over_the_seeds_with_the_stated_error() -> None:
    mechanism = ProjUnit(20, 6, 4.0, clip=1.5, shared=True)
    vectors = torch.zeros(2, 20, dtype=torch.float64)
    vectors[:, 4], vectors[0, 7], vectors[1, 7] = 0.6, -0.8, 0.8
    source, key = KEY.source(worker=7, round_index=0), SketchKey.from_integer(6)
    means, single = [], []
    for index in range(1_200):
        seed = key.seed(index)
        messages = mechanism.release(vectors, source, seed=seed)
        means.append(mechanism.decode(messages.sum(0, keepdim=True), seed=seed) / 2)
        single.append(mechanism.decode(messages[:1], seed=seed))
    squares = torch.stack(single).square().sum(1)
    check_moments(torch.stack(means), vectors.mean(0), squares, mechanism.squared_norm)


def test_projections_sum() -> None:
    """Messages decode to the sum of what each decodes to, and if shared their sum does too."""
    vectors = torch.eye(20, dtype=torch.float64)[:3]
    for shared in (True, False):
        mechanism = ProjUnit(20, 6, 4.0, shared=shared)
        messages = mechanism.release(vectors, KEY.source(worker=3, round_index=0), seed=SEED)
        together = mechanism.decode(messages, seed=SEED)
        assert torch.allclose(together, each_decoded(mechanism, messages).sum(0))
        summed = mechanism.decode(messages.sum(0, keepdim=True), seed=SEED)
        assert torch.allclose(together, summed) == shared


def test_a_shared_projection_is_kept_with_its_seed() -> None:
    """Other sizes, types and seeds must not get each other's."""
    seed, other = (SketchKey.from_integer(3).seed(index) for index in (5, 6))
    like = torch.zeros(1, dtype=torch.float32)
    one = ProjUnit(20, 6, 4.0, shared=True)
    kept = one._shared_matrix(seed, like)
    assert one._shared_matrix(seed, like) is kept
    assert torch.equal(kept, one._matrix(seed, 0, like))
    assert not torch.equal(one._shared_matrix(other, like), kept)
    assert one._shared_matrix(seed, like.double()).dtype == torch.float64
    assert ProjUnit(20, 5, 4.0, shared=True)._shared_matrix(seed, like).shape == (5, 20)


@pytest.mark.parametrize("size", [1.5e-162, 1e-300, 1e-40, 1.0, 1e150])
@pytest.mark.parametrize("clip", [1e-160, 1.0])
def test_directions_have_length_one(size: float, clip: float) -> None:
    """Whatever the scale: another length would show in the message's norm whose it is."""
    vectors = torch.full((4, 1000), size, dtype=torch.float64)
    vectors[:, 0] *= 1.4
    vectors[3] = 0
    clipped = clip_norm(vectors, clip)
    units = _random_directions(clipped, clip, KEY.source(worker=4, round_index=0))
    assert float((units.norm(dim=-1) - 1).abs().max()) < 1e-12
    naive = clipped / torch.linalg.vector_norm(clipped, dim=-1, keepdim=True)
    if size < 1e-150 or clip < 1e-150:  # the control: squares that vanish
        assert not float((naive.norm(dim=-1) - 1).abs().max()) < 1e-12


@pytest.mark.parametrize(("epsilon", "relative_error"), [(1.0, 4974.0), (4.0, 347.0), (10.0, 79.0)])
def test_errors_of_the_prototype(epsilon: float, relative_error: float) -> None:
    """The means of 10 identical clients, 7,850 numbers projected to 154; within 1%.

    The mean length of a projection is that of the chi distribution, at any size.
    """
    for size in (1, 2, 6, 154):
        mean = ProjUnit(7850, size, epsilon)._mean_length
        assert mean == pytest.approx(stats.chi(size).mean(), rel=1e-9)
    found = (ProjUnit(7850, 154, epsilon).squared_norm - 1) / 10
    assert found == pytest.approx(relative_error, rel=0.01)


def test_claim_is_pure_and_composes() -> None:
    claim = PrivUnitG(10, 0.5).claim
    assert str(claim.scope) == "client unit, replace, local trust"
    assert float(claim.epsilon(delta=0.0, rounds=1)) == pytest.approx(0.5, abs=1e-3)
    assert float(claim.epsilon(delta=1e-6, rounds=100)) < 0.5 * 100


def test_bad_input_of_privunit() -> None:
    noise = KEY.source(worker=0, round_index=1)
    with pytest.raises(ArgumentError, match="per_message must be in"):
        PrivUnitG(3, math.nan)
    with pytest.raises(ArgumentError, match="clip must be a number > 0"):
        PrivUnitG(3, 1.0, clip=0.0)
    with pytest.raises(ArgumentError, match=r"size must be in 1\.\.3"):
        ProjUnit(3, 4, 1.0)
    with pytest.raises(ArgumentError, match="shared must be true or false"):
        ProjUnit(3, 2, 1.0, shared=1)  # type: ignore[arg-type]
    with pytest.raises(MismatchError, match="3 entries"):
        PrivUnitG(3, 1.0).release(torch.ones(4), noise)
    with pytest.raises(ArgumentError, match="finite"):
        PrivUnitG(3, 1.0).release(torch.tensor([1.0, math.nan, 0.0]), noise)
    with pytest.raises(MismatchError, match="workers, 3"):
        ProjUnit(3, 2, 1.0).release(torch.ones(3), noise, seed=SEED)
    with pytest.raises(ArgumentError):
        PrivUnitG(3, 1.0).release(torch.ones(3), SecureNoise())
