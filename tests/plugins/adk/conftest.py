"""Session services side by side: ours on each database, and the two of the framework."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.adk.sessions import BaseSessionService, DatabaseSessionService, InMemorySessionService

from threefold_adk import ThreefoldSessionService
from threefold_server.local import LocalService


def ours(service: LocalService) -> ThreefoldSessionService:
    """As another process would make it."""
    return ThreefoldSessionService(service.async_client(timeout=60.0))


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
                yield ours(running)
