"""Audits at the sizes of the paper's figures: how much more than is claimed can be told.

The messages are those of real gradients. The adversary is the standard one: it knows the hashes
and all of the vector but what is to be hidden. What differs between the two worlds is named by
`change`:

* `alpha`: one coordinate, at the paper's bound alpha or at -alpha;
* `largest`: the vector's largest coordinate, or its negative: one that alpha does not bound;
* `client`: the whole vector, or that of another worker in the same round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from torch import Tensor

from diffsketch.auditing import Case, Game, Neighbours, audit, every_trial
from diffsketch.auditing.attacks import weighted
from diffsketch.auditing.audits import PURE_DELTA
from diffsketch.auditing.cases import bare_secret, bare_unknown
from diffsketch.auditing.releases import KEY, Silent, likelihood_ratio
from diffsketch.errors import ArgumentError, check
from diffsketch.methods import Method, build_method
from diffsketch.methods.paper import DiffSketch
from diffsketch.privacy.accounting.events import gaussian_epsilon
from diffsketch.privacy.claim import NoClaim, PaperClaim, Relation, Scope, Trust, Unit
from diffsketch.privacy.theorems import estimate_alpha, estimates, theorem1
from diffsketch.sketch.gram import gram
from paper.inversion import measure_inversion
from paper.measurements import (
    Found,
    Given,
    MeasurementSettings,
    Progress,
    Whole,
    observe,
    simulation_of,
)
from paper.projections import projection_cases

Change = Literal["alpha", "largest", "client"]
_CLIENT = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
_SEED = KEY.seed(0)  # the hashes are public, and some claims depend on them
_UNLIMITED = 1e9  # an epsilon that is claimed for every message, which so gets no Laplace noise
TITLES = {
    "padded": "DiffSketch where Theorem 1 asks for no noise, {rows} x {cols}, {how}",
    "laplace": "Laplace noise on the gradient, {how}",
    "sketch-laplace": "Laplace noise on tables, {rows} x {cols}, {how}",
}
"""Titles of the audits of a method's message, noise and all, by `case`, the method's name."""
BARE: Mapping[str, Callable[[], Case]] = {"bare-unknown": bare_unknown, "bare-secret": bare_secret}


class AuditSettings(MeasurementSettings, extra="allow"):
    """Settings of an audit; all others are those of the method that is audited, or of `padded`."""

    case: str
    round: Whole | None = None
    trials: Whole
    confidence: float
    change: Change | None = None


class _Padded(MeasurementSettings):
    rows: Whole
    cols: Whole
    padding: Whole  # in lengths of the vector


def measure_audit(settings: Given, *, seed: int, on_progress: Progress) -> Found:
    """One audit: a lower bound on epsilon, beside what is claimed or proven.

    By `case`: what DiffSketch sends where Theorem 1 asks for no noise (`padded`), or what a method
    sends, by its name in `TITLES`, of gradients of the training `round` of MNIST without
    compression; a bare sketch, 5 x 2 of 2,000 unknown Gaussian coordinates, with public and with
    secret hashes (`bare-unknown`, `bare-secret`); or a projection (`paper.projections`). `padding`
    is in lengths of the vector; Laplace noise is for the epsilon `per_round`, with `clip` in the
    proven form and without in the paper's, which takes alpha from the vector. `inversion` has no
    trials (`paper.inversion`).
    """
    name, projections = str(settings.get("case")), projection_cases()
    cases = (*BARE, *TITLES, *projections, "inversion")
    check(name in cases, "case", f"be one of {', '.join(cases)}", name)
    if name == "inversion":
        return measure_inversion(settings, seed=seed, on_progress=on_progress)
    options = AuditSettings.read(settings)
    if name in TITLES:
        case = case_of(options, _gradients(options.round, seed=seed))
    else:
        MeasurementSettings.read(options.model_extra or {})  # there are no more
        case = BARE[name]() if name in BARE else projections[name]
    change = "added" if name in projections else options.change
    result = audit(
        case,
        trials=options.trials,
        confidence=options.confidence,
        seed=seed,
        on_progress=on_progress,
    )
    return {**result.to_json(), "change": change}


def _gradients(round_index: int | None, *, seed: int) -> Tensor:
    """The gradients of a round of MNIST's training without compression, `(workers, dim)`.

    First comes the worker whose largest coordinate is the most alphas: privacy is about the worst
    case, and this is one that happened.
    """
    if round_index is None:
        raise ArgumentError("round must be given")
    training = {"task": "mnist", "method": "none", "rounds": round_index + 1}
    (seen,) = observe(simulation_of(training, seed=seed), [round_index])
    heights = seen.vectors.abs().amax(dim=1) / estimate_alpha(seen.vectors)
    return seen.vectors[heights.argsort(descending=True)]


def case_of(settings: AuditSettings, vectors: Tensor) -> Case:
    """The case of an audit: of the first of these gradients, and another worker's."""
    name, change, dim = settings.case, settings.change, vectors.shape[1]
    more: dict[str, Any] = dict(settings.model_extra or {})
    if change is None:
        raise ArgumentError("change must be given")
    kind, how, absolute = name, "clipped" if "clip" in more else "as the paper has it", more
    if name == "padded":
        lengths = _Padded.read(more).padding
        how = f"{lengths}n appended" if lengths else "bare"
        kind, absolute = "diffsketch", more | {"padding": lengths * dim, "per_round": _UNLIMITED}
    method = build_method(kind, dim=dim, cohort=1, settings=absolute)
    title = TITLES[name].format(how=how, **more)
    # An audit's random numbers are those of its name.
    name = title if kind == name else "padded-{rows} x {cols}-{padding}".format(**absolute)
    neighbours = neighbours_of(vectors, change)
    return of_message(neighbours, method, change=change, name=f"{name}-{change}", title=title)


def neighbours_of(vectors: Tensor, change: Change) -> Neighbours:
    """The two worlds: `vectors` has the worker's, and another worker's for `client`."""
    vector, first = vectors[0], vectors[0].clone()
    if change == "client":
        return Neighbours(vector, vectors[1])
    place = int(vector.abs().argmax())
    if change == "alpha":
        # The coordinate nearest to alpha: to replace it leaves alpha and sigma as they are.
        alpha = float(estimate_alpha(vector))
        place = int((vector.abs() - alpha).abs().argmin())
        first[place] = alpha
    second = first.clone()
    second[place] = -first[place]
    return Neighbours(first, second)


def of_message(
    neighbours: Neighbours, method: Method, *, change: Change, name: str, title: str
) -> Case:
    """The case of what a method sends, noise and all: simulated noise, so that it can be repeated.

    Under hashes that are fixed here, since some claims depend on them. That of DiffSketch, where
    Theorem 1 asks for no Laplace noise, is Theorem 1's for this vector, and what the best attack
    reaches is known: the table of the appended numbers is Gaussian. Without any, the message is no
    random variable at all.
    """
    first, second = (
        method.encode(vector, _SEED, Silent()).messages.double().flatten().numpy()
        for vector in (neighbours.first, neighbours.second)
    )
    claim, mu = method.claim_for(1, _SEED), None
    attack = likelihood_ratio(method, neighbours, (first, second))
    if isinstance(method, DiffSketch):
        alpha, sigma = (float(value) for value in estimates(neighbours.first))
        claim = theorem1(method.sketch.dim, method.rows, method.cols, alpha=alpha, sigma=sigma)
        long = isinstance(claim, PaperClaim)
        check(long, "padding", "be so long that Theorem 1 claims something", method.padding)
        mu = math.inf
        if method.padding:
            shift = first - second
            over_noise = np.linalg.solve(
                gram(method.sketch, _SEED, method.dim, method.sketch.dim), shift
            )
            mu, attack = math.sqrt(float(shift @ over_noise)) / sigma, weighted(over_noise)
    if change == "client":
        claim = NoClaim(_CLIENT, "what is claimed is about one coordinate")
        mu = None  # of two clients the appended noise differs, too, and no formula is known
    protocol = every_trial(lambda inputs, noise, _: method.encode(inputs, _SEED, noise).messages)
    return Case(
        name, title, claim, Game(protocol, neighbours), (attack,), deltas=(PURE_DELTA,),
        simulated=True, limit=None if mu is None else lambda _, delta: gaussian_epsilon(mu, delta),
    )  # fmt: skip
