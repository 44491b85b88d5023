"""Audits at the sizes of the paper's figures: how much more than is claimed can be told.

The messages are those of real gradients. The adversary is the standard one: it knows the hashes
and all of the vector but what is to be hidden. What differs between the two worlds is named by
`change`:

* `alpha`: one coordinate, at the paper's bound alpha or at -alpha;
* `largest`: the vector's largest coordinate, or its negative: one that alpha does not bound;
* `client`: the whole vector, or that of another worker in the same round.

A message of DiffSketch where Theorem 1 asks for no noise is the table of a vector with appended
Gaussian numbers. These need not be drawn one by one: their table is Gaussian itself, with the
covariance `sigma^2 S_pad S_pad'` (`diffsketch.privacy.mechanisms.padding`), and is drawn from that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from diffsketch.auditing import Case, Game, Neighbours, audit, every_trial
from diffsketch.auditing.attacks import Attack, Numbers, weighted
from diffsketch.auditing.audits import PURE_DELTA
from diffsketch.auditing.cases import ALPHA, bare_secret, bare_unknown
from diffsketch.auditing.releases import KEY, Silent, likelihood_ratio
from diffsketch.errors import ArgumentError, check
from diffsketch.files import finite
from diffsketch.methods import Method, build_method
from diffsketch.methods.paper import LaplaceBaseline, SketchLaplace, add_laplace
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.events import epsilon_for
from diffsketch.privacy.claim import Claim, NoClaim, PaperClaim, Relation, Scope, Trust, Unit
from diffsketch.privacy.mechanisms.padding import gram
from diffsketch.privacy.noise import Noise
from diffsketch.privacy.theorems import estimate_alpha, estimates, theorem1
from diffsketch.sketch import CountSketch, HashSeed, SketchKey
from paper.inversion import invert, invert_batches
from paper.measurements import (
    Found,
    Given,
    MeasurementSettings,
    Progress,
    Whole,
    observe,
    simulation_of,
)
from paper.repaired import ProvenDiffSketch
from paper.secret_hashes import epsilon_bound, exact_epsilon

Change = Literal["alpha", "largest", "client"]
_DIM = 7850  # of MNIST's gradients
_DELTA = 0.01  # of claims about Gaussian noise
_CLIENT = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)


class _Inversion(MeasurementSettings):
    case: Literal["inversion"]
    images: Whole
    batches: Whole = 0
    per_round: float | None = None


class _SecretHashes(MeasurementSettings):
    case: Literal["secret-hashes"]
    tables: str  # "dim rows cols" of each, with commas between them


class _Audit(MeasurementSettings):
    case: str
    round: Whole
    trials: Whole
    confidence: float


class _Padded(_Audit):
    change: Change
    rows: Whole
    cols: Whole
    padding: Whole


class _OfMethod(_Audit, extra="allow"):  # and the settings of the method
    change: Change


TITLES = {
    "laplace": "Laplace noise on the gradient, {how}",
    "sketch-laplace": "Laplace noise on tables, {rows} x {cols}, {how}",
    "diffsketch-proven": "DiffSketch repaired, {rows} x {cols}, {padding}n appended",
    "sketch-gaussian": "Gaussian noise on clipped tables, {rows} x {cols}",
}
"""Titles of the audits of a method's message, noise and all, by `case`, the method's name."""
CASES: dict[str, type[_Audit]] = {
    "padded": _Padded,
    "bare-unknown": _Audit,
    "bare-secret": _Audit,
    **dict.fromkeys(TITLES, _OfMethod),
}
"""Settings by `case`: `padded` is what DiffSketch sends where Theorem 1 asks for no noise;
`bare-unknown` and `bare-secret` a bare sketch, 5 x 2 of 2,000 unknown Gaussian coordinates, with
public and with secret hashes. `padding` is in lengths
of the vector; Laplace noise is for the epsilon `per_round`, with `clip` in the proven form and
without in the paper's, which takes alpha from the vector."""


def read_audit(settings: Given, dim: int) -> tuple[_Audit, Callable[[Tensor], Case]]:
    """The settings of an audit, and its case given a worker's gradient and another worker's.

    Raises an `ArgumentError` that names what is wrong.
    """
    name = str(settings.get("case"))
    others = ", secret-hashes or inversion"
    check(name in CASES, "case", f"be one of {', '.join(CASES)}{others}", name)
    own = CASES[name].read(settings)
    if isinstance(own, _Padded):
        sketch, seed = CountSketch(dim, own.rows, own.cols), SketchKey.from_integer(0).seed(0)
        return own, partial(
            of_padding, padded=Padded(sketch, own.padding * dim, seed), change=own.change
        )
    if not isinstance(own, _OfMethod):
        return own, lambda _: bare_unknown() if name == "bare-unknown" else bare_secret()
    given = dict(own.model_extra or {})
    how = "as the paper has it" if given.get("clip") is None else "clipped"
    absolute = {key: value * dim if key == "padding" else value for key, value in given.items()}
    method = build_method(name, dim=dim, cohort=1, settings=absolute)
    title = TITLES[name].format(how=how, **given)
    return own, partial(of_method, method=method, change=own.change, title=title)


def measure_audit(settings: Given, *, seed: int, on_progress: Progress) -> Found:
    """One audit: a lower bound on epsilon, beside what is claimed or proven.

    Settings are `case`, one of `CASES`, with its own; `trials` of each world; `confidence` of the
    bound; `round`, of which training round of MNIST without compression the gradients are. Or
    `case = "inversion"`, images from gradients, with `images`, how many of each digit, and
    `batches`, how many gradients of ten images; bare sketches and others, or with `per_round` what
    DiffSketch sends for it. Or `case = "secret-hashes"`, what is calculated
    of bare sketches under secret hashes, with `tables`.
    """
    if settings.get("case") == "inversion":
        wanted = _Inversion.read(settings)
        how: Given = {"seed": seed, "per_round": wanted.per_round}
        found = invert(per_class=wanted.images, on_progress=on_progress, **how)
        batches = invert_batches(wanted.batches, **how) if wanted.batches else ()
        return {
            "images": len(found.labels),
            "inversion": [each.to_json() for each in found.recoveries],
            "batches": [each.to_json() for each in batches],
        }
    if settings.get("case") == "secret-hashes":
        texts = _SecretHashes.read(settings).tables.split(",")
        tables = [_secret(*(int(number) for number in text.split())) for text in texts]
        on_progress(1.0)
        return {"secret": tables, "delta": PURE_DELTA}
    own, case_of = read_audit(settings, _DIM)
    given = {"task": "mnist", "method": "none", "rounds": own.round + 1}
    for seen in observe(simulation_of(given, seed=seed), [own.round]):
        # First comes the worker whose largest coordinate is the most alphas: privacy is about the
        # worst case, and this is one that happened.
        heights = seen.vectors.abs().amax(dim=1) / estimate_alpha(seen.vectors)
        vectors = seen.vectors[heights.argsort(descending=True)]
    result = audit(
        case_of(vectors),
        trials=own.trials,
        confidence=own.confidence,
        seed=seed,
        on_progress=on_progress,
    )
    largest = float(vectors[0].abs().max()) / float(estimate_alpha(vectors[0]))
    return {**result.to_json(), "change": settings.get("change"), "largest": largest}


def _secret(dim: int, rows: int, cols: int) -> Found:
    """Theorem 1's claim, the exact epsilon for 1 x 2, and the proven one, hashes being secret."""
    claimed = float(theorem1(dim, rows, cols, alpha=ALPHA, sigma=1.0).epsilon(delta=0.0, rounds=1))
    given = {"alpha": ALPHA, "delta": PURE_DELTA}
    return {
        "table": f"{rows} x {cols} of {dim:,}",
        "claimed": finite(claimed),
        "exact": exact_epsilon(dim, **given) if (rows, cols) == (1, 2) else None,
        "bound": finite(epsilon_bound(dim, rows, cols, **given)),
    }


def neighbours_of(vectors: Tensor, change: str) -> Neighbours:
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
    elif change != "largest":
        raise ArgumentError(f"change must be alpha, largest or client, got change={change!r}")
    second = first.clone()
    second[place] = -first[place]
    return Neighbours(first, second)


@dataclass(frozen=True, eq=False)
class Padded:
    """Messages of DiffSketch without Laplace noise: tables of vectors with appended noise.

    Guarantees: the same distribution as `diffsketch.methods.DiffSketch` sends where it adds no
    Laplace noise (`paper/tests/test_audits.py`).
    """

    sketch: CountSketch
    padding: int
    seed: HashSeed

    @cached_property
    def extended(self) -> CountSketch:
        """The sketch of the extended vectors."""
        sketch = self.sketch
        return CountSketch(sketch.dim + self.padding, sketch.rows, sketch.cols, sketch.family)

    @cached_property
    def covariance(self) -> Numbers:
        """The covariance of the appended numbers' table, for numbers of variance 1."""
        return gram(self.extended, self.seed, self.sketch.dim, self.extended.dim)

    @cached_property
    def _factor(self) -> Tensor:
        lower: Tensor = torch.linalg.cholesky(torch.from_numpy(self.covariance))
        return lower

    def messages(self, inputs: Tensor, noise: Noise, _: HashSeed) -> Tensor:
        """The messages for `(trials, dim)` vectors, which may be one vector many times over."""
        vectors = _distinct(inputs)
        tables = self.extended.encode(vectors, self.seed, offset=0).double()
        if self.padding:
            sigma = estimates(vectors)[1]
            drawn = noise.normal((len(inputs), len(self._factor)), 1.0, dtype=torch.float64)
            tables = tables + ((drawn @ self._factor.T) * sigma[:, None]).view(
                -1, *tables.shape[1:]
            )
        return tables.expand(len(inputs), *tables.shape[1:])


def of_padding(vectors: Tensor, padded: Padded, *, change: str) -> Case:
    """The case of a message that DiffSketch sends without Laplace noise.

    The claim is Theorem 1's for this vector; at the unit of a client there is none. Without
    appended numbers the message is no random variable at all.
    """
    neighbours, sketch = neighbours_of(vectors, change), padded.extended
    alpha, sigma = (float(value) for value in estimates(neighbours.first))
    claim: Claim = theorem1(sketch.dim, sketch.rows, sketch.cols, alpha=alpha, sigma=sigma)
    accepted = isinstance(claim, PaperClaim)
    check(accepted, "padding", "be so long that Theorem 1 claims something", padded.padding)
    if change == "client":
        claim = NoClaim(_CLIENT, "Theorem 1 is about one coordinate")
    both = torch.stack([neighbours.first, neighbours.second])
    first, second = sketch.encode(both, padded.seed, offset=0).double().flatten(1).numpy()
    weights = shift = np.asarray(first - second)
    mu = math.inf
    if padded.padding:
        weights = np.asarray(np.linalg.solve(padded.covariance, shift), dtype=np.float64)
        mu = math.sqrt(float(shift @ weights)) / sigma

    def limit(_: SketchKey, delta: float) -> float:
        return math.inf if math.isinf(mu) else epsilon_for(events.gaussian(1 / mu), delta)

    how = f"{padded.padding / padded.sketch.dim:g}n appended" if padded.padding else "bare"
    table = f"{sketch.rows} x {sketch.cols}"
    return Case(
        f"padded-{table}-{padded.padding}-{change}",
        f"DiffSketch where Theorem 1 asks for no noise, {table}, {how}",
        claim,
        Game(every_trial(padded.messages), neighbours),
        (weighted(weights),),
        deltas=(PURE_DELTA,),
        # Of two clients the noise differs, too, and no formula is known.
        limit=None if change == "client" else limit,
    )


def of_method(vectors: Tensor, method: Method, *, change: str, title: str) -> Case:
    """The case of what a method sends, noise and all: simulated noise, so that it can be repeated.

    Under hashes that are fixed here, since some claims depend on them.

    Guarantees: what is audited is bit for bit what the method sends
    (`paper/tests/test_audits.py`).
    """
    neighbours, seed = neighbours_of(vectors, change), KEY.seed(0)
    first, second = (
        method.encode(each, seed, Silent()).messages.double().flatten().numpy()
        for each in (neighbours.first, neighbours.second)
    )
    claim = method.claim_for(1, seed)
    if change == "client" and claim.scope.unit is Unit.COORDINATE:
        claim = NoClaim(_CLIENT, "what is claimed is about one coordinate")
    return Case(
        f"{title}-{change}",
        title,
        claim,
        Game(every_trial(lambda inputs, noise, _: sent(method, inputs, noise, seed)), neighbours),
        (ratio_of(method, neighbours, (first, second)),),
        deltas=(PURE_DELTA,) if isinstance(method, LaplaceBaseline) else (_DELTA,),
        simulated=True,
    )


def ratio_of(method: Method, neighbours: Neighbours, noiseless: tuple[Numbers, Numbers]) -> Attack:
    """The score for a method's noise on messages, one after the other, that are these without it.

    Numbers beside the messages have the weights of their differences.
    """
    if not isinstance(method, ProvenDiffSketch):
        return likelihood_ratio(method, neighbours, noiseless)
    weights = noiseless[0] - noiseless[1]
    covariance = gram(method.sketch, KEY.seed(0), method.dim, method.sketch.dim)
    size = len(covariance)
    tables = weights[: len(weights) // size * size].reshape(-1, size)  # a view of the weights
    tables[:] = np.linalg.solve(covariance, tables.T).T
    return weighted(weights)


def sent(method: Method, inputs: Tensor, noise: Noise, seed: HashSeed) -> Tensor:
    """The messages of a method, as `method.encode` makes them.

    Where all inputs are one vector, as they are for an adversary who knows it, the paper's Laplace
    noise is added to what is the same in all messages, which is computed once.
    """
    once = _distinct(inputs)
    if not isinstance(method, SketchLaplace) or method.clip is not None:
        return method.encode(inputs, seed, noise).messages
    tables = method.sketch.encode(once, seed)
    return add_laplace(
        tables.expand(len(inputs), *tables.shape[1:]), once, noise,
        alpha=estimate_alpha(once), rows=method.rows, per_round=method.per_round,
    )  # fmt: skip


def _distinct(inputs: Tensor) -> Tensor:
    """One vector, if all are the same place in memory; else all."""
    return inputs[:1] if inputs.stride(0) == 0 else inputs
