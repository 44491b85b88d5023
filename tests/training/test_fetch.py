"""FetchSGD: against error feedback on plain vectors, and what it zeroes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError
from diffsketch.methods.client_noise import SketchGaussian
from diffsketch.methods.plain import PlainSketch, Uncompressed
from diffsketch.privacy.noise import CohortNoise, NoiseKey
from diffsketch.sketch.hashing import SketchKey, columns_and_signs
from diffsketch.training.server import FetchSGD, Published

DIM = 40
SEED = SketchKey.from_integer(5).seed(0)
WIDE = PlainSketch(DIM, 1, 64)  # no two coordinates share a cell, so queries are exact
SMALL = PlainSketch(DIM, 3, 16)


def vectors(count: int) -> Tensor:
    return torch.randn(count, DIM, generator=torch.Generator().manual_seed(1))


def publish(method: PlainSketch, vector: Tensor, count: int = 1) -> Published:
    return Published(method.sketch.encode(vector * count, SEED), count, SEED, 0)


def dense_reference(
    rounds: list[Tensor], *, top_k: int, momentum: float, step: float
) -> tuple[Tensor, Tensor]:
    """The same on vectors: momentum, accumulated error, top-k, and forgetting what was sent."""
    weights, error, velocity = torch.zeros(DIM), torch.zeros(DIM), torch.zeros(DIM)
    for mean in rounds:
        velocity = momentum * velocity + mean
        error = error + step * velocity
        chosen = error.abs().topk(top_k).indices
        weights[chosen] += error[chosen]
        error[chosen], velocity[chosen] = 0.0, 0.0
    return weights, error


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("top_k", [1, 7, DIM])
def test_agrees_with_plain_vectors(momentum: float, top_k: int) -> None:
    rule = FetchSGD(top_k, table_momentum=momentum)
    model = rule.start(torch.zeros(DIM), WIDE)
    rounds = list(vectors(8))
    for mean in rounds:
        model = rule.advance(model, publish(WIDE, mean, 5), method=WIDE, step=-0.1)
    weights, error = dense_reference(rounds, top_k=top_k, momentum=momentum, step=-0.1)
    assert torch.allclose(model.weights, weights, atol=1e-5)
    assert torch.allclose(model.memory["error"], WIDE.sketch.encode(error, SEED), atol=1e-5)


def test_zeroes_exactly_the_hit_cells() -> None:
    rule, mean = FetchSGD(3, table_momentum=0.5), vectors(1)[0]
    first = rule.start(torch.zeros(DIM), SMALL)
    model = rule.advance(first, publish(SMALL, mean), method=SMALL, step=1.0)
    table = SMALL.sketch.encode(mean, SEED)
    estimates = SMALL.decode(table, SEED, count=1)
    chosen = model.weights.nonzero().flatten()
    assert set(chosen.tolist()) == set(estimates.abs().topk(3).indices.tolist())
    assert torch.equal(model.weights[chosen], estimates[chosen])
    columns, _ = columns_and_signs(chosen.numpy(), SEED, layout=SMALL.sketch.layout)
    hit = torch.zeros(3, 16, dtype=torch.bool)
    for row in range(3):
        hit[row, torch.from_numpy(columns[row])] = True
    for name in ("error", "velocity"):
        assert bool((model.memory[name][hit] == 0).all())
        assert torch.equal(model.memory[name][~hit], table[~hit])
    assert bool((table[~hit] != 0).any())
    assert bool((first.memory["error"] == 0).all())  # not changed in place


def test_what_is_not_extracted_is_kept() -> None:
    """A coordinate that is second each time comes through in the end."""
    rule, mean = FetchSGD(1), torch.zeros(DIM)
    mean[3], mean[8] = 1.0, 0.6
    model = rule.start(torch.zeros(DIM), WIDE)
    for _ in range(2):
        model = rule.advance(model, publish(WIDE, mean), method=WIDE, step=1.0)
    assert model.weights[[3, 8]].tolist() == pytest.approx([1.0, 1.2])


def test_clip_is_of_the_estimated_norm() -> None:
    rule, mean = FetchSGD(DIM, update_clip=0.5), vectors(1)[0]
    model = rule.advance(
        rule.start(torch.zeros(DIM), WIDE), publish(WIDE, mean), method=WIDE, step=1.0
    )
    assert float(model.weights.norm()) == pytest.approx(0.5, rel=1e-5)


def test_bytes() -> None:
    assert FetchSGD(10).round_bytes(SMALL) == 48 + 10 * 8
    assert FetchSGD(10).model_bytes(DIM) == 48 + 4 * DIM


def test_refusals() -> None:
    with pytest.raises(ArgumentError, match="method whose messages are tables, got method='none'"):
        FetchSGD(3).check_method(Uncompressed(DIM), fresh=False)
    with pytest.raises(ArgumentError, match="hashes='fixed'"):
        FetchSGD(3).check_method(SMALL, fresh=True)
    with pytest.raises(ArgumentError, match="top_k must be at most dim=40"):
        FetchSGD(41).check_method(SMALL, fresh=False)
    with pytest.raises(ArgumentError, match="top_k must be >= 1"):
        FetchSGD(0)
    with pytest.raises(ArgumentError, match="table_momentum must be in"):
        FetchSGD(1, table_momentum=1.0)
    FetchSGD(3).check_method(SMALL, fresh=False)


@pytest.mark.parametrize("trust", ["local", "central", "distributed"])
def test_whole_numbers_are_the_tables_that_they_stand_for(trust: str) -> None:
    """With hardly any noise: what is extracted is that of the bare tables."""
    settings = {"clip": 50.0, "noise_multiplier": 1e-4, "cohort": 4, "trust": trust}
    noisy = SketchGaussian(DIM, 3, 16, **settings)  # type: ignore[arg-type]
    bare = PlainSketch(DIM, 3, 16)
    vectors = torch.randn(4, DIM, generator=torch.Generator().manual_seed(1))
    seed, rule = SketchKey.from_integer(2).seed(0), FetchSGD(5)
    found = []
    for method in (bare, noisy):
        noise = CohortNoise(NoiseKey.from_integer(1), range(4), round_index=0)
        server = CohortNoise(NoiseKey.from_integer(1), [9], round_index=0)
        total = method.publish(method.encode(vectors, seed, noise).messages.sum(dim=0), server)
        rule.check_method(method, fresh=False)
        model = rule.start(torch.zeros(DIM), method)
        found.append(rule.advance(model, Published(total, 4, seed, 0), method=method, step=1.0))
    torch.testing.assert_close(found[1].weights, found[0].weights, atol=0.3, rtol=0.1)
    assert float(found[0].weights.abs().max()) > 1
