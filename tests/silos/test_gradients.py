"""Gradients of single records: the same bits in any company, and refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from benchmarks.timing import extra_memory
from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.silos import RecordGradients, gradients, opacus_gradients
from diffsketch.training.models import LogisticRegression
from tests.helpers.refusals import refused

COUNT = 150


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 5))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 5)),
        nn.Conv2d(1, 4, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Conv2d(4, 6, 2, dilation=(1, 2), bias=False),
        nn.Flatten(),
        nn.Linear(6, 5),
    )


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 16), nn.GroupNorm(4, 16), nn.ReLU(True), nn.Linear(16, 5))


def frozen() -> nn.Module:
    model = mlp()
    model[0].weight.requires_grad_(False)  # type: ignore[index]
    return model


class Tokens(nn.Module):
    """A linear layer over a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.every, self.last = nn.Linear(4, 3), nn.Linear(15, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.every(inputs.reshape(-1, 5, 4)))
        scores: Tensor = self.last(hidden.flatten(1))
        return scores


def logistic() -> nn.Module:
    return LogisticRegression(20, 5)


MODELS = [mlp, cnn, frozen, Tokens, logistic, normed]


def examples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(COUNT, 20, generator=generator)
    return inputs, torch.randint(0, 5, (COUNT,), generator=generator)


def all_rows(computed: RecordGradients, inputs: Tensor, labels: Tensor) -> Tensor:
    return torch.cat([piece.clone() for piece in computed.pieces(inputs, labels)])


@pytest.mark.parametrize("make", MODELS)
def test_rows_are_the_gradients_of_single_records(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, (inputs, labels) = make(), examples()
    before = [p.detach().clone() for p in model.parameters()]
    computed = RecordGradients(model, piece=16)
    rows = all_rows(computed, inputs, labels)
    trained = [p for p in model.parameters() if p.requires_grad]
    for record in (0, 15, 16, 77, COUNT - 1):
        loss = cross_entropy(model(inputs[record : record + 1]), labels[record : record + 1])
        wanted = torch.cat([g.flatten() for g in torch.autograd.grad(loss, trained)])
        assert torch.allclose(rows[record], wanted, rtol=1e-4, atol=1e-6)
    assert all(p.grad is None for p in model.parameters())
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("make", MODELS)
def test_a_record_has_the_same_bits_in_any_company(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    computed, (inputs, labels) = RecordGradients(make(), piece=16), examples()
    rows = all_rows(computed, inputs, labels)
    without = torch.arange(COUNT) != 3
    assert torch.equal(all_rows(computed, inputs[without], labels[without]), rows[without])
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(1))[:40]
    assert torch.equal(all_rows(computed, inputs[order], labels[order]), rows[order])


def test_where_company_changes_bits_records_are_taken_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compute = RecordGradients._compute

    def mixed(self: RecordGradients, inputs: Tensor, labels: Tensor, *, out: Tensor) -> None:
        compute(self, inputs, labels, out=out)
        out += 1e-7 * inputs.sum()

    monkeypatch.setattr(RecordGradients, "_compute", mixed)
    computed, (inputs, labels) = RecordGradients(mlp(), piece=16), examples()
    rows = all_rows(computed, inputs, labels)
    assert computed.piece == 1
    assert torch.equal(all_rows(computed, inputs[9:10], labels[9:10]), rows[9:10])


class Remembers(nn.Linear):
    """Assigns a running mean of all inputs, and counts them in place."""

    def __init__(self, *, counts: bool) -> None:
        super().__init__(20, 5)
        self.running: Tensor
        self.count: Tensor
        self.register_buffer("running", torch.zeros(20))
        self.register_buffer("count", torch.zeros(()))
        self._counts = counts

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.running = 0.9 * self.running + 0.1 * inputs.detach().mean(0)
            if self._counts:
                self.count += 1
        return super().forward(inputs - self.running - self.count)


@pytest.mark.parametrize("piece", [1, 16])
def test_a_module_that_remembers_records_is_refused_again_and_again(piece: int) -> None:
    model, (inputs, labels) = Remembers(counts=True), examples()
    computed = RecordGradients(model, piece=piece)
    for _ in range(2):  # whoever goes on after an error gets no gradient either
        with pytest.raises(ArgumentError, match=r"must not change its buffers.*Remembers"):
            all_rows(computed, inputs, labels)
    assert not model.count.any()


def test_a_buffer_that_is_assigned_tells_nothing_of_other_records() -> None:
    model, (inputs, labels) = Remembers(counts=False), examples()
    computed = RecordGradients(model, piece=16)
    rows = all_rows(computed, inputs, labels)
    assert not model.running.any()
    inputs[0] *= 1e4
    assert torch.equal(all_rows(computed, inputs, labels)[1:], rows[1:])


class ByTheLargest(nn.Linear):
    """Divides by the largest value of the batch, if that is far from usual."""

    def __init__(self) -> None:
        super().__init__(20, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs / inputs.abs().amax().clamp(min=8.0))


class Mixup(ByTheLargest):
    def forward(self, inputs: Tensor) -> Tensor:
        hidden = nn.Linear.forward(self, inputs)
        return hidden + hidden.flip(0) if self.training else hidden


class Attribute(ByTheLargest):
    """Keeps a running mean where no buffer tells of it."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(20)

    def forward(self, inputs: Tensor) -> Tensor:
        out = nn.Linear.forward(self, inputs - self.mean)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * inputs.detach().mean(0)
        return out


@pytest.mark.parametrize("make", [ByTheLargest, Mixup])
def test_modules_that_mix_records_in_training_have_them_alone(make: type[nn.Module]) -> None:
    computed, (inputs, labels) = RecordGradients(make(), piece=16), examples()
    rows = all_rows(computed, inputs, labels)
    inputs[0] *= 1e4
    assert torch.equal(all_rows(computed, inputs, labels)[1:], rows[1:])


@pytest.mark.parametrize("piece", [1, 16])
def test_a_module_that_remembers_in_an_attribute_is_refused(piece: int) -> None:
    with pytest.raises(ArgumentError, match=r"remember nothing of the records.*Attribute"):
        all_rows(RecordGradients(Attribute(), piece=piece), *examples())


def test_other_losses() -> None:
    torch.manual_seed(0)
    model, (inputs, _) = mlp(), examples()
    labels = torch.randn(COUNT, 5)
    rows = all_rows(RecordGradients(model, loss=mse_loss), inputs, labels)
    loss = mse_loss(model(inputs[7:8]), labels[7:8])
    wanted = torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*model.parameters()])])
    assert torch.allclose(rows[7], wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", [nn.BatchNorm1d, nn.SyncBatchNorm])
def test_layers_that_mix_records_are_refused(make: type[nn.Module]) -> None:
    model = nn.Sequential(nn.Linear(20, 16), make(16), nn.Linear(16, 5))
    refused(ArgumentError, rf"{make.__name__} at '1'.*GroupNorm", RecordGradients, model)
    running = nn.Sequential(nn.Linear(20, 16), nn.InstanceNorm1d(16, track_running_stats=True))
    refused(ArgumentError, "track_running_stats=False", RecordGradients, running)


def test_bad_arguments() -> None:
    model = mlp().requires_grad_(False)
    refused(ArgumentError, "parameters to train", RecordGradients, model)
    with pytest.raises(MismatchError, match="labels must be 2"):
        next(RecordGradients(mlp()).pieces(torch.zeros(2, 20), torch.zeros(3).long()))


def test_memory_does_not_grow_with_the_records() -> None:
    """One buffer: each piece is written over the one before it."""
    computed, (inputs, labels) = RecordGradients(mlp(), piece=16), examples()
    places = {piece.data_ptr() for piece in computed.pieces(inputs, labels)}
    assert len(places) == 1
    more = inputs.repeat(60, 1), labels.repeat(60)
    # All rows at once would take 15 MB.
    every = lambda: [len(piece) for piece in computed.pieces(*more)]  # noqa: E731
    assert (extra_memory(every, device=inputs.device) or 0) < 4e6


def test_gradients_of_opacus_are_taken() -> None:
    model, (inputs, labels) = mlp(), examples()
    rows = all_rows(RecordGradients(model), inputs, labels)
    start = 0
    for parameter in model.parameters():
        part = rows[:, start : start + parameter.numel()].reshape(COUNT, *parameter.shape)
        parameter.grad_sample = part  # type: ignore[attr-defined] # as GradSampleModule leaves it
        start += parameter.numel()
    assert torch.equal(opacus_gradients(model), rows)
    refused(ArgumentError, "grad_sample", opacus_gradients, model)
    assert gradients._PIECE == 64


def test_a_record_that_fails_counts_as_zeros_and_changes_no_other() -> None:
    computed, (inputs, labels) = RecordGradients(mlp(), piece=16), examples()
    rows = all_rows(computed, inputs, labels)
    labels[20] = 99  # no such class
    failed = all_rows(computed, inputs, labels)
    assert torch.isnan(failed[20]).all()
    kept = torch.arange(COUNT) != 20
    assert torch.equal(failed[kept], rows[kept])
