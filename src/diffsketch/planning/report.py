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
from diffsketch.planning.search import Option, PlanRequest
from diffsketch.privacy.claim import Trust, Unit

_COLUMNS = ("shape", "bits", "clip", "noise", "bytes", "ratio", "error", "epsilon")
_WIDTH = 74
TASK, TASK_DIM, TASK_DEVICES = "mnist-devices", 7850, 6000  # of `diffsketch run`, with devices


def report_plan(plan: Plan) -> tuple[Table | Text, ...]:
    """Lay out the options side by side, the best one in words, and what to beware of."""
    request = plan.request
    table = Table(
        title="Ways to estimate the mean, best first", title_justify="left",
        box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False,
    )  # fmt: skip
    table.add_column("method", min_width=15)  # the longest name
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for index, option in enumerate((plan.best, *plan.alternatives)):
        method, settings = option.method, option.settings
        level = ("noise_multiplier", "per_round", "trials")
        noise = next(settings[name] for name in level if name in settings)
        table.add_row(
            # The trust has a line of its own, or a terminal of 80 columns would be too narrow.
            f"{method.name}\n  {option.trust}",
            " x ".join(_count(size) for size in method.message_format.shape),
            str(method.message_format.bits), _short(settings["clip"]), _short(noise),
            _count(method.wire_bytes), f"{_short(method.compression)}x",
            _short(option.error.total), option.total.shown(),
            style="bold" if index == 0 else None,
        )  # fmt: skip
    total = plan.best.total
    reading = (
        "noise: multiplier of the sensitivity, epsilon of a round (laplace) or trials "
        "(cpsgd). ratio: the vector in float32 over the message. error: of one round, over the "
        "squared norm of the mean; ties within 1% are broken by weaker trust, then fewer bytes. "
        f"epsilon: {total.basis}, for the {total.scope.unit} unit ({total.scope.relation}) and the "
        f"trust of its line, at delta = {request.delta:g} over {total.rounds:,} "
        f"round{'s' if total.rounds > 1 else ''}."
    )
    parts: list[Table | Text] = [table, Text(reading, style="dim"), Text()]
    parts.append(Text.assemble(("Best: ", "bold"), explain(plan.best, request)))
    parts += [Text.assemble(("Warning: ", "bold red"), text) for text in plan.warnings]
    if plan.advice:
        parts.append(Text("What would help:", style="bold"))
        parts += [Text(f"- {text}") for text in plan.advice]
    parts += [Text(f"Note: {text}", style="dim") for text in plan.notes]
    parts.append(Text("Run it:", style="bold"))
    if (command := run_command(plan.best, request)) is not None:
        # To be copied, so that no terminal may break it elsewhere; flags stay with their values.
        joined = re.sub(r"(--\S+) ", "\\1\0", command)
        lines = wrap(joined, _WIDTH, break_on_hyphens=False)
        parts.append(Text(" \\\n    ".join(lines).replace("\0", " ")))
    if (flower := flower_plan(plan.best, request)) is not None:
        budget = f"Budget({request.target_epsilon!r}, {request.delta!r})"
        often = (
            f"with budget={budget} for SketchStrategy and sketch_mod. Flower draws nodes as it "
            "likes; accounts see to it that a client stops at its budget"
        )
        parts.append(Text.assemble(("In Flower: ", "bold"), f"{flower}, {often}."))
    printed = "a program" if _in_one_call(request) else "the function of a round"
    parts.append(Text(f"In Python: --code prints {printed}."))
    return tuple(parts)


def explain(option: Option, request: PlanRequest) -> str:
    """Explain what an option does and gives, in a few sentences."""
    method, clip, table = option.method, option.settings["clip"], "rows" in option.settings
    shape, ratio = " x ".join(map(str, method.message_format.shape)), method.compression
    steps = [f"sketches its vector into {shape} cells"] if table else []
    if request.unit is Unit.COORDINATE:
        steps.insert(0, f"clips each coordinate to {clip:g}")
    else:
        steps.append(f"clips {'the table' if table else 'its vector'} to the norm {clip:g}")
    steps.append("rounds it to whole numbers")
    after = ""
    if option.trust is Trust.LOCAL:
        steps.append("adds noise")
    elif option.trust is Trust.DISTRIBUTED:
        steps.append("adds its share of the noise")
        after = " A secure sum hides the single messages."
    else:
        after = " The server, which all trust, adds noise to the sum."
    size = f"{ratio:.3g} times less than"
    if ratio < 1.05:
        size = "about as many as" if ratio > 0.95 else f"{1 / ratio:.3g} times larger than"
    return (
        f"{method.name}. In each round a client {', '.join(steps)} and sends "
        f"{method.wire_bytes:,} bytes, {size} the vector.{after} The predicted error is "
        f"{option.error.total:.3g}. All together: {option.total}."
    )


def run_command(option: Option, request: PlanRequest) -> str | None:
    """Write a `diffsketch run` of the plan; None if no task of it has such vectors and devices.

    Those of MNIST* over devices have norms of their own: `--norm` should be near them.
    """
    few = request.members <= TASK_DEVICES
    if request.dim != TASK_DIM or not few or request.delta == 0:
        return None
    every = request.members == TASK_DEVICES
    flags: dict[str, Any] = {
        "task": TASK, **({} if every else {"workers": request.members}),
        "cohort": request.cohort, "sampling": request.sampling, "rounds": request.rounds,
        "budget": request.target_epsilon, "delta": request.delta, "method": option.method.name,
        **{name: value for name, value in option.settings.items() if name != "delta"},
    }  # fmt: skip
    return "diffsketch run " + " ".join(
        f"--{name.replace('_', '-')} {f'{value:.15g}' if isinstance(value, float) else value}"
        for name, value in flags.items()
    )


def flower_plan(option: Option, request: PlanRequest) -> str | None:
    """Write the plan for Flower's engine; None if it refuses the sampling."""
    if request.sampling == "poisson":
        return None
    secure = option.trust is Trust.DISTRIBUTED
    more = f", min_replies={request.cohort}, secure_sum=True" if secure else ""
    return f'FlowerPlan("{option.method.name}", {option.settings!r}, cohort={request.cohort}{more})'


def _in_one_call(request: PlanRequest) -> bool:
    """Whether `private_mean` does all of it: one round, and no secret sample."""
    return request.rounds == 1 and request.sampler is None


def python_code(option: Option, request: PlanRequest) -> str:
    """Write source that runs the plan.

    For one round it is a program that computes the mean of the user's vectors by `private_mean`.
    For more it defines `run_round(vectors, round_index)` for the vectors of a cohort by client (of
    all clients, if the sample is Poisson's). It charges the account of each, for the number of
    messages that come, before anything is released. The noise is exact where the method's is.
    """
    given = ", ".join(f"{key!r}: {value!r}" for key, value in option.settings.items())
    lines = wrap(given, _WIDTH, break_on_hyphens=False)
    inside = "".join(f"\n    {line}" for line in lines) + "\n" if len(lines) > 1 else given
    method = (
        f"settings = {{{inside}}}\n"
        f"method = build_method({option.method.name!r}, dim={request.dim}, "
        f"cohort={request.cohort}, settings=settings)\n"
    )
    if _in_one_call(request):
        return _code_of_one_call(method, request)
    return _code_of_rounds(method, request)


def _code_of_one_call(method: str, request: PlanRequest) -> str:
    return f"""import numpy as np

from diffsketch import build_method, private_mean

{method}vectors = np.load("vectors.npy")  # a row for each holder
# {request.cohort} rows: fewer raise epsilon. Norms of {request.vector_norm:g} at most: longer
# vectors are clipped.
found = private_mean(vectors, method)  # with a new key and new noise in each call
print(found.mean)
print(found.claim.epsilon(delta={request.delta!r}, rounds=1))
"""


def _code_of_rounds(method: str, request: PlanRequest) -> str:
    """Write `run_round`: each client has its own account, and claims are for who takes part."""
    sampler, imports, setup, start = request.sampler, "", "", ""
    claim, senders, count = "method.claim_for(len(vectors), seed)", "vectors", "len(messages)"
    if sampler is not None:
        imports = "from diffsketch.privacy import PoissonSampler, SecureNoise\n"
        setup = f"sampler = {sampler!r}\n".replace(f", unit={sampler.unit!r}", "")
        claim = f"sampler.amplified(method.claim_for({request.cohort}, seed))"
        senders, count = "drawn", str(request.cohort)
        start = (
            "    # Who is drawn is secret: everybody pays, and an empty sample has its noise.\n"
            "    drawn = [list(vectors)[place] for place in sampler.draw(SecureNoise()).tolist()]\n"
        )
    return f'''"""Rounds of a private mean: call run_round with the clients' vectors, by client."""

from secrets import token_bytes

import torch

from diffsketch import Account, Budget, SketchKey, build_method
from diffsketch.methods import release, release_noise
{imports}
{method}key = SketchKey(token_bytes(32))  # of the hashes; to be shared by all clients, and kept
{setup}budget = Budget(epsilon={request.target_epsilon!r}, delta={request.delta!r})
accounts = {{}}  # of each client; Account.open(path, budget=budget) has one in a file


def run_round(vectors, round_index):
    """The mean of vectors, a dict by client; refused if one of them has spent its budget."""
    seed = key.seed(round_index)
    claim = {claim}
    for client in vectors:
        accounts.setdefault(client, Account(budget)).check(claim)  # or nobody pays
    for client in vectors:
        accounts[client].charge(claim)
{start}    messages = []
    for client in {senders}:
        released = release(vectors[client][None], method, seed, claim, charge=None)  # charged above
        messages.append(released.encoded.messages[0])
    total = sum(messages, torch.zeros(method.message_format.shape, dtype=torch.int64))
    total = method.publish(total, release_noise(method, claim))
    return method.decode(total, seed, count={count})
'''


def to_data(plan: Plan) -> dict[str, Any]:
    """Convert the whole plan to plain data, for JSON."""
    request = plan.request

    def plain(option: Option) -> dict[str, Any]:
        method, error, total, scope = option.method, option.error, option.total, option.total.scope
        return {
            "method": method.name,
            "settings": option.settings,
            "exact": method.exact,
            "shape": list(method.message_format.shape),
            "bits": method.message_format.bits,
            "message_bytes": method.wire_bytes,
            "compression": method.compression,
            "relative_error": error.total,
            "error_parts": {key: getattr(error, key) for key in ("recovery", "noise", "rounding")},
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

    return {
        "request": {**asdict(request), "paying_rounds": request.paying_rounds},
        "best": plain(plan.best),
        "alternatives": [plain(option) for option in plan.alternatives],
        "warnings": list(plan.warnings),
        "advice": list(plan.advice),
        "notes": list(plan.notes),
        "code": python_code(plan.best, request),
    }


def _short(value: float) -> str:
    """Three digits, for a table: 1.23e5 and not 1.23e+05."""
    if 1000 <= value < 10**6:
        return f"{value:.0f}"
    digits, _, power = f"{value:.3g}".partition("e")
    return f"{digits}e{int(power)}" if power else digits


def _count(value: int) -> str:
    """All digits, unless they are very many."""
    return str(value) if value < 10**7 else _short(value)
