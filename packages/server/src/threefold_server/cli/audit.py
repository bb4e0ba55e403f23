"""`threefold audit list | verify`: the audit, through an administrator's client."""

from __future__ import annotations

from typing import Annotated

import typer

from threefold import MemoryClient
from threefold.contract.admin import AuditCheck, AuditPage
from threefold_server.cli import views
from threefold_server.cli.client import Cursor, Limit, verb

app = typer.Typer(no_args_is_help=True, help="List and verify the audit. Needs a key made with --admin.")


@verb(app, "threefold audit list --limit 20", show=views.audit, name="list")
def list_entries(memory: MemoryClient, limit: Limit = 50, cursor: Cursor = None) -> AuditPage:
    """List the entries of the audit, newest first: who did what to whose memory.

    The audit holds pseudonyms of people. A name is shown as long as the store knows it.
    """
    return memory.admin.audit(limit=limit, cursor=cursor)


@verb(
    app,
    "threefold audit verify",
    "threefold audit verify --head 1042:9f86d0...",
    show=views.audit_check,
    ok=lambda check: check.ok,
)
def verify(
    memory: MemoryClient,
    head: Annotated[
        str | None,
        typer.Option(
            metavar="HEAD", help="Head that an earlier `verify` printed, to check that it is still in the chain."
        ),
    ] = None,
) -> AuditCheck:
    """Verify that no entry was changed or removed.

    Keep the printed head in another place: a later `verify --head` proves that the entries up to it are still the same.
    """
    return memory.admin.verify_audit(head)
