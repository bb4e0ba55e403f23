"""`ThreefoldMemoryService`: ADK's long-term memory. Its tools and contexts work with it as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from google.adk.events.event import Event
from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions import Session

from threefold import (
    AsyncMemoryClient,
    AsyncMemorySession,
    InvalidRequest,
    Memory,
    Policy,
    Stats,
    TurnIn,
    strip_block,
)
from threefold.calls import RecallOptions
from threefold.tools.answers import memory_entry
from threefold_adk.events import spoken_turns, words_of
from threefold_adk.uris import client_from

NO_SESSION = "adk-events"
"""The session of events that come without one."""


class ThreefoldMemoryService(BaseMemoryService):
    """What one user (ADK's user) has said to one agent (ADK's app), and what was saved. Nobody else finds it.

    To search is soft, to add events as the policy says, to add or delete a memory raises.
    """

    def __init__(
        self,
        client: AsyncMemoryClient | None = None,
        *,
        uri: str = "threefold://",
        options: RecallOptions | None = None,
        policy: Policy | None = None,
        **_: Any,  # ADK's commands tell every service where the agents are
    ) -> None:
        self._client = client or client_from(uri)
        self._options: RecallOptions = options or {}
        self._policy = policy or Policy()

    @property
    def stats(self) -> Stats:
        """What became of all calls and turns: outages, refusals, turns that waited or were lost."""
        return self._policy.stats

    async def add_session_to_memory(self, session: Session) -> None:
        """Add what is new of a session. Nothing is replaced: it may be a window of the session, and come many times."""
        await self._add(session.app_name, session.user_id, session.id, spoken_turns(session.events))

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Add those events that are not there yet, by their ids."""
        # Without the events' own JSON: to tell memory something beside a session adds no event to it.
        turns = [turn.model_copy(update={"payload": None}) for turn in spoken_turns(events)]
        await self._add(app_name, user_id, session_id or NO_SESSION, turns)

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Save facts. Their metadata is kept with them, and found with them. What a model wrote (role `model`, or an
        author other than the user) is the assistant's."""
        client = self._client.acting_as(user=user_id, agent=app_name)
        for memory in memories:
            metadata = {**(custom_metadata or {}), **memory.custom_metadata}
            with self._policy.call():
                await client.save(strip_block(words_of(memory.content)), metadata=metadata, noted_by=_noted_by(memory))

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """What memory holds on a query, the best first; nothing in an outage, which `stats` counts."""
        session = AsyncMemorySession(self._client, NO_SESSION, user=user_id, agent=app_name, policy=self._policy)
        found = await session.recall(query, **{"include": ("long_term",), **self._options})
        return SearchMemoryResponse(memories=[_entry(memory) for memory in found.memories])

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Erase a fact, or what was said in one event. It stays erased, though the event be added again."""
        if memory_id is None:
            raise InvalidRequest("memory_id: name the memory to erase, by the id of its entry")
        with self._policy.call():
            await self._client.acting_as(user=user_id, agent=app_name).delete_fact(memory_id)

    async def close(self) -> None:
        """Close the connections of the running event loop; a later call opens new ones."""
        await self._client.close()

    async def _add(self, app_name: str, user_id: str, session_id: str, turns: list[TurnIn]) -> None:
        session = AsyncMemorySession(self._client, session_id, user=user_id, agent=app_name, policy=self._policy)
        if turns:
            await session.record(turns, run_end=True, on_conflict="keep")


def _noted_by(memory: MemoryEntry) -> Literal["assistant"] | None:
    """Return who notes an entry: the assistant, unless its role and author are the user's or are not given."""
    by_user = memory.content.role in (None, "user") and memory.author in (None, "user")
    return None if by_user else "assistant"


def _entry(memory: Memory) -> MemoryEntry:
    return MemoryEntry.model_validate(
        {**memory_entry(memory), "id": memory.id, "custom_metadata": memory.metadata},
    )
