"""Recall before a model is asked and recording afterwards, for whatever drives the run: middleware, nodes, hooks."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig

from threefold import AsyncMemorySession, InvalidRequest, MemorySession, RecallResponse, ThreefoldError, TurnIn
from threefold.bounded import Bounded
from threefold.calls import RecallOptions, beside_history
from threefold.contract import Visibility
from threefold.render import block_beside
from threefold.spool import SessionKey
from threefold_langgraph.connection import ThreefoldConnection
from threefold_langgraph.conversation import before, exchange, prompt_of, text_of, turns_of
from threefold_langgraph.identity import thread_of

KNOWN_TURNS = 10_000
KNOWN_BLOCKS = 256

log = logging.getLogger("threefold")

Session = MemorySession | AsyncMemorySession
Turn = tuple[SessionKey, str]


def session_id(config: RunnableConfig) -> str:
    """The session of a run: its thread."""
    thread = thread_of(config)
    if thread is None:
        raise InvalidRequest("no session: pass a `thread_id` in the run's config (`configurable.thread_id`)")
    return thread


class RunMemory:
    """Both twins of recall and recording. It keeps nothing that a later process would miss: what was recorded is known
    by its ids, and what was recalled is recalled again."""

    def __init__(
        self, connection: ThreefoldConnection, recall: RecallOptions | None = None, visibility: Visibility | None = None
    ) -> None:
        self.connection = connection
        self._options: RecallOptions = recall or {}
        self._visibility: Visibility | None = visibility
        self._recorded: Bounded[Turn, None] = Bounded(KNOWN_TURNS)
        self._blocks: Bounded[Turn, str] = Bounded(KNOWN_BLOCKS)

    def session(self, config: RunnableConfig) -> MemorySession:
        """The session of a run."""
        return self.connection.session(config, session_id(config))

    def async_session(self, config: RunnableConfig) -> AsyncMemorySession:
        """The session of a run."""
        return self.connection.async_session(config, session_id(config))

    def recall(self, config: RunnableConfig, messages: Sequence[BaseMessage]) -> str:
        """What memory holds on the user's latest message, asked for once for each. In an outage: what is known here."""
        session, prompt = self.session(config), prompt_of(messages)
        if prompt is None:
            return ""
        known = self._blocks.get(_key(session, prompt))
        if known is not None:
            return known
        return self._block(session, messages, session.recall(text_of(prompt), **self._wanted(messages)))

    async def arecall(self, config: RunnableConfig, messages: Sequence[BaseMessage]) -> str:
        """`recall`, awaited."""
        session, prompt = self.async_session(config), prompt_of(messages)
        if prompt is None:
            return ""
        known = self._blocks.get(_key(session, prompt))
        if known is not None:
            return known
        return self._block(session, messages, await session.recall(text_of(prompt), **self._wanted(messages)))

    def record(self, config: RunnableConfig, messages: Sequence[BaseMessage], *, run_end: bool = False) -> None:
        """Record what of the exchange is not recorded yet. Only strict raises."""
        session = self.session(config)
        turns = self._due(session, messages)
        if turns:
            session.record(turns, visibility=self._visibility, run_end=run_end)
        self._done(session, turns, prompt_of(messages) if run_end else None)

    async def arecord(self, config: RunnableConfig, messages: Sequence[BaseMessage], *, run_end: bool = False) -> None:
        """`record`, awaited."""
        session = self.async_session(config)
        turns = self._due(session, messages)
        if turns:
            await session.record(turns, visibility=self._visibility, run_end=run_end)
        self._done(session, turns, prompt_of(messages) if run_end else None)

    def try_record(self, config: RunnableConfig, messages: Sequence[BaseMessage], *, run_end: bool = False) -> None:
        """Record where a failure must not replace what the model has said, or the run's own error."""
        try:
            self.record(config, messages, run_end=run_end)
        except ThreefoldError as error:
            log.warning("not recorded yet: %s", error)

    async def atry_record(
        self, config: RunnableConfig, messages: Sequence[BaseMessage], *, run_end: bool = False
    ) -> None:
        """`try_record`, awaited."""
        try:
            await self.arecord(config, messages, run_end=run_end)
        except ThreefoldError as error:
            log.warning("not recorded yet: %s", error)

    def _wanted(self, messages: Sequence[BaseMessage]) -> RecallOptions:
        return beside_history(self._options, bool(before(messages)))

    def _block(self, session: Session, messages: Sequence[BaseMessage], response: RecallResponse) -> str:
        block = block_beside(response, session.session_id, {text_of(message) for message in messages})
        prompt = prompt_of(messages)
        if prompt is not None and prompt.id:
            self._blocks[_key(session, prompt)] = block
        return block

    def _due(self, session: Session, messages: Sequence[BaseMessage]) -> list[TurnIn]:
        return [turn for turn in turns_of(exchange(messages)) if (session.key, turn.id) not in self._recorded]

    def _done(self, session: Session, turns: Sequence[TurnIn], answered: HumanMessage | None) -> None:
        """Nothing is sent twice by this process; and what was recalled goes with the run that it was for."""
        for turn in turns:
            self._recorded[session.key, turn.id or ""] = None
        if answered is not None:
            self._blocks.pop(_key(session, answered), None)


def _key(session: Session, prompt: HumanMessage) -> Turn:
    return session.key, prompt.id or ""
