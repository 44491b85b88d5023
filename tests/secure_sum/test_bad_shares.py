"""Shares that cannot be read, and wrong ones: who is named, and what becomes of the sum."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import torch

from diffsketch.secure_sum import RefusedError, SecureSumServer, Stage, VoidError
from diffsketch.secure_sum.messages import ENCRYPTED_BYTES, MessageKind, Params
from diffsketch.secure_sum.primitives import SHARE_BYTES
from tests.helpers.refusals import refused
from tests.secure_sum.helpers import LocalRound, make_params, plain_sum, restored, start

BAD, LIAR = 5, 2


def begun(params: Params, receivers: Collection[int]) -> LocalRound:
    """A round up to the inputs, in which one has sent garbage to some."""
    played = start(params).until(Stage.SHARES)
    for index in params.members:
        reply = played.answer(index)
        if index == BAD:
            shares = played.listed(reply, MessageKind.SHARES)
            shares |= {receiver: bytes(ENCRYPTED_BYTES) for receiver in receivers}
            reply = played.forged(MessageKind.SHARES, shares, sender=BAD)
        played.server.collect(reply)
    played.server.close()
    return played


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize(("receivers", "silent"), [((), False), ((2, 4), False), ((3,), True)])
def test_enough_can_read_them(signed: bool, receivers: tuple[int, ...], silent: bool) -> None:
    """Of those who are asked, three can: the threshold. Nobody else is blamed."""
    played = begun(make_params(5, signed=signed, threshold=3), receivers)
    played.until(Stage.DONE, {BAD: Stage.MASKED} if silent else {})  # its mask key, or its seed
    total, present = played.server.total(), (1, 2, 3, 4) if silent else (1, 2, 3, 4, 5)
    assert total.present == present
    assert torch.equal(total.cells, plain_sum(played.inputs, present))
    assert played.server.unreadable == ({BAD: receivers} if receivers else {})
    assert played.server.suspects == ()


@pytest.mark.parametrize(
    ("receivers", "silent", "suspects"),
    [
        ((1, 2, 3), {}, (BAD,)),
        ((1, 2, 3, 4), {}, (BAD,)),
        ((2, 4), {BAD: Stage.MASKED}, ()),  # half of the others: they might lie
    ],
)
def test_too_few_can_read_them(
    receivers: tuple[int, ...], silent: dict[int, Stage], suspects: tuple[int, ...]
) -> None:
    """The sender is named, and not those who could not read what it sent."""
    played = begun(make_params(5, threshold=3), receivers)
    asked = 5 - len(silent)
    could = f"read by {asked - len(receivers)} of {asked} members"
    with pytest.raises(VoidError, match=f"shares of 5 could be {could}") as found:
        played.until(Stage.DONE, silent)
    assert played.server.unreadable == {BAD: receivers}
    assert found.value.dropped == silent
    assert played.server.suspects == suspects


@pytest.mark.parametrize(("threshold", "fails"), [(3, False), (5, True)])
def test_one_who_lies_about_others_makes_nobody_a_suspect(threshold: int, fails: bool) -> None:
    """It leaves out the share of 2, as if it could not read it: with all needed, that is enough."""
    played = start(make_params(5, threshold=threshold)).until(Stage.UNMASK)
    server = played.server
    values = played.listed(played.answer(1), MessageKind.UNMASK)
    del values[2]
    lie = played.forged(MessageKind.UNMASK, values, sender=1)
    for index in (2, 3, 4, 5):
        server.collect(played.answer(index))
    if fails:  # no member may leave out one then: it is the liar that drops out
        refused(RefusedError, "1 has left out more shares", server.collect, lie)
        with pytest.raises(VoidError, match="4 of 5 replied") as found:
            server.close()
        assert found.value.dropped == {1: Stage.UNMASK}
    else:
        server.collect(lie)
        server.close()
        assert server.unreadable == {2: (1,)}
        assert server.total().present == (1, 2, 3, 4, 5)
    assert server.suspects == ()


def test_a_member_gives_nothing_of_what_it_cannot_read() -> None:
    """Also after a restart; and never, in the same round, the other kind of anybody's shares."""
    played = begun(make_params(5, threshold=3, signed=True), (1,)).until(Stage.UNMASK)
    for client in (played.clients[1], restored(played.clients[1])):
        reply = client.answer(played.request(1), lambda: played.inputs[1])
        assert set(played.listed(reply, MessageKind.UNMASK)) == {1, 2, 3, 4}
        with pytest.raises(RefusedError, match="another SURVIVORS was answered before"):
            client.answer(played.survivors(BAD), lambda: played.inputs[1])


def lied(
    played: LocalRound,
    owners: Collection[int],
    liars: Collection[int] = (LIAR,),
    silent: Collection[int] = (),
) -> SecureSumServer:
    """All others reveal what they are asked for; liars give other shares of owners' secrets."""
    for index in played.server.requests().keys() - set(silent):
        reply = played.answer(index)
        if index in liars:
            values = played.listed(reply, MessageKind.UNMASK)
            for owner in owners:
                values[owner] = values[owner][:1] + (7 + index).to_bytes(SHARE_BYTES, "little")
            reply = played.forged(MessageKind.UNMASK, values, sender=index)
        played.server.collect(reply)
    return played.server


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(
    ("count", "threshold", "silent"),
    [
        (3, 3, ()),  # as with three members and the default threshold always
        (3, 2, (3,)),
        (7, 4, (5, 6, 7)),
    ],
)
@pytest.mark.parametrize("owners", [(2,), (1, 3)])
def test_exactly_the_threshold_of_shares(
    count: int, threshold: int, silent: tuple[int, ...], owners: tuple[int, ...], signed: bool
) -> None:
    """Any shares give back some seed then: only what its owner committed to tells the right one."""
    played = start(make_params(count, threshold=threshold, signed=signed)).until(Stage.UNMASK)
    server = lied(played, owners, silent=silent)
    refused(VoidError, f"shares of {owners[0]} do not give the secret", server.close)
    givers = tuple(index for index in range(1, count + 1) if index not in silent)
    assert played.server.wrong == dict.fromkeys(owners, givers)
    refused(VoidError, "the sum stays masked", server.total)


def test_without_the_commitment_a_random_sum_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested above is there to be found: the same lie, with the check taken out."""
    monkeypatch.setattr(SecureSumServer, "_is_committed", lambda *_: True)
    played = start(make_params(3, threshold=3)).until(Stage.UNMASK)
    server = lied(played, (1,))
    server.close()
    assert not torch.equal(server.total().cells, plain_sum(played.inputs, (1, 2, 3)))


@pytest.mark.parametrize("silent", [(), (4,)])
@pytest.mark.parametrize("owners", [(1,), (1, 2, 3, 4, 5)])
def test_one_wrong_share_beyond_the_threshold_is_left_out(
    silent: tuple[int, ...], owners: tuple[int, ...]
) -> None:
    """Of a seed, and of the mask key of one that dropped out. The sum is right, the liar named."""
    played = start(make_params(5, threshold=3))
    played.until(Stage.UNMASK, dict.fromkeys(silent, Stage.MASKED))
    server = lied(played, owners)
    assert server.close() is Stage.DONE
    present = tuple(index for index in (1, 2, 3, 4, 5) if index not in silent)
    assert server.total().present == present
    assert torch.equal(server.total().cells, plain_sum(played.inputs, present))
    assert server.wrong == dict.fromkeys(owners, (LIAR,))


@pytest.mark.parametrize("silent", [(), (4,)])
def test_two_wrong_shares_make_the_round_void(silent: tuple[int, ...]) -> None:
    played = start(make_params(5, threshold=3))
    played.until(Stage.UNMASK, dict.fromkeys(silent, Stage.MASKED))
    owner = silent[0] if silent else 1
    server = lied(played, (owner,), (2, 3))
    refused(VoidError, "do not give the secret that it promised", server.close)
    givers = tuple(index for index in range(1, 6) if index not in silent)
    assert played.server.wrong == {owner: givers}


def test_a_commitment_that_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that shares another seed than it committed to makes the round void, and is named."""
    played = start(make_params(4)).until(Stage.SHARES)
    monkeypatch.setattr(played.clients[1]._secrets, "seed", bytes(32))
    with pytest.raises(VoidError, match="shares of 1 do not give the secret that it promised"):
        played.until(Stage.DONE)
    assert set(played.server.wrong) == {1}
