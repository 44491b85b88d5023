"""Secure sums of groups go on as messages, and a tree of inboxes sums them to the plain sum."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from diffsketch.secure_sum import Stage, VoidError
from diffsketch.wire import DuplicateError, Inbox, Message
from tests.secure_sum.playing import LAYOUT, Played, make_params, plain_sum, start

ABOUT: dict[str, Any] = {"round_index": 5, "fingerprint": bytes(range(8))}


def group(number: int, silent: dict[int, Stage] | None = None) -> Played:
    """Four members a group, each with its own run: masks of groups have nothing in common."""
    params = make_params(run=b"group %d of the tests" % number)
    return start(params, seed=number).until(Stage.DONE, silent)


def message_of(played: Played, number: int) -> Message:
    total = played.server.total()
    return Message(LAYOUT, total.cells, **ABOUT, sender=number, count=len(total.present))


def test_a_tree_of_group_sums_is_the_plain_sum() -> None:
    """One member of the second group drops out, and the third group is void."""
    groups = {number: group(number) for number in (0, 3)}
    groups[1] = group(1, {2: Stage.MASKED})
    with pytest.raises(VoidError):
        group(2, dict.fromkeys((1, 2, 3), Stage.MASKED))
    root = Inbox(LAYOUT, **ABOUT, sums=True, senders=(10, 11))
    for number, below in ((10, (0, 1)), (11, (2, 3))):
        inbox = Inbox(LAYOUT, **ABOUT, sums=True, senders=below)
        for member in below:
            if member in groups:
                inbox.add(message_of(groups[member], member).to_bytes())
        root.add(inbox.total(sender=number).to_bytes())
    plain = torch.zeros(LAYOUT.shape, dtype=torch.int64)
    for played in groups.values():
        plain += plain_sum(played.inputs, played.server.total().present, LAYOUT.bits)
    assert root.count == 4 + 3 + 4
    assert torch.equal(root.total().cells, plain & ((1 << LAYOUT.bits) - 1))
    # The control: with the void group's inputs it would be another sum.
    lost = plain_sum(start(make_params(), seed=2).inputs, (4,), LAYOUT.bits)
    assert not torch.equal(root.total().cells, (plain + lost) & ((1 << LAYOUT.bits) - 1))


def test_a_group_counts_once() -> None:
    inbox, played = Inbox(LAYOUT, **ABOUT, sums=True), group(0)
    inbox.add(message_of(played, 0).to_bytes())
    with pytest.raises(DuplicateError):
        inbox.add(message_of(played, 0).to_bytes())
