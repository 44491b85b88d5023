"""Rounds for the tests, played with any members silent from any stage on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from diffsketch.secure_sum import Client, Identity, Params, Server, Stage
from diffsketch.wire import MessageFormat

LAYOUT = MessageFormat("sketch-skellam", 9, (2, 3), "unsigned", 20)


def identity(index: int) -> Identity:
    return Identity(hashlib.sha256(b"identity %d" % index).digest())


def make_params(count: int = 4, *, signed: bool = False, **changes: Any) -> Params:
    indices = tuple(range(1, count + 1))
    settings: dict[str, Any] = {
        "run": b"a run of the tests",
        "round_index": 5,
        "fingerprint": bytes(range(8)),
        "members": indices,
        "threshold": count // 2 + 1,
        "layout": LAYOUT,
    } | changes
    settings.setdefault("min_present", settings["threshold"])
    if signed:
        known = {index: identity(index).public for index in settings["members"]}
        settings.setdefault("identities", known)
    return Params(settings.pop("layout"), **settings)


def make_client(index: int, params: Params, *, root: bytes | None = None) -> Client:
    who = identity(index) if params.signed else None
    if root is None:
        return Client(index, params, identity=who)
    return Client(index, params, identity=who, randomness=lambda size: _stretched(root, size))


def _stretched(root: bytes, size: int) -> bytes:
    return hashlib.shake_256(root).digest(size)


def make_inputs(params: Params, *, seed: int = 0) -> dict[int, Tensor]:
    generator, layout = torch.Generator().manual_seed(seed), params.layout
    return {
        index: torch.randint(0, 1 << layout.bits, layout.shape, generator=generator)
        for index in params.members
    }


def plain_sum(inputs: Mapping[int, Tensor], present: tuple[int, ...], bits: int) -> Tensor:
    # May overflow 64 bits without harm: their modulus is a multiple of this one.
    return torch.stack([inputs[index] for index in present]).sum(dim=0) & ((1 << bits) - 1)


@dataclass
class Played:
    """A round, and all that the server saw of it."""

    server: Server
    clients: dict[int, Client]
    inputs: dict[int, Tensor]
    requests: dict[Stage, dict[int, bytes]] = field(default_factory=dict)
    replies: dict[Stage, dict[int, bytes]] = field(default_factory=dict)

    def until(self, end: Stage, silent: Mapping[int, Stage] | None = None) -> Played:
        """Go on until a stage; a silent member's replies are lost from its stage on."""
        while self.server.stage is not end:
            self.step(silent or {})
        return self

    def step(self, silent: Mapping[int, Stage]) -> None:
        stage = self.server.stage
        self.requests[stage], self.replies[stage] = self.server.requests(), {}
        for index, request in self.requests[stage].items():
            client, cells = self.clients[index], self.inputs[index]
            reply = client.answer(request, lambda cells=cells: cells)  # type: ignore[misc]
            if silent.get(index) is not stage:
                self.replies[stage][index] = reply
                assert self.server.collect(reply) == index
        self.server.close()


def start(params: Params, *, roots: bytes | None = None, seed: int = 0) -> Played:
    clients = {
        index: make_client(index, params, root=roots and roots + b"%d" % index)
        for index in params.members
    }
    return Played(Server(params), clients, make_inputs(params, seed=seed))
