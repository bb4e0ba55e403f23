"""Sessions of ana with the app `shop`: what is said in them, and what of it is stored."""

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
    """A session service, as another process would make it."""
    return ThreefoldSessionService(line.async_client(), **options)


def said(text: str, second: int = 0, author: str = "user", changes: Mapping[str, Any] | None = None) -> Event:
    """What is said in a second from the start, and the state that it changes."""
    content = types.Content(role="user" if author == "user" else "model", parts=[types.Part(text=text)])
    actions = EventActions(state_delta=dict(changes or {}))
    return Event(author=author, content=content, actions=actions, timestamp=START + second)


def changed(changes: Mapping[str, Any]) -> Event:
    """An event that says nothing."""
    return Event(author="guide", actions=EventActions(state_delta=dict(changes)))


async def get(sessions: BaseSessionService, session_id: str = "s", **config: Any) -> Session:
    """A session that is there."""
    found = await sessions.get_session(**WHO, session_id=session_id, config=GetSessionConfig(**config))
    assert found is not None
    return found


async def filled(sessions: BaseSessionService, count: int) -> Session:
    """A session in which `Word 0`, `Word 1`, ... were said, one a second."""
    session = await sessions.create_session(**WHO, session_id="s")
    for number in range(count):
        await sessions.append_event(session, said(f"Word {number}", number))
    return session


def words(session: Session) -> list[str]:
    """What was said in a session."""
    return [str(part.text) for event in session.events for part in (event.content and event.content.parts) or []]
