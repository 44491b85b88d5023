"""The paper's methods: DiffSketch, and its baselines, which are two of Laplace noise and cpSGD."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_between, check_positive, check_whole
from diffsketch.methods.base import (
    FALSE_REFUSAL,
    Encoded,
    Method,
    NoiseLaw,
    NoNoise,
    register,
)
from diffsketch.methods.forecast import (
    Plannable,
    RelativeError,
    Vectors,
    clipped_coordinates,
    collision_error,
    noise_error,
    rounding_variance,
)
from diffsketch.methods.plain import RoundedTables, TableMethod
from diffsketch.privacy.claim import (
    Basis,
    Claim,
    Epsilon,
    NoClaim,
    PaperClaim,
    Relation,
    RelationName,
    Scope,
    Trust,
    Unit,
    rounded_down,
    rounded_up,
)
from diffsketch.privacy.clipping import (
    CoordinateBound,
    CoordinateQuantizer,
    clip_coordinates,
    clip_norm,
)
from diffsketch.privacy.mechanisms.binomial import PAPER_SETTINGS, BinomialMechanism
from diffsketch.privacy.mechanisms.integer import DiscreteLaplaceMechanism
from diffsketch.privacy.noise import Noise
from diffsketch.privacy.theorems import (
    claimed_per_round,
    estimate_alpha,
    estimates,
    least_padding,
    padded_tables,
)
from diffsketch.sketch.hashing import HashSeed
from diffsketch.sketch.kernels.estimators import Combine
from diffsketch.wire.message import MessageFormat

_SCOPE = Scope(Unit.COORDINATE, Relation.REPLACE, Trust.LOCAL)  # of the paper's epsilons
_STEPS = 256  # of the clip, at least
_DEVIATIONS = 4.5  # of a coordinate, within the range of a plan for cpSGD
_CUT = 1e-6  # probability that noise is cut off in any cell of a message


def _paper_claim(per_round: float, source: str) -> PaperClaim:
    return PaperClaim(_SCOPE, Epsilon(per_round, 0.0, 1, Basis.CLAIMED, _SCOPE), source)


@register
@dataclass(frozen=True, kw_only=True)
class DiffSketch(RoundedTables):
    """Algorithm 2 of the paper, at the workers.

    * Compression: the table of the vector, with `padding` normal numbers appended, of the vector's
      own standard deviation ("the same Gaussian"). Where they are many, the table that they make
      is drawn from its distribution, without drawing them (`privacy.theorems`).
    * Validation: Theorem 1 for the length `dim + padding`, with alpha the 90th percentile of the
      sizes of the worker's coordinates and sigma their standard deviation. A worker for whom it
      claims nothing, or more than `per_round`, adds Laplace noise as `SketchLaplace` does.

    **No guarantee**: Theorem 1 is not proven (its authors say so), alpha bounds only nine
    coordinates in ten, and whether a worker adds noise depends on private data. Methods with a
    proof are for when it counts.

    `Encoded` tells what Theorem 1 claims for each worker, and who added noise.

    The arguments of `RoundedTables` (a claim about tables holds for what is made of them), and:

    Args:
        padding: Number of appended numbers. Without any, Theorem 1 claims something only for tables
            that are very small for the length of the vector.
        per_round: The epsilon that is to be claimed for each message.
        appended: `fixed`: all of them, to every message; `least`: to each message as many as
            Theorem 1 needs to claim `per_round` for it, and none where `padding` is too few.
        combine: By default the median, as in Algorithm 1.
    """

    padding: int = 0
    per_round: float
    appended: Literal["fixed", "least"] = "fixed"
    combine: Combine = field(default="median", kw_only=True)

    name: ClassVar[str] = "diffsketch"
    code: ClassVar = 2

    def __post_init__(self) -> None:
        check_whole("padding", self.padding, least=0)
        super().__post_init__()
        check_positive("per_round", self.per_round)
        check(self.appended in ("fixed", "least"), "appended", "be fixed or least", self.appended)
        if self.appended == "least":
            check(self.padding > 0, "padding", "be >= 1 for the least of it", self.padding)

    @property
    def _sketched(self) -> int:
        return self.dim + self.padding

    @cached_property
    def noise(self) -> NoNoise:
        """The claim of Theorem 1; workers for whom it claims nothing add noise (`_encode`)."""
        source = "Theorem 1 of the paper, with Laplace noise where it claims less,"
        return NoNoise(_paper_claim(self.per_round, source))

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:
        sketch, per_round = self.sketch, self.per_round
        alpha, sigma = self._alpha_and_sigma(batch)
        measured: dict[str, Any] = {"alpha": alpha, "sigma": sigma}
        lengths = None
        if self.appended == "least":
            lengths, claimed = least_padding(
                per_round, self.dim, self.rows, self.cols, most=self.padding, **measured
            )
        else:
            claimed = claimed_per_round(sketch.dim, self.rows, self.cols, **measured)
        tables = padded_tables(batch, sketch, seed=seed, std=sigma, noise=noise, lengths=lengths)
        # Not `claimed > per_round`: where nothing is claimed, it is infinite or no number.
        weak = ~(claimed <= per_round)
        if bool(weak.any()):
            their_noise = noise if bool(weak.all()) else noise.part(weak)
            tables[weak] = add_laplace(
                tables[weak], batch[weak], their_noise,
                alpha=alpha[weak], rows=self.rows, per_round=per_round,
                share=self._noise_share(claimed[weak]),
            )  # fmt: skip
        return self._rounded(Encoded(tables, claimed, weak), noise)

    def _alpha_and_sigma(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Estimate both of each vector; `paper/methods.py` has another alpha."""
        return estimates(batch, validate=False)

    def _noise_share(self, claimed: Tensor) -> Tensor | float:  # noqa: ARG002
        """Share of the Laplace noise that is added where the claim falls short: all of it."""
        return 1.0


@dataclass(frozen=True)
class LaplaceBaseline(Method):
    """Laplace noise on every cell, always: Algorithm 2 without its Theorem 1.

    The paper "assume[s] that the input gradients are bounded by a constant alpha with a 90%
    probability" and takes the 90th percentile of each worker's own vector for it. Another value of
    one coordinate then moves a vector by at most `2 alpha` in the L1 norm, and a table, where it is
    in one cell of each row, by `2 alpha rows`. The paper gives no scale; ours is that sensitivity
    over `per_round`.
    Since one coordinate in ten exceeds alpha, and alpha comes from the private vector, these are no
    sensitivities, and what follows (`clip=None`) is claimed and not proven.

    With a `clip`, coordinates are clipped to `[-clip, clip]` and rounded at random to multiples of
    `clip / steps`, `steps` being 256, or more where the roundings of all coordinates in a cell
    would add over 0.5% to the variance of the noise, which is discrete Laplace noise. The claim is
    proven, pure, for one coordinate, and exactly `per_round` for one round.

    Args:
        per_round: Epsilon of one message.
        clip: Limit of a coordinate, or None for the paper's reading.
    """

    per_round: float
    clip: float | None = None

    margins: ClassVar[tuple[float, ...]] = (3.0, 1.645, 1.8, 2.0, 2.25, 2.5, 2.75, 3.5, 4.0, 5.0)
    """Clips in standard deviations of a coordinate; 1.645, the paper's, keeps nine tenths."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("per_round", self.per_round)
        if self.clip is not None:
            check_between("clip", self.clip, 1e-30, 1e30)
            check_between("per_round", self.per_round, 1e-9, 1e9)
            _ = self.mechanism  # checks the rest

    @cached_property
    def mechanism(self) -> DiscreteLaplaceMechanism | None:
        """The mechanism that clips, rounds and adds noise; None for the paper's reading."""
        if self.clip is None:
            return None
        shape, rows, table = self.encoder.shape, self.encoder.rows, {}
        expected = self.dim / shape[-1]
        if len(shape) == 2:
            # Six standard deviations more than the mean, as coordinates meet at random: room, not
            # privacy.
            load = math.ceil(expected + 6 * math.sqrt(expected) + 6)
            table = {"dim": self.dim, "load": min(self.dim, load)}
        # Coordinates that meet in a cell add their roundings up beside one draw of the noise.
        # So that rounding adds at most 0.5% to the variance of the noise.
        steps = max(_STEPS, math.ceil(2.5 * self.per_round * math.sqrt(expected) / rows))
        bound = CoordinateBound(self.clip, rows)
        quantizer = CoordinateQuantizer(bound, steps, math.prod(shape), **table)
        return DiscreteLaplaceMechanism(quantizer, 1 / self.per_round).with_bits_for(_CUT)

    @cached_property
    def noise(self) -> NoiseLaw:
        """The mechanism, or the claim of the paper's reading."""
        if self.mechanism is not None:
            return self.mechanism
        sent = "sketches" if len(self.encoder.shape) == 2 else "raw vectors"
        return NoNoise(_paper_claim(self.per_round, f"the paper's Laplace noise on {sent}"))

    def after_clipping(self, vectors: Tensor) -> Tensor:
        """Return the vectors with clipped coordinates; unchanged in the paper's reading."""
        return vectors if self.clip is None else clip_coordinates(vectors, self.clip)

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:
        encoded = super()._encode(batch, seed, noise)
        if self.mechanism is not None:
            return encoded
        messages = add_laplace(
            encoded.messages, batch, noise,
            alpha=self._alpha(batch), rows=self.encoder.rows, per_round=self.per_round,
        )  # fmt: skip
        return Encoded(messages)

    def _alpha(self, batch: Tensor) -> Tensor:
        """Estimate the bound on coordinates that the paper's reading takes from each vector."""
        return estimate_alpha(batch)

    @classmethod
    def planned(
        cls, vectors: Vectors, scope: Scope, *, cells: int, bits: int | None, margin: float
    ) -> dict[str, Any] | None:
        """Settings, all but the noise; the grid is the method's own."""
        sized = cls._sized(vectors.dim, cells)
        if scope != replace(_SCOPE, relation=scope.relation) or bits is not None or sized is None:
            return None
        return {**sized, "clip": float(rounded_up(margin * vectors.norm / vectors.dim**0.5, 4))}

    @classmethod
    def noise_settings(cls, level: float) -> dict[str, Any]:
        """Choose the epsilon of one message."""
        return {"per_round": float(rounded_down(1 / level, 4))}

    def forecast(self, vectors: Vectors) -> RelativeError:
        """Predict the error of one round."""
        if self.mechanism is None or self.clip is None:
            raise ArgumentError("clip must be given for a forecast, got clip=None")
        encoder, rows = self.encoder, self.encoder.rows
        step, cols = self.mechanism.step, encoder.shape[-1]
        # All coordinates that meet in a cell were rounded on their own.
        rounding = rounding_variance(vectors.norm / math.sqrt(self.dim) / step) * self.dim / cols
        collisions = collision_error(encoder)
        return replace(
            clipped_coordinates(vectors, self.clip, collisions=collisions),
            noise=noise_error(vectors, self.mechanism.std**2 / vectors.count, rows=rows),
            rounding=noise_error(vectors, step**2 * rounding / vectors.count, rows=rows),
        )


@register
@dataclass(frozen=True)
class RawLaplace(LaplaceBaseline, Plannable):
    """Laplace noise on every coordinate, and no compression: Algorithm 2 without its sketch.

    `LaplaceBaseline` has the arguments, and says what a `clip` changes.

    >>> from diffsketch.sketch import SketchKey
    >>> seed = SketchKey.from_integer(0).seed(0)
    >>> print(RawLaplace(100, per_round=0.5, clip=1.0).claim_for(10, seed))
    ... # doctest: +NORMALIZE_WHITESPACE
    Proven: discrete Laplace noise of standard deviation 5.657 on whole numbers limits how well
    anyone who sees a client's message can tell which of two values one coordinate of a vector has.
    """

    name: ClassVar[str] = "laplace"
    code: ClassVar = 4


@register
@dataclass(frozen=True, kw_only=True)
class SketchLaplace(LaplaceBaseline, TableMethod, Plannable):
    """Laplace noise on every cell of the table, of which one row needs the least.

    `TableMethod` and `LaplaceBaseline` have the arguments; with a `clip`, hashes need not be secret
    for the proof.
    """

    name: ClassVar[str] = "sketch-laplace"
    code: ClassVar = 5


@register
@dataclass(frozen=True, kw_only=True)
class CpSgd(Plannable):
    """Agarwal et al.'s cpSGD, the paper's baseline with whole numbers.

    The vector is clipped to norm `clip`, its coordinates are clipped to `[-limit, limit]` and
    rounded at random to one of `levels` levels, and a binomial number of `trials` fair trials is
    added to each. The mean is the sum, less the noise's mean, over the number of workers.

    Under distributed trust the noise of all workers together hides one client, if there is enough
    of it; `claim_for` says what is proven, and that nothing is where the theorem's condition fails.
    A message has as many bits a number as the secure sum of the cohort needs.

    *The paper's settings* are those of `PAPER_SETTINGS`: `claimed=5.0` or `10.0`, with `bits` 4
    (if not given) or 5, takes levels and trials from its table. They were run with 10 workers a
    round, break the theorem's condition by far, and are shown as claimed. Messages then have the
    paper's 4 or 5 bits, which hold one worker's number and leave no room for a secure sum: that is
    the paper's accounting. (Where workers are enough for a proof, they have the bits of the sum.)
    The paper does not say which range it took for coordinates; `limit=1` needs no look at the data.

    Args:
        dim: Length of the vectors.
        cohort: Workers of a round, at most.
        clip: Norm of a vector. If not given, `limit * sqrt(dim)`: none that fits the range is
            clipped, and the claim is accordingly weak.
        limit: Range of a coordinate, X in the paper.
        levels: Of a coordinate, k in the paper.
        trials: Of the noise, m in the paper.
        delta: That the claim is made for.
        claimed: An epsilon of the paper's table.
        bits: To choose from the paper's table.
        relation: Which data sets are neighbours.

    >>> CpSgd(dim=7850, cohort=10, claimed=5.0).wire_bytes
    3929
    >>> CpSgd(dim=7850, cohort=10, levels=12, trials=4).wire_bytes
    7854
    """

    cohort: int
    clip: float | None = None
    limit: float = 1.0
    levels: int | None = None
    trials: int | None = None
    delta: float = 1e-5
    claimed: float | None = None
    bits: int | None = None
    relation: RelationName = Relation.REPLACE

    name: ClassVar[str] = "cpsgd"
    code: ClassVar = 6
    margins: ClassVar = (16, 2, 4, 8, 32, 64, 256)
    """Levels of a coordinate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("cohort", self.cohort, least=1)
        check_positive("limit", self.limit)
        if self.clip is not None:
            check_positive("clip", self.clip)
        object.__setattr__(self, "relation", self.mechanism.relation)

    @cached_property
    def mechanism(self) -> BinomialMechanism:
        """The mechanism that clips and adds noise, with levels and trials as given or claimed."""
        levels, trials = self.levels, self.trials
        if self.claimed is not None:
            # The first row that agrees in all that was given: 4 bits where nothing was said.
            wanted = (self.claimed, self.bits, levels, trials)
            rows = [
                row for row in PAPER_SETTINGS
                if all(value in (None, its) for value, its in zip(wanted, row, strict=True))
            ]  # fmt: skip
            if not rows:
                table = (f"{s.claimed:g} {s.bits} {s.levels} {s.trials}" for s in PAPER_SETTINGS)
                raise ArgumentError(
                    "claimed, bits, levels and trials must be a row of the paper's table "
                    f"({'; '.join(table)}), got claimed={self.claimed}, bits={self.bits}, "
                    f"levels={levels}, trials={trials}"
                )
            _, _, levels, trials = rows[0]
        elif self.bits is not None:
            raise ArgumentError("bits must come with claimed: levels and trials decide them")
        if levels is None or trials is None:
            missing = "levels" if levels is None else "trials"
            raise ArgumentError(f"{missing} must be given, or claimed for the paper's settings")
        check_whole("levels", levels, least=2)
        check_whole("trials", trials, least=1)
        clip = self.limit * math.sqrt(self.dim) if self.clip is None else self.clip
        return BinomialMechanism(
            self.dim, clip, self.limit, levels, trials, self.cohort, self.delta,
            relation=self.relation,
        )  # fmt: skip

    @property
    def most_messages(self) -> int | None:
        """The cohort, whose sum must not wrap."""
        return self.cohort

    @cached_property
    def message_format(self) -> MessageFormat:
        """Format of the secure sum; where there is only the paper's claim, that of the paper."""
        sent = self.mechanism
        bits = sent.bits if isinstance(self._claim, PaperClaim) else sent.sum_bits
        return self._format((self.dim,), "unsigned", bits)

    def sum_bits(self, count: int) -> int:  # noqa: ARG002
        """Bits of a cell of the cohort's sum, which does not wrap."""
        return self.mechanism.sum_bits

    @cached_property
    def _claim(self) -> Claim:
        return self._claim_of(self.cohort)

    def _claim_for(self, present: int, seed: HashSeed) -> Claim:  # noqa: ARG002
        return self._claim if present == self.cohort else self._claim_of(present)

    def _claim_of(self, present: int) -> Claim:
        claim = self.mechanism.claim_for(present)
        if self.claimed is None or not isinstance(claim, NoClaim):
            return claim
        per_round = Epsilon(self.claimed, self.delta, 1, Basis.CLAIMED, claim.scope)
        # A paper's claim is for its own messages, which a secure sum cannot add up.
        size = f"messages of {self.mechanism.bits} bits that leave no room for a secure sum"
        source = f"the paper's table for cpSGD (where {claim.reason}), with {size},"
        return PaperClaim(claim.scope, per_round, source)

    def honest_norm(self, count: int = 1, *, failure: float = FALSE_REFUSAL) -> float:
        """Bound by clip, rounding and the noise of `count` workers."""
        return self.mechanism.largest_norm(count, failure)

    def norm_of(self, total: Tensor, count: int = 1) -> float:
        """Norm of the numbers that the cells stand for, less the noise's mean."""
        return float(torch.linalg.vector_norm(self.mechanism.centred(total, count)))

    def after_clipping(self, vectors: Tensor) -> Tensor:
        """Return the vectors clipped to a norm, and to the range of coordinates."""
        return clip_coordinates(clip_norm(vectors, self.mechanism.clip), self.limit)

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:  # noqa: ARG002
        return Encoded(self.mechanism.release(batch, noise))

    def _decode(self, total: Tensor, seed: HashSeed, count: int, *, out: Tensor | None) -> Tensor:  # noqa: ARG002
        return (self.mechanism.centred(total, count) / count).float()

    @classmethod
    def planned(
        cls, vectors: Vectors, scope: Scope, *, cells: int, bits: int | None, margin: float
    ) -> dict[str, Any] | None:
        """Settings, all but the noise: a range that dense vectors hardly ever leave."""
        wanted = Scope(Unit.CLIENT, scope.relation, Trust.DISTRIBUTED)
        if scope != wanted or bits is not None or cells < vectors.dim:
            return None
        # No coordinate exceeds the norm, and hardly any 4.5 of its standard deviations.
        limit = min(vectors.norm, _DEVIATIONS * vectors.norm / math.sqrt(vectors.dim))
        return {
            "clip": vectors.norm, "limit": float(rounded_up(limit, 4)), "levels": int(margin),
            "relation": scope.relation.value,
        }  # fmt: skip

    @classmethod
    def noise_settings(cls, level: float) -> dict[str, Any]:
        """Choose the trials of the noise."""
        return {"trials": max(1, math.ceil(level))}

    def forecast(self, vectors: Vectors) -> RelativeError:
        """Predict the error of one round."""
        mechanism, count = self.mechanism, vectors.count
        cell = min(vectors.norm, mechanism.clip) / math.sqrt(mechanism.dim) / mechanism.step
        rounding = mechanism.step**2 * rounding_variance(cell) / count
        return replace(
            clipped_coordinates(vectors, self.limit),
            noise=noise_error(vectors, mechanism.step**2 * mechanism.trials / 4 / count),
            rounding=noise_error(vectors, rounding),
        )


def add_laplace(
    messages: Tensor,
    vectors: Tensor,
    noise: Noise,
    *,
    alpha: Tensor,
    rows: int,
    per_round: float,
    share: Tensor | float = 1.0,
) -> Tensor:
    """Add Laplace noise to messages `(workers, ...)`, of scale `2 alpha rows / per_round * share`.

    A vector with nine zeros in ten has an alpha of 0, and would get no noise by the paper's rule.
    Its largest coordinate stands in for alpha then (our reading; zeros stay as they are).
    """
    if float(alpha.min()) == 0:
        alpha = torch.where(alpha > 0, alpha, vectors.abs().amax(dim=-1).double())
    # One factor for each message: noise of scale 1 is drawn for all of them at once.
    scales = (alpha * (2 * rows / per_round) * share).to(messages.dtype)
    drawn = noise.laplace(tuple(messages.shape), 1.0, dtype=messages.dtype).to(messages.device)
    return torch.addcmul(messages, drawn, scales.reshape(-1, *(1,) * (messages.dim() - 1)))
