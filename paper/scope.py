"""Measurements of cost and reach: fewer bits, other means, parallel work, secure sums.

Nothing here is in a figure of the paper. Costs are bytes and operations that were counted; where
seconds are shown, no verdict rests on them.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from diffsketch.errors import check
from diffsketch.methods import build_method
from diffsketch.methods.gate import private_mean
from diffsketch.pages.exhibits import Exhibit
from diffsketch.sketch import CountSketch, SketchKey
from diffsketch.wire import MessageFormat
from paper.experiments import Experiment, Results
from paper.figures import (
    Fact,
    Figure,
    Measured,
    Rows,
    mean_and_spread,
    measured_of,
    rounded,
    table,
    texts,
)
from paper.measurements import (
    Found,
    Given,
    MeasurementSettings,
    Progress,
    Whole,
    simulation_of,
)

_BITS = 20  # of a cell in a secure sum
_REPORTS, _FREQUENT = 100, 10


def measure_scope(settings: Given, *, seed: int, on_progress: Progress) -> Found:
    """One of the measurements, by `case`: quantised, histogram, parallel or secure-sum."""
    known: dict[str, Callable[[Given, int, Progress], Found]] = {
        "quantised": _quantised,
        "histogram": _histogram,
        "parallel": _parallel,
        "secure-sum": _secure_sum,
    }
    case = str(settings.get("case"))
    check(case in known, "case", f"be one of {', '.join(known)}", case)
    found = known[case](settings, seed, on_progress)
    on_progress(1.0)
    return {"case": case, **found}


class _Quantised(MeasurementSettings):
    case: Literal["quantised"]


def _quantised(settings: Given, seed: int, on_progress: Progress) -> Found:
    """Train by a sketch whose cells have few bits: the settings of `diffsketch run`."""
    _, run = _Quantised.read_with_run(settings)
    simulation = simulation_of(run, seed=seed)
    while simulation.round_index < simulation.rounds:
        simulation.step()
        on_progress(simulation.round_index / simulation.rounds)
    method = simulation.method
    size = {"dim": method.dim, "message_bytes": method.wire_bytes}
    return {"accuracy": simulation.evaluate()[1], "compression": method.compression, **size}


class _Histogram(MeasurementSettings):
    case: Literal["histogram"]
    holders: Whole
    codes: Whole
    rows: Whole
    cols: Whole


def histograms(holders: int, codes: int, *, seed: int) -> Tensor:
    """Shares of codes `(holders, codes)`: half of a holder's reports have a code of its own."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.arange(1, codes + 1).double() ** -1.5
    drawn = torch.multinomial(weights, holders * _REPORTS, replacement=True, generator=generator)
    chosen = drawn.reshape(holders, _REPORTS)
    chosen[:, : _REPORTS // 2] = chosen[:, :1]
    counts = torch.zeros(holders, codes).scatter_add_(1, chosen, torch.ones(chosen.shape))
    return counts / _REPORTS


def _histogram(settings: Given, seed: int, _: Progress) -> Found:
    """The mean of many holders' histograms by a bare sketch: no learning, the same mean."""
    own = _Histogram.read(settings)
    vectors = histograms(own.holders, own.codes, seed=seed)
    shares, frequent = vectors.mean(dim=0).topk(_FREQUENT)
    size = {"rows": own.rows, "cols": own.cols, "combine": "median"}
    method = build_method("sketch", dim=own.codes, cohort=own.holders, settings=size)
    found = private_mean(vectors, method, key=SketchKey.from_integer(seed))
    names = found.mean.topk(_FREQUENT).indices
    return {
        "compression": method.compression,
        "share": float(shares.mean()),
        "error": float((found.mean[frequent] - shares).abs().mean()),
        "found": len(set(names.tolist()) & set(frequent.tolist())) / _FREQUENT,
    }


class _Parallel(MeasurementSettings):
    case: Literal["parallel"]
    dim: Whole
    rows: Whole
    cols: Whole
    parts: Whole


def _parallel(settings: Given, seed: int, _: Progress) -> Found:
    """Sketch a vector in parts, as several machines would, and on one and on two threads."""
    own = _Parallel.read(settings)
    sketch, hashes = CountSketch(own.dim, own.rows, own.cols), SketchKey.from_integer(seed).seed(0)
    generator = torch.Generator().manual_seed(seed)
    # Whole numbers, of which sums are exact in any order.
    vector = torch.randint(-100, 101, (own.dim,), generator=generator).float()
    whole, start = sketch.encode(vector, hashes), 0
    total = torch.zeros_like(whole)
    for part in vector.tensor_split(own.parts):
        total += sketch.encode(part, hashes, offset=start)
        start += len(part)
    before, taken, alike = torch.get_num_threads(), [], True
    try:
        for threads in (2, 1):
            torch.set_num_threads(threads)
            alike &= torch.equal(sketch.encode(vector, hashes), whole)
        for _repeat in range(5):
            begin = time.perf_counter()
            sketch.encode(vector, hashes)
            taken.append(time.perf_counter() - begin)
    finally:
        torch.set_num_threads(before)
    return {
        "parts": own.parts,
        "same": torch.equal(total, whole),
        "threads_alike": alike,
        "nanoseconds": 1e9 * min(taken) / own.dim,
    }


class _SecureSum(MeasurementSettings):
    case: Literal["secure-sum"]
    dim: Whole
    rows: Whole  # 0 for the vector itself
    cols: Whole = 0
    members: Whole


def _secure_sum(settings: Given, seed: int, on_progress: Progress) -> Found:
    """Bytes and operations of a member in a round of a secure sum; empty without its extra."""
    own = _SecureSum.read(settings)
    try:
        from diffsketch import secure_sum as sums
    except ImportError:
        return {"available": False}
    shape = (own.rows, own.cols) if own.rows else (own.dim,)
    kind = "sketch-skellam" if own.rows else "skellam"
    form = MessageFormat(kind, own.dim, shape, "unsigned", _BITS)
    identities = {index: sums.SigningIdentity.generate() for index in range(own.members)}
    threshold = sums.default_threshold(own.members)
    params = sums.Params(
        form,
        run=secrets.token_bytes(16),
        round_index=0,
        fingerprint=bytes(8),
        members=tuple(identities),
        threshold=threshold,
        min_present=threshold,
        identities={index: identity.public for index, identity in identities.items()},
    )
    server = sums.SecureSumServer(params)
    clients = {
        index: sums.SecureSumClient(index, params, identity=identity)
        for index, identity in identities.items()
    }
    generator = torch.Generator().manual_seed(seed)
    cells = torch.randint(0, 1 << _BITS, (own.members, *shape), generator=generator)
    up = down = stages = 0
    while server.stage is not sums.Stage.DONE:
        stages += 1
        for index, request in server.requests().items():
            reply = clients[index].answer(request, lambda index=index: cells[index])  # type: ignore[misc]
            server.collect(reply)
            if index == 0:
                up, down = up + len(reply), down + len(request)
        server.close()
        on_progress(min(0.9, stages / 5))
    exact = torch.equal(server.total().cells, cells.sum(dim=0) & ((1 << _BITS) - 1))
    return {
        "available": True,
        "exact": exact,
        "message_bytes": form.full_bytes,
        "up": up,
        "down": down,
        "stages": stages,
        # Of each member: one agreement and one mask for each other, and a mask of its own.
        "agreements": own.members - 1,
        "masked_numbers": own.members * torch.Size(shape).numel(),
    }


# --- the figure ------------------------------------------------------------------------------


def draw_scope(experiment: Experiment, results: Results) -> Figure:
    """A table for each case.

    Guarantees (`paper/tests/test_scope.py`): facts are means over the seeds.
    """
    by_case: dict[str, list[Measured]] = {}
    for each in measured_of(experiment, results):
        by_case.setdefault(str(each.first["case"]), []).append(each)
    facts: dict[str, Fact] = {"seeds": experiment.seeds}
    exhibits: list[Exhibit] = []
    drawn: dict[str, Callable[[Measured], tuple[dict[str, Fact], tuple[Fact, ...]]]] = {
        "quantised": _of_quantised,
        "histogram": _of_histogram,
        "parallel": _of_parallel,
        "secure-sum": _of_secure_sum,
    }
    for case, some in by_case.items():
        rows: Rows = []
        for each in some:
            numbers, row = drawn[case](each)
            facts |= {f"{case}/{what}/{each.name}": value for what, value in numbers.items()}
            rows.append((each.name, *row))
        exhibits.append(table(f"scope-{case}", f"{experiment.name}-{case}", rows))
    lead = texts()["scope"]["lead"].format(count=len(exhibits))
    return Figure(lead, tuple(exhibits), text=(texts()["scope"]["text"],), facts=facts)


def _means(measured: Measured, *names: str) -> list[tuple[float, float | None]]:
    return [mean_and_spread([float(one[name]) for one in measured.found]) for name in names]


def _of_quantised(measured: Measured) -> tuple[dict[str, Fact], tuple[Fact, ...]]:
    (accuracy, spread), (ratio, _) = _means(measured, "accuracy", "compression")
    size = int(measured.first["message_bytes"])
    facts: dict[str, Fact] = {"accuracy": accuracy, "spread": spread, "compression": ratio}
    return facts, (round(accuracy, 4), rounded(spread), size, round(ratio, 1))


def _of_histogram(measured: Measured) -> tuple[dict[str, Fact], tuple[Fact, ...]]:
    names = ("compression", "share", "error", "found")
    values = [mean for mean, _ in _means(measured, *names)]
    return dict(zip(names, values, strict=True)), tuple(rounded(value) for value in values)


def _of_parallel(measured: Measured) -> tuple[dict[str, Fact], tuple[Fact, ...]]:
    same, alike = (all(one[key] for one in measured.found) for key in ("same", "threads_alike"))
    ((taken, _),) = _means(measured, "nanoseconds")
    words = ("yes" if good else "no" for good in (same, alike))
    facts: dict[str, Fact] = {"same": same, "threads-alike": alike, "nanoseconds": taken}
    return facts, (int(measured.first["parts"]), *words, rounded(taken))


def _of_secure_sum(measured: Measured) -> tuple[dict[str, Fact], tuple[Fact, ...]]:
    one = measured.first
    if not one["available"]:
        return {"overhead": None}, ("needs the extra `secure`", *[None] * 5)
    sent = (one["up"] + one["down"]) / one["message_bytes"]
    facts: dict[str, Fact] = {
        "overhead": sent,
        "up": one["up"] / one["message_bytes"],
        "exact": one["exact"],
        "agreements": one["agreements"],
        "masks": one["masked_numbers"],
    }
    return facts, (one["message_bytes"], one["up"], one["down"], rounded(sent),
                   one["agreements"], one["masked_numbers"])  # fmt: skip
