"""A worker process that appends numbered events to one session and reloads it after each stale error.

Started again, it appends the same events from the beginning, as a queue would deliver them.
"""

from __future__ import annotations

import asyncio
import sys

from google.adk.errors import StaleSessionError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions import Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types

from threefold_adk import ThreefoldSessionService


def numbered(worker: str, number: int) -> Event:
    """Return the same event for the same number."""
    content = types.Content(role="user", parts=[types.Part(text=f"{worker} {number}")])
    actions = EventActions(state_delta={worker: number} if number % 5 == 0 else {})
    return Event(id=f"{worker}-{number}", author="user", content=content, actions=actions, timestamp=1.0)


async def read(sessions: ThreefoldSessionService) -> Session:
    """Return the session without its events."""
    found = await sessions.get_session(
        app_name="app", user_id="ana", session_id="s", config=GetSessionConfig(num_recent_events=0)
    )
    assert found is not None
    return found


async def append_all(sessions: ThreefoldSessionService, worker: str, count: int) -> None:
    """Append every event in order."""
    session = await read(sessions)
    for number in range(count):
        while True:
            try:
                await sessions.append_event(session, numbered(worker, number))
                break
            except StaleSessionError:
                session = await read(sessions)


if __name__ == "__main__":
    uri, worker, count = sys.argv[1:]
    asyncio.run(append_all(ThreefoldSessionService(uri=uri), worker, int(count)))
