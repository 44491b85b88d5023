"""Settings files of experiments: one TOML file a figure or table of the paper, read strictly.

Keys of a file; all but those marked are required:

* `title`, `place` ("Figure 3"), `says` (what the paper reads from it): text.
* `drawing`: one of `diffsketch.reproduction.drawings.registry`.
* `seeds`: how many, from 0 on; 5 if not given.
* `[paper]` (optional): the paper's values, text by name; "not given" where it has none.
* `[[deviation]]` (any number): `what` is done otherwise, and `why`.
* `[common]` (optional): settings of `diffsketch run` for every `[[run]]`. As in the files of
  `diffsketch compare`, settings of methods (such as `rows`) go to the methods that have them.
* `[[run]]` (any number): `name` for the legend, `panels` (the plots that it is drawn in; a list of
  one at least), `group` ("paper" if not given, "proven" or "ablation"), and any settings of
  `diffsketch run` but the seed. A name is used once in each panel.
* `[[measure]]` (any number): `name`, used once; `kind`, one of
  `diffsketch.reproduction.measurements.registry`; `seeds` (the file's if not given); `settings`
  (a table, empty if not given), which the measurement checks itself.
* `[options]` (optional): for the drawing, which checks them itself.
* `[quick]` (optional): what `--quick` replaces.

  * `seeds`: instead of the file's, and the most that any `[[measure]]` has.
  * `common`: a table of settings of `diffsketch run`, instead of those of `[common]` and of the
    `[[run]]`s that have the same keys.
  * `measure`: a table, instead of the same keys in the `settings` of every `[[measure]]` that has
    them; one at least has to.
  * `panels`: only the `[[run]]`s in these panels are run, and drawn only there.

There is a `[[run]]` or a `[[measure]]` at least. Settings of runs are completed with what their
task and method have, so that the same run is found to be the same in two files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from diffsketch.app.settings import (
    RunConfig,
    Value,
    checked_table,
    nearest,
    read_toml,
    with_task_defaults,
)
from diffsketch.errors import ArgumentError, DataError, DiffSketchError
from diffsketch.reproduction.drawings.registry import DRAWINGS
from diffsketch.reproduction.experiment import Deviation, Experiment, Measurement, Variant
from diffsketch.reproduction.measurements.registry import MEASUREMENTS
from diffsketch.reproduction.reading import Reader

__all__ = ["SETTINGS", "load", "names", "outline"]

SETTINGS = Path(__file__).parent / "settings"
"""The package's settings files."""

_ORDER = (
    "cpsgd",
    "mnist",
    "shakespeare",
    "accuracy-compression",
    "privacy-communication",
    "gradients",
    "updates",
    "local-epsilon",
    "datasets",
    "cpsgd-parameters",
    "convergence",
    "correction",
    "audit",
)  # that of the paper, then what it does not have
_GROUPS = ("paper", "proven", "ablation")


def names(folder: Path = SETTINGS) -> tuple[str, ...]:
    """Of all experiments, in the paper's order; others come last."""
    found = sorted(path.stem for path in folder.glob("*.toml"))
    return tuple(sorted(found, key=lambda name: (name not in _ORDER, _place(name))))


def load(name: str, *, reduced: bool, folder: Path = SETTINGS) -> Experiment:
    """The experiment of that name, every setting of its runs checked and completed.

    Guarantees (`tests/reproduction/test_loading.py`, `tests/reproduction/test_settings.py`): a key
    that is missing, unknown or of another type is an error; all files of the package load.

    Args:
        name: Of a file in the folder.
        reduced: Whether for `--quick`.
        folder: Of the settings files.

    Raises:
        ArgumentError: There is no such experiment.
        DataError: Something in its file is wrong.
    """
    experiment, common = _read(name, reduced=reduced, folder=folder)
    variants = _completed(experiment.variants, common, _path(name, folder))
    return dataclasses.replace(experiment, variants=_drawn(variants))


def outline(name: str, *, reduced: bool, folder: Path = SETTINGS) -> Experiment:
    """The experiment as `load` gives it, but with the settings of its runs as they are written.

    For a list of experiments: nothing heavy is imported for it.

    Raises:
        ArgumentError: There is no such experiment.
        DataError: Something in its file is wrong.
    """
    experiment, common = _read(name, reduced=reduced, folder=folder)
    variants = [
        dataclasses.replace(one, settings={**common, **one.settings}) for one in experiment.variants
    ]
    return dataclasses.replace(experiment, variants=_drawn(variants))


def _drawn(variants: Iterable[Variant]) -> tuple[Variant, ...]:
    """Those that are in a panel: `--quick` may have left none to some."""
    return tuple(one for one in variants if one.panels)


def _place(name: str) -> int:
    return _ORDER.index(name) if name in _ORDER else 0


def _path(name: str, folder: Path) -> Path:
    return folder / f"{name}.toml"


def _read(name: str, *, reduced: bool, folder: Path) -> tuple[Experiment, dict[str, Value]]:
    """The experiment with the runs' own settings, and their common ones."""
    known = names(folder)
    if name not in known:
        raise ArgumentError(
            f"name must be that of an experiment, got name={name!r}; {nearest(name, known)}"
        )
    path = _path(name, folder)
    reader = Reader(read_toml(path), f"{path}:")
    drawing = reader.take("drawing", str)
    if drawing not in DRAWINGS:
        hint = nearest(drawing, DRAWINGS)
        raise DataError(f"{path}: drawing must be the name of one, got drawing={drawing!r}; {hint}")
    experiment = Experiment(
        name=name,
        title=reader.take("title", str),
        place=reader.take("place", str),
        says=reader.take("says", str),
        drawing=drawing,
        paper=_paper(reader.reader("paper")),
        deviations=tuple(_deviation(one) for one in reader.readers("deviation")),
        seeds=reader.count("seeds", 5) or 0,
        variants=tuple(_variant(one) for one in reader.readers("run")),
        measurements=tuple(_measurement(one) for one in reader.readers("measure")),
        options=reader.reader("options").rest(),
    )
    given = reader.reader("common")
    common = _settings(given.rest(), given.where)
    quick = reader.reader("quick")
    reader.end()
    _check_whole(experiment, common, path)
    less, less_common = _reduced(experiment, common, quick)
    return (less, less_common) if reduced else (experiment, common)


def _paper(reader: Reader) -> dict[str, str]:
    found = reader.rest()
    for key, value in found.items():
        if not isinstance(value, str):
            raise DataError(f"{reader.where} {key} must be text, got {key}={value!r}")
    return found


def _deviation(reader: Reader) -> Deviation:
    found = Deviation(what=reader.take("what", str), why=reader.take("why", str))
    reader.end()
    return found


def _variant(reader: Reader) -> Variant:
    name, panels = reader.take("name", str), reader.texts("panels")
    group = reader.take("group", str, "paper")
    if group not in _GROUPS:
        words = ", ".join(_GROUPS)
        raise DataError(f"{reader.where} group must be one of {words}, got group={group!r}")
    return Variant(name, panels, _settings(reader.rest(), reader.where), group)


def _settings(table: Mapping[str, Any], where: str) -> dict[str, Value]:
    if "seed" in table:
        raise DataError(
            f"{where} seed must not be given, since there are as many as seeds says, "
            f"got seed={table['seed']!r}"
        )
    return checked_table(table, where)


def _measurement(reader: Reader) -> Measurement:
    name, kind = reader.take("name", str), reader.take("kind", str)
    if kind not in MEASUREMENTS:
        raise DataError(
            f"{reader.where} kind must be the name of a measurement, got kind={kind!r}; "
            f"{nearest(kind, MEASUREMENTS)}"
        )
    seeds = reader.count("seeds", None)
    settings = reader.take("settings", dict, {})
    reader.end()
    return Measurement(name, kind, settings, seeds)


def _check_whole(experiment: Experiment, common: Mapping[str, Value], path: Path) -> None:
    if not experiment.variants and not experiment.measurements:
        raise DataError(f"{path}: must have a [[run]] or a [[measure]] at least, and has none")
    if common and not experiment.variants:
        key, value = next(iter(common.items()))
        raise DataError(f"{path}: [common]: must not be without a [[run]], got {key}={value!r}")
    places = [(panel, one.name) for one in experiment.variants for panel in one.panels]
    for panel, name in places:
        if places.count((panel, name)) > 1:
            raise DataError(
                f"{path}: [[run]]: name must differ within a panel, got name={name!r} twice in "
                f"{panel!r}"
            )
    own = [one.name for one in experiment.measurements]
    for name in own:
        if own.count(name) > 1:
            raise DataError(f"{path}: [[measure]]: name must differ, got name={name!r} twice")


def _reduced(
    experiment: Experiment, common: Mapping[str, Value], quick: Reader
) -> tuple[Experiment, dict[str, Value]]:
    """What `--quick` makes of an experiment. Checked also if it is not wanted.

    Runs that it leaves out have no panels then: common settings may be theirs alone.
    """
    seeds = quick.count("seeds", experiment.seeds) or 0
    given = quick.reader("common")
    instead = _settings(given.rest(), given.where)
    measure = quick.take("measure", dict, {})
    every = [panel for one in experiment.variants for panel in one.panels]
    kept = set(every)
    if chosen := quick.take("panels", list, []):
        kept = set(chosen)
        for panel in chosen:
            if panel not in every:
                hint = nearest(str(panel), dict.fromkeys(every))
                raise DataError(
                    f"{quick.where} panels must be those of a [[run]], got {panel!r}; {hint}"
                )
    quick.end()
    for key, value in measure.items():
        if not any(key in one.settings for one in experiment.measurements):
            raise DataError(
                f"{quick.where} measure must have keys of a [[measure]]'s settings, "
                f"got {key}={value!r}"
            )
    less = dataclasses.replace(
        experiment,
        seeds=seeds,
        variants=tuple(
            dataclasses.replace(
                one,
                panels=tuple(panel for panel in one.panels if panel in kept),
                settings={key: instead.get(key, value) for key, value in one.settings.items()},
            )
            for one in experiment.variants
        ),
        measurements=tuple(
            dataclasses.replace(
                one,
                settings={key: measure.get(key, value) for key, value in one.settings.items()},
                seeds=None if one.seeds is None else min(one.seeds, seeds),
            )
            for one in experiment.measurements
        ),
        reduced=True,
    )
    return less, {**common, **instead}


def _completed(
    variants: tuple[Variant, ...], common: Mapping[str, Value], path: Path
) -> tuple[Variant, ...]:
    """With the common settings, and with what the task and the method have."""
    if not variants:
        return ()
    from diffsketch.app.build import settings_of_methods  # PyTorch comes with it
    from diffsketch.app.compare import contenders_of

    fields_of = settings_of_methods()
    # By number: in different panels there may be the same names.
    each = [(str(index), one.settings) for index, one in enumerate(variants)]
    try:
        contenders = contenders_of(common, each, fields_of=fields_of)
    except DiffSketchError as error:
        raise DataError(f"{path}: [common]: {error}") from error
    found = []
    for number, (variant, contender) in enumerate(zip(variants, contenders, strict=True), start=1):
        try:
            config = contender.config(0)
            whole = with_task_defaults(config, fields=fields_of[config.method])
        except DiffSketchError as error:
            raise DataError(f"{path}: [[run]] {number} ({variant.name}): {error}") from error
        found.append(dataclasses.replace(variant, settings=_known(whole)))
    return tuple(found)


def _known(config: RunConfig) -> dict[str, Value]:
    """All settings that have a value, without the seed."""
    values = dict(config)
    return {key: value for key, value in values.items() if value is not None and key != "seed"}
