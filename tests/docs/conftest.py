"""Fixtures of the documentation tests: the environment of a reader."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.crewai_host import QUIET
from fixtures.served import served


@pytest.fixture(autouse=True)
def own_loop() -> Iterator[None]:
    """An event loop for the sync methods of frameworks, which would leave their own loop open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


@pytest.fixture
def reader_environment(tmp_path_factory: pytest.TempPathFactory, postgres_url: str) -> Iterator[dict[str, str]]:
    """Environment variables for every example: the URL of a running service and of a Postgres database."""
    data: Path = tmp_path_factory.mktemp("service")
    with served("--data", str(data), "--allow-user-level") as url:
        yield {"THREEFOLD_URL": url, "DATABASE_URL": postgres_url, **QUIET}
