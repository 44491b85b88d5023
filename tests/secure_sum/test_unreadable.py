"""Shares that others cannot read: who is to blame, and what becomes of the sum."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import torch

from diffsketch.secure_sum import Client, RefusedError, Stage, VoidError
from diffsketch.secure_sum.messages import SEALED_BYTES, Kind, close, open_records, records
from diffsketch.secure_sum.params import Params
from diffsketch.secure_sum.shamir import SHARE_BYTES
from tests.secure_sum.playing import Played, identity, make_params, plain_sum, start
from tests.secure_sum.test_client import fates

BAD = 5


def spoilt(reply: bytes, params: Params, *, sender: int, receivers: Collection[int]) -> bytes:
    """A list of shares of which some are garbage."""
    _, sealed = open_records(reply, Kind.SHARES, params=params, size=SEALED_BYTES)
    sealed |= {index: bytes(SEALED_BYTES) for index in receivers}
    return close(Kind.SHARES, records(sealed), sender=sender, params=params)


def begun(params: Params, receivers: Collection[int]) -> Played:
    """A round up to the inputs, in which one has sent garbage to some."""
    played = start(params).until(Stage.SHARES)
    for index, request in played.server.requests().items():
        reply = played.clients[index].share(request)
        if index == BAD:
            reply = spoilt(reply, params, sender=BAD, receivers=receivers)
        played.server.collect(reply)
    played.server.close()
    return played


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize(
    ("receivers", "silent"), [((), False), ((1,), False), ((2, 4), False), ((3,), True)]
)
def test_enough_can_read_them(signed: bool, receivers: tuple[int, ...], silent: bool) -> None:
    """Of those who are asked, three can: the threshold. Nobody else is blamed."""
    played = begun(make_params(5, signed=signed, threshold=3), receivers)
    played.until(Stage.DONE, {BAD: Stage.MASKED} if silent else {})  # its mask key, or its seed
    total, present = played.server.total(), (1, 2, 3, 4) if silent else (1, 2, 3, 4, 5)
    assert total.present == present
    assert torch.equal(total.cells, plain_sum(played.inputs, present, 20))
    assert played.server.unreadable == ({BAD: receivers} if receivers else {})
    assert played.server.suspects == ()
    for index in (1, 2, 3, 4):
        assert played.clients[index].unreadable == ((BAD,) if index in receivers else ())


def test_one_who_sends_garbage_and_goes_is_named_as_well() -> None:
    played = begun(make_params(5, threshold=3), (2, 4))
    with pytest.raises(VoidError, match="shares of 5 could be read by 2 of 4 members") as found:
        played.until(Stage.DONE, {BAD: Stage.MASKED})
    assert found.value.unreadable == {BAD: (2, 4)}
    assert found.value.dropped == {BAD: Stage.MASKED}
    assert played.server.suspects == ()  # half of the others: they might lie


@pytest.mark.parametrize("receivers", [(1, 2, 3), (1, 2, 3, 4)])
def test_too_few_can_read_them(receivers: tuple[int, ...]) -> None:
    """The sender is named, and not those who could not read what it sent."""
    played = begun(make_params(5, threshold=3), receivers)
    count = 5 - len(receivers)
    with pytest.raises(VoidError, match=f"shares of 5 could be read by {count} of 5 mem") as found:
        played.until(Stage.DONE)
    assert found.value.unreadable == {BAD: receivers}
    assert found.value.dropped == {}
    assert played.server.suspects == (BAD,)


def test_one_who_lies_about_others_makes_nobody_a_suspect() -> None:
    """It leaves out the share of 2, as if it could not read it: with all needed, that is enough."""
    for threshold, fails in ((3, False), (5, True)):
        played = start(make_params(5, threshold=threshold)).until(Stage.UNMASK)
        params, server = played.server.params, played.server
        for index, request in server.requests().items():
            reply = played.clients[index].unmask(request)
            if index == 1:
                values = open_records(reply, Kind.UNMASK, params=params, size=1 + SHARE_BYTES)[1]
                del values[2]
                lie = close(Kind.UNMASK, records(values), sender=1, params=params)
                if fails:  # no member may leave out one then: it is the liar that drops out
                    with pytest.raises(RefusedError, match="1 has left out more shares"):
                        server.collect(lie)
                    continue
                reply = lie
            server.collect(reply)
        if fails:
            with pytest.raises(VoidError, match="4 of 5 replied") as found:
                server.close()
            assert found.value.dropped == {1: Stage.UNMASK}
        else:
            server.close()
            assert server.unreadable == {2: (1,)}
            assert server.total().present == (1, 2, 3, 4, 5)
        assert server.suspects == ()


def test_a_member_gives_nothing_of_what_it_cannot_read() -> None:
    """Also after a restart; and never, in the same round, the other kind of anybody's shares."""
    params = make_params(5, threshold=3, signed=True)
    played = begun(params, (1,)).until(Stage.UNMASK)
    client, request = played.clients[1], played.server.requests()[1]
    again = Client.restore(client.save(), 1, params=params, identity=identity(1))
    for one in (client, again):
        reply = one.unmask(request)
        values = open_records(reply, Kind.UNMASK, params=params, size=1 + SHARE_BYTES)[1]
        assert set(values) == {1, 2, 3, 4}
        assert one.unreadable == (BAD,)
        with pytest.raises(RefusedError, match="another SURVIVORS was answered before"):
            one.consistency(fates(params, BAD))
