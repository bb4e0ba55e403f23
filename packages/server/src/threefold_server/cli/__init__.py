"""The command line: `threefold`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from threefold.errors import ThreefoldError
from threefold_server.cli import admin, demo, facts, keys, memory, replay, serve, sessions
from threefold_server.cli.output import Failed, UsageError, report

app = typer.Typer(
    help="Threefold: one memory for every agent framework.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(demo.app)
app.add_typer(serve.app)
app.add_typer(memory.app)
app.add_typer(replay.app)
app.add_typer(facts.app, name="facts")
app.add_typer(sessions.app, name="sessions")
app.add_typer(keys.app, name="keys")
app.add_typer(admin.app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command. Exit codes: 0 done, 1 refused or failed, 2 wrong usage."""
    try:
        app(arguments)
    except (ThreefoldError, UsageError, Failed) as error:
        sys.exit(report(error))
