"""From settings to a simulation: the task's data, the model, the method, the server."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from diffsketch.training.simulate import Hashes, Simulation
from diffsketch.errors import ArgumentError
from diffsketch.training.correction import Correction
from diffsketch.training.fedavg import FedAvg
from diffsketch.training.fetch import FetchSGD
from diffsketch.training.local.choose import trainer_for
from diffsketch.training.models import unflatten
from diffsketch.training.rounds import Algorithm
from diffsketch.training.sampling import (
    AllDevices,
    PoissonDevices,
    Sampler,
    ShuffledSampler,
    UniformSampler,
    WeightedSampler,
)
from diffsketch.training.server import Server, ServerOptimizer
from diffsketch.training.sgd import DistributedSGD
from diffsketch.training.task import Task
from diffsketch.training.tasks import load_task
from diffsketch.methods.base import Method
from diffsketch.methods.registry import METHODS, build_method, settings_of
from diffsketch.privacy.accounting.accountant import Budget
from diffsketch.privacy.claim import Claim, ProvenClaim
from diffsketch.app.budget import noise_for_budget, paying_rounds
from diffsketch.app.config import RunConfig
from diffsketch.app.defaults import METHOD_SETTINGS, with_task_defaults
from diffsketch.app.rehearsal import check_threads, rehearse
from diffsketch.app.settings import Value, describe
from diffsketch.sketch.hashing import SketchKey

__all__ = ["Built", "build", "settings_of_methods"]


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


def _server(config: RunConfig) -> Server:
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
