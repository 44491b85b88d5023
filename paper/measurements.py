"""Measurements that are no training runs: each takes settings and a seed, and gives plain data.

Settings are those of a settings file: numbers and texts, lists as texts such as "0, 5, 20". A
measurement that trains takes the settings of `diffsketch run` besides its options. `on_progress` is
told the share that is done, and may raise to interrupt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from scipy import stats
from torch import Tensor

from diffsketch.app.build import build
from diffsketch.app.settings import RunConfig, describe
from diffsketch.auditing.attacks import Numbers
from diffsketch.errors import ArgumentError, check
from diffsketch.files import finite
from diffsketch.methods import Method
from diffsketch.methods.base import Encoder
from diffsketch.methods.plain import PlainSketch
from diffsketch.privacy.noise import Noise
from diffsketch.privacy.theorems import claimed_per_round, estimates, least_padding
from diffsketch.sketch import CountSketch, SketchKey
from diffsketch.training.rounds import mask_bytes
from diffsketch.training.simulation import Simulation
from diffsketch.training.state import RoundResult
from paper.experiments import mistake_text
from paper.methods import ProvenDiffSketch, signed_alpha

Progress = Callable[[float], None]
Given = Mapping[str, Any]
Found = dict[str, Any]
Whole = Annotated[int, Field(ge=0)]


def _list_of(value: object) -> object:
    """The numbers that a text lists; a single one may be given as it is."""
    if isinstance(value, str):
        numbers = [float(part) for part in value.split(",")]
        return tuple(int(number) if number.is_integer() else number for number in numbers)
    return (value,)


Wholes = Annotated[tuple[Whole, ...], BeforeValidator(_list_of)]
Floats = Annotated[tuple[float, ...], BeforeValidator(_list_of)]


class MeasurementSettings(BaseModel):
    """Settings of a measurement, every one of its type and none unknown."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @classmethod
    def read(cls, settings: Given) -> Self:
        """The settings; raise an `ArgumentError` that names the first that is wrong."""
        try:
            return cls.model_validate(dict(settings))
        except ValidationError as error:
            raise ArgumentError(mistake_text(error)) from error

    @classmethod
    def read_with_run(cls, settings: Given) -> tuple[Self, Found]:
        """The measurement's own settings, and those of `diffsketch run`."""
        names = describe(RunConfig).keys() - cls.model_fields.keys()
        run = {key: value for key, value in settings.items() if key in names}
        rest = {key: value for key, value in settings.items() if key not in run}
        return cls.read(rest), run


class ObservedRound(NamedTuple):
    """A round whose vectors are looked at before they are compressed."""

    vectors: Tensor  # of each of the cohort, `(devices, dim)`
    result: RoundResult


def simulation_of(settings: Given, *, seed: int) -> Simulation:
    """The simulation that `diffsketch run` would make of these settings."""
    return build(RunConfig(**settings, seed=seed)).simulation


def observe(
    simulation: Simulation,
    rounds: Collection[int],
    *,
    on_progress: Progress = lambda _: None,
) -> Iterator[ObservedRound]:
    """Train, and give the vectors of these rounds; ends after the last of them.

    The vectors are computed a second time for it, by what the simulation computes them with: the
    training is the same as if nobody looked (`paper/tests/test_measurements.py`).
    """
    last = max(rounds)
    while (index := simulation.round_index) <= last:
        vectors = None
        if index in rounds:
            vectors = simulation.algorithm.vectors(
                simulation.state.model.weights, simulation.sampler.draw(index),
                trainer=simulation.trainer, devices=simulation.task.devices, seed=simulation.seed,
                round_index=index,
            )  # fmt: skip
        result = simulation.step()
        if vectors is not None:
            yield ObservedRound(vectors, result)
        on_progress((index + 1) / (last + 1))


# --- how gradients and model updates are distributed -----------------------------------------

# Edges of the histogram's bins, in standard deviations from the mean. The mean is in the middle of
# one, and with it, nearly, the coordinates that are exactly zero.
_EDGES = np.linspace(-8.05, 8.05, 162)


class _Distributions(MeasurementSettings):
    vectors: Annotated[int, Field(ge=1)]


def measure_distributions(settings: Given, *, seed: int, on_progress: Progress) -> Found:
    """The shapes of single devices' vectors, in `vectors` rounds spread evenly over a training.

    Of each round one of its devices is taken, at random.
    """
    options, run = _Distributions.read_with_run(settings)
    simulation = simulation_of(run, seed=seed)
    rounds = {int(place) for place in np.linspace(0, simulation.rounds - 1, options.vectors)}
    generator = torch.Generator().manual_seed(seed)
    names, shapes = simulation.task.devices.names, []
    for seen in observe(simulation, rounds, on_progress=on_progress):
        chosen = int(torch.randint(len(seen.vectors), (1,), generator=generator))
        shape = shape_of(seen.vectors[chosen].double().numpy())
        device = names[int(seen.result.cohort[chosen])]
        shapes.append({"round": seen.result.round_index, "device": device, **shape})
    return {"dim": simulation.method.dim, "edges": _EDGES.tolist(), "vectors": shapes}


def shape_of(vector: Numbers) -> Found:
    """Compare a vector's coordinates with a Gaussian of their mean and deviation.

    `ks` is the largest distance of the two distribution functions (Kolmogorov and Smirnov),
    `beyond` the share of coordinates larger than alpha, `kurtosis` the excess over a Gaussian's.
    """
    alpha, sigma = (float(value) for value in estimates(torch.from_numpy(vector)))
    check(sigma > 0, "vector", "have coordinates that differ", sigma)
    standard = (vector - vector.mean()) / sigma
    return {
        "zeros": float((vector == 0).mean()),
        "sigma": sigma,
        "alpha": alpha,
        "ratio": alpha / sigma,
        "beyond": float((np.abs(vector) > alpha).mean()),
        "largest": float(np.abs(vector).max()) / sigma,
        "kurtosis": float((standard**4).mean()) - 3,
        "ks": float(stats.kstest(standard, "norm").statistic),
        "counts": np.histogram(standard, bins=_EDGES)[0].tolist(),
    }


# --- the error correction's control ----------------------------------------------------------


@dataclass(frozen=True)
class NoiseControl(Method):
    """A control: a bare sketch whose published sum is replaced by Gaussian noise of its norm.

    Nothing of the vectors but that norm is left in what it decodes to. What still learns with it
    does not learn from the messages.
    """

    name: ClassVar[str] = "noise-control"
    inner: Method

    def __post_init__(self) -> None:
        super().__post_init__()
        bare = isinstance(self.inner, PlainSketch) and self.inner.bits == 32
        check(bare, "inner", "be a bare sketch with cells of 32 bits", self.inner)

    @property
    def encoder(self) -> Encoder:
        """Encoder of the sketch."""
        return self.inner.encoder

    def publish(self, total: Tensor, noise: Noise) -> Tensor:
        """Noise with the norm of the sum."""
        drawn = noise.normal((1, *total.shape), 1.0, dtype=torch.float32)[0]
        factor: Tensor = torch.linalg.vector_norm(total.float()) / torch.linalg.vector_norm(drawn)
        return drawn * factor


def measure_masks(settings: Given, *, seed: int, on_progress: Progress) -> Found:
    """A run of `diffsketch run` whose published sums are replaced by noise of the same norm.

    Weights, batches and hashes are those of the run without the replacement. What the model still
    learns, it learns from the masks: nothing else has seen the data but a norm.
    """
    built = build(RunConfig(**dict(settings), seed=seed))
    plain, method = built.simulation, built.simulation.method
    simulation = Simulation(
        plain.task, method=NoiseControl(method.dim, method), algorithm=plain.algorithm,
        trainer=plain.trainer, rounds=plain.rounds, seed=plain.seed, sampler=plain.sampler,
        server=plain.server, hashes=plain.hashes,
    )  # fmt: skip
    simulation.run(
        evaluate_every=built.config.evaluate_every,
        on_round=lambda summary: on_progress(summary.round / simulation.rounds),
    )
    mask, _ = mask_bytes(method.dim, len(simulation.task.devices))
    return {
        "curve": simulation.curve,
        "accuracy": simulation.curve[-1]["accuracy"],
        "message_bytes": method.wire_bytes,
        "mask_bytes": mask if simulation.algorithm.correction == "shared" else 0,
    }


# --- what Theorem 1 claims for every message -------------------------------------------------

_EPSILON_EDGES = np.geomspace(1e-3, 1e2, 101)  # of the histogram


class LocalEpsilonSettings(MeasurementSettings):
    """Settings of `measure_local_epsilon` besides those of `diffsketch run`."""

    table_rows: Whole  # rows of the tables
    widths: Wholes  # their columns
    paddings: Wholes  # appended numbers, in lengths of the vector
    least: Whole  # the most that may be appended where each message has the least that it needs
    requirements: Floats  # epsilons that a message may have without noise
    ratio: Annotated[float, Field(gt=0)] = 1.645  # clip over deviation of the appended numbers
    delta: float = 1e-5  # of what is proven
    proven_hashes: Whole  # for the hashes of how many rounds it is computed; 0 for none
    signed_alpha: bool = False  # whether alpha is the percentile of signed values, not of sizes


def measure_local_epsilon(settings: Given, *, seed: int, on_progress: Progress) -> Found:
    """Theorem 1's epsilon of every device in every round, for several tables and paddings.

    It depends on a message only through alpha / sigma of the vector, so that one training (with
    its own table and noise) gives those of all. Beside it, what is proven of the repaired padding.
    """
    options, run = LocalEpsilonSettings.read_with_run(settings)
    simulation = simulation_of(run, seed=seed)
    by_round = []
    for seen in observe(
        simulation, range(simulation.rounds), on_progress=lambda share: on_progress(0.9 * share)
    ):
        alpha, sigma = estimates(seen.vectors)
        alpha = signed_alpha(seen.vectors) if options.signed_alpha else alpha
        by_round.append((alpha / sigma).numpy())
    ratios, dim = np.concatenate(by_round), simulation.method.dim
    tables, least = [], []
    for cols in options.widths:
        sketch = CountSketch(dim, options.table_rows, cols)
        needs = needs_noise_at_least(ratios, sketch, options.requirements, most=options.least * dim)
        least.append({"cols": cols, "compression": sketch.compression, "needs_noise": needs})
        for lengths in options.paddings:
            padding = lengths * dim
            claims = claims_of(ratios, sketch, padding=padding, requirements=options.requirements)
            proven = proven_of(sketch, options, padding=padding, seed=seed)
            tables.append({"cols": cols, "padding": lengths, **claims, "proven": proven})
    on_progress(1.0)
    return {
        "dim": dim,
        "table_rows": options.table_rows,
        "rounds": simulation.rounds,
        "messages": len(ratios),
        "edges": _EPSILON_EDGES.tolist(),
        "tables": tables,
        "least": least,
    }


def claims_of(
    ratios: Numbers, sketch: CountSketch, *, padding: int, requirements: Sequence[float]
) -> Found:
    """Theorem 1's claims for messages whose vectors have these alpha / sigma."""
    dim, size = sketch.dim, (sketch.rows, sketch.cols)
    alpha = torch.from_numpy(ratios)
    claimed = claimed_per_round(dim + padding, *size, alpha=alpha, sigma=torch.ones_like(alpha))
    epsilons = claimed.numpy()
    limited = epsilons[np.isfinite(epsilons)]

    return {
        "compression": sketch.compression,
        # Without interpolation, which infinite values do not stand.
        "median": finite(float(np.quantile(epsilons, 0.5, method="higher"))),
        "finite_mean": float(limited.mean()) if len(limited) else None,
        "without": 1 - len(limited) / len(epsilons),
        "needs_noise": {f"{each:g}": float((epsilons > each).mean()) for each in requirements},
        "counts": np.histogram(limited, bins=_EPSILON_EDGES)[0].tolist(),
    }


def needs_noise_at_least(
    ratios: Numbers, sketch: CountSketch, requirements: Sequence[float], *, most: int
) -> dict[str, float]:
    """The share of messages for which no appended noise suffices that has at most this length."""
    alpha, shares = torch.from_numpy(ratios), {}
    for epsilon in requirements:
        _, claimed = least_padding(
            epsilon, sketch.dim, sketch.rows, sketch.cols,
            alpha=alpha, sigma=torch.ones_like(alpha), most=most,
        )  # fmt: skip
        shares[f"{epsilon:g}"] = float((claimed > epsilon).double().mean())
    return shares


def proven_of(
    sketch: CountSketch, settings: LocalEpsilonSettings, *, padding: int, seed: int
) -> Found | None:
    """The largest epsilon proven of the repaired padding, over the hashes tried.

    None where nothing is proven, or was asked for.
    """
    if settings.proven_hashes == 0 or padding == 0:
        return None
    size = (sketch.dim, sketch.rows, sketch.cols)
    method = ProvenDiffSketch(*size, clip=settings.ratio, padding=padding, std=1.0)
    hashes = map(SketchKey.from_integer(seed).seed, range(settings.proven_hashes))
    claims = [method.claim_for(1, seed) for seed in hashes]
    most = max(float(claim.epsilon(delta=settings.delta, rounds=1)) for claim in claims)
    return {"most": most, "delta": settings.delta} if math.isfinite(most) else None
