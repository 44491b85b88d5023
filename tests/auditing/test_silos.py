"""One record in a silo: the release stands, and every planted error is found."""

from __future__ import annotations

import pytest

from diffsketch.auditing import Verdict, audit
from diffsketch.auditing.silos import RECORD_CASES, record_case


@pytest.mark.slow
def test_the_release_of_a_silo_is_not_contradicted() -> None:
    """A false alarm has probability at most 1e-6."""
    result = audit(record_case("records"), confidence=1 - 1e-6)
    assert result.verdict is Verdict.CONSISTENT


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RECORD_CASES if "+" in name])
def test_planted_errors_are_found(name: str) -> None:
    result = audit(record_case(name), confidence=0.99)
    assert result.is_wrong, (float(result.claimed), float(result.measured.lower_bound))
