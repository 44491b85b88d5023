"""What ranks tell each other within a sum, and how a difference is named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diffsketch.ddp.transport import (
    RankReport,
    RankStatus,
    check_reports,
    control_cells,
    device_of,
    read_reports,
)
from diffsketch.errors import MismatchError


@pytest.mark.parametrize("kind", [torch.float32, torch.int64])
@pytest.mark.parametrize("status", list(RankStatus))
def test_control_cells_survive_the_sum(kind: torch.dtype, status: RankStatus) -> None:
    like = torch.zeros(0, dtype=kind)
    reports = [RankReport((1 << 24) - 1, 0), RankReport(7, (1 << 24) - 1, status)]
    cells = [
        control_cells(report, rank=rank, world=2, like=like) for rank, report in enumerate(reports)
    ]
    assert read_reports(cells[0] + cells[1]) == reports
    assert read_reports(cells[0]) == [reports[0], None]
    assert read_reports(2 * cells[0])[0] is None


@pytest.mark.parametrize(
    ("kinds", "like", "expected"),
    [
        (["cpu"], None, "cpu"),
        (["cpu", "meta"], None, "cpu"),
        (["cpu", "meta"], "meta", "meta"),
        (["meta"], None, "meta"),
        (["cpu"], "meta", "cpu"),
    ],
)
def test_tensors_go_where_those_of_the_others_are(
    kinds: list[str], like: str | None, expected: str
) -> None:
    """A group with a backend for each kind of device; `meta` stands for a GPU."""
    group: Any = SimpleNamespace(_device_types=[torch.device(kind) for kind in kinds])
    tensor = None if like is None else torch.empty(1, device=like)
    assert device_of(group, tensor) == torch.device(expected)


def test_reports_that_differ_are_named() -> None:
    own = RankReport(3, 9)
    check_reports({0: own, 1: own}, own, rank=0)
    bad: tuple[tuple[RankReport | None, str], ...] = (
        (None, "rank 1 cannot be understood"),
        (RankReport(4, 9), "rank 1 is in round 4"),
        (RankReport(3, 8), "rank 1 differs from rank 0"),
        (RankReport(3, 9, RankStatus.FAILED), "rank 1 failed"),
    )
    for other, text in bad:
        with pytest.raises(MismatchError, match=text):
            check_reports({0: own, 1: other}, own, rank=0)
