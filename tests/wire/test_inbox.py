"""A round's messages: each sender's once, summed exactly; refused ones leave no trace."""

from __future__ import annotations

import math
import random
import tracemalloc
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.wire import SERVER, DuplicateError, Inbox, Message, MessageFormat, WireError
from diffsketch.wire.inbox import FloatSum, WholeSum

ABOUT: dict[str, Any] = {"round_index": 3, "fingerprint": bytes(range(8))}
TABLE = MessageFormat("sketch", 7850, (2, 3), "float32", 32, code=1)
LEVELS = MessageFormat("cpsgd", 4, (4,), "unsigned", 4, code=6)
LARGEST = float(np.finfo(np.float32).max)
TINY = 2.0**-149

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
terms = st.lists(finite | st.sampled_from([TINY, -TINY, 2.0**-126, 1.0, -1.0]), max_size=30)


# Sums


def total(values: list[float]) -> float:
    running = FloatSum((1,))
    for value in values:
        running.add(torch.tensor([value]))
    return float(running.value())


@settings(max_examples=300, deadline=None)
@given(terms, st.randoms(use_true_random=False))
def test_floats_are_exact_in_any_order(values: list[float], rng: random.Random) -> None:
    exact = sum(map(Fraction, values), Fraction(0))
    if abs(exact) > Fraction(LARGEST):
        return
    found = total(values)
    spacing = Fraction(2) ** max(-149, math.frexp(found)[1] - 24)
    assert abs(Fraction(found) - exact) < spacing
    shuffled = list(values)
    rng.shuffle(shuffled)
    assert total(shuffled) == found


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([LARGEST, TINY, -LARGEST], TINY),
        ([LARGEST, -TINY, -LARGEST], -TINY),
        ([-1.0, TINY, 1.0, TINY], 2 * TINY),
        ([LARGEST, LARGEST, -LARGEST], LARGEST),
        ([2.0**24, 1.0, 1.0], 2.0**24 + 2),
        ([1.0] * 300, 300.0),
        ([-0.0], 0.0),
        ([], 0.0),
    ],
)
def test_sums_that_float32_or_float64_would_lose(values: list[float], expected: float) -> None:
    assert total(values) == expected
    assert total(values[::-1]) == expected


def test_digits_may_appear_one_after_the_other() -> None:
    """Later terms, and later cells, are of other sizes than the first."""
    values = torch.randn(4, 7, 11, generator=torch.Generator().manual_seed(3))
    values[1:, 3:] *= 1e-20
    values[2] *= 1e10
    values[3] = 0
    running = FloatSum((7, 11))
    for count, value in enumerate(values, start=1):
        running.add(value)
        assert torch.equal(running.value(), values[:count].double().sum(0).float())


def test_plain_float32_does_depend_on_the_order() -> None:
    """The control: these terms are such that a plain sum would show their order."""
    values = torch.randn(200, generator=torch.Generator().manual_seed(1))
    forth, back = torch.zeros(()), torch.zeros(())
    for value in values:
        forth += value
    for value in values.flip(0):
        back += value
    assert forth != back
    assert total(values.tolist()) == total(values.flip(0).tolist())


def test_a_sum_beyond_float32_is_refused() -> None:
    running = FloatSum((2,))
    for _ in range(2):
        running.add(torch.tensor([0.0, LARGEST]))
    with pytest.raises(WireError, match="beyond float32"):
        running.value()
    running.add(torch.tensor([0.0, -LARGEST]))
    assert running.value().tolist() == [0.0, LARGEST]


@pytest.mark.parametrize("bits", [1, 22, 62])
def test_whole_numbers_wrap_where_totals_have_no_more_bits(bits: int) -> None:
    top = (1 << bits) - 1
    running = WholeSum(MessageFormat("cpsgd", 2, (2,), "unsigned", bits), wraps=True)
    for _ in range(5):
        running.add(torch.tensor([top, 1]))
    assert running.value().tolist() == [5 * top % (1 << bits), 5 % (1 << bits)]


@pytest.mark.parametrize("bits", [3, 62])
def test_whole_numbers_that_do_not_fit_are_refused_in_any_order(bits: int) -> None:
    half, form = 1 << (bits - 1), MessageFormat("cpsgd", 1, (1,), "unsigned", bits)
    for values in ([half, half, 0, 1], [1, 0, half, half], [half] * 50):
        running = WholeSum(form, wraps=False)
        for value in values:
            running.add(torch.tensor([value]))
        with pytest.raises(WireError, match=f"does not fit in the {bits} bits"):
            running.value()
    running = WholeSum(form, wraps=False)
    for value in (half, half - 1):
        running.add(torch.tensor([value]))
    assert running.value().tolist() == [2 * half - 1]


@pytest.mark.parametrize("bits", [3, 62])
def test_signed_numbers_are_summed_and_refused_beyond_their_bits(bits: int) -> None:
    half, form = 1 << (bits - 1), MessageFormat("sketch-gaussian", 1, (1,), "signed", bits)
    for values, total in (([half - 1, -half], -1), ([-half, 0], -half), ([half - 1], half - 1)):
        running = WholeSum(form, wraps=False)
        for value in values:
            running.add(torch.tensor([value]))
        assert running.value().tolist() == [total]
    for values in ([half - 1, 1, -5], [-1, -half, 7], [-half] * 50):
        running = WholeSum(form, wraps=False)
        for value in values:
            running.add(torch.tensor([value]))
        with pytest.raises(WireError, match=f"does not fit in the {bits} bits"):
            running.value()


# Inboxes


def table_of(sender: int) -> Message:
    cells = torch.randn(2, 3, generator=torch.Generator().manual_seed(sender))
    return Message(TABLE, cells, **ABOUT, sender=sender)


def levels_of(sender: int, *, value: int = 15, count: int = 1) -> Message:
    return Message(LEVELS, torch.full((4,), value), **ABOUT, sender=sender, count=count)


def test_sums_floats_in_any_order() -> None:
    messages = [table_of(sender) for sender in range(100)]
    totals = []
    for seed in range(3):
        inbox = Inbox(TABLE, **ABOUT)
        for message in random.Random(seed).sample(messages, len(messages)):
            inbox.add(message.to_bytes())
        totals.append(inbox.total().to_bytes())
        assert inbox.count == 100
        assert inbox.heard == tuple(range(100))
    assert totals[0] == totals[1] == totals[2]
    total = Message.from_bytes(totals[0], TABLE, **ABOUT, count=100)
    assert total.sender == SERVER
    expected = sum(message.cells.double() for message in messages)
    assert isinstance(expected, torch.Tensor)
    torch.testing.assert_close(total.cells, expected.float(), rtol=2e-7, atol=0)


def test_sums_whole_numbers_as_the_total_says() -> None:
    wrapping, holding = Inbox(LEVELS, **ABOUT), replace(LEVELS, bits=8)
    wide = Inbox(LEVELS, **ABOUT, total_format=holding)
    for sender in range(10):
        wrapping.add(levels_of(sender).to_bytes())
        wide.add(levels_of(sender).to_bytes())
    assert wrapping.total().cells.tolist() == [150 % 16] * 4
    total = wide.total()
    assert (total.format, total.count) == (holding, 10)
    assert total.cells.tolist() == [150] * 4
    for sender in range(10, 18):
        wide.add(levels_of(sender).to_bytes())
    with pytest.raises(WireError, match="does not fit in the 8 bits"):
        wide.total()


def test_what_is_refused_changes_nothing() -> None:
    inbox = Inbox(TABLE, **ABOUT, senders=range(5))
    inbox.add(table_of(1).to_bytes())
    inbox.add(table_of(2).to_bytes())
    before = inbox.total().to_bytes()
    good, other_cells = table_of(3).to_bytes(), replace(table_of(1), cells=torch.ones(2, 3))
    refused = {
        "sender 1 has already sent its message of round 3": other_cells.to_bytes(),
        "sender 2 has already sent": table_of(2).to_bytes(),
        "sender 5 is not among those of round 3": table_of(5).to_bytes(),
        "sender 18446744073709551615 is not among": replace(table_of(3), sender=SERVER).to_bytes(),
        "truncated": good[:-1],
        "too long": good + b"\0",
        "altered": good[:-1] + bytes([good[-1] ^ 1]),
        "of round 4": replace(table_of(3), round_index=4).to_bytes(),
        "another key": replace(table_of(3), fingerprint=bytes(8)).to_bytes(),
        "sum of 2 messages, and 1 is expected": replace(table_of(3), count=2).to_bytes(),
        "method code 6": levels_of(3).to_bytes(),
    }
    for reason, data in refused.items():
        with pytest.raises(WireError, match=reason) as caught:
            inbox.add(data)
        assert isinstance(caught.value, DuplicateError) == ("already" in reason)
        assert (inbox.count, inbox.heard, inbox.missing) == (2, (1, 2), (0, 3, 4))
        assert inbox.total().to_bytes() == before
    with pytest.raises(ArgumentError, match="data must be bytes"):
        inbox.add(None)  # type: ignore[arg-type]
    assert inbox.add(good).sender == 3
    assert inbox.missing == (0, 4)


def test_nothing_has_no_total() -> None:
    inbox = Inbox(TABLE, **ABOUT)
    assert (inbox.count, inbox.heard, inbox.missing) == (0, (), ())
    with pytest.raises(WireError, match="no message of round 3 has arrived"):
        inbox.total()


def test_a_total_may_be_read_before_the_last_message() -> None:
    inbox = Inbox(LEVELS, **ABOUT)
    inbox.add(levels_of(0, value=1).to_bytes())
    first = inbox.total()
    inbox.add(levels_of(1, value=2).to_bytes())
    assert first.cells.tolist() == [1] * 4
    assert inbox.total().cells.tolist() == [3] * 4


def test_counts_stay_within_the_header() -> None:
    inbox = Inbox(LEVELS, **ABOUT, sums=True)
    inbox.add(levels_of(0, count=2**32 - 2).to_bytes())
    with pytest.raises(WireError, match="takes no more"):
        inbox.add(levels_of(1, count=2).to_bytes())
    inbox.add(levels_of(1).to_bytes())
    assert inbox.total().count == 2**32 - 1


@pytest.mark.parametrize(
    "total", [replace(LEVELS, bits=3), replace(LEVELS, dim=5), TABLE, replace(LEVELS, shape=(2, 2))]
)
def test_a_total_must_hold_the_messages(total: MessageFormat) -> None:
    with pytest.raises(MismatchError, match="total_format must be that of the messages"):
        Inbox(LEVELS, **ABOUT, total_format=total)


def test_memory_does_not_grow_with_messages() -> None:
    layout = MessageFormat("sketch", 10**6, (5, 1000), "float32", 32)
    inbox = Inbox(layout, **ABOUT)
    cells = torch.randn(5, 1000, generator=torch.Generator().manual_seed(0))
    tracemalloc.start()
    sizes = []
    for sender in range(60):
        inbox.add(Message(layout, cells, **ABOUT, sender=sender).to_bytes())
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sizes[-1] - sizes[9] < layout.wire_bytes  # 50 messages more, and not one is kept
