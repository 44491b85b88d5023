"""Messages of records: sensitivity, roundings, what is drawn, and the claim."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.methods import GaussianMean, SkellamMean, SketchGaussian
from diffsketch.methods.base import Encoder
from diffsketch.methods.client_noise import ClientNoise
from diffsketch.privacy import Account, Noise, NoiseKey, SecureNoise, Trust, Unit
from diffsketch.privacy.accounting import events
from diffsketch.privacy.claim import SimulatedClaim
from diffsketch.privacy.clipping import Quantizer
from diffsketch.silos import messages as records
from diffsketch.silos.messages import draw_records, encode_records, release_records
from diffsketch.sketch import SketchKey
from diffsketch.sketch.hashing import HashSeed
from tests.helpers.refusals import refused
from tests.privacy.deltas import delta_for
from tests.privacy.laws import gaussian_law

DIM, SILOS, LOST = 60, 5, 2
SEED = SketchKey.from_integer(3).seed(0)


SETTINGS: dict[str, Any] = {
    "clip": 1.0, "noise_multiplier": 0.5, "cohort": SILOS, "lost": LOST, "unit": "example",
    "rate": 0.2, "records": 8.0, "relation": "add-or-remove", "trust": "distributed",
}  # fmt: skip


def dense(kind: type[ClientNoise] = GaussianMean, **changes: Any) -> ClientNoise:
    settings = SETTINGS | changes
    if settings["trust"] != "distributed":
        settings["lost"] = 0
    return kind(dim=DIM, **settings)


def sketched(**changes: Any) -> SketchGaussian:
    return SketchGaussian(DIM, 2, 20, **(SETTINGS | {"unit": "person"} | changes))


class Dithered(SecureNoise):
    """One dither for all messages, and no noise."""

    def __init__(self, words: Tensor) -> None:
        self._words = words

    def words(self, shape: tuple[int, ...]) -> Tensor:
        return self._words.reshape(shape)

    def discrete_gaussian(self, shape: tuple[int, ...], std: float) -> Tensor:  # noqa: ARG002
        return torch.zeros(shape, dtype=torch.int64)


def dithers(method: ClientNoise, count: int) -> list[Noise]:
    cells = method.mechanism.quantizer.cells
    return [Dithered(SecureNoise().words((cells,))) for _ in range(count)]


def sum_of(method: ClientNoise, vectors: Tensor, noise: Noise) -> Tensor:
    """The whole numbers of a message without noise, in steps."""
    message = encode_records(method, [vectors], SEED, noise)
    return method.mechanism.centred(message).flatten().double()


def records_of(method: ClientNoise, count: int = 12) -> Tensor:
    """Longer than the clip, shorter, sparse, zero, constant, near the ends of float32."""
    generator = torch.Generator().manual_seed(1)
    vectors = torch.randn(count, method.dim, generator=generator)
    scales = torch.tensor([1e-3, 0.05, 1.0, 30.0])[torch.arange(count) % 4]
    vectors *= scales[:, None]
    vectors[0], vectors[1] = 0.0, 1.0
    vectors[2, 3:] = 0.0
    vectors[3] *= 1e36 / vectors[3].abs().max()
    vectors[4] *= 1e-38
    return vectors


def largest_move(method: ClientNoise) -> float:
    """The most that taking one record away moves a sum, in the longest that a record may be."""
    quantizer, vectors = method.mechanism.quantizer, records_of(method)
    assert isinstance(quantizer, Quantizer)
    moves = []
    for noise in dithers(method, 5):
        everyone = sum_of(method, vectors, noise)
        for taken in range(len(vectors)):
            rest = torch.cat([vectors[:taken], vectors[taken + 1 :]])
            moves.append(float((everyone - sum_of(method, rest, noise)).norm()))
    return max(moves) / quantizer.longest


@pytest.mark.parametrize(
    ("method", "nearly"), [(dense(), 0.95), (sketched(), 0.95), (dense(granularity=0.3), 0.6)]
)
def test_no_record_moves_a_sum_by_more_than_stated(method: ClientNoise, nearly: float) -> None:
    assert nearly < largest_move(method) <= 1


@dataclass(frozen=True)
class Half(Encoder):
    """The first half of the coordinates."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.dim // 2,)

    def encode(self, vectors: Tensor, seed: HashSeed) -> Tensor:  # noqa: ARG002
        return vectors[..., : self.dim // 2]


class HalfGaussian(GaussianMean):
    @cached_property
    def encoder(self) -> Encoder:
        return Half(self.dim)


def test_records_go_through_the_method_s_encoder() -> None:
    """The kernel adds as many cells as it is given, so an encoder that is left out shows."""
    method = dense(HalfGaussian)
    noise, vectors = dithers(method, 1)[0], records_of(method)
    total = sum_of(method, vectors, noise)
    vectors[:, DIM // 2 :] = 7.0
    assert total.shape == (DIM // 2,)
    assert torch.equal(total, sum_of(method, vectors, noise))


def test_without_a_clip_a_record_moves_more(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = records.add_bounded

    def unclipped(tables: Any, length: float, step: float, largest: int, *rest: Any) -> Any:
        del length, largest
        return kernel(tables, 1e3, step, 2**60, *rest)

    monkeypatch.setattr(records, "add_bounded", unclipped)
    assert largest_move(dense()) > 2


def test_a_record_changes_no_other() -> None:
    method, vectors = dense(), records_of(dense())
    (noise,) = dithers(method, 1)
    alone = sum(sum_of(method, vectors[i : i + 1], noise) for i in range(len(vectors)))
    assert torch.equal(torch.as_tensor(alone), sum_of(method, vectors, noise))


def test_rounding_is_unbiased() -> None:
    """Over 4,000 dithers; a mean is beyond 6 standard errors in any cell with p < 2e-7."""
    method = dense(granularity=0.05)
    vectors = 0.1 * torch.randn(3, DIM, generator=torch.Generator().manual_seed(2))
    assert float(vectors.norm(dim=1).max()) < 1
    sums = torch.stack([sum_of(method, vectors, noise) for noise in dithers(method, 4000)])
    error = sums.mean(0) - vectors.double().sum(0) / 0.05
    assert float((error / (sums.std(0) / math.sqrt(4000)).clamp(min=1e-9)).abs().max()) < 6
    assert float((sums - sums.floor()).abs().max()) == 0


@pytest.mark.parametrize("method", [dense(), sketched()])
def test_broken_records_count_as_zeros(method: ClientNoise) -> None:
    vectors = records_of(method)
    (noise,) = dithers(method, 1)
    broken = vectors.clone()
    broken[5, 7], broken[6], broken[7, 0] = math.nan, math.inf, -math.inf
    rest = torch.cat([vectors[:5], vectors[8:]])
    assert torch.equal(sum_of(method, broken, noise), sum_of(method, rest, noise))


def test_pieces_do_not_matter_and_an_empty_batch_sends_noise() -> None:
    method, vectors = sketched(), records_of(sketched())
    (noise,) = dithers(method, 1)
    pieces = encode_records(method, torch.split(vectors, 5), SEED, noise)
    assert torch.equal(pieces, encode_records(method, [vectors], SEED, noise))
    empty = encode_records(method, [], SEED, SecureNoise())
    assert empty.shape == method.message_format.shape
    spread = float(method.mechanism.centred(empty).double().std())
    wanted = method.mechanism.std / method.mechanism.step / math.sqrt(SILOS - LOST)
    # 40 cells: the sample deviation is within a factor of 2, but with probability 1e-9.
    assert wanted / 2 < spread < wanted * 2


def variance_of(method: ClientNoise, silos: int) -> float:
    """Of a cell of the noise of so many silos, over that of the claim's noise."""
    nothing = [encode_records(method, [], SEED, SecureNoise()) for _ in range(silos * 40)]
    centred = torch.stack([method.mechanism.centred(message) for message in nothing]).double()
    sums = centred.reshape(40, silos, -1).sum(1)
    return float(sums.square().mean()) / (method.mechanism.std / method.mechanism.step) ** 2


@pytest.mark.parametrize("law", [GaussianMean, SkellamMean])
def test_shares_are_for_those_that_stay(law: type[ClientNoise]) -> None:
    """Of 2,400 cells the variance is within 15% but with probability 3e-7."""
    method = dense(law, noise_multiplier=1.0)
    assert variance_of(method, SILOS - LOST) == pytest.approx(1, rel=0.15)
    # The control: shares for all silos lack what the lost ones would have brought.
    everyone = dense(law, noise_multiplier=1.0, lost=0)
    assert variance_of(everyone, SILOS - LOST) == pytest.approx(3 / 5, rel=0.15)
    assert method.claim_for(SILOS, SEED) == method.claim_for(SILOS - LOST, SEED)
    stated, fewer = (method.claim_for(n, SEED).epsilon(delta=1e-5, rounds=10) for n in (3, 2))
    assert float(fewer) > float(stated)


def test_claims_say_what_is_hidden_and_how() -> None:
    claim = dense().claim_for(SILOS, SEED)
    assert str(claim.scope) == "example unit, add-or-remove, distributed trust"
    assert "on secret samples that each example joins with probability 0.2" in str(claim)
    event = claim.event  # type: ignore[union-attr]
    assert isinstance(event, events.PoissonEvent)
    assert event.rate == 0.2
    assert event.event.noise_multiplier == pytest.approx(0.5, rel=1e-2)
    local = dense(trust="local").claim_for(1, SEED)
    assert str(local.scope) == "example unit, add-or-remove, local trust"
    assert sketched().claim_for(SILOS, SEED).scope.unit is Unit.PERSON
    assert "one person's records" in str(sketched().claim_for(SILOS, SEED))


def exact_delta(std: float, silos: int, shift: int, rate: float, epsilon: float) -> float:
    """The delta of a sampled record, by enumeration of a cell: the worse of both directions."""
    _, share = gaussian_law(std)
    total = np.ones(1)
    for _ in range(silos):
        total = np.convolve(total, share)
    without = np.concatenate([total, np.zeros(shift)])
    moved = np.concatenate([np.zeros(shift), total])
    mixed = (1 - rate) * without + rate * moved
    ways = (mixed, without), (without, mixed)
    return max(float(np.maximum(p - math.exp(epsilon) * q, 0).sum()) for p, q in ways)


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.5])
@pytest.mark.parametrize(("multiplier", "silos"), [(0.6, 1), (0.6, 3), (1.5, 4)])
def test_a_sampled_sum_of_shares_is_no_worse_than_claimed(
    epsilon: float, multiplier: float, silos: int
) -> None:
    """In one cell, with steps as coarse as the clip allows, where whole numbers matter most."""
    method = GaussianMean(
        dim=1, clip=4.0, noise_multiplier=multiplier, granularity=1.0, cohort=silos + 1, lost=1,
        unit="example", rate=0.3, relation="add-or-remove", trust="distributed",
    )  # fmt: skip
    mechanism = method.mechanism
    shift = mechanism.quantizer.peak
    assert shift >= 4
    std = multiplier * mechanism.quantizer.longest / math.sqrt(silos)
    truth = exact_delta(std, silos, shift, 0.3, epsilon)
    event = method.claim_for(silos, SEED).event  # type: ignore[union-attr]
    stated = delta_for(event, epsilon)
    assert truth <= stated
    # The control: sampling that is claimed, and not done.
    assert exact_delta(std, silos, shift, 1.0, epsilon) > stated


def test_batches_are_drawn_one_by_one_with_the_rate_of_the_claim() -> None:
    """Sizes of 3,000 batches are binomial, and pairs as frequent as chance: p > 1e-6."""
    drawn = [draw_records(dense(), 30, SecureNoise()) for _ in range(3000)]
    sizes = np.bincount([len(batch) for batch in drawn], minlength=31)
    law = stats.binom.pmf(np.arange(31), 30, 0.2) * 3000
    kept = law > 5
    seen, expected = (np.append(n[kept], n[~kept].sum()) for n in (sizes, law))
    assert stats.chisquare(seen, expected).pvalue > 1e-6
    together = sum(0 in batch and 1 in batch for batch in drawn)
    assert stats.binomtest(together, 3000, 0.04).pvalue > 1e-6


def test_sums_are_divided_by_the_expected_number() -> None:
    method = dense(noise_multiplier=1e-3, trust="central", rate=0.5, records=4.0)
    vectors = torch.full((2, DIM), 0.05)
    (noise,) = dithers(method, 1)
    total = encode_records(method, [vectors], SEED, noise)
    mean = method.decode(total, SEED, count=1)
    assert torch.allclose(mean, torch.full((DIM,), 2 * 0.05 / 4), atol=1e-3)


def test_the_gate_charges_before_it_looks_at_a_record() -> None:
    method, account, seen = dense(trust="local"), Account(), []

    def pieces() -> Any:
        seen.append(account.rounds)
        yield records_of(method)

    claim = method.claim_for(1, SEED)
    message = release_records(pieces(), method, SEED, claim, charge=lambda: account.charge(claim))
    assert seen == [1]
    assert message.shape == (DIM,)

    def refuse() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        release_records(pieces(), method, SEED, claim, charge=refuse)
    simulated = SimulatedClaim.of(claim)  # what may not be sent at all costs nothing
    about = pieces(), method, SEED, simulated
    refused(
        ArgumentError, "claim must be about exact noise", release_records, *about, charge=refuse
    )
    assert seen == [1]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: dense(relation="replace"), "relation must be add-or-remove for unit=example"),
        (lambda: dense(clip_quantile=0.5), "clip_quantile"),
        (lambda: dense(unit="client"), "unit must be example or person"),
        (lambda: dense(lost=SILOS), "lost"),
        (lambda: GaussianMean(dim=DIM, clip=1.0, noise_multiplier=1.0, lost=1), "lost"),
        (lambda: dense(rate=0.0), "rate"),
        (lambda: dense(rate=1.1), "rate"),
        (lambda: dense().encode(torch.zeros(DIM), SEED, SecureNoise()), "records"),
        (lambda: draw_records(GaussianMean(dim=3, clip=1.0, noise_multiplier=1.0), 5,
                              SecureNoise()), 'unit="example"'),
    ],
)  # fmt: skip
def test_what_is_refused(make: Callable[[], object], text: str) -> None:
    with pytest.raises((ArgumentError, TypeError), match=text):
        _ = make().mechanism  # type: ignore[attr-defined]


def test_pieces_of_another_shape_are_refused() -> None:
    for piece in (torch.zeros(2, DIM + 1), torch.zeros(2, DIM).double()):
        with pytest.raises(MismatchError, match="pieces must be float32"):
            encode_records(dense(), [piece], SEED, SecureNoise())


def test_simulated_noise_follows_from_its_key() -> None:
    method, key = sketched(), NoiseKey.from_integer(4)
    first, again, other = (
        encode_records(method, [], SEED, key.source(worker=worker, round_index=0))
        for worker in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert method.trust is Trust.DISTRIBUTED


def test_the_norm_holds_for_every_dither() -> None:
    """Rounding all cells up is all but impossible, and no longer than is stated all the same."""
    method = dense(granularity=0.1)
    up = Dithered(torch.full((DIM,), -1, dtype=torch.int64))  # all bits: the largest dither
    vector = torch.full((1, DIM), 1 / math.sqrt(DIM) - 1e-4)
    exact = vector.double() / 0.1
    assert float(exact.ceil().norm()) > method.mechanism.quantizer.longest
    assert torch.equal(sum_of(method, vector, up), exact[0].trunc())
