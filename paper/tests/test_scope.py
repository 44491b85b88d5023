"""Cost and reach: what is counted, and that facts are means over the seeds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from diffsketch.errors import ArgumentError
from paper.experiments import load
from paper.scope import draw_scope, histograms, measure_scope
from paper.tests.made_up import checked


def measured(**settings: Any) -> dict[str, Any]:
    return measure_scope(settings, seed=0, on_progress=lambda _: None)


def test_histograms_are_distributions() -> None:
    found = histograms(50, 40, seed=0)
    assert torch.allclose(found.sum(dim=1), torch.ones(50))
    assert bool((found.amax(dim=1) >= 0.5).all())


def test_a_wider_table_finds_more() -> None:
    sizes: dict[str, Any] = {"case": "histogram", "holders": 300, "codes": 2000, "rows": 5}
    wide, narrow = (measured(cols=cols, **sizes) for cols in (200, 3))
    assert wide["error"] < 0.1 * wide["share"] < narrow["error"]
    assert wide["found"] > narrow["found"]


def test_a_secure_sum_s_bytes_grow_with_its_members() -> None:
    pytest.importorskip("cryptography")
    few, more = (
        measured(case="secure-sum", dim=90, rows=3, cols=5, members=count) for count in (3, 6)
    )
    assert few["exact"]
    assert few["message_bytes"] == more["message_bytes"] < few["up"] < more["up"]
    assert (few["agreements"], few["masked_numbers"]) == (2, 45)


def test_parts_add_up() -> None:
    found = measured(case="parallel", dim=50_000, rows=3, cols=7, parts=4)
    assert found["same"]
    assert found["threads_alike"]


def test_settings_are_checked() -> None:
    with pytest.raises(ArgumentError, match="case must"):
        measured(case="other")
    with pytest.raises(ArgumentError, match="unknown key 'typo'"):
        measured(case="quantised", typo=1)


def test_drawing() -> None:
    """All measurements of the settings file, with made-up results: accuracies .5 and .7."""
    whole = replace(load("scope", reduced=False), seeds=2)
    results: dict[Any, Any] = {}
    for _, job in whole.named_jobs:
        results[job] = {
            "case": job.settings["case"], "accuracy": 0.5 + 0.2 * job.seed, "compression": 50.0,
            "message_bytes": 100, "share": 0.1, "error": 0.01, "found": 1.0, "parts": 8,
            "same": True, "threads_alike": True, "nanoseconds": 2.0, "available": True,
            "exact": True, "up": 150, "down": 250, "agreements": 9, "masked_numbers": 10,
        }  # fmt: skip
    drawn = checked(draw_scope(whole, results))
    assert drawn.facts["quantised/accuracy/7 x 22, 4 bits"] == pytest.approx(0.6)
    assert drawn.facts["secure-sum/overhead/7 x 22, 10 members"] == 4
    assert len(drawn.exhibits) == 4
    without = {
        job: {"case": "secure-sum", "available": False} if "members" in job.settings else one
        for job, one in results.items()
    }
    assert draw_scope(whole, without).facts["secure-sum/overhead/7 x 22, 10 members"] is None
