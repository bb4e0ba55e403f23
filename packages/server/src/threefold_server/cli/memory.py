"""`threefold recall | write | list | forget | status`: the memory itself, through a client."""

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
    CallerLevel | None, typer.Option("--level", "-l", help="How far to read; up to the caller's ceiling.")
]
Include = Annotated[
    list[str] | None,
    typer.Option("--include", metavar="TIER", help="short_term, medium_term, long_term, shared; may be repeated."),
]


@verb(app, 'threefold recall "when do I deploy?"', "threefold recall deploy --session s2 --json", show=views.recalled)
def recall(
    memory: MemoryClient,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What is asked or talked about.")],
    session: Session = None,
    level: ReadLevel = None,
    include: Include = None,
    top_k: Annotated[int | None, typer.Option(metavar="N", help="Memories at most.")] = None,
    min_score: Annotated[float | None, typer.Option(metavar="0..1", help="Least absolute score of a memory.")] = None,
    min_trust: Annotated[float | None, typer.Option(metavar="0..1", help="Least trust in a memory.")] = None,
    token_budget: Annotated[int | None, typer.Option(metavar="N", help="Tokens of the block.")] = None,
    as_of: Annotated[
        datetime | None, typer.Option("--as-of", parser=moment, metavar="TIME", help="What held at this moment.")
    ] = None,
) -> RecallResponse:
    """Recall what matters for a query. Of the session come digest and window, of all sessions the memories."""
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
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What was said; - reads it from standard input.")],
    role: Annotated[Role, typer.Option(help="Who said it.")] = "user",
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The speaker's name.")] = None,
    turn_id: Annotated[str | None, typer.Option("--id", metavar="ID", help="Makes repeating the command safe.")] = None,
    at: Annotated[datetime | None, typer.Option(parser=moment, metavar="TIME", help="When; now otherwise.")] = None,
    visibility: Annotated[Visibility | None, typer.Option(help="The widest level at which it is recalled.")] = None,
    run_end: Annotated[bool, typer.Option("--run-end", help="The run is over: do not wait for more.")] = False,
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
    kind: Annotated[list[str] | None, typer.Option(metavar="KIND", help="fact or turn; may be repeated.")] = None,
    include: Annotated[
        list[str] | None, typer.Option(metavar="TIER", help="long_term, shared; may be repeated.")
    ] = None,
    order: Annotated[str | None, typer.Option(metavar="ORDER", help="created_at or access_count.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> MemoryPage:
    """List what is remembered. The newest come first, or the most used."""
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
    level: Annotated[CallerLevel | None, typer.Option(help="All of this agent and user, or all of this user.")] = None,
    memory_id: Annotated[
        list[str] | None, typer.Option("--memory", metavar="ID", help="A fact or turn by id; may be repeated.")
    ] = None,
    in_session: Annotated[str | None, typer.Option(help="With --memory: the session of a turn.")] = None,
    sources: Annotated[
        bool, typer.Option("--sources", help="With --memory: also erase the turns that the facts rest on.")
    ] = False,
    source: Annotated[
        tuple[str, str] | None, typer.Option(metavar="KIND NAME", help="All from one tool, session or agent.")
    ] = None,
    since: Annotated[
        datetime | None, typer.Option(parser=moment, metavar="TIME", help="With --source: only from then on.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> ForgetReceipt:
    """Erase for good. Name exactly one of --session, --level, --memory and --source."""
    selector = given(session_id=session, level=level, memory_ids=memory_id, since=since, sources=sources or None)
    selector |= given(in_session=in_session)
    if source is not None:
        selector["source"] = {"kind": source[0], "name": source[1]}
    if dry_run or not yes:
        rehearsal = memory.forget(**selector, dry_run=True)
        if dry_run:
            return rehearsal
        err.print(views.receipt(rehearsal))
        confirm("Erase this for good?")
    return memory.forget(**selector)


@verb(
    app,
    "threefold status",
    "threefold status s1 --json",
    show=views.status,
    ok=lambda found: found.health.status == "ok",
)
def status(
    memory: MemoryClient,
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]", help="How far its work has come.")] = None,
) -> Status:
    """Show how the service is and who you are to it. With a session: how far its background work has come."""
    return Status(
        url=memory.url,
        health=memory.ready(),
        identity=memory.whoami(),
        session=None if session is None else memory.status(session),
    )
