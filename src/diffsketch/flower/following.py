"""From a model and what rounds have published to the model after them.

Whoever has the key can do that: a client that catches up, or the owner of a run whose server has no
key.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from flwr.app import ArrayRecord

from diffsketch.flower.vectors import moved
from diffsketch.methods import Method
from diffsketch.sketch import SketchKey
from diffsketch.wire import Message

__all__ = ["follow", "followed", "mean_of"]


def mean_of(
    total: bytes, round_index: int, *, method: Method, key: SketchKey
) -> tuple[torch.Tensor, Method]:
    """The mean that a round has published, and the method of the next round.

    Raises:
        WireError: The bytes are not the total of this round, with this key.
    """
    seed = key.seed(round_index)
    message = Message.from_bytes(
        total, method.total_format, round_index=round_index, fingerprint=seed.fingerprint
    )
    mean = method.decode(message.cells, seed, count=message.count)
    return mean, method.after(message.cells, count=message.count)


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

    `method` is that of the first of them, and `keep_local` that of the run: arrays with these names
    stay as they are in the model.

    Guarantees (`tests/flower/test_flower.py`): the bits that a server with the key has.

    Raises:
        WireError: A total is not that of its round.
    """
    return follow(model, totals, rounds, method=method, key=key, keep_local=keep_local)[0]


def follow(
    model: ArrayRecord,
    totals: Sequence[bytes],
    rounds: Sequence[int],
    *,
    method: Method,
    key: SketchKey,
    keep_local: Collection[str],
    skip: int = 0,
) -> tuple[ArrayRecord, Method]:
    """The model after these rounds, and the method of the round that comes then.

    Args:
        model: Before them.
        totals: What they have published.
        rounds: Which they are.
        method: Of the first one.
        key: Of the hashes.
        keep_local: As above.
        skip: How many of the totals are in the model already.

    Raises:
        WireError: A total is not that of its round.
    """
    for place, (total, round_index) in enumerate(zip(totals, rounds, strict=True)):
        if place < skip and method.round_clip is None:
            continue
        mean, method = mean_of(total, round_index, method=method, key=key)
        if place >= skip:
            model = moved(model, mean, keep_local)
    return model, method
