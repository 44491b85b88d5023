"""Runs that become one line: the same settings with several seeds. Its name says what differs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from diffsketch.app.settings import RunConfig, Value, describe
from diffsketch.pages.runs_reading import Run
from diffsketch.privacy.claim import Epsilon

__all__ = ["Line", "lines_of", "of_settings"]

_SETTINGS = {
    name: item.section
    for name, item in describe(RunConfig).items()
    # Which make no other run: but for the seed, only when checkpoints are written.
    if name not in ("seed", "checkpoint_seconds")
}
# Settings of methods that are said also where only different methods have different ones.
_ALWAYS = ("rows", "cols", "per_round")
# Sections in which no value means that something is not used, and not that it is off.
_UNUSED_IF_NONE = ("Method", "Training")


@dataclass(frozen=True, eq=False)
class Line:
    """Runs with the same settings, one for each seed.

    Attributes:
        name: Different from those of the other lines.
        runs: By seed.
    """

    name: str
    runs: tuple[Run, ...]

    @property
    def config(self) -> RunConfig:
        """The settings, with the first seed."""
        return self.runs[0].config

    @property
    def epsilon(self) -> Epsilon | None:
        """The largest of the seeds'; None if nothing is measured yet."""
        known = [run.epsilon for run in self.runs if run.epsilon is not None]
        return max(known, key=float, default=None)

    @property
    def seeds(self) -> str:
        """In words.

        Guarantees (`tests/pages/test_runs_lines.py`): at most a line, however many there are.
        """
        numbers = [run.config.seed for run in self.runs]
        if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
            return f"{numbers[0]} to {numbers[-1]}"
        return ", ".join(str(number) for number in numbers)


def lines_of(runs: Iterable[Run]) -> tuple[list[Line], list[str]]:
    """The lines of runs of one task, and what was left out.

    Runs with the same settings are one line. Two of them with one seed are the same run: the
    longer one is taken, so that nothing is counted twice. If they differ nevertheless, as after a
    change of the source, or have different names in a comparison, they are different lines.
    """
    groups: list[list[Run]] = []
    notes = []
    for run in runs:
        home = next((group for group in groups if _fits(run, group)), None)
        if home is None:
            groups.append([run])
            continue
        twin = next((other for other in home if other.config.seed == run.config.seed), None)
        home.append(run)
        if twin is not None:
            shorter = min((run, twin), key=lambda one: (one.ended, len(one.curve)))
            home.remove(shorter)
            longer = twin if shorter is run else run
            notes.append(f"{shorter.path} repeats {longer.path}, and is counted once.")
    for group in groups:
        group.sort(key=lambda run: run.config.seed)
    names = _names(groups)
    return [Line(name, tuple(group)) for name, group in zip(names, groups, strict=True)], notes


def of_settings(config: RunConfig) -> dict[str, Value]:
    """The settings that make a line, by name: those that are used, without the seed."""
    values = dict(config)
    return {name: values[name] for name in _SETTINGS if values[name] is not None}


def _fits(run: Run, group: Sequence[Run]) -> bool:
    if of_settings(run.config) != of_settings(group[0].config):
        return False
    names = {one.name for one in (run, *group)} - {None}
    return len(names) <= 1 and all(
        run.config.seed != other.config.seed or _agree(run, other) for other in group
    )


def _agree(one: Run, other: Run) -> bool:
    both = min(len(one.curve), len(other.curve))
    return one.curve[:both] == other.curve[:both]


def _names(groups: Sequence[Sequence[Run]]) -> list[str]:
    """Those of comparisons, or the method; with what differs, as far as they do not say it."""
    configs = [of_settings(group[0].config) for group in groups]
    given = [next((run.name for run in group if run.name is not None), None) for group in groups]
    all_differing = _differing(configs)
    names = []
    for name, config in zip(given, configs, strict=True):
        if name is None:
            words = _words(config, all_differing)
            names.append(_joined(str(config["method"]), words))
        else:
            alike = [one for one, other in zip(configs, given, strict=True) if other == name]
            names.append(_joined(name, _words(config, _differing(alike))))
    return [
        name if names.count(name) == 1 else f"{name} ({group[0].path})"
        for name, group in zip(names, groups, strict=True)
    ]


def _differing(configs: Sequence[Mapping[str, Value]]) -> list[str]:
    """The settings that are not the same in all of them, but for the method.

    What only some methods have differs where one method has it differently: that another method
    lacks it, or has another default, the method's name says already.
    """
    found = []
    for name, section in _SETTINGS.items():
        have = [one for one in configs if name in one or section not in _UNUSED_IF_NONE]
        if section == "Method" and name not in _ALWAYS:
            methods = {one["method"] for one in have}
            sets = [{one.get(name) for one in configs if one["method"] == own} for own in methods]
        else:
            sets = [{one.get(name) for one in have}]
        if name != "method" and any(len(values) > 1 for values in sets):
            found.append(name)
    return found


def _words(config: Mapping[str, Value], names: Sequence[str]) -> list[str]:
    words = []
    if ("rows" in names or "cols" in names) and "rows" in config:
        words.append(f"{config['rows']}x{config['cols']}")
    rest = [name for name in names if name in config and name not in ("rows", "cols")]
    return words + [_word(name, config[name]) for name in rest]


def _word(name: str, value: Value) -> str:
    """A setting in a name.

    >>> _word("per_round", 0.5), _word("learning_rate", 0.01), _word("rounds", 500)
    ('epsilon 0.5 a round', 'learning rate 0.01', '500 rounds')
    >>> _word("rotate", True), _word("schedule", "sqrt")
    ('rotate', 'schedule sqrt')
    """
    spoken = name.replace("_", " ")
    if isinstance(value, bool):
        return spoken if value else f"no {spoken}"
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    if name == "per_round":
        return f"epsilon {shown} a round"
    if name == "claimed":
        return f"epsilon {shown} claimed"
    if name in ("rounds", "workers", "samples"):
        return f"{value:,} {spoken}"
    return f"{spoken} {shown}"


def _joined(head: str, words: Sequence[str]) -> str:
    """The size belongs to the method: "sketch 7x22, epsilon 1 a round"."""
    size = bool(words) and words[0].replace("x", "", 1).isdigit()
    first = f"{head} {words[0]}" if size else ", ".join([head, *words[:1]])
    return ", ".join([first, *words[1:]])
