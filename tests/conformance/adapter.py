"""What a plugin has to bring so that the suite can put it to the test: see README.md."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from threefold import AsyncMemoryClient, MemoryClient, Policy

AGENT = "support"


class Who(NamedTuple):
    """For whom an agent runs."""

    user: str
    session: str


class Line(Protocol):
    """The way to the service: a client for any user, `AGENT` being the agent."""

    def client(self, user: str | None = None) -> MemoryClient: ...

    def async_client(self, user: str | None = None) -> AsyncMemoryClient: ...


class ToolCall(NamedTuple):
    """The model calls a tool."""

    name: str
    arguments: dict[str, Any]


class Stall:
    """The model begins and never ends."""


Reply = str | ToolCall | Stall


def acknowledge(_: list[str]) -> Reply:
    """The reply of a model that takes note."""
    return "Noted."


@dataclass
class Script:
    """The language model. It gets the texts of all messages it is sent, in their order, and says what comes back."""

    reply: Callable[[list[str]], Reply] = acknowledge
    prompts: list[str] = field(default_factory=list[str])
    """What it was sent so far, one text for each request."""
    stalled: Callable[[], None] = lambda: None
    """Called where a reply is a `Stall`, so that a test may go on to cancel."""

    def answer(self, sent: list[str]) -> Reply:
        """The next reply; the adapter's model double calls it, and raises what it raises."""
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
    """One agent object of the framework with the plugin in it, for all users. `script` and `policy` are its setup's."""

    script: Script

    def run_sync(self, text: str, who: Who) -> str: ...

    async def run(self, text: str, who: Who) -> str: ...


Way = Callable[[Any, str, Who], Awaitable[None]]
"""One more way to drive a turn: the agent, what the user says, and for whom."""


@dataclass(frozen=True)
class Plugin:
    """A plugin and its framework."""

    module: str
    framework: str
    """The module whose import is the framework's own affair."""
    agent: Callable[[Setup], Agent]
    completing: Mapping[str, Way]
    """Ways that end well."""
    breaking: Mapping[str, Way]
    """Ways that do not: left early, cancelled, failed. Each catches what it provokes."""
    replay: Callable[[Setup, Who], Awaitable[tuple[Any, Any]]] | None = None
    """A conversation with tool calls and files, as the framework had it, and as a new agent object finds it; None where
    a framework has no messages of its own to find."""
