"""`threefold recall | write | list | forget | status`: the operations on memory, through a client."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Annotated

import typer

from threefold import MemoryClient
from threefold.contract import (
    CallerLevel,
    ForgetReceipt,
    MemoryPage,
    RecallResponse,
    Role,
    Visibility,
    WriteResponse,
)
from threefold_server.cli import views
from threefold_server.cli.client import Cursor, Limit, Session, SessionId, moment, verb
from threefold_server.cli.commands import given
from threefold_server.cli.output import confirm, err
from threefold_server.cli.views import Status

app = typer.Typer()

ReadLevel = Annotated[
    CallerLevel | None,
    typer.Option("--level", "-l", help="How far to read. Default: agent, or the caller's ceiling if it is lower."),
]
Include = Annotated[
    list[str] | None,
    typer.Option(
        "--include",
        metavar="TIER",
        help="Tier to return: short_term, medium_term, long_term or shared; may be repeated. Default: all but shared.",
    ),
]


@verb(app, 'threefold recall "when do I deploy?"', "threefold recall deploy --session s2 --json", show=views.recalled)
def recall(
    memory: MemoryClient,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Question or topic, at most 10000 characters.")],
    session: Session = None,
    level: ReadLevel = None,
    include: Include = None,
    top_k: Annotated[
        int | None,
        typer.Option(metavar="N", help="Most memories, 0 to 1000. Default: the setting of the key or the store."),
    ] = None,
    min_score: Annotated[
        float | None,
        typer.Option(metavar="0..1", help="Least cosine or coverage of a memory. Default: the store's setting."),
    ] = None,
    min_trust: Annotated[
        float | None, typer.Option(metavar="0..1", help="Least trust of everything in the answer. Default: any.")
    ] = None,
    token_budget: Annotated[
        int | None,
        typer.Option(metavar="N", help="Most tokens of the block. Default: the setting of the key or the store."),
    ] = None,
    as_of: Annotated[
        datetime | None,
        typer.Option(
            "--as-of",
            parser=moment,
            metavar="TIME",
            help="Return what was true and said at this time (ISO 8601), without window and digest.",
        ),
    ] = None,
) -> RecallResponse:
    """Recall the memories that match a query, and the digest and window of the session if one is given."""
    options = given(
        level=level,
        include=include,
        top_k=top_k,
        min_score=min_score,
        min_trust=min_trust,
        token_budget=token_budget,
        as_of=as_of,
    )
    return memory.recall(query, session_id=session, **options)


@verb(app, 'threefold write s1 "I deploy to staging on Fridays."', "git log | threefold write s1 -", show=views.written)
def write(
    memory: MemoryClient,
    session: SessionId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Content of the turn; `-` reads it from standard input.")],
    role: Annotated[Role, typer.Option(help="Role of the speaker.")] = "user",
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the speaker or of the tool.")] = None,
    turn_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Id of the turn. With it, repeating the command stores the turn once."),
    ] = None,
    at: Annotated[
        datetime | None, typer.Option(parser=moment, metavar="TIME", help="When it was said (ISO 8601). Default: now.")
    ] = None,
    visibility: Annotated[
        Visibility | None, typer.Option(help="Widest level at which the turn is recalled. Default: user.")
    ] = None,
    run_end: Annotated[
        bool, typer.Option("--run-end", help="End of a run: consolidate now instead of when the session is idle.")
    ] = False,
) -> WriteResponse:
    """Append one turn to a session."""
    content = sys.stdin.read() if text == "-" else text
    turn = {"role": role, "content": content, **given(name=name, id=turn_id, created_at=at)}
    return memory.write(session, [turn], visibility=visibility, run_end=run_end)


@verb(app, "threefold list", "threefold list --kind fact --order access_count", show=views.memories, name="list")
def list_memories(
    memory: MemoryClient,
    session: Session = None,
    level: ReadLevel = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="Kind to list: fact or turn; may be repeated. Default: both."),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TIER", help="Memories to list: long_term or shared; may be repeated. Default: long_term."
        ),
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(
            metavar="ORDER",
            help="Order: created_at (newest first) or access_count (most recalled first). Default: created_at.",
        ),
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> MemoryPage:
    """List facts and turns, newest first."""
    options = given(level=level, kinds=kind, include=include, order=order, cursor=cursor, session_id=session)
    return memory.list(limit=limit, **options)


@verb(
    app,
    "threefold forget --session s1 --dry-run",
    "threefold forget --source tool web_search --since 2026-11-01 --yes",
    show=views.receipt,
    ok=lambda receipt: receipt.complete,
)
def forget(
    memory: MemoryClient,
    session: Session = None,
    level: Annotated[
        CallerLevel | None, typer.Option(help="agent: all of this user with this agent; user: all of this user.")
    ] = None,
    memory_id: Annotated[
        list[str] | None, typer.Option("--memory", metavar="ID", help="Id of a fact or turn; may be repeated.")
    ] = None,
    in_session: Annotated[
        str | None,
        typer.Option(metavar="ID", help="With --memory: session of a turn; needed if its id exists in several."),
    ] = None,
    sources: Annotated[
        bool, typer.Option("--sources", help="With --memory: also erase the turns that the facts rest on.")
    ] = False,
    source: Annotated[
        tuple[str, str] | None, typer.Option(metavar="KIND NAME", help="Everything from one tool, session or agent.")
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option(
            parser=moment, metavar="TIME", help="With --source: only what came at or after this time (ISO 8601)."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be erased.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> ForgetReceipt:
    """Erase memories permanently. Give exactly one of --session, --level, --memory and --source."""
    selector = given(session_id=session, level=level, memory_ids=memory_id, since=since, sources=sources or None)
    selector |= given(in_session=in_session)
    if source is not None:
        selector["source"] = {"kind": source[0], "name": source[1]}
    if dry_run or not yes:
        preview = memory.forget(**selector, dry_run=True)
        if dry_run:
            return preview
        err.print(views.receipt(preview))
        confirm("Erase this permanently?")
    return memory.forget(**selector)


@verb(
    app,
    "threefold status",
    "threefold status s1 --json",
    show=views.status,
    ok=lambda answer: answer.health.status != "unavailable",
)
def status(
    memory: MemoryClient,
    session: Annotated[
        str | None, typer.Argument(metavar="[SESSION]", help="Session whose background work is shown.")
    ] = None,
) -> Status:
    """Show the health of the service, your identity, and the progress of background work on a session.

    Exit code 1 if the service is not healthy.
    """
    return Status(
        url=memory.url,
        health=memory.ready(),
        identity=memory.whoami(),
        session=None if session is None else memory.status(session),
    )
