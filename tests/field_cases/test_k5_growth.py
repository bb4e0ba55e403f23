"""Field case 508: what a write and a recall read does not grow with the session, nor with what others have stored."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, event, update
from sqlalchemy.engine import Engine

from threefold_server.local import LocalService
from threefold_server.storage.database import Database
from threefold_server.storage.tables import sessions, tasks

LARGE = ("turns", "passages", "postings")
"""Tables with many rows here: never to be read from end to end."""


def said(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def seed(database_url: str) -> None:
    """Ana has a session of 20,000 turns, and twenty memories among two thousand of Bob's."""
    with (
        LocalService(database_url=database_url, embedder="hash", consolidate=False) as service,
        service.client() as ana,
    ):
        for start in range(0, 20_000, 1_000):
            ana.write("long", [said(f"turn {number}") for number in range(start, start + 1_000)])
    with closing(Database(database_url)) as database:
        database.write_sync("system", skip_indexing)
    with (
        LocalService(database_url=database_url, embedder="hash") as service,
        service.client(user="bob") as bob,
        service.client() as ana,
    ):
        for bird in ("heron", "crane"):
            bob.write("s1", [said(f"the {bird} lands {number}") for number in range(1_000)])
        ana.write("short", [said(f"the heron nests {number}") for number in range(20)])
        bob.wait("s1", timeout=60)
        ana.wait("short", timeout=60)


def skip_indexing(connection: Connection) -> None:
    """Leave the long session out of the index: its window is the question here, and words of 20,000 turns take long."""
    connection.execute(update(tasks).where(tasks.c.kind == "index").values(upto=20_000, due_at=None))
    connection.execute(update(tasks).where(tasks.c.kind == "fold").values(due_at=None))
    connection.execute(update(sessions).values(digested_tokens=sessions.c.tokens))


def use_once(database_url: str) -> None:
    """One call of each kind."""
    settings: dict[str, Any] = {"embedder": "hash", "consolidate": False, "tier_deadline": 30}
    with LocalService(database_url=database_url, **settings) as service, service.client() as memory:
        memory.write("long", [said("one more")])
        memory.write("short", [said("one more")])
        recalled = memory.recall("heron", session_id="long")
        assert (recalled.window[-1].content, recalled.degraded) == ("one more", [])
        assert "heron" in recalled.facts[0].text
        assert memory.turns("long", from_seq=19_990).turns[0].seq == 19_990
        assert memory.sessions(limit=1).sessions
        assert memory.status("long").last_seq == 20_001
        assert memory.list(limit=5).items


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """Every statement that any SQLite connection runs, with its values."""
    seen: list[str] = []

    def trace(connection: sqlite3.Connection, _: Any) -> None:
        connection.set_trace_callback(seen.append)

    event.listen(Engine, "connect", trace)
    yield seen
    event.remove(Engine, "connect", trace)


@pytest.mark.slow
def test_sqlite_plans_search_and_never_scan(sqlite_url: str, statements: list[str]) -> None:
    seed(sqlite_url)
    statements.clear()
    use_once(sqlite_url)
    asked = {statement for statement in statements if re.match("(?i)select|insert|update|delete|with", statement)}
    assert len(asked) > 20
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection:
        plans = {(detail, statement) for statement in asked for *_, detail in connection.execute(explained(statement))}
    scans = {(detail, statement) for detail, statement in plans if re.match(rf"SCAN ({'|'.join(LARGE)})", detail)}
    assert scans == set()


def explained(statement: str) -> str:
    """The values stand in the text, where a constant to order by would be the number of a column."""
    return "EXPLAIN QUERY PLAN " + statement.replace("ORDER BY 0 DESC, ", "ORDER BY ")


@pytest.mark.slow
def test_postgres_reads_few_rows_and_never_scans(postgres_url: str) -> None:
    seed(postgres_url)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("ANALYZE")
        before = rows_read(connection)
        use_once(postgres_url)
        after = rows_read(connection)
    scans, fetched = ({name: after[name][i] - before[name][i] for name in LARGE} for i in (0, 1))
    assert set(scans.values()) == {0}, scans
    assert sum(fetched.values()) < 2_000, fetched


def rows_read(connection: psycopg.Connection) -> dict[str, tuple[int, int]]:
    """Scans of each whole table, and the rows that its indexes brought, once every other connection has reported."""
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    while connection.execute(others).fetchall() != [(0,)]:
        pass
    connection.execute("SELECT pg_stat_clear_snapshot()")
    found = connection.execute("SELECT relname, seq_scan, coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables")
    return {name: (scans, fetched) for name, scans, fetched in found}
