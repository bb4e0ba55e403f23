"""Reports on growth: the cost of a call does not grow with its session or with the data of other users.

Reported: appends waited 150 seconds behind a row lock, because each one read the whole history. Measured by the work
of the databases, which is the same in every run, instead of by a clock.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, event, update
from sqlalchemy.engine import Engine

from fixtures.talk import said
from threefold.contract import Turn
from threefold_server.local import LocalService
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.tables import sessions, tasks

LARGE = ("turns", "passages", "postings")
"""Tables with many rows, which must never be scanned."""

REMARK = "about the harbour, its walls, the ships that came in during the night, and what they brought along"
"""Two hundred such turns exceed the window."""


def seed(database_url: str) -> None:
    """Store sessions of 20,000, 300 and 20 turns, and a thousand turns of another user."""
    remarks = [said(f"turn {number} {REMARK}") for number in range(1_000)]
    with (
        LocalService(database_url=database_url, embedder="hash", consolidate=False) as service,
        service.client() as ana,
    ):
        ana.write("young", remarks[:300])
        for _ in range(20):
            ana.write("long", remarks)
    with closing(Database(database_url)) as database:
        database.write_sync("system", skip_consolidation)
    with (
        LocalService(database_url=database_url, embedder="hash") as service,
        service.client(user="bob") as bob,
        service.client() as ana,
    ):
        bob.write("s1", [said(f"the heron lands {number}") for number in range(1_000)])
        ana.write("short", [said(f"the heron nests {number}") for number in range(20)])
        bob.wait("s1", timeout=60)
        ana.wait("short", timeout=60)


def skip_consolidation(connection: Connection) -> None:
    """Mark the two sessions as consolidated: consolidating them takes long and is not measured here."""
    connection.execute(update(tasks).where(tasks.c.kind == "fold").values(due_at=None))
    for session_id, turns in (("long", 20_000), ("young", 300)):
        [session] = connection.execute(
            update(sessions)
            .where(sessions.c.session_id == session_id)
            .values(digested_tokens=sessions.c.tokens)
            .returning(sessions.c.session)
        ).scalars()
        connection.execute(update(tasks).where(tasks.c.subject == session).values(upto=turns, due_at=None))


def use(database_url: str, session: str) -> None:
    """Make one call of each kind in a service that does no background work; the newest turn is not indexed yet."""
    settings: dict[str, Any] = {"embedder": "hash", "consolidate": False}
    with LocalService(database_url=database_url, **settings) as service, service.client() as memory:
        last = memory.write(session, [said("one more")]).last_seq
        recalled = memory.recall("heron", session_id=session)
        assert (recalled.window[-1].content, recalled.degraded) == ("one more", [])
        assert "heron" in recalled.memories[0].text
        newest: list[Turn] = memory.turns(session, from_seq=last - 10).turns
        assert newest[-1].seq == last == memory.status(session).last_seq
        assert memory.sessions(limit=1).sessions
        assert memory.list(limit=5).items
        assert memory.forget(memory_ids=[newest[-1].id]).counts["turns"] == 1


class Traced:
    """Records the statements of all SQLite connections, with their values, and counts their steps."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.steps = 0

    def watch(self, connection: sqlite3.Connection, _: Any) -> None:
        connection.set_trace_callback(self.statements.append)

    def steps_of(self, function: Callable[[], None]) -> int:
        before = self.steps
        function()
        return self.steps - before

    def count(self) -> int:
        """Stand in for the check of deadlines, which SQLite calls every few steps of its virtual machine."""
        self.steps += 1
        return 0


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Traced]:
    traced = Traced()
    monkeypatch.setattr("threefold_server.storage.engine.database._is_late", traced.count)
    monkeypatch.setattr("threefold_server.storage.engine.database.INTERRUPT_STEPS", 10)
    event.listen(Engine, "connect", traced.watch)
    yield traced
    event.remove(Engine, "connect", traced.watch)


@pytest.mark.slow
def test_sqlite_work_does_not_grow_with_the_session(sqlite_url: str, traced: Traced) -> None:
    seed(sqlite_url)
    use(sqlite_url, "young")
    traced.statements.clear()
    young, long = (traced.steps_of(partial(use, sqlite_url, session)) for session in ("young", "long"))
    assert long < 1.3 * young
    asked = {sql for sql in traced.statements if re.match("(?i)select|insert|update|delete|with", sql)}
    assert len(asked) > 20
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection:
        details = {
            (detail, sql) for sql in asked for *_, detail in connection.execute(f"EXPLAIN QUERY PLAN {explicit(sql)}")
        }
    assert {(detail, sql) for detail, sql in details if re.match(rf"SCAN ({'|'.join(LARGE)})", detail)} == set()


def explicit(statement: str) -> str:
    """Undo the inlined values in ORDER BY, where SQLite would take a constant as a column number."""
    return statement.replace("ORDER BY 0 DESC, ", "ORDER BY ")


@pytest.mark.slow
def test_postgres_reads_do_not_grow_with_the_session(postgres_url: str) -> None:
    seed(postgres_url)
    use(postgres_url, "young")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("ANALYZE")
        seen = [rows_read(connection)]
        for session in ("young", "long"):
            use(postgres_url, session)
            seen.append(rows_read(connection))
    assert [after["scans"] for after in seen] == [seen[0]["scans"]] * 3
    young, long = (after["rows"] - before["rows"] for before, after in pairwise(seen))
    assert long < 1.3 * young


def rows_read(connection: psycopg.Connection) -> dict[str, int]:
    """Return scans of whole large tables and rows fetched by index, after all other connections have reported."""
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    while connection.execute(others).fetchall() != [(0,)]:
        pass
    connection.execute("SELECT pg_stat_clear_snapshot()")
    [(scans, rows)] = connection.execute(
        "SELECT sum(seq_scan)::int, sum(coalesce(idx_tup_fetch, 0))::int"
        " FROM pg_stat_user_tables WHERE relname = ANY(%s)",
        [list(LARGE)],
    ).fetchall()
    return {"scans": scans, "rows": rows}
