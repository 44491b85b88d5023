"""A plan as people read it (tables and sentences) and as programs do (plain data)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from diffsketch.plan.options import Method, Option
from diffsketch.plan.padded import FittedPadding
from diffsketch.plan.planner import Plan
from diffsketch.plan.request import PlanRequest
from diffsketch.plan.snippet import python_code
from diffsketch.privacy.claim import Epsilon, Trust, Unit
from diffsketch.privacy.mechanisms.integer import IntegerMechanism

__all__ = ["explain", "report", "to_data"]

_COLUMNS = ("table", "bits", "clip", "noise", "bytes", "ratio", "error", "epsilon")
_NAME = 13  # columns for the longest word of a method or, moved in, of a trust


def report(plan: Plan) -> tuple[Table | Text, ...]:
    """What to print: the options side by side, the best one in words, and what to beware of."""
    request = plan.request
    table = Table(
        title="Ways to estimate the mean, best first", title_justify="left",
        box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False,
    )  # fmt: skip
    table.add_column("method", min_width=_NAME)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for index, option in enumerate((plan.best, *plan.alternatives)):
        style = "bold" if index == 0 else None
        # The trust has a line of its own, or a terminal of 80 columns would be too narrow.
        name = f"{option.method}\n  {option.trust}"
        table.add_row(name, *_cells(option), style=style)
    scope = plan.best.total.scope
    reading = (
        "noise: standard deviation in a cell (of each message for local trust, else of the sum). "
        "ratio: the vector in float32 over the message. error: of one round, over the squared norm "
        "of the mean; those within 1% of each other count as equal, and then less trust, then "
        f"fewer bytes, decide. epsilon: {plan.best.total.basis}, for the {scope.unit} unit "
        f"({scope.relation}) and the trust of its line, at delta = {request.delta:g} over "
        f"{_rounds(request)}."
    )
    parts: list[Table | Text] = [table, Text(reading, style="dim"), Text()]
    parts.append(Text.assemble(("Best: ", "bold"), explain(plan.best, request)))
    parts += [Text.assemble(("Warning: ", "bold red"), text) for text in plan.warnings]
    if plan.advice:
        parts.append(Text("What would help:", style="bold"))
        parts += [Text(f"- {text}") for text in plan.advice]
    parts += [Text(f"Note: {text}", style="dim") for text in plan.notes]
    return tuple(parts)


def explain(option: Option, request: PlanRequest) -> str:
    """What an option does and gives, in a few sentences."""
    *first, last = [*_steps(option, request), f"sends {option.message_bytes:,} bytes"]
    after = ""
    if option.trust is Trust.DISTRIBUTED:
        after = " A secure sum hides the single messages."
    elif option.trust is Trust.CENTRAL:
        after = f" The server, which all trust, {_noise(option)} to the sum."
    return (
        f"{option.method}. In each round a worker {', '.join(first)} and {last}, "
        f"{_size(option)} the vector.{after} The predicted error is "
        f"{option.error.total:.3g}. All together: {option.total}."
    )


def _steps(option: Option, request: PlanRequest) -> list[str]:
    """What a worker does before it sends."""
    owner = "each example's" if request.unit is Unit.EXAMPLE else "its"
    clip = f"clips {owner} vector to the norm {option.clip:g}"
    if option.method is Method.PRIV_UNIT:
        return [clip, "draws a random vector that leans towards it"]
    if option.method is Method.PROJ_UNIT:
        where = f"projects it at random onto {option.cells} numbers"
        return [clip, where, "draws a random vector that leans towards these"]
    steps = []
    if request.unit is Unit.COORDINATE:
        steps.append(f"clips each coordinate to {option.clip:g}")
    if isinstance(option.mechanism, FittedPadding):
        steps.append(f"appends {option.mechanism.padding:,} numbers of Gaussian noise")
        return [*steps, f"sketches all of it into {option.shape} cells"]
    if option.sketch is not None:
        steps.append(f"sketches {owner} vector into {option.shape} cells")
    if request.unit is not Unit.COORDINATE:
        what = "the table" if option.sketch else f"{owner} vector"
        steps.append(f"clips {what} to {_norm(option)} {option.clip:g}")
    if isinstance(option.mechanism, IntegerMechanism):
        step = option.mechanism.quantizer.granularity
        steps.append(f"rounds it to whole steps of {step:.3g}")
    if option.trust is not Trust.CENTRAL:
        steps.append(_noise(option))
    return steps


def to_data(plan: Plan) -> dict[str, Any]:
    """The whole plan as plain data, for JSON."""
    return {
        "request": {**asdict(plan.request)},
        "best": _data(plan.best, plan.request),
        "alternatives": [_data(option, plan.request) for option in plan.alternatives],
        "warnings": list(plan.warnings),
        "advice": list(plan.advice),
        "notes": list(plan.notes),
        "code": python_code(plan.best, plan.request),
    }


def _data(option: Option, request: PlanRequest) -> dict[str, Any]:
    error = option.error
    return {
        "method": option.method.value,
        "rows": option.sketch.rows if option.sketch else None,
        "cols": option.sketch.cols if option.sketch else None,
        "query": "mean" if option.sketch else None,
        "cells": option.cells,
        "bits": option.bits,
        "clip": option.clip,
        "noise_std": option.noise_std,
        "noise_multiplier": option.noise_multiplier,
        "message_bytes": option.message_bytes,
        "compression": option.compression,
        "relative_error": error.total,
        "error_parts": {
            "recovery": error.recovery,
            "noise": error.noise,
            "rounding": error.rounding,
        },
        "worse_than_nothing": error.total > 1,
        "total_epsilon": _epsilon(option.total),
        "explanation": explain(option, request),
    }


def _epsilon(total: Epsilon) -> dict[str, Any]:
    scope = total.scope
    return {
        "value": float(total),
        "delta": total.delta,
        "rounds": total.rounds,
        "basis": total.basis.value,
        "unit": scope.unit.value,
        "relation": scope.relation.value,
        "trust": scope.trust.value,
    }


def _cells(option: Option) -> tuple[str, ...]:
    sketch = option.sketch
    shape = f"{sketch.rows} x {_count(sketch.cols)}" if sketch else _count(option.cells)
    return (
        shape,
        str(option.bits),
        _short(option.clip),
        "-" if option.noise_std is None else _short(option.noise_std),
        _count(option.message_bytes),
        f"{_short(option.compression)}x",
        _short(option.error.total),
        _short(float(option.total)),
    )


def _short(value: float) -> str:
    """Three digits, for a table: 1.23e5 and not 1.23e+05."""
    if 1000 <= value < 10**6:
        return f"{value:.0f}"
    digits, _, power = f"{value:.3g}".partition("e")
    return f"{digits}e{int(power)}" if power else digits


def _count(value: int) -> str:
    """All digits, unless they are very many."""
    return str(value) if value < 10**7 else _short(value)


def _size(option: Option) -> str:
    """Of a message beside the vector."""
    if 0.95 < option.compression < 1.05:
        return "about as many as"
    if option.compression < 1:
        return f"{1 / option.compression:.3g} times larger than"
    return f"{option.compression:.3g} times less than"


def _norm(option: Option) -> str:
    bound = getattr(option.mechanism, "bound", None)
    return "an L1 norm of" if getattr(bound, "order", 2) == 1 else "the norm"


def _noise(option: Option) -> str:
    name = option.method.value.split(" + ")[-1]
    share = "its share of " if option.trust is Trust.DISTRIBUTED else ""
    where = " in the sum" if option.trust is Trust.DISTRIBUTED else ""
    multiplier = ""
    if option.noise_multiplier is not None:
        multiplier = f"multiplier {option.noise_multiplier:g}, "
    return (
        f"adds {share}{name} noise ({multiplier}standard deviation {option.noise_std:.3g} in a "
        f"cell{where})"
    )


def _rounds(request: PlanRequest) -> str:
    return "1 round" if request.rounds == 1 else f"{request.rounds:,} rounds"
