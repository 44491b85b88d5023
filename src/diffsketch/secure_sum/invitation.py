"""How a member hears of a round: what the server proposes, checked against what the member wants.

    bytes  what
        2  magic: d5 49
        1  version of this layout: 1
        1  length of the run's name, 16 to 64
        .  the run's name
        4  round
        4  threshold
        4  min_present
        4  count of members
      8 n  the members, ascending
        8  checksum: the BLAKE2b of eight bytes of all before

Numbers are unsigned and little-endian. The format of the cells, the hashes and the identities are
not in it: a member knows them already, or must not take them from the server.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping

from diffsketch.errors import ArgumentError
from diffsketch.secure_sum.errors import RefusedError
from diffsketch.secure_sum.params import Params
from diffsketch.wire.formats import MessageFormat
from diffsketch.wire.message import check_data

__all__ = ["accept", "invite"]

_MAGIC = b"\xd5I\x01"
_NUMBERS = struct.Struct("<4I")
_CHECKSUM_BYTES = 8
_SHORTEST = len(_MAGIC) + 1 + _NUMBERS.size + _CHECKSUM_BYTES


def invite(params: Params) -> bytes:
    """The invitation to a round, the same for all of its members."""
    numbers = (params.round_index, params.threshold, params.min_present, len(params.members))
    data = _MAGIC + bytes([len(params.run)]) + params.run + _NUMBERS.pack(*numbers)
    data += b"".join(index.to_bytes(8, "little") for index in params.members)
    return data + _checksum(data)


def accept(
    data: bytes,
    layout: MessageFormat,
    *,
    fingerprint: bytes,
    least_present: int,
    identities: Mapping[int, bytes] | None = None,
    corrupt: int = 0,
) -> Params:
    """The round that a member is invited to, if that is one that it wants to be in.

    Whether the run and the round are those that the member is in is for the caller to see.

    Args:
        data: The invitation.
        layout: Format of the inputs.
        fingerprint: Of the round's hashes.
        least_present: Inputs that must be in the sum, for the claim that the member was promised.
        identities: Public keys of all who might be members, not from this server; None for a
            server that is trusted to follow the protocol.
        corrupt: Members who may collude with a malicious server: `2 threshold > members + corrupt`
            is required.

    Raises:
        RefusedError: Not an invitation, or not to such a round.
        ArgumentError: `data` is not bytes.

    >>> layout = MessageFormat("sketch-skellam", 9, (1, 2), "unsigned", 8)
    >>> params = Params(
    ...     layout, run=bytes(16), round_index=0, fingerprint=bytes(8), members=(1, 2, 3),
    ...     threshold=2, min_present=2,
    ... )
    >>> accept(invite(params), layout, fingerprint=bytes(8), least_present=2) == params
    True
    >>> accept(invite(params), layout, fingerprint=bytes(8), least_present=3)
    Traceback (most recent call last):
        ...
    diffsketch.secure_sum.errors.RefusedError: invitation is refused: min_present is 2, below 3
    """
    run, numbers, members = _parse(data)
    round_index, threshold, min_present = numbers
    if min_present < least_present:
        raise RefusedError(f"invitation is refused: min_present is {min_present}, below "
                           f"{least_present}")  # fmt: skip
    if 2 * threshold <= len(members) + corrupt:
        raise RefusedError(
            f"invitation is refused: a threshold of {threshold} for {len(members)} members does "
            f"not withstand {corrupt} who collude with the server"
        )
    known = None
    if identities is not None:
        if strangers := [index for index in members if index not in identities]:
            raise RefusedError(f"invitation is refused: {strangers[0]} has no known identity")
        known = {index: identities[index] for index in members}
    try:
        return Params(
            layout,
            run=run,
            round_index=round_index,
            fingerprint=fingerprint,
            members=members,
            threshold=threshold,
            min_present=min_present,
            identities=known,
        )
    except ArgumentError as error:
        raise RefusedError(f"invitation is refused: {error}") from error


def _parse(data: bytes) -> tuple[bytes, tuple[int, int, int], tuple[int, ...]]:
    check_data(data)
    if len(data) < _SHORTEST or not bytes(data).startswith(_MAGIC):
        raise RefusedError("not an invitation to a secure sum of version 1")
    if bytes(data[-_CHECKSUM_BYTES:]) != _checksum(data[:-_CHECKSUM_BYTES]):
        raise RefusedError("invitation was altered on its way: its checksum does not fit")
    start = len(_MAGIC) + 1 + data[len(_MAGIC)]
    end = start + _NUMBERS.size
    if len(data) < end + _CHECKSUM_BYTES:
        raise RefusedError("invitation is truncated")
    round_index, threshold, min_present, count = _NUMBERS.unpack_from(data, start)
    listed = bytes(data[end:-_CHECKSUM_BYTES])
    if len(listed) != 8 * count:
        raise RefusedError(f"invitation lists {len(listed)} bytes of {count} members")
    members = tuple(
        int.from_bytes(listed[at : at + 8], "little") for at in range(0, len(listed), 8)
    )
    run = bytes(data[len(_MAGIC) + 1 : start])
    return run, (round_index, threshold, min_present), members


def _checksum(data: bytes | bytearray) -> bytes:
    return hashlib.blake2b(data, digest_size=_CHECKSUM_BYTES, person=b"ds-invite").digest()
