"""Messages made of records: every record is bounded by itself, then all are summed.

A hospital's patients are hidden by bounding what each of them adds. A silo draws its records in
secret, encodes the vector of each (its gradient), bounds and rounds each table, adds them up as
whole numbers, and adds its noise once: `release_records`, the gate for records.

**Sensitivity.** A message is `noise + sum of R_u(x)` over the records' tables `x`. `R_u` scales a
table to a norm of at most `clip`, divides it by the step and rounds every cell down after adding
the *dither* `u`, numbers in [0, 1) that are drawn anew for each message, whatever the data are. If
the sum of the squares of the whole numbers is above `Quantizer.largest`, the table is rounded
towards zero instead. This is checked on the whole numbers themselves. So for *every* `u`:

* `R_u(x)` depends on `x` alone, and on no other record;
* its norm is at most `Quantizer.longest`, in steps.

To add or remove a record moves the sum by at most `longest`, given `u`, and `u` has the same law in
both worlds. The noise of the mechanism hides that; a mixture over `u` is a post-processing.

*Rounding is unbiased.* For one record, `u` makes a cell `floor(x + u)`, whose mean is `x`. Cells of
one table have independent `u`, so the tail bound of `Quantizer` holds for each record, and one in
10,000 is rounded towards zero at most. Records of a message share their dither, so that their
errors may add up: steps are chosen fine enough for that (`ClientNoise`).

*What is secret.* The batch, its size, and whether it is empty: an empty one sends noise. A record
whose vector is not finite counts as zeros.

Guarantees (`tests/silos/test_messages.py`): no record moves a message by more than is stated, and
some move it by nearly as much; means are unbiased; what is drawn has the law that the claim says.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffsketch.compiled import compiled
from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.methods.base import Method
from diffsketch.methods.client_noise import ClientNoise
from diffsketch.methods.gate import check_release, release_noise
from diffsketch.privacy.claim import Claim
from diffsketch.privacy.clipping import Quantizer
from diffsketch.privacy.noise import Noise, SecureNoise
from diffsketch.sketch.hashing import HashSeed


def record_method(method: Method) -> ClientNoise:
    """Return the method as one whose messages are of records, or raise an `ArgumentError`."""
    if not (isinstance(method, ClientNoise) and method.takes_records):
        raise ArgumentError(
            'method must have unit="example" or "person", as sketch-gaussian, sketch-skellam, '
            f"gaussian and skellam may have, got {method}"
        )
    return method


def draw_records(method: Method, members: int, noise: Noise) -> Tensor:
    """Draw the records of one message, of a silo that has `members` of them: indices, int64.

    The only way to draw them for which the claim holds: each with the method's `rate`, on its own.
    """
    return record_method(method).mechanism.sampler(members).draw(noise)


def encode_records(
    method: Method, pieces: Iterable[Tensor], seed: HashSeed, noise: Noise
) -> Tensor:
    """Make the message of the records whose vectors come in `pieces`, with one party's noise.

    Args:
        method: With `unit="example"` or `"person"`.
        pieces: Tensors `(records, dim)` of float32 vectors, one for each record that was drawn:
            several at a time, so that memory stays flat. There may be none. A row must depend on
            its record alone, to the last bit (`RecordGradients` sees to that).
        seed: The round's hashes.
        noise: Draws the dither and the noise. Of a single row, if it has rows.
    """
    chosen = record_method(method)
    with _secret_random(noise):
        total = _sum_of(chosen, pieces, seed, noise)  # the memory of a piece is free afterwards
    message = chosen.mechanism.noised(total[None], noise)[0]
    return message.reshape(chosen.message_format.shape)


def _sum_of(method: ClientNoise, pieces: Iterable[Tensor], seed: HashSeed, noise: Noise) -> Tensor:
    """Add up the tables of records, each bounded and rounded."""
    quantizer = method.mechanism.quantizer
    assert isinstance(quantizer, Quantizer)  # noqa: S101 (for the type checker)
    cells = quantizer.cells
    # 53 of the bits, so that the quotient is exact and below 1.
    dither = (noise.words((1, cells)).numpy().view(np.uint64)[0] >> np.uint64(11)) * 2.0**-53
    total, scratch = np.zeros(cells, np.int64), np.empty(cells, np.int32)
    for piece in pieces:
        if piece.dtype != torch.float32 or piece.dim() != 2 or piece.shape[1] != method.dim:
            raise MismatchError(
                f"pieces must be float32 (records, {method.dim}), got {piece.dtype} "
                f"{tuple(piece.shape)}"
            )
        # On the CPU: how a GPU's kernel cuts up its work depends on the number of records, and so
        # would the last bits of all of them.
        tables = method.encoder.encode(piece.detach().cpu(), seed).flatten(1).contiguous()
        add_bounded(
            tables.numpy(), quantizer.bound.limit, quantizer.granularity, quantizer.largest, dither,
            total, scratch,
        )  # fmt: skip
    return torch.from_numpy(total)


@compiled(fastmath={"reassoc", "contract"})  # type: ignore[untyped-decorator]
def add_bounded(
    tables: Any, length: Any, step: Any, largest: Any, dither: Any, total: Any, scratch: Any
) -> None:
    """Add each row of float32 `tables`, bounded and rounded, to `total` (int64).

    A row is scaled down to a norm of `length`, divided by `step`, and rounded by the dither (int32
    numbers of `scratch`). Where that makes the sum of squares larger than `largest`, it is rounded
    towards zero instead, and where not even that is enough it counts as zeros: so does a row that
    is not finite.
    """
    for row in range(tables.shape[0]):
        table = tables[row]
        square = 0.0
        for i in range(table.size):
            square += np.float64(table[i]) * np.float64(table[i])
        if not square < np.inf:  # squares of float32 do not overflow in float64
            continue
        norm = np.sqrt(square)
        factor = (length / norm if norm > length else 1.0) / step
        norms = np.int64(0)
        for i in range(table.size):
            scratch[i] = np.int32(np.floor(np.float64(table[i]) * factor + dither[i]))
            norms += np.int64(scratch[i]) * np.int64(scratch[i])
        if norms > largest:
            factor *= 1 - 1e-9  # more than the arithmetic can lose
            norms = np.int64(0)
            for i in range(table.size):
                scratch[i] = np.int32(np.float64(table[i]) * factor)
                norms += np.int64(scratch[i]) * np.int64(scratch[i])
        if norms <= largest:
            for i in range(table.size):
                total[i] += scratch[i]


@contextmanager
def _secret_random(noise: Noise) -> Iterator[None]:
    """Seed PyTorch in secret, for layers such as dropout, and restore it afterwards.

    Masks that follow from a public seed are those of a place in the batch: a record that moves
    others to the next place would move the sum by more than its own vector.
    """
    if not isinstance(noise, SecureNoise):  # simulated: the same run has the same bits
        yield
        return
    devices = torch.cuda.device_count()
    with torch.random.fork_rng(range(devices)):
        # Not by torch.manual_seed: it seeds devices that are not restored afterwards, and takes
        # longer than all else of a small message.
        torch.default_generator.manual_seed(secrets.randbits(63))
        if devices:
            torch.cuda.manual_seed_all(secrets.randbits(63))
        yield


def release_records(
    pieces: Iterable[Tensor],
    method: Method,
    seed: HashSeed,
    claim: Claim,
    *,
    charge: Callable[[], object] | None,
    noise: Noise | None = None,
) -> Tensor:
    """Charge, draw noise, and return the message of a batch of records: the gate for records.

    Draw the batch by `draw_records`, and compute its vectors only as `pieces` are asked for.

    Args:
        pieces: As for `encode_records`.
        method: With `unit="example"` or `"person"`.
        seed: The round's hashes.
        claim: What is claimed for the message, or for the sum of all members'.
        charge: Charges the party's account, and raises if it cannot be paid. None where the
            accounts of a whole cohort were charged before.
        noise: Simulated noise; else it is exact, from the operating system.
    """
    if noise is None:
        check_release(method, claim)  # first: what may not be sent at all costs nothing
    if charge is not None:
        charge()
    source = release_noise(method, claim) if noise is None else noise
    return encode_records(method, pieces, seed, source)
