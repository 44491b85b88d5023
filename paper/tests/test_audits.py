"""Audits: the messages are those that the methods send, and attacks find what is wrong."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from diffsketch.auditing import Case, Verdict, audit
from diffsketch.errors import ArgumentError
from diffsketch.methods import Method
from diffsketch.methods.paper import DiffSketch, SketchLaplace
from diffsketch.privacy.claim import NoClaim, PaperClaim, ProvenClaim
from diffsketch.privacy.theorems import estimate_alpha, estimates
from paper.audits import TITLES, AuditSettings, case_of, measure_audit, neighbours_of, of_message
from paper.experiments import load

DIM = 400


def vectors() -> Tensor:
    """Gaussian, but for one coordinate of the first that stands out."""
    drawn = torch.randn(2, DIM, generator=torch.Generator().manual_seed(7))
    drawn[0, 5] = 12.0
    return drawn


def test_neighbours_differ_as_they_are_called() -> None:
    both = vectors()
    alpha = float(estimate_alpha(both[0]))
    within = neighbours_of(both, "alpha")
    (place,) = (~within.others).nonzero().flatten().tolist()
    assert float(within.first[place]) == pytest.approx(alpha)
    assert float(within.second[place]) == pytest.approx(-alpha)
    for one, two in zip(estimates(within.first), estimates(within.second), strict=True):
        assert float(one) == pytest.approx(float(two), rel=1e-2)
    largest = neighbours_of(both, "largest")
    assert (~largest.others).nonzero().flatten().tolist() == [5]
    assert float(largest.second[5]) == -12
    assert torch.equal(neighbours_of(both, "client").second, both[1])


def message(method: Method, change: Any) -> Case:
    return of_message(neighbours_of(vectors(), change), method, change=change, name="n", title="t")


def padded(cols: int, padding: int, change: str) -> Case:
    sketch = DiffSketch(DIM, 2, cols, per_round=1e9, padding=padding)
    return message(sketch, change)


@pytest.mark.slow
def test_a_coordinate_beyond_alpha_breaks_the_paper_s_claims() -> None:
    """12 is some 7 alphas: the true epsilon of the Laplace noise is 7 where 1 is claimed.

    A bound is wrong with probability 1e-3; the seed is fixed. The control stays within alpha, where
    nothing is found.
    """
    method = SketchLaplace(DIM, 3, 8, per_round=1.0)
    for change, verdict in (("largest", Verdict.CONTRADICTED), ("alpha", Verdict.CONSISTENT)):
        case = message(method, change)
        result = audit(case, trials=20_000, confidence=0.999, seed=1)
        assert isinstance(case.claim, PaperClaim)
        assert result.verdict is verdict
        assert float(result.measured.lower_bound) > 0.2  # the attack sees something in both


@pytest.mark.slow
def test_proven_methods_stand_and_less_noise_is_found() -> None:
    """A false alarm has probability 1e-3; the seed is fixed. The control has half of the noise."""
    good = SketchLaplace(DIM, 2, 6, per_round=1.0, clip=0.1)
    case = message(good, "largest")
    assert isinstance(case.claim, ProvenClaim)
    result = audit(case, trials=6_000, confidence=0.999, seed=1)
    assert result.verdict is Verdict.CONSISTENT
    assert float(result.measured.lower_bound) > 0.1
    bad = message(replace(good, per_round=2.0), "largest")
    found = audit(replace(bad, claim=case.claim), trials=6_000, confidence=0.999, seed=1)
    assert found.verdict is Verdict.CONTRADICTED


def test_bare_tables_tell_everything_and_padding_hides_as_the_formula_says() -> None:
    bare = padded(2, 0, "alpha")
    assert isinstance(bare.claim, PaperClaim)
    result = audit(bare, trials=2000, confidence=0.999)
    assert (result.outcome.true_positives, result.outcome.false_positives) == (1000, 0)
    assert result.limit == math.inf
    result = audit(padded(2, 4000, "largest"), trials=20_000, confidence=0.999, seed=2)
    assert result.limit is not None
    assert 0.1 < float(result.measured.lower_bound) < result.limit
    assert isinstance(padded(2, 4000, "client").claim, NoClaim)
    with pytest.raises(ArgumentError, match="claims something"):
        padded(100, 0, "alpha")


def test_every_case_of_the_settings_file_can_be_made() -> None:
    """Vectors that Theorem 1 accepts in the tables of the file: one stands out."""
    vectors = torch.randn(2, 7850, generator=torch.Generator().manual_seed(0))
    vectors[0, :20] = 60.0
    cases = {
        each.name: case_of(AuditSettings.read(each.settings), vectors)
        for each in load("audit", reduced=False).measurements
        if each.settings["case"] in TITLES
    }
    assert len(cases) == 14
    assert len({case.name for case in cases.values()}) >= 13  # one differs in its epsilon


def test_settings_are_checked() -> None:
    bare = {"case": "padded", "rows": 7, "cols": 2, "padding": 0, "change": "alpha", "round": 2,
            "trials": 1000, "confidence": 0.99}  # fmt: skip

    def refused(match: str, settings: dict[str, Any]) -> None:
        with pytest.raises(ArgumentError, match=match):
            measure_audit(settings, seed=0, on_progress=lambda _: None)

    refused("case must", {**bare, "case": "other"})
    refused("change must", {**bare, "change": "other"})
    refused("unknown key 'typo'", {**bare, "typo": 1})
    refused("unknown key 'per_round'", {**bare, "per_round": 1.0})
    refused("change must be given", {key: bare[key] for key in bare if key != "change"})
    refused("unknown key 'rows'", {**bare, "case": "bare-unknown"})
    laplace = {key: value for key, value in bare.items() if key not in ("rows", "padding")}
    refused("sketch-laplace has no setting typo", {**laplace, "case": "sketch-laplace",
                                                   "rows": 7, "typo": 1})  # fmt: skip
