"""How others simulate federated averaging: plain torch, torch.func, Apple's pfl and Flower.

Each is the least program that its documentation suggests for the same rounds: sample devices, train
each for one epoch of SGD on its ten images, average, update. Nothing is evaluated or logged.
pfl and Flower time their own rounds; the first, in which they start up, does not count. Flower gets
as many nodes as devices take part in a round, so it need not hold 6,000; it runs in a process of
its own, since its workers and logs would disturb the others.

    pip install pfl==0.6.0 "flwr[simulation]"
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from diffsketch.training.models import flatten, load
from diffsketch.training.tasks import Task

__all__ = ["LEARNING_RATE", "flower_seconds", "pfl_seconds", "torch_loop", "vmap_loop"]

LEARNING_RATE = 0.01
BATCH = 10


def torch_loop(task: Task, cohort: int) -> Callable[[], Tensor]:
    """One device after another with `torch.optim.SGD`."""
    model, inputs, labels, generator = _start(task)
    weights = flatten(model)

    def one_round() -> Tensor:
        nonlocal weights
        total = torch.zeros_like(weights)
        for device in torch.randperm(len(inputs), generator=generator)[:cohort]:
            load(model, weights)
            optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs[device]), labels[device])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += flatten(model) - weights
        weights = weights + total / cohort
        return weights

    return one_round


def vmap_loop(task: Task, cohort: int) -> Callable[[], Tensor]:
    """All devices at once, as torch.func's tutorials do it; each has a single step here."""
    model, inputs, labels, generator = _start(task)
    weights = {name: value.detach() for name, value in model.named_parameters()}

    def loss(weights: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, weights, (inputs,)), labels)

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))

    def one_round() -> Tensor:
        nonlocal weights
        chosen = torch.randperm(len(inputs), generator=generator)[:cohort]
        found = gradients(weights, inputs[chosen], labels[chosen])
        weights = {n: w - LEARNING_RATE * found[n].mean(0) for n, w in weights.items()}
        return torch.cat([value.flatten() for value in weights.values()])

    return one_round


def _start(task: Task) -> tuple[nn.Module, Tensor, Tensor, torch.Generator]:
    examples, devices = task.devices.examples, len(task.devices)
    inputs = examples.inputs.view(devices, -1, *examples.inputs.shape[1:])
    generator = torch.Generator().manual_seed(0)
    return task.model(0), inputs, examples.labels.view(devices, -1), generator


def pfl_seconds(
    task: Task, cohort: int, *, rounds: int, note: Callable[[str], None]
) -> list[float]:
    """Seconds of each round of Apple's pfl; none if it is not installed."""
    if find_spec("pfl") is None:
        note("pfl skipped: not installed")
        return []
    logging.getLogger("pfl").setLevel(logging.ERROR)
    base: Any = import_module("pfl.algorithm.base")
    averaging: Any = import_module("pfl.algorithm.federated_averaging")
    hyperparam: Any = import_module("pfl.hyperparam.base")
    simulate: Any = import_module("pfl.aggregate.simulate")
    module, inputs, labels, _ = _start(task)
    data, clock = _pfl_data(inputs, labels), _pfl_clock()
    averaging.FederatedAveraging().run(
        algorithm_params=base.NNAlgorithmParams(
            central_num_iterations=rounds + 1,
            evaluation_frequency=10**9,
            train_cohort_size=cohort,
            val_cohort_size=0,
        ),
        backend=simulate.SimulatedBackend(training_data=data, val_data=data),
        model=_pfl_model(module),
        model_train_params=hyperparam.NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=LEARNING_RATE, local_batch_size=BATCH
        ),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    return [after - before for before, after in pairwise(clock.marks)]


def _pfl_model(module: nn.Module) -> Any:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def loss(self, inputs: Tensor, labels: Tensor, **_: object) -> Tensor:
            return cross_entropy(self.inner(inputs), labels)

        def metrics(self, *_: Tensor, **__: object) -> dict[str, Any]:
            return {}

    model = WithLoss()
    central = torch.optim.SGD(model.parameters(), lr=1.0)
    pytorch: Any = import_module("pfl.model.pytorch")
    return pytorch.PyTorchModel(
        model=model, local_optimizer_create=torch.optim.SGD, central_optimizer=central
    )


def _pfl_data(inputs: Tensor, labels: Tensor) -> Any:
    datasets: Any = import_module("pfl.data.federated_dataset")
    sampling: Any = import_module("pfl.data.sampling")
    held = {device: [inputs[device], labels[device]] for device in range(len(inputs))}
    users = sampling.get_user_sampler("minimize_reuse", list(held))
    return datasets.FederatedDataset.from_slices(held, users)


def _pfl_clock() -> Any:
    callback: Any = import_module("pfl.callback.base")
    metrics: Any = import_module("pfl.metrics")

    class Clock(callback.TrainingProcessCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.marks: list[float] = []

        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
            self.marks.append(time.perf_counter())
            return False, metrics.Metrics()

    return Clock()


def flower_seconds(
    task: Task, cohort: int, *, rounds: int, note: Callable[[str], None]
) -> list[float]:
    """Seconds of each round of Flower's simulation; none if it is not installed."""
    if find_spec("flwr") is None or find_spec("ray") is None:
        note("Flower skipped: not installed (it needs the extra 'simulation')")
        return []
    with tempfile.TemporaryDirectory() as folder:
        data, times = Path(folder) / "data.pt", Path(folder) / "times.json"
        _, inputs, labels, _ = _start(task)
        torch.save([inputs[:cohort].clone(), labels[:cohort].clone()], data)
        root = str(Path(__file__).parents[1])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        settings = {"PYTHONPATH": path, "FLWR_TELEMETRY_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
        command = [sys.executable, "-m", "benchmarks.simulation_peers"]
        command += [str(data), str(times), str(rounds)]
        done = subprocess.run(  # noqa: S603 (our own code)
            command, env=os.environ | settings, capture_output=True, text=True, check=False
        )
        if done.returncode or not times.exists():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            note(f"Flower skipped: it failed with status {done.returncode}: {last}")
            return []
        found: list[float] = json.loads(times.read_text())
        return found


@cache
def _flower_data(path: str) -> tuple[Tensor, Tensor]:
    torch.set_num_threads(1)
    inputs, labels = torch.load(path)
    return inputs, labels


def _run_flower(data: str, times: Path, rounds: int) -> None:
    """In a process of its own: write the seconds of each round but the first."""
    app: Any = import_module("flwr.app")
    clientapp: Any = import_module("flwr.clientapp")
    serverapp: Any = import_module("flwr.serverapp")
    strategies: Any = import_module("flwr.serverapp.strategy")
    simulation: Any = import_module("flwr.simulation")
    cohort = len(_flower_data(data)[0])
    marks: list[float] = []

    def train(message: Any, context: Any) -> Any:
        inputs, labels = _flower_data(data)
        device = int(context.node_config["partition-id"])
        model = nn.Linear(inputs.shape[-1], 10)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        cross_entropy(model(inputs[device]), labels[device]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        records = {
            "arrays": app.ArrayRecord(model.state_dict()),
            "metrics": app.MetricRecord({"num-examples": BATCH}),
        }
        return app.Message(content=app.RecordDict(records), reply_to=message)

    def serve(grid: Any, _: Any) -> None:
        strategy = strategies.FedAvg(
            fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=cohort,
            min_available_nodes=cohort,
        )  # fmt: skip
        first = app.ArrayRecord(nn.Linear(_flower_data(data)[0].shape[-1], 10).state_dict())

        def clock(*_: Any) -> None:
            marks.append(time.perf_counter())

        strategy.start(grid=grid, initial_arrays=first, num_rounds=rounds + 1, evaluate_fn=clock)

    client, server = clientapp.ClientApp(), serverapp.ServerApp()
    client.train()(train)
    server.main()(serve)
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    simulation.run_simulation(server, client, num_supernodes=cohort, backend_config=resources)
    # The first mark is before the first round.
    seconds = [after - before for before, after in pairwise(marks[1:])]
    times.write_text(json.dumps(seconds))


if __name__ == "__main__":
    _run_flower(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
