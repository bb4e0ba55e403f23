"""The arguments of every tool, and what each asks of a session."""

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
"""A model calls these tools, so what comes through them is the assistant's, whoever it says has said it."""


@dataclass(frozen=True)
class Job:
    """What a call asks of a session, of either twin, and how the answer reads."""

    ask: Callable[[Any], Any]
    text: Callable[[Any], str]


class Arguments(BaseModel):
    """Arguments of a tool. Others than these are refused: a model cannot name a user."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    def job(self) -> Job | str:
        """What they ask for; or the answer, where there is nothing to ask."""
        raise NotImplementedError


class ToAgent(Arguments):
    """The levels up to `agent`."""

    level: Literal["session", "agent"] | None = Field(
        default=None, description="How far to look: this session, or all sessions of this user with this agent."
    )


class ToUser(Arguments):
    """The levels up to `user`."""

    level: Literal["session", "agent", "user"] | None = Field(
        default=None,
        description="How far to look: this session, all sessions of this user with this agent, or with any agent.",
    )


class SearchMemory(Arguments):
    """Arguments of `search_memory` where sessions are the ceiling: there is no level to choose."""

    query: str = Field(min_length=1, description="What to look for, in plain words.")
    limit: int = Field(default=10, ge=1, le=50, description="How many memories at most.")

    def job(self) -> Job:
        return recalling(self.query, include=["long_term"], top_k=self.limit, level=level_of(self))


class SearchMemoryToAgent(ToAgent, SearchMemory):
    """With the levels up to `agent`."""


class SearchMemoryToUser(ToUser, SearchMemory):
    """With the levels up to `user`."""


class SaveMemory(Arguments):
    """Arguments of `save_memory`."""

    text: str = Field(
        min_length=1, max_length=MAX_FACT_CHARS, description="One statement that is understood without its context."
    )

    def job(self) -> Job | str:
        return saving(self.text)


class LoadMemory(Arguments):
    """Arguments of `load_memory`."""

    query: str = Field(min_length=1, description="What to look for, in plain words.")

    def job(self) -> Job:
        return recalling(self.query, include=["long_term"])


class PrefetchMemory(Arguments):
    """Arguments of `prefetch_memory`."""

    message: str = Field(min_length=1, description="The message that is about to be answered.")

    def job(self) -> Job:
        return recalling(self.message)


class Recall(Arguments):
    """Arguments of the prompt `recall`."""

    query: str = Field(min_length=1, description="What is asked or talked about.")

    def job(self) -> Job:
        return recalling(self.query)


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

    def job(self) -> Job | str:
        return recording(("user", self.message or ""), ("assistant", self.answer or ""))


class ListMemories(Arguments):
    """Arguments of `list_memories` where sessions are the ceiling."""

    kind: Literal["fact", "turn"] | None = Field(
        default=None, description="Only statements that were saved or learnt (fact), or only what was said (turn)."
    )
    limit: int = Field(default=20, ge=1, le=100, description="How many memories at most.")
    cursor: str | None = Field(default=None, description="The cursor that the page before ended with.")

    def job(self) -> Job:
        kinds: list[Literal["fact", "turn"]] = [self.kind] if self.kind else ["fact", "turn"]
        level, limit, cursor = level_of(self), self.limit, self.cursor
        return Job(
            lambda session: session.send(
                calls.list_memories(kinds=kinds, limit=limit, cursor=cursor, level=level, session_id=session.session_id)
            ),
            listed_text,
        )


class ListMemoriesToAgent(ToAgent, ListMemories):
    """With the levels up to `agent`."""


class ListMemoriesToUser(ToUser, ListMemories):
    """With the levels up to `user`."""


class Forget(Arguments):
    """Arguments of `forget`."""

    ids: list[Id] = Field(min_length=1, max_length=100, description="The ids that `list_memories` shows.")
    dry_run: bool = Field(default=False, description="Only count what would go.")

    def job(self) -> Job:
        ids, dry_run = self.ids, self.dry_run
        return Job(lambda session: session.forget(memory_ids=ids, dry_run=dry_run), forgotten_text)


class KagentSave(Arguments):
    """Arguments of kagent's `save_memory`. What it saves expires, after 15 days unless the store says otherwise."""

    content: str = Field(
        min_length=1, max_length=MAX_FACT_CHARS, description="One statement that is understood without its context."
    )

    def job(self) -> Job | str:
        def save(session: Any) -> Any:
            days = session.store.default_expiry_days or KAGENT_DAYS
            return session.save(self.content, expires_in_days=days, noted_by=BY_MODEL)

        return Job(save, saved_text) if strip_block(self.content) else NOTHING_TO_SAVE


class KagentLoad(LoadMemory):
    """Arguments of kagent's `load_memory`: five memories at most, none with a cosine below 0.3, as JSON."""

    def job(self) -> Job:
        return replace(recalling(self.query, **KAGENT_RECALL), text=loaded_text)


class KagentPrefetch(PrefetchMemory):
    """Arguments of kagent's `prefetch_memory`."""

    def job(self) -> Job:
        return recalling(self.message, **KAGENT_RECALL)


class InWorkspace(Arguments):
    """A Kaigents tool. Its workspace is the store, whatever is asked for; another name is refused."""

    workspace_id: None = Field(default=None, description="The name of this store, if anything.")


class KaigentsRecord(InWorkspace):
    """Arguments of `memory.record`."""

    content: str = Field(min_length=1, max_length=MAX_FACT_CHARS, description="What to keep.")
    tier: Literal["short", "long"] = Field(
        description="short: a note in this session's window; long: a fact for every later session."
    )
    metadata: dict[str, Any] | None = Field(default=None, description="With tier long: kept beside the fact.")

    @model_validator(mode="after")
    def _metadata_of_facts(self) -> Self:
        if self.metadata and self.tier != "long":
            raise ValueError("`metadata` goes with tier 'long'")
        return self

    def job(self) -> Job | str:
        if self.tier == "short":
            return recording(("assistant", self.content))
        return saving(self.content, metadata=self.metadata or {})


class KaigentsQuery(InWorkspace):
    """Arguments of `memory.query`."""

    query: str = Field(min_length=1, description="What to look for, in plain words.")
    limit: int = Field(default=5, ge=1, le=50, description="How many memories at most.")

    def job(self) -> Job:
        return recalling(self.query, include=["long_term"], top_k=self.limit)


class KaigentsRecall(KaigentsQuery):
    """Arguments of `memory.recall`: the digest comes along."""

    def job(self) -> Job:
        return recalling(self.query, include=["medium_term", "long_term"], top_k=self.limit)


class KaigentsConsolidate(InWorkspace):
    """Arguments of `memory.consolidate`."""

    def job(self) -> Job:
        return Job(lambda session: session.send(calls.end(session.session_id)), consolidated_text)


class KaigentsContext(InWorkspace):
    """Arguments of `memory.assemble_context`."""

    query: str = Field(min_length=1, description="What the context is for.")
    budget: int = Field(default=2048, ge=1, le=1_000_000, description="Tokens at most.")

    def job(self) -> Job:
        return recalling(self.query, token_budget=self.budget)


@cache
def in_store(arguments: type[InWorkspace], store: str) -> type[InWorkspace]:
    """The same arguments, where `workspace_id` may name this store and no other."""
    allowed: Any = Literal[store, None]  # pyright: ignore[reportInvalidTypeForm] - known at run time only
    return create_model(
        arguments.__name__,
        __base__=arguments,
        workspace_id=(allowed, arguments.model_fields["workspace_id"]),
    )


def recalling(query: str, **options: Unpack[RecallOptions]) -> Job:
    """A recall, which is soft: its text says what is missing."""
    return Job(lambda session: session.recall(query, **options), recalled_text)


def saving(text: str, **options: Unpack[SaveOptions]) -> Job | str:
    """Save a fact as the assistant's, unless there is nothing new in it."""
    if not strip_block(text):
        return NOTHING_TO_SAVE
    noted: SaveOptions = {**options, "noted_by": BY_MODEL}
    return Job(lambda session: session.save(text, **noted), saved_text)


def recording(*said: tuple[Role, str]) -> Job | str:
    """Append turns to this session, noted by the assistant. They do not wait for a service that is down: a model is
    told what is stored, and only that."""
    made = [
        calls.turn_in({"role": role, "content": content, "noted_by": None if role == BY_MODEL else BY_MODEL})
        for role, content in said
        if content.strip()
    ]
    turns = [kept for turn in made for kept in recordable(turn)]
    if not turns:
        return NOTHING_TO_SAVE
    return Job(lambda session: session.send(calls.write(session.session_id, turns)), recorded_text)


def level_of(arguments: Arguments) -> Level | None:
    """The level that was chosen, where there is one to choose."""
    return getattr(arguments, "level", None)
