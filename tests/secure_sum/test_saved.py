"""A client goes on in another process, and is still bound to what it has answered."""

from __future__ import annotations

import pytest
import torch

from diffsketch.errors import ArgumentError
from diffsketch.secure_sum import Client, RefusedError, Stage
from tests.secure_sum.playing import Played, identity, make_params, plain_sum, start


def reloaded(client: Client) -> Client:
    who = identity(client.index) if client.params.signed else None
    return Client.restore(client.save(), client.index, params=client.params, identity=who)


@pytest.mark.parametrize("signed", [True, False])
def test_a_new_process_for_every_message(signed: bool) -> None:
    played = start(make_params(5, signed=signed))
    silent = {2: Stage.SHARES, 5: Stage.MASKED}
    while played.server.stage is not Stage.DONE:
        played.clients = {index: reloaded(client) for index, client in played.clients.items()}
        played.step(silent)
    assert played.server.total().present == (1, 3, 4)
    assert torch.equal(played.server.total().cells, plain_sum(played.inputs, (1, 3, 4), 20))


def test_the_same_answers() -> None:
    played = start(make_params(signed=True)).until(Stage.DONE)
    for client in played.clients.values():
        again = reloaded(client)
        assert again.save() == client.save()
        for stage, requests in played.requests.items():
            reply = again.answer(requests[client.index], lambda: torch.zeros(0))
            assert reply == played.replies[stage][client.index]


def test_still_bound_to_its_input() -> None:
    played = start(make_params()).until(Stage.MASKED)
    request = played.server.requests()[1]
    first = played.clients[1].masked(played.inputs[1], request)
    client = reloaded(played.clients[1])
    assert client.masked_reply == first
    with pytest.raises(ArgumentError, match="two inputs under the same masks"):
        client.masked(played.inputs[2], request)


def test_still_bound_to_who_is_in_the_sum() -> None:
    played = start(make_params()).until(Stage.UNMASK)
    played.step({})
    other = _other_survivors(played)
    for client in (played.clients[1], reloaded(played.clients[1])):
        with pytest.raises(RefusedError, match="another SURVIVORS was answered before"):
            client.unmask(other)


def _other_survivors(played: Played) -> bytes:
    params = played.server.params
    twin = start(params, roots=b"x").until(Stage.UNMASK, {4: Stage.MASKED})
    return twin.server.requests()[1]


def test_refusals() -> None:
    params = make_params()
    saved = start(params).clients[1].save()
    with pytest.raises(RefusedError, match="state is of 1, and 2 is expected"):
        Client.restore(saved, 2, params=params)
    with pytest.raises(RefusedError, match="another run, round or agreement"):
        Client.restore(saved, 1, params=make_params(round_index=6))
    for changed in (saved[:-1], saved + b"x", b"", saved[:60]):
        with pytest.raises(RefusedError):
            Client.restore(changed, 1, params=params)
