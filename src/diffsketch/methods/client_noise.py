"""Gaussian and Skellam noise that hides a whole client, with adaptive clipping."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from diffsketch.errors import (
    ArgumentError,
    check,
    check_between,
    check_choice,
    check_positive,
    check_whole,
)
from diffsketch.methods.base import FALSE_REFUSAL, MANY, Method, register
from diffsketch.methods.forecast import (
    Plannable,
    RelativeError,
    Vectors,
    clipped_norm,
    noise_error,
    rounding_variance,
)
from diffsketch.methods.plain import TableMethod
from diffsketch.privacy.claim import (
    Relation,
    RelationName,
    Scope,
    Trust,
    TrustName,
    Unit,
    UnitName,
    rounded_up,
)
from diffsketch.privacy.clipping import MAX_BITS, FlaggedBound, NormBound, Quantizer
from diffsketch.privacy.mechanisms.integer import (
    DiscreteGaussianMechanism,
    IntegerMechanism,
    SkellamMechanism,
)
from diffsketch.wire.message import WireError

_RATE = 0.2  # of the paper
_ERROR = 0.05  # standard deviation of the share of clients within the clip, if it can be had
_NOISY = 0.5  # from here on that noise is more than the share can tell, and the rate is lower
_LEAST_SHARE, _MOST_SHARE, _ANY_SHARE = 0.02, 0.5, 0.1
_WRAPS = 1e-6  # probability that any cell of a message (of the sum, if that wraps) is cut off
# Steps of the clip, at least, and roundings over the noise: times the noise's fineness.
_STEPS, _ROUNDING = 256.0, 5.0
_CLIPS, _MULTIPLIERS = (1e-30, 1e30), (1e-9, 1e9)  # what float32 and whole numbers have room for
_MOST_SHARES = 10**5  # of discrete Gaussian noise in a plan: its bound is a sum over them


def flag_share(noise_multiplier: float, *, cohort: int | None, trust: Trust) -> float:
    """Choose the size of the flag, in clips.

    The larger, the better the share of clients within the clip is known, and the more noise all
    other cells have: a factor `sqrt(1 + s**2)` for a flag of size `s`. The share is known to
    `noise_multiplier * sqrt(1 + s**2) / (s * n)`, with `n` the cohort, or its square root where
    every client adds all of the noise. The rule: the smallest `s` for which that is 0.05, the
    paper's advice, but at least 0.02 and at most 0.5, which costs 12% of noise. Without a cohort
    it is 0.1.

    >>> round(flag_share(3.0, cohort=1000, trust=Trust.DISTRIBUTED), 4)
    0.0601
    """
    if cohort is None:
        return _ANY_SHARE
    # Noise of all clients grows with the root of their number, their flags with the number.
    together = math.sqrt(cohort) if trust == Trust.LOCAL else cohort
    ratio = _ERROR * together / noise_multiplier
    # Solves `noise_multiplier sqrt(1 + s**2) / (s n) = 0.05` for `s`.
    share = 1 / math.sqrt(ratio**2 - 1) if ratio > 1 else _MOST_SHARE
    return min(max(share, _LEAST_SHARE), _MOST_SHARE)


def next_clip(clip: float, within: float, quantile: float, *, error: float) -> float:
    """Compute the clip of the next round, by the noisy share of clients `within` this one.

    The rate is the paper's 0.2 as long as the noise on the share, of standard deviation `error`,
    leaves something to be seen. Else it is lower, with the square of the noise, so that the clip
    settles near the quantile all the same, only later; and no round changes a clip by more than a
    factor of e.

    >>> next_clip(1.0, 0.9, 0.5, error=0.05)  # too large: most are within
    0.9231163463866358
    """
    # The step's variance then stays below that of rounds in which the share can be seen.
    rate = _RATE * min(1.0, (_NOISY / error) ** 2)
    step = min(max(rate * (within - quantile), -1.0), 1.0)
    return min(max(clip * math.exp(-step), _CLIPS[0]), _CLIPS[1])


@dataclass(frozen=True, kw_only=True)
class ClientNoise(Method):
    """Clip to a norm, round onto a grid, add whole-number noise: a claim about whole clients.

    What is *sent* is clipped, to a Euclidean norm of `clip`: the vector, or its table, since a
    sketch can make a vector longer. Replacing a client's data moves it by at most `2 clip`, taking
    the data away (zeros instead) by `clip`, and rounding adds a little, which is counted. The
    noise's standard deviation is `noise_multiplier` times that sensitivity.

    * local: each worker adds all of the noise to its own message.
    * central: workers send clipped messages to a server that they trust, and `publish` adds it.
    * distributed (under a secure sum, where nobody sees a single message): each of the `cohort`
      workers adds its share, and messages are taken modulo `2**bits`. If fewer contribute, there
      is less noise: `claim_for(present, seed)` says what that leaves.

    *The grid.* A step is `granularity` wide. If it is not given, then with `bits` it is the finest
    for which a message (the sum of the cohort, for distributed trust) is cut off with a probability
    of at most 1e-6; and without, `clip / max(256 f, 5 f sqrt(cells), 5 f sqrt(n) / (c
    noise_multiplier))`. `n` is the number of messages beside one draw of the noise (1 for local
    trust, else the cohort, for central trust 4096 at least), `c` is 2 (1 for add-or-remove), and
    `f` is the noise's `fineness`: 4 for Gaussian noise, where rounding adds at most 0.4% to the
    standard deviation of the noise and 0.3% to the variance of the mean beside it; 1 for Skellam
    noise, which saves two bits of a cell for 2% and 1%. If `bits` are not given, they are the
    fewest for that probability.

    *Adaptive clipping.* With a `clip_quantile` the clip moves from round to round towards that
    quantile of the norms (see `next_clip`). A message has one more cell for it, which is clipped,
    gets noise and is accounted for with the others; lengths, noise and steps are all in units of
    the round's clip, so the claim is that of `noise_multiplier` whatever the clip.

    *Records instead of clients.* With `unit="example"` or `"person"` a message is the noisy sum of
    what a silo's records give, each bounded on its own (`diffsketch.silos.messages`), and the
    claim is about one record. Silos draw their records in secret, each with probability `rate`
    (`mechanism.sampler`). Sums are divided by `records`, the number that a message has in the mean:
    a public number, as the true one is secret. Under distributed trust shares are for `cohort -
    lost` silos: `lost` of them may stay away or tell others their noise.

    Guarantees (`tests/methods/test_client_noise.py`): the sensitivity holds for the whole
    numbers that are sent; with Gaussian noise, epsilon and error are within 1% of the real-valued
    mechanism's.

    Args:
        dim: Length of the vectors.
        clip: Norm of what is sent. That of a dense vector's table is about `sqrt(rows)` times the
            vector's. The first round's, with `clip_quantile`.
        noise_multiplier: Standard deviation of the noise, in sensitivities.
        cohort: Workers of a round, at most. Needed for distributed trust; elsewhere more may come.
        bits: Of a cell of a message.
        granularity: Width of a step. It follows the clip, with `clip_quantile`.
        relation: Which data sets are neighbours.
        trust: Who must be trusted, and so who adds the noise.
        clip_quantile: Share of clients that should not need clipping; None for a fixed clip.
        unit: What the clip bounds and the claim hides: a client, or an example or person in one.
        rate: Probability of a record to be in a message.
        records: Records of a message in the mean; sums are divided by it. Where each message is
            looked at, under local and central trust, no silo should have far more than that.
        lost: Members under distributed trust whose noise the claim does without.
    """

    clip: float
    noise_multiplier: float
    cohort: int | None = None
    bits: int | None = None
    granularity: float | None = None
    relation: RelationName = Relation.REPLACE
    trust: TrustName = Trust.LOCAL
    clip_quantile: float | None = None
    unit: UnitName = Unit.CLIENT
    rate: float = 1.0
    records: float = 1.0
    lost: int = 0

    law: ClassVar[type[DiscreteGaussianMechanism | SkellamMechanism]]
    margins: ClassVar[tuple[float, ...]] = (0.0,)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("clip", self.clip, *_CLIPS)
        check_between("noise_multiplier", self.noise_multiplier, *_MULTIPLIERS)
        if self.cohort is not None:
            check_whole("cohort", self.cohort, least=1)
        elif self.trust == Trust.DISTRIBUTED:
            raise ArgumentError("cohort must be given for distributed trust, got cohort=None")
        if self.bits is not None:
            check_whole("bits", self.bits, least=1)
            central = self.trust == Trust.CENTRAL
            check(not central, "bits", "not be given for central trust; see granularity", self.bits)
        if self.granularity is not None:
            check_positive("granularity", self.granularity)
        object.__setattr__(self, "unit", check_choice("unit", self.unit, Unit))
        object.__setattr__(self, "takes_records", self.unit in (Unit.EXAMPLE, Unit.PERSON))
        if self.takes_records and self.relation != Relation.ADD_OR_REMOVE:
            raise ArgumentError(
                f"relation must be add-or-remove for unit={self.unit!s}: how many records there "
                f"are is not known to anybody, got relation={self.relation!s}"
            )
        if self.clip_quantile is not None:
            quantile = self.clip_quantile
            check(not self.takes_records, "clip_quantile", "be None for records", quantile)
            share = isinstance(quantile, float) and 0 < quantile < 1
            check(share, "clip_quantile", "be > 0 and < 1", quantile)
            object.__setattr__(self, "_extra_cells", 1)  # for the flag
            object.__setattr__(self, "_unit", self.clip)
        object.__setattr__(self, "relation", self.mechanism.relation)
        object.__setattr__(self, "trust", self.mechanism.trust)

    @property
    def max_summands(self) -> int:
        """Number of messages that a sum is sized for: the cohort, or 4,096 where more may come."""
        if self.trust == Trust.DISTRIBUTED and self.cohort is not None:  # may be text at first
            return self.cohort
        return max(self.cohort or 1, MANY)

    @cached_property
    def noise(self) -> IntegerMechanism:
        """The noise of `Method`: `mechanism`."""
        return self.mechanism

    @cached_property
    def mechanism(self) -> IntegerMechanism:
        """The mechanism that clips, rounds, adds noise and makes the claim."""
        scope = Scope(self.unit, self.relation, self.trust)  # checks, and converts names
        length, cells = self.clip, math.prod(self.encoder.shape) + self._extra_cells
        bound: NormBound | FlaggedBound = NormBound(length, self.unit)
        if self.clip_quantile is not None:  # in units of the clip: the same for every round
            share = flag_share(self.noise_multiplier, cohort=self.cohort, trust=scope.trust)
            length, bound = 1.0, FlaggedBound(share, scope.relation)
        # Messages whose roundings add up beside one draw of the noise.
        together = 1 if scope.trust is Trust.LOCAL else self.max_summands
        # Records of a message are rounded by one dither: their roundings may be all alike.
        roundings = math.sqrt(together) * self.records
        beside = _ROUNDING * roundings / (scope.relation.values * self.noise_multiplier)
        # Fine for the clip, for the norm of all roundings, and beside the noise of the sum.
        steps = self.law.fineness * max(_STEPS, _ROUNDING * math.sqrt(cells), beside)
        chosen = self.granularity
        step = length / steps if chosen is None else chosen * length / self.clip
        start = self.law(
            Quantizer(bound, step, cells), self.noise_multiplier,
            relation=scope.relation, trust=scope.trust, bits=self.bits or MAX_BITS,
            cohort=self.cohort if scope.trust is Trust.DISTRIBUTED and self.cohort else 1,
            lost=self.lost, rate=self.rate, records=self.records,
        )  # fmt: skip
        # Bits are given and steps are not: the steps are as fine as the bits allow.
        if chosen is None and self.bits is not None:
            return start.with_granularity_for(_WRAPS)
        fits = start.with_bits_for(_WRAPS)
        if self.bits is None:
            return fits
        if self.bits < fits.bits:
            raise ArgumentError(
                f"bits must be >= {fits.bits} for this granularity, cohort and noise, or numbers "
                f"are cut off, got bits={self.bits}"
            )
        return start

    @cached_property
    def most_messages(self) -> int | None:
        """The cohort, where it shares the noise."""
        return self.cohort if self.trust is Trust.DISTRIBUTED else None

    @property
    def round_clip(self) -> float | None:
        """The round's clip, with a `clip_quantile`; else None."""
        return None if self.clip_quantile is None else self.clip

    def at_clip(self, clip: float) -> Self:
        """Return the same method in a round with this clip, with a `clip_quantile`."""
        if self.clip_quantile is None:
            return super().at_clip(clip)
        check(_CLIPS[0] <= clip <= _CLIPS[1], "clip", "be in [1e-30, 1e+30]", clip)
        # Steps and noise are in clips: of the mechanism nothing changes with the clip.
        other = copy(self)  # with all that was computed, which does not depend on the clip
        object.__setattr__(other, "clip", clip)
        object.__setattr__(other, "_unit", clip)
        return other

    def after(self, total: Tensor, *, count: int | float) -> Self:
        """Move the clip by the flags of the sum, with a `clip_quantile`."""
        bound = self.mechanism.quantizer.bound
        if self.clip_quantile is None or not isinstance(bound, FlaggedBound):
            return self
        step, spread = self.mechanism.step, self.mechanism.std
        if self.trust is Trust.LOCAL:
            spread *= math.sqrt(count)
        # The flags' sum is `share` for each clipped message and `low` for each other one.
        apart = bound.share - bound.low
        within = (bound.share - int(self.mechanism.centred(total[-1:])) * step / count) / apart
        # Of the noise and of the roundings of all messages, at most half a step each.
        error = math.hypot(spread, math.sqrt(count) * step / 2) / (apart * count)
        return self.at_clip(next_clip(self.clip, within, self.clip_quantile, error=error))

    def after_clipping(self, vectors: Tensor) -> Tensor:
        """Return the vectors clipped to a norm: tables are `sqrt(rows)` times as long, about."""
        # Not by `clip_norm`, whose care for the last bit takes longer than all else of a mean.
        norms: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True, dtype=torch.float64)
        factors = (self.clip / math.sqrt(self.encoder.rows) / norms).clamp(max=1)
        return vectors * factors.float()

    def check_honest(self, total: Tensor, count: int = 1, *, limit: float = math.inf) -> float:
        """Refuse what honest workers do not send: also, where the clip moves, too large a flag."""
        norm = super().check_honest(total, count, limit=limit)
        bound = self.mechanism.quantizer.bound
        if isinstance(bound, FlaggedBound):
            flag = self.norm_of(total[-1:])
            most = self.mechanism.largest_cell(count, bound.share, FALSE_REFUSAL)
            if flag > most:
                raise WireError(
                    f"the flag of {count} messages is {flag:.4g}, and that of honest clients is "
                    f"at most {most:.4g}"
                )
        return norm

    @classmethod
    def planned(
        cls, vectors: Vectors, scope: Scope, *, cells: int, bits: int | None, margin: float
    ) -> dict[str, Any] | None:
        """Settings, all but the noise: Skellam noise only where it is shared by a secure sum."""
        shared, sizes = scope.trust is Trust.DISTRIBUTED, cls._sized(vectors.dim, cells)
        few = not shared or scope.unit is not Unit.CLIENT or vectors.count <= _MOST_SHARES
        suited = shared if cls.law.adds_up else few
        if scope.unit is Unit.COORDINATE or not suited or sizes is None:
            return None
        clip = vectors.norm
        if "cols" in sizes:
            # A table's norm varies around the vector's: by `1 / sqrt(2 cols)` of it, as a chi-
            # squared root.
            clip = float(rounded_up(clip * (1 + margin / math.sqrt(2 * sizes["cols"])), 4))
        settings = {"clip": clip, "relation": scope.relation.value, "trust": scope.trust.value}
        if bits is not None and scope.trust is Trust.CENTRAL:
            # Without noise a cell is within the clip: `2**(bits - 1)` steps on each side of 0.
            settings["granularity"] = float(rounded_up(clip * 0.5 ** (bits - 1), 4))
        elif bits is not None:
            settings["bits"] = bits
        return sizes | settings

    @classmethod
    def noise_settings(cls, level: float) -> dict[str, Any]:
        """The multiplier of the noise."""
        return {"noise_multiplier": float(rounded_up(level, 4))}

    def forecast(self, vectors: Vectors) -> RelativeError:
        """Predict the error of one round."""
        mechanism, count, rows = self.mechanism, vectors.count, self.encoder.rows
        messages = count / self.records
        # Draws of the mechanism's noise in the sum: each member's share, or the server's one.
        drawn = messages / (mechanism.cohort - self.lost) if self.trust != Trust.CENTRAL else 1.0
        # The clip is for tables, `sqrt(rows)` times as long as their vectors.
        unit, ratio = self.round_clip or 1.0, self.clip / math.sqrt(rows) / vectors.norm
        step, cols = mechanism.step * unit, self.encoder.shape[-1]
        # Standard deviation of a cell of a table: dense vectors spread evenly over a row.
        cell = min(vectors.norm, self.clip / math.sqrt(rows)) / math.sqrt(cols)
        # Records of a message have one dither: alike, they are all rounded to the same side.
        rounding = step**2 * rounding_variance(cell / step) / messages
        return replace(
            clipped_norm(vectors, self.encoder, clip_ratio=ratio),
            noise=noise_error(vectors, drawn * (mechanism.std * unit) ** 2 / count**2, rows=rows),
            rounding=noise_error(vectors, rounding, rows=rows),
        )


_MARGINS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
"""Standard deviations of a table's norm above its mean: nearly `1 / sqrt(2 cells)` of it."""


@register
@dataclass(frozen=True, kw_only=True)
class SketchGaussian(ClientNoise, TableMethod, Plannable):
    """Clipped tables under discrete Gaussian noise: arguments of `TableMethod` and `ClientNoise`.

    >>> SketchGaussian(7850, 7, 22, clip=1.0, noise_multiplier=4.0).wire_bytes
    332
    """

    name: ClassVar[str] = "sketch-gaussian"
    code: ClassVar = 7
    margins: ClassVar = _MARGINS
    law: ClassVar = DiscreteGaussianMechanism


@register
@dataclass(frozen=True, kw_only=True)
class SketchSkellam(ClientNoise, TableMethod, Plannable):
    """Clipped tables under Skellam noise, as a rule shared by a cohort under a secure sum.

    Arguments of `TableMethod` and `ClientNoise`.

    >>> method = SketchSkellam(7850, 7, 22, clip=1.0, noise_multiplier=4.0, cohort=1000)
    >>> method.message_format.bits, method.wire_bytes
    (20, 389)
    """

    trust: TrustName = Trust.DISTRIBUTED

    name: ClassVar[str] = "sketch-skellam"
    code: ClassVar = 8
    margins: ClassVar = _MARGINS
    law: ClassVar = SkellamMechanism


@register
@dataclass(frozen=True, kw_only=True)
class GaussianMean(ClientNoise, Plannable):
    """A dense mean under discrete Gaussian noise, as DP-FedAvg: arguments of `ClientNoise`.

    >>> GaussianMean(dim=7850, clip=1.0, noise_multiplier=4.0).message_format.bits
    18
    """

    name: ClassVar[str] = "gaussian"
    code: ClassVar = 10
    law: ClassVar = DiscreteGaussianMechanism


@register
@dataclass(frozen=True, kw_only=True)
class SkellamMean(ClientNoise, Plannable):
    """A dense mean under Skellam noise, as a rule of a secure sum: arguments of `ClientNoise`."""

    trust: TrustName = Trust.DISTRIBUTED

    name: ClassVar[str] = "skellam"
    code: ClassVar = 11
    law: ClassVar = SkellamMechanism
