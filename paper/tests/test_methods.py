"""The methods here keep the promises of every method, and do what they are named for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import hadamard

from diffsketch.app.build import build
from diffsketch.app.settings import RunConfig
from diffsketch.errors import ArgumentError
from diffsketch.methods import METHODS, Method, build_method
from diffsketch.methods.client_noise import SketchGaussian
from diffsketch.methods.gate import release_noise
from diffsketch.privacy import CohortNoise, FastNoise
from diffsketch.privacy.claim import ProvenClaim, Trust
from diffsketch.sketch import CountSketch, SketchKey
from paper.noise_control import NoiseControl
from paper.readings import DiffSketchReading
from paper.repaired import ProvenDiffSketch
from paper.rotated import RotatedCpSgd, rotate, rotate_back
from tests.methods import test_contract as contract
from tests.methods import test_gate as release
from tests.methods import test_honest as honest
from tests.methods.cases import DIM, NOISE_KEY, SEED, WORKERS, Case
from tests.training.reference import DIM as SMALL
from tests.training.test_rounds import SKETCH, accuracy_of, correcting

SETTINGS: dict[str, dict[str, object]] = {
    "diffsketch-proven": {"rows": 3, "cols": 20, "clip": 1.0, "padding": 100, "std": 1.0},
    "cpsgd-rotated": {"claimed": 5.0},
}
PROVEN = SETTINGS | {
    "cpsgd-rotated": {"clip": 2.0, "levels": 64, "trials": 10_000, "delta": 1e-3},
    "diffsketch-proven": {"rows": 1, "cols": 4, "clip": 1.0, "padding": 400, "std": 1.0},
}
READING: dict[str, Any] = {"percentile": "signed", "added": "gaussian"}
CASES = {
    "diffsketch-proven": Case(
        ProvenDiffSketch(DIM, 2, 20, clip=1.0, padding=200, std=0.1),
        "proven: coordinate unit, replace, local trust",
        0.1**2 * 200 / 20,
    ),
    "cpsgd-rotated": Case(
        RotatedCpSgd(
            dim=DIM, cohort=WORKERS, clip=2.0, levels=64, trials=3200, delta=1e-3, limit=2.0
        ),
        "proven: client unit, replace, distributed trust",
        None,
    ),
    "diffsketch-reading": Case(
        DiffSketchReading(DIM, 2, 4, per_round=20.0, padding=600, appended="least", **READING),
        "claimed: coordinate unit, replace, local trust",
        None,
    ),
}
OF_METHODS = (
    contract.test_a_batch_is_its_vectors_one_by_one,
    contract.test_same_noise_same_bits_in_any_order_and_no_global_generator,
    contract.test_means_can_be_written_into_memory_that_is_there,
    contract.test_messages_fit_their_format_and_survive_the_wire,
    contract.test_what_overflows_in_float32_is_refused_or_clipped,
)


@pytest.fixture(autouse=True)
def _ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The contract is about these cases."""
    for name, cases in (("CASES", CASES), ("SETTINGS", SETTINGS), ("PROVEN", PROVEN)):
        monkeypatch.setattr(contract, name, cases)


@pytest.mark.parametrize("check", OF_METHODS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_promises_of_every_method(check: Callable[[Method], None], case: Case) -> None:
    check(case.method)


@pytest.mark.parametrize("name", CASES)
def test_claims_means_and_noise(name: str) -> None:
    contract.test_claims(CASES[name])
    contract.test_means_are_right_on_average(name)
    if CASES[name].variance:
        contract.test_noise_in_floats_has_the_size_that_is_stated(name)
    for scale in (0.0, 1.0, 1e6):
        honest.test_what_honest_workers_send_passes(CASES[name].method, scale)


@pytest.mark.parametrize("name", SETTINGS)
def test_promises_by_name(name: str) -> None:
    contract.test_methods_are_built_by_name(name)
    contract.test_a_vector_with_nan_or_infinity_counts_as_zeros(name)
    assert METHODS[name].code == {"diffsketch-proven": 3, "cpsgd-rotated": 13}[name]


def test_engines_refuse_simulated_noise_and_tell_of_clipping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "diffsketch-proven"
    method = build_method(name, dim=DIM, cohort=3, settings=PROVEN[name])
    with pytest.raises(ArgumentError, match=f"method='{name}' must not be sent: its proof is"):
        release_noise(method, method.claim_for(3, SEED))
    settings = {**SETTINGS[name], "cols": 9, "padding": 50, "clip": 0.5}
    monkeypatch.setattr(release, "CLIPPED", {name: (settings, "clip=0.5")})
    release.test_vectors_that_are_far_too_long_are_told_of(name)


TABLE: dict[str, object] = {"rows": 2, "cols": 20, "per_round": 1.0}


@pytest.mark.parametrize(
    ("name", "settings", "match"),
    [
        ("diffsketch-proven", {**SETTINGS["diffsketch-proven"], "std": 0.0}, "std must be a numb"),
        ("diffsketch-proven", {**SETTINGS["diffsketch-proven"], "padding": 0}, "padding must be >"),
        ("diffsketch-reading", TABLE | {"percentile": "x"}, "percentile must be sizes or signed"),
        ("diffsketch-reading", TABLE | {"added": "x"}, "added must be laplace or gaussian"),
        ("sketch-laplace-signed", TABLE | {"clip": 1.0}, "clip must not be given with a signed"),
    ],
)
def test_bad_settings_are_refused(name: str, settings: dict[str, object], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        build_method(name, dim=100, cohort=7, settings=settings)


# Readings of the paper.


def sent(name: str, vectors: torch.Tensor, settings: dict[str, object]) -> Any:
    method = build_method(name, dim=vectors.shape[1], cohort=1, settings=settings)
    return method.encode(vectors, SEED, CohortNoise(NOISE_KEY, range(len(vectors)), round_index=0))


def test_gaussian_noise_is_added_where_the_claim_falls_short_and_of_the_size_it_needs() -> None:
    """Algorithm 2's other noise: for an epsilon at delta 1e-5, of a sensitivity 2 alpha sqrt(t)."""
    vectors = torch.randn(6, 3000, generator=torch.Generator().manual_seed(5))
    vectors[:, 7] += 40.0 * torch.arange(6)  # whose claims differ: their sigma does
    settings: dict[str, object] = {"rows": 3, "cols": 2, "per_round": 0.05}
    whole = sent("diffsketch", vectors, settings)
    found = sent("diffsketch-reading", vectors, settings | {"added": "gaussian"})
    assert 0 < int(found.noised.sum()) < 6
    assert torch.equal(found.noised, whole.noised)
    bare = CountSketch(3000, 3, 2).encode(vectors, SEED)
    assert torch.equal(found.messages[~found.noised], bare[~found.noised])
    settings = {"rows": 7, "cols": 300, "per_round": 1.0, "added": "gaussian"}
    wide = build_method("diffsketch-reading", dim=400, cohort=1, settings=settings)
    vector = torch.randn(1, 400, generator=torch.Generator().manual_seed(6))
    noise = CohortNoise(NOISE_KEY, range(1), round_index=0)
    added = wide.encode(vector, SEED, noise).messages - CountSketch(400, 7, 300).encode(
        vector, SEED
    )
    alpha = float(np.quantile(vector.abs().double().numpy(), 0.9))
    # Two deviations of an estimate from 2,100 cells are 3%; five, 8% (a false failure in 1e6).
    assert float(added.std()) == pytest.approx(3.73 * 2 * alpha * math.sqrt(7), rel=0.08)


@pytest.mark.parametrize(
    ("of_sizes", "of_values", "more"),
    [
        ("diffsketch", "diffsketch-reading", {"percentile": "signed"}),
        ("sketch-laplace", "sketch-laplace-signed", {}),
    ],
)
def test_signed_alpha_is_that_of_the_values(
    of_sizes: str, of_values: str, more: dict[str, object]
) -> None:
    """Where nine in ten are negative, it is 0, and the largest size stands in for it."""
    vectors = torch.randn(6, 3000, generator=torch.Generator().manual_seed(6))
    vectors[-1] = -vectors[-1].abs()
    bare = CountSketch(3000, 2, 20).encode(vectors, SEED)
    sizes, signed = (
        (sent(name, vectors, settings).messages - bare).flatten(1).norm(dim=1)
        for name, settings in ((of_sizes, TABLE), (of_values, TABLE | more))
    )
    values = vectors.double().numpy()
    alphas = np.quantile(values, 0.9, axis=1)
    alphas[-1] = np.abs(values[-1]).max()
    expected = alphas / np.quantile(np.abs(values), 0.9, axis=1)
    np.testing.assert_allclose(signed / sizes, expected, rtol=1e-4)


def test_a_run_gives_its_settings_by_name() -> None:
    values: dict[str, Any] = {"method": "diffsketch-reading", "workers": 4, "samples": 10}
    config = RunConfig(method_settings="percentile=signed added=gaussian", rounds=2, **values)
    assert "percentile='signed', added='gaussian'" in str(build(config).simulation.method)
    with pytest.raises(ArgumentError, match="leave out what is an option, got method_settings='ro"):
        build(RunConfig(method_settings="rows=3 percentile=signed", rounds=2, **values))


# cpSGD's rotation: a signed Hadamard matrix, another one in each round.


@pytest.mark.parametrize("dim", [1, 5, 64, 70])
def test_rotation(dim: int) -> None:
    vectors = torch.from_numpy(np.random.default_rng(dim).standard_normal((2, 3, dim)))
    before, rotated = vectors.clone(), rotate(vectors, 7)
    size = rotated.shape[-1]
    assert size & (size - 1) == 0
    assert dim <= size < 2 * dim
    torch.testing.assert_close(rotated.norm(dim=-1), vectors.norm(dim=-1))
    torch.testing.assert_close(rotate_back(rotated, 7, dim=dim), vectors)
    assert torch.equal(vectors, before)


def test_rotation_is_a_signed_hadamard_matrix_of_its_seed() -> None:
    matrix = rotate(torch.eye(8, dtype=torch.float64), 3).T.numpy()
    signs = np.sign(matrix[0])
    np.testing.assert_allclose(matrix, hadamard(8) * signs / math.sqrt(8))
    assert set(signs) == {-1.0, 1.0}
    method = RotatedCpSgd(dim=300, cohort=5, levels=4, trials=4)
    assert method.message_format.shape == (512,)
    key, vector = SketchKey.from_integer(1), torch.ones(300)
    messages = [method.encode(vector, key.seed(at), FastNoise(3)).messages for at in (0, 1, 2, 1)]
    assert len({tuple(one.tolist()) for one in messages}) == 3
    assert torch.equal(messages[1], messages[3])


# The control that replaces sums by noise: it tells what masks teach on their own.


@pytest.mark.slow
def test_masks_teach_without_the_sketch() -> None:
    """With noise for the sum, a shared mask still learns; without a mask nothing does.

    Over 12 seeds the control ended at 0.99 to 0.995 with the mask, and at 0.06 to 0.77 without.
    """
    control = NoiseControl(SMALL, SKETCH)
    with_mask, without = (
        [accuracy_of(correcting(kind, control, seed=seed)) for seed in range(3)]
        for kind in ("shared", "off")
    )
    assert min(with_mask) > 0.9
    assert sum(without) / 3 < 0.8
    assert max(without) < min(with_mask)


def test_control_publishes_the_norm_of_what_is_private_only() -> None:
    """Under central trust the norm is that of the sum with the server's noise."""
    inner = SketchGaussian(SMALL, 3, 5, clip=1.0, noise_multiplier=2.0, trust=Trust.CENTRAL)
    simulation = correcting("off", NoiseControl(SMALL, inner), noise_key=NOISE_KEY)
    result = simulation.step()
    assert isinstance(result.claim, ProvenClaim)
    raw = result.summed.total
    assert raw is not None
    private = inner.publish(raw, CohortNoise(NOISE_KEY, [1 << 62], round_index=0))
    published, private, raw = (each.double() for each in (result.published.total, private, raw))
    assert float(published.norm()) == pytest.approx(float(private.norm()), rel=1e-3)
    assert float(raw.norm()) != pytest.approx(float(private.norm()), rel=0.05)
    assert not torch.allclose(published, private, rtol=0.05)


def test_the_norm_is_clipped_before_the_levels_of_cpsgd() -> None:
    """The mean level of the half of a vector that is within the range, the other half beyond it.

    A level is (x / X + 1) (k - 1) / 2 on average, and the noise adds m / 2. With x = 0.317 X that
    is 9.2435 for k = 12, m = 4. But without a `clip` of its own the norm is clipped to X sqrt(dim)
    first; with the other half at 2 X it is sqrt((0.317^2 + 4) / 2) of that, so that x shrinks by
    as much and the mean is 8.718. The standard error of 200 x 1,000 levels is 0.0025.
    """
    vectors = torch.cat([torch.full((200, 1000), 0.317), torch.full((200, 1000), 2.0)], dim=1)
    settings: dict[str, object] = {"levels": 12, "trials": 4}
    noise = CohortNoise(NOISE_KEY, range(200), round_index=0)
    means = []
    for more in ({}, {"clip": 1e6}):
        method = build_method("cpsgd", dim=2000, cohort=200, settings=settings | more)
        levels = method.encode(vectors, SEED, noise).messages[:, :1000]
        means.append(float(levels.double().mean()))
    shrunk = 0.317 / math.sqrt((0.317**2 + 4) / 2)
    assert means[0] == pytest.approx(7.5 + 5.5 * shrunk, abs=0.0125)  # 8.718
    assert means[1] == pytest.approx(9.2435, abs=0.0125)
