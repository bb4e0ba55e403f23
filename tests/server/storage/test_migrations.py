"""The migrations and `tables.py` build the same database, on both engines."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect
from sqlalchemy.dialects.postgresql.base import ischema_names

from threefold.errors import Unavailable
from threefold_server.storage import migrate
from threefold_server.storage.database import Database
from threefold_server.storage.tables import metadata
from threefold_server.storage.types import PgVector


@pytest.fixture
def database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setitem(ischema_names, "vector", PgVector)  # reflection has to know pgvector's type
    opened = Database(database_url)
    yield opened
    opened.close()


def test_migrations_and_tables_agree(database: Database) -> None:

    def differences(connection: Connection) -> list[object]:
        return compare_metadata(MigrationContext.configure(connection), metadata)

    assert database.read_sync("system", differences) == []


def test_every_declared_index_is_there(database: Database) -> None:

    def names(connection: Connection) -> set[str]:
        inspector = inspect(connection)
        return {str(index["name"]) for table in metadata.tables for index in inspector.get_indexes(table)}

    declared = {str(index.name) for table in metadata.tables.values() for index in table.indexes}
    assert declared <= database.read_sync("system", names)


def test_an_empty_database_is_refused_with_the_next_step(blank_database_url: str) -> None:
    database = Database(blank_database_url)
    with pytest.raises(Unavailable, match="threefold migrate"):
        database.read_sync("system", migrate.check_current)
    database.close()


def test_parallel_first_starts_make_the_schema_once(blank_database_url: str) -> None:
    """Field case 507."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(migrate.upgrade, [blank_database_url] * 8))
    database = Database(blank_database_url)
    database.read_sync("system", migrate.check_current)
    database.close()
