"""Rounds at the workers: distributed SGD and FedAvg, their batches, and error correction.

The paper's Algorithms 3 and 4 differ in the steps that a worker takes: the gradient of one batch,
or local epochs of SGD. Its error correction for distributed SGD is an ablation that is not private.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_positive, check_whole
from diffsketch.methods.base import Encoded, Method, fitted
from diffsketch.privacy.claim import Claim
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.hashing import HashSeed, mix64
from diffsketch.training.local.base import LocalTrainer
from diffsketch.training.tasks import Batches, Devices
from diffsketch.wire.formats import HEADER_BYTES, MessageFormat

Correction: TypeAlias = Literal["off", "shared", "drift"]

_Whole: TypeAlias = npt.NDArray[np.int64]

MOST_STEP = 1e38
"""Largest learning rate or step of the server: float32 ends a little above."""

_PLACE_BITS = 24  # of a sorting key: below the random bits, so that no two keys are equal
_PLACES = np.uint64((1 << _PLACE_BITS) - 1)
# Odd, and near the golden ratio and the square root of 2 as shares of 2**64: their multiples stay
# far apart, so that the counters of two devices or epochs do not meet.
_DEVICE_STRIDE = np.uint64(0x9E3779B97F4A7C15)
_EPOCH_STRIDE = np.uint64(0x6A09E667F3BCC909)


def check_step(name: str, value: float) -> None:
    """Raise an `ArgumentError` unless it is a number > 0 that float32 can be multiplied by."""
    check_positive(name, value)
    check(value <= MOST_STEP, name, f"be at most {MOST_STEP:g}", value)


class Algorithm:
    """Local training of a round: what the workers contribute to the mean.

    Attributes:
        name: As in settings.
        learning_rate: Factor of gradients.
        batch_size: Examples of a step.
        correction: The paper's error correction; off where it is undefined.
        local_epochs: Passes of a device over its examples; None for the gradient of one batch.
    """

    name: ClassVar[str]
    learning_rate: float
    batch_size: int
    correction: Correction
    local_epochs: int | None

    def __post_init__(self) -> None:
        check_step("learning_rate", self.learning_rate)
        check_whole("batch_size", self.batch_size, least=1)
        options = get_args(Correction)
        check(self.correction in options, "correction", f"be one of {options}", self.correction)
        if self.local_epochs is not None:
            check_whole("local_epochs", self.local_epochs, least=1)

    @property
    def step(self) -> float:
        """Factor of the mean before it is added to the weights."""
        return -self.learning_rate if self.local_epochs is None else 1.0

    def vectors(
        self,
        weights: Tensor,
        cohort: Tensor,
        *,
        trainer: LocalTrainer,
        devices: Devices,
        seed: int,
        round_index: int,
    ) -> Tensor:
        """Contributions `(workers, dim)` of a cohort: gradients, or changes of the weights.

        Args:
            weights: `(dim,)`; or `(devices, dim)` where workers' models drift apart.
            cohort: Indices of the devices, int64.
            trainer: Of the model.
            devices: Who holds which examples.
            seed: The run's, in [0, 2**256).
            round_index: The round.
        """
        batches = draw_batches(
            devices, cohort, seed=seed, round_index=round_index,
            batch_size=self.batch_size, epochs=self.local_epochs,
        )  # fmt: skip
        examples = devices.examples
        if self.local_epochs is not None:
            return trainer.updates(weights, examples, batches, learning_rate=self.learning_rate)
        if weights.dim() == 1:
            return trainer.gradients(weights, examples, batches)
        own = []
        for row, worker in enumerate(cohort.tolist()):
            present = None if batches.present is None else batches.present[row : row + 1]
            one = Batches(batches.indices[row : row + 1], present)
            own.append(trainer.gradients(weights[worker], examples, one))
        return torch.cat(own)


@dataclass(frozen=True)
class DistributedSGD(Algorithm):
    """Distributed SGD: every worker sends the gradient of one batch, and receives every sum.

    Args:
        learning_rate: Factor of the mean gradient.
        batch_size: Examples of a worker's gradient. Each worker goes through its examples, pass by
            pass, in an order of its own.
        correction: The paper's error correction, an ablation that is not private. Each worker
            drops the half of the queried coordinates that differ most from its own gradient;
            `shared` applies the mean of the masks, `drift` lets each worker apply its own.
    """

    name = "sgd"
    local_epochs = None
    learning_rate: float
    batch_size: int
    correction: Correction = field(default="off", kw_only=True)


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """FedAvg: sampled devices train locally and send the change of their weights.

    It has no error correction, "since the local gradients would be stale".

    Args:
        learning_rate: Of a device's SGD.
        batch_size: Examples of a step.
        local_epochs: Passes of a device over its examples, each in a fresh order.
    """

    name = "fedavg"
    correction = "off"
    learning_rate: float
    batch_size: int
    local_epochs: int = field(default=1, kw_only=True)


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
    check_whole("seed", seed, least=0, most=2**256 - 1)
    return seed.to_bytes(32, "little")


def draw_batches(
    devices: Devices,
    cohort: Tensor,
    *,
    seed: int,
    round_index: int,
    batch_size: int,
    epochs: int | None,
) -> Batches:
    """Batches of each device of a cohort: of all its examples, or the next one of a pass.

    With `epochs`, each takes all its examples so many times, each time in a fresh order; a device
    whose examples fit into one batch takes them as they lie. With None, a device with `n` examples
    has `ceil(n / batch_size)` rounds a pass, each pass in a fresh order, and takes the batch of
    this round. The last batch of an epoch or pass may be short. Devices with fewer examples than
    others have empty places at the end.

    Guarantees (`tests/training/test_rounds.py`): each epoch or pass has each of the device's
    examples once; orders are uniform, and depend on the seed, the round, the epoch and the device
    alone.

    >>> from diffsketch.training.tasks import Examples
    >>> one = Examples(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64))
    >>> devices = Devices.of({"alice": one, "bob": one})
    >>> batches = draw_batches(
    ...     devices, torch.tensor([1]), seed=0, round_index=0, batch_size=2, epochs=1
    ... )
    >>> batches.indices.shape, sorted(batches.indices[batches.present].tolist())
    (torch.Size([1, 2, 2]), [3, 4, 5])
    """
    _secret(seed)  # checks it, if it is used or not
    for name, number in (("batch_size", batch_size), ("epochs", epochs)):
        if number is not None and (type(number) is not int or number < 1):
            check_whole(name, number, least=1)
    if cohort.dtype != torch.int64 or cohort.dim() != 1 or not len(cohort):
        found = f"{cohort.dtype} {tuple(cohort.shape)}"
        raise ArgumentError(f"cohort must be int64 (workers,), got {found}")
    members, all_starts = cohort.numpy(), devices.starts.numpy()
    count = len(all_starts) - 1
    if int(members.view(np.uint64).max()) >= count:  # as which a negative one is very large
        raise ArgumentError(f"cohort must have indices in [0, {count}), got {members}")
    starts = all_starts[members]
    sizes = all_starts[members + 1] - starts
    most = int(sizes.max())
    batch_size = min(batch_size, most)  # more places would stay empty
    counters = members.view(np.uint64) * _DEVICE_STRIDE
    if epochs is None:
        passes, step = np.divmod(round_index, -(-sizes // batch_size))
        words = round_words(seed, 0, b"ds-order-sgd")  # devices are in different passes of theirs
        counters += passes.view(np.uint64) * _EPOCH_STRIDE
        orders = _orders(counters, sizes, words)
        place = step[:, None] * batch_size + np.arange(batch_size)
        present = (place < sizes[:, None])[:, None]
        indices = np.take_along_axis(orders, np.minimum(place, most - 1), axis=1)[:, None]
        indices += starts[:, None, None]
    else:
        steps = -(-most // batch_size)
        if steps == 1:
            orders = np.arange(most)[None, None].repeat(epochs, axis=1)  # the same of all
        else:
            words = round_words(seed, round_index, b"ds-order-fedavg")
            epoch = np.arange(epochs, dtype=np.uint64) * _EPOCH_STRIDE
            counters = (counters[:, None] + epoch).reshape(-1)
            orders = _orders(counters, np.repeat(sizes, epochs), words)
            orders[np.repeat(sizes <= batch_size, epochs)] = np.arange(most)
            orders = orders.reshape(len(members), epochs, most)
        places = steps * batch_size
        present = np.repeat((np.arange(places) < sizes[:, None])[:, None], epochs, axis=1)
        indices = orders + starts[:, None, None]
        if places > most:
            indices = np.pad(indices, ((0, 0), (0, 0), (0, places - most)))
        indices = indices.reshape(len(members), epochs * steps, batch_size)
        present = present.reshape(indices.shape)
    target = devices.examples.labels.device
    if present.all():
        return Batches(torch.from_numpy(indices).to(target))
    indices *= present  # empty places hold index 0
    return Batches(torch.from_numpy(indices).to(target), torch.from_numpy(present).to(target))


def _orders(
    counters: npt.NDArray[np.uint64], sizes: _Whole, words: tuple[np.uint64, np.uint64]
) -> _Whole:
    """For each counter a random order of `range(size)`, in the first places of a row.

    Places are sorted by random bits, the hashes of the numbers from the counter on. The place
    itself is in the low bits, so that no two are equal and the order does not depend on how a sort
    treats equal ones.
    """
    most = int(sizes.max())
    if most > int(_PLACES):
        raise ArgumentError(f"devices must have at most {_PLACES} examples each, got {most}")
    place = np.arange(most, dtype=np.uint64)
    bits = mix64(counters[:, None] + place, *words)
    bits &= ~_PLACES
    bits |= place
    if int(sizes.min()) < most:
        # Missing examples come last: no example has all the high bits but in one of 2**40 cases,
        # and even then its place is lower.
        bits[place >= sizes[:, None].astype(np.uint64)] |= ~_PLACES
    bits.sort(axis=1)
    bits &= _PLACES
    return bits.view(np.int64)


def kept_half(mean: Tensor, vectors: Tensor) -> Tensor:
    """Masks of error correction: for each worker the coordinates of the mean nearest to its own.

    Args:
        mean: `(dim,)`, as queried.
        vectors: `(workers, dim)`, the workers' own.

    Returns:
        `(workers, dim)`, bool; `dim // 2` are False in each row.

    >>> kept_half(torch.tensor([1.0, 1.0, 1.0, 1.0]), torch.tensor([[1.0, 9.0, 0.9, -3.0]]))
    tensor([[ True, False,  True, False]])
    """
    gaps = (vectors - mean).abs()
    # Stable, so that equal gaps are the same ones on every device.
    far = gaps.argsort(dim=-1, descending=True, stable=True)[..., : mean.shape[-1] // 2]
    return torch.ones_like(gaps, dtype=torch.bool).scatter_(-1, far, False)


def corrected(mean: Tensor, vectors: Tensor, correction: Correction) -> Tensor:
    """The mean times the mean mask, `(dim,)`; or, to drift, times each own mask `(workers, dim)`.

    A worker whose vector is not finite has no mask: it is left out of the mean mask, and applies
    the mean as it is.
    """
    kept = kept_half(mean, vectors)
    finite = torch.isfinite(vectors).all(dim=-1, keepdim=True)
    if correction == "shared":
        return mean * ((kept & finite).sum(dim=0) / finite.sum()).to(mean.dtype)
    return mean * (kept | ~finite)


def mask_bytes(dim: int, workers: int) -> tuple[int, int]:
    """Bytes of one worker's mask, and of the sum of all masks: headers included.

    A mask is a bit for each coordinate; a sum of masks takes the bits that a count of the workers
    takes.

    >>> mask_bytes(7850, 10)
    (1030, 3973)
    """
    return HEADER_BYTES + -(-dim // 8), HEADER_BYTES + -(-dim * workers.bit_length() // 8)


def relative_drift(weights: Tensor) -> float | None:
    """Mean distance of workers' models `(workers, dim)` from their mean, over its norm.

    None where workers share one model `(dim,)`.
    """
    if weights.dim() == 1:
        return None
    mean = weights.mean(dim=0)
    distances = torch.linalg.vector_norm(weights - mean, dim=-1)
    norm = torch.linalg.vector_norm(mean)
    return float(distances.mean() / norm) if float(norm) > 0 else 0.0


@dataclass(frozen=True)
class NoiseControl(Method):
    """A control: another method whose published sum is replaced by Gaussian noise of its norm.

    Nothing of the vectors but that norm is left in what it decodes to. What still learns with it
    does not learn from the messages. The method's claim holds: the norm is one of what it
    publishes.

    Args:
        dim: Length of the vectors.
        inner: The method that is replaced.
    """

    name: ClassVar[str] = "noise-control"
    inner: Method

    @property
    def message_format(self) -> MessageFormat:
        """Format of the inner method's messages."""
        return self.inner.message_format

    @property
    def total_format(self) -> MessageFormat:
        """Format of the inner method's sums."""
        return self.inner.total_format

    def publish(self, total: Tensor, noise: Noise) -> Tensor:
        """Noise with the norm of what the method publishes.

        Its own noise is in there first: the norm of a sum without it would tell something.
        """
        total = self.inner.publish(total, noise)
        form = self.total_format
        if form.cells == "unsigned":
            raise ArgumentError("inner must not publish sums modulo 2**bits: they have no norm")
        drawn = noise.normal((1, *total.shape), 1.0, dtype=torch.float32)[0].to(total.device)
        factor: Tensor = torch.linalg.vector_norm(total.float()) / torch.linalg.vector_norm(drawn)
        scaled = drawn * factor
        return scaled if form.cells == "float32" else fitted(scaled.round().long(), form)

    def _claim_for(self, present: int, seed: HashSeed) -> Claim:
        return self.inner.claim_for(present, seed)

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:
        return self.inner.encode(batch, seed, noise)

    def _decode(self, total: Tensor, seed: HashSeed, count: int, *, out: Tensor | None) -> Tensor:
        return self.inner.decode(total, seed, count=count, out=out)
