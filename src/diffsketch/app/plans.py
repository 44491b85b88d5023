"""Answers of the planner as people read them, and as what runs them: command and code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib import resources
from string import Template
from textwrap import wrap
from typing import Any, TypeAlias

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from diffsketch.methods.plain import Uncompressed
from diffsketch.planning import Option, Plan, PlanRequest, SketchSize
from diffsketch.privacy.claim import Trust, Unit
from diffsketch.training.defaults import TASK_DEFAULTS
from diffsketch.wire.sums import proposed_sum

Parts: TypeAlias = tuple[Table | Text, ...]

_WIDTH = 74  # of commands and code, so that a terminal of 80 columns breaks no line
_TASK, _TASK_DIM = "mnist-devices", 7850  # a task of `diffsketch run`, and the weights of its model
_TASK_DEVICES = int(TASK_DEFAULTS[_TASK]["workers"])
_LISTED = 6  # bare sketches in a table
_IMAGES, _ROUNDED = 50_000, 1e-6  # of the task mnist for training; between whole numbers


def table_of(
    title: str, columns: Sequence[str], rows: Iterable[tuple[Sequence[str | Text], bool]]
) -> Table:
    """Make a table of numbers; each row comes with whether it is the best."""
    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False,
        show_edge=False,
    )  # fmt: skip
    for name in columns:
        if name in ("method", "name"):
            table.add_column(name, min_width=15)  # the longest name
        else:
            table.add_column(name, justify="right", no_wrap=True)
    for cells, is_best in rows:
        table.add_row(*cells, style="bold" if is_best else None)
    return table


def _said(heading: str, text: str) -> Text:
    return Text.assemble((f"{heading}: ", "bold"), text)


def report_plan(plan: Plan) -> Parts:
    """Lay out the options side by side, the best one in words, and what to beware of."""
    request, total = plan.request, plan.best.total
    columns = ("method", "trust", "shape", "bits", "noise", "bytes", "error", "epsilon")
    rows = []
    for option in (plan.best, *plan.alternatives):
        method, settings = option.method, option.settings
        level = ("noise_multiplier", "per_round", "trials")
        noise = next(settings[name] for name in level if name in settings)
        cells = (
            method.name, str(option.trust),
            " x ".join(_count(size) for size in method.message_format.shape),
            str(method.message_format.bits), _short(noise), _count(method.wire_bytes),
            _short(option.error.total), option.total.shown(),
        )  # fmt: skip
        rows.append((cells, option is plan.best))
    reading = (
        "error: expected squared error of the estimated mean in one round, over the mean's squared "
        "norm: 0 is exact, 1 no better than an estimate of zero; ties within 1% are broken by "
        "weaker trust, then fewer bytes. bytes: of one message; bits: of a number in it. noise: "
        "multiplier of the sensitivity, epsilon of a round (laplace) or trials (cpsgd). "
        f"epsilon: {total.basis}, for the {total.scope.unit} unit "
        f"({total.scope.relation}) and the trust of its line, at delta = {request.delta:g} over "
        f"{total.rounds:,} round{'s' if total.rounds > 1 else ''}."
    )
    parts: list[Table | Text] = [
        *(Text.assemble(("Warning: ", "bold red"), text) for text in plan.warnings),
        table_of("Ways to estimate the mean, best first", columns, rows),
        Text(reading, style="dim"),
        Text(),
        _said("Best", explain(plan.best, request)),
        *([Text("What would help:", style="bold")] if plan.advice else []),
        *(Text(f"- {text}") for text in plan.advice),
        *(Text(f"Note: {text}", style="dim") for text in plan.notes),
        Text("Run it:", style="bold"),
    ]
    if (command := run_command(plan.best, request)) is not None:
        # To be copied, so that no terminal may break it elsewhere; flags stay with their values.
        joined = re.sub(r"(--\S+) ", "\\1\0", command)
        lines = wrap(joined, _WIDTH, break_on_hyphens=False)
        parts.append(Text(" \\\n    ".join(lines).replace("\0", " ")))
    if (flower := flower_plan(plan.best, request)) is not None:
        budget = f"Budget({request.target_epsilon!r}, {request.delta!r})"
        accounts = (
            "Flower draws nodes as it likes; accounts see to it that a client stops at its budget"
        )
        if request.of_records:
            accounts = "Train functions reply with SiloReply"
        strategy = f"budget={budget} for SketchStrategy and sketch_mod"
        parts.append(_said("In Flower", f"{flower}, with {strategy}. {accounts}."))
    by_template = {"one_round": "a program", "silos": "the function of a silo"}
    printed = by_template.get(_template(request), "the function of a round")
    return (*parts, Text(f"In Python: --code prints {printed}."))


def report_sizes(sizes: Sequence[SketchSize], *, rounds: int, message_bytes: int) -> Parts:
    """Lay out bare sketches side by side, and say how to run the best, where a task has such.

    Where the vectors themselves fit into the bytes, they are the best: their mean is exact.
    """
    best = sizes[0].method
    vector_bytes = Uncompressed(best.dim).wire_bytes
    dense = vector_bytes <= message_bytes
    columns = ("bits", "rows", "columns", "bytes", "ratio", "error", "rounding", "all rounds")
    rows = [
        (
            (str(size.method.bits), "1", f"{size.method.cols:,}", f"{size.method.wire_bytes:,}",
             f"{size.method.compression:,.4g}x", f"{size.error.total:.3g}",
             f"{size.error.rounding:.3g}", f"{size.over(rounds):.3g}"),
            size is sizes[0] and not dense,
        )
        for size in sizes[:_LISTED]
    ]  # fmt: skip
    reading = (
        "error: squared error of one round relative to the mean (1 = no better than zero), "
        "predicted for dense vectors; all rounds: that of their average, by which they are "
        "ordered. No privacy: a bare sketch claims none."
    )
    answer = (
        f"{best.bits} bits a cell, {best.wire_bytes:,} bytes a message. Vectors as they are take "
        f"{vector_bytes:,} (--method none)."
    )
    if dense:
        answer = (
            f"no sketch. Vectors as they are fit, with {vector_bytes:,} bytes a message, and their "
            "mean is exact (--method none)."
        )
    settings = f"rows=1, cols={best.cols}, bits={best.bits}"
    return (
        table_of("Bare sketches, best first", columns, rows),
        Text(reading, style="dim"),
        _said("Best", answer),
        *([] if dense else [_said("In DDP", f'sketch_state(model, "sketch", {settings}, seed=7)')]),
    )


def explain(option: Option, request: PlanRequest) -> str:
    """Explain what an option does and gives, in a few sentences."""
    method, clip, table = option.method, option.settings["clip"], "rows" in option.settings
    shape, ratio = " x ".join(map(str, method.message_format.shape)), method.compression
    vector, party = ("each gradient", "silo") if request.of_records else ("its vector", "client")
    steps = [f"sketches {vector} into {shape} cells"] if table else []
    if request.unit is Unit.COORDINATE:
        steps.insert(0, f"clips each coordinate to {clip:g}")
    else:
        steps.append(f"clips {'the table' if table else vector} to the norm {clip:g}")
    steps.append("rounds it to whole numbers")
    if request.of_records:
        steps = [f"draws each {request.unit} in secret, with probability {request.rate:g}", *steps]
        steps.append("adds all up")
    noise, after = {
        Trust.LOCAL: (["adds noise"], ""),
        Trust.DISTRIBUTED: (
            ["adds its share of the noise"], " A secure sum hides the single messages."
        ),
        Trust.CENTRAL: ([], " The server, which all trust, adds noise to the sum."),
    }[option.trust]  # fmt: skip
    size = f"{ratio:.3g} times less than"
    if ratio < 1.05:
        size = "about as many as" if ratio > 0.95 else f"{1 / ratio:.3g} times larger than"
    return (
        f"{method.name}. In each round a {party} {', '.join([*steps, *noise])} and sends "
        f"{method.wire_bytes:,} bytes, {size} the vector.{after} The predicted error is "
        f"{option.error.total:.3g}. All together: {option.total}."
    )


def run_command(option: Option, request: PlanRequest) -> str | None:
    """Write a `diffsketch run` of the plan; None if no task of it has such vectors and devices.

    Those of MNIST* over devices have norms of their own: `--norm` should be near them.
    """
    if request.dim != _TASK_DIM or request.members > _TASK_DEVICES or request.delta == 0:
        return None
    flags: dict[str, Any]
    if request.records is not None:
        held = request.records / request.rate
        whole = request.unit is Unit.EXAMPLE and request.records % 1 == 0
        if not whole or abs(held - round(held)) > _ROUNDED or request.cohort * held > _IMAGES:
            return None
        flags = {"workers": request.cohort, "samples": round(held)}
        flags["batch-size"] = int(request.records)
    else:
        # The task's own number of devices needs no flag.
        devices = {} if request.members == _TASK_DEVICES else {"workers": request.members}
        flags = {"task": _TASK, **devices, "cohort": request.cohort, "sampling": request.sampling}
    # Of the run's own delta each release has its share; a run takes rate and records from its data.
    chosen = {n: v for n, v in option.settings.items() if n not in ("delta", "rate", "records")}
    flags |= {
        "rounds": request.rounds, "budget": request.target_epsilon, "delta": request.delta,
        "method": option.method.name, **chosen,
    }  # fmt: skip
    return "diffsketch run " + " ".join(
        f"--{name.replace('_', '-')} {f'{value:.15g}' if isinstance(value, float) else value}"
        for name, value in flags.items()
    )


def flower_plan(option: Option, request: PlanRequest) -> str | None:
    """Write the plan for Flower's engine; None if it refuses the sampling."""
    if request.sampling == "poisson":
        return None
    # Shares of the noise add up to the claim only if as many answer as were planned.
    secure = option.trust is Trust.DISTRIBUTED
    how = proposed_sum(request.cohort)
    more = f', min_replies={request.cohort}, secure_sum="{how}"' if secure else ""
    return f'FlowerPlan("{option.method.name}", {option.settings!r}, cohort={request.cohort}{more})'


def _template(request: PlanRequest) -> str:
    """Name the template of the code: `private_mean` does all of one round without a sample."""
    if request.of_records:
        return "silos"
    if request.sampler is not None:
        return "poisson"
    return "one_round" if request.rounds == 1 else "rounds"


def python_code(option: Option, request: PlanRequest) -> str:
    """Write source that runs the plan.

    For one round it is a program that computes the mean of the user's vectors by `private_mean`.
    For more it defines `run_round(vectors, round_index)` for the vectors of a cohort by client (of
    all clients, if the sample is Poisson's). It charges the account of each, for the number of
    messages that come, before anything is released. The noise is exact where the method's is.
    """
    listed = ", ".join(f"{key!r}: {value!r}" for key, value in option.settings.items())
    lines = wrap(listed, _WIDTH, break_on_hyphens=False)
    inside = "".join(f"\n    {line}" for line in lines) + "\n" if len(lines) > 1 else listed
    records = "inputs, labels" + ", persons" * (request.unit is Unit.PERSON)
    parts = {
        "records": records, "rounds": request.rounds, "dim": request.dim,
        "method": f"settings = {{{inside}}}\nmethod = build_method({option.method.name!r}, "
        f"dim={request.dim}, cohort={request.cohort}, settings=settings)\n",
        "cohort": request.cohort, "members": request.members, "rate": request.drawn[0],
        "norm": f"{request.vector_norm:g}", "epsilon": repr(request.target_epsilon),
        "delta": repr(request.delta),
    }  # fmt: skip
    name = f"{_template(request)}.txt"
    template = resources.files("diffsketch.app").joinpath("assets", name)
    return Template(template.read_text(encoding="utf-8")).substitute(parts)


def _short(value: float) -> str:
    """Three digits, for a table: 1.23e5 and not 1.23e+05."""
    if 1000 <= value < 10**6:
        return f"{value:.0f}"
    digits, _, power = f"{value:.3g}".partition("e")
    return f"{digits}e{int(power)}" if power else digits


def _count(value: int) -> str:
    """All digits, unless they are very many."""
    return str(value) if value < 10**7 else _short(value)
