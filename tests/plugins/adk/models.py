"""Apps with a scripted model, and helpers that read their sessions from memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps.app import App
from google.adk.events.event import Event
from google.adk.memory.base_memory_service import BaseMemoryService
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions import BaseSessionService, InMemorySessionService, Session

from conformance.adapter import Reply, Script
from conformance.adk_plugin import Scripted, message
from fixtures.line import Line
from threefold.contract import Turn
from threefold_adk.events import words_of

APP = "shop"
"""The agent of all links here."""


class Talk:
    """An app and its runner. `script.prompts` and `model.requests` record what the model was sent."""

    def __init__(
        self,
        *plugins: BasePlugin,
        replies: Sequence[Reply] = (),
        sessions: BaseSessionService | None = None,
        memory: BaseMemoryService | None = None,
        **options: Any,
    ) -> None:
        left = list(replies)
        self.script = Script(reply=lambda _: left.pop(0) if left else "Noted.")
        self.model = Scripted(script=self.script)
        self.sessions = sessions or InMemorySessionService()
        agent = LlmAgent(name="helper", model=self.model, **options)
        self.runner = Runner(
            app=App(name=APP, root_agent=agent, plugins=list(plugins)),
            session_service=self.sessions,
            memory_service=memory,
            auto_create_session=True,
        )

    async def say(self, text: str, session: str = "s", user: str = "ana", **options: Any) -> str:
        """Run with this text of the user and return the last text of the model."""
        running = self.runner.run_async(user_id=user, session_id=session, new_message=message(text), **options)
        events: list[Event] = [event async for event in running]
        return words_of(events[-1].content)

    async def session(self, session: str = "s", user: str = "ana") -> Session:
        """Return the session from the session service."""
        found = await self.sessions.get_session(app_name=APP, user_id=user, session_id=session)
        assert found is not None
        return found


def turns(line: Line, session: str = "s", user: str = "ana") -> list[Turn]:
    """Return all turns of a session in memory."""
    with line.client(user) as memory:
        return memory.turns(session, payload=True, limit=1_000).turns


def words(line: Line, session: str = "s", user: str = "ana") -> list[str]:
    """Return the texts of a session in memory."""
    return [turn.content for turn in turns(line, session, user)]
