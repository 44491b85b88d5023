"""The server of a secure sum: it passes messages on, and learns the sum and who is in it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from torch import Tensor

from diffsketch.errors import ArgumentError
from diffsketch.secure_sum import masks, messages, primitives
from diffsketch.secure_sum.messages import (
    MessageKind,
    Params,
    Presence,
    PublicKeys,
    Stage,
    VoidError,
)
from diffsketch.secure_sum.primitives import KeyPair, RefusedError
from diffsketch.wire import DuplicateError
from diffsketch.wire.sums import CostlySum, costs_more_than_dense

_ANY_KEY = KeyPair(bytes(range(32)))  # to try whether a public key has a common secret


@dataclass(frozen=True, eq=False)
class Total:
    """The sum of a round.

    Attributes:
        cells: The sum modulo `2**bits`: int64, of the format's shape.
        present: The members whose inputs are in it, ascending. Only their noise is:
            `method.claim_for(len(present), seed)` says what that guarantees.
    """

    cells: Tensor
    present: tuple[int, ...]


class SecureSumServer:
    """One round. Whoever carries the messages repeats the loop below until `stage` is DONE.

    Requests go to those whom `requests` names, each reply goes to `collect`, and `close` goes on
    with those who replied.

    A refused reply changes nothing; a member that does not reply has dropped out. With too few
    left, `close` raises a `VoidError`, and so does everything after it.

    A member may send shares that others cannot decrypt. If `threshold` members can, there is still
    a sum; else the round is void, since the sender's masks can never be removed. `unreadable` says
    whose shares they are and who could not decrypt them, and `suspects` who should be left out of
    the next round.

    Wrong shares never give a wrong sum: a recovered secret must fit the commitment to the seed, or
    the public mask key, of the first message. With one share more than the threshold, a single
    wrong one is found and left out; else the round is void. `wrong` maps the owner of the secret to
    those who sent shares of it: all who did, or the one whose share was wrong. Either they or the
    owner, who made the shares, are at fault.

    Guarantees (`tests/secure_sum/test_server.py`): the total is the sum of the inputs of those
    present, for dropouts at every stage within the threshold, and an error beyond it.
    `tests/secure_sum/test_bad_shares.py`: shares that cannot be read, and wrong ones.

    Args:
        params: Parameters of the round.

    Warns:
        CostlySum: Its exchanges outweigh what compression saves: two aggregators send less.

    >>> import torch
    >>> from diffsketch.secure_sum import SecureSumClient
    >>> from diffsketch.wire import MessageFormat
    >>> params = Params(
    ...     MessageFormat("sketch-skellam", 9, (1, 2), "unsigned", 8), run=bytes(16),
    ...     round_index=0, fingerprint=bytes(8), members=(1, 2, 3), threshold=2, min_present=2,
    ... )
    >>> clients = {index: SecureSumClient(index, params) for index in (1, 2, 3)}
    >>> server = SecureSumServer(params)
    >>> inputs = {index: torch.tensor([[index, 255]]) for index in clients}
    >>> while server.stage is not Stage.DONE:
    ...     for index, request in server.requests().items():
    ...         reply = clients[index].answer(request, lambda: inputs[index])
    ...         if (index, server.stage) != (2, Stage.MASKED):  # one is lost
    ...             _ = server.collect(reply)
    ...     _ = server.close()
    >>> server.total()
    Total(cells=tensor([[  4, 254]]), present=(1, 3))
    """

    def __init__(self, params: Params) -> None:
        members, signed = len(params.members), params.signed
        if more := costs_more_than_dense("one", params.layout, members, signed=signed):
            warnings.warn(more, CostlySum, stacklevel=2)
        self.params, self.stage = params, Stage.KEYS
        self.dropped: dict[int, Stage] = {}
        self.unreadable: dict[int, tuple[int, ...]] = {}
        self.wrong: dict[int, tuple[int, ...]] = {}
        self._expected: tuple[int, ...] = params.members
        self._replied: set[int] = set()
        self._keys: dict[int, PublicKeys] = {}
        self._encrypted: dict[int, dict[int, bytes]] = {}
        self._sum: masks.Words = np.zeros(params.layout.cell_count, masks.word(params.layout))
        self._presence: dict[int, Presence] = {}
        self._signatures: dict[int, bytes] = {}
        self._revealed: dict[int, dict[int, bytes]] = {}
        self._weights = cache(primitives.weights_at_zero)  # most secrets have the same givers
        self._total: Total | None = None
        self._void: VoidError | None = None

    @property
    def missing(self) -> tuple[int, ...]:
        """Members whose reply of this stage has not come, ascending."""
        return tuple(index for index in self._expected if index not in self._replied)

    @property
    def suspects(self) -> tuple[int, ...]:
        """Members whose shares a majority could not decrypt; with an honest majority, at fault.

        Where fewer could not, either the member is at fault or those who say so lie.
        """
        return tuple(
            owner
            for owner, by in sorted(self.unreadable.items())
            if 2 * len(by) > len(self._revealed.keys() - {owner})
        )

    def requests(self) -> dict[int, bytes]:
        """Serialise this stage's requests, by the members that they are for."""
        self._check_alive()
        kind, body = MessageKind.OPENING, b""
        if self.stage is Stage.SHARES:
            keys = {index: keys.to_bytes() for index, keys in self._keys.items()}
            kind, body = MessageKind.KEY_LIST, messages.pack_list(keys)
        elif self.stage is Stage.MASKED:
            return {index: self._shares_for(index) for index in self._expected}
        elif self.stage is Stage.UNMASK and self.params.signed:
            kind, body = MessageKind.SIGNATURES, messages.pack_list(self._signatures)
        elif self.stage in (Stage.CONSISTENCY, Stage.UNMASK):
            kind = MessageKind.SURVIVORS
            body = messages.pack_presence(self._presence)
        return dict.fromkeys(self._expected, self._pack(kind, body))

    def collect(self, reply: bytes, *, sent_by: int | None = None) -> int:
        """Take in one reply; return whose it is.

        Args:
            reply: Bytes that have come.
            sent_by: The member that it came from, where the transport knows. Without signatures,
                nothing else keeps a member from speaking for another.

        Raises:
            DuplicateError: The sender has replied in this stage: the first reply stays.
            RefusedError: Not a reply of this stage and round, or of another member.
        """
        self._check_alive()
        stage, params = self.stage, self.params
        if sent_by is not None and messages.sender_of(reply) != sent_by:
            raise RefusedError(f"{sent_by} has sent a reply of {messages.sender_of(reply)}")
        kind, size = {
            Stage.KEYS: (MessageKind.KEYS, PublicKeys.size(params)),
            Stage.SHARES: (MessageKind.SHARES, messages.ENCRYPTED_BYTES),
            Stage.MASKED: (MessageKind.MASKED, params.layout.full_bytes),
            Stage.CONSISTENCY: (MessageKind.CONSISTENCY, primitives.SIGNATURE_BYTES),
            Stage.UNMASK: (MessageKind.UNMASK, 1 + primitives.SHARE_BYTES),
        }[stage]
        body, values = b"", dict[int, bytes]()
        if stage in (Stage.SHARES, Stage.UNMASK):
            sender, values = messages.parse_list(reply, kind, params=params, size=size)
        else:
            sender, body = messages.parse_message(reply, kind, params=params, size=size)
        if sender in self._replied:
            raise DuplicateError(f"{sender} has already replied in stage {stage.value}")
        if sender not in self._expected:
            raise RefusedError(f"{sender} has dropped out, and is not asked in {stage.value}")
        # Each branch checks everything before its first change, so a refused reply leaves no trace.
        if stage is Stage.KEYS:
            self._take_keys(sender, PublicKeys.parse(body))
        elif stage is Stage.SHARES:
            if values.keys() != self._keys.keys() - {sender}:
                raise RefusedError(f"the shares of {sender} are not for the others that have keys")
            self._encrypted[sender] = values
        elif stage is Stage.MASKED:
            named, words = masks.read_masked(body, params)
            if named != sender:
                raise RefusedError(f"{sender} has sent a message of {named}")
            self._sum += words
        elif stage is Stage.CONSISTENCY:
            signed = messages.signed_presence(self._presence, params)
            primitives.verify((params.identities or {})[sender], body, signed)
            self._signatures[sender] = body
        else:
            self._take_revealed(sender, values)
        self._replied.add(sender)
        return sender

    def close(self) -> Stage:
        """End the stage with those who replied; return the next one.

        Raises:
            VoidError: They are too few, or what they sent does not unmask the sum.
        """
        self._check_alive()
        self.dropped |= dict.fromkeys(self.missing, self.stage)
        params, count = self.params, len(self._replied)
        needed = params.min_present if self.stage is Stage.MASKED else params.threshold
        if count < needed:
            why = "min_present" if needed > params.threshold else "the threshold"
            raise self._fail(f"{count} of {len(self._expected)} replied, and {why} is {needed}")
        if self.stage is Stage.MASKED:
            self._presence = {index: Presence(index in self._replied) for index in self._encrypted}
        if self.stage is Stage.UNMASK:
            for owner in sorted(self._presence):
                if by := [index for index, had in self._revealed.items() if owner not in had]:
                    self.unreadable[owner] = tuple(sorted(by))
            try:
                self._total = self._unmask()
            except RefusedError as error:
                raise self._fail(f"the sum stays masked, as {error}") from error
        self._expected = tuple(index for index in self._expected if index in self._replied)
        self._replied = set()
        order = [stage for stage in Stage if params.signed or stage is not Stage.CONSISTENCY]
        self.stage = order[order.index(self.stage) + 1]
        return self.stage

    def total(self) -> Total:
        """Return the sum, once the stage is DONE.

        Raises:
            VoidError: There is none.
            ArgumentError: Not yet.
        """
        if self._void is not None:
            raise self._void
        if self._total is None:
            raise ArgumentError(f"total must be asked for in stage done, got {self.stage.value}")
        return self._total

    def _check_alive(self) -> None:
        if self._void is not None:
            raise self._void
        if self.stage is Stage.DONE:
            raise ArgumentError("the round is done: another one takes another server")

    def _fail(self, reason: str) -> VoidError:
        self._void = VoidError(reason, stage=self.stage, dropped=self.dropped)
        self.stage = Stage.VOID
        return self._void

    def _shares_for(self, index: int) -> bytes:
        shares = {other: had[index] for other, had in self._encrypted.items() if other != index}
        return self._pack(MessageKind.SHARE_LIST, messages.pack_list(shares))

    def _pack(self, kind: MessageKind, body: bytes) -> bytes:
        return messages.pack_message(kind, body, context=self.params.context)

    def _take_keys(self, sender: int, keys: PublicKeys) -> None:
        messages.check_keys(keys, sender, self.params)
        for public in (keys.cipher, keys.mask):  # or every other member would refuse the whole list
            try:
                _ANY_KEY.agree(public)
            except RefusedError as error:
                raise RefusedError(
                    f"the keys of {sender} are refused: one gives no shared secret"
                ) from error
        messages.check_distinct([*self._keys.values(), keys])
        self._keys[sender] = keys

    def _take_revealed(self, sender: int, values: Mapping[int, bytes]) -> None:
        for index, value in values.items():
            if index not in self._presence or value[0] != self._presence[index]:
                raise RefusedError(f"{sender} has sent other shares than those that were asked for")
            primitives.share_number(value[1:])
        if sender not in values or len(values) < self.params.threshold:
            raise RefusedError(f"{sender} has left out more shares than a member may")
        self._revealed[sender] = {index: value[1:] for index, value in values.items()}

    def _unmask(self) -> Total:
        """Remove the masks of those present, and what they added for those who dropped out."""
        recovered, errors = dict[int, bytes](), list[RefusedError]()
        for owner in sorted(self._presence):  # all of them, so that `wrong` is complete
            try:
                recovered[owner] = self._recovered(owner)
            except RefusedError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        words, params = self._sum, self.params
        present = [index for index, value in self._presence.items() if value is Presence.PRESENT]
        for owner, secret in recovered.items():
            if self._presence[owner] is Presence.PRESENT:
                words = words - masks.seed_mask(secret, owner, params)
                continue
            pair = KeyPair(secret)
            for index in present:
                # Those present added the negative of this; so both are gone.
                public = self._keys[index].mask
                words = words + masks.pair_mask(pair, public, (owner, index), params)
        return Total(masks.to_cells(words, params.layout), tuple(sorted(present)))

    def _recovered(self, owner: int) -> bytes:
        """Recover a member's committed secret: from all shares of it, or from all but one."""
        threshold = self.params.threshold
        shares = {i: had[owner] for i, had in sorted(self._revealed.items()) if owner in had}
        if len(shares) < threshold:
            raise RefusedError(
                f"shares of {owner} could be read by {len(shares)} of {len(self._revealed)} "
                f"members, and the threshold is {threshold}"
            )
        # All shares first; then without each in turn, which finds a single wrong one.
        for left_out in (None, *shares) if len(shares) > threshold else (None,):
            secret = self._secret({i: share for i, share in shares.items() if i != left_out})
            if secret is not None and self._is_committed(secret, owner):
                if left_out is not None:
                    self.wrong[owner] = (left_out,)
                return secret
        self.wrong[owner] = tuple(shares)
        raise RefusedError(
            f"shares of {owner} do not give the secret that it promised in its first message: it, "
            f"or one who gave them ({', '.join(map(str, shares))}), has sent a wrong one"
        )

    def _secret(self, shares: Mapping[int, bytes]) -> bytes | None:
        """Recover the secret of members' shares; None if they give none."""
        points = tuple(self.params.points[index] for index in shares)
        try:
            return primitives.recover(self._weights(points), list(shares.values()))
        except RefusedError:
            return None

    def _is_committed(self, secret: bytes, owner: int) -> bool:
        keys = self._keys[owner]
        if self._presence[owner] is Presence.DROPPED:
            return KeyPair(secret).public == keys.mask
        return masks.commitment(secret, owner, self.params) == keys.commitment
