"""The methods here keep the promises of every method: the library's contract, run again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from diffsketch.errors import ArgumentError
from diffsketch.methods import METHODS, Method, build_method
from diffsketch.methods.gate import release_noise
from paper.projections import SketchedGaussianMean
from paper.projunit import ProjUnitMean
from paper.readings import DiffSketchReading
from paper.repaired import ProvenDiffSketch
from paper.rotated import RotatedCpSgd
from tests.methods import test_contract as contract
from tests.methods import test_gate as release
from tests.methods import test_honest as honest
from tests.methods.cases import DIM, SEED, WORKERS, Case

SETTINGS: dict[str, dict[str, object]] = {
    "diffsketch-proven": {"rows": 3, "cols": 20, "clip": 1.0, "padding": 100, "std": 1.0},
    "cpsgd-rotated": {"claimed": 5.0},
    "projunit": {"size": 10, "per_round": 1.0, "clip": 1.0},
    "sgm": {"size": 10, "clip": 1.0, "std": 0.5},
}
PROVEN = SETTINGS | {
    "cpsgd-rotated": {"clip": 2.0, "levels": 64, "trials": 10_000, "delta": 1e-3},
    "diffsketch-proven": {"rows": 1, "cols": 4, "clip": 1.0, "padding": 400, "std": 1.0},
    "sgm": {**SETTINGS["sgm"], "projected_clip": 1.0},
}
SGM = SketchedGaussianMean(dim=DIM, size=40, clip=2.0, std=0.5)
SUM = "client unit, add-or-remove, distributed trust"
CASES = {
    "diffsketch-proven": Case(
        ProvenDiffSketch(DIM, 2, 20, clip=1.0, padding=200, std=0.1),
        "proven: coordinate unit, replace, local trust",
        0.1**2 * 200 / 20,
    ),
    "cpsgd-rotated": Case(
        RotatedCpSgd(
            dim=DIM, cohort=WORKERS, clip=2.0, levels=64, trials=3200, delta=1e-3, limit=2.0
        ),
        "proven: client unit, replace, distributed trust",
        None,
    ),
    "diffsketch-reading": Case(
        DiffSketchReading(
            DIM,
            2,
            4,
            per_round=20.0,
            padding=600,
            appended="least",
            percentile="signed",
            shortfall="graded",
        ),
        "claimed: coordinate unit, replace, local trust",
        None,
    ),
    "projunit": Case(
        ProjUnitMean(dim=DIM, size=10, per_round=8.0, clip=2.0),
        "proven: client unit, replace, local trust",
        None,
    ),
    "sgm": Case(SGM, f"claimed: {SUM}", 0.5**2),
    # Clipped so far out that no mean is biased.
    "sgm-repaired": Case(replace(SGM, projected_clip=20.0), f"proven: {SUM}", 0.5**2),
}
OF_METHODS = (
    contract.test_a_batch_is_its_vectors_one_by_one,
    contract.test_same_noise_same_bits_in_any_order_and_no_global_generator,
    contract.test_means_can_be_written_into_memory_that_is_there,
    contract.test_messages_fit_their_format_and_survive_the_wire,
    contract.test_what_overflows_in_float32_is_refused_or_clipped,
)
OF_NAMES = (
    contract.test_methods_are_built_by_name,
    contract.test_a_vector_with_nan_or_infinity_counts_as_zeros,
)


@pytest.fixture(autouse=True)
def _ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The contract is about these cases."""
    for name, cases in (("CASES", CASES), ("SETTINGS", SETTINGS), ("PROVEN", PROVEN)):
        monkeypatch.setattr(contract, name, cases)


@pytest.mark.parametrize("name", sorted(set(SETTINGS) - {"cpsgd-rotated"}))
def test_engines_refuse_to_send_them(name: str) -> None:
    method = build_method(name, dim=DIM, cohort=3, settings=PROVEN[name])
    with pytest.raises(ArgumentError, match=f"method='{name}' must not be sent: its proof is"):
        release_noise(method, method.claim_for(3, SEED))


@pytest.mark.parametrize(
    ("name", "settings", "match"),
    [
        ("projunit", {"size": 101}, r"size must be in 1\.\.100"),
        ("projunit", {"per_round": 1e9}, "per_round must be at most"),
        ("diffsketch-proven", {"std": 0.0}, "std must be a number > 0"),
        ("diffsketch-proven", {"padding": 0}, "padding must be >= 1"),
        ("diffsketch-proven", {"relation": "x"}, "relation must be one of"),
    ],
)
def test_bad_settings_are_refused(name: str, settings: dict[str, object], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        build_method(name, dim=100, cohort=7, settings=SETTINGS[name] | settings)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_claims(case: Case) -> None:
    contract.test_claims(case)


@pytest.mark.parametrize(
    ("name", "settings", "limits"),
    [
        ("diffsketch-proven", {"cols": 9, "padding": 50, "clip": 0.5}, "clip=0.5"),
        ("projunit", {}, "clip=1"),
        ("sgm", {"clip": 9.0, "std": 1.0, "projected_clip": 1.0}, "clip=9, projected_clip=1"),
    ],
)
def test_vectors_that_are_far_too_long_are_told_of(
    name: str, settings: dict[str, object], limits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "CLIPPED", {name: ({**SETTINGS[name], **settings}, limits)})
    release.test_vectors_that_are_far_too_long_are_told_of(name)


def test_codes_never_change() -> None:
    assert {name: METHODS[name].code for name in SETTINGS} == {
        "diffsketch-proven": 3, "projunit": 9, "sgm": 12, "cpsgd-rotated": 13,
    }  # fmt: skip


@pytest.mark.parametrize("check", OF_METHODS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_promises_of_every_method(check: Callable[[Method], None], case: Case) -> None:
    check(case.method)


@pytest.mark.parametrize("check", OF_NAMES, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", SETTINGS)
def test_promises_by_name(check: Callable[[str], None], name: str) -> None:
    check(name)


@pytest.mark.parametrize(
    "name",
    [one if one != "projunit" else pytest.param(one, marks=pytest.mark.slow) for one in CASES],
)
def test_means_are_right_on_average(name: str) -> None:
    contract.test_means_are_right_on_average(name)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.variance])
def test_noise_in_floats_has_the_size_that_is_stated(name: str) -> None:
    contract.test_noise_in_floats_has_the_size_that_is_stated(name)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e6])
def test_what_honest_workers_send_passes(case: Case, scale: float) -> None:
    honest.test_what_honest_workers_send_passes(case.method, scale)
