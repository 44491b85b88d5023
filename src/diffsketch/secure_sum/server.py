"""The server: it passes messages on, and learns the sum and who is in it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError
from diffsketch.secure_sum.checks import check_distinct, check_keys, check_secret, signed_fates
from diffsketch.secure_sum.errors import RefusedError, VoidError
from diffsketch.secure_sum.masks import cells_of, commitment, pair_mask, self_mask, words_of
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
    sender_of,
)
from diffsketch.secure_sum.params import Params
from diffsketch.secure_sum.primitives import KeyPair, verify
from diffsketch.secure_sum.shamir import PRIME, SHARE_BYTES, Recovery, number_of
from diffsketch.secure_sum.stages import Stage
from diffsketch.wire.formats import DuplicateError
from diffsketch.wire.message import SERVER, Message

__all__ = ["Server", "Total"]


@dataclass(frozen=True, eq=False)
class Total:
    """The sum of a round.

    Attributes:
        cells: Modulo `2**bits`, int64, of the format's shape.
        present: The members whose inputs are in it, ascending. Only their noise is:
            `method.claim_for(len(present), seed)` says what that guarantees.
    """

    cells: Tensor
    present: tuple[int, ...]


class Server:
    """One round. Whoever carries the messages repeats the loop below until `stage` is DONE.

    Requests go to those whom `requests` names, each reply goes to `collect`, and `close` goes on
    with those who replied.

    A reply that is refused changes nothing; a member whose reply does not come has dropped out.
    With too few left, `close` raises a `VoidError`, and so does everything after it.

    A member may send shares that others cannot read. If as many as the threshold can, the sum is
    had all the same; else the round is void, since the sender's masks can never be taken off.
    `unreadable` says whose shares they are and who could not read them, and `suspects` who is to
    be left out of the next round.

    Wrong shares never give a wrong sum: what they give back must fit the commitment to the seed, or
    the public mask key, of the first message. With one share more than the threshold, a single
    wrong one is found and left out; else the round is void. `wrong` says whose secret it was and
    who gave shares of it: all who did, or the one whose share was found to be wrong. Either it, or
    the owner when the shares were made, is to blame.

    Guarantees (`tests/secure_sum/test_rounds.py`): the total is the sum of the inputs of those
    present, for dropouts at every stage within the threshold, and an error beyond it.
    `tests/secure_sum/test_unreadable.py`: what is said here of shares that cannot be read.
    `tests/secure_sum/test_wrong_shares.py`: of wrong ones.

    Args:
        params: Of the round.

    >>> from diffsketch.secure_sum import Client
    >>> from diffsketch.wire import MessageFormat
    >>> params = Params(
    ...     MessageFormat("sketch-skellam", 9, (1, 2), "unsigned", 8), run=bytes(16),
    ...     round_index=0, fingerprint=bytes(8), members=(1, 2, 3), threshold=2, min_present=2,
    ... )
    >>> server, clients = Server(params), {index: Client(index, params) for index in (1, 2, 3)}
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
        self.params, self.stage = params, Stage.KEYS
        self.dropped: dict[int, Stage] = {}
        self._asked: tuple[int, ...] = params.members
        self._replied: set[int] = set()
        self._keys: dict[int, PublicKeys] = {}
        self._sealed: dict[int, dict[int, bytes]] = {}
        self._sum = words_of(torch.zeros(params.layout.shape, dtype=torch.int64), params)
        self._fates: dict[int, Fate] = {}
        self._signatures: dict[int, bytes] = {}
        self._uncovered: dict[int, dict[int, bytes]] = {}
        self.unreadable: dict[int, tuple[int, ...]] = {}
        self.wrong: dict[int, tuple[int, ...]] = {}
        self._recoveries: dict[tuple[int, ...], Recovery] = {}
        self._total: Total | None = None
        self._void: VoidError | None = None

    @property
    def missing(self) -> tuple[int, ...]:
        """Those whose reply of this stage has not come, ascending."""
        return tuple(index for index in self._asked if index not in self._replied)

    @property
    def suspects(self) -> tuple[int, ...]:
        """Members whose shares most others could not read. Honest as most are, it is their fault.

        Fewer may be a member's fault, or a lie of those who say that they could not.
        """
        heard = self._uncovered.keys()
        return tuple(
            owner
            for owner, by in sorted(self.unreadable.items())
            if 2 * len(by) > len(heard - {owner})
        )

    def requests(self) -> dict[int, bytes]:
        """What to send in this stage, and to whom."""
        self._check_alive()
        if self.stage is Stage.MASKED:
            return {index: self._shares_for(index) for index in self._asked}
        kind, body = self._broadcast()
        request = close(kind, body, sender=SERVER, params=self.params)
        return dict.fromkeys(self._asked, request)

    def collect(self, reply: bytes, *, sent_by: int | None = None) -> int:
        """Take in one reply; whose it is.

        Args:
            reply: What has come.
            sent_by: The member that it came from, where the transport knows. Without signatures,
                nothing else keeps a member from speaking for another.

        Raises:
            DuplicateError: The sender has replied in this stage: the first reply stays.
            RefusedError: Not a reply of this stage and round, or of another member.
        """
        self._check_alive()
        if sent_by is not None and sender_of(reply) != sent_by:
            raise RefusedError(f"{sent_by} has sent a reply of {sender_of(reply)}")
        readers: dict[Stage, Callable[[bytes], int]] = {
            Stage.KEYS: self._collect_keys,
            Stage.SHARES: self._collect_shares,
            Stage.MASKED: self._collect_masked,
            Stage.CONSISTENCY: self._collect_signature,
            Stage.UNMASK: self._collect_uncovered,
        }
        sender = readers[self.stage](reply)
        self._replied.add(sender)
        return sender

    def close(self) -> Stage:
        """End the stage with those who replied; the next one.

        Raises:
            VoidError: They are too few, or what they sent does not uncover the sum.
        """
        self._check_alive()
        for index in self.missing:
            self.dropped[index] = self.stage
        params, count = self.params, len(self._replied)
        needed = params.min_present if self.stage is Stage.MASKED else params.threshold
        if count < needed:
            why = "min_present" if needed > params.threshold else "the threshold"
            raise self._fail(f"{count} of {len(self._asked)} replied, and {why} is {needed}")
        if self.stage is Stage.MASKED:
            self._fates = {index: Fate(index in self._replied) for index in self._sealed}
        if self.stage is Stage.UNMASK:
            self._note_unreadable()
            try:
                self._total = self._uncover()
            except RefusedError as error:
                raise self._fail(f"the sum stays masked, as {error}") from error
        self._asked = tuple(index for index in self._asked if index in self._replied)
        self._replied = set()
        self.stage = self._next()
        return self.stage

    def total(self) -> Total:
        """The sum, once the stage is DONE.

        Raises:
            VoidError: There is none.
            ArgumentError: Not yet.
        """
        if self._void is not None:
            raise self._void
        if self._total is None:
            raise ArgumentError(f"total must be asked for in stage done, got {self.stage.value}")
        return self._total

    def _next(self) -> Stage:
        order = [Stage.KEYS, Stage.SHARES, Stage.MASKED, Stage.UNMASK, Stage.DONE]
        if self.params.signed:
            order.insert(3, Stage.CONSISTENCY)
        return order[order.index(self.stage) + 1]

    def _check_alive(self) -> None:
        if self._void is not None:
            raise self._void
        if self.stage is Stage.DONE:
            raise ArgumentError("the round is done: another one takes another server")

    def _fail(self, reason: str) -> VoidError:
        self._void = VoidError(
            reason,
            stage=self.stage,
            dropped=self.dropped,
            unreadable=self.unreadable,
            wrong=self.wrong,
        )
        self.stage = Stage.VOID
        return self._void

    def _broadcast(self) -> tuple[Kind, bytes]:
        """What all are sent alike."""
        if self.stage is Stage.KEYS:
            return Kind.OPENING, b""
        if self.stage is Stage.SHARES:
            return Kind.KEY_LIST, records({i: keys.to_bytes() for i, keys in self._keys.items()})
        if self.stage is Stage.UNMASK and self.params.signed:
            return Kind.SIGNATURES, records(self._signatures)
        return Kind.SURVIVORS, records({i: bytes([fate]) for i, fate in self._fates.items()})

    def _shares_for(self, index: int) -> bytes:
        others = (other for other in self._sealed if other != index)
        body = records({other: self._sealed[other][index] for other in others})
        return close(Kind.SHARE_LIST, body, sender=SERVER, params=self.params)

    def _collect_keys(self, reply: bytes) -> int:
        size = PublicKeys.size(self.params)
        sender, body = open_sized(reply, Kind.KEYS, params=self.params, size=size)
        self._check_sender(sender)
        keys = PublicKeys.parse(body)
        check_keys(keys, sender, self.params)
        check_secret(keys, sender)  # or every other member would refuse the whole list
        check_distinct([*self._keys.values(), keys])
        self._keys[sender] = keys
        return sender

    def _collect_shares(self, reply: bytes) -> int:
        sender, sealed = open_records(reply, Kind.SHARES, params=self.params, size=SEALED_BYTES)
        self._check_sender(sender)
        if sealed.keys() != self._keys.keys() - {sender}:
            raise RefusedError(f"the shares of {sender} are not for the others that have keys")
        self._sealed[sender] = sealed
        return sender

    def _collect_masked(self, reply: bytes) -> int:
        layout = self.params.layout
        sender, body = open_sized(reply, Kind.MASKED, params=self.params, size=layout.wire_bytes)
        self._check_sender(sender)
        message = Message.from_bytes(
            body,
            layout,
            round_index=self.params.round_index,
            fingerprint=self.params.fingerprint,
            count=1,
        )
        if message.sender != sender:
            raise RefusedError(f"{sender} has sent a message of {message.sender}")
        self._sum += words_of(message.cells, self.params)
        return sender

    def _collect_signature(self, reply: bytes) -> int:
        sender, signature = open_sized(
            reply, Kind.CONSISTENCY, params=self.params, size=SIGNATURE_BYTES
        )
        self._check_sender(sender)
        identities = self.params.identities or {}
        verify(identities[sender], signature, signed_fates(self._fates, self.params))
        self._signatures[sender] = signature
        return sender

    def _collect_uncovered(self, reply: bytes) -> int:
        size = 1 + SHARE_BYTES
        sender, values = open_records(reply, Kind.UNMASK, params=self.params, size=size)
        self._check_sender(sender)
        for index, value in values.items():
            if index not in self._fates or value[:1] != bytes([self._fates[index]]):
                raise RefusedError(f"{sender} has sent other shares than those that were asked for")
            number_of(value[1:])
        if sender not in values or len(values) < self.params.threshold:
            raise RefusedError(f"{sender} has left out more shares than a member may")
        self._uncovered[sender] = {index: value[1:] for index, value in values.items()}
        return sender

    def _check_sender(self, sender: int) -> None:
        if sender in self._replied:
            raise DuplicateError(f"{sender} has already replied in stage {self.stage.value}")
        if sender not in self._asked:
            raise RefusedError(f"{sender} has dropped out, and is not asked in {self.stage.value}")

    def _uncover(self) -> Total:
        """Take off the masks of those present, and what they added for those who dropped out."""
        words, params = self._sum, self.params
        present = [index for index, fate in self._fates.items() if fate is Fate.PRESENT]
        for owner, secret in self._secrets().items():
            if self._fates[owner] is Fate.PRESENT:
                words = words - self_mask(secret, owner, params)
                continue
            pair = KeyPair(secret)
            for index in present:
                # Those present added the negative of this; so both are gone.
                words = words + pair_mask(pair, self._keys[index].mask, (owner, index), params)
        return Total(cells_of(words, params), tuple(sorted(present)))

    def _secrets(self) -> dict[int, bytes]:
        """Secrets to uncover of each member; an error only after all were looked at."""
        found, errors = dict[int, bytes](), list[RefusedError]()
        for owner in sorted(self._fates):
            try:
                found[owner] = self._recovered(owner)
            except RefusedError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return found

    def _note_unreadable(self) -> None:
        for owner in sorted(self._fates):
            if by := [index for index, found in self._uncovered.items() if owner not in found]:
                self.unreadable[owner] = tuple(sorted(by))

    def _recovered(self, owner: int) -> bytes:
        """A member's secret, as it promised it: from all shares of it, or from all but one."""
        threshold = self.params.threshold
        shares = {i: had[owner] for i, had in sorted(self._uncovered.items()) if owner in had}
        if len(shares) < threshold:
            raise RefusedError(
                f"shares of {owner} could be read by {len(shares)} of {len(self._uncovered)} "
                f"members, and the threshold is {threshold}"
            )
        for left in (None, *shares) if len(shares) > threshold else (None,):
            secret = self._secret({i: one for i, one in shares.items() if i != left})
            if secret is not None and self._is_promised(secret, owner):
                if left is not None:
                    self.wrong[owner] = (left,)
                return secret
        self.wrong[owner] = tuple(shares)
        raise RefusedError(
            f"shares of {owner} do not give the secret that it promised in its first message: it, "
            f"or one who gave them ({', '.join(map(str, shares))}), has sent a wrong one"
        )

    def _secret(self, shares: Mapping[int, bytes]) -> bytes | None:
        """Secret that members' shares give back; None if they belong to no one secret."""
        points = tuple(self.params.points[index] for index in shares)
        if points not in self._recoveries:
            self._recoveries[points] = Recovery(
                points, threshold=self.params.threshold, unforeseen=secrets.randbelow(PRIME)
            )
        try:
            return self._recoveries[points].secret(dict(zip(points, shares.values(), strict=True)))
        except RefusedError:
            return None

    def _is_promised(self, secret: bytes, owner: int) -> bool:
        keys = self._keys[owner]
        if self._fates[owner] is Fate.DROPPED:
            return KeyPair(secret).public == keys.mask
        return commitment(secret, owner, self.params) == keys.commitment
