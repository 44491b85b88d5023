"""Trees of aggregators: sums of sums are the sum, whoever is lost on the way.

Every tree is compared with one inbox that got the messages of all workers that the tree still has.
Whole numbers must have the same bytes, and be refused alike. Floats are rounded by each aggregator,
so they have the same bytes only where no sum needs more than 24 bits; elsewhere a bound holds.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeAlias

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from diffsketch.errors import ArgumentError
from diffsketch.wire import Inbox, Message, MessageFormat, WireError

ABOUT: dict[str, Any] = {"round_index": 3, "fingerprint": bytes(range(8))}
TABLE = MessageFormat("sketch", 7850, (2, 3), "float32", 32)
SKELLAM = MessageFormat("sketch-skellam", 7850, (2, 3), "unsigned", 20)
LEVELS = MessageFormat("cpsgd", 6, (6,), "unsigned", 4)
HOLDING = replace(LEVELS, bits=7)  # some 17 random messages: many trees are too large for it
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
FITTING: Case = (LEVELS, HOLDING, lambda rng: rng.randrange(16), False)
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
def test_sums_of_sums_have_the_same_bytes(
    case: Case, node: Node, rng: random.Random, loss: float
) -> None:
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
def test_floats_are_within_a_unit_for_each_level(
    node: Node, rng: random.Random, loss: float
) -> None:
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


def table(value: float, sender: int) -> Message:
    return Message(TABLE, torch.full((2, 3), value), **ABOUT, sender=sender)


def collected(layout: MessageFormat, *messages: Message, **options: Any) -> Inbox:
    inbox = Inbox(layout, **ABOUT, **options)
    for message in messages:
        inbox.add(message.to_bytes())
    return inbox


def test_rounded_partial_sums_do_lose_and_do_not_depend_on_the_order() -> None:
    """Floats with more bits than 24: the tree shows, and not who was first."""
    terms = [table(2.0**24, 0), table(1.0, 1), table(1.0, 2)]
    parts = [
        collected(TABLE, *terms[:2]).total(sender=0),
        collected(TABLE, terms[2]).total(sender=1),
    ]
    above = collected(TABLE, *parts, sums=True).total().to_bytes()
    assert collected(TABLE, *reversed(parts), sums=True).total().to_bytes() == above
    flat = collected(TABLE, *terms).total()
    assert flat.cells[0, 0] == 2**24 + 2
    assert Message.from_bytes(above, TABLE, **ABOUT).cells[0, 0] == 2**24


def test_a_worker_at_two_leaves_is_seen_only_with_disjoint_senders() -> None:
    workers = [table(float(index + 1), index) for index in range(4)]
    flat = collected(TABLE, *workers).total().to_bytes()
    careless = [collected(TABLE, *workers[:3]), collected(TABLE, *workers[2:])]
    sums = [part.total(sender=number) for number, part in enumerate(careless)]
    above = collected(TABLE, *sums, sums=True)
    assert above.count == 5
    assert above.total().to_bytes() != flat
    second = Inbox(TABLE, **ABOUT, senders=(3,))
    with pytest.raises(WireError, match="sender 2 is not among"):
        second.add(workers[2].to_bytes())
    second.add(workers[3].to_bytes())
    above = collected(TABLE, sums[0], second.total(sender=1), sums=True, senders=range(2))
    assert above.total().to_bytes() == flat
    forgotten = collected(TABLE, replace(sums[0], count=1), second.total(sender=1), sums=True)
    assert forgotten.total().to_bytes() != flat


def test_above_other_inboxes_a_sum_that_does_not_fit_is_found_if_it_must_not_wrap() -> None:
    """Without `wraps=False` it would go unnoticed, as messages have the bits of the total."""
    parts = [Message(HOLDING, torch.full((6,), 100), **ABOUT, sender=each) for each in range(2)]
    assert collected(HOLDING, *parts, sums=True).total().cells[0] == 200 - 128
    with pytest.raises(WireError, match="does not fit in the 7 bits"):
        collected(HOLDING, *parts, sums=True, wraps=False).total()
    with pytest.raises(ArgumentError, match="wraps must be None for float32"):
        Inbox(TABLE, **ABOUT, wraps=False)
    with pytest.raises(ArgumentError, match="wraps must not be True for signed cells"):
        Inbox(LEVELS, **ABOUT, total_format=HOLDING, wraps=True)
