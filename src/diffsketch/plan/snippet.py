"""A plan as a Python program that runs: what a worker sends, and what the server makes of it."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum

from diffsketch import privacy
from diffsketch import sketch as sketches
from diffsketch.plan.options import Option
from diffsketch.plan.padded import FittedPadding
from diffsketch.plan.request import PlanRequest
from diffsketch.privacy.accounting.accountant import Accountant, Budget
from diffsketch.privacy.claim import Trust, Unit
from diffsketch.privacy.mechanisms.integer import IntegerMechanism
from diffsketch.privacy.mechanisms.laplace import LaplaceMechanism
from diffsketch.privacy.mechanisms.privunit import PrivUnitG, ProjUnit
from diffsketch.privacy.noise import NoiseKey
from diffsketch.sketch import SketchKey

__all__ = ["python_code"]

_WIDTH = 80
_RUN_ROUND = [
    "def run_round(vectors, round_index):",
    '    """One round of all workers; refused once the budget is spent."""',
    "    accountant.spend(mechanism.claim)",
    "    messages = [send(each, worker, round_index) for worker, each in enumerate(vectors)]",
    "    return receive(messages, round_index)",
]
_USUAL = ("family", "order", "rejection")  # left out if they are what they usually are


def python_code(option: Option, request: PlanRequest) -> str:
    """Source that defines `send(vector, worker, round_index)` and `receive(messages, round_index)`.

    `run_round(vectors, round_index)` is both, for all workers, and charges an accountant first.
    For the unit `example` a worker sends `(examples, dim)` vectors, else one of `(dim,)`. The
    noise is for simulation: see `diffsketch.privacy.noise` on real releases.
    """
    own = isinstance(option.mechanism, ProjUnit | PrivUnitG | FittedPadding)
    sketch = None if own else option.sketch
    used = [Accountant, Budget, NoiseKey, *_classes(option.mechanism), *_classes(sketch)]
    setup = [f"WORKERS = {request.workers}"]
    if request.unit is Unit.EXAMPLE:
        setup += [f"EXAMPLES = {request.examples}"]
    setup += [f"mechanism = {_source(option.mechanism)}"]
    budget = f"Budget(epsilon={request.target_epsilon!r}, delta={request.delta!r})"
    setup += [f"accountant = Accountant(mechanism.claim.scope, {budget})"]
    setup += ["secret = NoiseKey.from_integer(0)  # for simulation"]
    if sketch is not None:
        setup += [f"sketch = {_source(sketch)}"]
    if option.sketch is not None or isinstance(option.mechanism, ProjUnit):
        used.append(SketchKey)
        setup += ["key = SketchKey.from_integer(0)  # the workers' shared secret"]
    parts = _own_functions(option) if own else _functions(option, request)
    parts.append(_RUN_ROUND)
    imports = _imports(used)
    if isinstance(option.mechanism, ProjUnit):
        imports = ["import torch", "", *imports]
    lines = [*imports, "", *setup]
    return "\n".join(lines + [line for part in parts for line in ("", "", *part)]) + "\n"


def _imports(kinds: list[type]) -> list[str]:
    """From the packages that export the names, where they do."""
    names: dict[str, set[str]] = {}
    for kind in kinds:
        exporting = (each.__name__ for each in (privacy, sketches) if kind.__name__ in each.__all__)
        names.setdefault(next(exporting, kind.__module__), set()).add(kind.__name__)
    lines = []
    for module in sorted(names):
        line = f"from {module} import {', '.join(sorted(names[module]))}"
        if len(line) > _WIDTH:
            inner = "".join(f"    {name},\n" for name in sorted(names[module]))
            line = f"from {module} import (\n{inner})"
        lines.append(line)
    return lines


def _functions(option: Option, request: PlanRequest) -> list[list[str]]:
    encoder = [_encoder()] if option.sketch else []
    return [*encoder, _send(option, request), _receive(option, request)]


def _own_functions(option: Option) -> list[list[str]]:
    """For mechanisms that encode and decode by themselves."""
    noise = "    noise = secret.source(worker=worker, round_index=round_index)"
    send, receive = "def send(vector, worker, round_index):", "def receive(messages, round_index):"
    said, mean = '    """A message with noise."""', '    """The estimated mean."""'
    if isinstance(option.mechanism, PrivUnitG):
        decoded = "mechanism.decode(sum(messages)) / WORKERS"
        first = [send, said, noise, "    return mechanism.release(vector, noise)"]
        return [first, [receive, mean, f"    return {decoded}"]]
    seed = "    seed = key.seed(round_index)"
    if isinstance(option.mechanism, ProjUnit):
        made = "mechanism.release(vector[None], noise, seed=seed, first_worker=worker)[0]"
        decoded = "mechanism.decode(torch.stack(list(messages)), seed=seed) / WORKERS"
        first = [send, said, seed, noise, f"    return {made}"]
        return [first, [receive, mean, seed, f"    return {decoded}"]]
    fitted = "    fitted = mechanism.at(key.seed(round_index))"
    decoded = 'fitted.query(sum(messages) / WORKERS, combine="mean")'
    first = [send, said, fitted, noise, "    return fitted.release(vector, noise)"]
    return [first, [receive, mean, fitted, f"    return {decoded}"]]


def _encoder() -> list[str]:
    return [
        "def encoder(round_index):",
        "    seed = key.seed(round_index)",
        "    return lambda vectors: sketch.encode(vectors, seed)",
    ]


def _send(option: Option, request: PlanRequest) -> list[str]:
    examples = request.unit is Unit.EXAMPLE
    name = "vectors" if examples else "vector"
    encode = "encoder(round_index)" if option.sketch else "None"
    lines = [f"def send({name}, worker, round_index):", f'    """{_what(option)}"""']
    integer = isinstance(option.mechanism, IntegerMechanism)
    if option.trust is Trust.CENTRAL and not integer:
        bounded = f"mechanism.bound.apply({name}, {encode})"
        return [*lines, f"    return {bounded}{'.sum(dim=0)' if examples else ''}"]
    lines += ["    noise = secret.source(worker=worker, round_index=round_index)"]
    rounded = [f"    rounded = mechanism.rounded({name}, noise, encode={encode})"]
    if option.trust is Trust.CENTRAL:
        summed = "rounded.sum(dim=0)" if examples else "rounded"
        # Cut off and not wrapped: what differs by little before then does so after.
        half = 1 << (option.bits - 1)
        return [*lines, *rounded, f"    return {summed}.clamp({-half}, {half - 1})"]
    if not examples:
        return [*lines, f"    return mechanism.release({name}, noise, encode={encode})"]
    if not integer:
        return [*lines, f"    return mechanism.release_sum({name}, noise, encode={encode})"]
    return [*lines, *rounded, "    return mechanism.perturb(rounded.sum(dim=0), noise)"]


def _receive(option: Option, request: PlanRequest) -> list[str]:
    lines = ["def receive(messages, round_index):", '    """The estimated mean."""']
    server = "    noise = secret.source(worker=WORKERS, round_index=round_index)"
    integer = isinstance(option.mechanism, IntegerMechanism)
    if option.trust is Trust.CENTRAL and integer:
        total = "mechanism.perturb(sum(messages), noise)"
        lines += [server, f"    mean = mechanism.decode({total}, WORKERS)"]
    elif option.trust is Trust.CENTRAL:
        draw = "normal(tuple(total.shape), mechanism.std"
        if isinstance(option.mechanism, LaplaceMechanism):
            draw = "laplace(tuple(total.shape), mechanism.scale"
        lines += [
            "    total = sum(messages)",
            server,
            f"    mean = (total + noise.{draw}, dtype=total.dtype)) / WORKERS",
        ]
    elif not integer:
        lines += ["    mean = sum(messages) / WORKERS"]
    elif option.trust is Trust.LOCAL:
        lines += ["    mean = sum(mechanism.decode(message, 1) for message in messages) / WORKERS"]
    else:
        lines += ["    mean = mechanism.decode(sum(messages), WORKERS)"]
    if request.unit is Unit.EXAMPLE:
        lines += ["    mean = mean / EXAMPLES"]
    if option.sketch is None:
        return [*lines, "    return mean"]
    return [*lines, '    return sketch.query(mean, key.seed(round_index), combine="mean")']


def _what(option: Option) -> str:
    what = "vector" if option.sketch is None else "table"
    return f"A {what} without noise." if option.trust is Trust.CENTRAL else f"A {what} with noise."


def _classes(value: object) -> list[type]:
    """The classes that it takes to write `value` down."""
    if isinstance(value, Enum):
        return [type(value)]
    if not is_dataclass(value):
        return []
    found: list[type] = [type(value)]
    for field in fields(value):
        if field.init:
            found += _classes(getattr(value, field.name))
    return found


def _source(value: object, indent: int = 0) -> str:
    """`value` as an expression, on several lines where one would be too long."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if not is_dataclass(value):
        return repr(value)
    inner = [
        (field.name, getattr(value, field.name))
        for field in fields(value)
        if field.init and (field.name not in _USUAL or getattr(value, field.name) != field.default)
    ]
    name = type(value).__name__
    line = f"{name}({', '.join(f'{key}={_source(item)}' for key, item in inner)})"
    if len(line) + indent <= _WIDTH:
        return line
    space = " " * (indent + 4)
    items = [f"{space}{key}={_source(item, indent + 4)},\n" for key, item in inner]
    return f"{name}(\n{''.join(items)}{' ' * indent})"
