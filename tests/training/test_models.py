"""The models: sizes, first weights from a seed, and flat weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.training.models import (
    CharLSTM,
    LogisticRegression,
    WeightLayout,
    flatten,
    load,
    unflatten,
)


def test_weights_follow_from_the_seed() -> None:
    before = torch.get_rng_state()
    first = flatten(CharLSTM(seed=3))
    assert torch.equal(torch.get_rng_state(), before)  # of the global generator
    torch.manual_seed(99)
    assert torch.equal(first, flatten(CharLSTM(seed=3)))
    assert not torch.equal(first, flatten(CharLSTM(seed=4)))
    assert bool(torch.isfinite(first).all())
    # No parameter was forgotten: none is constant.
    assert all(p.std() > 0 for p in CharLSTM(seed=3).parameters())
    torch.set_rng_state(before)


def test_the_character_model_is_torchs_layer_without_the_second_bias() -> None:
    ours = CharLSTM(seed=1)
    with torch.device("meta"):
        sizes = ours.embedding.shape[1], ours.hidden
        theirs = nn.LSTM(*sizes, num_layers=2, batch_first=True)
    theirs.to_empty(device="cpu")
    named = dict(ours.named_parameters())
    with torch.no_grad():
        for index in range(2):
            for torchs, own in (("weight_ih", "input"), ("weight_hh", "recurrent")):
                theirs.get_parameter(f"{torchs}_l{index}").copy_(named[f"{own}_{index}"])
            theirs.get_parameter(f"bias_ih_l{index}").copy_(named[f"bias_{index}"])
            theirs.get_parameter(f"bias_hh_l{index}").zero_()
    windows = torch.randint(80, (5, 80), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        outputs = theirs(nn.functional.embedding(windows, named["embedding"]))[0]
        expected = outputs[:, -1] @ named["output"].t() + named["output_bias"]
        found = ours(windows)
        torch.testing.assert_close(found, expected)
        assert torch.equal(ours(windows.to(torch.uint8)), found)


def test_images_may_be_flat_or_not() -> None:
    images = torch.rand(4, 28, 28, generator=torch.Generator().manual_seed(0))
    model = LogisticRegression()
    assert torch.equal(model(images), model(images.flatten(1)))


@pytest.mark.parametrize("model", [LogisticRegression, CharLSTM])
def test_flatten_and_load_round_trip(model: Callable[..., nn.Module]) -> None:
    made = model()
    weights = torch.randn(len(flatten(made)), generator=torch.Generator().manual_seed(5))
    load(made, weights)
    assert torch.equal(flatten(made), weights)
    flatten(made).zero_()  # a copy
    assert torch.equal(flatten(made), weights)
    named = unflatten(made, weights)
    assert list(named) == [name for name, _ in made.named_parameters()]
    for name, parameter in made.named_parameters():
        assert torch.equal(named[name], parameter)
        assert named[name].untyped_storage().data_ptr() == weights.untyped_storage().data_ptr()


def test_layout_of_workers() -> None:
    layout = WeightLayout.of(LogisticRegression(3, 2))
    rows = torch.arange(16.0).view(2, 8)
    weight, bias = layout.split(rows)
    assert weight.shape == (2, 2, 3)
    assert bias.tolist() == [[6.0, 7.0], [14.0, 15.0]]


def test_shared_parameters_count_once() -> None:
    first = nn.Linear(4, 4, bias=False, device="meta")
    model = nn.Sequential(first, nn.ReLU(), first)
    assert WeightLayout.of(model).dim == 16


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: load(LogisticRegression(), torch.zeros(7851)), r"shape \(7850,\), got \(7851,\)"),
        (lambda: unflatten(LogisticRegression(), torch.zeros(2, 7850)), r"got \(2, 7850\)"),
        (lambda: unflatten(LogisticRegression(), torch.zeros(7850).double()), "must be float32"),
        (lambda: flatten(nn.ReLU()), "model must have parameters"),
        (lambda: flatten(LogisticRegression().double()), "weight must be float32"),
        (lambda: CharLSTM(seed=True), "seed must be an int"),
        (lambda: CharLSTM(seed=1.5), "seed must be an int"),  # type: ignore[arg-type]
        (lambda: LogisticRegression(0, 10), "features must be >="),
        (lambda: LogisticRegression(784, 1), "classes must be >="),
    ],
)
def test_refusals(call: Callable[[], object], message: str) -> None:
    with pytest.raises((ArgumentError, MismatchError), match=message):
        call()
