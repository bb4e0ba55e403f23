"""A service in-process, and connections to it that count their requests."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import fixtures.line
from threefold_langgraph import ThreefoldConnection

AGENT = "support"


class Line(fixtures.line.Line):
    """The way to a service, as connections of agent `support`."""

    def connection(self, *, client_user: str | None = None, **options: Any) -> ThreefoldConnection:
        """A connection of agent `support`; the run says for whom."""
        return ThreefoldConnection(self.client(client_user), self.async_client(client_user), **options)


@contextmanager
def opened(database_url: str) -> Generator[Line]:
    """The way to a service on this database."""
    with fixtures.line.local_line(database_url) as line:
        yield Line(line.service, AGENT)


@pytest.fixture
def line(sqlite_url: str) -> Iterator[Line]:
    """The way to a service of the test's own."""
    with opened(sqlite_url) as found:
        yield found
