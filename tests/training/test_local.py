"""Every trainer against a plain loop with `torch.optim.SGD`, and models that none can train."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.training import local as functional_module
from diffsketch.training.local import ClosedForm, Functional, LocalTrainer, WorkerLoop, trainer_for
from diffsketch.training.models import CharLSTM, LogisticRegression, flatten
from diffsketch.training.tasks import Batches, Examples
from tests.helpers.refusals import refused
from tests.training.local_cases import (
    CASES,
    CLASSES,
    COUNT,
    FEATURES,
    batches,
    close,
    logistic,
    perceptron,
    plain,
    vectors,
    windows,
)

Made = tuple[nn.Module, Examples, LocalTrainer]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Made:
    make_model, examples, make_trainer = CASES[request.param]
    model = make_model()
    return model, examples(), make_trainer(model)


# One case of each way to train.
each_kind = pytest.mark.parametrize(
    "case", ["logistic closed", "perceptron batched", "perceptron loop"], indirect=True
)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("ragged", [False, True])
def test_gradients_are_those_of_the_loop(case: Made, ragged: bool) -> None:
    model, examples, trainer = case
    chosen = batches(examples, 6, 1, 5, ragged=ragged)
    found = trainer.updates(flatten(model), chosen, learning_rate=None)
    close(found, plain(model, chosen, None))
    assert bool(found[3].any())


@pytest.mark.parametrize(("steps", "ragged"), [(1, False), (3, False), (3, True)])
def test_updates_are_those_of_the_loop(case: Made, steps: int, ragged: bool) -> None:
    model, examples, trainer = case
    chosen = batches(examples, 6, steps, 5, ragged=ragged)
    found = trainer.updates(flatten(model), chosen, learning_rate=0.3)
    expected = plain(model, chosen, 0.3)
    close(found, expected)
    # The tolerance tells steps from no steps, and this learning rate from another.
    assert bool(((found[3] - 1.01 * expected[3]).abs() > 1e-4 * expected[3].abs() + 2e-6).any())
    if ragged:
        assert not found[2].any()


@each_kind
def test_one_worker_and_none(case: Made) -> None:
    model, examples, trainer = case
    weights = flatten(model)
    assert trainer.dim == len(weights)
    alone = batches(examples, 1, 2, 3)
    found = trainer.updates(weights, alone, learning_rate=0.3)
    close(found, plain(model, alone, 0.3))
    for shape in ((0, 2, 3), (3, 0, 5)):  # nobody, and workers without a step
        idle = Batches(examples, torch.empty(shape, dtype=torch.int64))
        found = trainer.updates(weights, idle, learning_rate=0.3)
        assert torch.equal(found, torch.zeros(shape[0], trainer.dim))


@pytest.mark.slow
@pytest.mark.usefixtures("two_threads")
def test_same_input_same_bits(case: Made) -> None:
    model, examples, trainer = case
    weights = flatten(model)
    before, untouched = torch.get_rng_state(), weights.clone()
    other = type(trainer)(model)
    for ragged in (False, True):
        chosen = batches(examples, 9, 2, 5, ragged=ragged)
        first = trainer.updates(weights, chosen, learning_rate=0.3)
        kept = first.clone()
        assert torch.equal(trainer.updates(weights, chosen, learning_rate=0.3), kept)
        assert torch.equal(other.updates(weights, chosen, learning_rate=0.3), kept)
        # What was handed out stays, and nothing else was written to.
        trainer.updates(weights, batches(examples, 9, 1, 4), learning_rate=0.1)
        assert torch.equal(first, kept)
    assert torch.equal(weights, untouched)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == 2


def test_nan_stays_with_its_worker(case: Made) -> None:
    model, examples, trainer = case
    if not examples.inputs.is_floating_point():
        pytest.skip("windows of characters cannot be NaN")
    inputs = examples.inputs.clone()
    inputs[0] = torch.nan  # what empty places point at
    chosen = batches(examples, 6, 2, 5, ragged=True)
    present = chosen.present
    assert present is not None
    chosen.indices[4, 0] = 0
    present[4, 0] = True
    has_nan = (present & (chosen.indices == 0)).flatten(1).any(1)
    assert 0 < int(has_nan.sum()) < 6
    chosen = replace(chosen, examples=Examples(inputs, examples.labels))
    found = trainer.updates(flatten(model), chosen, learning_rate=0.3)
    # The worker without any example has no place of its own to point at; it trains nothing.
    expected = plain(model, chosen, 0.3)
    assert torch.isfinite(found).all(1).tolist() == torch.isfinite(expected).all(1).tolist()


def test_evaluate(case: Made) -> None:
    model, examples, trainer = case
    loss, accuracy = trainer.evaluate(flatten(model), examples)
    with torch.no_grad():
        scores = model(examples.inputs)
    assert loss == pytest.approx(float(cross_entropy(scores, examples.labels)), rel=1e-5)
    expected = (scores.argmax(1) == examples.labels).float().mean()
    assert accuracy == pytest.approx(float(expected))
    nothing = Examples(examples.inputs[:0], examples.labels[:0])
    refused(ArgumentError, "examples must not be empty", trainer.evaluate, flatten(model), nothing)


@pytest.mark.slow
def test_parts_of_a_cohort_are_the_cohort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffsketch.training.local._EVALUATED", 7)
    monkeypatch.setattr(Functional, "examples_at_once", 20)
    examples = vectors()  # inputs that lie apart, which are not for compiled loops
    examples = Examples(examples.inputs.mT.contiguous().mT, examples.labels)
    for model in (logistic(), perceptron()):
        trainer = trainer_for(model)
        for ragged in (False, True):
            chosen = batches(examples, 9, 2, 5, ragged=ragged)
            found = trainer.updates(flatten(model), chosen, learning_rate=0.3)
            close(found, plain(model, chosen, 0.3))
        with torch.no_grad():
            expected = cross_entropy(model(examples.inputs), examples.labels)
        assert trainer.evaluate(flatten(model), examples)[0] == pytest.approx(float(expected))


def test_traces_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functional_module, "_MOST_TRACES", 2)
    model, examples = perceptron(), vectors()
    trainer = Functional(model)
    for workers in (1, 2, 3, 1):
        chosen = batches(examples, workers, 1, 5)
        found = trainer.updates(flatten(model), chosen, learning_rate=None)
        close(found, plain(model, chosen, None))
    assert len(trainer._traces) == 2


@pytest.mark.usefixtures("two_threads")
def test_bits_do_not_depend_on_threads() -> None:
    model, found = CharLSTM(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        trainer = trainer_for(model)
        chosen = batches(windows(), 5, 2, 5)
        found += [trainer.updates(flatten(model), chosen, learning_rate=0.3)]
    assert torch.equal(*found)


def test_whole_numbers_are_taken_as_they_are() -> None:
    model, floats = logistic(), vectors()
    pixels = Examples((10 * floats.inputs).to(torch.uint8), floats.labels)
    chosen = batches(pixels, 4, 2, 3)
    for trainer in (trainer_for(model), Functional(model), WorkerLoop(model)):
        found = trainer.updates(flatten(model), chosen, learning_rate=0.01)
        close(found, plain(model, chosen, 0.01))
        same = Examples(pixels.inputs.float(), pixels.labels)
        assert trainer.evaluate(flatten(model), pixels) == trainer.evaluate(flatten(model), same)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", CASES)
def test_on_the_device_of_the_weights(name: str) -> None:
    device = "cuda"
    make, examples_of, make_trainer = CASES[name]
    model, chosen = make(), batches(examples_of(), 6, 2, 5, ragged=True)
    expected = plain(model, chosen, 0.3)
    trainer = make_trainer(model.to(device))
    there = chosen.examples.to(torch.device(device))
    present = chosen.present
    assert present is not None
    moved = Batches(there, chosen.indices.to(device), present.to(device))
    found = trainer.updates(flatten(model), moved, learning_rate=0.3)
    assert found.device.type == device
    # On CUDA convolutions and recurrences may use other algorithms, in TF32 for one.
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-3)
    assert trainer.evaluate(flatten(model), there)[0] > 0


@each_kind
def test_bad_arguments_are_refused(case: Made) -> None:
    model, examples, trainer = case
    weights, chosen = flatten(model), batches(examples, 3, 2, 5)
    with pytest.raises(MismatchError, match="gradients need exactly one step, got 2"):
        trainer.updates(weights, chosen, learning_rate=None)
    indices, shape = chosen.indices, "present must have the shape of indices"
    bad: list[tuple[str, torch.Tensor, Batches]] = [
        ("weights must have the shape", weights[1:], chosen),
        ("weights must be float32", weights.double(), chosen),
        (r"indices must be \(workers, steps, batch_size\)", weights, Batches(examples, indices[0])),
        ("in torch.int32", weights, Batches(examples, indices.int())),
        (shape, weights, Batches(examples, indices, torch.ones(3, 2, 4, dtype=torch.bool))),
        ("in torch.float32", weights, Batches(examples, indices, torch.ones(3, 2, 5))),
        ("index|indices", weights, Batches(examples, indices + COUNT)),
        ("index|indices", weights, Batches(examples, indices - COUNT)),
    ]
    for message, given, taken in bad:
        with pytest.raises((ArgumentError, MismatchError, IndexError), match=message):
            trainer.updates(given, taken, learning_rate=0.3)


class Scaled(LogisticRegression):
    def forward(self, inputs: Tensor) -> Tensor:
        return 2 * super().forward(inputs)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (LogisticRegression(), ClosedForm),
        (Scaled(), Functional),  # a subclass may compute something else
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), Functional),
        (CharLSTM(), WorkerLoop),
        (nn.Sequential(nn.GRUCell(3, 4, device="meta")), WorkerLoop),
        (nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)), WorkerLoop),
        (nn.LSTM(3, 3, num_layers=2, dropout=0.5, device="meta"), WorkerLoop),
        (nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False)), WorkerLoop),
    ],
)
def test_choice(model: nn.Module, expected: type[LocalTrainer]) -> None:
    assert type(trainer_for(model)) is expected
    assert type(trainer_for(model, loss=cross_entropy)) is WorkerLoop


@pytest.mark.parametrize(
    ("make", "model", "message"),
    [
        (WorkerLoop, nn.Sequential(LogisticRegression(), nn.BatchNorm1d(3)), "running statistics"),
        (trainer_for, nn.Sequential(nn.BatchNorm1d(3)), "layer '0' .* running statistics"),
        (trainer_for, nn.ReLU(), "have parameters"),
        # Empty places would be among the examples.
        (Functional, nn.BatchNorm1d(3, track_running_stats=False), "no layers that mix examples"),
    ],
)
def test_models_that_are_refused(make: Any, model: nn.Module, message: str) -> None:
    refused(ArgumentError, message, make, model)


def test_harmless_layers_are_accepted() -> None:
    layers = (nn.BatchNorm1d(FEATURES, track_running_stats=False), nn.Dropout(0.0), logistic())
    model, chosen = nn.Sequential(*layers), batches(vectors(), 3, 2, 5)
    found = trainer_for(model).updates(flatten(model), chosen, learning_rate=0.3)
    close(found, plain(model, chosen, 0.3))


class Counting(LogisticRegression):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__(FEATURES, CLASSES)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen += len(inputs)
        return super().forward(inputs)


@pytest.mark.parametrize("make", [Functional, WorkerLoop])
def test_changed_buffers_are_noticed(make: Callable[[nn.Module], LocalTrainer]) -> None:
    model = Counting()
    with pytest.raises(ArgumentError, match="change its buffers while training: seen"):
        make(model).updates(flatten(model), batches(vectors(), 3, 1, 5), learning_rate=None)


class Noisy(LogisticRegression):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs + torch.rand_like(inputs))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("make", [Functional, WorkerLoop])
def test_what_functions_draw_follows_from_the_workers_seeds(
    make: Callable[[nn.Module], LocalTrainer],
) -> None:
    model, chosen = Noisy(FEATURES, CLASSES), batches(vectors(), 3, 2, 5)
    chosen, state = replace(chosen, seeds=lambda: torch.arange(3)), torch.get_rng_state()
    trainer, weights = make(model), flatten(model)
    found = [trainer.updates(weights, chosen, learning_rate=0.3) for _ in range(2)]
    assert torch.equal(*found)
    assert torch.equal(torch.get_rng_state(), state)
    last = replace(chosen, indices=chosen.indices[2:], seeds=lambda: torch.tensor([2]))
    alone = trainer.updates(weights, last, learning_rate=0.3)
    assert torch.equal(alone[0], found[0][2])
    other = replace(chosen, seeds=lambda: torch.arange(1, 4))
    assert not torch.equal(trainer.updates(weights, other, learning_rate=0.3), found[0])
