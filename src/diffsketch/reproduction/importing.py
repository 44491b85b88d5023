"""Functions by name, imported when they are used: a list of the names needs none of them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from diffsketch.app.settings import nearest
from diffsketch.errors import ArgumentError

__all__ = ["imported"]


def imported(
    name: str, known: Mapping[str, str], *, package: str, argument: str, condition: str
) -> Any:
    """The function of that name.

    >>> known = {"read": "decoder:JSONDecoder"}
    >>> imported("read", known, package="json", argument="name", condition="be one").__name__
    'JSONDecoder'

    Args:
        name: Of the function.
        known: By name: the module in the package, and the function in it, as "module:function".
        package: That the modules are in.
        argument: What the name was given as, for errors.
        condition: What it must, for errors.

    Raises:
        ArgumentError: There is none.
    """
    if name not in known:
        raise ArgumentError(
            f"{argument} must {condition}, got {argument}={name!r}; {nearest(name, known)}"
        )
    module, _, function = known[name].partition(":")
    return getattr(import_module(f"{package}.{module}"), function)
