"""Readings of the paper: a signed alpha, and the missing part of the noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from diffsketch.app.build import build
from diffsketch.app.settings import RunConfig
from diffsketch.errors import ArgumentError
from diffsketch.methods import METHODS, Method, build_method
from diffsketch.privacy import CohortNoise, NoiseKey
from diffsketch.sketch import CountSketch, SketchKey
from paper import readings

DIM, WORKERS = 3000, 6
KEY, SEED = NoiseKey.from_integer(2), SketchKey.from_integer(2).seed(1)


def method(name: str, **settings: object) -> Method:
    return build_method(name, dim=DIM, cohort=1, settings=settings)


def noise() -> CohortNoise:
    return CohortNoise(KEY, range(WORKERS), round_index=0)


def test_a_graded_shortfall_adds_the_missing_part_of_the_noise() -> None:
    """Of workers whose claims differ: one coordinate makes their sigma larger."""
    vectors = torch.randn(WORKERS, DIM, generator=torch.Generator().manual_seed(5))
    vectors[:, 7] += 40.0 * torch.arange(WORKERS)
    settings: dict[str, object] = {"rows": 3, "cols": 2, "per_round": 0.05}
    whole, graded = (
        method(name, **settings, **more).encode(vectors, SEED, noise())
        for name, more in (("diffsketch", {}), ("diffsketch-reading", {"shortfall": "graded"}))
    )
    bare = CountSketch(DIM, 3, 2).encode(vectors, SEED)
    assert whole.claimed is not None
    missing = (1 - 0.05 / whole.claimed).clamp(min=0)[:, None, None]
    assert 0 < float(missing.max()) < 1
    torch.testing.assert_close(
        graded.messages - bare, (whole.messages - bare) * missing.float(), rtol=1e-3, atol=1e-3
    )


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
    vectors = torch.randn(WORKERS, DIM, generator=torch.Generator().manual_seed(6))
    vectors[-1] = -vectors[-1].abs()
    settings: dict[str, object] = {"rows": 2, "cols": 20, "per_round": 1.0}
    bare = CountSketch(DIM, 2, 20).encode(vectors, SEED)
    sizes, signed = (
        (chosen.encode(vectors, SEED, noise()).messages - bare).flatten(1).norm(dim=1)
        for chosen in (method(of_sizes, **settings), method(of_values, **settings, **more))
    )
    values = vectors.double().numpy()
    alphas = np.quantile(values, 0.9, axis=1)
    alphas[-1] = np.abs(values[-1]).max()
    expected = alphas / np.quantile(np.abs(values), 0.9, axis=1)
    np.testing.assert_allclose(signed / sizes, expected, rtol=1e-4)


def test_bad_settings_are_refused() -> None:
    assert readings.__name__  # which registers them
    for name, setting, match in (
        ("diffsketch-reading", {"percentile": "x"}, "percentile must be sizes or signed"),
        ("diffsketch-reading", {"shortfall": "x"}, "shortfall must be whole or graded"),
        ("sketch-laplace-signed", {"clip": 1.0}, "clip must not be given with a signed alpha"),
    ):
        with pytest.raises(ArgumentError, match=match):
            method(name, rows=2, cols=20, per_round=1.0, **setting)
    assert METHODS["diffsketch-reading"].code is None


def test_a_run_gives_its_settings_by_name() -> None:
    values: dict[str, Any] = {
        "method": "diffsketch-reading", "workers": 4, "samples": 10, "rounds": 2,
    }  # fmt: skip
    config = RunConfig(method_settings="percentile=signed shortfall=graded", **values)
    assert "percentile='signed', shortfall='graded'" in str(build(config).simulation.method)
    for settings, message in (
        ("rows=3 percentile=signed", "leave out what is an option, got method_settings='rows'"),
        ("std=3", "std"),
    ):
        with pytest.raises(ArgumentError, match=message):
            build(RunConfig(method_settings=settings, **values))
