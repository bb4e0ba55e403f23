"""Transaction poolers, and pgvector in its own schema: the service keeps no state in connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.rows import TupleRow
from sqlalchemy import text

from fixtures.pooler import PROGRAM, PgBouncer
from fixtures.postgres import Databases
from fixtures.sample_memory import MARKS, answers, fill_memory
from threefold_server.local import LocalService
from threefold_server.storage.engine import migrate
from threefold_server.storage.engine.database import Database


@pytest.mark.parametrize(("parameter", "prepared"), [("", True), ("?pooler=transaction", False)])
def test_no_statement_is_prepared_behind_a_pooler(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, parameter: str, prepared: bool
) -> None:
    """A pooler may use another connection for each transaction. Counted when connections are closed."""
    names: list[str] = []
    close = psycopg.Connection[TupleRow].close

    def counting(self: psycopg.Connection[TupleRow]) -> None:
        names.extend(name for (name,) in self.execute("SELECT name FROM pg_prepared_statements", prepare=False))
        close(self)

    monkeypatch.setattr(psycopg.Connection, "close", counting)
    settings: dict[str, Any] = {"embedder": "hash", "allow_user_level": True, **MARKS}
    with (
        LocalService(database_url=f"{postgres_url}{parameter}", **settings) as service,
        service.client(user="ana", agent="support", timeout=60.0) as memory,
    ):
        fill_memory(memory)
        for _ in range(3):
            answers(memory)
    assert bool(names) == prepared


@pytest.mark.skipif(PROGRAM is None, reason="PgBouncer is not installed")
def test_real_pooler_answers_like_a_direct_connection(postgres_url: str) -> None:
    settings: dict[str, Any] = {"embedder": "hash", "allow_user_level": True, **MARKS}
    with (
        PgBouncer(postgres_url) as pooler,
        LocalService(database_url=pooler.url, **settings) as behind,
        LocalService(database_url=postgres_url, **settings) as direct,
        behind.client(user="ana", agent="support", timeout=60.0) as memory,
        direct.client(user="ana", agent="support", timeout=60.0) as same,
    ):
        fill_memory(memory)
        assert answers(memory) == answers(same)


def test_other_kinds_of_poolers_are_refused() -> None:
    with pytest.raises(ValueError, match="transaction"):
        Database("postgresql://localhost/x?pooler=session")


@pytest.fixture
def apart(databases: Databases) -> Iterator[str]:
    """A blank database with pgvector in its own schema; the URL has that schema in the search path."""
    name = databases.create()
    with psycopg.connect(databases.admin_url, dbname=name, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA extensions")
        connection.execute("GRANT USAGE ON SCHEMA extensions TO public")
        connection.execute("CREATE EXTENSION vector SCHEMA extensions")
    yield f"{databases.url(name)}?options=-csearch_path%3Dpublic,extensions"
    databases.drop(name)


def test_pgvector_may_be_in_its_own_schema(apart: str) -> None:
    migrate.upgrade(apart)
    with closing(Database(apart)) as database:
        shown = database.read_sync("system", lambda c: c.execute(text("SHOW plan_cache_mode")).scalar_one())
    assert shown == "force_custom_plan"
    with LocalService(database_url=apart, embedder="hash") as service, service.client(user="ana") as memory:
        memory.write("s1", [{"role": "user", "content": "the heron uses gate 7"}])
        memory.wait("s1")
        assert memory.recall("heron").memories
