"""Silos as real processes: one model, a budget, and failures that nobody sees."""

from __future__ import annotations

import pytest

from tests.ddp.processes import Results, check_outcomes, run_checks
from tests.ddp.silo_checks import CHECKS, checks


@pytest.fixture(scope="module")
def results() -> Results:
    return run_checks(checks)


@pytest.mark.slow  # processes are started
@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_two_silos(name: str, results: Results) -> None:
    check_outcomes(results[name])
