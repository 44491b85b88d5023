"""Measurements that are no training runs: each takes settings and a seed, and gives plain data.

Settings are those of a settings file: numbers and texts, lists as texts such as "0, 5, 20". A
measurement that trains takes the settings of `diffsketch run` besides its own. `on_progress` is
told the share that is done, and may raise to interrupt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from scipy import stats
from torch import Tensor
from torch.nn import functional

from diffsketch.app.build import build
from diffsketch.app.settings import RunConfig, describe
from diffsketch.errors import ArgumentError, check
from diffsketch.files import finite
from diffsketch.privacy.mechanisms.binomial import PAPER_SETTINGS, BinomialMechanism
from diffsketch.privacy.theorems import claimed_per_round, estimates, query_variance
from diffsketch.sketch import CountSketch, SketchKey
from diffsketch.training.data import load_shakespeare
from diffsketch.training.local import LocalTrainer, trainer_for
from diffsketch.training.models import LogisticRegression
from diffsketch.training.rounds import mask_bytes
from diffsketch.training.simulation import RoundResult, Simulation
from diffsketch.training.tasks import Batches, Devices, Examples, load_task, task_kinds
from paper.bounds import ConvexProblem, expected_gap, lemma1_error, padding_for, theorem2
from paper.experiments import mistake_text
from paper.noise_control import NoiseControl
from paper.readings import signed_alpha
from paper.repaired import ProvenDiffSketch

Numbers = npt.NDArray[np.float64]
Progress = Callable[[float], None]
Given = Mapping[str, Any]
Found = dict[str, Any]
Whole = Annotated[int, Field(ge=0)]


def _list_of(value: object) -> object:
    """The numbers that a text lists; a single one may be given as it is."""
    if isinstance(value, str):
        found = [float(part) for part in value.split(",")]
        return tuple(int(one) if one.is_integer() else one for one in found)
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
        run = {k: v for k, v in settings.items() if k not in cls.model_fields}
        unknown = {k: v for k, v in run.items() if k not in describe(RunConfig)}
        own = {k: v for k, v in settings.items() if k not in run}
        return cls.read({**own, **unknown}), run


class ObservedRound(NamedTuple):
    """A round whose vectors are looked at before they are compressed."""

    round_index: int
    cohort: Tensor  # the devices that took part
    vectors: Tensor  # the vector of each of them, `(devices, dim)`
    result: RoundResult


def simulation_of(settings: Given, *, seed: int) -> Simulation:
    """The simulation that `diffsketch run` would make of these settings."""
    return build(RunConfig(**settings, seed=seed)).simulation


def observe(
    simulation: Simulation,
    rounds: Collection[int] | range,
    *,
    on_progress: Progress = lambda _: None,
) -> Iterator[ObservedRound]:
    """Train, and give the vectors of these rounds; ends after the last of them.

    The vectors are computed a second time for it, by what the simulation computes them with: the
    training is the same as if nobody looked (`paper/tests/test_measurements.py`).
    """
    last = max(rounds)
    while (index := simulation.round_index) <= last:
        cohort, vectors = simulation.sampler.draw(index), None
        if index in rounds:
            vectors = simulation.algorithm.vectors(
                simulation.model.weights,
                cohort,
                trainer=simulation.trainer,
                devices=simulation.task.devices,
                seed=simulation.seed,
                round_index=index,
            )
        result = simulation.step()
        if vectors is not None:
            yield ObservedRound(index, cohort, vectors, result)
        on_progress((index + 1) / (last + 1))


class _Datasets(MeasurementSettings):
    task: str


def measure_datasets(settings: Given, *, seed: int, on_progress: Progress) -> Found:
    """Count devices, parameters and samples of each device of a `task`.

    Samples are those before a text is divided; `trained` are those that a device trains on.
    """
    name = _Datasets.read(settings).task
    task = load_task(name, seed=seed)
    samples = trained = task.devices.sizes.numpy()
    if name == "shakespeare":
        roles = load_shakespeare()
        samples = np.array([len(roles[one]) for one in task.devices.names])
    models = {
        kind: load_task(name, model=kind, seed=seed).model(seed)
        for kind in task_kinds()[name].models
    }
    on_progress(1.0)
    return {
        "task": name,
        "devices": len(task.devices),
        "parameters": {
            kind: sum(one.numel() for one in model.parameters()) for kind, model in models.items()
        },
        **{
            key: {"mean": float(of.mean()), "std": float(of.std(ddof=1))}
            for key, of in (("samples", samples), ("trained", trained))
        },
        "test": len(task.test),
    }


# --- how gradients and model updates are distributed -----------------------------------------

# Edges of the histogram's bins, in standard deviations from the mean. The mean is in the middle of
# one, and with it, nearly, the coordinates that are exactly zero.
_EDGES = np.linspace(-8.05, 8.05, 162)
_SCORES = np.linspace(-3.6, 3.6, 73)  # where quantiles are compared: those of the Gaussian


class _Distributions(MeasurementSettings):
    vectors: Annotated[int, Field(ge=1)] = 10


def measure_distributions(settings: Given, *, seed: int, on_progress: Progress) -> Found:
    """The shapes of single devices' vectors, in `vectors` rounds spread evenly over a training.

    Of each round one of its devices is taken, at random.
    """
    own, run = _Distributions.read_with_run(settings)
    simulation = simulation_of(run, seed=seed)
    rounds = sorted({int(place) for place in np.linspace(0, simulation.rounds - 1, own.vectors)})
    generator = torch.Generator().manual_seed(seed)
    devices, shapes = simulation.task.devices, []
    for seen in observe(simulation, rounds, on_progress=on_progress):
        chosen = int(torch.randint(len(seen.cohort), (1,), generator=generator))
        device = int(seen.cohort[chosen])
        head = {"round": seen.round_index, "device": devices.names[device]}
        shape = shape_of(seen.vectors[chosen].double().numpy())
        shapes.append({**head, "examples": int(devices.sizes[device]), **shape})
    edges, scores = _EDGES.tolist(), _SCORES.tolist()
    return {"dim": simulation.method.dim, "edges": edges, "scores": scores, "vectors": shapes}


def shape_of(vector: Numbers) -> Found:
    """Compare a vector's coordinates with a Gaussian of their mean and deviation.

    `ks` is the largest distance of the two distribution functions (Kolmogorov and Smirnov),
    `beyond` the share of coordinates larger than alpha, `kurtosis` the excess over a Gaussian's.
    """
    alpha, sigma = (float(value) for value in estimates(torch.from_numpy(vector)))
    check(sigma > 0, "vector", "have coordinates that differ", sigma)
    mean = float(vector.mean())
    standard = (vector - mean) / sigma
    rest = vector[vector != 0]
    nonzero = stats.kstest((rest - rest.mean()) / rest.std(), "norm") if len(rest) > 1 else None
    return {
        "zeros": float((vector == 0).mean()),
        "mean": mean,
        "sigma": sigma,
        "alpha": alpha,
        "ratio": alpha / sigma,
        "beyond": float((np.abs(vector) > alpha).mean()),
        "largest": float(np.abs(vector).max()) / sigma,
        "kurtosis": float((standard**4).mean()) - 3,
        "ks": float(stats.kstest(standard, "norm").statistic),
        "ks_nonzero": None if nonzero is None else float(nonzero.statistic),
        "counts": np.histogram(standard, bins=_EDGES)[0].tolist(),
        "quantiles": np.quantile(standard, stats.norm.cdf(_SCORES)).tolist(),
    }


# --- the error correction's control ----------------------------------------------------------


def measure_masks(settings: Given, *, seed: int, on_progress: Progress) -> Found:
    """A run of `diffsketch run` whose published sums are replaced by noise of the same norm.

    Weights, batches and hashes are those of the run without the replacement. What the model still
    learns, it learns from the masks: nothing else has seen the data but a norm.
    """
    built = build(RunConfig(**dict(settings), seed=seed))
    plain, method, every = built.simulation, built.simulation.method, built.config.evaluate_every
    simulation = Simulation(
        plain.task,
        method=NoiseControl(dim=method.dim, inner=method),
        trainer=plain.trainer,
        algorithm=plain.algorithm,
        rounds=plain.rounds,
        seed=plain.seed,
        sampler=plain.sampler,
        server=plain.server,
        hashes=plain.hashes,
    )

    def record() -> Found:
        loss, accuracy = simulation.evaluate()
        drift = {} if simulation.drift is None else {"drift": simulation.drift}
        sent = {"bytes_up": simulation.bytes_up, "bytes_down": simulation.bytes_down}
        head = {"round": simulation.round_index, "loss": finite(loss), "accuracy": accuracy}
        return {**head, **sent, **drift}

    curve = [record()]
    for index in range(1, simulation.rounds + 1):
        simulation.step()
        if index % (every or 1) == 0 or index == simulation.rounds:
            curve.append(record())
            on_progress(index / simulation.rounds)
    own, _ = mask_bytes(method.dim, len(simulation.task.devices))
    return {
        "curve": curve,
        "accuracy": curve[-1]["accuracy"],
        "dim": method.dim,
        "message_bytes": simulation.method.wire_bytes,
        "mask_bytes": own if simulation.algorithm.correction == "shared" else 0,
    }


# --- the paper's parameters of cpSGD ---------------------------------------------------------

_MOST_TRIALS = 1 << 40


class _Cpsgd(MeasurementSettings):
    dim: Whole
    cohorts: Wholes  # numbers of workers in a secure sum
    delta: float
    limit: float  # of a coordinate
    clip: float  # of a vector's norm


def measure_cpsgd(settings: Given, *, seed: int, on_progress: Progress) -> Found:
    """The cost of each row of the paper's table, and what cpSGD's theorem says about it."""
    del seed  # nothing is random
    own = _Cpsgd.read(settings)
    rows = []
    for place, setting in enumerate(PAPER_SETTINGS):
        steps: Found = {"levels": setting.levels, "trials": setting.trials}
        fixed = own.model_dump(exclude={"cohorts"})
        mechanisms = [BinomialMechanism(**fixed, **steps, cohort=one) for one in own.cohorts]
        bits = mechanisms[0].bits
        rows.append(
            {
                "claimed": setting.claimed,
                "bits": setting.bits,
                **steps,
                "bits_needed": bits,
                "compression": 32 / bits,
                "cohorts": [_of_sum(each, setting.claimed) for each in mechanisms],
            }
        )
        on_progress((place + 1) / len(PAPER_SETTINGS))
    return {"delta": own.delta, "rows": rows}


def _of_sum(mechanism: BinomialMechanism, target: float) -> Found:
    """Apply the theorem to the sum of so many messages, and find what it would take."""
    trials = least_trials(mechanism, target)
    enough = None if trials is None else replace(mechanism, trials=trials)
    shift, _ = mechanism.shifts()
    # The theorem's condition on the variance, in steps squared.
    needed = max(23 * math.log(10 * mechanism.dim / mechanism.delta), 2 * shift.largest)
    return {
        "cohort": mechanism.cohort,
        "variance": mechanism.std**2 / mechanism.step**2,
        "variance_needed": needed,
        "epsilon": finite(float(mechanism.claim.epsilon(delta=mechanism.delta, rounds=1))),
        "sum_bits": mechanism.sum_bits,
        "sum_compression": 32 / mechanism.sum_bits,
        "trials_needed": trials,
        "bits_then": None if enough is None else enough.bits,
        "sum_bits_then": None if enough is None else enough.sum_bits,
    }


def least_trials(mechanism: BinomialMechanism, target: float) -> int | None:
    """The fewest trials of each worker for which the theorem gives an epsilon of at most `target`.

    The epsilon falls with the trials, so bisection finds them; None if none up to 2**40 suffice.
    """

    def suffices(trials: int) -> bool:
        claim = replace(mechanism, trials=trials).claim
        return float(claim.epsilon(delta=mechanism.delta, rounds=1)) <= target

    if not suffices(_MOST_TRIALS):
        return None
    too_few, enough = 0, _MOST_TRIALS
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if suffices(middle) else (middle, enough)
    return enough


# --- what Theorem 1 claims for every message -------------------------------------------------

_EPSILON_EDGES = np.geomspace(1e-3, 1e2, 101)  # of the histogram
_POINTS_OF_ROUNDS = 60


class LocalEpsilonSettings(MeasurementSettings):
    """Settings of `measure_local_epsilon` besides those of `diffsketch run`."""

    table_rows: Whole  # rows of the tables
    widths: Wholes  # their columns
    paddings: Wholes  # appended numbers, in lengths of the vector
    requirements: Floats = (0.1, 1.0)  # epsilons that a message may have without noise
    ratio: Annotated[float, Field(gt=0)] = 1.645  # clip over deviation of the appended numbers
    delta: float = 1e-5  # of what is proven
    proven_hashes: Whole = 3  # for the hashes of how many rounds it is computed; 0 for none
    fedavg_rounds: Whole | None = None  # stands for `rounds` in FedAvg
    signed_alpha: bool = False  # whether alpha is the percentile of signed values, not of sizes


def measure_local_epsilon(settings: Given, *, seed: int, on_progress: Progress) -> Found:
    """Theorem 1's epsilon of every device in every round, for several tables and paddings.

    It depends on a message only through alpha / sigma of the vector, so that one training (with
    its own table and noise) gives those of all. Beside it, what is proven of the repaired padding.
    """
    own, run = LocalEpsilonSettings.read_with_run(settings)
    if own.fedavg_rounds is not None:
        run["rounds"] = own.fedavg_rounds
    simulation = simulation_of(run, seed=seed)
    ratios, noised = [], []
    for seen in observe(
        simulation, range(simulation.rounds), on_progress=lambda share: on_progress(0.9 * share)
    ):
        alpha, sigma = estimates(seen.vectors)
        if own.signed_alpha:
            alpha = signed_alpha(seen.vectors)
        ratios.append((alpha / sigma).numpy())
        if seen.result.summed is not None and seen.result.summed.noised is not None:
            noised.append(seen.result.summed.noised.numpy())
    every, dim = np.concatenate(ratios), simulation.method.dim
    tables = []
    for cols in own.widths:
        sketch = CountSketch(dim, own.table_rows, cols)
        for lengths in own.paddings:
            padding = lengths * dim
            claims = claims_of(every, sketch, padding=padding, requirements=own.requirements)
            proven = proven_of(sketch, own, padding=padding, seed=seed)
            tables.append({"cols": cols, "padding": lengths, **claims, "proven": proven})
    on_progress(1.0)
    pieces = np.array_split(np.arange(len(ratios)), min(_POINTS_OF_ROUNDS, len(ratios)))
    return {
        "dim": dim,
        "table_rows": own.table_rows,
        "rounds": len(ratios),
        "messages": len(every),
        "noised": float(np.concatenate(noised).mean()) if noised else None,
        "ratio": {
            "mean": float(every.mean()),
            "quantiles": np.quantile(every, (0.05, 0.25, 0.5, 0.75, 0.95)).tolist(),
            "at": [float(piece.mean()) for piece in pieces],
            "by_round": [float(np.mean([ratios[i].mean() for i in piece])) for piece in pieces],
        },
        "edges": _EPSILON_EDGES.tolist(),
        "tables": tables,
    }


def claims_of(
    ratios: Numbers, sketch: CountSketch, *, padding: int, requirements: Sequence[float]
) -> Found:
    """Theorem 1's claims for messages whose vectors have these alpha / sigma."""
    size = (sketch.dim + padding, sketch.rows, sketch.cols)
    bound, spread = torch.from_numpy(ratios), torch.ones(len(ratios), dtype=torch.float64)
    claimed = claimed_per_round(*size, alpha=bound, sigma=spread).numpy()
    some = claimed[np.isfinite(claimed)]

    def quantile(share: float) -> float | None:
        # Without interpolation, which infinite values do not stand.
        return finite(float(np.quantile(claimed, share, method="higher")))

    def needed(target: float) -> float | None:
        length = padding_for(
            target, sketch.dim, sketch.rows, sketch.cols, ratio=float(np.median(ratios))
        )
        return None if length is None else length / sketch.dim

    return {
        "compression": sketch.compression,
        "median": quantile(0.5),
        "quartiles": [quantile(0.25), quantile(0.75)],
        "mean": finite(float(claimed.mean())),
        "finite_mean": float(some.mean()) if len(some) else None,
        "without": 1 - len(some) / len(claimed),
        "needs_noise": {f"{each:g}": float((claimed > each).mean()) for each in requirements},
        "counts": np.histogram(some, bins=_EPSILON_EDGES)[0].tolist(),
        "needed": {f"{each:g}": needed(each) for each in requirements},
    }


def proven_of(
    sketch: CountSketch, settings: LocalEpsilonSettings, *, padding: int, seed: int
) -> Found | None:
    """The epsilon proven of the repaired padding: the least and the most over the hashes tried.

    None where nothing is proven, or was asked for.
    """
    if settings.proven_hashes == 0 or padding == 0:
        return None
    size = (sketch.dim, sketch.rows, sketch.cols)
    method = ProvenDiffSketch(*size, clip=settings.ratio, padding=padding, std=1.0)
    key, found = SketchKey.from_integer(seed), []
    for round_index in range(settings.proven_hashes):
        claim = method.claim_for(1, key.seed(round_index))
        found.append(float(claim.epsilon(delta=settings.delta, rounds=1)))
    if not all(map(math.isfinite, found)):
        return None
    ends = {"least": min(found), "most": max(found)}
    return {**ends, "delta": settings.delta, "ratio": settings.ratio}


# --- Theorem 2 beside a convex run -----------------------------------------------------------

_POINTS_OF_GAP = 40


class _Convergence(MeasurementSettings):
    rounds: Annotated[int, Field(ge=2)]
    step: float  # c in the theorem
    rows: Whole  # 0 for no sketch
    cols: Whole = 0
    combine: Literal["mean", "median"] = "median"
    batch_size: Whole = 10
    failure: float = 0.1  # of Lemma 1, which Theorem 2 is computed for
    comparator_steps: Whole  # of L-BFGS


def measure_convergence(settings: Given, *, seed: int, on_progress: Progress) -> Found:
    """The gap `F(average of x_1..x_i) - F(comparator)` beside the bounds on it.

    F is the mean loss of a logistic regression on all workers' images of the task `mnist`, which is
    convex. Each worker draws its batch at random, with replacement, so that its gradient is
    unbiased as the theorem assumes; hashes are fresh; steps are `step / sqrt(i)`. The theorem's G
    and D are not known but measured along the run: G^2 as the largest mean over the workers of
    `||g||^2` in any round, D as the largest distance from the comparator. The images are linearly
    separable, so that F has no minimum but 0 at infinity; but the bound's proof never uses that the
    comparator is the minimum: it holds for any point. Here it is the one that L-BFGS reaches.
    """
    own = _Convergence.read(settings)
    task = load_task("mnist", seed=seed)
    examples, trainer = task.devices.examples, trainer_for(task.model(seed))
    best = comparator(examples, steps=own.comparator_steps)
    sketch = CountSketch(trainer.dim, own.rows, own.cols) if own.rows else None
    chosen = set(np.unique(np.geomspace(1, own.rounds, _POINTS_OF_GAP).astype(int)).tolist())
    reference, _ = trainer.evaluate(best.float(), examples)
    total, places, gaps = torch.zeros(trainer.dim, dtype=torch.float64), [], []
    largest, farthest = 0.0, 0.0
    iterates = descend(
        trainer, task.devices, sketch, rounds=own.rounds, step=own.step, combine=own.combine,
        batch_size=own.batch_size, seed=seed,
    )  # fmt: skip
    for i, (weights, squares) in enumerate(iterates, start=1):
        total += weights
        largest = max(largest, float(squares.mean()))
        farthest = max(farthest, float((weights.double() - best).norm()))
        if i in chosen:
            loss, _ = trainer.evaluate((total / i).float(), examples)
            places.append(i)
            gaps.append(loss - reference)
        on_progress(i / own.rounds)
    problem = ConvexProblem(trainer.dim, math.sqrt(largest), farthest, own.step)
    variance = 0.0 if sketch is None else query_variance(sketch, combine=own.combine)
    stated: Found = {}
    if sketch is not None:
        error = lemma1_error(sketch.rows, sketch.cols, failure=own.failure)
        bound = [theorem2(problem, i, error=error) for i in places]
        stated = {"error": error, "variance": variance, "theorem2": bound}
    # The scores' gradient is a difference of two distributions, of norm sqrt(2) at most.
    inputs = examples.inputs.double().square().sum(dim=1) + 1
    return {
        "dim": trainer.dim,
        "reference": reference,
        "reference_norm": float(best.norm()),
        "gradient_norm": problem.gradient_norm,
        "gradient_norm_always": math.sqrt(2 * float(inputs.max())),
        "distance": problem.distance,
        "rounds": places,
        "gap": gaps,
        **stated,
        "proven": [expected_gap(problem, i, variance=variance) for i in places],
    }


def descend(
    trainer: LocalTrainer,
    devices: Devices,
    sketch: CountSketch | None,
    *,
    rounds: int,
    step: float,
    combine: Literal["mean", "median"],
    batch_size: int,
    seed: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """SGD from zero on the mean of the workers' sketched gradients, as Theorem 2 has it.

    Every worker's batch is drawn uniformly and with replacement from its examples. Gives for each
    round the weights before the step, and `||g||^2` of each worker's gradient there.
    """
    generator, key = torch.Generator().manual_seed(seed), SketchKey.from_integer(seed)
    weights = torch.zeros(trainer.dim)
    sizes, starts = devices.sizes[:, None, None], devices.starts[:-1, None, None]
    shape = (len(devices), 1, batch_size)
    for index in range(rounds):
        drawn = (torch.rand(shape, generator=generator, dtype=torch.float64) * sizes).long()
        gradients = trainer.gradients(weights, devices.examples, Batches(drawn + starts))
        yield weights, gradients.double().square().sum(dim=1)
        mean = gradients.mean(dim=0)
        if sketch is not None:
            hashes = key.seed(index)
            mean = sketch.query(sketch.encode(mean, hashes), hashes, combine=combine)
        weights = weights - step / math.sqrt(index + 1) * mean


def comparator(examples: Examples, *, steps: int) -> Tensor:
    """Weights of a logistic regression, float64, after so many steps of L-BFGS from zero."""
    inputs, labels = examples.inputs.double(), examples.labels
    model = LogisticRegression(inputs.shape[1], int(labels.max()) + 1).double()
    parameters = list(model.parameters())
    for each in parameters:
        each.data.zero_()
    solver = torch.optim.LBFGS(
        parameters, max_iter=steps, history_size=20, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        solver.zero_grad()
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    solver.step(closure)  # type: ignore[no-untyped-call]
    return torch.cat([each.detach().reshape(-1) for each in parameters])
