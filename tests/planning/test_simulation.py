"""Predicted errors against simulated rounds of the methods and bare sketches that are proposed."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from diffsketch.errors import ArgumentError
from diffsketch.methods import Method, build_method
from diffsketch.methods.forecast import Plannable, Vectors
from diffsketch.methods.gate import private_mean
from diffsketch.methods.plain import PlainSketch
from diffsketch.planning import Option, PlanRequest, Relation, Trust, sketch_sizes
from diffsketch.planning.search import search
from diffsketch.privacy import CohortNoise, NoiseKey
from diffsketch.silos.messages import draw_records, encode_records
from diffsketch.sketch import SketchKey
from tests.helpers.library import LIBRARY
from tests.helpers.refusals import refused

BASE: dict[str, Any] = {
    "dim": 400, "cohort": 8, "rounds": 4, "target_epsilon": 8.0, "message_bytes": 300,
    "trust": "central",
}  # fmt: skip
MOST_ROUNDS = 2000
KEY = SketchKey.from_integer(1)

REQUESTS: dict[str, dict[str, Any]] = {
    "identical": {},
    "spread": {"spread": 3.0, "vector_norm": 5.0, "relation": "add-or-remove"},
    "vectors fit": {"message_bytes": 2000, "spread": 1.0},
    "little noise": {"target_epsilon": 60.0, "cohort": 10, "rounds": 1},
    "coordinates": {"unit": "coordinate", "target_epsilon": 4.0},
    "coordinates, vectors fit": {"unit": "coordinate", "message_bytes": 2000, "spread": 1.0},
    "without delta": {"unit": "coordinate", "delta": 0.0, "rounds": 1},
}


def vectors_of(known: Vectors, generator: torch.Generator) -> torch.Tensor:
    """Dense vectors of this norm and spread."""
    common = torch.randn(known.dim, generator=generator)
    own = torch.randn(known.count, known.dim, generator=generator)
    vectors = common + math.sqrt(known.spread) * own
    vectors *= known.norm / vectors.norm(dim=-1, keepdim=True)
    return vectors


def simulate(method: Method, known: Vectors) -> float:
    """The mean of the relative errors of so many rounds that its standard error is below 3.5%."""
    generator = torch.Generator().manual_seed(7)
    errors: list[float] = []
    while len(errors) < 16 or np.std(errors) > 0.035 * np.mean(errors) * math.sqrt(len(errors)):
        assert len(errors) < MOST_ROUNDS
        for index in range(len(errors), len(errors) + 16):
            vectors = vectors_of(known, generator)
            found = private_mean(vectors, method, key=KEY, round_index=index, simulation_seed=3)
            mean = vectors.double().mean(dim=0)
            errors.append(float((found.mean - mean).square().sum() / mean.square().sum()))
    return float(np.mean(errors))


@functools.cache
def options(name: str) -> tuple[Option, ...]:
    return tuple(search(PlanRequest(**{**BASE, **REQUESTS[name]})))


@pytest.mark.slow
@pytest.mark.parametrize("name", REQUESTS)
def test_predictions(name: str) -> None:
    """Within 15%: more than 4 standard errors, so that a right one fails with some 6e-5 each."""
    known = PlanRequest(**{**BASE, **REQUESTS[name]}).vectors
    for option in options(name):
        assert option.error.total == pytest.approx(simulate(option.method, known), rel=0.15), option


@pytest.mark.slow
def test_every_method_is_simulated() -> None:
    seen = {(option.method.name, option.trust) for name in REQUESTS for option in options(name)}
    assert {name for name, _ in seen} == {
        name for name, kind in LIBRARY.items() if issubclass(kind, Plannable)
    }
    for name in ("gaussian", "sketch-gaussian"):
        assert {trust for method, trust in seen if method == name} == set(Trust)


@pytest.mark.parametrize(("name", "factor"), [("sketch-gaussian", 0.8), ("sketch-skellam", 1.2)])
def test_noise_that_is_wrong_by_a_fifth_is_rejected(name: str, factor: float) -> None:
    (option, *_) = (option for option in options("identical") if option.method.name == name)
    assert option.error.noise > 0.8 * option.error.total
    method: Any = option.method
    wrong = replace(method, noise_multiplier=factor * method.noise_multiplier)
    known = PlanRequest(**BASE).vectors
    assert option.error.total != pytest.approx(simulate(wrong, known), rel=0.15)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sketch-gaussian", {"rows": 3, "cols": 20, "clip": 3.0, "noise_multiplier": 0.2}),
        ("gaussian", {"clip": 0.7, "noise_multiplier": 0.1}),
        ("gaussian", {"clip": 1.0, "noise_multiplier": 0.1, "bits": 7}),
        ("sketch-laplace", {"rows": 3, "cols": 30, "clip": 0.1, "per_round": 20.0}),
        ("cpsgd", {"clip": 1.0, "limit": 0.1, "levels": 3, "trials": 4}),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:.*and were clipped:UserWarning")
def test_forecasts_for_settings_that_no_plan_has(name: str, settings: dict[str, Any]) -> None:
    """More rows, a clip that cuts or is wide, coarse grids: within 15%, as above."""
    known = Vectors(400, 8, spread=0.5)
    method = build_method(name, dim=400, cohort=8, settings=settings)
    assert isinstance(method, Plannable)
    assert method.forecast(known).total == pytest.approx(simulate(method, known), rel=0.15)


@pytest.mark.slow
def test_poisson_samples_vary() -> None:
    """What their number adds to the error of a sum over the expected one, within 15%."""
    request = PlanRequest(
        dim=200, cohort=8, population=32, rounds=1, target_epsilon=400.0, message_bytes=2000,
        trust=Trust.CENTRAL, relation=Relation.ADD_OR_REMOVE, sampling="poisson",
    )  # fmt: skip
    assert request.sampler is not None
    found = {option.method.name: option for option in search(request)}
    option = found["gaussian"]
    key, errors = NoiseKey.from_integer(0), []
    for index in range(1500):
        lottery = key.source(worker=1000, round_index=index)
        drawn = request.sampler.draw(lottery).tolist()
        if not drawn:
            continue
        vector = vectors_of(Vectors(200, 1), torch.Generator().manual_seed(index))
        noise = CohortNoise(key, drawn, round_index=index)
        messages = option.method.encode(vector.repeat(len(drawn), 1), KEY.seed(index), noise)
        server = CohortNoise(key, [10**6], round_index=index)
        total = option.method.publish(messages.messages.sum(dim=0), server)
        mean = option.method.decode(total, KEY.seed(index), count=request.cohort)
        errors.append(float((mean - vector[0]).square().sum()))
    assert option.error.total == pytest.approx(float(np.mean(errors)), rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 3.0])
@pytest.mark.parametrize("trust", ["distributed", "local"])
def test_records_in_silos(spread: float, trust: str) -> None:
    """Gradients drawn in secret, with shares of noise: each method's error, within 15%.

    An error of 200 coordinates varies by some 10%, so the mean of 150 of them by less than 1%.
    """
    request = PlanRequest(
        dim=200, cohort=4, rounds=3, target_epsilon=8.0, message_bytes=600, unit="example",
        relation="add-or-remove", records=5.0, rate=0.25, spread=spread, trust=Trust(trust),
    )  # fmt: skip
    key, chosen = NoiseKey.from_integer(0), [o for o in search(request) if o.trust == trust]
    assert len(chosen) >= 1 + (trust == "distributed")
    for option in chosen:
        errors = []
        for index in range(150):
            generator, seed = torch.Generator().manual_seed(index), KEY.seed(index)
            vectors = vectors_of(replace(request.vectors, count=80), generator)
            total: Any = 0
            for silo, own in enumerate(vectors.reshape(4, 20, 200)):
                source = key.source(worker=silo, round_index=index)
                drawn = draw_records(option.method, 20, source)
                total = total + encode_records(option.method, [own[drawn]], seed, source)
            found = option.method.decode(option.method.publish(total, source), seed, count=4)
            mean = vectors.double().mean(dim=0)
            errors.append(float((found - mean).square().sum() / mean.square().sum()))
        assert option.error.total == pytest.approx(float(np.mean(errors)), rel=0.15), option


# -- Bare sketches ---------------------------------------------------------------------------------

DIM, WORKERS, ROUNDS = 4000, 5, 60


@pytest.mark.parametrize("bits", [2, 4, 32])
@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_errors_of_bare_sketches_are_those_of_rounds(bits: int, spread: float) -> None:
    """Means of 60 rounds, each with a standard deviation of some 10%: within 8%.

    Beyond that with probability below 1e-8, were errors of rounds Gaussian. An error that leaves
    out the rounding of 2 bits is found.
    """
    known = Vectors(DIM, WORKERS, 1.0, spread)
    vectors = vectors_of(known, torch.Generator().manual_seed(bits))
    method = PlainSketch(DIM, 1, 400, bits=bits, cohort=WORKERS)
    if method.grid is not None:
        method = method.at_clip(method.limit_for(vectors[0]) or 1.0)
    truth, errors = vectors.mean(dim=0), []
    for index in range(ROUNDS):
        noise = CohortNoise(NoiseKey.from_integer(1), range(WORKERS), round_index=index)
        total = method.encode(vectors, KEY.seed(index), noise).messages.sum(dim=0)
        found = method.decode(total, KEY.seed(index), count=WORKERS)
        errors.append(float((found - truth).square().sum() / truth.square().sum()))
    predicted = method.forecast(known)
    mean = sum(errors) / ROUNDS
    assert predicted.total == pytest.approx(mean, rel=0.08)
    if bits == 2 and spread:
        assert predicted.recovery != pytest.approx(mean, rel=0.08)


@pytest.mark.parametrize("size", [3, 8, 62, 66, 67, 620, 10**6])
def test_bare_sketches_fit_and_are_in_order(size: int) -> None:
    sizes = sketch_sizes(7850, 10, size)
    assert max(one.method.wire_bytes for one in sizes) <= size
    errors = [one.error.total for one in sizes]
    assert errors == sorted(errors)
    if size == 620:  # not one column more would fit
        best = sizes[0].method
        more = PlainSketch(7850, 1, best.cols + 4, bits=best.bits)
        assert more.wire_bytes > size
    if size == 10**6:  # no table takes more than the vectors
        assert min(one.method.compression for one in sizes) > 1


def test_sizes_that_make_no_sense_are_refused() -> None:
    too_few = "message_bytes must be enough for a header and one"
    refused(ArgumentError, too_few, sketch_sizes, 7850, 10, 2)
    for rounds in (0, -3):
        said = f"rounds must be >= 1, got rounds={rounds}"
        refused(ArgumentError, said, sketch_sizes, 7850, 10, 62, rounds=rounds)
