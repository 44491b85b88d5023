"""Cases about one record in a silo: a canary among its records, and errors around it.

A silo draws its records, bounds each and adds its share of the noise (`diffsketch.silos`), as in
any engine. Worst case for the claim: all silos but one are lost, the adversary sees that one's
message, and knows every record but the canary. A world without the canary has zeros in its place.

*Planted errors*: a record that is not clipped; the size of the batch published; shares of noise for
all silos though most are lost; sampling that is claimed and not done; a person's second and third
records counted on their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from diffsketch.auditing.attacks import Attack
from diffsketch.auditing.audits import Case, Game, Neighbours
from diffsketch.methods import GaussianMean
from diffsketch.methods.client_noise import ClientNoise
from diffsketch.privacy.claim import Unit
from diffsketch.privacy.noise import SecureNoise
from diffsketch.silos import Records
from diffsketch.silos.messages import encode_records
from diffsketch.sketch import SketchKey

_SEED = SketchKey.from_integer(0).seed(0)
_SILOS, _LOST, _OWNED, _DELTA = 4, 3, 3, 0.01
_CANARY = torch.tensor([3.0, 0.0])  # beyond the clip, which is 1

_ERRORS: Mapping[str, str] = {
    "no-record-clip": "a record's gradient is not clipped",
    "batch-size": "the size of the batch is published",
    "all-shares": "shares of the noise are for all silos, of which most are lost",
    "no-batch": "all records are used, not a secret sample of them",
    "not-merged": "a person's records are clipped one by one",
}
RECORD_CASES = ("records", *(f"records+{error}" for error in _ERRORS))


@dataclass(frozen=True)
class _Vectors:
    """In the place of gradients: records that are vectors already."""

    def pieces(self, inputs: Tensor, labels: Tensor) -> Iterator[Tensor]:
        del labels
        yield inputs


def record_case(name: str) -> Case:
    """Make the case of this name, one of `RECORD_CASES`."""
    error = name.partition("+")[2]
    method = GaussianMean(
        dim=2, clip=1.0, noise_multiplier=1.0, relation="add-or-remove", trust="distributed",
        cohort=_SILOS, lost=_LOST, unit=Unit.PERSON, rate=0.25, records=1.0,
    )  # fmt: skip
    # Three records of one person, beside two of others that are the same in both worlds.
    canaries = torch.cat([_CANARY.repeat(_OWNED, 1), torch.zeros(2, 2)])
    game = Game(partial(_play, _sent(method, error), error), Neighbours(canaries, 0 * canaries))
    column = -1 if error == "batch-size" else 0
    attack = Attack("a single number", lambda *_: lambda seen: seen[:, column])
    return Case(
        name, "gaussian, 1 of 4 silos left, a person drawn with probability 0.25",
        method.claim_for(_SILOS, _SEED), game, (attack,), deltas=(_DELTA,), trials=4000,
        planted=_ERRORS.get(error), width=64,
    )  # fmt: skip


def _sent(method: ClientNoise, error: str) -> ClientNoise:
    """The method that is played, which may have an error."""
    if error == "all-shares":
        return replace(method, lost=0)
    if error == "no-record-clip":  # with the noise for a clip of 1
        return replace(method, clip=3.0, noise_multiplier=method.noise_multiplier / 3)
    return method


def _play(method: ClientNoise, error: str, inputs: Tensor, *_: Any) -> Tensor:
    """Show the message of a silo in each trial, in clips, and the size of the batch if told."""
    seen, vectors = [], _Vectors()
    for trial in inputs:
        # The person whose records are zeros is not there.
        kept = torch.cat([trial[:_OWNED].any(dim=1), torch.ones(2, dtype=torch.bool)])
        persons = torch.tensor([0] * _OWNED + [1, 2])
        if error == "not-merged":
            persons = torch.arange(_OWNED + 2)
        records = Records(trial[kept], torch.zeros(int(kept.sum())), persons[kept])
        source = SecureNoise()
        drawn = records.drawn(method, source)
        if error == "no-batch":
            drawn = torch.arange(len(records.inputs))
        pieces = records.vectors(vectors, drawn)  # type: ignore[arg-type]
        message = encode_records(method, pieces, _SEED, source)
        cells = method.mechanism.centred(message) * method.mechanism.step
        size = float(len(drawn)) if error == "batch-size" else 0.0
        seen.append(torch.cat([cells.double(), torch.tensor([size], dtype=torch.float64)]))
    return torch.stack(seen)
