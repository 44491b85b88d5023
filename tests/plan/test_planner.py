"""What a plan promises: its epsilon, its bytes, its order, its warnings and its code."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsketch.errors import ArgumentError
from diffsketch.plan import (
    Method,
    Option,
    Plan,
    PlanRequest,
    Relation,
    Trust,
    Unit,
    explain,
    plan,
    python_code,
    report,
    to_data,
)
from diffsketch.plan.advice import bytes_needed, workers_needed
from diffsketch.plan.candidates import mean_variance
from diffsketch.plan.error_model import collision_error
from diffsketch.plan.levels import NoiseLevels, least_multiplier
from diffsketch.plan.options import rounded_up
from diffsketch.plan.request import HEADER_BYTES
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.accountant import Budget
from diffsketch.privacy.accounting.calibration import calibrate
from diffsketch.privacy.accounting.composition import epsilon_for
from diffsketch.privacy.claim import Basis
from diffsketch.privacy.mechanisms.bounds import CoordinateBound
from diffsketch.privacy.mechanisms.laplace import LaplaceMechanism

BASE: dict[str, Any] = {
    "dim": 7850, "workers": 1000, "rounds": 100, "target_epsilon": 4.0, "message_bytes": 2000,
}  # fmt: skip
MANY = 20  # more alternatives than there are
TRUSTS = [Trust.LOCAL, Trust.DISTRIBUTED, Trust.CENTRAL]


def wanted(**changes: Any) -> PlanRequest:
    return PlanRequest(**{**BASE, **changes})


@functools.cache
def planned(request: PlanRequest) -> Plan:
    return plan(request, alternatives=MANY)


def all_options(found: Plan) -> tuple[Option, ...]:
    return (found.best, *found.alternatives)


def check_promises(found: Plan) -> None:
    request = found.request
    for option in all_options(found):
        total = option.total
        assert float(total) <= request.target_epsilon
        again = option.mechanism.claim.epsilon(delta=request.delta, rounds=request.rounds)
        assert total == again
        assert (total.basis, total.delta, total.rounds) == (
            Basis.PROVEN, request.delta, request.rounds,
        )  # fmt: skip
        assert (total.scope.unit, total.scope.relation) == (request.unit, request.relation)
        assert TRUSTS.index(total.scope.trust) <= TRUSTS.index(request.trust)
        assert HEADER_BYTES < option.message_bytes <= request.message_bytes
        assert option.message_bytes == HEADER_BYTES + math.ceil(option.cells * option.bits / 8)
        assert option.compression == 4 * request.dim / option.message_bytes
        assert 0 <= option.error.total < math.inf
        assert option.error.kept >= 0.9
    errors = [option.error.total for option in found.alternatives]
    assert errors == sorted(errors)
    assert found.best.error.total <= 1.01 * min([found.best.error.total, *errors])


REQUESTS: list[dict[str, Any]] = [
    {"trust": "central"},
    {"trust": "local"},
    {"trust": "distributed", "relation": "add-or-remove"},
    {"message_bytes": 50_000, "rounds": 1},
    {"unit": "example", "examples": 20, "trust": "central"},
    {"unit": "coordinate", "trust": "central"},
    {"unit": "coordinate", "message_bytes": 50_000, "trust": "central", "spread": 2.0},
    {"delta": 0.0, "trust": "central"},
    {"dim": 10**8, "message_bytes": 10**6, "workers": 10**6},
    {"dim": 1, "workers": 1, "rounds": 1, "message_bytes": 52},
    {"message_bytes": 52, "trust": "central"},
    {"vector_norm": 1e-3, "spread": 50.0, "trust": "central"},
]


@pytest.mark.parametrize("changes", REQUESTS, ids=str)
def test_promises(changes: dict[str, Any]) -> None:
    check_promises(planned(wanted(**changes)))


@settings(deadline=None, max_examples=10)
@given(
    dim=st.integers(1, 10**6),
    workers=st.integers(1, 10**5),
    rounds=st.integers(1, 1000),
    epsilon=st.floats(0.1, 50),
    message_bytes=st.integers(100, 10**5),
    unit=st.sampled_from(Unit),
    relation=st.sampled_from(Relation),
    trust=st.sampled_from(Trust),
    spread=st.floats(0, 10),
)
def test_promises_hold_for_any_request(
    dim: int, workers: int, rounds: int, epsilon: float, message_bytes: int, unit: Unit,
    relation: Relation, trust: Trust, spread: float,
) -> None:  # fmt: skip
    request = PlanRequest(
        dim=dim, workers=workers, rounds=rounds, target_epsilon=epsilon, delta=1e-6,
        message_bytes=message_bytes, unit=unit, relation=relation, trust=trust, spread=spread,
    )  # fmt: skip
    check_promises(planned(request))


@pytest.mark.parametrize("trust", TRUSTS)
def test_no_budget_is_wasted(trust: Trust) -> None:
    for option in all_options(planned(wanted(trust=trust))):
        assert float(option.total) >= 0.995 * 4.0, option.method


@pytest.mark.parametrize("rounds", [1, 30])
@pytest.mark.parametrize("delta", [1e-6, 0.0])
def test_levels_are_the_least_that_keep_the_target(rounds: int, delta: float) -> None:
    request = wanted(rounds=rounds, delta=delta)
    levels = NoiseLevels(request)
    makers: dict[str, Callable[[float], events.Event]] = {
        "gaussian": events.gaussian,
        "laplace": events.laplace,
        "pure": lambda m: events.approximate(1 / m),
    }
    for name, make in makers.items():
        level = getattr(levels, name)
        if delta == 0 and name == "gaussian":
            assert level is None
            continue
        spent = [
            epsilon_for(events.repeated(make(m), rounds), delta) for m in (level, 0.995 * level)
        ]
        assert spent[0] <= 4.0 < spent[1], name


@pytest.mark.parametrize("rounds", [1, 50])
def test_levels_agree_with_bisection(rounds: int) -> None:
    levels, budget = NoiseLevels(wanted(rounds=rounds)), Budget(4.0, 1e-5)
    for name, make in (("gaussian", events.gaussian), ("laplace", events.laplace)):
        slow = calibrate(make, budget, rounds=rounds, least=0.1, most=100.0)
        assert getattr(levels, name) == pytest.approx(slow, rel=2e-3)


def test_a_target_out_of_reach_has_no_level() -> None:
    # A delta of its own in every round, as large as the target's: no noise helps.
    request = wanted(delta=1e-6)
    assert least_multiplier(request, lambda m: events.approximate(1 / m, 1e-6)) is None


@pytest.mark.parametrize(
    "changes",
    [{"workers": 4000}, {"target_epsilon": 16.0}, {"message_bytes": 8000}, {"rounds": 10}],
)
@pytest.mark.parametrize("trust", TRUSTS)
def test_more_of_anything_does_not_hurt(changes: dict[str, Any], trust: Trust) -> None:
    before, after = planned(wanted(trust=trust)), planned(wanted(trust=trust, **changes))
    assert after.best.error.total <= 1.02 * before.best.error.total


def test_less_trust_costs_accuracy() -> None:
    errors = [planned(wanted(trust=trust)).best.error.total for trust in TRUSTS]
    assert errors[0] > 100 * errors[1]
    assert errors[1] >= errors[2]


def test_the_norm_does_not_matter_if_it_is_known() -> None:
    one, ten = planned(wanted()).best, planned(wanted(vector_norm=10.0)).best
    assert ten.error.total == pytest.approx(one.error.total, rel=0.01)
    assert ten.clip == pytest.approx(10 * one.clip, rel=0.01)


def test_much_noise_makes_messages_small() -> None:
    # Where noise is nearly all of the error, more cells than it takes would be a waste.
    found = planned(wanted(trust="local", message_bytes=100_000)).best
    assert found.error.noise > 0.95 * found.error.total
    assert found.message_bytes < 10_000
    assert found.message_bytes < planned(wanted(message_bytes=100_000)).best.message_bytes


def test_vectors_that_fit_are_sent_as_they_are() -> None:
    found = planned(wanted(message_bytes=32_000, trust="central", rounds=1))
    assert found.best.sketch is None
    assert found.best.error.recovery == 0
    assert not found.warnings
    assert not found.advice


def test_projunit_is_best_among_strangers() -> None:
    # At 154 numbers and one round, ProjUnit beats Gaussian noise among clients who trust nobody.
    request = wanted(trust="local", rounds=1, workers=1000, message_bytes=48 + 4 * 154)
    options = {option.method: option for option in all_options(planned(request))}
    assert planned(request).best.method is Method.PROJ_UNIT
    assert options[Method.PROJ_UNIT].error.total == pytest.approx(3.47, rel=0.03)
    assert options[Method.SKETCH_GAUSSIAN].error.total == pytest.approx(87.7, rel=0.05)


def test_one_row_is_best_for_laplace_noise() -> None:
    # What justifies that others are not tried: the variance of a coordinate's estimate.
    request = wanted(unit="coordinate", rounds=10)

    def variance(rows: int) -> float:
        bound = CoordinateBound(1.0, rows)

        def event(multiplier: float) -> Any:
            return LaplaceMechanism(bound, multiplier).claim.event

        multiplier = least_multiplier(request, event)
        assert multiplier is not None
        return 2 * LaplaceMechanism(bound, multiplier).scale ** 2 / rows

    assert variance(1) <= variance(3) <= variance(7)


def test_hopeless_requests_get_a_warning_and_advice() -> None:
    found = planned(wanted(workers=10, trust="local"))
    assert "Worse than sending nothing" in found.warnings[0]
    text = " ".join(found.advice)
    for hint in ("More workers", "larger epsilon", "Distributed trust", "Averages over rounds"):
        assert hint in text


def test_the_sketch_is_blamed_for_what_it_does() -> None:
    found = planned(wanted(workers=10**5, message_bytes=1000))
    assert found.best.error.recovery > 0.9 * found.best.error.total
    assert any("No number of workers" in text for text in found.advice)
    assert not any("More workers" in text for text in found.advice)


def test_the_coordinate_unit_is_called_weak() -> None:
    assert any("one coordinate" in text for text in planned(wanted(unit="coordinate")).warnings)


@pytest.mark.parametrize("trust", TRUSTS)
def test_workers_needed(trust: Trust) -> None:
    request = wanted(trust=trust, workers=50, message_bytes=40_000, spread=1.0)
    option = planned(request).best
    assert option.error.total > 1
    count = workers_needed(option, request)
    assert count is not None

    def error(workers: int) -> float:
        other = replace(request, workers=workers)
        std = option.noise_std
        assert std is not None
        variance = mean_variance(other, option.trust, std)
        rounding = option.error.rounding * request.mean_energy / other.mean_energy * 50 / workers
        rows = option.sketch.rows if option.sketch else 1
        noise = request.dim * variance / rows / other.mean_energy
        return noise + rounding  # the vector fits, so that nothing need be lost to a sketch

    assert error(50) == pytest.approx(option.error.noise + option.error.rounding)
    assert error(count) <= 1 < error(count - 1)
    # Planned anew with as many workers, it is at 1 or nearly so: the bits may differ.
    assert planned(replace(request, workers=count)).best.error.total == pytest.approx(1, rel=0.1)


def test_workers_needed_may_be_impossible() -> None:
    request = wanted()
    option = planned(request).best
    assert option.error.recovery > 1
    assert workers_needed(option, request) is None


def test_bytes_needed() -> None:
    request = wanted(trust="central")
    option = planned(request).best
    count = bytes_needed(option, request, error=1.0)
    cells = (count - HEADER_BYTES) * 8 // option.bits
    assert collision_error(7850, 1, cells) <= 1
    assert collision_error(7850, 1, cells - 3) > 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 0}, "dim must be in 1.."),
        ({"dim": 7850.0}, "dim must be an int"),
        ({"workers": True}, "workers must be an int"),
        ({"rounds": -1}, "rounds must be in 1.."),
        ({"target_epsilon": math.nan}, "target_epsilon must be > 0 and finite"),
        ({"target_epsilon": 0.0}, "target_epsilon must be > 0 and finite"),
        ({"target_epsilon": math.inf}, "target_epsilon must be > 0 and finite"),
        ({"delta": math.nan}, r"delta must be in \[0, 1\)"),
        ({"delta": 1.0}, r"delta must be in \[0, 1\)"),
        ({"message_bytes": 51}, "message_bytes must be >= 52"),
        ({"vector_norm": math.nan}, "vector_norm must be in 1e-30..1e30"),
        ({"spread": -1.0}, "spread must be >= 0 and finite"),
        ({"spread": math.nan}, "spread must be >= 0 and finite"),
        ({"unit": "person"}, "unit must be one of coordinate, example, client"),
        ({"trust": "nobody"}, "trust must be one of"),
        ({"relation": "equal"}, "relation must be one of"),
        ({"examples": 2}, "examples must be 1 unless the unit is example"),
    ],
)
def test_bad_requests_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        wanted(**changes)


@pytest.mark.parametrize(("delta", "words"), [(0.0, "without a delta"), (1e-15, "at delta 1e-15")])
def test_requests_that_no_method_meets(delta: float, words: str) -> None:
    with pytest.raises(ArgumentError, match=f"no method gives epsilon 1e-15 .* {words}"):
        plan(wanted(delta=delta, target_epsilon=1e-15, rounds=10**6))


@pytest.mark.parametrize(("value", "expected"), [(3.14159, 3.142), (1.0, 1.0), (0.02, 0.02)])
def test_rounded_up(value: float, expected: float) -> None:
    assert rounded_up(value) == expected


@given(st.floats(1e-9, 1e9))
def test_rounded_up_is_never_less_and_hardly_more(value: float) -> None:
    assert value <= rounded_up(value) <= value * 1.0011


def test_data_is_json_and_every_epsilon_has_its_words() -> None:
    data = json.loads(json.dumps(to_data(planned(wanted(trust="central"))), allow_nan=False))
    assert data["request"]["target_epsilon"] == 4.0
    for option in (data["best"], *data["alternatives"]):
        words = option["total_epsilon"]
        assert set(words) == {"value", "delta", "rounds", "basis", "unit", "relation", "trust"}
        assert words["basis"] == "proven"
        parts = option["error_parts"].values()
        assert sum(parts) == pytest.approx(option["relative_error"])


def test_central_messages_are_small_and_cut_off_to_their_bits() -> None:
    request = wanted(unit="example", examples=3, trust="central", message_bytes=8000)
    (option,) = (
        option
        for option in all_options(planned(request))
        if option.method is Method.RAW_DISCRETE_GAUSSIAN and option.trust is Trust.CENTRAL
    )
    assert option.bits < 10  # a secure sum would have to hold all workers
    names: dict[str, Any] = {}
    exec(python_code(option, request), names)  # noqa: S102
    vectors = torch.zeros(3, 7850)
    vectors[:, 0], vectors[:, 1] = 1.0, -1.0
    message = names["send"](vectors, 0, 0)
    half = 1 << (option.bits - 1)
    assert (int(message.max()), int(message.min())) == (half - 1, -half)
    other = vectors.clone()
    other[0] = 0
    change = (names["send"](other, 0, 0) - message).double().norm()
    assert change <= option.mechanism.quantizer.sensitivity(2, request.relation)


@pytest.mark.parametrize("changes", REQUESTS, ids=str)
def test_words_and_code(changes: dict[str, Any]) -> None:
    found = planned(wanted(**changes))
    assert report(found)
    for option in all_options(found):
        text = explain(option, found.request)
        for word in ("proven", found.request.unit, found.request.relation, f"{option.trust} trust"):
            assert word in text
        assert str(option.total) in text
        source = python_code(option, found.request)
        compile(source, "plan", "exec")
        assert all(len(line) <= 100 for line in source.splitlines())
