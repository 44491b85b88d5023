"""A member: bytes in, bytes out. It keeps its input to itself unless all checks hold."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping

from torch import Tensor

from diffsketch.errors import ArgumentError, check
from diffsketch.secure_sum.checks import check_distinct, check_fates, check_keys, signed_fates
from diffsketch.secure_sum.errors import RefusedError
from diffsketch.secure_sum.masks import cells_of, pair_mask, self_mask, words_of
from diffsketch.secure_sum.messages import (
    SEALED_BYTES,
    SIGNATURE_BYTES,
    Fate,
    Kind,
    PublicKeys,
    close,
    open_records,
    open_sized,
    records,
    stage_of,
)
from diffsketch.secure_sum.own import ROOT_BYTES, OwnSecrets
from diffsketch.secure_sum.params import Params
from diffsketch.secure_sum.primitives import Identity, decrypt, encrypt, verify
from diffsketch.secure_sum.shamir import SHARE_BYTES, number_of
from diffsketch.secure_sum.stages import Stage
from diffsketch.wire.formats import pack
from diffsketch.wire.message import Message

__all__ = ["Client"]

_KEPT = (Kind.KEY_LIST, Kind.SHARE_LIST, Kind.SURVIVORS)


class Client:
    """One member in one round. A new round takes a new client, with new keys.

    Each method answers one request of the server. The same request again, as after a lost reply,
    gets the same answer; another one in its place is refused. So no two inputs are ever masked
    alike, and no two kinds of shares of one member are given away.

    Shares that cannot be read, since their sender or the server altered them, are left out: this
    member then has none to give for that sender. One who does so gains nothing, as it only has
    fewer shares in the end; and no single member can keep all others from taking part.

    Guarantees (`tests/secure_sum/`): the refusals (`test_client.py`); the same answers after
    `restore` (`test_saved.py`); what a masked input shows (`test_secrecy.py`).

    Args:
        index: The member's number.
        params: Of the round: what this member insists on.
        identity: Its lasting key, where members sign.
        randomness: Gives so many secret random bytes. Another one than the operating system's is
            for tests with known answers.

    Raises:
        ArgumentError: Not a member, or the identity is not the one that the others know.
    """

    def __init__(
        self,
        index: int,
        params: Params,
        *,
        identity: Identity | None = None,
        randomness: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        check(index in params.points, "index", "be a member of the round", index)
        known = None if params.identities is None else params.identities[index]
        if known != (None if identity is None else identity.public):
            raise ArgumentError(f"identity must be the one that params has for {index}, or none")
        self.index, self.params = index, params
        self._own = OwnSecrets(randomness(ROOT_BYTES), index, params=params, identity=identity)
        self._requests: dict[Kind, bytes] = {}
        self._input: bytes | None = None
        self._reply: bytes | None = None
        self._keys: dict[int, PublicKeys] = {}  # read from the requests that are kept
        self._shares: dict[int, tuple[bytes, bytes] | None] = {}  # None: they cannot be read

    def answer(self, request: bytes, cells: Callable[[], Tensor]) -> bytes:
        """The reply to any request, by the stage that the request is of.

        Args:
            request: What the server has sent.
            cells: Gives the input. Called only when it is to be masked, and not for a repeated
                request: then the first reply is given again.
        """
        stage = stage_of(request, self.params)
        if stage is Stage.MASKED:
            if self._reply is not None and self._requests.get(Kind.SHARE_LIST) == request:
                return self._reply
            return self.masked(cells(), request)
        return {
            Stage.KEYS: self.advertise,
            Stage.SHARES: self.share,
            Stage.CONSISTENCY: self.consistency,
            Stage.UNMASK: self.unmask,
        }[stage](request)

    def advertise(self, request: bytes) -> bytes:
        """Stage KEYS: its public keys."""
        open_sized(request, Kind.OPENING, params=self.params, size=0)
        return self._close(Kind.KEYS, self._own.public.to_bytes())

    def share(self, request: bytes) -> bytes:
        """Stage SHARES: a share of each of its two secrets for every member that has keys.

        Raises:
            RefusedError: The list is not of this round; too short; lacks its own keys or has them
                altered; has a key twice, or one that is not signed; or is not the first.
        """
        keys = self._read_keys(request)
        self._keep(Kind.KEY_LIST, request)
        self._keys = keys
        sealed = {}
        for index, (seed, mask) in self._own.split(list(keys)).items():
            if index != self.index:
                key, bound = self._own.channel(keys, sender=self.index, recipient=index)
                sealed[index] = encrypt(key, seed + mask, bound)
        return self._close(Kind.SHARES, records(sealed))

    def masked(self, cells: Tensor, request: bytes) -> bytes:
        """Stage MASKED: its input, plus its own mask, plus those of all pairs that it is in.

        Args:
            cells: Of the format's shape, int64 below `2**bits`. Noise is in them already.
            request: The shares that others have for it.

        Raises:
            ArgumentError: The cells do not fit the format, or others were masked before.
            RefusedError: Too few shares, or too few that can be read; or another list of them was
                answered before.
        """
        digest = hashlib.sha256(pack(cells, self.params.layout)).digest()
        if self._input not in (None, digest):
            raise ArgumentError(
                "cells must be those that were masked before: two inputs under the same masks "
                "would show their difference. Send `masked_reply` again"
            )
        keys = self._known_keys()
        shares = self._read_shares(request)
        self._keep(Kind.SHARE_LIST, request)
        self._shares = shares
        words = words_of(cells, self.params) + self_mask(self._own.seed, self.index, self.params)
        for index in shares.keys() - {self.index}:
            pair = (self.index, index)
            words += pair_mask(self._own.mask, keys[index].mask, pair, self.params)
        message = Message(
            self.params.layout,
            cells_of(words, self.params),
            round_index=self.params.round_index,
            fingerprint=self.params.fingerprint,
            sender=self.index,
        )
        self._input, self._reply = digest, self._close(Kind.MASKED, message.to_bytes())
        return self._reply

    @property
    def masked_reply(self) -> bytes | None:
        """What `masked` gave: for a repeated request, without computing the input again."""
        return self._reply

    @property
    def unreadable(self) -> tuple[int, ...]:
        """Members whose shares for this one could not be read."""
        return tuple(index for index, both in self._shares.items() if both is None)

    def consistency(self, request: bytes) -> bytes:
        """Stage CONSISTENCY, where members sign: its signature of who is in the sum.

        Raises:
            RefusedError: It is not in the sum itself, those in it are too few, or another list
                was signed before.
        """
        check(self.params.signed, "params", "have identities for this stage", None)
        fates = self._read_fates(request)
        self._keep(Kind.SURVIVORS, request)
        return self._close(Kind.CONSISTENCY, self._own.sign(signed_fates(fates, self.params)))

    def unmask(self, request: bytes) -> bytes:
        """Stage UNMASK: for each member, its share of one secret and never of both.

        Of the seed, for a member in the sum; of the mask key, for one that dropped out. Nothing for
        one whose shares could not be read, which tells the server so.

        Args:
            request: Who is in the sum; or where members sign, the others' signatures of it.

        Raises:
            RefusedError: As `consistency`; or too few signatures, or one that does not fit.
        """
        if self.params.signed:
            fates = self._read_fates(self._kept(Kind.SURVIVORS))
            self._check_signatures(request, fates)
        else:
            fates = self._read_fates(request)
            self._keep(Kind.SURVIVORS, request)
        shares, uncovered = self._known_shares(), {}
        for index, fate in fates.items():
            both = shares[index]
            if both is None:
                continue
            seed, mask = both
            uncovered[index] = bytes([fate]) + (seed if fate is Fate.PRESENT else mask)
        return self._close(Kind.UNMASK, records(uncovered))

    def save(self) -> bytes:
        """All that is needed to go on in another process. It is secret: encrypt it on a disk.

        Save before a reply leaves: an old copy that masks another input gives both away.
        """
        parts = [self._own.root, self._input or bytes(32)]
        for blob in (*(self._requests.get(kind, b"") for kind in _KEPT), self._reply or b""):
            parts += [len(blob).to_bytes(8, "little"), blob]
        return self._close(Kind.STATE, b"".join(parts))

    @classmethod
    def restore(
        cls, saved: bytes, index: int, *, params: Params, identity: Identity | None = None
    ) -> Client:
        """The client that was saved.

        Raises:
            RefusedError: Not its state, or of another round.
        """
        sender, body = open_sized(saved, Kind.STATE, params=params, size=None)
        if sender != index:
            raise RefusedError(f"state is of {sender}, and {index} is expected")
        blobs, at = [], 2 * ROOT_BYTES
        for _ in range(len(_KEPT) + 1):
            size, at = int.from_bytes(body[at : at + 8], "little"), at + 8
            blobs.append(body[at : at + size])
            at += size
        if at != len(body):
            raise RefusedError("state is truncated, or too long")
        client = cls(index, params, identity=identity, randomness=lambda size: body[:size])
        *requests, reply = blobs
        client._requests = {kind: data for kind, data in zip(_KEPT, requests, strict=True) if data}
        if reply:
            client._input, client._reply = body[ROOT_BYTES : 2 * ROOT_BYTES], reply
        return client

    def _known_keys(self) -> dict[int, PublicKeys]:
        self._keys = self._keys or self._read_keys(self._kept(Kind.KEY_LIST))
        return self._keys

    def _known_shares(self) -> dict[int, tuple[bytes, bytes] | None]:
        self._shares = self._shares or self._read_shares(self._kept(Kind.SHARE_LIST))
        return self._shares

    def _read_keys(self, request: bytes) -> dict[int, PublicKeys]:
        """All members' keys."""
        values = self._records(request, Kind.KEY_LIST, PublicKeys.size(self.params))
        keys = {index: PublicKeys.parse(value) for index, value in values.items()}
        if keys.get(self.index) != self._own.public:
            raise RefusedError("the list of keys lacks the own ones, or has them altered")
        self._check_enough(len(keys), "have keys")
        check_distinct(keys.values())
        for index, found in keys.items():
            check_keys(found, index, self.params)
        return keys

    def _read_shares(self, request: bytes) -> dict[int, tuple[bytes, bytes] | None]:
        """Its shares of all secrets, the own ones among them: of a seed and of a mask key.

        With fewer readable ones than the threshold, it is rather the list that is wrong.
        """
        keys = self._known_keys()
        sealed = self._records(request, Kind.SHARE_LIST, SEALED_BYTES)
        if not sealed.keys() <= keys.keys() - {self.index}:
            raise RefusedError("the list of shares has some of members without keys, or the own")
        self._check_enough(len(sealed) + 1, "have sent shares")
        shares: dict[int, tuple[bytes, bytes] | None] = {
            index: self._opened(ciphertext, keys, sender=index)
            for index, ciphertext in sealed.items()
        }
        shares[self.index] = self._own.split(list(keys))[self.index]
        read = sum(both is not None for both in shares.values())
        if read < self.params.threshold:
            raise RefusedError(
                f"shares of {read} members of {len(shares)} can be read, and the threshold is "
                f"{self.params.threshold}: each other one was altered, or is of another round"
            )
        return shares

    def _opened(
        self, ciphertext: bytes, keys: Mapping[int, PublicKeys], *, sender: int
    ) -> tuple[bytes, bytes] | None:
        """A member's shares for this one; None if they cannot be read."""
        key, bound = self._own.channel(keys, sender=sender, recipient=self.index)
        try:
            both = decrypt(key, ciphertext, bound)
            shares = both[:SHARE_BYTES], both[SHARE_BYTES:]
            for share in shares:
                number_of(share)
        except RefusedError:
            return None
        return shares

    def _read_fates(self, request: bytes) -> dict[int, Fate]:
        """Who is in the sum, of exactly those with whom this member shares masks."""
        fates = check_fates(self._records(request, Kind.SURVIVORS, 1), self.params)
        if fates.keys() != self._known_shares().keys():
            raise RefusedError("the list of survivors is not of those who sent shares")
        if self._reply is None or fates[self.index] is not Fate.PRESENT:
            raise RefusedError(f"{self.index} is not in the sum, and does not uncover it")
        return fates

    def _check_signatures(self, request: bytes, fates: dict[int, Fate]) -> None:
        found = self._records(request, Kind.SIGNATURES, SIGNATURE_BYTES)
        self._check_enough(len(found), "have signed who is in the sum")
        identities, signed = self.params.identities or {}, signed_fates(fates, self.params)
        for index, signature in found.items():
            if fates.get(index) is not Fate.PRESENT:
                raise RefusedError(f"{index} has signed, but is not in the sum")
            verify(identities[index], signature, signed)

    def _records(self, request: bytes, kind: Kind, size: int) -> dict[int, bytes]:
        return open_records(request, kind, params=self.params, size=size)[1]

    def _kept(self, kind: Kind) -> bytes:
        if kind not in self._requests:
            raise RefusedError(f"{kind.name} has not been answered: a stage was left out")
        return self._requests[kind]

    def _keep(self, kind: Kind, request: bytes) -> None:
        """Remember what is answered, or refuse another request in its place."""
        if self._requests.setdefault(kind, bytes(request)) != request:
            raise RefusedError(f"another {kind.name} was answered before: only one is, ever")

    def _check_enough(self, count: int, what: str) -> None:
        if count < self.params.threshold:
            raise RefusedError(
                f"{count} members {what}, and the threshold is {self.params.threshold}"
            )

    def _close(self, kind: Kind, body: bytes) -> bytes:
        return close(kind, body, sender=self.index, params=self.params)
