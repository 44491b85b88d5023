"""What is folded away below a figure: its settings, the paper's values, deviations, commands."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from diffsketch.app.settings import TASK_DEFAULTS, RunConfig, Value, describe
from diffsketch.pages.exhibits import Cell, Table
from diffsketch.reproduction.experiment import Experiment, Variant

__all__ = ["command_of", "details_of", "run_command"]


def details_of(experiment: Experiment) -> dict[str, Table]:
    """The tables, by heading; those that would be empty are left out."""
    found = {
        "Settings of all runs": _common(experiment),
        "Settings of each run": _each(experiment),
        "Measurements": _measured(experiment),
        "The paper's values": _paper(experiment),
        "Where this is not as in the paper": _deviations(experiment),
        "Commands": _commands(experiment),
    }
    return {heading: table for heading, table in found.items() if table.rows}


def command_of(names: Sequence[str], *, reduced: bool) -> str:
    """The command that makes a page again, but for where it is written.

    >>> command_of(["mnist"], reduced=True)
    'diffsketch reproduce mnist --quick'
    """
    return " ".join(["diffsketch reproduce", *names, *(["--quick"] if reduced else [])])


def run_command(settings: Mapping[str, Value], *, seed: int) -> str:
    """A training run alone, with what its task does not have anyway.

    >>> run_command({"task": "mnist", "method": "none", "rounds": 10, "workers": 10}, seed=3)
    'diffsketch run --method none --rounds 10 --seed 3'
    """
    known = describe(RunConfig)
    usual = TASK_DEFAULTS[str(settings.get("task", "mnist"))]
    words = ["diffsketch", "run"]
    for name, value in settings.items():
        if value == known[name].default or (
            known[name].default is None and value == usual.get(name)
        ):
            continue
        flag = known[name].flag
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        else:
            words += [flag, str(value)]
    return shlex.join([*words, "--seed", str(seed)])


def _shared(experiment: Experiment) -> dict[str, Value]:
    """Settings that all runs have, with the same values."""
    first, *others = [dict(one.settings) for one in experiment.variants] or [{}]
    return {
        key: value
        for key, value in first.items()
        if all(key in one and one[key] == value for one in others)
    }


def _common(experiment: Experiment) -> Table:
    rows = tuple((name, _cell(value)) for name, value in _shared(experiment).items())
    caption = "What is not written in the settings file comes from the task or the method."
    return _table(experiment, "common", ("setting", "value"), rows, caption)


def _each(experiment: Experiment) -> Table:
    shared = _shared(experiment)
    rows = tuple(
        (one.name, ", ".join(one.panels), one.group, experiment.seeds, _own(one, shared))
        for one in experiment.variants
    )
    return _table(experiment, "each", ("run", "drawn in", "group", "seeds", "settings"), rows)


def _own(variant: Variant, shared: Mapping[str, Value]) -> str:
    own = {key: value for key, value in variant.settings.items() if key not in shared}
    return _in_words(own)


def _measured(experiment: Experiment) -> Table:
    rows = tuple(
        (one.name, one.kind, len(experiment.measured(one)), _in_words(one.settings))
        for one in experiment.measurements
    )
    return _table(experiment, "measured", ("name", "measurement", "seeds", "settings"), rows)


def _paper(experiment: Experiment) -> Table:
    rows = tuple(experiment.paper.items())
    return _table(experiment, "paper-values", ("value", "in the paper"), rows)


def _deviations(experiment: Experiment) -> Table:
    rows = tuple((one.what, one.why) for one in experiment.deviations)
    return _table(experiment, "deviations", ("what is otherwise", "why"), rows)


def _commands(experiment: Experiment) -> Table:
    own = ("all of it", command_of([experiment.name], reduced=experiment.reduced))
    runs = tuple((one.name, run_command(one.settings, seed=0)) for one in experiment.variants)
    caption = f"Seeds are 0 to {experiment.seeds - 1}." if runs and experiment.seeds > 1 else ""
    return _table(experiment, "commands", ("what", "command"), (own, *runs), caption)


def _table(
    experiment: Experiment,
    name: str,
    columns: tuple[str, ...],
    rows: tuple[tuple[Cell, ...], ...],
    caption: str = "",
) -> Table:
    title = f"{experiment.place}: {name.replace('-', ' ')}"
    return Table(f"{experiment.name}-details-{name}", title, columns, rows, caption)


def _cell(value: Value) -> Cell:
    return str(value).lower() if isinstance(value, bool) else value


def _in_words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {_cell(value)}" for key, value in settings.items())
