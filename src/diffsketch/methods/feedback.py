"""Error feedback: the part of a vector that a table could not carry is sent later."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_positive
from diffsketch.methods.base import Method
from diffsketch.methods.client_noise import SketchGaussian, SketchSkellam
from diffsketch.methods.plain import PlainSketch, TableMethod
from diffsketch.privacy.claim import Claim, NoClaim, Unit
from diffsketch.privacy.clipping import NormBound
from diffsketch.privacy.theorems import query_variance
from diffsketch.sketch.hashing import HashSeed

_VARIANCE = 4.0  # of a new vector's estimate, in its squared norm, that does little harm


class ErrorFeedback:
    """One worker's memory of what it has not sent yet.

    In each round, with a vector `g`, the memory `e`, the table `S u` and its query `Q`,

        u = b g + a e         is encoded, and all apply Q(mean of the tables)
        e = e + g - Q(S u)    remains.

    Nothing is lost: over the rounds, what was applied and the mean of the memories add up to the
    vectors, for the query is linear. So `x - step * mean(e)` moves as if nothing was compressed
    (the virtual iterate of the theory of error feedback), and `x` stays near it as long as `e`
    stays bounded. That is what `a` is for. A query is unbiased with a variance of
    `V = query_variance`, about the compression. Subtracting all of `Q(S e)` would multiply the
    error by `sqrt(V)` in each round, which ends in NaN; but

        E||e - a Q(S e)||^2 = ((1 - a)^2 + a^2 V) ||e||^2,

    which is smallest for `a = 1 / (1 + V)`: the error shrinks, by the factor `V / (1 + V)`.

    `b` (`immediate`) is how much of a new vector is sent at once. With `b = a` (the textbook's
    error feedback, which sends `a (g + e)`) the applied vectors lag by `V` rounds, with a larger
    `b` by `(1 - b) (1 + V)`, at the price of a variance of `b^2 V` times its squared norm. If not
    given, `b = min(1, 2 / sqrt(V))`, for which that is 4 at the most (`docs/results.md` has what
    was measured).

    With a clip, what counts as sent is the clipped table, without the noise: noise that was fed
    back would have to be sent off again, within the clip, and is larger than that. What a clip
    cuts off stays in `e`; if it always cuts, `e` grows without end.

    Privacy: messages are clipped and noised after `u` is made, so a whole client is hidden in each
    round as before, whatever it remembers. One coordinate is not: the memory spreads what it held
    in one round over all later ones, so claims about a coordinate are refused.

    Guarantees (`tests/methods/test_feedback.py`): nothing is lost; the error stays bounded at 50x
    where unscaled feedback overflows.

    Args:
        method: That encodes.
        claim: What it claims.
        immediate: `b`, from `1 / (1 + V)` (smaller ones are raised to it) to 1; None for the rule.

    Attributes:
        memory: `a e`, which is as good as `e` and takes one pass less to mix; None at first.

    Raises:
        ArgumentError: The method's messages are no tables, its query is not linear, or its claim is
            about one coordinate.
    """

    def __init__(self, method: Method, claim: Claim, *, immediate: float | None = None) -> None:
        if claim.scope.unit is Unit.COORDINATE and not isinstance(claim, NoClaim):
            raise ArgumentError(
                f"error_feedback must be off for method={method.name!r}: its claim is about one "
                "coordinate of one vector, and a memory sends that coordinate in all later rounds"
            )
        check(not method.takes_records, "error_feedback", "be off for records", method)
        if not isinstance(method, PlainSketch | SketchGaussian | SketchSkellam):
            raise ArgumentError(
                "error_feedback must be off for methods other than sketch, sketch-gaussian and "
                f"sketch-skellam, got method={method.name!r}"
            )
        linear = method.combine == "mean" or method.rows == 1
        check(linear, "combine", "be mean with error_feedback", method.combine)
        self._method: TableMethod = method
        self._limit = None if isinstance(method, PlainSketch) else NormBound(method.clip)
        variance = query_variance(method.sketch, combine=method.combine)
        if isinstance(method, PlainSketch) and method.grid is not None:
            variance *= 1 + method.grid.rounding_share
        if immediate is None:
            # `b**2 V` is then at most 4.
            immediate = min(1.0, math.sqrt(_VARIANCE / max(variance, _VARIANCE)))
        check_positive("immediate", immediate)
        check(immediate <= 1, "immediate", "be in (0, 1]", immediate)
        self.later = 1 / (1 + variance)
        # Less than `a` at once would only lag further behind.
        self.immediate = max(immediate, self.later)
        self.memory: Tensor | None = None
        # Used again each time: new memory of this size costs more than all that is computed.
        self._scratch: Tensor | None = None

    def mixed(self, vector: Tensor) -> Tensor:
        """The vector to encode, `b g + a e`, in memory that the next call uses again."""
        if self._scratch is None or self._scratch.device != vector.device:
            self._scratch = torch.empty_like(vector, dtype=torch.float32)
        vector = vector.to(torch.float32)
        if self.memory is None:
            return torch.mul(vector, self.immediate, out=self._scratch)
        return torch.add(self.memory, vector, alpha=self.immediate, out=self._scratch)

    def keep(
        self, vector: Tensor, mixed: Tensor, message: Tensor, seed: HashSeed, method: Method
    ) -> Tensor:
        """Remember what was not sent, after a round that counts.

        Args:
            vector: The new vector.
            mixed: What was encoded; overwritten.
            message: What became of it.
            seed: The round's hashes.
            method: The round's method, whose limit of cells may have moved.

        Returns:
            The table that counts as sent, for `restore`.
        """
        sketch = self._method.sketch
        # What the others saw, but for the noise: fed back, noise would be sent off again.
        if self._limit is None:
            table = method.mean_table(message, 1)
        else:
            table = self._limit.apply(mixed[None], lambda vectors: sketch.encode(vectors, seed))[0]
        if self.memory is None:
            # Made in the first round, when type and device of the vectors are known.
            self.memory = torch.zeros_like(mixed)
        sketch.add_residual(
            self.memory, vector.detach().to(mixed.dtype).contiguous(), table, seed,
            scale=self.later, combine=self._method.combine, scratch=mixed,
        )  # fmt: skip
        return table

    def restore(self, table: Tensor, seed: HashSeed) -> None:
        """Take back what counted as sent in a round that turned out not to count."""
        if self.memory is not None:
            # The opposite of what `keep` took off: the vector of that round stays in the memory.
            sent = self._method.sketch.query(table, seed, combine=self._method.combine)
            self.memory.add_(sent, alpha=self.later)
