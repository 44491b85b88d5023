"""A model that does not fit its data is said, before it is trained."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from diffsketch.errors import ArgumentError, DataError, DiffSketchError
from diffsketch.training.tasks import Devices, Examples, Task, check_task


class Pair(nn.Module):
    """Gives its scores with something else."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner(inputs), inputs


class Flat(Pair):
    def forward(self, inputs: Tensor) -> Tensor:  # type: ignore[override]
        return self.inner(inputs).sum(1)  # type: ignore[no-any-return]


class Drawing(Pair):
    def forward(self, inputs: Tensor) -> Tensor:  # type: ignore[override]
        return self.inner(inputs + torch.randn(4))  # type: ignore[no-any-return]


def task_with(
    model: nn.Module, *, label: int = 0, test_label: int = 0, test_width: int = 4
) -> Task:
    own = Examples(torch.zeros(2, 4), torch.tensor([0, label]))
    test = Examples(torch.zeros(2, test_width), torch.tensor([0, test_label]))
    return Task("test", Devices.of({"alice": own, "bob": own}), test, lambda _: model)


@pytest.mark.parametrize(
    ("task", "kind", "said"),
    [
        (task_with(Pair()), ArgumentError, "model must give a tensor of scores .* got a tuple"),
        (task_with(Flat()), ArgumentError, r"model must give scores \(batch, classes\)"),
        (task_with(nn.Linear(5, 3)), ArgumentError, r"model must take inputs of the shape \(4,\)"),
        (task_with(nn.Embedding(5, 3)), ArgumentError, "model must take inputs"),
        (task_with(nn.Linear(4, 3), label=3), DataError, r"labels of the devices .* got 3"),
        (task_with(nn.Linear(4, 3), label=-1), DataError, r"labels of the devices .* got -1"),
        (task_with(nn.Linear(4, 3), test_label=7), DataError, "labels of the test set .* got 7"),
        (task_with(nn.Linear(4, 3), test_width=5), DataError, "test inputs must have the shape"),
    ],
)
def test_what_does_not_fit_is_said(task: Task, kind: type[DiffSketchError], said: str) -> None:
    with pytest.raises(kind, match=said):
        check_task(task, task.model(0))


def test_what_fits_is_not_changed() -> None:
    model, state = Drawing(), torch.get_rng_state()
    task = task_with(model, label=2)
    check_task(task, model)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
