"""A party's records: batches, persons, and the message that leaves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.methods import GaussianMean
from diffsketch.privacy import SecureNoise
from diffsketch.silos import RecordGradients, Records, check_persons
from diffsketch.silos.messages import encode_records
from diffsketch.sketch import SketchKey
from tests.helpers.refusals import refused
from tests.helpers.silent import Silent

SEED = SketchKey.from_integer(0).seed(0)
PERSONS = torch.tensor([4, 9, 4, 7, 9, 4, 2, 2, 4, 1])


def method_of(dim: int, unit: str = "person", **changes: Any) -> GaussianMean:
    settings: dict[str, Any] = {
        "clip": 0.1, "noise_multiplier": 1e-3, "relation": "add-or-remove", "trust": "local",
        "unit": unit, "rate": 0.5, "records": 3.0,
    }  # fmt: skip
    return GaussianMean(dim=dim, **(settings | changes))


def parts() -> tuple[RecordGradients, Tensor, Tensor]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    return RecordGradients(model, piece=4), torch.randn(10, 6), torch.randint(0, 3, (10,))


def test_persons_are_drawn_with_all_their_records() -> None:
    computed, inputs, labels = parts()
    records, method = Records(inputs, labels, PERSONS), method_of(computed.dim)
    assert records.members == 5
    sizes = []
    for _ in range(200):
        drawn = records.drawn(method, SecureNoise())
        people = PERSONS[drawn].tolist()
        assert sorted(people) == people
        for person in set(people):
            assert people.count(person) == int((person == PERSONS).sum())
        sizes.append(len(set(people)))
    # Binomial(5, 1/2) over 200 draws: the mean is within 0.5 of 2.5 but with p < 1e-9.
    assert abs(sum(sizes) / 200 - 2.5) < 0.5


@pytest.mark.parametrize("piece", [1, 3, 4, 64])
def test_a_person_has_one_vector(piece: int) -> None:
    computed, inputs, labels = parts()
    rows = torch.cat([p.clone() for p in computed.pieces(inputs, labels)])
    records = Records(inputs, labels, PERSONS)
    order = PERSONS.argsort(stable=True)
    computed = RecordGradients(computed.model, piece=piece)
    merged = torch.cat(list(records.vectors(computed, order)))
    wanted = torch.stack(
        [rows[person == PERSONS].mean(0) for person in sorted(set(PERSONS.tolist()))]
    )
    assert torch.allclose(merged, wanted, atol=1e-6)
    assert list(records.vectors(computed, order[:0])) == []


def test_a_person_moves_a_message_by_one_clip() -> None:
    """And without merging, a person with four records by more."""
    computed, inputs, labels = parts()
    method = method_of(computed.dim, rate=1.0)
    longest = method.mechanism.quantizer.longest

    def moved(persons: Tensor) -> float:
        records, kept = Records(inputs, labels, persons), PERSONS != 4
        rest = Records(inputs[kept], labels[kept], persons[kept])
        sums = [
            encode_records(
                method, part.vectors(computed, part.drawn(method, SecureNoise())), SEED, Silent()
            )
            for part in (records, rest)
        ]
        return float((sums[0] - sums[1]).double().norm()) / longest

    assert 0.9 < moved(PERSONS) <= 1
    assert moved(torch.arange(10)) > 1.2


def test_masks_of_dropout_are_new_in_each_message() -> None:
    """Though the app seeds PyTorch, whose generator goes on as if nothing had been drawn."""
    rows: list[Tensor] = []

    class Seen(RecordGradients):
        def pieces(self, inputs: Tensor, labels: Tensor) -> Iterator[Tensor]:
            for piece in super().pieces(inputs, labels):
                rows.append(piece.clone())
                yield piece

    _, inputs, labels = parts()
    computed = Seen(nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 3)))
    method = method_of(computed.dim, "example", rate=1.0)
    claim = method.claim_for(1, SEED)
    for _ in range(2):
        torch.manual_seed(0)
        before = torch.get_rng_state()
        Records(inputs, labels).message(computed, method, SEED, claim, charge=None)
        assert torch.equal(before, torch.get_rng_state())
    first, second = torch.cat(rows).chunk(2)
    assert not torch.equal(first, second)


def test_persons_and_units_go_together() -> None:
    computed, inputs, labels = parts()
    for persons, unit, text in (
        (None, "person", "persons must be given for unit='person'"),
        (PERSONS, "example", "got unit=example"),
    ):
        drawn, method = Records(inputs, labels, persons).drawn, method_of(computed.dim, unit)
        refused(ArgumentError, text, drawn, method, SecureNoise())


def test_persons_in_two_parties_are_refused_with_what_is_true() -> None:
    _, inputs, labels = parts()
    first = Records(inputs[:5], labels[:5], PERSONS[:5])
    second = Records(inputs[5:], labels[5:], PERSONS[5:])
    text = r"got 4 in 'north' and 'south'.*noise_multiplier times"
    refused(ArgumentError, text, check_persons, {"north": first, "south": second})
    check_persons({"north": first, "south": Records(inputs[6:8], labels[6:8], PERSONS[6:8])})


def test_bad_records() -> None:
    _, inputs, labels = parts()
    tensor = "must be a tensor.*got"
    refused(MismatchError, "labels must be 10", Records, inputs, labels[:9])
    refused(MismatchError, "persons must be 10", Records, inputs, labels, PERSONS[:9])
    refused(ArgumentError, "persons", Records, inputs, labels, PERSONS.double())
    refused(ArgumentError, rf"persons {tensor} persons='list'", Records, inputs, labels, [1, None])
    refused(ArgumentError, rf"inputs {tensor} inputs='ndarray'", Records, inputs.numpy(), labels)
    refused(ArgumentError, rf"labels {tensor} labels='NoneType'", Records, inputs, None)


@pytest.mark.parametrize("persons", [None, PERSONS])
def test_a_party_without_records_sends_noise(persons: Tensor | None) -> None:
    computed, inputs, labels = parts()
    unit = "example" if persons is None else "person"
    method = method_of(computed.dim, unit, noise_multiplier=1.0)
    records = Records(inputs[:0], labels[:0], None if persons is None else persons[:0])
    assert records.members == 0
    claim = method.claim_for(1, SEED)
    message = records.message(computed, method, SEED, claim, charge=None)
    # One cell is zero with probability 0.003, 43 cells never at once.
    assert message.count_nonzero() > 0


def test_a_message_is_charged_drawn_and_noised() -> None:
    computed, inputs, labels = parts()
    computed = RecordGradients(computed.model, piece=10)
    inputs[3] = math.nan  # counts as zeros
    method, charged = method_of(computed.dim, "example"), []
    claim = method.claim_for(1, SEED)
    message = Records(inputs, labels).message(
        computed, method, SEED, claim, charge=lambda: charged.append(1)
    )
    assert charged == [1]
    assert message.shape == (computed.dim,)
    means = []
    for _ in range(400):
        message = Records(inputs, labels).message(computed, method, SEED, claim, charge=None)
        means.append(method.decode(message, SEED, count=1))
    # On average, half of the clipped gradients over the 3 records that are expected.
    rows = torch.cat([p.clone() for p in computed.pieces(inputs, labels)])
    rows = rows[torch.arange(10) != 3]
    clipped = rows * (0.1 / rows.norm(dim=1, keepdim=True)).clamp(max=1)
    wanted = clipped.sum(0) * 0.5 / 3
    # Each mean's norm is at most 0.3, so their mean is within 0.02 but with p < 1e-6.
    assert float((torch.stack(means).mean(0) - wanted).norm()) < 0.02
    assert float(wanted.norm()) > 0.05
