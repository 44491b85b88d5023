"""What a round may be, and that all of it counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from diffsketch.errors import ArgumentError
from diffsketch.secure_sum import default_threshold
from diffsketch.wire import MessageFormat
from tests.secure_sum.playing import LAYOUT, identity, make_params

CHANGES: list[dict[str, Any]] = [
    {"run": b"another run of the tests"},
    {"round_index": 6},
    {"fingerprint": bytes(8)},
    {"members": (1, 2, 3, 5)},
    {"threshold": 4, "min_present": 4},
    {"min_present": 4},
    {"layout": replace(LAYOUT, bits=21)},
    {"layout": replace(LAYOUT, shape=(3, 2))},
    {"layout": replace(LAYOUT, dim=10)},
    {"layout": replace(LAYOUT, method="cpsgd")},
    {"signed": True},
]


def test_context_covers_everything() -> None:
    contexts = [make_params(4, **changes).context for changes in [{}, *CHANGES]]
    other = {index: identity(index + 1).public for index in (1, 2, 3, 4)}
    contexts.append(make_params(4, identities=other).context)
    assert len(set(contexts)) == len(CHANGES) + 2
    assert make_params(4).context == contexts[0]


def test_methods_that_share_a_code_have_other_contexts() -> None:
    """A user's own method has one of 128 codes; the name itself is what counts here."""
    names = [f"own {number}" for number in range(129)]
    layouts = [MessageFormat(name, 9, (2, 3), "unsigned", 20) for name in names]
    assert len({make_params(4, layout=layout).context for layout in layouts}) == 129


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threshold": 2}, r"threshold must be in 3..4 for 4 members, got threshold=2"),
        ({"threshold": 5}, r"threshold must be in 3..4"),
        ({"threshold": 3.0}, "threshold must be an int"),
        ({"threshold": True}, "threshold must be an int"),
        ({"min_present": 2}, r"min_present must be in 3..4"),
        ({"min_present": 5}, r"min_present must be in 3..4"),
        ({"members": (1, 2, 2, 3)}, "ascending, each once"),
        ({"members": (2, 1, 3, 4)}, "ascending, each once"),
        ({"members": (1, 2, 3, 2**64 - 1)}, "members must be numbers"),
        ({"members": (-1, 2, 3, 4)}, "members must be numbers"),
        ({"members": (1, 2, 3, True)}, "members must be numbers"),
        ({"members": (1,), "threshold": 1}, "two or more"),
        ({"run": bytes(15)}, "run must be 16 to 64 bytes"),
        ({"run": "a text of sixteen"}, "run must be 16 to 64 bytes"),
        ({"fingerprint": bytes(7)}, "fingerprint"),
        ({"round_index": -1}, "round_index"),
        ({"layout": MessageFormat("sketch", 9, (2, 3), "float32", 32)}, "unsigned"),
        ({"identities": {1: bytes(32)}}, "those of the members"),
        ({"identities": dict.fromkeys((1, 2, 3, 4), bytes(32))}, "two members have the same"),
        ({"identities": {index: bytes(31) for index in (1, 2, 3, 4)}}, "32 bytes"),
    ],
)
def test_refusals(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make_params(4, **changes)


def test_identities_are_copied() -> None:
    known = {index: identity(index).public for index in (1, 2, 3, 4)}
    params = make_params(4, identities=known)
    known[1] = bytes(32)
    assert params.identities is not None
    assert params.identities[1] == identity(1).public


def test_default_threshold_needs_members() -> None:
    with pytest.raises(ArgumentError, match="count must be >= 2"):
        default_threshold(1)
