"""Trees of aggregators: sums of sums are the sum, whoever is lost on the way.

Every tree is compared with one inbox that got the messages of all workers that the tree still has.
Whole numbers must have the same bytes, and be refused alike. Floats are rounded by each aggregator,
so they have the same bytes only where no sum needs more than 24 bits; elsewhere a bound holds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, TypeAlias, TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from diffsketch.errors import ArgumentError
from diffsketch.wire import DuplicateError, Inbox, Message, MessageFormat, WireError

ABOUT: dict[str, Any] = {"round_index": 3, "fingerprint": bytes(range(8))}
TABLE = MessageFormat("sketch", 7850, (2, 3), "float32", 32)
SKELLAM = MessageFormat("sketch-skellam", 7850, (2, 3), "unsigned", 20)
LEVELS = MessageFormat("cpsgd", 6, (6,), "unsigned", 4)
HOLDING = replace(LEVELS, bits=7)
"""Holds some 17 random messages, so that many trees are too large for it."""

UNIT = Fraction(1, 2**23)
"""The spacing of float32 numbers is at most this part of them."""

T = TypeVar("T")
Node: TypeAlias = "int | list[Node]"
"""A leaf aggregator with so many workers, or an aggregator of others."""

# Some leaves have no workers at all; leaves are at any depth, beside aggregators of others.
nodes = st.recursive(
    st.integers(0, 12),
    lambda inner: st.lists(inner, min_size=1, max_size=4),
    max_leaves=10,
)
randoms = st.integers(0, 2**32).map(random.Random)
losses = st.sampled_from([0.0, 0.0, 0.3, 0.8])


@dataclass
class Tree:
    """Aggregators, of which some fall silent, as some workers do.

    Attributes:
        layout: Of the workers' messages.
        total: Of all sums.
        rng: For cells, losses and orders.
        cells: Draws a cell.
        loss: Probability that a worker, or an aggregator with all below it, is lost.
        wraps: Of the inboxes that take sums.
        sent: The messages that are in the sum, for the comparison.
        workers: Their numbers.
    """

    layout: MessageFormat
    total: MessageFormat
    rng: random.Random
    cells: Callable[[random.Random], float]
    loss: float = 0.0
    wraps: bool | None = None
    sent: list[Message] = field(default_factory=list)
    workers: Iterator[int] = field(default_factory=lambda: iter(range(10**6)))

    def inbox(self, node: Node) -> Inbox:
        """The inbox of an aggregator after its round."""
        if isinstance(node, int):
            inbox = Inbox(self.layout, **ABOUT, total_format=self.total)
            for message in self._shuffled([self._message() for _ in range(node)]):
                if self.rng.random() >= self.loss:
                    self.sent.append(message)
                    inbox.add(message.to_bytes())
            return inbox
        inbox = Inbox(self.total, **ABOUT, sums=True, wraps=self.wraps)
        below = []
        for number, child in enumerate(node):
            before = len(self.sent)
            part = self.inbox(child)
            if self.rng.random() < self.loss:
                del self.sent[before:]
            elif part.count:
                below.append(part.total(sender=number).to_bytes())
        for data in self._shuffled(below):
            inbox.add(data)
        return inbox

    def flat(self) -> Inbox:
        """One inbox for the same messages."""
        inbox = Inbox(self.layout, **ABOUT, total_format=self.total)
        for message in self._shuffled(self.sent):
            inbox.add(message.to_bytes())
        return inbox

    def _shuffled(self, values: list[T]) -> list[T]:
        return self.rng.sample(values, len(values))

    def _message(self) -> Message:
        kind = torch.float32 if self.layout.cells == "float32" else torch.int64
        values = [self.cells(self.rng) for _ in range(self.layout.cell_count)]
        cells = torch.tensor(values, dtype=kind).reshape(self.layout.shape)
        return Message(self.layout, cells, **ABOUT, sender=next(self.workers))


def result(make: Callable[[], Inbox]) -> bytes | str:
    """The bytes of the total, which carry its count; or why there is none."""
    try:
        return make().total().to_bytes()
    except WireError as error:
        return str(error)


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


def whole(rng: random.Random) -> int:
    return rng.randrange(2**20)


def level(rng: random.Random) -> int:
    return rng.randrange(16)


def dyadic(rng: random.Random) -> float:
    """At most 14 bits, so that a thousand of them are exact in 24."""
    return rng.randrange(-(2**13), 2**13) / 2**9


def real(rng: random.Random) -> float:
    return rng.gauss(0, 1) * 10.0 ** rng.choice([-42, -20, -3, 0, 0, 3, 20])


@settings(max_examples=150, deadline=None)
@given(nodes, randoms, losses)
def test_modular_sums_have_the_same_bytes(node: Node, rng: random.Random, loss: float) -> None:
    tree = Tree(SKELLAM, SKELLAM, rng, whole, loss)
    found = result(lambda: tree.inbox(node))
    assert found == result(tree.flat)
    assert isinstance(found, bytes) == bool(tree.sent)


@settings(max_examples=150, deadline=None)
@given(nodes, randoms, losses)
def test_sums_that_must_fit_are_the_same_or_refused(
    node: Node, rng: random.Random, loss: float
) -> None:
    """Some aggregator refuses if and only if one inbox would: no part exceeds the whole sum."""
    tree = Tree(LEVELS, HOLDING, rng, level, loss, wraps=False)
    assert result(lambda: tree.inbox(node)) == result(tree.flat)


def test_trees_that_are_too_large_are_refused() -> None:
    """The control of the test above: such trees are among those that it draws."""
    for node, fits in (([[1, 2], 3], True), ([[12, 12], [12]], False), ([40], False)):
        tree = Tree(LEVELS, HOLDING, random.Random(0), level, wraps=False)
        found = result(lambda tree=tree, node=node: tree.inbox(node))  # type: ignore[misc]
        assert isinstance(found, bytes) == fits
        assert fits or "does not fit in the 7 bits" in str(found)


@settings(max_examples=100, deadline=None)
@given(nodes, randoms, losses)
def test_floats_of_few_bits_have_the_same_bytes(
    node: Node, rng: random.Random, loss: float
) -> None:
    tree = Tree(TABLE, TABLE, rng, dyadic, loss)
    assert result(lambda: tree.inbox(node)) == result(tree.flat)


@settings(max_examples=150, deadline=None)
@given(nodes, randoms, losses)
def test_floats_are_within_a_unit_for_each_level(
    node: Node, rng: random.Random, loss: float
) -> None:
    tree = Tree(TABLE, TABLE, rng, real, loss)
    inbox = tree.inbox(node)
    assert inbox.count == len(tree.sent)
    if tree.sent:
        assert within_bound(inbox.total().cells, tree.sent, depth(node))


def test_a_sum_that_is_rounded_further_is_beyond_the_bound() -> None:
    """The control: 8 bits in place of 24, once."""
    node: Node = [[5, 5], 5]
    tree = Tree(TABLE, TABLE, random.Random(0), dyadic)
    cells = tree.inbox(node).total().cells
    assert within_bound(cells, tree.sent, depth(node))
    assert not within_bound(cells.bfloat16().float(), tree.sent, depth(node))


@settings(max_examples=50, deadline=None)
@given(nodes, st.integers(0, 2**32))
def test_a_tree_gives_floats_the_same_bytes_in_any_order(node: Node, seed: int) -> None:
    """Only the shape of the tree may show, not who was first."""
    cells = random.Random(seed)
    results = set()
    for order in (1, 2):
        state = cells.getstate()
        tree = Tree(TABLE, TABLE, random.Random(order), lambda _: real(cells))
        results.add(result(lambda tree=tree: tree.inbox(node)))  # type: ignore[misc]
        cells.setstate(state)
    assert len(results) == 1


# Controls: what the comparisons above are there to find.


def table(value: float, sender: int) -> Message:
    return Message(TABLE, torch.full((2, 3), value), **ABOUT, sender=sender)


def levels(value: int, sender: int, *, layout: MessageFormat = LEVELS) -> Message:
    return Message(layout, torch.full((6,), value), **ABOUT, sender=sender)


def collected(layout: MessageFormat, *messages: Message, **options: Any) -> Inbox:
    inbox = Inbox(layout, **ABOUT, **options)
    for message in messages:
        inbox.add(message.to_bytes())
    return inbox


def test_rounded_partial_sums_do_lose() -> None:
    """Floats with more bits than 24: the tree shows."""
    parts = [collected(TABLE, table(2.0**24, 0), table(1.0, 1)), collected(TABLE, table(1.0, 2))]
    above = collected(TABLE, *(part.total(sender=i) for i, part in enumerate(parts)), sums=True)
    flat = collected(TABLE, table(2.0**24, 0), table(1.0, 1), table(1.0, 2))
    assert flat.total().cells[0, 0] == 2**24 + 2
    assert above.total().cells[0, 0] == 2**24
    assert above.total().to_bytes() != flat.total().to_bytes()


@pytest.mark.parametrize("error", ["forgets its count", "adds its own", "sends a mean"])
def test_a_wrong_aggregator_shows(error: str) -> None:
    """Bytes that are equal mean something: each of these changes them."""
    workers = [table(float(index + 1), index) for index in range(4)]
    honest = collected(TABLE, *workers[:3]).total(sender=0)
    wrong = {
        "forgets its count": replace(honest, count=1),
        "adds its own": replace(honest, cells=honest.cells + 1),
        "sends a mean": replace(honest, cells=honest.cells / 3),
    }[error]
    other = collected(TABLE, workers[3]).total(sender=1)
    flat = collected(TABLE, *workers).total().to_bytes()
    assert collected(TABLE, honest, other, sums=True).total().to_bytes() == flat
    assert collected(TABLE, wrong, other, sums=True).total().to_bytes() != flat


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


def test_an_aggregator_and_its_replacement_count_once() -> None:
    """The replacement has the number of the lost one; whichever comes second is refused."""
    workers = [table(float(index + 1), index) for index in range(4)]
    late = collected(TABLE, *workers[:2]).total(sender=0)
    replacement = collected(TABLE, *workers[:3]).total(sender=0)
    above = collected(TABLE, replacement, sums=True, senders=range(2))
    before = above.total().to_bytes()
    with pytest.raises(DuplicateError, match="sender 0 has already sent"):
        above.add(late.to_bytes())
    assert (above.count, above.missing) == (3, (1,))
    assert above.total().to_bytes() == before


def test_above_other_inboxes_a_sum_that_does_not_fit_is_found_if_it_must_not_wrap() -> None:
    """Without `wraps=False` it would go unnoticed, as messages have the bits of the total."""
    parts = [levels(100, sender, layout=HOLDING) for sender in range(2)]
    assert collected(HOLDING, *parts, sums=True).total().cells[0] == 200 - 128
    with pytest.raises(WireError, match="does not fit in the 7 bits"):
        collected(HOLDING, *parts, sums=True, wraps=False).total()
    fitting = collected(HOLDING, parts[0], levels(27, 1, layout=HOLDING), wraps=False)
    assert fitting.total().cells[0] == 127


def test_what_cannot_wrap_is_refused() -> None:
    with pytest.raises(ArgumentError, match="wraps must be None for float32"):
        Inbox(TABLE, **ABOUT, wraps=False)
    with pytest.raises(ArgumentError, match="wraps must not be True for signed cells"):
        Inbox(LEVELS, **ABOUT, total_format=HOLDING, wraps=True)
