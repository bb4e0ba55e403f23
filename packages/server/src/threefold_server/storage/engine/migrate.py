"""Schema migrations: apply them, and check that a database has all of them."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from threefold.errors import Unavailable
from threefold_server.storage.engine import files, statistics
from threefold_server.storage.engine.database import Database

MIGRATION_LOCK = 7_316_040_031  # an arbitrary constant: processes that migrate one Postgres database take turns


def upgrade(url: str) -> None:
    """Migrate the database at `url` to the current schema. Several processes may call this at once."""
    database = Database(url)
    files.create(database.url)
    try:
        database.write_sync("system", _upgrade)
        statistics.silence_all(database)
    finally:
        database.close()


def check_current(connection: Connection) -> None:
    """Raise `Unavailable` unless the database has the schema of this version."""
    found = MigrationContext.configure(connection).get_current_revision()
    needed = ScriptDirectory.from_config(_config()).get_current_head()
    if found != needed:
        raise Unavailable(
            f"the database schema is at {found or 'nothing'}, this version needs {needed}; run `threefold migrate`"
        )


def _upgrade(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL statement_timeout = 0"))  # a migration may take longer
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        _ensure_vector(connection)
    config = _config()
    _check_known(connection, config)
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _check_known(connection: Connection, config: Config) -> None:
    found = MigrationContext.configure(connection).get_current_revision()
    if found and found not in {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}:
        raise RuntimeError(
            f"the database schema is at {found}, from a newer version of Threefold; install that version"
        )


def _ensure_vector(connection: Connection) -> None:
    """Add pgvector to the database unless it is there, as only a superuser may add it."""
    if connection.execute(text("SELECT 1 FROM pg_extension WHERE extname = 'vector'")).first():
        return
    try:
        connection.execute(text("CREATE EXTENSION vector"))
    except DBAPIError as error:
        raise RuntimeError(
            "this database lacks pgvector, and this role cannot add it; "
            "as a superuser run in it: CREATE EXTENSION vector"
        ) from error


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parents[1] / "migrations"))
    return config
