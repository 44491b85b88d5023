"""Rounds in one process, with any members silent from any stage on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from diffsketch.secure_sum import Params, SecureSumClient, SecureSumServer, SigningIdentity, Stage
from diffsketch.secure_sum.messages import MessageKind, pack_list, pack_message, parse_list
from diffsketch.secure_sum.primitives import RefusedError
from diffsketch.wire import SERVER, MessageFormat
from tests.helpers.refusals import refused

LAYOUT = MessageFormat("sketch-skellam", 9, (2, 3), "unsigned", 20, code=8)
STAGES = [Stage.KEYS, Stage.SHARES, Stage.MASKED, Stage.CONSISTENCY, Stage.UNMASK]
SIZES = {
    MessageKind.SHARES: 82,
    MessageKind.SHARE_LIST: 82,
    MessageKind.SIGNATURES: 64,
    MessageKind.UNMASK: 34,
}


def identity(index: int) -> SigningIdentity:
    return SigningIdentity(hashlib.sha256(b"identity %d" % index).digest())


def make_params(count: int = 4, *, signed: bool = False, **changes: Any) -> Params:
    settings: dict[str, Any] = {
        "run": b"a run of the tests",
        "round_index": 5,
        "fingerprint": bytes(range(8)),
        "members": tuple(range(1, count + 1)),
        "threshold": count // 2 + 1,
        "layout": LAYOUT,
    } | changes
    settings.setdefault("min_present", settings["threshold"])
    if signed:
        known = {index: identity(index).public for index in settings["members"]}
        settings.setdefault("identities", known)
    return Params(settings.pop("layout"), **settings)


def make_client(index: int, params: Params, *, root: bytes | None = None) -> SecureSumClient:
    who = identity(index) if params.signed else None
    if root is None:
        return SecureSumClient(index, params, identity=who)
    secret = hashlib.shake_256(root).digest(32)
    return SecureSumClient(index, params, identity=who, randomness=lambda _: secret)


def restored(client: SecureSumClient) -> SecureSumClient:
    who = identity(client.index) if client.params.signed else None
    return SecureSumClient.restore(client.save(), client.index, params=client.params, identity=who)


def plain_sum(inputs: Mapping[int, Tensor], present: tuple[int, ...], bits: int = 20) -> Tensor:
    # May overflow 64 bits without harm: their modulus is a multiple of this one.
    return torch.stack([inputs[index] for index in present]).sum(dim=0) & ((1 << bits) - 1)


def flipped(data: bytes, at: int, mask: int = 1) -> bytes:
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


@dataclass
class LocalRound:
    """A round, and all that the server saw of it."""

    server: SecureSumServer
    clients: dict[int, SecureSumClient]
    inputs: dict[int, Tensor]
    requests: dict[Stage, dict[int, bytes]] = field(default_factory=dict)
    replies: dict[Stage, dict[int, bytes]] = field(default_factory=dict)

    @property
    def params(self) -> Params:
        return self.server.params

    def until(self, end: Stage, silent: Mapping[int, Stage] | None = None) -> LocalRound:
        """Go on until a stage; a silent member's replies are lost from its stage on."""
        while self.server.stage is not end:
            self.step(silent or {})
        return self

    def step(self, silent: Mapping[int, Stage]) -> None:
        stage = self.server.stage
        self.requests[stage], self.replies[stage] = self.server.requests(), {}
        for index, request in self.requests[stage].items():
            reply = self.answer(index, request)
            if silent.get(index) is not stage:
                self.replies[stage][index] = reply
                assert self.server.collect(reply) == index
        self.server.close()

    def request(self, index: int) -> bytes:
        return self.server.requests()[index]

    def answer(self, index: int, request: bytes | None = None) -> bytes:
        request = self.request(index) if request is None else request
        return self.clients[index].answer(request, lambda: self.inputs[index])

    def refuses(self, match: str, index: int, request: bytes | None = None, **forged: Any) -> None:
        """Check that a member refuses its request, or a forged one by the name of its kind."""
        for kind, body in forged.items():
            request = self.forged(MessageKind[kind], body)
        refused(RefusedError, match, self.answer, index, request)

    def server_refuses(self, match: str, sender: int, **forged: Any) -> None:
        """Check that the server refuses a reply that is forged, by the name of its kind."""
        for kind, body in forged.items():
            reply = self.forged(MessageKind[kind], body, sender)
            refused(RefusedError, match, self.server.collect, reply)

    def forged(
        self, kind: MessageKind, body: bytes | Mapping[int, bytes], sender: int = SERVER
    ) -> bytes:
        """A message with a good envelope and any body, or any list."""
        data = body if isinstance(body, bytes) else pack_list(body)
        return pack_message(kind, data, sender=sender, context=self.params.context)

    def listed(self, data: bytes, kind: MessageKind) -> dict[int, bytes]:
        """The list in a message."""
        sizes = SIZES | {MessageKind.KEY_LIST: 160 if self.params.signed else 96}
        return parse_list(data, kind, params=self.params, size=sizes[kind])[1]

    def survivors(self, *dropped: int) -> bytes:
        """A request that says that all are in the sum but these."""
        values = {index: bytes([index not in dropped]) for index in self.params.members}
        return self.forged(MessageKind.SURVIVORS, values)


def start(params: Params, *, roots: bytes | None = None, seed: int = 0) -> LocalRound:
    clients = {
        index: make_client(index, params, root=roots and roots + b"%d" % index)
        for index in params.members
    }
    generator, layout = torch.Generator().manual_seed(seed), params.layout
    inputs = {
        index: torch.randint(0, 1 << layout.bits, layout.shape, generator=generator)
        for index in params.members
    }
    return LocalRound(SecureSumServer(params), clients, inputs)
