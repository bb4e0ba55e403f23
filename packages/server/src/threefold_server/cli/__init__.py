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
    "worker": "Do the background work of a store.",
    "keys": "Make, list, rotate and revoke API keys.",
    "migrate": "Bring a database to the current schema.",
    "consolidate": "Do the background work now, without waiting for sessions to be idle.",
    "rebuild": "Make digests and index anew from the turns.",
    "reembed": "Replace all vectors by those of another embedder.",
    "purge": "Clear what was forgotten out of the database's files.",
    "backup": "Copy the whole store into one file: memories, keys, receipts.",
    "restore": "Fill an empty store from a backup of this version or an earlier one.",
    "migrate-store": "Copy a whole store into another database.",
    "doctor": "Look for parked work, stale leases, vectors of another embedder, dead models, wrong clocks, a pending "
    "purge, and files that other users may read.",
    "demo": "See the memory at work.",
}
"""Commands that load the whole service, and the summaries that `threefold --help` shows without loading it."""


def client_app() -> typer.Typer:
    """Return the commands that only need a client."""
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
    """Return all commands. Loads the whole service: 2.5 s of processor time more than the client commands take."""
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
    command = next((word for word in words if not word.startswith("-")), None)
    app = full_app() if command in STORE_COMMANDS else listing_app()
    try:
        app(words)
    except (ThreefoldError, UsageError, Failed) as error:
        sys.exit(report(error))
