"""One record in a silo, one person among many: releases stand, every planted error is found."""

from __future__ import annotations

import pytest

from diffsketch.auditing import Verdict, audit
from diffsketch.auditing.cases import cases
from diffsketch.auditing.items import ITEM_CASES
from diffsketch.auditing.silos import RECORD_CASES

NAMES = (*RECORD_CASES, *ITEM_CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if "+" not in name])
def test_releases_are_not_contradicted(name: str) -> None:
    """A false alarm has probability at most 1e-6."""
    result = audit(cases()[name](), confidence=1 - 1e-6)
    assert result.verdict is Verdict.CONSISTENT


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if "+" in name])
def test_planted_errors_are_found(name: str) -> None:
    result = audit(cases()[name](), confidence=0.99)
    assert result.is_wrong, (float(result.claimed), float(result.measured.lower_bound))
