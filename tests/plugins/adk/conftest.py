"""Fixtures of the ADK tests: services on each database, and the session services of ADK for comparison."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from google.adk.sessions import BaseSessionService, DatabaseSessionService, InMemorySessionService

from fixtures.line import Line, local_line
from plugins.adk.models import APP
from plugins.adk.sessions import open_sessions
from threefold import MemoryClient


@pytest.fixture
def line(database_url: str) -> Iterator[Line]:
    """A link to a service on each database in turn."""
    with local_line(database_url, APP) as found:
        yield found


@pytest.fixture
def memory(line: Line) -> Iterator[MemoryClient]:
    """A client of ana, to read her sessions as memory."""
    with line.client("ana") as client:
        yield client


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
            with local_line(request.getfixturevalue(f"{request.param.split()[-1]}_url"), APP) as found:
                yield open_sessions(found)
