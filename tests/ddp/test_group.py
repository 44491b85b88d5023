"""A mean over a group of real processes: the simulation's, and no process is left waiting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from diffsketch.ddp.transport import RankReport, Reports, Traffic, Transport
from diffsketch.errors import ArgumentError
from diffsketch.methods import Method
from tests.ddp.group_checks import CHECKS, checks, mean_of, vector_of
from tests.ddp.processes import Results, check_outcomes, run_checks


@pytest.fixture(scope="module")
def results() -> Results:
    return run_checks(checks)


@pytest.mark.slow  # processes are started
@pytest.mark.parametrize("name", CHECKS)
def test_two_ranks(name: str, results: Results) -> None:
    check_outcomes(results[name])


class Late(Transport):
    """Two ranks, of which the other one is always first, and alone in the sum."""

    rank, world, in_step = 0, 2, False

    def agree(self, settings: Mapping[str, str], **options: Any) -> str:  # noqa: ARG002
        return "series"

    def join(self, size: float | None, **options: Any) -> float | None:  # noqa: ARG002
        return size

    def send(
        self, message: Tensor, report: RankReport, **options: Any  # noqa: ARG002
    ) -> Callable[[], tuple[Tensor, Reports]]:  # fmt: skip
        return lambda: (torch.zeros_like(message), {1: report})

    def round_bytes(self, method: Method) -> Traffic:  # noqa: ARG002
        return Traffic(0.0, 0.0)

    def share(self, method: Method, *, framed: bool = True) -> float:  # noqa: ARG002
        return 1.0


def test_nothing_of_a_message_that_came_too_late_counts_as_sent() -> None:
    mean = mean_of(group=Late(), error_feedback=True)
    assert not mean.mean(vector_of(0)).any()
    assert not mean.present
    assert "memory" not in mean.state_dict()


def test_without_a_process_group() -> None:
    with pytest.raises(ArgumentError, match="init_process_group"):
        mean_of()
