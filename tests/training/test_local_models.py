"""Which trainer a model gets, and which models none can train."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from diffsketch.errors import ArgumentError
from diffsketch.training.local import (
    BatchedGRU,
    ClosedForm,
    Functional,
    LocalTrainer,
    WorkerLoop,
    trainer_for,
)
from diffsketch.training.models import CharGRU, CharLSTM, LogisticRegression, SmallCNN, flatten
from tests.training.local_cases import (
    CLASSES,
    FEATURES,
    batches,
    close,
    logistic,
    plain,
    vectors,
)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (LogisticRegression(), ClosedForm),
        (SmallCNN(), Functional),
        (CharLSTM(), WorkerLoop),
        (CharGRU(), BatchedGRU),
        (nn.Sequential(nn.GRUCell(3, 4, device="meta")), WorkerLoop),
    ],
)
def test_choice(model: nn.Module, expected: type[LocalTrainer]) -> None:
    chosen = trainer_for(model)
    assert type(chosen) is expected
    assert getattr(chosen, "_threads", True)


def test_subclasses_are_not_trained_in_closed_form() -> None:
    class Scaled(LogisticRegression):
        def forward(self, inputs: Tensor) -> Tensor:
            return 2 * super().forward(inputs)

    assert type(trainer_for(Scaled())) is Functional
    with pytest.raises(ArgumentError, match="model must be a LogisticRegression"):
        trainer_for(Scaled(), kind="closed")
    with pytest.raises(ArgumentError, match="kind must be one of"):
        trainer_for(Scaled(), kind="fast")  # type: ignore[arg-type]


def refused_models() -> dict[str, Callable[[], nn.Module]]:
    return {
        "running statistics": lambda: nn.Sequential(LogisticRegression(), nn.BatchNorm1d(3)),
        "random numbers": lambda: nn.Sequential(LogisticRegression(), nn.Dropout(0.1)),
        "dropout of an LSTM": lambda: nn.LSTM(3, 3, num_layers=2, dropout=0.5, device="meta"),
        "have parameters": nn.ReLU,
    }


@pytest.mark.parametrize("kind", ["batched", "loop", "threads"])
@pytest.mark.parametrize("name", refused_models())
def test_models_that_need_more_than_weights_are_refused(name: str, kind: str) -> None:
    message = "random numbers" if name.startswith("dropout") else name
    with pytest.raises(ArgumentError, match=message):
        trainer_for(refused_models()[name](), kind=kind)  # type: ignore[arg-type]


def test_harmless_layers_are_accepted() -> None:
    layers = (nn.BatchNorm1d(FEATURES, track_running_stats=False), nn.Dropout(0.0), logistic())
    model = nn.Sequential(*layers)
    for kind in ("loop", "batched"):
        chosen, examples = batches(3, 2, 5), vectors()
        trainer = trainer_for(model, kind=kind)
        found = trainer.updates(flatten(model), examples, chosen, learning_rate=0.3)
        close(found, plain(model, examples, chosen, 0.3))


class Counting(LogisticRegression):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__(FEATURES, CLASSES)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen += len(inputs)
        return super().forward(inputs)


class Noisy(LogisticRegression):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs + torch.rand_like(inputs))


class Branching(LogisticRegression):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs if bool(inputs.sum() > 0) else -inputs)


@pytest.mark.parametrize("kind", ["threads", "loop"])
@pytest.mark.parametrize(
    ("model", "message"),
    [(Counting(), "change its buffers while training: seen"), (Noisy(FEATURES, CLASSES), "draw")],
)
def test_hidden_state_is_noticed(model: nn.Module, message: str, kind: str) -> None:
    before = torch.get_rng_state()
    trainer = trainer_for(model, kind=kind)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=message):
        trainer.gradients(flatten(model), vectors(), batches(3, 1, 5))
    torch.set_rng_state(before)


@pytest.mark.parametrize(
    "model", [Counting(), Noisy(FEATURES, CLASSES), Branching(FEATURES, CLASSES)]
)
def test_what_cannot_be_batched_is_named(model: nn.Module) -> None:
    with pytest.raises(ArgumentError, match="cannot be trained for all workers at once"):
        Functional(model).gradients(flatten(model), vectors(), batches(3, 1, 5))


def test_branching_models_can_be_looped() -> None:
    model, examples, chosen = Branching(FEATURES, CLASSES), vectors(), batches(3, 2, 5)
    found = WorkerLoop(model).updates(flatten(model), examples, chosen, learning_rate=0.3)
    close(found, plain(model, examples, chosen, 0.3))
