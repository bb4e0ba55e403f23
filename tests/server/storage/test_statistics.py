"""The planner's statistics of Postgres hold no words and no names, whatever runs ANALYZE."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import BigInteger, Boolean, Float, Integer, SmallInteger, insert

from fixtures.postgres import Databases
from threefold.errors import Unavailable
from threefold_server.rules.access import owner_key
from threefold_server.storage.engine import migrate, statistics
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.tables import metadata, owners
from threefold_server.storage.engine.types import Key
from threefold_server.storage.erasure.purge import purge_files

WORD = "quagzilla"
WORDLESS = (BigInteger, Boolean, Float, Integer, Key, SmallInteger)
"""Column types that can hold neither words nor names."""


@pytest.fixture
def admin(databases: Databases, postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection as superuser to the store's database, which sees all statistics."""
    with psycopg.connect(databases.admin_url, dbname=postgres_url.rpartition("/")[2], autocommit=True) as connection:
        yield connection


@pytest.fixture
def app(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    """The role that owns the tables."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def database(postgres_url: str) -> Iterator[Database]:
    with closing(Database(postgres_url)) as opened:
        yield opened


def sampled(admin: psycopg.Connection[Any]) -> set[tuple[str, str]]:
    """Return the columns of which ANALYZE samples values."""
    rows = admin.execute(
        "SELECT c.relname, a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
        " WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND a.attnum > 0"
        " AND NOT a.attisdropped AND coalesce(a.attstattarget, -1) <> 0"
    )
    return {(table, column) for table, column in rows.fetchall() if table in metadata.tables}


def values(admin: psycopg.Connection[Any]) -> str:
    """Return all values in the statistics of the database."""
    plain = admin.execute("SELECT * FROM pg_stats WHERE schemaname = 'public'").fetchall()
    extended = admin.execute("SELECT * FROM pg_stats_ext").fetchall()
    return repr(plain) + repr(extended)


def people(database: Database) -> None:
    rows = [
        {"owner": owner_key("user", str(number)), "kind": "user", "name": f"{WORD}{number % 3}", "created_at": number}
        for number in range(50)
    ]
    database.write_sync("system", lambda c: c.execute(insert(owners), rows))


def test_only_columns_without_words_are_sampled(admin: psycopg.Connection[Any]) -> None:
    wordless = {
        (table.name, column.name)
        for table in metadata.tables.values()
        for column in table.columns
        if isinstance(column.type, WORDLESS)
    }
    assert sampled(admin) == wordless


KINDS: list[LiteralString] = ["text", "varchar(40)", "jsonb", "text[]", "bytea", "vector", "inet", "timestamptz"]


@pytest.mark.parametrize("kind", KINDS)
def test_column_added_by_a_migration_is_not_sampled(
    app: psycopg.Connection[Any], admin: psycopg.Connection[Any], postgres_url: str, kind: LiteralString
) -> None:
    app.execute(sql.SQL("ALTER TABLE owners ADD COLUMN added ") + sql.SQL(kind))
    assert ("owners", "added") in sampled(admin)
    migrate.upgrade(postgres_url)
    assert ("owners", "added") not in sampled(admin)


SAMPLINGS: dict[str, LiteralString] = {
    "a column": "ALTER TABLE owners ALTER name SET STATISTICS 100",
    "an expression": "CREATE INDEX owners_by_lower ON owners (lower(name))",
    "several columns": "CREATE STATISTICS owners_both (mcv) ON kind, name FROM owners",
    "an expression of several columns": "CREATE STATISTICS owners_expr ON (kind || name) FROM owners",
}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("command", ["migrate", "purge"])
def test_earlier_samples_are_deleted(
    app: psycopg.Connection[Any],
    admin: psycopg.Connection[Any],
    database: Database,
    postgres_url: str,
    sampling: str,
    command: str,
) -> None:
    """Samples of an earlier version, or after somebody has switched sampling on."""
    people(database)
    app.execute(SAMPLINGS[sampling])
    app.execute("ALTER TABLE owners ALTER name SET STATISTICS 100")
    admin.execute("ANALYZE")
    assert WORD in values(admin)
    if command == "migrate":
        migrate.upgrade(postgres_url)
    else:
        assert not purge_files(database, lambda _: None).held
    assert WORD not in values(admin)
    admin.execute("ANALYZE")
    assert WORD not in values(admin)


def test_a_table_keeps_its_files_and_collations(
    app: psycopg.Connection[Any], admin: psycopg.Connection[Any], database: Database, postgres_url: str
) -> None:
    """Only partial indexes, which are small, are rebuilt, so that the upgrade of a large store stays quick."""
    state = (
        "SELECT c.relname, c.relfilenode, array_agg((a.attname, a.atttypid, a.attcollation) ORDER BY a.attnum)::text"
        " FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
        " LEFT JOIN pg_index i ON i.indexrelid = c.oid"
        " WHERE c.relnamespace = 'public'::regnamespace AND a.attnum > 0 AND i.indpred IS NULL GROUP BY 1, 2 ORDER BY 1"
    )
    before = admin.execute(state).fetchall()
    for table in metadata.tables.values():
        for column in table.columns:
            if not isinstance(column.type, WORDLESS):
                change = sql.SQL("ALTER TABLE {} ALTER {} SET STATISTICS 100")
                app.execute(change.format(sql.Identifier(table.name), sql.Identifier(column.name)))
    migrate.upgrade(postgres_url)
    assert admin.execute(state).fetchall() == before
    assert database.read_sync("system", statistics.tables_to_silence) == []


def test_another_roles_statistics_are_refused_by_name(admin: psycopg.Connection[Any], database: Database) -> None:
    admin.execute("CREATE STATISTICS theirs (mcv) ON kind, name FROM owners")
    with pytest.raises(Unavailable, match=r"must be owner of statistics object.*connect as the role"):
        purge_files(database, lambda _: None)


def test_nothing_is_left_to_do_on_sqlite(sqlite_url: str) -> None:
    with closing(Database(sqlite_url)) as database:
        assert database.read_sync("system", statistics.tables_to_silence) == []
