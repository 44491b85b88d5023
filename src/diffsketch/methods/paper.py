"""The paper's methods: DiffSketch, and the two Laplace baselines."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_between, check_positive, check_whole
from diffsketch.methods.base import Encoded, Method, NoiseLaw, NoNoise, register
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
    Epsilon,
    PaperClaim,
    Relation,
    Scope,
    Trust,
    Unit,
    rounded_down,
    rounded_up,
)
from diffsketch.privacy.clipping import CoordinateBound, CoordinateQuantizer, clip_coordinates
from diffsketch.privacy.mechanisms.integer import DiscreteLaplaceMechanism
from diffsketch.privacy.mechanisms.padding import padded_tables
from diffsketch.privacy.noise import Noise
from diffsketch.privacy.theorems import claimed_per_round, estimate_alpha, estimates, least_padding
from diffsketch.sketch.hashing import HashSeed
from diffsketch.sketch.kernels.estimators import Combine

_SCOPE = Scope(Unit.COORDINATE, Relation.REPLACE, Trust.LOCAL)  # of the paper's epsilons
_STEPS = 256  # of the clip, at least
_CUT = 1e-6  # probability that noise is cut off in any cell of a message


def _paper_claim(per_round: float, source: str) -> PaperClaim:
    return PaperClaim(_SCOPE, Epsilon(per_round, 0.0, 1, Basis.CLAIMED, _SCOPE), source)


@register
@dataclass(frozen=True, kw_only=True)
class DiffSketch(RoundedTables, TableMethod):
    """Algorithm 2 of the paper, at the workers.

    * Compression: the table of the vector, with `padding` normal numbers appended, of the vector's
      own standard deviation ("the same Gaussian"). Where they are many, the table that they make
      is drawn from its distribution, without drawing them (`privacy.mechanisms.padding`).
    * Validation: Theorem 1 for the length `dim + padding`, with alpha the 90th percentile of the
      sizes of the worker's coordinates and sigma their standard deviation. A worker for whom it
      claims nothing, or more than `per_round`, adds Laplace noise as `SketchLaplace` does.

    **No guarantee**: Theorem 1 is not proven (its authors say so), alpha bounds only nine
    coordinates in ten, and whether a worker adds noise depends on private data. Methods with a
    proof are for when it counts.

    `Encoded` tells what Theorem 1 claims for each worker, and who added noise.

    The arguments of `TableMethod` and `RoundedTables` (a claim about tables holds for what is made
    of them), and:

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
        """Estimate both of each vector; `paper/readings.py` has another alpha."""
        return estimates(batch, validate=False)

    def _noise_share(self, claimed: Tensor) -> Tensor | float:  # noqa: ARG002
        """Share of the Laplace noise that is added where the claim falls short: all of it."""
        return 1.0


class LaplaceBaseline(Method):
    """Laplace noise on every cell, always: Algorithm 2 without its Theorem 1.

    The paper "assume[s] that the input gradients are bounded by a constant alpha with a 90%
    probability" and takes the 90th percentile of each worker's own vector for it. Another value of
    one coordinate then moves a vector by at most `2 alpha` in the L1 norm, and a table, where it is
    in one cell of each row, by `2 alpha rows`: the noise has the scale `sensitivity / per_round`.
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

    # Fields of the dataclasses that inherit, in the order and by the names that they choose.
    per_round: float
    clip: float | None
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

    per_round: float
    clip: float | None = None

    name: ClassVar[str] = "laplace"
    code: ClassVar = 4


@register
@dataclass(frozen=True, kw_only=True)
class SketchLaplace(LaplaceBaseline, TableMethod, Plannable):
    """Laplace noise on every cell of the table, of which one row needs the least.

    `TableMethod` and `LaplaceBaseline` have the arguments; with a `clip`, hashes need not be secret
    for the proof.
    """

    per_round: float
    clip: float | None = None

    name: ClassVar[str] = "sketch-laplace"
    code: ClassVar = 5


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
