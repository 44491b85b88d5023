"""No two messages or totals of Flower's engine share noise, whatever is restarted or copied."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Message
from torch import Tensor

from diffsketch.flower import FlowerPlan
from diffsketch.methods.gate import release_noise
from diffsketch.privacy import CohortNoise, Noise, NoiseKey, ProvenClaim
from diffsketch.privacy.accounting.account import Account
from diffsketch.privacy.claim import Trust
from diffsketch.sketch import SketchKey
from diffsketch.wire import Message as WireMessage
from tests.flower import network as net
from tests.flower.network import DIM, FIRST, Network
from tests.helpers.releases import NOISED, Releases, noised

KEY = SketchKey.from_integer(5)
VECTORS = torch.randn(2, DIM, generator=torch.Generator().manual_seed(1)) / 10
NODES = 2


def train(number: int, weights: Tensor, server_round: int) -> Tensor:
    del server_round
    return weights + VECTORS[number]


class Runs:
    """Two nodes with accounts on their disks, and a server with its record."""

    def __init__(self, name: str, folder: Path) -> None:
        kind, own = NOISED[name]
        self.folder, self.plan = folder, FlowerPlan(kind, own, NODES, 1)
        self.method = noised(name, NODES, DIM)
        self.proven = isinstance(self.method.claim_for(NODES, KEY.seed(0)), ProvenClaim)
        self.sent, self.totals = Releases(self.method), Releases(self.method)
        self.places = [self._new_folder() for _ in range(NODES)]
        self.charged = dict.fromkeys(self.places, 0)
        self.record = self._new_folder() / "record.json"
        self.network, self.losing, self.arrays = Network(), False, FIRST
        self.network.tamper = self._leaving
        for number in range(NODES):
            self.restart_a_node(number)
        self.restart_the_server()

    def _new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder))

    def _leaving(self, replies: list[Message]) -> list[Message]:
        """What nodes have sent, before anything becomes of it."""
        for reply in replies:
            data = net.our_record(reply)["message"]
            if not data:
                continue
            assert isinstance(data, bytes)
            number = reply.metadata.src_node_id - 1000
            place = self.places[number]
            self.charged[place] += 1
            if self.proven:
                account = Account.open(place / "account.json")
                assert account.rounds >= self.charged[place]
            index = self.strategy._index - 1
            seed = KEY.seed(index)
            message = WireMessage.from_bytes(
                data, self.method.message_format, round_index=index, fingerprint=seed.fingerprint
            )
            central = getattr(self.method, "trust", None) is Trust.CENTRAL
            if not central:  # their messages have no noise: the total has
                self.sent.add(message.cells, VECTORS[number], seed)
        return [] if self.losing else replies

    def do_a_round(self, lost: bool = False) -> None:
        self.losing = lost
        before = len(self.strategy.totals)
        self.arrays = net.one_round(self.strategy, self.network, self.arrays, 1)
        for index, data in self.strategy.totals[before:]:
            seed = KEY.seed(index)
            total = WireMessage.from_bytes(
                data, self.method.total_format, round_index=index, fingerprint=seed.fingerprint
            )
            if total.count == NODES and getattr(self.method, "trust", None) is Trust.CENTRAL:
                self.totals.add(total.cells, VECTORS.sum(dim=0), seed)

    def restart_a_node(self, number: int) -> None:
        file = self.places[number] / "account.json"
        options: dict[str, Any] = {"account_file": file} if self.proven else {}
        self.network.join(number, self.plan, key=KEY, train=train, trusted_server=True, **options)

    def copy_a_nodes_disk(self, number: int) -> None:
        other = self._new_folder()
        shutil.copytree(self.places[number], other, dirs_exist_ok=True)
        self.charged[other] = self.charged[self.places[number]]
        self.places[number] = other
        self.restart_a_node(number)

    def restart_the_server(self) -> None:
        record = self.record if self.proven else None
        self.strategy = net.strategy_of(self.plan, key=KEY, trusted_server=True, record_file=record)
        self.arrays = FIRST  # and so the first round again, with its hashes


@pytest.mark.parametrize("name", NOISED)
@pytest.mark.parametrize("planted", [False, True])
def test_a_network_never_shares_noise(
    name: str, planted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is lost, restarted or copied. The control: noise that follows from the round."""

    def repeating(*given: object, **__: object) -> Noise:
        worker = 0 if given else 1
        return CohortNoise(NoiseKey.from_integer(1), [worker], round_index=0)

    runs = Runs(name, tmp_path)
    if planted:
        for module in ("flower.server", "methods.gate"):
            monkeypatch.setattr(f"diffsketch.{module}.release_noise", repeating)
    runs.do_a_round()
    runs.do_a_round(lost=True)
    runs.restart_a_node(0)
    runs.copy_a_nodes_disk(1)
    runs.do_a_round()
    runs.restart_the_server()
    runs.do_a_round()
    runs.copy_a_nodes_disk(0)
    runs.restart_the_server()
    runs.do_a_round()
    found = runs.sent.shared() + runs.totals.shared()
    assert (found > 0) == planted
    central = getattr(runs.method, "trust", None) is Trust.CENTRAL
    # In the third round both nodes have lost the model, and answer with the reason.
    assert len(runs.sent.noises) + len(runs.totals.noises) == (3 if central else 2 * 4)
    assert release_noise is not repeating
