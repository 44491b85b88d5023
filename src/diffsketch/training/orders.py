"""Batches: which examples a device takes in a round, in which order."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_whole
from diffsketch.sketch.hashing import mix64
from diffsketch.training.tasks import Batches, Devices

_Whole: TypeAlias = npt.NDArray[np.int64]
_Words: TypeAlias = npt.NDArray[np.uint64]

_PLACE_BITS = 24  # of a sorting key: below the random bits, so that no two keys are equal
_PLACES = np.uint64((1 << _PLACE_BITS) - 1)
# Odd, and near the golden ratio and the square root of 2 as shares of 2**64: their multiples stay
# far apart, so that the counters of two devices or epochs do not meet.
_DEVICE_STRIDE = np.uint64(0x9E3779B97F4A7C15)
_EPOCH_STRIDE = np.uint64(0x6A09E667F3BCC909)


def round_words(seed: int, round_index: int, purpose: bytes) -> tuple[np.uint64, np.uint64]:
    """Two random words for one purpose of one round, as keys of `mix64`.

    Args:
        seed: The run's, in [0, 2**256).
        round_index: The round, or whatever else is counted.
        purpose: Up to 16 bytes: different purposes have nothing in common.
    """
    text = round_index.to_bytes(8, "little")
    digest = hashlib.blake2b(text, key=_secret(seed), digest_size=16, person=purpose).digest()
    first, second = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
    return np.uint64(first), np.uint64(second)


@lru_cache(maxsize=64)  # a pure function of the seed
def _secret(seed: int) -> bytes:
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ArgumentError(f"seed must be an int, got {type(seed).__name__}")
    check(0 <= seed < 1 << 256, "seed", "be in [0, 2**256)", seed)
    return seed.to_bytes(32, "little")


def device_batches(
    devices: Devices,
    cohort: Tensor,
    *,
    seed: int,
    round_index: int,
    batch_size: int,
    epochs: int,
) -> Batches:
    """All examples of each device of a cohort, `epochs` times, each time in a fresh order.

    The last batch of an epoch may be short. Devices with fewer examples than others have empty
    places at the end of each epoch. A device whose examples fit into one batch takes them as they
    lie: an order within a batch means nothing.

    Guarantees (`tests/training/test_orders.py`): each epoch has each of the device's examples
    once; orders are uniform, and depend on the seed, the round, the epoch and the device alone.

    >>> from diffsketch.training.tasks import Examples
    >>> one = Examples(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64))
    >>> devices = Devices.of({"alice": one, "bob": one})
    >>> batches = device_batches(
    ...     devices, torch.tensor([1]), seed=0, round_index=0, batch_size=2, epochs=1
    ... )
    >>> batches.indices.shape, sorted(batches.indices[batches.present].tolist())
    (torch.Size([1, 2, 2]), [3, 4, 5])
    """
    _check_sizes(batch_size, epochs=epochs)
    _secret(seed)  # checks it, if it is used or not
    members = _members(cohort)
    starts, sizes = _spans(devices, members)
    most = int(sizes.max())
    even = int(sizes.min()) == most
    batch_size = min(batch_size, most)  # more places would stay empty
    steps = -(-most // batch_size)
    if steps == 1:
        orders = np.arange(most)[None, None].repeat(epochs, axis=1)  # the same of all
    else:
        words = round_words(seed, round_index, b"ds-order-fedavg")
        orders = _epochs(members, sizes, epochs=epochs, even=even, words=words)
        orders[(sizes <= batch_size).repeat(epochs)] = np.arange(most)
        orders = orders.reshape(len(members), epochs, most)
    shape = (len(members), epochs * steps, batch_size)
    room = steps * batch_size
    if even and room == most:
        return _on_device(devices, (orders + starts[:, None, None]).reshape(shape), None)
    place = np.arange(room)
    present = np.repeat((place < sizes[:, None])[:, None, :], epochs, axis=1)
    filled = np.zeros((len(members), epochs, room), dtype=np.int64)
    filled[:, :, :most] = orders + starts[:, None, None]
    filled *= present  # empty places hold index 0
    return _on_device(devices, filled.reshape(shape), present.reshape(shape))


def _epochs(
    members: _Whole,
    sizes: _Whole,
    *,
    epochs: int,
    even: bool,
    words: tuple[np.uint64, np.uint64],
) -> _Whole:
    """An order of each member's examples for each epoch, `(members * epochs, largest size)`."""
    counters = members.view(np.uint64) * _DEVICE_STRIDE
    if epochs > 1:
        epoch = np.arange(epochs, dtype=np.uint64) * _EPOCH_STRIDE
        counters = (counters[:, None] + epoch).reshape(-1)
    each = np.repeat(sizes, epochs) if epochs > 1 and not even else sizes
    return _orders(counters, None if even else each, int(sizes.max()), words)


def one_batch(
    devices: Devices, cohort: Tensor, *, seed: int, round_index: int, batch_size: int
) -> Batches:
    """The next batch of each device: it goes through its examples, pass by pass.

    A device with `n` examples has `ceil(n / batch_size)` rounds a pass; each example comes once a
    pass, and the last batch of a pass may be short. Each pass has a fresh order.
    """
    _check_sizes(batch_size)
    members = _members(cohort)
    starts, sizes = _spans(devices, members)
    most = int(sizes.max())
    batch_size = min(batch_size, most)  # more places would stay empty
    passes, step = np.divmod(round_index, -(-sizes // batch_size))
    words = round_words(seed, 0, b"ds-order-sgd")  # devices are in different passes of theirs
    counters = members.view(np.uint64) * _DEVICE_STRIDE + passes.view(np.uint64) * _EPOCH_STRIDE
    orders = _orders(counters, None if int(sizes.min()) == most else sizes, most, words)
    place = step[:, None] * batch_size + np.arange(batch_size)
    present = place < sizes[:, None]
    if present.all():
        indices = np.take_along_axis(orders, place, axis=1) + starts[:, None]
        return _on_device(devices, indices[:, None, :], None)
    indices = np.take_along_axis(orders, np.minimum(place, most - 1), axis=1) + starts[:, None]
    indices *= present
    return _on_device(devices, indices[:, None, :], present[:, None, :])


def _check_sizes(batch_size: int, *, epochs: int = 1) -> None:
    check_whole("batch_size", batch_size, least=1)
    check_whole("epochs", epochs, least=1)


def _members(cohort: Tensor) -> _Whole:
    check(cohort.dtype == torch.int64, "cohort", "be int64", cohort.dtype)
    check(cohort.dim() == 1 and cohort.shape[0] > 0, "cohort", "be (workers,)", tuple(cohort.shape))
    members: _Whole = cohort.numpy()
    return members


def _spans(devices: Devices, members: _Whole) -> tuple[_Whole, _Whole]:
    """Where the examples of the members begin, and how many there are."""
    all_starts = devices.starts.numpy()
    largest = int(members.view(np.uint64).max())  # as which a negative one is very large
    if largest >= len(devices):
        raise ArgumentError(f"cohort must have indices in [0, {len(devices)}), got {members}")
    starts = all_starts[members]
    sizes = all_starts[members + 1] - starts
    return starts, sizes


def _orders(
    counters: _Words, sizes: _Whole | None, most: int, words: tuple[np.uint64, np.uint64]
) -> _Whole:
    """For each counter a random order of `range(size)`, in the first places of a row of `most`.

    Places are sorted by random bits, the hashes of the numbers from the counter on. The place
    itself is in the low bits, so that no two are equal and the order does not depend on how a sort
    treats equal ones.

    Args:
        counters: One for each order.
        sizes: How many examples each order has; None if all have `most`.
        most: The largest size.
        words: Keys of the hash.
    """
    check(most <= int(_PLACES), "devices", f"have at most {_PLACES} examples each", most)
    place = np.arange(most, dtype=np.uint64)
    bits = mix64(counters[:, None] + place, *words)
    bits &= ~_PLACES
    bits |= place
    if sizes is not None:
        # Missing examples come last: no example has all the high bits but in one of 2**40 cases,
        # and even then its place is lower.
        bits[place >= sizes[:, None].astype(np.uint64)] |= ~_PLACES
    bits.sort(axis=1)
    bits &= _PLACES
    return bits.view(np.int64)


def _on_device(devices: Devices, indices: _Whole, present: npt.NDArray[np.bool_] | None) -> Batches:
    target = devices.examples.labels.device
    places = None if present is None else torch.from_numpy(present)
    if target.type == "cpu":
        return Batches(torch.from_numpy(indices), places)
    return Batches(
        torch.from_numpy(indices).to(target), None if places is None else places.to(target)
    )
