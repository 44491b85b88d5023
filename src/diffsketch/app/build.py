"""Simulations built from settings, rehearsed, with noise for their budget."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from diffsketch.app.settings import METHOD_SETTINGS, RunConfig, Value, describe, with_task_defaults
from diffsketch.errors import ArgumentError
from diffsketch.methods.base import Method
from diffsketch.methods.registry import METHODS, build_method, settings_of
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.accountant import Budget, BudgetExceeded
from diffsketch.privacy.accounting.calibration import calibrate
from diffsketch.privacy.claim import Basis, Claim, ProvenClaim
from diffsketch.privacy.noise import NoiseKey
from diffsketch.sketch.hashing import SketchKey
from diffsketch.training.local import trainer_for
from diffsketch.training.models import unflatten
from diffsketch.training.rounds import Algorithm, Correction, DistributedSGD, FedAvg
from diffsketch.training.sampling import (
    AllDevices,
    PoissonDevices,
    Sampler,
    ShuffledSampler,
    UniformSampler,
    WeightedSampler,
)
from diffsketch.training.server import FetchSGD, ServerOptimizer, ServerRule
from diffsketch.training.simulation import Hashes, Simulation
from diffsketch.training.tasks import Task, load_task

_SIMULATED = (
    "Simulated: the noise follows from the seed, so whoever has the run directory can take it out "
    "again; do not publish it as a private release."
)
_COUNTS = "Byte and message counts are for the simulator; the number drawn is secret."


def assumptions(claim: Claim, sampler: Sampler) -> list[str]:
    """What has to be so for the claim of a run to hold; nothing where nothing is claimed.

    Args:
        claim: Of the whole run.
        sampler: Who took part.
    """
    if claim.basis is Basis.NONE:
        return []
    if claim.basis is not Basis.PROVEN:
        return [_SIMULATED]
    if isinstance(sampler, PoissonDevices):
        return [_COUNTS, _SIMULATED]
    sizes = isinstance(sampler, WeightedSampler)  # by the numbers of examples
    more = ", and how many examples each client has," if sizes else ""
    return [f"Who takes part in which round{more} is taken as public.", _SIMULATED]


_LEAST = 1e-2  # less noise than that protects nothing
_TOLERANCE = 1e-3  # of the noise, relatively: each look may take a Fourier transform


def noise_for_budget(
    claim_of: Callable[[float], Claim], budget: Budget, *, sampler: Sampler, rounds: int
) -> float:
    """The least noise multiplier with which all planned rounds stay within the budget.

    Guarantees (`tests/app/test_budget.py`): a run with it does all its rounds, and one with 1%
    less does not.

    Args:
        claim_of: What one round guarantees for the clients in it, with so much noise; amplified
            if the sample is secret.
        budget: Of the whole run.
        sampler: Who takes part; it depends on the seed alone, so it is known beforehand.
        rounds: That are planned.

    Raises:
        ArgumentError: The method proves nothing, or no noise is enough.
    """

    def event_of(multiplier: float) -> events.Event:
        claim = claim_of(multiplier)
        if not isinstance(claim, ProvenClaim):
            raise ArgumentError(
                f"budget needs a proven claim, got budget={budget.epsilon}: {claim}"
            )
        return claim.event

    times = paying_rounds(sampler, rounds)
    return calibrate(event_of, budget, rounds=times, least=_LEAST, tolerance=_TOLERANCE)


def paying_rounds(sampler: Sampler, rounds: int) -> int:
    """How many rounds the client pays for that pays most; all of them if samples are secret."""
    return most_participations(sampler, rounds) if sampler.fixed_size else rounds


def most_participations(sampler: Sampler, rounds: int) -> int:
    """How often the device takes part that does so most often.

    >>> most_participations(AllDevices(10), 7)
    7
    """
    if isinstance(sampler, AllDevices):
        return rounds
    counts = np.zeros(sampler.members, dtype=np.int64)
    for round_index in range(rounds):
        counts[sampler.draw(round_index).numpy()] += 1
    return int(counts.max())


@dataclass(frozen=True, eq=False)
class Built:
    """What a run consists of.

    Attributes:
        config: Every setting that the run uses, resolved: the same simulation comes from it.
        simulation: Before its first round.
        model: Whose weights they are.
    """

    config: RunConfig
    simulation: Simulation
    model: nn.Module

    def named_weights(self, weights: Tensor) -> Mapping[str, Tensor]:
        """Flat weights by the names of the model's parameters."""
        return unflatten(self.model, weights)


def build(config: RunConfig) -> Built:
    """The simulation of a run.

    Guarantees (`tests/app/test_build.py`): the resolved settings build the same again; a setting
    that is not used is an error.

    Raises:
        ArgumentError: A setting is missing, not used or wrong.
        DataError: The task's data cannot be used.
    """
    _check_device(config.device)
    check_threads(config.threads)
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
    config = dataclasses.replace(config, workers=len(task.devices))
    task = dataclasses.replace(task, devices=task.devices.to(torch.device(config.device)))
    model = task.model(config.seed)
    dim = sum(parameter.numel() for parameter in model.parameters())
    sampler = _sampler(config, task)
    config, method = _method(config, fields, dim=dim, sampler=sampler)
    simulation = Simulation(
        task,
        method=method,
        trainer=trainer_for(model),
        algorithm=_algorithm(config),
        rounds=cast(int, config.rounds),
        seed=config.seed,
        sampler=sampler,
        server=_server(config),
        hashes=cast(Hashes, config.hashes),
        budget=_budget(config),
    )
    rehearse(simulation, config)
    return Built(config, simulation, model)


def settings_of_methods() -> dict[str, frozenset[str]]:
    """For each method the settings that it has."""
    return {name: frozenset(settings_of(name)) & METHOD_SETTINGS for name in METHODS}


def _check_device(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        raise ArgumentError(
            "device must be cpu where PyTorch finds no CUDA device, got device='cuda'"
        )


def _budget(config: RunConfig) -> Budget | None:
    return None if config.budget is None else Budget(config.budget, config.delta)


def _algorithm(config: RunConfig) -> Algorithm:
    rate, size = cast(float, config.learning_rate), cast(int, config.batch_size)
    if config.algorithm == "sgd":
        return DistributedSGD(rate, size, correction=cast(Correction, config.correction))
    return FedAvg(rate, size, local_epochs=cast(int, config.local_epochs))


def _sampler(config: RunConfig, task: Task) -> Sampler:
    members = len(task.devices)
    if config.algorithm == "sgd":
        return AllDevices(members)
    cohort, seed = cast(int, config.cohort), config.seed
    if config.sampling == "weighted":
        return WeightedSampler(task.devices.sizes, cohort, seed)
    if config.sampling == "uniform":
        return UniformSampler(members, cohort, seed)
    if config.sampling == "shuffled":
        return ShuffledSampler(members, cohort, seed)
    return PoissonDevices.of(members, cohort, seed)


def _server(config: RunConfig) -> ServerRule:
    options: dict[str, Any] = {
        name: getattr(config, name)
        for name in ("server_step", "schedule", "update_clip", "averaging")
    }
    if config.top_k is None:
        return ServerOptimizer(momentum=config.momentum, **options)
    return FetchSGD(config.top_k, table_momentum=config.table_momentum, **options)


def _method(
    config: RunConfig, fields: frozenset[str], *, dim: int, sampler: Sampler
) -> tuple[RunConfig, Method]:
    """The method, and the settings with what it has where nothing was given."""
    cohort = max(1, round(sampler.expected))
    given = {name: value for name in fields if (value := getattr(config, name)) is not None}
    if "delta" in settings_of(config.method):
        # A claim that is made for one delta has to share the run's with all rounds of a client.
        given["delta"] = config.delta / paying_rounds(sampler, cast(int, config.rounds))

    for name, needed in settings_of(config.method).items():
        if needed and name not in given and name != "noise_multiplier":
            raise ArgumentError(f"{name} must be given for --method {config.method}")

    def made(more: Mapping[str, object]) -> Method:
        return build_method(config.method, dim=dim, cohort=cohort, settings={**given, **more})

    more: dict[str, Any] = {}
    if "noise_multiplier" in fields - given.keys():
        budget = _budget(config)
        if budget is None:
            raise ArgumentError(
                f"noise_multiplier must be given for --method {config.method}, or a --budget that "
                "it is found from"
            )
        seed = SketchKey.from_integer(config.seed).seed(0)

        def claim_of(multiplier: float) -> Claim:
            claim = made({"noise_multiplier": multiplier}).claim_for(cohort, seed)
            if isinstance(sampler, PoissonDevices) and isinstance(claim, ProvenClaim):
                return sampler.lottery.amplified(claim)
            return claim

        rounds = cast(int, config.rounds)
        more["noise_multiplier"] = noise_for_budget(
            claim_of, budget, sampler=sampler, rounds=rounds
        )
    method = made(more)
    known = describe(RunConfig)
    found: dict[str, Any] = {
        name: _plain(getattr(method, name), known[name].kind) for name in fields
    }
    return dataclasses.replace(config, **found), method


def _plain(value: Any, kind: type) -> Value:
    """Enumerations as the text that they stand for."""
    return None if value is None else cast(Value, kind(value))


_SMALL = 1e-3  # norm of a vector that nobody would clip
_THREADS = 4  # at most, for each core


def rehearse(simulation: Simulation, config: RunConfig) -> None:
    """Raise if the method cannot encode and decode, or not even one round is within the budget.

    Guarantees (`tests/app/test_rehearsal.py`): the simulation is as it was; what is refused here
    would be refused by the first round.

    Args:
        simulation: Before its first round.
        config: Its settings.

    Raises:
        ArgumentError: A setting of the method cannot be computed with, or the budget is too small.
    """
    try:
        _try(simulation.method)
        simulation.participation.after(simulation.claim, np.zeros(1, np.int64))
    except BudgetExceeded as error:
        raise ArgumentError(
            f"budget must allow one round at least, got budget={config.budget}: {error}"
        ) from error
    except ArithmeticError as error:
        raise ArgumentError(
            f"the settings of --method {config.method} are beyond what can be computed: {error}"
        ) from error


def check_threads(count: int) -> None:
    """Raise if there are many more threads than cores: they would only wait for each other.

    Raises:
        ArgumentError: There are.
    """
    cores = os.cpu_count() or 1
    if count > _THREADS * cores:
        raise ArgumentError(
            f"threads must be at most {_THREADS} for each of the {cores} cores here, "
            f"got threads={count}"
        )


def _try(method: Method) -> None:
    """Encode nothing and a small vector, publish, decode."""
    seed, key = SketchKey.from_integer(0).seed(0), NoiseKey.from_integer(0)
    small = torch.full((method.dim,), _SMALL / method.dim**0.5)
    for number, vector in enumerate((torch.zeros(method.dim), small)):
        source = key.source(worker=number, round_index=0)
        message = method.encode(vector, seed, source).messages
        method.decode(method.publish(message, source), seed, count=1)
