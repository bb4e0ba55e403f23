"""`ThreefoldSessionService`: ADK's sessions over the log of turns, so that whatever is said in one is memory too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime
from itertools import islice, takewhile
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.sessions import BaseSessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse
from pydantic import PrivateAttr

from threefold import AsyncMemoryClient, InvalidRequest, NotFound, RevisionConflict
from threefold.contract import MAX_PAGE, MAX_PAYLOAD_CHARS, SessionState, Visibility, WriteResponse
from threefold_adk.events import USER, event_of, turn_of
from threefold_adk.state import Changes, Stored, shared_state, user_state
from threefold_adk.uris import client_from


class StoredSession(Session):
    """A session that knows what the service held of it: the next append builds on that, or is refused."""

    _stored: Stored = PrivateAttr()

    @property
    def stored(self) -> Stored:
        """No field: what a service or a client makes of a session's JSON stays as it is."""
        return self._stored

    @stored.setter
    def stored(self, stored: Stored) -> None:
        self._stored = stored


class ThreefoldSessionService(BaseSessionService):
    """The sessions of each user (ADK's user) and agent (ADK's app): events are turns, state is kept beside them.

    It raises what goes wrong, in an outage too: a session is not augmentation.
    """

    def __init__(
        self,
        client: AsyncMemoryClient | None = None,
        *,
        uri: str = "threefold://",
        visibility: Visibility | None = None,
        **_: Any,  # ADK's commands tell every service where the agents are
    ) -> None:
        self._client = client or client_from(uri)
        self._visibility: Visibility | None = visibility
        self._locks: WeakValueDictionary[tuple[Any, ...], asyncio.Lock] = WeakValueDictionary()

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        client = self._client_of(app_name, user_id)
        session_id = session_id or uuid4().hex
        changes = Changes.of(state or {})
        shared = changes.shared()
        document = Stored(0, changes.session, created=uuid4().hex).dump()
        try:
            await client.write(session_id, [], state=document, expected_revision=0)
        except RevisionConflict:
            raise AlreadyExistsError(f"Session with id {session_id} already exists.") from None
        for call in shared:
            await client.send(call)
        return await _read(client, session_id, GetSessionConfig())

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        client = self._client_of(app_name, user_id)
        try:
            return await _read(client, session_id, config or GetSessionConfig())
        except NotFound:
            return None

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        if user_id is None:
            raise InvalidRequest("user_id: needed, as nobody may list the sessions of all users through an agent")
        client = self._client_of(app_name, user_id)
        shared = await shared_state(client)
        sessions: list[Session] = []
        cursor: str | None = None
        while True:
            page = await client.sessions(cursor=cursor, limit=MAX_PAGE, state=True)
            for row in page.sessions:
                stored = Stored.parse(row.state, row.revision)
                if row.state is not None and stored is not None:  # else it was not created here
                    sessions.append(_session(client, row.session_id, row.updated_at, stored, shared))
            cursor = page.next_cursor
            if cursor is None:
                return ListSessionsResponse(sessions=sorted(sessions, key=lambda one: (one.last_update_time, one.id)))

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        await self._client_of(app_name, user_id).forget(session_id=session_id)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        return await user_state(self._client_of(app_name, user_id))

    async def append_event(self, session: Session, event: Event) -> Event:
        if event.partial:
            return event
        client = self._client_of(session.app_name, session.user_id)
        changes = Changes.of(event.actions.state_delta)
        shared = changes.shared()
        async with self._lock(session):
            is_new = all(known.id != event.id for known in session.events)
            if is_new:
                self._apply_temp_state(session, event)
                event = self._trim_temp_delta_state(event)
                await self._append(client, session, event, changes)
            # Of an old event, too: the run that appended it may have ended before it came to this.
            for call in shared:
                await client.send(call)
            if is_new:
                session.last_update_time = event.timestamp
                self._commit_event_to_session(session, event)
        return event

    async def close(self) -> None:
        """Close the connections of the running event loop, which closes them at its end anyway."""
        await self._client.close()

    async def _append(self, client: AsyncMemoryClient, session: Session, event: Event, changes: Changes) -> None:
        before = session.stored if isinstance(session, StoredSession) else await _adopted(client, session)
        try:
            await self._append_to(before, client, session, event, changes)
        except StaleSessionError:  # or was only memory told something beside the session, which is no event?
            await self._append_to(await _adopted(client, session), client, session, event, changes)

    async def _append_to(
        self, before: Stored, client: AsyncMemoryClient, session: Session, event: Event, changes: Changes
    ) -> None:
        after = before.after(changes.session)
        written = await self._write(client, session, event, before, after.dump() if changes.session else None)
        if written.erased:
            raise InvalidRequest(f"event {event.id!r} was deleted from session {session.id!r}: give it a new id")
        # Not the revision that the answer tells: where an answer was lost and the call came again, others may have
        # written meanwhile what this session has not seen.
        if isinstance(session, StoredSession) and written.revision > before.revision:
            session.stored = after

    async def _write(
        self, client: AsyncMemoryClient, session: Session, event: Event, before: Stored, state: str | None
    ) -> WriteResponse:
        turn = turn_of(event)
        if turn.payload is None:
            raise InvalidRequest(
                f"event {event.id!r}: a session keeps events whole, as JSON of at most {MAX_PAYLOAD_CHARS} characters; "
                "save its files as artifacts"
            )
        try:
            return await client.write(
                session.id,
                [turn],
                visibility=self._visibility,
                run_end=event.author != USER and event.is_final_response(),
                state=state,
                expected_revision=before.revision,
            )
        except RevisionConflict as conflict:
            if conflict.details["revision"] == 0:
                raise _not_found(session) from None
            raise _stale(session) from None

    def _client_of(self, app_name: str, user_id: str) -> AsyncMemoryClient:
        return self._client.acting_as(user=user_id, agent=app_name)

    def _lock(self, session: Session) -> asyncio.Lock:
        """Branches of one run share a session: without it, each would find that the others had moved it on."""
        key = (asyncio.get_running_loop(), session.app_name, session.user_id, session.id)
        return self._locks.setdefault(key, asyncio.Lock())


async def _read(client: AsyncMemoryClient, session_id: str, config: GetSessionConfig) -> Session:
    found = await client.state(session_id)
    stored = _parsed(session_id, found)
    events, shared = await asyncio.gather(
        _newest_events(client, session_id, found.last_seq, config), shared_state(client)
    )
    return _session(client, session_id, found.updated_at, stored, shared, events)


def _session(
    client: AsyncMemoryClient,
    session_id: str,
    updated_at: datetime,
    stored: Stored,
    shared: dict[str, Any],
    events: Iterable[Event] = (),
) -> StoredSession:
    session = StoredSession(
        id=session_id,
        app_name=client.agent or "",
        user_id=client.user or "",
        state={**stored.state, **shared},
        events=list(events),
        last_update_time=updated_at.timestamp(),
    )
    session.stored = stored
    return session


def _parsed(session_id: str, found: SessionState) -> Stored:
    stored = Stored.parse(found.state, found.revision)
    if stored is None:
        raise InvalidRequest(f"session {session_id!r} holds the state of something else than a session of ADK")
    return stored


async def _newest_events(
    client: AsyncMemoryClient, session_id: str, upto: int, config: GetSessionConfig
) -> list[Event]:
    """The events that are asked for, oldest first, none beyond turn `upto`: that is what the revision stands for."""
    wanted, since = config.num_recent_events, config.after_timestamp
    size = MAX_PAGE if wanted is None else min(wanted, MAX_PAGE)
    events: list[Event] = []
    chosen: list[Event] = []
    while size and upto > 0 and len(chosen) == len(events) and len(chosen) != wanted:
        first = max(1, upto - size + 1)
        page = await client.turns(session_id, from_seq=first, limit=upto - first + 1, payload=True)
        events += filter(None, map(event_of, reversed(page.turns)))
        chosen = list(islice(takewhile(lambda event: since is None or event.timestamp >= since, events), wanted))
        upto = first - 1
    return chosen[::-1]


async def _adopted(client: AsyncMemoryClient, session: Session) -> Stored:
    """What the service holds of a session now, if they agree on the newest event."""
    try:
        found = await client.state(session.id)
        newest = await _newest_events(client, session.id, found.last_seq, GetSessionConfig(num_recent_events=1))
    except NotFound:
        raise _not_found(session) from None
    if [event.id for event in newest] != [event.id for event in session.events[-1:]]:
        raise _stale(session)
    return _parsed(session.id, found)


def _not_found(session: Session) -> SessionNotFoundError:
    return SessionNotFoundError(f"Session {session.id} not found.")


def _stale(session: Session) -> StaleSessionError:
    return StaleSessionError(
        f"Session {session.id} has moved on since it was read: something else appended to it. "
        "Nothing of this event was stored; get the session again and repeat the append."
    )
