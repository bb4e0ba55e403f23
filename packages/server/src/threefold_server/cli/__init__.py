"""The command line: `threefold`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer
from typer.main import get_command

from threefold.errors import ThreefoldError
from threefold_server.cli import admin, audit, facts, mcp, memory, replay, sessions
from threefold_server.cli.output import Failed, UsageError, report


def client_app() -> typer.Typer:
    """The commands over a client."""
    app = typer.Typer(
        help="Threefold: one memory for every agent framework.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.add_typer(memory.app)
    app.add_typer(replay.app)
    app.add_typer(mcp.app)
    app.add_typer(facts.app, name="facts")
    app.add_typer(sessions.app, name="sessions")
    app.add_typer(admin.app, name="admin")
    app.add_typer(admin.imports)
    app.add_typer(audit.app, name="audit")
    return app


def full_app() -> typer.Typer:
    """All commands; those on the store itself bring the whole service with them."""
    from threefold_server.cli import demo, doctor, keys, serve, transfer, upkeep

    app = client_app()
    app.add_typer(serve.app)
    app.add_typer(keys.app, name="keys")
    app.add_typer(upkeep.app)
    app.add_typer(transfer.app)
    app.add_typer(doctor.app)
    app.add_typer(demo.app)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command. Exit codes: 0 done, 1 refused or failed, 2 wrong usage."""
    words = sys.argv[1:] if arguments is None else arguments
    app = client_app()
    # The service takes 1.4 s of processor time to load, and a recall 0.6 s without it.
    if not words or words[0] not in getattr(get_command(app), "commands"):  # noqa: B009 - of a group, says typer
        app = full_app()
    try:
        app(words)
    except (ThreefoldError, UsageError, Failed) as error:
        sys.exit(report(error))
