"""The gate: the one way by which a party's message leaves, and a private mean in one call.

`release` charges the party's account, then draws noise, then returns the message; engines have no
other way to a message under a claim. Engines that send (torch.distributed, Flower, `private_mean`
without a seed) draw the noise of each message, and the server's, by `release_noise` and nowhere
else: exact where the claim is proven, from the operating system, never drawn twice. A source is
made for one release and remembers nothing: so whatever is restarted, restored, copied or forked, no
two releases share noise.
"""

from __future__ import annotations

import hashlib
import secrets
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_whole
from diffsketch.methods.base import Encoded, Method, name_rows
from diffsketch.methods.plain import RoundedTables, SaturatedCells
from diffsketch.privacy.accounting.account import Account
from diffsketch.privacy.accounting.budget import Budget
from diffsketch.privacy.claim import Claim, NoClaim, SimulatedClaim
from diffsketch.privacy.mechanisms.integer import SkellamMechanism
from diffsketch.privacy.noise import SERVER_NOISE, CohortNoise, Noise, NoiseKey, SecureNoise
from diffsketch.sketch.hashing import HashSeed, SketchKey

_WANTED = "vectors must be a tensor or array of numbers (holders, dim)"
_PIECE = 1 << 21  # numbers that are encoded at a time: 8 MiB in float32
_SHORTER = 0.8  # of its length: less than any clip leaves that the planner chooses


def check_release(method: Method, claim: Claim, *, budget: Budget | None = None) -> None:
    """Refuse what cannot be sent under a claim, and a budget where nothing is proven.

    Raises:
        ArgumentError: The claim is proven and the method has no exact form; or it is simulated; or
            there is a budget and no proof.
    """
    if claim.noise_is_proven and not method.exact:
        raise ArgumentError(
            f"method={method.name!r} must not be sent: its proof is about real numbers, and noise "
            "in floating point gives values away. It is for simulation; use sketch-gaussian, "
            "gaussian, or sketch-laplace or laplace with a clip, whose noise is exact"
        )
    if isinstance(claim, SimulatedClaim):
        raise ArgumentError(
            "claim must be about exact noise for messages that are sent, got a simulated one: "
            "noise from a seed hides nothing"
        )
    check_budget(method, claim, budget)


def check_budget(method: Method, claim: Claim, budget: Budget | None) -> None:
    """Refuse a budget where nothing is proven: only what is proven adds up over rounds."""
    if budget is not None and not claim.noise_is_proven:
        raise ArgumentError(
            "budget must not be given where nothing is proven: the epsilon of "
            f"method={method.name!r} is {claim.basis} here ({claim})"
        )


class NonFiniteUpdate(UserWarning):
    """A worker's vector had NaN or infinite values. The round went on without them."""


@dataclass(frozen=True, eq=False)
class Released:
    """Messages that may leave now.

    Attributes:
        encoded: Of all vectors of the batch, or of those that are `kept`; None if there is none.
        kept: Whether each vector is in a message, `(workers,)`. Others could not be encoded. Under
            a proven claim they have a message of zeros, which nobody can tell from any other.
    """

    encoded: Encoded | None
    kept: Tensor


def release(
    vectors: Tensor,
    method: Method,
    seed: HashSeed,
    claim: Claim,
    *,
    charge: Callable[[], object] | None,
    noise_of: Callable[[Sequence[int]], Noise] | None = None,
) -> Released:
    """Charge, draw noise, and return the messages: the gate of every engine.

    *Vectors that are not finite*, or whose messages would not be. Under a proven claim they count
    as zeros, with their noise: to leave them out, or to fail, would tell about the data. Under any
    other claim they have no message.

    Guarantees (`tests/methods/test_gate.py`): nothing is encoded before `charge` has returned;
    under a proven claim, vectors of whatever values give messages of one law and shape.

    Args:
        vectors: `(workers, dim)`: of one party, or of all parties of a simulation.
        method: How vectors become messages.
        seed: The round's hashes.
        claim: What is claimed for the messages.
        charge: Charges the party's account, and raises if it cannot be paid. None where the
            accounts of a whole cohort were charged before.
        noise_of: Noise for rows of the batch, where it is simulated; else it is `release_noise`.

    Raises:
        ArgumentError: The arguments are wrong for vectors of whatever values.
    """
    if method.takes_records:
        raise ArgumentError(
            "method must be about clients for a message of one vector, got one whose claim is "
            "about records: use diffsketch.silos, or SiloSteps of diffsketch.ddp"
        )
    if noise_of is None:
        check_release(method, claim)  # first: what may not be sent at all costs nothing

        def noise_of(rows: Sequence[int]) -> Noise:
            return release_noise(method, claim, messages=len(rows))

    if charge is not None:
        charge()

    def encode(batch: Tensor, rows: Sequence[int]) -> Encoded:
        return method.encode(batch, seed, noise_of(rows))

    everyone = range(len(vectors))
    try:
        # Methods look for what is not finite, and refuse it before they return anything: to look
        # here as well would take as long as all the rest.
        return Released(encode(vectors, everyone), torch.ones(len(vectors), dtype=torch.bool))
    except ArgumentError:
        kept = torch.isfinite(vectors).all(dim=-1).cpu()
        for row in kept.nonzero().flatten().tolist():  # finite, and their messages may overflow
            try:
                encode(vectors[row : row + 1], [row])
            except ArgumentError:
                kept[row] = False
        if bool(kept.all()):
            raise
    # The noise anew: what a refused call has drawn must not change what others draw.
    if claim.noise_is_proven:
        clean = torch.where(kept.to(vectors.device)[:, None], vectors, torch.zeros_like(vectors))
        return Released(encode(clean, everyone), kept)
    rows = kept.nonzero().flatten().tolist()
    return Released(encode(vectors[rows], rows) if rows else None, kept)


def release_total(
    total: Tensor, mechanism: SkellamMechanism, claim: Claim, *, count: int, account: Account | None
) -> Tensor:
    """Charge, draw noise, and return the sum of the tables of `count` parties with its noise.

    The gate of whoever holds the tables of many: a file, or a simulation of all parties. Under
    local and distributed trust every party adds noise of its own; the sum of these is drawn at
    once, from exactly the law that it has (`SkellamMechanism.draw_sum`).

    Guarantees (`tests/methods/test_gate.py`): nothing is drawn before the account is charged;
    noise is the operating system's, and never drawn twice.

    Args:
        total: Sum of the tables, which obey the mechanism's bound: int64.
        mechanism: Noise of a table.
        claim: What is claimed of the release: the mechanism's claim, or one that adds a failure.
        count: Number of tables in it.
        account: What is charged; None where nobody counts.
    """
    check(total.dtype == torch.int64, "total", "be int64", total.dtype)
    if account is not None:
        account.charge(claim)
    return total + mechanism.draw_sum(tuple(total.shape), SecureNoise(), count=count)


def release_noise(method: Method, claim: Claim, *, messages: int = 1) -> Noise:
    """Make the source of noise for one message, or for what one server adds to one sum.

    `SecureNoise` where the claim is proven. Where it is only claimed, noise may be in floating
    point, and comes from a key that is made here and forgotten.

    Args:
        method: The method that encodes.
        claim: The claim for the message.
        messages: Vectors of a batch that is encoded in one call.

    Raises:
        ArgumentError: As `check_release` says.
    """
    check_release(method, claim)
    if method.exact:
        return SecureNoise()
    return CohortNoise(NoiseKey(secrets.token_bytes(32)), range(messages), round_index=0)


def rounding_noise(
    key: SketchKey, round_index: int, first: int, rows: Sequence[int] = (0,)
) -> Noise:
    """Make the source of random roundings of messages of a method that claims nothing.

    They hide nothing, and follow from the key: the same run has the same bits. Row 0 is that of the
    worker with the number `first`.
    """
    # Apart from the round's hashes, which come from the same key.
    digest = hashlib.blake2b(key.secret, digest_size=32, person=b"ds-rounding").digest()
    workers = [first + row for row in rows]
    return CohortNoise(NoiseKey(digest), workers, round_index=round_index)


@dataclass(frozen=True, eq=False)
class PrivateMean:
    """An estimated mean, and what it cost.

    Attributes:
        mean: `(dim,)`, float32.
        claim: What the round guarantees; its `epsilon` says how much, and on which basis.
        count: Vectors that went into it.
        message_bytes: Of each message on the wire, header included.
        total_bytes: Of the published sum, header included.
        saturated: Share of all cells that were beyond the limit of cells of few bits; None for
            other methods.
    """

    mean: Tensor
    claim: Claim
    count: int
    message_bytes: int
    total_bytes: int
    saturated: float | None = None

    @property
    def bytes_up(self) -> int:
        """Bytes of all messages together."""
        return self.count * self.message_bytes


class ClippedVectors(UserWarning):
    """Vectors are much longer than the method's clip, so that a mean is far too small."""


def private_mean(
    vectors: Tensor | npt.ArrayLike,
    method: Method,
    *,
    key: SketchKey | None = None,
    round_index: int = 0,
    simulation_seed: int | None = None,
    account: Account | None = None,
) -> PrivateMean:
    """The mean of `(holders, dim)` vectors, as a server learns it that sees no vector.

    Every holder encodes its own vector, the messages are summed, and the sum is decoded: what
    happens on many machines, here on one. Noise comes from the operating system, anew in each
    call, and is exact where the claim is proven.

    Args:
        vectors: One in each row, finite numbers or truth values: a tensor, what NumPy makes an
            array of (an array, a list of rows, a data frame), or a sparse matrix of SciPy or torch.
            Taken as float32, some rows at a time. The mean is a tensor.
        method: How vectors become messages. If it has cells of few bits and no `cell_limit`, that
            is the limit of these vectors; where something is claimed it must be given.
        key: The holders' common secret, which the round's hashes come from; made up if not given.
        round_index: Of a series of means with one key: another one has other hashes.
        simulation_seed: A number from which the noise follows, for experiments that are to be
            repeated. The claim is then a `SimulatedClaim`: whoever knows the seed has the vectors.
        account: Charged before anything is computed; `Account.open(path)` for one in a file. Where
            it has a budget, that is a stop.

    Warns where vectors are much longer than the method's clip (`ClippedVectors`), or most
    cells are beyond their limit (`SaturatedCells`): the mean is then too small. Warnings follow
    from private data and are for whoever holds the vectors: claims do not cover them, so do not
    publish them with the mean.

    Raises:
        ArgumentError: A value is not finite (the error names the rows), masked, or of another type;
            or the method is one for simulation only, and there is no `simulation_seed`; or it
            claims something, and has no limit of its cells of few bits.
        MismatchError: The vectors have another length than the method's.

    >>> import torch
    >>> from diffsketch.methods import SketchGaussian
    >>> method = SketchGaussian(
    ...     dim=500, rows=1, cols=100, clip=1.0, noise_multiplier=2.0, trust="central"
    ... )
    >>> vectors = torch.full((1000, 500), 0.04)
    >>> answer = private_mean(vectors, method)
    >>> answer.mean.shape, answer.message_bytes
    (torch.Size([500]), 154)
    >>> print(answer.claim.epsilon(delta=1e-5, rounds=1))
    epsilon = 1.994 at delta = 1e-05 over 1 round (proven; client unit, replace, central trust)
    >>> again = private_mean(vectors, method)  # noise is never drawn twice
    >>> bool((answer.mean == again.mean).all())
    False
    """
    if not isinstance(method, Method):
        kind = type(method).__name__
        raise ArgumentError(f"method must be a Method, as plan(...).best.method is, got {kind}")
    if key is None:
        key = SketchKey(secrets.token_bytes(32))
    if not isinstance(key, SketchKey):
        raise ArgumentError(f"key must be a SketchKey, got {type(key).__name__}")
    data = _numbers_of(vectors)
    pieces = partial(_checked_pieces, data, method)
    count, seed = data.shape[0], key.seed(round_index)
    check(count >= 1, "vectors", "have one row or more", tuple(data.shape))
    if method.most_messages is not None and count > method.most_messages:
        raise ArgumentError(
            "vectors must have at most as many rows as the cohort that the method was made for, "
            f"{method.most_messages}, got {count}"
        )
    claim = method.claim_for(count, seed)
    if isinstance(method, RoundedTables) and method.wants_limit:
        if not isinstance(claim, NoClaim):
            raise ArgumentError(
                "cell_limit must be given for cells of few bits where something is claimed, as the "
                f"sizes of vectors are data, got {method} without it"
            )
        method = method.at_limit_of(row for _, piece in pieces() for row in piece)
    simulated: Callable[[int, Sequence[int]], Noise] | None = None
    if simulation_seed is not None:
        check_whole("simulation_seed", simulation_seed, least=0)
        claim, world = SimulatedClaim.of(claim), NoiseKey.from_integer(simulation_seed)

        def simulated(start: int, rows: Sequence[int]) -> Noise:
            """The noise of rows of a piece that begins with row `start`."""
            return CohortNoise(world, [start + row for row in rows], round_index=round_index)

    for _ in pieces():  # tells whoever holds the vectors, before anything is charged
        pass
    charge = None if account is None else partial(account.charge, claim)
    # Made beforehand: small tensors between large ones would keep the latter's memory from reuse.
    total, lengths, saturated = None, torch.zeros(2, count, dtype=torch.float64), []
    for start, piece in pieces():
        noise_of = None if simulated is None else partial(simulated, start)
        released = release(piece, method, seed, claim, charge=charge, noise_of=noise_of)
        charge = None  # one round, however many pieces it is encoded in
        encoded = released.encoded
        if encoded is None or not bool(released.kept.all()):
            raise ArgumentError(
                "vectors must be small enough for float32, but sums of their coordinates overflow"
                f"{name_rows(~released.kept, start)}"
            )
        part = encoded.messages.sum(dim=0)
        total = part if total is None else total + part
        lengths[:, start : start + len(piece)] = _lengths(piece, method)
        saturated += [] if encoded.saturated is None else [encoded.saturated]
    assert total is not None  # noqa: S101 - there is a row or more
    _warn_if_clipped(lengths, method)
    server = release_noise(method, claim) if simulated is None else simulated(0, [SERVER_NOISE])
    mean = method.decode(method.publish(total, server), seed, count=count)
    share = _saturated_share(torch.cat(saturated), method) if saturated else None
    return PrivateMean(mean, claim, count, method.wire_bytes, method.total_format.sum_bytes, share)


def _numbers_of(vectors: Any) -> Any:
    """Return vectors `(holders, dim)` as a tensor, an array or SciPy's CSR of real numbers."""
    data = sparse_rows(vectors)
    if data is None:
        data = vectors if isinstance(vectors, Tensor) else _array_of(vectors)
    if isinstance(data, Tensor):
        real = not (data.is_complex() or data.is_quantized)
    else:
        real = data.dtype.kind in "fiub"
    if not real:
        raise ArgumentError(f"{_WANTED}, got {type(vectors).__name__} of dtype {data.dtype}")
    if len(data.shape) != 2:
        raise ArgumentError(f"{_WANTED}, got the shape {tuple(data.shape)}")
    if isinstance(data, Tensor) and data.layout != torch.strided:
        raise ArgumentError(f"{_WANTED}, got the layout {data.layout}: see its to_dense")
    return data


def _checked_pieces(data: Any, method: Method) -> Iterator[tuple[int, Tensor]]:
    """Yield checked rows in float32, as `method` takes them, and the number of the first.

    Nothing of the size of people times keys is made of a sparse matrix, and no second copy of a
    dense one: a piece has some `_PIECE` numbers.

    Raises:
        ArgumentError: A value is not finite; the error names the rows.
    """
    width = max(data.shape[1], method.message_format.cell_count, 1)
    # By the longer of vector and message, so that neither takes more memory than that.
    rows = max(1, _PIECE // width)
    for start in range(0, data.shape[0], rows):
        piece = data[start : start + rows]
        if hasattr(piece, "toarray"):
            piece = piece.toarray()
        if not isinstance(piece, Tensor):
            with np.errstate(over="ignore"):  # what is too large is refused with its row
                piece = torch.from_numpy(np.require(piece, np.float32, ["C", "W"]))
        elif piece.dtype not in (torch.float32, torch.float64):
            piece = piece.to(torch.float32)
        yield start, method.checked(piece, first=start)


def sparse_rows(data: Any) -> Any:
    """Return a sparse matrix of SciPy or torch as SciPy's CSR; None for anything else."""
    if type(data).__module__.startswith("scipy.sparse"):
        return data.tocsr()
    if not isinstance(data, Tensor) or data.layout == torch.strided or data.dim() != 2:
        return None
    from scipy.sparse import coo_matrix

    parts = data.detach().cpu()
    if parts.layout != torch.sparse_coo:
        parts = parts.to_sparse_coo()  # type: ignore[no-untyped-call]
    parts = parts.coalesce()
    places = tuple(parts.indices().numpy())
    return coo_matrix((parts.values().numpy(), places), shape=tuple(data.shape)).tocsr()


def _array_of(vectors: npt.ArrayLike) -> npt.NDArray[Any]:
    rows = vectors if isinstance(vectors, list | tuple) else [vectors]
    if any(isinstance(row, np.ma.MaskedArray) for row in rows):
        raise ArgumentError(
            "vectors must not be masked, as a mean cannot leave out single numbers of a vector, "
            "got a MaskedArray: fill it, or leave out whole rows"
        )
    try:
        return np.asarray(vectors)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"{_WANTED}, got {type(vectors).__name__}: {error}") from error


def _lengths(vectors: Tensor, method: Method) -> Tensor:
    """Norms of vectors before and after clipping, `(2, vectors)`."""
    both = (vectors.detach(), method.after_clipping(vectors))
    return torch.stack(
        [torch.linalg.vector_norm(values, dim=1, dtype=torch.float64) for values in both]
    )


def _warn_if_clipped(lengths: Tensor, method: Method) -> None:
    """Warn if more than half of the vectors, or all together, lose a fifth of their length."""
    before, after = lengths
    cut, count = int((after < _SHORTER * before).sum()), len(before)
    if 2 * cut <= count and float(after.sum()) >= _SHORTER * float(before.sum()):
        return
    # Whichever limits the method has: a norm, a range of coordinates, or both.
    limits = {name: getattr(method, name, None) for name in ("clip", "limit")}
    named = ", ".join(f"{name}={limit:.4g}" for name, limit in limits.items() if limit is not None)
    warnings.warn(
        f"{cut} of {count} vectors ({cut / count:.0%}) are longer than the method allows ({named}) "
        f"and were clipped, all together to {float(after.sum() / before.sum()):.2g} of their "
        "length, so that the mean is too small: scale them down, or give a larger clip "
        "(vector_norm of PlanRequest, --norm of diffsketch plan)",
        ClippedVectors,
        stacklevel=3,
    )


def _saturated_share(saturated: Tensor, method: Method) -> float:
    """Share of all cells that are beyond their limit, with a warning if most of a message are."""
    cells, count = method.message_format.cell_count, len(saturated)
    cut = int((2 * saturated > cells).sum())
    if cut:
        warnings.warn(
            f"most cells of {cut} of {count} messages were beyond their limit of "
            f"{method.round_clip:.3g}, so that the mean is too small: give a larger cell_limit",
            SaturatedCells,
            stacklevel=3,
        )
    return float(saturated.sum()) / (count * cells)
