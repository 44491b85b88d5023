"""A plan as people read it, as programs do (plain data), and as what runs it: command and code."""

from __future__ import annotations

import re
from dataclasses import asdict
from textwrap import wrap
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from diffsketch.planning.planner import Plan
from diffsketch.planning.request import PlanRequest
from diffsketch.planning.search import Option
from diffsketch.privacy.claim import Trust, Unit

__all__ = ["explain", "flower_plan", "python_code", "report", "run_command", "to_data"]

_COLUMNS = ("shape", "bits", "clip", "noise", "bytes", "ratio", "error", "epsilon")
_WIDTH = 74
_NAME = 15  # columns for the longest name of a method
_TASK, _TASK_DIM, _TASK_DEVICES = "mnist-devices", 7850, 6000  # of `diffsketch run`, with devices


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
        # The trust has a line of its own, or a terminal of 80 columns would be too narrow.
        name = f"{option.method.name}\n  {option.trust}"
        table.add_row(name, *_cells(option), style="bold" if index == 0 else None)
    total = plan.best.total
    reading = (
        "noise: multiplier of the sensitivity, epsilon of a round (laplace, projunit) or trials "
        "(cpsgd). ratio: the vector in float32 over the message. error: of one round, over the "
        "squared norm of the mean; those within 1% of each other count as equal, and then less "
        f"trust, then fewer bytes, decide. epsilon: {total.basis}, for the {total.scope.unit} unit "
        f"({total.scope.relation}) and the trust of its line, at delta = {request.delta:g} over "
        f"{_rounds(total.rounds)}."
    )
    parts: list[Table | Text] = [table, Text(reading, style="dim"), Text()]
    parts.append(Text.assemble(("Best: ", "bold"), explain(plan.best, request)))
    parts += [Text.assemble(("Warning: ", "bold red"), text) for text in plan.warnings]
    if plan.advice:
        parts.append(Text("What would help:", style="bold"))
        parts += [Text(f"- {text}") for text in plan.advice]
    parts += [Text(f"Note: {text}", style="dim") for text in plan.notes]
    parts.append(Text("Run it:", style="bold"))
    command, flower = run_command(plan.best, request), flower_plan(plan.best, request)
    if command is not None:
        # To be copied, so that no terminal may break it elsewhere; flags stay with their values.
        joined = re.sub(r"(--\S+) ", "\\1\0", command)
        lines = wrap(joined, _WIDTH, break_on_hyphens=False)
        parts.append(Text(" \\\n    ".join(lines).replace("\0", " ")))
    if flower is not None:
        parts.append(Text.assemble(("In Flower: ", "bold"), flower))
    parts.append(Text("In Python: --code prints a program."))
    return tuple(parts)


def explain(option: Option, request: PlanRequest) -> str:
    """What an option does and gives, in a few sentences."""
    method, clip = option.method, option.settings["clip"]
    table = "rows" in option.settings
    steps = [f"sketches its vector into {option.shape} cells"] if table else []
    if request.unit is Unit.COORDINATE:
        steps.insert(0, f"clips each coordinate to {clip:g}")
    else:
        steps.append(f"clips {'the table' if table else 'its vector'} to the norm {clip:g}")
    if method.exact:
        steps.append("rounds it to whole numbers")
    after = ""
    if option.trust is Trust.LOCAL:
        steps.append("adds noise")
    elif option.trust is Trust.DISTRIBUTED:
        steps.append("adds its share of the noise")
        after = " A secure sum hides the single messages."
    else:
        after = " The server, which all trust, adds noise to the sum."
    *first, last = [*steps, f"sends {method.wire_bytes:,} bytes"]
    return (
        f"{method.name}. In each round a client {', '.join(first)} and {last}, "
        f"{_size(method.compression)} the vector.{after} The predicted error is "
        f"{option.error.total:.3g}. All together: {option.total}."
    )


def run_command(option: Option, request: PlanRequest) -> str | None:
    """A `diffsketch run` of the plan; None if no task of it has such vectors and devices.

    Those of MNIST* over devices have norms of their own: `--norm` should be near them.
    """
    few = request.members <= _TASK_DEVICES
    if request.dim != _TASK_DIM or not few or request.delta == 0:
        return None
    flags: dict[str, Any] = {"task": _TASK}
    if request.members != _TASK_DEVICES:
        flags["workers"] = request.members
    flags |= {"cohort": request.cohort, "sampling": request.sampling, "rounds": request.rounds}
    flags |= {
        "budget": request.target_epsilon,
        "delta": request.delta,
        "method": option.method.name,
    }
    flags |= {name: value for name, value in option.settings.items() if name != "delta"}
    return "diffsketch run " + " ".join(
        f"--{name.replace('_', '-')} {_plain(value)}" for name, value in flags.items()
    )


def flower_plan(option: Option, request: PlanRequest) -> str | None:
    """The plan for Flower's engine; None if the engine refuses the method or the sampling."""
    if not option.method.exact or request.sampling == "poisson":
        return None
    secure = option.trust is Trust.DISTRIBUTED
    more = f", min_replies={request.cohort}, secure_sum=True" if secure else ""
    return f'FlowerPlan("{option.method.name}", {option.settings!r}, cohort={request.cohort}{more})'


def python_code(option: Option, request: PlanRequest) -> str:
    """Source that defines `send(vector, round_index)` and `receive(messages, round_index)`.

    `run_round(vectors, round_index)` is both, for a cohort (for all clients, if the sample is
    Poisson's), and charges an accountant first. The noise is exact where the method's is.
    """
    name, exact, poisson = option.method.name, option.method.exact, request.sampler is not None
    settings = "".join(f"        {key!r}: {value!r},\n" for key, value in option.settings.items())
    noise, count = "SecureNoise()", "len(messages)"
    imports, setup, body = ["Accountant", "Budget", "SecureNoise"], "", ""
    if not exact:
        noise = "CohortNoise(NoiseKey(token_bytes(32)), [0], round_index=0)"
        imports[2:] = ["CohortNoise", "NoiseKey"]
    if request.sampler is not None:
        imports.insert(2, "PoissonSampler")
        setup = f"sampler = {request.sampler!r}\n".replace(f", unit={request.sampler.unit!r}", "")
        setup += "claim = sampler.amplified(claim)\n"
        body = "    vectors = vectors[sampler.draw(SecureNoise())]\n"
        count = str(request.cohort)
    charge = "    accountant.spend(claim)\n"
    passes = request.members // request.cohort
    if request.sampling == "shuffled" and passes > 1:
        charge = (
            f"    if round_index % {passes} == 0:  # each client is in one of so many rounds\n"
            "        accountant.spend(claim)\n"
        )
    start = (
        "    messages = [torch.zeros(method.message_format.shape, dtype=torch.int64), *messages]\n"
    )
    start = start if poisson else ""
    first = "import torch\n\n" if poisson else ""
    if not exact:
        first = (
            "# For simulation only: its proof is about real numbers, and engines refuse it.\n"
            "from secrets import token_bytes\n\n"
        )
    return f'''{first}from diffsketch import SketchKey, build_method
from diffsketch.privacy import {", ".join(imports)}

method = build_method(
    "{name}",
    dim={request.dim},
    cohort={request.cohort},
    settings={{
{settings}    }},
)
key = SketchKey.from_integer(0)  # of the hashes; the same for all clients
claim = method.claim_for({request.cohort}, key.seed(0))
{setup}budget = Budget(epsilon={request.target_epsilon!r}, delta={request.delta!r})
accountant = Accountant(claim.scope, budget)  # of any one client


def send(vector, round_index):
    """The message of one client."""
    noise = {noise}
    return method.encode(vector, key.seed(round_index), noise).messages


def receive(messages, round_index):
    """The estimated mean."""
{start}    noise = {noise}
    total = method.publish(sum(messages), noise)
    return method.decode(total, key.seed(round_index), count={count})


def run_round(vectors, round_index):
    """One round; refused once the budget is spent."""
{charge}{body}    return receive([send(each, round_index) for each in vectors], round_index)
'''


def to_data(plan: Plan) -> dict[str, Any]:
    """The whole plan as plain data, for JSON."""
    return {
        "request": {**asdict(plan.request), "paying_rounds": plan.request.paying_rounds},
        "best": _data(plan.best, plan.request),
        "alternatives": [_data(option, plan.request) for option in plan.alternatives],
        "warnings": list(plan.warnings),
        "advice": list(plan.advice),
        "notes": list(plan.notes),
        "code": python_code(plan.best, plan.request),
    }


def _data(option: Option, request: PlanRequest) -> dict[str, Any]:
    error, total, scope = option.error, option.total, option.total.scope
    return {
        "method": option.method.name,
        "settings": option.settings,
        "exact": option.method.exact,
        "shape": list(option.method.message_format.shape),
        "bits": option.method.message_format.bits,
        "message_bytes": option.method.wire_bytes,
        "compression": option.method.compression,
        "relative_error": error.total,
        "error_parts": {
            "recovery": error.recovery,
            "noise": error.noise,
            "rounding": error.rounding,
        },
        "worse_than_nothing": error.total > 1,
        "total_epsilon": {
            "value": float(total),
            "delta": total.delta,
            "rounds": total.rounds,
            "basis": total.basis.value,
            "unit": scope.unit.value,
            "relation": scope.relation.value,
            "trust": scope.trust.value,
        },
        "explanation": explain(option, request),
        "command": run_command(option, request),
        "flower": flower_plan(option, request),
    }


def _cells(option: Option) -> tuple[str, ...]:
    names = ("noise_multiplier", "per_round", "trials")
    noise = next(option.settings[name] for name in names if name in option.settings)
    return (
        " x ".join(_count(size) for size in option.method.message_format.shape),
        str(option.method.message_format.bits),
        _short(option.settings["clip"]),
        _short(noise),
        _count(option.method.wire_bytes),
        f"{_short(option.method.compression)}x",
        _short(option.error.total),
        option.total.shown(),
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


def _plain(value: object) -> str:
    """As the command line takes it."""
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _size(compression: float) -> str:
    """Bytes of a message beside the vector."""
    if 0.95 < compression < 1.05:
        return "about as many as"
    if compression < 1:
        return f"{1 / compression:.3g} times larger than"
    return f"{compression:.3g} times less than"


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count:,} rounds"
