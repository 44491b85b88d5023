"""A member refuses whatever would reveal more than the sum, also in another process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.secure_sum import RefusedError, ReplyGuard, SecureSumClient, Stage
from diffsketch.secure_sum.messages import MessageKind, Presence
from tests.helpers.refusals import refused
from tests.secure_sum.helpers import LocalRound, identity, make_client, make_params, restored, start


def keys_of(played: LocalRound) -> dict[int, bytes]:
    return played.listed(played.request(1), MessageKind.KEY_LIST)


def test_lists_of_keys() -> None:
    played = start(make_params()).until(Stage.SHARES)
    keys = keys_of(played)
    for changed, message in (
        ({index: key for index, key in keys.items() if index != 1}, "lacks the own ones"),
        (keys | {1: bytes(96)}, "lacks the own ones"),
        ({1: keys[1], 2: keys[2]}, "2 members have keys, and the threshold is 3"),
        (keys | {2: keys[1]}, "two public keys are the same"),
        (keys | {2: keys[3][32:64] + keys[2][32:]}, "two public keys are the same"),
    ):
        played.refuses(message, 1, KEY_LIST=changed)
    first = played.answer(1)
    assert played.answer(1) == first
    del keys[4]
    played.refuses("another KEY_LIST was answered before", 1, KEY_LIST=keys)


@pytest.mark.parametrize("signed", [True, False])
def test_keys_of_the_server_in_place_of_a_members(signed: bool) -> None:
    """Members that sign find the server between them; others cannot."""
    played = start(make_params(signed=signed)).until(Stage.SHARES)
    keys = keys_of(played)
    forged = keys_of(start(make_params()).until(Stage.SHARES))[2][:64]
    changed = played.forged(MessageKind.KEY_LIST, keys | {2: forged + keys[2][64:]})
    if signed:
        played.refuses("keys of 2 are not signed by it", 1, changed)
    else:
        assert played.answer(1, changed)


@pytest.mark.parametrize("reload", [False, True])
def test_two_inputs_are_never_masked_alike(reload: bool) -> None:
    """The first reply is given again, whatever the input is then, and without computing it."""
    played = start(make_params()).until(Stage.MASKED)
    first = played.answer(1)
    client = restored(played.clients[1]) if reload else played.clients[1]
    request = played.request(1)

    def never() -> torch.Tensor:
        raise AssertionError("the input is not needed again")

    assert client.answer(request, never) == first
    shares = played.listed(request, MessageKind.SHARE_LIST)
    del shares[4]
    other = played.forged(MessageKind.SHARE_LIST, shares)
    with pytest.raises(RefusedError, match="another SHARE_LIST was answered before"):
        client.answer(other, lambda: played.inputs[2])
    assert client.answer(request, never) == first


def test_cells_are_checked() -> None:
    played = start(make_params()).until(Stage.MASKED)
    client, saved = played.clients[1], played.clients[1].save()
    for cells, error, message in (
        (torch.full((2, 3), 1 << 20), ArgumentError, r"in \[0, 1048576\), got 1048576"),
        (torch.zeros(6, dtype=torch.int64), MismatchError, "shape"),
        (torch.zeros(2, 3), ArgumentError, "int64"),
    ):
        with pytest.raises(error, match=message):
            client.answer(played.request(1), lambda cells=cells: cells)  # type: ignore[misc]
    assert client.save() == saved


def test_shares_that_were_altered_or_swapped() -> None:
    """With as many readable shares as the threshold it would go on, without the others."""
    played = start(make_params(threshold=4)).until(Stage.MASKED)
    shares = played.listed(played.request(1), MessageKind.SHARE_LIST)
    for_two = played.listed(played.request(2), MessageKind.SHARE_LIST)
    for changed in (
        shares | {2: shares[2][:-1] + bytes([shares[2][-1] ^ 1])},
        shares | {2: shares[3], 3: shares[2]},
        shares | {3: for_two[3]},
    ):
        played.refuses("one was altered, or is of another round", 1, SHARE_LIST=changed)
    assert played.answer(1)  # nothing was answered: the right list still is


def test_shares_of_another_round_are_refused() -> None:
    """Even from the same random numbers: the context is part of every key."""
    old, new = (
        start(make_params(round_index=index), roots=b"same").until(Stage.MASKED) for index in (1, 2)
    )
    new.refuses("another run, round or agreement", 1, old.request(1))
    shares = old.listed(old.request(1), MessageKind.SHARE_LIST)
    new.refuses("is of another round", 1, SHARE_LIST=shares)


def test_too_few_or_unknown_shares() -> None:
    played = start(make_params(4)).until(Stage.MASKED, {4: Stage.SHARES})
    shares = played.listed(played.request(1), MessageKind.SHARE_LIST)
    played.refuses(
        "2 members have sent shares, and the threshold is 3", 1, SHARE_LIST={2: shares[2]}
    )
    played.refuses("without keys, or the own", 1, SHARE_LIST=shares | {1: shares[2]})


@pytest.mark.parametrize(
    ("first", "second", "reload"), [((), (4,), False), ((4,), (), False), ((), (4,), True)]
)
def test_both_secrets_of_a_member_are_never_given(
    first: tuple[int, ...], second: tuple[int, ...], reload: bool
) -> None:
    """After the shares of its seed, those of its mask key are refused, and the other way round."""
    signing = start(make_params(signed=True)).until(Stage.CONSISTENCY)
    signing.answer(1, signing.survivors(*first))
    signing.refuses("another SURVIVORS was answered before", 1, signing.survivors(*second))
    played = start(make_params()).until(Stage.UNMASK)
    reply = played.answer(1, played.survivors(*first))
    if reload:
        played.clients[1] = restored(played.clients[1])
    assert played.answer(1, played.survivors(*first)) == reply
    played.refuses("another SURVIVORS was answered before", 1, played.survivors(*second))
    revealed = played.listed(reply, MessageKind.UNMASK)
    assert {index: value[0] for index, value in revealed.items()} == {
        index: Presence.DROPPED if index in first else Presence.PRESENT for index in (1, 2, 3, 4)
    }


def test_survivors_must_be_enough_and_known() -> None:
    played = start(make_params(5, threshold=3, min_present=4)).until(Stage.UNMASK)
    played.refuses("3 members are in the sum, and 4 are needed", 1, played.survivors(4, 5))
    played.refuses("1 is not in the sum", 1, played.survivors(1))
    values = dict.fromkeys((1, 2, 3, 4), b"\x01")
    played.refuses("not of those who sent shares", 1, SURVIVORS=values)
    played.refuses("neither present nor dropped", 1, SURVIVORS=values | {5: b"\x02"})


def test_unmasking_needs_enough_good_signatures() -> None:
    played = start(make_params(4, signed=True)).until(Stage.UNMASK, {4: Stage.MASKED})
    good = played.listed(played.request(1), MessageKind.SIGNATURES)
    for values, message in (
        ({1: good[1], 2: good[2]}, "2 members have signed who is in the sum"),
        (good | {2: good[3]}, "signature does not fit"),
        (good | {4: good[3]}, "4 has signed, but is not in the sum"),
    ):
        played.refuses(message, 1, SIGNATURES=values)


def test_a_server_that_tells_two_stories_has_answers_to_one() -> None:
    """3 is told that 4 dropped out, the others that it is in the sum: only they answer."""
    played = start(make_params(4, signed=True)).until(Stage.CONSISTENCY)
    signatures = {
        index: played.answer(index, played.survivors(*((4,) if index == 3 else ())))[52:]
        for index in (1, 2, 3, 4)
    }
    # All four signatures: 3 sees that others signed something else, and so do the others.
    for index in (1, 2, 3, 4):
        played.refuses(r"is not in the sum|does not fit", index, SIGNATURES=signatures)
    # Those of its own story: 3 has too few. The threshold makes one of the stories fail.
    played.refuses("1 members have signed", 3, SIGNATURES={3: signatures.pop(3)})
    assert played.answer(1, played.forged(MessageKind.SIGNATURES, signatures))


def test_stages_are_not_left_out() -> None:
    played = start(make_params()).until(Stage.MASKED)
    played.refuses("SHARE_LIST has not been answered", 1, played.survivors())
    played.clients[1] = make_client(1, played.params)
    played.refuses("KEY_LIST has not been answered", 1)
    signing = start(make_params(signed=True)).until(Stage.UNMASK)
    signing.clients[1] = make_client(1, signing.params)
    signing.refuses("SURVIVORS has not been answered", 1)


def test_who_may_be_a_client() -> None:
    refused(ArgumentError, "index must be a member", SecureSumClient, 9, make_params())
    for signed, who in ((False, identity(1)), (True, None), (True, identity(2))):
        with pytest.raises(ArgumentError, match="identity must be the one"):
            SecureSumClient(1, make_params(signed=signed), identity=who)


def test_every_round_has_new_keys() -> None:
    played, other = start(make_params()), start(make_params())
    assert played.answer(1) != other.answer(1)


def test_the_same_answers_after_a_restart() -> None:
    played = start(make_params(signed=True)).until(Stage.DONE)
    for client in played.clients.values():
        again = restored(client)
        assert again.save() == client.save()
        for stage, requests in played.requests.items():
            reply = again.answer(requests[client.index], lambda: torch.zeros(0))
            assert reply == played.replies[stage][client.index]


def test_states_that_are_not_restored() -> None:
    params = make_params()
    saved = start(params).clients[1].save()
    with pytest.raises(RefusedError, match="state is of 1, and 2 is expected"):
        SecureSumClient.restore(saved, 2, params=params)
    with pytest.raises(RefusedError, match="another run, round or agreement"):
        SecureSumClient.restore(saved, 1, params=make_params(round_index=6))
    for changed in (saved[:-1], saved + b"x", b"", saved[:60]):
        with pytest.raises(RefusedError):
            SecureSumClient.restore(changed, 1, params=params)


def test_one_reply_of_each_stage_member_and_round_passes_a_guard(tmp_path: Path) -> None:
    params, guard = make_params(), ReplyGuard(tmp_path / "new" / "one")
    for _ in range(2):
        guard.bind(b"reply", Stage.KEYS, index=1, context=params.context)
    with pytest.raises(RefusedError, match="another reply was given by 1 in stage keys"):
        ReplyGuard(tmp_path / "new" / "one").bind(
            b"other", Stage.KEYS, index=1, context=params.context
        )
    guard.bind(b"2", Stage.SHARES, index=1, context=params.context)
    guard.bind(b"3", Stage.KEYS, index=2, context=params.context)
    guard.bind(b"4", Stage.KEYS, index=1, context=make_params(round_index=6).context)
    guard.bind(b"5", Stage.KEYS, index=1, context=make_params(run=b"yet another run!").context)


def test_one_of_many_processes_passes_a_guard(tmp_path: Path) -> None:
    def bound(number: int) -> bool:
        try:
            ReplyGuard(tmp_path).bind(
                b"%d" % number, Stage.UNMASK, index=1, context=make_params().context
            )
        except RefusedError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(bound, range(64))) == 1
