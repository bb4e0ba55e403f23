"""What a plugin must provide to run in the conformance suite; see README.md."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from threefold import AsyncMemoryClient, MemoryClient, Policy

AGENT = "support"


class Who(NamedTuple):
    """The user and session of a run."""

    user: str
    session: str


class Line(Protocol):
    """A link to the service: makes clients for any user, with `AGENT` as the agent."""

    def client(self, user: str | None = None) -> MemoryClient: ...

    def async_client(self, user: str | None = None) -> AsyncMemoryClient: ...


class ToolCall(NamedTuple):
    """The model calls a tool."""

    name: str
    arguments: dict[str, Any]


class Stall:
    """The model starts its answer and never finishes it."""


Reply = str | ToolCall | Stall


def acknowledge(_: list[str]) -> Reply:
    """Return the default reply of the model."""
    return "Noted."


@dataclass
class Script:
    """The language model: `reply` gets the texts of all messages of a request, in order, and returns the answer."""

    reply: Callable[[list[str]], Reply] = acknowledge
    prompts: list[str] = field(default_factory=list[str])
    """What the model was sent, one text per request."""
    stalled: Callable[[], None] = lambda: None
    """Called for a `Stall`, so that a test can cancel the run."""

    def answer(self, sent: list[str]) -> Reply:
        """Return the next reply; called by the model of an adapter, which raises what this raises."""
        self.prompts.append("\n".join(sent))
        reply = self.reply(sent)
        if isinstance(reply, Stall):
            self.stalled()
        return reply


@dataclass(frozen=True)
class Setup:
    """What an agent is made with."""

    line: Line
    script: Script = field(default_factory=Script)
    policy: Policy = field(default_factory=Policy)


class Agent(Protocol):
    """One agent object of the framework with the plugin, for all users. `script` and `policy` come from its setup."""

    script: Script

    def run_sync(self, text: str, who: Who) -> str: ...

    async def run(self, text: str, who: Who) -> str: ...


Way = Callable[[Any, str, Who], Awaitable[None]]
"""Another way to run the agent: gets the agent, the text of the user, and whose run it is."""


@dataclass(frozen=True)
class Plugin:
    """A plugin and its framework."""

    module: str
    framework: str
    """The module that belongs to the framework; its effects on import are not checked."""
    agent: Callable[[Setup], Agent]
    completing: Mapping[str, Way]
    """Ways that complete the run."""
    breaking: Mapping[str, Way]
    """Ways that do not complete the run: left early, cancelled or failed. Each one catches the error that it causes."""
    save: Callable[[str], ToolCall] = lambda text: ToolCall("save_memory", {"text": text})
    """The call of the tool by which a model saves a statement."""
    replay: Callable[[Setup, Who], Awaitable[tuple[Any, Any]]] | None = None
    """Return a conversation with tool calls and files as the framework had it, and as a new agent object loads it.
    None for frameworks without messages of their own."""
