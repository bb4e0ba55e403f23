"""Plans of Postgres without statistics of words and names: reads of one owner use their indexes among many owners."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Table

from fixtures.postgres import OwnPostgres
from threefold import MemoryClient
from threefold.contract import PutCheckpointRequest, QueryCheckpointsRequest
from threefold_server.local import LocalService
from threefold_server.storage.engine.tables import (
    checkpoints,
    facts,
    items,
    owners,
    passages,
    postings,
    sessions,
    threads,
    turns,
)
from threefold_server.storage.engine.types import Key

LARGE: tuple[Table, ...] = (turns, facts, items, passages, postings, threads, checkpoints)
"""Tables with thousands of rows. A scan of a table with a few pages, such as `owners`, costs less than its index."""

OWNERS = 100
TURNS = 60
EXPLAIN: list[LiteralString] = [
    "SET session_preload_libraries = 'auto_explain'",
    "SET auto_explain.log_min_duration = 0",
    "SET auto_explain.log_nested_statements = on",
]


def live(memory: MemoryClient) -> None:
    """Store entries of each kind."""
    for session in ("s1", "s2"):
        said = [{"role": "user", "content": f"the heron lands {number}", "name": "Ana"} for number in range(TURNS)]
        memory.write(session, said)
    for number in range(TURNS):
        memory.save(f"The heron nests in place {number}.")
        put = {"op": "put", "namespace": ["n", str(number)], "key": "k", "value": {"text": f"heron {number}"}}
        memory.items_batch([{**put, "index": ["text"]}])
        memory.threads.put_checkpoint(f"t{number}", PutCheckpointRequest(type="t", data=b"x", checkpoint_id="1"))
    for session in ("s1", "s2"):
        memory.wait(session)


def multiply(admin: psycopg.Connection[Any]) -> None:
    """Copy every row to other owners, with keys of their own."""
    for table in (owners, sessions, *LARGE):
        names = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns)
        keyed = sql.SQL("md5({}::text || n)::uuid")
        copies = sql.SQL(", ").join(
            (keyed if isinstance(column.type, Key) else sql.SQL("{}")).format(sql.Identifier(column.name))
            for column in table.columns
        )
        statement = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {}, generate_series(2, {}) AS n")
        named = sql.Identifier(table.name)
        admin.execute(statement.format(named, names, copies, named, sql.Literal(OWNERS)))


def use(memory: MemoryClient) -> None:
    """Read in every way that agents do."""
    for level in (None, "session", "user"):
        assert memory.recall("Where does the heron nest?", session_id="s1", level=level).degraded == []
        assert memory.list(level=level, session_id="s1", limit=20).items
    assert memory.list(order="access_count", kinds=["fact"]).items
    assert memory.sessions().sessions
    assert memory.turns("s1", from_seq=20, limit=20).turns
    assert memory.status("s1").last_seq == TURNS
    assert memory.items_batch(
        [
            {"op": "get", "namespace": ["n", "1"], "key": "k"},
            {"op": "search", "prefix": ["n"]},
            {"op": "search", "prefix": ["n"], "query": "heron"},
            {"op": "list_namespaces"},
        ]
    ).results
    assert memory.threads.query(QueryCheckpointsRequest(thread_id="t1")).checkpoints
    assert memory.threads.query(QueryCheckpointsRequest()).checkpoints
    memory.write("s1", [{"role": "user", "content": "one more", "id": "more"}])
    fact = memory.save("The heron leaves.")
    memory.update_fact(fact.id, text="The heron stays.")
    assert memory.forget(memory_ids=["more"]).counts["turns"] == 1


@pytest.fixture
def admin(own_postgres: OwnPostgres) -> Iterator[psycopg.Connection[Any]]:
    """A superuser in the store's database."""
    name = own_postgres.url.rpartition("/")[2]
    with psycopg.connect(own_postgres.server.admin_url, dbname=name, autocommit=True) as connection:
        yield connection


@pytest.mark.timeout(300)
def test_reads_use_indexes_without_statistics_of_words(
    own_postgres: OwnPostgres, admin: psycopg.Connection[Any]
) -> None:
    settings: dict[str, Any] = {"database_url": own_postgres.url, "embedder": "hash", "tier_deadline": 30}
    settings |= {"allow_user_level": True}
    with LocalService(**settings) as service, service.client("ana", "support", timeout=60) as memory:
        live(memory)
    multiply(admin)
    admin.execute("ANALYZE")
    sampled = admin.execute("SELECT attname FROM pg_stats WHERE schemaname = 'public'").fetchall()
    assert {name for (name,) in sampled}.isdisjoint({"content", "text", "term", "agent", "name", "value", "speaker"})
    name = sql.Identifier(own_postgres.url.rpartition("/")[2])
    for setting in EXPLAIN:
        admin.execute(sql.SQL("ALTER DATABASE {} ").format(name) + sql.SQL(setting))
    with (
        LocalService(**settings, consolidate=False) as service,
        service.client("ana", "support", timeout=60) as memory,
    ):
        use(memory)
    log = (own_postgres.server.home / "log").read_text()
    scans = Counter(re.findall(r"(\w+) Scan (?:using \w+ )?on (?:public\.)?(\w+)", log))
    large = {table.name for table in LARGE}
    assert {table for kind, table in scans if kind == "Seq" and table in large} == set()
    assert {table for _, table in scans} >= {"sessions", "turns", "facts", "items", "passages", "postings"}
