"""Promises of a plan: its epsilon, bytes, order, warnings, command and code."""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsketch.app.build import most_participations, settings_of_methods
from diffsketch.app.plans import (
    explain,
    flower_plan,
    python_code,
    report_plan,
    run_command,
)
from diffsketch.app.settings import RunConfig, describe, parse_setting
from diffsketch.errors import ArgumentError
from diffsketch.methods import build_method
from diffsketch.planning import (
    SAMPLINGS,
    Option,
    Plan,
    PlanRequest,
    PlanWarning,
    Relation,
    Trust,
    Unit,
    plan,
)
from diffsketch.planning.search import _Search, search
from diffsketch.privacy.accounting.account import Account
from diffsketch.privacy.accounting.budget import Budget, BudgetExceeded
from diffsketch.privacy.claim import Basis, ProvenClaim
from diffsketch.sketch import SketchKey
from diffsketch.training.sampling import PoissonDevices, ShuffledSampler
from diffsketch.wire.sums import round_bytes
from tests.app.commands import done, read
from tests.helpers.library import LIBRARY

pytestmark = pytest.mark.filterwarnings("ignore::diffsketch.planning.PlanWarning")
BASE: dict[str, Any] = {
    "dim": 7850, "cohort": 1000, "rounds": 100, "target_epsilon": 4.0, "message_bytes": 2000,
}  # fmt: skip
DEVICES: dict[str, Any] = {"population": 6000, "rounds": 60, "target_epsilon": 8.0}
POISSON: dict[str, Any] = {
    **DEVICES, "sampling": "poisson", "trust": "central", "relation": "add-or-remove",
}  # fmt: skip
TRUSTS = [Trust.LOCAL, Trust.DISTRIBUTED, Trust.CENTRAL]
SEED = SketchKey.from_integer(5).seed(3)


def wanted(**changes: Any) -> PlanRequest:
    return PlanRequest(**{**BASE, **changes})


@functools.cache
def planned(request: PlanRequest) -> Plan:
    return plan(request, alternatives=20)


def all_options(found: Plan) -> tuple[Option, ...]:
    return (found.best, *found.alternatives)


def check_promises(found: Plan) -> None:
    """Everything said of an option, from the method that the registry builds of its settings."""
    request = found.request
    for option in all_options(found):
        method = build_method(
            option.method.name, dim=request.dim, cohort=request.cohort, settings=option.settings
        )
        assert method == option.method
        assert method.exact or not any(each.method.exact for each in all_options(found))
        assert method.wire_bytes <= request.message_bytes
        claim = method.claim_for(request.cohort, SEED)
        assert isinstance(claim, ProvenClaim)
        if request.sampling == "poisson":
            lottery = PoissonDevices.of(request.members, request.cohort, seed=0).lottery
            claim = lottery.amplified(claim)
        total = claim.epsilon(delta=request.delta, rounds=request.paying_rounds)
        assert total == option.total
        assert float(total) <= request.target_epsilon
        assert total.basis is Basis.PROVEN
        assert total.scope.unit is request.unit
        assert total.scope.relation in (request.relation, Relation.REPLACE)  # which implies both
        assert TRUSTS.index(total.scope.trust) <= TRUSTS.index(Trust(request.trust))
        assert 0 <= option.error.total < math.inf
        assert option.error.kept >= 0.9
    errors = [option.error.total for option in found.alternatives]
    assert errors == sorted(errors)
    assert found.best.error.total <= 1.01 * min([found.best.error.total, *errors])


REQUESTS: list[dict[str, Any]] = [
    {"trust": "central"},
    {"trust": "local"},
    {"unit": "coordinate", "trust": "central"},
    {"unit": "coordinate", "message_bytes": 50_000, "spread": 2.0, "relation": "add-or-remove"},
    {"delta": 0.0, "unit": "coordinate"},
    {"dim": 1, "cohort": 1, "rounds": 1, "message_bytes": 64},
]
MORE_REQUESTS: list[dict[str, Any]] = [
    {"trust": "distributed", "relation": "add-or-remove"},
    {"message_bytes": 50_000, "rounds": 1, "trust": "central"},
    {**DEVICES, "message_bytes": 500},
    {**DEVICES, "sampling": "uniform"},
    POISSON,
    {"dim": 10**8, "message_bytes": 10**6, "cohort": 10**6},
    {"message_bytes": 64, "trust": "central"},
    {"vector_norm": 1e-3, "spread": 50.0, "trust": "central"},
]
every_request = pytest.mark.parametrize(
    "changes",
    [*REQUESTS, *[pytest.param(each, marks=pytest.mark.slow) for each in MORE_REQUESTS]],
    ids=str,
)


@pytest.mark.slow
@every_request
def test_promises(changes: dict[str, Any]) -> None:
    check_promises(planned(wanted(**changes)))


@pytest.mark.slow
@settings(deadline=None, max_examples=10)
@given(
    dim=st.integers(1, 10**6),
    cohort=st.integers(1, 10**5),
    passes=st.integers(1, 10),
    rounds=st.integers(1, 1000),
    epsilon=st.floats(0.1, 50),
    message_bytes=st.integers(100, 10**5),
    unit=st.sampled_from([Unit.CLIENT, Unit.COORDINATE]),
    relation=st.sampled_from(Relation),
    trust=st.sampled_from(Trust),
    spread=st.floats(0, 10),
)
def test_promises_hold_for_any_request(
    dim: int, cohort: int, passes: int, rounds: int, epsilon: float, message_bytes: int,
    unit: Unit, relation: Relation, trust: Trust, spread: float,
) -> None:  # fmt: skip
    request = PlanRequest(
        dim=dim, cohort=cohort, population=passes * cohort, rounds=rounds, target_epsilon=epsilon,
        delta=1e-6, message_bytes=message_bytes, unit=unit, relation=relation, trust=trust,
        spread=spread,
    )  # fmt: skip
    check_promises(planned(request))


@pytest.mark.slow
def test_a_claim_that_is_too_weak_is_noticed() -> None:
    # The negative control: a method with 5% less noise than the plan's breaks the promise.
    found = planned(wanted())
    name = "noise_multiplier"
    weak = {**found.best.settings, name: 0.95 * found.best.settings[name]}
    method = build_method(found.best.method.name, dim=7850, cohort=1000, settings=weak)
    option = replace(found.best, method=method, settings=weak)
    with pytest.raises(AssertionError):
        check_promises(replace(found, best=option))


@pytest.mark.slow
@pytest.mark.parametrize("trust", TRUSTS)
def test_no_budget_is_wasted(trust: Trust) -> None:
    for option in all_options(planned(wanted(trust=trust))):
        assert float(option.total) >= 0.995 * 4.0, option.method


@pytest.mark.slow
def test_all_private_methods_are_considered() -> None:
    whole = {"message_bytes": 50_000, "rounds": 1}
    seen = {
        option.method.name
        for unit in (Unit.CLIENT, Unit.COORDINATE)
        for option in search(wanted(**whole, unit=unit))
    }
    # Bare ones prove nothing, nor does the paper's.
    assert set(LIBRARY) - seen == {"none", "sketch", "diffsketch"}


@pytest.mark.parametrize(
    ("population", "cohort", "rounds"), [(6000, 1000, 60), (25, 10, 7), (10, 10, 3), (100, 1, 5)]
)
def test_shuffled_rounds_are_counted_as_runs_do(population: int, cohort: int, rounds: int) -> None:
    request = wanted(population=population, cohort=cohort, rounds=rounds)
    sampler = ShuffledSampler(population, cohort, seed=0)
    assert request.paying_rounds == most_participations(sampler, rounds)


@pytest.mark.slow
def test_a_secret_sample_needs_less_noise() -> None:
    alike = {"trust": "central", "relation": "add-or-remove"}
    poisson, uniform, shuffled = (
        planned(wanted(**DEVICES, **alike, sampling=name)).best
        for name in ("poisson", "uniform", "shuffled")
    )
    assert poisson.error.noise < shuffled.error.noise < uniform.error.noise


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "trust"),
    [
        ({"cohort": 4000}, Trust.CENTRAL),
        ({"cohort": 4000}, Trust.DISTRIBUTED),
        ({"target_epsilon": 16.0}, Trust.LOCAL),
        ({"message_bytes": 8000}, Trust.DISTRIBUTED),
        ({"rounds": 10}, Trust.CENTRAL),
    ],
)
def test_more_of_anything_does_not_hurt(changes: dict[str, Any], trust: Trust) -> None:
    before, after = planned(wanted(trust=trust)), planned(wanted(trust=trust, **changes))
    if "cohort" not in changes or trust is not Trust.DISTRIBUTED:
        assert after.best.error.total <= 1.02 * before.best.error.total
    else:  # a larger sum takes more bits, and so leaves fewer cells
        assert after.best.error.noise <= before.best.error.noise / 10


@pytest.mark.slow
def test_how_plans_depend_on_trust_norm_and_bytes() -> None:
    errors = [planned(wanted(trust=trust)).best.error.total for trust in TRUSTS]
    assert errors[0] > 100 * errors[1] >= 100 * errors[2]
    one, ten = planned(wanted()).best, planned(wanted(vector_norm=10.0)).best  # which is public
    assert ten.error.total == pytest.approx(one.error.total, rel=0.01)
    assert ten.settings["clip"] == pytest.approx(10 * one.settings["clip"], rel=0.01)
    # Where noise is nearly all of the error, more cells than it takes would be a waste.
    noisy = planned(wanted(trust="local", message_bytes=100_000)).best
    assert noisy.error.noise > 0.95 * noisy.error.total
    assert noisy.method.wire_bytes < 1000
    # Vectors that fit are sent as they are.
    dense = planned(wanted(message_bytes=32_000, trust="central", rounds=1))
    assert (dense.best.method.name, dense.best.error.recovery) == ("gaussian", 0)
    assert dense.warnings == dense.advice == ()


@pytest.mark.slow
def test_no_client_is_protected_without_a_delta() -> None:
    with pytest.raises(ArgumentError, match="without a delta for the client unit and local trust"):
        planned(wanted(trust="local", delta=0.0))


@pytest.mark.slow
def test_warnings_and_advice_name_the_cause() -> None:
    noisy = planned(wanted(cohort=100, trust="local", target_epsilon=30.0))
    assert "worse than sending nothing" in noisy.warnings[0]
    text = " ".join(noisy.advice)
    for hint in ("More clients", "larger epsilon", "Distributed trust", "Averages over rounds"):
        assert hint in text
    small = planned(wanted(cohort=10**5, message_bytes=1000))
    assert small.best.error.recovery > 0.9 * small.best.error.total
    assert any("no number of clients" in text for text in small.advice)
    assert not any("More clients" in text for text in small.advice)
    assert any("one coordinate" in text for text in planned(wanted(unit="coordinate")).warnings)


def number_in(found: Plan, pattern: str) -> int:
    """The number that an advice names."""
    matches = [match for text in found.advice if (match := re.search(pattern, text))]
    return int(matches[0][1].replace(",", ""))


@pytest.mark.slow
@pytest.mark.parametrize("trust", [Trust.LOCAL, Trust.DISTRIBUTED])
def test_as_many_clients_as_advised_help(trust: Trust) -> None:
    request = wanted(trust=trust, cohort=50, message_bytes=40_000)
    found = planned(request)
    assert found.best.error.total > 1
    count = number_in(found, r"More clients a round against the noise, down to 0.5: ([\d,]+)")
    assert planned(replace(request, cohort=count)).best.error.total == pytest.approx(0.5, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"trust": "central"}, {"unit": "coordinate"}], ids=str)
def test_as_many_bytes_as_advised_hold_the_vector(changes: dict[str, Any]) -> None:
    request = wanted(rounds=1, **changes)
    assert planned(request).best.error.recovery > 1
    count = number_in(planned(request), r"with some ([\d,]+) bytes")
    larger = planned(replace(request, message_bytes=count)).best
    assert larger.method.name in ("gaussian", "skellam", "laplace")


FEW: dict[str, Any] = {"dim": 50, "cohort": 2, "rounds": 1, "message_bytes": 400}


def test_the_python_interface_warns() -> None:
    with pytest.warns(PlanWarning, match="One round alone is worse than sending nothing"):
        assert plan(wanted(**FEW, trust="local")).warnings


def test_noise_that_misses_the_target_is_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the search for the least noise gives, the last word is the method's own claim."""
    real = _Search._calibrated
    monkeypatch.setattr(_Search, "_calibrated", lambda *given: 0.9 * (real(*given) or math.nan))
    with pytest.raises(ArgumentError, match="no method gives epsilon 4 over 1 rounds at delta"):
        plan(wanted(**FEW, trust="central"))


def test_ties_go_to_the_weakest_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {option.trust: option for option in search(wanted(**FEW, trust="central"))}
    best = min(options.values(), key=lambda option: option.error.total)
    alike = [replace(option, error=best.error) for option in options.values()]
    assert set(options) == set(TRUSTS)
    for order in (alike, alike[::-1]):
        monkeypatch.setattr("diffsketch.planning.planner.search", lambda _, order=order: order)
        assert plan(wanted(**FEW, trust="central")).best.trust is Trust.LOCAL


SILOS: dict[str, Any] = {"unit": "example", "relation": "add-or-remove", "records": 60.0}
HOSPITALS = SILOS | {
    "dim": 7850, "cohort": 10, "rounds": 150, "message_bytes": 40_000, "rate": 0.1, "spread": 10.0,
}  # fmt: skip


@pytest.mark.slow  # sampled releases are composed by Fourier transforms
def test_records_of_silos() -> None:
    """Epsilon from the method's own claim; larger tables where there is less noise."""
    sizes = {}
    for epsilon in (0.5, 4.0):
        answer = plan(PlanRequest(target_epsilon=epsilon, **HOSPITALS))
        best = answer.best
        method: Any = best.method
        assert best.trust is Trust.DISTRIBUTED
        assert (method.unit, method.rate, method.records) == ("example", 0.1, 60.0)
        total = method.mechanism.claim.epsilon(delta=1e-5, rounds=150)
        assert total == best.total
        assert 0.99 * epsilon < float(total) <= epsilon
        options = {(o.method.name, o.trust): o for o in (best, *answer.alternatives)}
        sketch = options["sketch-gaussian", Trust.LOCAL]
        sizes[epsilon] = sketch.settings["cols"]
        # Noise in each of ten silos: ten times the variance of shared noise.
        ratio = sketch.error.noise / options["gaussian", Trust.DISTRIBUTED].error.noise
        assert ratio == pytest.approx(10, rel=0.03)
    assert sizes[4.0] > 1.4 * sizes[0.5]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 0}, "dim must be >= 1"),
        ({"dim": 7850.0}, "dim must be an int"),
        ({"cohort": True}, "cohort must be an int"),
        ({"population": 999}, "population must be >= 1000"),
        ({"rounds": 10**10}, "rounds must be <= 1000000000"),
        ({"target_epsilon": math.nan}, "target_epsilon must be a number > 0 and finite"),
        ({"target_epsilon": math.inf}, "target_epsilon must be a number > 0 and finite"),
        ({"delta": math.nan}, r"delta must be in \[0, 1\)"),
        ({"message_bytes": 5}, "message_bytes must be >= 6"),
        ({"vector_norm": math.nan}, "vector_norm must be a number > 0 and finite"),
        ({"vector_norm": 1e31}, r"vector_norm must be in \[1e-30, 1e\+30\]"),
        ({"target_epsilon": "1"}, "target_epsilon must be a number > 0 and finite"),
        ({"spread": -1.0}, "spread must be >= 0 and finite"),
        ({"unit": "house"}, "unit must be one of coordinate, example, person, client"),
        ({"unit": "example"}, "records must be given for the units example and person"),
        ({"records": 60.0}, "records must be given for the units example and person, and only"),
        ({"rate": 0.5}, "rate must be in"),
        ({"rate": "x"}, "rate must be a number, got rate='x'"),
        ({"spread": None}, "spread must be a number, got spread=None"),
        ({**SILOS, "records": "60"}, "records must be a number, got records='60'"),
        ({"unit": "person", "records": 60.0}, "relation must be add-or-remove for unit=person"),
        ({**SILOS, "records": 0.0}, "records must be 1..10"),
        ({**SILOS, "rate": 1.5}, "rate must be in"),
        ({**SILOS, "population": 2000}, "population must be the cohort"),
        ({"sampling": "random"}, "sampling must be one of shuffled, uniform, weighted, poisson"),
        ({"sampling": "poisson"}, "sampling must not be poisson but for client unit"),
    ],
)
def test_bad_requests_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        wanted(**changes)


def test_a_number_of_alternatives_is_whole() -> None:
    with pytest.raises(ArgumentError, match="alternatives must be an int, got alternatives='5'"):
        plan(wanted(), alternatives="5")  # type: ignore[arg-type]


@pytest.mark.parametrize(("delta", "words"), [(0.0, "without a delta"), (1e-15, "at delta 1e-15")])
def test_requests_that_no_method_meets(delta: float, words: str) -> None:
    with pytest.raises(ArgumentError, match=f"no method gives epsilon 1e-15 .* {words}"):
        plan(wanted(delta=delta, target_epsilon=1e-15, rounds=10**6))


@every_request
def test_words_and_commands(changes: dict[str, Any]) -> None:
    """A run has exactly the flags of every command, and its method all the settings."""
    found = planned(wanted(**changes))
    assert report_plan(found)
    known = describe(RunConfig)
    assert set(SAMPLINGS) == set(known["sampling"].choices)
    for option in all_options(found):
        text = explain(option, found.request)
        for word in ("proven", found.request.unit, f"{option.trust} trust", str(option.total)):
            assert word in text
        command = run_command(option, found.request)
        assert (command is None) == (
            found.request.dim != 7850 or found.request.delta == 0 or found.request.members > 6000
        )
        if command is None:
            continue
        words = shlex.split(command)
        assert words[:2] == ["diffsketch", "run"]
        names = [word[2:].replace("-", "_") for word in words[2::2]]
        values: dict[str, Any] = {
            name: parse_setting(name, value) for name, value in zip(names, words[3::2], strict=True)
        }
        config = RunConfig(**values)
        own = {name: getattr(config, name) for name in settings_of_methods()[config.method]}
        given_ = {name: value for name, value in own.items() if value is not None}
        assert given_ == {name: v for name, v in option.settings.items() if name != "delta"}
        assert (config.cohort, config.rounds) == (1000, found.request.rounds)


@pytest.mark.parametrize(
    "changes",
    [
        {"trust": "distributed", "message_bytes": 40_000},
        {"trust": "central", "population": 20, "rounds": 3},
        {**POISSON, "population": 20, "rounds": 2},
        {"unit": "coordinate"},
    ],
    ids=str,
)
@pytest.mark.slow
def test_commands_run_within_the_budget(changes: dict[str, Any], tmp_path: Path) -> None:
    request = wanted(**{"cohort": 8, "rounds": 2, "target_epsilon": 20.0, **changes})
    option = planned(request).best
    command = run_command(option, request)
    assert command is not None
    done(*shlex.split(command)[1:], "--output", tmp_path / "run")
    summary = read(tmp_path / "run" / "summary.json")
    text = json.dumps(summary)
    assert summary["rounds"] == request.rounds, text
    assert summary["epsilon"]["value"] == pytest.approx(float(option.total)), text


def test_flower_takes_the_plan() -> None:
    flower = pytest.importorskip("diffsketch.flower", reason="needs Flower")
    request = wanted(trust="central", message_bytes=50_000, rounds=1)
    for option in all_options(planned(request)):
        text = flower_plan(option, request)
        assert text is not None
        found = eval(text, {"FlowerPlan": flower.FlowerPlan})  # noqa: S307
        assert found.build(request.dim) == option.method


def test_a_request_of_another_type_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"request must be of type PlanRequest, got request=\{"):
        plan({"dim": 40})  # type: ignore[arg-type]


CODES: list[dict[str, Any]] = [
    {"trust": "distributed", "population": 60, "rounds": 6},
    {**POISSON, "population": 40, "rounds": 2},
    {"unit": "coordinate"},
    {"unit": "coordinate", "delta": 0.0},
]


def rounds_until_refused(run_round: Callable[..., object], vectors: object) -> int:
    for index in itertools.count():
        try:
            run_round(vectors, 100 + index)
        except BudgetExceeded:
            return index
    raise AssertionError


@pytest.mark.slow
@pytest.mark.parametrize("changes", CODES, ids=str)
def test_code_runs_until_the_budget_is_spent(changes: dict[str, Any]) -> None:
    few = {"dim": 50, "cohort": 20, "rounds": 2, "target_epsilon": 100.0, "message_bytes": 400}
    request = wanted(**{**few, **changes, "target_epsilon": 100.0})
    for option in all_options(planned(request)):
        source = python_code(option, request)
        assert "from_integer" not in source  # a secret key, of which two programs have another
        assert all(len(line) <= 100 for line in source.splitlines())
        names: dict[str, Any] = {}
        exec(source, names)  # noqa: S102
        vectors = torch.ones(request.members, request.dim) / request.dim**0.5
        everyone = dict(enumerate(vectors))
        for index in range(request.rounds):
            cohort = everyone
            if request.sampling != "poisson":
                first = index * request.cohort
                members = [(first + place) % request.members for place in range(request.cohort)]
                cohort = {client: everyone[client] for client in members}
            found = names["run_round"](cohort, index)
        assert found.shape == (request.dim,)
        error = float((found - vectors[0]).square().sum())
        assert error < 12 * option.error.total + 0.1
        for account in names["accounts"].values():
            assert float(account.epsilon(request.delta)) <= 100.0
        first_cohort = dict(list(everyone.items())[: request.cohort])
        more = everyone if request.sampling == "poisson" else first_cohort
        assert rounds_until_refused(names["run_round"], more) <= request.rounds


@pytest.mark.parametrize("came", [20, 2])
def test_code_counts_each_client_for_the_messages_that_came(came: int) -> None:
    """Whoever takes part pays in every round, for as little noise as the others leave."""
    request = wanted(
        dim=50, cohort=20, population=200, rounds=600, target_epsilon=100.0, message_bytes=400,
        trust="distributed",
    )  # fmt: skip
    option = next(each for each in all_options(planned(request)) if "gaussian" in each.method.name)
    names: dict[str, Any] = {}
    exec(python_code(option, request), names)  # noqa: S102
    vectors = {f"client {place}": torch.ones(50) / 50**0.5 for place in range(came)}
    claim = option.method.claim_for(came, SketchKey.from_integer(0).seed(0))
    assert isinstance(claim, ProvenClaim)
    rounds = rounds_until_refused(names["run_round"], vectors)
    assert rounds > 0
    exact = claim.epsilon(delta=request.delta, rounds=rounds)
    for client in vectors:
        account = names["accounts"][client]
        assert account.rounds == rounds
        assert float(account.epsilon(request.delta)) == pytest.approx(float(exact), rel=1e-9)
    planned_claim = option.method.claim_for(20, SketchKey.from_integer(0).seed(0))
    if came < 20:  # negative control: the claim of the whole cohort would have let them go on
        accounts = Account(Budget(request.target_epsilon, request.delta))
        accounts.charge(planned_claim, rounds + 1)


@pytest.mark.parametrize(
    ("cohort", "how", "by"),
    [(100, "one", "one server and the members"), (101, "two", "two aggregators that do not coll")],
)
def test_a_secure_sum_is_chosen_counted_both_ways_and_warned_of(
    cohort: int, how: Any, by: str
) -> None:
    wanted = {"dim": 1000, "cohort": cohort, "rounds": 1, "trust": "distributed"}
    answer = plan(PlanRequest(**{**BASE, **wanted}))
    up, down = round_bytes(how, answer.best.method.message_format, cohort)
    counted = f"Summed by {by}.*: each sends {up:,} bytes in a round.* receives {down:,} with the"
    assert any(re.match(counted, note) for note in answer.notes)
    # Keys and shares of a hundred members outweigh two vectors of 4,000 bytes; a seal does not.
    assert any("Compression does not pay" in text for text in answer.warnings) == (how == "one")
