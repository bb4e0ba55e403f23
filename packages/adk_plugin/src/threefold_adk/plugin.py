"""`ThreefoldPlugin`: memory for every agent of an app. It recalls before a run and records the events of the run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from itertools import takewhile
from math import inf
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.run_config import RunConfig
from google.adk.events.event import Event
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai.types import Content, Part

from threefold import AsyncMemoryClient, AsyncMemorySession, Policy, Stats, ThreefoldError
from threefold.bounded import Bounded
from threefold.calls import RecallOptions, beside_history
from threefold.contract import Visibility
from threefold.policy import FLUSH_SECONDS
from threefold.render import block_beside
from threefold.spool import SessionKey
from threefold_adk.events import spoken_turns, text_of, words_of
from threefold_adk.identity import session_of
from threefold_adk.sessions import ThreefoldSessionService

KNOWN_EVENTS = 10_000

log = logging.getLogger("threefold")

_caller: ContextVar[InvocationContext | None] = ContextVar("threefold_caller", default=None)
"""The run whose tool is called now."""


class ThreefoldPlugin(BasePlugin):
    """Memory for an app. One object serves all its users, sessions, threads and event loops, sub-agents included.

    Args:
        client: The client; it must be allowed to name users and agents (default: `AsyncMemoryClient.from_env()`).
        recall: Recall for the message of the user and show the block to the models of the run (default true).
        record: Record the events of each run (default true). Sessions of `ThreefoldSessionService` are stored anyway.
        options: Options of each recall, as for `MemoryClient.recall`.
        visibility: Widest level at which the turns may be recalled (default `user`).
        policy: Failure mode, breaker and spool (default: a new `Policy`).
        name: Name of the plugin.

    Raises:
        ValueError: The URL or the key in the environment is not valid.
    """

    def __init__(
        self,
        client: AsyncMemoryClient | None = None,
        *,
        recall: bool = True,
        record: bool = True,
        options: RecallOptions | None = None,
        visibility: Visibility | None = None,
        policy: Policy | None = None,
        name: str = "threefold",
    ) -> None:
        super().__init__(name)
        self._client = client or AsyncMemoryClient.from_env()
        self._owns_client = client is None
        self._recalls = recall
        self._records = record
        self._options: RecallOptions = options or {}
        self._visibility: Visibility | None = visibility
        self._policy = policy or Policy()
        self._recorded: Bounded[tuple[SessionKey, str], None] = Bounded(KNOWN_EVENTS)

    @property
    def stats(self) -> Stats:
        """The counters of the policy: outages, refusals, turns that were spooled, replayed or dropped."""
        return self._policy.stats

    async def before_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """Record events that an earlier run left, and add the block for the user's message to the requests of this run.

        Raises:
            ThreefoldError: In the failure mode `strict`, if earlier events could not be stored.
        """
        if _is_part_of_its_caller(invocation_context):
            return
        session = session_of(self._client, invocation_context.session, self._policy)
        if self._is_recorder(invocation_context):
            await self._record(session, self._unrecorded(session, invocation_context))
        if self._recalls:
            block = await self._recalled(session, invocation_context)
            if block:
                invocation_context.run_config = _with_block(invocation_context.run_config, block)

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """Record a run that ended without an error, or that was left early.

        Raises:
            ThreefoldError: In the failure mode `strict`, if the service did not store the events.
        """
        flush = asyncio.create_task(self._flush(invocation_context))
        try:
            await asyncio.shield(flush)
        except asyncio.CancelledError:  # the caller left the run while its end was being recorded
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await flush
            raise

    async def on_run_error_callback(self, *, invocation_context: InvocationContext, error: Exception) -> None:
        """Record a run that failed."""
        await self._flush_beside_failure(invocation_context)

    async def after_agent_callback(self, *, agent: BaseAgent, callback_context: CallbackContext) -> None:
        """Record a run that is being cancelled; ADK calls no other hook then."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            await self._flush_beside_failure(callback_context.get_invocation_context())

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> None:
        """Remember the run whose tool is called: the agent of an `AgentTool` is part of that run."""
        run = tool_context.get_invocation_context()
        if not _is_part_of_its_caller(run):
            _caller.set(run)

    async def close(self) -> None:
        """Close the connections of the running event loop, unless the client was passed in."""
        if self._owns_client:
            await self._client.close()

    def _is_recorder(self, run: InvocationContext) -> bool:
        """Return True if the plugin records the run: sessions of Threefold store their events themselves."""
        return self._records and not isinstance(run.session_service, ThreefoldSessionService)

    def _unrecorded(self, session: AsyncMemorySession, run: InvocationContext) -> list[Event]:
        """Return events before this run that are not recorded, for example of a run that was killed.

        In a session that is new to this process only the last run can have such events, because each run records what
        the run before it left.
        """
        earlier = [event for event in run.session.events if event.invocation_id != run.invocation_id]
        newest_first = takewhile(lambda event: (session.key, event.id) not in self._recorded, reversed(earlier))
        found = list(newest_first)[::-1]
        if len(found) < len(earlier):
            return found
        return [event for event in found if event.invocation_id == earlier[-1].invocation_id]

    async def _recalled(self, session: AsyncMemorySession, run: InvocationContext) -> str:
        """Return the block for a run. It is recalled once, for all requests and agents of the run."""
        query = words_of(run.user_content)
        if not query.strip():
            return ""
        events = run.session.events
        own = [event.id for event in events if event.invocation_id == run.invocation_id]
        options: RecallOptions = {"exclude_ids": own, **self._options}
        response = await session.recall(query, **beside_history(options, len(own) < len(events)))
        return block_beside(response, session.session_id, set(map(text_of, _uncompacted(events))))

    async def _flush(self, run: InvocationContext) -> None:
        if not self._is_recorder(run) or _is_part_of_its_caller(run):
            return
        session = session_of(self._client, run.session, self._policy)
        events = [event for event in run.session.events if event.invocation_id == run.invocation_id]
        fresh = [event for event in events if (session.key, event.id) not in self._recorded]
        await self._record(session, fresh, run_end=True)

    async def _flush_beside_failure(self, run: InvocationContext) -> None:
        """Record a failed run. An error of memory is logged, so that the error of the run is raised."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._flush(run)
        except ThreefoldError as error:
            log.error("a failed run was not recorded: %s", error)

    async def _record(self, session: AsyncMemorySession, events: Sequence[Event], *, run_end: bool = False) -> None:
        """Record each event once. Afterwards the spool has it, or the caller got an error."""
        for event in events:
            self._recorded[session.key, event.id] = None
        turns = spoken_turns(events)
        if turns:
            await session.record(turns, visibility=self._visibility, run_end=run_end, on_conflict="keep")


def _is_part_of_its_caller(run: InvocationContext) -> bool:
    """Return True if the run is that of an `AgentTool`.

    It runs its agent with the plugins of the caller, for the same user and app, in a session service that ends with
    the call. The caller passes the recalled block on, and the answer is recorded as the result of the tool.
    """
    caller = _caller.get()
    if caller is None or run.session_service is caller.session_service:
        return False
    return (run.app_name, run.user_id) == (caller.app_name, caller.user_id)


def _uncompacted(events: Sequence[Event]) -> list[Event]:
    """Return the events that a model still reads in full; ADK has summarised the older ones."""
    until = max((each.actions.compaction.end_timestamp for each in events if each.actions.compaction), default=-inf)
    return [event for event in events if event.timestamp > until]


def _with_block(config: RunConfig | None, block: str) -> RunConfig:
    """Return a config of this run with the block before the user's message in every request; no session keeps it."""
    config = config or RunConfig()
    context = [*(config.model_input_context or []), Content(role="user", parts=[Part(text=block)])]
    return config.model_copy(update={"model_input_context": context})
