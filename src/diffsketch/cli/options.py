"""Options made from the settings of a run, so that the two cannot disagree."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Annotated, Any, get_type_hints

import typer

from diffsketch.app.settings import RunConfig, Setting, describe

__all__ = ["with_settings"]

_ARGUMENT = "settings"
_WIDE = 20  # letters


def with_settings(*, without: Iterable[str] = ()) -> Callable[[Callable[..., None]], Any]:
    """Give a command an option for each setting of a run.

    The command's parameter `settings` gets those that were given on the command line, by name.

    Args:
        without: Settings that are no options of this command.
    """
    left_out = set(without)
    known = {name: item for name, item in describe(RunConfig).items() if name not in left_out}

    def decorate(command: Callable[..., None]) -> Any:
        def wrapper(**arguments: Any) -> None:
            settings = {name: arguments.pop(name) for name in known}
            given = {
                name: value.value if isinstance(value, StrEnum) else value
                for name, value in settings.items()
                if value is not None
            }
            command(**arguments, **{_ARGUMENT: given})

        hints = get_type_hints(command, include_extras=True)
        own = [
            parameter.replace(annotation=hints[parameter.name])
            for parameter in inspect.signature(command).parameters.values()
            if parameter.name != _ARGUMENT
        ]
        made = [_option(item) for item in known.values()]
        parameters = [*own, *made]
        # Typer reads both.
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {item.name: item.annotation for item in parameters}
        wrapper.__name__, wrapper.__doc__ = command.__name__, _unwrapped(command.__doc__ or "")
        return wrapper

    return decorate


def _unwrapped(text: str) -> str:
    """Without line breaks inside paragraphs, which Typer would keep."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _option(item: Setting) -> inspect.Parameter:
    kind: Any = item.kind
    if item.choices:
        members = {name.replace("-", "_"): name for name in item.choices}
        make: Any = StrEnum  # mypy wants names that are known beforehand
        kind = make(f"{item.name}_name", members)
    text, metavar = item.metadata["help"], None
    if len("|".join(item.choices)) > _WIDE:
        # It would leave no room for the text beside it.
        text, metavar = f"{text} One of {', '.join(item.choices)}.", "<name>"
    option = typer.Option(
        f"{item.flag}/--no-{item.flag[2:]}" if item.kind is bool else item.flag,
        help=text,
        metavar=metavar,
        rich_help_panel=item.metadata["section"],
        show_default=item.shown_default or False,
    )
    return inspect.Parameter(
        item.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,  # so that one can tell what was given
        annotation=Annotated[kind | None, option],
    )
