"""A private, compressed mean of distributed vectors as an encoder and a noise; the registry.

    message = method.encode(vector, seed, noise)     at each worker
    total   = message + message + ...                a sum: all that an engine does
    total   = method.publish(total, noise)           at the server: adds noise if it is trusted
    mean    = method.decode(total, seed, count=...)  at whoever has the seed

All of a method's numbers are fixed beforehand, in one frozen object, from which the clipping, the
noise and the claim come. What depends on the round is the seed.

A method is one class with the decorator `register`: command line, planner, audit, wire and engines
find it in `METHODS`, with its settings (the fields of the dataclass) and its wire code.
"""

from __future__ import annotations

import json
import math
from abc import ABC
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self, TypeAlias, TypeVar

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, MismatchError, check, check_whole, did_you_mean
from diffsketch.privacy.claim import Claim, NoClaim, Relation, Scope, Trust, Unit
from diffsketch.privacy.clipping import CoordinateQuantizer
from diffsketch.privacy.mechanisms.integer import IntegerMechanism
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.count_sketch import CountSketch, check_seed
from diffsketch.sketch.hashing import Geometry, HashSeed
from diffsketch.sketch.kernels.estimators import Combine
from diffsketch.wire.message import Cells, MessageFormat, WireError

FALSE_REFUSAL = 1e-9
"""Largest probability that an honest message is refused for its norm."""

MANY = 4096
"""Number of messages that an unencrypted sum is sized for if no cohort is given."""

_NAMED = 5  # rows that an error lists
_SLACK = 1e-6  # relative: what rounding to float32 may add to a norm


@dataclass(frozen=True, eq=False)
class Encoded:
    """Messages, and what their workers know about their own privacy and keep to themselves.

    Attributes:
        messages: `(workers, *shape)`, or `(*shape)` of a single worker: float32, or whole numbers
            (int64, or int8 and int16 for cells of few bits). May be the caller's vectors
            themselves: do not write into them.
        claimed: For methods that validate by Theorem 1: the epsilon that it claims for each
            worker's bare message (float64; claimed, for one coordinate and one round), infinite
            where it claims nothing. It depends on private data, so it stays with the worker.
        noised: For the same methods: which workers had to add noise (bool).
        saturated: For methods whose cells have few bits: how many cells of each message are beyond
            the round's limit and were brought back to it (int64).
    """

    messages: Tensor
    claimed: Tensor | None = None
    noised: Tensor | None = None
    saturated: Tensor | None = None

    def __getitem__(self, worker: int) -> Encoded:
        """The message of one worker of a batch."""
        private = self.claimed, self.noised, self.saturated
        return Encoded(self.messages[worker], *(None if v is None else v[worker] for v in private))


@dataclass(frozen=True)
class Encoder:
    """A linear map from vectors to cells, and estimates back: here, the identity."""

    dim: int

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the cells: `(dim,)`, or `(rows, cols)` of a table."""
        return (self.dim,)

    @cached_property
    def rows(self) -> int:
        """Number of cells that each coordinate is in."""
        return 1

    @property
    def collision_share(self) -> float:
        """Share of the pairs of coordinates that may meet in a cell."""
        return 0.0

    def encode(self, vectors: Tensor, seed: HashSeed) -> Tensor:  # noqa: ARG002
        """Encode vectors `(workers, dim)` as cells `(workers, *shape)`."""
        return vectors

    def decode(self, cells: Tensor, seed: HashSeed, out: Tensor | None) -> Tensor:  # noqa: ARG002
        """Estimate the vector `(dim,)` with these cells: in `out`, unless there is no need."""
        return cells


@dataclass(frozen=True)
class Tables(Encoder):
    """Count Sketch tables.

    Args:
        dim: Length of the vectors.
        sketch: Sketch of the vectors, or of longer ones that begin with them.
        combine: How the rows' estimates become one.
    """

    sketch: CountSketch
    combine: Combine

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of a table."""
        return self.sketch.rows, self.sketch.cols

    @cached_property
    def rows(self) -> int:
        """Rows of the table."""
        return self.sketch.rows

    @property
    def collision_share(self) -> float:
        """`1 - 1 / runs`: coordinates of one run never meet; every run is 1 long for `pairwise`.

        Raises:
            ArgumentError: Rows are combined by the median, of which no error is known.
        """
        # Of two values the median is the mean, so its error is known.
        mean = self.combine == "mean" or self.rows <= 2  # whose median is their mean
        check(mean, "combine", "be mean for a forecast", self.combine)
        pairwise = self.sketch.family == "pairwise"
        return 1 - 1 / (self.dim if pairwise else Geometry.of(self.dim, self.sketch.cols).runs)

    def encode(self, vectors: Tensor, seed: HashSeed) -> Tensor:
        """Encode vectors as tables."""
        return self.sketch.encode(vectors, seed)

    def decode(self, cells: Tensor, seed: HashSeed, out: Tensor | None) -> Tensor:
        """Query the first `dim` coordinates: not those that a longer sketch has beyond them."""
        out = cells.new_empty(self.dim) if out is None else out
        return self.sketch.query(cells, seed, combine=self.combine, offset=0, out=out)


@dataclass(frozen=True)
class NoNoise:
    """Float32 cells as they are, and whatever is claimed for them."""

    claim: Claim

    whole: ClassVar[Literal[False]] = False
    step: ClassVar[float] = 1.0

    @property
    def quantizer(self) -> NoNoise:
        """Nothing is bounded or rounded."""
        return self

    def bounded(self, cells: Tensor) -> Tensor:
        """Return the cells."""
        return cells

    def rounded(self, bounded: Tensor, noise: Noise) -> Tensor:  # noqa: ARG002
        """Return the cells."""
        return bounded

    noised = rounded

    def reduced(self, total: Tensor, bits: int) -> Tensor:  # noqa: ARG002
        """Return the total."""
        return total

    centred = bounded

    def mean(self, total: Tensor, count: int | float, *, unit: float, out: Tensor | None) -> Tensor:  # noqa: ARG002
        """Divide a sum by the number of messages."""
        if out is None:
            return (total / count).float()
        return torch.div(total.detach(), count, out=out)

    def largest_norm(self, count: int, failure: float) -> float:  # noqa: ARG002
        """Infinite: nothing is clipped."""
        return math.inf


NoiseLaw: TypeAlias = NoNoise | IntegerMechanism


@dataclass(frozen=True)
class Method(ABC):
    """A way to compute a mean of vectors with `dim` coordinates: an encoder and a noise.

    The encoder (`Encoder`, `Tables`) is a linear map from a vector to cells. The noise (`NoNoise`,
    or a mechanism of `privacy.mechanisms.integer`) bounds and rounds the cells, adds noise, and
    states the claim. A subclass chooses them; one that is no such product, or does more, overrides
    `message_format`, `_claim_for`, `_encode` and `_decode`.

    Guarantees, for every method (`tests/methods/test_contract.py`): a batch is encoded as its
    vectors would be one by one; sums of messages, in any order, decode to an estimate of the mean
    with the error that the method states or is known for; messages survive the wire; the claim is
    about what was sent; bad input is refused before anything is released.

    Attributes:
        name: The method's name, for users.
        code: The method's code in the header of a message, 0 to 127, which never changes; None
            for a hash of the name.
    """

    name: ClassVar[str]
    code: ClassVar[int | None] = None
    dim: int

    # Attributes of an object, but no settings:
    # Cells of a message after those of the encoder, which is then sent flat.
    _extra_cells: ClassVar[int] = 0
    # Length that the noise counts as 1, where that moves.
    _unit: ClassVar[float | None] = None
    # Whether messages are made of records (`diffsketch.silos.messages`), not of a vector.
    takes_records: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_whole("dim", self.dim, least=1)

    @cached_property
    def encoder(self) -> Encoder:
        """The linear map from vectors to cells; by default the vectors themselves are sent."""
        return Encoder(self.dim)

    @cached_property
    def noise(self) -> NoiseLaw:
        """The bound, rounding, noise and claim; by default there is none of them."""
        scope = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
        table = len(self.encoder.shape) == 2
        return NoNoise(
            NoClaim(scope, "bare tables are sent" if table else "vectors are sent as they are")
        )

    @classmethod
    def _sized(cls, dim: int, cells: int) -> dict[str, Any] | None:
        """Choose the sizes of an encoder of `cells` cells, for the planner; None if none fits."""
        return {} if cells >= dim else None

    @property
    def max_summands(self) -> int:
        """Number of messages that an unencrypted sum is sized for."""
        return MANY

    @cached_property
    def message_format(self) -> MessageFormat:
        """Format of one worker's message: float32, or the whole numbers of the noise."""
        # Cells of noise modulo a power of two have no sign; those that are cut off have one.
        shape, law = self.encoder.shape, self.noise
        if self._extra_cells:
            shape = (math.prod(shape) + self._extra_cells,)
        if not law.whole:
            return self._format(shape)
        return self._format(shape, "unsigned" if law.shared else "signed", law.message_bits)

    @cached_property
    def total_format(self) -> MessageFormat:
        """Format of the published sum: of a message, with more bits where sums need them."""
        return replace(self.message_format, bits=self.sum_bits(self.max_summands))

    @property
    def round_clip(self) -> float | None:
        """The round's clip, or limit of rounded cells, where that moves (`after`); else None."""
        return None

    def at_clip(self, clip: float) -> Self:
        """Return the same method in a round with this clip.

        Raises:
            ArgumentError: The method has no clip that changes, or the clip is out of range.
        """
        raise ArgumentError(f"method={self.name!r} has no clip that changes, got clip={clip!r}")

    def after(self, total: Tensor, *, count: int | float) -> Self:  # noqa: ARG002
        """Return the method of the next round: for most, the same.

        It follows from the published sum, which `decode` has checked, and the number of messages
        in it, or expected in it, so that everybody computes the same.
        """
        return self

    @property
    def most_messages(self) -> int | None:
        """The most messages that a sum can have; None where it does not matter."""
        return None

    @property
    def rounds_sums(self) -> bool:
        """Whether a sum may be rounded again, to as few bits as a message has."""
        return False

    def sum_bits(self, count: int) -> int:
        """Bits of a cell of a sum of `count` messages, and of the noise that is added to it."""
        return self.noise.sum_bits(count) if self.noise.whole else self.message_format.bits

    @property
    def exact(self) -> bool:
        """True if noise is drawn in whole numbers, exactly with `SecureNoise`."""
        return self.message_format.cells != "float32"

    @property
    def wire_bytes(self) -> int:
        """Bytes of one message in an agreed round, header included."""
        return self.message_format.wire_bytes

    @property
    def compression(self) -> float:
        """Bytes of the vector as float32, over the bytes of a message with its header."""
        return 4 * self.dim / self.wire_bytes

    def claim_for(self, present: int, seed: HashSeed) -> Claim:
        """State what one round guarantees if `present` workers contributed.

        Known before the round: it depends on the hashes for some methods, on the number of workers
        for methods under a secure sum, and never on the vectors.
        """
        _check_round(seed, "present", present, self.most_messages)
        return self._claim_for(present, seed)

    def encode(self, vectors: Tensor, seed: HashSeed, noise: Noise) -> Encoded:
        """Encode `(dim,)`, or each of `(workers, dim)`, float32 or float64, as a message.

        Args:
            vectors: Must be finite; whoever drives the rounds decides what becomes of a worker
                whose vector is not. Taken as float32, as most messages are.
            seed: The round's hashes, known to all workers.
            noise: Rows of a batch draw from its rows, one for each worker, as `CohortNoise` has
                them; a single vector draws from the only row.

        Raises:
            ArgumentError: A value is not finite, or of another type.
            MismatchError: The vectors have another length.
        """
        _check_round(seed)
        if self.takes_records:
            raise ArgumentError(
                "vectors must not be encoded where the claim is about records, each of which is to "
                "be bounded on its own: use diffsketch.silos.messages"
            )
        if not isinstance(noise, Noise):
            raise ArgumentError(f"noise must be a Noise, got {type(noise).__name__}")
        values = self.checked(vectors)
        batch = values if values.dim() == 2 else values[None]
        encoded = self._encode(batch, seed, noise)
        messages = encoded.messages
        # The caller's own vectors, sent as they are, were checked above.
        if messages.is_floating_point() and messages.data_ptr() != batch.data_ptr():
            check_sums(messages)
        return encoded if values.dim() == 2 else encoded[0]

    def checked(self, vectors: Tensor, *, first: int = 0) -> Tensor:
        """Return the vectors as float32; raise what `encode` raises if they are not to be sent.

        Errors count rows from `first` on.
        """
        if not isinstance(vectors, Tensor) or vectors.dtype not in (torch.float32, torch.float64):
            raise ArgumentError(
                f"vectors must be a float32 or float64 tensor, got {_kind(vectors)}"
            )
        if not (1 <= vectors.dim() <= 2 and len(vectors) and vectors.shape[-1] == self.dim):
            raise MismatchError(
                f"vectors must be (dim,) or (workers, dim) with dim={self.dim}, "
                f"got {tuple(vectors.shape)}"
            )
        # A float64 beyond float32 becomes infinite here, and is refused with the others.
        values = vectors.detach().to(torch.float32)
        if not is_finite(values):
            raise ArgumentError(
                "vectors must be finite in float32, got NaN, infinity or too large a number"
                f"{name_rows(~torch.isfinite(values).all(dim=-1), first)}"
            )
        return values

    def after_clipping(self, vectors: Tensor) -> Tensor:
        """Return the clipped vectors `(workers, dim)`; methods without a clip change nothing.

        Without roundings, and where tables are clipped, as if none were longer or shorter than
        they are on average over the hashes. It is as private as the vectors.
        """
        return vectors

    def publish(self, total: Tensor, noise: Noise) -> Tensor:
        """Make the sum known, as the server does: with `central_noise`, and `reduced`.

        Args:
            total: The sum of the messages; or `(sums, ...)`, each to have noise of its own.
            noise: The server's own: of a single row, if it has rows, or one for each sum.
        """
        single = total.dim() == len(self.total_format.shape)
        drawn = self.central_noise(noise, sums=None if single else len(total))
        return self.reduced(total if drawn is None else total + drawn.to(total.device))

    def central_noise(self, noise: Noise, *, sums: int | None = None) -> Tensor | None:
        """Draw noise of the total's shape that a trusted server adds; None if workers add it.

        Whoever sums may add it to any one of the messages instead: sums are sums. With `sums`, it
        is for that many: `(sums, ...)`.
        """
        # Elsewhere each worker has added its own noise, or there is none.
        if not self.noise.whole or self.noise.trust is not Trust.CENTRAL:
            return None
        drawn = self.noise.draw((sums or 1, *self.message_format.shape), noise)
        return drawn[0] if sums is None else drawn

    def reduced(self, total: Tensor) -> Tensor:
        """Bring the total within its format: modulo `2**bits` under a secure sum, for example."""
        return self.noise.reduced(total, self.total_format.bits)

    def mean_table(self, total: Tensor, count: int | float, *, out: Tensor | None = None) -> Tensor:
        """Compute the mean of the encoded vectors (tables, or the vectors) from a sum: float32."""
        if self._extra_cells:
            total = total[: -self._extra_cells].reshape(self.encoder.shape)
        return self.noise.mean(total, count, unit=self._unit or 1.0, out=out)

    def decode(
        self, total: Tensor, seed: HashSeed, *, count: int, out: Tensor | None = None
    ) -> Tensor:
        """Estimate the mean `(dim,)`, float32, from the published sum of `count` messages.

        Args:
            total: The published sum.
            seed: The round's hashes.
            count: Number of messages in it.
            out: Where to write the estimate, to the same bits: `(dim,)`, float32, contiguous, on
                the device of the sum. Memory that is used again saves much of the time.

        Raises:
            ArgumentError: The sum is not finite, or of another type; or `out` is, or is not
                contiguous.
            MismatchError: One of them has another shape, or the sum has whole numbers that no
                published sum has.
        """
        _check_round(seed, "count", count, self.most_messages)
        self._check_total(total)
        if out is not None:
            check_out(out, self.dim, device=total.device)
        mean = self._decode(total, seed, count, out=out)
        return mean if out is None or mean is out else out.copy_(mean.detach())

    def honest_norm(self, count: int = 1, *, failure: float = FALSE_REFUSAL) -> float:
        """Bound the norm of the sum of `count` honest messages; infinite if there is no bound.

        Euclidean, as `norm_of` measures it. What is clipped is no longer than `clip`, for certain;
        noise that is in the messages has a tail, so that more is seen with a probability of at most
        `failure`.
        """
        check_whole("count", count, least=1)
        return self.noise.largest_norm(count, failure)

    def norm_of(self, total: Tensor, count: int = 1) -> float:  # noqa: ARG002
        """Euclidean norm of a message, or of the sum of `count`, in units of the data."""
        return float(torch.linalg.vector_norm(self.noise.centred(total).double())) * self.noise.step

    def check_honest(self, total: Tensor, count: int = 1, *, limit: float = math.inf) -> float:
        """Refuse a message, or a sum of `count`, that is longer than honest workers make it.

        Messages modulo `2**bits` are centred first. Where the modulus is so small that all that it
        can hold is within the bound, nothing is refused, as nothing can be told.

        Args:
            total: The cells of a message, or of the sum.
            count: Number of messages in it.
            limit: A norm that no honest message exceeds, where that is known from elsewhere: for
                bare messages, which have no bound of their own.

        Returns:
            Its norm.

        Raises:
            WireError: It is longer.
        """
        # The sum of `count` vectors is at most `count` times as long as each.
        most, norm = min(self.honest_norm(count), count * limit), self.norm_of(total, count)
        if not norm <= most * (1 + _SLACK):
            what = "message has" if count == 1 else f"the sum of {count} messages has"
            raise WireError(
                f"{what} a norm of {norm:.4g}, and that of honest clients is at most {most:.4g}"
            )
        return norm

    def _format(
        self, shape: tuple[int, ...], cells: Cells = "float32", bits: int = 32
    ) -> MessageFormat:
        return MessageFormat(self.name, self.dim, shape, cells, bits, self.code)

    def _claim_for(self, present: int, seed: HashSeed) -> Claim:  # noqa: ARG002
        """State the claim; the arguments are checked."""
        law = self.noise
        # Under a secure sum there is less noise if fewer contribute.
        if law.whole and law.shared and present != law.cohort:
            return law.claim_for(present)
        return law.claim

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:
        """Encode finite vectors `(workers, dim)` in float32."""
        law, grid = self.noise, self.noise.quantizer
        # Bounds hold for what is sent, so they come after the encoder; but those of single
        # coordinates come before it. Noise is last: it must not be rounded.
        vectors = grid.prepared(batch, noise) if isinstance(grid, CoordinateQuantizer) else batch
        cells = self.encoder.encode(vectors, seed).flatten(1)
        if law.whole and len(self.encoder.shape) == 2:
            check_sums(cells)  # those that are sent in floating point are checked by `encode`
        bounded = grid.bounded(cells if self._unit is None else cells.double() / self._unit)
        messages = law.noised(grid.rounded(bounded, noise), noise)
        return Encoded(messages.reshape(len(batch), *self.message_format.shape))

    def _decode(self, total: Tensor, seed: HashSeed, count: int, *, out: Tensor | None) -> Tensor:
        """Decode a checked total: into `out`, where that saves a copy, or anywhere else."""
        vectors = type(self.encoder) is Encoder  # their mean is the estimate
        mean = self.mean_table(total, count, out=out if vectors else None)
        return self.encoder.decode(mean, seed, out)

    def _check_total(self, total: Tensor) -> None:
        layout = self.total_format
        if not isinstance(total, Tensor) or tuple(total.shape) != layout.shape:
            shape = tuple(total.shape) if isinstance(total, Tensor) else type(total).__name__
            raise MismatchError(f"total must have the shape {layout.shape}, got {shape}")
        floating = total.is_floating_point()
        if layout.cells == "float32" and not floating:
            raise ArgumentError(f"total must be floating point, got {total.dtype}")
        if layout.cells == "float32" or (floating and self.rounds_sums):
            if not is_finite(total):
                raise ArgumentError("total must be finite, got NaN or infinity among its cells")
            return
        if floating or total.dtype in (torch.bool, torch.uint8):
            raise ArgumentError(f"total must have signed whole numbers, got {total.dtype}")
        # A sum that is larger was not published by `publish`: another format, or an error.
        (low, high), (least, end) = map(int, total.aminmax()), layout.limits
        if low < least or high >= end:
            raise MismatchError(
                f"total must be in [{least}, {end}), as publish makes it, got values from "
                f"{low} to {high}"
            )


_KINDS: dict[str, type[Method]] = {}
METHODS: Mapping[str, type[Method]] = MappingProxyType(_KINDS)
"""All registered methods by their names, in the order of their codes."""

_Kind = TypeVar("_Kind", bound=type[Method])
_FROM_TASK = ("dim", "cohort")  # what the task decides, and not the user's settings


def register(kind: _Kind) -> _Kind:
    """Add a method to `METHODS`: a decorator for its class, above `dataclass`.

    Raises:
        ArgumentError: Another method has this name, or this wire code.
    """
    for other in _KINDS.values():
        if kind.name == other.name or (kind.code is not None and kind.code == other.code):
            raise ArgumentError(
                f"method={kind.name!r} with code={kind.code} must have a name and a code of its "
                f"own, and {other.name!r} has code={other.code}"
            )
    kinds: list[type[Method]] = [*_KINDS.values(), kind]
    # Users' own methods, without a code, come last.
    # Codes of a message are 0 to 127, so that these come first.
    kinds.sort(key=lambda method: 128 if method.code is None else method.code)
    _KINDS.clear()
    _KINDS.update({method.name: method for method in kinds})
    return kind


def settings_of(name: str) -> dict[str, bool]:
    """List the settings that a method has, and whether each must be given.

    >>> settings_of("sketch")  # doctest: +NORMALIZE_WHITESPACE
    {'rows': True, 'cols': True, 'family': False, 'combine': False,
     'bits': False, 'cell_limit': False, 'trust': False}
    """
    if name not in METHODS:
        # The nearest name is the likeliest that was meant.
        said = f"method must be one of {', '.join(METHODS)}, got method={name!r}"
        hint = did_you_mean(str(name), METHODS)
        raise ArgumentError(f"{said}; {hint}" if hint else said)
    return {
        field.name: field.default is MISSING and field.default_factory is MISSING
        for field in fields(METHODS[name])
        if field.init and field.name not in _FROM_TASK
    }


def check_setting_names(name: str, settings: Mapping[str, object]) -> None:
    """Raise an `ArgumentError` unless these are settings of a method, with all that it needs."""
    needed = settings_of(name)
    unknown = [key for key in settings if key not in needed]
    if unknown:
        said = f"method {name} has no setting {', '.join(map(str, unknown))}; it has: "
        said += ", ".join(needed) or "none"
        hint = did_you_mean(str(unknown[0]), needed)
        raise ArgumentError(f"{said}; {hint}" if hint else said)
    missing = [key for key, must in needed.items() if must and key not in settings]
    if missing:
        raise ArgumentError(f"method {name} needs {', '.join(missing)}")


def parse_settings(text: str) -> dict[str, object]:
    """Parse settings from `name=value`, with spaces between.

    >>> parse_settings("rows=1 clip=1.5 trust=central")
    {'rows': 1, 'clip': 1.5, 'trust': 'central'}
    """
    settings: dict[str, object] = {}
    for part in text.split():
        name, sign, value = part.partition("=")
        if not (name and sign and value):
            raise ArgumentError(f"settings must be name=value, with spaces between: {part!r}")
        try:
            # Numbers, truth values and null; anything else is text.
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    return settings


def build_method(name: str, *, dim: int, cohort: int, settings: Mapping[str, object]) -> Method:
    """Build the method of this name with a user's settings.

    Args:
        name: One of `METHODS`.
        dim: Length of the vectors.
        cohort: Workers of a round, at most, for methods that need to know.
        settings: Only what the user gave.

    Raises:
        ArgumentError: The method has no such setting, lacks one that it needs, or refuses a value.

    >>> build_method("sketch", dim=7850, cohort=10, settings={"rows": 7, "cols": 22}).wire_bytes
    620
    >>> build_method("sketch", dim=7850, cohort=10, settings={"rows": 7})
    Traceback (most recent call last):
        ...
    diffsketch.errors.ArgumentError: method sketch needs cols
    """
    check_setting_names(name, settings)
    arguments: dict[str, Any] = {"dim": dim, **settings}
    # Only methods whose sums or noise depend on it have such a field.
    if any(field.name == "cohort" for field in fields(METHODS[name])):
        arguments["cohort"] = cohort
    return METHODS[name](**arguments)


def _check_round(
    seed: HashSeed, name: str = "count", count: int = 1, most: int | None = None
) -> None:
    if not isinstance(seed, HashSeed):  # here and below: the called function has the words for it
        check_seed(seed)
    if type(count) is not int or count < 1 or (most is not None and count > most):
        check_whole(name, count, least=1, most=most)


def check_out(out: Tensor, dim: int, *, device: torch.device) -> None:
    """Raise unless a mean with `dim` coordinates can be written into `out`."""
    if not isinstance(out, Tensor) or out.dtype != torch.float32:
        raise ArgumentError(f"out must be a float32 tensor, got {_kind(out)}")
    if tuple(out.shape) != (dim,):
        raise MismatchError(f"out must have the shape ({dim},), got {tuple(out.shape)}")
    if not out.is_contiguous():
        raise ArgumentError(f"out must be contiguous, got a stride of {out.stride()[0]}")
    if out.requires_grad:
        raise ArgumentError("out must need no gradient, got one that requires it")
    if out.device != device:
        raise MismatchError(f"out must be on {device}, got one on {out.device}")


def is_finite(values: Tensor) -> bool:
    """Check that all values are finite.

    A sum is finite only if its terms are, and quick; it may overflow, so look again then.
    """
    return math.isfinite(values.sum().item()) or bool(torch.isfinite(values).all())


def check_sums(tables: Tensor) -> Tensor:
    """Return the tables `(workers, ...)` of finite vectors, if they are finite as well."""
    if not is_finite(tables):
        rows = name_rows(~torch.isfinite(tables).flatten(1).all(dim=1)) if len(tables) > 1 else ""
        raise ArgumentError(
            "vectors must be small enough for float32, but sums of their coordinates overflow"
            f"{rows}"
        )
    return tables


def name_rows(bad: Tensor, first: int = 0) -> str:
    """Name the bad rows in an error message; the only row of a vector needs no name."""
    if bad.dim() == 0:
        return ""
    rows = (first + bad.nonzero().flatten()).tolist()
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return f" in rows {', '.join(map(str, rows[:_NAMED]))}{more}"


def _kind(value: object) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
