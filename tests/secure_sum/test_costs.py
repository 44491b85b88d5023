"""What plans say that secure sums cost is what members send and receive."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diffsketch.secure_sum import CostlySum, SecureSumServer, Stage
from diffsketch.wire import MessageFormat
from diffsketch.wire.sums import costs_more_than_dense, proposed_sum, sum_bytes
from tests.secure_sum.helpers import LAYOUT, make_params, start
from tests.secure_sum.test_one_shot import inputs_of, messages_of, params_of


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("members", [3, 4, 9])
def test_bytes_of_one_servers_sum(members: int, signed: bool) -> None:
    played = start(make_params(members, signed=signed))
    up = down = 0
    while played.server.stage is not Stage.DONE:
        requests = played.server.requests()
        for index, request in requests.items():
            reply = played.answer(index, request)
            played.server.collect(reply)
            if index == 1:
                up, down = up + len(reply), down + len(request)
        played.server.close()
    assert (up - LAYOUT.full_bytes, down) == sum_bytes("one", members, signed=signed)


@pytest.mark.parametrize("signed", [True, False])
def test_bytes_of_two_aggregators(signed: bool) -> None:
    for data in messages_of(params_of(signed=signed), inputs_of()).values():
        assert (len(data) - LAYOUT.full_bytes, 0) == sum_bytes("two", 10**6, signed=signed)


def test_which_one_is_proposed_and_when_it_costs_more() -> None:
    assert [proposed_sum(count) for count in (2, 100, 101, 10**6)] == ["one", "one", "two", "two"]
    table = MessageFormat("sketch-gaussian", 7850, (1, 5331), "unsigned", 18)
    assert costs_more_than_dense("one", table, 10) == ""
    assert "sends 144,445 bytes up and 351,229 down" in costs_more_than_dense("one", table, 1000)
    assert costs_more_than_dense("two", table, 10**6) == ""
    # Little for anybody; and full vectors, which are not summed to save bytes.
    small = replace(table, dim=100, shape=(1, 20))
    assert costs_more_than_dense("one", small, 15) == ""
    assert costs_more_than_dense("one", small, 25) != ""
    assert costs_more_than_dense("one", replace(table, shape=(1, 50_000)), 1000) == ""


def test_a_sum_that_costs_more_than_it_saves_is_warned_of() -> None:
    table = MessageFormat("sketch-gaussian", 7850, (1, 5331), "unsigned", 18)
    with pytest.warns(CostlySum, match=r"144,265 bytes up .* would send 12,135 up and 12,043"):
        SecureSumServer(make_params(1000, layout=table))
    SecureSumServer(make_params(50, layout=table))  # warnings are errors here
