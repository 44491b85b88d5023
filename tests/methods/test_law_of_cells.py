"""Every cell that is sent under a proven claim has noise of the stated law, the flag included.

Of many messages of one vector, each cell's noise is counted against its exact law, up to the ends;
and whether two cells of a message, or one cell of two messages, lie on the same side of the middle
is counted against the law of independent noise. All tails are exact binomial ones, and what is
compared is their least times their number: below `CHANCE` with a probability of at most `CHANCE`
for noise as stated. Seeds are fixed but for exact noise, which has none.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from diffsketch.methods import CpSgd, Method, build_method
from diffsketch.methods.client_noise import ClientNoise
from diffsketch.methods.paper import LaplaceBaseline
from diffsketch.privacy import FastNoise, Noise, SecureNoise
from diffsketch.privacy.claim import ProvenClaim, Trust
from diffsketch.privacy.clipping import centre
from diffsketch.privacy.integer_table import ExponentialLaw, Law
from diffsketch.privacy.mechanisms.integer import DiscreteGaussianMechanism
from diffsketch.sketch import SketchKey
from tests.helpers.library import LIBRARY
from tests.helpers.silent import Silent
from tests.privacy.laws import (
    Probabilities,
    binomial_law,
    gaussian_law,
    laplace_law,
    skellam_law,
    surprise,
)

Chances: TypeAlias = tuple[int, Probabilities]

CHANCE, MESSAGES, COHORT, DIM = 1e-9, 1 << 15, 2, 6
SEED = SketchKey.from_integer(0).seed(0)
VECTOR = torch.tensor([2.0, -1.0, 0.0, 3.0, 1.0, -2.0]) / 16  # on every grid here, within the clip
BINS = 400  # of a law, at most

CLIENT: dict[str, Any] = {"clip": 1.0, "noise_multiplier": 1.0}
TABLE: dict[str, Any] = {"rows": 2, "cols": 3}
FAMILIES: dict[str, dict[str, Any]] = {
    "gaussian": CLIENT, "sketch-gaussian": TABLE | CLIENT,
    "skellam": CLIENT, "sketch-skellam": TABLE | CLIENT,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"{name}-{trust}{'-flag' * flagged}": (
            name,
            settings | {"trust": trust.value, "clip_quantile": 0.5 if flagged else None},
        )
        for name, settings in FAMILIES.items() for trust in Trust for flagged in (False, True)
    },
    "laplace": ("laplace", {"clip": 1.0, "per_round": 1.0}),
    "sketch-laplace": ("sketch-laplace", TABLE | {"clip": 1.0, "per_round": 1.0}),
    "cpsgd": ("cpsgd", {"clip": 1.0, "limit": 1.0, "levels": 33, "trials": 2000}),
}  # fmt: skip


def method_of(name: str) -> Method:
    kind, settings = CASES[name]
    return build_method(kind, dim=DIM, cohort=COHORT, settings=settings)


def noise_of(method: Method, source: Noise) -> Tensor:
    """What messages, or what is published of them, have beside the vector: `(messages, cells)`."""
    trust = method.claim_for(COHORT, SEED).scope.trust
    seen = method.encode(VECTOR.expand(MESSAGES, DIM), SEED, source).messages
    if trust is Trust.CENTRAL:
        seen = method.publish(seen, source)
    noise = seen - method.encode(VECTOR, SEED, Silent()).messages
    if trust is Trust.DISTRIBUTED and method.exact:
        noise = centre(noise, method.message_format.bits)
    return noise.flatten(1)


def stated(method: Any, source: Noise) -> list[tuple[Tensor, Chances]]:
    """Noise in whole numbers that are independent by what is stated, and the law of each."""
    noise = noise_of(method, source)
    if isinstance(method, CpSgd):
        lowest, chances = binomial_law(method.trials or 0)
        law = lowest - (method.trials or 0) // 2, chances
    elif isinstance(method, LaplaceBaseline):
        assert method.mechanism is not None
        law = laplace_law(method.mechanism.scale)
    else:
        assert isinstance(method, ClientNoise)
        shift = method.mechanism.quantizer.sensitivity(method.relation)
        share = method.noise_multiplier * shift
        share /= math.sqrt(COHORT) if method.trust is Trust.DISTRIBUTED else 1
        is_gaussian = isinstance(method.mechanism, DiscreteGaussianMechanism)
        law = gaussian_law(share) if is_gaussian else skellam_law(share**2)
    return [(cell, law) for cell in noise.T]


def coarse(values: Tensor, law: Chances) -> tuple[Tensor, Probabilities]:
    """The same in at most `BINS` bins from 0 on."""
    lowest, chances = law
    width = -(-len(chances) // BINS)
    sums = np.add.reduceat(chances, np.arange(0, len(chances), width))
    return torch.div(values - lowest, width, rounding_mode="floor"), sums


def surprise_of(cells: list[tuple[Tensor, Chances]]) -> float:
    """A bound on the probability of messages as far off, for noise as stated."""
    binned = [coarse(values, law) for values, law in cells]
    chances = [surprise(values, 0, law) for values, law in binned]
    middles = [int(np.searchsorted(law.cumsum(), 0.5)) for _, law in binned]
    above = [(values > middle).numpy() for (values, _), middle in zip(binned, middles, strict=True)]
    odds = [
        float(law[middle + 1 :].sum()) for (_, law), middle in zip(binned, middles, strict=True)
    ]
    pairs = [
        (above[one] == above[two], odds[one], odds[two])
        for one, two in itertools.combinations(range(len(cells)), 2)
    ]
    pairs += [(side[::2] == side[1::2], p, p) for side, p in zip(above, odds, strict=True)]
    for same, one, two in pairs:
        law = stats.binom(len(same), one * two + (1 - one) * (1 - two))
        chances.append(2 * min(law.cdf(same.sum()), law.sf(same.sum() - 1)))
    return min(1.0, len(chances) * min(chances))


@pytest.mark.parametrize("source", [partial(FastNoise, 5), SecureNoise], ids=["fast", "exact"])
@pytest.mark.parametrize("name", CASES)
def test_every_cell_has_the_stated_law(name: str, source: Callable[[], Noise]) -> None:
    """Those of exact noise together fail with a probability of at most 3e-8."""
    assert surprise_of(stated(method_of(name), source())) > CHANCE


def test_every_proven_method_is_here_at_each_trust() -> None:
    trusts: dict[str, set[object]] = {}
    for name in CASES:
        method = method_of(name)
        claim = method.claim_for(COHORT, SEED)
        assert isinstance(claim, ProvenClaim), name
        assert method.exact
        trusts.setdefault(method.name, set()).add(claim.scope.trust)
    assert set(LIBRARY) - set(trusts) == {"none", "sketch", "diffsketch"}
    assert all((trusts[name] == set(Trust)) == (name in FAMILIES) for name in trusts)


class Faulty(FastNoise):
    """Noise with an error."""

    def __init__(self, fault: Callable[[Tensor, float], Tensor]) -> None:
        super().__init__(6)
        self.fault = fault

    def integers(self, shape: Any, law: Law) -> Tensor:
        values = super().integers(shape, law)
        if isinstance(law, ExponentialLaw):
            return self.fault(values, law.scale * (math.sqrt(2) if law.power == 1 else 1))
        return self.fault(values, math.sqrt(law.variance))


def cut(values: Tensor, spread: float) -> Tensor:
    return values.clamp(-int(3 * spread), int(3 * spread))


def smaller(values: Tensor, _: float) -> Tensor:
    return (0.9 * values).round().to(values.dtype)


def without_flag(values: Tensor, _: float) -> Tensor:
    return torch.cat([values[..., :-1], torch.zeros_like(values[..., -1:])], dim=-1)


def same_rows(values: Tensor, _: float) -> Tensor:
    table = values[..., :6].reshape(len(values), 2, 3)[:, :1].expand(-1, 2, -1)
    return torch.cat([table.reshape(len(values), 6), values.flatten(1)[:, 6:]], 1).reshape(
        values.shape
    )


def in_pairs(values: Tensor, _: float) -> Tensor:
    return values[::2].repeat_interleave(2, dim=0)


FAULTS: dict[Callable[[Tensor, float], Tensor], list[str]] = {
    cut: list(CASES),
    smaller: list(CASES),
    without_flag: [name for name in CASES if "flag" in name],
    same_rows: [name for name in CASES if "sketch" in name],
    in_pairs: list(CASES),
}


@pytest.mark.parametrize(
    ("fault", "name"), [(fault, name) for fault, names in FAULTS.items() for name in names]
)
def test_planted_errors_are_found(fault: Callable[[Tensor, float], Tensor], name: str) -> None:
    assert surprise_of(stated(method_of(name), Faulty(fault))) < CHANCE
