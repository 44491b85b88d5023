"""Audits at the settings of the paper's figures: how much more than is claimed can be told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from diffsketch.auditing import Case, audit
from diffsketch.auditing.cases import bare_unknown
from diffsketch.auditing.inversion import invert
from diffsketch.errors import ArgumentError, check
from diffsketch.methods.client_noise import SketchGaussian
from diffsketch.methods.paper import ProvenDiffSketch, RawLaplace, SketchLaplace
from diffsketch.privacy.theorems import estimate_alpha
from diffsketch.reproduction.measurements.audit_cases import Padded, of_method, of_padding
from diffsketch.reproduction.measurements.options import check_known, number, text, whole
from diffsketch.reproduction.measurements.training import simulation_of, watched
from diffsketch.sketch import CountSketch, SketchKey

__all__ = ["CASES", "INVERSION", "case_of", "measure"]

_OWN = (
    "case", "change", "rows", "cols", "padding", "per_round", "clip", "std", "noise_multiplier",
    "round", "trials", "confidence", "images",
)  # fmt: skip
INVERSION = "inversion"
CASES = (
    "padded", "bare-unknown", "laplace", "sketch-laplace", "diffsketch-proven", "sketch-gaussian",
)  # fmt: skip


def measure(
    settings: Mapping[str, Any], *, seed: int, on_progress: Callable[[float], None]
) -> dict[str, Any]:
    """One audit: a lower bound on epsilon, beside what is claimed or proven.

    Args:
        settings: `case`, one of `CASES`, with the settings that `case_of` takes; `trials` of each
            world; `confidence` of the bound; `round`, of which training round of MNIST without
            compression the gradients are. Or `case = "inversion"`, images from gradients, with
            `images`, how many of each digit.
        seed: Of the training and the audit.
        on_progress: Told the share that is done.

    Returns:
        What `AuditResult.to_json` has, and of the gradient `largest`, how many alphas its largest
        coordinate is. Of the inversion, what came back from each kind of message.
    """
    check_known(settings, _OWN)
    if text(settings, "case") == INVERSION:
        found = invert(per_class=whole(settings, "images"), seed=seed, on_progress=on_progress)
        return {"images": len(found.labels), "inversion": [r.to_json() for r in found.recoveries]}
    vectors = _gradients(seed, whole(settings, "round"))
    case = case_of(settings, vectors)
    result = audit(
        case,
        trials=whole(settings, "trials"),
        confidence=number(settings, "confidence"),
        seed=seed,
        on_progress=on_progress,
    )
    alpha = float(estimate_alpha(vectors[0]))
    extra = {"change": settings.get("change"), "largest": float(vectors[0].abs().max()) / alpha}
    return {**result.to_json(), **extra}


def case_of(settings: Mapping[str, Any], vectors: Tensor) -> Case:
    """What is audited.

    * `padded`: what DiffSketch sends where Theorem 1 asks for no noise; `rows`, `cols`, `padding`
      (in lengths of the vector), `change`.
    * `bare-unknown`: a bare sketch, 5 x 2 of 2,000 unknown Gaussian coordinates.
    * `laplace`, `sketch-laplace`: Laplace noise for the epsilon `per_round`; `clip` for the proven
      form, none for the paper's, which takes alpha from the vector; `rows`, `cols`, `change`.
    * `diffsketch-proven`: `rows`, `cols`, `clip`, `std`, `padding`, `change`.
    * `sketch-gaussian`: `rows`, `cols`, `clip`, `noise_multiplier`, `change`.

    Args:
        settings: As above.
        vectors: A worker's gradient, and another worker's.
    """
    name, dim = text(settings, "case"), vectors.shape[-1]
    check(name in CASES, "case", f"be one of {', '.join(CASES)}", name)
    if name == "bare-unknown":
        return bare_unknown()
    change = text(settings, "change")
    if name == "padded":
        rows, cols = whole(settings, "rows"), whole(settings, "cols")
        seed = SketchKey.from_integer(0).seed(0)
        padded = Padded(CountSketch(dim, rows, cols), whole(settings, "padding") * dim, seed)
        return of_padding(vectors, padded, change=change)
    if name in ("laplace", "sketch-laplace"):
        return _of_laplace(settings, vectors, change=change)
    rows, cols = whole(settings, "rows"), whole(settings, "cols")
    clip = number(settings, "clip")
    if name == "sketch-gaussian":
        multiplier = number(settings, "noise_multiplier")
        gaussian = SketchGaussian(dim, rows, cols, clip=clip, noise_multiplier=multiplier)
        title = f"Gaussian noise on clipped tables, {rows} x {cols}"
        return of_method(vectors, gaussian, change=change, title=title)
    lengths, std = whole(settings, "padding"), number(settings, "std")
    proven = ProvenDiffSketch(dim, rows, cols, padding=lengths * dim, clip=clip, std=std)
    title = f"DiffSketch repaired, {rows} x {cols}, {lengths}n appended"
    return of_method(vectors, proven, change=change, title=title)


def _of_laplace(settings: Mapping[str, Any], vectors: Tensor, *, change: str) -> Case:
    dim, per_round = vectors.shape[-1], number(settings, "per_round")
    clip = number(settings, "clip") if "clip" in settings else None
    how = "clipped" if clip is not None else "as the paper has it"
    if text(settings, "case") == "laplace":
        raw = RawLaplace(dim, per_round, clip)
        title = f"Laplace noise on the gradient, {how}"
        return of_method(vectors, raw, change=change, title=title)
    rows, cols = whole(settings, "rows"), whole(settings, "cols")
    table = SketchLaplace(dim, rows, cols, per_round=per_round, clip=clip)
    title = f"Laplace noise on tables, {rows} x {cols}, {how}"
    return of_method(vectors, table, change=change, title=title)


def _gradients(seed: int, round_index: int) -> Tensor:
    """Of all workers in this round of a training without compression.

    First comes the one whose largest coordinate is the most alphas: privacy is about the worst
    case, and this is one that happened.
    """
    given = {"task": "mnist", "method": "none", "rounds": round_index + 1}
    for seen in watched(simulation_of(given, seed=seed), [round_index]):
        heights = seen.vectors.abs().amax(dim=1) / estimate_alpha(seen.vectors)
        return seen.vectors[heights.argsort(descending=True)]
    raise ArgumentError(f"round must be reached by the training, got round={round_index}")
