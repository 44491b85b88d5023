"""Claims: what they say, what they refuse to be, and that no epsilon comes without its terms."""

from __future__ import annotations

import ast
import itertools
import math
from pathlib import Path

import pytest
from dp_accounting import dp_event
from hypothesis import given
from hypothesis import strategies as st

import diffsketch.privacy
from diffsketch.errors import ArgumentError
from diffsketch.methods import GaussianMean
from diffsketch.methods.gate import check_release, release_noise
from diffsketch.privacy.accounting import events
from diffsketch.privacy.claim import (
    Basis,
    Claim,
    Epsilon,
    MeasuredClaim,
    NoClaim,
    PaperClaim,
    ProvenClaim,
    Relation,
    Scope,
    SimulatedClaim,
    Trust,
    Unit,
    rounded_down,
    rounded_up,
)
from tests.helpers.commands import python
from tests.helpers.refusals import refused

SCOPE = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)

CENTRAL = Scope(Unit.CLIENT, Relation.ADD_OR_REMOVE, Trust.CENTRAL)

PROVEN = ProvenClaim(SCOPE, events.gaussian(2.0), "Gaussian noise of standard deviation 4")


def number(value: float, basis: Basis, *, delta: float = 0.0, rounds: int = 1) -> Epsilon:
    return Epsilon(value, delta, rounds, basis, SCOPE)


PAPER = PaperClaim(SCOPE, number(0.5, Basis.CLAIMED), "Theorem 1")

MEASURED = MeasuredClaim(
    SCOPE, number(0.4, Basis.MEASURED, delta=1e-5, rounds=3), 0.95, "a likelihood-ratio attack"
)

NONE = NoClaim(SCOPE, "nothing is random in a bare sketch")


@pytest.mark.parametrize(
    ("claim", "text"),
    [
        (
            PROVEN,
            "Proven: Gaussian noise of standard deviation 4 limits how well anyone who sees a "
            "client's message can tell which of two data sets one client holds.",
        ),
        (
            PAPER,
            "Claimed, not proven: Theorem 1 says that epsilon = 0.5 per round limits how well "
            "anyone who sees a client's message can tell which of two data sets one client holds; "
            "its proof does not hold, so this is no guarantee.",
        ),
        (
            MEASURED,
            "Measured: a likelihood-ratio attack shows with 0.95 confidence that after 3 rounds no "
            "epsilon below 0.4 (at delta = 1e-05) describes how well anyone who sees a client's "
            "message can tell which of two data sets one client holds.",
        ),
        (
            NONE,
            "No claim: nothing is random in a bare sketch, so nothing limits how well anyone who "
            "sees a client's message can tell which of two data sets one client holds.",
        ),
    ],
)
def test_texts(claim: Claim, text: str) -> None:
    assert str(claim) == text


def test_every_scope_has_its_own_sentence() -> None:
    scopes = [Scope(*words) for words in itertools.product(Unit, Relation, Trust)]
    sentences = {scope.sentence for scope in scopes}
    assert len(sentences) == len(scopes) == 24
    for scope in scopes:
        assert scope.sentence.startswith("how well anyone who sees ")
        assert str(scope) == f"{scope.unit} unit, {scope.relation}, {scope.trust} trust"


@pytest.mark.parametrize("trust", Trust)
def test_only_a_secret_sample_hides_who_took_part(trust: Trust) -> None:
    scope = Scope(Unit.CLIENT, Relation.ADD_OR_REMOVE, trust)
    plain = str(ProvenClaim(scope, events.gaussian(1.0), "noise"))
    assert plain.endswith("can tell whether one client sends its data or zeros.")
    if trust is Trust.CENTRAL:
        event = events.poisson_sampled(0.1, events.gaussian(1.0))
        assert str(ProvenClaim(scope, event, "noise")) == (
            "Proven: noise limits how well anyone who sees what a trusted server publishes, but no "
            "message, can tell whether one client took part."
        )
        example = Scope(Unit.EXAMPLE, Relation.ADD_OR_REMOVE, trust)
        assert str(ProvenClaim(example, event, "noise")).endswith("training example was used.")


def test_numbers_keep_their_words() -> None:
    epsilon = PROVEN.epsilon(delta=1e-5, rounds=1000)
    assert float(epsilon) == epsilon.value == pytest.approx(191.55, abs=0.01)
    assert str(epsilon) == (
        "epsilon = 191.6 at delta = 1e-05 over 1,000 rounds "
        "(proven; client unit, replace, local trust)"
    )
    assert str(MEASURED.lower_bound).startswith("epsilon >= 0.4 at delta = 1e-05 over 3 rounds (me")
    assert str(PAPER.epsilon(delta=0.0, rounds=1)).startswith("epsilon = 0.5 at delta = 0 over 1 r")


def test_claims_that_make_no_sense_cannot_be_built() -> None:
    gaussian, nothing, no_privacy = (
        events.gaussian(1.0), events.composed(), dp_event.NonPrivateDpEvent()
    )  # fmt: skip
    claimed, twice = (number(0.5, Basis.CLAIMED, rounds=rounds) for rounds in (1, 2))
    measured, never = (number(1.0, Basis.MEASURED, rounds=rounds) for rounds in (1, 0))
    refused(ArgumentError, "value must be >= 0", number, -1.0, Basis.PROVEN)
    refused(ArgumentError, "value must be >= 0", number, math.nan, Basis.PROVEN)
    refused(ArgumentError, "delta must be in", number, 1.0, Basis.PROVEN, delta=1.0)
    refused(ArgumentError, "delta must be in", number, 1.0, Basis.PROVEN, delta=math.nan)
    refused(ArgumentError, "rounds must be >= 0", number, 1.0, Basis.PROVEN, rounds=-1)
    refused(ArgumentError, "rounds must be an int", number, 1.0, Basis.PROVEN, rounds=1.5)
    refused(ArgumentError, "basis must be one of", number, 1.0, "guessed")
    refused(ArgumentError, "must be of type Scope", Epsilon, 1.0, 0.0, 1, Basis.PROVEN, "client")
    refused(ArgumentError, "scope must be of type", ProvenClaim, "client", gaussian, "noise")
    refused(ArgumentError, "mechanism must not be empty", ProvenClaim, SCOPE, gaussian, " ")
    refused(ArgumentError, "event must do something", ProvenClaim, SCOPE, nothing, "nothing")
    refused(ArgumentError, "event must be one", ProvenClaim, SCOPE, no_privacy, "noise")
    refused(ArgumentError, "per_round must be of type Epsilon", PaperClaim, SCOPE, 0.5, "Theorem 1")
    refused(ArgumentError, "basis claimed", PaperClaim, SCOPE, measured, "Theorem 1")
    refused(ArgumentError, "must be about", PaperClaim, CENTRAL, claimed, "Theorem 1")
    refused(ArgumentError, "1 round", PaperClaim, SCOPE, twice, "a paper")
    refused(ArgumentError, "source must not be empty", PaperClaim, SCOPE, claimed, "")
    refused(ArgumentError, "basis measured", MeasuredClaim, SCOPE, claimed, 0.9, "it")
    refused(ArgumentError, "confidence must", MeasuredClaim, SCOPE, measured, 1.0, "it")
    refused(ArgumentError, "confidence", MeasuredClaim, SCOPE, measured, math.nan, "it")
    refused(ArgumentError, "some r", MeasuredClaim, SCOPE, never, 0.9, "it")
    refused(ArgumentError, "must be about", MeasuredClaim, CENTRAL, measured, 0.9, "it")
    refused(ArgumentError, "unit must be one of", Scope, "household", "replace", "local")
    refused(ArgumentError, "relation must be one of", Scope, "client", "swap", "local")
    refused(ArgumentError, "trust must be one of", Scope, "client", "replace", 3)
    refused(ArgumentError, "reason must not be empty", NoClaim, SCOPE, "")
    refused(ArgumentError, "scope must be of type Scope", NoClaim, "client", "why")


@pytest.mark.parametrize("unit", [Unit.CLIENT, Unit.EXAMPLE, Unit.PERSON])
def test_sampling_gains_only_where_it_is_proven(unit: Unit) -> None:
    """A message shows which client sends it, but not which of its records are in it."""
    event = events.repeated(events.poisson_sampled(0.1, events.gaussian(1.0)), 3)
    for relation, trust in itertools.product(Relation, Trust):
        scope = Scope(unit, relation, trust)
        shown = unit is Unit.CLIENT and trust is not Trust.CENTRAL
        if shown or relation is Relation.REPLACE:
            refused(ArgumentError, "for a sample", ProvenClaim, scope, event, "noise on a sample")
        else:
            ProvenClaim(scope, event, "noise on a sample")


def test_a_paper_is_held_to_its_delta_and_one_round() -> None:
    claim = PaperClaim(SCOPE, number(2.0, Basis.CLAIMED, delta=1e-6), "a paper")
    assert float(claim.epsilon(delta=1e-5, rounds=1)) == 2.0
    refused(ArgumentError, "delta must be in", claim.epsilon, delta=1e-7, rounds=1)
    refused(ArgumentError, "does not compose", claim.epsilon, delta=1e-5, rounds=2)


@pytest.mark.parametrize("claim", [PROVEN, PAPER, MEASURED, NONE])
def test_rounds_and_delta_are_checked(claim: Claim) -> None:
    for rounds in (0, True, 1.0):
        refused(ArgumentError, "rounds must be", claim.epsilon, delta=1e-5, rounds=rounds)
    for delta in (-0.1, 1.0, math.nan, "x"):
        refused(ArgumentError, "delta must be", claim.epsilon, delta=delta, rounds=1)


def test_data_keeps_everything() -> None:
    assert MEASURED.lower_bound.to_json() == {
        "value": 0.4, "delta": 1e-5, "basis": "measured", "unit": "client", "relation": "replace",
        "trust": "local", "rounds": 3, "simulated": False,
    }  # fmt: skip
    assert NONE.epsilon(delta=0.0, rounds=1).to_json()["value"] is None


def bare_epsilons(source: str) -> set[str]:
    """Public functions of a module that are named epsilon and return something else."""
    return {
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and (node.name.endswith("epsilon") or node.name.startswith("epsilon"))
        and node.returns is not None
        and ast.unparse(node.returns) != "Epsilon"
    }


def test_no_epsilon_is_a_bare_number() -> None:
    """But for the calculators that claims are built on."""
    calculators = {"events.py", "losses.py"}
    folder = Path(diffsketch.privacy.__path__[0])
    found = {
        path.name: names
        for path in folder.rglob("*.py")
        if (names := bare_epsilons(path.read_text(encoding="utf-8")))
    }
    assert set(found) == calculators
    assert bare_epsilons("class A:\n    def epsilon(self) -> float: ...") == {"epsilon"}


def test_simulated_claims_say_so_and_are_not_sent() -> None:
    proven = ProvenClaim(SCOPE, events.gaussian(2.0), "Gaussian noise")
    claim = SimulatedClaim.of(proven)
    assert type(claim) is SimulatedClaim
    assert claim != proven
    assert SimulatedClaim.of(claim) is claim
    assert str(claim).startswith("Simulated noise. With exact noise: Proven: ")
    one, two = (each.epsilon(delta=1e-5, rounds=3) for each in (proven, claim))
    assert float(one) == float(two)
    assert "(proven; client unit" in str(one)
    assert "(proven, simulated; client unit" in str(two)
    for other in (NoClaim(SCOPE, "nothing"), PaperClaim(SCOPE, number(1.0, Basis.CLAIMED), "x")):
        assert SimulatedClaim.of(other) is other
    method = GaussianMean(dim=3, clip=1.0, noise_multiplier=2.0)
    for call in (check_release, release_noise):
        refused(ArgumentError, "claim must be about exact noise", call, method, claim)
        call(method, proven)


def shown(value: float, basis: Basis) -> str:
    return Epsilon(value, 1e-5, 1, basis, SCOPE).shown()


@given(st.floats(1e-12, 1e12), st.integers(1, 8))
def test_both_sides_are_a_step_of_the_last_digit_apart(value: float, digits: int) -> None:
    down, up = float(rounded_down(value, digits)), float(rounded_up(value, digits))
    assert down <= value <= up
    # A step of the last digit, whatever the first one is, but for rounding to floats.
    assert up - down <= value * 10.0 ** (1 - digits) * (1 + 1e-6)


@pytest.mark.parametrize(
    ("basis", "expected"),
    [
        (Basis.PROVEN, ("2.35", "2.36")),
        (Basis.CLAIMED, ("2.35", "2.36")),
        (Basis.NONE, ("2.35", "2.36")),
        (Basis.MEASURED, ("2.34", "2.35")),
    ],
)
def test_the_basis_says_to_which_side(basis: Basis, expected: tuple[str, str]) -> None:
    # To the nearest, one of each pair would be wrong.
    assert (shown(2.342, basis), shown(2.358, basis)) == expected
    assert shown(8.0, basis) == "8"
    assert shown(math.inf, basis) == "inf"


LOADED = """
import sys
import diffsketch.training
from diffsketch.privacy import Basis, NoClaim, ProvenClaim, Scope
from diffsketch.privacy.accounting import events
scope = Scope("client", "replace", "local")
NoClaim(scope, "nothing is hidden").epsilon(delta=1e-5, rounds=9)
print([name in sys.modules for name in ("scipy.special", "dp_accounting")])
ProvenClaim(scope, events.gaussian(2.0), "noise").epsilon(delta=1e-5, rounds=9)
print([name in sys.modules for name in ("scipy.special", "dp_accounting")])
ProvenClaim(scope, events.laplace(2.0), "noise").epsilon(delta=1e-5, rounds=9)
print([name in sys.modules for name in ("scipy.special", "dp_accounting")])
"""


@pytest.mark.slow
def test_whoever_composes_nothing_does_not_wait_for_the_accountants() -> None:
    """SciPy and dp-accounting take seconds to load: only once a claim is composed."""
    printed = python("-c", LOADED).stdout.splitlines()
    assert printed == ["[False, False]", "[True, False]", "[True, True]"]
