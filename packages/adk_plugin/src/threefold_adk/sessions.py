"""`ThreefoldSessionService`: sessions of ADK whose events are turns, so that recalls find them."""

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
    """A session with its last known state in the service. The next append needs that state to be current."""

    _stored: Stored = PrivateAttr()

    @property
    def stored(self) -> Stored:
        """The last known state. It is not a field, so that the JSON of a session does not change."""
        return self._stored

    @stored.setter
    def stored(self, stored: Stored) -> None:
        self._stored = stored


class ThreefoldSessionService(BaseSessionService):
    """The sessions of each user (the user of ADK) and agent (the app of ADK). Events are turns; state is beside them.

    Unlike memory, sessions raise every error, in an outage too.

    Args:
        client: The client; it must be allowed to name users and agents (default: the client of `uri`).
        uri: `threefold://host:port` or `threefold+https://host`; without a host, THREEFOLD_URL applies. The key comes
            from THREEFOLD_API_KEY.
        visibility: Widest level at which the turns may be recalled (default `user`).

    Raises:
        ValueError: The URI or the key is not valid.
    """

    def __init__(
        self,
        client: AsyncMemoryClient | None = None,
        *,
        uri: str = "threefold://",
        visibility: Visibility | None = None,
        **_: Any,  # the commands of ADK pass the directory of the agents to every service
    ) -> None:
        self._client = client or client_from(uri)
        self._visibility: Visibility | None = visibility
        self._locks: WeakValueDictionary[tuple[Any, ...], asyncio.Lock] = WeakValueDictionary()

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        """Create a session.

        Args:
            app_name: The agent.
            user_id: The user.
            state: The first state; keys with the prefix `user:` or `app:` belong to the user or the app.
            session_id: The id (default: a random one).

        Returns:
            The session.

        Raises:
            AlreadyExistsError: There is a session with this id.
            InvalidRequest: The state is not JSON, or an id is not valid.
            ThreefoldError: The service refused the call or did not answer.
        """
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
        """Return a session, or None if it does not exist.

        Args:
            app_name: The agent.
            user_id: The user.
            session_id: The session.
            config: Which events to read (default: all).

        Raises:
            InvalidRequest: The session has the state of another framework.
            ThreefoldError: The service refused the call or did not answer.
        """
        client = self._client_of(app_name, user_id)
        try:
            return await _read(client, session_id, config or GetSessionConfig())
        except NotFound:
            return None

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Return the sessions of a user, the last updated last, with state and without events.

        Args:
            app_name: The agent.
            user_id: The user; needed.

        Raises:
            InvalidRequest: `user_id` is missing.
            ThreefoldError: The service refused the call or did not answer.
        """
        if user_id is None:
            raise InvalidRequest("user_id: missing; the sessions of all users cannot be listed")
        client = self._client_of(app_name, user_id)
        shared = await shared_state(client)
        sessions: list[Session] = []
        cursor: str | None = None
        while True:
            page = await client.sessions(cursor=cursor, limit=MAX_PAGE, state=True)
            for row in page.sessions:
                stored = Stored.parse(row.state, row.revision)
                if row.state is not None and stored is not None:  # else this service did not create it
                    sessions.append(_session(client, row.session_id, row.updated_at, stored, shared))
            cursor = page.next_cursor
            if cursor is None:
                return ListSessionsResponse(sessions=sorted(sessions, key=lambda one: (one.last_update_time, one.id)))

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Erase a session with everything in it.

        Args:
            app_name: The agent.
            user_id: The user.
            session_id: The session.

        Raises:
            ThreefoldError: The service refused the call or did not answer.
        """
        await self._client_of(app_name, user_id).forget(session_id=session_id)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the state of a user in an app, without prefixes.

        Args:
            app_name: The agent.
            user_id: The user.

        Raises:
            ThreefoldError: The service refused the call or did not answer.
        """
        return await user_state(self._client_of(app_name, user_id))

    async def append_event(self, session: Session, event: Event) -> Event:
        """Append an event to a session and store its changes of state.

        Args:
            session: The session; it is updated.
            event: The event. A partial event is returned without being stored.

        Returns:
            The event without temporary state.

        Raises:
            StaleSessionError: The session was changed since it was read. Nothing of the event was stored.
            SessionNotFoundError: There is no such session.
            InvalidRequest: The event cannot be JSON, is too large, or has the id of an erased event.
            ThreefoldError: The service refused the call or did not answer.
        """
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
            # For a known event too: the run that appended it may have ended before this.
            for call in shared:
                await client.send(call)
            if is_new:
                session.last_update_time = event.timestamp
                self._commit_event_to_session(session, event)
        return event

    async def close(self) -> None:
        """Close the connections of the running event loop; it also closes them when it ends."""
        await self._client.close()

    async def _append(self, client: AsyncMemoryClient, session: Session, event: Event, changes: Changes) -> None:
        before = session.stored if isinstance(session, StoredSession) else await _current_state(client, session)
        try:
            await self._append_to(before, client, session, event, changes)
        except StaleSessionError:  # perhaps only turns that are not events were added
            await self._append_to(await _current_state(client, session), client, session, event, changes)

    async def _append_to(
        self, before: Stored, client: AsyncMemoryClient, session: Session, event: Event, changes: Changes
    ) -> None:
        after = before.after(changes.session)
        written = await self._write(client, session, event, before, after.dump() if changes.session else None)
        if written.erased:
            raise InvalidRequest(f"event {event.id!r} was erased from session {session.id!r}: give the event a new id")
        # Not the revision of the answer: if the first answer was lost and the call was repeated, others may have
        # written events in between that this session has not seen.
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
        """Return the lock of a session. Without it, branches of a run that share a session would find it changed."""
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
        raise InvalidRequest(f"session {session_id!r} does not hold a session of ADK")
    return stored


async def _newest_events(
    client: AsyncMemoryClient, session_id: str, upto: int, config: GetSessionConfig
) -> list[Event]:
    """Return the requested events, oldest first, up to turn `upto`, which belongs to the revision that was read."""
    limit, since = config.num_recent_events, config.after_timestamp
    size = MAX_PAGE if limit is None else min(limit, MAX_PAGE)
    events: list[Event] = []
    chosen: list[Event] = []
    while size and upto > 0 and len(chosen) == len(events) and len(chosen) != limit:
        first = max(1, upto - size + 1)
        page = await client.turns(session_id, from_seq=first, limit=upto - first + 1, payload=True)
        events += filter(None, map(event_of, reversed(page.turns)))
        chosen = list(islice(takewhile(lambda event: since is None or event.timestamp >= since, events), limit))
        upto = first - 1
    return chosen[::-1]


async def _current_state(client: AsyncMemoryClient, session: Session) -> Stored:
    """Return the stored state of a session. Raise StaleSessionError if its newest event differs."""
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
        f"Session {session.id} was changed since it was read. "
        "Nothing of this event was stored; get the session again and repeat the append."
    )
