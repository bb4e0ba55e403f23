"""Sessions of ana with the app `shop`, and helpers that append to them and read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions import BaseSessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types

from fixtures.line import Line
from plugins.adk.models import APP
from threefold_adk import ThreefoldSessionService

WHO: dict[str, Any] = {"app_name": APP, "user_id": "ana"}
START = 1_750_000_000.0


def open_sessions(line: Line, **options: Any) -> ThreefoldSessionService:
    """Open a session service, as another process would."""
    return ThreefoldSessionService(line.async_client(), **options)


def said(text: str, second: int = 0, author: str = "user", changes: Mapping[str, Any] | None = None) -> Event:
    """Return an event said this many seconds after the start, with its changes of state."""
    content = types.Content(role="user" if author == "user" else "model", parts=[types.Part(text=text)])
    actions = EventActions(state_delta=dict(changes or {}))
    return Event(author=author, content=content, actions=actions, timestamp=START + second)


def changed(changes: Mapping[str, Any]) -> Event:
    """Return an event without words."""
    return Event(author="guide", actions=EventActions(state_delta=dict(changes)))


async def get(sessions: BaseSessionService, session_id: str = "s", **config: Any) -> Session:
    """Return an existing session."""
    found = await sessions.get_session(**WHO, session_id=session_id, config=GetSessionConfig(**config))
    assert found is not None
    return found


async def filled(sessions: BaseSessionService, count: int) -> Session:
    """Create a session with `Word 0`, `Word 1`, ..., one per second."""
    session = await sessions.create_session(**WHO, session_id="s")
    for number in range(count):
        await sessions.append_event(session, said(f"Word {number}", number))
    return session


def words(session: Session) -> list[str]:
    """Return the texts of a session."""
    return [str(part.text) for event in session.events for part in (event.content and event.content.parts) or []]
