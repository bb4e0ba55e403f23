"""Commands over a client: each makes one call of the contract and shows the answer as a table or as JSON."""

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
from threefold_server.cli.commands import Json, add_command, given, option
from threefold_server.cli.output import REFUSED, UsageError, out, show_json

A = TypeVar("A", bound=BaseModel)

DEADLINES = Deadlines(recall=10.0, write=30.0, long=300.0)
"""A person would rather wait than read that the service was slow."""

Url = Annotated[str | None, typer.Option("--url", metavar="URL", help="The service; else THREEFOLD_URL.")]
User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="For this user; else THREEFOLD_USER.")]
Agent = Annotated[str | None, typer.Option("--agent", metavar="NAME", help="As this agent; else THREEFOLD_AGENT.")]
Key = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="API key; better in THREEFOLD_API_KEY: arguments are seen.")
]

Session = Annotated[str | None, typer.Option("--session", "-s", metavar="ID", help="A session, by its id.")]
SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")]
FactId = Annotated[str, typer.Argument(metavar="ID", help="The id that `list` and `recall` show.")]


Limit = Annotated[int, typer.Option(metavar="N", help="So many per page.")]
Cursor = Annotated[str | None, typer.Option(metavar="CURSOR", help="Where the page before ended.")]


def moment(text: str) -> datetime:
    """A time in ISO 8601; without an offset it is local time."""
    return datetime.fromisoformat(text).astimezone()


def connect(*, url: Url = None, user: User = None, agent: Agent = None, key: Key = None) -> MemoryClient:
    """A client as the flags say, and the environment where they do not."""
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
    """Make a function over a client a command, with the options of `connect` and `--json` beside its own.

    An answer that is not `ok` is shown like any other, but the command has failed.
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
