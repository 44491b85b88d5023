"""A member refuses whatever would uncover more than the sum."""

from __future__ import annotations

import pytest
import torch

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.secure_sum import Client, RefusedError, Stage
from diffsketch.secure_sum.messages import Fate, Kind, close, open_records, records
from diffsketch.secure_sum.params import Params
from diffsketch.wire.message import SERVER
from tests.secure_sum.playing import Played, identity, make_client, make_params, start


def request_of(kind: Kind, values: dict[int, bytes], params: Params) -> bytes:
    return close(kind, records(values), sender=SERVER, params=params)


def list_in(request: bytes, kind: Kind, size: int, params: Params) -> dict[int, bytes]:
    return open_records(request, kind, params=params, size=size)[1]


def fates(params: Params, *dropped: int) -> bytes:
    values = {index: bytes([index not in dropped]) for index in params.members}
    return request_of(Kind.SURVIVORS, values, params)


def keys_request(played: Played) -> tuple[bytes, dict[int, bytes]]:
    params = played.server.params
    request = played.server.requests()[1]
    return request, list_in(request, Kind.KEY_LIST, 160 if params.signed else 96, params)


def test_own_keys_must_be_in_the_list() -> None:
    played = start(make_params()).until(Stage.SHARES)
    _, keys = keys_request(played)
    for changed in (
        {index: key for index, key in keys.items() if index != 1},
        keys | {1: bytes(96)},
    ):
        with pytest.raises(RefusedError, match="lacks the own ones"):
            played.clients[1].share(request_of(Kind.KEY_LIST, changed, played.server.params))


def test_too_few_keys() -> None:
    played = start(make_params()).until(Stage.SHARES)
    few = dict(list(keys_request(played)[1].items())[:2])
    with pytest.raises(RefusedError, match="2 members have keys, and the threshold is 3"):
        played.clients[1].share(request_of(Kind.KEY_LIST, few, played.server.params))


def test_the_same_keys_twice() -> None:
    played = start(make_params()).until(Stage.SHARES)
    keys = keys_request(played)[1]
    for changed in (keys | {2: keys[1]}, keys | {2: keys[3][32:64] + keys[2][32:]}):
        with pytest.raises(RefusedError, match="two public keys are the same"):
            played.clients[1].share(request_of(Kind.KEY_LIST, changed, played.server.params))


def test_keys_of_the_server_in_place_of_a_members() -> None:
    """Members that sign find the server between them; others cannot."""
    for signed in (True, False):
        params = make_params(signed=signed)
        played = start(params).until(Stage.SHARES)
        keys = keys_request(played)[1]
        forged = Client(2, make_params()).advertise(
            close(Kind.OPENING, b"", sender=SERVER, params=make_params())
        )[52:116]
        changed = request_of(Kind.KEY_LIST, keys | {2: forged + keys[2][64:]}, params)
        if signed:
            with pytest.raises(RefusedError, match="keys of 2 are not signed by it"):
                played.clients[1].share(changed)
        else:
            assert played.clients[1].share(changed)


def test_a_signature_of_another_round_is_refused() -> None:
    old, new = (make_params(signed=True, round_index=index) for index in (1, 2))
    replayed = keys_request(start(old).until(Stage.SHARES))[1][2]
    played = start(new).until(Stage.SHARES)
    keys = keys_request(played)[1] | {2: replayed}
    with pytest.raises(RefusedError, match="keys of 2 are not signed"):
        played.clients[1].share(request_of(Kind.KEY_LIST, keys, new))


def test_a_second_list_of_keys_is_refused() -> None:
    played = start(make_params()).until(Stage.SHARES)
    request, keys = keys_request(played)
    first = played.clients[1].share(request)
    assert played.clients[1].share(request) == first
    del keys[4]
    with pytest.raises(RefusedError, match="another KEY_LIST was answered before"):
        played.clients[1].share(request_of(Kind.KEY_LIST, keys, played.server.params))


def test_two_inputs_are_never_masked_alike() -> None:
    played = start(make_params()).until(Stage.MASKED)
    request, client = played.server.requests()[1], played.clients[1]
    assert client.masked_reply is None
    first = client.masked(played.inputs[1], request)
    assert client.masked(played.inputs[1].clone(), request) == first == client.masked_reply
    with pytest.raises(ArgumentError, match="two inputs under the same masks"):
        client.masked(played.inputs[2], request)
    with pytest.raises(ArgumentError, match="two inputs under the same masks"):
        client.masked(played.inputs[1] ^ 1, request)


def test_a_repeated_request_does_not_compute_the_input_again() -> None:
    played = start(make_params()).until(Stage.MASKED)
    request, client, calls = played.server.requests()[1], played.clients[1], []

    def cells() -> torch.Tensor:
        calls.append(1)
        return played.inputs[len(calls)]

    assert client.answer(request, cells) == client.answer(request, cells)
    assert len(calls) == 1


def test_the_same_input_is_not_masked_for_other_members() -> None:
    played = start(make_params()).until(Stage.MASKED)
    params, client, request = played.server.params, played.clients[1], played.server.requests()[1]
    client.masked(played.inputs[1], request)
    shares = list_in(request, Kind.SHARE_LIST, 82, params)
    del shares[4]
    with pytest.raises(RefusedError, match="another SHARE_LIST was answered before"):
        client.masked(played.inputs[1], request_of(Kind.SHARE_LIST, shares, params))


def test_cells_are_checked() -> None:
    played = start(make_params()).until(Stage.MASKED)
    request, client = played.server.requests()[1], played.clients[1]
    with pytest.raises(ArgumentError, match=r"\[0, 1048576\)"):
        client.masked(torch.full((2, 3), 1 << 20), request)
    with pytest.raises(MismatchError, match="shape"):
        client.masked(torch.zeros(6, dtype=torch.int64), request)
    with pytest.raises(ArgumentError, match="int64"):
        client.masked(torch.zeros(2, 3), request)
    assert client.masked_reply is None


def test_shares_that_were_altered_or_swapped() -> None:
    """With as many readable shares as the threshold it would go on, without the others."""
    played = start(make_params(threshold=4)).until(Stage.MASKED)
    params, client, request = played.server.params, played.clients[1], played.server.requests()[1]
    shares = list_in(request, Kind.SHARE_LIST, 82, params)
    for_two = list_in(played.server.requests()[2], Kind.SHARE_LIST, 82, params)
    for changed in (
        shares | {2: shares[2][:-1] + bytes([shares[2][-1] ^ 1])},
        shares | {2: shares[3], 3: shares[2]},
        shares | {3: for_two[3]},
    ):
        with pytest.raises(RefusedError, match="one was altered, or is of another round"):
            client.masked(played.inputs[1], request_of(Kind.SHARE_LIST, changed, params))
    # Nothing was answered: the right list still is.
    assert client.masked(played.inputs[1], request)


def test_shares_of_another_round_are_refused() -> None:
    """Even from the same random numbers: the context is part of every key."""
    old, new = (
        start(make_params(round_index=index), roots=b"same").until(Stage.MASKED) for index in (1, 2)
    )
    request = old.server.requests()[1]
    with pytest.raises(RefusedError, match="another run, round or agreement"):
        new.clients[1].masked(new.inputs[1], request)
    shares = list_in(request, Kind.SHARE_LIST, 82, old.server.params)
    forged = request_of(Kind.SHARE_LIST, shares, new.server.params)
    with pytest.raises(RefusedError, match="is of another round"):
        new.clients[1].masked(new.inputs[1], forged)


def test_too_few_or_unknown_shares() -> None:
    played = start(make_params(4)).until(Stage.SHARES).until(Stage.MASKED, {4: Stage.SHARES})
    params, client, request = played.server.params, played.clients[1], played.server.requests()[1]
    shares = list_in(request, Kind.SHARE_LIST, 82, params)
    few = request_of(Kind.SHARE_LIST, {2: shares[2]}, params)
    with pytest.raises(RefusedError, match="2 members have sent shares, and the threshold is 3"):
        client.masked(played.inputs[1], few)
    own = request_of(Kind.SHARE_LIST, shares | {1: shares[2]}, params)
    with pytest.raises(RefusedError, match="without keys, or the own"):
        client.masked(played.inputs[1], own)


def test_both_secrets_of_a_member_are_never_given() -> None:
    """After the shares of its seed, those of its mask key are refused, and the other way round."""
    for first, second in (((), (4,)), ((4,), ())):
        played = start(make_params()).until(Stage.UNMASK)
        params, client = played.server.params, played.clients[1]
        reply = client.unmask(fates(params, *first))
        assert client.unmask(fates(params, *first)) == reply
        with pytest.raises(RefusedError, match="another SURVIVORS was answered before"):
            client.unmask(fates(params, *second))
        uncovered = open_records(reply, Kind.UNMASK, params=params, size=34)[1]
        assert {index: value[0] for index, value in uncovered.items()} == {
            index: Fate.DROPPED if index in first else Fate.PRESENT for index in params.members
        }


def test_no_second_list_is_signed() -> None:
    played = start(make_params(signed=True)).until(Stage.CONSISTENCY)
    client, params = played.clients[1], played.server.params
    client.consistency(fates(params))
    with pytest.raises(RefusedError, match="another SURVIVORS was answered before"):
        client.consistency(fates(params, 4))


def test_survivors_must_be_enough_and_known() -> None:
    played = start(make_params(5, threshold=3, min_present=4)).until(Stage.UNMASK)
    params, client = played.server.params, played.clients[1]
    with pytest.raises(RefusedError, match="3 members are in the sum, and 4 are needed"):
        client.unmask(fates(params, 4, 5))
    with pytest.raises(RefusedError, match="1 is not in the sum"):
        client.unmask(fates(params, 1))
    values = dict.fromkeys((1, 2, 3, 4), b"\x01")
    with pytest.raises(RefusedError, match="not of those who sent shares"):
        client.unmask(request_of(Kind.SURVIVORS, values, params))
    values[5] = b"\x02"
    with pytest.raises(RefusedError, match="neither present nor dropped"):
        client.unmask(request_of(Kind.SURVIVORS, values, params))


def test_unmask_needs_enough_good_signatures() -> None:
    played = start(make_params(4, signed=True)).until(Stage.UNMASK)
    params, client, request = played.server.params, played.clients[1], played.server.requests()[1]
    good = list_in(request, Kind.SIGNATURES, 64, params)
    few = request_of(Kind.SIGNATURES, dict(list(good.items())[:2]), params)
    with pytest.raises(RefusedError, match="2 members have signed who is in the sum"):
        client.unmask(few)
    with pytest.raises(RefusedError, match="signature does not fit"):
        client.unmask(request_of(Kind.SIGNATURES, good | {2: good[3]}, params))
    with pytest.raises(RefusedError, match="is of kind 132"):
        client.unmask(played.requests[Stage.CONSISTENCY][1])


def test_a_server_that_tells_two_stories_has_answers_to_one() -> None:
    """3 is told that 4 dropped out, the others that it is in the sum: only they answer."""
    played = start(make_params(4, signed=True)).until(Stage.CONSISTENCY)
    params = played.server.params
    stories = {1: fates(params), 2: fates(params), 3: fates(params, 4), 4: fates(params)}
    signed = {index: played.clients[index].consistency(text) for index, text in stories.items()}
    signatures = {index: reply[52:] for index, reply in signed.items()}
    # All four signatures: 3 sees that others signed something else, and so do the others.
    for index in params.members:
        with pytest.raises(RefusedError, match=r"is not in the sum|does not fit"):
            played.clients[index].unmask(request_of(Kind.SIGNATURES, signatures, params))
    # Those of its own story: 3 has too few. The threshold makes one of the stories fail.
    own = request_of(Kind.SIGNATURES, {3: signatures[3]}, params)
    with pytest.raises(RefusedError, match="1 members have signed"):
        played.clients[3].unmask(own)
    others = {index: signatures[index] for index in (1, 2, 4)}
    assert played.clients[1].unmask(request_of(Kind.SIGNATURES, others, params))


def test_one_who_dropped_out_has_not_signed() -> None:
    played = start(make_params(4, signed=True)).until(Stage.UNMASK, {4: Stage.MASKED})
    request, params = played.server.requests()[1], played.server.params
    good = list_in(request, Kind.SIGNATURES, 64, params)
    with pytest.raises(RefusedError, match="4 has signed, but is not in the sum"):
        played.clients[1].unmask(request_of(Kind.SIGNATURES, good | {4: good[3]}, params))


def test_stages_are_not_left_out() -> None:
    played = start(make_params()).until(Stage.MASKED)
    request, params = played.server.requests()[1], played.server.params
    fresh = make_client(1, params)
    with pytest.raises(RefusedError, match="KEY_LIST has not been answered"):
        fresh.masked(played.inputs[1], request)
    with pytest.raises(RefusedError, match="SHARE_LIST has not been answered"):
        played.clients[1].unmask(fates(params))
    with pytest.raises(ArgumentError, match="identities"):
        played.clients[1].consistency(fates(params))
    signing = start(make_params(signed=True)).until(Stage.UNMASK)
    silent = make_client(1, signing.server.params)
    with pytest.raises(RefusedError, match="SURVIVORS has not been answered"):
        silent.unmask(signing.server.requests()[1])


def test_who_may_be_a_client() -> None:
    with pytest.raises(ArgumentError, match="index must be a member"):
        Client(9, make_params())
    with pytest.raises(ArgumentError, match="identity must be the one"):
        Client(1, make_params(), identity=identity(1))
    with pytest.raises(ArgumentError, match="identity must be the one"):
        Client(1, make_params(signed=True))
    with pytest.raises(ArgumentError, match="identity must be the one"):
        Client(1, make_params(signed=True), identity=identity(2))


def test_every_round_has_new_keys() -> None:
    params = make_params()
    opening = close(Kind.OPENING, b"", sender=SERVER, params=params)
    assert Client(1, params).advertise(opening) != Client(1, params).advertise(opening)
