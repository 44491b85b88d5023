"""The paper's tasks, the user's own files, tasks of one's own, and models that do not fit."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diffsketch.errors import ArgumentError, DataError, DiffSketchError
from diffsketch.training.data import TASKS, load_mnist
from diffsketch.training.defaults import TASK_DEFAULTS, TASK_TITLES
from diffsketch.training.models import CharLSTM, LogisticRegression, flatten
from diffsketch.training.tasks import Devices, Examples, Task, check_task, load_task
from tests.helpers.refusals import refused
from tests.training.reference import write_images
from tests.training.test_shakespeare import leaf_record, write_json

TEXT = "Shall I compare thee to a summer's day? Thou art more lovely and more temperate: "


@pytest.mark.parametrize(
    ("name", "workers", "samples"), [("mnist", 10, 200), ("mnist-devices", 6000, 10)]
)
def test_mnist_has_the_papers_sizes(name: str, workers: int, samples: int) -> None:
    task = load_task(name)
    assert task.name == name
    assert len(task.devices) == workers
    assert task.devices.sizes.tolist() == [samples] * workers
    assert len(set(task.devices.names)) == workers
    assert len(task.test) == 10_000
    for part in (task.devices.examples, task.test):
        assert part.inputs.dtype == torch.float32
        assert part.inputs.shape[1:] == (784,)
        assert (float(part.inputs.min()), float(part.inputs.max())) == (0.0, 1.0)


@pytest.mark.slow
def test_images_belong_to_one_worker_and_keep_their_labels() -> None:
    task, train = load_task("mnist-devices"), load_mnist(split="train")
    # All 60,000 images are dealt out: as a multiset, with labels, they are the training set.
    weights = torch.rand(784, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    marks = train.inputs.flatten(1).double() @ weights + 1e6 * train.labels
    examples = task.devices.examples
    pixels = (examples.inputs * 255).round().double()
    dealt = pixels @ weights + 1e6 * examples.labels
    torch.testing.assert_close(dealt.sort()[0], marks.sort()[0], rtol=0, atol=1e-6)
    assert not torch.equal(dealt, marks)


def test_workers_have_the_same_distribution() -> None:
    labels = load_task("mnist", workers=10, samples=2000).devices.examples.labels.view(10, 2000)
    share = torch.stack([row.bincount(minlength=10) for row in labels]) / 2000
    overall = load_mnist(split="train").labels.bincount(minlength=10) / 60_000
    # Each share has a standard deviation below sqrt(.25 * .9 / 2000) = 0.0106, less without
    # replacement; all 100 within 5 of them but for a probability below 1e-4 by the normal law.
    assert float((share - overall).abs().max()) < 0.053
    # Images in the order of their labels would be found.
    ordered = labels.flatten().sort()[0].view(10, 2000)
    wrong = torch.stack([row.bincount(minlength=10) for row in ordered]) / 2000
    assert float((wrong - overall).abs().max()) > 0.5


def test_seeds_of_a_task() -> None:
    before = torch.get_rng_state()
    first, same, other = (load_task("mnist", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.devices.examples.inputs, same.devices.examples.inputs)
    assert not torch.equal(first.devices.examples.labels, other.devices.examples.labels)
    assert torch.equal(torch.get_rng_state(), before)


def test_shakespeare_has_the_papers_roles() -> None:
    task = load_task("shakespeare")
    assert len(task.devices) == 46
    # 46 roles of 743.6 samples on average, four fifths of each rounded down.
    assert task.devices.sizes.double().mean() == pytest.approx(0.8 * 743.6, abs=1)
    assert task.devices.examples.inputs.shape[1:] == (80,)
    assert len(task.test) == 3694
    assert type(task.model(0)) is CharLSTM
    assert len(load_task("shakespeare", workers=3).devices) == 3


@pytest.mark.parametrize(
    ("name", "model", "expected"),
    [
        ("mnist", None, LogisticRegression),
        ("shakespeare", "lstm", CharLSTM),
    ],
)
def test_models(name: str, model: str | None, expected: type[nn.Module]) -> None:
    task = load_task(name, model=model, workers=2)
    made = task.model(5)
    assert type(made) is expected
    assert torch.equal(flatten(made), flatten(task.model(5)))
    assert made(task.test.inputs[:3]).shape == (3, 10 if name == "mnist" else 90)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "mnits"}, "name must be that of a task, .*did you mean mnist?"),
        ({"name": "mnist", "model": "lstm"}, "model must be logistic for mnist"),
        ({"name": "mnist", "workers": 0}, "workers must be "),
        ({"name": "mnist", "workers": True}, "workers must be "),
        ({"name": "mnist", "samples": -5}, "samples must be "),
        ({"name": "mnist", "workers": 60_001, "samples": 1}, "must be <= 60000, .*workers=60001"),
        ({"name": "mnist-devices", "samples": 11}, "workers=6000, samples=11"),
        ({"name": "shakespeare", "samples": 10}, "samples must not be given"),
        ({"name": "shakespeare", "workers": 0}, "workers must be "),
        ({"name": "shakespeare", "workers": 5000}, "workers must be <= 138"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    refused(ArgumentError, message, load_task, **arguments)


def test_images_of_the_users(tmp_path: Path) -> None:
    write_images(tmp_path)
    task = load_task("mnist", workers=3, samples=4, data_dir=str(tmp_path))
    assert flatten(task.model(0)).shape == (3 * 16 + 3,)
    assert sorted(task.devices.examples.labels.tolist()) == [0] * 4 + [1] * 4 + [2] * 4
    with pytest.raises(ArgumentError, match=r"must be <= 12, .*workers=10, samples=200"):
        load_task("mnist", data_dir=tmp_path)
    write_images(tmp_path, test_size=5)
    with pytest.raises(DataError, match=r"the size of the training images, \(4, 4\)"):
        load_task("mnist", workers=3, samples=4, data_dir=tmp_path)


def write_leaf(path: Path, sizes: dict[str, int]) -> None:
    texts = {name: (TEXT * (size // len(TEXT) + 2))[: size + 80] for name, size in sizes.items()}
    data = {name: leaf_record(text) for name, text in texts.items()}
    content = {"users": list(sizes), "num_samples": list(sizes.values()), "user_data": data}
    write_json(path, content)


def test_roles_of_the_users(tmp_path: Path) -> None:
    write_leaf(tmp_path / "all.json", {"SHORT": 63, "A": 500, "LONG": 2201, "B": 64, "C": 600})
    task = load_task("shakespeare", data_dir=tmp_path)
    assert task.devices.names == ("A", "B", "C")
    assert task.devices.sizes.tolist() == [400, 51, 480]
    assert len(task.test) == 20 + 40
    assert load_task("shakespeare", workers=1, data_dir=tmp_path).devices.names == ("A",)
    with pytest.raises(DataError, match="expected 4 roles with 64 to 2200 samples, found 3"):
        load_task("shakespeare", workers=4, data_dir=tmp_path)
    write_leaf(tmp_path / "all.json", {"B": 64})
    refused(DataError, "no test samples", load_task, "shakespeare", data_dir=tmp_path)


def test_a_division_of_the_users_is_kept(tmp_path: Path) -> None:
    write_leaf(tmp_path / "train" / "a.json", {"A": 90, "B": 70, "SHORT": 20})
    write_leaf(tmp_path / "test" / "a.json", {"B": 15, "A": 10, "OTHER": 100})
    task = load_task("shakespeare", data_dir=tmp_path)
    assert task.devices.names == ("A", "B")
    assert task.devices.sizes.tolist() == [90, 70]
    assert len(task.test) == 25
    write_leaf(tmp_path / "all_data" / "a.json", {"A": 100, "C": 100})
    assert load_task("shakespeare", data_dir=tmp_path).devices.names == ("A", "B")
    # With half of the division gone, dividing the whole anew would mix the halves.
    (tmp_path / "test" / "a.json").unlink()
    with pytest.raises(DataError, match=r"no \*\.json in .*test: expected LEAF"):
        load_task("shakespeare", data_dir=tmp_path)


def test_tasks_by_name() -> None:
    assert list(TASKS) == list(TASK_DEFAULTS) == list(TASK_TITLES)


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
        (task_with(Pair()), ArgumentError, "model must give a tensor of scores.* got a tuple"),
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
    refused(kind, said, check_task, task, task.model(0))


def test_what_fits_is_not_changed() -> None:
    model, state = Drawing(), torch.get_rng_state()
    task = task_with(model, label=2)
    check_task(task, model)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training


EXAMPLE = Path(__file__).parents[2] / "examples" / "own_model.py"


@pytest.mark.slow
def test_own_model_and_data(capsys: pytest.CaptureFixture[str]) -> None:
    """With a fixed seed: guessing has 50%, and one without an update about that."""
    runpy.run_path(str(EXAMPLE), run_name="example")["main"]()
    printed = capsys.readouterr().out
    (accuracy,) = re.findall(r"accuracy ([\d.]+)%", printed)
    assert float(accuracy) > 95
    (epsilon,) = re.findall(
        r"epsilon = ([\d.]+) .*\(proven, simulated; client unit, replace, dist", printed
    )
    assert 1 < float(epsilon) <= 8
