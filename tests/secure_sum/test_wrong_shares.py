"""Members that give wrong shares: the sum is right, or there is none and the error says whose."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import torch

from diffsketch.secure_sum import Server, Stage, VoidError
from diffsketch.secure_sum.messages import Kind, close, open_records, records
from diffsketch.secure_sum.shamir import SHARE_BYTES
from tests.secure_sum.playing import Played, make_params, plain_sum, start

LIAR = 2


def lied(
    played: Played,
    owners: Collection[int],
    liars: Collection[int] = (LIAR,),
    silent: Collection[int] = (),
) -> Server:
    """All others uncover what they are asked for; liars give other shares of owners' secrets."""
    server, params = played.server, played.server.params
    for index, request in server.requests().items():
        if index in silent:
            continue
        reply = played.clients[index].unmask(request)
        if index in liars:
            values = open_records(reply, Kind.UNMASK, params=params, size=1 + SHARE_BYTES)[1]
            for owner in owners:
                values[owner] = values[owner][:1] + (7 + index).to_bytes(SHARE_BYTES, "little")
            reply = close(Kind.UNMASK, records(values), sender=index, params=params)
        server.collect(reply)
    return server


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(
    ("count", "threshold", "silent", "givers"),
    [
        (3, 3, (), (1, 2, 3)),  # as with three members and the default threshold always
        (3, 2, (3,), (1, 2)),
        (7, 4, (5, 6, 7), (1, 2, 3, 4)),
        (7, 7, (), (1, 2, 3, 4, 5, 6, 7)),
    ],
)
@pytest.mark.parametrize("owners", [(1,), (2,), (1, 3)])
def test_exactly_the_threshold_of_shares(
    count: int,
    threshold: int,
    silent: tuple[int, ...],
    givers: tuple[int, ...],
    owners: tuple[int, ...],
    signed: bool,
) -> None:
    """Any shares give back some seed then: only what its owner promised tells the right one."""
    played = start(make_params(count, threshold=threshold, signed=signed)).until(Stage.UNMASK)
    server = lied(played, owners, silent=silent)
    with pytest.raises(VoidError, match=f"shares of {owners[0]} do not give the secret") as found:
        server.close()
    assert found.value.wrong == dict.fromkeys(owners, givers)
    with pytest.raises(VoidError, match="the sum stays masked"):
        server.total()


def test_without_the_promise_a_random_sum_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested above is there to be found: the same lie, with the check taken out."""
    monkeypatch.setattr(Server, "_is_promised", lambda *_: True)
    played = start(make_params(3, threshold=3)).until(Stage.UNMASK)
    server = lied(played, (1,))
    server.close()
    right = plain_sum(played.inputs, (1, 2, 3), played.server.params.layout.bits)
    assert not torch.equal(server.total().cells, right)


@pytest.mark.parametrize("silent", [(), (4,)])
@pytest.mark.parametrize("owners", [(1,), (1, 3), (1, 2, 3, 4, 5)])
def test_one_wrong_share_beyond_the_threshold_is_left_out(
    silent: tuple[int, ...], owners: tuple[int, ...]
) -> None:
    """Of a seed, and of the mask key of one that dropped out. The sum is right, the liar named."""
    params = make_params(5, threshold=3)
    played = start(params).until(Stage.UNMASK, dict.fromkeys(silent, Stage.MASKED))
    server = lied(played, owners)
    assert server.close() is Stage.DONE
    present = tuple(index for index in params.members if index not in silent)
    assert server.total().present == present
    right = plain_sum(played.inputs, present, params.layout.bits)
    assert torch.equal(server.total().cells, right)
    assert server.wrong == dict.fromkeys(owners, (LIAR,))


@pytest.mark.parametrize("silent", [(), (4,)])
def test_two_wrong_shares_make_the_round_void(silent: tuple[int, ...]) -> None:
    played = start(make_params(5, threshold=3))
    played.until(Stage.UNMASK, dict.fromkeys(silent, Stage.MASKED))
    owner = silent[0] if silent else 1
    server = lied(played, (owner,), (2, 3))
    with pytest.raises(VoidError, match="do not give the secret that it promised") as found:
        server.close()
    givers = tuple(index for index in range(1, 6) if index not in silent)
    assert found.value.wrong == {owner: givers}


def test_a_promise_that_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that shares another seed than it promised makes the round void, and is named."""
    played = start(make_params(4))
    own = played.clients[1]._own
    played.until(Stage.SHARES)
    monkeypatch.setattr(own, "seed", bytes(32))
    with pytest.raises(VoidError, match="shares of 1 do not give the secret that it promised"):
        played.until(Stage.DONE)
    assert set(played.server.wrong) == {1}
