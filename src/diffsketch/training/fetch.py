"""FetchSGD: momentum and error feedback in sketch space, and the largest coordinates extracted.

With hashes that stay the same, tables of different rounds add up. The server keeps two of them,
a momentum `u` and the accumulated error `e`, and in each round, from the mean table `s`, does

    u = table_momentum * u + s
    e = e + step * u
    d = the top_k coordinates of the query of e, largest in size
    w = w + d;  the cells of e and u that the coordinates of d are in become 0

and sends `d` to the devices: `top_k` indices and values.

The paper subtracts the sketch of `d` from `e`. In tables much smaller than the vector an estimate
is mostly the noise of its collisions, subtracting it adds as much to other cells as it takes away,
and the accumulated error grows without limit. To zero the cells that were hit, as the authors' own
code does, forgets some of the rest instead and is stable. Where cells are few next to
`rows * top_k`, it forgets nearly everything.

References:
    D. Rothchild et al., "FetchSGD: communication-efficient federated learning with sketching",
    2020.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check
from diffsketch.training.server import CLIP_BYTES, Correct, Model, Published, Server
from diffsketch.methods.base import Method, check_whole
from diffsketch.methods.sketch import TableMethod
from diffsketch.sketch.hashing import columns_and_signs
from diffsketch.wire.formats import HEADER_BYTES

__all__ = ["FetchSGD"]

_PAIR_BYTES = 8  # an index and a value of 32 bits each


@dataclass(frozen=True)
class FetchSGD(Server):
    """The rule above, as a server's option. Needs fixed hashes and a method that sends tables.

    Guarantees (`tests/training/test_fetch.py`): with a table that holds every coordinate apart and
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

    def check_method(self, method: Method, *, fresh: bool) -> None:
        """A method that sends tables, with the same hashes in all rounds."""
        if not isinstance(method, TableMethod):
            raise ArgumentError(
                f"top_k needs a method whose messages are tables, got method={method.name!r}"
            )
        if fresh:
            raise ArgumentError(
                "top_k needs hashes='fixed': tables of different hashes do not add up"
            )
        check(self.top_k <= method.dim, "top_k", f"be at most dim={method.dim}", self.top_k)

    def start(self, weights: Tensor, method: Method) -> Model:
        """With empty tables."""
        if not isinstance(method, TableMethod):
            raise ArgumentError(f"method must send tables, got method={method.name!r}")
        empty = torch.zeros((method.rows, method.cols), device=weights.device)
        names = ("error", "velocity") if self.table_momentum else ("error",)
        return Model(weights, dict.fromkeys(names, empty))

    def advance(
        self,
        model: Model,
        published: Published,
        *,
        method: Method,
        step: float,
        correct: Correct | None = None,
    ) -> Model:
        """Accumulate, extract, and forget what was extracted."""
        if correct is not None or not isinstance(method, TableMethod):
            raise ArgumentError("FetchSGD needs a table method and no correction of the mean")
        table = method.mean_table(published.total, published.count)
        if self.update_clip is not None:
            # A table's norm estimates the vector's, which is not known here.
            table = table * (self.update_clip / method.sketch.norm_estimate(table)).clamp(max=1.0)
        if self.table_momentum:
            table = torch.add(table, model.memory["velocity"], alpha=self.table_momentum)
        error = torch.add(model.memory["error"], table, alpha=step)
        estimates = method.sketch.query(error, published.seed, combine=method.combine)
        chosen = estimates.abs().topk(self.top_k).indices
        weights = model.weights.index_add(0, chosen, estimates[chosen])
        kept = _cells_without(chosen, method, published)
        memory = {"error": error * kept}
        if self.table_momentum:
            memory["velocity"] = table * kept
        return Model(weights, memory)

    def round_bytes(self, method: Method) -> int:
        """A header, an index and a value for each coordinate, and the next clip if it moves."""
        clip = 0 if method.round_clip is None else CLIP_BYTES
        return HEADER_BYTES + _PAIR_BYTES * self.top_k + clip


def _cells_without(chosen: Tensor, method: TableMethod, published: Published) -> Tensor:
    """A table of ones, with zeros where a chosen coordinate is in a cell."""
    coordinates = np.sort(chosen.cpu().numpy())
    columns, _ = columns_and_signs(coordinates, published.seed, layout=method.sketch.layout)
    kept = np.ones((method.rows, method.cols), dtype=np.float32)
    kept[np.arange(method.rows)[:, None], columns] = 0
    return torch.from_numpy(kept).to(published.total.device)
