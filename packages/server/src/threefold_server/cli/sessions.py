"""`threefold sessions …`: sessions with their turns, digests and state, through a client."""

from __future__ import annotations

from typing import Annotated

import typer

from threefold import MemoryClient
from threefold.contract import DigestPage, SessionPage, SessionState, SessionStatus, TurnPage
from threefold_server.cli import views
from threefold_server.cli.client import Cursor, Limit, SessionId, verb

app = typer.Typer(no_args_is_help=True, help="List sessions, read their turns and digests, end them.")


@verb(app, "threefold sessions list", show=views.sessions, name="list")
def list_sessions(
    memory: MemoryClient,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> SessionPage:
    """List your sessions, the most recently written first."""
    return memory.sessions(cursor=cursor, limit=limit)


@verb(app, "threefold sessions turns s1 --from 101", show=views.turns)
def turns(
    memory: MemoryClient,
    session: SessionId,
    start: Annotated[int, typer.Option("--from", metavar="SEQ", help="Number of the first turn to show.")] = 1,
    limit: Limit = 100,
    payload: Annotated[
        bool, typer.Option("--payload", help="With --json: include the payloads that frameworks store with turns.")
    ] = False,
) -> TurnPage:
    """Show the turns of a session, oldest first."""
    return memory.turns(session, from_seq=start, limit=limit, payload=payload)


@verb(app, "threefold sessions state s1", show=views.session_state)
def state(memory: MemoryClient, session: SessionId) -> SessionState:
    """Show the state that a framework stores with a session."""
    return memory.state(session)


@verb(app, "threefold sessions digests s1", show=views.digests)
def digests(memory: MemoryClient, session: SessionId, limit: Limit = 100, cursor: Cursor = None) -> DigestPage:
    """Show the digests of a session, newest first."""
    return memory.digests(session, cursor=cursor, limit=limit)


@verb(app, "threefold sessions end s1 --wait 10", show=views.session_status)
def end(
    memory: MemoryClient,
    session: SessionId,
    wait: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Seconds to wait for the background work. Default: do not wait."),
    ] = None,
) -> SessionStatus:
    """Make the background work on all turns of a session due now. More turns may follow."""
    return memory.end(session, wait=wait)
