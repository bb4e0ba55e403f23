"""The migrations and `tables.py` define the same database, on both engines."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text
from sqlalchemy.dialects.postgresql.base import ischema_names

from threefold.errors import Unavailable
from threefold_server.settings import sqlite_url
from threefold_server.storage.engine import migrate
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.tables import metadata
from threefold_server.storage.engine.types import PgVector


@pytest.fixture
def database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setitem(ischema_names, "vector", PgVector)  # reflection must know the type of pgvector
    opened = Database(database_url)
    yield opened
    opened.close()


def test_migrations_and_tables_agree(database: Database) -> None:

    def differences(connection: Connection) -> list[object]:
        return compare_metadata(MigrationContext.configure(connection), metadata)

    assert database.read_sync("system", differences) == []


def test_every_declared_index_exists(database: Database) -> None:

    def names(connection: Connection) -> set[str]:
        inspector = inspect(connection)
        return {str(index["name"]) for table in metadata.tables for index in inspector.get_indexes(table)}

    declared = {str(index.name) for table in metadata.tables.values() for index in table.indexes}
    assert declared <= database.read_sync("system", names)


def test_newest_revision_is_the_one_of_alembic() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrate.MIGRATIONS))
    assert migrate.newest() == ScriptDirectory.from_config(config).get_current_head()


def test_start_on_a_current_database_does_not_load_alembic(database_url: str) -> None:
    script = (
        "import sys; from threefold_server.storage.engine import migrate; migrate.upgrade(sys.argv[1]);"
        "print('alembic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script, database_url], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_empty_database_is_refused_with_the_next_step(blank_database_url: str) -> None:
    database = Database(blank_database_url)
    with pytest.raises(Unavailable, match="threefold migrate"):
        database.read_sync("system", migrate.check_current)
    database.close()


def test_newer_schema_is_not_changed(database: Database, database_url: str) -> None:
    """As after a downgrade, or if two versions share a store."""

    def stamp(connection: Connection) -> None:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))

    database.write_sync("system", stamp)
    with pytest.raises(RuntimeError, match="at 9999, from a newer version"):
        migrate.upgrade(database_url)


def test_file_that_is_no_database_is_reported(tmp_path: Path) -> None:
    (tmp_path / "threefold.db").write_text("This is a diary.")
    with pytest.raises(Unavailable, match="not a SQLite database"):
        migrate.upgrade(sqlite_url(tmp_path))


def test_parallel_first_starts_create_the_schema_once(blank_database_url: str) -> None:
    """Users reported that the first requests after a deployment failed because tables did not exist."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(migrate.upgrade, [blank_database_url] * 8))
    database = Database(blank_database_url)
    database.read_sync("system", migrate.check_current)
    database.close()
