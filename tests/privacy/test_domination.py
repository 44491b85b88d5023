"""Claims about noise on whole numbers: never below exact enumeration, and hardly above."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import mpmath  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
import pytest

from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.events import Event, epsilon_for
from diffsketch.privacy.claim import Relation, Trust
from diffsketch.privacy.clipping import CoordinateBound, CoordinateQuantizer, NormBound, Quantizer
from diffsketch.privacy.mechanisms.integer import (
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    IntegerMechanism,
    SkellamMechanism,
    _curvature,
    widest_step,
)
from tests.privacy.deltas import delta_for
from tests.privacy.laws import gaussian_law, laplace_law, skellam_law

Logs: TypeAlias = npt.NDArray[np.float64]
ONE = Relation.ADD_OR_REMOVE
EPSILONS = (0.0, 0.1, 0.3, 1.0, 4.0, 15.0)


@dataclass(frozen=True)
class Case:
    """A mechanism for shifts of at most `size` steps in all, and its noise in a cell."""

    mechanism: IntegerMechanism
    logs: Logs

    @property
    def event(self) -> Event:
        return self.mechanism.claim.event


def case(kind: str, std: float, size: int, cells: int = 1, members: int = 1) -> Case:
    """Any whole vector of a norm up to `size` may be sent; the zero vector is its neighbour.

    Laplace noise: a coordinate of up to `size / cells` is in every cell.
    """
    if kind == "laplace":
        levels = CoordinateQuantizer(
            CoordinateBound(size / cells, cells), size // cells, cells, dim=1
        )
        laplace = DiscreteLaplaceMechanism(levels, std / size, relation=ONE)
        return Case(laplace, np.log(laplace_law(laplace.scale)[1]))
    trust = Trust.DISTRIBUTED if members > 1 else Trust.LOCAL
    bound = NormBound(size - math.sqrt(cells) + 1e-9)
    quantizer = Quantizer(bound, 1.0, cells, rejection=0)
    options: dict[str, Any] = {"relation": ONE, "trust": trust, "cohort": members}
    if kind == "skellam":
        mechanism = SkellamMechanism(quantizer, std / size, **options)
        return Case(mechanism, np.log(skellam_law(std**2)[1]))
    gaussian = DiscreteGaussianMechanism(quantizer, std / size, **options)
    total = one = gaussian_law(std / math.sqrt(members), 14 + 3 * size / std)[1]
    for _ in range(members - 1):
        total = np.convolve(total, one)
    return Case(gaussian, np.log(total[total > 1e-250]))  # clear of where floats end


def pair(logs: Logs, shift: int) -> tuple[Logs, Logs]:
    """Log-probabilities of the same results without and with a shift >= 0.

    Results that only one of them has, as the tables end, are left out: that only lowers delta.
    """
    return (logs[shift:], logs[: len(logs) - shift])


def both(one: tuple[Logs, Logs], other: tuple[Logs, Logs]) -> tuple[Logs, Logs]:
    """Two independent releases, cells or rounds."""
    first, second = (np.add.outer(a, b).ravel() for a, b in zip(one, other, strict=True))
    return first, second


def exact_delta(releases: tuple[Logs, Logs], epsilon: float) -> float:
    """The larger of both directions, term by term."""
    first, second = releases
    deltas = [
        float((np.exp(p) * -np.expm1(np.minimum(0.0, epsilon + q - p))).sum())
        for p, q in ((first, second), (second, first))
    ]
    return max(deltas)


def excess(event: Event, *every: tuple[Logs, Logs]) -> float:
    """Exact delta over the claimed one, the largest for all releases; above 1 it is wrong."""
    worst = 0.0
    for epsilon in EPSILONS:
        delta = max(exact_delta(releases, epsilon) for releases in every)
        if delta > 1e-11:  # below, composition on a grid has its own margins
            worst = max(worst, delta / max(delta_for(event, epsilon), 1e-300))
    return worst


def with_more_noise(event: Event, factor: float) -> Event:
    """The planted error: all of the noise taken to be larger."""
    parts = []
    for leaf, count in events.leaves(event):
        if isinstance(leaf, events.GaussianEvent):
            parts.append(events.repeated(events.gaussian(factor * leaf.noise_multiplier), count))
        elif isinstance(leaf, events.LaplaceEvent):
            parts.append(events.repeated(events.laplace(factor * leaf.noise_multiplier), count))
        else:
            parts.append(events.repeated(leaf, count))
    return events.composed(*parts)


# One number, in one round and in three.

KINDS = [("skellam", 1), ("skellam", 3), ("gaussian", 1), ("laplace", 1)]
STDS = [0.3, 0.8, 2.0, 20.0]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "members"), KINDS)
@pytest.mark.parametrize("std", STDS)
def test_one_number(kind: str, members: int, std: float) -> None:
    for size in (1, 2, 5):
        one = case(kind, std, size, members=members)
        releases = (pair(one.logs, shift) for shift in range(1, size + 1))
        assert 0.1 < excess(one.event, *releases) <= 1 + 1e-8


@pytest.mark.parametrize("members", [2, 3, 10])
@pytest.mark.parametrize("share", [0.5, 0.6, 0.8, 1.2])
def test_shared_discrete_gaussian(members: int, share: float) -> None:
    for size in (1, 3):
        one = case("gaussian", share * math.sqrt(members), size, members=members)
        releases = (pair(one.logs, shift) for shift in range(1, size + 1))
        assert 0.1 < excess(one.event, *releases) <= 1 + 1e-8


def test_shared_discrete_gaussians_need_more() -> None:
    """The control: as one source of their variance, sums of narrow shares would be misjudged."""
    shared = case("gaussian", 0.5 * math.sqrt(2), 1, members=2)
    alone = case("gaussian", 0.5 * math.sqrt(2), 1)
    assert excess(alone.event, pair(shared.logs, 1)) > 1.05


@pytest.mark.parametrize("rounds", [10, 100])
@pytest.mark.parametrize("std", [1.0, 3.0])
def test_many_rounds_of_discrete_gaussian_noise(rounds: int, std: float) -> None:
    """The sum of the results has all that they tell: its distribution is computed exactly."""
    one = case("gaussian", std, 1)
    noise, total = np.exp(one.logs), np.ones(1)
    for _ in range(rounds):
        total = np.convolve(total, noise)
    sums = np.arange(len(total)) - len(total) // 2
    loss = (rounds - 2 * sums) / (2 * std**2)
    event = events.repeated(one.event, rounds)
    planted = with_more_noise(event, 1.01)
    missed = 0
    for epsilon in (0.0, 0.5, 2.0, 5.0, 10.0, 20.0):
        exact = float((total * -np.expm1(np.minimum(0.0, epsilon - loss))).sum())
        assert exact <= delta_for(event, epsilon) * (1 + 1e-8)
        missed += exact <= delta_for(planted, epsilon)
    assert missed == 0 or std < 2  # the control: 1% too much noise


@pytest.mark.parametrize(("kind", "members"), [*KINDS, ("gaussian", 2)])
@pytest.mark.parametrize("std", [0.8, 2.0, 4.0])
def test_two_cells(kind: str, members: int, std: float) -> None:
    """All whole vectors within the norm; for Laplace noise, all values of a coordinate."""
    one = case(kind, std, 4, cells=2, members=members)
    keep = min(len(one.logs) // 2, int(8 * std) + 20)
    middle = len(one.logs) // 2
    logs = one.logs[middle - keep : middle + keep + 1]
    every = [
        both(pair(logs, first), pair(logs, second))
        for first, second in itertools.product(range(5), repeat=2)
        if (0 < first == second <= 2 if kind == "laplace" else 0 < first**2 + second**2 <= 16)
    ]
    assert len(every) == (2 if kind == "laplace" else 16)
    assert excess(one.event, *every) <= 1 + 1e-8


@pytest.mark.parametrize(
    ("kind", "std", "members"),
    [
        ("skellam", 20.0, 1),
        ("gaussian", 2.0, 1),
        ("gaussian", 20.0, 1),
        ("gaussian", 6.0, 9),
        ("laplace", 20.0, 1),
    ],
)
def test_one_per_cent_too_much_is_found(kind: str, std: float, members: int) -> None:
    """The control: the enumeration breaks claims that take the noise to be 1% larger."""
    one = case(kind, std, 5, members=members)
    assert excess(with_more_noise(one.event, 1.01), pair(one.logs, 5)) > 1.001


@pytest.mark.slow
def test_samples() -> None:
    """Central noise on a secret sample, enumerated in both directions."""
    for kind in ("skellam", "gaussian", "laplace"):
        one = case(kind, 2.0, 2)
        absent, there = pair(one.logs, 2)
        rate = 0.2
        mixed = np.logaddexp(math.log1p(-rate) + absent, math.log(rate) + there)
        assert excess(events.poisson_sampled(rate, one.event), (absent, mixed)) <= 1 + 1e-6
        # The control: a lower rate than that of the sample.
        assert excess(events.poisson_sampled(0.9 * rate, one.event), (absent, mixed)) > 1


# The bound itself.


def exact_k(width: mpmath.mpf) -> mpmath.mpf:
    middle = mpmath.ncdf(width / 2) - mpmath.ncdf(-width / 2)
    # From the far end: what is left of 1 there would be lost.
    side = mpmath.ncdf(-width / 2) - mpmath.ncdf(-3 * width / 2)
    return 2 * mpmath.log(middle / side)


@pytest.mark.parametrize("curvature", [1e-12, 1e-6, 0.01, 0.3, 1, 2.04, 2.06, 3, 9, 60, 2e3])
def test_widest_step(curvature: float) -> None:
    """Not less than the condition asks for, and 2.2% more at most."""
    with mpmath.workdps(60):
        width = mpmath.mpf(widest_step(curvature))
        assert exact_k(width) >= curvature
        assert exact_k(width / 1.022) < curvature


def test_steps_are_never_wider() -> None:
    """The theorem itself, step by step into the far tail; the widest is at the centre."""
    with mpmath.workdps(150):
        for std in (0.4, 1.0, 4.0):
            square = mpmath.mpf(std) ** 2
            reach = int(10 * std) + 3
            weights = {
                1 / square: [mpmath.exp(-k * k / (2 * square)) for k in range(2 * reach)],
                _curvature(std**2): [mpmath.besseli(k, square) for k in range(2 * reach)],
            }
            for curvature, right in weights.items():
                total = right[0] + 2 * mpmath.fsum(right[1:])
                tails = [mpmath.fsum(right[k:]) / total for k in range(1, reach)]
                points = [mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * tail) for tail in tails]
                steps = [2 * points[0], *(b - a for a, b in itertools.pairwise(points))]
                assert max(steps) == steps[0] <= widest_step(float(curvature))


def test_curvature_of_skellam_noise() -> None:
    """Against Bessel functions of 50 digits; and it falls from the centre on."""
    with mpmath.workdps(50):
        for variance in [10 ** (e / 2) for e in range(-8, 25)]:
            exact = 2 * mpmath.log(mpmath.besseli(0, variance) / mpmath.besseli(1, variance))
            assert exact * (1 - 1e-14) <= _curvature(variance)
            assert _curvature(variance) <= exact * (1 + 2e-6)
        for variance in (0.1, 3.0, 200.0):
            values = [mpmath.besseli(t, variance) for t in range(60)]
            ratios = [a * c / b**2 for a, b, c in zip(values, values[1:], values[2:], strict=False)]
            assert (values[1] / values[0]) ** 2 < ratios[0]
            assert ratios == sorted(ratios)


@pytest.mark.parametrize("kind", [SkellamMechanism, DiscreteGaussianMechanism])
@pytest.mark.parametrize("std", [30.0, 1e3, 1e6])
def test_close_to_gaussian_noise(
    kind: type[SkellamMechanism] | type[DiscreteGaussianMechanism], std: float
) -> None:
    """Within 0.1% of Gaussian noise of the same multiplier, whoever adds it."""
    quantizer = Quantizer(NormBound(std / 10), 1.0, 10)
    for multiplier, members in ((std / quantizer.longest, 1), (std / quantizer.longest, 50)):
        trust = Trust.DISTRIBUTED if members > 1 else Trust.CENTRAL
        mechanism = kind(quantizer, multiplier, relation=ONE, trust=trust, cohort=members)
        for rounds in (1, 10, 100):
            claimed = float(mechanism.claim.epsilon(delta=1e-5, rounds=rounds))
            gaussian = epsilon_for(events.repeated(events.gaussian(multiplier), rounds), 1e-5)
            assert gaussian <= claimed <= 1.001 * gaussian


@pytest.mark.parametrize("rounds", [1, 10, 100])
def test_close_to_laplace_noise(rounds: int) -> None:
    """The same event as real noise of the same multiplier; its scale is hardly larger."""
    quantizer = CoordinateQuantizer(CoordinateBound(200.0), 200, 30)
    mechanism = DiscreteLaplaceMechanism(quantizer, 5.0, relation=ONE)
    for delta in (0.0, 1e-5):
        claimed = float(mechanism.claim.epsilon(delta=delta, rounds=rounds))
        real = epsilon_for(events.repeated(events.laplace(5.0), rounds), delta)
        assert claimed == real
    shift = quantizer.l1_sensitivity(ONE)
    assert 5 * shift < mechanism.scale <= 5 * shift + 0.25
