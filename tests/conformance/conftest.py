"""The service in its places: in-process on each database, over HTTP, and behind a line that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from conformance.adapter import AGENT, Agent, Plugin, Who
from conformance.plugins import PLUGINS
from fixtures.served import served
from threefold import AsyncMemoryClient, MemoryClient
from threefold.contract import Turn
from threefold_server.local import URL, LocalService

LONG = 60.0
"""Seconds for a call: on a busy machine one may be slow, and only tests of outages are about that."""

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


@dataclass
class InProcess:
    """A service in this process. The line to it can be cut, and counts the calls that tried it."""

    service: LocalService
    is_cut: bool = False
    tried: int = field(default=0)

    def client(self, user: str | None = None) -> MemoryClient:
        transport = _Cuttable(self)
        return MemoryClient(URL, user=user, agent=AGENT, timeout=LONG, transport=transport, sleep=lambda _: None)

    def async_client(self, user: str | None = None) -> AsyncMemoryClient:
        transport = _AsyncCuttable(self)
        return AsyncMemoryClient(URL, user=user, agent=AGENT, timeout=LONG, transport=transport, sleep=_no_sleep)

    def try_line(self, request: httpx.Request) -> None:
        self.tried += 1
        if self.is_cut:
            raise httpx.ConnectError("the line is cut", request=request)


class _Cuttable(httpx.BaseTransport):
    def __init__(self, line: InProcess) -> None:
        self._line = line

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self._line.try_line(request)
        request.read()
        return self._line.service.submit(request).result()


class _AsyncCuttable(httpx.AsyncBaseTransport):
    def __init__(self, line: InProcess) -> None:
        self._line = line

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self._line.try_line(request)
        await request.aread()
        return await asyncio.wrap_future(self._line.service.submit(request))


async def _no_sleep(_: float) -> None:
    return


@contextmanager
def in_process(database_url: str) -> Generator[InProcess]:
    """A running service on this database."""
    with LocalService(database_url=database_url, embedder="hash", allow_user_level=True, tier_deadline=LONG) as service:
        yield InProcess(service)


@pytest.fixture(params=PLUGINS, ids=lambda plugin: plugin.module)
def plugin(request: pytest.FixtureRequest) -> Plugin:
    """Each plugin in turn."""
    return request.param


@pytest.fixture
def line(sqlite_url: str) -> Iterator[InProcess]:
    """A service that is the test's own."""
    with in_process(sqlite_url) as found:
        yield found


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service over HTTP."""
    data: Path = tmp_path_factory.mktemp("service")
    with served("--data", str(data), "--embedder", "hash", "--allow-user-level", "--tier-deadline", "30") as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres", "http"])
def place(request: pytest.FixtureRequest) -> Iterator[InProcess | Remote]:
    """Each place in turn."""
    if request.param == "http":
        yield Remote(request.getfixturevalue("remote"), agent=uuid4().hex)  # nobody else's memory on it is seen
    else:
        with in_process(request.getfixturevalue(f"{request.param}_url")) as found:
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
