"""`threefold sessions …`: what was said, through a client."""

from __future__ import annotations

from typing import Annotated

import typer

from threefold import MemoryClient
from threefold.contract import DigestPage, SessionPage, SessionState, SessionStatus, TurnPage
from threefold_server.cli import views
from threefold_server.cli.client import Cursor, SessionId, verb

app = typer.Typer(no_args_is_help=True, help="List sessions, read their turns and digests, end them.")

Limit = Annotated[int, typer.Option(metavar="N", help="How many per page.")]


@verb(app, "threefold sessions list", show=views.sessions, name="list")
def list_sessions(
    memory: MemoryClient,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> SessionPage:
    """List your sessions. The most recently written come first."""
    return memory.sessions(cursor=cursor, limit=limit)


@verb(app, "threefold sessions turns s1 --from 101", show=views.turns)
def turns(
    memory: MemoryClient,
    session: SessionId,
    start: Annotated[int, typer.Option("--from", metavar="SEQ", help="The first turn to show.")] = 1,
    limit: Limit = 100,
    payload: Annotated[bool, typer.Option("--payload", help="With --json: the frameworks' own form, too.")] = False,
) -> TurnPage:
    """Read the turns of a session."""
    return memory.turns(session, from_seq=start, limit=limit, payload=payload)


@verb(app, "threefold sessions state s1", show=views.session_state)
def state(memory: MemoryClient, session: SessionId) -> SessionState:
    """Read what a framework keeps beside the turns of a session."""
    return memory.state(session)


@verb(app, "threefold sessions digests s1", show=views.digests)
def digests(memory: MemoryClient, session: SessionId) -> DigestPage:
    """Read the digests of a session. The newest comes first."""
    return memory.digests(session)


@verb(app, "threefold sessions end s1 --wait 10", show=views.session_status)
def end(
    memory: MemoryClient,
    session: SessionId,
    wait: Annotated[float | None, typer.Option(metavar="SECONDS", help="Wait this long for the work.")] = None,
) -> SessionStatus:
    """Work off what has been said so far. Later turns are welcome."""
    return memory.end(session, wait=wait)
