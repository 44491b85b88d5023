"""A mean over a group of real processes: the simulation's, and no process is left waiting."""

from __future__ import annotations

import pytest

from diffsketch.errors import ArgumentError
from tests.ddp.group_checks import CHECKS, checks, mean_of
from tests.ddp.processes import Results, check_outcomes, run_checks


@pytest.fixture(scope="module")
def results() -> Results:
    return run_checks(checks)


@pytest.mark.slow  # processes are started
@pytest.mark.parametrize("name", CHECKS)
def test_two_ranks(name: str, results: Results) -> None:
    check_outcomes(results[name])


def test_without_a_process_group() -> None:
    with pytest.raises(ArgumentError, match="init_process_group"):
        mean_of()
