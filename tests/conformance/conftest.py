"""Fixtures of the conformance suite: the service in-process on each database, over HTTP, and on a link that can be
cut."""

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
    """A service in a separate process, over HTTP."""

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
    """A link to a service of this test alone."""
    with local_line(sqlite_url, AGENT) as found:
        yield found


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a service over HTTP."""
    data: Path = tmp_path_factory.mktemp("service")
    with served("--data", str(data), "--embedder", "hash", "--allow-user-level", "--tier-deadline", "30") as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres", "http"])
def place(request: pytest.FixtureRequest) -> Iterator[Line | Remote]:
    """Each deployment in turn."""
    if request.param == "http":
        yield Remote(
            request.getfixturevalue("remote"), agent=uuid4().hex
        )  # a unique agent, so that no other test's memory is visible
    else:
        with local_line(request.getfixturevalue(f"{request.param}_url"), AGENT) as found:
            yield found


@pytest.fixture
def ana() -> str:
    """A user unknown to other tests on the same service."""
    return f"ana-{uuid4().hex}"


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run an agent by its sync or its async entry point."""
    if request.param == "sync":
        return lambda agent, text, who: agent.run_sync(text, who)
    return lambda agent, text, who: asyncio.run(agent.run(text, who))


def turns(client: MemoryClient, session: str) -> list[Turn]:
    """Return all turns of a session."""
    with client:
        return client.turns(session, payload=True, limit=1_000).turns


def said(client: MemoryClient, session: str) -> list[str]:
    """Return the texts of user and assistant in a session."""
    return [turn.content for turn in turns(client, session) if turn.role in ("user", "assistant") and turn.content]
