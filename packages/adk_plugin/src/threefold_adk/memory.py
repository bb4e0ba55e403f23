"""`ThreefoldMemoryService`: the memory service of ADK, for its tools and contexts."""

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
"""The session of events that are added without a session."""


class ThreefoldMemoryService(BaseMemoryService):
    """The memory of each user (the user of ADK) with each agent (the app of ADK). Other users do not find it.

    A search does not raise in an outage, adding events follows the policy, and adding or deleting a memory raises.

    Args:
        client: The client; it must be allowed to name users and agents (default: the client of `uri`).
        uri: `threefold://host:port` or `threefold+https://host`; without a host, THREEFOLD_URL applies. The key comes
            from THREEFOLD_API_KEY.
        options: Options of each recall, as for `MemoryClient.recall` (default: memories only).
        policy: Failure mode, breaker and spool (default: a new `Policy`).

    Raises:
        ValueError: The URI or the key is not valid.
    """

    def __init__(
        self,
        client: AsyncMemoryClient | None = None,
        *,
        uri: str = "threefold://",
        options: RecallOptions | None = None,
        policy: Policy | None = None,
        **_: Any,  # the commands of ADK pass the directory of the agents to every service
    ) -> None:
        self._client = client or client_from(uri)
        self._options: RecallOptions = options or {}
        self._policy = policy or Policy()

    @property
    def stats(self) -> Stats:
        """The counters of the policy: outages, refusals, turns that were spooled, replayed or dropped."""
        return self._policy.stats

    async def add_session_to_memory(self, session: Session) -> None:
        """Add the events of a session that are not stored yet. Nothing is replaced.

        Args:
            session: The session or a part of it; it may be added many times.

        Raises:
            ThreefoldError: In the failure mode `strict`, if the service did not store the events.
        """
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
        """Add the events that are not stored yet, by their ids.

        Args:
            app_name: The agent.
            user_id: The user.
            events: The events. Only their text is stored; they do not become events of a session.
            session_id: The session of the turns (default: one session for all such events).
            custom_metadata: Ignored.

        Raises:
            ThreefoldError: In the failure mode `strict`, if the service did not store the events.
        """
        # Without payload: a session that is read must not contain events that were only added to memory.
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
        """Save facts with their metadata.

        An entry with the role `model`, or with an author other than the user, gets the origin `assistant`.

        Args:
            app_name: The agent.
            user_id: The user.
            memories: The entries; the text of each becomes one fact.
            custom_metadata: Metadata of all entries; the metadata of an entry take precedence.

        Raises:
            ThreefoldError: The service refused a fact or did not answer. Earlier facts of the call are stored.
        """
        client = self._client.acting_as(user=user_id, agent=app_name)
        for memory in memories:
            metadata = {**(custom_metadata or {}), **memory.custom_metadata}
            with self._policy.call():
                await client.save(strip_block(words_of(memory.content)), metadata=metadata, noted_by=_noted_by(memory))

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Return the memories for a query, best first.

        Args:
            app_name: The agent.
            user_id: The user.
            query: The query; it is cut in the middle to 10,000 characters.

        Returns:
            The memories; none in an outage, which `stats` counts.
        """
        session = AsyncMemorySession(self._client, NO_SESSION, user=user_id, agent=app_name, policy=self._policy)
        found = await session.recall(query, **{"include": ("long_term",), **self._options})
        return SearchMemoryResponse(memories=[_entry(memory) for memory in found.memories])

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Erase a fact, or the text of one event. It stays erased if the event is added again.

        Args:
            app_name: The agent.
            user_id: The user.
            memory_id: The id of the memory; needed.

        Raises:
            InvalidRequest: `memory_id` is missing.
            ThreefoldError: The service refused the call or did not answer.
        """
        if memory_id is None:
            raise InvalidRequest("memory_id: missing; pass the id of the memory to erase")
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
    """Return `assistant` unless role and author of an entry are the user or not given."""
    by_user = memory.content.role in (None, "user") and memory.author in (None, "user")
    return None if by_user else "assistant"


def _entry(memory: Memory) -> MemoryEntry:
    return MemoryEntry.model_validate(
        {**memory_entry(memory), "id": memory.id, "custom_metadata": memory.metadata},
    )
