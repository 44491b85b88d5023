"""Claims: what they say, what they refuse to be, and that no epsilon comes without its terms."""

from __future__ import annotations

import ast
import itertools
import math
import subprocess
import sys
from collections.abc import Callable
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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: number(-1.0, Basis.PROVEN), "value must be >= 0"),
        (lambda: number(math.nan, Basis.PROVEN), "value must be >= 0"),
        (lambda: number(1.0, Basis.PROVEN, delta=1.0), "delta must be in"),
        (lambda: number(1.0, Basis.PROVEN, delta=math.nan), "delta must be in"),
        (lambda: number(1.0, Basis.PROVEN, rounds=-1), "rounds must be >= 0"),
        (lambda: number(1.0, Basis.PROVEN, rounds=1.5), "rounds must be an int"),  # type: ignore[arg-type]
        (lambda: number(1.0, "guessed"), "basis must be one of"),  # type: ignore[arg-type]
        (lambda: Epsilon(1.0, 0.0, 1, Basis.PROVEN, "client"), "scope must be of type Scope"),  # type: ignore[arg-type]
        (lambda: ProvenClaim("client", events.gaussian(1.0), "noise"), "scope must be of type"),  # type: ignore[arg-type]
        (lambda: ProvenClaim(SCOPE, events.gaussian(1.0), " "), "mechanism must not be empty"),
        (lambda: ProvenClaim(SCOPE, events.composed(), "nothing"), "event must do something"),
        (lambda: ProvenClaim(SCOPE, dp_event.NonPrivateDpEvent(), "noise"), "event must be one"),
        (lambda: PaperClaim(SCOPE, 0.5, "Theorem 1"), "per_round must be of type Epsilon"),  # type: ignore[arg-type]
        (lambda: PaperClaim(SCOPE, number(0.5, Basis.PROVEN), "Theorem 1"), "basis claimed"),
        (lambda: PaperClaim(CENTRAL, number(0.5, Basis.CLAIMED), "Theorem 1"), "must be about"),
        (lambda: PaperClaim(SCOPE, number(0.5, Basis.CLAIMED, rounds=2), "a paper"), "1 round"),
        (lambda: PaperClaim(SCOPE, number(0.5, Basis.CLAIMED), ""), "source must not be empty"),
        (lambda: MeasuredClaim(SCOPE, number(1.0, Basis.CLAIMED), 0.9, "it"), "basis measured"),
        (lambda: MeasuredClaim(SCOPE, number(1.0, Basis.MEASURED), 1.0, "it"), "confidence must"),
        (lambda: MeasuredClaim(SCOPE, number(1.0, Basis.MEASURED), math.nan, "it"), "confidence"),
        (lambda: MeasuredClaim(SCOPE, number(1.0, Basis.MEASURED, rounds=0), 0.9, "it"), "some r"),
        (lambda: MeasuredClaim(CENTRAL, number(1.0, Basis.MEASURED), 0.9, "it"), "must be about"),
        (lambda: Scope("household", "replace", "local"), "unit must be one of"),  # type: ignore[arg-type]
        (lambda: Scope("client", "swap", "local"), "relation must be one of"),  # type: ignore[arg-type]
        (lambda: Scope("client", "replace", 3), "trust must be one of"),  # type: ignore[arg-type]
        (lambda: NoClaim(SCOPE, ""), "reason must not be empty"),
        (lambda: NoClaim("client", "why"), "scope must be of type Scope"),  # type: ignore[arg-type]
    ],
)
def test_claims_that_make_no_sense_cannot_be_built(
    make: Callable[[], object], message: str
) -> None:
    refused(ArgumentError, message, make)


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
    command = [sys.executable, "-c", LOADED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout.splitlines() == ["[False, False]", "[True, False]", "[True, True]"]
