"""Simulations built from settings: defaults resolved, noise found for a budget, tried once."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from diffsketch.app.settings import METHOD_SETTINGS, OwnRun, RunConfig, describe, with_task_defaults
from diffsketch.errors import ArgumentError, check
from diffsketch.methods.base import METHODS, Method, build_method, parse_settings, settings_of
from diffsketch.methods.plain import TableMethod
from diffsketch.privacy.accounting.budget import Budget, BudgetExceeded, calibrate
from diffsketch.privacy.accounting.events import Event
from diffsketch.privacy.claim import Basis, Claim, ProvenClaim, Unit
from diffsketch.privacy.noise import NoiseKey
from diffsketch.silos.messages import encode_records
from diffsketch.sketch.hashing import SketchKey
from diffsketch.training.rounds import (
    Algorithm,
    DistributedSGD,
    FedAvg,
    ServerOptimizer,
)
from diffsketch.training.sampling import (
    AllDevices,
    PoissonDevices,
    Sampler,
    ShuffledSampler,
    UniformSampler,
    WeightedSampler,
)
from diffsketch.training.simulation import PART_CELLS, Simulation
from diffsketch.training.tasks import Task, load_task

_SIMULATED = (
    "Simulated: the noise follows from the seed, so whoever has the run directory can take it out "
    "again; do not publish it as a private release."
)
_COUNTS = "Byte and message counts are for the simulator; the number drawn is secret."
_LEAST_NOISE = 1e-2  # less noise than that protects nothing
_TOLERANCE = 1e-3  # of the noise, relatively: each look may take a Fourier transform
_SMALL_NORM = 1e-3  # of a vector that nobody would clip
_THREADS_PER_CORE = 4
_SERVER_FIELDS = dataclasses.fields(ServerOptimizer)


@dataclass(frozen=True, eq=False)
class Built:
    """A simulation and where it comes from."""

    config: RunConfig  # every setting that the run uses: the same simulation comes from it
    simulation: Simulation  # before its first round


def build(config: RunConfig) -> Built:
    """The simulation of a run, tried once with a zero and a small vector.

    Guarantees (`tests/app/test_build.py`): the resolved settings build the same again; a setting
    that is not used is an error; the noise found for a budget is enough for all rounds, and 1% less
    is not; what is refused here would be refused by the first round.
    """
    if isinstance(config, OwnRun):
        raise ArgumentError(
            "a run of a task or method made in Python is continued there, by the same call of "
            f"train, got task={config.task!r} and method={config.method!r}"
        )
    usable = config.device == "cpu" or torch.cuda.is_available()
    check(usable, "device", "be cpu where PyTorch finds no CUDA device", config.device)
    cores = os.cpu_count() or 1
    # More threads would only wait for each other.
    limit = f"be at most {_THREADS_PER_CORE} for each of the {cores} cores here"
    check(config.threads <= _THREADS_PER_CORE * cores, "threads", limit, config.threads)
    fields = settings_of_methods()[config.method]
    config = with_task_defaults(config, fields=fields)
    task = load_task(
        config.task,
        model=config.model,
        workers=config.workers,
        samples=config.samples,
        data_dir=config.data_dir,
        seed=config.seed,
    )
    # Own data, or a play, may have fewer than were asked for: the resolved settings say how many.
    config = config.replaced(workers=len(task.devices))
    task = dataclasses.replace(task, devices=task.devices.to(torch.device(config.device)))
    sampler = _sampler(config, task)
    budget = None if config.budget is None else Budget(config.budget, config.delta)
    examples = len(task.devices.examples)
    config, method = _method(
        config, fields, dim=task.dim, sampler=sampler, budget=budget, examples=examples
    )
    rate, size = cast(float, config.learning_rate), cast(int, config.batch_size)
    if config.algorithm == "sgd":
        algorithm: Algorithm = DistributedSGD(rate, size, correction=config.correction)
    else:
        algorithm = FedAvg(rate, size, local_epochs=cast(int, config.local_epochs))
    simulation = Simulation(
        task,
        method=method,
        algorithm=algorithm,
        rounds=cast(int, config.rounds),
        seed=config.seed,
        sampler=sampler,
        server=_server(config),
        hashes=config.hashes,
        budget=budget,
    )
    _check_memory(simulation)
    _try_once(simulation, config)
    return Built(config, simulation)


def settings_of_simulation(simulation: Simulation, **output: Any) -> OwnRun:
    """Describe a simulation that was made in Python by the settings of a run, as far as they go."""
    method, algorithm, sampler = simulation.method, simulation.algorithm, simulation.sampler
    budget = simulation.state.participation.budget
    given: dict[str, Any] = {"algorithm": algorithm.name}
    if isinstance(algorithm, FedAvg):
        cohort = max(1, round(sampler.expected))
        given |= {"local_epochs": algorithm.local_epochs, "cohort": cohort}
    else:
        given |= {"correction": algorithm.correction}
    if budget is not None:
        given |= {"budget": budget.epsilon, "delta": budget.delta}
    given |= {field.name: getattr(simulation.server, field.name) for field in _SERVER_FIELDS}
    return OwnRun(
        task=simulation.task.name, workers=len(simulation.task.devices), method=method.name,
        rounds=simulation.rounds, seed=simulation.seed,
        learning_rate=algorithm.learning_rate, batch_size=algorithm.batch_size,
        hashes=simulation.hashes, **given,
        **_resolved(method, settings_of_methods().get(method.name, frozenset())), **output,
    )  # fmt: skip


def _resolved(method: Method, names: Iterable[str]) -> dict[str, Any]:
    """Return the method's own values of settings, enumerations as text."""
    resolved = {}
    for name in names:
        value, kind = getattr(method, name), describe(RunConfig)[name].kind
        resolved[name] = None if value is None else kind(value)
    return resolved


def settings_of_methods() -> dict[str, frozenset[str]]:
    """The settings that each method has."""
    return {name: frozenset(settings_of(name)) & METHOD_SETTINGS for name in METHODS}


def assumptions(claim: Claim, sampler: Sampler) -> list[str]:
    """Conditions under which the claim of a whole run holds; none where nothing is claimed."""
    if claim.basis is Basis.NONE:
        return []
    if claim.basis is not Basis.PROVEN:
        return [_SIMULATED]
    if isinstance(sampler, PoissonDevices):
        return [_COUNTS, _SIMULATED]
    by_size = isinstance(sampler, WeightedSampler)
    more = ", and how many examples each client has," if by_size else ""
    return [f"Who takes part in which round{more} is taken as public.", _SIMULATED]


def most_participations(sampler: Sampler, rounds: int) -> int:
    """Rounds of the device that takes part most often; samples follow from the seed alone.

    >>> most_participations(AllDevices(10), 7)
    7
    """
    if isinstance(sampler, AllDevices):
        return rounds
    counts = np.zeros(sampler.members, dtype=np.int64)
    for round_index in range(rounds):
        counts[sampler.draw(round_index).numpy()] += 1
    return int(counts.max())


def _sampler(config: RunConfig, task: Task) -> Sampler:
    members = len(task.devices)
    if config.algorithm == "sgd":
        return AllDevices(members)
    # The seed decides who is drawn: two methods with one seed see the same devices.
    cohort, seed = cast(int, config.cohort), config.seed
    if config.sampling == "weighted":
        return WeightedSampler(task.devices.sizes, cohort, seed)
    if config.sampling == "poisson":
        return PoissonDevices.of(members, cohort, seed)
    kind = UniformSampler if config.sampling == "uniform" else ShuffledSampler
    return kind(members, cohort, seed)


def _server(config: RunConfig) -> ServerOptimizer:
    return ServerOptimizer(**{field.name: getattr(config, field.name) for field in _SERVER_FIELDS})


def _method(
    config: RunConfig,
    fields: frozenset[str],
    *,
    dim: int,
    sampler: Sampler,
    budget: Budget | None,
    examples: int,
) -> tuple[RunConfig, Method]:
    """The method, with the least noise for the budget, and the settings with its own values."""
    rounds, cohort = cast(int, config.rounds), max(1, round(sampler.expected))
    # Rounds that the client pays for that pays most; all of them if samples are secret.
    paid = most_participations(sampler, rounds) if sampler.fixed_size else rounds
    settings = {name: value for name in fields if (value := getattr(config, name)) is not None}
    if config.method_settings is not None:
        more = parse_settings(config.method_settings)
        twice = sorted(METHOD_SETTINGS & more.keys())
        check(not twice, "method_settings", "leave out what is an option", ", ".join(twice))
        settings |= more
    unit = settings.get("unit", Unit.CLIENT)
    records = "be example: tasks of the command line have one record a person"
    check(unit != Unit.PERSON, "unit", records, unit)
    if unit == Unit.EXAMPLE:
        # Each silo takes a batch of this size in the mean, on secret samples.
        size, workers = cast(int, config.batch_size), cast(int, config.workers)
        check(size <= examples / workers, "batch_size", "be at most a silo's examples", size)
        settings = {"rate": size * workers / examples, "records": float(size)} | settings
    needed = settings_of(config.method)
    if "delta" in needed:
        # A claim that is made for one delta has to share the run's with all rounds of a client.
        settings["delta"] = config.delta / paid
    calibrated = "noise_multiplier" in fields - settings.keys()
    missing = [
        describe(RunConfig)[name].flag
        for name, is_needed in needed.items()
        if is_needed and name not in settings and name != "noise_multiplier"
    ]
    if calibrated and budget is None:
        missing.append("--noise-multiplier (or a --budget that it is found from)")
    if missing:
        text = " and ".join((", ".join(missing[:-1]), missing[-1]) if missing[1:] else missing)
        raise ArgumentError(f"{text} must be given for --method {config.method}")

    def method_with(settings: dict[str, Any]) -> Method:
        return build_method(config.method, dim=dim, cohort=cohort, settings=settings)

    def event_of(multiplier: float) -> Event:
        seed = SketchKey.from_integer(config.seed).seed(0)
        claim = method_with({**settings, "noise_multiplier": multiplier}).claim_for(cohort, seed)
        if not isinstance(claim, ProvenClaim):
            raise ArgumentError(f"budget needs a proven claim, got budget={config.budget}: {claim}")
        if isinstance(sampler, PoissonDevices):
            claim = sampler.lottery.amplified(claim)
        return claim.event

    if calibrated and budget is not None:
        settings["noise_multiplier"] = calibrate(
            event_of, budget, rounds=paid, least=_LEAST_NOISE, tolerance=_TOLERANCE
        )
    # Built anew from the settings alone, as a run that goes on will build it.
    method = method_with(settings)
    return config.replaced(**_resolved(method, fields)), method


def _check_memory(simulation: Simulation) -> None:
    """Raise where the messages that are made at once do not fit: the system would end the run."""
    method = simulation.method
    at_once = min(max(1, round(simulation.sampler.expected)), max(1, PART_CELLS // method.dim))
    # Tables are float32 while they are made, whatever their bits on the wire.
    needed = 4 * math.prod(method.total_format.shape) * at_once
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        what = "rows * cols" if isinstance(method, TableMethod) else "size"
        raise ArgumentError(
            f"{what} must be less: {at_once} messages at a time must fit into {there / 1e9:.3g} GB "
            f"of memory, got {needed / 1e9:.3g} GB, of the shape {method.total_format.shape} each"
        )


def _try_once(simulation: Simulation, config: RunConfig) -> None:
    """Encode, publish and decode a zero and a small vector; account for one round."""
    method, dim = simulation.method, simulation.method.dim
    seed, key = SketchKey.from_integer(0).seed(0), NoiseKey.from_integer(0)
    # Not only zeros: with them nothing is clipped, divided or rounded.
    small = torch.full((dim,), _SMALL_NORM / dim**0.5)
    try:
        for number, vector in enumerate((torch.zeros(dim), small)):
            noise = key.source(worker=number, round_index=0)
            if method.takes_records:
                message = encode_records(method, [vector[None]], seed, noise)
            else:
                message = method.encode(vector, seed, noise).messages
            method.decode(method.publish(message, noise), seed, count=1)
        simulation.state.participation.after(simulation.claim, np.zeros(1, np.int64))
    except BudgetExceeded as error:
        raise ArgumentError(
            f"budget must allow one round at least, got budget={config.budget}: {error}"
        ) from error
    except ArithmeticError as error:
        raise ArgumentError(
            f"the settings of --method {config.method} are beyond what can be computed: {error}"
        ) from error
