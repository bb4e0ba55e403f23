"""The command line: `threefold`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from threefold.errors import ThreefoldError
from threefold_server.cli import admin, audit, facts, mcp, memory, replay, sessions
from threefold_server.cli.output import Failed, UsageError, report

STORE_COMMANDS = {
    "serve": "Run the service.",
    "worker": "Run the background work of a store.",
    "keys": "Make, list, rotate and revoke API keys.",
    "migrate": "Migrate a database to the current schema.",
    "consolidate": "Run all background work now, without waiting until sessions are idle.",
    "rebuild": "Rebuild digests, index and extracted facts from the turns.",
    "reembed": "Replace all vectors by those of another embedder.",
    "purge": "Remove forgotten data from the files of the database.",
    "backup": "Copy the whole store into one file: memories, keys and receipts.",
    "restore": "Fill an empty store from a backup of this version or an earlier one of Threefold.",
    "migrate-store": "Copy a whole store into another database.",
    "doctor": "Check a store and print for each problem the command that repairs it.",
    "demo": "Show the memory at work: a story on a temporary store.",
}
"""Commands that load the whole service, and the summaries that `threefold --help` shows without loading it."""


def client_app() -> typer.Typer:
    """Return the commands that call a service through a client."""
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


def listing_app() -> typer.Typer:
    """Return the commands that only need a client, and the others as names with a summary."""
    app = client_app()
    for name, summary in STORE_COMMANDS.items():
        app.command(name, help=summary)(lambda: None)
    return app


def full_app() -> typer.Typer:
    """Return all commands. Importing the service takes 2.5 s of processor time more than the client commands take."""
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
    """Run one command and exit: 0 for success, 1 if it was refused or failed, 2 for wrong usage.

    Args:
        arguments: The command and its arguments; None for those of the process.
    """
    words = sys.argv[1:] if arguments is None else arguments
    command = next((word for word in words if not word.startswith("-")), None)
    app = full_app() if command in STORE_COMMANDS else listing_app()
    try:
        app(words)
    except (ThreefoldError, UsageError, Failed) as error:
        sys.exit(report(error))
