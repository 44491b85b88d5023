"""Reports of rounds, and the loggers that take them."""

from __future__ import annotations

import logging

import pytest

from diffsketch.logs import RoundSummary, announce
from diffsketch.privacy.claim import Basis, Epsilon, Relation, Scope, Trust, Unit

SCOPE = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
SUMMARY = RoundSummary(
    2, loss=0.5, accuracy=0.75, bytes_up=1000, bytes_down=900,
    epsilon=Epsilon(1.5, 1e-5, 2, Basis.PROVEN, SCOPE),
    refused={"alice": "not finite"}, seconds=0.25,
)  # fmt: skip


def test_a_row_has_the_same_keys_whatever_is_known() -> None:
    row = SUMMARY.row()
    assert list(row) == list(RoundSummary(1).row())
    assert row["epsilon"] == 1.5
    assert row["refused"] == 1
    assert "proven" in row["guarantee"]


def test_rounds_and_refusals_are_logged_and_passed_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[RoundSummary] = []
    with caplog.at_level(logging.INFO, "diffsketch.test"):
        announce(SUMMARY, seen.append, logging.getLogger("diffsketch.test"))
    assert seen == [SUMMARY]
    text = caplog.text
    assert "loss 0.5 | accuracy 75.0%" in text
    assert "proven; client, replace, local" in text
    assert "round 2: alice does not count: not finite" in text
