"""Methods by their names, and how to make one from a user's settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from types import MappingProxyType
from typing import Any

from diffsketch.errors import ArgumentError
from diffsketch.methods.base import Method
from diffsketch.methods.client_noise import GaussianMean, SkellamMean, SketchGaussian, SketchSkellam
from diffsketch.methods.cpsgd import CpSgd
from diffsketch.methods.diffsketch import DiffSketch, ProvenDiffSketch
from diffsketch.methods.laplace import RawLaplace, SketchLaplace
from diffsketch.methods.plain import PlainSketch, Uncompressed
from diffsketch.methods.projunit import ProjUnitMean

__all__ = ["METHODS", "build_method", "parse_settings", "settings_of"]

_KINDS: tuple[type[Method], ...] = (
    Uncompressed,
    PlainSketch,
    DiffSketch,
    ProvenDiffSketch,
    RawLaplace,
    SketchLaplace,
    CpSgd,
    SketchGaussian,
    SketchSkellam,
    GaussianMean,
    SkellamMean,
    ProjUnitMean,
)
METHODS: Mapping[str, type[Method]] = MappingProxyType({kind.name: kind for kind in _KINDS})
"""All methods, the plain ones first."""

_FROM_TASK = ("dim", "cohort")  # what the task decides, and not the user's settings


def settings_of(name: str) -> dict[str, bool]:
    """The settings that a method has, and whether each must be given.

    >>> settings_of("sketch")
    {'rows': True, 'cols': True, 'family': False, 'combine': False}
    """
    if name not in METHODS:
        raise ArgumentError(f"method must be one of {', '.join(METHODS)}, got method={name!r}")
    return {
        field.name: field.default is MISSING and field.default_factory is MISSING
        for field in fields(METHODS[name])
        if field.init and field.name not in _FROM_TASK
    }


def parse_settings(text: str) -> dict[str, object]:
    """Settings from `name=value`, with spaces between.

    >>> parse_settings("rows=1 clip=1.5 trust=central")
    {'rows': 1, 'clip': 1.5, 'trust': 'central'}
    """
    found: dict[str, object] = {}
    for part in text.split():
        name, sign, value = part.partition("=")
        if not (name and sign and value):
            raise ArgumentError(f"settings must be name=value, with spaces between: {part!r}")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def build_method(name: str, *, dim: int, cohort: int, settings: Mapping[str, object]) -> Method:
    """The method of this name with a user's settings.

    Args:
        name: One of `METHODS`.
        dim: Length of the vectors.
        cohort: Workers of a round, at most, for methods that need to know.
        settings: Only what the user gave.

    Raises:
        ArgumentError: The method has no such setting, lacks one that it needs, or refuses a value.

    >>> build_method("sketch", dim=7850, cohort=10, settings={"rows": 7, "cols": 22}).wire_bytes
    664
    >>> build_method("sketch", dim=7850, cohort=10, settings={"rows": 7})
    Traceback (most recent call last):
        ...
    diffsketch.errors.ArgumentError: method sketch needs cols
    """
    known = settings_of(name)
    unknown = [key for key in settings if key not in known]
    if unknown:
        own = ", ".join(known) or "none"
        raise ArgumentError(f"method {name} has no setting {', '.join(unknown)}; it has: {own}")
    missing = [key for key, needed in known.items() if needed and key not in settings]
    if missing:
        raise ArgumentError(f"method {name} needs {', '.join(missing)}")
    kind = METHODS[name]
    arguments: dict[str, Any] = {"dim": dim, **settings}
    if any(field.name == "cohort" for field in fields(kind)):
        arguments["cohort"] = cohort
    return kind(**arguments)
