"""The total is the plain sum of those present, whoever drops out, or the round is void."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsketch.errors import ArgumentError
from diffsketch.secure_sum import Stage, VoidError, default_threshold
from diffsketch.wire import MessageFormat
from tests.secure_sum.playing import make_params, plain_sum, start

LOSSES = [Stage.KEYS, Stage.SHARES, Stage.MASKED, Stage.UNMASK]


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, int, bool, dict[int, Stage]]:
    """Members, threshold, bits, signed, and who is silent from which stage on."""
    count = draw(st.integers(2, 7))
    threshold = draw(st.integers(count // 2 + 1, count))
    signed = draw(st.booleans())
    stages = st.sampled_from([*LOSSES, Stage.CONSISTENCY] if signed else LOSSES)
    lost = draw(st.sets(st.integers(1, count), max_size=count - threshold))
    bits = draw(st.sampled_from([1, 8, 20, 32, 33, 62]))
    return count, threshold, bits, signed, {index: draw(stages) for index in sorted(lost)}


@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(0, 2**32))
def test_sum_with_dropouts(case: tuple[int, int, int, bool, dict[int, Stage]], seed: int) -> None:
    count, threshold, bits, signed, silent = case
    layout = MessageFormat("sketch-skellam", 9, (2, 3), "unsigned", bits)
    params = make_params(count, threshold=threshold, signed=signed, layout=layout)
    played = start(params, seed=seed).until(Stage.DONE, silent)
    total = played.server.total()
    early = {index for index, stage in silent.items() if LOSSES.index(Stage.MASKED) >= _at(stage)}
    assert total.present == tuple(index for index in params.members if index not in early)
    assert total.cells.dtype == torch.int64
    assert torch.equal(total.cells, plain_sum(played.inputs, total.present, bits))
    assert played.server.dropped == silent


def _at(stage: Stage) -> int:
    return len(LOSSES) if stage is Stage.CONSISTENCY else LOSSES.index(stage)


def test_sum_check_finds_a_wrong_sum() -> None:
    """The negative control of the test above."""
    played = start(make_params()).until(Stage.DONE)
    present = played.server.total().present
    expected = plain_sum(played.inputs, present, 20)
    assert torch.equal(played.server.total().cells, expected)
    assert not torch.equal(plain_sum(played.inputs, present[:-1], 20), expected)


@pytest.mark.parametrize("stage", [*LOSSES, Stage.CONSISTENCY])
def test_below_the_threshold_the_round_is_void(stage: Stage) -> None:
    played = start(make_params(5, threshold=4, signed=True)).until(stage)
    with pytest.raises(VoidError, match=rf"3 of 5 replied.*{stage.value}") as caught:
        played.step({2: stage, 4: stage})
    assert caught.value.dropped == {2: stage, 4: stage}
    assert f"2 ({stage.value}), 4 ({stage.value})" in str(caught.value)
    assert played.server.stage is Stage.VOID
    for call in (played.server.total, played.server.requests, played.server.close):
        with pytest.raises(VoidError):
            call()
    with pytest.raises(VoidError):
        played.server.collect(b"")


def test_dropouts_add_up_over_the_stages() -> None:
    played = start(make_params(6, threshold=4))
    silent = {1: Stage.KEYS, 3: Stage.SHARES, 6: Stage.UNMASK}
    with pytest.raises(VoidError, match=r"1 \(keys\), 3 \(shares\), 6 \(unmask\)"):
        played.until(Stage.DONE, silent)


def test_fewer_than_min_present_are_not_uncovered() -> None:
    played = start(make_params(5, threshold=3, min_present=4)).until(Stage.MASKED)
    with pytest.raises(VoidError, match="3 of 5 replied, and min_present is 4"):
        played.step({1: Stage.MASKED, 2: Stage.MASKED})


def test_those_who_uncover_may_be_fewer_than_min_present() -> None:
    silent = dict.fromkeys((1, 2), Stage.UNMASK)
    played = start(make_params(5, threshold=3, min_present=5)).until(Stage.DONE, silent)
    assert played.server.total().present == (1, 2, 3, 4, 5)


def test_large_numbers_of_members() -> None:
    members = (0, 7, 2**33, 2**64 - 2)
    played = start(make_params(4, members=members, signed=True)).until(
        Stage.DONE, {7: Stage.MASKED}
    )
    assert played.server.total().present == (0, 2**33, 2**64 - 2)


def test_total_is_not_there_before_the_end() -> None:
    with pytest.raises(ArgumentError, match="stage done, got keys"):
        start(make_params()).server.total()


def test_default_threshold() -> None:
    for count in range(2, 200):
        threshold = default_threshold(count)
        corrupt = -(-count // 3) - 1  # fewer than a third
        assert 2 * threshold > count + corrupt
        assert threshold <= count
