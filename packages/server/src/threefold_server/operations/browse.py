"""Lists of memories, sessions, turns and digests, without a query."""

from __future__ import annotations

from functools import partial
from uuid import UUID

from threefold.contract import (
    Digest,
    DigestPage,
    ListRequest,
    MemoryPage,
    SessionPage,
    SessionState,
    SessionStatus,
    TurnPage,
)
from threefold.errors import NotFound
from threefold_server.clock import from_micros
from threefold_server.rules.access import Principal, check_reads_shared, read_scope, session_scope
from threefold_server.rules.paging import cut_page, decode_cursor, decode_key
from threefold_server.service import Service
from threefold_server.storage.engine.database import Connection
from threefold_server.storage.engine.types import AnyRow
from threefold_server.storage.memories import listing
from threefold_server.storage.sessions import digests, sessions, tasks, turns


async def list_memories(service: Service, principal: Principal, request: ListRequest) -> MemoryPage:
    """Return a page of the memories that are visible at a level, newest or most recalled first."""
    scope = read_scope(principal, request.level, request.session_id)
    if "shared" in request.include:
        check_reads_shared(principal)
    after = None if request.cursor is None else listing.Position(*decode_cursor(request.cursor, listing.POSITION_TYPES))
    if after is not None:
        decode_key(after.key)
    now = service.clock()
    read = partial(listing.page, scope=scope, request=request, after=after, now=now, redact=service.redact)
    rows, size = await service.database.read(principal.owner, read)
    items, cursor = cut_page(rows, size)
    return MemoryPage(items=items, next_cursor=cursor)


async def list_sessions(
    service: Service, principal: Principal, cursor: str | None, limit: int, *, state: bool = False
) -> SessionPage:
    """Return a page of the sessions of the caller's agent and user, most recently written first."""
    scope = read_scope(principal, "agent", None)
    after = None
    if cursor is not None:
        updated_at, key = decode_cursor(cursor, (int, str))
        after = (updated_at, decode_key(key))
    rows, size = await service.database.read(
        principal.owner, lambda c: sessions.list_sessions(c, scope, after, limit, state=state)
    )
    items, next_cursor = cut_page(rows, size)
    return SessionPage(sessions=items, next_cursor=next_cursor)


async def session_state(service: Service, principal: Principal, session_id: str) -> SessionState:
    """Return the state that a framework keeps beside the turns of a session."""
    session = _session(principal, session_id)
    row = await service.database.read(principal.owner, lambda c: _existing(c, principal.owner, session))
    updated_at = from_micros(row.updated_at)
    return SessionState(state=row.state, revision=row.revision, last_seq=row.last_seq, updated_at=updated_at)


async def list_turns(
    service: Service, principal: Principal, session_id: str, from_seq: int, limit: int, *, payload: bool
) -> TurnPage:
    """Return a page of verbatim turns, oldest first. Erased turns keep their sequence numbers."""
    session = _session(principal, session_id)

    def read(connection: Connection) -> TurnPage:
        _existing(connection, principal.owner, session)
        count, following = turns.fitting(connection, principal.owner, session, from_seq, limit, payload=payload)
        found = turns.page(connection, principal.owner, session, from_seq, count, payload=payload)
        return TurnPage(turns=found, next_cursor=None if following is None else str(following))

    return await service.database.read(principal.owner, read)


async def list_digests(
    service: Service, principal: Principal, session_id: str, cursor: str | None, limit: int
) -> DigestPage:
    """Return a page of the versions of a session's digest, newest first."""
    session = _session(principal, session_id)
    before = None if cursor is None else decode_cursor(cursor, (int,))[0]

    def read(connection: Connection) -> DigestPage:
        _existing(connection, principal.owner, session)
        items, next_cursor = cut_page(*digests.versions(connection, principal.owner, session, before, limit))
        return DigestPage(digests=items, next_cursor=next_cursor)

    return await service.database.read(principal.owner, read)


async def get_digest(service: Service, principal: Principal, session_id: str, version: int) -> Digest:
    """Return one version of a session's digest."""
    session = _session(principal, session_id)
    found = await service.database.read(principal.owner, lambda c: digests.one(c, principal.owner, session, version))
    if found is None:
        raise NotFound(f"this session has no digest version {version}")
    return found


async def session_status(service: Service, principal: Principal, session_id: str) -> SessionStatus:
    """Return how far the background work on a session has come."""
    session = _session(principal, session_id)
    now = service.clock()

    def read(connection: Connection) -> SessionStatus:
        row = _existing(connection, principal.owner, session)
        return tasks.status(connection, principal.owner, session, row.last_seq, now)

    return await service.database.read(principal.owner, read)


def _session(principal: Principal, session_id: str) -> UUID:
    session = session_scope(principal, session_id).session
    assert session is not None
    return session


def _existing(connection: Connection, owner: UUID, session: UUID) -> AnyRow:
    row = sessions.find_session(connection, owner, session)
    if row is None:
        raise NotFound("no such session")
    return row
