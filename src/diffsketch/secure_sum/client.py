"""A member of a secure sum: bytes in, bytes out. It reveals nothing unless all checks hold."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from torch import Tensor

from diffsketch.errors import ArgumentError, check
from diffsketch.files import synchronise
from diffsketch.secure_sum import masks, messages, primitives
from diffsketch.secure_sum.masks import MemberSecrets
from diffsketch.secure_sum.messages import MessageKind, Params, Presence, PublicKeys, Stage
from diffsketch.secure_sum.primitives import RefusedError, SigningIdentity

_KEPT = (MessageKind.KEY_LIST, MessageKind.SHARE_LIST, MessageKind.SURVIVORS)


class SecureSumClient:
    """One member in one round. A new round takes a new client, with new keys.

    `answer` takes one request of the server. The same request again, as after a lost reply, gets
    the same answer; a different one in its place is refused. So no two inputs are ever masked
    alike, and no two kinds of shares of one member are revealed.

    Shares that cannot be decrypted, since their sender or the server altered them, are left out:
    this member then has none to reveal for that sender. A sender who does so gains nothing, as
    fewer shares of its secrets exist; and no single member can keep all others from taking part.

    Guarantees: the refusals, and the same answers after `restore`
    (`tests/secure_sum/test_client.py`); what a masked input shows
    (`tests/secure_sum/test_secrecy.py`).

    Args:
        index: Number of the member.
        params: Parameters of the round, on which this member insists.
        identity: Its long-term key, where members sign.
        randomness: Function from a size to that many secret random bytes. Only tests with known
            answers replace the operating system's.

    Raises:
        ArgumentError: Not a member, or the identity is not the one that the others know.
    """

    def __init__(
        self,
        index: int,
        params: Params,
        *,
        identity: SigningIdentity | None = None,
        randomness: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        check(index in params.points, "index", "be a member of the round", index)
        listed = None if params.identities is None else params.identities[index]
        if listed != (None if identity is None else identity.public):
            raise ArgumentError(f"identity must be the one that params has for {index}, or none")
        self.index, self.params = index, params
        self._secrets = MemberSecrets(
            randomness(primitives.SECRET_BYTES), index, params=params, identity=identity
        )
        self._requests: dict[MessageKind, bytes] = {}
        self._reply: bytes | None = None

    def answer(self, request: bytes, cells: Callable[[], Tensor]) -> bytes:
        """Answer a request of the server, by the stage that the request is of.

        Args:
            request: The server's request.
            cells: Makes the input, with its noise: of the format's shape, int64 below `2**bits`.
                Called only when it is masked, and not for a repeated request, which gets the first
                reply.

        Raises:
            RefusedError: The request is not of this round, not the first of its stage, or skips a
                stage; or it lists too few members, unknown ones, or altered keys of this member;
                or it has a key twice, a wrong signature, or a sum without this member; or too few
                shares can be decrypted.
            ArgumentError: The cells do not fit the format.
        """
        stage = messages.stage_of(request, self.params)
        if stage is Stage.KEYS:
            messages.parse_message(request, MessageKind.OPENING, params=self.params, size=0)
            return self._pack(MessageKind.KEYS, self._secrets.public.to_bytes())
        if stage is Stage.SHARES:
            return self._share(request)
        if stage is Stage.MASKED:
            # The first reply is kept: a second input under the same masks would reveal both.
            if self._reply is None or self._requests[MessageKind.SHARE_LIST] != request:
                self._reply = self._masked(request, cells)
            return self._reply
        if stage is Stage.CONSISTENCY:
            presence = self._read_presence(request)
            self._keep(MessageKind.SURVIVORS, request)
            signature = self._secrets.sign(messages.signed_presence(presence, self.params))
            return self._pack(MessageKind.CONSISTENCY, signature)
        return self._unmask(request)

    def save(self) -> bytes:
        """Serialise everything that another process needs to continue. Secret: encrypt it on disk.

        Save before a reply leaves: an older copy that masks another input reveals both.
        """
        parts = [self._secrets.root]
        for blob in (*(self._requests.get(kind, b"") for kind in _KEPT), self._reply or b""):
            parts += [len(blob).to_bytes(8, "little"), blob]
        return self._pack(MessageKind.STATE, b"".join(parts))

    @classmethod
    def restore(
        cls, saved: bytes, index: int, *, params: Params, identity: SigningIdentity | None = None
    ) -> SecureSumClient:
        """Restore a client from `save`.

        Raises:
            RefusedError: Not its state, or of another round.
        """
        sender, body = messages.parse_message(saved, MessageKind.STATE, params=params, size=None)
        if sender != index:
            raise RefusedError(f"state is of {sender}, and {index} is expected")
        blobs, at = [], primitives.SECRET_BYTES
        for _ in range(len(_KEPT) + 1):
            size, at = int.from_bytes(body[at : at + 8], "little"), at + 8
            blobs.append(body[at : at + size])
            at += size
        if at != len(body):
            raise RefusedError("state is truncated, or too long")
        client = cls(index, params, identity=identity, randomness=lambda size: body[:size])
        *requests, reply = blobs
        client._requests = {kind: data for kind, data in zip(_KEPT, requests, strict=True) if data}
        client._reply = reply or None
        return client

    def _share(self, request: bytes) -> bytes:
        """Encrypt a share of both secrets for every member that has keys."""
        keys = self._read_keys(request)
        self._keep(MessageKind.KEY_LIST, request)
        self._keys = keys
        encrypted = {}
        for index, (seed, mask) in self._secrets.split(list(keys)).items():
            if index != self.index:
                key, bound = self._secrets.channel(keys, sender=self.index, recipient=index)
                encrypted[index] = primitives.encrypt(key, seed + mask, bound)
        return self._pack(MessageKind.SHARES, messages.pack_list(encrypted))

    def _masked(self, request: bytes, cells: Callable[[], Tensor]) -> bytes:
        """Mask the input, once: after the first reply `_keep` refuses every other list."""
        shares = self._read_shares(request)
        words = masks.input_words(cells(), self.params.layout)
        # Kept before anything is masked: an interrupt may lose the reply, and allows no other list.
        self._keep(MessageKind.SHARE_LIST, request)
        self._shares = shares
        words += masks.seed_mask(self._secrets.seed, self.index, self.params)
        for index in shares.keys() - {self.index}:
            pair = (self.index, index)
            words += masks.pair_mask(self._secrets.mask, self._keys[index].mask, pair, self.params)
        return self._pack(MessageKind.MASKED, masks.pack_masked(words, self.index, self.params))

    def _unmask(self, request: bytes) -> bytes:
        """Reveal, for each member, its share of one secret and never of both.

        A share of the seed, for a member in the sum; of the mask key, for one that dropped out.
        Nothing for one whose shares could not be read, which tells the server so.
        """
        if self.params.identities is not None:
            presence = self._read_presence(self._kept(MessageKind.SURVIVORS))
            signatures = self._parse_list(
                request, MessageKind.SIGNATURES, primitives.SIGNATURE_BYTES
            )
            self._check_enough(len(signatures), "have signed who is in the sum")
            signed = messages.signed_presence(presence, self.params)
            for index, signature in signatures.items():
                if presence.get(index) is not Presence.PRESENT:
                    raise RefusedError(f"{index} has signed, but is not in the sum")
                primitives.verify(self.params.identities[index], signature, signed)
        else:
            presence = self._read_presence(request)
            self._keep(MessageKind.SURVIVORS, request)
        revealed = {}
        for index, value in presence.items():
            if (both := self._shares[index]) is not None:
                revealed[index] = bytes([value]) + both[0 if value is Presence.PRESENT else 1]
        return self._pack(MessageKind.UNMASK, messages.pack_list(revealed))

    # Read from the requests that are kept, once: another list in their place is refused.
    @cached_property
    def _keys(self) -> dict[int, PublicKeys]:
        return self._read_keys(self._kept(MessageKind.KEY_LIST))

    @cached_property
    def _shares(self) -> dict[int, tuple[bytes, bytes] | None]:
        return self._read_shares(self._kept(MessageKind.SHARE_LIST))

    def _read_keys(self, request: bytes) -> dict[int, PublicKeys]:
        values = self._parse_list(request, MessageKind.KEY_LIST, PublicKeys.size(self.params))
        keys = {index: PublicKeys.parse(value) for index, value in values.items()}
        if keys.get(self.index) != self._secrets.public:
            raise RefusedError("the list of keys lacks the own ones, or has them altered")
        self._check_enough(len(keys), "have keys")
        messages.check_distinct(keys.values())
        for index, public in keys.items():
            messages.check_keys(public, index, self.params)
        return keys

    def _read_shares(self, request: bytes) -> dict[int, tuple[bytes, bytes] | None]:
        """Decrypt its shares of all secrets, of a seed and a mask key; the own ones among them."""
        keys = self._keys
        encrypted = self._parse_list(request, MessageKind.SHARE_LIST, messages.ENCRYPTED_BYTES)
        if not encrypted.keys() <= keys.keys() - {self.index}:
            raise RefusedError("the list of shares has some of members without keys, or the own")
        self._check_enough(len(encrypted) + 1, "have sent shares")
        shares: dict[int, tuple[bytes, bytes] | None] = {}
        for index, ciphertext in encrypted.items():
            key, bound = self._secrets.channel(keys, sender=index, recipient=self.index)
            shares[index] = None
            with suppress(RefusedError):
                both = primitives.decrypt(key, ciphertext, bound)
                seed, mask = both[: primitives.SHARE_BYTES], both[primitives.SHARE_BYTES :]
                primitives.share_number(seed)
                primitives.share_number(mask)
                shares[index] = seed, mask
        shares[self.index] = self._secrets.split(list(keys))[self.index]
        read = sum(both is not None for both in shares.values())
        if read < self.params.threshold:  # then the list is wrong rather than its senders
            raise RefusedError(
                f"shares of {read} members of {len(shares)} can be read, and the threshold is "
                f"{self.params.threshold}: each other one was altered, or is of another round"
            )
        return shares

    def _read_presence(self, request: bytes) -> dict[int, Presence]:
        """Read who is in the sum, of exactly those who share masks with this member."""
        values = self._parse_list(request, MessageKind.SURVIVORS, 1)
        if any(value[0] not in list(Presence) for value in values.values()):
            raise RefusedError("a member is neither present nor dropped")
        presence = {index: Presence(value[0]) for index, value in values.items()}
        count, needed = sum(presence.values()), self.params.min_present
        if count < needed:
            raise RefusedError(
                f"{count} members are in the sum, and {needed} are needed: it stays masked"
            )
        if presence.keys() != self._shares.keys():
            raise RefusedError("the list of survivors is not of those who sent shares")
        if self._reply is None or presence[self.index] is not Presence.PRESENT:
            raise RefusedError(f"{self.index} is not in the sum, and does not uncover it")
        return presence

    def _parse_list(self, request: bytes, kind: MessageKind, size: int) -> dict[int, bytes]:
        return messages.parse_list(request, kind, params=self.params, size=size)[1]

    def _kept(self, kind: MessageKind) -> bytes:
        if kind not in self._requests:
            raise RefusedError(f"{kind.name} has not been answered: a stage was left out")
        return self._requests[kind]

    def _keep(self, kind: MessageKind, request: bytes) -> None:
        """Remember what is answered, or refuse another request in its place."""
        if self._requests.setdefault(kind, bytes(request)) != request:
            raise RefusedError(f"another {kind.name} was answered before: only one is, ever")

    def _check_enough(self, count: int, what: str) -> None:
        if count < self.params.threshold:
            raise RefusedError(
                f"{count} members {what}, and the threshold is {self.params.threshold}"
            )

    def _pack(self, kind: MessageKind, body: bytes) -> bytes:
        return messages.pack_message(kind, body, sender=self.index, context=self.params.context)


class ReplyGuard:
    """Lets one reply pass for each stage of a round, whichever process of the member gives it.

    A `SecureSumClient` refuses a second answer because it remembers the first. Two processes that
    start from the same saved state do not know of each other, and nor does one that starts from an
    older state: both could be asked for what must not be given together. So a file is made for
    each stage of a round, which only one process can do, with a digest of the reply. It has a few
    bytes and says nothing about secrets. Files of rounds that are over may be removed while none of
    the member's processes runs.

    Guarantees (`tests/secure_sum/test_client.py`): of several processes with different replies,
    one may send its own.

    Args:
        directory: Directory of this member alone, the same in all of its processes. Made if it
            does not exist.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)

    def bind(self, reply: bytes, stage: Stage, *, index: int, context: bytes) -> None:
        """Settle that this is the reply. To be called before it is sent.

        Raises:
            RefusedError: There is another one already.
            OSError: The file cannot be written.
        """
        digest = hashlib.sha256(reply).hexdigest()
        about = context + index.to_bytes(8, "little")
        path = self._directory / f"{hashlib.sha256(about).hexdigest()[:32]}-{stage.value}"
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("x", encoding="ascii") as stream:  # made by this process, or an error
                stream.write(digest)
                stream.flush()
                os.fsync(stream.fileno())
            # A name that a crash of the machine can lose would let a second reply pass.
            synchronise(self._directory)
        except FileExistsError:
            # Of a process that has just made it there may be nothing to read: that is another one.
            if path.read_text(encoding="ascii") != digest:
                raise RefusedError(
                    f"another reply was given by {index} in stage {stage.value}, perhaps by "
                    "another process: only one is"
                ) from None
