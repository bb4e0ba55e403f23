"""A service in-process, and connections to it that count their requests."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from threefold import AsyncMemoryClient, MemoryClient
from threefold_langgraph import ThreefoldConnection
from threefold_server.local import URL, LocalService

AGENT = "support"


@dataclass
class Line:
    """The way to a service. It can be cut, and it remembers what was asked."""

    service: LocalService
    is_cut: bool = False
    asked: list[str] = field(default_factory=list[str])

    def connection(self, *, client_user: str | None = None, **options: Any) -> ThreefoldConnection:
        """A connection of agent `support`; the run says for whom."""
        common: dict[str, Any] = {"user": client_user, "agent": AGENT, "timeout": 60.0}
        client = MemoryClient(URL, **common, transport=_Sync(self), sleep=lambda _: None)
        return ThreefoldConnection(
            client, AsyncMemoryClient(URL, **common, transport=_Async(self), sleep=_no_sleep), **options
        )

    def note(self, request: httpx.Request) -> None:
        self.asked.append(f"{request.method} {request.url.path}")
        if self.is_cut:
            raise httpx.ConnectError("the line is cut", request=request)


class _Sync(httpx.BaseTransport):
    def __init__(self, line: Line) -> None:
        self._line = line

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self._line.note(request)
        request.read()
        return self._line.service.submit(request).result()


class _Async(httpx.AsyncBaseTransport):
    def __init__(self, line: Line) -> None:
        self._line = line

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self._line.note(request)
        await request.aread()
        return await asyncio.wrap_future(self._line.service.submit(request))


async def _no_sleep(_: float) -> None:
    return


@contextmanager
def opened(database_url: str) -> Generator[Line]:
    """The way to a service on this database."""
    with LocalService(database_url=database_url, embedder="hash", allow_user_level=True, tier_deadline=30) as service:
        yield Line(service)


@pytest.fixture
def line(sqlite_url: str) -> Iterator[Line]:
    """The way to a service of the test's own."""
    with opened(sqlite_url) as found:
        yield found
