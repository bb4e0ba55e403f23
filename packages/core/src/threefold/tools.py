"""The tools that a model sees: names, descriptions, arguments, and one dispatcher. Identity is never an argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from threefold.calls import RecallOptions, checked
from threefold.contract import MAX_FACT_CHARS, Level, Memory, RecallResponse, WhoAmI
from threefold.errors import InvalidRequest, ThreefoldError
from threefold.policy import is_refusal
from threefold.render import strip_block
from threefold.session import REFUSED, SERVICE_DOWN, AsyncMemorySession, MemorySession

ToolName = Literal["search_memory", "save_memory", "load_memory", "prefetch_memory"]
DEFAULT_TOOLS: tuple[ToolName, ...] = ("search_memory", "save_memory")

UNAVAILABLE = "Memory is not available right now. Go on without it."
NOT_ALLOWED = "Memory refused this request. Go on without it."
NOTHING_FOUND = "No memory matches."
NOTHING_TO_SAVE = "Nothing was saved: the text holds only what memory already has."


class Arguments(BaseModel):
    """Arguments of a tool. Others than these are refused: a model cannot name a user."""

    model_config = ConfigDict(extra="forbid")


class SearchMemory(Arguments):
    """Arguments of `search_memory` where sessions are the ceiling: there is no level to choose."""

    query: str = Field(min_length=1, description="What to look for, in plain words.")
    limit: int = Field(default=10, ge=1, le=50, description="How many memories at most.")


class SearchMemoryToAgent(SearchMemory):
    """With the levels up to `agent`."""

    level: Literal["session", "agent"] | None = Field(
        default=None, description="How far to look: this session, or all sessions of this user with this agent."
    )


class SearchMemoryToUser(SearchMemory):
    """With the levels up to `user`."""

    level: Literal["session", "agent", "user"] | None = Field(
        default=None,
        description="How far to look: this session, all sessions of this user with this agent, or with any agent.",
    )


class SaveMemory(Arguments):
    """Arguments of `save_memory`."""

    text: str = Field(
        min_length=1, max_length=MAX_FACT_CHARS, description="One statement that is understood without its context."
    )


class LoadMemory(Arguments):
    """Arguments of `load_memory`."""

    query: str = Field(min_length=1, description="What to look for, in plain words.")


class PrefetchMemory(Arguments):
    """Arguments of `prefetch_memory`."""

    message: str = Field(min_length=1, description="The message that is about to be answered.")


SEARCH_BY_CEILING: Mapping[Level, type[SearchMemory]] = {
    "session": SearchMemory,
    "agent": SearchMemoryToAgent,
    "user": SearchMemoryToUser,
    "store": SearchMemoryToUser,
}


@dataclass(frozen=True)
class Tool:
    """One tool as a framework needs it."""

    name: ToolName
    description: str
    arguments: type[Arguments]
    use: str
    """When to call it, for `tools_hint`."""

    def parameters(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        return self.arguments.model_json_schema()


TOOLS: Mapping[ToolName, Tool] = {
    tool.name: tool
    for tool in (
        Tool(
            "search_memory",
            "Search long-term memory for what was said or learnt in earlier conversations.",
            SearchMemoryToUser,
            "search_memory to look up what was said or learnt earlier",
        ),
        Tool(
            "save_memory",
            "Save one lasting fact to long-term memory, for later conversations.",
            SaveMemory,
            "save_memory to keep a fact that will matter later",
        ),
        Tool(
            "load_memory",
            "Load the memories that matter for a query.",
            LoadMemory,
            "load_memory to load what matters for a query",
        ),
        Tool(
            "prefetch_memory",
            "Load everything that matters for a message: recent turns, the digest and memories.",
            PrefetchMemory,
            "prefetch_memory to load all context for a message",
        ),
    )
}


def memory_tools(whoami: WhoAmI | None = None, names: Sequence[ToolName] = DEFAULT_TOOLS) -> list[Tool]:
    """The named tools, with the levels that this identity may read; up to `agent` while it is not known."""
    search = SEARCH_BY_CEILING[whoami.ceiling if whoami else "agent"]
    levels = {"search_memory": search}
    return [
        Tool(tool.name, tool.description, levels.get(tool.name, tool.arguments), tool.use)
        for tool in (TOOLS[name] for name in names)
    ]


def tools_hint(tools: Sequence[Tool]) -> str:
    """The one sentence that tells a model they exist."""
    return f"You have a memory of earlier conversations: call {', or '.join(tool.use for tool in tools)}."


def run_tool(session: MemorySession, name: str, arguments: Mapping[str, Any]) -> str:
    """Do what a model asked for, and say how it went. Only a strict session raises, and never for bad arguments."""
    try:
        asked = parse_arguments(name, arguments)
    except InvalidRequest as error:
        return f"Wrong call: {error}"
    try:
        if isinstance(asked, SaveMemory):
            return saved_text(session.save(asked.text)) if strip_block(asked.text) else NOTHING_TO_SAVE
        query, options = recall_of(asked)
        return recalled_text(session.recall(query, **options))
    except ThreefoldError as error:
        if session.failure_mode == "strict":
            raise
        return failure_text(error)


async def run_tool_async(session: AsyncMemorySession, name: str, arguments: Mapping[str, Any]) -> str:
    """`run_tool`, awaited."""
    try:
        asked = parse_arguments(name, arguments)
    except InvalidRequest as error:
        return f"Wrong call: {error}"
    try:
        if isinstance(asked, SaveMemory):
            return saved_text(await session.save(asked.text)) if strip_block(asked.text) else NOTHING_TO_SAVE
        query, options = recall_of(asked)
        return recalled_text(await session.recall(query, **options))
    except ThreefoldError as error:
        if session.failure_mode == "strict":
            raise
        return failure_text(error)


def parse_arguments(name: str, arguments: Mapping[str, Any]) -> Arguments:
    """The checked arguments, or `InvalidRequest` in words that a model can act on."""
    tool = next((tool for tool in TOOLS.values() if tool.name == name), None)
    if tool is None:
        raise InvalidRequest(f"there is no tool {name!r}; there are {', '.join(TOOLS)}")
    return checked(tool.arguments, **arguments)


def recall_of(asked: Arguments) -> tuple[str, RecallOptions]:
    """The recall that a reading tool stands for."""
    if isinstance(asked, PrefetchMemory):
        return asked.message, {}
    if isinstance(asked, SearchMemoryToUser):
        return asked.query, {"include": ["long_term"], "top_k": asked.limit, "level": asked.level}
    assert isinstance(asked, LoadMemory)
    return asked.query, {"include": ["long_term"]}


def recalled_text(response: RecallResponse) -> str:
    """The fenced block, so that a recorded tool result never becomes a memory again; or why there is none."""
    if REFUSED in response.degraded:
        return NOT_ALLOWED
    if SERVICE_DOWN in response.degraded:
        return "\n".join(filter(None, [UNAVAILABLE, response.block]))
    return response.block or NOTHING_FOUND


def saved_text(memory: Memory) -> str:
    """The answer to a save."""
    return f"Saved as {memory.id}."


def failure_text(error: ThreefoldError) -> str:
    """A failure, for a model."""
    return f"{NOT_ALLOWED} ({error})" if is_refusal(error) else UNAVAILABLE
