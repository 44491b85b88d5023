"""Rules of a round: what workers compute, and how the server applies their mean.

The paper's Algorithms 3 and 4 differ in the steps that a worker takes: the gradient of one batch,
or local epochs of SGD. Its error correction for distributed SGD is an ablation that is not private.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_positive, check_whole
from diffsketch.methods.base import Method
from diffsketch.methods.plain import TableMethod
from diffsketch.sketch.hashing import HashSeed, columns_and_signs
from diffsketch.training.local import LocalTrainer
from diffsketch.training.sampling import draw_batches, model_seeds
from diffsketch.training.tasks import Devices
from diffsketch.wire.formats import CHECKSUM_BYTES, COUNT_BYTES

Correction: TypeAlias = Literal["off", "shared", "drift"]
Schedule: TypeAlias = Literal["constant", "sqrt", "linear", "cosine"]
Correct: TypeAlias = Callable[[Tensor], Tensor]  # error correction of the decoded mean

_DOWN_BYTES = COUNT_BYTES + CHECKSUM_BYTES  # header of a sum in an agreed round
CLIP_BYTES = 8  # an adaptive clip, for a device that does not see the sums that it follows from
MOST_STEP = 1e38  # largest learning rate or server step: float32 ends at 3.4e38
_PAIR_BYTES = 8  # an index and a value of 32 bits each


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
        """Compute the contributions `(workers, dim)` of a cohort: gradients, or weight changes.

        Weights are `(dim,)`; or `(devices, dim)` where workers' models drift apart.
        """
        batches = draw_batches(
            devices, cohort, seed=seed, round_index=round_index,
            batch_size=self.batch_size, epochs=self.local_epochs,
        )  # fmt: skip
        if trainer.draws:
            seeds = model_seeds(cohort, seed=seed, round_index=round_index)
            batches = replace(batches, seeds=seeds)
        examples = devices.examples
        if self.local_epochs is not None:
            return trainer.updates(weights, examples, batches, learning_rate=self.learning_rate)
        if weights.dim() == 1:
            return trainer.gradients(weights, examples, batches)
        rows = enumerate(cohort.tolist())  # each worker from its own model
        return torch.cat(
            [trainer.gradients(weights[k], examples, batches.of_worker(row)) for row, k in rows]
        )


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
    kept = kept_half(mean, vectors)
    finite = torch.isfinite(vectors).all(dim=-1, keepdim=True)
    if correction == "shared":
        return mean * ((kept & finite).sum(dim=0) / finite.sum()).to(mean.dtype)
    return mean * (kept | ~finite)


def mask_bytes(dim: int, workers: int) -> tuple[int, int]:
    """Compute the bytes of one worker's mask, and of the sum of all masks, headers included.

    A mask has one bit for each coordinate, a sum of masks `workers.bit_length()` bits.

    >>> mask_bytes(7850, 10)
    (986, 3933)
    """
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
class ServerRule(ABC):
    """Base of server rules. With the defaults the mean is applied unchanged.

    Args:
        server_step: Factor of the update.
        schedule: Schedule of that factor, over rounds `r = 0, 1, ...` of `R`: `constant`;
            `sqrt`, `1 / sqrt(r + 1)`; `linear`, `1 - r / R`; `cosine`, `(1 + cos(pi r / R)) / 2`.
            In distributed SGD it scales the learning rate; devices of FedAvg keep theirs.
        update_clip: Largest norm of a round's mean (of the gradient estimate, for distributed
            SGD); longer ones are scaled down to it.
        averaging: Weight of the past in an exponential average of the models, which is evaluated
            in place of the last model; 0 is off. Training goes on from the last model.
    """

    server_step: float = field(default=1.0, kw_only=True)
    schedule: Schedule = field(default="constant", kw_only=True)
    update_clip: float | None = field(default=None, kw_only=True)
    averaging: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        check_step("server_step", self.server_step)
        options = get_args(Schedule)
        check(self.schedule in options, "schedule", f"be one of {options}", self.schedule)
        if self.update_clip is not None:
            check_positive("update_clip", self.update_clip)
        check(0 <= self.averaging < 1, "averaging", "be in [0, 1)", self.averaging)

    def factor(self, round_index: int, rounds: int) -> float:
        """Compute the server step of a round, schedule included.

        >>> ServerOptimizer(server_step=0.5, schedule="linear").factor(25, 100)
        0.375
        """
        if self.schedule == "constant":
            return self.server_step
        if self.schedule == "sqrt":
            return self.server_step / math.sqrt(round_index + 1)
        check(round_index < rounds, "round_index", f"be below rounds={rounds}", round_index)
        done = round_index / rounds
        share = 1 - done if self.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.server_step * share

    def check_options(self, method: Method, *, step: float, fresh: bool) -> None:  # noqa: ARG002
        """Raise an `ArgumentError` unless the rule works with the other options of a run.

        Args:
            method: The method, whose sums are published.
            step: The algorithm's factor of the mean.
            fresh: Whether each round has its own hashes.
        """
        # The product of both steps multiplies float32 numbers, too.
        most = MOST_STEP / max(abs(step), 1.0)
        requirement = f"be at most {most:g} with this learning_rate"
        check(self.server_step <= most, "server_step", requirement, self.server_step)

    @abstractmethod
    def start(self, weights: Tensor, method: Method) -> ModelState:
        """Make the model of the first round."""

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
        mean = self.mean(published, method)
        if correct is not None:
            mean = correct(mean)
        if self.update_clip is not None:
            mean = self.clipped(mean, method)
        return self.apply(model, mean, step=step, method=method, seed=published.seed)

    def mean(self, published: Published, method: Method) -> Tensor:
        """Decode the mean of the published messages."""
        total, seed, count = published.total, published.seed, published.count
        if isinstance(count, int):
            return method.decode(total, seed, count=count)
        return method.decode(total, seed, count=1) / count  # expected: it need not be whole

    def clipped(self, mean: Tensor, method: Method) -> Tensor:  # noqa: ARG002
        """Scale the mean down to a norm of `update_clip`."""
        return mean if self.update_clip is None else scaled(mean, self.update_clip)

    @abstractmethod
    def apply(
        self, model: ModelState, mean: Tensor, *, step: float, method: Method, seed: HashSeed
    ) -> ModelState:
        """Apply a mean to the model: the rule itself."""

    @abstractmethod
    def round_bytes(self, method: Method) -> int:
        """Compute the bytes of one round's result for a device that downloads it."""

    def model_bytes(self, dim: int) -> int:
        """Compute the bytes of the model for a device that downloads it, header included."""
        return _DOWN_BYTES + 4 * dim


@dataclass(frozen=True)
class ServerOptimizer(ServerRule):
    """Clip the mean, add it to the momentum, take a step: `v = momentum v + mean; w = w + step v`.

    Guarantees (`tests/training/test_server.py`): with the defaults this is the plain step; with
    momentum it is `torch.optim.SGD`'s.

    Args:
        momentum: Factor of the last direction; 0 is off.

    >>> rule = ServerOptimizer(momentum=0.9)
    >>> rule.momentum, rule.server_step
    (0.9, 1.0)
    """

    momentum: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check(0 <= self.momentum < 1, "momentum", "be in [0, 1)", self.momentum)

    def start(self, weights: Tensor, method: Method) -> ModelState:  # noqa: ARG002
        """Start from the first weights, without momentum."""
        return ModelState(weights, {"momentum": torch.zeros_like(weights)} if self.momentum else {})

    def apply(
        self, model: ModelState, mean: Tensor, *, step: float, method: Method, seed: HashSeed
    ) -> ModelState:
        """Add the mean to the momentum, and take a step."""
        del method, seed  # the mean is a vector already
        if self.momentum:
            mean = torch.add(mean, model.memory["momentum"], alpha=self.momentum)
        memory = {"momentum": mean} if self.momentum else {}
        return ModelState(torch.add(model.weights, mean, alpha=step), memory)

    def round_bytes(self, method: Method) -> int:
        """Count the published sum."""
        return method.total_format.sum_bytes

    def model_bytes(self, dim: int) -> int:
        """Count the weights, and the momentum, without which further sums cannot be applied."""
        return super().model_bytes(dim) * (2 if self.momentum else 1)


def scaled(vectors: Tensor, limit: float) -> Tensor:
    """Scale down vectors `(..., dim)` whose norm is above the limit to the limit."""
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True, dtype=torch.float64)
    if not bool(torch.isfinite(norms).all()):
        raise ArgumentError("vectors must be finite to be clipped")
    return vectors * (limit / norms).clamp(max=1.0).to(vectors.dtype)


@dataclass(frozen=True)
class FetchSGD(ServerRule):
    """Accumulate tables, apply the largest estimates, and forget those cells (FetchSGD, 2020).

    Needs fixed hashes and a method that sends tables. With tables `t` of the mean, velocity
    `v = momentum v + t` and error `e = e + step v`, the `top_k` largest coordinates of the query
    of `e` are added to the weights, and their cells in `v` and `e` become 0.

    Guarantees (`tests/training/test_server.py`): with a table that holds every coordinate apart and
    `top_k = dim` it is SGD with momentum masked to zero; what is not extracted is kept; exactly
    the hit cells become 0.

    Args:
        top_k: Number of coordinates that are extracted in a round.
        table_momentum: Factor of the last momentum table; 0 is off.
    """

    top_k: int
    table_momentum: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("top_k", self.top_k, least=1)
        check(0 <= self.table_momentum < 1, "table_momentum", "be in [0, 1)", self.table_momentum)

    def check_options(self, method: Method, *, step: float, fresh: bool) -> None:
        """Raise an `ArgumentError` unless all rounds have the same hashes and send tables."""
        super().check_options(method, step=step, fresh=fresh)
        self._tables_of(method)
        if fresh:
            raise ArgumentError(
                "top_k needs hashes='fixed': tables of different hashes do not add up"
            )
        check(self.top_k <= method.dim, "top_k", f"be at most dim={method.dim}", self.top_k)

    def _tables_of(self, method: Method) -> TableMethod:
        if isinstance(method, TableMethod):
            return method
        raise ArgumentError(
            f"top_k needs a method whose messages are tables, got method={method.name!r}"
        )

    def start(self, weights: Tensor, method: Method) -> ModelState:
        """Start from the first weights, with empty tables."""
        sketch = self._tables_of(method).sketch  # not `total_format`, which may have a clip's cells
        empty = torch.zeros((sketch.rows, sketch.cols), device=weights.device)
        names = ("error", "velocity") if self.table_momentum else ("error",)
        return ModelState(weights, dict.fromkeys(names, empty))

    def mean(self, published: Published, method: Method) -> Tensor:
        """Return the mean table, which is not decoded."""
        return self._tables_of(method).mean_table(published.total, published.count)

    def clipped(self, mean: Tensor, method: Method) -> Tensor:
        """Scale the table down by its norm, which estimates that of the unknown vector."""
        norm = self._tables_of(method).sketch.norm_estimate(mean)
        return mean if self.update_clip is None else mean * (self.update_clip / norm).clamp(max=1.0)

    def apply(
        self, model: ModelState, mean: Tensor, *, step: float, method: Method, seed: HashSeed
    ) -> ModelState:
        """Accumulate tables, extract coordinates, and forget their cells."""
        tables, table = self._tables_of(method), mean
        sketch = tables.sketch
        if self.table_momentum:
            table = torch.add(table, model.memory["velocity"], alpha=self.table_momentum)
        error = torch.add(model.memory["error"], table, alpha=step)
        estimates = sketch.query(error, seed, combine=tables.combine)
        # What is not extracted stays in `error`, and comes through in a later round.
        chosen = estimates.abs().topk(self.top_k).indices
        weights = model.weights.index_add(0, chosen, estimates[chosen])
        coordinates = np.sort(chosen.cpu().numpy())
        columns, _ = columns_and_signs(coordinates, seed, layout=sketch.layout)
        kept = torch.ones(table.shape)
        kept[torch.arange(len(kept))[:, None], torch.from_numpy(columns).long()] = 0
        kept = kept.to(table.device)
        memory = {"error": error * kept}
        if self.table_momentum:
            memory["velocity"] = table * kept
        return ModelState(weights, memory)

    def round_bytes(self, method: Method) -> int:
        """Count a header, an index and a value for each coordinate, and an adaptive clip."""
        clip = 0 if method.round_clip is None else CLIP_BYTES
        return _DOWN_BYTES + _PAIR_BYTES * self.top_k + clip


SERVER_RULES: Mapping[str, type[ServerRule]] = {"momentum": ServerOptimizer, "fetchsgd": FetchSGD}
"""Server rules by name."""
