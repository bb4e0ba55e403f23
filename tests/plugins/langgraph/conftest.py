"""Fixtures of the LangGraph tests: an in-process service and connections that count their requests."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import fixtures.line
from threefold_langgraph import ThreefoldConnection

AGENT = "support"


class Line(fixtures.line.Line):
    """A link to a service whose connections act as agent `support`."""

    def connection(self, *, client_user: str | None = None, **options: Any) -> ThreefoldConnection:
        """Return a connection of agent `support`; each run names its own user."""
        return ThreefoldConnection(self.client(client_user), self.async_client(client_user), **options)


@contextmanager
def opened(database_url: str) -> Generator[Line]:
    """Open a link to a service on this database."""
    with fixtures.line.local_line(database_url) as line:
        yield Line(line.service, AGENT)


@pytest.fixture
def line(sqlite_url: str) -> Iterator[Line]:
    """A link to a service of this test alone."""
    with opened(sqlite_url) as found:
        yield found
