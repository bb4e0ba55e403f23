"""The arguments of every tool, and the action on a session that they ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, Self, Unpack

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from threefold import calls
from threefold.calls import RecallOptions, SaveOptions
from threefold.contract import MAX_CONTENT_CHARS, MAX_FACT_CHARS, Level, Role
from threefold.contract.common import Id, NotedBy
from threefold.render import strip_block
from threefold.session import recordable
from threefold.tools.answers import (
    NOTHING_TO_SAVE,
    consolidated_text,
    forgotten_text,
    listed_text,
    loaded_text,
    recalled_text,
    recorded_text,
    saved_text,
)

KAGENT_RECALL: RecallOptions = {"include": ["long_term"], "top_k": 5, "min_score": 0.3, "min_score_of": "cosine"}
KAGENT_DAYS = 15.0
BY_MODEL: NotedBy = "assistant"
"""A model calls these tools, so everything they save has the origin `assistant`, whatever speaker the model names."""


@dataclass(frozen=True)
class Action:
    """One call of a session and the text of its answer."""

    run: Callable[[Any], Any]
    """Calls a `MemorySession`, or returns an awaitable of an `AsyncMemorySession`."""
    text: Callable[[Any], str]
    """Returns the answer of the session as text for a model."""


class Arguments(BaseModel):
    """Arguments of a tool. Unknown arguments are refused, so that a model cannot name a user."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    def action(self) -> Action | str:
        """Return the action that the arguments ask for, or the answer if no call is needed."""
        raise NotImplementedError


class ToAgent(Arguments):
    """The argument `level`, up to `agent`."""

    level: Literal["session", "agent"] | None = Field(
        default=None, description="How far to look: this session, or all sessions of this user with this agent."
    )


class ToUser(Arguments):
    """The argument `level`, up to `user`."""

    level: Literal["session", "agent", "user"] | None = Field(
        default=None,
        description="How far to look: this session, all sessions of this user with this agent, or with any agent.",
    )


class SearchMemory(Arguments):
    """Arguments of `search_memory` for the ceiling `session`: without a level to choose."""

    query: str = Field(min_length=1, description="What to look for, in plain words.")
    limit: int = Field(default=10, ge=1, le=50, description="Most memories to return.")

    def action(self) -> Action:
        return recall_action(self.query, include=["long_term"], top_k=self.limit, level=level_of(self))


class SearchMemoryToAgent(ToAgent, SearchMemory):
    """Arguments of `search_memory` with a level up to `agent`."""


class SearchMemoryToUser(ToUser, SearchMemory):
    """Arguments of `search_memory` with a level up to `user`."""


class SaveMemory(Arguments):
    """Arguments of `save_memory`."""

    text: str = Field(
        min_length=1, max_length=MAX_FACT_CHARS, description="One statement that is understood without its context."
    )

    def action(self) -> Action | str:
        return save_action(self.text)


class LoadMemory(Arguments):
    """Arguments of `load_memory`."""

    query: str = Field(min_length=1, description="What to look for, in plain words.")

    def action(self) -> Action:
        return recall_action(self.query, include=["long_term"])


class PrefetchMemory(Arguments):
    """Arguments of `prefetch_memory`."""

    message: str = Field(min_length=1, description="The message that is about to be answered.")

    def action(self) -> Action:
        return recall_action(self.message)


class Recall(Arguments):
    """Arguments of the prompt `recall`."""

    query: str = Field(min_length=1, description="The question or the subject.")

    def action(self) -> Action:
        return recall_action(self.query)


class Record(Arguments):
    """Arguments of `record`."""

    message: str | None = Field(
        default=None, max_length=MAX_CONTENT_CHARS, description="What was said to you, word for word."
    )
    answer: str | None = Field(default=None, max_length=MAX_CONTENT_CHARS, description="What you answered.")

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not f"{self.message or ''}{self.answer or ''}".strip():
            raise ValueError("give `message`, `answer`, or both")
        return self

    def action(self) -> Action | str:
        return record_action(("user", self.message or ""), ("assistant", self.answer or ""))


class ListMemories(Arguments):
    """Arguments of `list_memories` for the ceiling `session`."""

    kind: Literal["fact", "turn"] | None = Field(
        default=None, description="Only saved or learnt statements (fact), or only messages of conversations (turn)."
    )
    limit: int = Field(default=20, ge=1, le=100, description="Most memories to return.")
    cursor: str | None = Field(default=None, description="The cursor at the end of the previous page.")

    def action(self) -> Action:
        kinds: list[Literal["fact", "turn"]] = [self.kind] if self.kind else ["fact", "turn"]
        level, limit, cursor = level_of(self), self.limit, self.cursor
        return Action(
            lambda session: session.send(
                calls.list_memories(kinds=kinds, limit=limit, cursor=cursor, level=level, session_id=session.session_id)
            ),
            listed_text,
        )


class ListMemoriesToAgent(ToAgent, ListMemories):
    """Arguments of `list_memories` with a level up to `agent`."""


class ListMemoriesToUser(ToUser, ListMemories):
    """Arguments of `list_memories` with a level up to `user`."""


class Forget(Arguments):
    """Arguments of `forget`."""

    ids: list[Id] = Field(min_length=1, max_length=100, description="The ids that `list_memories` shows.")
    dry_run: bool = Field(default=False, description="Only count what would be erased.")

    def action(self) -> Action:
        ids, dry_run = self.ids, self.dry_run
        return Action(lambda session: session.forget(memory_ids=ids, dry_run=dry_run), forgotten_text)


class KagentSave(Arguments):
    """Arguments of kagent's `save_memory`. The fact expires after the days that the store sets, or else after 15."""

    content: str = Field(
        min_length=1, max_length=MAX_FACT_CHARS, description="One statement that is understood without its context."
    )

    def action(self) -> Action | str:
        def save(session: Any) -> Any:
            days = session.store.default_expiry_days or KAGENT_DAYS
            return session.save(self.content, expires_in_days=days, noted_by=BY_MODEL)

        return Action(save, saved_text) if strip_block(self.content) else NOTHING_TO_SAVE


class KagentLoad(LoadMemory):
    """Arguments of kagent's `load_memory`: at most five memories with a cosine of 0.3 or more, as JSON."""

    def action(self) -> Action:
        return replace(recall_action(self.query, **KAGENT_RECALL), text=loaded_text)


class KagentPrefetch(PrefetchMemory):
    """Arguments of kagent's `prefetch_memory`."""

    def action(self) -> Action:
        return recall_action(self.message, **KAGENT_RECALL)


class InWorkspace(Arguments):
    """Arguments of a tool of Kaigents. Its workspace is the store; another name is refused."""

    workspace_id: None = Field(default=None, description="The name of this store, or nothing.")


class KaigentsRecord(InWorkspace):
    """Arguments of `memory.record`."""

    content: str = Field(min_length=1, max_length=MAX_FACT_CHARS, description="The text to keep.")
    tier: Literal["short", "long"] = Field(
        description="short: a note in this session's window; long: a fact for every later session."
    )
    metadata: dict[str, Any] | None = Field(default=None, description="With tier long: metadata of the fact.")

    @model_validator(mode="after")
    def _metadata_of_facts(self) -> Self:
        if self.metadata and self.tier != "long":
            raise ValueError("`metadata` needs tier 'long'")
        return self

    def action(self) -> Action | str:
        if self.tier == "short":
            return record_action(("assistant", self.content))
        return save_action(self.content, metadata=self.metadata or {})


class KaigentsQuery(InWorkspace):
    """Arguments of `memory.query`."""

    query: str = Field(min_length=1, description="What to look for, in plain words.")
    limit: int = Field(default=5, ge=1, le=50, description="Most memories to return.")

    def action(self) -> Action:
        return recall_action(self.query, include=["long_term"], top_k=self.limit)


class KaigentsRecall(KaigentsQuery):
    """Arguments of `memory.recall`, which also returns the digest."""

    def action(self) -> Action:
        return recall_action(self.query, include=["medium_term", "long_term"], top_k=self.limit)


class KaigentsConsolidate(InWorkspace):
    """Arguments of `memory.consolidate`."""

    def action(self) -> Action:
        return Action(lambda session: session.send(calls.end(session.session_id)), consolidated_text)


class KaigentsContext(InWorkspace):
    """Arguments of `memory.assemble_context`."""

    query: str = Field(min_length=1, description="The question that the context is for.")
    budget: int = Field(default=2048, ge=1, le=1_000_000, description="Most tokens of the context.")

    def action(self) -> Action:
        return recall_action(self.query, token_budget=self.budget)


@cache
def in_store(arguments: type[InWorkspace], store: str) -> type[InWorkspace]:
    """Return the arguments with a `workspace_id` that may name this store only."""
    allowed: Any = Literal[store, None]  # pyright: ignore[reportInvalidTypeForm] - the store is known at run time only
    return create_model(
        arguments.__name__,
        __base__=arguments,
        workspace_id=(allowed, arguments.model_fields["workspace_id"]),
    )


def recall_action(query: str, **options: Unpack[RecallOptions]) -> Action:
    """Return an action that recalls. It does not raise in an outage; its text says what is missing."""
    return Action(lambda session: session.recall(query, **options), recalled_text)


def save_action(text: str, **options: Unpack[SaveOptions]) -> Action | str:
    """Return an action that saves a fact with the origin `assistant`, or the answer if the text has nothing new."""
    if not strip_block(text):
        return NOTHING_TO_SAVE
    noted: SaveOptions = {**options, "noted_by": BY_MODEL}
    return Action(lambda session: session.save(text, **noted), saved_text)


def record_action(*messages: tuple[Role, str]) -> Action | str:
    """Return an action that appends turns, noted by the assistant, or the answer if no turn has text.

    The turns do not go through the spool, so that a model is told that they are stored only if they are.
    """
    parsed = [
        calls.turn_in({"role": role, "content": content, "noted_by": None if role == BY_MODEL else BY_MODEL})
        for role, content in messages
        if content.strip()
    ]
    turns = [kept for turn in parsed for kept in recordable(turn)]
    if not turns:
        return NOTHING_TO_SAVE
    return Action(lambda session: session.send(calls.write(session.session_id, turns)), recorded_text)


def level_of(arguments: Arguments) -> Level | None:
    """Return the chosen level; None if these arguments have no level."""
    return getattr(arguments, "level", None)
