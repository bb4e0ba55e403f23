"""`threefold admin …` and `threefold import`: operations for administrators, through a client."""

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

OfUser = Annotated[str | None, typer.Option("--of", metavar="USER", help="Use the memory of this user.")]
OfAgent = Annotated[
    str | None, typer.Option("--of-agent", metavar="AGENT", help="Use the memory of this agent acting for itself.")
]


@verb(app, "threefold admin owners", show=views.owners)
def owners(memory: MemoryClient, limit: Limit = 50, cursor: Cursor = None) -> OwnerPage:
    """List all owners, oldest first, with the number of rows of each."""
    return memory.admin.owners(limit=limit, cursor=cursor)


@verb(app, "threefold admin usage --json", show=views.usage)
def usage(memory: MemoryClient) -> StoreUsage:
    """Show the counts of rows and tasks of the whole store."""
    return memory.admin.usage()


@verb(app, "threefold admin list --of ana", show=views.memories, name="list")
def list_memories(
    memory: MemoryClient,
    of: OfUser = None,
    of_agent: OfAgent = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="Kind to list: fact or turn; may be repeated. Default: both."),
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> MemoryPage:
    """List the memories of all owners, of every visibility. Each call is noted in the audit.

    --of or --of-agent limits the list to one owner.
    """
    return memory.admin.list(limit=limit, **given(user=of, self_agent=of_agent, kinds=kind, cursor=cursor))


@verb(app, "threefold admin rename local ana", show=views.renamed)
def rename(
    memory: MemoryClient,
    old: Annotated[str, typer.Argument(metavar="USER", help="User whose memory is renamed.")],
    to: Annotated[str, typer.Argument(metavar="TO", help="New name; it must not have a memory yet.")],
) -> RenameReceipt:
    """Rename the user of a memory, for example `local` to the name of a real user."""
    return memory.admin.rename(old, to)


@verb(app, "threefold admin export --of ana --output ana.jsonl", show=views.exported)
def export(
    memory: MemoryClient,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Archive to write; it must not exist yet.")
    ],
    of: OfUser = None,
    of_agent: OfAgent = None,
) -> Exported:
    """Write all data of one owner to a file of JSON lines, which `threefold import` reads.

    Give one of --of and --of-agent.
    """
    lines = memory.admin.export(user=of, self_agent=of_agent)
    with whole_file(output) as path, path.open("w", encoding="utf-8", newline="\n") as file:
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
        tuple[str, str] | None,
        typer.Option(metavar="KIND NAME", help="Everything from one tool or agent, of all owners."),
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option(
            parser=moment, metavar="TIME", help="With --source: only what came at or after this time (ISO 8601)."
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--everything", help="Erase the memory of all owners.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be erased.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> ForgetReceipt:
    """Erase memories permanently. Give exactly one of --of, --of-agent, --source and --everything."""
    selector = given(user=of, self_agent=of_agent, since=since, everything=everything or None)
    if source is not None:
        selector["source"] = {"kind": source[0], "name": source[1]}
    if dry_run or not yes:
        preview = memory.admin.forget(**selector, dry_run=True)
        if dry_run:
            return preview
        err.print(views.receipt(preview))
        confirm("Erase this permanently?")
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
    file: Annotated[
        Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, readable=True, help="Archive to load.")
    ],
    trust_archive: Annotated[
        bool,
        typer.Option("--trust-archive", help="Keep origin, trust and pins as exported; for your own archives."),
    ] = False,
) -> ImportReceipt:
    """Load an archive of `threefold admin export`. Loading it again adds nothing.

    Without --trust-archive, everything gets the origin `import` and a trust of at most 0.8, and nothing is pinned.
    """
    with file.open("rb") as archive:
        return memory.admin.load(lines_of(archive), trust_archive=trust_archive)
