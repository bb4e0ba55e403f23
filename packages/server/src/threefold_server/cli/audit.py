"""`threefold audit list | verify`: who did what, through an administrator's client."""

from __future__ import annotations

from typing import Annotated

import typer

from threefold import MemoryClient
from threefold.contract.admin import AuditCheck, AuditPage
from threefold_server.cli import views
from threefold_server.cli.client import Cursor, Limit, verb

app = typer.Typer(no_args_is_help=True, help="Look at the audit. Needs a key made with --admin.")


@verb(app, "threefold audit list --limit 20", show=views.audit, name="list")
def list_entries(memory: MemoryClient, limit: Limit = 50, cursor: Cursor = None) -> AuditPage:
    """List who did what. The newest comes first; people are pseudonyms, named while the store knows them."""
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
    head: Annotated[str | None, typer.Option(metavar="HEAD", help="What `verify` showed on an earlier day.")] = None,
) -> AuditCheck:
    """Verify that no entry was changed or taken out. Keep the head it shows elsewhere, to verify against it later."""
    return memory.admin.verify_audit(head)
