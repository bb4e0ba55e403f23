"""Commands through a client: each makes a call of the contract and prints the answer as a table or as JSON."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel
from rich.console import RenderableType

from threefold import Deadlines, MemoryClient
from threefold.client import target_from_env
from threefold.endpoint import DEFAULT_URL
from threefold_server.cli.commands import Json, add_command, given, option
from threefold_server.cli.output import REFUSED, UsageError, out, show_json

A = TypeVar("A", bound=BaseModel)

DEADLINES = Deadlines(recall=10.0, write=30.0, long=300.0)
"""Seconds per call, longer than those of an agent: a person prefers a slow answer to an error."""

Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help=f"URL of the service. Default: THREEFOLD_URL, else {DEFAULT_URL}."),
]
User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="User to act for. Default: THREEFOLD_USER.")]
Agent = Annotated[
    str | None, typer.Option("--agent", metavar="NAME", help="Agent to act as. Default: THREEFOLD_AGENT.")
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="KEY",
        help="API key. Default: THREEFOLD_API_KEY, which is safer: other users of the machine can see arguments.",
    ),
]

Session = Annotated[str | None, typer.Option("--session", "-s", metavar="ID", help="Id of a session.")]
SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="Id of the session.")]
FactId = Annotated[str, typer.Argument(metavar="ID", help="Id as `threefold list` and `threefold recall` print it.")]

Limit = Annotated[int, typer.Option(metavar="N", help="Results per page, at most 1000.")]
Cursor = Annotated[str | None, typer.Option(metavar="CURSOR", help="Cursor that the previous page printed.")]


def moment(text: str) -> datetime:
    """Return a time in ISO 8601 as a datetime. Without an offset it is local time."""
    return datetime.fromisoformat(text).astimezone()


def connect(*, url: Url = None, user: User = None, agent: Agent = None, key: Key = None) -> MemoryClient:
    """Return a client for the given flags; missing ones come from the environment."""
    target: dict[str, Any] = {**target_from_env(), **given(url=url, user=user, agent=agent, api_key=key)}
    try:
        return MemoryClient(**target, timeout=DEADLINES)
    except ValueError as error:
        raise UsageError(str(error)) from error


_TARGET = list(inspect.signature(connect, eval_str=True).parameters.values())


def _always(_: BaseModel) -> bool:
    return True


def verb(
    app: typer.Typer,
    *examples: str,
    show: Callable[[A], RenderableType],
    ok: Callable[[A], bool] = _always,
    name: str | None = None,
) -> Callable[[Callable[..., A]], Callable[..., A]]:
    """Register a function that takes a client as a command.

    The command has the options of the function, those of `connect` and `--json`.

    Args:
        app: The group that gets the command.
        examples: Command lines for the end of the help text.
        show: Returns the answer as a table for people.
        ok: Returns whether the answer is a success. If not, the command prints it and exits with 1.
        name: The name of the command; None for the name of the function.
    """

    def register(function: Callable[..., A]) -> Callable[..., A]:
        def run(*, json: bool, **values: Any) -> None:
            target = {option.name: values.pop(option.name) for option in _TARGET}
            with connect(**target) as memory:
                answer = function(memory, **values)
            show_json(answer) if json else out.print(show(answer), soft_wrap=True)
            if not ok(answer):
                raise typer.Exit(REFUSED)

        add_command(app, function, [*_TARGET, option("json", Json, default=False)], run, examples, name)
        return function

    return register
