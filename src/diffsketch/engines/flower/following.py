"""From a model and what rounds have published to the model after them.

Whoever has the key can do that: a client that catches up, or the owner of a run whose server has no
key.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from flwr.app import ArrayRecord

from diffsketch.engines.flower.vectors import moved
from diffsketch.methods import Method
from diffsketch.sketch import SketchKey
from diffsketch.wire import Message

__all__ = ["followed", "mean_of"]


def mean_of(total: bytes, round_index: int, *, method: Method, key: SketchKey) -> torch.Tensor:
    """The mean that a round has published.

    Raises:
        WireError: The bytes are not the total of this round, with this key.
    """
    seed = key.seed(round_index)
    message = Message.from_bytes(
        total, method.total_format, round_index=round_index, fingerprint=seed.fingerprint
    )
    return method.decode(message.cells, seed, count=message.count)


def followed(
    model: ArrayRecord,
    totals: Sequence[bytes],
    rounds: Sequence[int],
    *,
    method: Method,
    key: SketchKey,
    keep_local: Collection[str] = (),
) -> ArrayRecord:
    """The model after these rounds: each mean is added to it, one after another.

    `keep_local` is that of the run: arrays with these names stay as they are in the model.

    Guarantees (`tests/engines/test_flower.py`): the bits that a server with the key has.

    Raises:
        WireError: A total is not that of its round.
    """
    for total, round_index in zip(totals, rounds, strict=True):
        model = moved(model, mean_of(total, round_index, method=method, key=key), keep_local)
    return model
