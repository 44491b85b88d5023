"""Server rules: the step that a mean becomes, with momentum, or by FetchSGD."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_positive, check_whole
from diffsketch.methods.base import Method
from diffsketch.methods.plain import TableMethod
from diffsketch.sketch.hashing import HashSeed, columns_and_signs
from diffsketch.training.rounds import MOST_STEP, check_step
from diffsketch.wire.formats import HEADER_BYTES

CLIP_BYTES = 8
"""A clip that moves, for a device that does not see the sums it follows from."""

_PAIR_BYTES = 8  # an index and a value of 32 bits each

Schedule: TypeAlias = Literal["constant", "sqrt", "linear", "cosine"]
_SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)

Correct: TypeAlias = Callable[[Tensor], Tensor]
"""Changes the decoded mean before it is applied, such as the paper's error correction."""


@dataclass(frozen=True, eq=False)
class ModelState:
    """The weights, and what a server's rule remembers besides. Never changed in place.

    Attributes:
        weights: `(dim,)`, float32; or `(workers, dim)` where workers' models drift apart.
        memory: Named tensors: a momentum, accumulated tables.
    """

    weights: Tensor
    memory: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Published:
    """The server's publication of a round.

    Attributes:
        total: The sum of the messages, with the server's noise if it adds any.
        count: How many messages are in it; or, for samples whose size is secret, how many are
            expected: a float then.
        seed: The round's hashes.
        round_index: The round.
        clip: The round's, for methods whose clip moves; else None.
    """

    total: Tensor
    count: int | float
    seed: HashSeed
    round_index: int
    clip: float | None = None


@dataclass(frozen=True)
class ServerRule(ABC):
    """Options that all server rules share. With the defaults the mean is applied as it is.

    Args:
        server_step: Factor of what is applied.
        schedule: Of that factor, over the rounds `r = 0, 1, ...` of `R` planned ones: `constant`;
            `sqrt`, `1 / sqrt(r + 1)`; `linear`, `1 - r / R`; `cosine`, `(1 + cos(pi r / R)) / 2`.
            In distributed SGD that is the learning rate's; devices of FedAvg keep their own.
        update_clip: Largest norm of a round's mean (of the gradient estimate, for distributed
            SGD); longer ones are scaled down to it.
        averaging: Weight of the past in the exponential average of the models, which is what is
            evaluated then; 0 is off. Training goes on from the last model, not from the average.
    """

    server_step: float = field(default=1.0, kw_only=True)
    schedule: Schedule = field(default="constant", kw_only=True)
    update_clip: float | None = field(default=None, kw_only=True)
    averaging: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        check_step("server_step", self.server_step)
        check(self.schedule in _SCHEDULES, "schedule", f"be one of {_SCHEDULES}", self.schedule)
        if self.update_clip is not None:
            check_positive("update_clip", self.update_clip)
        check(0 <= self.averaging < 1, "averaging", "be in [0, 1)", self.averaging)

    def factor(self, round_index: int, rounds: int) -> float:
        """The step of a round, schedule included.

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
        """Raise an `ArgumentError` unless it works with the method, such a step and such hashes.

        Args:
            method: That messages are encoded with.
            step: The algorithm's factor of the mean.
            fresh: Whether hashes are other ones in each round.
        """
        most = MOST_STEP / max(abs(step), 1.0)
        requirement = f"be at most {most:g} with such a learning_rate"
        check(self.server_step <= most, "server_step", requirement, self.server_step)

    @abstractmethod
    def start(self, weights: Tensor, method: Method) -> ModelState:
        """The model of the first round."""

    @abstractmethod
    def advance(
        self,
        model: ModelState,
        published: Published,
        *,
        method: Method,
        step: float,
        correct: Correct | None = None,
    ) -> ModelState:
        """The model after a round. Servers and devices compute it alike.

        Args:
            model: Before the round.
            published: What the server made known.
            method: That the messages were encoded with.
            step: Factor of the mean before it is added: `factor`, times minus the learning rate if
                it is a mean of gradients.
            correct: Changes the decoded mean first.
        """

    @abstractmethod
    def round_bytes(self, method: Method) -> int:
        """Bytes of one round's result for a device that downloads it."""

    def model_bytes(self, dim: int) -> int:
        """Bytes of the whole model for a device that downloads it, header included."""
        return HEADER_BYTES + 4 * dim


@dataclass(frozen=True)
class ServerOptimizer(ServerRule):
    """Clip the mean, add it to the momentum, take a step: `v = momentum v + mean; w = w + step v`.

    Guarantees (`tests/training/test_server.py`): with the defaults this is the plain step; with
    momentum it is `torch.optim.SGD`'s.

    Args:
        momentum: Share of the last direction that is kept; 0 is off.

    >>> rule = ServerOptimizer(momentum=0.9)
    >>> rule.momentum, rule.server_step
    (0.9, 1.0)
    """

    momentum: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check(0 <= self.momentum < 1, "momentum", "be in [0, 1)", self.momentum)

    def start(self, weights: Tensor, method: Method) -> ModelState:  # noqa: ARG002
        """The first weights, with no momentum yet."""
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
        """Decode the mean and take the step."""
        count = published.count
        if isinstance(count, int):
            direction = method.decode(published.total, published.seed, count=count)
        else:
            direction = method.decode(published.total, published.seed, count=1) / count
        if correct is not None:
            direction = correct(direction)
        if self.update_clip is not None:
            direction = scaled(direction, self.update_clip)
        if not self.momentum:
            return ModelState(torch.add(model.weights, direction, alpha=step), model.memory)
        direction = torch.add(direction, model.memory["momentum"], alpha=self.momentum)
        weights = torch.add(model.weights, direction, alpha=step)
        return ModelState(weights, {"momentum": direction})

    def round_bytes(self, method: Method) -> int:
        """The published sum."""
        return method.total_format.wire_bytes

    def model_bytes(self, dim: int) -> int:
        """The weights; and the momentum, without which a device could not apply further sums."""
        return super().model_bytes(dim) * (2 if self.momentum else 1)


def scaled(vectors: Tensor, limit: float) -> Tensor:
    """Vectors `(..., dim)` whose norm is above the limit, scaled down to it.

    Raises:
        ArgumentError: A norm is not finite: nothing could be said about the direction.
    """
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True, dtype=torch.float64)
    if not bool(torch.isfinite(norms).all()):
        raise ArgumentError("vectors must be finite to be clipped")
    factors: Tensor = (limit / norms).clamp(max=1.0)
    shorter: Tensor = vectors * factors.to(vectors.dtype)
    return shorter


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
        top_k: Coordinates that are extracted in a round.
        table_momentum: Share of the last momentum table that is kept.
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
        """The first weights, with empty tables."""
        sent = self._tables_of(method)
        empty = torch.zeros((sent.rows, sent.cols), device=weights.device)
        names = ("error", "velocity") if self.table_momentum else ("error",)
        return ModelState(weights, dict.fromkeys(names, empty))

    def advance(
        self,
        model: ModelState,
        published: Published,
        *,
        method: Method,
        step: float,
        correct: Correct | None = None,
    ) -> ModelState:
        """Accumulate, extract, and forget what was extracted."""
        tables = self._tables_of(method)
        if correct is not None:
            raise ArgumentError("FetchSGD needs the mean as it is, got a correction of it")
        table, sketch = tables.mean_table(published.total, published.count), tables.sketch
        if self.update_clip is not None:
            # A table's norm estimates the vector's, which is not known here.
            table = table * (self.update_clip / sketch.norm_estimate(table)).clamp(max=1.0)
        if self.table_momentum:
            table = torch.add(table, model.memory["velocity"], alpha=self.table_momentum)
        error = torch.add(model.memory["error"], table, alpha=step)
        estimates = sketch.query(error, published.seed, combine=tables.combine)
        chosen = estimates.abs().topk(self.top_k).indices
        weights = model.weights.index_add(0, chosen, estimates[chosen])
        coordinates = np.sort(chosen.cpu().numpy())
        columns, _ = columns_and_signs(coordinates, published.seed, layout=sketch.layout)
        kept = torch.ones(table.shape)
        kept[torch.arange(len(kept))[:, None], torch.from_numpy(columns).long()] = 0
        kept = kept.to(table.device)
        memory = {"error": error * kept}
        if self.table_momentum:
            memory["velocity"] = table * kept
        return ModelState(weights, memory)

    def round_bytes(self, method: Method) -> int:
        """A header, an index and a value for each coordinate, and the next clip if it moves."""
        clip = 0 if method.round_clip is None else CLIP_BYTES
        return HEADER_BYTES + _PAIR_BYTES * self.top_k + clip
