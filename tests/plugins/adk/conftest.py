"""Session services side by side: ours on each database, and the two of the framework."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
from google.adk.sessions import BaseSessionService, DatabaseSessionService, InMemorySessionService

from threefold import AsyncMemoryClient
from threefold_adk import ThreefoldSessionService
from threefold_server.local import URL, LocalService


class Line(httpx.AsyncBaseTransport):
    """The way to a service. It remembers what was asked, and what happens before an answer is lost."""

    def __init__(self, service: LocalService) -> None:
        self._service = service
        self.asked: list[str] = []
        self.is_cut = False
        self.losing: list[Callable[[], object]] = []
        """Each takes one answer away, once the service has done what it was asked for."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(f"{request.method} {request.url.path}")
        if self.is_cut:
            raise httpx.ConnectError("the line is cut", request=request)
        await request.aread()
        response = await asyncio.wrap_future(self._service.submit(request))
        if self.losing:
            await asyncio.to_thread(self.losing.pop(0))
            raise httpx.ReadError("the line was cut", request=request)
        return response

    def sessions(self) -> ThreefoldSessionService:
        """A session service, as another process would make it."""
        return ThreefoldSessionService(AsyncMemoryClient(URL, transport=self, timeout=60.0, sleep=_no_sleep))


async def _no_sleep(_: float) -> None:
    return


@pytest.fixture
def line(service: LocalService) -> Line:
    """A way to the service on each database."""
    return Line(service)


@pytest.fixture(params=["threefold on sqlite", "threefold on postgres", "in memory", "database"])
async def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseSessionService]:
    """Each session service in turn, empty."""
    match request.param:
        case "in memory":
            yield InMemorySessionService()
        case "database":
            async with DatabaseSessionService(f"sqlite+aiosqlite:///{tmp_path / 'adk.db'}") as database:
                yield database
        case _:
            url = request.getfixturevalue(f"{request.param.split()[-1]}_url")
            with LocalService(database_url=url, embedder="hash", tier_deadline=30) as running:
                yield Line(running).sessions()
