"""What all commands share: options that are added to their own, and the end of a help text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


def option(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    """An option that is added to a command."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def add_command(
    app: typer.Typer,
    function: Callable[..., Any],
    added: Iterable[inspect.Parameter],
    run: Callable[..., None],
    examples: Iterable[str],
    name: str | None = None,
) -> None:
    """Make `run` a command that takes the options of `function` after its first parameter, and the added ones."""
    _, *own = inspect.signature(function, eval_str=True).parameters.values()
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    setattr(run, "__signature__", inspect.Signature([*keywords, *added]))  # noqa: B010 - pyright knows no such attribute
    app.command(name or function.__name__, help=function.__doc__, epilog=example(*examples))(run)


def example(*lines: str) -> str:
    """The end of a help text: how the command is used."""
    return "\n".join(["\b", "Example:", *(f"  $ {line}" for line in lines)])


def given(**options: Any) -> dict[str, Any]:
    """The options that were given; for the others, the callee has defaults of its own."""
    return {name: value for name, value in options.items() if value is not None}
