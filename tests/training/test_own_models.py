"""Models and data of one's own: arrays, losses, dropout, BatchNorm, dict outputs, half weights."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, mse_loss
from torch.utils.data import DataLoader, TensorDataset

from diffsketch import Budget, FedAvg, Simulation, Task, build_method
from diffsketch.errors import ArgumentError, DataError
from diffsketch.methods.plain import Uncompressed
from diffsketch.training.local import WorkerLoop, trainer_for
from diffsketch.training.models import flatten, load
from diffsketch.training.sampling import draw_batches, model_seeds
from diffsketch.training.tasks import Examples
from tests.helpers.refusals import refused

SIZES = (6, 9, 4)  # whose batches of 4 are not all full


def arrays(kind: Callable[[Any], Any] = np.asarray, *, real: bool = False) -> dict[str, Any]:
    random = np.random.default_rng(0)

    def pair(count: int) -> tuple[Any, Any]:
        inputs, labels = random.normal(size=(count, 5)), random.integers(0, 3, count)
        return kind(inputs), kind(inputs[:, :2] * 2 if real else labels)

    return {"devices": {f"device {size}": pair(size) for size in SIZES}, "test": pair(50)}


def network(*layers: nn.Module, out: int = 3) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 8), *(layers or (nn.Tanh(),)), nn.Linear(8, out))


def simulation(task: Task, **options: Any) -> Simulation:
    method = Uncompressed(task.dim)
    return Simulation(task, method=method, algorithm=FedAvg(0.3, 4), rounds=3, **options)


def textbook(task: Task, model: nn.Module, rounds: int = 3, *, seeded: bool = False) -> Tensor:
    """FedAvg by `torch.optim.SGD`, on the same batches; dropout by the seed of each device."""
    cohort, loss = torch.arange(len(SIZES)), task.loss or cross_entropy
    examples, weights = task.devices.examples, flatten(model)
    for index in range(rounds):
        drawn = draw_batches(
            task.devices, cohort, seed=0, round_index=index, batch_size=4, epochs=1
        )
        assert drawn.present is not None
        changes = []
        for worker, seed in enumerate(model_seeds(cohort, seed=0, round_index=index).tolist()):
            local = copy.deepcopy(model).train()
            load(local, weights)
            optimizer = torch.optim.SGD(local.parameters(), lr=0.3)
            with torch.random.fork_rng(devices=[]):
                if seeded:
                    torch.manual_seed(seed)
                for chosen, there in zip(drawn.indices[worker], drawn.present[worker], strict=True):
                    places = chosen[there]
                    if len(places):
                        optimizer.zero_grad()
                        loss(local(examples.inputs[places]), examples.labels[places]).backward()  # type: ignore[no-untyped-call]
                        optimizer.step()
            changes.append(flatten(local) - weights)
        weights = weights + torch.stack(changes).mean(0)
    return weights


def close(found: Simulation, expected: Tensor) -> None:
    torch.testing.assert_close(found.weights, expected, rtol=1e-4, atol=1e-5)


def loaded(data: dict[str, Any], batch_size: int | None) -> dict[str, Any]:
    """The same data as Datasets, or as DataLoaders."""

    def dataset(pair: tuple[Any, Any]) -> Any:
        tensors = TensorDataset(*pair)
        return tensors if batch_size is None else DataLoader(tensors, batch_size)

    devices = {name: dataset(pair) for name, pair in data["devices"].items()}
    return {"devices": devices, "test": dataset(data["test"])}


def test_arrays_tensors_and_loaders_are_the_same_task() -> None:
    tensors, results = arrays(torch.as_tensor), []
    for data in (arrays(), tensors, loaded(tensors, None), loaded(tensors, 4)):
        made = simulation(Task("own", model=network(), **data))
        assert made.run() == ""
        results.append((made.weights.tolist(), made.evaluate(), made.identity))
    assert results[1:] == results[:1] * 3
    close(made, textbook(made.task, network()))
    fixed = np.zeros((2, 5))
    fixed.flags.writeable = False
    examples = Examples(fixed, np.array([2, 1], np.uint8)[::-1])
    assert (examples.inputs.dtype, examples.labels.tolist()) == (torch.float32, [1, 2])


WHOLE = (np.zeros((4, 5), np.int64), np.zeros(4, np.int64))
ONE = {"b": (np.zeros((1, 2)), [0.0])}
SKELLAM = {"rows": 1, "cols": 8, "clip": 1.0, "noise_multiplier": 1.0}
FEW = build_method("sketch-skellam", dim=75, cohort=2, settings=SKELLAM)


def own(model: Any = None, **changed: Any) -> Task:
    return Task("own", model=model or network(), **{**arrays(), **changed})


def real(**options: Any) -> Simulation:
    return simulation(Task("own", **{"model": network(), **arrays(real=True), **options}))


def few(task: Task | None = None, **options: Any) -> Simulation:
    settings = {"method": FEW, "algorithm": FedAvg(0.1, 4), "rounds": 1, **options}
    return Simulation(task or own(), **settings)


REFUSED: dict[str, Callable[[], object]] = {
    "labels must have an entry for each of": lambda: Examples(np.zeros((2, 3)), np.zeros(3)),
    "inputs must be an array of numbers": lambda: Examples(np.array(["a"]), np.zeros(1)),
    "must be a pair": lambda: own(devices={"b": np.zeros(3)}),
    "inputs of device 'c' must have the shape": lambda: own(
        devices={**ONE, "c": (np.zeros((1, 3)), [0])}
    ),
    "inputs of the test set must be finite, got NaN or infinity in rows 1$": lambda: own(
        devices=ONE, test=(np.array([[0.0, 1.0], [2.0, np.nan]]), [0, 1])
    ),
    "labels of the test set must be finite, got .* in rows 0, 1, 2, 3, 4 and 4 more": lambda: own(
        devices=ONE, test=(np.zeros((9, 2)), [np.inf] * 9), loss=mse_loss
    ),
    "inputs of device 'c' must be finite, got NaN or infinity in rows 1$": lambda: own(
        devices={**ONE, "c": (np.array([[0.0, 1.0], [2.0, np.inf]]), [0, 1])}
    ),
    "examples must be pairs of inputs and labels, got examples='TensorDataset'": lambda: own(
        devices={"b": TensorDataset(torch.zeros(3, 5))}
    ),
    "for cross-entropy": real,
    "loss must give one number": lambda: real(
        model=network(out=2), loss=lambda scores, labels: (scores - labels) ** 2
    ),
    "loss must take scores": lambda: real(loss=mse_loss),
    "trainer must have the loss of the task": lambda: simulation(
        own(loss=cross_entropy), trainer=trainer_for(network())
    ),
    "devices must be a map of device": lambda: own(devices=[WHOLE]),
    "test inputs must be torch.float32, as the devices', got torch.int64": lambda: own(test=WHOLE),
    "model must be a module .* got model=3": lambda: own(3),
    "model must be a module .*torch.nn.modules.linear.Linear": lambda: own(nn.Linear),
    "model must have its weights, got a lazy 'weight'": lambda: own(nn.LazyLinear(3)).dim,
    "model must make a module, got model=3": lambda: few(own(lambda _: 3)),
    "algorithm must be DistributedSGD.* got algorithm='fedavg'": lambda: few(algorithm="fedavg"),
    "sampler must draw at most the cohort=2 .*draws 3": few,
    "budget must be Budget.* got budget=8": lambda: simulation(own(), budget=8),
    "sampler must be an int, got sampler='all'": lambda: simulation(own(), sampler="all"),
    "sampler must be in 1..3, got sampler=4": lambda: simulation(own(), sampler=4),
    "seed must be an int, got seed='x'": lambda: simulation(own(), seed="x"),
    "budget must allow one round at least": lambda: few(sampler=2, budget=Budget(0.1, 1e-5)).run(),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_wrong_is_said_in_a_line(message: str) -> None:
    with pytest.raises((ArgumentError, DataError), match=message) as caught:
        REFUSED[message]()
    assert "\n" not in str(caught.value)


def test_any_loss() -> None:
    task = Task("own", model=network(out=2), loss=mse_loss, **arrays(real=True))
    made = simulation(task)
    before, accuracy = made.evaluate()
    made.run()
    close(made, textbook(task, network(out=2)))
    assert made.evaluate()[0] < before
    assert np.isnan(accuracy)
    # Its mean is not that of the examples alone: whole batches are needed, without empty places.
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 25.0]))
    task = Task("own", model=network(), loss=weighted, **arrays())
    made = simulation(task)
    made.run()
    close(made, textbook(task, network()))


def test_losses_of_one_name_have_noise_of_their_own() -> None:
    def times(factor: float) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda scores, labels: factor * cross_entropy(scores, labels)

    one, two, again = (
        simulation(Task("own", model=network(), loss=times(factor), **arrays()))
        for factor in (1.0, 2.0, 1.0)
    )
    assert one.noise_key.secret != two.noise_key.secret
    assert one.noise_key.secret == again.noise_key.secret


def test_dropout_has_a_generator_for_each_device() -> None:
    model = network(nn.Dropout(0.5))
    task, state = Task("own", model=model, **arrays()), torch.get_rng_state()
    made = simulation(task)
    made.run()
    assert torch.equal(torch.get_rng_state(), state)
    close(made, textbook(task, model, seeded=True))
    with pytest.raises(AssertionError):
        close(made, textbook(task, network(nn.Dropout(0.0)), seeded=True))
    # What a device draws does not depend on who else is there, but on the device and the round.
    trainer, some = WorkerLoop(model), torch.tensor([0, 2])
    drawn = [
        FedAvg(0.3, 9).vectors(
            flatten(model), cohort, trainer=trainer, devices=task.devices, seed=0, round_index=index
        )
        for cohort, index in ((torch.arange(3), 0), (some, 0), (some, 1))
    ]
    assert torch.equal(drawn[0][some], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])
    assert len(set(model_seeds(torch.arange(1000), seed=0, round_index=0).tolist())) == 1000


def test_batchnorm_keeps_its_statistics_local() -> None:
    data, model = arrays(), network(nn.BatchNorm1d(8))
    data["devices"]["device 9"] = tuple(part[:8] for part in data["devices"]["device 9"])
    refused(ArgumentError, "keep_local=True", simulation, Task("own", model=model, **data))
    task = Task("own", model=model, keep_local=True, **data)
    made = simulation(task)
    made.run()
    close(made, textbook(task, model))  # by each batch: its statistics are not used in training
    assert len(made.weights) == sum(one.numel() for one in model.parameters())
    inputs, labels = task.test.inputs, task.test.labels
    share = (made.trained().eval()(inputs).argmax(1) == labels).double().mean()
    assert made.evaluate()[1] == float(share)
    data["devices"]["device 9"] = tuple(part[:5] for part in data["devices"]["device 9"])
    with pytest.raises(ArgumentError, match=r"model must take batches of 1.* or use GroupNorm"):
        simulation(Task("own", model=model, keep_local=True, **data)).run()


class Named(nn.Module):
    """Gives its scores as Hugging Face's models do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Tensor) -> OrderedDict[str, Tensor]:
        return OrderedDict(hidden=inputs, logits=self.inner(inputs))


def test_outputs_with_logits() -> None:
    plain, named = (
        simulation(Task("own", model=model, **arrays())) for model in (network(), Named(network()))
    )
    plain.run()
    named.run()
    assert torch.equal(plain.weights, named.weights)
    assert plain.evaluate() == named.evaluate()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_weights_are_trained_in_float32(dtype: torch.dtype) -> None:
    half = network().to(dtype)
    made, same = (
        simulation(Task("own", model=model, **arrays()))
        for model in (half, copy.deepcopy(half).float())
    )
    for one in (made, same):
        one.run()
    assert torch.equal(made.weights, same.weights)
    trained = made.trained()
    assert not trained.training
    assert {one.dtype for one in trained.parameters()} == {dtype}
    assert torch.equal(flatten(trained), made.weights.to(dtype).float())


class Drawing(nn.Linear):
    """Draws numbers, which no layer of it tells."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(dropout(inputs, 0.5, self.training))


class Branching(nn.Linear):
    """Looks at values to decide what to compute."""

    def forward(self, inputs: Tensor) -> Tensor:
        scores = super().forward(inputs)
        return scores if scores.sum() > 0 else 2 * scores


@pytest.mark.parametrize("kind", [Drawing, Branching])
@pytest.mark.parametrize("loss", [None, cross_entropy])
def test_models_that_cannot_be_trained_at_once_are_in_a_loop(kind: Any, loss: Any) -> None:
    model = kind(5, 3)
    task = Task("own", model=model, loss=loss, **arrays())
    made = simulation(task)
    made.run()
    close(made, textbook(task, model, seeded=True))
