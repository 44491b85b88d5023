"""A round's messages: each sender's once, summed exactly; refused ones leave no trace."""

from __future__ import annotations

import math
import random
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.wire import SERVER, DuplicateError, Inbox, Message, MessageFormat, WireError
from diffsketch.wire.inbox import FloatSum, WholeSum
from tests.helpers.refusals import refused

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


def test_later_terms_may_be_of_other_sizes() -> None:
    values = torch.randn(4, 7, 11, generator=torch.Generator().manual_seed(3))
    values[1:, 3:] *= 1e-20
    values[2] *= 1e10
    values[3] = 0
    running = FloatSum((7, 11))
    for count, value in enumerate(values, start=1):
        running.add(value)
        assert torch.equal(running.value(), values[:count].double().sum(0).float())
    for _ in range(2):
        running.add(torch.full((7, 11), LARGEST))
    refused(WireError, "beyond float32", running.value)
    running.add(torch.full((7, 11), -LARGEST))
    assert running.value().isfinite().all()


@pytest.mark.parametrize("bits", [1, 22, 62])
def test_whole_numbers_wrap_where_totals_have_no_more_bits(bits: int) -> None:
    top = (1 << bits) - 1
    running = WholeSum(MessageFormat("cpsgd", 2, (2,), "unsigned", bits), wraps=True)
    for _ in range(5):
        running.add(torch.tensor([top, 1]))
    assert running.value().tolist() == [5 * top % (1 << bits), 5 % (1 << bits)]


@pytest.mark.parametrize("bits", [3, 62])
def test_whole_numbers_that_do_not_fit_are_refused_in_any_order(bits: int) -> None:
    half = 1 << (bits - 1)
    fitting: list[tuple[Any, list[int]]] = [
        ("unsigned", [half, half - 1]), ("signed", [half - 1, -half]), ("signed", [-half, 0]),
        ("signed", [half - 1]),
    ]  # fmt: skip
    beyond: list[tuple[Any, list[int]]] = [
        ("unsigned", [half, half, 0, 1]), ("unsigned", [1, 0, half, half]),
        ("unsigned", [half] * 50), ("signed", [half - 1, 1, -5]), ("signed", [-1, -half, 7]),
        ("signed", [-half] * 50),
    ]  # fmt: skip
    for cells, values in fitting + beyond:
        running = WholeSum(MessageFormat("cpsgd", 1, (1,), cells, bits), wraps=False)
        for value in values:
            running.add(torch.tensor([value]))
        if (cells, values) in beyond:
            refused(WireError, f"does not fit in the {bits} bits", running.value)
        else:
            assert running.value().tolist() == [sum(values)]


# Inboxes


def table_of(sender: int) -> Message:
    cells = torch.randn(2, 3, generator=torch.Generator().manual_seed(sender))
    return Message(TABLE, cells, **ABOUT, sender=sender)


def levels_of(sender: int, *, count: int = 1) -> Message:
    return Message(LEVELS, torch.full((4,), 15), **ABOUT, sender=sender, count=count)


def test_a_round_is_summed_in_any_order() -> None:
    messages = [table_of(sender) for sender in range(100)]
    exact, totals = torch.stack([message.cells.double() for message in messages]).sum(0), set()
    for seed in range(3):
        inbox = Inbox(TABLE, **ABOUT)
        refused(WireError, "no message of round 3 has arrived", inbox.total)
        for message in random.Random(seed).sample(messages, len(messages)):
            inbox.add(message.to_bytes())
            total = inbox.total()  # which may be read at any time
        assert (inbox.heard, total.count, total.sender) == (tuple(range(100)), 100, SERVER)
        torch.testing.assert_close(total.cells, exact.float(), rtol=2e-7, atol=0)
        totals.add(total.to_bytes())
    assert len(totals) == 1


def test_what_is_refused_changes_nothing() -> None:
    inbox = Inbox(TABLE, **ABOUT, senders=range(5))
    inbox.add(table_of(1).to_bytes())
    inbox.add(table_of(2).to_bytes())
    before = inbox.total().to_bytes()
    good, other_cells = table_of(3).to_bytes(), replace(table_of(1), cells=torch.ones(2, 3))
    damaged = {
        "sender 1 has already sent its message of round 3": other_cells.to_bytes(),
        "sender 2 has already sent": table_of(2).to_bytes(),
        "sender 5 is not among those of round 3": table_of(5).to_bytes(),
        "sender 18446744073709551615 is not among": replace(table_of(3), sender=SERVER).to_bytes(),
        "altered": good[:-1] + bytes([good[-1] ^ 1]),
        "sum of 2 messages, and 1 is expected": replace(table_of(3), count=2).to_bytes(),
    }
    for reason, data in damaged.items():
        with pytest.raises(WireError, match=reason) as caught:
            inbox.add(data)
        assert isinstance(caught.value, DuplicateError) == ("already" in reason)
        assert (inbox.count, inbox.heard) == (2, (1, 2))
        assert inbox.total().to_bytes() == before
    refused(ArgumentError, "data must be bytes", inbox.add, None)
    assert inbox.add(good).sender == 3


def test_sums_have_no_more_terms_than_they_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FloatSum.most_terms * 2**39 <= 2**63  # the largest digit of a term
    monkeypatch.setattr(FloatSum, "most_terms", 2)
    inbox = collected(TABLE, table_of(0), table_of(1))
    refused(WireError, "the sum of 2 messages takes no more", inbox.add, table_of(2).to_bytes())


def test_counts_stay_within_the_header() -> None:
    inbox = Inbox(LEVELS, **ABOUT, sums=True)
    inbox.add(levels_of(0, count=2**32 - 2).to_bytes())
    refused(WireError, "takes no more", inbox.add, levels_of(1, count=2).to_bytes())
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


# Trees of aggregators: sums of sums are the sum, whoever is lost on the way.
#
# Every tree is compared with one inbox that got the messages of all workers that the tree still
# has. Whole numbers must have the same bytes, and be refused alike. Floats are rounded by each
# aggregator, so they have the same bytes only where no sum needs more than 24 bits; elsewhere a
# bound holds.

SKELLAM = MessageFormat("sketch-skellam", 7850, (2, 3), "unsigned", 20)
FEW = MessageFormat("cpsgd", 6, (6,), "unsigned", 4)
HOLDING = replace(FEW, bits=7)  # some 17 random messages: many trees are too large for it
UNIT = Fraction(1, 2**23)  # the spacing of float32 numbers is at most this part of them

Node: TypeAlias = "int | list[Node]"
"""A leaf aggregator with so many workers, or an aggregator of others."""

# Some leaves have no workers at all; leaves are at any depth, beside aggregators of others.
nodes = st.recursive(
    st.integers(0, 12), lambda inner: st.lists(inner, min_size=1, max_size=4), max_leaves=10
)
randoms = st.integers(0, 2**32).map(random.Random)
losses = st.sampled_from([0.0, 0.0, 0.3, 0.8])


def real(rng: random.Random) -> float:
    return rng.gauss(0, 1) * 10.0 ** rng.choice([-42, -20, -3, 0, 0, 3, 20])


Case: TypeAlias = tuple[MessageFormat, MessageFormat, Callable[[random.Random], float], bool | None]
MODULAR: Case = (SKELLAM, SKELLAM, lambda rng: rng.randrange(2**20), None)
FITTING: Case = (FEW, HOLDING, lambda rng: rng.randrange(16), False)
# At most 14 bits, so that a thousand of them are exact in 24.
FEW_BITS: Case = (TABLE, TABLE, lambda rng: rng.randrange(-(2**13), 2**13) / 2**9, None)
REAL: Case = (TABLE, TABLE, real, None)


def grow(case: Case, node: Node, rng: random.Random, loss: float = 0.0) -> tuple[Any, Any, Any]:
    """Totals of a tree and of one inbox (or the reasons for none), and the messages in them.

    Workers, and aggregators with all below them, are lost with probability `loss`.
    """
    layout, total, cell, wraps = case
    kind = torch.float32 if layout.cells == "float32" else torch.int64
    made: list[Message] = []

    def inbox_of(node: Node) -> tuple[Inbox, list[Message]]:
        if isinstance(node, int):
            for _ in range(node):
                cells = torch.tensor([cell(rng) for _ in range(layout.cell_count)], dtype=kind)
                sender = len(made)
                made.append(Message(layout, cells.reshape(layout.shape), **ABOUT, sender=sender))
            sent = made[len(made) - node :]
            sent = [each for each in rng.sample(sent, node) if rng.random() >= loss]
            inbox = Inbox(layout, **ABOUT, total_format=total)
            for each in sent:
                inbox.add(each.to_bytes())
            return inbox, sent
        inbox, sent, below = Inbox(total, **ABOUT, sums=True, wraps=wraps), [], []
        for number, child in enumerate(node):
            part, inside = inbox_of(child)
            if part.count and rng.random() >= loss:
                sent += inside
                below.append((part, number))
        for part, number in rng.sample(below, len(below)):
            inbox.add(part.total(sender=number).to_bytes())
        return inbox, sent

    sent = made  # where a tree is refused; nobody is lost there
    try:
        inbox, sent = inbox_of(node)
        found: bytes | str = inbox.total().to_bytes()
    except WireError as error:
        found = str(error)
    flat = Inbox(layout, **ABOUT, total_format=total)
    for each in rng.sample(sent, len(sent)):
        flat.add(each.to_bytes())
    try:
        return found, flat.total().to_bytes(), sent
    except WireError as error:
        return found, str(error), sent


def depth(node: Node) -> int:
    return 1 if isinstance(node, int) else 1 + max(map(depth, node))


def within_bound(cells: Tensor, sent: list[Message], levels: int) -> bool:
    """Whether `|tree - exact| <= levels u (1 - u)**-levels sum |x|`, with `u = 2**-23`.

    An aggregator's error is less than `u` times its rounded sum, and the sums of a level are
    together at most the sum of all `|x|`, but for what the levels below have rounded.
    """
    columns = zip(*(message.cells.reshape(-1).tolist() for message in sent), strict=True)
    for found, column in zip(cells.reshape(-1).tolist(), columns, strict=True):
        exact, sizes = sum(map(Fraction, column)), sum(abs(Fraction(term)) for term in column)
        if abs(Fraction(found) - exact) > levels * UNIT * (1 - UNIT) ** -levels * sizes:
            return False
    return True


@pytest.mark.parametrize("case", [MODULAR, FEW_BITS], ids=["modular", "floats of few bits"])
@settings(max_examples=100, deadline=None)
@given(node=nodes, rng=randoms, loss=losses)
def test_sums_of_sums_are_the_same(case: Case, node: Node, rng: random.Random, loss: float) -> None:
    found, flat, sent = grow(case, node, rng, loss)
    assert found == flat
    assert isinstance(found, bytes) == bool(sent)


@settings(max_examples=100, deadline=None)
@given(nodes, randoms)
def test_sums_that_must_fit_are_the_same_or_refused(node: Node, rng: random.Random) -> None:
    """Some aggregator refuses if and only if one inbox would: no part exceeds the whole sum."""
    found, flat, _ = grow(FITTING, node, rng)
    assert found == flat


def test_trees_that_are_too_large_are_refused() -> None:
    """The control of the test above: such trees are among those that it draws."""
    for node, fits in (([[1, 2], 3], True), ([[12, 12], [12]], False), ([40], False)):
        found = grow(FITTING, node, random.Random(0))[0]  # type: ignore[arg-type]
        assert isinstance(found, bytes) == fits
        assert fits or "does not fit in the 7 bits" in found


@settings(max_examples=100, deadline=None)
@given(nodes, randoms, losses)
def test_floats_are_within_a_unit_a_level(node: Node, rng: random.Random, loss: float) -> None:
    found, _, sent = grow(REAL, node, rng, loss)
    if sent:
        total = Message.from_bytes(found, TABLE, **ABOUT, count=len(sent))
        assert within_bound(total.cells, sent, depth(node))


def test_a_sum_that_is_rounded_further_is_beyond_the_bound() -> None:
    """The control: 8 bits in place of 24, once."""
    node: Node = [[5, 5], 5]
    found, _, sent = grow(FEW_BITS, node, random.Random(0))
    cells = Message.from_bytes(found, TABLE, **ABOUT).cells
    assert within_bound(cells, sent, depth(node))
    assert not within_bound(cells.bfloat16().float(), sent, depth(node))


# Controls: what the comparisons above are there to find.


def collected(layout: MessageFormat, *messages: Message, **options: Any) -> Inbox:
    inbox = Inbox(layout, **ABOUT, **options)
    for message in messages:
        inbox.add(message.to_bytes())
    return inbox


def test_above_other_inboxes_a_sum_that_does_not_fit_is_found_if_it_must_not_wrap() -> None:
    """Without `wraps=False` it would go unnoticed, as messages have the bits of the total."""
    parts = [Message(HOLDING, torch.full((6,), 100), **ABOUT, sender=each) for each in range(2)]
    assert collected(HOLDING, *parts, sums=True).total().cells[0] == 200 - 128
    with pytest.raises(WireError, match="does not fit in the 7 bits"):
        collected(HOLDING, *parts, sums=True, wraps=False).total()
    refused(ArgumentError, "wraps must be None for float32", Inbox, TABLE, **ABOUT, wraps=False)
    with pytest.raises(ArgumentError, match="wraps must not be True for signed cells"):
        Inbox(FEW, **ABOUT, total_format=HOLDING, wraps=True)
