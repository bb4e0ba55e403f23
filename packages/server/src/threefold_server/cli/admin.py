"""`threefold admin …`: what only an administrator may do, through a client."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from threefold import MemoryClient
from threefold.archive import lines_of
from threefold.contract import ForgetReceipt, MemoryPage
from threefold.contract.admin import ImportReceipt, OwnerPage, RenameReceipt, StoreUsage
from threefold_server.cli import views
from threefold_server.cli.client import Cursor, Limit, moment, verb
from threefold_server.cli.commands import given
from threefold_server.cli.files import whole_file
from threefold_server.cli.output import confirm, err
from threefold_server.cli.views import Exported

app = typer.Typer(no_args_is_help=True, help="Administer a store. Needs a key made with --admin.")

OfUser = Annotated[str | None, typer.Option("--of", metavar="USER", help="Only this user's.")]
OfAgent = Annotated[str | None, typer.Option("--of-agent", metavar="AGENT", help="Only what an agent did on its own.")]


@verb(app, "threefold admin owners", show=views.owners)
def owners(memory: MemoryClient, limit: Limit = 50, cursor: Cursor = None) -> OwnerPage:
    """List who has a memory here, and how much. The oldest come first."""
    return memory.admin.owners(limit=limit, cursor=cursor)


@verb(app, "threefold admin usage --json", show=views.usage)
def usage(memory: MemoryClient) -> StoreUsage:
    """Show what the whole store holds."""
    return memory.admin.usage()


@verb(app, "threefold admin list --of ana", show=views.memories, name="list")
def list_memories(
    memory: MemoryClient,
    of: OfUser = None,
    of_agent: OfAgent = None,
    kind: Annotated[list[str] | None, typer.Option(metavar="KIND", help="fact or turn; may be repeated.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> MemoryPage:
    """List the memories of everybody, whatever their visibility. The audit notes it."""
    return memory.admin.list(limit=limit, **given(user=of, self_agent=of_agent, kinds=kind, cursor=cursor))


@verb(app, "threefold admin rename local ana", show=views.renamed)
def rename(
    memory: MemoryClient,
    old: Annotated[str, typer.Argument(metavar="USER", help="Who has the memory.")],
    to: Annotated[str, typer.Argument(metavar="TO", help="Who is to have it, and has none yet.")],
) -> RenameReceipt:
    """Give a user's memory another name, such as that of a real user to `local`'s."""
    return memory.admin.rename(old, to)


@verb(app, "threefold admin export --of ana --output ana.jsonl", show=views.exported)
def export(
    memory: MemoryClient,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The archive to write.")],
    of: OfUser = None,
    of_agent: OfAgent = None,
) -> Exported:
    """Write everything that is kept of one owner into a file of JSON lines. `threefold import` reads it."""
    lines = memory.admin.export(user=of, self_agent=of_agent)
    with whole_file(output) as made, made.open("w", encoding="utf-8", newline="\n") as file:
        count = sum(1 for line in lines if file.write(f"{line}\n"))
    return Exported(file=str(output), rows=count - 2)


@verb(
    app,
    "threefold admin forget --of ana --dry-run",
    "threefold admin forget --source tool web_search --since 2026-11-01 --yes",
    show=views.receipt,
    ok=lambda receipt: receipt.complete,
)
def forget(
    memory: MemoryClient,
    of: OfUser = None,
    of_agent: OfAgent = None,
    source: Annotated[
        tuple[str, str] | None, typer.Option(metavar="KIND NAME", help="All from one tool or agent, of everybody.")
    ] = None,
    since: Annotated[
        datetime | None, typer.Option(parser=moment, metavar="TIME", help="With --source: only from then on.")
    ] = None,
    everything: Annotated[bool, typer.Option("--everything", help="The memory of everybody.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> ForgetReceipt:
    """Erase for good. Name exactly one of --of, --of-agent, --source and --everything."""
    selector = given(user=of, self_agent=of_agent, since=since, everything=everything or None)
    if source is not None:
        selector["source"] = {"kind": source[0], "name": source[1]}
    if dry_run or not yes:
        rehearsal = memory.admin.forget(**selector, dry_run=True)
        if dry_run:
            return rehearsal
        err.print(views.receipt(rehearsal))
        confirm("Erase this for good?")
    return memory.admin.forget(**selector)


imports = typer.Typer()


@verb(
    imports,
    "threefold import ana.jsonl",
    "threefold import ana.jsonl --trust-archive",
    show=views.imported,
    name="import",
)
def import_archive(
    memory: MemoryClient,
    file: Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, readable=True)],
    trust_archive: Annotated[
        bool,
        typer.Option("--trust-archive", help="Keep origin, trust and pins as exported. For an archive of your own."),
    ] = False,
) -> ImportReceipt:
    """Load an archive that `threefold admin export` wrote. To load it again adds nothing."""
    with file.open("rb") as opened:
        return memory.admin.load(lines_of(opened), trust_archive=trust_archive)
