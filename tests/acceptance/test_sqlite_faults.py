"""SQLite on a full or read-only disk: writes are refused, nothing is stored in part, and work continues afterwards."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from fixtures.faults import check_consistent
from fixtures.talk import said
from threefold.errors import Unavailable
from threefold_server.local import LocalService

LARGE = "The heron lands on the old harbour wall. " * 500


class Connections:
    """All SQLite connections that were opened, some of which are closed."""

    def __init__(self) -> None:
        self._opened: list[sqlite3.Connection] = []

    def remember(self, connection: sqlite3.Connection, _: Any) -> None:
        self._opened.append(connection)

    def set(self, pragma: str, value: object) -> None:
        for connection in self._opened:
            with suppress(sqlite3.ProgrammingError):
                connection.execute(f"PRAGMA {pragma}={value}")


@pytest.fixture
def connections() -> Iterator[Connections]:
    connections = Connections()
    event.listen(Engine, "connect", connections.remember)
    yield connections
    event.remove(Engine, "connect", connections.remember)


@pytest.mark.parametrize(("pragma", "broken", "repaired"), [("max_page_count", 1, 2**30), ("query_only", "ON", "OFF")])
def test_write_that_fails_stores_nothing(
    sqlite_url: str, connections: Connections, pragma: str, broken: object, repaired: object
) -> None:
    with LocalService(database_url=sqlite_url, embedder="hash") as service, service.client(timeout=30.0) as memory:
        memory.write("s1", [said("before", id="1")])
        memory.wait("s1")
        connections.set(pragma, broken)
        for number in range(3):
            with pytest.raises(Unavailable):
                memory.write("s1", [said(LARGE, id=f"{number}.{part}") for part in range(5)])
        with pytest.raises(Unavailable):
            memory.save(LARGE[:9_000])
        assert [turn.content for turn in memory.recall("before", session_id="s1").window] == ["before"]
        assert memory.ready().status == "ok"
        connections.set(pragma, repaired)
        assert memory.write("s1", [said(LARGE, id="0.0")]).last_seq == 2
        assert memory.forget(memory_ids=["1"]).complete
        assert memory.list(kinds=["fact"]).items == []
        memory.wait("s1")
        check_consistent(sqlite_url)
