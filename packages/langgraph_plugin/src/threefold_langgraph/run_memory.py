"""`RunMemory`: recall before a model call and record after it, for the middleware, the nodes and the hook."""

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
from threefold_langgraph.conversation import earlier_messages, open_messages, prompt_of, text_of, turns_of
from threefold_langgraph.identity import thread_of

KNOWN_TURNS = 10_000
KNOWN_BLOCKS = 256

log = logging.getLogger("threefold")

Session = MemorySession | AsyncMemorySession
MessageKey = tuple[SessionKey, str]


def session_id(config: RunnableConfig) -> str:
    """Return the session of a run, which is its thread. Raise InvalidRequest if it has none."""
    thread = thread_of(config)
    if thread is None:
        raise InvalidRequest("no session: pass a `thread_id` in the run's config (`configurable.thread_id`)")
    return thread


class RunMemory:
    """Recall and record for runs, synchronous and asynchronous.

    Nothing is lost with the process: turns have ids, so that they are stored once, and a block is recalled again.
    """

    def __init__(
        self, connection: ThreefoldConnection, recall: RecallOptions | None = None, visibility: Visibility | None = None
    ) -> None:
        self.connection = connection
        self._options: RecallOptions = recall or {}
        self._visibility: Visibility | None = visibility
        self._recorded: Bounded[MessageKey, None] = Bounded(KNOWN_TURNS)
        self._blocks: Bounded[MessageKey, str] = Bounded(KNOWN_BLOCKS)

    def session(self, config: RunnableConfig) -> MemorySession:
        """Return the session of a run."""
        return self.connection.session(config, session_id(config))

    def async_session(self, config: RunnableConfig) -> AsyncMemorySession:
        """Return the session of a run."""
        return self.connection.async_session(config, session_id(config))

    def recall(self, config: RunnableConfig, messages: Sequence[BaseMessage]) -> str:
        """Return the block for the latest user message. It is recalled once per message."""
        session, prompt = self.session(config), prompt_of(messages)
        if prompt is None:
            return ""
        block = self._blocks.get(_key(session, prompt))
        if block is not None:
            return block
        return self._block(session, messages, session.recall(text_of(prompt), **self._recall_options(messages)))

    async def arecall(self, config: RunnableConfig, messages: Sequence[BaseMessage]) -> str:
        """Return the block for the latest user message. It is recalled once per message."""
        session, prompt = self.async_session(config), prompt_of(messages)
        if prompt is None:
            return ""
        block = self._blocks.get(_key(session, prompt))
        if block is not None:
            return block
        return self._block(session, messages, await session.recall(text_of(prompt), **self._recall_options(messages)))

    def record(self, config: RunnableConfig, messages: Sequence[BaseMessage], *, run_end: bool = False) -> None:
        """Record the open messages that are not recorded yet. Only the mode strict raises."""
        session = self.session(config)
        turns = self._unrecorded(session, messages)
        if turns:
            session.record(turns, visibility=self._visibility, run_end=run_end)
        self._mark_recorded(session, turns, prompt_of(messages) if run_end else None)

    async def arecord(self, config: RunnableConfig, messages: Sequence[BaseMessage], *, run_end: bool = False) -> None:
        """Record the open messages that are not recorded yet. Only the mode strict raises."""
        session = self.async_session(config)
        turns = self._unrecorded(session, messages)
        if turns:
            await session.record(turns, visibility=self._visibility, run_end=run_end)
        self._mark_recorded(session, turns, prompt_of(messages) if run_end else None)

    def try_record(self, config: RunnableConfig, messages: Sequence[BaseMessage], *, run_end: bool = False) -> None:
        """Record, and log an error, where it must not replace the answer of the model or the error of the run."""
        try:
            self.record(config, messages, run_end=run_end)
        except ThreefoldError as error:
            log.warning("messages of a run are not recorded yet: %s", error)

    async def atry_record(
        self, config: RunnableConfig, messages: Sequence[BaseMessage], *, run_end: bool = False
    ) -> None:
        """Record, and log an error, where it must not replace the answer of the model or the error of the run."""
        try:
            await self.arecord(config, messages, run_end=run_end)
        except ThreefoldError as error:
            log.warning("messages of a run are not recorded yet: %s", error)

    def _recall_options(self, messages: Sequence[BaseMessage]) -> RecallOptions:
        return beside_history(self._options, bool(earlier_messages(messages)))

    def _block(self, session: Session, messages: Sequence[BaseMessage], response: RecallResponse) -> str:
        block = block_beside(response, session.session_id, {text_of(message) for message in messages})
        prompt = prompt_of(messages)
        if prompt is not None and prompt.id:
            self._blocks[_key(session, prompt)] = block
        return block

    def _unrecorded(self, session: Session, messages: Sequence[BaseMessage]) -> list[TurnIn]:
        return [turn for turn in turns_of(open_messages(messages)) if (session.key, turn.id) not in self._recorded]

    def _mark_recorded(self, session: Session, turns: Sequence[TurnIn], answered: HumanMessage | None) -> None:
        """Remember the recorded turns, so that no turn is sent twice, and drop the block of an answered prompt."""
        for turn in turns:
            self._recorded[session.key, turn.id or ""] = None
        if answered is not None:
            self._blocks.pop(_key(session, answered), None)


def _key(session: Session, prompt: HumanMessage) -> MessageKey:
    return session.key, prompt.id or ""
