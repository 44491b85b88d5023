"""Rules of a round: what workers compute, and how the server applies their mean.

The paper's Algorithms 3 and 4 differ in the steps that a worker takes: the gradient of one batch,
or local epochs of SGD. Its error correction for distributed SGD is an ablation that is not private.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_positive, check_whole
from diffsketch.methods.base import Method
from diffsketch.sketch.hashing import HashSeed
from diffsketch.training.local import LocalTrainer
from diffsketch.training.sampling import draw_batches
from diffsketch.training.tasks import Devices
from diffsketch.wire.message import CHECKSUM_BYTES, COUNT_BYTES

Correction: TypeAlias = Literal["off", "shared", "drift"]
Schedule: TypeAlias = Literal["constant", "sqrt", "linear", "cosine"]
Correct: TypeAlias = Callable[[Tensor], Tensor]  # error correction of the decoded mean

_DOWN_BYTES = COUNT_BYTES + CHECKSUM_BYTES  # header of a sum in an agreed round
CLIP_BYTES = 8  # an adaptive clip, for a device that does not see the sums that it follows from
MOST_STEP = 1e38  # largest learning rate or server step: float32 ends at 3.4e38


def check_step(name: str, value: float) -> None:
    """Raise an `ArgumentError` unless the value is a step > 0 that float32 can hold."""
    check_positive(name, value)
    check(value <= MOST_STEP, name, f"be at most {MOST_STEP:g}", value)


class Algorithm:
    """Local training of a round: the workers' contributions to the mean."""

    name: ClassVar[str]  # as in settings
    learning_rate: float
    batch_size: int
    correction: Correction
    local_epochs: int | None  # None for the gradient of one batch

    def __post_init__(self) -> None:
        # float32 would make infinity of a larger step, and NaN of the weights.
        check_step("learning_rate", self.learning_rate)
        check_whole("batch_size", self.batch_size, least=1)
        options = get_args(Correction)
        wanted = f"be one of {', '.join(options)}"
        check(self.correction in options, "correction", wanted, self.correction)
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
        """Compute the contributions `(workers, dim)` of a cohort: gradients, or weight changes.

        Weights are `(dim,)`; or `(devices, dim)` where workers' models drift apart.
        """
        # Orders of examples depend on the device alone, so these are the batches of a whole cohort.
        if weights.dim() == 2:  # each worker from its own model
            about: Any = {
                "trainer": trainer, "devices": devices, "seed": seed, "round_index": round_index,
            }  # fmt: skip
            alone = zip(weights[cohort], torch.split(cohort, 1), strict=True)
            return torch.cat([self.vectors(model, worker, **about) for model, worker in alone])
        batches = draw_batches(
            devices, cohort, seed=seed, round_index=round_index,
            batch_size=self.batch_size, epochs=self.local_epochs,
        )  # fmt: skip
        rate = None if self.local_epochs is None else self.learning_rate
        return trainer.updates(weights, batches, learning_rate=rate)


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


def kept_half(mean: Tensor, vectors: Tensor) -> Tensor:
    """Compute each worker's mask of error correction: True where the mean is near its vector.

    Of the mean `(dim,)` and the workers' vectors `(workers, dim)`; `dim // 2` are False in a row.

    >>> kept_half(torch.tensor([1.0, 1.0, 1.0, 1.0]), torch.tensor([[1.0, 9.0, 0.9, -3.0]]))
    tensor([[ True, False,  True, False]])
    """
    gaps, dropped = (vectors - mean).abs(), mean.shape[-1] // 2
    # The smallest gap that is dropped; the largest of all if none is.
    least = gaps.kthvalue(gaps.shape[-1] - dropped + bool(dropped), dim=-1, keepdim=True).values
    near, tied = gaps < least, gaps == least
    # Of equal gaps the first ones are dropped, the same on every device.
    room = dropped - (gaps > least).sum(dim=-1, keepdim=True)
    return near | (tied & (tied.cumsum(dim=-1) > room))


def corrected(mean: Tensor, vectors: Tensor, correction: Correction) -> Tensor:
    """Multiply the mean by the mean mask, `(dim,)`; to drift, by each mask, `(workers, dim)`.

    A worker whose vector is not finite has no mask: it is left out of the mean mask, and applies
    the uncorrected mean.
    """
    # Masks are for the mean as it was decoded, before it is clipped or scaled.
    kept = kept_half(mean, vectors)
    finite = torch.isfinite(vectors).all(dim=-1, keepdim=True)
    if correction == "shared":
        # Workers send one bit a coordinate; the sum of the masks says what share of them kept it.
        return mean * ((kept & finite).sum(dim=0) / finite.sum()).to(mean.dtype)
    # A worker without a mask applies the mean as it is.
    return mean * (kept | ~finite)


def mask_bytes(dim: int, workers: int) -> tuple[int, int]:
    """Compute the bytes of one worker's mask, and of the sum of all masks, headers included.

    A mask has one bit for each coordinate, a sum of masks `workers.bit_length()` bits.

    >>> mask_bytes(7850, 10)
    (986, 3933)
    """
    # Enough for all workers' votes for one coordinate: 0 to `workers`.
    bits = workers.bit_length()
    return CHECKSUM_BYTES + -(-dim // 8), _DOWN_BYTES + -(-dim * bits // 8)


def relative_drift(weights: Tensor) -> float | None:
    """Compute the mean distance of workers' models `(workers, dim)` from their mean, over its norm.

    None where workers share one model `(dim,)`.
    """
    if weights.dim() == 1:
        return None
    mean = weights.mean(dim=0)
    distances = torch.linalg.vector_norm(weights - mean, dim=-1)
    norm = torch.linalg.vector_norm(mean)
    return float(distances.mean() / norm) if float(norm) > 0 else 0.0


@dataclass(frozen=True, eq=False)
class ModelState:
    """Weights, and the memory of a server rule. Never changed in place."""

    weights: Tensor  # `(dim,)`, float32; or `(workers, dim)` where workers' models drift apart
    memory: Mapping[str, Tensor] = field(default_factory=dict)  # a momentum, accumulated tables


@dataclass(frozen=True, eq=False)
class Published:
    """The server's publication of a round.

    Attributes:
        total: The sum of the messages, with the server's noise if it adds any.
        count: Number of messages in it; for samples whose size is secret, the expected number, a
            float.
        seed: Hashes of the round.
        round_index: The round.
        clip: Clip of the round, for methods whose clip adapts; else None.
    """

    total: Tensor
    count: int | float
    seed: HashSeed
    round_index: int
    clip: float | None = None


@dataclass(frozen=True)
class ServerOptimizer:
    """Clip the mean, add it to the momentum, take a step: `v = momentum v + mean; w = w + step v`.

    Another rule is a subclass with another `apply`, and `start` if it remembers anything else.

    Guarantees (`tests/training/test_rounds.py`): with the defaults this is the plain step; with
    momentum it is `torch.optim.SGD`'s.

    Args:
        server_step: Factor of the update.
        schedule: Schedule of that factor, over rounds `r = 0, 1, ...` of `R`: `constant`;
            `sqrt`, `1 / sqrt(r + 1)`; `linear`, `1 - r / R`; `cosine`, `(1 + cos(pi r / R)) / 2`.
            In distributed SGD it scales the learning rate; devices of FedAvg keep theirs.
        momentum: Factor of the last direction; 0 is off.
        update_clip: Largest norm of a round's mean (of the gradient estimate, for distributed
            SGD); longer ones are scaled down to it.

    >>> ServerOptimizer(server_step=0.5, schedule="linear").factor(25, 100)
    0.375
    """

    server_step: float = field(default=1.0, kw_only=True)
    schedule: Schedule = field(default="constant", kw_only=True)
    update_clip: float | None = field(default=None, kw_only=True)
    momentum: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        check_step("server_step", self.server_step)
        options = get_args(Schedule)
        wanted = f"be one of {', '.join(options)}"
        check(self.schedule in options, "schedule", wanted, self.schedule)
        if self.update_clip is not None:
            check_positive("update_clip", self.update_clip)
        check(0 <= self.momentum < 1, "momentum", "be in [0, 1)", self.momentum)

    def factor(self, round_index: int, rounds: int) -> float:
        """Compute the server step of a round, schedule included."""
        if self.schedule == "constant":
            return self.server_step
        if self.schedule == "sqrt":
            # The one decreasing schedule that does not depend on the number of rounds.
            return self.server_step / math.sqrt(round_index + 1)
        check(round_index < rounds, "round_index", f"be below rounds={rounds}", round_index)
        done = round_index / rounds
        share = 1 - done if self.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.server_step * share

    def start(self, weights: Tensor) -> ModelState:
        """Make the model of the first round: first weights, without momentum."""
        return ModelState(weights, {"momentum": torch.zeros_like(weights)} if self.momentum else {})

    def advance(
        self,
        model: ModelState,
        published: Published,
        *,
        method: Method,
        step: float,
        correct: Correct | None = None,
    ) -> ModelState:
        """Compute the model after a round, the same at the server and at every device.

        Args:
            model: The model before the round.
            published: The server's publication of the round.
            method: The method, at the clip of the round.
            step: Factor of the mean: `factor`, times minus the learning rate for gradients.
            correct: Error correction of the mean.
        """
        total, seed, count = published.total, published.seed, published.count
        if isinstance(count, int):
            mean = method.decode(total, seed, count=count)
        else:  # an expected number, which need not be whole
            mean = method.decode(total, seed, count=1) / count
        # Corrected first: masks are made for the mean as workers queried it.
        if correct is not None:
            mean = correct(mean)
        if self.update_clip is not None:
            mean = scaled(mean, self.update_clip)
        return self.apply(model, mean, step=step)

    def apply(self, model: ModelState, mean: Tensor, *, step: float) -> ModelState:
        """Add the mean to the momentum, and take a step: the rule itself."""
        if self.momentum:
            mean = torch.add(mean, model.memory["momentum"], alpha=self.momentum)
        # New tensors, never in place: a round that fails leaves the old model whole.
        memory = {"momentum": mean} if self.momentum else {}
        return ModelState(torch.add(model.weights, mean, alpha=step), memory)

    def model_bytes(self, dim: int) -> int:
        """Compute the bytes of the model for a device that downloads it, header included.

        With the momentum, without which further sums cannot be applied.
        """
        return (_DOWN_BYTES + 4 * dim) * (2 if self.momentum else 1)


def scaled(vectors: Tensor, limit: float) -> Tensor:
    """Scale down vectors `(..., dim)` whose norm is above the limit to the limit."""
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True, dtype=torch.float64)
    if not bool(torch.isfinite(norms).all()):
        raise ArgumentError("vectors must be finite to be clipped")
    return vectors * (limit / norms).clamp(max=1.0).to(vectors.dtype)
