"""The service in its places: in-process on each database, over HTTP, and behind a line that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from conformance.adapter import AGENT, Agent, Plugin, Who
from conformance.plugins import PLUGINS
from fixtures.line import LONG, Line, local_line
from fixtures.served import served
from threefold import AsyncMemoryClient, MemoryClient
from threefold.contract import Turn

Run = Callable[[Agent, str, Who], str]


@dataclass
class Remote:
    """A service in a process of its own, over HTTP."""

    url: str
    agent: str = AGENT

    def client(self, user: str | None = None) -> MemoryClient:
        return MemoryClient(self.url, user=user, agent=self.agent, timeout=LONG)

    def async_client(self, user: str | None = None) -> AsyncMemoryClient:
        return AsyncMemoryClient(self.url, user=user, agent=self.agent, timeout=LONG)


@pytest.fixture(params=PLUGINS, ids=lambda plugin: plugin.module)
def plugin(request: pytest.FixtureRequest) -> Plugin:
    """Each plugin in turn."""
    return request.param


@pytest.fixture
def line(sqlite_url: str) -> Iterator[Line]:
    """A service that is the test's own."""
    with local_line(sqlite_url, AGENT) as found:
        yield found


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service over HTTP."""
    data: Path = tmp_path_factory.mktemp("service")
    with served("--data", str(data), "--embedder", "hash", "--allow-user-level", "--tier-deadline", "30") as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres", "http"])
def place(request: pytest.FixtureRequest) -> Iterator[Line | Remote]:
    """Each place in turn."""
    if request.param == "http":
        yield Remote(request.getfixturevalue("remote"), agent=uuid4().hex)  # nobody else's memory on it is seen
    else:
        with local_line(request.getfixturevalue(f"{request.param}_url"), AGENT) as found:
            yield found


@pytest.fixture
def ana() -> str:
    """A user whom no other test on the same service knows."""
    return f"ana-{uuid4().hex}"


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Run:
    """A run by each of the two entry points that every framework has."""
    if request.param == "sync":
        return lambda agent, text, who: agent.run_sync(text, who)
    return lambda agent, text, who: asyncio.run(agent.run(text, who))


def turns(client: MemoryClient, session: str) -> list[Turn]:
    """All that a session holds."""
    with client:
        return client.turns(session, payload=True, limit=1_000).turns


def said(client: MemoryClient, session: str) -> list[str]:
    """The words of user and assistant in a session."""
    return [turn.content for turn in turns(client, session) if turn.role in ("user", "assistant") and turn.content]
