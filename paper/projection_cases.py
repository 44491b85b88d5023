"""Cases of random projections: the Sketched Gaussian Mechanism (SGM), and Gaussian mixing.

The settings are data, below. A projection is part of what a protocol draws, anew for each trial,
and the adversary has of it what the case says: the message alone (`-secret`, the claim that is
proven), the projection beside it (`-known`), or what is decoded with it (`-step`, the step that the
paper's clients take and publish as a model).

Of the vectors only the direction in which a client's points matters, and a Gaussian projection has
no preferred one: the law of what is seen along it is the same for every `dim`. So the first column
of the projection is drawn, and no other.

Planted errors of the secret ones: `leaked-key`, the projection is public; `key-twice`, the same
projection served for two releases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffsketch.auditing.attacks import Attack, Numbers
from diffsketch.auditing.audits import PURE_DELTA, TRIALS, Adversary, Case, Game, Neighbours
from diffsketch.privacy.claim import Claim, SimulatedClaim
from diffsketch.privacy.clipping import clip_norm
from diffsketch.privacy.simulated_noise import NoiseKey
from diffsketch.sketch import SketchKey
from paper.projections import GaussianMixing, SketchedGaussian, variance_epsilon

SGM = SketchedGaussian(size=1000, clip=1.0, std=0.288)
"""A message of one client, or a sum of one: the claimed epsilon is 3 (delta 1e-5)."""
PAPER = SketchedGaussian(size=400_000, clip=1.0, std=0.0883), 4
"""The paper's vision task at its largest epsilon, and its clients of a round."""
REPAIRED = SketchedGaussian(size=1000, clip=1.0, std=1.0, projected_clip=1.0)
SECRET = SketchedGaussian(size=100, clip=1.0, std=0.27)
"""One with more to see: a shift of about one standard deviation of the sum of squares."""
MIXING = GaussianMixing(size=64, clip=1.0, std=math.sqrt(0.5), least_eigenvalue=7.5)
"""Rows of norm 1 at most among others that hide them: gamma is 8."""
PLANTED = {
    "leaked-key": "the projection is public",
    "key-twice": "one projection for two releases",
}
_FEWER = 5000  # trials of each world, for what is plain to see
_POINTS = 1001


def step_epsilon(mechanism: SketchedGaussian, delta: float, *, members: int = 1) -> float:
    """The epsilon of one coordinate of the decoded step, the projection unknown: exact.

    The client's vector is all in this coordinate, or 0, and the others' are 0. With `z` the
    coordinate's column of the projection and `q = |z|**2`, chi-squared over `size`, it is
    `N(clip q, members std**2 q)` or `N(0, members std**2 q)` given `q`: two mixtures, whose
    hockey-stick divergence is an integral. A lower bound on the step's epsilon: other coordinates
    tell more.

    >>> round(step_epsilon(SGM, 1e-5), 2)
    20.31
    """
    from scipy.special import gammaln

    half, width = mechanism.size / 2, 12 / math.sqrt(mechanism.size / 2)
    q = np.linspace(max(1e-9, 1 - width), 1 + width, _POINTS)
    log = (half - 1) * np.log(q) - half * q + half * math.log(half) - gammaln(half)
    log += math.log(q[1] - q[0])
    noise = mechanism.std * math.sqrt(members)
    far = mechanism.clip * (1 + width) + 12 * noise * math.sqrt(1 + width)
    places = np.linspace(-far, far, 2 * _POINTS)
    laws = [
        np.logaddexp.reduce(
            log
            - (places[:, None] - mean * q) ** 2 / (2 * noise**2 * q)
            - np.log(2 * math.pi * noise**2 * q) / 2,
            axis=1,
        )
        for mean in (mechanism.clip, 0.0)
    ]
    width = places[1] - places[0]
    least, most = 0.0, 1.0
    while _excess(laws, most) * width > delta:
        least, most = most, 2 * most
    for _ in range(50):
        middle = (least + most) / 2
        over = _excess(laws, middle) * width > delta
        least, most = (middle, most) if over else (least, middle)
    return least


def _excess(laws: Sequence[Numbers], epsilon: float) -> float:
    """The larger of the two sums of what one density has above `exp(epsilon)` of the other."""
    one, two = laws
    pairs = ((one, two), (two, one))
    gaps = (np.exp(own) * -np.expm1(np.minimum(epsilon + other - own, 0)) for own, other in pairs)
    return max(float(gap.sum()) for gap in gaps)


def _squares(cells: int, sign: float = 1.0) -> Attack:
    """Attack a variance: by the sum of squares, the likelihood ratio of normal numbers."""
    name = "likelihood ratio (variance)"
    return Attack(name, lambda *_: lambda seen: sign * np.square(seen[:, :cells]).sum(axis=1))


def _aligned(cells: int) -> Attack:
    """Attack with the projection: messages come first, then what a client's vector becomes."""
    name = "likelihood ratio (projection known)"
    return Attack(name, lambda *_: lambda seen: (seen[:, :cells] * seen[:, cells:]).sum(axis=1))


def _pair(cells: int, covariances: tuple[Numbers, Numbers]) -> Attack:
    """Attack two releases, by the likelihood ratio of pairs with these covariances."""
    weights = np.linalg.inv(covariances[1]) - np.linalg.inv(covariances[0])

    def score(seen: Numbers) -> Numbers:
        pairs = seen.reshape(len(seen), 2, cells)
        return np.asarray(np.einsum("tik,ij,tjk->t", pairs, weights, pairs))

    return Attack("likelihood ratio (two releases)", lambda *_: score)


_SEEN = Attack("the coordinate itself", lambda *_: lambda seen: seen[:, 0])


def _normal(key: NoiseKey, index: int, *shape: int) -> Tensor:
    source = key.source(worker=index, round_index=0)
    return source.normal(shape, 1.0, dtype=torch.float64)


def sgm_step(mechanism: SketchedGaussian, members: int, *, name: str) -> Case:
    """Make the case of a coordinate of the decoded step, where a client has its vector, or not.

    With `z` the coordinate's column and `w` the noise, it is `clip |z|**2 + <z, w>`, of which the
    latter is normal given `z`: so the two are drawn, and not the numbers of a message. The other
    members' vectors are 0, and known to be.

    Guarantees: the law of what the method decodes (`paper/tests/test_projection_cases.py`).
    """
    from scipy.special import gammaincinv, ndtr

    half, std = mechanism.size / 2, mechanism.std * math.sqrt(members)

    def play(inputs: Tensor, noise: NoiseKey, _: SketchKey) -> Tensor:
        shares = ndtr(_normal(noise, 0, *inputs.shape).numpy())
        squared = torch.from_numpy(gammaincinv(half, shares) / half)
        return inputs * squared + std * squared.sqrt() * _normal(noise, 1, *inputs.shape)

    worlds = Neighbours(torch.tensor([mechanism.clip]), torch.zeros(1))
    return Case(
        name, f"SGM, {_what(mechanism, members)}: the decoded step", mechanism.claim_for(members),
        Game(play, worlds, Adversary.SECRET_PROJECTION), (_SEEN,), deltas=(PURE_DELTA,), width=100,
        limit=lambda _, delta: step_epsilon(mechanism, delta, members=members),
    )  # fmt: skip


def _what(mechanism: SketchedGaussian, members: int = 1) -> str:
    several = f", sum of {members}" if members > 1 else ""
    return f"{mechanism.size:,} numbers, noise {mechanism.std:g}{several}"


def sgm_message(
    mechanism: SketchedGaussian, claim: Claim, *, name: str, known: bool, error: str = "",
    **more: Any,
) -> Case:  # fmt: skip
    """Make the case of one client's messages, with the projection or without; vector or zeros.

    With the error `key-twice` there are two messages.
    """
    size, rounds = mechanism.size, 2 if error == "key-twice" else 1

    def play(inputs: Tensor, noise: NoiseKey, _: SketchKey) -> Tensor:
        drawn = [
            _normal(noise, 0 if error else index, len(inputs), size) for index in range(rounds)
        ]
        columns = torch.stack(drawn, dim=1) / math.sqrt(size)
        seen = inputs[..., None] * columns
        if mechanism.projected_clip is not None:
            seen = clip_norm(seen, mechanism.projected_clip)
        seen = seen + mechanism.std * _normal(noise, rounds, len(inputs), rounds, size)
        return torch.cat([seen, columns], dim=-1) if known else seen

    first = torch.full((rounds,), mechanism.clip, dtype=torch.float64)
    adversary = Adversary.ALL_KNOWN if known else Adversary.SECRET_PROJECTION
    shown = "message and projection" if known else "message"
    return Case(
        name, f"SGM, {_what(mechanism)}: {shown}", claim,
        Game(play, Neighbours(first, torch.zeros_like(first)), adversary), rounds=rounds,
        planted=PLANTED.get(error), width=2 * size, simulated=isinstance(claim, SimulatedClaim),
        **more,
    )  # fmt: skip


def _sgm_secret(error: str = "") -> Case:
    ratio, attack = 1 + SECRET.clip**2 / (SECRET.size * SECRET.std**2), _squares(SECRET.size)
    if error == "leaked-key":
        attack = _aligned(SECRET.size)
    elif error:
        attack = _pair(SECRET.size, (np.eye(2) + ratio - 1, np.eye(2)))
    # Two releases with keys of their own are as many more numbers.
    cells, leaked = SECRET.size * (2 if error == "key-twice" else 1), error == "leaked-key"
    return sgm_message(
        SECRET, SECRET.secret_claim(), name=_named("sgm-secret", error), known=leaked, error=error,
        attacks=(attack,), trials=_FEWER if leaked else TRIALS,
        limit=partial(_variance_limit, cells, ratio),
    )  # fmt: skip


def _mixing(error: str = "") -> Case:
    """Make the case of one example among others, in the release or not.

    The others' eigenvalue is 6.5 and the example's own 1: with it, just the 7.5 that are promised.
    With the error `key-twice` there is a second release, of the others alone in both worlds. Only
    the direction of the example is seen: the other one tells nothing.
    """
    size, std, rounds = MIXING.size, MIXING.std, 2 if error == "key-twice" else 1
    ratio, others = MIXING.gamma / (MIXING.gamma - 1), MIXING.least_eigenvalue - MIXING.clip**2
    leaked, attack = error == "leaked-key", _squares(size)
    if leaked:
        attack = _aligned(size)
    elif error:
        hidden = others + std**2 * np.eye(2)
        attack = _pair(size, (hidden + np.diag([MIXING.clip**2, 0.0]), hidden))

    def play(inputs: Tensor, noise: NoiseKey, _: SketchKey) -> Tensor:
        shape, seen = (len(inputs), size), []
        own, rest = (_normal(noise, index, *shape) for index in range(2))
        for index in range(rounds):
            mixed = inputs[:, index, None] * own + std * _normal(noise, 2 + index, *shape)
            # Who knows all of S takes the others off.
            seen.append(torch.cat([mixed, own], dim=1) if leaked else mixed + others**0.5 * rest)
        return torch.stack(seen, dim=1)

    first = torch.zeros(rounds, dtype=torch.float64)
    first[0] = MIXING.clip
    adversary = Adversary.ALL_KNOWN if leaked else Adversary.SECRET_PROJECTION
    return Case(
        _named("mixing-secret", error), f"Gaussian mixing, {size} rows, gamma {MIXING.gamma:g}",
        MIXING.claim, Game(play, Neighbours(first, torch.zeros_like(first)), adversary), (attack,),
        rounds=rounds, planted=PLANTED.get(error), simulated=True, width=4 * size,
        # The second release, with a key of its own, would tell nothing.
        limit=partial(_variance_limit, size, ratio), trials=_FEWER if error else TRIALS,
    )  # fmt: skip


def _variance_limit(cells: int, ratio: float, _: SketchKey, delta: float) -> float:
    return variance_epsilon(cells, ratio, delta)


def _named(name: str, error: str) -> str:
    return f"{name}+{error}" if error else name


PROJECTIONS: Mapping[str, Callable[[], Case]] = {
    "sgm-step": partial(sgm_step, SGM, 1, name="sgm-step"),
    "sgm-step-paper": partial(sgm_step, *PAPER, name="sgm-step-paper"),
    "sgm-known": lambda: sgm_message(
        SGM, SGM.claim_for(1), name="sgm-known", known=True, deltas=(PURE_DELTA,),
        attacks=(_aligned(SGM.size),),
    ),
    "sgm-repaired": lambda: sgm_message(
        REPAIRED, REPAIRED.claim_for(1), name="sgm-repaired", known=True,
        attacks=(_aligned(REPAIRED.size),),
    ),
    "sgm-secret": _sgm_secret,
    **{f"sgm-secret+{error}": partial(_sgm_secret, error) for error in PLANTED},
    "mixing-secret": _mixing,
    **{f"mixing-secret+{error}": partial(_mixing, error) for error in PLANTED},
}  # fmt: skip
"""The cases by name. The claims of the first three are the paper's, those of the others proven."""
