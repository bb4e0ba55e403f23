"""Helpers of all commands: options that are added to those of a function, and the examples of a help text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def option(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    """Return an option as a parameter that `add_command` can add to a command."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def add_command(
    app: typer.Typer,
    function: Callable[..., Any],
    added: Iterable[inspect.Parameter],
    run: Callable[..., None],
    examples: Iterable[str],
    name: str | None = None,
) -> None:
    """Register `run` as a command with the options of `function`, without its first parameter, and the added ones."""
    _, *own = inspect.signature(function, eval_str=True).parameters.values()
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    setattr(run, "__signature__", inspect.Signature([*keywords, *added]))  # noqa: B010 - pyright does not know the attribute
    app.command(name or function.__name__, help=function.__doc__, epilog=example(*examples))(run)


def example(*lines: str) -> str:
    """Return the end of a help text: example command lines."""
    return "\n".join(["\b", "Example:", *(f"  $ {line}" for line in lines)])


def given(**options: Any) -> dict[str, Any]:
    """Return the options that are not None. The called function has its own defaults for the others."""
    return {name: value for name, value in options.items() if value is not None}
